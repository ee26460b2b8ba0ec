"""A store in dictionaries, for a server that is one process."""

import heapq
import time
from collections.abc import Callable
from dataclasses import dataclass
from itertools import count
from threading import Lock
from typing import Generic, TypeVar

from typing_extensions import override

from ..errors import StoreUnavailable
from .memory_events import InProcessEvents
from .memory_tasks import InProcessTasks
from .quotas import ANY, UNLIMITED, Quota, Usage, UsageByCaller
from .rows import Redemption

T = TypeVar("T")


class _ExpiringDict(Generic[T]):
    """A dictionary of items that expire. Expired items are removed when one is added, so that there is no timer."""

    def __init__(self, most: int, most_bytes: int, usage: UsageByCaller) -> None:
        self._most = most
        self._most_bytes = most_bytes
        self._room = Usage(UNLIMITED, most, most_bytes)
        self._usage = usage
        self._bytes = 0
        self._items: dict[str, tuple[T, float, str, str, int]] = {}
        """Each with its expiry, its caller, if that is an authenticated one, its tenant, and its size in bytes."""
        self._expiring: list[tuple[float, str]] = []
        """A heap. Entries of removed items stay in it for a while."""

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
            self._usage.check_state(quota, self._room)
            if len(items) >= self._most or self._bytes >= self._most_bytes:
                raise self._full()
        items[key] = item, expires, quota.caller, quota.tenant, size
        self._bytes += size
        self._usage.add(quota.caller, 0, 1, size, quota.tenant)
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
        item, expires, caller, tenant, size = self._items[key]
        self._items[key] = item, expires, caller, tenant, size + more
        self._bytes += more
        self._usage.add(caller, 0, 0, more, tenant)

    def remove(self, key: str) -> None:
        if (removed := self._items.pop(key, None)) is not None:
            _, _, caller, tenant, size = removed
            self._bytes -= size
            self._usage.add(caller, 0, -1, -size, tenant)

    def _drop(self, entry: tuple[float, str]) -> None:
        expires, key = entry
        if (found := self._items.get(key)) is not None and found[1] == expires:
            self.remove(key)


@dataclass(slots=True)
class _Record:
    answers: str
    token: str
    attempt: int
    leased_until: float
    outcome: bytes | None = None


class InProcessStore(InProcessTasks, InProcessEvents):
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
        InProcessTasks.__init__(self, clock, most_records, most_bytes, usage)
        InProcessEvents.__init__(self, clock)
        self._clock = clock
        self._lock = Lock()
        self._tokens = count(1)  # names of leases, which only this process knows
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
