"""The response to one client, and what happens when the client disconnects."""

import asyncio
import math
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from itertools import repeat
from typing import Any

from starlette.types import Receive, Scope, Send

from ..concurrency.places import Portion
from ..concurrency.running import PerLoop, runs_here
from ..concurrency.waiting import wait_until
from ..errors import InvalidRequest, RequestError
from ..flow.admission import Admission
from ..protocol.callers import NO_SCOPES, Principal, Sender, principal_of, scopes_of
from ..protocol.dialect import Dialect
from ..protocol.messages import NOTHING, Call, Change, Listening, Note, Piece, Progress
from ..storage.health import end_request
from .response_writer import COMMENT, NO_HEADERS, EventStream, Headers, ResponseWriter

SSE_TYPE = b"text/event-stream"

KEEP_ALIVE = 15.0
"""How often a comment is sent on a stream, in seconds, so that proxies keep it open."""

WATCH_AFTER = 0.05
"""How long a call runs before its client's disconnect is watched for, in seconds."""


class Connection(ResponseWriter):
    """The response to one client: plain JSON until there is something to stream, then an event stream."""

    dialect: Dialect
    """Writes the notes; to be set before there is one."""
    gone = False
    """Whether the client has disconnected."""
    finishing = False
    """Whether the last of the response is being sent."""
    listens = False
    """Whether the client listens to changes, until either side ends that."""
    beside: "_Calls"
    """The calls of its event loop, while it is one of them."""
    portion: Portion | None = None
    """What counts the bytes of the request; None where it is small."""
    is_unread = False
    """Whether the body of the request was refused, so that the rest of it may be unread."""
    _stream: EventStream | None = None
    _watcher: "asyncio.Task[None] | None" = None
    _ticking: asyncio.TimerHandle | None = None

    def __init__(
        self,
        headers: Mapping[bytes, bytes],  # of the request; without `text/event-stream` in `Accept`, notes are dropped
        admission: Admission,
        scope: Scope,
        receive: Receive,
        send: Send,
        seconds: float,  # how long the client may leave unread what was written before
        request: "asyncio.Task[Any]",  # what serves the request
    ) -> None:
        self.headers = headers
        self._admission = admission
        self.scope = scope
        self.receive = receive
        self._send = send
        self._seconds = seconds
        self.loop = request.get_loop()
        self.request = request

    @property
    def principal(self) -> Principal | None:
        """On whose behalf the request comes. Raises `SetupError` as `principal_of` does."""
        return principal_of(self.scope.get("user"))

    @property
    def sender(self) -> Sender:
        """Who sent the request. Raises `SetupError` as `principal_of` does."""
        scope = self.scope
        user, credentials = scope.get("user"), scope.get("auth")
        principal = None if user is None else principal_of(user)
        scopes = NO_SCOPES if credentials is None else scopes_of(credentials)
        return Sender(principal, user, scopes, scope.get("root_path", ""), scope.get("client"))

    def accepts_stream(self) -> bool:
        """Return whether the client accepts an event stream."""
        return SSE_TYPE in self.headers.get(b"accept", b"").lower()

    def send(self, note: Note) -> Awaitable[None]:
        """Send a note; see `Outlet`."""
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
        """Note that the response starts now."""
        if self._admission.draining:
            self.close_after(self.scope)

    def finish(self, status: int, body: bytes, headers: Headers = NO_HEADERS) -> Awaitable[None]:
        """Send the reply: as the stream's last event if there is a stream, otherwise as JSON.

        The body is JSON on a single line, or nothing. A stream has its status already, and needs no more headers.
        """
        self.finishing = True
        if self._stream is not None:
            return self._stream.end(body)
        if self._admission.draining:
            self.close_after(self.scope)
        return self.respond(status, body, *headers) if headers else self.respond(status, body)

    def abandon(self) -> None:
        """Send nothing more."""
        self.finishing = True
        if self._stream is not None:
            self._stream.abandon()

    async def leave(self) -> None:
        """End a request whose client has disconnected, which cancelled it.

        There is still a response: middleware around the server fails without one.
        """
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
        """Stop watching, and keeping the connection open."""
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
        """Send changes until either side ends the subscription."""
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
            if heard is None:  # it was quiet
                await self.write(COMMENT)
            for change in heard or ():
                await self.write_event(writer.changed(change))
            return True if heard == [] or self.gone or self.stalled else None

        with closing(changes):
            self._start()
            await self.start_stream()
            await self._write_if_any(writer.opened())
            expires = getattr(self.scope.get("user"), "expires_at", None)  # the credentials that it was begun with
            deadline = math.inf if expires is None else self.loop.time() + expires - time.time()
            endings, pauses = (self._gone, self._admission.on_drain), repeat(KEEP_ALIVE)
            await wait_until(write, changes, deadline=deadline, pauses=pauses, endings=endings, at_once=False)
            if not self.gone:
                await self._write_if_any(writer.closed())
            await self.end()

    async def _write_if_any(self, data: bytes) -> None:
        if data:
            await self.write_event(data)

    @contextmanager
    def _gone(self, end: Callable[[], object]) -> Iterator[None]:
        """Call a function when the client disconnects, for as long as the block lasts."""
        watcher = self.loop.create_task(self._wait_until_gone(end))
        try:
            yield
        finally:
            watcher.cancel()


class Watch:
    """Finds the calls that take long, with one timer for all: most calls end before their client must be watched."""

    def __init__(self) -> None:
        self._calls = PerLoop[_Calls]()

    def enter(self, connection: Connection) -> None:
        """Note that a call begins."""
        connection.beside = calls = self._calls.here(_Calls, connection.loop)
        calls.young.add(connection)
        if not calls.ticking:
            calls.start(connection.loop)

    def leave(self, connection: Connection) -> None:
        """Note that a call has ended."""
        calls = connection.beside
        if connection in calls.young:
            calls.young.remove(connection)
        else:
            calls.old.discard(connection)
            connection.unwatch()


class _Calls:
    """The calls under way on one event loop."""

    def __init__(self) -> None:
        self.young: set[Connection] = set()
        self.old: set[Connection] = set()
        self.ticking = False

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        """Look at the calls from time to time, as long as there are any."""
        self.ticking = True
        loop.call_later(WATCH_AFTER, self._tick, loop)

    def _tick(self, loop: asyncio.AbstractEventLoop) -> None:
        for connection in self.old:
            connection.watch()
        self.old, self.young = self.young, set()
        self.ticking = bool(self.old)
        if self.ticking:
            loop.call_later(WATCH_AFTER, self._tick, loop)
