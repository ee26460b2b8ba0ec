"""The metrics in the form that Prometheus reads. Extra: `prometheus`."""

from functools import cache

from opentelemetry.exporter.prometheus import PrometheusMetricReader
from opentelemetry.metrics import MeterProvider
from opentelemetry.sdk import metrics
from prometheus_client import REGISTRY
from prometheus_client.exposition import choose_encoder


@cache
def meter_provider() -> MeterProvider:
    """Return the provider whose metrics are shown; the same for all servers of the process."""
    return metrics.MeterProvider([PrometheusMetricReader(scope_info_enabled=False)])


def render(accept: str) -> tuple[bytes, str]:
    """Return all metrics of the process, and their content type.

    Args:
        accept: the header of that name.
    """
    encode, content_type = choose_encoder(accept)
    return encode(REGISTRY), content_type
