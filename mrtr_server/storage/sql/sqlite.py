"""A SQLite database by its path: the tables are made by one process, while the others wait."""

import asyncio
import json
import os
import sqlite3
import stat
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar

from typing_extensions import override

from ...concurrency.running import PerLoop
from ...concurrency.threads import in_own_thread
from ...errors import SetupError, StoreUnavailable
from ...logs import logger
from ..health import note_wait, time_left
from .database import CONNECT_TIMEOUT, TIMEOUT, Database, Version
from .sqlite_file import SQLiteFile

T = TypeVar("T")

KEEP_A_LOG = "PRAGMA journal_mode=WAL"  # for good

OLDEST = (3, 35)  # the first with RETURNING


class SQLiteDatabase(Database):
    """A SQLite file, for the processes of one machine; see `Database`. Raises `SetupError` where it can't be used."""

    session = (KEEP_A_LOG,)

    def __init__(self, path: str, clock: Callable[[], float] = time.time) -> None:
        if sqlite3.sqlite_version_info < OLDEST:
            raise SetupError(
                f"SQLite must be {'.'.join(map(str, OLDEST))} or later, and this Python has {sqlite3.sqlite_version}"
            )
        if path in ("", ":memory:") or path.startswith("file:"):
            raise SetupError(
                "A SQLite database must be a file, as in sqlite:///file.db: one in memory can't be shared, and "
                "InProcessStore() does what it could do"
            )
        self._path = str(Path(path).absolute())  # so that nothing changes when the process goes elsewhere
        super().__init__("sqlite", f"sqlite:///{self._path}")
        self._clock = clock
        self._file: SQLiteFile | None = None
        self._told_mode = False
        self._users = PerLoop[bool]()

    @property
    @override
    def is_new(self) -> bool:
        """Whether there is no file, in a folder that is there: nobody has made it yet, or its name is mistyped."""
        path = Path(self._path)
        return path.parent.is_dir() and not path.exists()

    async def find(self, statement: str, **given: Any) -> Sequence[Any]:
        """Look a row up by its key, on the spot where nobody has to be waited for; see `Database.find`."""
        if self._file is not None:
            found = self._file.find(self.statements[statement], {**given, "now": self._clock()})
            if found is not None:
                return found
        return await self.rows(statement, **given)

    async def execute(self, sql: str, given: Mapping[str, Any]) -> Sequence[Any]:
        """Run a statement as it is written, and return its rows; see `Database.execute`."""
        given = {name: json.dumps(value) if isinstance(value, list) else value for name, value in given.items()}
        given["now"] = self._clock()
        self._users.here(lambda: True)
        way, began = self.ways.get(sql, "client"), time.monotonic()
        try:
            async with asyncio.timeout(time_left(TIMEOUT) if way == "client" else self.timeout_of(way)):
                file = self._file or await self._opened()
                return await file.run(sql, given, is_urgent=way != "client")
        except StoreUnavailable:
            raise
        except Exception as error:
            raise self.unavailable(error) from error
        finally:
            if way != "heartbeat":  # which is beside the request
                note_wait(began)

    async def check(self) -> None:
        """Open the file, make the tables if they are not there, and check their version; see `Database.check`."""
        self._users.here(lambda: True)
        await self._opened()

    def time(self) -> float:
        """Return the time of this machine, on which all processes of the file run; see `Database.time`."""
        return self._clock()

    async def _change(self, steps: Callable[[Version | None], Sequence[str]]) -> Version | None:
        return await self._in_thread(lambda: self._run_steps(steps))

    async def found_version(self) -> Version | None:
        """Return the version of the tables that are there; see `Database.found_version`."""

        def look() -> Version | None:
            if self.is_new:  # to connect would make it
                return None
            with closing(self._connect()) as connection:
                return self._find_version(connection)

        return await self._in_thread(look)

    async def close(self) -> None:
        """End the use of the file by this event loop, and close it unless others use it."""
        self._users.pop()
        if not self._users.values():
            file, self._file = self._file, None
            if file is not None:
                await in_own_thread(file.close)

    async def _opened(self) -> SQLiteFile:
        def make_tables() -> None:
            found = self._run_steps(lambda found: self.steps_from(None) if found is None else [])
            self.check_version(found)
            with closing(self._connect()) as connection:
                self._note_epoch(*connection.execute(self.statements["find_epoch"]).fetchone())

        if self._file is None:
            await self._in_thread(make_tables)
        if self._file is None:  # or another event loop has been faster
            self._file = SQLiteFile(self._path, CONNECT_TIMEOUT)
        return self._file

    async def _in_thread(self, work: Callable[[], T]) -> T:
        try:
            async with asyncio.timeout(TIMEOUT):
                done: T = await in_own_thread(work)
                return done
        except Exception as error:
            raise self.unavailable(error) from error

    def _connect(self) -> sqlite3.Connection:
        with suppress(OSError):  # which SQLite says itself, in words that have a hint
            make_private(self._path)
        connection = sqlite3.connect(self._path, timeout=CONNECT_TIMEOUT, isolation_level=None)
        if not self._told_mode and (files := _open_to_others(self._path)):
            self._told_mode = True
            logger.warning(
                "%s: others on this machine may read or write %s: `chmod 600` them, unless that is intended",
                self.name,
                ", ".join(files),
            )
        return connection

    def _find_version(self, connection: sqlite3.Connection) -> Version | None:
        try:
            found = connection.execute(self.statements["find_version"]).fetchone()
        except sqlite3.OperationalError as error:
            if "no such table" in str(error):
                return None
            raise
        return None if found is None else Version(*found)

    def _run_steps(self, steps: Callable[[Version | None], Sequence[str]]) -> Version | None:
        try:
            return self._try_to_upgrade(steps)
        except sqlite3.OperationalError as error:
            if "disk I/O error" not in str(error):
                raise
            time.sleep(0.1)  # happens on a sound disk while others make or leave the file
            return self._try_to_upgrade(steps)

    def _try_to_upgrade(self, steps: Callable[[Version | None], Sequence[str]]) -> Version | None:
        with closing(self._connect()) as connection:
            found = self._find_version(connection)
            if not steps(found):
                return found
            _keep_a_log(connection)
            with _transaction(connection, *self.opening):
                now = self._find_version(connection)  # another process may have been faster
                for step in steps(now):
                    connection.execute(step)
                return now if found is None else found


@contextmanager
def _transaction(connection: sqlite3.Connection, begin: str) -> Iterator[None]:
    connection.execute(begin)
    try:
        yield
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise
    connection.execute("COMMIT")


def _keep_a_log(connection: sqlite3.Connection) -> None:
    """Put a file into WAL mode, for good."""
    end = time.monotonic() + CONNECT_TIMEOUT
    while True:
        try:
            connection.execute(KEEP_A_LOG)
            return
        except sqlite3.OperationalError as error:
            if "locked" not in str(error) or time.monotonic() > end:
                raise
            time.sleep(0.02)  # SQLite does not wait here by itself, as it does everywhere else


# Who may read the file: the user of this process alone, if we make it


COMPANIONS = ("", "-wal", "-shm", "-journal")
"""Appended to the name of a file, for those that SQLite keeps beside it with the same mode."""

_OTHERS = stat.S_IRWXG | stat.S_IRWXO


def make_private(path: str) -> None:
    """Make a file that its owner alone may read and write, if there is none."""
    with suppress(FileExistsError):
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600))


def _open_to_others(path: str) -> list[str]:
    """Return the files that others than the owner may read or write, each with its mode."""
    if os.name != "posix":
        return []
    found = []
    for companion in COMPANIONS:
        try:
            mode = stat.S_IMODE(os.stat(path + companion).st_mode)
        except OSError:
            continue
        if mode & _OTHERS:
            found.append(f"{path}{companion} ({mode:o})")
    return found
