"""The events of a type, as one client follows them: by a stream or by polls, and from where it was after a loss."""

import asyncio
import logging
import random
from collections import OrderedDict
from collections.abc import AsyncGenerator, Awaitable, Callable
from hashlib import blake2b
from time import monotonic
from typing import Literal, NamedTuple, Self

from ..errors import BadReply, ClientError, NoReply, RequestRefused, SetupError
from ..logs.formats import plain
from ..protocol.messages import EVENT_NOTIFICATIONS, JSON, STREAM_EVENTS, SUBSCRIPTION_ID
from ..wire import number_of
from .exchange import Bounds, refusal_of
from .results import Event, EventPage, EventPlace, OfferedEvent, read
from .session import Session

logger = logging.getLogger("mrtr_server")

Delivery = Literal["poll", "push"]

OnGap = Callable[[], Awaitable[None] | None]

SHORTEST_POLL, USUAL_POLL, LONGEST_POLL = 1.0, 30.0, 3600.0
"""Seconds between two polls, whatever the server says."""

LARGEST_EVENT = 256 * 1024
"""Bytes of an event that follows the extension: a page is asked for with so many as a reply may hold."""

MOST_REMEMBERED, REMEMBERED_SECONDS = 10_000, 3600.0
"""How many ids of events are remembered, and how long: a source may use an id again, after a day as a rule."""

FIRST_PAUSE, LONGEST_PAUSE = 0.2, 30.0
"""Seconds until a lost stream, or a poll, is tried again: at first, and at most."""

SETTLED = 5.0
"""Seconds for which something has to come, so that what is lost then counts as a new loss."""

DOUBLINGS = 10

LOGGED, LOGGED_CHARACTERS = 4, 200
"""The failure in a row that is logged: a server that is started again takes that long; and how much is said of it."""

_AWAY = frozenset({429, 502, 503, 504})  # statuses of a server that will be there again

ListTypes = Callable[[], Awaitable[list[OfferedEvent]]]


class _Came(NamedTuple):
    """What came of the server: an event or none, where the client is after it, and whether some before are missing."""

    cursor: str | None
    event: Event | None = None
    is_gap: bool = False


class _Seen:
    """The ids of the last events."""

    def __init__(self) -> None:
        self._until: OrderedDict[bytes, float] = OrderedDict()

    def add(self, id: str) -> bool:
        """Note an id; return whether it is new."""
        # Digests, since a server chooses how long its ids are.
        named, now = blake2b(id.encode(errors="surrogatepass"), digest_size=16).digest(), monotonic()
        is_new = self._until.pop(named, 0.0) <= now
        self._until[named] = now + REMEMBERED_SECONDS
        if len(self._until) > MOST_REMEMBERED:
            self._until.popitem(last=False)
        return is_new


class Following:
    """Follows one type of event. `running` has the tasks that a client ends when it closes. Raises `SetupError`."""

    def __init__(
        self,
        session: Session,
        list_types: ListTypes,
        bounds: Bounds,
        running: set["asyncio.Task[None]"],
        wanted: JSON,
        *,
        cursor: str | None,
        delivery: Delivery | None,
        on_gap: OnGap | None,
    ) -> None:
        if delivery not in ("poll", "push", None):
            raise SetupError(f"delivery={delivery!r}: choose 'poll' or 'push', or leave it out")
        self._session = session
        self._list_types = list_types
        self._bounds = bounds
        self._running = running
        self._wanted = wanted
        self._delivery = delivery
        self._on_gap = on_gap
        self.cursor = cursor
        """Up to where everything was taken."""
        self._reached = cursor
        """Up to where everything has come."""
        self._has_begun = False
        self._has_lost = False  # something since it last came, if there was no cursor to continue from
        self._last = 0.0  # when something came
        self._failures = 0
        self._came: asyncio.Queue[_Came | asyncio.Task[None]] = asyncio.Queue()
        self._room = asyncio.Semaphore(1)  # what is not taken yet stays with the server

    # What is taken

    async def events(self) -> AsyncGenerator[Event, None]:
        producer = asyncio.create_task(self._follow())
        self._running.add(producer)
        producer.add_done_callback(self._running.discard)
        producer.add_done_callback(self._came.put_nowait)
        seen = _Seen()
        try:
            while not isinstance(came := await self._came.get(), asyncio.Task):
                self._room.release()
                if came.is_gap:
                    await self._tell_gap()
                if came.event is not None and seen.add(came.event.id):
                    yield came.event
                self.cursor = came.cursor
            if not producer.cancelled():
                producer.result()
        finally:
            producer.cancel()
            await asyncio.wait((producer,))
            if not producer.cancelled():
                producer.exception()  # nobody may be there to see it

    async def _tell_gap(self) -> None:
        if self._on_gap is None:
            logger.warning("Some events of %r were missed; on_gap= of Client.events is told", self._wanted["name"])
        elif (told := self._on_gap()) is not None:
            await told

    # What comes

    async def _follow(self) -> None:
        follow = self._stream if await self._is_pushed() else self._poll
        while True:
            began = monotonic()
            try:
                await follow()
                why = "The stream has ended"
            except ClientError as error:
                if not self._has_begun or self._session.is_over or not _is_passing(error):
                    raise
                why = str(error)
            self._has_lost = self._reached is None
            self._failures = 1 if self._last - began > SETTLED else self._failures + 1
            if self._failures == LOGGED:
                logger.warning(
                    "Events of %r do not come, and are tried again: %s",
                    self._wanted["name"],
                    plain(why)[:LOGGED_CHARACTERS],
                )
            pause = min(FIRST_PAUSE * 2.0 ** min(self._failures - 1, DOUBLINGS), LONGEST_PAUSE)
            await asyncio.sleep(pause * random.uniform(0.5, 1.0))  # noqa: S311  no secret

    async def _is_pushed(self) -> bool:
        name = self._wanted["name"]
        offered = next((each for each in await self._list_types() if each.name == name), None)
        if self._delivery is not None or offered is None:  # what is not there, the server says itself
            return self._delivery == "push"
        if "push" not in offered.delivery and "poll" not in offered.delivery:
            raise SetupError(
                f"The server delivers {name!r} to webhooks alone. Subscribe one by events/subscribe, and check what it "
                "gets with mrtr_server.read_webhook"
            )
        return "push" in offered.delivery

    async def _note(self, cursor: str | None, event: Event | None = None, *, is_gap: bool = False) -> None:
        await self._room.acquire()
        self._has_begun, self._reached, self._last = True, cursor, monotonic()
        self._came.put_nowait(_Came(cursor, event, is_gap))

    async def _poll(self) -> None:
        most = max(1, self._bounds.response_bytes // LARGEST_EVENT)
        while True:
            before = self._reached
            params = {**self._wanted, "cursor": before, "maxEvents": most}
            page = read(EventPage, await self._session.request("events/poll", params, _leave, repeatable=True))
            self._failures = 0
            if page.truncated or self._has_lost:
                self._has_lost = False
                await self._note(before, is_gap=True)
            for event in page.events:
                # Whoever continues within the page gets all of it again, since only its end has a cursor.
                cursor = page.cursor if event is page.events[-1] else before
                await self._note(cursor, event.model_copy(update={"cursor": cursor}))
            if not page.events:
                await self._note(page.cursor)
            if page.has_more and page.events:
                continue
            wait = number_of(page.next_poll_ms)
            seconds = USUAL_POLL if wait is None else wait / 1000
            if page.has_more and page.cursor != before:  # it has looked through events that are for others
                seconds = SHORTEST_POLL
            await asyncio.sleep(min(max(seconds, SHORTEST_POLL), LONGEST_POLL))

    async def _stream(self) -> None:
        await self._session.stream(STREAM_EVENTS, {**self._wanted, "cursor": self._reached}, self._hear)

    async def _hear(self, message: JSON) -> None:
        method, params = message.get("method"), message.get("params")
        if "id" in message or not isinstance(method, str) or not isinstance(params, dict):
            raise BadReply("The server sent what is no event in a stream of events")
        match method.removeprefix(EVENT_NOTIFICATIONS):
            case "active":
                begun = read(EventPlace, params)
                is_gap, self._has_lost = begun.truncated or self._has_lost, False
                await self._note(begun.cursor, is_gap=is_gap)
            case "event":
                event = read(Event, params)
                meta = {name: each for name, each in event.meta.items() if name != SUBSCRIPTION_ID}  # of the stream
                await self._note(event.cursor, event.model_copy(update={"meta": meta}))
            case "heartbeat":
                await self._note(read(EventPlace, params).cursor)
            case "error":  # of one event, which does not come then
                await self._note(self._reached, is_gap=True)
            case "terminated":
                error = params.get("error")
                raise refusal_of(error if isinstance(error, dict) else {"message": "The subscription has ended"})


async def _leave(_: JSON) -> None:
    """Leave the progress of a poll."""


def _is_passing(error: ClientError) -> bool:
    return isinstance(error, NoReply) or (isinstance(error, RequestRefused) and error.status in _AWAY)


class EventFeed:
    """The events of a type, as they come: `async for event in client.events("incident.created")`.

    It ends when the loop does, with `aclose()`, and when its client closes. `Client.events` makes it.

    Args:
        following: what follows.
    """

    def __init__(self, following: Following) -> None:
        # The one that follows does not know this one: so it ends as soon as nobody has this any more.
        self._following = following
        self._events = following.events()

    @property
    def cursor(self) -> str | None:
        """Where a program that starts again continues: after the last event, once the next one is waited for.

        It moves while nothing happens, too. None before there is one, and where the server can't go back.
        """
        return self._following.cursor

    def __aiter__(self) -> Self:
        """Return the feed."""
        return self

    async def __anext__(self) -> Event:
        """Wait for the next event."""
        return await anext(self._events)

    async def aclose(self) -> None:
        """End it: the stream is closed, or no poll is sent any more."""
        await self._events.aclose()
