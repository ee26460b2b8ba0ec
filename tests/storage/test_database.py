"""A database by its URL: what is accepted, what an operator is told when it fails, and how it comes back."""

import asyncio
import gc
import os
import re
import shutil
import sqlite3
import stat
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import asyncpg  # type: ignore[import-untyped]
import pytest

from mrtr_server import Context, MRTRServer, SetupError, SQLStore, Store, StoreUnavailable
from mrtr_server.errors import WrongVersion
from mrtr_server.storage import store_of
from mrtr_server.storage.sql import open_database, sqlite
from mrtr_server.storage.sql import postgresql as module
from mrtr_server.storage.sql.database import Version
from mrtr_server.storage.sql.postgresql import PostgreSQLDatabase
from mrtr_server.storage.sql.sqlite import SQLiteDatabase
from mrtr_server.storage.sql.urls import names_in, servers_in
from mrtr_server.testing import Client, Clock, yes

from ..support.databases import PostgreSQL
from ..support.serving import TIMEOUT

pytestmark = pytest.mark.anyio


def name_of(url: str) -> str:
    return open_database(url).name


def connections(store: SQLStore) -> int:
    """How many connections a store holds, or event loops that have some."""
    if isinstance(store.database, PostgreSQLDatabase):
        return len(store.database._connected.values())
    assert isinstance(store.database, SQLiteDatabase)
    return len(store.database._users.values())


async def works(store: Store, state: str = "state") -> bool:
    """Whether a store grants a delivery, or knows of the grant."""
    return (await store.redeem(state, "answers", lease=60, keep=600)).verdict in ("granted", "running")


async def failure(store: Store) -> str:
    """What an operator is told when a delivery fails."""
    with pytest.raises(StoreUnavailable) as caught:
        await store.redeem("state", "answers", lease=60, keep=600)
    return str(caught.value)


async def failure_at(url: str) -> str:
    """What an operator is told when a delivery fails at a database that is used for nothing else."""
    store = SQLStore(url)
    try:
        return await failure(store)
    finally:
        await store.close()


class TestTheModeOfASQLiteFile:
    """What it keeps is sealed, and its rows still say who did what and when."""

    @pytest.fixture(autouse=True)
    def usual_umask(self) -> Iterator[None]:
        before = os.umask(0o022)
        yield
        os.umask(before)

    def modes(self, folder: Path) -> dict[str, str]:
        return {path.name: f"{stat.S_IMODE(path.stat().st_mode):o}" for path in folder.iterdir()}

    async def test_is_that_of_its_owner_alone_and_so_are_its_companions(
        self, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        store = SQLStore(f"sqlite:///{tmp_path}/new.db")
        assert await works(store)
        assert self.modes(tmp_path) == {"new.db": "600", "new.db-wal": "600", "new.db-shm": "600"}
        with closing(sqlite3.connect(tmp_path / "new.db")) as other, pytest.raises(sqlite3.OperationalError):
            other.execute("PRAGMA journal_mode=DELETE")  # which makes a -journal, where it can
        await store.close()
        with closing(sqlite3.connect(tmp_path / "new.db", isolation_level=None)) as other:
            other.execute("PRAGMA journal_mode=DELETE")
            other.execute("BEGIN IMMEDIATE")
            other.execute("UPDATE mrtr_schema SET version_num = version_num")
            assert self.modes(tmp_path) == {"new.db": "600", "new.db-journal": "600"}
            other.execute("ROLLBACK")
        assert caplog.records == []

    async def test_of_one_that_was_there_is_left_and_told_once(
        self, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        (tmp_path / "old.db").touch(0o644)
        (tmp_path / "closed.db").touch(0o600)
        (tmp_path / "closed.db-wal").touch(0o640)
        for _ in range(2):
            for name in ("old", "closed"):
                store = SQLStore(f"sqlite:///{tmp_path}/{name}.db")
                assert await works(store)
                await store.close()
        assert self.modes(tmp_path)["old.db"] == "644"
        lines = [text for record in caplog.records if "may read or write" in (text := record.getMessage())]
        assert len(lines) == 3  # the -wal is no more at the second start
        assert f"others on this machine may read or write {tmp_path}/old.db (644)" in lines[0]
        assert f"{tmp_path}/closed.db-wal (640)" in lines[1]
        assert all("`chmod 600` them" in line for line in lines)

    async def test_of_one_is_told_once_however_many_loops_use_it(
        self, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        (tmp_path / "old.db").touch(0o644)
        store = SQLStore(f"sqlite:///{tmp_path}/old.db")
        assert await works(store)
        await asyncio.to_thread(lambda: asyncio.run(works(store, "another")))
        await store.close()
        assert await works(store, "a third"), "it is opened again"
        await store.close()
        assert [record.getMessage().count("may read or write") for record in caplog.records] == [1]

    def test_is_that_of_its_owner_when_the_command_makes_it(self, tmp_path: Path) -> None:
        command = [str(Path(sys.executable).parent / "mrtr-server"), "db", "upgrade"]
        subprocess.run([*command, "--database", f"sqlite:///{tmp_path}/made.db"], check=True, capture_output=True)
        assert set(self.modes(tmp_path).values()) == {"600"}


class TestURL:
    @pytest.mark.parametrize("scheme", ["sqlite", "sqlite+aiosqlite"])
    async def test_a_sqlite_file(self, tmp_path: Path, scheme: str) -> None:
        store = SQLStore(f"{scheme}:///{tmp_path}/a file.db")
        assert await works(store)
        await store.close()
        assert (tmp_path / "a file.db").is_file()
        assert store.database.name == f"sqlite:///{tmp_path}/a file.db"

    async def test_a_relative_path_is_from_where_the_process_was_then(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        (tmp_path / "elsewhere").mkdir()
        monkeypatch.chdir(tmp_path)
        store = SQLStore()
        monkeypatch.chdir(tmp_path / "elsewhere")
        assert await works(store)
        await store.close()
        assert (tmp_path / "mrtr_server.db").is_file()

    @pytest.mark.parametrize("scheme", ["postgresql", "postgres", "postgresql+asyncpg"])
    async def test_a_postgresql_database(self, postgresql: PostgreSQL, scheme: str) -> None:
        store = SQLStore(postgresql.url().replace("postgresql", scheme, 1))
        assert await works(store, scheme)
        await store.close()

    async def test_options_of_libpq_are_understood(self, postgresql: PostgreSQL) -> None:
        store = SQLStore(postgresql.url() + "&sslmode=disable&target_session_attrs=read-write&application_name=ours")
        assert await works(store, "options")
        assert await store.database.execute("SHOW application_name", {}) == [("ours",)]
        await store.close()

    @pytest.mark.parametrize(
        "url", ["sqlite://", "sqlite:///:memory:", "sqlite+aiosqlite://", "sqlite:///file:x?uri=true"]
    )
    def test_a_database_in_memory_is_refused(self, url: str) -> None:
        with pytest.raises(SetupError, match=r"must be a file, .* InProcessStore"):
            SQLStore(url)

    @pytest.mark.parametrize("url", ["sqlite://host/file.db", "sqlite://me:secret@host/file.db?mode=ro", "sqlite:file"])
    def test_a_url_of_a_file_with_a_host_or_without_its_slashes_is_refused(self, url: str) -> None:
        with pytest.raises(SetupError, match=r"The database's URL can't be read; write sqlite:///file\.db") as caught:
            SQLStore(url)
        assert "secret" not in str(caught.value)

    @pytest.mark.parametrize("url", ["mysql://user:secret@host/name", "oracle+cx://user:secret@host/name"])
    def test_another_kind_of_database_is_refused(self, url: str) -> None:
        with pytest.raises(
            SetupError, match=r"must be sqlite:///… or postgresql://…, and not (mysql|oracle)"
        ) as caught:
            SQLStore(url)
        assert "secret" not in str(caught.value)

    @pytest.mark.parametrize("url", ["postgresql+psycopg2://user:secret@host/name", "sqlite+pysqlite:///file.db"])
    def test_another_driver_is_refused_with_the_way_out(self, url: str) -> None:
        with pytest.raises(SetupError, match=r"write (postgresql|sqlite)://…$") as caught:
            SQLStore(url)
        assert "secret" not in str(caught.value)

    @pytest.mark.parametrize(
        "url",
        [
            "",
            "nothing",
            "tasks.db",
            "postgresql://user:secret@host:port/name",
            "postgresql://user:top@secret@host/name",
            "postgresql:secret",
        ],
    )
    def test_what_is_no_url_is_refused_without_repeating_it(self, url: str) -> None:
        with pytest.raises(SetupError, match="percent-encoded") as caught:
            SQLStore(url)
        assert "secret" not in str(caught.value)
        assert caught.value.__suppress_context__

    def test_the_name_of_a_database_holds_no_password(self) -> None:
        assert name_of("postgresql://me:secret@host:5433/name?sslpassword=secret") == "postgresql://me@host:5433/name"
        assert name_of("postgresql://me:@/name?host=/run/pg") == "postgresql://me@/name at /run/pg"

    @pytest.mark.parametrize(
        ("missing", "url", "extra"),
        [
            ("asyncpg", "postgresql://host/x", "postgres"),
        ],
    )
    def test_without_an_extra_the_error_says_how_to_install_it(self, missing: str, url: str, extra: str) -> None:
        code = f"""
import sys
sys.modules["{missing}"] = None
import mrtr_server
try:
    mrtr_server.SQLStore("{url}")
except mrtr_server.SetupError as error:
    print(error)
"""
        done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
        assert f" needs {missing}. Install the extra {extra!r}, or: pip install '" in done.stdout


class TestASQLiteThatIsTooOld:
    """As that of RHEL 9 and of Debian 11, which their Pythons have."""

    @pytest.fixture(autouse=True)
    def old(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(sqlite3, "sqlite_version_info", (3, 34, 1))
        monkeypatch.setattr(sqlite3, "sqlite_version", "3.34.1")

    def test_is_refused_with_its_version(self, tmp_path: Path) -> None:
        with pytest.raises(SetupError, match=r"SQLite must be 3\.35 or later, and this Python has 3\.34\.1"):
            SQLStore(f"sqlite:///{tmp_path}/store.db")
        with pytest.raises(SetupError, match=r"^store: SQLite must be 3\.35"):
            MRTRServer("old", keys=[bytes(32)], store=f"sqlite:///{tmp_path}/store.db")

    def test_keeps_no_server_from_its_tasks_and_confirmations_in_one_process(self) -> None:
        app = MRTRServer("old", keys=[bytes(32)])

        @app.tool(single_use=True, task="optional")
        async def pay(ctx: Context) -> str:
            await ctx.confirm("Pay?")
            return "paid"

        for tasks in (False, True):
            assert Client(app, tasks=tasks).call("pay", answers={"confirm": yes}).text == "paid"

    def test_is_good_enough_where_it_is_just_not_too_old(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(sqlite3, "sqlite_version_info", (3, 35, 0))
        assert asyncio.run(works(SQLStore(f"sqlite:///{tmp_path}/store.db")))


class TestSSLMode:
    """What a URL says of encryption is what the server is asked for, by the first bytes on the wire."""

    ASKS = (80877103).to_bytes(4, "big")
    """The code of an SSLRequest (PostgreSQL, Message Formats)."""

    @pytest.mark.parametrize(
        ("options", "asks"),
        [
            ("?sslmode=disable", False),
            ("?sslmode=prefer", True),
            ("?sslmode=require", True),
        ],
    )
    @pytest.mark.parametrize("scheme", ["postgresql", "postgresql+asyncpg"])
    async def test_is_heeded(self, scheme: str, options: str, asks: bool) -> None:
        first: list[bytes] = []

        async def refuse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            first.append((await reader.readexactly(8))[4:])
            if first[-1] == self.ASKS:
                writer.write(b"N")  # no encryption here
                await writer.drain()
                await reader.read(8)
            writer.close()

        server = await asyncio.start_server(refuse, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        store = SQLStore(f"{scheme}://me:secret@127.0.0.1:{port}/name{options}")
        message = await failure(store)
        await store.close()
        server.close()
        await server.wait_closed()
        assert (first[0] == self.ASKS) is asks
        if options == "?sslmode=require":
            assert "rejected SSL upgrade" in message
            assert set(first) == {self.ASKS}, "it went on without"

    async def test_that_verifies_needs_a_certificate_to_trust_and_says_so(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("HOME", str(tmp_path))
        monkeypatch.delenv("PGSSLROOTCERT", raising=False)
        message = await failure_at("postgresql://me:secret@127.0.0.1:1/name?sslmode=verify-full")
        assert f'root certificate file "{tmp_path}/.postgresql/root.crt" does not exist' in message


class TestStoreOf:
    def test_where_no_database_is_named_there_is_none(self) -> None:
        for environment in ({}, {"MRTR_DATABASE_URL": ""}, {"MRTR_DATABASE_URL": " \n"}):
            assert store_of(None, environment) is None

    def test_it_takes_the_url_that_it_is_given(self, tmp_path: Path) -> None:
        store = store_of(f"sqlite:///{tmp_path}/given.db", {"MRTR_DATABASE_URL": f"sqlite:///{tmp_path}/other.db"})
        assert isinstance(store, SQLStore)
        assert store.database.name.endswith("given.db")

    def test_it_takes_the_url_of_the_environment(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("MRTR_DATABASE_URL", f" sqlite:///{tmp_path}/set.db\n")
        store = store_of()
        assert isinstance(store, SQLStore)
        assert store.database.name.endswith("set.db")

    @pytest.mark.parametrize("given", [True, False])
    def test_an_error_says_where_the_url_came_from_and_not_what_it_is(self, given: bool) -> None:
        url = "mysql://user:secret@host/name"
        with pytest.raises(SetupError, match="^store: The" if given else "^MRTR_DATABASE_URL: The") as caught:
            store_of(url if given else None, {"MRTR_DATABASE_URL": url})
        assert "secret" not in str(caught.value)

    def test_a_url_that_is_empty_is_no_url(self) -> None:
        with pytest.raises(SetupError, match="can't be read"):
            store_of("", {})


@pytest.fixture
async def store(url: str) -> AsyncIterator[SQLStore]:
    """A store in an empty database of either kind."""
    store = SQLStore(url)
    yield store
    await store.close()


class TestEventLoops:
    """No lifespan is needed, and no loop leaves anything behind; that warnings are errors holds the latter."""

    def test_one_store_serves_one_loop_after_the_other(self, postgresql: PostgreSQL, tmp_path: Path) -> None:
        for url in (f"sqlite:///{tmp_path}/store.db", postgresql.url()):
            store = SQLStore(url)
            for number in range(3):
                assert asyncio.run(works(store, f"loop {number}"))
                assert connections(store) == 0
            del store
            gc.collect()

    def test_loops_in_several_threads_share_it(self, postgresql: PostgreSQL, tmp_path: Path) -> None:
        for url in (f"sqlite:///{tmp_path}/store.db", postgresql.url()):
            store = SQLStore(url)
            granted: list[str] = []

            async def deliver(store: SQLStore = store, granted: list[str] = granted) -> None:
                for number in range(20):
                    delivery = await store.redeem(f"thread {number}", "answers", lease=60, keep=600)
                    granted += [f"thread {number}"] * (delivery.verdict == "granted")

            threads = [threading.Thread(target=lambda run=deliver: asyncio.run(run())) for _ in range(3)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join(TIMEOUT)
            assert sorted(granted) == sorted(f"thread {number}" for number in range(20))
            assert connections(store) == 0

    def test_one_that_nobody_closed_ends_with_its_loop(self, postgresql: PostgreSQL, tmp_path: Path) -> None:
        for url in (f"sqlite:///{tmp_path}/store.db", postgresql.url()):

            async def use(url: str = url) -> bool:
                store = SQLStore(url)
                return await works(store) and await works(store)  # the second one is looked up

            assert asyncio.run(use())
            gc.collect()

    def test_one_that_nobody_knows_any_more_is_closed_by_its_loop_and_not_by_the_garbage_collector(
        self, caplog: pytest.LogCaptureFixture
    ) -> None:
        """The collector can only ask for that, and a loop that is about to end does not do it to its end."""
        with asyncio.Runner() as runner:
            runner.run(failure(SQLStore("postgresql://me:secret@127.0.0.1:1/name")))
            gc.collect()
        gc.collect()
        assert [record.message for record in caplog.records if record.name == "asyncio"] == []

    async def test_a_closed_one_has_no_connections_until_it_is_used_again(self, store: SQLStore) -> None:
        assert await works(store)
        await store.close()
        assert connections(store) == 0
        assert await works(store)

    @pytest.mark.parametrize("sleep", [True, False], ids=["under way", "idle"])
    async def test_a_postgresql_is_closed_when_what_is_under_way_has_ended(
        self, postgresql: PostgreSQL, sleep: bool
    ) -> None:
        store = SQLStore(postgresql.url(await postgresql.new_database()))
        assert await works(store)
        under_way = asyncio.create_task(store.database.execute(f"SELECT pg_sleep({0.5 * sleep})", {}))
        await asyncio.sleep(0)
        await store.close()
        assert under_way.done()
        assert len(await under_way) == 1

    async def test_connections_are_few(self, postgresql: PostgreSQL) -> None:
        name = await postgresql.new_database()
        store = SQLStore(postgresql.url(name))
        await asyncio.gather(*(works(store, f"state {number}") for number in range(100)))
        count = f"SELECT count(*) FROM pg_stat_activity WHERE datname = '{name}'"  # noqa: S608
        assert await postgresql.fetch(count) == module.CONNECTIONS
        await store.close()

    def test_those_that_have_ended_use_a_file_no_longer_when_it_is_closed(self, tmp_path: Path) -> None:
        database = SQLiteDatabase(str(tmp_path / "store.db"))
        for _ in range(2):
            asyncio.run(database.check())
            assert database._file is not None
        asyncio.run(database.close())
        assert database._file is None

    async def test_looking_at_the_version_takes_no_connections_of_its_own(self, postgresql: PostgreSQL) -> None:
        database = PostgreSQLDatabase(postgresql.url(await postgresql.new_database()), "name")
        await database.check()
        (before,) = database._connected.values()
        assert await database.upgrade() == await database.found_version() == (database.version, "6")
        assert list(database._connected.values()) == [before]
        await database.close()


class TestSchema:
    async def change_version(self, store: SQLStore, to: str) -> None:
        await store.database.execute(f"UPDATE mrtr_schema SET version_num = '{to}', compatible_from = '{to}'", {})  # noqa: S608
        await store.close()  # it is looked at when a connection is made

    async def test_another_version_is_refused_until_it_is_the_right_one(self, store: SQLStore, url: str) -> None:
        assert await works(store)
        await self.change_version(store, "999")
        refused = SQLStore(url)
        for _ in range(2):
            assert "tables are of version 999, and this release of mrtr_server works with version" in await failure(
                refused
            )
        fixing = SQLStore(url)
        fixing.database.migrations["999"] = []
        await self.change_version(fixing, refused.database.version)
        assert await works(refused)
        await refused.close()

    async def test_the_tables_are_made_once_by_many_at_once(self, url: str) -> None:
        stores = [SQLStore(url) for _ in range(8)]
        assert all(await asyncio.gather(*(works(store) for store in stores)))
        (versions,) = {
            str([tuple(row) for row in await store.database.execute("SELECT version_num FROM mrtr_schema", {})])
            for store in stores
        }
        assert versions == "[('6',)]"
        assert len({await store.epoch() for store in stores}) == 1
        for store in stores:
            await store.close()

    async def test_making_them_is_all_or_nothing(self, store: SQLStore, monkeypatch: pytest.MonkeyPatch) -> None:
        with monkeypatch.context() as patched:
            patched.setitem(store.database.migrations, "4", ["CREATE TABLE mrtr_schema (this_is_there INTEGER)"])
            patched.setitem(store.database.migrations, "5", ["CREATE TABLE mrtr_schema (and_not_twice INTEGER)"])
            assert "already exists" in await failure(store)
        assert await works(store)

    async def test_a_user_who_may_not_make_them_is_told(self, postgresql: PostgreSQL) -> None:
        name = await postgresql.new_database()
        await postgresql.fetch("DROP ROLE IF EXISTS reader")
        await postgresql.fetch("CREATE ROLE reader LOGIN")
        store = SQLStore(postgresql.url(name, user="reader"))
        assert "permission denied for schema public; the user needs CREATE once" in await failure(store)
        owner = SQLStore(postgresql.url(name))
        assert await works(owner)
        await owner.close()
        await postgresql.fetch("GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA public TO reader", name)
        assert await works(store)
        await store.close()


@contextmanager
def nobody() -> Iterator[None]:
    """Be a user whom permissions hold for, which they do not for root."""
    if os.geteuid():
        yield
        return
    os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(0)


def allow(path: Path, mode: int) -> None:
    """Change what users may do with a file or folder."""
    path.chmod(mode)


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder that every user can get to."""
    path = Path(tempfile.mkdtemp(prefix="mrtr-"))
    path.chmod(0o777)
    yield path
    path.chmod(0o777)
    shutil.rmtree(path)


DISK_FAILS = """
import asyncio, resource, sys
from mrtr_server import SQLStore, StoreUnavailable
from mrtr_server.storage.sql import sqlite

def pause(seconds):
    if sys.argv[2] == "once":
        resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))

async def main():
    sqlite.time.sleep = pause
    store = SQLStore(sys.argv[1])
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, resource.RLIM_INFINITY))
    try:
        print(await store.put("key", b"value", keep=10))
    except StoreUnavailable as error:
        print(error)
    await store.close()

asyncio.run(main())
"""
"""No file may grow beyond one page, which SQLite meets as an error of the disk."""


class TestSQLiteTrouble:
    def test_an_error_of_the_disk_is_met_twice_before_it_counts_and_any_other_once(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        database = SQLiteDatabase(f"{tmp_path}/store.db")
        naps: list[float] = []
        errors: list[str] = []

        def upgrade(steps: object) -> Version:
            if errors:
                raise sqlite3.OperationalError(errors.pop(0))
            return Version("6")

        monkeypatch.setattr(time, "sleep", naps.append)
        monkeypatch.setattr(database, "_try_to_upgrade", upgrade)
        errors[:] = ["disk I/O error"]
        assert database._run_steps(database.steps_from) == Version("6")
        assert naps == [0.1]
        errors[:] = ["disk I/O error"] * 2
        with pytest.raises(sqlite3.OperationalError, match="disk I/O error"):
            database._run_steps(database.steps_from)
        naps.clear()
        errors[:] = ["no room"]
        with pytest.raises(sqlite3.OperationalError, match="no room"):
            database._run_steps(database.steps_from)
        assert naps == []

    @pytest.mark.parametrize(
        ("how_often", "said"),
        [
            pytest.param(
                "always",
                r"sqlite:///\S+: disk I/O error \(SQLITE_IOERR_[A-Z]+\); the disk can't be written, because .*",
                id="always",
            ),
            pytest.param("once", "True", id="once"),
        ],
    )
    def test_an_error_of_the_disk_is_named_if_it_comes_again(self, tmp_path: Path, how_often: str, said: str) -> None:
        """Who opens the file as others make or leave it may meet one on a sound disk."""
        command = [sys.executable, "-c", DISK_FAILS, f"sqlite:///{tmp_path}/store.db", how_often]
        done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT, check=True)
        assert re.fullmatch(said, done.stdout.strip())

    async def test_a_folder_that_is_missing_and_then_is_there(self, tmp_path: Path) -> None:
        store = SQLStore(f"sqlite:///{tmp_path}/missing/store.db")
        assert await failure(store) == (
            f"sqlite:///{tmp_path}/missing/store.db: unable to open database file; its folder must exist, and this "
            "process must be allowed to write there"
        )
        (tmp_path / "missing").mkdir()
        assert await works(store)
        await store.close()

    async def test_a_file_that_is_no_database(self, tmp_path: Path) -> None:
        (tmp_path / "store.db").write_text("This is a text, and no database. " * 100)
        store = SQLStore(f"sqlite:///{tmp_path}/store.db")
        assert "file is not a database" in await failure(store)
        await store.close()

    async def test_a_folder_that_may_not_be_written_to(self, folder: Path) -> None:
        store = SQLStore(f"sqlite:///{folder}/store.db")
        allow(folder, 0o555)
        with nobody():
            assert "unable to open database file; its folder must exist, and this process" in await failure(store)
        allow(folder, 0o777)
        with nobody():
            assert await works(store)
            await store.close()

    async def test_a_file_that_may_not_be_written_to(self, folder: Path) -> None:
        store = SQLStore(f"sqlite:///{folder}/store.db")
        assert await works(store)
        await store.close()
        allow(folder / "store.db", 0o444)
        with nobody():
            assert "readonly database; this process must be allowed to write" in await failure(store)
        for file in sorted(os.listdir(folder)):
            allow(folder / file, 0o666)
        with nobody():
            assert await works(store), "the connection that could only read is not used again"
            await store.close()

    async def test_a_disk_that_is_full_loses_nothing_and_has_room_again(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        clock = Clock(1_000.0)
        store = SQLStore(f"sqlite:///{tmp_path}/store.db", clock=clock)
        assert await works(store, "precious")
        await store.database.execute("PRAGMA max_page_count=60", {})
        kept: list[str] = []

        async def fill() -> None:
            while await store.put(key := f"key {len(kept)}", bytes(3_000), keep=10):
                kept.append(key)

        with pytest.raises(StoreUnavailable, match="database or disk is full; free some space"):
            await fill()
        assert len(kept) > 10
        assert [len(await store.get(key) or b"") for key in kept] == [3_000] * len(kept)
        assert (await store.redeem("precious", "answers", lease=60, keep=600)).verdict == "running"
        clock.advance(11)
        monkeypatch.setattr("mrtr_server.storage.sql.store.SWEEP_INTERVAL", 0.0)
        assert await store.put("key", bytes(3_000), keep=10)
        await store.close()

    async def test_another_process_that_writes_for_too_long(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        store = SQLStore(f"sqlite:///{tmp_path}/store.db")
        monkeypatch.setattr(sqlite, "CONNECT_TIMEOUT", 0.2)
        assert await works(store)
        other = sqlite3.connect(tmp_path / "store.db")
        other.execute("BEGIN IMMEDIATE")
        assert "database is locked; another process has been writing" in await failure(store)
        assert await store.get("reading goes on") is None
        other.rollback()
        other.close()
        assert await works(store)
        await store.close()

    @pytest.mark.parametrize("ends", [True, False], ids=["ends", "lasts"])
    @pytest.mark.parametrize("statements", ["BEGIN EXCLUSIVE", "BEGIN; SELECT * FROM other"], ids=["write", "read"])
    async def test_a_file_that_another_process_uses_just_now_is_waited_for(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, statements: str, ends: bool
    ) -> None:
        if not ends:
            monkeypatch.setattr(sqlite, "CONNECT_TIMEOUT", 0.2)
        store = SQLStore(f"sqlite:///{tmp_path}/store.db")
        with closing(sqlite3.connect(tmp_path / "store.db", isolation_level=None)) as other:
            other.execute("CREATE TABLE other (number INTEGER)")
            for statement in statements.split("; "):
                other.execute(statement).fetchall()
            if not ends:
                assert "database is locked" in await failure(store)
                return
            opening = asyncio.create_task(works(store))
            await asyncio.sleep(0.2)
            assert not opening.done()
            other.execute("COMMIT")
            assert await opening
        await store.close()

    def test_two_that_turn_on_the_log_of_a_file_wait_for_each_other(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """SQLite does not, there."""
        statements: list[str] = []

        class Refusing(sqlite3.Connection):
            errors: list[str]

            def execute(self, sql: str, *given: Any) -> sqlite3.Cursor:
                statements.append(sql)
                if self.errors:
                    raise sqlite3.OperationalError(self.errors.pop(0))
                return super().execute(sql, *given)

        def turn_on(*errors: str) -> None:
            statements.clear()
            with closing(sqlite3.connect(":memory:", factory=Refusing)) as connection:
                connection.errors = list(errors)
                sqlite._keep_a_log(connection)

        turn_on("database is locked", "database is locked")
        assert statements == ["PRAGMA journal_mode=WAL"] * 3
        with pytest.raises(sqlite3.OperationalError, match="disk is full"):
            turn_on("disk is full")
        assert len(statements) == 1
        monkeypatch.setattr(sqlite, "CONNECT_TIMEOUT", 0.1)
        with pytest.raises(sqlite3.OperationalError, match="locked"):
            turn_on(*["database is locked"] * 1000)
        assert len(statements) > 1

    async def test_errors_hold_no_values(self, tmp_path: Path) -> None:
        store = SQLStore(f"sqlite:///{tmp_path}/missing/store.db")
        with pytest.raises(StoreUnavailable) as caught:
            await store.put("key of mine", b"value of mine", keep=10)
        error: BaseException | None = caught.value
        while error is not None:
            assert "of mine" not in str(error)
            error = error.__cause__ or error.__context__


class TestADirectURL:
    """Where it is given, there is a pooler: it may send what comes next on a connection to another server."""

    @pytest.fixture
    async def store(self, postgresql: PostgreSQL, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[SQLStore]:
        url = postgresql.url(await postgresql.new_database())
        monkeypatch.setenv("MRTR_DATABASE_DIRECT_URL", f" {url}&application_name=direct\n")
        store = SQLStore(f"{url}&application_name=pooled")
        yield store
        await store.close()

    async def test_lets_nothing_be_kept_prepared(self, store: SQLStore) -> None:
        assert await works(store)
        assert isinstance(store.database, PostgreSQLDatabase)

        async def look(connection: Any) -> int:
            prepared: int = await connection.fetchval("SELECT count(*) FROM pg_prepared_statements WHERE name <> ''")
            return prepared

        assert await store.database.run(look) == 0
        assert await store.database.upgrade() == await store.database.found_version() == (store.database.version, "6")

    async def test_is_that_of_the_connection_that_listens(self, store: SQLStore) -> None:
        connection = await store.database.connect_alone()
        assert await connection.fetchval("SHOW application_name") == "direct"
        await connection.close()
        assert [tuple(row) for row in await store.database.execute("SHOW application_name", {})] == [("pooled",)]

    async def test_has_a_connection_whose_name_says_that_it_listens_so_that_all_who_do_are_counted(
        self, store: SQLStore
    ) -> None:
        assert await store.database.rows("count_listeners") == [(0,)]
        store.notices.start()
        async with asyncio.timeout(TIMEOUT):
            while not store.notices.connected:  # noqa: ASYNC110  a thread connects
                await asyncio.sleep(0.01)
        assert await store.database.rows("count_listeners") == [(1,)]
        names = "SELECT application_name FROM pg_stat_activity WHERE application_name LIKE '%mrtr-notices'"
        assert await store.database.execute(names, {}) == [("direct, mrtr-notices",)]

    @pytest.mark.parametrize("direct", ["sqlite:///file.db", "postgresql://me:top@secret@host/name", "nothing"])
    def test_that_is_wrong_is_refused(self, direct: str, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("MRTR_DATABASE_DIRECT_URL", direct)
        with pytest.raises(SetupError) as caught:
            SQLStore("postgresql://me@host/name")
        assert "secret" not in str(caught.value)


class TestPostgreSQLTrouble:
    async def test_one_that_is_not_there(self, tmp_path: Path) -> None:
        message = await failure_at(f"postgresql://me:secret@/name?host={tmp_path}")
        assert message.startswith(f"postgresql://me@/name at {tmp_path}: can't connect: ")
        assert "secret" not in message

    async def test_a_database_that_is_not_there(self, postgresql: PostgreSQL) -> None:
        assert 'database "missing" does not exist' in await failure_at(postgresql.url("missing"))

    async def test_a_user_who_is_not_there(self, postgresql: PostgreSQL) -> None:
        assert 'role "missing" does not exist' in await failure_at(postgresql.url(user="missing"))

    async def test_a_statement_that_fails_is_not_run_again(self, postgresql: PostgreSQL) -> None:
        database = PostgreSQLDatabase(postgresql.url(), "name")
        runs: list[int] = []

        async def divide(connection: Any) -> Any:
            runs.append(len(runs))
            return await connection.fetch("SELECT 1 / 0")

        with pytest.raises(StoreUnavailable, match="division by zero"):
            await database.run(divide)
        assert runs == [0]
        await database.close()

    async def test_one_that_never_answers_is_waited_for_for_a_while(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(module, "CONNECT_TIMEOUT", 0.3)

        left = asyncio.Event()

        async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.read()
            writer.close()
            left.set()

        server = await asyncio.start_server(silent, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        message = await failure_at(f"postgresql://me:secret@127.0.0.1:{port}/name")
        assert message == f"postgresql://me@127.0.0.1:{port}/name: no answer in time"
        await left.wait()
        server.close()
        await server.wait_closed()

    async def test_a_statement_that_has_to_wait_does_so_for_a_while(
        self, postgresql: PostgreSQL, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        name = await postgresql.new_database()
        store = SQLStore(postgresql.url(name))
        assert await works(store)
        with monkeypatch.context() as patched:
            patched.setattr(module, "TIMEOUT", 0.3)
            async with postgresql.connection(name) as other, other.transaction():
                await other.execute("LOCK TABLE mrtr_redemptions IN ACCESS EXCLUSIVE MODE")
                messages = await asyncio.gather(*(failure(store) for _ in range(12)))
            assert {message.rpartition(": ")[2] for message in messages} == {"no answer in time"}
        assert await works(store)
        await store.close()

    async def test_looking_at_the_version_waits_for_no_lock_for_ever(
        self, postgresql: PostgreSQL, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        name = await postgresql.new_database()
        database = PostgreSQLDatabase(postgresql.url(name), "name")
        await database.check()
        await database.close()
        monkeypatch.setattr(module, "TIMEOUT", 0.3)
        async with postgresql.connection(name) as other, other.transaction():
            await other.execute("LOCK TABLE mrtr_schema IN ACCESS EXCLUSIVE MODE")
            for look in (database.found_version, database.upgrade):
                with pytest.raises(StoreUnavailable, match="name: no answer in time"):
                    await asyncio.wait_for(look(), TIMEOUT)
        await database.close()

    async def test_a_connection_that_listens_waits_no_longer_than_the_others(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        asked: list[dict[str, Any]] = []
        monkeypatch.setattr(module, "CONNECT_TIMEOUT", 4.0)
        monkeypatch.setattr(module, "TIMEOUT", 7.0)

        async def connect(url: str, **options: Any) -> None:
            asked.append(options)
            raise ConnectionRefusedError

        monkeypatch.setattr(asyncpg, "connect", connect)
        with pytest.raises(ConnectionRefusedError):
            await PostgreSQLDatabase("postgresql://127.0.0.1/name", "name").connect_alone()
        assert asked == [{"timeout": 4.0, "command_timeout": 7.0, "statement_cache_size": module.STATEMENTS}]

    async def test_a_restart_between_two_calls_is_not_even_noticed(self, postgresql: PostgreSQL) -> None:
        store = SQLStore(postgresql.url())
        granted = await store.redeem("restart", "answers", lease=60, keep=600)
        await asyncio.gather(*(works(store, f"restart {number}") for number in range(20)))  # several connections
        await asyncio.to_thread(postgresql.stop)
        await asyncio.to_thread(postgresql.start)
        assert await store.record("restart", granted.token, b"done")
        assert all(await asyncio.gather(*(works(store, f"restart {number}") for number in range(20))))
        await store.close()

    async def test_one_that_goes_away_and_comes_back_serves_the_same_store(self, postgresql: PostgreSQL) -> None:
        store = SQLStore(postgresql.url())
        granted = await store.redeem("away", "answers", lease=60, keep=600)
        assert granted.verdict == "granted"
        granted_again: list[str] = []
        messages: list[str] = []
        stop = asyncio.Event()

        async def deliver(worker: int) -> None:
            number = 0
            while not stop.is_set():
                number += 1
                state = f"away {worker} {number}"
                try:
                    delivery = await store.redeem(state, "answers", lease=60, keep=600)
                    if delivery.verdict == "granted":
                        granted_again.append(state)
                except StoreUnavailable as error:
                    messages.append(str(error))
                    await asyncio.sleep(0.01)

        workers = [asyncio.create_task(deliver(worker)) for worker in range(4)]
        await asyncio.sleep(0.2)
        await asyncio.to_thread(postgresql.stop)
        await asyncio.sleep(0.3)
        assert "can't connect" in await failure(store)
        await asyncio.to_thread(postgresql.start)
        await asyncio.sleep(0.3)
        stop.set()
        await asyncio.gather(*workers)
        assert len(messages) > 20
        assert {message.startswith(f"{store.database.name}: ") for message in messages} == {True}
        assert len(granted_again) == len(set(granted_again)) > 20
        for state in granted_again:  # nothing that was granted was lost
            assert (await store.redeem(state, "answers", lease=60, keep=600)).verdict == "running"
        assert await store.record("away", granted.token, b"done")
        await store.close()

    async def test_a_reply_that_is_lost_with_its_connection_is_found_again(self, postgresql: PostgreSQL) -> None:
        name = await postgresql.new_database()
        store = SQLStore(postgresql.url(name))
        assert await works(store)
        attempts = []

        async def lose(connection: Any) -> str:
            attempts.append(await connection.fetchval("SELECT pg_backend_pid()"))
            if len(attempts) == 1:  # done, and then the server goes
                await postgresql.fetch(f"SELECT pg_terminate_backend({attempts[0]}, 5000)")
                await connection.fetchval("SELECT 1")
            return "done"

        assert isinstance(store.database, PostgreSQLDatabase)
        assert await store.database.run(lose) == "done"
        assert len(set(attempts)) == 2
        await store.close()

    async def test_a_server_that_ends_all_connections_at_once_costs_nobody_a_statement(
        self, postgresql: PostgreSQL
    ) -> None:
        """As at a restart: its last word on each waits to be read, and the driver takes every connection for usable."""
        name = await postgresql.new_database()
        store = SQLStore(postgresql.url(name))
        await asyncio.gather(*(store.database.rows("find_epoch") for _ in range(20)))  # the pool is warm
        others = f"FROM pg_stat_activity WHERE datname = '{name}'"

        def end_all() -> None:  # while nobody here reads
            asyncio.run(postgresql.fetch(f"SELECT pg_terminate_backend(pid, 5000) {others}"))

        thread = threading.Thread(target=end_all)
        thread.start()
        thread.join()
        for _ in range(6):
            assert await store.epoch()
            assert await works(store)
        await store.close()

    async def test_no_reason_of_an_outage_is_a_word_of_the_driver(self, postgresql: PostgreSQL) -> None:
        store = SQLStore(postgresql.url(await postgresql.new_database()))

        async def meet(connection: Any) -> None:
            raise asyncpg.InternalClientError("cannot switch to state 12; another operation (2) is in progress")

        assert isinstance(store.database, PostgreSQLDatabase)
        with pytest.raises(StoreUnavailable) as refused:
            await store.database.run(meet)
        assert str(refused.value) == f"{store.database.name}: the server has ended the connection; its own log says why"
        await store.close()

    async def test_a_connection_that_is_about_to_die_is_not_waited_for(self, postgresql: PostgreSQL) -> None:
        """The driver says so by an error of its own, when the server's last word is still on its way."""
        store = SQLStore(postgresql.url(await postgresql.new_database()))
        assert await works(store)
        attempts = []

        async def meet(connection: Any) -> str:
            attempts.append(await connection.fetchval("SELECT pg_backend_pid()"))
            if len(attempts) == 1:
                raise asyncpg.InternalClientError("cannot switch to state 12; another operation is in progress")
            return "done"

        assert isinstance(store.database, PostgreSQLDatabase)
        assert await store.database.run(meet) == "done"
        assert len(set(attempts)) == 2, "it is not used again"
        assert await works(store)
        await store.close()


NAME_SERVER_IS_SILENT = """
import asyncio, socket, sys, time
from mrtr_server import SQLStore, StoreUnavailable
from mrtr_server.storage.sql import postgresql

postgresql.CONNECT_TIMEOUT = 1.0
asked = []

def silent(host, *rest, **options):
    asked.append(host)
    time.sleep(600)

socket.getaddrinfo = silent  # no real name server stays silent for the asking

async def main():
    try:
        await SQLStore("postgresql://tools@db.example:5433/tools").check()
    except StoreUnavailable as error:
        print(asked, error)

asyncio.run(main())
"""


def test_a_name_server_that_does_not_answer_holds_no_process() -> None:
    done = subprocess.run(
        [sys.executable, "-c", NAME_SERVER_IS_SILENT], capture_output=True, text=True, timeout=TIMEOUT, check=True
    )
    assert done.stdout.startswith("['db.example'] postgresql://tools@db.example:5433/tools: no answer in time")


@pytest.mark.parametrize(
    ("url", "names"),
    [
        ("postgresql://u@db.example/x", ["db.example"]),
        ("postgresql://u@10.0.0.1:5433/x", ["10.0.0.1"]),
        ("postgresql://u@[::1]/x", []),
        ("postgresql://u@/x?host=::1", []),
        ("postgresql://u@/x?host=/run/postgresql", []),
        ("postgresql://u@/x?host=one:5432&host=two:5432", ["one", "two"]),
        ("postgresql://u@/x?host=one,two", ["one", "two"]),
    ],
)
def test_the_names_to_look_up_are_those_of_the_url(url: str, names: list[str]) -> None:
    assert names_in(url) == names


def test_the_name_to_look_up_is_that_of_the_environment_when_the_url_has_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PGHOST", "db.example")
    assert names_in("postgresql://u@/x") == ["db.example"]
    assert names_in("postgresql://u@other.example/x") == ["other.example"]


@pytest.mark.parametrize(
    ("url", "servers"),
    [
        ("postgresql://u@one/x", []),
        ("postgresql://u@one,two/x", [("one", 5432), ("two", 5432)]),
        ("postgresql://u@one:5433,two:5434/x", [("one", 5433), ("two", 5434)]),
        ("postgresql://u@one,two/x?port=5433", [("one", 5433), ("two", 5433)]),
        ("postgresql://u@/x?host=one,two&port=5433,5434", [("one", 5433), ("two", 5434)]),
        ("postgresql://u@/x?host=/run/a&host=/run/b", [("/run/a", 5432), ("/run/b", 5432)]),
        ("postgresql://u@%2Frun%2Fa,[::1]:5433,10.0.0.1/x", [("/run/a", 5432), ("::1", 5433), ("10.0.0.1", 5432)]),
        ("postgresql://u@one,two/x?target_session_attrs=read-write", [("one", 5432), ("two", 5432)]),
        ("postgresql://u@one,two/x?target_session_attrs=any", []),
    ],
)
def test_several_servers_of_a_url_are_as_libpq_reads_it(url: str, servers: list[tuple[str, int]]) -> None:
    assert servers_in(url) == servers


def test_several_servers_may_be_in_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PGHOST", "one,two")
    monkeypatch.setenv("PGPORT", "5433")
    assert servers_in("postgresql://u@/x") == [("one", 5433), ("two", 5433)]
    monkeypatch.setenv("PGTARGETSESSIONATTRS", "any")
    assert servers_in("postgresql://u@/x") == []


def test_an_error_without_a_text_is_called_by_its_kind() -> None:
    database = open_database("sqlite:///store.db")
    for error, said in ((LookupError(), "LookupError"), (ConnectionError(), "can't connect: ConnectionError")):
        assert str(database.unavailable(error)) == f"{database.name}: {said}"


@pytest.mark.parametrize("found", ["1", "999"])
def test_tables_of_another_version_are_refused(found: str) -> None:
    database = open_database("sqlite:///store.db")
    database.check_version(Version(database.version))
    with pytest.raises(WrongVersion, match=f"its tables are of version {found}, "):
        database.check_version(Version(found))


@pytest.mark.parametrize(("url", "one_machine"), [("sqlite:///store.db", True), ("postgresql://host/name", False)])
def test_a_file_serves_one_machine_and_a_server_many(url: str, one_machine: bool) -> None:
    assert SQLStore(url).one_machine is one_machine
