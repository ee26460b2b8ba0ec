"""What takes the metrics of servers, and what it reads of them."""

from collections.abc import Callable, Mapping
from typing import Any, Protocol

from ..tally import Tally
from .names import Metric


class Gauges:
    """What is read of a server when its metrics are collected.

    Args:
        tally: what it has counted.
        read: returns the value of each gauge, by the name of the metric.
    """

    def __init__(self, tally: Tally, read: Callable[[], Mapping[str, float]]) -> None:
        self.tally = tally
        self.read = read


class Meters(Protocol):
    """Takes metrics: histograms as they are measured; counters and gauges are read where they are collected."""

    def record(self, metric: Metric, value: float, attributes: Mapping[str, Any]) -> None:
        """Take a measurement of a histogram.

        Args:
            metric: which one.
            value: what was measured, in its unit.
            attributes: the labels that apply.
        """
        ...

    def add(self, server: Gauges) -> None:
        """Show what a server has counted, for as long as there is that server."""
        ...


def counts_of(metric: Metric, servers: "list[Gauges]") -> dict[tuple[str, ...], int]:
    """Return what servers have counted together, by the labels."""
    found: dict[tuple[str, ...], int] = {}
    for server in servers:
        for labels, count in server.tally.of(metric.name):
            found[labels] = found.get(labels, 0) + count
    return found


def value_of(metric: Metric, servers: "list[Gauges]") -> float:
    """Return the value of a gauge of all servers together."""
    return sum(server.read()[metric.name] for server in servers)
