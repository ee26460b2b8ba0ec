"""What stands in front of the endpoint: authentication, middleware, and the checks of headers."""

import logging
from collections.abc import Awaitable, Iterable, Sequence

from starlette.authentication import AuthenticationBackend, AuthenticationError
from starlette.middleware import Middleware
from starlette.middleware.authentication import AuthenticationMiddleware
from starlette.requests import HTTPConnection
from starlette.responses import JSONResponse, Response
from starlette.types import ASGIApp, Receive, Scope, Send

from ..logs.refusals import RefusalLog

logger = logging.getLogger("mrtr_server")

_ONCE = (b"host", b"authorization", b"content-length")
"""Headers that may be there once: of two, a proxy may use the one and a server the other."""


def build_middleware_stack(
    app: ASGIApp, auth: AuthenticationBackend | None, middleware: Sequence[Middleware], refusals: RefusalLog
) -> ASGIApp:
    """Wrap an application in authentication and middleware, and outermost in the check of its headers.

    Args:
        app: the application.
        auth: authenticates users; others get a 401. None to let everybody through.
        middleware: Starlette middleware, the outermost first; it runs outside the authentication.
        refusals: logs refused requests.

    Returns:
        The outermost application.
    """
    if auth is not None:
        app = AuthenticationMiddleware(_RequireUser(app), backend=auth, on_error=_rejected)
    for cls, args, kwargs in reversed(middleware):
        app = cls(app, *args, **kwargs)
    return _Unambiguous(app, refusals)


def refuse_repeated(headers: Iterable[tuple[bytes, bytes]], refusals: RefusalLog) -> Response | None:
    """Return the refusal of a request that repeats a header which may be there only once; None for any other request.

    Args:
        headers: of the request, one of them twice.
        refusals: logs refused requests.
    """
    names = [name for name, _ in headers]
    for name in _ONCE:
        if names.count(name) > 1:
            refusals.note(
                "Refused a request with two headers %r: check the proxy in front of this server, which must send one",
                name.decode(),
            )
            return JSONResponse({"error": f"The header {name.decode()} occurs twice"}, 400)
    return None


class _Unambiguous:
    """Lets no request through that has a header twice which can be there once."""

    def __init__(self, app: ASGIApp, refusals: RefusalLog) -> None:
        self._app = app
        self._refusals = refusals

    def __call__(self, scope: Scope, receive: Receive, send: Send) -> Awaitable[None]:
        headers = scope["headers"]
        if len(dict(headers)) != len(headers):
            refusal = refuse_repeated(headers, self._refusals)
            if refusal is not None:
                return refusal(scope, receive, send)
        return self._app(scope, receive, send)


class _RequireUser:
    """Lets only authenticated requests through."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["user"].is_authenticated:
            await self._app(scope, receive, send)
        else:
            await _challenge('Bearer realm="mcp"')(scope, receive, send)


def _challenge(challenge: str) -> Response:
    return JSONResponse({"error": "Authentication is required"}, 401, {"WWW-Authenticate": challenge})


def _rejected(connection: HTTPConnection, error: AuthenticationError) -> Response:
    reason = str(error)
    for part in connection.headers.get("authorization", "").split():
        reason = reason.replace(part, "…") if len(part) > len("Bearer") else reason  # a token is never logged
    logger.warning("Credentials were rejected: %.200r", reason)
    return _challenge('Bearer realm="mcp", error="invalid_token"')
