"""What a web server calls. One that knows this class may give it an HTTP request with one coroutine less."""

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable
from typing import Any

from starlette.types import Receive, Scope, Send


class ASGIServer(ABC):
    """An ASGI application; a subclass says how it serves requests, and how it starts and stops."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one ASGI connection."""
        if scope["type"] == "http":
            await self._serve_http(scope, receive, send)
        elif scope["type"] == "lifespan":
            await self._serve_lifespan(receive, send)
        elif scope["type"] == "websocket":
            await receive()
            await send({"type": "websocket.close", "code": 1000})

    @abstractmethod
    def _serve_http(self, scope: Scope, receive: Receive, send: Send) -> Awaitable[None]:
        """Serve one HTTP request."""

    @abstractmethod
    async def _serve_lifespan(self, receive: Receive, send: Send) -> None:
        """Start, and stop when the web server does."""


def find_direct(app: Any) -> Callable[[Scope, Receive, Send], Awaitable[None]]:
    """Return what serves the HTTP requests of an application, which is the application itself unless we know it."""
    if isinstance(app, ASGIServer) and type(app).__call__ is ASGIServer.__call__:
        return app._serve_http  # noqa: SLF001  its own class
    return app  # type: ignore[no-any-return]
