"""What the backends for tokens of an issuer share: whom a token stands for, and how long that is known."""

import json
import math
import re
import time
from abc import abstractmethod
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from hashlib import sha256
from types import MappingProxyType
from typing import Any, Generic, TypeVar

from starlette.authentication import AuthCredentials, AuthenticationBackend, AuthenticationError, BaseUser
from starlette.requests import HTTPConnection

from ..errors import Full, IssuerUnavailable, ProofRefused, SetupError, StoreUnavailable, check_scopes
from ..protocol.callers import Principal, principal_of
from .dpop import Proofs
from .fixed_tokens import TokenUser

LEEWAY = 60.0  # seconds by which the clocks of this machine and of the issuer may be apart

LATEST = 1e12
"""The latest expiry, in seconds since the epoch. An integer of JSON may be larger than any floating-point number."""

MOST_KNOWN = 4096  # verified tokens at a time

_CLIENT_CLAIMS = ("client_id", "azp", "cid", "appid")
"""Where issuers name the client: RFC 9068; OpenID Connect; Okta; Entra with tokens of version 1."""

_SCOPE_CLAIMS = ("scope", "scp")
"""Where issuers name the scopes: RFC 9068; Okta and Entra."""

_KIND_CLAIMS = ("token_use", "typ", "token_type")
"""Where issuers say what a token is for: Cognito and Hydra; Keycloak; replies to an introspection (RFC 7662)."""

_ACCESS_KINDS = frozenset(
    {
        "access",
        "access_token",
        "urn:ietf:params:oauth:token-type:access_token",
        "bearer",
        "jwt",
        "application/jwt",
        "at+jwt",
        "application/at+jwt",
    }
)
"""What these claims say of an access token that its bearer may use, in lower case; not of refresh or ID tokens."""


class IssuedUser(TokenUser):
    """A user whom an issuer has vouched for.

    Their states, tasks and limits are bound to the client, too, if one is named.
    """

    def __init__(self, claims: Mapping[str, Any], client_id: str, tenant: str = "") -> None:
        super().__init__(str(claims["sub"]))
        self.issuer = str(claims["iss"])
        """Who vouches for the user."""
        self.client_id = client_id
        """The client that acts for the user; empty with `bind_client=False`."""
        self.tenant = tenant
        """The company or team that the user belongs to, by the claim `tenant_claim=`; empty for none."""
        self.expires_at = expires_at(claims) if claims.get("exp") is not None else None
        """When a subscription of the user ends, in seconds since the epoch; None for never."""
        bound = claims.get("cnf")
        self.jkt = str(bound.get("jkt", "")) if isinstance(bound, dict) else ""
        """The thumbprint of the key that the token is bound to (RFC 9449); empty for none."""
        self.claims = MappingProxyType(dict(claims))
        """All claims of the token. The token itself is not kept, and must not be passed on."""

    @property
    def display_name(self) -> str:
        return str(self.claims.get("name") or self.claims.get("preferred_username") or self._identity)

    def __repr__(self) -> str:
        return f"IssuedUser({self._identity!r})"


Found = tuple[AuthCredentials, BaseUser]


class TokenBackend(AuthenticationBackend):
    """A Starlette authentication backend for access tokens of one issuer; the parameters are those of `JWTAuth`."""

    def __init__(
        self,
        issuer: str,
        audience: str | Iterable[str],
        client_ids: Iterable[str],
        implied_scopes: Mapping[str, Iterable[str]],
        *,
        bind_client: bool,
        tenant_claim: str,
    ) -> None:
        self.issuer = issuer
        self.audience = (audience,) if isinstance(audience, str) else tuple(audience)
        """The audiences of which a token must have one; clients see the first that is an address (RFC 8707)."""
        self.authorization_servers = (issuer,)
        """Where clients get tokens, for the metadata of the protected resource (RFC 9728)."""
        self._client_ids = frozenset(_listed("client_ids", client_ids))
        given: tuple[object, ...] = (*self.audience, *self._client_ids)
        if not all(isinstance(each, str) and each for each in given):
            raise SetupError("audience= and client_ids= take texts that are not empty")
        if not self.audience and not self._client_ids:
            raise SetupError(
                "audience= is missing: it says which tokens are meant for this server. Give the server's address, such "
                'as audience="https://tools.example.com/mcp". For an issuer whose access tokens have no audience, give '
                "client_ids=[...], the clients whose tokens are accepted"
            )
        self._implied = {
            check_scopes("implied_scopes", [scope])[0]: check_scopes("implied_scopes", more)
            for scope, more in implied_scopes.items()
        }
        self._bind_client = bind_client
        self._tenant_claim = tenant_claim
        self._known: VerifiedTokens[Found] = VerifiedTokens(MOST_KNOWN)
        self._clock: Callable[[], float] = time.time
        self.proofs: Proofs | None = None

    async def authenticate(self, conn: HTTPConnection) -> Found | None:
        """Return the user of the bearer token in the `Authorization` header (Authorization, Token Handling).

        Args:
            conn: the request.

        Returns:
            The scopes and the user; None if there is no such header.

        Raises:
            AuthenticationError: the token is not valid; the message is for the log alone. Its cause is an
                `IssuerUnavailable` where nobody can know now whether it is valid.
        """
        presented = read_authorization(conn, with_proofs=self.proofs is not None)
        if presented is None:
            return None
        scheme, token = presented
        digest = sha256(token).digest()  # the token itself is kept nowhere
        found = self._known.get(digest, self._clock()) or await self._verify(token, digest)
        _, user = found
        await check_proof(self.proofs, conn, scheme, token, getattr(user, "jkt", ""), principal_of(user))
        return found

    async def _verify(self, token: bytes, digest: bytes) -> Found:
        try:
            claims, until = await self._read_claims(token, digest)
        except IssuerUnavailable as error:
            raise AuthenticationError(f"the token can't be verified now: {error}") from error
        _check_texts(claims)
        found = self._found(claims)
        self._known.put(digest, until, found)
        return found

    @abstractmethod
    async def _read_claims(self, token: bytes, digest: bytes) -> tuple[Mapping[str, Any], float]:
        """Return the claims, and until when they hold, in seconds since the epoch. Raises `IssuerUnavailable`."""

    def _found(self, claims: Mapping[str, Any]) -> Found:
        _check_kind(claims, with_proofs=self.proofs is not None)
        subject = claims.get("sub")
        if not isinstance(subject, str) or not subject:
            raise AuthenticationError("the token has no 'sub'")
        client = next((str(claims[claim]) for claim in _CLIENT_CLAIMS if claims.get(claim)), "")
        if self._client_ids and client not in self._client_ids:
            raise AuthenticationError(f"the token's client {client[:100]!r} is not in client_ids=")
        if self.audience and not _is_for(claims, self.audience):
            raise AuthenticationError("the token is for another audience than audience=")
        if not self.audience and claims.get("aud"):
            raise AuthenticationError("the token is meant for an audience, and audience= is not set")
        user = IssuedUser(claims, client if self._bind_client else "", self._tenant(claims))
        return AuthCredentials(self._scopes(claims)), user

    def _tenant(self, claims: Mapping[str, Any]) -> str:
        named = claims.get(self._tenant_claim) if self._tenant_claim else None
        if named is None:
            return ""
        if isinstance(named, bool) or not isinstance(named, str | int):
            # Such as a list of teams: to choose one of them would let a user leave a share that is used up.
            raise AuthenticationError(f"the token's {self._tenant_claim!r} of tenant_claim= is no text and no number")
        return str(named)

    def _scopes(self, claims: Mapping[str, Any]) -> list[str]:
        scopes: dict[str, None] = {}
        for claim in _SCOPE_CLAIMS:
            value = claims.get(claim)
            given = value.split() if isinstance(value, str) else value if isinstance(value, list) else ()
            waiting = [scope for scope in given if isinstance(scope, str)]
            while waiting:
                scope = waiting.pop(0)
                if scope not in scopes:
                    scopes[scope] = None
                    waiting += self._implied.get(scope, ())
        return list(scopes)


def _check_kind(claims: Mapping[str, Any], *, with_proofs: bool) -> None:
    """Check that a token is an access token, and that whoever brings it may use it. Raises `AuthenticationError`."""
    for claim in _KIND_CLAIMS:
        kind = claims.get(claim)
        if kind is not None and not (isinstance(kind, str) and kind.lower() in _ACCESS_KINDS):
            raise AuthenticationError(
                f"the token is no access token for its bearer: its {claim!r} is {str(kind)[:50]!r}"
            )
    bound = claims.get("cnf")
    if with_proofs and isinstance(bound, dict) and list(bound) == ["jkt"] and isinstance(bound["jkt"], str):
        return
    if bound:
        # Such as to a key (`jkt`, RFC 9449, section 7.2) or to a certificate (`x5t#S256`, RFC 8705, section 3).
        named = ", ".join(map(str, bound))[:50] if isinstance(bound, dict) else type(bound).__name__
        raise AuthenticationError(
            f"the token is bound to a key of its client, by 'cnf' ({named}), and no proof of that key is checked here. "
            "Let the issuer make bearer tokens for this server"
        )


def _is_for(claims: Mapping[str, Any], audience: Iterable[str]) -> bool:
    """Return whether a token is for one of these; of an address, the case of scheme and host does not count."""
    named = claims.get("aud")
    meant = {_canonical(each) for each in (named if isinstance(named, list) else [named]) if isinstance(each, str)}
    return not meant.isdisjoint(map(_canonical, audience))


def _canonical(audience: str) -> str:
    scheme, separator, rest = audience.partition("://")
    end = next((at for at, character in enumerate(rest) if character in "/?#"), len(rest))
    return f"{scheme.lower()}{separator}{rest[:end].lower()}{rest[end:]}" if separator else audience


def _listed(option: str, given: Iterable[str]) -> tuple[str, ...]:
    if isinstance(given, str):
        raise SetupError(f"{option}={given!r} is one string; give a list: {option}=[{given!r}]")
    return tuple(given)


def _check_texts(claims: Mapping[str, Any]) -> None:
    """Check that claims can be written again. JSON can name halves of characters, which no text and no store takes."""
    try:
        json.dumps(dict(claims), ensure_ascii=False).encode()
    except (ValueError, RecursionError):
        raise AuthenticationError("the token has text that can't be written") from None


def expires_at(claims: Mapping[str, Any]) -> float:
    expires = claims.get("exp")
    if isinstance(expires, bool) or not isinstance(expires, int | float) or not abs(expires) < math.inf:
        raise AuthenticationError("the token's 'exp' is not a valid time")
    return min(max(expires, 0), LATEST) + LEEWAY


# The bearer token of a request (Authorization, Token Requirements)


LONGEST_TOKEN = 16 * 1024  # characters; tokens that list a user's groups have a few thousand

_TOKEN = re.compile(rb"[A-Za-z0-9._~+/-]+=*")  # RFC 6750, section 2.1


def read_authorization(connection: HTTPConnection, *, with_proofs: bool = False) -> tuple[str, bytes] | None:
    """Return the scheme and the token of a request; None if there is none. No error has the token in its message."""
    found: bytes | None = None
    for name, value in connection.scope["headers"]:
        if name == b"authorization":
            if found is not None:
                raise AuthenticationError("there are two Authorization headers")
            found = value
    if found is None:
        return None
    named, _, token = found.partition(b" ")
    scheme = named.lower().decode("latin-1")
    if scheme != "bearer" and not (scheme == "dpop" and with_proofs):
        raise AuthenticationError("the Authorization header is not a bearer token")
    token = token.strip()
    if len(token) > LONGEST_TOKEN:
        raise AuthenticationError(f"the token is longer than {LONGEST_TOKEN} characters")
    if _TOKEN.fullmatch(token) is None:
        raise AuthenticationError("the token has characters that no bearer token has")
    return scheme, token


async def check_proof(
    proofs: "Proofs | None", connection: HTTPConnection, scheme: str, token: bytes, jkt: str, who: Principal | None
) -> None:
    """Check that whoever sends a token holds the key that it is bound to (RFC 9449, section 7)."""
    if proofs is None:
        return
    try:
        if scheme == "bearer" and not jkt and proofs.mode == "accept":
            return
        if scheme != "dpop" or not jkt:
            why = (
                "the token is not bound to a key"
                if not jkt
                else "a token that is bound to a key came as a bearer token"
            )
            raise ProofRefused(why, "invalid_token", proofs.nonce())
        scope = connection.scope
        headers: list[tuple[bytes, bytes]] = scope["headers"]
        given = [value for name, value in headers if name == b"dpop"]
        host = next((value.decode("latin-1") for name, value in headers if name == b"host"), "")
        url = proofs.url_of(host, scope.get("root_path", ""), scope["path"])
        proof = proofs.verify(given, scope["method"], url, token=token, jkt=jkt)
        await proofs.use(proof, who)
    except ProofRefused as error:
        raise AuthenticationError(str(error)) from error
    except (StoreUnavailable, Full) as error:  # that a proof is used once can't be noted
        raise AuthenticationError(str(error)) from IssuerUnavailable(f"the store can't be used: {error}")
    scope[NEXT_NONCE] = proofs.nonce_after(proof.nonce)


NEXT_NONCE = "mrtr_server.dpop_nonce"
"""What a scope has for the response: the nonce of the client's next proof."""


# Tokens that were verified: who presents one again is known without further work


T = TypeVar("T")


class VerifiedTokens(Generic[T]):
    """What was found out about tokens, by their digests; the least recently used are dropped."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._known: OrderedDict[bytes, tuple[float, T]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._known)

    def get(self, digest: bytes, now: float) -> T | None:
        known = self._known.get(digest)
        if known is None:
            return None
        if known[0] <= now:
            del self._known[digest]
            return None
        self._known.move_to_end(digest)
        return known[1]

    def put(self, digest: bytes, until: float, value: T) -> None:
        self._known[digest] = until, value
        if len(self._known) > self._most:
            self._known.popitem(last=False)

    def clear(self) -> None:
        self._known.clear()
