"""The metrics in the form that Prometheus reads. Extra: `prometheus`.

They are named as OpenTelemetry's rules have it: `mcp.server.operation.duration` in seconds is
`mcp_server_operation_duration_seconds`.
"""

from bisect import bisect_left
from collections.abc import Iterator, Mapping
from functools import cache
from itertools import accumulate
from weakref import WeakSet

from prometheus_client import REGISTRY
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector

from .meters import Gauges, Record, values_of
from .names import BUCKETS, METRICS, Metric

_UNITS = {"s": "_seconds", "By": "_bytes"}

Family = CounterMetricFamily | GaugeMetricFamily | HistogramMetricFamily


class PrometheusMetrics(Collector):
    """The metrics of all servers of the process; see `Meters`."""

    def __init__(self) -> None:
        self._servers: WeakSet[Gauges] = WeakSet()
        # The counts of all buckets and the sum, by name and attributes.
        self._measured: dict[str, dict[tuple[tuple[str, str], ...], list[float]]] = {
            metric.name: {} for metric in METRICS if metric.kind == "histogram"
        }

    def bind(self, metric: Metric, attributes: Mapping[str, str]) -> Record:
        buckets = BUCKETS[metric.name]
        counts = self._measured[metric.name].setdefault(tuple(attributes.items()), [0.0] * (len(buckets) + 2))

        def record(value: float) -> None:
            counts[bisect_left(buckets, value)] += 1
            counts[-1] += value

        return record

    def add(self, server: Gauges) -> None:
        self._servers.add(server)

    def collect(self) -> Iterator[Family]:
        servers = list(self._servers)
        for metric in METRICS:
            name, labels = prometheus_name(metric), [_plain(label) for label in metric.labels]
            if metric.kind == "histogram":
                yield self._histogram(metric, HistogramMetricFamily(name, metric.about, labels=labels))
                continue
            kind = CounterMetricFamily if metric.kind == "counter" else GaugeMetricFamily
            family = kind(name, metric.about, labels=labels)
            for values, value in values_of(metric, servers).items():
                family.add_metric(values, value)
            yield family

    def _histogram(self, metric: Metric, family: HistogramMetricFamily) -> HistogramMetricFamily:
        bounds = [*(f"{bound:g}" for bound in BUCKETS[metric.name]), "+Inf"]
        for attributes, (*counts, total) in list(self._measured[metric.name].items()):
            given = dict(attributes)
            values = [given.get(label, "") for label in metric.labels]
            family.add_metric(values, list(zip(bounds, accumulate(counts), strict=True)), total)
        return family


def prometheus_name(metric: Metric) -> str:
    return _plain(metric.name) + _UNITS.get(metric.unit, "")


def _plain(name: str) -> str:
    return name.replace(".", "_")


@cache
def metrics() -> PrometheusMetrics:
    """Return the metrics of this process, which the registry of `prometheus_client` shows beside its own."""
    made = PrometheusMetrics()
    REGISTRY.register(made)
    return made


def render(accept: str) -> tuple[bytes, str]:
    encode, content_type = choose_encoder(accept)
    return encode(REGISTRY), content_type
