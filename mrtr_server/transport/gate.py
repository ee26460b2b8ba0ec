"""What stands in front of the endpoint and of its authentication: middleware, and the checks of headers."""

from collections.abc import Awaitable, Iterable, Sequence

from starlette.middleware import Middleware
from starlette.responses import JSONResponse, Response
from starlette.types import ASGIApp, Receive, Scope, Send

from ..logs.refusals import RefusalLog

_ONCE = (b"host", b"authorization", b"content-length")
"""Headers that may be there once: of two, a proxy may use the one and a server the other."""


def build_middleware_stack(app: ASGIApp, middleware: Sequence[Middleware], refusals: RefusalLog) -> ASGIApp:
    """Wrap an application in middleware, and outermost in the check of its headers.

    Args:
        app: the application, with its authentication.
        middleware: Starlette middleware, the outermost first.
        refusals: logs refused requests.

    Returns:
        The outermost application.
    """
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
            refusals.count("repeated_header")
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
