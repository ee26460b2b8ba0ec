"""uvicorn's HTTP protocol, with bounds on a request: how large its head is, and how long its head and body take.

uvicorn with httptools has none, so a client could fill the memory, or hold connections, without ever making a request.
"""

import asyncio
from typing import Any

from .one_write import OneWriteProtocol

LARGEST_HEAD = 32 * 1024
"""Bytes of a head that comes in several packets; likewise of what follows a body in chunks. One that comes at once has
at most as much as the event loop reads at once, a quarter of a MiB."""

HEAD_SECONDS = 10.0  # from the connection or from its first byte

BODY_SECONDS = 30.0  # without a byte of an incomplete body; and for all of a small one

BODY_RATE = 1024  # bytes of a body that give it one more second

_TOO_LARGE = (
    b"HTTP/1.1 431 Request Header Fields Too Large\r\ncontent-type: text/plain\r\n"
    b"content-length: 30\r\nconnection: close\r\n\r\nThe request's head is too long"
)


_AnyProtocol: Any = object
"""For the type checker: `bounded` puts a protocol of uvicorn below these bounds, with httptools or with h11."""


class RequestBounds(_AnyProtocol):  # type: ignore[misc]
    loop: Any
    cycle: Any
    scope: Any
    flow: Any

    transport: Any
    _head_bytes = 0
    _head_timer: asyncio.TimerHandle | None = None
    _body_timer: asyncio.TimerHandle | None = None
    _body_of: Any = None  # the request whose body is waited for
    _body_ends = _part_ends = 0.0  # when all of the body has to be here, and when the next part of it has
    _is_after_chunk = _is_handed_over = False

    def connection_made(self, transport: asyncio.Transport) -> None:
        super().connection_made(transport)
        self._head_timer = self.loop.call_later(HEAD_SECONDS, self._give_up)

    def data_received(self, data: bytes) -> None:
        before = self.cycle
        super().data_received(data)
        cycle = self.cycle
        if (
            cycle is None
            or cycle.scope is not self.scope
            or (cycle is before and cycle.response_complete and not cycle.more_body)
        ):
            self._wait_for_head(len(data))
            return
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer, self._head_bytes = None, 0
        if cycle.more_body:
            self._wait_for_body(cycle, len(data))
        elif self._body_of is not None:
            self._end_body()

    def connection_lost(self, exc: Exception | None) -> None:
        self._end_timers()
        super().connection_lost(exc)

    def handle_websocket_upgrade(self, *event: Any) -> None:
        """Hand the connection over to the protocol of WebSockets, which has bounds of its own."""
        self._is_handed_over = True
        self._end_timers()
        super().handle_websocket_upgrade(*event)

    def on_chunk_header(self) -> None:
        """Note that a chunk begins. After the last one, which is empty, there may be more headers."""
        self._is_after_chunk = True
        super().on_chunk_header()

    def on_body(self, body: bytes) -> None:
        self._is_after_chunk = False
        super().on_body(body)

    def on_message_complete(self) -> None:
        if self._body_of is not None or self._is_after_chunk:
            self._end_body()
            self._is_after_chunk, self._head_bytes = False, 0
        super().on_message_complete()

    def _wait_for_head(self, size: int) -> None:
        if self._body_of is not None:
            self._end_body()
        if self.transport.is_closing() or self._is_handed_over:
            return
        self._head_bytes += size
        if self._head_bytes > LARGEST_HEAD:
            if self.cycle is None or self.cycle.response_complete:  # or it would be within another response
                self.transport.write(_TOO_LARGE)
            self.transport.close()
        elif self._head_timer is None:
            self._head_timer = self.loop.call_later(HEAD_SECONDS, self._give_up)

    def _wait_for_body(self, cycle: Any, size: int) -> None:
        if self.transport.is_closing():
            return
        if self._is_after_chunk:
            self._head_bytes += size
            if self._head_bytes > LARGEST_HEAD:
                self.transport.close()
                return
        else:
            self._head_bytes = 0
        now = self.loop.time()
        if self._body_of is not cycle:
            self._end_body()
            self._body_of, self._body_ends = cycle, now + BODY_SECONDS
            self._body_timer = self.loop.call_later(BODY_SECONDS, self._look_at_body)
        self._body_ends += size / BODY_RATE
        self._part_ends = now + BODY_SECONDS

    def _look_at_body(self) -> None:
        cycle, now = self._body_of, self.loop.time()
        if self.flow.read_paused or cycle.waiting_for_100_continue:
            self._body_ends = self._part_ends = now + BODY_SECONDS  # it is the application that takes its time
        left = min(self._body_ends, self._part_ends) - now
        if left > 0:
            self._body_timer = self.loop.call_later(left, self._look_at_body)
        else:
            self._give_up()

    def _end_body(self) -> None:
        self._body_of = None
        if self._body_timer is not None:
            self._body_timer.cancel()
            self._body_timer = None

    def _end_timers(self) -> None:
        self._end_body()
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _give_up(self) -> None:
        if not self.transport.is_closing():
            self.transport.close()


def bounded(base: Any) -> Any:
    """Return an HTTP protocol of uvicorn with bounds; `base` itself where `one_write` has not taken it."""
    if not hasattr(base, "on_chunk_header"):
        return base
    return type(base.__name__, (RequestBounds, base), {})


BoundedProtocol = bounded(OneWriteProtocol)  # the class to give to uvicorn as `http`
