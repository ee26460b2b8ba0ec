"""The response to one client over HTTP, in pieces with a timeout each: a client that does not read is disconnected."""

import asyncio
import contextlib
import logging
import math
import time
from collections.abc import Awaitable, Callable, Generator, Iterator, Mapping, Sequence
from contextlib import suppress
from contextvars import Context, copy_context
from functools import partial
from itertools import repeat
from types import coroutine
from typing import Any

from starlette.types import Message, Receive, Scope, Send

from ..concurrency.places import Portion
from ..concurrency.running import PerLoop, runs_here
from ..concurrency.waiting import Cancel, wait_until
from ..errors import InvalidRequest, RequestError
from ..flow.admission import Admission
from ..protocol.callers import NO_SCOPES, Principal, Sender, principal_of, scopes_of
from ..protocol.dialect import Dialect
from ..protocol.messages import NOTHING, Call, Change, Listening, Note, Piece, Progress
from ..storage.health import end_request
from .event_stream import COMMENT, SLICE, EventStream
from .keep_alive import recurring
from .openings import Opening
from .web_server import find_shortcuts

logger = logging.getLogger("mrtr_server")

JSON_TYPE = b"application/json"
SSE_TYPE = b"text/event-stream"

Headers = tuple[tuple[bytes, bytes], ...]  # further headers of a response, by lower-case name

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

NOTICED_WITHIN = 1.0  # for the server to notice that its connection was cut, in seconds

KEEP_ALIVE = 15.0  # between comments on a stream, so that proxies keep it open, in seconds

STIR = 300.0  # between calls of a listener's `next` where nothing changes, in seconds: a session is kept by them

WATCH_AFTER = 0.05  # of a call before its client's disconnect is watched for, in seconds


@coroutine
def _rest(awaited: Iterator[Any], waits_for: Any) -> Generator[Any, Any, None]:
    """Wait for what is left of an awaitable that has begun to wait."""
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


class Connection:
    """The response to one client: plain JSON until there is something to stream, then an event stream."""

    request: "asyncio.Task[Any]"  # what serves the request, once that has begun
    loop: asyncio.AbstractEventLoop
    dialect: Dialect  # writes the notes; to be set before there is one
    gone = False
    stalled = False  # whether the client has read nothing for too long
    finishing = False  # whether the last of the response is being sent
    listens = False  # whether the client listens to changes, until either side ends that
    beside: "_Calls"  # the calls of its event loop, while it is one of them
    portion: Portion | None = None  # what counts the bytes of the request; None where it is small
    opening: Opening | None = None  # the turn in which its stream opens; None where it needs none
    # Returns a copy of the ASGI scope, where other requests have the same one.
    own_scope: Callable[[], Scope] | None = None
    is_unread = False  # whether the body was refused, so that the rest of it may be unread
    _stream: EventStream | None = None
    _watcher: "asyncio.Task[None] | None" = None
    _ticking: asyncio.TimerHandle | None = None
    _saying: asyncio.Lock  # held while something is written to who listens
    _commenting: "asyncio.Task[None] | None" = None

    def __init__(
        self,
        headers: Mapping[bytes, bytes],  # of the request; without `text/event-stream` in `Accept`, notes are dropped
        admission: Admission,
        scope: Scope,
        receive: Receive,
        send: Send,
        seconds: float,  # how long the client may leave unread what was written before
    ) -> None:
        self.headers = headers
        self._admission = admission
        self.shared_scope = scope  # only read: all requests of a head that comes again may have the same
        self.receive = receive
        self._send = send
        self._seconds = seconds
        self.server_request: Any = getattr(send, "__self__", None)  # the web server's own
        kind: Any = type(self.server_request)
        # There are shortcuts if it is of a uvicorn that we know, and no middleware wants to see the messages.
        self.shortcuts = find_shortcuts(kind) if getattr(receive, "__self__", None) is self.server_request else None

    @property
    def principal(self) -> Principal | None:
        return principal_of(self.shared_scope.get("user"))

    @property
    def sender(self) -> Sender:
        scope = self.shared_scope
        user, credentials = scope.get("user"), scope.get("auth")
        principal = None if user is None else principal_of(user)
        scopes = NO_SCOPES if credentials is None else scopes_of(credentials)
        return Sender(principal, user, scopes, scope.get("root_path", ""), scope.get("client"))

    @property
    def scope(self) -> Scope:
        """The ASGI scope of the request alone, which it may change."""
        return self.shared_scope if self.own_scope is None else self.own_scope()

    def accepts_stream(self) -> bool:
        return SSE_TYPE in self.headers.get(b"accept", b"").lower()

    def send(self, note: Note) -> Awaitable[None]:
        if self.gone or self.finishing or not self.accepts_stream():
            return NOTHING
        if not (data := self.dialect.note(note)):
            return NOTHING
        if not runs_here(self.loop):  # a plain `def` in its thread
            self.loop.call_soon_threadsafe(self._add, note, data)
            return NOTHING
        return self._add(note, data)

    def _add(self, note: Note, data: bytes) -> Awaitable[None]:
        if self.finishing:  # by now, while a thread was at it
            return NOTHING
        stream = self._stream or self._open_stream()
        if isinstance(note, Progress):
            return stream.add_progress(data)
        return stream.add_piece(data) if isinstance(note, Piece) else stream.add_message(data)

    def _open_stream(self) -> EventStream:
        self._start()
        self._stream = EventStream(self)
        return self._stream

    def _start(self) -> None:
        if self.opening is not None:
            self.opening.end()
        if self._admission.draining:
            self.close_after(self.shared_scope)

    def finish(self, status: int, body: bytes, headers: Headers = NO_HEADERS) -> Awaitable[None]:
        """Send the reply, one line of JSON or nothing. As the last event of a stream, it needs no more headers."""
        self.finishing = True
        if self._stream is not None:
            return self._stream.end(body)
        if self._admission.draining:
            self.close_after(self.shared_scope)
        return self.respond(status, body, *headers) if headers else self.respond(status, body)

    def abandon(self) -> None:
        self.finishing = True
        if self._stream is not None:
            self._stream.abandon()

    async def leave(self) -> None:
        """End a request whose client has left. There is a response all the same: middleware fails without one."""
        self.abandon()
        self.request.uncancel()  # it was us, and there is nobody left to answer
        if self._stream is None:
            with suppress(OSError):
                await self.respond(499, b"")

    # A call that takes long

    def watch(self) -> None:
        """Begin to watch for the client's disconnect, which cancels the request, and keep the connection open."""
        self._watcher = self.loop.create_task(self._wait_until_gone(self._cancel))
        self._tick_later()

    def unwatch(self) -> None:
        if self._watcher is not None:
            self._watcher.cancel()
            self._watcher = None
        self._stop_ticking()

    def _tick_later(self) -> None:
        self._ticking = self.loop.call_later(KEEP_ALIVE, self._tick)

    def _stop_ticking(self) -> None:
        if self._ticking is not None:
            self._ticking.cancel()
            self._ticking = None

    def _tick(self) -> None:
        self._ticking = None
        if not (self.gone or self.finishing) and self.accepts_stream():
            self._keep_alive()
            self._tick_later()

    def _keep_alive(self) -> None:
        """Send something, or a proxy gives up, which cancels the call; one that has had no stream gets one."""
        (self._stream or self._open_stream()).add_frame(COMMENT)

    def _cancel(self) -> None:
        if self._watcher is not None:
            self.request.cancel()

    async def _wait_until_gone(self, then: Callable[[], object]) -> None:
        while (await self.receive())["type"] != "http.disconnect":
            pass
        self.gone = True
        then()

    # Subscriptions

    async def listen(self, call: Call, listening: Listening) -> None:
        changes = listening.changes
        self.listens = True
        try:
            writer = self.dialect.listening(call, changes)
            if not self.accepts_stream():
                raise InvalidRequest(f"{call.method} needs Accept: text/event-stream", call.request_id)
        except RequestError as error:
            changes.close()
            refusal = self.dialect.error(call.request_id, error)
            await self.respond(refusal.status, refusal.body)
            return
        end_request()

        async def write(heard: Sequence[Change] | None) -> bool | None:
            async with self._saying:
                for change in heard or ():
                    await self.write_event(writer.changed(change))
            return True if heard == [] or self.gone or self.stalled else None

        with contextlib.closing(changes):
            self._start()
            await self.start_stream()
            await self._write_if_any(writer.opened())
            # Those of the credentials that it was begun with.
            expires = getattr(self.shared_scope.get("user"), "expires_at", None)
            deadline = math.inf if expires is None else self.loop.time() + expires - time.time()
            endings, pauses = (self._gone, self._admission.on_drain, self._kept_open), repeat(STIR)
            await wait_until(write, changes, deadline=deadline, pauses=pauses, endings=endings, at_once=False)
            if self._commenting is not None:
                await self._commenting
            if not self.gone:
                await self._write_if_any(writer.closed())
            await self.end()

    def _kept_open(self, end: Callable[[], object]) -> Cancel:
        self._saying = asyncio.Lock()
        return recurring(KEEP_ALIVE, partial(self._comment, end, copy_context()))

    def _comment(self, end: Callable[[], object], context: Context) -> None:
        """Write a comment, where nothing is being written. It takes a task only where that may wait for the client."""
        if self._saying.locked() or self.write_at_once(COMMENT, begins=False, ends=False):
            return
        self._commenting = self.loop.create_task(self._comment_in_time(), context=context)
        self._commenting.add_done_callback(partial(self._commented, end))

    async def _comment_in_time(self) -> None:
        async with self._saying:
            await self.write(COMMENT)

    def _commented(self, end: Callable[[], object], commenting: "asyncio.Task[None]") -> None:
        if self.stalled or commenting.cancelled() or commenting.exception() is not None:
            end()

    async def _write_if_any(self, data: bytes) -> None:
        if data:
            await self.write_event(data)

    def _gone(self, end: Callable[[], object]) -> Cancel:
        return self.loop.create_task(self._wait_until_gone(end)).cancel

    # Writing

    def close_after(self, scope: Scope) -> None:
        """Make the client use another connection for its next request; to be called before anything is written."""
        self._send = closing(scope, self._send)
        self.shortcuts = None

    def respond(self, status: int, body: bytes, *headers: tuple[bytes, bytes]) -> Awaitable[None]:
        if len(body) <= SLICE:
            shortcuts = self.shortcuts
            if shortcuts is not None and shortcuts.respond_whole(self.server_request, status, JSON_TYPE, body, headers):
                return NOTHING
            return self._in_time(respond(self._send, status, body, *headers))
        return self._respond_in_pieces(_start(status, body, headers), body)

    async def _respond_in_pieces(self, start: Message, body: bytes) -> None:
        await self._in_time(self._send(start))
        await self.write(body)
        await self.end()

    async def start_stream(self) -> None:
        await self._in_time(self._send({"type": "http.response.start", "status": 200, "headers": _SSE_HEADERS}))

    def write_at_once(self, data: bytes, *, begins: bool, ends: bool) -> bool:
        """Write events, if the web server takes them without messages and without waiting; return whether it did."""
        if len(data) > SLICE or self.stalled:
            return False
        request, shortcuts = self.server_request, self.shortcuts
        return shortcuts is not None and shortcuts.write_part(request, _SSE_HEAD, data, begins=begins, ends=ends)

    async def write_event(self, data: bytes) -> None:
        if len(data) <= SLICE:
            await self.write(b"event: message\ndata: " + data + b"\n\n")
            return
        for part in (b"event: message\ndata: ", data, b"\n\n"):
            await self.write(part)

    async def write(self, data: bytes) -> None:
        for start in range(0, len(data), SLICE):
            if self.stalled:
                return
            part = data[start : start + SLICE]
            await self._in_time(self._send({"type": "http.response.body", "body": part, "more_body": True}))

    async def write_last(self, data: bytes) -> None:
        if len(data) > SLICE:
            await self.write(data)
            data = b""  # the server takes that when the piece before it has been read
        if not self.stalled:
            await self._in_time(self._send({"type": "http.response.body", "body": data}))

    async def end(self) -> None:
        await self.write_last(b"")

    async def _in_time(self, what: Awaitable[None]) -> None:
        sending = what.__await__()
        # Nearly always it is written at once. A timeout costs more than that, so only writes that have to wait get one.
        waits_for = next(sending, _WRITTEN)
        if waits_for is _WRITTEN:
            return
        try:
            async with asyncio.timeout(self._seconds) as deadline:
                await _rest(sending, waits_for)
        except TimeoutError:
            if not deadline.expired():
                raise
            self.stalled = True
            logger.warning("A client read nothing for %g s, so its connection is closed", self._seconds)
            await self._cut()

    async def _cut(self) -> None:
        """End the connection, where the server lets us: of its own, uvicorn would wait for the client to read all."""
        for function in (self.receive, self._send):
            abort = getattr(getattr(getattr(function, "__self__", None), "transport", None), "abort", None)
            if abort is not None:
                abort()
                with suppress(TimeoutError):
                    async with asyncio.timeout(NOTICED_WITHIN):
                        while (await self.receive())["type"] != "http.disconnect":
                            pass
                return


class Watch:
    """Finds the calls that take long, with one timer for all: most calls end before their client must be watched."""

    def __init__(self) -> None:
        self._calls = PerLoop[_Calls]()

    def enter(self, connection: Connection) -> None:
        connection.beside = calls = self._calls.here(_Calls, connection.loop)
        calls.young.add(connection)
        if not calls.ticking:
            calls.start(connection.loop)

    def leave(self, connection: Connection) -> None:
        calls = connection.beside
        if connection in calls.young:
            calls.young.remove(connection)
        else:
            calls.old.discard(connection)
            connection.unwatch()


class _Calls:
    def __init__(self) -> None:
        self.young: set[Connection] = set()
        self.old: set[Connection] = set()
        self.ticking = False

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        self.ticking = True
        loop.call_later(WATCH_AFTER, self._tick, loop)

    def _tick(self, loop: asyncio.AbstractEventLoop) -> None:
        for connection in self.old:
            connection.watch()
        self.old, self.young = self.young, set()
        self.ticking = bool(self.old)
        if self.ticking:
            loop.call_later(WATCH_AFTER, self._tick, loop)


def _start(status: int, body: bytes, headers: Headers) -> Message:
    length = (b"content-length", b"%d" % len(body))
    listed = [*headers, _JSON_HEADER, length] if body else [*headers, length]
    return {"type": "http.response.start", "status": status, "headers": listed}


async def respond(send: Send, status: int, body: bytes, *headers: tuple[bytes, bytes]) -> None:
    await send(_start(status, body, headers))
    await send({"type": "http.response.body", "body": body})


async def send_content(
    scope: Scope, send: Send, kind: bytes, content: bytes, *headers: tuple[bytes, bytes], tag: bytes = b""
) -> None:
    """Answer GET or HEAD with content of a type; with 304 if the client has it, as its tag says (RFC 9110, 13.1.2)."""
    asked = dict(scope["headers"]).get(b"if-none-match", b"")
    known = tag != b"" and tag in [each.strip().removeprefix(b"W/") for each in asked.split(b",")]
    tagged = [(b"etag", tag)] if tag else []
    typed = [] if known else [(b"content-type", kind), (b"content-length", b"%d" % len(content))]
    start = {"type": "http.response.start", "status": 304 if known else 200, "headers": [*tagged, *headers, *typed]}
    await send(start)
    await send({"type": "http.response.body", "body": b"" if known or scope["method"] == "HEAD" else content})


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
