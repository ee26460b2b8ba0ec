"""Responses are written in pieces, each with a timeout, so that a client that does not read is disconnected."""

import asyncio
import logging
from collections.abc import Awaitable, Generator, Iterator
from contextlib import suppress
from typing import Any

from starlette.types import Message, Receive, Scope, Send

from ..protocol.messages import NOTHING
from .web_server import Shortcuts, find_request

logger = logging.getLogger("mrtr_server")

JSON_TYPE = b"application/json"

SLICE = 64 * 1024
"""How much of a long response is written at once, in bytes. The web server buffers what the client has not read yet."""

NOTICED_WITHIN = 1.0
"""How long the server may take to notice that its connection was cut, in seconds."""

Headers = tuple[tuple[bytes, bytes], ...]
"""Further headers of a response, by lower-case name."""

NO_HEADERS: Headers = ()

_WRITTEN: Any = object()
_CLOSE_HEADER = (b"connection", b"close")
_JSON_HEADER = (b"content-type", JSON_TYPE)
_SSE_HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-store"),
    (b"x-accel-buffering", b"no"),
]
_SSE_HEAD = b"".join(b"%b: %b\r\n" % header for header in _SSE_HEADERS)


class ResponseWriter:
    """Writes one response.

    Args:
        receive, send: of the ASGI application.
        seconds: how long the client may leave unread what was written before, in seconds. It is disconnected then, and
            what is still written goes nowhere.
    """

    stalled = False
    """Whether the client has read nothing for too long."""

    _request: Any = None
    """The web server's own request behind `send`, where it has been looked for and is known, and its shortcuts."""
    _shortcuts: Shortcuts | None = None

    def __init__(self, receive: Receive, send: Send, seconds: float) -> None:
        self.receive = receive
        self._send = send
        self._seconds = seconds

    def close_after(self, scope: Scope) -> None:
        """Make the client use another connection for its next request; to be called before anything is written."""
        self._send = closing(scope, self._send)
        self._shortcuts = None

    def use(self, request: Any, shortcuts: Shortcuts | None) -> None:
        """Respond by the shortcuts of the web server's own request, if it is the one behind `send`."""
        if getattr(self._send, "__self__", None) is request:
            self._request, self._shortcuts = request, shortcuts

    def behind(self) -> tuple[Any, Shortcuts | None]:
        """Return the web server's own request behind `send`, if it is known, and its shortcuts."""
        return self._request, self._shortcuts

    def respond(self, status: int, body: bytes, *headers: tuple[bytes, bytes]) -> Awaitable[None]:
        """Write a whole response: JSON, or nothing."""
        if len(body) <= SLICE:
            request, shortcuts = self._request, self._shortcuts
            if shortcuts is None:
                request, shortcuts = find_request(self._send)
            if shortcuts is not None and shortcuts.respond_whole(request, status, JSON_TYPE, body, headers):
                return NOTHING
        start = _start(status, body, headers)
        if len(body) <= SLICE:
            return self._in_time(_respond(self._send, start, body))
        return self._respond_in_pieces(start, body)

    async def _respond_in_pieces(self, start: Message, body: bytes) -> None:
        await self._in_time(self._send(start))
        await self.write(body)
        await self.end()

    async def start_stream(self) -> None:
        """Begin a response that is a stream of server-sent events."""
        await self._in_time(self._send({"type": "http.response.start", "status": 200, "headers": _SSE_HEADERS}))

    def write_at_once(self, data: bytes, *, begins: bool, ends: bool) -> bool:
        """Write a part of a stream, if the web server takes it without messages and without waiting.

        Args:
            data: one or more events or lines; or nothing.
            begins: whether the response begins with it.
            ends: whether it ends with it.

        Returns:
            Whether it was written; if not, it is to be written by the other methods.
        """
        if len(data) > SLICE or self.stalled:
            return False
        request, shortcuts = self._request, self._shortcuts
        if shortcuts is None:
            request, shortcuts = find_request(self._send)
        return shortcuts is not None and shortcuts.write_part(request, _SSE_HEAD, data, begins=begins, ends=ends)

    async def write_event(self, data: bytes) -> None:
        """Write one event; `data` is one line of JSON."""
        if len(data) <= SLICE:
            await self.write(b"event: message\ndata: " + data + b"\n\n")
            return
        for part in (b"event: message\ndata: ", data, b"\n\n"):
            await self.write(part)

    async def write(self, data: bytes) -> None:
        """Write a part of the body."""
        for start in range(0, len(data), SLICE):
            if self.stalled:
                return
            part = data[start : start + SLICE]
            await self._in_time(self._send({"type": "http.response.body", "body": part, "more_body": True}))

    async def write_last(self, data: bytes) -> None:
        """Write the last part of the body."""
        if len(data) > SLICE:
            await self.write(data)
            data = b""  # the server takes that when the piece before it has been read
        if not self.stalled:
            await self._in_time(self._send({"type": "http.response.body", "body": data}))

    async def end(self) -> None:
        """End a response that was written in parts."""
        await self.write_last(b"")

    async def _in_time(self, what: Awaitable[None]) -> None:
        sending = what.__await__()
        # Nearly always it is written at once. A timeout costs more than that, so only writes that have to wait get one.
        waits_for = next(sending, _WRITTEN)
        if waits_for is _WRITTEN:
            return
        try:
            async with asyncio.timeout(self._seconds) as deadline:
                await _Rest(sending, waits_for)
        except TimeoutError:
            if not deadline.expired():
                raise
            self.stalled = True
            logger.warning("A client read nothing for %g s, so its connection is closed", self._seconds)
            await self._cut()

    async def _cut(self) -> None:
        """End the connection, where the server lets us.

        The application's end or failure would not do: uvicorn closes the connection then, and that waits, without an
        end, for the client to read what is written.
        """
        for function in (self.receive, self._send):
            abort = getattr(getattr(getattr(function, "__self__", None), "transport", None), "abort", None)
            if abort is not None:
                abort()
                with suppress(TimeoutError):
                    async with asyncio.timeout(NOTICED_WITHIN):
                        while (await self.receive())["type"] != "http.disconnect":
                            pass
                return


class _Rest:
    """What is left of an awaitable that has begun to wait."""

    __slots__ = ("_awaited", "_waits_for")

    def __init__(self, awaited: Iterator[Any], waits_for: Any) -> None:
        self._awaited = awaited
        self._waits_for = waits_for

    def __await__(self) -> Generator[Any, Any, None]:
        awaited, waits_for = self._awaited, self._waits_for
        with suppress(StopIteration):
            while True:
                try:
                    yield waits_for
                except BaseException as error:
                    throw = getattr(awaited, "throw", None)
                    if throw is None:  # one that is not written in Python
                        raise
                    waits_for = throw(error)
                else:
                    waits_for = next(awaited)


def _start(status: int, body: bytes, headers: Headers) -> Message:
    length = (b"content-length", b"%d" % len(body))
    listed = [*headers, _JSON_HEADER, length] if body else [*headers, length]
    return {"type": "http.response.start", "status": status, "headers": listed}


async def respond(send: Send, status: int, body: bytes, *headers: tuple[bytes, bytes]) -> None:
    """Write a whole response that is short."""
    await _respond(send, _start(status, body, headers), body)


async def _respond(send: Send, start: Message, body: bytes) -> None:
    await send(start)
    await send({"type": "http.response.body", "body": body})


def closing(scope: Scope, send: Send) -> Send:
    """Return a `send` that makes the client use another connection for its next request."""
    if not scope["http_version"].startswith("1"):
        return send  # later versions have no such header

    def send_closing(message: Message) -> Awaitable[None]:
        if message["type"] == "http.response.start":
            kept = [header for header in message.get("headers", ()) if header[0].lower() != b"connection"]
            message = {**message, "headers": [*kept, _CLOSE_HEADER]}
        return send(message)

    return send_closing
