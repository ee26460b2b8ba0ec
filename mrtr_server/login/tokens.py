"""What a login gives: codes, access tokens and refresh tokens, each a sealed record of one family."""

import secrets
from collections.abc import Awaitable, Callable, Mapping, Sequence
from inspect import isawaitable
from typing import Any

from ..errors import NotAdmitted, ProviderRefused
from ..protocol.callers import Principal
from .clients import is_document
from .families import Families
from .providers import JSON, Oidc, kept
from .recent import Recent
from .records import About, Access, Asked, Code, Grant, Refresh, Seals, Upstream
from .upstream_tokens import EARLY, UpstreamRows

CODE_SECONDS = 60.0

LONGEST_ACCESS = 2048  # characters

LONGEST_CODE = 8192

_MOST_UNSENT = 1000

Allow = Callable[[Mapping[str, Any]], bool | Awaitable[bool]] | Sequence[str]


class Issuing:
    def __init__(
        self,
        provider: Oidc,
        seals: Seals,
        families: Families,
        rows: UpstreamRows | None,  # None where no store keeps the tokens of people
        allow: Allow | None,
        clock: Callable[[], float],
        *,
        access_seconds: float,
        refresh_seconds: float,
    ) -> None:
        self._provider = provider
        self._seals = seals
        self._families = families
        self._rows = rows
        self._allow = allow
        self._clock = clock
        self._access_seconds = access_seconds
        self._refresh_seconds = refresh_seconds
        # What the provider gave, by login, where a refresh failed after that: it takes the former tokens no more.
        self._unsent = Recent[str, Upstream](_MOST_UNSENT)

    async def code(self, issuer: str, asked: Asked, upstream: Upstream, claims: JSON, own: set[str]) -> str:
        """Return the code for a person who has logged in. Raises `NotAdmitted`, `IssuerUnavailable`."""
        subject, now = str(claims["sub"]), self._clock()
        known = kept(claims)
        await self._check_admitted(subject, claims, upstream)
        elsewhere = [scope for scope in asked.scopes if scope not in own]
        if not upstream.scopes:  # those that were asked for (RFC 6749, section 5.1)
            upstream = upstream._replace(scopes=[*self._provider.scopes, *elsewhere])
        scopes = [scope for scope in asked.scopes if scope in own or self._provider.covers(upstream.scopes, scope)]
        family = secrets.token_urlsafe(16)
        grant = Grant(family, now, asked.client, asked.method, asked.jkt, self._provider.issuer, subject, known, scopes)
        if self._rows is not None:
            person = next((str(known[each]) for each in ("preferred_username", "email", "name") if known.get(each)), "")
            client = asked.client if is_document(asked.client) else asked.name
            await self._rows.put(upstream, About(family, now, grant.issuer, subject, person, client))
        inside, epoch = self._inside(upstream), await self._families.epoch()
        code = self._seals.code.seal(
            issuer, Code(now + CODE_SECONDS, asked.redirect, asked.challenge, list(grant), inside, epoch)
        )
        if len(code) > LONGEST_CODE:
            raise NotAdmitted(_NEEDS_STORE.format(what="The tokens of a person at the provider are"), _CANT)
        self._access(issuer, grant, upstream)  # which says now whether it can be made
        return code

    def _inside(self, upstream: Upstream) -> list[Any]:
        """Return what travels of the tokens at the provider; nothing where the store keeps them."""
        return [] if self._rows is not None else list(upstream)

    async def _check_admitted(self, subject: str, claims: JSON, upstream: Upstream) -> None:
        allow, known = self._allow, {**claims, "iss": self._provider.issuer, "sub": subject}
        if allow is None:
            return
        if callable(allow):
            verdict = allow(known)
            verdict = await verdict if isawaitable(verdict) else verdict
        else:
            verdict = await self._provider.admits(known, upstream, allow)
        if verdict is not True:
            raise NotAdmitted(f"allow= does not admit the person {subject[:50]!r} of {self._provider.issuer}")

    async def first(self, issuer: str, code: Code, jkt: str) -> dict[str, object]:
        """Return the reply for a code. Raises `NotAdmitted`."""
        grant = Grant(*code.grant)._replace(jkt=jkt)
        return await self._reply(issuer, grant, Upstream(*code.upstream), 0)

    async def next(self, issuer: str, token: Refresh, scopes: Sequence[str], jkt: str) -> dict[str, object]:
        """Return the reply for a refresh token. Raises `NotAdmitted`, `IssuerUnavailable`."""
        grant, upstream = Grant(*token.grant), Upstream(*token.upstream)
        upstream, claims = await self._renewed(grant, upstream)
        if claims is None and self._allow is not None:  # another call refreshed the tokens just now
            claims = await self._provider.told(upstream, grant.subject)
        claims = {**grant.claims, **(claims or {})}
        grant = grant._replace(claims=kept(claims))
        await self._check_admitted(grant.subject, claims, upstream)
        # The refresh token keeps all scopes; the access token has those that were asked for (RFC 6749, section 6).
        reply = await self._reply(issuer, grant._replace(jkt=jkt), upstream, token.generation + 1, scopes)
        self._unsent.pop(grant.family, None)
        return reply

    async def _renewed(self, grant: Grant, upstream: Upstream) -> tuple[Upstream, JSON | None]:
        """Return the person's tokens, refreshed where they end soon, or where `allow=` is to be asked again."""
        if self._rows is None:
            return await self._renewed_here(grant, upstream) if self._is_to_renew(upstream) else (upstream, None)
        who, claims = principal_of(grant), None
        if (row := await self._rows.get(grant.family)) is not None and self._is_to_renew(row.upstream):
            renewed, claims = await self._rows.renew(grant.family, who, None if self._allow else row.upstream)
            if renewed is not None and renewed != row.upstream:  # and stored
                return renewed, claims
        kept_on = await self._rows.keep_on(grant.family, who)  # or the row would end before its family
        if kept_on is None:
            raise ProviderRefused("the store has no tokens of this login any more")
        return kept_on, claims

    def _is_to_renew(self, upstream: Upstream) -> bool:
        """Return whether the provider is asked: `allow=` is to be asked again, or the person's token ends soon.

        Raises `ProviderRefused` where the token has ended for good.
        """
        if upstream.expires and not upstream.refresh and upstream.expires <= self._clock():
            raise ProviderRefused("the token of the person has ended, and can't be refreshed")
        ends = bool(upstream.expires) and upstream.expires < self._clock() + self._access_seconds + EARLY
        return self._allow is not None or (ends and bool(upstream.refresh))

    async def _renewed_here(self, grant: Grant, upstream: Upstream) -> tuple[Upstream, JSON | None]:
        """Refresh tokens that travel with the client. What the provider gave stays at hand until the client has it."""

        async def keep(renewed: Upstream) -> None:
            self._unsent[grant.family] = renewed

        return await self._provider.renew(self._unsent.get(grant.family, upstream), grant.subject, keep)

    async def end(self, grant: Grant) -> None:
        """End a login. Raises `StoreUnavailable`."""
        await self._families.end(grant.family, principal_of(grant))
        if self._rows is not None:
            await self._rows.end(grant.family)

    # The tokens

    async def _reply(
        self, issuer: str, grant: Grant, upstream: Upstream, generation: int, scopes: Sequence[str] | None = None
    ) -> dict[str, object]:
        narrow = grant if scopes is None else grant._replace(scopes=list(scopes))
        access, seconds = self._access(issuer, narrow, upstream)
        expires = self._clock() + self._refresh_seconds
        refresh = Refresh(expires, generation, list(grant), self._inside(upstream), await self._families.epoch())
        return {
            "access_token": access,
            "token_type": "DPoP" if grant.jkt else "Bearer",
            "expires_in": int(seconds),
            "refresh_token": self._seals.refresh.seal(issuer, refresh),
            "scope": " ".join(narrow.scopes),
        }

    def _access(self, issuer: str, grant: Grant, upstream: Upstream) -> tuple[str, float]:
        """Return an access token, and how many seconds it lives. Raises `NotAdmitted` where it would be too long."""
        seconds = self._access_seconds
        if upstream.expires and self._rows is None:
            seconds = max(min(seconds, upstream.expires - self._clock()), 0.0)
        claims = {name: value for name, value in grant.claims.items() if not isinstance(value, list)}
        inside, scopes = ("", []) if self._rows is not None else (upstream.access, list(upstream.scopes))
        access = Access(self._clock() + seconds, list(grant._replace(claims=claims)), inside, scopes)
        token = self._seals.access.seal(issuer, access)
        if len(token) > LONGEST_ACCESS:
            what = "With the provider's own token within it, an access token is"
            raise NotAdmitted(_NEEDS_STORE.format(what=what), _CANT)
        return token, seconds


_NEEDS_STORE = (
    "{what} too long to travel with the client. Give the server a database with MRTR_DATABASE_URL or store=, which "
    "then keeps the tokens of people"
)


# For the person.
_CANT = "This server can't take your account: its operator has to give it a database. The log says why"


def principal_of(grant: Grant) -> Principal:
    return Principal(grant.subject, grant.issuer)
