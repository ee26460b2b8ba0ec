"""What replicas have to share: which sealed states were redeemed, and what pages reported back."""

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


class InProcessStore:
    """Keeps things in this process alone.

    Parameters:
        clock: gives a time in seconds that never goes back.
    """

    shared = False

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._values: dict[str, tuple[float, bytes]] = {}

    async def redeem(self, state: str, answers: str, *, lease: float, keep: float) -> Redemption:
        """Take a delivery of a sealed state; see `Store.redeem`."""
        raise NotImplementedError

    async def renew(self, state: str, token: str, *, lease: float) -> bool:
        """Hold a grant for longer; see `Store.renew`."""
        raise NotImplementedError

    async def record(self, state: str, token: str, outcome: bytes) -> bool:
        """Keep what came of a granted delivery; see `Store.record`."""
        raise NotImplementedError

    async def release(self, state: str, token: str) -> None:
        """Give a grant back; see `Store.release`."""
        raise NotImplementedError

    async def put(self, key: str, value: bytes, *, keep: float) -> bool:
        """Keep a value, if there is none for the key; see `Store.put`."""
        if await self.get(key) is not None:
            return False
        self._values[key] = (self._clock() + keep, value)
        return True

    async def get(self, key: str) -> bytes | None:
        """Give the value of a key; see `Store.get`."""
        until, value = self._values.get(key, (0.0, b""))
        return value if until > self._clock() else None

    async def close(self) -> None:
        """Let go of connections: there are none."""
