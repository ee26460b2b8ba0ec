"""The gate before the endpoint: authentication and other middleware, and the 401 for whom nobody knows."""

import logging
from collections.abc import Sequence

from starlette.authentication import AuthenticationBackend, AuthenticationError
from starlette.middleware import Middleware
from starlette.middleware.authentication import AuthenticationMiddleware
from starlette.requests import HTTPConnection
from starlette.responses import JSONResponse, Response
from starlette.types import ASGIApp, Receive, Scope, Send

logger = logging.getLogger("mrtr_server")


def wrap(app: ASGIApp, auth: AuthenticationBackend | None, middleware: Sequence[Middleware]) -> ASGIApp:
    """Put authentication and other middleware around an application, once.

    Parameters:
        app: the application.
        auth: knows users by their credentials; whom it does not know gets a 401. None to let everybody through.
        middleware: Starlette middleware, the outermost first; around the authentication.
    """
    if auth is not None:
        app = AuthenticationMiddleware(_RequireUser(app), backend=auth, on_error=_rejected)
    for cls, args, kwargs in reversed(middleware):
        app = cls(app, *args, **kwargs)
    return app


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
