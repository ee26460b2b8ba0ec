"""Who calls, in tests that need several callers and no issuer."""

from starlette.authentication import AuthCredentials, AuthenticationBackend, BaseUser, SimpleUser
from starlette.requests import HTTPConnection


class Bearer(AuthenticationBackend):
    """A backend for which the token is the name of the user; `Bearer` before it may be missing."""

    async def authenticate(self, conn: HTTPConnection) -> tuple[AuthCredentials, BaseUser] | None:
        name = conn.headers.get("authorization", "").removeprefix("Bearer ")
        return (AuthCredentials(), SimpleUser(name)) if name else None
