"""What operators see of a store, whichever it is: how full it is, what waits in it, and a warning before it is full."""

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from mrtr_server import InProcessStore, Limits, MRTRServer, SQLStore, StoreUnavailable, TaskStore
from mrtr_server.storage import health as module
from mrtr_server.storage.health import VitalsWatch
from mrtr_server.storage.quotas import Usage
from mrtr_server.storage.rows import MOST_COUNTED, Vitals, Waiting
from mrtr_server.testing import AsyncClient, yes

from ..support.databases import PostgreSQL, task_row

pytestmark = pytest.mark.anyio

TOOLS = ["report", "none"]


@pytest.fixture(params=["memory", "sqlite", "postgresql"])
async def store(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[TaskStore]:
    if request.param == "memory":
        made: TaskStore = InProcessStore()
    elif request.param == "sqlite":
        made = SQLStore(f"sqlite:///{tmp_path}/store.db")
    else:
        postgresql: PostgreSQL = request.getfixturevalue("postgresql")
        made = SQLStore(postgresql.url(await postgresql.new_database()))
    yield made
    await made.close()


async def waiting(store: TaskStore, tool: str = "report") -> tuple[int, float]:
    found = (await store.measure(TOOLS)).waiting[tool]
    return found.tasks, found.seconds


class TestWhatALookFinds:
    async def test_tasks_that_wait_for_a_worker_by_tool_and_the_age_of_the_oldest(self, store: TaskStore) -> None:
        for age in (5, 40, 1):
            assert await store.add_task(task_row(name="report", caller=f"{age}", updated=time.time() - age))
        assert await store.add_task(task_row(name="report", status="input_required", updated=time.time() - 900))
        assert await store.add_task(task_row(name="another", updated=time.time() - 900))
        tasks, oldest = await waiting(store)
        assert (tasks, 40 <= oldest < 100) == (3, True)
        assert await waiting(store, "none") == (0, 0.0)

    async def test_a_task_whose_worker_died_waits_again_and_one_that_runs_does_not(self, store: TaskStore) -> None:
        assert await store.add_task(task_row(name="report", updated=time.time() - 900))
        assert len(await store.claim_tasks("lease", seconds=0.2, most=1, tools=TOOLS)) == 1
        assert await waiting(store) == (0, 0.0)
        await asyncio.sleep(0.5)
        tasks, silent = await waiting(store)
        assert (tasks, 0.1 < silent < 60) == (1, True), "since its worker fell silent"

    async def test_what_is_stored(self, store: TaskStore) -> None:
        assert await store.add_task(task_row(call=b"x" * 50_000))
        assert (await store.redeem("state", "answers", lease=5, keep=60)).verdict == "granted"
        assert await store.put("key", b"value", keep=60)
        usage = (await store.measure([])).usage
        assert (usage.tasks, usage.states) == (1, 2)
        assert 48_000 <= usage.bytes < 60_000

    async def test_no_tool_is_asked_for(self, store: TaskStore) -> None:
        assert await store.add_task(task_row(name="report"))
        assert (await store.measure([])).waiting == {}


async def test_a_look_at_a_long_queue_counts_as_many_as_it_says_and_is_quick(postgresql: PostgreSQL) -> None:
    name = await postgresql.new_database()
    store = SQLStore(postgresql.url(name))
    assert await store.add_task(task_row(name="report", updated=time.time() - 100))
    copied = "owner, name, status, message, created, updated, ttl, poll, deadline, expires, call, journal, questions"
    copied += ", outcome, version, lease, leased_until, attempts, writer, caller"
    many = f"SELECT 'copy' || number, {copied} FROM mrtr_tasks, generate_series(1, {2 * MOST_COUNTED}) AS number"  # noqa: S608
    await postgresql.fetch(f"INSERT INTO mrtr_tasks (id, {copied}) {many}", name)
    await postgresql.fetch("ANALYZE mrtr_tasks", name)
    found = await waiting(store)
    assert found[0] == MOST_COUNTED
    assert found[1] >= 100
    await store.close()


class Filled(InProcessStore):
    """A store that says how full it is."""

    looks = 0
    found: Vitals | Exception = Vitals()

    async def measure(self, tools: Sequence[str]) -> Vitals:
        self.looks += 1
        if isinstance(self.found, Exception):
            raise self.found
        return self.found


LIMITS = Limits(stored_tasks=10, stored_states=100, stored_bytes=1000)


def full(tasks: int = 0, states: int = 0, bytes: int = 0) -> Vitals:
    return Vitals(Usage(tasks, states, bytes))


class TestTheWarning:
    @pytest.mark.parametrize(
        ("found", "warned"),
        [
            (full(tasks=7, states=79, bytes=799), []),
            (full(tasks=8), ["stored_tasks"]),
            (full(states=80), ["stored_states"]),
            (full(bytes=2000), ["stored_bytes"]),
            (full(tasks=10, bytes=800), ["stored_tasks", "stored_bytes"]),
            (Vitals(Usage(states=40), Usage(1000, 50, 1000)), ["stored_states"]),
        ],
    )
    async def test_comes_at_four_fifths_of_each_total(
        self, found: Vitals, warned: list[str], caplog: pytest.LogCaptureFixture
    ) -> None:
        store = Filled()
        store.found = found
        await VitalsWatch("shop", store, LIMITS, list).look()
        assert [record.fields["limit"] for record in caplog.records] == warned  # type: ignore[attr-defined]
        assert caplog.text.count("Raise Limits(") == len(warned)

    async def test_comes_once_a_minute_at_most(
        self, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(module, "INTERVAL", 0.0)
        store = Filled()
        store.found = full(tasks=9)
        watch = VitalsWatch("shop", store, LIMITS, list)
        for _ in range(5):
            await watch.look()
        assert (store.looks, len(caplog.records)) == (5, 1)

    async def test_comes_of_itself_while_a_server_is_used_which_asks_the_store_once_an_interval(
        self, caplog: pytest.LogCaptureFixture
    ) -> None:
        store = Filled()
        store.found = full(states=95)
        app = MRTRServer("shop", keys=[bytes(32)], store=store, limits=LIMITS)

        @app.tool(confirm="Sure?")
        def pay() -> str:
            return "paid"

        client = AsyncClient(app)
        for _ in range(5):
            await client.call("pay", answers={"confirm": yes})
        assert store.looks == 1
        assert "shop: 95 of 100 are used of stored_states" in caplog.text

    @pytest.mark.parametrize("error", [StoreUnavailable("away"), RuntimeError("a secret")])
    async def test_a_look_that_fails_harms_nobody_and_leaves_what_was_known(
        self, error: Exception, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(module, "INTERVAL", 0.0)
        store = Filled()
        store.found = Vitals(waiting={"report": Waiting(3, 1.0)})
        watch = VitalsWatch("shop", store, LIMITS, list)
        known = await watch.look()
        store.found = error
        assert await watch.look() == known
        assert "secret" not in caplog.text


class TestTheDelayOfEvents:
    @pytest.mark.parametrize(
        ("found", "said"),
        [
            (Vitals(event_delay=9.9, event_blocker="session 7"), ""),
            (
                Vitals(event_delay=12.3, event_blocker="session 7, user ann"),
                "no event has been delivered for 12 s: a transaction that writes is still open in the database's "
                "cluster, that of session 7, user ann. End it",
            ),
            (
                Vitals(event_delay=3600.0),
                "for 3600 s: no transaction is open that they would wait for. If the database",
            ),
        ],
    )
    async def test_is_in_the_log_once_a_minute_with_whose_transaction_it_is(
        self, found: Vitals, said: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(module, "INTERVAL", 0.0)
        store = Filled()
        store.found = found
        watch = VitalsWatch("shop", store, LIMITS, list)
        for _ in range(3):
            await watch.look()
        assert len(caplog.records) == bool(said)
        assert said in caplog.text


class TestTheTotals:
    async def test_on_postgresql_the_defaults_are_ten_times_as_high_and_what_is_given_stays(
        self, postgresql: PostgreSQL, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        url = postgresql.url(await postgresql.new_database())
        default = Limits()

        def totals(database: str | None, **limits: Any) -> list[int]:
            app = MRTRServer("shop", keys=[bytes(32)], store=database, limits=Limits(**limits) if limits else None)
            found = app.limits
            return [found.stored_tasks, found.stored_states, found.stored_bytes]

        before = [default.stored_tasks, default.stored_states, default.stored_bytes]
        assert totals(url) == [10 * each for each in before]
        assert totals(None) == before
        assert totals(url, rounds=3) == [10 * each for each in before]
        assert totals(url, stored_states=default.stored_states) == [10 * before[0], before[1], 10 * before[2]]
        monkeypatch.setenv("MRTR_LIMITS_STORED_TASKS", "7")
        monkeypatch.setenv("MRTR_LIMITS_ROUNDS", "5")
        assert totals(url) == [7, 10 * before[1], 10 * before[2]], "of the environment, too"

    async def test_a_sqlite_file_keeps_the_defaults(self, tmp_path: Path) -> None:
        app = MRTRServer("shop", keys=[bytes(32)], store=f"sqlite:///{tmp_path}/store.db")
        assert app.limits == Limits()
