"""Access tokens that are signed by their issuer."""

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from starlette.authentication import AuthenticationError

from ..errors import SetupError
from .token_backend import LEEWAY, TokenBackend, expires_at

if TYPE_CHECKING:  # loads PyJWT
    from .jwt_keys import VerifyingKey


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
        jwks_uri: where the issuer's keys are, for an issuer without metadata.

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
        jwks_uri: str | None = None,
    ) -> None:
        # Here, so that they are loaded only where they are used.
        from . import jwt_keys
        from .discovery import check_issuer
        from .fetching import is_safe
        from .issuer_keys import IssuerKeys

        check_issuer(issuer)
        super().__init__(issuer, audience, client_ids, implied_scopes or {}, bind_client=bind_client)
        if jwks_uri is not None and not is_safe(jwks_uri):
            raise SetupError(f"jwks_uri={jwks_uri!r} must be an https address")
        self._algorithms = tuple(jwt_keys.ALGORITHMS if algorithms is None else algorithms)
        if not self._algorithms or (unknown := set(self._algorithms) - set(jwt_keys.ALGORITHMS)):
            raise SetupError(
                f"algorithms={sorted(unknown) if self._algorithms else []}: choose from "
                f"{', '.join(jwt_keys.ALGORITHMS)}. Others are not safe with public keys"
            )
        self._jwt = jwt_keys
        self._keys = IssuerKeys(issuer, jwks_uri, self._algorithms, self._known.clear)

    async def _read_claims(self, token: bytes, digest: bytes) -> tuple[Mapping[str, Any], float]:
        """Return the claims of a token; see `TokenBackend`."""
        id, algorithm = self._jwt.read_header(token, self._algorithms)
        keys = await self._keys.find(id, algorithm)
        if not keys:
            raise AuthenticationError(f"the issuer has no key {id[:100]!r} for {algorithm}")
        claims = self._verified(token, keys, algorithm)
        if claims is None:  # the issuer may have another key by that name now
            claims = self._verified(token, await self._keys.find(id, algorithm, keys), algorithm)
        if claims is None:
            raise AuthenticationError("the token's signature does not fit the issuer's key")
        # No longer than the keys count: the issuer may withdraw the one that has signed it.
        return claims, min(expires_at(claims), self._clock() + self._keys.trusted_for)

    def _verified(self, token: bytes, keys: "Iterable[VerifyingKey]", algorithm: str) -> Mapping[str, Any] | None:
        verify = self._jwt.verify
        return verify(token, keys, algorithm, issuer=self.issuer, has_audience=bool(self.audience), leeway=LEEWAY)
