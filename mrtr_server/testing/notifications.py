"""The stream on which a server notifies a client."""

import asyncio
from collections import deque
from collections.abc import Sequence
from typing import Generic

from .events import Event, EventReader
from .failure import Unexpected
from .held_stream import is_stream, read_whole
from .replies import Reply, Response
from .session import Many, One, Session
from .transports import Stream, Transport, within
from .wire import Request

__tracebackhide__ = True  # pytest then shows the test's line instead


class Notifications(Generic[One, Many]):
    """The notifications of a client: on the stream of `subscriptions/listen` (Subscriptions, Listening).

    In the handshake era they come on that of a `GET` (Transports, Listening for Messages from the Server).

    Args:
        client: who listens.
        server: where it listens.
        resources: the URIs of the resources that it listens to.
        tasks: the ids of the tasks that it listens to.
    """

    def __init__(
        self, client: Session[One, Many], server: Transport, resources: Sequence[str] = (), tasks: Sequence[str] = ()
    ) -> None:
        self._client = client
        self._server = server
        self._resources = resources
        self._tasks = tasks
        self._request: Request | None = None
        self._stream: Stream | None = None
        self._reader = EventReader()
        self._coming: deque[Event] = deque()

    def open(self) -> One:
        """Open the stream: it reports what happens from then on.

        Returns:
            The reply. If the stream is open, it has the acknowledgement, with what the server agreed to; in the
            handshake era, no message. Otherwise it is what refused the stream, such as a 405.

        Raises:
            Unexpected: the session can't subscribe to a resource, or no acknowledgement came in time.
        """
        return self._client.run_one(within(self._client.timeout, self._open()))

    def next(self) -> One:
        """Wait for the next notification.

        Returns:
            The reply; `received` has the notification, and is empty if the server has ended the stream.

        Raises:
            Unexpected: the stream is not open; what came is no notification; or nothing came in time.
        """
        return self._client.run_one(within(self._client.timeout, self._next()))

    def close(self) -> One:
        """Leave, and wait until the server has noticed, where that can be seen.

        Returns:
            The reply, without a message.
        """
        return self._client.run_one(self._close())

    async def _open(self) -> Reply:
        self._request = await self._client.prepare_listen(self._server, self._resources, self._tasks)
        stream = await self._server.open(self._request)
        if not is_stream(stream):
            return Reply(self._request, [await read_whole(stream)])
        self._stream = stream
        return self._reply(b"") if self._request.method == "GET" else await self._next()

    async def _next(self) -> Reply:
        stream = self._stream
        if stream is None:
            raise Unexpected("The stream is not open: call open() first")
        while True:
            while not self._coming:
                try:
                    data = await stream.read()
                except ConnectionError:  # its server died
                    data = b""
                if not data:
                    return self._reply(b"")
                self._coming.extend(self._reader.feed(data))
            event = self._coming.popleft()
            if not event.data:
                continue
            if "result" in event.message and self._request is not None and self._request.method != "GET":
                continue  # how the server ends it
            if "id" in event.message or "method" not in event.message:
                raise Unexpected(f"No notification came on the stream: {event.data[:300]}")
            return self._reply(event.raw)

    async def _close(self) -> Reply:
        stream, self._stream = self._stream, None
        if stream is None:
            raise Unexpected("The stream is not open")
        stream.close()
        await asyncio.sleep(0)
        await stream.noticed()
        return self._reply(b"", stream)

    def _reply(self, body: bytes, stream: Stream | None = None) -> Reply:
        stream = stream or self._stream
        assert self._request is not None  # noqa: S101  it has been sent
        assert stream is not None  # noqa: S101  it is open
        return Reply(self._request, [Response(stream.status, stream.headers, body)])
