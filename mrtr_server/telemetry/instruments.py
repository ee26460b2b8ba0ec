"""The metrics, as instruments of OpenTelemetry."""

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any
from weakref import WeakKeyDictionary, WeakSet

from opentelemetry.metrics import CallbackOptions, Histogram, MeterProvider, Observation

from .._version import __version__
from .meters import Gauges, Record, counts_of, values_of
from .names import BUCKETS, METRICS, Metric, attributes_of

SCHEMA = "https://opentelemetry.io/schemas/1.40.0"
SCOPE = "mrtr_server"


class Instruments:
    """The instruments of one provider, which all servers of the process share; see `Meters`.

    Args:
        provider: makes them.
    """

    def __init__(self, provider: MeterProvider) -> None:
        meter = provider.get_meter(SCOPE, __version__, schema_url=SCHEMA)
        self._servers: WeakSet[Gauges] = WeakSet()
        self._histograms: dict[str, Histogram] = {}
        for metric in METRICS:
            name, unit, about = metric.name, metric.unit, metric.about
            if metric.kind == "histogram":
                self._histograms[name] = meter.create_histogram(
                    name, unit, about, explicit_bucket_boundaries_advisory=BUCKETS[name]
                )
            elif metric.kind == "counter":
                meter.create_observable_counter(name, [self._counter(metric)], unit, about)
            else:
                make = meter.create_observable_up_down_counter if metric.is_sum else meter.create_observable_gauge
                make(name, [self._gauge(metric)], unit, about)

    def bind(self, metric: Metric, attributes: Mapping[str, str]) -> Record:
        """Return what takes the measurements of a histogram; see `Meters`."""
        return partial(self._histograms[metric.name].record, attributes=attributes)

    def add(self, server: Gauges) -> None:
        """Show what a server has counted; see `Meters`."""
        self._servers.add(server)

    def _counter(self, metric: Metric) -> Callable[[CallbackOptions], Iterable[Observation]]:
        def observe(_: CallbackOptions) -> Iterable[Observation]:
            found = counts_of(metric, list(self._servers))
            return [Observation(count, attributes_of(metric, labels)) for labels, count in found.items()]

        return observe

    def _gauge(self, metric: Metric) -> Callable[[CallbackOptions], Iterable[Observation]]:
        def observe(_: CallbackOptions) -> Iterable[Observation]:
            found = values_of(metric, list(self._servers))
            return [Observation(value, attributes_of(metric, labels)) for labels, value in found.items()]

        return observe


_of_providers: WeakKeyDictionary[Any, Instruments] = WeakKeyDictionary()


def instruments_of(provider: MeterProvider) -> Instruments:
    """Return the instruments of a provider; a name must not be registered there twice."""
    found = _of_providers.get(provider)
    if found is None:
        found = _of_providers[provider] = Instruments(provider)
    return found
