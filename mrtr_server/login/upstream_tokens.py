"""The tokens of people at the provider: within those of clients, or in the store, one row for each login."""

import asyncio
import math
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from pydantic_core import from_json, to_json

from ..crypto.digests import digest_parts
from ..crypto.keys import LOGIN_TOKENS, KeyRing
from ..crypto.place_codec import PlaceCodec, RowCodec, SealedRows, row_codec
from ..errors import Busy, InsufficientScope, IssuerUnavailable, ProviderRefused, StoreUnavailable, ToolError
from ..limits import Limits
from ..logs.refusals import RefusalLog
from ..protocol.callers import Principal
from ..protocol.messages import Call
from ..storage.base import Store
from ..storage.quotas import Quotas
from .families import Families
from .providers import JSON, Oidc
from .recent import Recent
from .records import About, Grant, Upstream

if TYPE_CHECKING:
    from ..storage.sql.store import SQLStore


EARLY = 60.0  # how long before its end a token is refreshed, in seconds

_LEASE = 15.0  # that one refresh may take, in seconds

_KEPT = 600.0  # how long it is known that a token was refreshed, in seconds

_PAUSE = 0.1

MOST_UNPUT = 1000

MOST_BROUGHT = 1000  # tokens that are at hand for tasks, each of 2 KB at most


class Row(NamedTuple):
    """A row, for whoever has it: `about` says whose it is."""

    upstream: Upstream
    about: About


Renewed = tuple[Upstream | None, JSON | None]
"""Tokens, and what the provider said of the person; None for what there is none of."""


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
        self._renewing: set[asyncio.Task[Renewed]] = set()
        # What a provider gave that the store did not take, by family: it takes the former tokens no more.
        self._unput = Recent[str, Row](MOST_UNPUT)

    async def put(self, upstream: Upstream, about: About) -> None:
        self._unput[about.family] = Row(upstream, about)
        await self._put(upstream, about, keep=self._seconds)
        self._unput.pop(about.family, None)

    async def _put(self, upstream: Upstream, about: About, *, keep: float) -> None:
        key = _key(about.family)
        sealed = self._rows.seal(key, to_json([*upstream, about._replace(used=self._clock())])).encode()
        quota = self._quotas.of(Principal(about.subject, about.issuer), about.began)
        await self._store.replace(key, sealed, keep=keep, quota=quota)

    async def end(self, family: str) -> None:
        """Let a row expire at once. Raises `StoreUnavailable`."""
        if (row := await self.get(family)) is not None:
            with suppress(Busy):  # a full store; it ends by itself
                await self._put(Upstream(), row.about, keep=1.0)

    async def keep_on(self, family: str, who: Principal) -> Upstream | None:
        """Keep a row for as long as its family may live from now on, and return its tokens; None if there is none."""
        if (row := await self.get(family)) is None:
            return None
        name = _refresh_of(family, row.upstream)
        redeemed = await self._store.redeem(name, "", lease=_LEASE, keep=_KEPT, quota=self._quotas.of(who))
        if redeemed.verdict == "granted":  # otherwise another process puts newer tokens, which must stay
            try:
                await self._put(row.upstream, row.about, keep=self._seconds)
                if await self._families.is_ended(family, row.about.began, who):  # since it was read
                    await self.end(family)
            finally:
                with suppress(StoreUnavailable):
                    await self._store.release(name, redeemed.token)
        return row.upstream

    async def get(self, family: str) -> Row | None:
        if (unput := self._unput.get(family)) is not None:
            await self.put(*unput)
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
        if not found.upstream.refresh:  # until it has ended
            return found.upstream if expires > self._clock() else None
        return (await self.renew(family, who, found.upstream))[0]

    async def renew(self, family: str, who: Principal, first: Upstream | None = None) -> "Renewed":
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
                # In a task of its own: what the provider gives is stored, though whoever needed it has left.
                task = asyncio.create_task(self._renew(row, who, name, redeemed.token))
                self._renewing.add(task)
                task.add_done_callback(self._renewed)
                return await asyncio.shield(task)
            if asyncio.get_running_loop().time() > deadline:
                raise IssuerUnavailable("another process is refreshing the same tokens")
            await asyncio.sleep(_PAUSE)
        return None, None

    def _renewed(self, task: "asyncio.Task[Renewed]") -> None:
        self._renewing.discard(task)
        if not task.cancelled():
            task.exception()  # which nobody may have waited for

    async def _renew(self, row: Row, who: Principal, name: str, token: str) -> "Renewed":
        try:
            renewed, claims = await self._provider.renew(row.upstream, who.subject, partial(self.put, about=row.about))
        except BaseException:
            with suppress(StoreUnavailable):  # and not what has happened
                await self._store.release(name, token)
            raise
        if renewed != row.upstream:
            await self._store.record(name, token, b"")
        else:
            await self._store.release(name, token)
        return renewed, claims


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
    return "login-" + digest_parts("login upstream", family)  # by which an index knows those that it lists


class _Brought(NamedTuple):
    """A token that came within one of ours, and until when that counts."""

    until: float
    grant: Grant
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
        self._brought = Recent[str, _Brought](MOST_BROUGHT)
        self._asked = Recent[str, str](MOST_BROUGHT)  # which token there was when a task asked

    def login_of(self, grant: Grant, upstream: Upstream, until: float) -> str:
        """Return what names a login for its tasks; keep what a request brought at hand for these.

        Without a store, tasks run in this process, and go on with what the same person brings by the same client.
        """
        if self._rows is not None:
            return grant.family
        login = digest_parts("login of a client", grant.issuer, grant.subject, grant.client)
        known = self._brought.get(login)
        if upstream.access and (known is None or known.until <= until):  # requests overtake each other
            self._brought[login] = _Brought(until, grant, upstream)
        return login

    async def token(self, call: Call, scopes: Sequence[str], *, task: str = "", asked: int = 0) -> str | None:
        """Return the access token of whoever calls; None where a task has to ask, since each request brings one.

        `task` is the flow of one, and `asked` how often it has asked. Raises `InsufficientScope`, `ToolError`,
        `StoreUnavailable`.
        """
        in_task = task != ""
        found = await self._find(call, in_task=in_task)
        if found is None and in_task and self._rows is None:
            self._check_brought(task, asked, str(getattr(call.user, "login", "")))
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
        if found is None or found.until <= self._clock():
            return None
        has_ended = await self._families.is_ended(found.grant.family, found.grant.began, who)
        return None if has_ended else found.upstream

    def _check_brought(self, task: str, asked: int, login: str) -> None:
        """Check that the last answer brought a token, though that may have ended since. Raises `ToolError`."""
        known = self._brought.get(login)
        token = "" if known is None else digest_parts(known.grant.family, str(known.until))
        if asked and self._asked.get(f"{task} {asked - 1}") == token:
            raise ToolError("The answer did not come from the application that this was started with. Start it again.")
        if (now := f"{task} {asked}") not in self._asked:  # or the round runs again
            self._asked[now] = token


async def logins_in(
    store: "SQLStore", ring: KeyRing, *, before: tuple[float, str] = (math.inf, ""), most: int
) -> tuple[list[About], tuple[float, str]]:
    """Return logins that have not ended, the last used first, and where the next page begins.

    `before`: where this page begins. Raises `StoreUnavailable`.
    """
    families, read = Families(store, ring, Quotas(ring, Limits()), 0.0), reader_of(ring)

    async def open_row(key: str, value: bytes) -> About | None:
        try:
            about = read(key, value).about
        except StoreUnavailable:  # under a key that is not in the ring
            return None
        who = Principal(about.subject, about.issuer)
        return None if await families.is_ended(about.family, about.began, who) else about

    found: list[About] = []
    moment, id = before
    while len(found) < most:
        rows = await store.database.rows("list_logins", before=moment, id=id, most=most - len(found))
        if not rows:
            break
        found += filter(None, await asyncio.gather(*(open_row(key, value) for key, value, _ in rows)))
        id, _, moment = rows[-1]
    return found, (moment, id)
