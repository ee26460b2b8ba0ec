"""Who calls: the principal, what authorize= receives of it, the client, and what a task stores of the user."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from starlette.authentication import BaseUser
from starlette.requests import Request
from starlette.types import Scope

from ..errors import SetupError


@dataclass(frozen=True, slots=True)
class Principal:
    """The authenticated caller that a flow belongs to.

    Args:
        subject: identifies the caller, as the issuer does; never a display name.
        issuer: who identifies the caller; empty where there is one issuer only.
        client_id: the application that acts for the subject; empty where it is not known.
        tenant: the company or team that the subject belongs to, as the issuer names it; empty for none. All callers of
            one have a share of what is stored (`Limits(tenant_share=...)`). It does not count when two principals are
            compared, since whoever moves to another tenant stays the same caller.
    """

    subject: str
    issuer: str = ""
    client_id: str = ""
    tenant: str = field(default="", compare=False)

    @property
    def person(self) -> tuple[str, str]:
        """Who it is, whatever application acts for them."""
        return self.issuer, self.subject


def person_of(principal: Principal | None) -> tuple[str, str] | None:
    """Return who a request counts for; None without authentication."""
    return None if principal is None else principal.person


NO_SCOPES: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Caller:
    """Who calls, as `authorize=` receives it.

    Args:
        principal: on whose behalf; None without authentication.
        user: what the authentication layer made of the credentials; None without one. In a task it has the identity
            alone, see `Context.user`.
        scopes: what the credentials permit; empty without authentication.
    """

    principal: Principal | None = None
    user: Any = None
    scopes: frozenset[str] = NO_SCOPES


class Sender(NamedTuple):
    """Who sent a request, as the transport knows it; its fields are fields of `Call`."""

    principal: Principal | None = None
    user: Any = None
    scopes: frozenset[str] = NO_SCOPES
    root: str = ""  # the path that the application is mounted at; empty where it is not
    # The address and port that the request came from, as the web server names them; None where there is none.
    peer: tuple[str, int] | None = None


CLIENT_FIELD = "io.modelcontextprotocol/clientInfo"  # the members of `_meta` by which a client describes itself
CAPABILITIES_FIELD = "io.modelcontextprotocol/clientCapabilities"


@dataclass(slots=True)
class ClientInfo:
    """The client behind a request, as it describes itself. Fine for display, never for a security decision.

    Args:
        info: its `Implementation`: name, version and so on, as sent; any of it may be missing.
        capabilities: what it declared, in the shape of `ClientCapabilities`; None where the dialect has no
            declarations and everything counts as supported.
    """

    info: dict[str, Any] = field(default_factory=dict)
    capabilities: dict[str, Any] | None = field(default_factory=dict)

    @property
    def name(self) -> str:
        """Its name, or an empty string."""
        return _text(self.info.get("name"))

    @property
    def version(self) -> str:
        """Its version, or an empty string."""
        return _text(self.info.get("version"))

    def supports(self, capability: str) -> bool:
        """Return whether the client declared a capability.

        Args:
            capability: `"elicitation"` (forms), `"elicitation.form"`, `"elicitation.url"`, `"sampling"`,
                `"sampling.tools"`, `"sampling.context"`, `"roots"`, or any dotted path into its capabilities, such as
                `"extensions.io.modelcontextprotocol/ui"`.

        Returns:
            True if an ask that needs it may be sent. An empty `elicitation` object means forms only (Elicitation,
            Capabilities).
        """
        if self.capabilities is None:
            return True
        if capability in ("elicitation", "elicitation.form"):
            declared = self.capabilities.get("elicitation")
            return isinstance(declared, dict) and (not declared or declared.get("form") is not None)
        if capability.startswith(_EXTENSION) and self.extension(capability.removeprefix(_EXTENSION)) is not None:
            return True  # one whose name has a dot
        found: Any = self.capabilities
        for part in _steps(capability):
            found = found.get(part) if isinstance(found, dict) else None
        return found is not None

    def extension(self, id: str) -> dict[str, Any] | None:
        """Return what the client declared of an extension (Extensions, Negotiation).

        Args:
            id: the extension's, such as `"io.modelcontextprotocol/ui"`.

        Returns:
            The client's settings, an empty dictionary if it has none; None if it did not declare the extension. Of a
            client that says this once, in `initialize`, at most 192 characters are kept of all its extensions: settings
            that are too long count as empty.
        """
        declared = (self.capabilities or {}).get("extensions")
        found = declared.get(id) if isinstance(declared, dict) else None
        return found if isinstance(found, dict) else None


def lacking(client: ClientInfo, needs: Iterable[str]) -> list[str]:
    """Return those of some capabilities that a client did not declare; see `ClientInfo.supports`."""
    return [need for need in needs if not client.supports(need)]


def nested(paths: Iterable[str]) -> dict[str, Any]:
    """Return capabilities, each a dotted path, in the shape of `ClientCapabilities`."""
    capabilities: dict[str, Any] = {}
    for path in paths:
        level = capabilities
        for part in _steps(path):
            level = level.setdefault(part, {})
    return capabilities


_EXTENSION = "extensions."


def _steps(path: str) -> list[str]:
    """Return the names on a path into capabilities. The id of an extension has dots, and is one name."""
    if not path.startswith(_EXTENSION):
        return path.split(".")
    prefix, slash, rest = path.removeprefix(_EXTENSION).partition("/")
    name, *inner = rest.split(".")
    return ["extensions", prefix + slash + name, *inner]


def _text(value: Any) -> str:
    return "" if value is None else str(value)


def request_of(scope: Scope) -> Request:
    """Return the HTTP request of a scope, without its body, which has been read."""
    return Request(scope)


def principal_of(user: Any) -> Principal | None:
    """Return the principal of a user; None without one, for one not authenticated, and for an empty identity."""
    # The `identity` counts, never the display name. States could not be bound to an authenticated user without one.
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
    return Principal(str(identity), *(str(getattr(user, name, "") or "") for name in ("issuer", "client_id", "tenant")))


def scopes_of(credentials: Any) -> frozenset[str]:
    """Return what credentials permit; nothing where nobody authenticates."""
    scopes = getattr(credentials, "scopes", None)
    return frozenset(map(str, scopes)) if scopes else NO_SCOPES


class RecordedUser(BaseUser):
    """The user of a request that has become a task, as far as can be kept; `identity` is None for one who had none."""

    is_authenticated = True
    display_name = ""

    def __init__(
        self,
        identity: str | int | None,
        display_name: str = "",
        issuer: str = "",
        client_id: str = "",
        *,
        is_authenticated: bool = True,
        login: str = "",
    ) -> None:
        self.login = login
        """Names the login, where the person logged in here."""
        self._identity = identity
        self.display_name = display_name
        self.is_authenticated = is_authenticated
        self.issuer = issuer
        self.client_id = client_id

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


def load_user(written: Any, login: str = "") -> RecordedUser | None:
    """Return the user in what `dump_user` returned, with the name of their login, if they logged in here."""
    if written is None:
        return None
    *parts, is_authenticated = written
    return RecordedUser(*parts, is_authenticated=is_authenticated, login=login)


def _given(user: Any, name: str) -> Any:
    try:
        return getattr(user, name)
    except (AttributeError, NotImplementedError):  # as Starlette's own does
        return None
