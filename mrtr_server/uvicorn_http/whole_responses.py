"""Responses that uvicorn's httptools protocol takes as a whole, in place of messages that it takes apart.

They go out in one write, without two messages, and two regular expressions for each header. `WholeResponses` also makes
requests with less. Whatever is not ordinary is left to uvicorn: pipelined requests, upgrades, HTTP 1.0, limits of
connections, the access log. So is everything where this uvicorn is not one that we know.
"""

import asyncio
from functools import lru_cache
from typing import Any
from urllib.parse import unquote

import httptools
from uvicorn._types import ASGIReceiveEvent
from uvicorn.protocols.http.httptools_impl import (
    HEADER_RE,
    HEADER_VALUE_RE,
    STATUS_LINE,
    HttpToolsProtocol,
    RequestResponseCycle,
)

from . import Listed, Shortcuts
from .grouped_writes import GroupedTransport, group_here

_LAST_CHUNK = b"0\r\n\r\n"

_OWN_HEADERS = frozenset({b"connection", b"content-length", b"transfer-encoding"})
"""Headers that a server writes by itself; uvicorn has to see one that is configured for every response."""

_KEPT, _CLOSED = b"\r\n\r\n", b"\r\nconnection: close\r\n\r\n"


class Cycle(RequestResponseCycle):
    """One request and its response. Parts that few requests need are made, or asked of the connection, when needed."""

    chunked_encoding = None
    expected_content_length = 0
    body: bytes | bytearray  # type: ignore[assignment]  # uvicorn's own only takes bytes of it
    _event: asyncio.Event | None = None

    transport: Any = property(lambda self: self.protocol.transport)
    flow: Any = property(lambda self: self.protocol.flow)
    logger: Any = property(lambda self: self.protocol.logger)
    access_logger: Any = property(lambda self: self.protocol.access_logger)
    access_log: Any = property(lambda self: self.protocol.access_log)
    default_headers: Any = property(lambda self: self.protocol.server_state.default_headers)

    def __init__(
        self, protocol: "WholeResponses", scope: Any, body: bytes | bytearray, keep_alive: bool, more_body: bool
    ) -> None:
        self.disconnected = self.response_started = self.response_complete = self.waiting_for_100_continue = False
        self.protocol = protocol
        self.scope = scope
        self.body = body
        self.keep_alive = keep_alive
        self.more_body = more_body

    def on_response(self) -> None:
        self.protocol.on_response_complete()

    @property
    def message_event(self) -> asyncio.Event:  # type: ignore[override]
        """Set when there is something to receive. It is made when somebody waits: few do."""
        if self._event is None:
            self._event = asyncio.Event()
            if self.body and not self.more_body:
                self._event.set()
        return self._event

    def take_body(self) -> bytes | None:
        body = self.body
        if self.more_body or not body or self.waiting_for_100_continue or self.disconnected or self.response_complete:
            return None
        self.body = b""
        if self._event is not None:
            self._event.clear()
        if self.protocol.flow.read_paused:
            self.protocol.flow.resume_reading()
        return body if type(body) is bytes else bytes(body)

    async def receive(self) -> ASGIReceiveEvent:
        body = self.take_body()
        if body is None:
            return await super().receive()
        return {"type": "http.request", "body": body, "more_body": False}

    def respond_whole(self, status: int, kind: bytes, body: bytes, headers: Listed = ()) -> bool:
        connection = self.protocol
        if self.response_started or self.disconnected or connection.flow.write_paused or connection.access_log:
            return False
        head = _head(connection.server_state.default_headers, status, kind if body else b"", headers)
        if head is None or self.scope["method"] == "HEAD":
            return False
        self.response_started = self.response_complete = True
        self.waiting_for_100_continue = False
        data = b"%b%d%b%b" % (head, len(body), _KEPT if self.keep_alive else _CLOSED, body)
        connection.transport.write_response(data)
        if self._event is not None:
            self._event.set()
        if self.keep_alive and not connection.pipeline:
            connection.wait_for_next()
            return True
        if not self.keep_alive:
            connection.transport.close()
        connection.on_response_complete()
        return True


def respond_whole(cycle: RequestResponseCycle, status: int, kind: bytes, body: bytes, headers: Listed = ()) -> bool:
    if cycle.flow.write_paused or cycle.disconnected or cycle.response_started or cycle.access_log:
        return False
    head = _head(cycle.default_headers, status, kind if body else b"", headers)
    if head is None or cycle.scope["method"] == "HEAD":
        return False
    cycle.response_started = True
    cycle.waiting_for_100_continue = False
    data = b"%b%d%b%b" % (head, len(body), _KEPT if cycle.keep_alive else _CLOSED, body)
    transport: Any = cycle.transport
    if type(transport) is GroupedTransport or (transport := _grouped(cycle)) is not None:
        transport.write_response(data)
    else:
        cycle.transport.write(data)
    _complete(cycle)
    return True


def _grouped(cycle: Any) -> GroupedTransport | None:
    """Put a transport that may hold responses back in place of a connection's own; return None if it can't be."""
    connection = getattr(cycle.on_response, "__self__", None)
    if not isinstance(connection, HttpToolsProtocol) or connection.transport is not cycle.transport:
        return None
    transport: Any = GroupedTransport(cycle.transport, group_here())
    connection.transport = cycle.transport = transport
    return transport  # type: ignore[no-any-return]


def write_part(cycle: RequestResponseCycle, headers: bytes, data: bytes, *, begins: bool, ends: bool) -> bool:
    """Write a part of a stream at once; return False if it has to go by `send`. There may be no data."""
    if cycle.flow.write_paused or cycle.disconnected:
        return False
    head = b""
    if begins:
        defaults = _defaults(cycle.default_headers)
        if cycle.response_started or cycle.access_log or defaults is None or cycle.scope["method"] == "HEAD":
            return False
        cycle.response_started = cycle.chunked_encoding = True
        cycle.waiting_for_100_continue = False
        head = _stream_head(defaults, headers, cycle.keep_alive)
    elif cycle.response_complete or not cycle.chunked_encoding:
        return False
    cycle.transport.write(_chunk(head, data, ends))
    if ends:
        _complete(cycle)
    return True


def _stream_head(defaults: bytes, headers: bytes, keep_alive: bool) -> bytes:
    last = b"" if keep_alive else b"connection: close\r\n"
    return b"%b%b%b%btransfer-encoding: chunked\r\n\r\n" % (STATUS_LINE[200], defaults, headers, last)


def _chunk(head: bytes, data: bytes, ends: bool) -> bytes:
    last = _LAST_CHUNK if ends else b""
    return b"%b%x\r\n%b\r\n%b" % (head, len(data), data, last) if data else head + last


def _complete(cycle: RequestResponseCycle) -> None:
    cycle.response_complete = True
    event = cycle._event if isinstance(cycle, Cycle) else cycle.message_event  # noqa: SLF001  few of ours have one
    if event is not None:
        event.set()
    if not cycle.keep_alive:
        cycle.transport.close()
    cycle.on_response()


def take_body(cycle: RequestResponseCycle) -> bytes | None:
    body = cycle.body
    if not body or cycle.more_body or cycle.disconnected or cycle.response_complete or cycle.waiting_for_100_continue:
        return None
    cycle.flow.resume_reading()
    cycle.message_event.clear()
    cycle.body = bytearray()
    return bytes(body)


def shortcuts_of(cycle: type) -> Shortcuts | None:
    if issubclass(cycle, Cycle):
        return Shortcuts(Cycle.take_body, Cycle.respond_whole, write_part)
    if cycle is RequestResponseCycle and is_known(HttpToolsProtocol, RequestResponseCycle):
        return Shortcuts(take_body, respond_whole, write_part)
    return None


class WholeResponses(HttpToolsProtocol):
    cycle: Any
    transport: Any
    _between = True  # whether the parser has read to its end each message that it has begun
    _idle_since: float | None = None
    _timer: asyncio.TimerHandle | None = None

    def data_received(self, data: bytes) -> None:
        """Read data. Line ends between two requests do not begin the idle time again; the rest of a body does."""
        since, scope, is_between = self._idle_since, self.scope, self._between
        super().data_received(data)
        if since is not None and self.scope is scope:
            self._idle_since = since if is_between else self.loop.time()

    def on_message_begin(self) -> None:
        self._between = False
        super().on_message_begin()

    def on_message_complete(self) -> None:
        self._between = not self.parser.should_upgrade()
        super().on_message_complete()

    def on_headers_complete(self) -> None:
        scope, parser = self.scope, self.parser
        if (
            (self.cycle is not None and not self.cycle.response_complete)  # pipelined
            or self.root_path
            or self.is_full()
            or parser.get_http_version() != "1.1"
            or parser.should_upgrade()
        ):
            super().on_headers_complete()
            return
        scope["method"] = parser.get_method().decode("ascii")
        scope["path"], scope["raw_path"], scope["query_string"] = _parse_url(self.url)
        cycle = Cycle(self, scope, bytearray(), parser.should_keep_alive(), True)
        cycle.waiting_for_100_continue = self.expect_100_continue
        self.cycle = cycle
        self._start_asgi_task(cycle, self.app)

    def is_full(self) -> bool:
        limit = self.limit_concurrency
        return limit is not None and (len(self.connections) >= limit or len(self.tasks) >= limit)

    def on_response_complete(self) -> None:
        transport = self.transport
        if self.pipeline or transport.is_closing():
            super().on_response_complete()
            return
        transport.flush()
        self.wait_for_next()

    def wait_for_next(self) -> None:
        self.server_state.total_requests += 1
        if self.flow.read_paused:
            self.flow.resume_reading()
        self._idle_since = self.loop.time()
        if self._timer is None:
            self._timer = self.loop.call_later(self.timeout_keep_alive, self._close_if_idle)

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self.cycle is not None and self.cycle.response_complete:
            self.cycle = None  # which refers to this

    def _close_if_idle(self) -> None:
        self._timer = None
        if self._idle_since is None:
            return  # the end of the response under way starts the timer again
        left = self._idle_since + self.timeout_keep_alive - self.loop.time()
        if left > 0:
            self._timer = self.loop.call_later(left, self._close_if_idle)
        else:
            self.timeout_keep_alive_handler()

    def _unset_keepalive_if_required(self) -> None:
        self._idle_since = None


def is_known(protocol: Any, cycle: Any) -> bool:
    """Return whether uvicorn's protocol and its requests are made of what `WholeResponses` and `Cycle` are made of."""
    makes = _names(protocol.__init__) | _names(protocol.on_message_begin)
    if not (makes >= _PROTOCOL and all(hasattr(protocol, name) for name in _METHODS)):
        return False
    # Older ones find out as they send whether the connection is to be closed, and not when the request begins.
    return _names(cycle.__init__) == _CYCLE and "CLOSE_HEADER" not in _names(cycle.send)


_METHODS = frozenset(
    {"_start_asgi_task", "_unset_keepalive_if_required", "on_headers_complete", "on_message_complete"}
    | {"timeout_keep_alive_handler"}
)
_PROTOCOL = frozenset(
    {"access_log", "access_logger", "app", "app_state", "connections", "cycle", "expect_100_continue", "flow"}
    | {"limit_concurrency", "logger", "loop", "parser", "pipeline", "root_path", "scope", "server_state", "tasks"}
    | {"timeout_keep_alive", "transport", "url"}
)
_CYCLE = frozenset(
    {"access_log", "access_logger", "body", "bytearray", "chunked_encoding", "default_headers", "disconnected"}
    | {"expected_content_length", "flow", "keep_alive", "logger", "message_event", "more_body", "on_response"}
    | {"response_complete", "response_started", "scope", "transport", "waiting_for_100_continue"}
)


def _names(function: Any) -> frozenset[str]:
    return frozenset(function.__code__.co_names)


@lru_cache(maxsize=64)
def _parse_url(url: bytes) -> tuple[str, bytes, bytes]:
    parsed = httptools.parse_url(url)
    return unquote(parsed.path.decode("ascii")), parsed.path, parsed.query or b""


_last_head: tuple[object, int, bytes, bytes | None] = (None, 0, b"", None)
_last_defaults: tuple[object, bytes | None] = (None, None)


def _head(defaults: list[tuple[bytes, bytes]], status: int, kind: bytes, headers: Listed = ()) -> bytes | None:
    """Return the head up to the digits of its length; None if uvicorn has to look at its headers.

    `defaults` are the headers of each response: uvicorn makes a new list when the date changes, once a second.
    """
    global _last_head
    if headers:
        return None if any(map(_is_special, headers)) else _make_head(defaults, status, kind, headers)
    known, its_status, its_kind, head = _last_head
    if defaults is not known or status != its_status or kind != its_kind:
        head = _make_head(defaults, status, kind)
        _last_head = defaults, status, kind, head
    return head


def _make_head(defaults: list[tuple[bytes, bytes]], status: int, kind: bytes, headers: Listed = ()) -> bytes | None:
    written = _defaults(defaults)
    if written is None:
        return None
    typed = b"content-type: %b\r\n" % kind if kind else b""
    return b"%b%b%b%bcontent-length: " % (STATUS_LINE[status], written, _write(headers), typed)


def _defaults(headers: list[tuple[bytes, bytes]]) -> bytes | None:
    """Return the headers of each response as they are written; None if uvicorn has to look at them."""
    global _last_defaults
    known, written = _last_defaults
    if headers is not known:
        plain = not any(map(_is_special, headers))
        written = _write(headers) if plain else None
        _last_defaults = headers, written
    return written


def _write(headers: Listed) -> bytes:
    return b"".join([b"%b: %b\r\n" % (name.lower(), value) for name, value in headers])


def _is_special(header: tuple[bytes, bytes]) -> bool:
    name, value = header
    if name.lower() in _OWN_HEADERS or HEADER_RE.search(name):
        return True
    # Of letters and digits, as nearly every value is; a session id is long, and the search would take it byte by byte.
    return not value.translate(None, b"_-./:").isalnum() and bool(HEADER_VALUE_RE.search(value))
