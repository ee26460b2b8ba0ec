"""A line for each HTTP request that is refused before any method could be asked."""

from contextvars import ContextVar

from pydantic_core import from_json
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from .terminal import Terminal, short

_UNASKED = ("/favicon.ico", "/apple-touch-icon.png", "/.well-known/")
"""Where browsers and clients look by themselves."""

_LONGEST = 120
_FIRST_ERROR = 400

reached: ContextVar[list[bool] | None] = ContextVar("mrtr_server_reached", default=None)
"""Takes an entry once the request that the code serves has a line of its own."""


class RefusedRequests:
    """Writes a line for each request that gets an error, and no line of its own.

    Args:
        app: the application.
        terminal: where to.
    """

    def __init__(self, app: ASGIApp, terminal: Terminal) -> None:
        self._app = app
        self._terminal = terminal

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one ASGI connection."""
        if scope["type"] != "http" or scope["path"].startswith(_UNASKED):
            await self._app(scope, receive, send)
            return
        has_line: list[bool] = []
        reached.set(has_line)
        status = 0

        async def send_and_report(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            elif status >= _FIRST_ERROR and not has_line:
                has_line.append(True)
                self._report(scope, status, message.get("body", b""))
            await send(message)

        await self._app(scope, receive, send_and_report)

    def _report(self, scope: Scope, status: int, body: bytes) -> None:
        head = self._terminal.head("refused", "red")
        what = f"{scope['method']} {short(scope['path'], 60)}"
        self._terminal.write(f"{head} {what}: {status} {short(_reason(body), _LONGEST)}")


def _reason(body: bytes) -> str:
    """Return what a response says of an error: in JSON, as JSON-RPC has it or not, or as text."""
    try:
        error = from_json(body)["error"]
    except (ValueError, KeyError, TypeError):
        return body.decode(errors="replace")
    return str(error.get("message", "")) if isinstance(error, dict) else str(error)
