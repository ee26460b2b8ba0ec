"""A PostgreSQL database by its URL: a pool of connections for each event loop."""

import asyncio
import logging
import os
import socket
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar
from urllib.parse import parse_qs, urlsplit

from ...concurrency.threads import in_own_thread
from ...errors import StoreUnavailable
from ...extras import lacking
from .clocks import ClockComparison
from .database import CONNECT_TIMEOUT, TIMEOUT, Advice, Database, Version
from .statements import number_parameters

try:
    import asyncpg  # type: ignore[import-untyped]
except ImportError as error:
    raise lacking("postgresql://", "postgres", error) from error

logger = logging.getLogger("mrtr_server")

CONNECTIONS = 5
"""Connections that a process keeps, at most."""
IDLE_LIFE = 5 * 60.0
"""After how many seconds without use a connection is closed: firewalls drop old ones without a word."""

UNHURRIED = 24 * 3600.0
"""How long a statement may take that upgrades tables or makes an index, in seconds."""
LOCK_WITHIN = 3_000
"""How long an upgrade waits for a table that a transaction of others holds, in milliseconds."""
LOOK_AGAIN = 0.5
"""How often to look whether another process has made the indexes, in seconds."""

CLOCK = "CAST(extract(epoch FROM now()) AS double precision)"
"""The database's own clock, in seconds since the epoch."""

_LOSES = "may lose what was committed last, and what was redeemed in it could be redeemed again"

_UNTOLD = (asyncpg.InsufficientPrivilegeError, asyncpg.UndefinedFunctionError, asyncpg.FeatureNotSupportedError)
"""What asking for the timeline comes to in a service that has none, or does not tell everybody."""

T = TypeVar("T")


@dataclass(slots=True, eq=False)
class _Connected:
    """What one event loop has of the database."""

    pool: Any
    life: AsyncGenerator[None, None] | None = None
    """Ends the connections when it is closed. An event loop closes every generator before it ends itself."""
    preparing: asyncio.Lock = field(default_factory=asyncio.Lock)
    prepared: bool = False
    busy: int = 0
    idle: asyncio.Event = field(default_factory=asyncio.Event)


_CONNECTED: dict[_Connected, asyncio.AbstractEventLoop] = {}
"""What is connected, of all databases. An event loop knows its generators weakly: the garbage collector ends one that
nobody else knows, and a loop that is about to end does not wait for that."""


class PostgreSQLDatabase(Database):
    """A PostgreSQL database, for a fleet; see `Database`.

    Args:
        url: `postgresql://user:password@host/name`, with the options of libpq.
        name: the same for an operator, without password and options.
        direct: the URL that leads past a pooler of transactions, as PgBouncer can be one: LISTEN needs a connection of
            its own. Where it is given, no statement is kept prepared on a connection, and each is sent within a
            transaction. None where there is no such pooler.
        clock: returns the time of this machine, in seconds since the epoch, which the database's is compared with.
    """

    notifies = True

    def __init__(self, url: str, name: str, direct: str | None = None, clock: Callable[[], float] = time.time) -> None:
        super().__init__("postgresql", name)
        self._clocks = ClockComparison(name, clock)
        self._url = url
        self._direct = direct
        self._has_timelines = True
        self._numbered: dict[str, tuple[str, tuple[str, ...]]] = {}
        self._connected: dict[asyncio.AbstractEventLoop, _Connected] = {}

    async def rows(self, statement: str, **given: Any) -> Sequence[Any]:
        """Run one statement, and return its rows; see `Database.rows`."""
        return await self.execute(self.statements[statement], given)

    async def execute(self, sql: str, given: Mapping[str, Any]) -> Sequence[Any]:
        """Run a statement as it is written, and return its rows; see `Database.execute`."""
        found = self._numbered.get(sql)
        numbered, names = found or self._numbered.setdefault(sql, number_parameters(sql, CLOCK))
        values = [given[name] for name in names]
        return await self.run(lambda connection: connection.fetch(numbered, *values))

    async def run(self, work: Callable[[Any], Awaitable[T]]) -> T:
        """Run work on a connection of asyncpg's.

        Args:
            work: what to do. When the connection turns out to be dead it is done again, once, on a new one.

        Raises:
            StoreUnavailable: it could not be done. The message is for the operator.
        """
        connected = self._connected.get(asyncio.get_running_loop()) or await self._connect()
        connected.busy += 1
        connected.idle.clear()
        try:
            async with asyncio.timeout(TIMEOUT):
                if not connected.prepared:
                    await self._prepare(connected)
                async with connected.pool.acquire() as connection:
                    try:
                        return await self._work(connection, work)
                    except asyncpg.InternalClientError:  # it is about to die, and nothing was sent
                        connection.terminate()
                    except (OSError, asyncpg.PostgresError, asyncpg.InterfaceError):
                        if not _is_dead(connection):
                            raise
                async with connected.pool.acquire() as connection:
                    return await self._work(connection, work)
        except Exception as error:  # whatever the driver raises: nothing else runs here
            raise self.unavailable(error) from error
        finally:
            connected.busy -= 1
            if not connected.busy:
                connected.idle.set()

    async def _work(self, connection: Any, work: Callable[[Any], Awaitable[T]]) -> T:
        if self._direct is None:
            return await work(connection)
        async with connection.transaction():  # or a pooler may send the parts of one statement to several servers
            return await work(connection)

    async def check(self) -> None:
        """Connect, make the tables if they are not there, and check their version; see `Database.check`."""

        async def nothing(_connection: object) -> None:
            pass

        await self.run(nothing)

    async def compare_clocks(self) -> None:
        """Compare its clock with this machine's, as is done for each new connection; see `Database.compare_clocks`."""
        await self.run(self._read_clock)

    async def check_clock(self) -> None:
        """Check that its clock is near enough to this machine's for single use; see `Database.check_clock`."""
        if self._clocks.is_in_doubt:
            await self.compare_clocks()
        self._clocks.check()

    def time(self) -> float:
        """Return the database's time, as far as it is known here; see `Database.time`."""
        return self._clocks.time()

    async def _begin(self, connection: Any) -> None:
        """Look at what may have changed since there was a connection before."""
        await self._work(connection, self._read_clock)
        connected = self._connected.get(asyncio.get_running_loop())
        if connected is not None and connected.prepared:  # so there are tables
            await self._look_where(connection)

    async def _read_clock(self, connection: Any) -> None:
        statement, _ = number_parameters(self.statements["read_clock"], CLOCK)
        before, began = self._clocks.clock(), time.monotonic()
        theirs = await connection.fetchval(statement)
        self._clocks.note(theirs, before, time.monotonic() - began)

    async def upgrade(self) -> Version | None:
        """Upgrade older tables to the present version; see `Database.upgrade`."""
        found = await super().upgrade()
        if (found is None or found.number in self.migrations) and await self.missing_indexes():
            try:
                await self._alone(self._make_indexes)
            except StoreUnavailable as error:
                raise StoreUnavailable(f"{error}; not all indexes are made; run it again") from error
        return found

    async def _change(self, steps: Callable[[Version | None], Sequence[str]]) -> Version | None:
        return await self._alone(lambda connection: self._run_steps(connection, steps))

    async def _make_indexes(self, connection: Any) -> None:
        """Make the indexes that are not there, while others write."""
        # Another process that makes them would wait for this one, if this one waited within a statement.
        while not await connection.fetchval(self.statements["try_to_lock_indexes"]):  # noqa: ASYNC110  it is elsewhere
            await asyncio.sleep(LOOK_AGAIN)
        for step in await self.missing_indexes():
            await connection.execute(step, timeout=UNHURRIED)

    async def found_version(self) -> Version | None:
        """Return the version of the tables that are there; see `Database.found_version`."""
        return await self._look(self._find_version)

    async def missing_indexes(self) -> list[str]:
        """Return the statements that make the indexes which are not there; see `Database.missing_indexes`."""
        found = await self._look(lambda connection: connection.fetch(self.statements["find_indexes"]))
        there = {name for (name,) in found}
        missing = {name: make for name, make in self.later_indexes.items() if name not in there}
        drop = self.statements["drop_index"]
        return [step for name, make in missing.items() for step in (drop.format(index=name), make)]

    async def review(self) -> list[Advice]:
        """Return what an operator should know before servers use it; see `Database.review`."""
        found: list[Advice] = []
        if await self.missing_indexes():
            found.append(("warning", "an index is missing, or unfinished: run `mrtr-server db upgrade` again"))
        ((standbys, waited_for, commit, may_see, user),) = await self.rows("find_standbys")
        if commit == "off" or (commit == "local" and standbys):
            found.append(("warning", f"synchronous_commit is {commit}, so a failure {_LOSES}. Set it to on"))
        elif standbys and not may_see:
            why = "it has standbys, and this user may not see whether commits wait for them"
            found.append(("advice", f"{why}: GRANT pg_monitor TO {user}"))
        elif standbys and not waited_for:
            way = "Set synchronous_standby_names, or run `mrtr-server db new-epoch` after each failover"
            found.append(("warning", f"its standbys are asynchronous, so a failover {_LOSES}. {way}"))
        return found

    async def _look(self, work: Callable[[Any], Awaitable[T]]) -> T:
        """Run work on a connection, whatever the version of the tables."""
        connected = self._connected.get(asyncio.get_running_loop()) or await self._connect()
        try:
            async with connected.pool.acquire() as connection:
                return await self._work(connection, work)
        except Exception as error:
            raise self.unavailable(error) from error

    async def _alone(self, work: Callable[[Any], Awaitable[T]]) -> T:
        """Run work, which may take long, on a connection of its own, past a pooler where there is one."""
        try:
            connection = await self.connect_alone()
            try:
                await connection.execute("SET statement_timeout = 0; SET lock_timeout = 0")  # a role may have some
                return await work(connection)
            finally:
                await connection.close()
        except Exception as error:
            raise self.unavailable(error) from error

    async def close(self) -> None:
        """End the connections of this event loop, when what is under way has ended."""
        connected = self._connected.pop(asyncio.get_running_loop(), None)
        if connected is not None and connected.life is not None:
            await connected.life.aclose()

    async def connect_alone(self) -> Any:
        """Return a connection of asyncpg's beside the pool, past a pooler where there is one: one that listens."""
        url = self._direct or self._url
        return await _connect(url, timeout=CONNECT_TIMEOUT, command_timeout=TIMEOUT)

    async def _connect(self) -> _Connected:
        for loop in [loop for loop in list(self._connected) if loop.is_closed()]:
            self._connected.pop(loop, None)
        for left in [left for left, loop in list(_CONNECTED.items()) if loop.is_closed()]:
            _CONNECTED.pop(left, None)
        # asyncpg reads a plain URL as libpq does: sslmode, sockets, several hosts.
        options: dict[str, Any] = {} if self._direct is None else {"statement_cache_size": 0}
        pool = asyncpg.create_pool(
            self._url,
            min_size=0,
            max_size=CONNECTIONS,
            max_inactive_connection_lifetime=IDLE_LIFE,
            timeout=CONNECT_TIMEOUT,
            command_timeout=TIMEOUT,
            reset=_nothing_to_reset,
            connect=_connect,
            init=self._begin,
            **options,
        )
        connected = _Connected(pool)
        connected.idle.set()
        connected.life = self._life(connected, asyncio.get_running_loop())
        self._connected[asyncio.get_running_loop()] = connected
        _CONNECTED[connected] = asyncio.get_running_loop()
        await anext(connected.life)
        return connected

    async def _life(self, connected: _Connected, loop: asyncio.AbstractEventLoop) -> AsyncGenerator[None, None]:
        await connected.pool  # which connects to nothing yet
        try:
            yield
        finally:
            _CONNECTED.pop(connected, None)
            if self._connected.get(loop) is connected:
                del self._connected[loop]
            await connected.idle.wait()
            await connected.pool.close()

    async def _prepare(self, connected: _Connected) -> None:
        """Make the tables if they are not there, and check that they are of the right version."""
        async with connected.preparing:
            if connected.prepared:
                return
            async with connected.pool.acquire() as connection:
                found = await self._work(connection, self._make_tables)
                if found is not None:
                    self.check_version(found)
                await self._look_where(connection)
            connected.prepared = True

    async def _make_tables(self, connection: Any) -> Version | None:
        return await self._run_steps(connection, lambda found: self.steps_from(None) if found is None else [])

    async def _find_version(self, connection: Any) -> Version | None:
        if not await connection.fetchval(self.statements["has_version_table"]):
            return None
        found = await connection.fetchrow(self.statements["find_version"])
        return None if found is None else Version(*found)

    async def _run_steps(self, connection: Any, steps: Callable[[Version | None], Sequence[str]]) -> Version | None:
        """Run the steps that upgrade the version that is found, and return the found version."""
        found = await self._find_version(connection)
        if not steps(found):
            return found
        async with connection.transaction():
            await connection.execute(self.statements["lock_version"], timeout=UNHURRIED)
            now = await self._find_version(connection)  # another process may have been faster
            await connection.execute(f"SET LOCAL lock_timeout = {LOCK_WITHIN}")  # writers queue behind one who waits
            for step in steps(now):
                await connection.execute(step, timeout=UNHURRIED)
            return now if found is None else found

    # Where its writes go

    async def _look_where(self, connection: Any) -> None:
        """Read which life of the database a new connection leads to."""
        self._note_epoch(await self._work(connection, lambda each: each.fetchval(self.statements["find_epoch"])))
        await self._note_timeline(connection)

    async def _note_timeline(self, connection: Any) -> None:
        """Log that the database's writes continue elsewhere than they were last seen to go: once in the fleet."""
        if not self._has_timelines:
            return
        try:
            row = await self._work(connection, lambda each: each.fetchrow(self.statements["find_timeline"]))
            before, now = row
            if not now or now == before:
                return
            sql, _ = number_parameters(self.statements["note_timeline"], CLOCK)
            noted = await self._work(connection, lambda each: each.fetchval(sql, now, before))
        except _UNTOLD:
            self._has_timelines = False
            return
        except asyncpg.PostgresError:  # the next connection looks again
            return
        if noted and before:
            logger.warning(
                "%s: its writes are on timeline %s of cluster %s, and were on timeline %s of cluster %s before. So a "
                "standby was promoted, or a backup was restored. If writes were lost, or may have been, run "
                "`mrtr-server db new-epoch` now: otherwise what was redeemed in them can be redeemed again",
                self.name,
                *reversed(now.split("/")),
                *reversed(before.split("/")),
                extra={"fields": {"event": "timeline_changed"}},
            )


async def _connect(url: str, **options: Any) -> Any:
    """Connect as asyncpg does, with the names of servers looked up before."""
    async with asyncio.timeout(CONNECT_TIMEOUT):
        for name in _hosts(url):
            with suppress(OSError):  # which asyncpg meets, too, and says where
                # Where asyncpg does it, a name server that does not answer holds the end of the event loop.
                await in_own_thread(partial(socket.getaddrinfo, name, None))
    return await asyncpg.connect(url, **options)


def _hosts(url: str) -> list[str]:
    """Return the names of the servers that may be connected to; none for a socket's directory or an address of IPv6."""
    split = urlsplit(url)
    given = parse_qs(split.query).get("host") or [split.netloc.rpartition("@")[2] or os.environ.get("PGHOST", "")]
    listed = ",".join(given).split(",")
    return [host.partition(":")[0] for host in listed if host and host[0] not in "/@[" and host.count(":") < 2]


def _is_dead(connection: Any) -> bool:
    try:
        return bool(connection.is_closed())
    except asyncpg.InterfaceError:  # the pool has it back already
        return True


async def _nothing_to_reset(_connection: object) -> None:
    """Leave a connection as it is: nothing that runs here changes its settings, and asking takes a round trip."""
