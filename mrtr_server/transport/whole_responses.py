"""Responses that uvicorn's httptools protocol takes as a whole, in place of messages that it takes apart.

The endpoint has a short response complete, its headers known. By `respond_whole` it goes out as it is, in one write,
without two messages, and two regular expressions for each header. By `write_part` a part of a stream does, the first
one with the head. `WholeResponses` also makes requests with less, and has one timer for all the times that a connection
is idle. Whatever is not ordinary is left to uvicorn: pipelined requests, upgrades, HTTP 1.0, limits of connections, the
access log. So is everything where this uvicorn is not one that we know.
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

_LAST_CHUNK = b"0\r\n\r\n"

_OWN_HEADERS = frozenset({b"connection", b"content-length", b"transfer-encoding"})
"""Headers that a server writes by itself; uvicorn has to see one that is configured for every response."""


class Cycle(RequestResponseCycle):
    """One request and its response.

    Args:
        protocol: the connection that it came by.
    """

    disconnected = response_started = response_complete = False
    chunked_encoding = None
    expected_content_length = 0
    more_body = True

    def __init__(self, protocol: HttpToolsProtocol) -> None:
        self.scope = protocol.scope
        self.transport = protocol.transport
        self.flow = protocol.flow
        self.logger = protocol.logger
        self.access_logger = protocol.access_logger
        self.access_log = protocol.access_log
        self.default_headers = protocol.server_state.default_headers
        self.message_event = asyncio.Event()
        self.on_response = protocol.on_response_complete
        self.keep_alive = protocol.parser.should_keep_alive()
        self.waiting_for_100_continue = protocol.expect_100_continue
        self.body = bytearray()

    async def receive(self) -> ASGIReceiveEvent:
        """Return what has come of the body, or wait for it."""
        ended = self.disconnected or self.response_complete
        if ended or self.more_body or not self.body or self.waiting_for_100_continue or self.flow.read_paused:
            return await super().receive()
        body, self.body = bytes(self.body), bytearray()
        self.message_event.clear()
        return {"type": "http.request", "body": body, "more_body": False}


def respond_whole(cycle: RequestResponseCycle, status: int, kind: bytes, body: bytes) -> bool:
    """Write a response at once; return False if it has to go by `send`.

    Args:
        cycle: the request.
        status: of the response.
        kind: its `content-type`, if it has a body.
        body: the whole of it; or nothing.
    """
    if cycle.flow.write_paused or cycle.disconnected or cycle.response_started or cycle.access_log:
        return False
    defaults = _written(cycle.default_headers)
    if defaults is None or cycle.scope["method"] == "HEAD":
        return False
    cycle.response_started = True
    cycle.waiting_for_100_continue = False
    last = b"\r\n\r\n" if cycle.keep_alive else b"\r\nconnection: close\r\n\r\n"
    typed = b"\r\ncontent-type: " + kind if body else b""
    cycle.transport.write(
        b"%b%bcontent-length: %d%b%b%b" % (STATUS_LINE[status], defaults, len(body), typed, last, body)
    )
    _complete(cycle)
    return True


def write_part(cycle: RequestResponseCycle, headers: bytes, data: bytes, *, begins: bool, ends: bool) -> bool:
    """Write a part of a stream at once; return False if it has to go by `send`.

    Args:
        cycle: the request.
        headers: of the response, as they are written, for a part that begins it.
        data: the part; or nothing.
        begins: whether the response begins with it.
        ends: whether it ends with it.
    """
    if cycle.flow.write_paused or cycle.disconnected:
        return False
    head = b""
    if begins:
        defaults = _written(cycle.default_headers)
        if cycle.response_started or cycle.access_log or defaults is None or cycle.scope["method"] == "HEAD":
            return False
        cycle.response_started = cycle.chunked_encoding = True
        cycle.waiting_for_100_continue = False
        last = b"" if cycle.keep_alive else b"connection: close\r\n"
        head = b"%b%b%b%btransfer-encoding: chunked\r\n\r\n" % (STATUS_LINE[200], defaults, headers, last)
    elif cycle.response_complete or not cycle.chunked_encoding:
        return False
    chunk = b"%x\r\n%b\r\n" % (len(data), data) if data else b""
    cycle.transport.write(b"%b%b%b" % (head, chunk, _LAST_CHUNK if ends else b""))
    if ends:
        _complete(cycle)
    return True


def _complete(cycle: RequestResponseCycle) -> None:
    cycle.response_complete = True
    cycle.message_event.set()
    if not cycle.keep_alive:
        cycle.transport.close()
    cycle.on_response()


def takes_whole(cycle: type) -> bool:
    """Return whether requests of a class are uvicorn's, or ours, and so take a response by `respond_whole`."""
    return cycle is Cycle or (cycle is RequestResponseCycle and is_known(HttpToolsProtocol, RequestResponseCycle))


class WholeResponses(HttpToolsProtocol):
    """uvicorn's own HTTP protocol, with requests whose responses may be whole."""

    cycle: Any
    transport: Any
    _idle_since: float | None = None
    _timer: asyncio.TimerHandle | None = None

    def on_headers_complete(self) -> None:
        """Begin to serve a request."""
        scope, parser = self.scope, self.parser
        if (
            (self.cycle is not None and not self.cycle.response_complete)  # pipelined
            or self.limit_concurrency is not None
            or self.root_path
            or parser.get_http_version() != "1.1"
            or parser.should_upgrade()
        ):
            super().on_headers_complete()
            return
        scope["method"] = parser.get_method().decode("ascii")
        scope["path"], scope["raw_path"], scope["query_string"] = _parse_url(self.url)
        self.cycle = Cycle(self)
        self._start_asgi_task(self.cycle, self.app)

    def on_response_complete(self) -> None:
        """End a response, and wait for the next request as long as `timeout_keep_alive` says."""
        if self.pipeline or self.transport.is_closing():
            super().on_response_complete()
            return
        self.transport.flush()
        self.server_state.total_requests += 1
        self.flow.resume_reading()
        self._idle_since = self.loop.time()
        if self._timer is None:
            self._timer = self.loop.call_later(self.timeout_keep_alive, self._close_if_idle)

    def connection_lost(self, exc: Exception | None) -> None:
        """End a connection that is closed."""
        super().connection_lost(exc)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

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


def whole_responses(base: Any) -> Any:
    """Return a protocol that also takes whole responses; `base` itself where this uvicorn is not one that we know.

    Args:
        base: the protocol, on a transport with `flush`; see `one_write`.
    """
    if not issubclass(base, HttpToolsProtocol) or not is_known(HttpToolsProtocol, RequestResponseCycle):
        return base
    return type(base.__name__, (WholeResponses, base), {})


def is_known(protocol: Any, cycle: Any) -> bool:
    """Return whether uvicorn's protocol and its requests are made of what `WholeResponses` and `Cycle` are made of."""
    makes = _names(protocol.__init__) | _names(protocol.on_message_begin)
    return makes >= _PROTOCOL and all(hasattr(protocol, name) for name in _METHODS) and _names(cycle.__init__) == _CYCLE


_METHODS = ("_start_asgi_task", "_unset_keepalive_if_required", "on_headers_complete", "timeout_keep_alive_handler")
_PROTOCOL = frozenset(
    {
        "access_log",
        "access_logger",
        "app",
        "cycle",
        "expect_100_continue",
        "flow",
        "limit_concurrency",
        "logger",
        "loop",
    }
    | {"parser", "pipeline", "root_path", "scope", "server_state", "timeout_keep_alive", "transport", "url"}
)
_CYCLE = frozenset(
    {"access_log", "access_logger", "body", "bytearray", "chunked_encoding", "default_headers", "disconnected"}
    | {"expected_content_length", "flow", "keep_alive", "logger", "message_event", "more_body", "on_response"}
    | {"response_complete", "response_started", "scope", "transport", "waiting_for_100_continue"}
)


def _names(function: Any) -> frozenset[str]:
    """Return the names in the code of a function, those of attributes among them."""
    return frozenset(function.__code__.co_names)


@lru_cache(maxsize=64)
def _parse_url(url: bytes) -> tuple[str, bytes, bytes]:
    """Return the path of a URL, as text and as it is, and its query."""
    parsed = httptools.parse_url(url)
    return unquote(parsed.path.decode("ascii")), parsed.path, parsed.query or b""


_last: tuple[object, bytes | None] = (None, None)


def _written(headers: list[tuple[bytes, bytes]]) -> bytes | None:
    """Return the headers of every response as they are written; None if uvicorn has to look at them.

    uvicorn makes a new list each second, as the date changes.
    """
    global _last
    known, written = _last
    if headers is not known:
        plain = not any(map(_is_special, headers))
        written = b"".join([b"%b: %b\r\n" % (name.lower(), value) for name, value in headers]) if plain else None
        _last = headers, written
    return written


def _is_special(header: tuple[bytes, bytes]) -> bool:
    name, value = header
    return name.lower() in _OWN_HEADERS or bool(HEADER_RE.search(name) or HEADER_VALUE_RE.search(value))
