"""uvicorn's HTTP protocol, with bounds on a request: how large its head is, and how long its head and body take.

uvicorn with httptools has none, so a client could fill the memory, or hold connections, without ever making a
request. `mrtr-server run` serves with this. It costs a comparison for each packet.
"""

import asyncio
from typing import Any

from .one_write import OneWriteProtocol

LARGEST_HEAD = 32 * 1024
"""Bytes of a head that comes in several packets. One that comes at once has at most as much as the event loop reads at
once, a quarter of a MiB."""

HEAD_SECONDS = 10.0
"""How long a head may take, from the connection or from its first byte, in seconds."""

BODY_SECONDS = 30.0
"""How long nothing may come of a body that is not complete, in seconds."""

_TOO_LARGE = (
    b"HTTP/1.1 431 Request Header Fields Too Large\r\ncontent-type: text/plain\r\n"
    b"content-length: 30\r\nconnection: close\r\n\r\nThe request's head is too long"
)


class BoundedProtocol(OneWriteProtocol):  # type: ignore[misc]
    """uvicorn's HTTP protocol, which waits for no request forever: the class to give to uvicorn as `http`."""

    transport: Any
    _head_bytes = 0
    _head_timer: asyncio.TimerHandle | None = None
    _body_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:
        """Begin to serve a connection, and to wait for its first head."""
        super().connection_made(transport)
        self._head_timer = self.loop.call_later(HEAD_SECONDS, self._give_up)

    def data_received(self, data: bytes) -> None:
        """Read what has come."""
        super().data_received(data)
        cycle = self.cycle
        if self._body_timer is not None:
            self._body_timer.cancel()
            self._body_timer = None
        if cycle is None or cycle.scope is not self.scope:
            self._wait_for_head(len(data))
            return
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer, self._head_bytes = None, 0
        if cycle.more_body:
            self._wait_for_body()

    def connection_lost(self, exc: Exception | None) -> None:
        """End with the connection."""
        for timer in (self._head_timer, self._body_timer):
            if timer is not None:
                timer.cancel()
        self._head_timer = self._body_timer = None
        super().connection_lost(exc)

    def _wait_for_head(self, size: int) -> None:
        if self.transport.is_closing():
            return
        self._head_bytes += size
        if self._head_bytes > LARGEST_HEAD:
            if self.cycle is None or self.cycle.response_complete:  # or it would be within another response
                self.transport.write(_TOO_LARGE)
            self.transport.close()
        elif self._head_timer is None:
            self._head_timer = self.loop.call_later(HEAD_SECONDS, self._give_up)

    def _wait_for_body(self) -> None:
        if not self.transport.is_closing():
            self._body_timer = self.loop.call_later(BODY_SECONDS, self._give_up_body)

    def _give_up_body(self) -> None:
        self._body_timer, cycle = None, self.cycle
        if cycle.response_complete or not cycle.more_body:
            return  # the rest of a body that was refused is bounded as an idle connection is
        if self.flow.read_paused or cycle.waiting_for_100_continue:
            self._wait_for_body()  # it is the application that takes its time
        else:
            self._give_up()

    def _give_up(self) -> None:
        if not self.transport.is_closing():
            self.transport.close()
