"""What must happen once, in the store: codes and refresh tokens are redeemed, and families of tokens end.

A family is all that came of one login. Two values are kept for it: how often it was refreshed, and a mark once it has
ended. So a refresh token that was used is known as such long after its redemption was forgotten.
"""

import asyncio
import math
import time
from collections.abc import Callable
from contextlib import suppress
from typing import NamedTuple

from pydantic_core import from_json, to_json

from ..crypto.digests import digest_parts
from ..crypto.keys import LOGIN, KeyRing
from ..crypto.place_codec import RowNames, SealedRows, row_codec
from ..errors import StoreUnavailable
from ..protocol.callers import Principal
from ..storage.base import Store
from ..storage.quotas import Quotas
from ..storage.rows import Redemption

LEASE = 5.0
"""For how long a request may use what it redeems, in seconds; then its replica has died, and a repetition goes on."""

_PAUSE = 0.1

REPEATED = 60.0
"""For how long the reply to a refresh is given again to the same client, in seconds: clients repeat lost requests."""

REDEEMED = 3600.0
"""How long a redemption is kept, in seconds, where how often its family was refreshed tells the same afterwards."""

OTHER_EPOCH = (
    "it is of before `mrtr-server db new-epoch`, or of another region's store, and nobody here knows whether it was "
    "used"
)

_MARK = b""  # that something is kept says all, so there is nothing to seal


class Reply(NamedTuple):
    """A reply that was recorded for a refresh token."""

    at: float
    body: dict[str, object]


class Families:
    def __init__(
        self, store: Store, ring: KeyRing, quotas: Quotas, seconds: float, clock: Callable[[], float] = time.time
    ) -> None:
        self.store = store
        self._quotas = quotas
        self._seconds = seconds  # how long a refresh token is valid
        self._clock = clock
        self._people = RowNames(ring, "login of a person")
        self._rows = SealedRows(
            row_codec(ring, LOGIN, in_memory=store.in_memory), "A row of a login", "kept for another login"
        )

    async def once(self, what: str, seconds: float, who: Principal | None = None) -> bool:
        """Note that something happened, for some seconds; return whether it is new. Raises `Full`."""
        quota = self._quotas.of_strangers if who is None else self._quotas.of(who)
        return await self.store.put(digest_parts("login once", what), _MARK, keep=seconds, quota=quota)

    # What is redeemed

    async def epoch(self) -> str:
        """Return what tokens name that the store redeems once. Raises `StoreUnavailable`."""
        return await self.store.epoch() if self.store.has_epochs else ""

    async def redeem(
        self, token: str, by: str, epoch: str, *, keep: float, who: Principal | None = None, began: float | None = None
    ) -> Redemption:
        """Redeem a token for those who bring the same `by`. While another request redeems it, this one waits."""
        if epoch and not self.store.has_epochs:
            return Redemption("other_epoch")
        quota = self._quotas.of_strangers if who is None else self._quotas.of(who, math.inf if began is None else began)
        deadline = asyncio.get_running_loop().time() + LEASE + 2.0
        while True:
            found = await self.store.redeem(
                _name(token), digest_parts("by", by), lease=LEASE, keep=keep, quota=quota, epoch=epoch
            )
            if found.verdict != "running" or asyncio.get_running_loop().time() > deadline:
                return found
            await asyncio.sleep(_PAUSE)

    async def record(self, token: str, redemption: Redemption, body: dict[str, object] | None = None) -> bool:
        """Record the reply; False where another request has taken over."""
        reply = to_json([self._clock(), body or {}])
        return await self.store.record(_name(token), redemption.token, self._rows.seal(_name(token), reply).encode())

    async def record_used(self, token: str, redemption: Redemption) -> None:
        """Record that a token was used whose reply is never given again. Without the store, its lease runs out."""
        with suppress(StoreUnavailable):
            await self.record(token, redemption)

    async def release(self, token: str, redemption: Redemption) -> None:
        await self.store.release(_name(token), redemption.token)

    def recorded(self, token: str, redemption: Redemption) -> Reply:
        return Reply(*from_json(self._rows.unseal(_name(token), redemption.outcome)))

    # Families

    async def generation(self, family: str) -> int:
        """Return how often a family was refreshed; 0 where that is not known."""
        key = digest_parts("login generation", family)
        row = await self.store.get(key)
        return 0 if row is None else int(from_json(self._rows.unseal(key, row)))

    async def advance(self, family: str, generation: int, who: Principal, began: float) -> None:
        await self._replace(digest_parts("login generation", family), generation, who, began)

    async def end(self, family: str, who: Principal) -> None:
        quota = self._quotas.without_bounds(who)
        await self.store.put(digest_parts("login ended", family), _MARK, keep=self._seconds, quota=quota)

    async def end_all(self, who: Principal) -> None:
        """End all families of a person that began before now."""
        await self._replace(self._people.of(list(who.person))[0], self._clock(), who)

    async def is_ended(self, family: str, began: float, who: Principal) -> bool:
        if await self.store.get(digest_parts("login ended", family)) is not None:
            return True
        for key in self._people.of(list(who.person)):
            row = await self.store.get(key)
            if row is not None and began <= from_json(self._rows.unseal(key, row)):
                return True
        return False

    async def _replace(self, key: str, value: object, who: Principal, began: float = math.inf) -> None:
        sealed, quota = self._rows.seal(key, to_json(value)).encode(), self._quotas.without_bounds(who)
        await self.store.replace(key, sealed, keep=self._seconds, quota=quota._replace(begun=began))


def _name(token: str) -> str:
    return digest_parts("login token", token)
