"""The metadata of the protected resource: where clients get tokens for this server (RFC 9728)."""

import logging
import re
from collections.abc import Sequence
from typing import Any

from starlette.datastructures import Headers
from starlette.responses import JSONResponse, Response
from starlette.types import Receive, Scope, Send

from ..callbacks.base_url import escape_path

logger = logging.getLogger("mrtr_server")

WELL_KNOWN = "/.well-known/oauth-protected-resource"

NOT_SERVED = (
    "clients can't find out where to get a token: the site around this server does not serve {path!r}. Add "
    f'Mount("{WELL_KNOWN}", server.resource_metadata) to its routes'
)
"""What is wrong where a site passes on the path of the endpoint alone, and what to do."""

_SHOWN = 200
"""Characters that are shown of a path, which its client may have chosen."""

_DOCUMENT = WELL_KNOWN.rpartition("/")[2]

_HOST = re.compile(r"[A-Za-z0-9._-]{1,255}(:[0-9]{1,5})?|\[[0-9A-Fa-f:.]{2,45}\](:[0-9]{1,5})?")

_OPEN_TO_ALL = {"Access-Control-Allow-Origin": "*"}
"""It is public, and clients in browsers read it before they have a token."""


class ResourceMetadata:
    """Serves the metadata, at the well-known path and at the one that ends with the path of the endpoint.

    Args:
        path: of the endpoint, without a slash at its end.
        base_url: the address of the application; None to take it from each request.
        audience: what tokens are meant for. The first that is an address is what clients ask tokens for.
        authorization_servers: where clients get tokens.
        scopes: those that every request needs.
        name: of the server, for people.
        documentation: where people can read about it; None for nowhere.
    """

    def __init__(
        self,
        path: str,
        base_url: str | None,
        *,
        audience: Sequence[str],
        authorization_servers: Sequence[str],
        scopes: Sequence[str],
        name: str,
        documentation: str | None,
    ) -> None:
        self._path = path
        self._has_warned = False
        self._base_url = None if base_url is None else base_url.rstrip("/")
        self._base_path = "/".join(["", *(self._base_url or "").split("/", 3)[3:]])
        self._resource = next((each for each in audience if each.startswith(("https://", "http://"))), None)
        more = {"scopes_supported": list(scopes), "resource_documentation": documentation}
        self._document = {
            "authorization_servers": list(authorization_servers),
            "bearer_methods_supported": ["header"],
            "resource_name": name,
            **{field: value for field, value in more.items() if value},
        }

    def claims(self, below: str) -> bool:
        """Return whether a path within the application is that of the metadata."""
        return below.startswith(WELL_KNOWN) and below.rstrip("/") in (WELL_KNOWN, WELL_KNOWN + self._path)

    def url(self, scope: Scope) -> str:
        """Return where the metadata is, for the client of a request to the endpoint; empty if that can't be known.

        Args:
            scope: of the request.
        """
        root = scope.get("root_path", "")
        base = self._base(scope, root)
        below = scope["path"].removeprefix(root).rstrip("/")
        own = base and base + WELL_KNOWN + escape_path(below)
        if not own or "router" not in scope or is_served(scope, root + WELL_KNOWN + below):
            return own
        # A Route passes on the path of the endpoint alone, so the site has to serve the metadata: at its root
        # (RFC 9728, section 3.1), which is another place if the Route itself is below a Mount.
        site = scope.get("app_root_path", root)
        mount = root.removeprefix(site)
        path = site + WELL_KNOWN + mount + below
        if is_served(scope, path):
            return base.removesuffix(escape_path(mount)) + WELL_KNOWN + escape_path(mount + below)
        if not self._has_warned:
            self._has_warned = True
            logger.warning("With auth=, %s", NOT_SERVED.format(path=path[:_SHOWN]))
        return own

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request for the metadata."""
        await self._respond(scope)(scope, receive, send)

    def _respond(self, scope: Scope) -> Response:
        if scope["method"] == "OPTIONS":
            allowed = {"Access-Control-Allow-Methods": "GET", "Access-Control-Allow-Headers": "*"}
            return Response(status_code=204, headers={**_OPEN_TO_ALL, **allowed})
        if scope["method"] not in ("GET", "HEAD"):
            return Response(status_code=405, headers={"Allow": "GET, HEAD, OPTIONS"})
        resource = self._resource or self._named(scope)
        if not resource:
            return JSONResponse({"error": "Not found"}, 404)
        # Made of the request's own Host, it is for nobody else.
        kept = "no-store" if self._resource is None and self._base_url is None else "max-age=300"
        document: dict[str, Any] = {"resource": resource, **self._document}
        return JSONResponse(document, headers={**_OPEN_TO_ALL, "Cache-Control": kept})

    def _named(self, scope: Scope) -> str:
        """Return the address of the endpoint that the path of a request is about; empty if that can't be known."""
        _, found, after = scope["path"].rstrip("/").partition(WELL_KNOWN)
        about = escape_path(after) if found else ""
        root = scope.get("root_path", "")
        if root.endswith(WELL_KNOWN):  # mounted there by an outer application, so the path is that of a whole address
            base = self._base(scope, root.removesuffix(WELL_KNOWN))
            if f"{about}/".startswith(f"{self._base_path}/"):
                base = base.removesuffix(self._base_path)
            return base and base + (about or self._path)
        base = self._base(scope, root)
        return base and base + (about if about or root else self._path)

    def _base(self, scope: Scope, root: str) -> str:
        if self._base_url is not None:
            return self._base_url
        host = Headers(scope=scope).get("host", "")
        return f"{scope['scheme']}://{host}{escape_path(root.rstrip('/'))}" if _HOST.fullmatch(host) else ""


def is_served(scope: Scope, path: str) -> bool:
    """Return whether the site that passes a request on would serve the metadata at a path.

    Args:
        scope: of the request, with what Starlette adds: the router of the site, and where that leads.
        path: with that of whatever is in front of the site.

    Returns:
        Whether it would; True if nothing is known of its routes.
    """
    from .site import routes_of, serves  # loads the routes of Starlette; the site has done that

    outside = {key: value for key, value in scope.items() if key not in ("app_root_path", "raw_path", "path_params")}
    root = scope.get("app_root_path", scope.get("root_path", ""))
    asked = {**outside, "method": "GET", "path": path, "root_path": root}
    routes = routes_of(scope["router"])
    return not routes or serves(routes, asked, scope.get("endpoint"), _DOCUMENT)
