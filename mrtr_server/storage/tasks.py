"""Tasks as rows: what a store keeps of a flow that goes on in the background."""

import asyncio
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from heapq import heapify, heappop, heappush, nsmallest
from threading import Lock
from typing import Any, Protocol, runtime_checkable

from ..errors import StoreUnavailable
from ..protocol.messages import TaskStatus


@dataclass(frozen=True, slots=True)
class TaskRow:
    """A task as it is stored. What its flow holds is sealed before it comes here.

    Args:
        id: names it.
        owner: digest of the principal that it belongs to; empty for nobody's.
        name: the tool.
        status: where it is.
        message: what it is doing, in words.
        created, updated: in seconds since the epoch.
        ttl: how long it is kept, from its creation, in seconds.
        poll: how often its client should ask for it, in seconds.
        deadline: when it fails unless it has ended by then, in seconds since the epoch.
        expires: when it is deleted, in seconds since the epoch.
        call, journal, questions, outcome: the request, the flow, what is asked, and what came of it; sealed.
        version: counts the changes; a change of another version than the present one does not happen.
        lease: names the worker's right to run it; empty if nobody runs it.
        leased_until: when that right ends, in seconds since the epoch.
        attempts: how often it was claimed since anything of it was last kept.
    """

    id: str
    owner: str
    name: str
    status: TaskStatus
    message: str
    created: float
    updated: float
    ttl: float
    poll: float
    deadline: float
    expires: float
    call: bytes
    journal: bytes
    questions: bytes = b""
    outcome: bytes = b""
    version: int = 0
    lease: str = ""
    leased_until: float = 0.0
    attempts: int = 0


ENDED = frozenset({"completed", "failed", "cancelled"})
"""The statuses that no task leaves."""


@runtime_checkable
class TaskStore(Protocol):
    """Keeps tasks. All durations are in seconds.

    A method that can't do its work raises `StoreUnavailable`; nothing is half done then. What is over its `expires`
    counts as absent. Leases are by the store's own clock.
    """

    shared: bool
    """Whether other processes see what this one keeps."""

    async def add_task(self, row: TaskRow, *, seconds: float = 0.0) -> bool:
        """Keep a new task. When this returns, every replica finds it, and it survives a crash.

        Args:
            row: the task.
            seconds: how long its lease holds, if it has one.

        Returns:
            Whether it is new; if there is one of that id already, that one stays as it is.
        """
        ...

    async def find_task(self, id: str) -> TaskRow | None:
        """Give a task; None if there is none (any more)."""
        ...

    async def change_task(self, row: TaskRow, *, seconds: float | None = None, **changes: Any) -> TaskRow | None:
        """Change fields of a task, atomically, if it still has the version of `row`.

        Args:
            row: the task as it was.
            seconds: how long the lease holds that is among the changes, from now on; None to leave its end as it is.
            changes: the fields, by name.

        Returns:
            The task with the changes and its next version; None, and nothing changed, if it has another version by now
            or is gone.
        """
        ...

    async def claim_tasks(
        self, lease: str, *, seconds: float, most: int, tools: Sequence[str], without: Sequence[str] = ()
    ) -> list[TaskRow]:
        """Take tasks of some tools that are working and that nobody runs, those first that wait longest.

        Each gets the lease, its end, one attempt more, and its next version. No other claim gets it before the lease
        has ended.

        Args:
            lease: names who takes them.
            seconds: how long the lease holds.
            most: how many to take.
            tools: the tools, by name.
            without: the ids of tasks to leave.
        """
        ...

    async def renew_tasks(self, lease: str, ids: list[str], *, seconds: float) -> set[str]:
        """Hold a lease on tasks for longer. Give those that are still working under it; their version stays."""
        ...

    async def overdue_tasks(self, *, most: int) -> list[TaskRow]:
        """Give tasks that have not ended and whose deadline is over; and delete, now and then, what has expired."""
        ...

    async def wait_for_tasks(self, seconds: float, *, tools: Sequence[str], without: Sequence[str] = ()) -> None:
        """Wait until there may be something to claim of some tools, without some tasks, for so long at most.

        What came after the last claim on this event loop has begun, or was left by it since it took its most, ends the
        wait at once.
        """
        ...


class InProcessTasks:
    """Tasks in this process's memory. They are gone when it ends.

    Args:
        clock: gives the time in seconds.
        most_bytes: what they may hold together before no more are started.
    """

    shared = False

    def __init__(self, clock: Callable[[], float] = time.time, most_bytes: int = 256 * 1024 * 1024) -> None:
        self._now = clock
        self._most_bytes = most_bytes
        self._bytes = 0
        self._tasks: dict[str, TaskRow] = {}
        self._working: set[str] = set()
        self._deadlines: list[tuple[float, str]] = []
        self._expiring: list[tuple[float, str]] = []
        """Heaps. They may hold more than there is: what has ended meanwhile stays in them until its time."""
        self._guard = Lock()
        self._wakes = Wakes()

    async def add_task(self, row: TaskRow, *, seconds: float = 0.0) -> bool:
        """Keep a new task; see `TaskStore`."""
        now = self._now()
        with self._guard:
            self._forget(now)
            if row.id in self._tasks:
                return False
            if self._bytes + _size(row) > self._most_bytes:
                raise StoreUnavailable(
                    f"The in-process store is full: its tasks hold {self._bytes} bytes; give it a larger most_bytes, "
                    "or the server a database"
                )
            heappush(self._expiring, (row.expires, row.id))
            heappush(self._deadlines, (row.deadline, row.id))
            self._put(replace(row, leased_until=now + seconds) if row.lease else row)
        if not row.lease:
            self._wakes.set()
        return True

    async def find_task(self, id: str) -> TaskRow | None:
        """Give a task; see `TaskStore`."""
        row = self._tasks.get(id)
        return row if row is not None and row.expires > self._now() else None

    async def change_task(self, row: TaskRow, *, seconds: float | None = None, **changes: Any) -> TaskRow | None:
        """Change fields of a task; see `TaskStore`."""
        now = self._now()
        if seconds is not None:
            changes["leased_until"] = now + seconds
        with self._guard:
            present = self._tasks.get(row.id)
            if present is None or present.version != row.version or present.expires <= now:
                return None
            changed = replace(present, **changes, version=present.version + 1)
            self._put(changed)
            if changed.deadline != present.deadline:
                heappush(self._deadlines, (changed.deadline, row.id))
                if len(self._deadlines) > 2 * len(self._tasks) + 100:  # most of them have been put off
                    self._deadlines = [
                        (each.deadline, id) for id, each in self._tasks.items() if each.status not in ENDED
                    ]
                    heapify(self._deadlines)
        if changed.status == "working" and not changed.lease:
            self._wakes.set()
        return changed

    async def claim_tasks(
        self, lease: str, *, seconds: float, most: int, tools: Sequence[str], without: Sequence[str] = ()
    ) -> list[TaskRow]:
        """Take tasks that nobody runs; see `TaskStore`."""
        self._wakes.clear()
        names = frozenset(tools)
        now = self._now()
        claimed: list[TaskRow] = []
        with self._guard:
            self._forget(now)
            working = (self._tasks[id] for id in self._working.difference(without))
            free = (row for row in working if row.leased_until <= now < row.deadline and row.name in names)
            for row in nsmallest(most, free, key=lambda row: row.updated):
                taken = replace(
                    row,
                    lease=lease,
                    leased_until=now + seconds,
                    attempts=row.attempts + 1,
                    version=row.version + 1,
                )
                self._tasks[row.id] = taken
                claimed.append(taken)
        if claimed and len(claimed) == most:  # there may be more
            self._wakes.set()
        return claimed

    async def renew_tasks(self, lease: str, ids: list[str], *, seconds: float) -> set[str]:
        """Hold a lease on tasks for longer; see `TaskStore`."""
        held = set()
        now = self._now()
        with self._guard:
            for id in ids:
                row = self._tasks.get(id)
                if row is not None and row.lease == lease and row.status == "working" and row.expires > now:
                    self._tasks[id] = replace(row, leased_until=now + seconds)
                    held.add(id)
        return held

    async def overdue_tasks(self, *, most: int) -> list[TaskRow]:
        """Give tasks whose deadline is over; see `TaskStore`."""
        now = self._now()
        overdue: dict[str, TaskRow] = {}
        with self._guard:
            self._forget(now)
            while self._deadlines and self._deadlines[0][0] <= now and len(overdue) < most:
                _, id = heappop(self._deadlines)
                row = self._tasks.get(id)
                if row is not None and row.status not in ENDED and row.deadline <= now:
                    overdue[id] = row
            for id, row in overdue.items():  # until somebody has ended it
                heappush(self._deadlines, (row.deadline, id))
        return list(overdue.values())

    async def wait_for_tasks(self, seconds: float, *, tools: Sequence[str], without: Sequence[str] = ()) -> None:
        """Wait until there may be something to claim; see `TaskStore`."""
        await self._wakes.wait(seconds)

    def _put(self, row: TaskRow) -> None:
        present = self._tasks.get(row.id)
        self._bytes += _size(row) - (0 if present is None else _size(present))
        self._tasks[row.id] = row
        if row.status == "working":
            self._working.add(row.id)
        else:
            self._working.discard(row.id)

    def _forget(self, now: float) -> None:
        while self._expiring and self._expiring[0][0] <= now:
            _, id = heappop(self._expiring)
            expired = self._tasks.pop(id, None)
            if expired is not None:
                self._bytes -= _size(expired)
            self._working.discard(id)


def _size(row: TaskRow) -> int:
    """Estimate what a task holds, in bytes."""
    return 512 + len(row.call) + len(row.journal) + len(row.questions) + len(row.outcome) + len(row.message)


class Wakes:
    """Wakes who waits on any event loop, from any thread. What comes before somebody waits is not lost."""

    def __init__(self) -> None:
        self._events: dict[asyncio.AbstractEventLoop, asyncio.Event] = {}

    def clear(self) -> None:
        """Forget what has come, as far as this event loop is concerned: somebody is about to look."""
        self._event().clear()

    def set(self) -> None:
        """Wake all who wait, and the next one on each event loop who does."""
        for loop, event in list(self._events.items()):
            try:
                loop.call_soon_threadsafe(event.set)
            except RuntimeError:  # it has ended
                self._events.pop(loop, None)

    async def wait(self, seconds: float) -> bool:
        """Wait for so long at most. Say whether there was a call to wake."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                return await self._event().wait()
        return False

    def _event(self) -> asyncio.Event:
        return self._events.setdefault(asyncio.get_running_loop(), asyncio.Event())
