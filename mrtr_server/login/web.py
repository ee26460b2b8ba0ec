"""Requests and responses of the endpoints: forms with each parameter once, errors of OAuth, pages that nobody keeps."""

import asyncio
from collections.abc import Mapping
from typing import Any
from urllib.parse import parse_qsl, urlencode

from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, RedirectResponse, Response

from ..errors import OAuthError

WITHIN = 10.0  # seconds for a body

MOST_BYTES = 64 * 1024  # of a body; refresh tokens with a provider's within are the largest part

_MOST_FIELDS = 50

_OPEN_TO_ALL = {"Access-Control-Allow-Origin": "*", "Access-Control-Expose-Headers": "DPoP-Nonce, WWW-Authenticate"}
"""Clients in browsers call the endpoints, without cookies."""

_PREFLIGHT = {
    **_OPEN_TO_ALL,
    "Access-Control-Allow-Methods": "GET, POST",
    "Access-Control-Allow-Headers": "Authorization, Content-Type, DPoP, MCP-Protocol-Version",
    "Access-Control-Max-Age": "600",
}


def members(error: OAuthError) -> dict[str, str]:
    return {"error": error.error, "error_description": error.description}


def respond(error: OAuthError) -> Response:
    return json_response(members(error), error.status or 400, error.headers)


def json_response(content: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    kept = {"Cache-Control": "no-store", **_OPEN_TO_ALL, **(headers or {})}
    return JSONResponse(content, status, kept)


def preflight() -> Response:
    return Response(status_code=204, headers=_PREFLIGHT)


def redirect(url: str) -> Response:
    """Send the browser on by GET, whatever it came with."""
    return RedirectResponse(url, 303, {"Cache-Control": "no-store", "Referrer-Policy": "no-referrer"})


def with_parameters(url: str, parameters: Mapping[str, str | None]) -> str:
    given = {name: value for name, value in parameters.items() if value is not None}
    return f"{url}{'&' if '?' in url else '?'}{urlencode(given)}"


async def read_body(request: Request) -> bytes:
    """Return the body. Raises `OAuthError` where it is too large, or does not come."""
    body = b""
    try:
        async with asyncio.timeout(WITHIN):
            async for part in request.stream():
                body += part
                if len(body) > MOST_BYTES:
                    raise OAuthError("invalid_request", f"The body has more than {MOST_BYTES} bytes", 413)
    except (TimeoutError, ClientDisconnect):
        raise OAuthError("invalid_request", "The body did not come", 408) from None
    return body


async def read_form(request: Request) -> dict[str, str]:
    """Return the fields of a form. Raises `OAuthError`."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/x-www-form-urlencoded":
        raise OAuthError("invalid_request", "Send application/x-www-form-urlencoded")
    return read_parameters(await read_body(request))


def read_parameters(text: bytes) -> dict[str, str]:
    """Return parameters. Raises `OAuthError` where one occurs twice (RFC 6749, section 3.1)."""
    if len(text) > MOST_BYTES:
        raise OAuthError("invalid_request", "The parameters are too long")
    try:
        listed = parse_qsl(text.decode("ascii"), keep_blank_values=False, max_num_fields=_MOST_FIELDS, errors="strict")
    except (UnicodeError, ValueError):
        raise OAuthError("invalid_request", "The parameters are not form-encoded") from None
    found = dict(listed)
    if len(found) != len(listed):
        raise OAuthError("invalid_request", "A parameter occurs twice")
    return found
