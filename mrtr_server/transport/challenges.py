"""The `WWW-Authenticate` header: why a request was not let in, and how its client gets in (RFC 6750, RFC 9728)."""

from collections.abc import Sequence

from starlette.types import Scope

from .resource_metadata import ResourceMetadata


class Challenges:
    """Writes challenges.

    Args:
        metadata: of the protected resource; None where nothing is known of an authorization server.
        scopes: those that every request needs.
    """

    def __init__(self, metadata: ResourceMetadata | None, scopes: Sequence[str]) -> None:
        self._metadata = metadata
        self.scopes = tuple(scopes)

    def authenticate(self, scope: Scope, error: str = "") -> str:
        """Return the challenge for a request that nobody has authenticated.

        Args:
            scope: of the request.
            error: what is wrong with its credentials, as RFC 6750 names it; empty if it has none.
        """
        return self._write(scope, error, self.scopes)

    def insufficient_scope(self, scope: Scope, needed: Sequence[str] = ()) -> str:
        """Return the challenge for a request whose credentials lack scopes (Authorization, Scope Challenge Handling).

        Args:
            scope: of the request.
            needed: what it needs besides the scopes that every request needs. All are named, so that the client can ask
                for them at once.
        """
        return self._write(scope, "insufficient_scope", tuple(dict.fromkeys((*self.scopes, *needed))))

    def _write(self, scope: Scope, error: str, scopes: Sequence[str]) -> str:
        parameters = {
            "realm": "mcp",
            "error": error,
            "scope": " ".join(scopes),
            "resource_metadata": self._metadata.url(scope) if self._metadata is not None else "",
        }
        return "Bearer " + ", ".join(f'{name}="{value}"' for name, value in parameters.items() if value)
