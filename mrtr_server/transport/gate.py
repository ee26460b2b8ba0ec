"""What stands in front of the endpoint: cross-origin resource sharing, middleware, and the checks of headers.

Pages of other origins may call the endpoint (Fetch, CORS), but never with credentials that a browser keeps, such as
cookies: a client sends its token in a header.
"""

import re
from collections.abc import Awaitable, Iterable, Mapping, Sequence

from starlette.datastructures import Headers
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.responses import JSONResponse, Response
from starlette.types import ASGIApp, Receive, Scope, Send

from ..addresses import is_loopback_origin, origins_of
from ..errors import SetupError
from ..logs.refusals import RefusalLog
from ..protocol.envelope import ENDS, find_request_id
from .connection import JSON_TYPE

# Headers that may be there once: of two, a proxy may use the one and a server the other.
_ONCE = (b"host", b"authorization", b"content-length")


ANY = "*"

REQUEST_HEADERS = (
    *("Authorization", "DPoP", "Content-Type", "Accept", "Last-Event-ID"),
    *("MCP-Protocol-Version", "Mcp-Session-Id", "Mcp-Method", "Mcp-Name"),
    *("traceparent", "tracestate", "baggage"),
)
"""What a client may send, besides the headers of parameters."""

# What a page may read of a response, besides what every page may.
RESPONSE_HEADERS = ("Mcp-Session-Id", "WWW-Authenticate", "DPoP-Nonce", "Retry-After")

MAX_AGE = 600  # how long a browser may cache the response, in seconds

# A header that mirrors a parameter of a tool (Transports, Custom Headers).
_PARAMETER = re.compile("mcp-param-[!#$%&'*+.^_`|~0-9a-z-]{1,128}")

MOST_READ = 8  # times the size that a body may have


def check_origins(origins: Sequence[str]) -> frozenset[str]:
    """Return the origins as browsers write them. Raises `SetupError`, also for `null`, which any page can have."""
    listed = origins_of("origins", [each for each in origins if each != ANY])
    if "null" in listed:
        raise SetupError("origins: every sandboxed page has the origin 'null'; list origins that you know")
    return listed | {ANY} if ANY in origins else listed


def share_with_origins(app: ASGIApp, origins: frozenset[str]) -> ASGIApp:
    """Allow pages of these origins to call an application. It goes around all else: they can read errors, too."""
    return _ProtocolCORS(
        app,
        allow_origins=origins,
        allow_methods=("GET", "POST", "DELETE"),
        allow_headers=REQUEST_HEADERS,
        expose_headers=RESPONSE_HEADERS,
        max_age=MAX_AGE,
    )


class _ProtocolCORS(CORSMiddleware):
    """Starlette's, which takes the headers of parameters by their prefix: each tool names its own."""

    def preflight_response(self, request_headers: Headers) -> Response:
        asked = request_headers.get("access-control-request-headers", "").lower().split(",")
        names = [name.strip() for name in asked if name.strip()]
        parameters = [name for name in names if _PARAMETER.fullmatch(name)]
        if not parameters:
            return super().preflight_response(request_headers)
        others = dict(request_headers) | {
            "access-control-request-headers": ", ".join(name for name in names if name not in parameters) or "accept"
        }
        response = super().preflight_response(Headers(others))
        allowed = [response.headers["access-control-allow-headers"], *parameters]
        response.headers["access-control-allow-headers"] = ", ".join(allowed)
        return response


def build_middleware_stack(app: ASGIApp, middleware: Sequence[Middleware], refusals: RefusalLog) -> ASGIApp:
    for cls, args, kwargs in reversed(middleware):
        app = cls(app, *args, **kwargs)

    def unambiguous(scope: Scope, receive: Receive, send: Send) -> Awaitable[None]:
        headers = scope["headers"]
        refusal = None if len(dict(headers)) == len(headers) else refuse_repeated(headers, refusals)
        return (app if refusal is None else refusal)(scope, receive, send)

    return unambiguous


def refuse_repeated(headers: Iterable[tuple[bytes, bytes]], refusals: RefusalLog) -> Response | None:
    """Return the refusal of a request that repeats a header which may be there only once; None for any other."""
    names = [name for name, _ in headers]
    for name in _ONCE:
        if names.count(name) > 1:
            refusals.count("repeated_header")
            refusals.note(
                "Refused a request with two headers %r: check the proxy in front of this server, which must send one",
                name.decode(),
            )
            return JSONResponse({"error": f"The header {name.decode()} occurs twice"}, 400)
    return None


def join_repeated(headers: dict[bytes, bytes], listed: Iterable[tuple[bytes, bytes]]) -> str:
    """Join repeated headers in the dictionary; return the first of the protocol's, or an empty string."""
    values: dict[bytes, list[bytes]] = {}
    for name, value in listed:
        values.setdefault(name, []).append(value)
    for name in (b"accept", b"origin"):  # an origin of two is allowed nowhere
        if name in values:
            headers[name] = b", ".join(values[name])
    twice = (name for name, found in values.items() if len(found) > 1 and name.startswith(b"mcp-"))
    return next(twice, b"").decode("latin-1")


class HeaderChecks:
    """Refuses pages of other sites, requests for another server (Transports, Security), and what is no JSON."""

    def __init__(self, origins: frozenset[str], allowed_hosts: Sequence[str] | None, refusals: RefusalLog) -> None:
        self._origins = origins
        self._hosts = None if allowed_hosts is None else frozenset(host.lower() for host in allowed_hosts)
        self._refusals = refusals

    def refuse(self, headers: Mapping[bytes, bytes], method: str) -> tuple[int, bytes] | None:
        """Return the status and the body of a refusal; None for what may pass."""
        origin = headers.get(b"origin")
        if origin is not None and not self._is_origin_allowed(origin.decode("latin-1")):
            self._refusals.count("origin")
            self._refusals.note(
                "Refused the origin %r: to let browsers call from there, add it to origins=", origin.decode("latin-1")
            )
            return 403, b'{"error":"Origin not allowed"}'
        host = headers.get(b"host", b"").decode("latin-1")
        if not self._is_host_allowed(host.lower()):
            self._refusals.count("host")
            self._refusals.note(
                "Refused the host %r: if clients reach this server by that name, add it to allowed_hosts=", host
            )
            return 403, b'{"error":"Host not allowed"}'
        kind = headers.get(b"content-type", b"")
        if kind != JSON_TYPE and kind.partition(b";")[0].strip().lower() != JSON_TYPE and method == "POST":
            return 415, b'{"error":"Content-Type must be application/json"}'
        return None

    def _is_host_allowed(self, host: str) -> bool:
        name, _, port = host.rpartition(":")
        return self._hosts is None or host in self._hosts or (port.isdigit() and name in self._hosts)

    def _is_origin_allowed(self, origin: str) -> bool:
        origin = origin.strip().lower()
        if origin == "null":
            return False
        return ANY in self._origins or origin in self._origins or is_loopback_origin(origin)


async def drain_body(receive: Receive, limit: int, begun: bytes = b"", *, is_all: bool = False) -> str | int | None:
    """Read the rest of a body, and return the id of the request in it; None where it has none or is far too large."""
    head, tail, size = begun[:ENDS], begun[-ENDS:], len(begun)
    while not is_all:
        message = await receive()
        if message["type"] != "http.request":
            return None
        part: bytes = message.get("body", b"")
        size += len(part)
        if size > limit * MOST_READ:
            return None
        if len(head) < ENDS:
            head = (head + part)[:ENDS]
        tail = (tail + part[-ENDS:])[-ENDS:]
        is_all = not message.get("more_body")
    return find_request_id(head, tail)
