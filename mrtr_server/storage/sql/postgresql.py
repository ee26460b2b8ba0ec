"""A PostgreSQL database by its URL: a pool of connections for each event loop, and one for who holds a lease."""

import asyncio
import socket
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from contextvars import Context
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar

from ...concurrency.running import PerLoop
from ...concurrency.threads import in_own_thread
from ...errors import StoreUnavailable, lacking
from ...logs import logger
from ..health import note_wait, time_left
from . import database
from .connections import Connections
from .database import CLOCK, CONNECT_TIMEOUT, TIMEOUT, Version, Way, number_parameters
from .urls import Server, may_read_only, names_in, servers_in

try:
    import asyncpg  # type: ignore[import-untyped]
except ImportError as error:
    raise lacking("postgresql://", "postgres", error) from error


CONNECTIONS = 5  # connections of a process for what clients do, at most
OF_PROCESS = CONNECTIONS + 2  # all connections of a process, with one for leases and one that listens
IDLE_LIFE = 60.0  # seconds without use until a connection is closed: firewalls drop old ones without a word
STATEMENTS = 100  # statements that a connection keeps prepared
CANCEL_WITHIN = 0.5  # seconds that a server has to end a statement that nobody waits for; then its connection is closed
STUCK = 0.1  # if all connections were taken for so many seconds, records go beside them
CLOSE_WITHIN = 1.0  # seconds that the server has to say goodbye
FATAL = ("FATAL", "PANIC")  # the severities of a server's last words on a connection
READ_ONLY = "25006"  # the SQLSTATE of a statement that would write where nothing can be written
UNHURRIED = 24 * 3600.0  # seconds for a statement that upgrades tables or makes an index
LOCK_SOON = "SET LOCAL lock_timeout = 3000"  # of an upgrade, in milliseconds: writers queue behind one who waits
LOOK_AGAIN = 0.5  # seconds until the next look whether another process has made the indexes

_LOSES = "may lose what was committed last, and what was redeemed in it could be redeemed again"

_UNTOLD = (asyncpg.InsufficientPrivilegeError, asyncpg.UndefinedFunctionError, asyncpg.FeatureNotSupportedError)
"""Errors of asking for the timeline in a service that has none, or hides it."""

T = TypeVar("T")


@dataclass(slots=True, eq=False)
class _Connected:
    pool: Connections  # for clients
    lane: Connections  # one connection, for who holds a lease: it never waits behind clients
    life: AsyncGenerator[None, None] | None = None
    """Ends the connections when it is closed. An event loop closes every generator before it ends itself."""
    preparing: asyncio.Lock = field(default_factory=asyncio.Lock)
    prepared: bool = False
    recording: asyncio.Lock = field(default_factory=asyncio.Lock)  # held by the one record that may go by the lane
    endings: set["asyncio.Task[None]"] = field(default_factory=set)
    """Tasks that give connections back on which a statement was cancelled."""
    busy: int = 0
    moved: float = 0.0  # the last action for a client, by the monotonic clock
    idle: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def is_stuck(self) -> bool:
        """Whether clients hold all connections, and have done so for a while."""
        return self.busy > CONNECTIONS and time.monotonic() > self.moved + STUCK


_CONNECTED = PerLoop[set[_Connected]]()
"""The connections of all databases. An event loop knows its generators weakly: the garbage collector ends one that
nobody else knows, and a loop that is about to end does not wait for that."""


class PostgreSQLDatabase(database.Database):
    """A PostgreSQL database, for a fleet; see `Database`.

    `direct` is the URL that leads past a pooler, such as PgBouncer: LISTEN needs a connection of its own. With it, no
    statement is kept prepared on a connection. A pooler without it is noticed. `clock` is that of this machine.
    """

    notifies = True
    session = ("SET statement_timeout = 0", "SET lock_timeout = 0")  # a role may have some

    def __init__(self, url: str, name: str, direct: str | None = None, clock: Callable[[], float] = time.time) -> None:
        super().__init__("postgresql", name)
        self.clocks: database.ClockComparison = database.ClockComparison(name, clock)
        self._url = url
        self._direct = direct
        self._is_pooled = direct is not None
        """Statements may come to another server each time, so none is kept prepared."""
        self._advice = ""  # about a pooler that nobody has named; empty if none was noticed
        self._has_timelines = True
        self._numbered: dict[str, tuple[str, tuple[str, ...]]] = {}
        self._connected = PerLoop[_Connected]()
        self._servers: dict[str, list[Server]] = {}  # by URL, first the one that was written last
        self._beside: dict[Any, asyncio.AbstractEventLoop] = {}  # event loops of the connections beside the pools

    async def execute(self, sql: str, given: Mapping[str, Any]) -> Sequence[Any]:
        """Run a statement as it is written, and return its rows; see `Database.execute`."""
        found = self._numbered.get(sql)
        numbered, names = found or self._numbered.setdefault(sql, number_parameters(sql, CLOCK))
        values = [given[name] for name in names]
        return await self.run(lambda connection: connection.fetch(numbered, *values), self.ways.get(sql, "client"))

    async def run(self, work: Callable[[Any], Awaitable[T]], way: Way = "client") -> T:
        """Run work on a connection of asyncpg's; if it is dead or can't write, once more. Raises `StoreUnavailable`."""
        # Heartbeats have a connection of their own, which a record may use where no other is free.
        connected = self._connected.get() or await self._connect()
        began = time.monotonic()
        connected.busy += 1
        connected.idle.clear()
        try:
            async with asyncio.timeout(time_left(TIMEOUT) if way == "client" else self.timeout_of(way)):
                if not connected.prepared:
                    await self._prepare(connected)
                if way == "heartbeat":
                    return await self._run_on(connected, connected.lane, work)
                if way == "record" and connected.is_stuck:
                    async with connected.recording:  # one at a time, so that they hold up no heartbeat
                        return await self._run_on(connected, connected.lane, work)
                done = await self._run_on(connected, connected.pool, work)
                connected.moved = time.monotonic()
                return done
        except StoreUnavailable:
            raise
        except Exception as error:  # whatever the driver raises: nothing else runs here
            raise self.unavailable(error) from error
        finally:
            if way != "heartbeat":  # which is beside the request
                note_wait(began)
            connected.busy -= 1
            if not connected.busy:
                connected.idle.set()

    async def _run_on(self, connected: _Connected, pool: Connections, work: Callable[[Any], Awaitable[T]]) -> T:
        is_again = False
        while True:
            began, is_late = time.monotonic(), False
            connection = await pool.acquire()
            self.longest_wait = max(self.longest_wait, time.monotonic() - began)
            try:
                return await work(connection)
            except (asyncio.CancelledError, TimeoutError):
                is_late = True
                raise
            except (OSError, asyncpg.PostgresError, asyncpg.InterfaceError, asyncpg.InternalClientError) as error:
                if not self._is_of_no_more_use(connected, connection, error) or is_again:
                    raise
                is_again = True
            finally:
                if is_late:  # who waits for the server no more does not wait until it has seen that either
                    ending = asyncio.create_task(_give_back(pool, connection), context=Context())
                    connected.endings.add(ending)
                    ending.add_done_callback(connected.endings.discard)
                else:
                    pool.release(connection)

    def _is_of_no_more_use(self, connected: _Connected, connection: Any, error: Exception) -> bool:
        """Return whether a connection has ended; end it if it is about to, or if its server can't write."""
        if not connection.is_closed():
            if getattr(error, "sqlstate", "") == READ_ONLY:
                self._leave_server(connected)
            elif not isinstance(error, asyncpg.InternalClientError) and getattr(error, "severity_en", "") not in FATAL:
                return False
            connection.terminate()
        connected.pool.expire()  # so that the next one is new: all may have ended, as at a restart
        return True

    def _leave_server(self, connected: _Connected) -> None:
        """Use no connection of this event loop again, and none that listens: each may be one to that server."""
        # The server was the primary once, or has lost its name in the URL. The next connection finds the right one, or
        # says why not.
        connected.pool.expire()
        connected.lane.expire()
        for connection, loop in list(self._beside.items()):
            with suppress(RuntimeError):  # its loop has ended
                loop.call_soon_threadsafe(connection.terminate)

    async def check(self) -> None:
        """Connect, make the tables if they are not there, and check their version; see `Database.check`."""
        await self.run(_nothing)

    async def compare_clocks(self) -> None:
        """Compare its clock with this machine's, as for each new connection; see `Database.compare_clocks`."""
        await self.run(self._read_clock)

    async def check_clock(self) -> None:
        """Check that its clock is near enough to this machine's for single use; see `Database.check_clock`."""
        if self.clocks.is_in_doubt:
            await self.compare_clocks()
        self.clocks.check()

    def time(self) -> float:
        """Return the database's time, as far as it is known here; see `Database.time`."""
        return self.clocks.time()

    async def _begin(self, connection: Any) -> None:
        await self._read_clock(connection)
        connected = self._connected.get()
        if connected is not None and connected.prepared:  # so there are tables
            await self._look_where(connection)

    async def _read_clock(self, connection: Any) -> None:
        statement, _ = number_parameters(self.statements["read_clock"], CLOCK)
        before, began = self.clocks.clock(), time.monotonic()
        theirs = await connection.fetchval(statement)
        self.clocks.note(theirs, before, time.monotonic() - began)

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
        # Another process that makes them would wait for this one, if this one waited within a statement.
        lock = self.statements["try_to_lock_indexes"]  # for the session, which a pooler would give to others with it
        while connection in self._beside and not await connection.fetchval(lock):  # noqa: ASYNC110  it is elsewhere
            await asyncio.sleep(LOOK_AGAIN)
        for step in await self.missing_indexes():
            await connection.execute(step, timeout=UNHURRIED)

    async def found_version(self) -> Version | None:
        """Return the version of the tables that are there; see `Database.found_version`."""
        return await self._look(self._find_version)

    @property
    def opening(self) -> tuple[str, ...]:
        """The statements that begin the transaction which changes the tables; see `Database.opening`."""
        return ("BEGIN", self.statements["lock_version"], LOCK_SOON)

    async def missing_indexes(self) -> list[str]:
        """Return the statements that make the indexes which are not there; see `Database.missing_indexes`."""
        found = await self._look(lambda connection: connection.fetch(self.statements["find_indexes"]))
        there = {name for (name,) in found}
        missing = {name: make for name, make in self.later_indexes.items() if name not in there}
        drop = self.statements["drop_index"]
        return [step for name, make in missing.items() for step in (drop.format(index=name), make)]

    async def review(self, processes: int = 1) -> list[database.Advice]:
        """Return what an operator should know before servers use it; see `Database.review`."""
        found: list[database.Advice] = [("warning", self._advice)] if self._advice else []
        tables = await self.found_version()
        if tables is not None and tables.number in self.migrations and await self.missing_indexes():
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
        ((most,),) = await self.rows("find_most_connections")
        if not self._is_pooled and processes * OF_PROCESS > most:
            has = f"{processes} processes may have {processes * OF_PROCESS} connections, {OF_PROCESS} each"
            found.append(("warning", f"{has}, and it takes {most}: raise max_connections, or put a pooler in front"))
        return found

    async def _look(self, work: Callable[[Any], Awaitable[T]]) -> T:
        """Run work on a connection, whatever the version of the tables."""
        connected = self._connected.get() or await self._connect()
        try:
            return await self._run_on(connected, connected.pool, work)
        except Exception as error:
            raise self.unavailable(error) from error

    async def _alone(self, work: Callable[[Any], Awaitable[T]]) -> T:
        """Run work, which may take long, on a connection of its own, past a pooler where there is one."""
        try:
            connection = await self.connect_alone()
            is_pooled = connection is None
            if is_pooled:
                connection = await self._open(self._url)
            try:
                if not is_pooled:  # or others would have the session next
                    await connection.execute("; ".join(self.session))
                return await work(connection)
            finally:
                await connection.close()
        except Exception as error:
            raise self.unavailable(error) from error

    async def close(self) -> None:
        """End the connections of this event loop, when what is under way has ended."""
        connected = self._connected.pop()
        if connected is not None and connected.life is not None:
            await connected.life.aclose()

    async def connect_alone(self) -> Any:
        """Return a connection of asyncpg's that listens, beside the pools; None where only a pooler answers."""
        async with asyncio.timeout(TIMEOUT):
            connection = await self._open(self._direct or self._url, is_to_listen=True)
        if connection is not None:
            self._beside[connection] = asyncio.get_running_loop()
            connection.add_termination_listener(lambda _: self._beside.pop(connection, None))
        return connection

    async def _connect(self) -> _Connected:
        connected = _Connected(self._pool(CONNECTIONS), self._pool(1))
        connected.idle.set()
        connected.life = self._life(connected)
        self._connected.put(connected)
        _CONNECTED.here(set).add(connected)
        await anext(connected.life)
        return connected

    def _pool(self, size: int) -> Connections:
        # Nothing here changes the settings of a connection, so none is reset between two statements.
        return Connections(partial(self._open, self._url), size, IDLE_LIFE)

    async def _open(self, url: str, *, is_to_listen: bool = False, **options: Any) -> Any:
        """Connect to the first writable server of a URL. Raises `StoreUnavailable`."""
        # Returns None for a connection that is to listen, where a pooler answers.
        servers = self._servers.setdefault(url, servers_in(url))
        if len(servers) < 2:
            return await self._open_at(url, is_to_listen=is_to_listen, **options)
        failed: list[str] = []
        for server in tuple(servers):
            try:
                given = {"host": server.host, "port": server.port, "timeout": CONNECT_TIMEOUT / len(servers)}
                connection = await self._open_at(url, is_to_listen=is_to_listen, **options | given)
            except Exception as error:  # whatever it is, another one may do
                failed.append(f"{server.host}: {self.unavailable(error).args[0].removeprefix(f'{self.name}: ')}")
            else:
                servers.remove(server)  # and begin with it from now on: one that is gone may take its time to say so
                servers.insert(0, server)
                return connection
        raise StoreUnavailable(f"{self.name}: none of its servers can be used ({'; '.join(failed)})")

    async def _open_at(self, url: str, *, is_to_listen: bool, **options: Any) -> Any:
        """Connect, and find out whether a pooler answers, or a server that can't be written; see `_open`."""
        while True:
            prepares = is_to_listen or not self._is_pooled
            connection = await _connect(url, statement_cache_size=STATEMENTS if prepares else 0, **options)
            try:
                if prepares and not await self._finds(connection, "answers_itself", pid=connection.get_server_pid()):
                    connection.terminate()
                    self._note_pooler(database.DIRECT if is_to_listen and self._direct else "")
                    if is_to_listen:
                        return None
                    continue
                if may_read_only(url) or await self._finds(connection, "is_writable"):
                    if not is_to_listen:
                        if prepares:
                            await connection.execute(self.statements["keep_plans"])
                        await self._begin(connection)
                    return connection
                hint = "" if "host" in options else f"; {database.READ_ONLY_HINT}"
                raise StoreUnavailable(f"{self.name}: the server can't be written{hint}")
            except BaseException:
                connection.terminate()
                raise

    async def _finds(self, connection: Any, statement: str, **given: int) -> bool:
        """Return whether a statement finds a row, and prepare nothing for it."""
        status: str = await connection.execute(self.statements[statement].format(**given))
        return status.endswith(" 1")

    def _note_pooler(self, variable: str) -> None:
        """Note that a pooler answers in place of the database: prepare nothing there, and log that once."""
        self._is_pooled = True
        if not self._advice:
            what = f"{variable} leads to a pooler, too" if variable else "a pooler answers in its place"
            self._advice = (
                f"{what}, such as PgBouncer. So processes look for each other's changes instead of hearing of them, "
                f"and no statement is kept prepared. Set {database.DIRECT} to the address of the database itself"
            )
            logger.warning("%s: %s", self.name, self._advice)

    async def _life(self, connected: _Connected) -> AsyncGenerator[None, None]:
        pools = (connected.pool, connected.lane)
        try:
            yield
        finally:
            _CONNECTED.here(set).discard(connected)
            if self._connected.get() is connected:
                self._connected.pop()
            await connected.idle.wait()
            with suppress(TimeoutError):  # the others are cut off
                async with asyncio.timeout(CLOSE_WITHIN):
                    await asyncio.gather(*connected.endings, *(pool.close() for pool in pools))
            for pool in pools:
                pool.cut_off()

    async def _prepare(self, connected: _Connected) -> None:
        async with connected.preparing:
            if connected.prepared:
                return
            await self._run_on(connected, connected.pool, self._look_at_tables)
            connected.prepared = True

    async def _look_at_tables(self, connection: Any) -> None:
        found = await self._run_steps(connection, lambda found: self.steps_from(None) if found is None else [])
        self.check_version(found)
        await self._look_where(connection)

    async def _find_version(self, connection: Any) -> Version | None:
        if not await connection.fetchval(self.statements["has_version_table"]):
            return None
        found = await connection.fetchrow(self.statements["find_version"])
        return None if found is None else Version(*found)

    async def _run_steps(self, connection: Any, steps: Callable[[Version | None], Sequence[str]]) -> Version | None:
        found = await self._find_version(connection)
        if not steps(found):
            return found
        async with connection.transaction():
            await connection.execute(self.statements["lock_version"], timeout=UNHURRIED)
            now = await self._find_version(connection)  # another process may have been faster
            await connection.execute(LOCK_SOON)
            for step in steps(now):
                await connection.execute(step, timeout=UNHURRIED)
            return now if found is None else found

    # Where its writes go

    async def _look_where(self, connection: Any) -> None:
        self._note_epoch(await connection.fetchval(self.statements["find_epoch"]))
        await self._note_timeline(connection)

    async def _note_timeline(self, connection: Any) -> None:
        """Log, once in the fleet, that the database's writes continue elsewhere than before."""
        if not self._has_timelines:
            return
        try:
            before, now = await connection.fetchrow(self.statements["find_timeline"])
            if not now or now == before:
                return
            sql, _ = number_parameters(self.statements["note_timeline"], CLOCK)
            noted = await connection.fetchval(sql, now, before)
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
    given = {"timeout": CONNECT_TIMEOUT, "command_timeout": TIMEOUT, **options}
    async with asyncio.timeout(given["timeout"]):
        for name in names_in(url):
            if options.get("host", name) == name:
                with suppress(OSError):  # which asyncpg meets, too, and says where
                    # Where asyncpg does it, a name server that does not answer holds the end of the event loop.
                    await in_own_thread(partial(socket.getaddrinfo, name, None))
    return await asyncpg.connect(url, **given)


async def _give_back(pool: Connections, connection: Any) -> None:
    """Return a connection when its server has ended the cancelled statement; or close it."""
    try:
        async with asyncio.timeout(CANCEL_WITHIN):
            await connection._protocol._wait_for_cancellation()  # noqa: SLF001  as asyncpg's own pool does
    except Exception:
        connection.terminate()
    finally:
        pool.release(connection)


async def _nothing(_connection: object) -> None:
    pass
