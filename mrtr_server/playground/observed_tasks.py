"""What the rounds of tasks did in this process, for the page: tasks run without a request that could carry a report."""

from collections import OrderedDict
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from ..flow.inspection import describe_journal
from ..flow.journal import Journal
from ..flow.steps import step_watcher
from ..protocol.messages import JSON, Call
from ..storage.base import TaskRow
from .observed_rounds import LONGEST_NAME

T = TypeVar("T")

MOST_TASKS = 64
"""How many tasks are remembered: the last ones."""

MOST_ROUNDS = 20
"""How many rounds of a task are remembered: the last ones."""


class ObservedTasks:
    """Remembers the last tasks that ran here."""

    def __init__(self) -> None:
        self._seen: OrderedDict[str, JSON] = OrderedDict()

    async def serve(self, call: Call, journal: Journal, row: TaskRow, work: Callable[[], Awaitable[T]]) -> T:
        """Run a round of a task, and remember what it did; see `BackgroundTools.observe`.

        Args:
            call: the request that it came from.
            journal: what its flow remembers.
            row: the task.
            work: runs the round.
        """
        round_: dict[str, list[str]] = {"ran": [], "replayed": []}
        seen = self._seen.setdefault(row.id, {"rounds": []})
        self._seen.move_to_end(row.id)
        while len(self._seen) > MOST_TASKS:
            self._seen.popitem(last=False)
        seen["rounds"] = [*seen["rounds"], round_][-MOST_ROUNDS:]
        before = step_watcher.get()

        def note_step(step: str, runs: bool) -> None:
            round_["ran" if runs else "replayed"].append(step[:LONGEST_NAME])
            if before is not None:
                before(step, runs)

        step_watcher.set(note_step)
        try:
            return await work()
        finally:
            step_watcher.set(before)  # no token: a round that is abandoned ends in another context
            seen["held"] = describe_journal(journal, values=True)

    def describe(self, task: str) -> dict[str, Any]:
        """Return what a task did in this process: its `rounds`, and what its journal `held` after the last of them.

        Args:
            task: its id.
        """
        return self._seen.get(task, {"error": "No round of it has run in this process."})
