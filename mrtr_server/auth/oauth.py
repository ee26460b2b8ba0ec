"""Access tokens of an authorization server: signed ones, and opaque ones, about which it is asked (RFC 7662)."""

import asyncio
import logging
from collections.abc import Iterable, Mapping, Sequence
from copy import copy
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

from starlette.authentication import AuthenticationError

from ..concurrency.running import PerLoop, running_loop
from ..crypto.keys import KeyRing
from ..errors import IssuerUnavailable, SetupError
from ..protocol.callers import Principal
from ..storage.base import Store
from ..storage.quotas import Quotas
from .dpop import Mode, Proofs, check_mode
from .token_backend import LEEWAY, TokenBackend, VerifiedTokens, expires_at

if TYPE_CHECKING:  # it loads PyJWT
    from .jwt_keys import VerifyingKey

logger = logging.getLogger("mrtr_server")


async def _once_in(store: Store, quotas: Quotas, what: str, seconds: float, who: Principal | None) -> bool:
    return await store.put(what, b"1", keep=seconds, quota=quotas.of(who))


class JWTAuth(TokenBackend):
    """A Starlette authentication backend that verifies JSON Web Tokens of an authorization server. Extra: `auth`.

    The server is then a resource server of OAuth: it says in its metadata where clients get tokens, and challenges
    requests without a valid one (Authorization). The issuer's keys are found through its metadata and kept. They are
    fetched again before they are ten minutes old, and when none of them verifies a token, every ten seconds at most.

    Args:
        issuer: the authorization server, exactly as its tokens name it in `iss`.
        audience: what must be in `aud`: the address of this server's endpoint, or whatever the issuer writes there;
            several if any of them will do.
        client_ids: the clients whose tokens are accepted. It takes the place of `audience` for an issuer whose access
            tokens have no audience. Given both, a token must fit both.
        algorithms: those that a token may be signed with. Default: all with public keys.
        bind_client: whether a state, a task or a session belongs to the client, too, and not just to the user. With
            False, a user can continue with it in another client, or in one that has registered again.
        implied_scopes: for a scope, those that it includes, such as `{"files:write": ["files:read"]}`.
        tenant_claim: the claim that names the company or team of a user, such as `"org_id"`: all users of one together
            have a share of what is stored, see `Limits(tenant_share=...)`. A user whose token lacks it has no tenant.
        jwks_uri: where the issuer's keys are, for an issuer without metadata.
        public_key: the one key of the issuer, as PEM or as a JWK, in place of those that it publishes: nothing is
            fetched then.
        dpop: `"accept"` takes tokens that are bound to a key of the client, too, with a proof of that key (RFC 9449);
            `"require"` takes no others. Default: only bearer tokens.
        dpop_replay: where it is noted that a proof was used: `"process"`, or `"store"` for once in the fleet.

    Raises:
        SetupError: a setting can't be right, or the extra is not installed; the message says which.
    """

    def __init__(
        self,
        issuer: str,
        *,
        audience: str | Iterable[str] = (),
        client_ids: Iterable[str] = (),
        algorithms: Sequence[str] | None = None,
        bind_client: bool = True,
        implied_scopes: Mapping[str, Iterable[str]] | None = None,
        tenant_claim: str = "",
        jwks_uri: str | None = None,
        public_key: str | bytes | Mapping[str, Any] | None = None,
        dpop: Mode | None = None,
        dpop_replay: Literal["process", "store"] = "process",
    ) -> None:
        # Here, so that httpx and PyJWT are loaded only where they are used.
        from . import jwt_keys
        from .fetching import check_issuer, is_safe

        check_issuer(issuer)
        super().__init__(
            issuer, audience, client_ids, implied_scopes or {}, bind_client=bind_client, tenant_claim=tenant_claim
        )
        if jwks_uri is not None and not is_safe(jwks_uri):
            raise SetupError(f"jwks_uri={jwks_uri!r} must be an https address")
        self._algorithms = tuple(jwt_keys.ALGORITHMS if algorithms is None else algorithms)
        if not self._algorithms or (unknown := set(self._algorithms) - set(jwt_keys.ALGORITHMS)):
            raise SetupError(
                f"algorithms={sorted(unknown) if self._algorithms else []}: choose from "
                f"{', '.join(jwt_keys.ALGORITHMS)}. Others are not safe with public keys"
            )
        self._jwt = jwt_keys
        self._keys: Any  # those of the issuer, or the one that is given
        if public_key is None:
            self._keys = jwt_keys.IssuerKeys(issuer, jwks_uri, self._algorithms, self._known.clear)
        elif jwks_uri is not None:
            raise SetupError("Give jwks_uri= or public_key=, not both")
        else:
            self._keys = jwt_keys.FixedKey(jwt_keys.read_key(public_key, self._algorithms))
        check_mode(dpop, dpop_replay)
        self._dpop: Mode | None = dpop
        self._dpop_replay = dpop_replay

    def _bound_to(self, *, ring: KeyRing, base_url: str | None, store: Store, quotas: Quotas, **_: Any) -> "JWTAuth":
        """Return the backend of one server: proofs name its address, and nonces are sealed under its keys."""
        if self._dpop is None:
            return self
        bound, once = copy(self), None
        if self._dpop_replay == "store":
            once = partial(_once_in, store, quotas)
        bound.proofs = Proofs(self._dpop, ring, base_url, once)
        return bound

    async def _read_claims(self, token: bytes, digest: bytes) -> tuple[Mapping[str, Any], float]:
        id, algorithm = self._jwt.read_header(token, self._algorithms)
        keys = await self._keys.find(id, algorithm)
        if not keys:
            raise AuthenticationError(f"the issuer has no key {id[:100]!r} for {algorithm}")
        claims = self._verified(token, keys, algorithm)
        if claims is None:  # the issuer may have another key by that name now
            claims = self._verified(token, await self._keys.find(id, algorithm, keys), algorithm)
        if claims is None:
            raise AuthenticationError("the token's signature does not fit the issuer's key")
        # No longer than the keys count: the issuer may withdraw the key of the token.
        return claims, min(expires_at(claims), self._clock() + self._keys.trusted_for)

    def _verified(self, token: bytes, keys: "Iterable[VerifyingKey]", algorithm: str) -> Mapping[str, Any] | None:
        verify = self._jwt.verify
        return verify(token, keys, algorithm, issuer=self.issuer, has_audience=bool(self.audience), leeway=LEEWAY)


MOST_ASKED = 32  # tokens that the issuer is asked about at a time

MOST_WAITING = 256  # tokens that wait for that; about any more nobody is asked

INACTIVE_KNOWN = 10.0  # seconds for which it is known that a token is not active

AWAY = 1.0
"""For how long nobody asks an issuer that did not reply, and nobody about a token to which its reply can't be used, in
seconds."""

_MOVED = frozenset({301, 302, 303, 307, 308, 404, 405, 410})


class IntrospectionAuth(TokenBackend):
    """A Starlette authentication backend that asks an authorization server about each token. Extra: `auth`.

    It is for opaque tokens, and for those that must end at once when they are revoked. The issuer's reply is cached
    for `cache_seconds`.

    Args:
        issuer: the authorization server, exactly as its metadata names it.
        client_id: what this server is called by the issuer, which lets no stranger ask.
        client_secret: proves that.
        audience, client_ids, bind_client, implied_scopes, tenant_claim: as for `JWTAuth`.
        endpoint: where to ask, for an issuer without metadata.
        cache_seconds: how long a token that was revoked may still be accepted, in seconds.

    Raises:
        SetupError: a setting can't be right, or the extra is not installed; the message says which.
    """

    def __init__(
        self,
        issuer: str,
        *,
        client_id: str,
        client_secret: str,
        audience: str | Iterable[str] = (),
        client_ids: Iterable[str] = (),
        bind_client: bool = True,
        implied_scopes: Mapping[str, Iterable[str]] | None = None,
        tenant_claim: str = "",
        endpoint: str | None = None,
        cache_seconds: float = 60.0,
    ) -> None:
        # Here, so that httpx and PyJWT are loaded only where they are used.
        from . import fetching

        fetching.check_issuer(issuer)
        super().__init__(
            issuer, audience, client_ids, implied_scopes or {}, bind_client=bind_client, tenant_claim=tenant_claim
        )
        if endpoint is not None and not fetching.is_safe(endpoint):
            raise SetupError(f"endpoint={endpoint!r} must be an https address")
        if not client_id or not client_secret:
            raise SetupError(
                "IntrospectionAuth needs client_id= and client_secret=: the issuer answers only authenticated clients"
            )
        if not 0 <= cache_seconds < float("inf"):
            raise SetupError("cache_seconds must be a number of seconds")
        self._discover = fetching.discover
        self._fetch = fetching.fetch_json
        self._given = endpoint
        self._endpoint = endpoint
        self._credentials = (client_id, client_secret)
        self._cache_seconds = cache_seconds
        self._inactive: VerifiedTokens[bool] = VerifiedTokens(4096)
        # What was wrong with the reply to a token, for as long as nobody asks about it again.
        self._unclear: VerifiedTokens[str] = VerifiedTokens(4096)
        self._asking = PerLoop[dict[bytes, asyncio.Task[dict[str, Any]]]]()
        self._away_until = self._replied = float("-inf")
        self._is_away = False
        self._places = PerLoop[asyncio.Semaphore]()

    async def _read_claims(self, token: bytes, digest: bytes) -> tuple[Mapping[str, Any], float]:
        now = self._clock()
        if self._inactive.get(digest, now):
            raise AuthenticationError("the issuer says that the token is not active")
        if wrong := self._unclear.get(digest, now):
            raise IssuerUnavailable(wrong)
        claims = await self._ask_once(token, digest)
        now = self._clock()
        if claims.get("active") is not True:
            self._inactive.put(digest, now + INACTIVE_KNOWN, True)
            raise AuthenticationError("the issuer says that the token is not active")
        if claims.get("iss") is None:
            claims["iss"] = self.issuer
        if claims["iss"] != self.issuer:
            raise AuthenticationError("the token is of another issuer than issuer=")
        until = now + self._cache_seconds
        if claims.get("exp") is not None:
            if (expires := expires_at(claims)) <= now:
                raise AuthenticationError("the token has expired")
            until = min(until, expires)
        begins = claims.get("nbf")
        if isinstance(begins, int | float) and begins > now + LEEWAY:
            raise AuthenticationError("the token is not valid yet: check the clocks")
        return claims, until

    async def _ask_once(self, token: bytes, digest: bytes) -> dict[str, Any]:
        all_asking, loop = self._asking.here(dict), running_loop()
        if (asking := all_asking.get(digest)) is None:
            if loop.time() < self._away_until:
                raise IssuerUnavailable("the issuer did not answer a moment ago")
            if sum(map(len, self._asking.values())) >= MOST_WAITING:
                raise IssuerUnavailable(f"the issuer is being asked about {MOST_WAITING} other tokens")
            asking = all_asking[digest] = loop.create_task(self._ask(token, digest))
            asking.add_done_callback(lambda task: self._forget(digest, task))
        return dict(await asyncio.shield(asking))

    def _forget(self, digest: bytes, task: "asyncio.Task[dict[str, Any]]") -> None:
        self._asking.here(dict).pop(digest, None)
        if not task.cancelled():
            task.exception()  # the requests that wait for it have it

    async def _ask(self, token: bytes, digest: bytes) -> dict[str, Any]:
        loop = asyncio.get_running_loop()
        async with self._places.here(lambda: asyncio.Semaphore(MOST_ASKED)):
            form = {"token": token.decode("ascii"), "token_type_hint": "access_token"}
            endpoint = self._endpoint or await self._find_endpoint()
            began = loop.time()
            try:
                claims = await self._fetch(endpoint, form, self._credentials)
            except IssuerUnavailable as error:
                if error.status:  # it is there, and the reply may be due to this token alone
                    self._note_reply()
                    self._unclear.put(digest, self._clock() + AWAY, str(error))
                    if error.status in _MOVED:
                        self._endpoint = self._given
                elif self._replied <= began:  # nor did it reply to anybody else meanwhile
                    self._note_away(error)
                raise
            self._note_reply()
            return claims

    async def _find_endpoint(self) -> str:
        try:
            found = (await self._discover(self.issuer)).get("introspection_endpoint")
            if not isinstance(found, str):
                raise IssuerUnavailable("its metadata has no introspection_endpoint; give endpoint=")
        except IssuerUnavailable as error:
            self._note_away(error)
            raise
        self._endpoint = found
        return found

    def _note_away(self, error: IssuerUnavailable) -> None:
        self._away_until = asyncio.get_running_loop().time() + AWAY
        self._endpoint = self._given  # it may have moved
        if not self._is_away:
            logger.error("Tokens can't be verified until their issuer answers: %s", error)
        self._is_away = True

    def _note_reply(self) -> None:
        self._replied = asyncio.get_running_loop().time()
        if self._is_away:
            logger.warning("The issuer answers again, and tokens can be verified")
        self._is_away = False
