"""Who calls, in tests that need several callers and no issuer."""

from starlette.authentication import AuthCredentials, AuthenticationBackend, BaseUser, SimpleUser
from starlette.requests import HTTPConnection


class Member(SimpleUser):
    """A user whose name may have a tenant behind it, such as `ann@acme`."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.tenant = name.partition("@")[2]


class Bearer(AuthenticationBackend):
    """A backend for which the token is the name of the user; `Bearer` before it may be missing."""

    async def authenticate(self, conn: HTTPConnection) -> tuple[AuthCredentials, BaseUser] | None:
        name = conn.headers.get("authorization", "").removeprefix("Bearer ")
        return (AuthCredentials(), Member(name)) if name else None
