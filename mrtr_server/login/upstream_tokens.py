"""The tokens of people at the provider: within those of clients, or in the store, one row for each login."""

import asyncio
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from pydantic_core import from_json, to_json

from ..crypto.digests import digest_parts
from ..crypto.keys import LOGIN_TOKENS, KeyRing
from ..crypto.place_codec import PlaceCodec, RowCodec, SealedRows, row_codec
from ..errors import InsufficientScope, IssuerUnavailable, ProviderRefused, StoreUnavailable, ToolError
from ..limits import Limits
from ..logs.refusals import RefusalLog
from ..protocol.callers import Principal
from ..protocol.messages import Call
from ..storage.base import Store
from ..storage.quotas import Quotas
from .families import Families
from .providers import JSON, Oidc
from .records import About, Grant, Upstream

if TYPE_CHECKING:
    from ..storage.sql.store import SQLStore


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


MOST_BROUGHT = 1000  # logins whose tokens are at hand for their tasks, each of 2 KB at most


class _Brought(NamedTuple):
    """A token that came within one of ours, and until when that counts."""

    until: float
    began: float  # when the login began
    upstream: Upstream


class UpstreamTokens:
    def __init__(
        self,
        provider: Oidc,
        rows: UpstreamRows | None,
        families: Families,
        refusals: RefusalLog,
        clock: Callable[[], float],
    ) -> None:
        self.question = f"This needs your account at {provider.issuer}. Go on?"
        self._provider = provider
        self._rows = rows  # None where the token travels within that of the client
        self._families = families
        self._refusals = refusals
        self._clock = clock
        self._brought: OrderedDict[str, _Brought] = OrderedDict()

    def note(self, grant: Grant, upstream: Upstream, until: float) -> None:
        """Keep what a request brought at hand, for the tasks of the same login, which run in this process, too."""
        if self._rows is None and upstream.access:
            self._brought[grant.family] = _Brought(until, grant.began, upstream)
            self._brought.move_to_end(grant.family)
            if len(self._brought) > MOST_BROUGHT:
                self._brought.popitem(last=False)

    async def token(self, call: Call, scopes: Sequence[str], *, in_task: bool) -> str | None:
        """Return the access token of whoever calls; None where a task has to ask, since each request brings one.

        Raises `InsufficientScope`, `ToolError`, `StoreUnavailable`.
        """
        found = await self._find(call, in_task=in_task)
        if found is None and in_task and self._rows is None:
            return None
        if found is not None and all(self._provider.covers(found.scopes, scope) for scope in scopes):
            return found.access
        if in_task:  # whose client can't be sent to log in: it has no request that waits
            raise ToolError("The person has to log in again, and to allow what this needs. Then start this once more.")
        raise InsufficientScope(*dict.fromkeys((*sorted(call.scopes), *(scopes or self._provider.scopes))))

    async def _find(self, call: Call, *, in_task: bool) -> Upstream | None:
        login = getattr(call.user, "login", "")
        if not login or call.principal is None:
            return None
        if self._rows is None:
            if in_task:
                return await self._latest(login, call.principal)
            given: Upstream | None = getattr(call.user, "upstream", None)
            return given if given is not None and given.access else None
        try:
            return await self._rows.fresh(login, call.principal)
        except ProviderRefused as error:
            self._refusals.note("The token of a person has ended: %r", str(error))
            return None
        except IssuerUnavailable as error:
            self._refusals.note("The token of a person could not be refreshed: %r", str(error))
            raise ToolError("The account of the person can't be reached now. Try again in a moment.") from None

    async def _latest(self, login: str, who: Principal) -> Upstream | None:
        found = self._brought.get(login)
        if found is None:
            return None
        if await self._families.is_ended(login, found.began, who):
            raise ToolError("The login that this was started with has ended. Start this once more.")
        return found.upstream if found.until > self._clock() else None


LOOKED_AT = 500  # rows that are read at once


async def logins_in(store: "SQLStore", ring: KeyRing) -> list[About]:
    """Return the logins that have not ended, the last used first. Raises `StoreUnavailable`."""
    families, read = Families(store, ring, Quotas(ring, Limits()), 0.0), reader_of(ring)
    found: list[About] = []
    after = ""
    # Values of all kinds are in one table, and what they are is sealed: those that open are the ones.
    while rows := await store.database.rows("sealed_values", after=after, most=LOOKED_AT):
        after = rows[-1][0]
        for key, value in rows:
            try:
                about = read(key, value).about
            except StoreUnavailable:
                continue
            if not await families.is_ended(about.family, about.began, Principal(about.subject, about.issuer)):
                found.append(about)
    return sorted(found, key=lambda about: about.used, reverse=True)
