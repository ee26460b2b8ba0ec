"""Cross-origin resource sharing: pages of other origins may call the endpoint and read what it answers (Fetch, CORS).

Credentials that a browser keeps, such as cookies, are never allowed: a client sends its token in a header.
"""

import re
from collections.abc import Sequence

from starlette.datastructures import Headers
from starlette.middleware.cors import CORSMiddleware
from starlette.responses import Response
from starlette.types import ASGIApp

from ..callbacks.base_url import origins_of
from ..errors import SetupError

ANY = "*"

REQUEST_HEADERS = (
    *("Authorization", "Content-Type", "Accept", "Last-Event-ID"),
    *("MCP-Protocol-Version", "Mcp-Session-Id", "Mcp-Method", "Mcp-Name"),
    *("traceparent", "tracestate", "baggage"),
)
"""What a client may send, besides the headers of parameters."""

RESPONSE_HEADERS = ("Mcp-Session-Id", "WWW-Authenticate", "Retry-After")
"""What a page may read of a response, besides what every page may."""

MAX_AGE = 600
"""How long a browser may cache the response, in seconds."""

_PARAMETER = re.compile("mcp-param-[!#$%&'*+.^_`|~0-9a-z-]{1,128}")
"""A header that mirrors a parameter of a tool (Transports, Custom Headers)."""


def check_origins(where: str, origins: Sequence[str]) -> frozenset[str]:
    """Return origins as browsers write them.

    Args:
        where: the option, for errors.
        origins: each such as `https://app.example.com`, or `*`.

    Raises:
        SetupError: one is not an origin, or is `null`, which any page can have.
    """
    listed = origins_of(where, [each for each in origins if each != ANY])
    if "null" in listed:
        raise SetupError(f"{where}: every sandboxed page has the origin 'null'; list origins that you know")
    return listed | {ANY} if ANY in origins else listed


def share_with_origins(app: ASGIApp, origins: frozenset[str]) -> ASGIApp:
    """Wrap an application, so that pages of these origins may call it.

    It goes around everything else, so that a page can read a challenge and an error, too.

    Args:
        app: the application.
        origins: as `check_origins` returns them.
    """
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
        """Answer what a browser asks before it sends a request."""
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
