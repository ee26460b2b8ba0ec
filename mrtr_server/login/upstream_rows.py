"""The tokens of people at the provider, in the store: one row for each family, refreshed once in the fleet."""

import asyncio
import time
from collections.abc import Callable

from pydantic_core import from_json, to_json

from ..crypto.digests import digest_parts
from ..crypto.keys import LOGIN_TOKENS, KeyRing
from ..crypto.place_codec import SealedRows, row_codec
from ..errors import IssuerUnavailable
from ..protocol.callers import Principal
from ..storage.base import Store
from ..storage.quotas import Quotas
from .providers import JSON, Oidc
from .records import Upstream

EARLY = 60.0  # how long before its end a token is refreshed, in seconds

_LEASE = 15.0  # that one refresh may take, in seconds

_KEPT = 600.0  # how long it is known that a token was refreshed, in seconds

_PAUSE = 0.1


class UpstreamRows:
    def __init__(
        self,
        store: Store,
        ring: KeyRing,
        quotas: Quotas,
        provider: Oidc,
        seconds: float,  # how long a row is kept after its last refresh
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._store = store
        self._quotas = quotas
        self._provider = provider
        self._seconds = seconds
        self._clock = clock
        codec = row_codec(ring, LOGIN_TOKENS, in_memory=store.in_memory)
        self._rows = SealedRows(codec, "A person's tokens", "kept for another login")

    async def put(self, family: str, upstream: Upstream, who: Principal) -> None:
        key = _key(family)
        sealed = self._rows.seal(key, to_json(list(upstream))).encode()
        await self._store.replace(key, sealed, keep=self._seconds, quota=self._quotas.of(who))

    async def get(self, family: str) -> Upstream | None:
        key = _key(family)
        row = await self._store.get(key)
        return None if row is None else Upstream(*from_json(self._rows.unseal(key, row)))

    async def fresh(self, family: str, who: Principal) -> Upstream | None:
        """Return tokens that hold for a while; None where the family has none. Raises `IssuerUnavailable`."""
        found = await self.get(family)
        if found is None or not found.expires or found.expires - EARLY > self._clock():
            return found
        return (await self.renew(family, who))[0]

    async def renew(self, family: str, who: Principal) -> tuple[Upstream | None, JSON | None]:
        """Refresh the tokens, unless another process does, and return them, with what the provider says of the person.

        Raises `IssuerUnavailable`.
        """
        first: Upstream | None = None
        deadline = asyncio.get_running_loop().time() + _LEASE + 5.0
        while (found := await self.get(family)) is not None:
            if first is not None and found.access != first.access:  # another process has refreshed them
                return found, None
            first = found
            name = digest_parts("login upstream refresh", family, found.access)
            redeemed = await self._store.redeem(name, "", lease=_LEASE, keep=_KEPT, quota=self._quotas.of(who))
            if redeemed.verdict == "granted":
                try:
                    renewed, claims = await self._provider.renew(found, who.subject)
                except BaseException:
                    await self._store.release(name, redeemed.token)
                    raise
                if renewed != found:
                    await self.put(family, renewed, who)
                    await self._store.record(name, redeemed.token, b"")
                else:
                    await self._store.release(name, redeemed.token)
                return renewed, claims
            if asyncio.get_running_loop().time() > deadline:
                raise IssuerUnavailable("another process is refreshing the same tokens")
            await asyncio.sleep(_PAUSE)
        return None, None


def _key(family: str) -> str:
    return digest_parts("login upstream", family)
