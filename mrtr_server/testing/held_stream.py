"""The stream of an open call, read from one question to the next, and held to the order that it promises."""

import re
from collections import deque
from collections.abc import Mapping
from typing import Any, NamedTuple

from ..protocol.messages import JSON
from .asked import Asked
from .events import Event, EventReader
from .failure import Unexpected
from .replies import Response, Standing
from .transports import Stream
from .wire import Request

__tracebackhide__ = True  # pytest then shows the test's line instead

_PLACE = re.compile(r"(?s)(.+)\.(\d+)of(\d+)")
"""How the id of an event ends: after so many questions, of so many that its round has."""


class _Position(NamedTuple):
    round: str
    sent: int
    questions: int


class HeldStream:
    """A stream of the era that its client can come back to.

    Args:
        request: what it is the response to.
        number: the id of the request that called.
        stream: the response.
        event: the id of the last event that came before; empty for a call that begins.
        unanswered: the questions that came before and have no answer yet, by key.
    """

    def __init__(
        self, request: Request, number: int, stream: Stream, event: str = "", unanswered: Mapping[str, Asked] = {}
    ) -> None:
        self.request = request
        self.event = event
        self.unanswered = dict(unanswered)
        self.is_over = False
        """Whether the response has come."""
        self.has_ended = False
        """Whether the stream has ended."""
        self._number = number
        self._stream = stream
        self._reader = EventReader()
        self._coming: deque[Event] = deque()
        self._heard: list[Event] = []
        self._comes_back = bool(event)
        self._at = _position_of(event)
        self._ids: set[str] = set()

    def close(self) -> None:
        """Leave."""
        self.has_ended = True
        self._stream.close()

    async def noticed(self) -> None:
        """Wait until the server has noticed that its client has left, where that can be seen."""
        await self._stream.noticed()

    @property
    def comments(self) -> int:
        """How many comments kept it open so far."""
        return self._reader.comments

    @property
    def standing(self) -> Standing:
        """How the call stands."""
        return Standing(dict(self.unanswered), self.event, not self.is_over)

    async def read(self) -> Response:
        """Read until the server waits for an answer, or the stream ends.

        Returns:
            The part of the response that was read.

        Raises:
            Unexpected: what came is not what a server of this era sends.
        """
        while not self.has_ended:
            if self._coming:
                if self._hear(self._coming.popleft()):
                    break
                continue
            try:
                data = await self._stream.read()
            except ConnectionError:  # its server died
                data = b""
            self._coming.extend(self._reader.feed(data))
            self.has_ended = not data
        stream, self_heard = self._stream, self._heard
        self._heard = []
        seen = stream.seen.take() if stream.seen is not None else None
        return Response(stream.status, stream.headers, b"".join(event.raw for event in self_heard), seen)

    def _hear(self, event: Event) -> bool:
        """Note an event, and return whether the server now waits for its client."""
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
        """Return whether progress of a token is that of the call."""
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


def _position_of(event: str) -> _Position | None:
    found = _PLACE.fullmatch(event)
    return _Position(found[1], int(found[2]), int(found[3])) if found else None


def is_stream(stream: Stream) -> bool:
    """Return whether a response is a stream of events."""
    return stream.status == 200 and stream.headers.get("content-type", "").startswith("text/event-stream")


async def read_whole(stream: Stream) -> Response:
    """Return a response that is no stream of events."""
    parts: list[bytes] = []
    try:
        while data := await stream.read():
            parts.append(data)
    except ConnectionError as error:
        raise Unexpected(f"The response was cut off: {error}") from None
    return Response(stream.status, stream.headers, b"".join(parts), stream.seen)
