"""Which telemetry a server has: what is asked for, or what the process has set up."""

import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from ..errors import SetupError
from ..extras import lacking

if TYPE_CHECKING:
    from .instruments import Instruments
    from .spans import Spans


@dataclass(frozen=True)
class OpenTelemetry:
    """Where the spans and metrics of a server go. Extra: `otel`.

    Pass it as `MRTRServer(telemetry=...)` where they go elsewhere than those of the rest of the process.

    Args:
        tracer_provider: makes the tracer; None for the one that is set for the process.
        meter_provider: makes the metrics; None for the one that is set for the process.
    """

    tracer_provider: Any = None
    meter_provider: Any = None


class Chosen(NamedTuple):
    """What a server observes its calls with.

    Args:
        spans: for traces; None for none.
        instruments: for metrics; None for none.
    """

    spans: "Spans | None" = None
    instruments: "Instruments | None" = None


def check(telemetry: OpenTelemetry | bool | None, metrics: str | None) -> None:
    """Check that two settings fit together, and that the libraries are there which they need. Raises `SetupError`."""
    if metrics is not None and isinstance(telemetry, OpenTelemetry) and telemetry.meter_provider is not None:
        raise SetupError("metrics= shows the metrics of a provider of its own; leave out meter_provider=, or metrics=")
    if telemetry:
        try:
            import opentelemetry.metrics
            import opentelemetry.trace  # noqa: F401
        except ImportError as error:
            raise lacking("telemetry=", "otel", error) from None
    if metrics is not None:
        try:
            from . import prometheus  # noqa: F401
        except ImportError as error:
            raise lacking("metrics=", "prometheus", error) from None


def choose(telemetry: OpenTelemetry | bool | None, metrics: str | None) -> Chosen:
    """Return what the calls of a server are observed with.

    Args:
        telemetry: the setting; None for what is set up in this process by now.
        metrics: the path where the metrics are shown; None for none.
    """
    # What nobody has imported, nobody has set up.
    if telemetry is False or (telemetry is None and "opentelemetry.sdk" not in sys.modules and metrics is None):
        return Chosen()
    from opentelemetry.metrics import get_meter_provider
    from opentelemetry.trace import get_tracer_provider

    from .instruments import instruments_of
    from .spans import Spans

    given = telemetry if isinstance(telemetry, OpenTelemetry) else OpenTelemetry()
    tracers = given.tracer_provider or get_tracer_provider()
    meters: Any = given.meter_provider
    if metrics is not None and meters is None:
        from .prometheus import meter_provider

        meters = meter_provider()
    meters = meters or get_meter_provider()
    wanted = telemetry is True
    return Chosen(
        Spans(tracers) if wanted or _is_set_up(tracers) else None,
        instruments_of(meters) if wanted or _is_set_up(meters) else None,
    )


def _is_set_up(provider: Any) -> bool:
    """Return whether a provider does anything: those of the API itself wait for another one, or do nothing."""
    return not type(provider).__module__.startswith(("opentelemetry.trace", "opentelemetry.metrics"))
