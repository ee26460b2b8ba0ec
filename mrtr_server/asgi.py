"""The HTTP side: a capped body, the caller, the dialect, the reply."""

import asyncio
import logging
import secrets
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any
from urllib.parse import urlsplit

from starlette.types import Receive, Scope, Send

from .auth import principal_of
from .dialects import Dialect, Envelope, Reply, read_envelope
from .dispatcher import Dispatcher
from .errors import HeaderMismatch, InternalFault, InvalidRequest, PayloadTooLarge, RequestError, UnsupportedVersion
from .limits import Limits
from .messages import NOTHING, Call, Listening, Note

logger = logging.getLogger("mrtr_server")

JSON_TYPE = b"application/json"
SSE_TYPE = b"text/event-stream"

KEEP_ALIVE = 15.0
"""How often a quiet stream gets a comment, in seconds, so that proxies leave it open."""

WATCH_AFTER = 0.05
"""How long a call runs before anything watches for the client's leaving, in seconds."""

BACKLOG = 64
"""How many notes may wait for a slow client before the handler that sends them waits, too."""

_JSON_HEADER = (b"content-type", JSON_TYPE)
_SSE_HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-store"),
    (b"x-accel-buffering", b"no"),
]


class Endpoint:
    """The MCP endpoint: takes one POST, gives one reply or one stream.

    Parameters:
        dispatcher: answers calls.
        dialects: the wire forms that are served, in the order in which they are asked.
        versions: the protocol versions that are served, the preferred one first.
        limits: what a request may use.
        allowed_origins: what browsers may call from, besides loopback; `"*"` for anywhere.
        allowed_hosts: what `Host` may be; None for anything.
    """

    def __init__(
        self,
        dispatcher: Dispatcher,
        dialects: Sequence[Dialect],
        versions: list[str],
        limits: Limits,
        allowed_origins: Sequence[str],
        allowed_hosts: Sequence[str] | None,
    ) -> None:
        self._dispatcher = dispatcher
        self._dialects = dialects
        self._versions = versions
        self._limits = limits
        self._origins = frozenset(origin.rstrip("/").lower() for origin in allowed_origins)
        self._hosts = None if allowed_hosts is None else frozenset(host.lower() for host in allowed_hosts)
        self._watch = _Watch()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one HTTP request."""
        if scope["method"] != "POST":
            await _respond(send, 405, b"", (b"allow", b"POST"))
            return
        listed = scope["headers"]
        headers: dict[bytes, bytes] = dict(listed)
        repeated = _join_repeated(headers, listed) if len(headers) != len(listed) else ""
        refusal = self._refuse(headers)
        if refusal is not None:
            await _respond(send, *refusal)
            return
        try:
            body = await self._read(headers, receive)
        except PayloadTooLarge as error:
            # What is left of the body stays unread, so the connection can't be used again.
            reply = self._dialects[0].error(None, error)
            await _respond(send, reply.status, reply.body, (b"connection", b"close"))
            return
        if body is not None:
            await self._serve(body, headers, repeated, scope, receive, send)

    def _refuse(self, headers: Mapping[bytes, bytes]) -> tuple[int, bytes] | None:
        origin = headers.get(b"origin")
        if origin is not None and not self._origin_allowed(origin.decode("latin-1")):
            return 403, b'{"error":"Origin not allowed"}'
        if self._hosts is not None and not self._host_allowed(headers.get(b"host", b"").decode("latin-1")):
            return 403, b'{"error":"Host not allowed"}'
        kind = headers.get(b"content-type", b"")
        if kind != JSON_TYPE and kind.partition(b";")[0].strip().lower() != JSON_TYPE:
            return 415, b'{"error":"Content-Type must be application/json"}'
        return None

    def _host_allowed(self, host: str) -> bool:
        host = host.lower()
        name, _, port = host.rpartition(":")
        return self._hosts is None or host in self._hosts or (port.isdigit() and name in self._hosts)

    def _origin_allowed(self, origin: str) -> bool:
        origin = origin.strip().lower()
        if origin == "null":
            return False
        if "*" in self._origins or origin in self._origins:
            return True
        try:
            parts = urlsplit(origin)
            return parts.scheme in ("http", "https") and parts.hostname in ("localhost", "127.0.0.1", "::1")
        except ValueError:
            return False

    async def _read(self, headers: Mapping[bytes, bytes], receive: Receive) -> bytes | None:
        """Read the body; None if the client left before it was all there."""
        limit = self._limits.body_bytes
        length = headers.get(b"content-length", b"")
        if length.isdigit() and int(length[:32]) > limit:
            raise PayloadTooLarge(limit)
        message = await receive()
        body: bytes = message.get("body", b"")
        if not message.get("more_body"):
            if len(body) > limit:
                raise PayloadTooLarge(limit)
            return body if message["type"] == "http.request" else None
        parts, size = [body], len(body)
        while message.get("more_body"):
            if size > limit:
                raise PayloadTooLarge(limit)
            message = await receive()
            if message["type"] != "http.request":
                return None
            parts.append(message.get("body", b""))
            size += len(parts[-1])
        if size > limit:
            raise PayloadTooLarge(limit)
        return b"".join(parts)

    async def _serve(
        self, body: bytes, headers: Mapping[bytes, bytes], repeated: str, scope: Scope, receive: Receive, send: Send
    ) -> None:
        dialect = self._dialects[0]
        connection: _Connection | None = None
        request_id: str | int | None = None
        try:
            envelope = read_envelope(body, headers, repeated, self._limits.json_depth)
            request_id = envelope.id
            if request_id is None:  # a notification, and there is none that we would act on
                await _respond(send, 202, b"")
                return
            dialect = self._choose(envelope)
            user = scope.get("user")
            call = dialect.read(envelope, principal_of(user), user)
            connection = _Connection(dialect, headers, receive, send)
            self._watch.enter(connection)
            try:
                outcome = await self._dispatcher.dispatch(call, connection)
            finally:
                self._watch.leave(connection)
            if isinstance(outcome, Listening):
                await connection.listen(call, outcome)
                return
            reply = Reply(200, dialect.write(call, outcome))
        except asyncio.CancelledError:
            if connection is not None and connection.gone:
                connection.request.uncancel()  # it was us, and there is nobody left to answer
                return
            raise
        except RequestError as error:
            if isinstance(error, InvalidRequest):
                request_id = error.request_id
            reply = dialect.error(request_id, error)
        except Exception as error:
            reference = secrets.token_hex(4)
            logger.error("A request failed (reference %s)", reference, exc_info=error)
            reply = dialect.error(request_id, InternalFault(reference))
        if connection is not None:
            await connection.finish(reply)
        else:
            await _respond(send, reply.status, reply.body)

    def _choose(self, envelope: Envelope) -> Dialect:
        for dialect in self._dialects:
            if dialect.claims(envelope):
                return dialect
        header = envelope.headers.get(b"mcp-protocol-version", b"").decode("latin-1")
        requested = header or envelope.params.get("protocolVersion")
        if requested or envelope.method == "initialize" or not self._versions:
            raise UnsupportedVersion(str(requested or ""), self._versions)
        raise HeaderMismatch("Header mismatch: MCP-Protocol-Version is missing")


def _join_repeated(headers: dict[bytes, bytes], listed: Iterable[tuple[bytes, bytes]]) -> str:
    """Mend the dictionary where a header is there twice; give the name of one of the protocol that is."""
    values: dict[bytes, list[bytes]] = {}
    for name, value in listed:
        values.setdefault(name, []).append(value)
    for name in (b"accept", b"origin"):  # an origin of two is allowed nowhere
        if name in values:
            headers[name] = b", ".join(values[name])
    twice = (name for name, found in values.items() if len(found) > 1 and name.startswith(b"mcp-"))
    return next(twice, b"").decode("latin-1")


class _Connection:
    """The way back to one client: plain JSON until there is something to stream, then a stream.

    Parameters:
        dialect: writes the notes.
        headers: of the request; without `text/event-stream` in `Accept`, notes are dropped.
        receive, send: of the ASGI application.
    """

    __slots__ = (
        "_dialect",
        "_headers",
        "_loop",
        "_receive",
        "_send",
        "_stream",
        "_watcher",
        "finishing",
        "gone",
        "request",
    )

    def __init__(self, dialect: Dialect, headers: Mapping[bytes, bytes], receive: Receive, send: Send) -> None:
        self._dialect = dialect
        self._headers = headers
        self._receive = receive
        self._send = send
        self._loop = asyncio.get_running_loop()
        self._stream: _Stream | None = None
        self._watcher: asyncio.Task[None] | None = None
        self.request: asyncio.Task[Any] = asyncio.current_task(self._loop)  # type: ignore[assignment]  # in one always
        self.gone = False
        self.finishing = False

    def accepts_stream(self) -> bool:
        """Whether the client takes a stream."""
        return SSE_TYPE in self._headers.get(b"accept", b"").lower()

    def send(self, note: Note) -> Awaitable[None]:
        """Send a note; see `Outlet`."""
        if self.gone or self.finishing or not self.accepts_stream():
            return NOTHING
        data = self._dialect.note(note)
        try:
            on_loop = asyncio.get_running_loop() is self._loop
        except RuntimeError:
            on_loop = False
        if not on_loop:  # a plain `def` in its thread
            self._loop.call_soon_threadsafe(self._add, data)
            return NOTHING
        return self._add(data)

    def _add(self, data: bytes) -> Awaitable[None]:
        if self._stream is None:
            self._stream = _Stream(self._send)
        return self._stream.add(data)

    async def finish(self, reply: Reply) -> None:
        """Send the reply: as the stream's last event if there is a stream, otherwise as JSON."""
        self.finishing = True
        if self._stream is None:
            await _respond(self._send, reply.status, reply.body)
        else:
            await self._stream.end(reply.body)

    # The client's leaving

    def watch(self) -> None:
        """Begin to watch for the client's leaving, which cancels the request."""
        self._watcher = self._loop.create_task(self._wait_until_gone(self._cancel))

    def unwatch(self) -> None:
        """Watch no more."""
        if self._watcher is not None:
            self._watcher.cancel()
            self._watcher = None

    def _cancel(self) -> None:
        if self._watcher is not None:
            self.request.cancel()

    async def _wait_until_gone(self, then: Callable[[], object]) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass
        self.gone = True
        then()

    # Subscriptions

    async def listen(self, call: Call, listening: Listening) -> None:
        """Carry changes until either side has had enough."""
        changes = listening.changes
        try:
            writer = self._dialect.listening(call, changes)
            if not self.accepts_stream():
                raise InvalidRequest(f"{call.method} needs Accept: text/event-stream", call.request_id)
        except RequestError as error:
            changes.close()
            refusal = self._dialect.error(call.request_id, error)
            await _respond(self._send, refusal.status, refusal.body)
            return
        watcher = self._loop.create_task(self._wait_until_gone(changes.close))
        try:
            await start_stream(self._send)
            await send_event(self._send, writer.opened())
            while not self.gone:
                try:
                    async with asyncio.timeout(KEEP_ALIVE):
                        happened = await changes.next()
                except TimeoutError:
                    await self._send({"type": "http.response.body", "body": b":\n\n", "more_body": True})
                    continue
                if not happened:
                    break
                for change in happened:
                    await send_event(self._send, writer.changed(change))
            if not self.gone:
                await send_event(self._send, writer.closed())
            await self._send({"type": "http.response.body", "body": b""})
        finally:
            watcher.cancel()
            changes.close()


class _Stream:
    """A stream of server-sent events. One task writes it, so that who sends a note need not wait for the client."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self._backlog: deque[bytes] = deque()
        self._more = asyncio.Event()
        self._drained = asyncio.Event()
        self._ending = False
        self._writer = asyncio.get_running_loop().create_task(self._write())

    def add(self, data: bytes) -> Awaitable[None]:
        """Add an event. The result waits while the client is far behind."""
        self._backlog.append(data)
        self._more.set()
        if len(self._backlog) <= BACKLOG:
            return NOTHING
        self._drained.clear()
        return self._wait()

    async def end(self, data: bytes) -> None:
        """Add the last event, and see all of them out."""
        self._backlog.append(data)
        self._ending = True
        self._more.set()
        await self._writer
        await self._send({"type": "http.response.body", "body": b""})

    async def _wait(self) -> None:
        await self._drained.wait()

    async def _write(self) -> None:
        await start_stream(self._send)
        while True:
            while self._backlog:
                await send_event(self._send, self._backlog.popleft())
            self._drained.set()
            if self._ending:
                return
            await self._more.wait()
            self._more.clear()


class _Watch:
    """Finds the calls that take long, with one timer for all: most are over before anything need watch their client."""

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._young: set[_Connection] = set()
        self._old: set[_Connection] = set()
        self._ticking = False

    def enter(self, connection: _Connection) -> None:
        """A call begins."""
        if not self._ticking or self._loop is not connection._loop:
            self._start(connection._loop)
        self._young.add(connection)

    def leave(self, connection: _Connection) -> None:
        """A call is over."""
        self._young.discard(connection)
        self._old.discard(connection)
        connection.unwatch()

    def _start(self, loop: asyncio.AbstractEventLoop) -> None:
        if self._loop is not loop:  # another loop, and what was on the last one is over
            self._young, self._old = set(), set()
        self._loop = loop
        self._ticking = True
        loop.call_later(WATCH_AFTER, self._tick, loop)

    def _tick(self, loop: asyncio.AbstractEventLoop) -> None:
        if self._loop is not loop:
            return
        for connection in self._old:
            connection.watch()
        self._old, self._young = self._young, set()
        self._ticking = bool(self._old)
        if self._ticking:
            loop.call_later(WATCH_AFTER, self._tick, loop)


async def start_stream(send: Send) -> None:
    """Begin a response that is a stream of server-sent events."""
    await send({"type": "http.response.start", "status": 200, "headers": _SSE_HEADERS})


async def send_event(send: Send, data: bytes) -> None:
    """Send one event; `data` is one line of JSON."""
    body = b"event: message\ndata: " + data + b"\n\n"
    await send({"type": "http.response.body", "body": body, "more_body": True})


async def _respond(send: Send, status: int, body: bytes, *headers: tuple[bytes, bytes]) -> None:
    listed = [(b"content-length", b"%d" % len(body)), *headers]
    if body:
        listed.append(_JSON_HEADER)
    await send({"type": "http.response.start", "status": status, "headers": listed})
    await send({"type": "http.response.body", "body": body})
