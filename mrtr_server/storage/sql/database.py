"""A database by its URL: an engine for each event loop, the tables, and errors in an operator's words."""

import asyncio
import logging
import os
import socket
import sqlite3
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from ...concurrency.threads import in_own_thread
from ...errors import SetupError, StoreUnavailable, WrongVersion
from ...extras import lacking
from .sqlite import SQLiteFile
from .sqlite_mode import make_private, open_to_others

try:
    import greenlet  # type: ignore[import-untyped]  # noqa: F401  SQLAlchemy 2.0 misses it only when it connects
    from sqlalchemy import Column, Connection, Executable, MetaData, String, Table, event, func, inspect, select
    from sqlalchemy.engine import URL, make_url
    from sqlalchemy.exc import DBAPIError, OperationalError
    from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, create_async_engine
except ImportError as error:  # pragma: no cover  tests run with every extra
    raise lacking("A database", "tasks", error) from error

logger = logging.getLogger("mrtr_server")

PATIENCE = 10.0
"""How long one operation may take in all, in seconds."""
CONNECT_PATIENCE = 5.0
"""How long connecting, or waiting for another process's write to a SQLite file, may take, in seconds."""
CONNECTIONS = 5
"""Connections to PostgreSQL that a process keeps, at most."""
CONNECTION_LIFE = 5 * 60
"""After how many seconds a connection to PostgreSQL is replaced: firewalls drop old ones without a word."""

SCHEMA_LOCK = 0x6D727472
"""Held in PostgreSQL while the tables are made: CREATE TABLE IF NOT EXISTS fails where two do it at once."""

SCHEMA = Table("mrtr_schema", MetaData(), Column("version_num", String(32), primary_key=True))
"""The version of the tables, as Alembic keeps it: it can take over from here."""

DRIVERS = {"sqlite": "aiosqlite", "postgresql": "asyncpg"}
EXTRAS = {"sqlite": "tasks", "postgresql": "postgres"}
OLDEST_SQLITE = (3, 35)
"""The first that has RETURNING."""

HINTS = {
    "unable to open database file": "its folder must exist, and this process must be allowed to write there",
    "readonly database": "this process must be allowed to write to the file and to its folder",
    "database is locked": "another process has been writing to it for too long",
    "was removed or replaced": "put back the one that was there, or restart all processes that use it",
    "disk I/O error": "the disk takes nothing, for a quota or a fault of its own; the system's log may say why",
    "disk is full": "make room; what has expired is removed by itself",
    "No space left": "make room; what has expired is removed by itself",
    "permission denied": "the user needs CREATE once, and then SELECT, INSERT, UPDATE and DELETE on the tables",
}
"""What to do about an error, by words of its text."""

T = TypeVar("T")
Work = Callable[[AsyncConnection], Awaitable[T]]


@dataclass(slots=True, eq=False)
class _Connected:
    """What one event loop has of the database."""

    engine: AsyncEngine
    life: AsyncGenerator[None, None] | None = None
    """Ends the connections when it is closed. An event loop closes every generator before it ends itself."""
    preparing: asyncio.Lock = field(default_factory=asyncio.Lock)
    prepared: bool = False
    busy: int = 0
    idle: asyncio.Event = field(default_factory=asyncio.Event)


class Database:
    """A database, reached from any number of event loops, one after the other or at once.

    It connects when it is first used, makes the tables if they are not there, and finds its own way back when the
    database has been away. Every statement is a transaction of its own.

    Parameters:
        url: `sqlite:///file.db`, a path from the working directory; or `postgresql://user@host/name`, as libpq has it.
        tables: what has to be there.
        versions: of the schema, the present one last; any other that is found is refused.

    Raises:
        SetupError: the URL can't be used, or its driver is not installed. The message never repeats the URL.
    """

    def __init__(self, url: str, tables: MetaData, versions: Sequence[str]) -> None:
        self._url = _read(url)
        self.is_sqlite = self._url.get_backend_name() == "sqlite"
        self._tables = tables
        self._versions = versions
        self._version = versions[-1]
        self._file: SQLiteFile | None = None
        self._told_mode = False
        self._connected: dict[asyncio.AbstractEventLoop, _Connected] = {}

    @property
    def name(self) -> str:
        """The database as an operator knows it, without password and options."""
        if self.is_sqlite:
            return f"sqlite:///{self._url.database}"
        url = self._url
        shown = URL.create("postgresql", url.username, None, url.host, url.port, url.database).render_as_string()
        place = url.query.get("host")
        return f"{shown} at {place}" if place else shown

    async def run(self, work: Work[T]) -> T:
        """Run statements on a connection.

        Parameters:
            work: what to do. When the connection turns out to be dead it is done again, once, on a new one: so it must
                come to the same if it has been done already.

        Returns:
            What the work returned.

        Raises:
            StoreUnavailable: it could not be done. The message is for the operator.
        """
        connected = self._connected.get(asyncio.get_running_loop()) or await self._connect()
        connected.busy += 1
        connected.idle.clear()
        try:
            async with asyncio.timeout(PATIENCE):
                if not connected.prepared:
                    await self._prepare(connected)
                try:
                    async with connected.engine.connect() as connection:
                        return await work(connection)
                except DBAPIError as error:
                    if not error.connection_invalidated:
                        raise
                async with connected.engine.connect() as connection:
                    return await work(connection)
        except StoreUnavailable:
            raise
        except Exception as error:  # whatever the driver raises: nothing else runs here
            raise self.unavailable(error) from error
        finally:
            connected.busy -= 1
            if not connected.busy:
                connected.idle.set()

    async def rows(self, statement: Executable, given: Mapping[str, Any], *, by_key: bool = False) -> Sequence[Any]:
        """Run one statement that gives rows.

        Parameters:
            statement: one of few, which are made at the start. When the connection turns out to be dead it is run
                again, once, on a new one: so it must come to the same if it has been run already.
            given: its parameters.
            by_key: whether it finds what it reads by a key; with SQLite it is run on the spot then.

        Returns:
            The rows, in the order of the columns.

        Raises:
            StoreUnavailable: it could not be run, and has changed nothing; unless no answer came in time, when nobody
                knows. The message is for the operator.
        """
        if not self.is_sqlite:
            return await self.run(lambda connection: _rows(connection, statement, given))
        connected = self._connected.get(asyncio.get_running_loop())
        if connected is None or not connected.prepared:
            await self.check()
        file = self._file
        if file is None:
            file = self._file = SQLiteFile(str(self._url.database), CONNECT_PATIENCE)
        if by_key and (found := file.find(statement, given)) is not None:
            return found
        try:
            async with asyncio.timeout(PATIENCE):
                return await file.run(statement, given)
        except Exception as error:
            raise self.unavailable(error) from error

    async def check(self) -> None:
        """Connect, make the tables if they are not there, and check their version. Raises as `run` does."""

        async def nothing(_connection: AsyncConnection) -> None:
            pass

        await self.run(nothing)

    def unavailable(self, error: Exception) -> StoreUnavailable:
        """Say what is wrong to an operator."""
        return StoreUnavailable(f"{self.name}: {_in_words(error)}")

    async def close(self) -> None:
        """End the connections of this event loop, when what is under way has ended."""
        connected = self._connected.pop(asyncio.get_running_loop(), None)
        if all(loop.is_closed() for loop in self._connected):  # or others use it
            file, self._file = self._file, None
            if file is not None:
                await in_own_thread(file.close)
        if connected is not None and connected.life is not None:
            await connected.life.aclose()

    async def _connect(self) -> _Connected:
        for loop in [loop for loop in list(self._connected) if loop.is_closed()]:
            self._connected.pop(loop, None)
        connected = _Connected(self._engine())
        connected.idle.set()
        connected.life = self._life(connected, asyncio.get_running_loop())
        await anext(connected.life)
        return connected

    async def _life(self, connected: _Connected, loop: asyncio.AbstractEventLoop) -> AsyncGenerator[None, None]:
        self._connected[loop] = connected
        try:
            yield
        finally:
            if self._connected.get(loop) is connected:
                del self._connected[loop]
            await connected.idle.wait()
            await connected.engine.dispose()

    def _engine(self) -> AsyncEngine:
        options: dict[str, Any] = {
            "isolation_level": "AUTOCOMMIT",
            "skip_autocommit_rollback": True,
            "hide_parameters": True,
            "max_overflow": 0,
            "pool_timeout": 2 * PATIENCE,  # `run` waits less
        }
        if not self.is_sqlite:
            return create_async_engine(
                "postgresql+asyncpg://",
                async_creator=self.connect_to_postgresql,
                pool_size=CONNECTIONS,
                pool_recycle=CONNECTION_LIFE,
                pool_use_lifo=True,
                **options,
            )
        # One connection: a file has one writer at a time anyway, and the others of this process wait in order here.
        engine = create_async_engine(self._url, pool_size=1, connect_args={"timeout": CONNECT_PATIENCE}, **options)
        event.listen(engine.sync_engine, "connect", _set_up_sqlite)
        return engine

    async def connect_to_postgresql(self) -> Any:
        """Make a connection of asyncpg's, past the pool."""
        import asyncpg  # type: ignore[import-untyped]

        async with asyncio.timeout(CONNECT_PATIENCE):
            for name in _hosts(self._url):
                with suppress(OSError):  # which asyncpg meets, too, and says where
                    # Where asyncpg does it, a name server that does not answer holds the end of the event loop.
                    await in_own_thread(partial(socket.getaddrinfo, name, None))
        # asyncpg reads a plain URL as libpq does: sslmode, sockets, several hosts.
        url = self._url.set(drivername="postgresql").render_as_string(hide_password=False)
        return await asyncpg.connect(url, timeout=CONNECT_PATIENCE, command_timeout=PATIENCE)

    async def _prepare(self, connected: _Connected) -> None:
        """Make the tables if they are not there, and check that they are of the right version."""
        async with connected.preparing:
            if connected.prepared:
                return
            await self._try_to_open()
            async with connected.engine.connect() as connection:
                found = await self._found(connection)
                if found is None:
                    found = await self._make_tables(connection)
            if found != self._version:
                raise WrongVersion(self._why_refused(found))
            connected.prepared = True

    async def _try_to_open(self) -> None:
        if self.is_sqlite:
            # Where that fails, aiosqlite would leave a thread that reports to this loop, be it closed or not.
            await in_own_thread(lambda: self._open_privately(str(self._url.database)))

    def _open_privately(self, path: str) -> None:
        with suppress(OSError):  # which SQLite says itself, in words that have a hint
            make_private(path)
        sqlite3.connect(path).close()
        if not self._told_mode and (files := open_to_others(path)):
            self._told_mode = True
            logger.warning(
                "%s: others on this machine may read or write %s: `chmod 600` them, unless that is meant",
                self.name,
                ", ".join(files),
            )

    async def _found(self, connection: AsyncConnection) -> str | None:
        if not await connection.run_sync(lambda sync: inspect(sync).has_table(SCHEMA.name)):
            return None
        return str(await connection.scalar(select(SCHEMA.c.version_num)))

    async def _make_tables(self, connection: AsyncConnection) -> str:
        """Make the tables if they are still not there, and give their version."""
        async with self._alone(connection):
            found = await self._found(connection)
            if found is None:
                await connection.run_sync(SCHEMA.create)
                await connection.run_sync(self._tables.create_all)
                await connection.execute(SCHEMA.insert().values(version_num=self._version))
        return found or self._version

    async def upgrade(self, migrate: Callable[[Connection], None]) -> str | None:
        """Lead older tables to the present version, or make them if there are none.

        Parameters:
            migrate: leads them from whatever version they are of. All it does is one transaction.

        Returns:
            The version that was found; None if there were no tables.

        Raises:
            StoreUnavailable: it could not be done, and nothing was.
        """
        connected = self._connected.get(asyncio.get_running_loop()) or await self._connect()
        try:
            await self._try_to_open()
            async with connected.engine.connect() as connection:
                found = await self._found(connection)
                if found is None:
                    await self._make_tables(connection)
                    return None
                if found not in self._versions:
                    raise WrongVersion(self._why_refused(found))
                async with self._alone(connection):
                    await connection.run_sync(migrate)
                return found
        except StoreUnavailable:
            raise
        except Exception as error:
            raise self.unavailable(error) from error

    def _why_refused(self, found: str) -> str:
        works = f"and this release of mrtr_server works with version {self._version} only"
        if found in self._versions:
            way = "upgrade them with `mrtr-server db upgrade`, which servers that run meanwhile do not mind"
        else:
            way = "install the release that made them, or a later one"
        return f"{self.name}: its tables are of version {found}, {works}; {way}"

    @asynccontextmanager
    async def _alone(self, connection: AsyncConnection) -> AsyncIterator[None]:
        """A transaction that changes the tables, while no other process does."""
        try:
            if self.is_sqlite:
                await _keep_a_log(connection)
                await connection.exec_driver_sql("BEGIN IMMEDIATE")
            else:
                await connection.exec_driver_sql("BEGIN")
                await connection.execute(select(func.pg_advisory_xact_lock(SCHEMA_LOCK)))
            yield
            await connection.exec_driver_sql("COMMIT")
        except BaseException:
            await connection.invalidate()  # which rolls back, whatever the state it is in
            raise


def _hosts(url: URL) -> list[str]:
    """Return the names of the servers that may be connected to; none for a socket's directory or an address of IPv6."""
    given = url.query.get("host") or url.host or os.environ.get("PGHOST", "")
    listed = given.split(",") if isinstance(given, str) else given
    return [host.partition(":")[0] for host in listed if host and host[0] not in "/@[" and host.count(":") < 2]


async def _rows(connection: AsyncConnection, statement: Executable, given: Mapping[str, Any]) -> Sequence[Any]:
    return (await connection.execute(statement, given)).all()


def _read(url: str) -> URL:
    try:
        read = make_url(url.strip())
        backend, _, driver = read.drivername.partition("+")
        if "@" in (read.host or ""):
            raise ValueError  # the rest of a password
    except Exception:  # whose text may repeat the password
        raise SetupError(
            "The database's URL can't be read; write sqlite:///file.db or postgresql://user:password@host/name, with "
            "what is special in the password percent-encoded"
        ) from None
    backend = "postgresql" if backend == "postgres" else backend
    if backend not in DRIVERS:
        raise SetupError(f"The database must be sqlite:///… or postgresql://…, and not {backend}")
    if driver not in ("", DRIVERS[backend]):
        raise SetupError(f"The driver of {backend} must be {DRIVERS[backend]}, and not {driver}; write {backend}://…")
    read = read.set(drivername=f"{backend}+{DRIVERS[backend]}")
    try:
        read.get_dialect().import_dbapi()
    except ImportError as error:
        raise lacking(f"{backend}://", EXTRAS[backend], error) from error
    if backend != "sqlite":
        return read
    if sqlite3.sqlite_version_info < OLDEST_SQLITE:
        raise SetupError(f"SQLite must be 3.35 or later, and this Python has {sqlite3.sqlite_version}")
    file = read.database or ""
    if file in ("", ":memory:") or file.startswith("file:"):
        raise SetupError(
            "A SQLite database must be a file, as in sqlite:///file.db: one in memory can't be shared, and "
            "InProcessStore() does what it could do"
        )
    return read.set(database=str(Path(file).absolute()))  # so that nothing changes when the process goes elsewhere


def _set_up_sqlite(connection: Any, _record: object) -> None:
    cursor = connection.cursor()
    # A record that was lost with the power would let an effect happen twice.
    cursor.execute("PRAGMA synchronous=FULL")
    cursor.close()


async def _keep_a_log(connection: AsyncConnection) -> None:
    """Put a SQLite file into WAL mode, for good."""
    end = time.monotonic() + CONNECT_PATIENCE
    while True:
        try:
            await connection.exec_driver_sql("PRAGMA journal_mode=WAL")
            return
        except OperationalError as error:
            if "locked" not in str(error.orig) or time.monotonic() > end:
                raise
            await asyncio.sleep(0.02)  # SQLite does not wait here by itself, as it does everywhere else


def _in_words(error: Exception) -> str:
    """Say what is wrong to an operator, with what to do about it where that is known. No values are repeated."""
    if isinstance(error, TimeoutError):
        return "no answer in time"
    original: BaseException = error.orig if isinstance(error, DBAPIError) and error.orig is not None else error
    original = original.__cause__ or original  # SQLAlchemy puts the driver's error into one of its own
    said = str(original).partition("\n")[0] or type(original).__name__  # further lines may hold values
    if isinstance(original, OSError):
        said = f"can't connect: {said}"
    hint = next((hint for words, hint in HINTS.items() if words in said), "")
    return f"{said}; {hint}" if hint else said
