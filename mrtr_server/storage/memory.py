"""A store in dictionaries, for a server that is one process."""

import heapq
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import count
from threading import Lock
from typing import Any, Generic, TypeVar

from typing_extensions import override

from ..concurrency.running import running_loop
from ..concurrency.waiting import Wakes, wait_until
from ..errors import StoreUnavailable
from .base import Redemption, TaskStore
from .quotas import ANY, UNLIMITED, Quota, Usage, UsageByCaller
from .task_queues import TaskQueues
from .tasks import ENDED, FREE, Places, TaskRow
from .vitals import MOST_COUNTED, Vitals, Waiting

T = TypeVar("T")


class _ExpiringDict(Generic[T]):
    """A dictionary of items that expire. Those that have are removed when one is added, so that there is no timer.

    Args:
        most, most_bytes: how many items it holds, and how large they may be for a new one to be added.
        usage: counts what each caller keeps, here and elsewhere.
    """

    def __init__(self, most: int, most_bytes: int, usage: UsageByCaller) -> None:
        self._most = most
        self._most_bytes = most_bytes
        self._room = Usage(UNLIMITED, most, most_bytes)
        self._usage = usage
        self._bytes = 0
        self._items: dict[str, tuple[T, float, str, int]] = {}
        """Each with when it expires, whose it is, if that is an authenticated caller, and its size in bytes."""
        self._expiring: list[tuple[float, str]] = []
        """A heap. It may hold more than there is: what was removed stays in it for a while."""

    def get(self, key: str, now: float) -> T | None:
        found = self._items.get(key)
        return found[0] if found is not None and found[1] > now else None

    def add(self, key: str, item: T, now: float, expires: float, quota: Quota, size: int = 0) -> None:
        items, expiring = self._items, self._expiring
        while expiring and expiring[0][0] <= now:
            self._drop(heapq.heappop(expiring))
        if key in items:  # what is replaced has its room
            self.remove(key)
        else:
            quota.check_state(self._usage, self._room)
            if len(items) >= self._most or self._bytes >= self._most_bytes:
                raise self._full()
        items[key] = item, expires, quota.caller, size
        self._bytes += size
        self._usage.add(quota.caller, 0, 1, size)
        heapq.heappush(expiring, (expires, key))
        if len(expiring) > 2 * len(items) + 100:
            self._expiring = [(each[1], key) for key, each in items.items()]
            heapq.heapify(self._expiring)

    def _full(self) -> StoreUnavailable:
        is_many = len(self._items) >= self._most
        held, name = (f"{self._most} records", "most_records") if is_many else (f"{self._bytes} bytes", "most_bytes")
        return StoreUnavailable(
            f"The in-process store is full: {held} have not expired; give it a larger {name}, or the server a database"
        )

    def grow(self, key: str, more: int) -> None:
        """Note that what is there for a key holds so many bytes more."""
        item, expires, caller, size = self._items[key]
        self._items[key] = item, expires, caller, size + more
        self._bytes += more
        self._usage.add(caller, 0, 0, more)

    def remove(self, key: str) -> None:
        if (removed := self._items.pop(key, None)) is not None:
            _, _, caller, size = removed
            self._bytes -= size
            self._usage.add(caller, 0, -1, -size)

    def _drop(self, entry: tuple[float, str]) -> None:
        expires, key = entry
        if (found := self._items.get(key)) is not None and found[1] == expires:
            self.remove(key)


class _InProcessTasks(TaskStore):
    """The half of the store that keeps tasks.

    Args:
        clock: returns the time in seconds since the epoch.
        most_bytes: how large all tasks may be together, in bytes.
        most_records: how many records the other half holds.
        usage: counts what each caller keeps, here and elsewhere.
    """

    def __init__(self, clock: Callable[[], float], most_records: int, most_bytes: int, usage: UsageByCaller) -> None:
        self._now = clock
        self._most_bytes = most_bytes
        self._room = Usage(UNLIMITED, most_records, most_bytes)
        self._usage = usage
        self._bytes = 0
        self._tasks: dict[str, TaskRow] = {}
        self._owned: dict[str, set[str]] = {}
        """The ids of the tasks of each owner."""
        self._waiting = TaskQueues(self._tasks)
        self._leased: set[str] = set()
        """The ids of those that work under a lease, whether it has ended or not."""
        self._deadlines: list[tuple[float, str]] = []
        self._expiring: list[tuple[float, str]] = []
        """Heaps. They may hold more than there is: what has ended meanwhile stays in them until its time."""
        self._guard = Lock()
        self._wakes = Wakes()

    @override
    async def add_task(self, row: TaskRow, *, seconds: float = 0.0, quota: Quota = ANY) -> bool:
        now = self._now()
        with self._guard:
            self._forget(now)
            if row.id in self._tasks:
                return False
            quota.check_task(self._usage, self._room)
            if self._bytes + _size(row) > self._most_bytes:
                raise StoreUnavailable(
                    f"The in-process store is full: its tasks hold {self._bytes} bytes; give it a larger most_bytes, "
                    "or the server a database"
                )
            heapq.heappush(self._expiring, (row.expires, row.id))
            heapq.heappush(self._deadlines, (row.deadline, row.id))
            self._usage.add(row.caller, 1, 0, 0)
            self._put(replace(row, leased_until=now + seconds) if row.lease else row)
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
            found.append(replace(row, call=b"", journal=b""))
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
            changed = replace(present, **changes, version=present.version + 1)
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
                taken = replace(
                    row,
                    lease=lease,
                    leased_until=now + seconds,
                    attempts=row.attempts + 1,
                    version=row.version + 1,
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
                    self._put(replace(row, leased_until=now + seconds))
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

    def _put(self, row: TaskRow) -> None:
        present = self._tasks.get(row.id)
        more = _size(row) - (0 if present is None else _size(present))
        if more:
            self._bytes += more
            self._usage.add(row.caller, 0, 0, more)
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
        """Queue tasks again whose lease has ended. Only those that run are looked at, never those that wait."""
        for id in list(self._leased):
            row = self._tasks[id]
            if row.leased_until <= now:
                self._leased.discard(id)
                self._waiting.add(row)

    def _forget(self, now: float) -> None:
        while self._expiring and self._expiring[0][0] <= now:
            _, id = heapq.heappop(self._expiring)
            expired = self._tasks.pop(id, None)
            if expired is not None:
                self._bytes -= _size(expired)
                self._usage.add(expired.caller, -1, 0, -_size(expired))
                self._disown(expired)
            self._leased.discard(id)

    def _disown(self, row: TaskRow | None) -> None:
        owned = None if row is None else self._owned.get(row.owner)
        if row is not None and owned is not None:
            owned.discard(row.id)
            if not owned:
                del self._owned[row.owner]


def _size(row: TaskRow) -> int:
    """Estimate what a task holds, in bytes."""
    return 512 + len(row.call) + len(row.journal) + len(row.questions) + len(row.outcome) + len(row.message)


def _counted(rows: Sequence[TaskRow], now: float) -> Waiting:
    since = (row.leased_until if row.lease else row.updated for row in rows)
    return Waiting(len(rows), max(0.0, now - min(since, default=now)))


@dataclass(slots=True)
class _Record:
    """A redeemed state."""

    answers: str
    token: str
    attempt: int
    leased_until: float
    outcome: bytes | None = None


class InProcessStore(_InProcessTasks):
    """A store in this process's memory, for a server that is one process: nobody else sees what it keeps.

    Any number of event loops and threads may use it at once. Its contents are gone when the process ends.

    Args:
        clock: returns the time in seconds since the epoch.
        most_records: how many redeemed states, and how many values, it holds at once. When that many have not expired
            it refuses more, since to forget one would let it be redeemed again.
        most_bytes: how large all outcomes, all values, and all tasks may be together, in bytes; likewise.
    """

    in_memory = True

    def __init__(
        self,
        clock: Callable[[], float] = time.time,
        *,
        most_records: int = 100_000,
        most_bytes: int = 256 * 1024 * 1024,
    ) -> None:
        usage = UsageByCaller()
        super().__init__(clock, most_records, most_bytes, usage)
        self._clock = clock
        self._lock = Lock()
        self._tokens = count(1)
        """Name leases, which only this process knows."""
        self._redeemed: _ExpiringDict[_Record] = _ExpiringDict(most_records, most_bytes, usage)
        self._values: _ExpiringDict[bytes] = _ExpiringDict(most_records, most_bytes, usage)

    @override
    async def redeem(
        self,
        state: str,
        answers: str,
        *,
        lease: float,
        keep: float,
        lapsed: bool = True,
        quota: Quota = ANY,
        epoch: str = "",
    ) -> Redemption:
        now = self._clock()
        with self._lock:
            record = self._redeemed.get(state, now)
            if record is None:
                record = _Record(answers, f"{next(self._tokens):x}", 1, now + lease)
                self._redeemed.add(state, record, now, now + keep, quota)
            elif record.answers != answers:
                return Redemption("spent")
            elif record.outcome is not None:
                return Redemption("recorded", outcome=record.outcome)
            elif record.leased_until > now or not lapsed:
                return Redemption("running")
            else:
                record.token, record.leased_until = f"{next(self._tokens):x}", now + lease
                record.attempt += 1
            return Redemption("granted", record.token, attempt=record.attempt)

    @override
    async def renew(self, state: str, token: str, *, lease: float) -> bool:
        now = self._clock()
        with self._lock:
            record = self._granted(state, token, now)
            if record is None or record.outcome is not None:
                return False
            record.leased_until = now + lease
            return True

    @override
    async def record(self, state: str, token: str, outcome: bytes) -> bool:
        with self._lock:
            record = self._granted(state, token, self._clock())
            if record is None or record.outcome not in (None, outcome):
                return False
            if record.outcome is None:
                record.outcome = outcome
                self._redeemed.grow(state, len(outcome))
            return True

    @override
    async def release(self, state: str, token: str) -> None:
        with self._lock:
            record = self._granted(state, token, self._clock())
            if record is not None and record.outcome is None:
                self._redeemed.remove(state)

    @override
    async def put(self, key: str, value: bytes, *, keep: float, quota: Quota = ANY) -> bool:
        now = self._clock()
        with self._lock:
            if self._values.get(key, now) is not None:
                return False
            self._values.add(key, value, now, now + keep, quota, len(value))
            return True

    @override
    async def replace(self, key: str, value: bytes, *, keep: float, quota: Quota = ANY) -> None:
        now = self._clock()
        with self._lock:
            self._values.add(key, value, now, now + keep, quota, len(value))

    @override
    async def get(self, key: str) -> bytes | None:
        with self._lock:
            return self._values.get(key, self._clock())

    def _granted(self, state: str, token: str, now: float) -> _Record | None:
        record = self._redeemed.get(state, now)
        return record if record is not None and record.token == token else None
