"""uvicorn's HTTP protocol, with bounds on the head of a request: how large it is, and how long it takes.

uvicorn with httptools has neither, so a client could fill the memory, or hold connections, without ever making a
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

_TOO_LARGE = (
    b"HTTP/1.1 431 Request Header Fields Too Large\r\ncontent-type: text/plain\r\n"
    b"content-length: 30\r\nconnection: close\r\n\r\nThe request's head is too long"
)


class BoundedProtocol(OneWriteProtocol):  # type: ignore[misc]
    """uvicorn's HTTP protocol, which waits for no head forever: the class to give to uvicorn as `http`."""

    transport: Any
    _head_bytes = 0
    _head_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:
        """Begin to serve a connection, and to wait for its first head."""
        super().connection_made(transport)
        self._head_timer = self.loop.call_later(HEAD_SECONDS, self._give_up)

    def data_received(self, data: bytes) -> None:
        """Read what has come."""
        super().data_received(data)
        cycle = self.cycle
        if cycle is None or cycle.scope is not self.scope:
            self._wait_for_head(len(data))
        elif self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer, self._head_bytes = None, 0

    def connection_lost(self, exc: Exception | None) -> None:
        """End with the connection."""
        if self._head_timer is not None:
            self._head_timer.cancel()
        super().connection_lost(exc)

    def _wait_for_head(self, size: int) -> None:
        if self.transport.is_closing():
            return
        self._head_bytes += size
        if self._head_bytes > LARGEST_HEAD:
            self.transport.write(_TOO_LARGE)
            self.transport.close()
        elif self._head_timer is None:
            self._head_timer = self.loop.call_later(HEAD_SECONDS, self._give_up)

    def _give_up(self) -> None:
        if not self.transport.is_closing():
            self.transport.close()
