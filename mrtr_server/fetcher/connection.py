"""One connection to what a peer named: HTTP/1.1, one request at a time, and a bound on all that comes back.

`httpcore` is not used. Its pool asks the kernel about each kept connection twice a request, loses a place for each
failed handshake behind a proxy, leaves the socket open if a handshake is cancelled, and reads `1xx` without end.
"""

import asyncio
import ssl
from collections.abc import Sequence
from typing import cast

import h11

from ..errors import Unreachable

_LARGEST_HEAD = 16 * 1024  # bytes of status line and headers

_MOST_BESIDE = 32 * 1024
"""Bytes of a response beside its body: heads, `1xx` before it, and the sizes of chunks."""

_MOST_PARTS = 512
"""Chunks of a body. Each costs as much as some kilobytes, and may be of one byte."""

Headers = Sequence[tuple[str, str]]


class Connection(asyncio.Protocol):
    """A connection. Whoever uses it aborts it after any error."""

    def __init__(self) -> None:
        self._http = h11.Connection(h11.CLIENT, max_incomplete_event_size=_LARGEST_HEAD)
        self._received = b""
        self._left = 0  # bytes that may still come; none between two requests
        self._is_over = False
        self._waiter: asyncio.Future[None] | None = None
        self._transport: asyncio.Transport | None = None

    # Of asyncio

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        self._received += data[: self._left]
        self._left -= len(data)
        if self._left < 0:
            self.abort()
        self._wake()

    def connection_lost(self, error: Exception | None) -> None:
        self._is_over = True
        self._wake()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    # Of its user

    @property
    def is_usable(self) -> bool:
        """Whether another request may be sent."""
        # What is left of a request, which its server did not read, would be in front of the next one.
        return self._http.our_state is h11.IDLE and not self._is_over and not self._writes

    @property
    def _writes(self) -> int:
        return self._transport.get_write_buffer_size() if self._transport is not None else 0

    def abort(self) -> None:
        self._is_over = True
        if self._transport is not None:
            self._transport.abort()  # a close of TLS would wait for the peer

    async def start_tls(self, context: ssl.SSLContext, host: str) -> None:
        """Raises `Unreachable`."""
        assert self._transport is not None  # noqa: S101  it is connected
        loop = asyncio.get_running_loop()
        try:
            made = await loop.start_tls(self._transport, self, context, server_hostname=host)
        except (OSError, ValueError):  # of certificates, of the handshake, or an end in the middle of it
            raise Unreachable("tls_error") from None
        if made is None:
            raise Unreachable("tls_error")
        self._transport = made

    async def tunnel(self, authority: str, headers: Headers) -> None:
        """Connect to a host and port through the proxy at the other end. Raises `Unreachable`."""
        self._begin(h11.Request(method="CONNECT", target=authority, headers=[("Host", authority), *headers]), b"", 0)
        try:
            head = await self._head()
        except h11.RemoteProtocolError:
            raise Unreachable("connection_refused") from None
        if head is None or head.status_code // 100 != 2 or self._has_more:
            raise Unreachable("connection_refused")
        self._left = 0
        self._http = h11.Connection(h11.CLIENT, max_incomplete_event_size=_LARGEST_HEAD)

    async def exchange(self, request: h11.Request, content: bytes, most: int) -> tuple[int, bytes, str] | None:
        """Send a request; return status, the first `most` bytes of the body, and Cache-Control; None if nothing came.

        Nothing comes on a kept connection that the server closed at the same moment. Raises `Unreachable`.
        """
        self._begin(request, content, most)
        try:
            head = await self._head()
            if head is None:
                return None
            body = await self._body(most)
        except h11.RemoteProtocolError:
            raise Unreachable("connection_refused") from None
        if len(body) <= most and self._http.their_state is h11.DONE and not self._has_more:
            self._http.start_next_cycle()
            self._left = 0
        else:
            self.abort()
        cached = b",".join(value for name, value in head.headers if name == b"cache-control")
        return head.status_code, body[:most], cached.decode("latin-1")

    @property
    def _has_more(self) -> bool:
        """Whether more has come than the response. It would be read as the response to the next request."""
        return bool(self._received or self._http.trailing_data[0])

    def _begin(self, request: h11.Request, content: bytes, most: int) -> None:
        self._left = _MOST_BESIDE + 2 * most
        sent = [self._http.send(request), self._http.send(h11.Data(data=content)) if content else b""]
        if request.method != b"CONNECT":
            sent.append(self._http.send(h11.EndOfMessage()))
        assert self._transport is not None  # noqa: S101  it is connected
        # The whole body is in memory anyway, so nobody waits until the peer has read it.
        self._transport.write(b"".join(part or b"" for part in sent))

    async def _head(self) -> h11.Response | None:
        """Return the response without its body; None if the connection ended before anything came."""
        came = 0
        while True:
            event = self._http.next_event()
            if event is h11.NEED_DATA:
                came += await self._receive()
                if not came:
                    return None
            elif isinstance(event, h11.Response):
                return event
            elif not isinstance(event, h11.InformationalResponse):
                raise Unreachable("connection_refused")

    async def _body(self, most: int) -> bytes:
        parts: list[bytes] = []
        size = 0
        while size <= most and len(parts) < _MOST_PARTS:
            event = self._http.next_event()
            if event is h11.NEED_DATA:
                await self._receive()
            elif isinstance(event, h11.Data):
                parts.append(bytes(event.data))
                size += len(event.data)
            else:
                break
        return b"".join(parts)

    async def _receive(self) -> int:
        """Pass the next bytes on to the parser, and return how many they are; 0 at the end."""
        if not self._received and not self._is_over:
            self._waiter = asyncio.get_running_loop().create_future()
            try:
                await self._waiter
            finally:
                self._waiter = None
        received, self._received = self._received, b""
        self._http.receive_data(received)
        return len(received)
