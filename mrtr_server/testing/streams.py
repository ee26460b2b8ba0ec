"""Streams that a client reads as they come: those of open calls, held to their order, and those of notifications."""

import asyncio
import re
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any, Generic, NamedTuple

from typing_extensions import override

from ..protocol.messages import JSON
from .answers import Asked, Unexpected
from .replies import Event, EventReader, Reply, Request, Response, Standing
from .session import Many, One, Session
from .transports import Stream, Transport, within

__tracebackhide__ = True  # pytest then shows the test's line instead

_PLACE = re.compile(r"(?s)(.+)\.(\d+)of(\d+)")  # after so many questions, of so many that its round has


class _Position(NamedTuple):
    round: str
    sent: int
    questions: int


class _Events:
    def __init__(self, stream: Stream) -> None:
        self._stream = stream
        self._reader = EventReader()
        self._coming: deque[Event] = deque()

    async def next(self) -> Event | None:
        while not self._coming:
            try:
                data = await self._stream.read()
            except ConnectionError:
                return None
            if not data:
                return None
            self._coming.extend(self._reader.feed(data))
        return self._coming.popleft()


class HeldStream:
    """A stream of the era that its client can come back to."""

    def __init__(
        self, request: Request, number: int, stream: Stream, event: str = "", unanswered: Mapping[str, Asked] = {}
    ) -> None:
        self.request = request
        self.event = event
        self.unanswered = dict(unanswered)
        self.is_over = False
        self.has_ended = False
        self._number = number
        self._stream = stream
        self._events = _Events(stream)
        self._heard: list[Event] = []
        self._comes_back = bool(event)
        self._at = _position_of(event)
        self._ids: set[str] = set()

    def close(self) -> None:
        self.has_ended = True
        self._stream.close()

    async def noticed(self) -> None:
        """Wait until the server has noticed that its client has left, where that can be seen."""
        await self._stream.noticed()

    @property
    def standing(self) -> Standing:
        """How the call stands."""
        return Standing(dict(self.unanswered), self.event, not self.is_over)

    async def read(self) -> Response:
        while not self.has_ended:
            event = await self._events.next()
            self.has_ended = event is None
            if event is not None and self._hear(event):
                break
        stream, heard = self._stream, self._heard
        self._heard = []
        seen = stream.seen.take() if stream.seen is not None else None
        return Response(stream.status, stream.headers, b"".join(event.raw for event in heard), seen)

    def _hear(self, event: Event) -> bool:
        if self.is_over:
            raise Unexpected(f"An event came after the response: {event.data[:300]}")
        self._heard.append(event)
        if not event.data:  # a server that says when to come back is about to close the stream
            self._move_to(event)
            return self._comes_back and bool(self.unanswered) and event.retry is None
        message = event.message
        if "method" not in message:
            self._end(message)
        elif "id" in message:
            return self._ask(event, message)
        elif message["method"] == "notifications/progress" and not self._is_own(message["params"].get("progressToken")):
            raise Unexpected(f"Progress of another request: {event.data[:300]}")
        else:
            self._move_to(event)
        return False

    def _is_own(self, token: Any) -> bool:
        return bool(token == self._number)

    def _end(self, message: JSON) -> None:
        if message.get("id") != self._number or not {"result", "error"} & message.keys():
            raise Unexpected(f"A response to another request than {self._number}: {message}")
        self.is_over = True
        self.unanswered = {}

    def _ask(self, event: Event, message: JSON) -> bool:
        id = message["id"]
        if not isinstance(id, str) or not event.id:
            raise Unexpected(f"A question that nobody could come back to: it has no ids of its own: {message}")
        before = self._at
        self._move_to(event)
        at = self._at
        if at is None or not 0 < at.sent <= at.questions:
            raise Unexpected(f"The id of a question's event has no place: {event.id}")
        if before is not None and before.round == at.round and at.sent != before.sent + 1:
            raise Unexpected(f"Question {at.sent} of {at.questions} came after question {before.sent}")
        if at.sent == 1:
            self.unanswered = {}
        key = id.rpartition(".")[0]
        self.unanswered[key] = Asked(key, message["method"], message.get("params") or {}, id)
        return at.sent == at.questions

    def _move_to(self, event: Event) -> None:
        """Note where a client comes back that loses the stream now."""
        if not event.id:
            return
        if event.id in self._ids:
            raise Unexpected(f"Two events have one id: {event.id}")
        self._ids.add(event.id)
        self.event, self._at = event.id, _position_of(event.id)


RELATED = "io.modelcontextprotocol/related-task"


class TaskStream(HeldStream):
    """The stream of a request for the result of a task; see `HeldStream`."""

    task = ""
    tokens: tuple[int, ...] = ()

    @override
    def _ask(self, event: Event, message: JSON) -> bool:
        params = message.get("params") or {}
        if params.get("_meta", {}).get(RELATED) != {"taskId": self.task}:
            raise Unexpected(f"A question that does not name its task: {message}")
        if not isinstance(message["id"], str) or not event.id:
            raise Unexpected(f"A question that nobody could come back to: it has no ids of its own: {message}")
        self._move_to(event)
        key = message["id"].rpartition(".")[0]
        self.unanswered[key] = Asked(key, message["method"], params, message["id"])
        return True  # a task asks the next when it comes to that

    @override
    def _is_own(self, token: Any) -> bool:
        return token in self.tokens


def _position_of(event: str) -> _Position | None:
    found = _PLACE.fullmatch(event)
    return _Position(found[1], int(found[2]), int(found[3])) if found else None


def is_stream(stream: Stream) -> bool:
    return stream.status == 200 and stream.headers.get("content-type", "").startswith("text/event-stream")


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
        self._events: _Events | None = None

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
            Unexpected: the stream is not open; the message is no notification; or none came in time.
        """
        return self._client.run_one(within(self._client.timeout, self._next()))

    def close(self) -> One:
        """Leave, and wait until the server has noticed, where that can be seen.

        Returns:
            The reply, without a message.
        """
        return self._client.run_one(self._close())

    async def _prepared(self) -> Request:
        return await self._client.prepare_listen(self._server, self._resources, self._tasks)

    async def _open(self) -> Reply:
        self._request = await self._prepared()
        stream = await self._server.open(self._request)
        if not is_stream(stream):
            return Reply(self._request, [await stream.read_whole()])
        self._stream, self._events = stream, _Events(stream)
        return self._reply(b"") if self._request.method == "GET" else await self._next()

    async def _next(self) -> Reply:
        if self._stream is None or self._events is None:
            raise Unexpected("The stream is not open: call open() first")
        while (event := await self._events.next()) is not None:
            if not event.data:
                continue
            if "result" in event.message and self._request is not None and self._request.method != "GET":
                continue  # how the server ends it
            if "id" in event.message or "method" not in event.message:
                raise Unexpected(f"No notification came on the stream: {event.data[:300]}")
            return self._reply(event.raw)
        return self._reply(b"")

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


class Followed(Notifications[One, Many]):
    """The events of a client, on the stream of `events/stream` (Events, Push-Based Delivery).

    Args:
        client: who follows.
        server: where it follows.
        params: the parameters of the request.
    """

    def __init__(self, client: Session[One, Many], server: Transport, params: Mapping[str, Any]) -> None:
        super().__init__(client, server)
        self._params = params

    @override
    async def _prepared(self) -> Request:
        return await self._client.prepare_events(self._server, self._params)
