"""Fixed bearer tokens, for development."""

import hmac
import logging
from collections.abc import Iterable, Mapping
from hashlib import sha256

from starlette.authentication import AuthCredentials, AuthenticationBackend, AuthenticationError, BaseUser
from starlette.requests import HTTPConnection

from ..errors import SetupError, check_scopes

logger = logging.getLogger("mrtr_server")


class Acting(AuthCredentials):
    """The scopes of a user whom a test names: no credentials are checked. No request can carry it."""


class TokenUser(BaseUser):
    """A user who was authenticated by a token. The identity names the user, and no other."""

    def __init__(self, identity: str) -> None:
        self._identity = identity

    @property
    def is_authenticated(self) -> bool:
        return True

    @property
    def display_name(self) -> str:
        return self._identity

    @property
    def identity(self) -> str:
        return self._identity


class BearerTokens(AuthenticationBackend):
    """A Starlette authentication backend with a fixed table of bearer tokens. For development and tests.

    Args:
        users: the user's identity, by token.
        scopes: what every user may do; or, by token, what the user of each may do, who otherwise may do nothing.

    Raises:
        SetupError: a token or an identity is empty, or the scopes are no list or of a token that there is not.
    """

    def __init__(
        self, users: Mapping[str, str], scopes: Iterable[str] | Mapping[str, Iterable[str]] = ("authenticated",)
    ) -> None:
        if not all(token and identity for token, identity in users.items()):
            raise SetupError("BearerTokens needs a token and an identity for each user; neither may be empty")
        by_token = scopes if isinstance(scopes, Mapping) else dict.fromkeys(users, check_scopes("scopes", scopes))
        if by_token.keys() - users.keys():
            raise SetupError("BearerTokens(scopes=...) has scopes of a token that no user has")
        granted = {token: check_scopes("scopes", each) for token, each in by_token.items()}
        # Digests, so that the time of a lookup reveals nothing about the token.
        self._users = [
            (sha256(token.encode()).digest(), TokenUser(identity), list(granted.get(token, ())))
            for token, identity in users.items()
        ]

    async def authenticate(self, conn: HTTPConnection) -> tuple[AuthCredentials, BaseUser] | None:
        """Return the user of the bearer token in the `Authorization` header (Authorization, Token Handling).

        Args:
            conn: the request.

        Returns:
            The scopes and the user; None if there is no such header.

        Raises:
            AuthenticationError: the header is of another kind, or its token is unknown.
        """
        header = conn.headers.get("authorization")
        if header is None:
            return None
        scheme, _, token = header.partition(" ")
        if scheme.lower() != "bearer":
            raise AuthenticationError("The Authorization header is not a bearer token")
        presented = sha256(token.strip().encode("latin-1")).digest()
        found = None
        for digest, user, scopes in self._users:
            if hmac.compare_digest(digest, presented):
                found = AuthCredentials(scopes), user
        if found is None:
            raise AuthenticationError("The bearer token is not valid")
        return found
