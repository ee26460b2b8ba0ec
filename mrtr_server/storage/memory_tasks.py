"""Tasks in dictionaries, for a server that is one process; waiting tasks are in queues by tool and caller."""

import heapq
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import replace
from itertools import chain, islice
from threading import Lock
from typing import Any

from typing_extensions import override

from ..concurrency.running import running_loop
from ..concurrency.waiting import Wakes, wait_until
from ..errors import StoreUnavailable
from .base import TaskStore
from .quotas import ANY, NOBODY, UNLIMITED, Quota, Usage, UsageByCaller
from .rows import ENDED, FREE, MOST_COUNTED, Places, TaskRow, Vitals, Waiting, WaitRow


class InProcessTasks(TaskStore):
    """The half of the in-process store that keeps tasks. The usage is that of both halves."""

    keeps_waits = True

    def __init__(self, clock: Callable[[], float], most_records: int, most_bytes: int, usage: UsageByCaller) -> None:
        self._now = clock
        self._most_bytes = most_bytes
        self._room = Usage(UNLIMITED, most_records, most_bytes)
        self._usage = usage
        self._bytes = 0
        self._tasks: dict[str, TaskRow] = {}
        self._tenants: dict[str, str] = {}  # by id, of those that have one
        self._waits: dict[str, WaitRow] = {}
        self._most_waits = 100
        self._owned: dict[str, set[str]] = {}  # ids by owner
        self._waiting = TaskQueues(self._tasks)
        self._leased: set[str] = set()
        """The ids of tasks that run under a lease, whether it has ended or not."""
        self._deadlines: list[tuple[float, str]] = []
        self._expiring: list[tuple[float, str]] = []
        """Heaps. Entries of tasks that have ended stay in them until their time."""
        self._guard = Lock()
        self._wakes = Wakes()

    @override
    async def add_task(self, row: TaskRow, *, seconds: float = 0.0, quota: Quota = ANY) -> bool:
        now = self._now()
        with self._guard:
            self._forget(now)
            if row.id in self._tasks:
                return False
            self._usage.check_task(quota, self._room)
            if self._bytes + _size(row) > self._most_bytes:
                raise StoreUnavailable(
                    f"The in-process store is full: its tasks hold {self._bytes} bytes; give it a larger most_bytes, "
                    "or the server a database"
                )
            heapq.heappush(self._expiring, (row.expires, row.id))
            heapq.heappush(self._deadlines, (row.deadline, row.id))
            self._usage.add(row.caller, 1, 0, 0, quota.tenant)
            if quota.tenant:
                self._tenants[row.id] = quota.tenant
            self._put(row._replace(leased_until=now + seconds) if row.lease else row)
        if not row.lease:
            self._wakes.set()
        return True

    @override
    async def find_task(self, id: str) -> TaskRow | None:
        row = self._tasks.get(id)
        return row if row is not None and row.expires > self._now() else None

    @override
    async def list_owned_tasks(
        self, owner: str, *, before: tuple[float, str], most: int, most_bytes: int
    ) -> list[TaskRow]:
        now = self._now()
        with self._guard:
            rows = [self._tasks[id] for id in self._owned.get(owner, ())]
        rows = [row for row in rows if row.expires > now and (row.created, row.id) < before]
        found: list[TaskRow] = []
        for row in heapq.nlargest(most, rows, key=lambda row: (row.created, row.id)):
            if found and most_bytes <= 0:
                break
            most_bytes -= row.visible_bytes
            found.append(row._replace(call=b"", journal=b""))
        return found

    @override
    async def change_task(self, row: TaskRow, *, seconds: float | None = None, **changes: Any) -> TaskRow | None:
        now = self._now()
        if seconds is not None:
            changes["leased_until"] = now + seconds
        with self._guard:
            present = self._tasks.get(row.id)
            if present is None or present.version != row.version or present.expires <= now:
                return None
            changed = present._replace(**changes, version=present.version + 1)
            self._put(changed)
            if changed.deadline != present.deadline:
                heapq.heappush(self._deadlines, (changed.deadline, row.id))
                if len(self._deadlines) > 2 * len(self._tasks) + 100:  # most of them have been put off
                    self._deadlines = [
                        (each.deadline, id) for id, each in self._tasks.items() if each.status not in ENDED
                    ]
                    heapq.heapify(self._deadlines)
        if changed.status == "working" and not changed.lease:
            self._wakes.set()
        return changed

    @override
    async def claim_tasks(
        self,
        lease: str,
        *,
        seconds: float,
        most: int,
        tools: Sequence[str],
        without: Sequence[str] = (),
        lapsed: bool = True,
        places: Places = FREE,
    ) -> list[TaskRow]:
        self._wakes.clear()
        now = self._now()
        claimed: list[TaskRow] = []
        with self._guard:
            self._forget(now)
            if lapsed:
                self._free_lapsed(now)
            for row in self._waiting.next(most, tools, frozenset(without), places, now):
                taken = row._replace(
                    lease=lease, leased_until=now + seconds, attempts=row.attempts + 1, version=row.version + 1
                )
                self._put(taken)
                claimed.append(taken)
        if claimed and len(claimed) == most:  # there may be more
            self._wakes.set()
        return sorted(claimed, key=lambda row: row.updated)

    @override
    async def renew_tasks(self, lease: str, ids: list[str], *, seconds: float) -> set[str]:
        held = set()
        now = self._now()
        with self._guard:
            for id in ids:
                row = self._tasks.get(id)
                if row is None or row.lease != lease or row.expires <= now:
                    continue
                if row.status in ("working", "cancelled"):
                    self._put(row._replace(leased_until=now + seconds))
                if row.status == "working":
                    held.add(id)
        return held

    @override
    async def overdue_tasks(self, *, most: int) -> list[TaskRow]:
        now = self._now()
        overdue: dict[str, TaskRow] = {}
        with self._guard:
            self._forget(now)
            while self._deadlines and self._deadlines[0][0] <= now and len(overdue) < most:
                _, id = heapq.heappop(self._deadlines)
                row = self._tasks.get(id)
                if row is not None and row.status not in ENDED and row.deadline <= now:
                    overdue[id] = row
            for id, row in overdue.items():  # until somebody has ended it
                heapq.heappush(self._deadlines, (row.deadline, id))
        return list(overdue.values())

    @override
    async def measure(self, tools: Sequence[str]) -> Vitals:
        now = self._now()
        with self._guard:
            self._forget(now)
            silent = [row for id in self._leased if (row := self._tasks[id]).leased_until <= now]
            waiting = {tool: self._waiting.waiting(tool, MOST_COUNTED, now) for tool in tools}
        for row in silent:
            if row.name in waiting:
                waiting[row.name].append(row)
        counted = {tool: _counted(rows, now) for tool, rows in waiting.items()}
        return Vitals(replace(self._usage.all), self._room, counted)

    @override
    async def wait_for_tasks(
        self, seconds: float, *, tools: Sequence[str], without: Sequence[str] = (), lapsed: bool = True
    ) -> None:
        async def look(heard: Sequence[bool] | None) -> bool | None:
            return bool(heard) or None

        await wait_until(look, self._wakes, deadline=running_loop().time() + seconds, at_once=False)

    @override
    async def put_wait(self, row: WaitRow) -> None:
        with self._guard:
            if len(self._waits) >= self._most_waits:  # some of them have expired, or there are as many more
                self._waits = {id: each for id, each in self._waits.items() if each.expires > self._now()}
                self._most_waits = 2 * len(self._waits) + 100
            present = self._waits.get(row.id, row)
            self._waits[row.id] = present._replace(who=row.who)

    @override
    async def list_waits(self, name: str, who: str, *, before: tuple[float, str], most: int) -> list[WaitRow]:
        now = self._now()
        with self._guard:
            rows = [row for row in self._waits.values() if (row.name, row.who) == (name, who) and row.expires > now]
        rows = [row for row in rows if (row.created, row.id) < before]
        return heapq.nlargest(most, rows, key=lambda row: (row.created, row.id))

    @override
    async def remove_wait(self, id: str) -> None:
        with self._guard:
            self._waits.pop(id, None)

    def _put(self, row: TaskRow) -> None:
        present = self._tasks.get(row.id)
        more = _size(row) - (0 if present is None else _size(present))
        if more:
            self._bytes += more
            self._usage.add(row.caller, 0, 0, more, self._tenants.get(row.id, NOBODY))
        if present is None or present.owner != row.owner:
            self._disown(present)
            if row.owner:
                self._owned.setdefault(row.owner, set()).add(row.id)
        self._tasks[row.id] = row
        if row.status == "working" and row.lease:
            self._leased.add(row.id)
            return
        self._leased.discard(row.id)
        if row.status == "working":
            self._waiting.add(row)

    def _free_lapsed(self, now: float) -> None:
        """Queue tasks again whose lease has ended. Only tasks that run are looked at, never the waiting ones."""
        for id in list(self._leased):
            row = self._tasks[id]
            if row.leased_until <= now:
                self._leased.discard(id)
                self._waiting.add(row)

    def _forget(self, now: float) -> None:
        while self._expiring and self._expiring[0][0] <= now:
            _, id = heapq.heappop(self._expiring)
            if (row := self._tasks.get(id)) is not None and row.expires > now:  # it is kept for longer since
                heapq.heappush(self._expiring, (row.expires, id))
                continue
            expired = self._tasks.pop(id, None)
            if expired is not None:
                self._bytes -= _size(expired)
                self._usage.add(expired.caller, -1, 0, -_size(expired), self._tenants.pop(id, NOBODY))
                self._disown(expired)
            self._leased.discard(id)

    def _disown(self, row: TaskRow | None) -> None:
        owned = None if row is None else self._owned.get(row.owner)
        if row is not None and owned is not None:
            owned.discard(row.id)
            if not owned:
                del self._owned[row.owner]


def _size(row: TaskRow) -> int:
    return 512 + len(row.call) + len(row.journal) + len(row.questions) + len(row.outcome) + len(row.message)


def _counted(rows: Sequence[TaskRow], now: float) -> Waiting:
    since = (row.leased_until if row.lease else row.updated for row in rows)
    return Waiting(len(rows), max(0.0, now - min(since, default=now)))


# The tasks that wait for a worker


CALLERS_IN_VIEW = 100  # callers of a tool that one claim looks at; the next claim looks at the next ones


class TaskQueues:
    """Tasks that wait, by tool and caller, so that no claim walks through the many tasks of one caller."""

    # A queue may hold ids of tasks that do not wait any more; they are dropped when their turn comes.

    def __init__(self, tasks: Mapping[str, TaskRow]) -> None:
        self._tasks = tasks
        self._queues: dict[str, dict[str, list[tuple[float, str]]]] = {}  # heaps of times and ids, by tool and caller

    def add(self, row: TaskRow) -> None:
        """Queue a task for its turn."""
        queue = self._queues.setdefault(row.name, {}).setdefault(row.caller, [])
        heapq.heappush(queue, (row.updated, row.id))

    def waiting(self, tool: str, most: int, now: float) -> list[TaskRow]:
        """Return the tasks of a tool that may be claimed, of at most so many."""
        queued = islice(chain.from_iterable(self._queues.get(tool, {}).values()), most)
        return [row for id, updated in {id: at for at, id in queued}.items() if (row := self._free(id, updated, now))]

    def next(
        self, most: int, tools: Sequence[str], without: AbstractSet[str], places: Places, now: float
    ) -> list[TaskRow]:
        """Remove the tasks whose turn it is, and return them; see `Store.claim_tasks`."""
        held = Counter(places.held)
        turns: list[tuple[int, float, str, str]] = []
        taken: dict[str, TaskRow] = {}
        left: list[TaskRow] = []  # rows that are left to others

        def line_up(tool: str, caller: str) -> None:
            queue = self._queues[tool][caller]
            while queue:
                updated, id = queue[0]
                row = self._free(id, updated, now)
                if row is not None and id not in taken:
                    if id not in without:
                        heapq.heappush(turns, (held[caller] + 1, updated, tool, caller))
                        return
                    left.append(row)
                heapq.heappop(queue)
            del self._queues[tool][caller]

        in_view = [(tool, caller) for tool in tools for caller in islice(self._queues.get(tool, ()), CALLERS_IN_VIEW)]
        for tool, caller in in_view:
            queues = self._queues[tool]
            queues[caller] = queues.pop(caller)  # to the end: the next claim begins with others
            line_up(tool, caller)
        while turns and len(taken) < most:
            rank, _, tool, caller = heapq.heappop(turns)
            if rank <= held[caller]:  # its caller has got one of another tool since
                line_up(tool, caller)
            elif caller == NOBODY or rank <= places.share or len(taken) < places.spare:
                _, id = heapq.heappop(self._queues[tool][caller])
                taken[id] = self._tasks[id]
                held[caller] += 1
                line_up(tool, caller)
        for row in left:
            self.add(row)
        return list(taken.values())

    def _free(self, id: str, since: float, now: float) -> TaskRow | None:
        """Return a task that was queued at a time, if it still waits for a worker."""
        row = self._tasks.get(id)
        waits = row is not None and row.status == "working" and row.leased_until <= now and row.updated == since
        return row if waits else None
