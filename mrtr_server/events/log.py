"""The log of events: how one gets into it, how it is read, and who waits for its end to move."""

import asyncio
import re
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Sequence
from collections.abc import Set as AbstractSet
from contextlib import closing, suppress
from contextvars import Context
from functools import cached_property
from operator import attrgetter
from secrets import token_hex
from typing import Any

from pydantic_core import from_json, to_json

from ..concurrency.running import PerLoop, running_loop
from ..concurrency.waiting import Turning, growing, wait_until
from ..crypto.digests import canonical, digest, digest_parts
from ..crypto.keys import KeyRing
from ..crypto.place_codec import PlaceCodec
from ..errors import FlowError, InvalidRequestState, StoreUnavailable
from ..flow.events import EventType
from ..flow.states import Forgotten
from ..logs.failures import report_failure
from ..protocol.callers import Principal
from ..protocol.messages import Change, Subscription
from ..storage.base import Store
from ..storage.pubsub import Fanout
from ..storage.quotas import Callers
from ..storage.rows import EventPage, EventRow, Position
from ..storage.sealed_events import SealedEvents
from .options import Events

LARGEST_PAYLOAD = 252 * 1024
"""Bytes of a payload. With what is around it, an event is 256 KiB at most, as it is delivered."""

LONGEST_ID = 256
_ID = re.compile("[!-~]([ -~]*[!-~])?")

PAGE, PAGE_BYTES = 512, 4 * 1024 * 1024
"""How much is read of a store at once."""

MOST_KEPT, MOST_KEPT_BYTES = 1_000, 16 * 1024 * 1024
"""Events of a type that a process keeps for those that are nearly at the end of the log."""

CATCH_UP_AT_ONCE = 4
"""Statements at once of those who are not near the end of the log: others need the connections of the store, too."""

MOST_SOUGHT = 2_000
"""Events that are too old for a client, and are looked through for the first one that is not; else it begins now."""

MOST_OPENED, MOST_OPENED_BYTES = 64, 1024 * 1024

AGAIN_AFTER = 1.0
"""Seconds until the store is tried again that is away."""

LOOK_AGAIN = 2.0
"""Seconds until the end is looked for without a notice: of an event in a transaction of the author's own, say."""

READ_APART = 0.02
"""Seconds between two looks for the end, at least: many events are read at once, and one alone is read at once."""

FIRST_LOOK, LAST_LOOK = 0.01, 1.0
"""Seconds until the next look while an event is there that can't be read yet, at first and at last."""

TRIM_EVERY = 100  # events of a type that a process adds before it removes the oldest ones

TRIM_AFTER = 15.0
"""Seconds from an event in a transaction of the author's to the trimming that it brings about."""

_FORGOTTEN = Change("forgotten")

_position = attrgetter("position")


class Happened:
    """An event, opened. Its payload is read when somebody wants it."""

    def __init__(self, type: EventType[Any, Any], row: EventRow, opened: bytes) -> None:
        self.type = type
        self.position = row.position
        self.audience = row.audience
        self.size = row.size
        self.id, self.at, *self._kept = from_json(opened)

    @cached_property
    def payload(self) -> Any:
        return self.type.stored.load(*self._kept)

    @cached_property
    def data(self) -> Any:
        """The payload as it is delivered to whoever gets all of it."""
        return self.type.written.dump(self.payload)


def audience_of(name: str, arguments: Any) -> str:
    """Return the audience of what a source found for some arguments."""
    return digest(["arguments", name, arguments])


class EventLog:
    """The log of the events of one server, which all replicas share."""

    def __init__(
        self,
        store: Store,
        ring: KeyRing,
        fanout: Fanout,
        options: Events,
        clock: Callable[[], float],
        audience: str,
        forgotten: Forgotten,
    ) -> None:
        self.store = store
        self.forgotten = forgotten
        self.options = options
        self.now = clock
        self.fanout = fanout
        self.callers = Callers(ring)
        self._sealed = SealedEvents(ring, in_memory=store.in_memory)
        self._cursors = PlaceCodec(ring, "position in events")
        self._audience = audience
        # Positions in memory begin anew with each process, so a cursor of another one would pass events here.
        self._life = "" if store.shared else token_hex(8)
        self._added: dict[str, int] = {}
        self._trimming: set[asyncio.Task[None]] = set()
        self._opened: dict[str, Happened] = {}  # the last ones: many subscribers get the same at the same time
        self._opened_bytes = 0
        self._tails = PerLoop[_Tail]()

    # To add

    async def add(
        self,
        type: EventType[Any, Any],
        payload: Any,
        *,
        id: str | None = None,
        to: Principal | None = None,
        at: float | None = None,
        connection: Any = None,
        audience: str = "",
        key: str | None = None,
    ) -> bool:
        """Keep an event; return whether it is new. Raises `FlowError`, `StoreUnavailable`.

        `key`: by what it counts once, if that is not its id.
        """
        where = f"app.emit({type.name!r})"
        if id is not None and not (len(id) <= LONGEST_ID and _ID.fullmatch(id)):
            raise FlowError(
                f"{where}: id= must be 1 to {LONGEST_ID} characters of ASCII that a header holds: it is sent in one"
            )
        try:
            written = type.stored.keep(payload, f"the event {type.name!r}")[0]
            size = len(to_json(type.written.dump(payload)))
        except FlowError:
            raise
        except Exception:  # of the type's own code, too; its text may hold the value
            raise FlowError(f"{where}: the payload is of another type than app.event says") from None
        if size > LARGEST_PAYLOAD:
            raise FlowError(
                f"{where}: the payload takes {size} bytes, and {LARGEST_PAYLOAD} can be delivered. Send what "
                "identifies it, and let a tool return the rest"
            )
        now = self.now()
        id = token_hex(16) if id is None else id
        key = digest_parts(self._audience, type.name, id if key is None else key)
        body = to_json([id, now if at is None else at, *written])
        row = EventRow(
            key,
            type.name,
            audience if to is None else self.callers.of(to.person),
            self._sealed.seal_event(type.name, key, body),
            now,
            now + self.options.keep_seconds,
        )
        if connection is None:
            is_new = await self.store.add_event(row)
        else:
            from ..storage.sql.outbox import add_event_on  # only where a database is used

            is_new = await add_event_on(connection, row)
        # Also where it is not new: the reply to a first attempt may have been lost.
        self.fanout.publish(Change("event", type.name))
        if is_new:
            await self._trim_now_and_then(type.name, in_transaction=connection is not None)
        return is_new

    async def _trim_now_and_then(self, name: str, *, in_transaction: bool) -> None:
        self._added[name] = count = self._added.get(name, 0) + 1
        if count % TRIM_EVERY:
            return
        if in_transaction:  # of the author's, which may hold what trimming would wait for until its commit
            running_loop().call_later(TRIM_AFTER, self._trim_later, name, context=Context())  # of no request
        else:
            await self.store.trim_events(name, self.options.keep_most)

    def _trim_later(self, name: str) -> None:
        task = running_loop().create_task(self._trim(name))
        self._trimming.add(task)
        task.add_done_callback(self._trimming.discard)

    async def _trim(self, name: str) -> None:
        with suppress(StoreUnavailable):  # which is logged elsewhere; the next time is after as many more events
            await self.store.trim_events(name, self.options.keep_most)

    def open(self, type: EventType[Any, Any], row: EventRow) -> Happened | None:
        """Return an event; None, and the log says so, if it can't be opened."""
        if (found := self._opened.get(row.id)) is not None and found.position == row.position:
            return found
        try:
            event = Happened(type, row, self._sealed.unseal_event(row.name, row.id, row.body))
        except StoreUnavailable as error:
            report_failure("An event of %r is left out", type.name, why=str(error))
            return None
        if found is not None:
            self._opened_bytes -= self._opened.pop(row.id).size
        while self._opened and (len(self._opened) >= MOST_OPENED or self._opened_bytes + row.size > MOST_OPENED_BYTES):
            self._opened_bytes -= self._opened.pop(next(iter(self._opened))).size
        if row.size <= MOST_OPENED_BYTES:
            self._opened[row.id] = event
            self._opened_bytes += row.size
        return event

    # Positions, as clients have them

    async def seal(self, owner: str, name: str, arguments: Any, position: Position) -> str:
        """Return the cursor of a position: that of one principal, for one type and its arguments."""
        payload = to_json([await self._epoch(), *position])
        return self._cursors.seal(self._place(owner, name, arguments), payload)

    async def unseal(self, owner: str, name: str, arguments: Any, cursor: Any) -> Position | None:
        """Return the position behind a cursor, which may be anything; None if it is none, or of another epoch."""
        if not isinstance(cursor, str):
            return None
        try:
            opened = self._cursors.unseal(self._place(owner, name, arguments), cursor, "it is of other events")
        except InvalidRequestState:
            return None
        epoch, *position = from_json(opened)
        return Position(*position) if epoch == await self._epoch() else None

    async def _epoch(self) -> str:
        return self._life + await self.store.epoch()

    def _place(self, owner: str, name: str, arguments: Any) -> bytes:
        return digest(["events", self._audience, owner, name, canonical(arguments).decode()]).encode()

    # To read

    async def read(self, name: str, after: Position | None, most: int = PAGE) -> EventPage:
        """Return what comes after a position: the end of the log for None. Raises `StoreUnavailable`."""
        tail = self._tails.get()
        if tail is not None and after is not None and (page := tail.page(name, after, most)) is not None:
            return page
        return await self.store.read_events([name], after, most=most, most_bytes=PAGE_BYTES)

    async def seek(self, name: str, position: Position, since: float) -> tuple[Position, bool]:
        """Return where events begin that are at most so old, and whether some before are left out."""
        is_cut, looked_at = False, 0
        while True:
            if looked_at > MOST_SOUGHT:  # anybody may ask for this again and again
                return (await self.read(name, None)).reached, True
            page = await self.read(name, position)
            looked_at += len(page.rows)
            is_cut = is_cut or name in page.lost
            for row in page.rows:
                if row.created >= since:
                    return position, is_cut
                position, is_cut = row.position, True
            position = page.reached
            if page.is_last:
                return position, is_cut

    def follow(self, name: str, position: Position) -> "Follower":
        """Return what waits for the events after a position. It is to be closed."""
        return Follower(self, self._tails.here(lambda: _Tail(self)), name, position)

    async def close(self) -> None:
        """End what reads for this event loop."""
        if (tail := self._tails.pop()) is not None:
            await tail.close()


class Follower:
    """Reads the events of one type, in their order, as they come."""

    def __init__(self, log: EventLog, tail: "_Tail", name: str, position: Position) -> None:
        self._log = log
        self._tail = tail
        self._name = name
        self.position = position
        """Up to where it has read."""
        self._epoch: str | None = None
        tail.add(name)

    async def next(self, until: float) -> EventPage:
        """Return the next events, if there are any before a time of the event loop; the page is empty then.

        A cancelled wait loses nothing. Raises `StoreUnavailable`.
        """
        loop = running_loop()
        while True:
            epoch = await self._log.store.epoch()
            if self._epoch not in (None, epoch):  # nobody knows what was lost: it begins at the end, and says so
                self._epoch = epoch
                self.position = (await self._log.store.read_events([self._name], None, most=1, most_bytes=1)).reached
                return EventPage((), self.position, frozenset({self._name}))
            self._epoch = epoch
            moved = self._tail.moved(self._name)
            page = self._tail.page(self._name, self.position, PAGE)
            if page is None:
                async with self._tail.catching_up:  # thousands do at once, where another process has taken them over
                    store = self._log.store
                    page = await store.read_events([self._name], self.position, most=PAGE, most_bytes=PAGE_BYTES)
            self.position = page.reached
            if page.rows or page.lost or loop.time() >= until:
                return page
            if not page.is_last:  # it passed events that had expired
                continue
            with suppress(TimeoutError):
                async with asyncio.timeout_at(until):
                    await asyncio.shield(moved)

    def close(self) -> None:
        """May be called twice."""
        name, self._name = self._name, ""
        if name:
            self._tail.remove(name)


class _Kept:
    """The newest events of one type that a process has read."""

    def __init__(self, since: Position) -> None:
        self.since = since
        """After it, none is missing here."""
        self.rows: deque[EventRow] = deque()
        self.followers = 0
        self.moved: asyncio.Future[None] | None = None
        self._bytes = 0

    def add(self, row: EventRow) -> None:
        self.rows.append(row)
        self._bytes += row.size
        while len(self.rows) > MOST_KEPT or self._bytes > MOST_KEPT_BYTES:
            gone = self.rows.popleft()
            self._bytes -= gone.size
            self.since = gone.position

    def wake(self) -> None:
        moved, self.moved = self.moved, None
        if moved is not None and not moved.done():
            moved.set_result(None)


class _Tail:
    """Reads the end of the log for all who follow it on one event loop, with one statement for all types."""

    def __init__(self, log: EventLog) -> None:
        self._log = log
        self._kept: dict[str, _Kept] = {}
        self._position: Position | None = None
        self._epoch = ""
        self._reading: asyncio.Task[None] | None = None
        self._changes: Turning[Change] | None = None
        self._next = 0.0
        """When the end is read again at the earliest, by the clock of the event loop."""
        self.catching_up = asyncio.Semaphore(CATCH_UP_AT_ONCE)

    def add(self, name: str) -> None:
        if name not in self._kept:
            # What was read before has none of this type, so who follows reads the store up to here by itself.
            self._kept[name] = _Kept(self._position or _NEVER)
            self._listen()
        self._kept[name].followers += 1
        if self._reading is None or self._reading.done():
            self._reading = running_loop().create_task(self._read(), name="mrtr_server events")

    def remove(self, name: str) -> None:
        kept = self._kept[name]
        kept.followers -= 1
        if not kept.followers:
            del self._kept[name]
            self._listen()
        if not self._kept and self._reading is not None:
            self._reading.cancel()
            self._reading = self._position = None

    def _listen(self) -> None:
        """Hear of the types that are followed by now."""
        if self._changes is not None:
            self._changes.turn_to(self._subscribed())

    def _subscribed(self) -> Subscription:
        return self._log.fanout.subscribe(frozenset({_FORGOTTEN, *(Change("event", name) for name in self._kept)}))

    def moved(self, name: str) -> "asyncio.Future[None]":
        kept = self._kept[name]
        if kept.moved is None:
            kept.moved = running_loop().create_future()
        return kept.moved

    def page(self, name: str, after: Position, most: int) -> EventPage | None:
        """Return what is kept after a position; None if something may be missing here."""
        kept = self._kept.get(name)
        if kept is None or self._position is None or after < kept.since:
            return None
        if after >= self._position:
            return EventPage((), after)
        first = bisect_right(kept.rows, after, key=_position)
        rows = [kept.rows[index] for index in range(first, min(len(kept.rows), first + most))]
        is_last = first + len(rows) == len(kept.rows)
        return EventPage(rows, self._position if is_last else rows[-1].position, is_last=is_last)

    async def _read(self) -> None:
        pauses = _Pauses()

        async def look(heard: Sequence[Change] | None) -> None:
            if heard and _FORGOTTEN in heard:  # before anybody gets what is read now
                await self._log.forgotten.look()
            if (early := self._next - running_loop().time()) > 0:  # what comes meanwhile is read with it
                await asyncio.sleep(early)
            try:
                await self._advance(pauses)
            except StoreUnavailable:  # which is logged elsewhere
                pauses.wait()
            self._next = running_loop().time() + READ_APART

        while True:
            try:
                with closing(Turning(self._subscribed())) as self._changes:
                    await wait_until(look, self._changes, pauses=pauses)
            except Exception as error:  # of a fan-out of the author's
                report_failure("Events are looked for again in a moment, since hearing of them failed", error=error)
            await asyncio.sleep(LOOK_AGAIN)

    async def _advance(self, pauses: "_Pauses") -> None:
        if (epoch := await self._log.store.epoch()) != self._epoch:
            self._begin_anew(epoch)
        while self._kept:
            names = list(self._kept)
            page = await self._log.store.read_events(names, self._position, most=PAGE, most_bytes=PAGE_BYTES)
            # What nobody knows yet at the first look, and a type that came meanwhile, begins where this page ends.
            unread = set(self._kept if self._position is None else self._kept.keys() - set(names))
            for name in unread:
                self._kept[name].since = page.reached
            self._take(page, unread)
            if page.is_last:
                pauses.wait(is_delayed=page.delayed > 0)
                return

    def _begin_anew(self, epoch: str) -> None:
        """Forget what was read in another epoch of the store, whose positions count no more."""
        self._epoch, self._position = epoch, None
        for name, former in self._kept.items():
            self._kept[name] = self._renewed(former, _NEVER)

    def _take(self, page: EventPage, unread: AbstractSet[str]) -> None:
        """Keep what was read, and wake those who wait for it, or have to look themselves for what was not."""
        moved = page.lost | {row.name for row in page.rows} | unread
        for name in page.lost & self._kept.keys():
            self._kept[name] = self._renewed(self._kept[name], page.reached)
        for row in page.rows:
            kept = self._kept.get(row.name)
            if kept is not None and row.position > kept.since:
                kept.add(row)
        self._position = page.reached
        for name in moved & self._kept.keys():
            self._kept[name].wake()

    @staticmethod
    def _renewed(former: _Kept, since: Position) -> _Kept:
        kept = _Kept(since)
        kept.followers, kept.moved = former.followers, former.moved
        return kept

    async def close(self) -> None:
        reading, self._reading = self._reading, None
        if reading is not None:
            reading.cancel()
            await asyncio.wait((reading,))


class _Pauses:
    """How long to wait without a notice: shortly while an event is there that can't be read yet."""

    def __init__(self) -> None:
        self._growing = growing(FIRST_LOOK, LAST_LOOK)
        self._is_delayed = False

    def wait(self, *, is_delayed: bool = False) -> None:
        if not (is_delayed and self._is_delayed):
            self._growing = growing(FIRST_LOOK, LAST_LOOK)
        self._is_delayed = is_delayed

    def __iter__(self) -> "_Pauses":
        return self

    def __next__(self) -> float:
        return next(self._growing) if self._is_delayed else LOOK_AGAIN


_NEVER = Position(2**63 - 1, 2**63 - 1)
