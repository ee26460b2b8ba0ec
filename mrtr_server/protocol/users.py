"""Users, as a backend for authentication made them: their principal, and what a task stores of them."""

from typing import Any

from starlette.authentication import BaseUser
from starlette.requests import Request
from starlette.types import Scope

from ..errors import SetupError
from .callers import NO_SCOPES, Principal


def request_of(scope: Scope) -> Request:
    """Return the HTTP request of a scope, without its body, which has been read.

    Args:
        scope: of the ASGI application.
    """
    return Request(scope)


def principal_of(user: Any) -> Principal | None:
    """Return the principal that an authenticated user stands for.

    Args:
        user: Starlette's `request.user`, or None where nothing authenticates. Its `identity` counts, never its display
            name; `issuer` and `client_id` count where it has them.

    Returns:
        The principal; None without a user, for a user who is not authenticated, and for an empty identity.

    Raises:
        SetupError: the user is authenticated but has no `identity`. States could not be bound to them.
    """
    if user is None or not getattr(user, "is_authenticated", False):
        return None
    try:
        identity = user.identity
    except (AttributeError, NotImplementedError):
        raise SetupError(
            f"{type(user).__name__} is authenticated but has no identity; give it the property `identity`, a string "
            "that no other user has, so that what belongs to one user can be kept from another"
        ) from None
    if identity is None or identity == "":
        return None
    return Principal(str(identity), str(getattr(user, "issuer", "") or ""), str(getattr(user, "client_id", "") or ""))


def scopes_of(credentials: Any) -> frozenset[str]:
    """Return what credentials permit; nothing where nobody authenticates.

    Args:
        credentials: Starlette's `request.auth`, or None.
    """
    scopes = getattr(credentials, "scopes", None)
    return frozenset(map(str, scopes)) if scopes else NO_SCOPES


class RecordedUser(BaseUser):
    """The user of a request that has become a task: who it was, as far as can be kept.

    Args:
        identity: that of the user; None for one who had none.
        display_name: that of the user.
        issuer, client_id: those of the principal.
        is_authenticated: whether the user was.
    """

    def __init__(
        self,
        identity: str | int | None,
        display_name: str = "",
        issuer: str = "",
        client_id: str = "",
        *,
        is_authenticated: bool = True,
    ) -> None:
        self._identity = identity
        self._display_name = display_name
        self._is_authenticated = is_authenticated
        self.issuer = issuer
        self.client_id = client_id

    @property
    def is_authenticated(self) -> bool:
        """Whether the user was authenticated."""
        return self._is_authenticated

    @property
    def display_name(self) -> str:
        """The user's name for people."""
        return self._display_name

    @property
    def identity(self) -> Any:
        """Names the user, and no other. Raises `NotImplementedError` for one who had none."""
        if self._identity is None:
            raise NotImplementedError  # as Starlette's own users do
        return self._identity

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        raise AttributeError(
            f"A task keeps no {name!r} of its user: it has identity, display_name, is_authenticated, issuer and "
            "client_id. Store anything else in a ctx.step before ctx.background(), or look it up by the identity"
        )

    def __repr__(self) -> str:
        return f"RecordedUser({self._identity!r})"


def dump_user(user: Any) -> list[Any] | None:
    """Return what a task keeps of the user of its request, as JSON; None where nothing authenticates."""
    if user is None:
        return None
    who = principal_of(user) or Principal("")
    identity, name = _given(user, "identity"), _given(user, "display_name")
    if identity is not None and type(identity) not in (str, int):
        identity = str(identity)
    return [identity, str(name or ""), who.issuer, who.client_id, bool(getattr(user, "is_authenticated", False))]


def load_user(written: Any) -> RecordedUser | None:
    """Return the user in what `dump_user` returned."""
    if written is None:
        return None
    *parts, is_authenticated = written
    return RecordedUser(*parts, is_authenticated=is_authenticated)


def _given(user: Any, name: str) -> Any:
    try:
        return getattr(user, name)
    except (AttributeError, NotImplementedError):  # as Starlette's own does
        return None
