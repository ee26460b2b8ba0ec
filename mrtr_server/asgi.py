"""The HTTP side: a capped body, the caller, the dialect, the reply."""

import asyncio
import logging
import secrets
import threading
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any
from urllib.parse import urlsplit

from starlette.types import Receive, Scope, Send

from .auth import principal_of
from .dialects import Dialect, Envelope, Reply, read_envelope
from .dispatcher import Dispatcher
from .errors import HeaderMismatch, InternalFault, InvalidRequest, PayloadTooLarge, RequestError, UnsupportedVersion
from .limits import Limits
from .messages import NOTHING, Call, Listening, Note, Outcome

logger = logging.getLogger("mrtr_server")

JSON_TYPE = b"application/json"
SSE_TYPE = b"text/event-stream"

KEEP_ALIVE = 15.0
"""How often a quiet stream gets a comment, in seconds, so that proxies leave it open."""

WATCH_AFTER = 0.05
"""How long a call runs before anything watches for the client's leaving, in seconds."""

BACKLOG = 64
"""How many notes may wait for a slow client before the handler that sends them waits, too."""

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

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one HTTP request."""
        if scope["method"] != "POST":
            await _respond(send, 405, b"", (b"allow", b"POST"))
            return
        head = _Head(scope)
        refusal = self._refuse(head)
        if refusal is not None:
            await _respond(send, *refusal)
            return
        try:
            body = await self._read(head, receive)
        except PayloadTooLarge as error:
            # What is left of the body stays unread, so the connection can't be used again.
            reply = self._dialects[0].error(None, error)
            await _respond(send, reply.status, reply.body, (b"connection", b"close"))
            return
        if body is None:
            return
        await self._serve(scope, receive, send, head, body)

    def _refuse(self, head: "_Head") -> tuple[int, bytes] | None:
        if head.origin is not None and not self._origin_allowed(head.origin.decode("latin-1")):
            return 403, b'{"error":"Origin not allowed"}'
        if self._hosts is not None and not self._host_allowed(head.headers.get(b"host", b"").decode("latin-1")):
            return 403, b'{"error":"Host not allowed"}'
        kind = head.headers.get(b"content-type", b"")
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

    async def _read(self, head: "_Head", receive: Receive) -> bytes | None:
        """Read the body; None if the client left before it was all there."""
        limit = self._limits.body_bytes
        length = head.headers.get(b"content-length", b"")
        if length.isdigit() and int(length[:32]) > limit:
            raise PayloadTooLarge(limit)
        message = await receive()
        if message["type"] == "http.request" and not message.get("more_body"):
            body: bytes = message.get("body", b"")
            if len(body) > limit:
                raise PayloadTooLarge(limit)
            return body
        parts, size = [], 0
        while message["type"] == "http.request":
            parts.append(message.get("body", b""))
            size += len(parts[-1])
            if size > limit:
                raise PayloadTooLarge(limit)
            if not message.get("more_body"):
                return b"".join(parts)
            message = await receive()
        return None

    async def _serve(self, scope: Scope, receive: Receive, send: Send, head: "_Head", body: bytes) -> None:
        dialect = self._dialects[0]
        connection: _Connection | None = None
        request_id: str | int | None = None
        try:
            envelope = read_envelope(body, head.headers, head.repeated, self._limits.json_depth)
            request_id = envelope.id
            if request_id is None:  # a notification, and there is none that we would act on
                await _respond(send, 202, b"")
                return
            dialect = self._choose(envelope)
            user = scope.get("user")
            call = dialect.read(envelope, principal_of(user), user)
            connection = _Connection(dialect, head.accepts_sse, receive, send)
            outcome = await connection.while_there(self._dispatcher.dispatch(call, connection))
            if isinstance(outcome, Listening):
                await connection.listen(call, outcome)
                return
            reply = Reply(200, dialect.write(call, outcome))
        except _Gone:
            return
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


class _Head:
    """The headers of a request; those of the protocol and of HTTP that matter are there once."""

    __slots__ = ("accepts_sse", "headers", "origin", "repeated")

    def __init__(self, scope: Scope) -> None:
        listed: list[tuple[bytes, bytes]] = scope["headers"]
        self.headers = headers = dict(listed)
        self.repeated = ""
        accept = headers.get(b"accept", b"")
        self.origin = headers.get(b"origin")
        if len(headers) != len(listed):
            names = [name for name, _ in listed]
            self.repeated = next((n.decode("latin-1") for n in headers if n[:4] == b"mcp-" and names.count(n) > 1), "")
            accept = b",".join(value for name, value in listed if name == b"accept")
            # Two of them are joined, and what comes out is allowed nowhere.
            self.origin = b",".join(value for name, value in listed if name == b"origin") or None
        self.accepts_sse = SSE_TYPE in accept.lower()


class _Gone(Exception):
    """The client has closed the connection; there is nobody to answer."""


class _Connection:
    """The way back to one client: plain JSON until there is something to stream, then a stream.

    Parameters:
        dialect: writes the notes.
        accepts_sse: whether the client takes a stream; without one, notes are dropped.
        receive, send: of the ASGI application.
    """

    def __init__(self, dialect: Dialect, accepts_sse: bool, receive: Receive, send: Send) -> None:
        self._dialect = dialect
        self._accepts_sse = accepts_sse
        self._receive = receive
        self._send = send
        self._loop = asyncio.get_running_loop()
        self._thread = threading.get_ident()
        self._request = asyncio.current_task()
        self._watcher: asyncio.Task[None] | None = None
        self._writer: asyncio.Task[None] | None = None
        self._backlog: deque[bytes] = deque()
        self._more: asyncio.Event | None = None
        self._drained: asyncio.Event | None = None
        self._gone = False
        self._finishing = False

    # Notes

    def send(self, note: Note) -> Awaitable[None]:
        """Send a note; see `Outlet`."""
        if not self._accepts_sse or self._gone or self._finishing:
            return NOTHING
        data = self._dialect.note(note)
        if threading.get_ident() != self._thread:
            self._loop.call_soon_threadsafe(self._queue, data)
            return NOTHING
        self._queue(data)
        return NOTHING if len(self._backlog) <= BACKLOG else self._wait_for_client()

    def _queue(self, data: bytes) -> None:
        self._backlog.append(data)
        if self._more is None or self._drained is None:
            self._more, self._drained = asyncio.Event(), asyncio.Event()
            self._writer = self._loop.create_task(self._write(self._more, self._drained))
        self._drained.clear()
        self._more.set()

    async def _wait_for_client(self) -> None:
        if self._drained is not None:
            await self._drained.wait()

    async def _write(self, more: asyncio.Event, drained: asyncio.Event) -> None:
        await self._start_stream()
        while True:
            while self._backlog:
                await self._event(self._backlog.popleft())
            drained.set()
            if self._finishing:
                return
            await more.wait()
            more.clear()

    # The end

    async def finish(self, reply: Reply) -> None:
        """Send the reply: as the stream's last event if there is a stream, otherwise as JSON."""
        self._finishing = True
        if self._writer is None or self._more is None:
            await _respond(self._send, reply.status, reply.body)
            return
        self._backlog.append(reply.body)
        self._more.set()
        await self._writer
        await self._send({"type": "http.response.body", "body": b""})

    async def while_there(self, work: Coroutine[Any, Any, Outcome]) -> Outcome:
        """Do the work, unless the client leaves first. Raises `_Gone` if it does."""
        # Most calls are over before the watch begins, so that they need no second task.
        watch = self._loop.call_later(WATCH_AFTER, self._watch)
        try:
            return await work
        except asyncio.CancelledError:
            if not self._gone:
                raise
            if self._request is not None:
                self._request.uncancel()
            raise _Gone from None
        finally:
            watch.cancel()
            if self._watcher is not None:
                self._watcher.cancel()
                self._watcher = None

    def _watch(self) -> None:
        self._watcher = self._loop.create_task(self._wait_until_gone(self._cancel))

    def _cancel(self) -> None:
        if self._request is not None and self._watcher is not None:
            self._request.cancel()

    async def _wait_until_gone(self, then: Callable[[], None]) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass
        self._gone = True
        then()

    # Streams

    async def listen(self, call: Call, listening: Listening) -> None:
        """Carry changes until either side has had enough."""
        changes = listening.changes
        try:
            writer = self._dialect.listening(call, changes)
            if not self._accepts_sse:
                raise InvalidRequest(f"{call.method} needs Accept: text/event-stream", call.request_id)
        except RequestError:
            changes.close()
            raise
        watcher = self._loop.create_task(self._wait_until_gone(changes.close))
        try:
            await self._start_stream()
            await self._event(writer.opened())
            while not self._gone:
                try:
                    async with asyncio.timeout(KEEP_ALIVE):
                        happened = await changes.next()
                except TimeoutError:
                    await self._send({"type": "http.response.body", "body": b":\n\n", "more_body": True})
                    continue
                if not happened:
                    break
                for change in happened:
                    await self._event(writer.changed(change))
            if not self._gone:
                await self._event(writer.closed())
            await self._send({"type": "http.response.body", "body": b""})
        finally:
            watcher.cancel()
            changes.close()

    async def _start_stream(self) -> None:
        await self._send({"type": "http.response.start", "status": 200, "headers": _SSE_HEADERS})

    async def _event(self, data: bytes) -> None:
        body = b"event: message\ndata: " + data + b"\n\n"
        await self._send({"type": "http.response.body", "body": body, "more_body": True})


async def _respond(send: Send, status: int, body: bytes, *headers: tuple[bytes, bytes]) -> None:
    length = (b"content-length", str(len(body)).encode())
    kind = ((b"content-type", JSON_TYPE),) if body else ()
    await send({"type": "http.response.start", "status": status, "headers": [length, *kind, *headers]})
    await send({"type": "http.response.body", "body": body})
