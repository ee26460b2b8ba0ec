"""Requests with tokens, sent to an application without a socket."""

import json
from collections.abc import Iterable
from typing import Any

from starlette.types import ASGIApp

from mrtr_server import Context, MRTRServer

from ..support.direct import exchange, headers_for
from ..support.wire import JSON, Reply, modern

AUDIENCE = "https://tools.example.com/mcp"


def make(auth: Any, **options: Any) -> MRTRServer:
    """Make a server with a tool that says who calls."""
    app = MRTRServer("authentic", keys=[bytes(32)], auth=auth, **options)

    @app.tool
    async def who(ctx: Context) -> str:
        principal = ctx.principal
        assert principal is not None
        return json.dumps([principal.subject, principal.issuer, principal.client_id, sorted(ctx.scopes)])

    return app


async def send(
    app: ASGIApp,
    token: str | bytes | None,
    tool: str = "who",
    message: JSON | None = None,
    more: Iterable[tuple[bytes, bytes]] = (),
    **scope: Any,
) -> Reply:
    """Call a tool, or send another message, with a token."""
    message = message or modern("tools/call", {"name": tool, "arguments": {}})
    headers = [(b"host", b"tools.example.com"), *headers_for(message), *more]
    if token is not None:
        headers.append((b"authorization", b"Bearer " + (token.encode() if isinstance(token, str) else token)))
    return await exchange(app, json.dumps(message).encode(), headers, **scope)


async def get(app: ASGIApp, path: str, host: bytes = b"tools.example.com", **scope: Any) -> Reply:
    """Get a page."""
    return await exchange(app, b"", [(b"host", host)], method="GET", path=path, **scope)
