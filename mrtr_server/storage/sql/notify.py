"""Short notices between the processes that share a database: LISTEN and NOTIFY, or a table that is looked at often."""

import asyncio
import logging
import random
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from itertools import islice
from secrets import token_hex
from typing import Any

from ...errors import StoreUnavailable
from .database import Database
from .statements import number_parameters

logger = logging.getLogger("mrtr_server")

CHANNEL = "mrtr_notices"
BATCH = 256
"""How many notices go out at once."""
MOST = 10_000
"""How many notices wait while the database is away; the oldest are dropped then."""
LONGEST = 7_500
"""Bytes of a notice. PostgreSQL takes 8,000."""
POLL = 0.2
"""How often a SQLite file is looked at, in seconds."""
GATHER = 0.05
"""How long it waits for more notices before it writes them there, in seconds: each write is a wait for the disk."""
GATHER_NOTIFY = 0.01
"""How long it waits for more before it sends them to PostgreSQL, in seconds."""
KEEP = 600.0
"""How long a notice stays in a SQLite file, for processes that were suspended, in seconds."""
RETRY = 1.0
"""How long to wait before connecting anew, in seconds, about."""
PULSE = 15.0
"""How often a silent connection is tried, in seconds: one that a firewall has dropped says nothing."""

SWEEP_EVERY, SWEEP_BATCH = 30.0, 1_000

Heard = Callable[[Sequence[str]], None]


class Notices:
    """Carries notices from each process to all the others, by a thread and a connection of its own.

    Both begin with the first notice, or with the first who wants to hear; no lifespan is needed, and any thread may
    tell. What is told while the database is away goes out when it is back.

    Args:
        database: what carries them.
    """

    def __init__(self, database: Database) -> None:
        self.database = database
        self.writer = token_hex(8)
        """Names this process, which does not hear what it has told itself."""
        self._hearing: list[tuple[Heard, Callable[[], None]]] = []
        self._outbox: dict[str, None] = {}
        self._guard = threading.Lock()
        self._carrier: _Carrier | None = None

    @property
    def connected(self) -> bool:
        """Whether what others tell is heard at once."""
        return self._carrier is not None and self._carrier.connected

    def subscribe(self, on_notice: Heard, on_gap: Callable[[], None]) -> None:
        """Hear what other processes tell from now on. Both functions are called in the thread of this object.

        Args:
            on_notice: takes notices, of whatever kind.
            on_gap: is called where some may have been missed, because there was no connection.
        """
        self._hearing.append((on_notice, on_gap))

    def publish(self, notice: str) -> None:
        """Tell all other processes. Never waits, and may be called from any thread. Equal notices may go as one."""
        with self._guard:
            self._outbox.pop(notice, None)
            if len(self._outbox) >= MOST:
                del self._outbox[next(iter(self._outbox))]
            self._outbox[notice] = None
        self.start()

    def start(self) -> None:
        """Begin to carry notices, or go on with it."""
        with self._guard:
            if self._carrier is None or not self._carrier.is_alive():  # a process that was forked has no threads
                self._carrier = _Carrier(self)
                self._carrier.start()
                return
        self._carrier.stir()

    def close(self) -> None:
        """End the thread and its connection, when what has been told is out. They begin again when they are needed."""
        with self._guard:
            carrier, self._carrier = self._carrier, None
        if carrier is not None:
            carrier.end()

    def drain(self) -> list[str]:
        """Give some of what has to go out. It is to be given back where that fails."""
        with self._guard:
            taken = list(islice(self._outbox, BATCH))
            for notice in taken:
                del self._outbox[notice]
        return taken

    def give_back(self, notices: Sequence[str]) -> None:
        """Put back what could not be told."""
        with self._guard:
            self._outbox = dict.fromkeys((*notices, *self._outbox))

    def heard(self, notices: Sequence[str]) -> None:
        """Pass on what others have told."""
        for heard, _ in tuple(self._hearing):
            heard(notices)

    def on_gap(self) -> None:
        """Pass on that something may have been missed."""
        for _, on_gap in tuple(self._hearing):
            on_gap()


class _Carrier(threading.Thread):
    """One life of the thread."""

    def __init__(self, notices: Notices) -> None:
        super().__init__(name="mrtr-notices", daemon=True)
        self._notices = notices
        self._database = notices.database
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stirred = asyncio.Event()
        self._ending = False
        self._is_away = False
        self.connected = False
        # Of a SQLite file:
        self._began = self._looked = time.time()
        self._swept = 0.0
        self._seen: int | None = None

    def stir(self) -> None:
        """Let it look at once whether there is something to do."""
        if self._loop is not None:  # if it has none yet, it looks anyway
            with suppress(RuntimeError):  # it has ended
                self._loop.call_soon_threadsafe(self._stirred.set)

    def end(self) -> None:
        """End it, and wait for that."""
        self._ending = True
        self.stir()
        if self.is_alive():
            self.join(5)

    def run(self) -> None:
        asyncio.run(self._live())

    async def _live(self) -> None:
        self._loop = asyncio.get_running_loop()
        carry = self._carry_by_notify if self._database.notifies else self._carry_by_table
        while True:
            try:
                await carry()
                return
            except Exception as error:
                unavailable = error if isinstance(error, StoreUnavailable) else self._database.unavailable(error)
                if self._ending:
                    return
                if not self._is_away:
                    logger.warning("Changes do not reach other replicas for now: %s", unavailable)
                self._is_away = True
            finally:
                self.connected = False
            await self._rest(RETRY * random.uniform(0.5, 1.5))  # noqa: S311  so that not all come back at once

    def _is_there(self) -> None:
        self.connected = True
        if self._is_away:
            self._is_away = False
            logger.warning("Changes reach other replicas again")

    async def _rest(self, seconds: float | None) -> None:
        """Wait until there is something to do, for so long at most."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._stirred.wait()
        self._stirred.clear()

    async def _carry_by_notify(self) -> None:
        connection = await self._database.connect_alone()
        try:
            connection.add_termination_listener(lambda _: self._stirred.set())
            await connection.add_listener(CHANNEL, self._hear)
            self._is_there()
            self._notices.on_gap()
            while not connection.is_closed():
                notices = self._notices.drain()
                if notices:
                    await self._notify(connection, notices)
                elif self._ending:
                    return
                else:
                    before = time.monotonic()
                    await self._rest(PULSE)
                    if time.monotonic() - before >= PULSE:
                        await connection.execute("SELECT 1")
                    if not self._ending:
                        await asyncio.sleep(GATHER_NOTIFY)
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
            self._notices.give_back(notices)
            raise

    def _hear(self, _connection: Any, _pid: int, _channel: str, said: str) -> None:
        writer = self._notices.writer
        if not said.startswith(writer):
            self._notices.heard([said[len(writer) :]])

    async def _carry_by_table(self) -> None:
        try:
            while True:
                is_clean = await self._sweep()
                notices = self._notices.drain()
                if notices:
                    await self._write(notices)
                elif self._ending:
                    return
                is_all = await self._look()
                self._is_there()
                if is_all and is_clean and not self._ending:
                    await self._rest(POLL)
                    await asyncio.sleep(GATHER)
        finally:
            await self._database.close()

    async def _sweep(self) -> bool:
        """Remove what everybody has heard, now and then; return False where there may be more of it.

        Whoever looks at the file does that, too, so that it is done when nobody tells anything any more. A batch is
        larger than what goes out at once, so there is never more to come than can be removed.
        """
        now = time.time()
        if now < self._swept + SWEEP_EVERY:
            return True
        is_clean = len(await self._database.rows("sweep_notices", most=SWEEP_BATCH)) < SWEEP_BATCH
        if is_clean:
            self._swept = now
        return is_clean

    async def _write(self, notices: list[str]) -> None:
        try:
            await self._database.rows("write_notices", writer=self._notices.writer, notices=notices, keep=KEEP)
        except BaseException:
            self._notices.give_back(notices)
            raise

    async def _look(self) -> bool:
        """Hear what the others have written. Say whether that was all."""
        if self._seen is None:
            before = await self._database.rows("last_notice_before", before=self._began)
            self._seen = before[0][0] if before else 0
        rows = await self._database.rows("read_notices", seen=self._seen, most=BATCH)
        now = time.time()
        if now > self._looked + KEEP / 2:  # the machine has slept
            self._notices.on_gap()
        self._looked = now
        if rows:
            self._seen = rows[-1][0]
            self._notices.heard([said for _, writer, said in rows if writer != self._notices.writer])
        return len(rows) < BATCH
