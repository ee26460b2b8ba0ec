"""One subscription whose events are pushed, on the response of the request that asked for it."""

import asyncio
from collections.abc import Callable

from ..concurrency.running import running_loop
from ..errors import EventFailed, StoreUnavailable
from ..flow.authorization import Authorizer
from ..protocol.event_codes import FORBIDDEN, INTERNAL, code_of
from ..protocol.messages import JSON, Change, EventFrame
from ..storage.rows import EventRow, Position
from .log import AGAIN_AFTER, EventLog, Follower
from .subscribers import Subscriber, may_subscribe

PORTION = 64 * 1024
"""Bytes of rows whose events are made ready at a time."""

HEARTBEAT = 14.0
"""Seconds between messages that say that the stream is there: fewer than between comments, so it has none of those."""


class EventStream:
    """The messages of a stream, as the transport asks for them.

    `ended` is called once. The first message says where the stream begins.
    """

    def __init__(
        self,
        subscriber: Subscriber,
        log: EventLog,
        authorizer: Authorizer,
        position: Position,
        *,
        is_cut: bool,
        is_declared: bool,
        ended: Callable[[], object],
    ) -> None:
        self._subscriber = subscriber
        self._log = log
        self._authorizer = authorizer
        self._follower: Follower | None = log.follow(subscriber.type.name, position)
        self._begins: bool | None = is_cut  # what the first message, or one after a gap, says; None when it was said
        self._is_declared = is_declared
        self._ended = ended
        self._due = running_loop().time() + HEARTBEAT
        self._rows: list[EventRow] = []
        self._reached = position
        self._is_over = False
        self._began = log.now()

    @property
    def wanted(self) -> frozenset[Change]:
        """It wants no changes of others."""
        return frozenset()

    async def next(self) -> list[Change]:
        """Wait for messages. Return an empty list when the subscription has ended. A cancelled wait loses nothing."""
        while True:
            follower = self._follower
            if follower is None or self._is_over:
                return []
            frames = await self._frames(follower)
            if frames:
                self._due = running_loop().time() + HEARTBEAT
                return list(frames)

    async def _frames(self, follower: Follower) -> list[EventFrame]:
        if self._begins is not None:
            # What is read already, and was not told yet, comes after this cursor.
            at = self._rows[0].position.before if self._rows else None
            begun = EventFrame("event", "active", params={"cursor": await self._cursor(at), "truncated": self._begins})
            self._begins = None
            return [begun]
        try:
            if not self._rows:
                page = await follower.next(self._due)
                self._rows, self._reached = list(page.rows), page.reached
                if page.lost:
                    self._begins, self._reached = True, page.begins
                    return []
            if self._rows and not await self._may_go_on():
                self._is_over = True
                return [EventFrame("event", "terminated", params={"error": self._lost_access})]
            portion = _portion(self._rows)
            frames = [frame for row in portion if (frame := await self._frame(row)) is not None]
        except StoreUnavailable:
            await asyncio.sleep(AGAIN_AFTER)  # what was missed comes later, and the client hears nothing until then
            return []
        self._rows = self._rows[len(portion) :]
        if self._rows:
            await asyncio.sleep(0)  # others have their turn
            return frames
        if not frames and running_loop().time() >= self._due:
            frames = [EventFrame("event", "heartbeat", params={"cursor": await self._cursor()})]
        return frames

    async def _may_go_on(self) -> bool:
        if await self._log.forgotten.has_ended(self._subscriber.caller.principal, self._began):
            return False
        return await may_subscribe(self._authorizer, self._subscriber)

    async def _frame(self, row: EventRow) -> EventFrame | None:
        event = self._log.open(self._subscriber.type, row)
        if event is None:
            self._begins = True  # and it goes on behind it
        try:
            made = None if event is None else await self._subscriber.occurrence(event)
        except EventFailed as failed:
            error = {
                "code": INTERNAL,
                "message": "An event could not be made ready",
                "data": {"reference": str(failed)},
            }
            return EventFrame("event", "error", params={"error": error})
        if made is None:
            return None
        return EventFrame("event", "event", params={**made, "cursor": await self._cursor(row.position)})

    async def _cursor(self, position: Position | None = None) -> str:
        subscriber = self._subscriber
        at = self._reached if position is None else position
        return await self._log.seal(subscriber.owner, subscriber.type.name, subscriber.arguments, at)

    @property
    def _lost_access(self) -> JSON:
        code = code_of(FORBIDDEN, is_declared=self._is_declared)
        return {"code": code, "message": FORBIDDEN, "data": {"reason": "Access revoked"}}

    def close(self) -> None:
        follower, self._follower = self._follower, None
        if follower is not None:
            follower.close()
            self._ended()


def _portion(rows: list[EventRow]) -> list[EventRow]:
    """Return the first rows, which are made ready together: a client may take long to read what comes of them."""
    size = 0
    for count, row in enumerate(rows):
        if size >= PORTION:
            return rows[:count]
        size += row.size
    return rows
