"""The metrics, as instruments of OpenTelemetry."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any
from weakref import WeakKeyDictionary, WeakSet

from opentelemetry.metrics import CallbackOptions, Meter, MeterProvider, Observation

from .._version import __version__
from ..tally import Tally
from .names import DURATION, LAG, METRICS, SECONDS, STATE_SIZE, STORE, TASK_TIME, Metric, attributes_of

SCHEMA = "https://opentelemetry.io/schemas/1.40.0"
SCOPE = "mrtr_server"

_BUCKETS: Mapping[Metric, Sequence[float]] = {
    DURATION: SECONDS,
    STATE_SIZE: (256, 512, 1024, 2048, 4096, 8192, 16384, 32768, 65536, 131072, 262144),
    STORE: (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10),
    TASK_TIME: (0.1, 0.5, 1, 5, 10, 30, 60, 300, 900, 3600, 14400, 86400),
    LAG: (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10),
}


class Gauges:
    """What is read of a server when its metrics are collected.

    Args:
        tally: what it has counted.
        read: returns the value of each gauge, by the name of the metric.
    """

    def __init__(self, tally: Tally, read: Callable[[], Mapping[str, float]]) -> None:
        self.tally = tally
        self.read = read


class Instruments:
    """The instruments of one provider, which all servers of the process share.

    Args:
        provider: makes them.
    """

    def __init__(self, provider: MeterProvider) -> None:
        meter = provider.get_meter(SCOPE, __version__, schema_url=SCHEMA)
        self._servers: WeakSet[Gauges] = WeakSet()
        self.call_took = _histogram(meter, DURATION)
        self.state_size = _histogram(meter, STATE_SIZE)
        self.store_took = _histogram(meter, STORE)
        self.task_was = _histogram(meter, TASK_TIME)
        self.loop_lagged = _histogram(meter, LAG)
        for metric in METRICS:
            if metric.kind == "counter":
                meter.create_observable_counter(metric.name, [self._counter(metric)], metric.unit, metric.about)
            elif metric.kind == "gauge":
                meter.create_observable_up_down_counter(metric.name, [self._gauge(metric)], metric.unit, metric.about)

    def add(self, server: Gauges) -> None:
        """Show what a server has counted, for as long as there is that server."""
        self._servers.add(server)

    def _counter(self, metric: Metric) -> Callable[[CallbackOptions], Iterable[Observation]]:
        def observe(_: CallbackOptions) -> Iterable[Observation]:
            found: dict[tuple[str, ...], int] = {}
            for server in list(self._servers):
                for labels, count in server.tally.of(metric.name):
                    found[labels] = found.get(labels, 0) + count
            return [Observation(count, attributes_of(metric, labels)) for labels, count in found.items()]

        return observe

    def _gauge(self, metric: Metric) -> Callable[[CallbackOptions], Iterable[Observation]]:
        def observe(_: CallbackOptions) -> Iterable[Observation]:
            return [Observation(sum(server.read()[metric.name] for server in list(self._servers)))]

        return observe


def _histogram(meter: Meter, metric: Metric) -> Callable[..., None]:
    made = meter.create_histogram(
        metric.name, metric.unit, metric.about, explicit_bucket_boundaries_advisory=_BUCKETS[metric]
    )
    return made.record


_of_providers: WeakKeyDictionary[Any, Instruments] = WeakKeyDictionary()


def instruments_of(provider: MeterProvider) -> Instruments:
    """Return the instruments of a provider; a name must not be registered there twice."""
    found = _of_providers.get(provider)
    if found is None:
        found = _of_providers[provider] = Instruments(provider)
    return found
