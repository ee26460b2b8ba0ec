"""An ASGI application without a socket, for tests that must say themselves when each ASGI message comes."""

import asyncio
import json
from collections.abc import Iterable
from typing import Any
from urllib.parse import quote

from starlette.types import ASGIApp, Message, Scope

from .serving import TIMEOUT
from .wire import ACCEPT, Reply, mirrored

Headers = Iterable[tuple[bytes, bytes]]


def scope_of(headers: Headers, **more: Any) -> Scope:
    """Return the scope of a POST to the endpoint; keywords replace parts of it."""
    path = more.get("path", "/mcp")
    return {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.4"},
        "http_version": "1.1",
        "method": "POST",
        "scheme": "http",
        "path": path,
        "raw_path": quote(path).encode(),
        "query_string": b"",
        "root_path": "",
        "headers": list(headers),
        "client": ("127.0.0.1", 1),
        "server": ("127.0.0.1", 2),
        **more,
    }


def headers_for(message: dict[str, Any], *, accept: str = ACCEPT) -> list[tuple[bytes, bytes]]:
    """Return the headers of a modern message as an ASGI server does."""
    given = {"content-type": "application/json", "accept": accept, **mirrored(message)}
    return [(name.lower().encode(), value.encode()) for name, value in given.items()]


class Exchange:
    """One request. Its body comes as the test says; what the application sends is kept.

    Args:
        app: the application.
        scope: the ASGI scope.
    """

    def __init__(self, app: ASGIApp, scope: Scope) -> None:
        self._app = app
        self._scope = scope
        self._coming: asyncio.Queue[Message] = asyncio.Queue()
        self._sent = asyncio.Event()
        self.sent: list[Message] = []
        self._task: asyncio.Task[None] | None = None

    def body(self, part: bytes, *, more: bool = False) -> "Exchange":
        """Let a part of the body come."""
        self._coming.put_nowait({"type": "http.request", "body": part, "more_body": more})
        return self

    def disconnect(self) -> None:
        """Let the client close the connection."""
        self._coming.put_nowait({"type": "http.disconnect"})

    def start(self) -> "Exchange":
        """Run the application beside the test."""
        self._task = asyncio.create_task(self._run())
        return self

    async def _run(self) -> None:
        await self._app(self._scope, self._coming.get, self._send)

    async def _send(self, message: Message) -> None:
        self.sent.append(message)
        self._sent.set()

    @property
    def has_ended(self) -> bool:
        """Whether the application has returned."""
        return self._task is not None and self._task.done()

    async def until(self, part: bytes) -> None:
        """Wait until the application has sent something with these bytes in it."""
        async with asyncio.timeout(TIMEOUT):
            while part not in self.reply.body:
                self._sent.clear()
                await self._sent.wait()

    async def end(self) -> Reply:
        """Wait for the application's end; return what it sent."""
        if self._task is None:
            self.start()
        assert self._task is not None
        async with asyncio.timeout(TIMEOUT):
            await self._task
        return self.reply

    @property
    def reply(self) -> Reply:
        """What the application has sent so far; status 0 for nothing."""
        nothing: Message = {"status": 0, "headers": []}
        start = next((message for message in self.sent if message["type"] == "http.response.start"), nothing)
        headers = {name.decode(): value.decode() for name, value in start["headers"]}
        return Reply(start["status"], headers, b"".join(message.get("body", b"") for message in self.sent))


async def exchange(app: ASGIApp, body: bytes, headers: Headers, **scope: Any) -> Reply:
    """Send one request with a body in one part; return the reply."""
    return await Exchange(app, scope_of(headers, **scope)).body(body).end()


async def send(app: ASGIApp, message: dict[str, Any], **scope: Any) -> Reply:
    """Send a modern message as a conforming client does; return the reply."""
    return await exchange(app, json.dumps(message).encode(), headers_for(message), **scope)
