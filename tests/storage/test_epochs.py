"""What was sealed or begun in another store, or in another life of this one, is refused, and never runs twice."""

import asyncio
import logging
import shutil
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from pydantic_core import from_json

from mrtr_server import (
    Context,
    InProcessStore,
    KeyRing,
    MRTRServer,
    Redemption,
    SealedCodec,
    SQLStore,
    Store,
    StoreUnavailable,
    Task,
    TaskRow,
)
from mrtr_server.cli import main
from mrtr_server.errors import InvalidRequestState
from mrtr_server.storage.rows import in_epoch
from mrtr_server.storage.sql import database as module
from mrtr_server.storage.sql.administration import new_epoch, review
from mrtr_server.testing import AsyncClient, yes

from ..support.databases import TOOLS, PostgreSQL, task_row
from ..support.effects import EFFECTS, effect
from ..support.models import Login
from ..support.serving import TIMEOUT

pytestmark = pytest.mark.anyio

RING = KeyRing([bytes(32)])
REFUSED = "refused a requestState: it names another epoch of the store"

Open = Callable[[str], SQLStore]


@pytest.fixture
async def opened() -> AsyncIterator[Open]:
    """Open stores, until the test is over."""
    stores: list[SQLStore] = []

    def open_store(url: str) -> SQLStore:
        stores.append(SQLStore(url))
        return stores[-1]

    yield open_store
    for store in stores:
        await store.close()


async def redeem(
    store: SQLStore, state: str = "state", epoch: str = "", *, answers: str = "answers", lease: float = 60.0
) -> Redemption:
    return await store.redeem(state, answers, lease=lease, keep=600, epoch=epoch)


def server(store: Store, **options: Any) -> MRTRServer:
    """Make a server of a region: all have the same keys."""
    app = MRTRServer("bank", keys=RING, store=store, **options)

    @app.tool
    async def pay(ctx: Context) -> str:
        login = await ctx.elicit("Who are you?", Login)
        await ctx.confirm(f"Pay, {login.name}?")
        return effect(await ctx.step(lambda: "paid", key="pay"))

    @app.tool(single_use=True)
    async def book(ctx: Context) -> str:
        login = await ctx.elicit("Who are you?", Login)
        return await ctx.step(effect, f"booked for {login.name}")

    @app.tool
    async def greet(ctx: Context) -> str:
        return f"Hello, {(await ctx.elicit('Who are you?', Login)).name}"

    @app.prompt
    async def letter(ctx: Context) -> str:
        await ctx.confirm("Write it?")
        return effect("written")

    @app.tool(task=Task("required", poll=0.05))
    async def ship(ctx: Context) -> str:
        first = await ctx.step(effect, "packed")
        await ctx.confirm("Ship it?")
        return f"{first}, {await ctx.step(effect, 'shipped')}"

    return app


class TestAStore:
    async def test_has_an_epoch_of_its_own_that_stays(self, url: str, opened: Open, tmp_path: Path) -> None:
        first = await opened(url).epoch()
        assert len(first) == 16
        assert await opened(url).epoch() == first, "of another process"
        assert await opened(f"sqlite:///{tmp_path}/other.db").epoch() != first

    async def test_begins_another_one_by_a_command(self, url: str, opened: Open) -> None:
        before = await opened(url).epoch()
        result = await asyncio.to_thread(
            CliRunner(env={"MRTR_DATABASE_URL": url}).invoke, main, ["db", "new-epoch"], prog_name="mrtr-server"
        )
        after = await opened(url).epoch()
        assert result.exit_code == 0, result.output
        assert f"the epoch {after} has begun" in result.output
        assert after != before

    async def test_without_tables_has_none_to_follow(self, tmp_path: Path) -> None:
        result = await asyncio.to_thread(
            CliRunner().invoke, main, ["db", "new-epoch", "--database", f"sqlite:///{tmp_path}/none.db"]
        )
        assert (result.exit_code, "there are no tables; check the URL" in result.output) == (1, True)

    async def test_tells_servers_that_run_of_another_one_at_the_next_state_of_before(
        self, url: str, opened: Open
    ) -> None:
        """The database compares it, so nothing that a server remembers can be out of date."""
        store = opened(url)
        before = await store.epoch()
        assert (await redeem(store, "a", before)).verdict == "granted"
        await new_epoch(url)
        assert await store.epoch() == before, "as it was a moment ago"
        assert (await redeem(store, "b", before)).verdict == "other_epoch"
        assert await store.epoch() != before

    async def test_tells_them_within_half_a_minute(
        self, url: str, opened: Open, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        store = opened(url)
        before = await store.epoch()
        await new_epoch(url)
        assert await store.epoch() == before
        monkeypatch.setattr(module, "EPOCH_AGE", 0.0)
        assert await store.epoch() != before

    async def test_that_is_away_is_in_the_epoch_that_it_was_in(
        self, opened: Open, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(module, "EPOCH_AGE", 0.0)
        store = opened(f"sqlite:///{tmp_path}/store.db")
        before = await store.epoch()
        (tmp_path / "store.db").rename(tmp_path / "away.db")
        assert await store.epoch() == before
        with pytest.raises(StoreUnavailable):
            await opened(f"sqlite:///{tmp_path}/missing/store.db").epoch()

    async def test_that_does_not_answer_holds_nobody_who_knows_it(
        self, postgresql: PostgreSQL, opened: Open, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(module, "EPOCH_AGE", 0.0)
        store = opened(postgresql.url(await postgresql.new_database()))
        before = await store.epoch()
        with postgresql.frozen():
            assert await asyncio.wait_for(store.epoch(), TIMEOUT / 2) == before

    async def test_grants_a_state_that_names_none_as_earlier_releases_seal_them(self, url: str, opened: Open) -> None:
        store = opened(url)
        assert (await redeem(store, "state")).verdict == "granted"
        await new_epoch(url)
        assert (await redeem(store, "other")).verdict == "granted"

    async def test_tells_what_a_state_of_before_came_to_if_it_knows(self, url: str, opened: Open) -> None:
        store = opened(url)
        before = await store.epoch()
        done, runs = [await redeem(store, state, before) for state in ("done", "runs")]
        assert await store.record("done", done.token, b"outcome")
        await new_epoch(url)
        again = await redeem(store, "done", before)
        assert (again.verdict, again.outcome) == ("recorded", b"outcome")
        assert (await redeem(store, "done", before, answers="others")).verdict == "spent"
        assert (await redeem(store, "runs", before)).verdict == "other_epoch"
        assert await store.record("runs", runs.token, b"outcome"), "whoever runs it has done it"
        assert (await redeem(store, "runs", before)).verdict == "recorded"

    async def test_does_not_grant_one_of_before_again_whose_lease_has_ended(self, url: str, opened: Open) -> None:
        store = opened(url)
        before = await store.epoch()
        await redeem(store, "state", before, lease=0.0)
        await new_epoch(url)
        assert (await redeem(store, "state", before)).verdict == "other_epoch"


class TestTasks:
    async def row(self, store: SQLStore, **given: Any) -> TaskRow:
        return task_row(id=in_epoch(await store.epoch(), "0123456789abcdef" * 3), **given)

    async def test_are_begun_in_the_epoch_of_the_store_alone(self, url: str, opened: Open) -> None:
        store = opened(url)
        row = await self.row(store)
        await new_epoch(url)
        with pytest.raises(StoreUnavailable, match="another epoch has begun while a task was begun"):
            await store.add_task(row)
        assert await store.add_task(await self.row(store))

    async def test_that_came_from_another_store_are_not_run_here(self, url: str, opened: Open) -> None:
        """As by replication of their table, or a backup of another region's that was put into this one."""
        store, row = opened(url), task_row(id=in_epoch("another", "0123456789abcdef" * 3))
        ended = task_row(id=in_epoch("another", "fedcba9876543210" * 3), status="completed")
        # As if they had come in this store's own epoch; then they are called what they are.
        for each in (row, ended):
            mine = each._replace(id=in_epoch(await store.epoch(), each.id.replace("-another-", "")))
            assert await store.add_task(mine)
            await store.database.execute(
                "UPDATE mrtr_tasks SET id = :id WHERE id = :mine", {"id": each.id, "mine": mine.id}
            )
        assert await store.claim_tasks("lease", seconds=5, most=5, tools=TOOLS) == []
        assert await store.find_task(row.id) is None, "nor answered"
        assert await store.find_task(ended.id) is not None
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(store.wait_for_tasks(30, tools=TOOLS), 0.6)

    async def test_of_earlier_releases_run_here(self, url: str, opened: Open) -> None:
        store, row = opened(url), task_row()
        await store.add_task(row)
        assert [each.id for each in await store.claim_tasks("lease", seconds=5, most=5, tools=TOOLS)] == [row.id]

    @pytest.mark.parametrize("run_tasks", [True, False], ids=["working", "waiting"])
    async def test_that_have_not_ended_fail_with_the_epoch_and_can_be_retried(
        self, url: str, opened: Open, run_tasks: bool
    ) -> None:
        store = opened(url)
        app = server(store, run_tasks=run_tasks)
        flow = AsyncClient(app, tasks=True).flow("ship")
        await flow.start()
        if run_tasks:
            assert (await flow.wait()).asked
        await app._parts.worker.close()
        assert "tasks that had not ended have failed" in await new_epoch(url)
        reply = await flow.look()
        assert reply.task.status == "failed"
        assert "nobody knows how far it had come" in str(reply.message)
        arguments = ["tasks", "retry", "--database", url, str(flow.task)[:8]]
        environment = {"MRTR_KEYS": bytes(32).hex()}
        result = await asyncio.to_thread(CliRunner(env=environment).invoke, main, arguments)
        assert result.exit_code == 0, result.output
        assert await opened(url).epoch() in result.output
        again = await store.find_task(result.output.strip())
        assert again is not None
        assert again.status in ("working", "input_required"), "as far as it came since"
        assert ["packed"] * run_tasks == EFFECTS

    async def test_that_run_begin_no_further_step(self, url: str, opened: Open) -> None:
        app, begun, gate = server(opened(url)), asyncio.Event(), asyncio.Event()

        async def slow() -> str:
            begun.set()
            await gate.wait()
            return effect("first")

        @app.tool(task="required")
        async def work(ctx: Context) -> str:
            await ctx.step(slow)
            return await ctx.step(effect, "second")

        flow = AsyncClient(app, tasks=True).flow("work")
        await flow.start()
        await begun.wait()
        await new_epoch(url)
        gate.set()
        assert (await flow.wait()).task.status == "failed"
        await app._parts.worker.close()
        assert EFFECTS == ["first"]

    async def test_of_another_epoch_are_unknown_to_clients_and_the_log_says_why_once(
        self, url: str, opened: Open, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        here, elsewhere = server(opened(f"sqlite:///{tmp_path}/elsewhere.db")), server(opened(url))
        flow = AsyncClient(elsewhere, tasks=True).flow("ship")
        await flow.start()
        await flow.wait()
        flow.move_to(here)
        for _ in range(3):
            assert (await flow.look()).error.message == f"Unknown task: {flow.task}"
        assert caplog.text.count("A client asked for a task of the epoch") == 1
        for app in (here, elsewhere):
            await app._parts.worker.close()


class TestTwoRegions:
    """With the same keys, and a database each."""

    @pytest.fixture
    def regions(self, url: str, opened: Open, tmp_path: Path) -> tuple[MRTRServer, MRTRServer]:
        return server(opened(url)), server(opened(f"sqlite:///{tmp_path}/other.db"))

    async def test_a_confirmation_counts_in_the_one_that_asked_for_it(
        self, regions: tuple[MRTRServer, MRTRServer], caplog: pytest.LogCaptureFixture
    ) -> None:
        flow = AsyncClient(regions[0]).flow("pay")
        await flow.start()
        flow.move_to(regions[1])
        assert (await flow.answer(login={"name": "ann"})).asked, "what is no confirmation counts everywhere"
        flow.move_to(regions[0])
        first = await flow.answer(confirm=yes)
        assert first.error.message == InvalidRequestState.MESSAGE
        flow.move_to(regions[1])
        assert (await flow.replay(first)).text == "paid"
        flow.move_to(regions[0])
        for _ in range(3):
            assert (await flow.replay(first)).error.message == InvalidRequestState.MESSAGE
        assert EFFECTS == ["paid"]
        assert caplog.text.count(f"'pay': {REFUSED}") == 1

    @pytest.mark.parametrize(("tool", "answers"), [("book", {"login": {"name": "ann"}}), ("letter", {"confirm": yes})])
    async def test_so_does_every_state_that_is_redeemed_once(
        self, regions: tuple[MRTRServer, MRTRServer], tool: str, answers: dict[str, Any]
    ) -> None:
        client = AsyncClient(regions[0])
        flow = client.flow(tool) if tool == "book" else client.prompt_flow(tool)
        await flow.start()
        first = await flow.answer(answers)
        assert len(EFFECTS) == 1
        flow.move_to(regions[1])
        assert (await flow.replay(first)).error.message == InvalidRequestState.MESSAGE
        assert len(EFFECTS) == 1

    async def test_an_open_call_continues_in_its_own(
        self, regions: tuple[MRTRServer, MRTRServer], caplog: pytest.LogCaptureFixture
    ) -> None:
        flow = AsyncClient(regions[0], era="2025-11-25").flow("pay")
        await flow.start()
        flow.break_stream()
        flow.move_to(regions[1])
        assert (await flow.resume()).error.message == "This call can't be continued here; call again"
        assert "'pay': an open call was not continued: it names another epoch of the store" in caplog.text

    async def test_a_state_that_names_none_counts_in_both(self, regions: tuple[MRTRServer, MRTRServer]) -> None:
        flow = AsyncClient(regions[0]).flow("greet")
        await flow.start()
        for region in regions:
            flow.move_to(region)
            assert (await flow.send({"login": {"name": "ann"}})).text == "Hello, ann"


class TestARestore:
    async def test_takes_nothing_twice_that_the_backup_does_not_know(self, opened: Open, tmp_path: Path) -> None:
        url = f"sqlite:///{tmp_path}/store.db"
        store = opened(url)
        flow = AsyncClient(server(store)).flow("pay")
        await flow.start()
        await flow.answer(login={"name": "ann"})
        await store.close()
        shutil.copy(tmp_path / "store.db", tmp_path / "backup.db")
        first = await flow.answer(confirm=yes)
        assert (first.text, EFFECTS) == ("paid", ["paid"])
        await store.close()
        for end in ("", "-wal", "-shm"):
            (tmp_path / f"store.db{end}").unlink(missing_ok=True)
        shutil.copy(tmp_path / "backup.db", tmp_path / "store.db")
        await new_epoch(url)
        flow.move_to(server(opened(url)))
        assert (await flow.replay(first)).error.message == InvalidRequestState.MESSAGE
        assert EFFECTS == ["paid"]
        again = AsyncClient(server(opened(url))).flow("pay")
        await again.start()
        await again.answer(login={"name": "ann"})
        assert (await again.answer(confirm=yes)).text == "paid", "a call that begins anew runs"


class TestStates:
    async def sealed(self, app: MRTRServer, tool: str, *answers: dict[str, Any]) -> Any:
        flow = AsyncClient(app).flow(tool)
        await flow.start()
        for each in answers:
            await flow.answer(each)
        return from_json(SealedCodec(RING).unseal(str(flow.state)))

    async def test_name_the_epoch_from_the_confirmation_on(self, url: str, opened: Open) -> None:
        store = opened(url)
        app, login = server(store), {"login": {"name": "ann"}}
        assert "y" not in await self.sealed(app, "pay")
        assert (await self.sealed(app, "pay", login))["y"] == await store.epoch()
        assert (await self.sealed(app, "book"))["y"] == await store.epoch()
        assert "y" not in await self.sealed(app, "greet")

    async def test_are_sealed_without_one_where_the_store_was_never_reached(self, opened: Open, tmp_path: Path) -> None:
        app = server(opened(f"sqlite:///{tmp_path}/missing/store.db"))
        assert "y" not in await self.sealed(app, "pay", {"login": {"name": "ann"}})

    async def test_that_name_one_are_refused_by_a_server_whose_store_has_none(self, url: str, opened: Open) -> None:
        flow = AsyncClient(server(opened(url))).flow("pay")
        await flow.start()
        await flow.answer(login={"name": "ann"})
        flow.move_to(server(InProcessStore()))
        assert (await flow.answer(confirm=yes)).error.message == InvalidRequestState.MESSAGE
        assert EFFECTS == []

    async def test_in_memory_name_none_so_that_replicas_without_a_database_continue_each_other_s_flows(self) -> None:
        flow = AsyncClient(server(InProcessStore())).flow("pay")
        await flow.start()
        await flow.answer(login={"name": "ann"})
        flow.move_to(server(InProcessStore()))
        assert (await flow.answer(confirm=yes)).text == "paid"


@pytest.fixture
async def promoted(postgresql: PostgreSQL) -> AsyncIterator[tuple[str, str]]:
    """The URLs of a database, and of a copy of it that was promoted."""
    name = await postgresql.new_database()
    store = SQLStore(postgresql.url(name))
    await store.check()
    await store.close()
    with postgresql.standby() as standby:
        await standby.fetch("SELECT pg_promote()")
        yield postgresql.url(name), standby.url(name)


class TestATimeline:
    async def test_that_has_changed_is_logged_once_in_the_fleet(
        self, promoted: tuple[str, str], opened: Open, caplog: pytest.LogCaptureFixture
    ) -> None:
        for url in promoted:
            for _ in range(2):
                await opened(url).check()
        (record,) = [each for each in caplog.records if "timeline" in each.message]
        assert "its writes are on timeline 2 of cluster " in record.message
        assert "were on timeline 1 of cluster " in record.message
        assert "run `mrtr-server db new-epoch` now" in record.message
        assert record.levelno == logging.WARNING

    async def test_that_has_changed_before_the_epoch_did_is_no_news(
        self, promoted: tuple[str, str], opened: Open, caplog: pytest.LogCaptureFixture
    ) -> None:
        await new_epoch(promoted[1])
        await opened(promoted[1]).check()
        assert "timeline" not in caplog.text

    async def test_is_looked_at_by_each_new_connection_of_a_server_that_runs(
        self, postgresql: PostgreSQL, promoted: tuple[str, str], opened: Open, caplog: pytest.LogCaptureFixture
    ) -> None:
        before, after = [each.rpartition("host=")[2] for each in promoted]
        store = opened(f"{promoted[0].partition('?')[0]}?host={before},{after}&target_session_attrs=read-write")
        await redeem(store)
        assert "timeline" not in caplog.text
        await asyncio.to_thread(postgresql.stop)
        try:
            await redeem(store, "other")
        finally:
            await asyncio.to_thread(postgresql.start)
        assert "its writes are on timeline 2 of cluster " in caplog.text

    async def test_that_a_user_may_not_know_is_no_fault(
        self, postgresql: PostgreSQL, opened: Open, caplog: pytest.LogCaptureFixture
    ) -> None:
        name = await postgresql.new_database()
        async with postgresql.connection(name) as connection:
            await connection.execute("REVOKE EXECUTE ON FUNCTION pg_control_system() FROM PUBLIC")
            await connection.execute("CREATE USER blind LOGIN; GRANT CREATE ON SCHEMA public TO blind")
        store = opened(postgresql.url(name, "blind"))
        await store.check()
        assert await store.epoch()
        # The notices of another test's server may be back only now, and say so.
        assert [each for each in caplog.messages if name in each or "timeline" in each] == []


class TestCheck:
    """What `mrtr-server check` finds in a PostgreSQL that others follow."""

    async def found(self, url: str) -> str:
        return "\n".join(f"{level}: {message}" for level, message in await review(url))

    async def test_says_what_a_failover_may_lose(self, postgresql: PostgreSQL) -> None:
        name = await postgresql.new_database()
        url = postgresql.url(name)
        assert await self.found(url) == ""
        with postgresql.standby():
            assert (await self.found(url)).startswith("warning: its standbys are asynchronous, so a failover may lose")
            async with postgresql.connection(name) as connection:
                await connection.execute("CREATE USER shop LOGIN")
                await connection.execute("GRANT SELECT, UPDATE ON ALL TABLES IN SCHEMA public TO shop")
            unseen = await self.found(postgresql.url(name, "shop"))
            assert unseen.startswith("advice: it has standbys, and this user may not see")
            assert unseen.endswith("GRANT pg_monitor TO shop")
            await postgresql.fetch("ALTER SYSTEM SET synchronous_standby_names = '*'")
            await postgresql.fetch("SELECT pg_reload_conf()")
            waited_for = "SELECT count(*) FROM pg_stat_replication WHERE sync_state = 'sync'"
            try:
                async with asyncio.timeout(TIMEOUT):
                    while not await postgresql.fetch(waited_for):  # noqa: ASYNC110  it reads its settings when it likes
                        await asyncio.sleep(0.05)
                assert await self.found(url) == ""
                local = f"{url}&options=-c%20synchronous_commit%3Dlocal"
                assert (await self.found(local)).startswith("warning: synchronous_commit is local, so a failure may")
            finally:
                await postgresql.fetch("ALTER SYSTEM RESET synchronous_standby_names")
                await postgresql.fetch("SELECT pg_reload_conf()")

    async def test_says_where_there_are_more_connections_than_it_takes(self, postgresql: PostgreSQL) -> None:
        name = await postgresql.new_database()
        url = postgresql.url(name)
        assert await review(url, 1) == []
        ((level, message),) = await review(url, 1000)
        assert level == "warning"
        assert message.startswith("1000 processes may have 7000 connections, 7 each, and it takes ")
        async with postgresql.connection(name) as connection:
            await connection.execute(f"ALTER DATABASE {name} CONNECTION LIMIT 20")
        assert "14 connections" not in str(await review(url, 2))
        ((_, message),) = await review(url, 3)
        assert "21 connections, 7 each, and it takes 20" in message
