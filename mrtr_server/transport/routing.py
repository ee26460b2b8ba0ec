"""Where a request goes: to the endpoint, a page, a document, a login, or the probes."""

import asyncio
import logging
import re
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from functools import partial
from hmac import compare_digest
from ipaddress import ip_address
from typing import Any, NamedTuple

from pydantic_core import to_json
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from ..addresses import escape_path
from ..flow.url_asks import PATH
from ..logs.refusals import RefusalLog
from ..protocol.messages import JSON
from .connection import respond, send_content

logger = logging.getLogger("mrtr_server")

RETRY_AFTER = 1  # in seconds; another replica may be ready now


_PORT = re.compile(r":[0-9]{1,5}$")


class Probes:
    def __init__(
        self,
        endpoint: str,
        ready: Callable[[], str],  # why the server is not ready; empty if it is
        store: Callable[[], Awaitable[bool]],  # whether the shared store can be used
        tasks: Callable[[], Awaitable[JSON | None]],  # what `ready` shows of those that wait; None where there are none
        *,
        needs_store: bool,  # if it is ready without the store, the body says that the store is unavailable
    ) -> None:
        folder = endpoint.rpartition("/")[0]
        self._health = f"{folder}/health"
        self._ready = f"{folder}/ready"
        self._why_not = ready
        self._is_store_usable = store
        self._tasks = tasks
        self._needs_store = needs_store

    def claims(self, path: str) -> bool:
        return path in (self._health, self._ready)

    async def answer(self, path: str, scope: Scope, send: Send) -> None:
        """Answer GET or HEAD: `health` is 200 while the process lives, `ready` while it accepts calls, or 503."""
        headers = [(b"cache-control", b"no-store")]
        status, says, more = 200, "ok", b""
        if scope["method"] not in ("GET", "HEAD"):
            status, says = 405, "GET or HEAD"
            headers.append((b"allow", b"GET, HEAD"))
        elif path == self._ready:
            why_not = self._why_not()
            if not why_not:
                is_usable, tasks = await asyncio.gather(self._is_store_usable(), self._tasks())
                if not is_usable:
                    more, why_not = b',"store":"away"', "store away" if self._needs_store else ""
                elif tasks is not None:
                    more = b',"tasks":%b' % to_json(tasks)
            if why_not:
                status, says = 503, why_not
                headers.append((b"retry-after", b"%d" % RETRY_AFTER))
        body = b"" if scope["method"] == "HEAD" else b'{"status":"%b"%b}' % (says.encode(), more)
        await respond(send, status, body, *headers)


class MetricsPage:
    """Shows the metrics of the process. No page of another site can read them.

    A request must have the token. Without one, it must name the server by an address, by a name without a dot, as
    within a cluster, or by one of `allowed_hosts`. None of these can be made to point here by somebody else.
    """

    def __init__(
        self,
        path: str,
        look: Callable[[], Awaitable[object]],  # at what is not known by itself
        render: Callable[[str], tuple[bytes, str]],  # returns the metrics and their type, by the header `Accept`
        hosts: Collection[str],  # further names of this server
        refusals: RefusalLog,
        *,
        token: str | None,  # what a request must have in its `Authorization`; None for nothing
    ) -> None:
        self._path = path
        self._look = look
        self._render = render
        self._hosts = frozenset(host.lower() for host in hosts)
        self._refusals = refusals
        self._token = None if token is None else token.encode()

    def claims(self, path: str) -> bool:
        return path == self._path

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers: dict[bytes, bytes] = dict(scope["headers"])
        host = headers.get(b"host", b"").decode("latin-1")
        if scope["method"] not in ("GET", "HEAD"):
            await respond(send, 405, b'{"error":"GET or HEAD"}', (b"allow", b"GET, HEAD"))
        elif self._token is not None and not _has_token(headers, self._token):
            self._refusals.note("Refused a request for the metrics: it does not have the token of Metrics(token=...)")
            await respond(send, 401, b'{"error":"A bearer token is needed"}', (b"www-authenticate", b"Bearer"))
        elif self._token is None and not self._is_of_this_network(host.lower()):
            self._refusals.note(
                "Refused the host %r for the metrics: if your scraper reaches this server by that name, add it to "
                "allowed_hosts=",
                host,
            )
            await respond(send, 403, b'{"error":"Host not allowed"}')
        else:
            await self._look()
            body, content_type = self._render(headers.get(b"accept", b"").decode("latin-1"))
            await send_content(scope, send, content_type.encode(), body, (b"cache-control", b"no-store"))

    def _is_of_this_network(self, host: str) -> bool:
        name = _PORT.sub("", host)
        if host in self._hosts or name in self._hosts:
            return True
        try:
            ip_address(name.removeprefix("[").removesuffix("]"))
        except ValueError:
            return name != "" and name.replace("-", "").replace("_", "").isalnum()
        return True


def _has_token(headers: Mapping[bytes, bytes], token: bytes) -> bool:
    scheme, _, given = headers.get(b"authorization", b"").partition(b" ")
    return scheme.lower() == b"bearer" and compare_digest(given.strip(), token)


class Metadata(NamedTuple):
    claims: Callable[[str], bool]  # returns whether a path within the application is its own
    app: ASGIApp


class Login(NamedTuple):
    claims: Callable[[Scope], bool]  # returns whether a request is its own
    app: ASGIApp


class Router:
    def __init__(
        self,
        server: ASGIApp,  # the application that a Starlette route or mount names
        path: str,  # of the endpoint, without a slash at its end
        *,
        endpoint: ASGIApp,
        pages: ASGIApp,
        callbacks: Mapping[str, Any],  # by name; more may come
        metadata: Metadata | None,  # what clients need to get a token
        probes: Probes,
        documents: Sequence[Metadata] = (),  # the metrics, and the page for people
        login: Login | None = None,  # the endpoints of the authorization server
    ) -> None:
        self._server = server
        self._path = path
        self._raw_path = escape_path(path).encode()
        self._endpoint = endpoint
        self._pages = pages
        self._callbacks = callbacks
        self._metadata = metadata
        self._probes = probes
        self._documents = documents
        self._login = login

    def find(self, scope: Scope, refusal: str = "") -> ASGIApp:
        """Return what serves an HTTP request: only probes while `refusal` says why the server is not set up."""
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
        if self._login is not None and self._login.claims(scope):
            return self._login.app
        if self._is_endpoint(scope, raw):
            return self._endpoint
        found = (each.app for each in self._documents if each.claims(_below(scope)))
        return next(found, self._serve_elsewhere)

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
