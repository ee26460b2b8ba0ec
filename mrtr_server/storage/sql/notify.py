"""Short notices of changes to other processes of a database: by LISTEN and NOTIFY, or a table, as behind a pooler."""

import asyncio
import json
import math
import random
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence, Set
from contextlib import suppress
from itertools import islice
from secrets import token_hex
from typing import Any

from ...logs import logger
from ...protocol.messages import Change, Subscription
from ..pubsub import InProcessFanout, Listener, topic_of
from .database import Database, number_parameters

CHANNEL = "mrtr_notices"

BATCH = 256  # notices that are sent at once

MAX_WAITING_NOTICES = 10_000
"""While the database is unavailable. Beyond that the oldest are dropped."""

LONGEST = 7_500
"""Bytes of a notice. PostgreSQL takes 8,000."""

POLL = 0.2  # seconds between looks at the table
GATHER = 0.05  # seconds to wait for more notices before a write to the table, which waits for the disk
HURRIED_POLL = 0.02  # the polling interval of a SQLite file while a call is open that waits for a person, in seconds
HURRIED_GATHER = 0.002  # seconds to wait for more before an urgent notice is written
GATHER_NOTIFY = 0.01  # seconds to wait for more before they are sent to PostgreSQL
SPACE = 0.0015  # seconds from one `NOTIFY` to the next but one, for each process that listens: it wakes all of them
LONGEST_SPACE = 0.15
OF_NOBODY = "0" * 16  # the writer of a notice that every process heeds
KEEP = 600.0  # seconds that a notice stays in the table, for processes that were suspended
RETRY = 1.0  # seconds before connecting again, about
PULSE = 15.0  # a silent connection is tested after so many seconds: one that a firewall has dropped says nothing
SWEEP_INTERVAL = 30.0  # seconds between removals of expired notices
SWEEP_BATCH = 1_000  # notices that are removed at once

OnNotice = Callable[[Sequence[str]], None]


class Notices:
    """Carries notices from each process to all the others, by a thread and a connection of its own.

    Both start with the first notice, or with the first subscriber. No lifespan is needed, and any thread may publish.
    Notices that are published while the database is unavailable are sent when it is back.
    """

    def __init__(self, database: Database) -> None:
        self.database = database
        self.writer = token_hex(8)  # names this process, which ignores its own notices
        self.hurried = 0  # listeners that wait for what a person does
        self.urgent = False  # whether somebody waits for a notice that is not yet sent
        self._subscribers: list[tuple[OnNotice, Callable[[], None]]] = []
        self._outbox: dict[str, None] = {}
        self._guard = threading.Lock()
        self._carrier: _Carrier | None = None

    @property
    def connected(self) -> bool:
        """Whether notices of others arrive at once."""
        return self._carrier is not None and self._carrier.connected

    @property
    def are_away(self) -> bool:
        """Whether notices can't be carried for now."""
        return self._carrier is not None and self._carrier.is_away

    def subscribe(self, on_notice: OnNotice, on_gap: Callable[[], None]) -> None:
        """Call functions, in this object's thread, for notices of other processes, and for gaps in them."""
        self._subscribers.append((on_notice, on_gap))

    def hurry(self, by: int) -> None:
        """Note how many more listeners wait for what a person does: a SQLite file is polled more often then."""
        with self._guard:
            self.hurried += by
            is_first = by > 0 and self.hurried == by
        if is_first:
            self.start(wakes=True)

    def publish(self, notice: str, *, urgent: bool = False) -> None:
        """Send a notice of `LONGEST` bytes at most to all other processes, equal ones as one. Never waits."""
        with self._guard:
            self.urgent = self.urgent or urgent
            self._outbox.pop(notice, None)
            is_first = not self._outbox  # or the thread has been woken, and takes them all
            if len(self._outbox) >= MAX_WAITING_NOTICES:
                del self._outbox[next(iter(self._outbox))]
            self._outbox[notice] = None
        self.start(wakes=is_first)

    def start(self, *, wakes: bool = False) -> None:
        """Start the thread; if it runs, wake it where it has something to do."""
        with self._guard:
            if self._carrier is None or not self._carrier.is_alive():  # a process that was forked has no threads
                self._carrier = _Carrier(self)
                self._carrier.start()
                return
        if wakes:
            self._carrier.wake()

    def close(self) -> None:
        """End the thread and its connection, once all is sent. They start again when they are needed."""
        with self._guard:
            carrier, self._carrier = self._carrier, None
        if carrier is not None:
            carrier.end()

    def drain(self) -> list[str]:
        """Return some of the notices that wait to be sent. If that fails, `requeue` them."""
        with self._guard:
            self.urgent = False
            taken = list(islice(self._outbox, BATCH))
            for notice in taken:
                del self._outbox[notice]
        return taken

    def requeue(self, notices: Sequence[str]) -> None:
        """Queue notices again that could not be sent."""
        with self._guard:
            self._outbox = dict.fromkeys((*notices, *self._outbox))

    def dispatch(self, notices: Sequence[str]) -> None:
        """Call the subscribers with notices of other processes."""
        for on_notice, _ in tuple(self._subscribers):
            on_notice(notices)

    def report_gap(self) -> None:
        """Call the subscribers because notices may have been missed."""
        for _, on_gap in tuple(self._subscribers):
            on_gap()


class _Carrier(threading.Thread):
    """One life of the thread."""

    def __init__(self, notices: Notices) -> None:
        super().__init__(name="mrtr-notices", daemon=True)
        self._notices = notices
        self._database = notices.database
        self._loop: asyncio.AbstractEventLoop | None = None
        self._woken = asyncio.Event()
        self._ending = False
        self.is_away = False
        self.connected = False
        # Of `NOTIFY`:
        self._woke = deque([-math.inf, -math.inf], maxlen=2)  # when listeners were woken, by the monotonic clock
        self._listeners = 1
        self._counted = -math.inf
        # Of a table:
        self._began = time.monotonic()
        self._looked = time.time()
        self._swept = 0.0
        self._seen: int | None = None

    def wake(self) -> None:
        # One that is woken already looks later than now. If it has no loop yet, it looks anyway.
        if self._loop is not None and not self._woken.is_set():
            with suppress(RuntimeError):  # it has ended
                self._loop.call_soon_threadsafe(self._woken.set)

    def end(self) -> None:
        self._ending = True
        self.wake()
        if self.is_alive():
            self.join(5)

    def run(self) -> None:
        asyncio.run(self._live())

    async def _live(self) -> None:
        self._loop = asyncio.get_running_loop()
        while True:
            try:
                connection = await self._database.connect_alone()
                await (self._carry_by_table() if connection is None else self._carry_by_notify(connection))
                return
            except Exception as error:
                if self._ending:
                    return
                if not self.is_away:
                    why = self._database.unavailable(error)
                    logger.warning("Changes do not reach other replicas for now: %s", why)
                self.is_away = True
            finally:
                self.connected = False
            await self._rest(RETRY * random.uniform(0.5, 1.5))  # noqa: S311  so that not all come back at once

    def _is_there(self) -> None:
        self.connected = True
        if self.is_away:
            self.is_away = False
            logger.warning("Changes reach other replicas again")

    async def _rest(self, seconds: float | None) -> None:
        """Wait for something to do, for so long at most."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._woken.wait()
        self._woken.clear()

    async def _carry_by_notify(self, connection: Any) -> None:
        try:
            connection.add_termination_listener(lambda _: self._woken.set())
            await connection.add_listener(CHANNEL, self._on_notify)
            await connection.execute(self._database.statements["note_listener"])
            self._notices.report_gap()
            self._is_there()
            while not connection.is_closed():
                notices = self._notices.drain()
                if notices:
                    await self._notify(connection, notices)
                    self._note_woke()
                elif self._ending:
                    return
                if self._ending or len(notices) == BATCH:  # there may be more
                    continue
                if time.monotonic() >= self._counted + PULSE:
                    await self._count(connection)
                await self._rest(PULSE)
                if not self._ending:
                    await asyncio.sleep(self._pause())
            raise ConnectionError("the connection was lost")
        finally:
            try:
                await connection.close(timeout=1)
            except Exception:  # it is dead
                connection.terminate()

    async def _notify(self, connection: Any, notices: list[str]) -> None:
        # By itself: where it is part of a transaction that writes, PostgreSQL lets such transactions commit one by one.
        given = {"channel": CHANNEL, "notices": [f"{self._notices.writer}{notice}" for notice in notices]}
        notify, names = number_parameters(self._database.statements["notify"], "")
        try:
            await connection.execute(notify, *(given[name] for name in names))
        except BaseException:
            self._notices.requeue(notices)
            raise

    async def _count(self, connection: Any) -> None:
        """Count who listens, which also tests the connection."""
        self._counted = time.monotonic()
        try:
            self._listeners = await connection.fetchval(self._database.statements["count_listeners"])
        except Exception as error:
            if not hasattr(error, "sqlstate"):  # or the server answers, but does not say
                raise

    def _pause(self) -> float:
        """Return how long to wait until what is to be sent goes."""
        # All hear the same, so those that wait for their turn send at the same moment, and listeners wake once.
        # The last but one counts, so neither the notice of a new task waits, nor the one that it has ended.
        space = min(SPACE * self._listeners, LONGEST_SPACE)
        return max(GATHER_NOTIFY, self._woke[0] + space - time.monotonic())

    def _note_woke(self) -> None:
        now = time.monotonic()
        if now > self._woke[-1] + GATHER_NOTIFY / 2:  # or it was for the same notice
            self._woke.append(now)

    def _on_notify(self, _connection: Any, _pid: int, _channel: str, said: str) -> None:
        size = len(self._notices.writer)
        if said[:size] != self._notices.writer:
            self._note_woke()
            self._notices.dispatch([said[size:]])

    async def _carry_by_table(self) -> None:
        hurried = POLL / 2 if self._database.notifies else HURRIED_POLL  # to ask a server is more than to read a file
        is_all, looked, clock = False, 0.0, asyncio.get_running_loop().time
        try:
            while True:
                is_clean = await self._sweep()
                notices = self._notices.drain()
                if notices:
                    await self._write(notices)
                elif self._ending:
                    return
                # What was published here is no reason to look.
                if not (notices and is_all) or clock() >= looked + self._interval(hurried):
                    is_all, looked = await self._look(), clock()
                self._is_there()
                if is_all and is_clean and len(notices) < BATCH and not self._ending:
                    await self._rest(max(0.0, looked + self._interval(hurried) - clock()))
                    await asyncio.sleep(HURRIED_GATHER if self._notices.hurried or self._notices.urgent else GATHER)
        finally:
            await self._database.close()

    def _interval(self, hurried: float) -> float:
        return hurried if self._notices.hurried else POLL

    async def _sweep(self) -> bool:
        """Remove notices that everybody has read, now and then; return False where there may be more."""
        # Readers do so, too, for the time when nobody publishes any more. A batch is larger than what is sent at once,
        # so more is removed than comes.
        now = time.time()
        if now < self._swept + SWEEP_INTERVAL:
            return True
        is_clean = len(await self._database.rows("sweep_notices", most=SWEEP_BATCH)) < SWEEP_BATCH
        if is_clean:
            self._swept = now
        return is_clean

    async def _write(self, notices: list[str]) -> None:
        try:
            given = {"channel": CHANNEL, "writer": self._notices.writer, "notices": notices, "keep": KEEP}
            await self._database.rows("write_notices", **given)
        except BaseException:
            self._notices.requeue(notices)
            raise

    async def _look(self) -> bool:
        """Dispatch the notices of the others, and return whether that was all."""
        if self._seen is None:
            began = self._database.time() - (time.monotonic() - self._began)
            before = await self._database.rows("last_notice_before", before=began)
            self._seen = before[0][0] if before else 0
        rows = await self._database.rows("read_notices", seen=self._seen, most=BATCH)
        now = time.time()
        if now > self._looked + KEEP / 2:  # the machine has slept
            self._notices.report_gap()
        self._looked = now
        if rows:
            self._seen = rows[-1][0]
            self._notices.dispatch([said for _, writer, said in rows if writer != self._notices.writer])
        return len(rows) < BATCH


# Changes on one replica reach the listeners on all of them


CHANGED = "changed "  # begins a notice of a change
CARRIED = "carried "  # begins a notice of a change that carries something; earlier releases do not know it

URGENT = frozenset({"answer", "cancelled", "page"})
"""Somebody waits for changes of these kinds: a call that is open, or held."""


class SQLFanout(InProcessFanout):
    """The fan-out of a fleet: listeners here are notified at once, those elsewhere within a fraction of a second."""

    # When the connection was lost, and changes with it, listeners are notified of all that they want: one look too many
    # does no harm.

    def __init__(self, notices: Notices) -> None:
        super().__init__()
        self._notices = notices
        notices.subscribe(self._on_notice, self._on_gap)

    def publish(self, change: Change) -> None:
        """Notify every listener on every replica that wants a change; see `Fanout`."""
        super().publish(change)
        self._notices.publish(written(change), urgent=change.kind in URGENT)

    def subscribe(self, wanted: frozenset[Change]) -> Subscription:
        """Start listening; see `Fanout`."""
        subscription = super().subscribe(wanted)
        if _hurries({change.kind for change in wanted}):
            self._notices.hurry(1)
        if wanted:
            self._notices.start()
        return subscription

    def _forget(self, listener: Listener) -> bool:
        forgotten = super()._forget(listener)
        if forgotten and _hurries(listener.topics.keys()):
            self._notices.hurry(-1)
        return forgotten

    def _on_notice(self, notices: Sequence[str]) -> None:
        if not self._listeners:
            return
        for notice in notices:
            if notice.startswith(CHANGED):
                kind, uri, digest = json.loads(notice.removeprefix(CHANGED))
                self._publish_topic((kind, digest) if digest else topic_of(Change(kind, uri)))
            elif notice.startswith(CARRIED):
                kind, uri, note = json.loads(notice.removeprefix(CARRIED))
                super().publish(Change(kind, uri, note=note))

    def _on_gap(self) -> None:
        self._updated_all = time.time()
        for listener in tuple(self._listeners):
            listener.notify_of_all()


def _hurries(kinds: Set[str]) -> bool:
    """Return whether a listener waits for what a person does; the stream of a session, which stays, does not."""
    return not URGENT.isdisjoint(kinds) and "session" not in kinds


def written(change: Change) -> str:
    """Return the notice of a change."""
    if change.note and len(said := CARRIED + json.dumps([change.kind, change.uri, change.note])) <= LONGEST:
        return said
    said = json.dumps([change.kind, change.uri, ""])
    # A URI that is too long for a notice is recognized by those who wait for it.
    return CHANGED + (said if len(said) <= LONGEST else json.dumps([change.kind, "", topic_of(change)[1]]))
