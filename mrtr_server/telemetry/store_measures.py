"""What operations of the store take, and which tasks come to which status."""

from collections.abc import Sequence

from ..storage.base import TaskRow
from ..tally import TASKS, Tally
from .meters import Histogram, Meters
from .names import STORE, TASK_TIME, reason_of


class StoreMeasures:
    """Measures what a store does.

    Args:
        tally: counts tasks by their status.
        meters: take the times.
    """

    def __init__(self, tally: Tally, meters: Sequence[Meters]) -> None:
        self._tally = tally
        self._operations = Histogram(STORE, meters)
        self._task_times = Histogram(TASK_TIME, meters)

    def took(self, method: str, seconds: float, error: Exception | None) -> None:
        """Note what an operation took.

        Args:
            method: its name.
            seconds: how long it took.
            error: why it failed; None if it did not.
        """
        reason = "" if error is None else reason_of(error)
        self._operations.of(method, reason)(seconds)

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
                self._task_times.of(row.name, row.status)(max(0.0, to.updated - row.updated))
