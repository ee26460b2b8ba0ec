"""What takes the metrics of servers, and what is measured besides calls: the store, tasks, the event loop."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Protocol

from ..concurrency.running import PerLoop, running_loop
from ..storage.rows import TaskRow
from ..tally import TASKS, Tally
from .names import STORE, TASK_TIME, Metric, attributes_of, reason_of

Record = Callable[[float], object]  # takes a measurement, in the unit of its metric


Values = Mapping[tuple[str, ...], float]  # of a gauge, by its labels

INTERVAL = 0.5  # between measurements of the lag, in seconds

_measured = PerLoop[bool]()


class Gauges:
    def __init__(self, tally: Tally, read: Callable[[], Mapping[str, Values]]) -> None:
        self.tally = tally
        self.read = read


class Meters(Protocol):
    """Takes metrics: histograms as they are measured; counters and gauges are read where they are collected."""

    def bind(self, metric: Metric, attributes: Mapping[str, str]) -> Record:
        """Return what takes the measurements of a histogram that have the same labels."""

    def add(self, server: Gauges) -> None:
        """Show what a server has counted, for as long as there is that server."""


class Histogram:
    """A histogram in all meters. Labels are bound once, since that costs more than a measurement."""

    def __init__(self, metric: Metric, meters: Sequence[Meters]) -> None:
        self._metric = metric
        self._meters = meters
        self._bound: dict[tuple[str, ...], Record] = {}

    def of(self, *labels: str) -> Record:
        """Return what takes measurements with these labels, in the metric's order; an empty one does not apply."""
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


def values_of(metric: Metric, servers: Iterable[Gauges]) -> dict[tuple[str, ...], float]:
    """Return the counts of a counter, or the values of a gauge, of all servers together, by the labels."""
    found: dict[tuple[str, ...], float] = {}
    is_counter = metric.kind == "counter"
    for server in servers:
        for labels, value in server.tally.of(metric.name) if is_counter else server.read()[metric.name].items():
            before = found.get(labels, 0 if is_counter else 0.0)  # counts stay integers
            found[labels] = before + value if metric.is_sum else max(before, value)
    return found


class StoreMeasures:
    def __init__(self, tally: Tally, meters: Sequence[Meters]) -> None:
        self._tally = tally
        self._operations = Histogram(STORE, meters)
        self._task_times = Histogram(TASK_TIME, meters)

    def took(self, method: str, seconds: float, error: Exception | None) -> None:
        reason = "" if error is None else reason_of(error)
        self._operations.of(method, reason)(seconds)

    def added(self, row: TaskRow) -> None:
        self._tally.add(TASKS, row.name, row.status)

    def changed(self, row: TaskRow, to: TaskRow) -> None:
        if to.status != row.status:
            self._tally.add(TASKS, row.name, to.status)
            if row.status == "input_required":
                self._task_times.of(row.name, row.status)(max(0.0, to.updated - row.updated))


def measure_lag(record: Record) -> None:
    """Measure the lag of the running event loop, in seconds, until it is closed, unless that is done already."""
    if _measured.get():
        return
    _measured.put(True)
    loop = running_loop()
    due = loop.time() + INTERVAL

    def look() -> None:
        nonlocal due
        now = loop.time()
        record(max(0.0, now - due))
        due = now + INTERVAL
        loop.call_at(due, look)

    loop.call_at(due, look)
