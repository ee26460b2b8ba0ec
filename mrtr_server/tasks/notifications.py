"""Changes of tasks, each with what its client would see if it asked."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence, Set
from typing import NamedTuple

from ..errors import StoreUnavailable
from ..protocol.messages import Change, Subscription, Task, TaskStatus

AGAIN_AFTER = 0.5
"""How long to wait before looking again at a task that could not be read, in seconds."""


class Looked(NamedTuple):
    """What was found of some tasks.

    Args:
        tasks: those that their listener may see, by id.
        left: the ids that have not been looked up yet, since what was found is large.
    """

    tasks: Mapping[str, Task]
    left: Sequence[str]


class Seen(NamedTuple):
    """A task as it was reported to a listener."""

    status: TaskStatus
    updated: float
    message: str
    questions: tuple[str, ...]


Look = Callable[[Sequence[str]], Awaitable[Looked]]
"""Looks up tasks by their sorted ids."""


async def with_tasks(changes: Subscription, look: Look) -> "TaskChanges":
    """Make a subscription carry tasks: those that its listener may see, each as it is.

    Args:
        changes: the subscription; it runs already, so that nothing is missed meanwhile.
        look: returns tasks.
    """
    left: Sequence[str] = sorted(change.uri for change in changes.wanted if change.kind == "task")
    seen: set[str] = set()
    while left:
        tasks, left = await look(left)
        seen |= tasks.keys()
    return TaskChanges(changes, seen, look)


class TaskChanges:
    """A subscription whose changes of tasks say how these are doing.

    Args:
        changes: the subscription.
        ids: the tasks whose changes are reported.
        look: returns tasks.
        told: what was reported to the listener of each task, by id; new reports are added.
    """

    def __init__(self, changes: Subscription, ids: Set[str], look: Look, told: dict[str, Seen] | None = None) -> None:
        self._ids = ids
        self._changes = changes
        self._look = look
        self._known = {} if told is None else told
        # A task that has ended before its listener came would never change again, so each is reported at first.
        self._waiting: dict[Change, None] = dict.fromkeys(Change("task", id) for id in sorted(ids))

    @property
    def wanted(self) -> frozenset[Change]:
        """The changes that are reported."""
        return frozenset(filter(self._is_reported, self._changes.wanted))

    def _is_reported(self, change: Change) -> bool:
        return change.kind != "task" or change.uri in self._ids

    async def next(self) -> list[Change]:
        """Wait for changes. Return an empty list when the subscription has ended."""
        while True:
            if not self._waiting:
                happened = await self._changes.next()
                if not happened:
                    return []
                self._waiting = dict.fromkeys(filter(self._is_reported, happened))
            if told := await self._told():
                return told

    async def _told(self) -> list[Change]:
        # A change stays here until it is reported: the caller may be cancelled, and come again.
        told = [change for change in self._waiting if change.kind != "task"]
        left: Sequence[str] = sorted(change.uri for change in self._waiting if change.kind == "task")
        if left:
            try:
                tasks, left = await self._look(left)  # the others wait until these are sent: each may be large
            except StoreUnavailable:  # which is logged elsewhere; the listener is notified later
                if not told:
                    await asyncio.sleep(AGAIN_AFTER)
            else:
                told += [Change("task", id, task) for id, task in tasks.items() if self._known.get(id) != seen_of(task)]
        self._waiting = dict.fromkeys(Change("task", id) for id in left)
        self._known |= {change.uri: seen_of(change.task) for change in told if change.task is not None}
        return told

    def close(self) -> None:
        """End the subscription."""
        self._changes.close()


def seen_of(task: Task) -> Seen:
    """Return what is reported of a task, so that nothing is reported twice."""
    return Seen(task.status, task.updated, task.message, tuple(task.questions))
