"""Which part of the server a request is for, by its path."""

import logging
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple

from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from ..callbacks.base_url import escape_path
from ..callbacks.callback_service import PATH
from .health import Probes

logger = logging.getLogger("mrtr_server")


class Metadata(NamedTuple):
    """What serves a document about the server, such as the metadata of the protected resource.

    Args:
        claims: returns whether a path within the application is its own.
        app: serves it.
    """

    claims: Callable[[str], bool]
    app: ASGIApp


class Router:
    """Finds what serves a request: the MCP endpoint, a callback's page, or a probe.

    Args:
        server: the application that a Starlette route or mount names.
        path: of the endpoint, without a slash at its end.
        endpoint: serves MCP.
        pages: serves the callbacks.
        callbacks: the callbacks by name; more may come.
        metadata: serves what clients need to get a token.
        probes: answers health and readiness.
        metrics: shows the metrics; None where they are not shown.
        docs: the page for people; None where there is none.
    """

    def __init__(
        self,
        server: ASGIApp,
        path: str,
        *,
        endpoint: ASGIApp,
        pages: ASGIApp,
        callbacks: Mapping[str, Any],
        metadata: Metadata | None,
        probes: Probes,
        metrics: Metadata | None = None,
        docs: Metadata | None = None,
    ) -> None:
        self._server = server
        self._path = path
        self._raw_path = escape_path(path).encode()
        self._endpoint = endpoint
        self._pages = pages
        self._callbacks = callbacks
        self._metadata = metadata
        self._probes = probes
        self._metrics = metrics
        self._docs = docs

    def find(self, scope: Scope, refusal: str = "") -> ASGIApp:
        """Return what serves an HTTP request.

        Args:
            scope: of the request.
            refusal: why the server is not set up, so that only probes are answered; empty if it is.
        """
        if refusal:
            return self._serve_elsewhere if self._is_probe(scope) else partial(_refuse, refusal)
        if PATH in scope["path"] and self._is_callback(scope):
            return self._pages
        # Escaped or not, a path is the same to us; to a gateway that lets paths through by their name it is another.
        raw = scope.get("raw_path") or None
        if scope["path"] == self._path and (raw == self._raw_path or raw is None) and not scope.get("root_path"):
            return self._endpoint
        # Before what is routed here: a Host of Starlette, which passes on all paths, can't be told from a Route.
        if self._metadata is not None and self._metadata.claims(_below(scope)):
            return self._metadata.app
        if self._is_endpoint(scope, raw):
            return self._endpoint
        if self._metrics is not None and self._metrics.claims(_below(scope)):
            return self._metrics.app
        if self._docs is not None and self._docs.claims(_below(scope)):
            return self._docs.app
        return self._serve_elsewhere

    async def _serve_elsewhere(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self._is_probe(scope):
            await self._probes.answer(_below(scope).rstrip("/"), scope, send)
        else:
            endpoint = scope.get("root_path", "") + self._path or "/"
            await JSONResponse({"error": f"Not found: the MCP endpoint is {endpoint}"}, 404)(scope, receive, send)

    def _is_probe(self, scope: Scope) -> bool:
        return self._probes.claims(_below(scope).rstrip("/"))

    def _is_endpoint(self, scope: Scope, raw: bytes | None) -> bool:
        below = _below(scope)
        routed = scope.get("endpoint") is self._server  # by a Route or a Mount of Starlette
        if routed and "app_root_path" not in scope:
            return True  # a Route: whatever path it has is the endpoint's
        mounted = routed or bool(scope.get("root_path"))
        if below not in (self._path, f"{self._path}/") and not (mounted and below in ("", "/")):
            return False
        return raw is None or raw.partition(b"?")[0].endswith(escape_path(below).encode())

    def _is_callback(self, scope: Scope) -> bool:
        below = _below(scope)
        return below.startswith(PATH) and below.removeprefix(PATH) in self._callbacks


async def _refuse(refusal: str, scope: Scope, receive: Receive, send: Send) -> None:
    logger.error("%s", refusal)  # mounted, so no failed startup has ended it
    await JSONResponse({"error": "The server is not set up"}, 500)(scope, receive, send)


def _below(scope: Scope) -> str:
    """Return the path within the application that the server is mounted in."""
    path: str = scope["path"]
    root: str = scope.get("root_path", "")
    below = path.removeprefix(root)
    return below if below[:1] in ("", "/") else path
