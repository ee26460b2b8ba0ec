"""What takes the metrics of servers, and what it reads of them."""

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from ..tally import Tally
from .names import Metric, attributes_of

Record = Callable[[float], object]
"""Takes a measurement, in the unit of its metric."""


Values = Mapping[tuple[str, ...], float]
"""The values of a gauge by its labels."""


class Gauges:
    """What is read of a server when its metrics are collected.

    Args:
        tally: what it has counted.
        read: returns the values of each gauge, by the name of the metric.
    """

    def __init__(self, tally: Tally, read: Callable[[], Mapping[str, Values]]) -> None:
        self.tally = tally
        self.read = read


class Meters(Protocol):
    """Takes metrics: histograms as they are measured; counters and gauges are read where they are collected."""

    def bind(self, metric: Metric, attributes: Mapping[str, str]) -> Record:
        """Return what takes the measurements of a histogram that have the same labels.

        Args:
            metric: which one.
            attributes: the labels that apply.
        """
        ...

    def add(self, server: Gauges) -> None:
        """Show what a server has counted, for as long as there is that server."""
        ...


class Histogram:
    """A histogram in all meters. Labels are bound once, since that costs more than a measurement.

    Args:
        metric: which one.
        meters: take it.
    """

    def __init__(self, metric: Metric, meters: Sequence[Meters]) -> None:
        self._metric = metric
        self._meters = meters
        self._bound: dict[tuple[str, ...], Record] = {}

    def of(self, *labels: str) -> Record:
        """Return what takes the measurements that have these labels.

        Args:
            labels: the values of all labels of the metric, in their order; empty for one that does not apply.
        """
        found = self._bound.get(labels)
        if found is None:
            found = self._bound[labels] = self._bind(attributes_of(self._metric, labels))
        return found

    def _bind(self, attributes: Mapping[str, str]) -> Record:
        bound = [meters.bind(self._metric, attributes) for meters in self._meters]
        if len(bound) == 1:
            return bound[0]

        def record(value: float) -> None:
            for each in bound:
                each(value)

        return record


def counts_of(metric: Metric, servers: "list[Gauges]") -> dict[tuple[str, ...], int]:
    """Return what servers have counted together, by the labels."""
    found: dict[tuple[str, ...], int] = {}
    for server in servers:
        for labels, count in server.tally.of(metric.name):
            found[labels] = found.get(labels, 0) + count
    return found


def values_of(metric: Metric, servers: "list[Gauges]") -> dict[tuple[str, ...], float]:
    """Return the values of a gauge of all servers together, by the labels."""
    found: dict[tuple[str, ...], float] = {}
    for server in servers:
        for labels, value in server.read()[metric.name].items():
            before = found.get(labels, 0.0)
            found[labels] = before + value if metric.is_sum else max(before, value)
    return found
