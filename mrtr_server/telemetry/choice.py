"""Which telemetry a server has: what is asked for, or what the process has set up."""

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ..errors import lacking
from .meters import Meters

if TYPE_CHECKING:
    from .open_telemetry import Spans


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


def check(telemetry: OpenTelemetry | bool | None, *, shows_metrics: bool) -> None:
    if telemetry:
        try:
            import opentelemetry.metrics
            import opentelemetry.trace  # noqa: F401
        except ImportError as error:
            raise lacking("telemetry=", "otel", error) from None
    if shows_metrics:
        try:
            from . import prometheus  # noqa: F401
        except ImportError as error:
            raise lacking("metrics=", "prometheus", error) from None


def choose(telemetry: OpenTelemetry | bool | None, *, shows_metrics: bool) -> "tuple[Spans | None, Sequence[Meters]]":
    """Return what calls are observed with; for None, what is set up in this process by now."""
    meters: list[Meters] = []
    if shows_metrics:
        from .prometheus import metrics as of_prometheus

        meters.append(of_prometheus())
    # A library that is not imported is not set up either.
    if telemetry is False or (telemetry is None and "opentelemetry.sdk" not in sys.modules):
        return None, meters
    from opentelemetry.metrics import get_meter_provider
    from opentelemetry.trace import get_tracer_provider

    from .open_telemetry import Spans, instruments_of

    given = telemetry if isinstance(telemetry, OpenTelemetry) else OpenTelemetry()
    tracer_provider = given.tracer_provider or get_tracer_provider()
    meter_provider = given.meter_provider or get_meter_provider()
    if telemetry is True or _is_set_up(meter_provider):
        meters.append(instruments_of(meter_provider))
    return Spans(tracer_provider) if telemetry is True or _is_set_up(tracer_provider) else None, meters


def _is_set_up(provider: Any) -> bool:
    """Return whether a provider does anything: those of the API itself wait for another one, or do nothing."""
    return not type(provider).__module__.startswith(("opentelemetry.trace", "opentelemetry.metrics"))
