"""What operations of the store take, and which tasks come to which status."""

from collections.abc import Callable, Mapping

from ..storage.tasks import TaskRow
from ..tally import TASKS, Tally
from . import names

Record = Callable[[names.Metric, float, Mapping[str, str]], None]
"""Takes a measurement: the metric, the value and the labels."""


class StoreMeasures:
    """Measures what a store does.

    Args:
        tally: counts tasks by their status.
        record: takes the times.
    """

    def __init__(self, tally: Tally, record: Record) -> None:
        self._tally = tally
        self._record = record

    def took(self, method: str, seconds: float, error: Exception | None) -> None:
        """Note what an operation took.

        Args:
            method: its name.
            seconds: how long it took.
            error: why it failed; None if it did not.
        """
        reason = "" if error is None else names.reason_of(error)
        self._record(names.STORE, seconds, names.attributes_of(names.STORE, (method, reason)))

    def added(self, row: TaskRow) -> None:
        """Note that there is a new task."""
        self._tally.add(TASKS, row.name, row.status)

    def changed(self, row: TaskRow, to: TaskRow) -> None:
        """Note that a task has changed.

        Args:
            row: what it was.
            to: what it is.
        """
        if to.status != row.status:
            self._tally.add(TASKS, row.name, to.status)
            if row.status == "input_required":
                waited = max(0.0, to.updated - row.updated)
                self._record(names.TASK_TIME, waited, names.attributes_of(names.TASK_TIME, (row.name, row.status)))
