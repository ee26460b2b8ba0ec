"""The tokens of people at the provider, in the store: one row for each family, refreshed once in the fleet."""

import asyncio
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import NamedTuple

from pydantic_core import from_json, to_json

from ..crypto.digests import digest_parts
from ..crypto.keys import LOGIN_TOKENS, KeyRing
from ..crypto.place_codec import PlaceCodec, RowCodec, SealedRows, row_codec
from ..errors import IssuerUnavailable, StoreUnavailable
from ..protocol.callers import Principal
from ..storage.base import Store
from ..storage.quotas import Quotas
from .families import Families
from .providers import JSON, Oidc
from .records import About, Upstream

EARLY = 60.0  # how long before its end a token is refreshed, in seconds

_LEASE = 15.0  # that one refresh may take, in seconds

_KEPT = 600.0  # how long it is known that a token was refreshed, in seconds

_PAUSE = 0.1


class Row(NamedTuple):
    """A row, for whoever has it: `about` says whose it is."""

    upstream: Upstream
    about: About


class UpstreamRows:
    def __init__(
        self,
        store: Store,
        ring: KeyRing,
        quotas: Quotas,
        families: Families,
        provider: Oidc,
        seconds: float,  # how long a row is kept after its last refresh
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._store = store
        self._quotas = quotas
        self._families = families
        self._provider = provider
        self._seconds = seconds
        self._clock = clock
        self._rows = _sealed(row_codec(ring, LOGIN_TOKENS, in_memory=store.in_memory))

    async def put(self, upstream: Upstream, about: About) -> None:
        await self._put(upstream, about, keep=self._seconds)

    async def _put(self, upstream: Upstream, about: About, *, keep: float) -> None:
        key = _key(about.family)
        sealed = self._rows.seal(key, to_json([*upstream, about._replace(used=self._clock())])).encode()
        await self._store.replace(key, sealed, keep=keep, quota=self._quotas.of(Principal(about.subject, about.issuer)))

    async def end(self, family: str) -> None:
        """Let a row expire at once. Raises `StoreUnavailable`."""
        if (row := await self.get(family)) is not None:
            await self._put(Upstream(), row.about, keep=1.0)

    async def keep_on(self, family: str, who: Principal) -> Upstream | None:
        """Keep a row for as long as its family may live from now on, and return its tokens; None if there is none."""
        if (row := await self.get(family)) is None:
            return None
        name = _refresh_of(family, row.upstream)
        redeemed = await self._store.redeem(name, "", lease=_LEASE, keep=_KEPT, quota=self._quotas.of(who))
        if redeemed.verdict == "granted":  # otherwise another process puts newer tokens, which must stay
            try:
                await self.put(row.upstream, row.about)
            finally:
                with suppress(StoreUnavailable):
                    await self._store.release(name, redeemed.token)
        return row.upstream

    async def get(self, family: str) -> Row | None:
        key = _key(family)
        found = await self._store.get(key)
        return None if found is None else _read(self._rows, key, found)

    async def fresh(self, family: str, who: Principal) -> Upstream | None:
        """Return tokens that hold for a while; None where the family has none, or ended. Raises `IssuerUnavailable`."""
        found = await self.get(family)
        # A task may go on for days after the login that began it.
        if found is None or await self._families.is_ended(family, found.about.began, who):
            return None
        expires = found.upstream.expires
        if not expires or expires - EARLY > self._clock():
            return found.upstream
        return (await self.renew(family, who, found.upstream))[0]

    async def renew(
        self, family: str, who: Principal, first: Upstream | None = None
    ) -> tuple[Upstream | None, JSON | None]:
        """Refresh the tokens, unless another process does, and return them, with what the provider says of the person.

        `first` are the tokens that were found too old: newer ones are not refreshed. Raises `IssuerUnavailable`.
        """
        deadline = asyncio.get_running_loop().time() + _LEASE + 5.0
        while (row := await self.get(family)) is not None:
            found = row.upstream
            if first is not None and found.access != first.access:  # another process has refreshed them
                return found, None
            first = found
            name = _refresh_of(family, found)
            redeemed = await self._store.redeem(name, "", lease=_LEASE, keep=_KEPT, quota=self._quotas.of(who))
            if redeemed.verdict == "granted":
                try:
                    renewed, claims = await self._provider.renew(found, who.subject, partial(self.put, about=row.about))
                except BaseException:
                    with suppress(StoreUnavailable):  # and not what has happened
                        await self._store.release(name, redeemed.token)
                    raise
                if renewed != found:
                    await self._store.record(name, redeemed.token, b"")
                else:
                    await self._store.release(name, redeemed.token)
                return renewed, claims
            if asyncio.get_running_loop().time() > deadline:
                raise IssuerUnavailable("another process is refreshing the same tokens")
            await asyncio.sleep(_PAUSE)
        return None, None


def reader_of(ring: KeyRing) -> Callable[[str, bytes], Row]:
    """Return what reads the value of a key in a database. It raises `StoreUnavailable` where that is no such row."""
    return partial(_read, _sealed(PlaceCodec(ring, LOGIN_TOKENS)))


def _sealed(codec: RowCodec) -> SealedRows:
    return SealedRows(codec, "A person's tokens", "kept for another login")


def _read(rows: SealedRows, key: str, found: bytes) -> Row:
    *upstream, about = from_json(rows.unseal(key, found))
    return Row(Upstream(*upstream), About(*about))


def _refresh_of(family: str, upstream: Upstream) -> str:
    """Return under what name tokens are refreshed once."""
    return digest_parts("login upstream refresh", family, upstream.access)


def _key(family: str) -> str:
    return digest_parts("login upstream", family)
