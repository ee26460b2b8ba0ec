"""What replicas have to share: which sealed states were redeemed, and what pages reported back."""

import heapq
import time
from collections.abc import Callable
from dataclasses import dataclass
from secrets import token_hex
from threading import Lock
from typing import Generic, Literal, Protocol, TypeVar

from ..errors import StoreUnavailable
from .tasks import InProcessTasks


@dataclass(frozen=True, slots=True)
class Redemption:
    """What a store says about the delivery of a sealed state.

    Args:
        verdict: `"granted"`: this delivery runs, and no other may until its lease ends. `"running"`: another delivery
            runs now. `"recorded"`: it has been run; `outcome` is what came of it. `"spent"`: it was redeemed with
            other answers.
        token: of a granted one: names the lease. No two grants share one.
        outcome: of a recorded one.
        attempt: of a granted one: 1, or more where earlier deliveries lost their lease without an outcome.
    """

    verdict: Literal["granted", "running", "recorded", "spent"]
    token: str = ""
    outcome: bytes = b""
    attempt: int = 1


class Store(Protocol):
    """Keeps what must be the same on all replicas.

    Keys are digests, values are sealed before they come here. All durations are in seconds; what has expired counts
    as absent. A method that can't do its work raises `StoreUnavailable`: nothing is done then, or all of it is and only
    the reply was lost. A grant that was lost like that ends with its lease.
    """

    shared: bool
    """Whether other processes see what this one keeps."""

    async def redeem(self, state: str, answers: str, *, lease: float, keep: float) -> Redemption:
        """Take a delivery of a sealed state, atomically.

        Args:
            state: digest of the state.
            answers: digest of the answers that came with it.
            lease: how long a grant holds unless it is renewed. A grant whose lease ended without an outcome was that of
                a replica that died; the next delivery of the same answers is granted anew, with another token.
            keep: how long the record is kept, from the first delivery: at least as long as the state opens.
        """
        ...

    async def renew(self, state: str, token: str, *, lease: float) -> bool:
        """Hold a grant for longer, from now. False if it is not this token's any more, or an outcome is recorded.

        A grant whose lease has ended is this token's until another delivery takes it.
        """
        ...

    async def record(self, state: str, token: str, outcome: bytes) -> bool:
        """Keep what came of a granted delivery, for the others. False, and nothing kept, if the grant has passed on.

        The first outcome stays; to record the same again is no mistake.
        """
        ...

    async def release(self, state: str, token: str) -> None:
        """Give a grant back, as if the state had never been delivered.

        Nothing happens if it has passed on, or an outcome is recorded.
        """
        ...

    async def put(self, key: str, value: bytes, *, keep: float) -> bool:
        """Keep a value, if there is none for the key. Say whether it was kept."""
        ...

    async def get(self, key: str) -> bytes | None:
        """Give the value of a key; None if there is none (any more)."""
        ...

    async def close(self) -> None:
        """Let go of connections. The store may be used again afterwards."""
        ...


@dataclass(slots=True)
class _Record:
    """A redeemed state."""

    answers: str
    token: str
    attempt: int
    leased_until: float
    outcome: bytes | None = None


class InProcessStore(InProcessTasks):
    """A store in this process's memory, for a server that is one process: nobody else sees what it keeps.

    Any number of event loops and threads may use it at once. What it keeps is gone when the process ends.

    Args:
        clock: gives the time in seconds.
        most_records: how many redeemed states, and how many values, it holds at once. When that many have not expired
            it refuses more, since to forget one would let it be redeemed again.
        most_bytes: how large all outcomes, all values, and all tasks may be together, in bytes; likewise.
    """

    shared = False

    def __init__(
        self,
        clock: Callable[[], float] = time.time,
        *,
        most_records: int = 100_000,
        most_bytes: int = 256 * 1024 * 1024,
    ) -> None:
        super().__init__(clock, most_bytes)
        self._clock = clock
        self._lock = Lock()
        self._redeemed: _ExpiringDict[_Record] = _ExpiringDict(most_records, most_bytes)
        self._values: _ExpiringDict[bytes] = _ExpiringDict(most_records, most_bytes)

    async def redeem(self, state: str, answers: str, *, lease: float, keep: float) -> Redemption:
        """Take a delivery of a sealed state, atomically. See `Store.redeem`."""
        now = self._clock()
        with self._lock:
            record = self._redeemed.get(state, now)
            if record is None:
                record = _Record(answers, token_hex(16), 1, now + lease)
                self._redeemed.add(state, record, now, now + keep)
            elif record.answers != answers:
                return Redemption("spent")
            elif record.outcome is not None:
                return Redemption("recorded", outcome=record.outcome)
            elif record.leased_until > now:
                return Redemption("running")
            else:
                record.token, record.attempt, record.leased_until = token_hex(16), record.attempt + 1, now + lease
            return Redemption("granted", record.token, attempt=record.attempt)

    async def renew(self, state: str, token: str, *, lease: float) -> bool:
        """Hold a grant for longer. See `Store.renew`."""
        now = self._clock()
        with self._lock:
            record = self._granted(state, token, now)
            if record is None or record.outcome is not None:
                return False
            record.leased_until = now + lease
            return True

    async def record(self, state: str, token: str, outcome: bytes) -> bool:
        """Keep what came of a granted delivery. See `Store.record`."""
        with self._lock:
            record = self._granted(state, token, self._clock())
            if record is None or record.outcome not in (None, outcome):
                return False
            if record.outcome is None:
                record.outcome = outcome
                self._redeemed.grow(state, len(outcome))
            return True

    async def release(self, state: str, token: str) -> None:
        """Give a grant back. See `Store.release`."""
        with self._lock:
            record = self._granted(state, token, self._clock())
            if record is not None and record.outcome is None:
                self._redeemed.remove(state)

    async def put(self, key: str, value: bytes, *, keep: float) -> bool:
        """Keep a value, if there is none for the key. See `Store.put`."""
        now = self._clock()
        with self._lock:
            if self._values.get(key, now) is not None:
                return False
            self._values.add(key, value, now, now + keep)
            self._values.grow(key, len(value))
            return True

    async def get(self, key: str) -> bytes | None:
        """Give the value of a key. See `Store.get`."""
        with self._lock:
            return self._values.get(key, self._clock())

    async def close(self) -> None:
        """Let go of nothing: there are no connections, and what is kept stays."""

    def _granted(self, state: str, token: str, now: float) -> _Record | None:
        record = self._redeemed.get(state, now)
        return record if record is not None and record.token == token else None


T = TypeVar("T")


class _ExpiringDict(Generic[T]):
    """Items that expire. Those that have are removed when one is added, so that there is no timer."""

    def __init__(self, most: int, most_bytes: int) -> None:
        self._most = most
        self._most_bytes = most_bytes
        self._sizes: dict[str, int] = {}
        self._bytes = 0
        self._items: dict[str, tuple[T, float]] = {}
        self._expiring: list[tuple[float, str]] = []
        """A heap. It may hold more than there is: what was removed stays in it for a while."""

    def get(self, key: str, now: float) -> T | None:
        item, expires = self._items.get(key, (None, now))
        return item if expires > now else None

    def add(self, key: str, item: T, now: float, expires: float) -> None:
        while self._expiring and self._expiring[0][0] <= now:
            self._drop(heapq.heappop(self._expiring))
        if len(self._items) >= self._most:
            raise StoreUnavailable(
                f"The in-process store is full: {self._most} records have not expired; give it a larger most_records, "
                "or the server a database"
            )
        if self._bytes >= self._most_bytes:
            raise StoreUnavailable(
                f"The in-process store is full: {self._bytes} bytes have not expired; give it a larger most_bytes, or "
                "the server a database"
            )
        self.remove(key)
        self._items[key] = (item, expires)
        heapq.heappush(self._expiring, (expires, key))
        if len(self._expiring) > 2 * len(self._items) + 100:
            self._expiring = [(expires, key) for key, (_, expires) in self._items.items()]
            heapq.heapify(self._expiring)

    def grow(self, key: str, size: int) -> None:
        """Note that what is there for a key holds that many bytes."""
        self._sizes[key] = size
        self._bytes += size

    def remove(self, key: str) -> None:
        self._items.pop(key, None)
        self._bytes -= self._sizes.pop(key, 0)

    def _drop(self, entry: tuple[float, str]) -> None:
        expires, key = entry
        if self._items.get(key, (None, None))[1] == expires:
            self.remove(key)
