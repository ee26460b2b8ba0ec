"""Versions of the tables: made by themselves, refused when they are another release's, upgraded by a command."""

import asyncio
import os
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from click.testing import CliRunner
from sqlalchemy import Connection, inspect, text

from mrtr_server import SQLStore, StoreUnavailable
from mrtr_server.cli import main
from mrtr_server.errors import WrongVersion
from mrtr_server.storage.sql import migrate as module
from mrtr_server.storage.sql.database import SCHEMA, Database
from mrtr_server.storage.sql.migrate import MIGRATIONS, lead, upgrade
from mrtr_server.storage.sql.schema import TABLES, VERSIONS

from .databases import PostgreSQL, task_row
from .serving import KEYS, in_process

pytestmark = pytest.mark.anyio

NEWEST = VERSIONS[-1]


async def on(url: str, work: Callable[[Connection], Any]) -> Any:
    """Do something on a connection, whatever the version of the tables."""
    database = Database(url, TABLES, VERSIONS)
    engine = database._engine()
    try:
        async with engine.connect() as connection:
            return await connection.run_sync(work)
    finally:
        await engine.dispose()


async def old(url: str, version: str = "1") -> None:
    """Make the tables of an older release, by its own migrations, with something in them."""

    def make(connection: Connection) -> None:
        SCHEMA.create(connection)
        lead(connection, version)
        connection.execute(SCHEMA.insert().values(version_num=version))
        connection.execute(text("INSERT INTO mrtr_kept VALUES ('key', :value, 'writer', 9e9)"), {"value": b"kept"})

    await on(url, make)
    if url.startswith("sqlite"):
        os.chmod(url.removeprefix("sqlite:///"), 0o600)


async def version(url: str) -> str:
    return str(await on(url, lambda connection: connection.scalar(text("SELECT version_num FROM mrtr_schema"))))


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
        revisions = [each.revision for each in ScriptDirectory(str(MIGRATIONS)).walk_revisions()]
        assert tuple(revisions[::-1]) == VERSIONS

    async def test_migrations_lead_to_the_tables_that_a_new_database_gets(self, url: str) -> None:
        await old(url)
        await upgrade(url)

        def differences(connection: Connection) -> list[Any]:
            context = MigrationContext.configure(
                connection, opts={"version_table": SCHEMA.name, "compare_type": True, "compare_server_default": True}
            )
            return list(compare_metadata(context, TABLES))

        assert await on(url, differences) == []

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
        assert "tables are of version 1, and this release of mrtr_server works with version 2" in await refusal(url)
        assert "`mrtr-server db upgrade`" in await refusal(url)
        assert await version(url) == "1"
        assert not await on(url, lambda connection: inspect(connection).has_table("mrtr_tasks"))

    async def test_a_newer_one_is_refused_with_the_way_out(self, url: str) -> None:
        assert await works(url)
        await on(url, lambda connection: connection.execute(text("UPDATE mrtr_schema SET version_num = '99'")))
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
        assert (await upgrade(url)).endswith("from version 1 to version 2")
        assert await version(url) == NEWEST
        store = SQLStore(url)
        assert await store.get("key") == b"kept"
        await store.close()
        assert await works(url)

    async def test_may_be_run_again(self, url: str) -> None:
        await old(url)
        await upgrade(url)
        assert "nothing to do, it is at version 2" in await upgrade(url)
        assert await works(url)

    async def test_makes_the_tables_where_there_are_none(self, url: str) -> None:
        assert (await upgrade(url)).endswith("made, at version 2")
        assert await works(url)

    async def test_of_a_newer_one_is_refused(self, url: str) -> None:
        await upgrade(url)
        await on(url, lambda connection: connection.execute(text("UPDATE mrtr_schema SET version_num = '99'")))
        with pytest.raises(WrongVersion, match="version 99"):
            await upgrade(url)
        assert await version(url) == "99"

    async def test_is_all_or_nothing(self, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
        await old(url)

        def fail(connection: Connection) -> None:
            lead(connection)
            raise OSError("the power went")

        with monkeypatch.context() as patched:
            patched.setattr(module, "lead", fail)
            with pytest.raises(StoreUnavailable, match="the power went"):
                await upgrade(url)
        assert await version(url) == "1"
        assert not await on(url, lambda connection: inspect(connection).has_table("mrtr_tasks"))
        assert (await upgrade(url)).endswith("to version 2")

    async def test_many_at_once_do_it_once(self, url: str) -> None:
        await old(url)
        line = [sys.executable, "-W", "error", "-c", "from mrtr_server.cli import main; main()", "db", "upgrade"]
        environment = {**os.environ, "MRTR_DATABASE_URL": url}
        running = [
            asyncio.to_thread(subprocess.run, line, env=environment, capture_output=True, text=True, timeout=60)
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
        older.database._version = "1"
        assert await older.get("key") == b"kept"
        await upgrade(url)
        assert await older.get("key") == b"kept"
        assert (await older.redeem("state", "answers", lease=5, keep=60)).verdict == "granted"
        await older.close()

    async def test_waits_for_no_lock_for_ever(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        url = f"sqlite:///{tmp_path}/store.db"
        await old(url)
        monkeypatch.setattr("mrtr_server.storage.sql.database.CONNECT_PATIENCE", 0.2)
        other = sqlite3.connect(tmp_path / "store.db")
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(StoreUnavailable, match="database is locked; another process"):
            await upgrade(url)
        other.rollback()
        other.close()


class TestCommand:
    def run(self, *arguments: str, **environment: str) -> Any:
        variables = {"MRTR_DATABASE_URL": None, **environment}
        return CliRunner(env=variables).invoke(main, ["db", "upgrade", *arguments], prog_name="mrtr-server")

    def test_says_what_it_did(self, tmp_path: Path) -> None:
        url = f"sqlite:///{tmp_path}/store.db"
        assert self.run("--database", url).output == f"{url}: made, at version 2\n"
        assert self.run("--database", url).output == f"{url}: nothing to do, it is at version 2\n"

    def test_takes_the_database_of_the_environment(self, tmp_path: Path) -> None:
        url = f"sqlite:///{tmp_path}/store.db"
        assert self.run(MRTR_DATABASE_URL=f" {url}\n").output == f"{url}: made, at version 2\n"

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

    def test_says_how_to_install_what_it_needs(self, tmp_path: Path) -> None:
        code = """
import sys
sys.modules["alembic"] = None
from mrtr_server.cli import main
main(["db", "upgrade", "--database", "sqlite:///x.db"])
"""
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path)
        assert done.returncode == 1
        assert "Upgrading a database needs alembic. Install the extra 'tasks', or: pip install '" in done.stderr
        assert not (tmp_path / "x.db").exists()

    def test_alone_loads_alembic(self, tmp_path: Path) -> None:
        code = f"""
import asyncio, sys
from mrtr_server import SQLStore
from mrtr_server.cli import main
asyncio.run(SQLStore("sqlite:///{tmp_path}/store.db").get("key"))
print("alembic" in sys.modules)
"""
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
        assert done.stdout == "False\n"


class TestServers:
    async def test_one_does_not_start_on_tables_of_another_version(self, url: str, tmp_path: Path) -> None:
        await old(url)
        await asyncio.to_thread(self.refused, url, tmp_path / "log")
        await upgrade(url)
        await asyncio.to_thread(self.started, url, tmp_path / "log")

    def refused(self, url: str, log: Path) -> None:
        environment = {"MRTR_KEYS": KEYS, "MRTR_DATABASE_URL": url}
        with in_process("tests.changing_app:app", log=log, environment=environment) as server:
            assert not server.port
            assert server.wait() != 0
            assert "changing: " in server.text
            assert "`mrtr-server db upgrade`" in server.text
            assert "Traceback" not in server.text

    def started(self, url: str, log: Path) -> None:
        environment = {"MRTR_KEYS": KEYS, "MRTR_DATABASE_URL": url}
        with in_process("tests.changing_app:app", log=log, environment=environment) as server:
            assert server.port, server.text

    def test_one_whose_database_is_away_starts_and_says_so(self, tmp_path: Path) -> None:
        environment = {"MRTR_KEYS": KEYS, "MRTR_DATABASE_URL": f"sqlite:///{tmp_path}/missing/store.db"}
        with in_process("tests.changing_app:app", log=tmp_path / "log", environment=environment) as server:
            assert server.port, server.text
            assert "the store can't be used (reference " in server.text
            assert "its folder must exist" in server.text


@pytest.fixture(autouse=True)
def no_url(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MRTR_DATABASE_URL", raising=False)
