"""Versions of the tables: made by themselves, refused when they are another release's, upgraded by a command."""

import asyncio
import os
import re
import sqlite3
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import asyncpg  # type: ignore[import-untyped]
import pytest
from click.testing import CliRunner

from mrtr_server import KeyRing, SealedCodec, SQLStore, StoreUnavailable
from mrtr_server.cli import main
from mrtr_server.errors import WrongVersion
from mrtr_server.storage.sql import administration, open_database
from mrtr_server.storage.sql.administration import upgrade
from mrtr_server.storage.sql.database import Database, Version, read_migrations
from mrtr_server.storage.sql.sqlite import make_private

from ..support.databases import TOOLS, PostgreSQL, task_row
from ..support.serving import KEYS, TIMEOUT, in_process

pytestmark = pytest.mark.anyio

NEWEST = "6"


async def on(url: str, *statements: str) -> Any:
    """Run statements past every store, whatever the version of the tables, and return the rows of the last one."""
    if url.startswith("sqlite"):
        connection = sqlite3.connect(url.removeprefix("sqlite:///"), isolation_level=None)
        try:
            return [connection.execute(statement).fetchall() for statement in statements][-1]
        finally:
            connection.close()
    other = await asyncpg.connect(url)
    try:
        return [await other.fetch(statement) for statement in statements][-1]
    finally:
        await other.close()


async def old(url: str) -> None:
    """Make the tables of the first release, with something in them."""
    kind = url.partition(":")[0]
    first = ["CREATE TABLE mrtr_schema (version_num VARCHAR(32) NOT NULL, PRIMARY KEY (version_num))"]
    first += ["INSERT INTO mrtr_schema (version_num) VALUES ('1')", *read_migrations(kind)["1"]]
    value = "x'6b657074'" if kind == "sqlite" else "'kept'::bytea"
    if kind == "sqlite":
        make_private(url.removeprefix("sqlite:///"))  # as ours are
    await on(url, *first, f"INSERT INTO mrtr_kept VALUES ('key', {value}, 'writer', 9e9)")  # noqa: S608


async def has_tasks(url: str) -> bool:
    """Whether there is a table of tasks."""
    if url.startswith("sqlite"):
        return bool(await on(url, "SELECT name FROM sqlite_master WHERE name = 'mrtr_tasks'"))
    return bool(await on(url, "SELECT relname FROM pg_class WHERE relname = 'mrtr_tasks'"))


async def version(url: str) -> str:
    ((found,),) = await on(url, "SELECT version_num FROM mrtr_schema")
    return str(found)


async def refusal(url: str) -> str:
    store = SQLStore(url)
    with pytest.raises(WrongVersion) as caught:
        await store.find_task("id")
    await store.close()
    return str(caught.value)


async def works(url: str) -> bool:
    store, row = SQLStore(url), task_row()
    await store.add_task(row)
    found = await store.find_task(row.id)
    await store.close()
    return found == row


class TestVersions:
    def test_each_has_a_migration_that_leads_to_it(self) -> None:
        for kind in ("sqlite", "postgresql"):
            assert list(read_migrations(kind)) == ["1", "2", "3", "4", "5", "6"]

    async def test_word_for_word_on_sqlite(self, tmp_path: Path) -> None:
        made, upgraded = tmp_path / "made.db", tmp_path / "upgraded.db"
        assert await works(f"sqlite:///{made}")
        await old(f"sqlite:///{upgraded}")
        await upgrade(f"sqlite:///{upgraded}")

        def schema(file: Path) -> set[str]:
            connection = sqlite3.connect(file)
            statements = connection.execute("SELECT sql FROM sqlite_master WHERE sql IS NOT NULL").fetchall()
            connection.close()
            return {"".join(sql.split()) for (sql,) in statements if "mrtr_schema" not in sql}

        assert schema(made) == schema(upgraded)

    async def test_word_for_word_on_postgresql(self, postgresql: PostgreSQL) -> None:
        made, upgraded = await postgresql.new_database(), await postgresql.new_database()
        assert await works(postgresql.url(made))
        await old(postgresql.url(upgraded))
        await upgrade(postgresql.url(upgraded))
        indexes = "SELECT string_agg(indexdef, '\n' ORDER BY indexdef) FROM pg_indexes WHERE tablename LIKE 'mrtr%'"
        columns = """
            SELECT string_agg(concat_ws(' ', table_name, column_name, data_type, is_nullable, column_default), '\n'
            ORDER BY table_name, ordinal_position) FROM information_schema.columns
            WHERE table_name LIKE 'mrtr%' AND table_name <> 'mrtr_schema'
        """
        for statement in (indexes, columns):
            first, second = [await postgresql.fetch(statement, name) for name in (made, upgraded)]
            assert first.replace("mrtr_schema_pkey", "mrtr_schema_pkc") == second.replace(
                "mrtr_schema_pkey", "mrtr_schema_pkc"
            )


class TestFirstUse:
    async def test_a_fresh_database_is_made_by_itself(self, url: str) -> None:
        assert await works(url)
        assert await version(url) == NEWEST

    async def test_an_older_one_is_refused_with_the_way_out_and_left_as_it_is(self, url: str) -> None:
        await old(url)
        assert f"tables are of version 1, and this release of mrtr_server works with version {NEWEST}" in await refusal(
            url
        )
        assert "`mrtr-server db upgrade`" in await refusal(url)
        assert await version(url) == "1"
        assert not await has_tasks(url)

    async def test_a_newer_one_is_refused_with_the_way_out(self, url: str) -> None:
        assert await works(url)
        await on(url, "UPDATE mrtr_schema SET version_num = '99', compatible_from = '99'")
        assert "tables are of version 99" in await refusal(url)
        assert "install the release that made them" in await refusal(url)
        assert "upgrade" not in await refusal(url)

    async def test_a_store_that_was_refused_works_after_the_upgrade_without_a_restart(self, url: str) -> None:
        await old(url)
        store = SQLStore(url)
        with pytest.raises(StoreUnavailable):
            await store.get("key")
        await upgrade(url)
        assert await store.get("key") == b"kept"
        await store.close()


class TestUpgrade:
    async def test_leads_from_every_version_and_keeps_what_is_there(self, url: str) -> None:
        await old(url)
        assert (await upgrade(url)).endswith(f"upgraded from version 1 to version {NEWEST}")
        assert await version(url) == NEWEST
        store = SQLStore(url)
        assert await store.get("key") == b"kept"
        await store.close()
        assert await works(url)

    @pytest.mark.parametrize("work", [administration.upgrade, administration.script])
    async def test_closes_the_database_as_its_script_does(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, work: Callable[[str], Awaitable[str]]
    ) -> None:
        database = open_database(f"sqlite:///{tmp_path}/rows.db")
        close, closed = database.close, list[str]()

        async def note_and_close() -> None:
            closed.append("closed")
            await close()

        monkeypatch.setattr(database, "close", note_and_close)
        monkeypatch.setattr(administration, "open_database", lambda _: database)
        assert await work("sqlite:///rows.db")
        assert closed == ["closed"]

    async def test_may_be_run_again(self, url: str) -> None:
        await old(url)
        await upgrade(url)
        assert f"nothing to do, the tables are at version {NEWEST}" in await upgrade(url)
        assert await works(url)

    async def test_that_another_process_finished_first_runs_nothing(
        self, url: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        await upgrade(url)
        steps = Database.steps_from
        asked: list[str | None] = []

        def too_late(database: Database, found: Version | None) -> list[str]:
            asked.append(found and found.number)
            return steps(database, Version("1") if len(asked) == 1 else found)

        with monkeypatch.context() as patched:
            patched.setattr(Database, "steps_from", too_late)
            await upgrade(url)
        assert asked == [NEWEST, NEWEST]
        assert await works(url)

    async def test_that_another_process_finished_meanwhile_returns_what_there_was_before(
        self, url: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        await upgrade(url)
        database = open_database(url)

        def find(*versions: Version | None) -> None:
            left = list(versions)

            def now(connection: object) -> Version | None:
                return left.pop(0)

            async def later(connection: object) -> Version | None:
                return left.pop(0)

            monkeypatch.setattr(database, "_find_version", later if database.notifies else now)

        find(Version("1"), Version(NEWEST))
        assert await database.upgrade() == Version("1")
        find(None, Version("99"))
        with pytest.raises(WrongVersion, match="its tables are of version 99"):
            await database.check()
        await database.close()

    async def test_makes_the_tables_where_there_are_none(self, url: str) -> None:
        assert (await upgrade(url)).endswith(f"created the tables, at version {NEWEST}")
        assert await works(url)

    async def test_of_a_newer_one_is_refused(self, url: str) -> None:
        await upgrade(url)
        await on(url, "UPDATE mrtr_schema SET version_num = '99', compatible_from = '99'")
        with pytest.raises(WrongVersion, match="version 99"):
            await upgrade(url)
        assert await version(url) == "99"

    async def test_is_all_or_nothing(self, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
        await old(url)

        steps = Database.steps_from
        with monkeypatch.context() as patched:
            patched.setattr(Database, "steps_from", lambda self, found: [*steps(self, found), "SELECT no_such_column"])
            with pytest.raises(StoreUnavailable, match="no_such_column"):
                await upgrade(url)
        assert await version(url) == "1"
        assert not await has_tasks(url)
        assert (await upgrade(url)).endswith(f"to version {NEWEST}")

    async def test_many_at_once_do_it_once(self, url: str) -> None:
        await old(url)
        line = [sys.executable, "-W", "error", "-c", "from mrtr_server.cli import main; main()", "db", "upgrade"]
        environment = {**os.environ, "MRTR_DATABASE_URL": url}
        running = [
            asyncio.to_thread(subprocess.run, line, env=environment, capture_output=True, text=True, timeout=TIMEOUT)
            for _ in range(4)
        ]
        done = await asyncio.gather(*running)
        assert [(each.returncode, each.stderr) for each in done] == [(0, "")] * 4
        assert await version(url) == NEWEST
        assert await works(url)

    async def test_goes_on_beside_servers_of_the_older_release(self, url: str) -> None:
        """Whose store has looked at the version before."""
        await old(url)
        older = SQLStore(url)
        for later in list(older.database.migrations)[1:]:
            del older.database.migrations[later]
        older.database.statements["find_epoch"] = "SELECT ''"  # of which it knows nothing
        assert await older.get("key") == b"kept"
        await upgrade(url)
        assert await older.get("key") == b"kept"
        await on(
            url,  # as that release wrote it
            "INSERT INTO mrtr_redemptions (state, answers, token, attempt, leased_until, expires) "
            "VALUES ('state', 'answers', 'token', 1, 1, 9e9)",
        )
        assert [tuple(each) for each in await on(url, "SELECT tasks, states FROM mrtr_usage")] in (
            [(0, 2)],
            [(0, 1), (0, 1)],
        ), "what it writes is counted, and what was there before"
        await older.close()

    async def test_a_task_that_an_older_release_lets_go_on_is_claimed_at_once(self, postgresql: PostgreSQL) -> None:
        """It does not say since when a task waits, and a claim looks from the first one on that waited."""
        url = postgresql.url(await postgresql.new_database())
        store, row = SQLStore(url), task_row()
        await store.add_task(row)
        (claimed,) = await store.claim_tasks("mine", seconds=60, most=1, tools=TOOLS)
        await store.change_task(claimed, status="input_required", lease="", leased_until=0.0)
        assert await store.claim_tasks("mine", seconds=60, most=1, tools=TOOLS) == []
        await on(url, "UPDATE mrtr_tasks SET status = 'working', version = version + 1, writer = 'older'")
        assert [each.id for each in await store.claim_tasks("mine", seconds=60, most=1, tools=TOOLS)] == [row.id]
        await store.close()

    async def test_waits_for_no_lock_for_ever(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        url = f"sqlite:///{tmp_path}/store.db"
        await old(url)
        monkeypatch.setattr("mrtr_server.storage.sql.sqlite.CONNECT_TIMEOUT", 0.2)
        other = sqlite3.connect(tmp_path / "store.db")
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(StoreUnavailable, match="database is locked; another process"):
            await upgrade(url)
        other.rollback()
        other.close()


class TestSealedRows:
    TOKEN = SealedCodec(KeyRing([bytes(32)])).seal(b"x" * 100).encode()

    async def kept(self, url: str) -> bytes:
        """Keep a token in a task; return it as it is in the tables, after it has come back as it was."""
        store, row = SQLStore(url), task_row(call=self.TOKEN, journal=b"no token")
        await store.check()
        await store.add_task(row)
        changed = await store.change_task(row, outcome=self.TOKEN)
        found = await store.find_task(row.id)
        await store.close()
        assert found == changed == row._replace(outcome=self.TOKEN, version=1)
        ((call, journal, outcome),) = await on(
            url,
            f"SELECT call, journal, outcome FROM mrtr_tasks WHERE id = '{row.id}'",  # noqa: S608
        )
        assert (call, journal) == (outcome, b"no token")
        return bytes(call)

    async def test_of_new_tables_are_kept_without_base64(self, url: str) -> None:
        assert len(await self.kept(url)) == len(self.TOKEN) * 3 // 4
        await on(url, "UPDATE mrtr_schema SET compatible_from = '5'")
        assert await self.kept(url) == self.TOKEN, "what is there is found whatever is written now"

    async def test_of_upgraded_tables_are_those_that_servers_of_the_older_release_read(self, url: str) -> None:
        await old(url)
        await upgrade(url)
        assert await self.kept(url) == self.TOKEN
        await on(url, "UPDATE mrtr_schema SET version_num = '7', compatible_from = '6'")
        assert len(await self.kept(url)) < len(self.TOKEN), "from the next upgrade on"


class TestLaterTables:
    """To go back to this release after `db upgrade` of a later one, no backup is needed where the tables say so."""

    LATER = (
        "ALTER TABLE mrtr_tasks ADD COLUMN later TEXT NOT NULL DEFAULT 'x'",
        "CREATE TABLE mrtr_later (id TEXT)",
        "UPDATE mrtr_schema SET version_num = '12', compatible_from = '6'",
    )

    async def test_work_where_they_say_that_this_release_is_new_enough(self, url: str) -> None:
        assert await works(url)
        await on(url, *self.LATER)
        assert await works(url)
        store = SQLStore(url)
        assert (await store.redeem("state", "answers", lease=60, keep=600)).verdict == "granted"
        await store.close()

    async def test_are_left_as_they_are_by_the_upgrade_of_this_one(self, url: str) -> None:
        await upgrade(url)
        await on(url, *self.LATER)
        before = await found_in(url)
        assert (await upgrade(url)).endswith("nothing to do, the tables are at the later version 12, which works, too")
        assert await administration.script(url) == ""
        assert await found_in(url) == before
        assert await version(url) == "12"

    @pytest.mark.parametrize("oldest", ["7", "", "x"])
    async def test_are_refused_where_they_do_not(self, url: str, oldest: str) -> None:
        await upgrade(url)
        await on(url, *self.LATER, f"UPDATE mrtr_schema SET compatible_from = '{oldest}'")  # noqa: S608
        assert "tables are of version 12, and this release of mrtr_server works with version 6, and with later" in (
            await refusal(url)
        )

    async def test_begin_another_epoch_as_ours_do(self, url: str) -> None:
        await upgrade(url)
        await on(url, *self.LATER)
        assert "has begun" in await administration.new_epoch(url)
        assert await version(url) == "12"

    async def test_are_reviewed_by_what_they_need(self, postgresql: PostgreSQL) -> None:
        """A later release may have dropped an index of ours."""
        url = postgresql.url(await postgresql.new_database())
        await upgrade(url)
        drop = f"DROP INDEX {next(iter(open_database(url).later_indexes))}"
        await on(url, drop)
        assert "an index is missing" in str(await administration.review(url))
        await on(url, *self.LATER)
        assert "an index is missing" not in str(await administration.review(url))

    async def test_are_served(self, url: str, tmp_path: Path) -> None:
        await upgrade(url)
        await on(url, *self.LATER)
        await asyncio.to_thread(TestServers().started, url, tmp_path / "log")

    @pytest.mark.parametrize("kind", ["sqlite", "postgresql"])
    def test_each_says_from_which_on(self, kind: str) -> None:
        """Nobody forgets it: a release that can't work with them would otherwise try to."""
        says = re.compile(r"UPDATE mrtr_schema SET compatible_from = '\d+'")
        later = [number for number in read_migrations(kind) if int(number) > 5]
        assert [number for number in later if not any(map(says.fullmatch, read_migrations(kind)[number]))] == []


async def found_in(url: str) -> Any:
    """Return all that is in a database, by name."""
    if url.startswith("sqlite"):
        return await on(url, "SELECT name, sql FROM sqlite_master ORDER BY name")
    return await on(url, "SELECT relname, relkind FROM pg_class WHERE relname LIKE '%mrtr%' ORDER BY relname")


@asynccontextmanager
async def in_transaction(url: str, statement: str) -> AsyncIterator[None]:
    """Let a transaction of somebody else run a statement, and stay open for as long as the block lasts."""
    other = await asyncpg.connect(url)
    try:
        async with other.transaction():
            await other.execute(statement)
            yield
    finally:
        await other.close()


INDEXES = [
    *("ix_mrtr_tasks_waiting", "ix_mrtr_tasks_owned", "ix_mrtr_tasks_listed", "ix_mrtr_tasks_queued"),
    *("ix_mrtr_kept_logins", "ix_mrtr_waits_paged"),
]
"""Those that came after the tables."""


class TestIndexes:
    """Of tables that are there, PostgreSQL makes them while others write."""

    @pytest.fixture
    async def url(self, postgresql: PostgreSQL) -> str:
        return postgresql.url(await postgresql.new_database())

    async def indexes(self, url: str) -> dict[str, bool]:
        """Return the indexes that came later, and whether they are complete."""
        found = await on(url, "SELECT relname, indisvalid FROM pg_index JOIN pg_class ON oid = indexrelid")
        return {name: valid for name, valid in found if name in INDEXES}

    async def test_block_nobody_who_writes_and_wait_for_who_does(self, url: str) -> None:
        await upgrade(url)
        await on(url, *(f"DROP INDEX {name}" for name in INDEXES))
        insert = (
            "INSERT INTO mrtr_tasks (id, owner, name, status, message, created, updated, ttl, poll, deadline, expires, "
            "call, journal, questions, outcome, version, lease, leased_until, attempts, writer) "
            "SELECT '{id}', '', 'tool', 'working', '', 0, 0, 0, 0, 0, 9e9, '', '', '', '', 0, '', 0, 0, 'writer'"
        )
        async with in_transaction(url, insert.format(id="a")):
            upgrading = asyncio.create_task(upgrade(url))
            await self.is_waiting(url, "CREATE INDEX CONCURRENTLY%")
            change = "UPDATE mrtr_tasks SET message = 'x' WHERE id = 'b'"
            await asyncio.wait_for(on(url, insert.format(id="b"), change), 5)
            assert not upgrading.done()
        await asyncio.wait_for(upgrading, TIMEOUT)
        assert await self.indexes(url) == dict.fromkeys(INDEXES, True)

    async def test_that_were_left_unfinished_are_made_by_the_next_run(self, url: str) -> None:
        await upgrade(url)
        await on(url, f"DROP INDEX {INDEXES[0]}")
        async with in_transaction(url, "LOCK TABLE mrtr_tasks IN ROW EXCLUSIVE MODE"):
            upgrading = asyncio.create_task(upgrade(url))
            process = await self.is_waiting(url, "CREATE INDEX CONCURRENTLY%")
            await on(url, f"SELECT pg_cancel_backend({process})")
            with pytest.raises(
                StoreUnavailable, match=r"canceling statement.*; not all indexes are made; run it again"
            ):
                await upgrading
        assert (await self.indexes(url))[INDEXES[0]] is False
        assert ("warning", "an index is missing, or unfinished: run `mrtr-server db upgrade` again") in (
            await administration.review(url)
        )
        assert await works(url), "servers need no index"
        assert await administration.script(url) == (
            "SET statement_timeout = 0;\nSET lock_timeout = 0;\n"
            f"DROP INDEX CONCURRENTLY IF EXISTS {INDEXES[0]};\n"
            f"CREATE INDEX CONCURRENTLY {INDEXES[0]} ON mrtr_tasks (name, caller, updated) "
            "WHERE status = 'working' AND lease = '';\n"
        )
        await upgrade(url)
        assert await self.indexes(url) == dict.fromkeys(INDEXES, True)
        assert await administration.review(url) == []

    async def test_are_made_once_by_many_at_once(self, url: str) -> None:
        await upgrade(url)
        for _ in range(3):
            await on(url, *(f"DROP INDEX {name}" for name in INDEXES))
            await asyncio.gather(*(upgrade(url) for _ in range(4)))
            assert await self.indexes(url) == dict.fromkeys(INDEXES, True)

    async def test_take_as_long_as_they_take_whatever_a_role_may_wait(self, url: str) -> None:
        await upgrade(url)
        await on(url, *(f"DROP INDEX {name}" for name in INDEXES))
        impatient = f"{url}&options=-c%20statement_timeout%3D100%20-c%20lock_timeout%3D100"
        async with in_transaction(url, "LOCK TABLE mrtr_tasks IN ROW EXCLUSIVE MODE"):
            upgrading = asyncio.create_task(upgrade(impatient))
            await self.is_waiting(url, "CREATE INDEX CONCURRENTLY%")
            await asyncio.sleep(0.3)
            assert not upgrading.done()
        await upgrading
        assert await self.indexes(url) == dict.fromkeys(INDEXES, True)

    async def test_of_new_tables_are_made_with_them(self, url: str) -> None:
        assert "CONCURRENTLY" not in await administration.script(url)
        assert await works(url)
        assert await self.indexes(url) == dict.fromkeys(INDEXES, True)

    async def test_of_older_tables_come_after_the_transaction(self, url: str) -> None:
        await old(url)
        script = await administration.script(url)
        transaction, _, after = script.partition("COMMIT;\n")
        assert "CONCURRENTLY" not in transaction
        assert (
            after.count("CREATE INDEX CONCURRENTLY") == after.count("DROP INDEX CONCURRENTLY IF EXISTS") == len(INDEXES)
        )
        assert (await upgrade(url)).endswith("to version 6")
        assert await self.indexes(url) == dict.fromkeys(INDEXES, True)

    async def test_an_upgrade_waits_for_no_transaction_that_holds_a_table_for_ever(self, url: str) -> None:
        """Whoever writes would queue behind it."""
        await old(url)
        async with in_transaction(url, "SELECT * FROM mrtr_redemptions"):
            with pytest.raises(StoreUnavailable, match=r"lock timeout; another session.* holds a table"):
                await upgrade(url)
        assert await version(url) == "1"
        assert (await upgrade(url)).endswith("to version 6")

    async def is_waiting(self, url: str, query: str) -> int:
        """Wait until a statement waits for a lock; return the process that runs it."""
        find = f"SELECT pid FROM pg_stat_activity WHERE query LIKE '{query}' AND wait_event_type = 'Lock'"  # noqa: S608
        async with asyncio.timeout(TIMEOUT):
            while not (found := await on(url, find)):  # noqa: ASYNC110  it is elsewhere
                await asyncio.sleep(0.05)
        return int(found[0][0])


class TestCommand:
    PATIENT = (
        "SET statement_timeout = 0;\nSET lock_timeout = 0;\nBEGIN;\nSELECT pg_advisory_xact_lock(1836217458);\n"
        "SET LOCAL lock_timeout = 3000;\n"
    )
    """What the command runs before it changes tables of PostgreSQL: writers would queue behind it for longer."""

    def run(self, *arguments: str, **environment: str) -> Any:
        variables = {"MRTR_DATABASE_URL": None, **environment}
        return CliRunner(env=variables).invoke(main, ["db", "upgrade", *arguments], prog_name="mrtr-server")

    def test_says_what_it_did(self, tmp_path: Path) -> None:
        url = f"sqlite:///{tmp_path}/store.db"
        assert self.run("--database", url).output == f"{url}: created the tables, at version {NEWEST}\n"
        assert self.run("--database", url).output == f"{url}: nothing to do, the tables are at version {NEWEST}\n"

    def test_takes_the_database_of_the_environment(self, tmp_path: Path) -> None:
        url = f"sqlite:///{tmp_path}/store.db"
        assert self.run(MRTR_DATABASE_URL=f" {url}\n").output == f"{url}: created the tables, at version {NEWEST}\n"

    def test_needs_a_database(self) -> None:
        result = self.run()
        assert result.exit_code == 2
        assert "--database" in result.output

    @pytest.mark.parametrize("url", ["mysql://me:secret@host/name", "sqlite:////missing/store.db", "nothing"])
    def test_fails_with_the_reason_and_no_traceback(self, url: str) -> None:
        result = self.run("--database", url)
        assert result.exit_code == 1
        assert result.output.startswith("Error: ")
        assert "Traceback" not in result.output
        assert "secret" not in result.output

    def test_prints_what_it_would_run_where_it_is_asked_to(self, tmp_path: Path) -> None:
        url = f"sqlite:///{tmp_path}/store.db"
        asyncio.run(old(url))
        printed = self.run("--sql", "--database", url).output
        assert printed.startswith("PRAGMA journal_mode=WAL;\nBEGIN IMMEDIATE;\nCREATE TABLE mrtr_tasks")
        assert printed.endswith(f"UPDATE mrtr_schema SET version_num = '{NEWEST}';\nCOMMIT;\n")  # noqa: S608
        assert asyncio.run(version(url)) == "1"
        connection = sqlite3.connect(tmp_path / "store.db")
        connection.executescript(printed)
        connection.close()
        assert asyncio.run(works(url))
        assert self.run("--sql", "--database", url).output == ""

    async def test_prints_for_either_database_what_makes_its_tables_in_one_transaction(self, url: str) -> None:
        printed: str = (await asyncio.to_thread(self.run, "--sql", "--database", url)).output
        begins = "PRAGMA journal_mode=WAL;\nBEGIN IMMEDIATE;\n" if url.startswith("sqlite") else self.PATIENT
        assert printed.startswith(f"{begins}CREATE TABLE mrtr_schema")
        assert printed.endswith(";\nCOMMIT;\n")
        if url.startswith("sqlite"):
            assert not os.path.exists(url.removeprefix("sqlite:///")), "nothing is changed"  # noqa: ASYNC240
        else:
            assert not await has_tasks(url)
        if url.startswith("sqlite"):
            make_private(url.removeprefix("sqlite:///"))
        if url.startswith("sqlite"):
            connection = sqlite3.connect(url.removeprefix("sqlite:///"))
            connection.executescript(printed)
            connection.close()
        else:
            other = await asyncpg.connect(url)
            await other.execute(printed)
            await other.close()
        assert await version(url) == NEWEST
        assert await works(url)


class TestServers:
    async def test_one_does_not_start_on_tables_of_another_version(self, url: str, tmp_path: Path) -> None:
        await old(url)
        await asyncio.to_thread(self.refused, url, tmp_path / "log")
        await upgrade(url)
        await asyncio.to_thread(self.started, url, tmp_path / "log")

    def refused(self, url: str, log: Path) -> None:
        environment = {"MRTR_KEYS": KEYS, "MRTR_DATABASE_URL": url}
        with in_process("tests.support.changing_app:app", log=log, environment=environment) as server:
            assert not server.port
            assert server.wait() != 0
            assert "changing: " in server.text
            assert "`mrtr-server db upgrade`" in server.text
            assert "Traceback" not in server.text

    def started(self, url: str, log: Path) -> None:
        environment = {"MRTR_KEYS": KEYS, "MRTR_DATABASE_URL": url}
        with in_process("tests.support.changing_app:app", log=log, environment=environment) as server:
            assert server.port, server.text

    def test_one_whose_database_is_away_starts_and_says_so(self, tmp_path: Path) -> None:
        environment = {"MRTR_KEYS": KEYS, "MRTR_DATABASE_URL": f"sqlite:///{tmp_path}/missing/store.db"}
        with in_process("tests.support.changing_app:app", log=tmp_path / "log", environment=environment) as server:
            assert server.port, server.text
            assert "the store can't be used (reference " in server.text
            assert "its folder must exist" in server.text


@pytest.fixture(autouse=True)
def no_url(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MRTR_DATABASE_URL", raising=False)
