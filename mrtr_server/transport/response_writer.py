"""One response over HTTP, to a client that may not read it.

A response is written in pieces, each with a timeout, so that a client that does not read is disconnected. A stream of
server-sent events blocks nobody: notes that its client does not read in time are dropped.
"""

import asyncio
import logging
from collections.abc import Awaitable, Generator, Iterator
from contextlib import suppress
from itertools import count
from typing import Any

from starlette.types import Message, Receive, Scope, Send

from ..protocol.messages import NOTHING, TURN
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


BACKLOG_BYTES = 256 * 1024
"""How many bytes of log messages wait for a slow client at most."""

_PROGRESS = "progress"

_EVENT = b"event: message\ndata: %b\n\n"


class ResponseWriter:
    """Writes one response.

    The client may leave unread for so many seconds what was written before. It is disconnected then, and what is still
    written goes nowhere.
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

        The data is one or more events or lines, or nothing. Return whether it was written; if not, the other methods
        are to write it.
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


class Frame(bytes):
    """One or more lines of a stream, as they are written."""


COMMENT = Frame(b":\n\n")
"""What a quiet stream is kept open with."""


class EventStream:
    """A stream of server-sent events. Notes are written by a task of its own, so that nobody waits for the client.

    The queue for the client is bounded: newer progress replaces progress that has not been written yet, and messages
    that do not fit are dropped. The response itself is never dropped, nor are pieces of a result: what makes them can
    wait for room.
    """

    def __init__(self, writer: ResponseWriter) -> None:
        self._writer = writer
        self._backlog: dict[object, bytes] = {}
        self._numbers = count()
        self._size = 0
        self._dropped = False
        self._has_started = self._is_flushing = self._ending = False
        self._more: asyncio.Event | None = None
        self._writing: asyncio.Task[None] | None = None
        self._starting: asyncio.Handle | None = None
        self._has_room: asyncio.Future[None] | None = None
        """Resolved when no more waits than may; made when somebody waits for that."""

    def add_progress(self, data: bytes) -> Awaitable[None]:
        """Add progress. Awaiting the result gives it the time to be written, and never waits for the client."""
        return self._add(_PROGRESS, data)

    def add_message(self, data: bytes) -> Awaitable[None]:
        """Add a message, unless too much waits already. Awaiting the result is as for `add_progress`."""
        if self._size and self._size + len(data) > BACKLOG_BYTES:
            if not self._dropped:
                self._dropped = True
                logger.warning("A client reads too slowly: log messages for it are dropped (%d bytes wait)", self._size)
            return TURN
        self._size += len(data)
        return self._add(next(self._numbers), data)

    def add_piece(self, data: bytes) -> Awaitable[None]:
        """Add a message that is never dropped. Awaiting the result waits for the client if too much waits already."""
        self._size += len(data)
        self._add(next(self._numbers), data)
        return self.room()

    def room(self) -> Awaitable[None]:
        """Return something to await until no more waits for the client than may."""
        return TURN if self._size <= BACKLOG_BYTES else self._wait_for_room()

    async def _wait_for_room(self) -> None:
        # The writer ends by itself where a client leaves, or does not read for too long.
        while self._size > BACKLOG_BYTES and self._writing is not None and not self._writing.done():
            if self._has_room is None:
                self._has_room = asyncio.get_running_loop().create_future()
            await asyncio.wait((self._has_room, self._writing), return_when=asyncio.FIRST_COMPLETED)

    def add_frame(self, frame: Frame, *, is_flushed: bool = False) -> None:
        """Add lines that are never dropped. They are written within two turns of the loop, or by `flush`.

        `is_flushed` is whether `flush` is awaited next.
        """
        self._size += len(frame)
        self._backlog[next(self._numbers)] = frame
        if self._more is not None:
            self._more.set()
        elif self._starting is None and not is_flushed:
            self._starting = asyncio.get_running_loop().call_soon(self._start)

    def _add(self, key: object, data: bytes) -> Awaitable[None]:
        self._backlog.pop(key, None)
        self._backlog[key] = data
        self._start()
        return TURN

    def flush(self) -> Awaitable[None]:
        """Write what has been added, and wait for the client, unless the stream's own task does that."""
        if self._writing is not None or self._is_flushing or self._write_at_once():
            return NOTHING
        return self._flush()

    def end(self, data: bytes) -> Awaitable[None]:
        """Add the last event, and wait until all are written; without data, only wait."""
        if data:
            self._size += len(data)
            self._backlog[next(self._numbers)] = data
        self._ending = True
        if self._writing is None:  # then the request itself writes, and needs no task
            return NOTHING if not self._is_flushing and self._write_at_once() else self._flush()
        assert self._more is not None  # noqa: S101  it is made with the task
        self._more.set()
        return self._writing

    def abandon(self) -> None:
        """Drop what has not been written."""
        self._backlog.clear()
        self._stop_starting()
        if self._writing is not None:
            self._writing.cancel()

    def _start(self) -> None:
        """Begin the task that writes, unless it runs, or the request writes just now."""
        self._stop_starting()
        if self._is_flushing:
            return
        if self._more is None:
            self._more = asyncio.Event()
            self._writing = asyncio.get_running_loop().create_task(self._write())
        self._more.set()

    def _stop_starting(self) -> None:
        if self._starting is not None:
            self._starting.cancel()
            self._starting = None

    async def _flush(self) -> None:
        self._stop_starting()
        self._is_flushing = True
        try:
            await self._write_backlog()
        finally:
            self._is_flushing = False

    async def _write(self) -> None:
        assert self._more is not None  # noqa: S101  it is made with the task
        while True:
            await self._write_backlog()
            if self._ending:
                return
            await self._more.wait()
            self._more.clear()

    def _write_at_once(self) -> bool:
        """Write all that waits in one part, if the web server takes it so; if the stream is ending, also its end."""
        if self._size > SLICE:
            return False
        data = b"".join([each if type(each) is Frame else _EVENT % each for each in self._backlog.values()])
        if not self._writer.write_at_once(data, begins=not self._has_started, ends=self._ending):
            return False
        self._stop_starting()
        self._has_started = True
        self._backlog.clear()
        self._size = 0
        return True

    async def _write_backlog(self) -> None:
        """Write all that waits; if the stream is ending, also its end."""
        if self._write_at_once():
            return
        writer = self._writer
        if not self._has_started:
            await writer.start_stream()
            self._has_started = True  # not before: a cancellation may come while that waits
        while self._backlog:
            key = next(iter(self._backlog))
            data = self._backlog.pop(key)
            if type(data) is Frame:
                if self._ending and not self._backlog:
                    await writer.write_last(data)
                    return
                await writer.write(data)
            else:
                await writer.write_event(data)
            if key is not _PROGRESS:
                self._size -= len(data)
                if self._has_room is not None and self._size <= BACKLOG_BYTES:
                    self._has_room.set_result(None)
                    self._has_room = None
            del data  # the next one may take its time
        if self._ending:
            await writer.end()
