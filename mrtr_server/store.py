"""What replicas have to share: which sealed states were redeemed, and what pages reported back."""

import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, Protocol


@dataclass(frozen=True, slots=True)
class Redemption:
    """What a store says about the delivery of a sealed state.

    Parameters:
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

    Keys are digests, values are sealed before they come here. All durations are in seconds. A method that can't do its
    work raises `StoreUnavailable`; nothing is half done then.
    """

    shared: bool
    """Whether other processes see what this one keeps."""

    async def redeem(self, state: str, answers: str, *, lease: float, keep: float) -> Redemption:
        """Take a delivery of a sealed state, atomically.

        Parameters:
            state: digest of the state.
            answers: digest of the answers that came with it.
            lease: how long a grant holds unless it is renewed. A grant whose lease ended without an outcome was that of
                a replica that died; the next delivery of the same answers is granted anew, with another token.
            keep: how long the record is kept, from the first delivery.
        """
        ...

    async def renew(self, state: str, token: str, *, lease: float) -> bool:
        """Hold a grant for longer. False if it is not this token's any more."""
        ...

    async def record(self, state: str, token: str, outcome: bytes) -> bool:
        """Keep what came of a granted delivery, for the others. False, and nothing kept, if the grant has passed on."""
        ...

    async def release(self, state: str, token: str) -> None:
        """Give a grant back, as if the state had never been delivered. Nothing happens if it has passed on."""
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
class _Row:
    answers: str
    token: str
    leased_until: float
    expires: float
    attempt: int = 1
    outcome: bytes | None = None


class InProcessStore:
    """Keeps what only this process needs to see.

    Parameters:
        clock: gives the time, in seconds since the epoch.
    """

    shared = False

    def __init__(self, *, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._rows: dict[str, _Row] = {}
        self._values: dict[str, tuple[bytes, float]] = {}

    async def redeem(self, state: str, answers: str, *, lease: float, keep: float) -> Redemption:
        """Take a delivery of a sealed state; see `Store`."""
        now = self._clock()
        self._rows = {key: row for key, row in self._rows.items() if row.expires > now}
        row = self._rows.get(state)
        if row is None:
            row = self._rows[state] = _Row(answers, secrets.token_hex(8), now + lease, now + keep)
            return Redemption("granted", row.token)
        if row.answers != answers:
            return Redemption("spent")
        if row.outcome is not None:
            return Redemption("recorded", outcome=row.outcome)
        if row.leased_until > now:
            return Redemption("running")
        row.token, row.leased_until, row.attempt = secrets.token_hex(8), now + lease, row.attempt + 1
        return Redemption("granted", row.token, attempt=row.attempt)

    async def renew(self, state: str, token: str, *, lease: float) -> bool:
        """Hold a grant for longer; see `Store`."""
        row = self._rows.get(state)
        if row is None or row.token != token:
            return False
        row.leased_until = self._clock() + lease
        return True

    async def record(self, state: str, token: str, outcome: bytes) -> bool:
        """Keep what came of a granted delivery; see `Store`."""
        row = self._rows.get(state)
        if row is None or row.token != token:
            return False
        row.outcome = outcome
        return True

    async def release(self, state: str, token: str) -> None:
        """Give a grant back; see `Store`."""
        row = self._rows.get(state)
        if row is not None and row.token == token:
            del self._rows[state]

    async def put(self, key: str, value: bytes, *, keep: float) -> bool:
        """Keep a value; see `Store`."""
        if await self.get(key) is not None:
            return False
        self._values[key] = value, self._clock() + keep
        return True

    async def get(self, key: str) -> bytes | None:
        """Give the value of a key; see `Store`."""
        value, expires = self._values.get(key, (b"", 0.0))
        return value if expires > self._clock() else None

    async def close(self) -> None:
        """Let go of nothing; see `Store`."""
