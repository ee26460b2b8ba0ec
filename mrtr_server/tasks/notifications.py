"""How clients hear of tasks: the changes of those that they listen to, and requests that wait for one."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence, Set
from contextlib import closing
from typing import NamedTuple

from ..concurrency.places import PlacesByCaller
from ..concurrency.running import running_loop
from ..concurrency.waiting import growing, wait_until
from ..errors import StoreUnavailable
from ..flow.admission import Admission
from ..limits import Limits
from ..protocol.messages import Change, Subscription, Task, TaskStatus
from ..storage.pubsub import Fanout
from ..storage.rows import TaskRow
from .records import PieceReader

AGAIN_AFTER = 0.5  # seconds until the next look at a task that could not be read

FIRST_LOOK, LAST_LOOK = 0.5, 5.0
"""Seconds that a request waits for a notification before it looks at its task: the first time and the last.

A process that dies may not have sent its notification, and a fan-out of the author's may not reach here.
"""

WHILE_DRAINING = 1.0
"""Seconds that a request waits at a draining server, so that its client does not come again at once while no other
replica is there."""


class Looked(NamedTuple):
    """Tasks that were looked up."""

    tasks: Mapping[str, Task]  # those that their listener may see, by id
    left: Sequence[str]  # the ids that have not been looked up yet, since what was found is large


class Seen(NamedTuple):
    """A task as it was reported to a listener."""

    status: TaskStatus
    updated: float
    message: str
    questions: tuple[str, ...]


Look = Callable[[Sequence[str]], Awaitable[Looked]]  # looks up tasks by their sorted ids


async def with_tasks(changes: Subscription, look: Look) -> "TaskChanges":
    """Make a subscription carry tasks: those that its listener may see, each as it is."""
    left: Sequence[str] = sorted(change.uri for change in changes.wanted if change.kind == "task")
    seen: set[str] = set()
    while left:
        tasks, left = await look(left)
        seen |= tasks.keys()
    return TaskChanges(changes, seen, look)


class TaskChanges:
    """A subscription whose changes of tasks say how these are doing."""

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


class WaitingRequests:
    """Lets requests wait until a task asks or ends."""

    def __init__(
        self, fanout: Fanout, admission: Admission, limits: Limits, status: Callable[[TaskRow], TaskStatus]
    ) -> None:
        self._status = status
        self._fanout = fanout
        self._admission = admission
        self.places = PlacesByCaller("task_waits", limits)

    def has_room(self, row: TaskRow) -> bool:
        """Return whether one more request may wait for a task of its caller."""
        return self.places.has_room(row.caller or None)

    async def wait_for(
        self, row: TaskRow, find: Callable[[], Awaitable[TaskRow]], seconds: float, reader: PieceReader | None = None
    ) -> TaskRow:
        """Wait until a task asks or ends, for so long at most; or until the server drains. Return it as it is then."""
        if not self.has_room(row) or self._status(row) != "working":
            if reader is not None:
                await reader.send_new()
            return row

        async def look(heard: object) -> TaskRow | None:
            nonlocal row
            row = await find()
            if reader is not None:  # what came before the task asked or ended, too
                await reader.send_new()
            return None if self._status(row) == "working" else row

        is_draining = self._admission.draining
        if is_draining:
            seconds = min(seconds, row.poll, WHILE_DRAINING)
        wanted = {Change("task", row.id)} if reader is None else {Change("task", row.id), Change("piece", row.id)}
        with self.places.take(row.caller or None), closing(self._fanout.subscribe(frozenset(wanted))) as changes:
            await wait_until(
                look,
                changes,
                deadline=running_loop().time() + seconds,
                pauses=growing(FIRST_LOOK, LAST_LOOK),
                endings=() if is_draining else (self._admission.on_drain,),
            )
        return row
