"""Who calls: the principal, what authorize= receives of it, and the client."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, NamedTuple


@dataclass(frozen=True, slots=True)
class Principal:
    """The authenticated caller that a flow belongs to.

    Args:
        subject: identifies the caller, as the issuer does; never a display name.
        issuer: who identifies the caller; empty where there is one issuer only.
        client_id: the application that acts for the subject; empty where it is not known.
    """

    subject: str
    issuer: str = ""
    client_id: str = ""

    @property
    def person(self) -> tuple[str, str]:
        """Who it is, whatever application acts for them."""
        return self.issuer, self.subject


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
    """Who sent a request, as the transport knows it; its fields are fields of `Call`.

    Args:
        principal, user, scopes: as of `Caller`.
        root: the path that the application is mounted at; empty where it is not.
        peer: the address and port that the request came from, as the web server names them; None where there is none.
    """

    principal: Principal | None = None
    user: Any = None
    scopes: frozenset[str] = NO_SCOPES
    root: str = ""
    peer: tuple[str, int] | None = None


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
                `"sampling.tools"`, `"sampling.context"`, `"roots"`, or any dotted path into its capabilities.

        Returns:
            True if an ask that needs it may be sent. An empty `elicitation` object means forms only (Elicitation,
            Capabilities).
        """
        if self.capabilities is None:
            return True
        if capability in ("elicitation", "elicitation.form"):
            declared = self.capabilities.get("elicitation")
            return isinstance(declared, dict) and (not declared or declared.get("form") is not None)
        found: Any = self.capabilities
        for part in capability.split("."):
            found = found.get(part) if isinstance(found, dict) else None
        return found is not None


def lacking(client: ClientInfo, needs: Iterable[str]) -> list[str]:
    """Return those of some capabilities that a client did not declare; see `ClientInfo.supports`."""
    return [need for need in needs if not client.supports(need)]


def nested(paths: Iterable[str]) -> dict[str, Any]:
    """Return capabilities, each a dotted path, in the shape of `ClientCapabilities`."""
    capabilities: dict[str, Any] = {}
    for path in paths:
        level = capabilities
        for part in path.split("."):
            level = level.setdefault(part, {})
    return capabilities


def _text(value: Any) -> str:
    return "" if value is None else str(value)
