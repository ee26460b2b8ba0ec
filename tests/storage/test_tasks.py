"""What every store promises about tasks: one contract, held by the one in the process and by those in databases."""

import asyncio
import json
import math
import re
import sqlite3
import time
from collections import Counter
from collections.abc import AsyncIterator, Coroutine
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, TypeVar

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule

from mrtr_server import InProcessStore, SQLStore, Store, StoreUnavailable, TaskRow
from mrtr_server.storage.rows import ENDED
from mrtr_server.storage.sql import store as module
from mrtr_server.storage.sql.database import read_migrations
from mrtr_server.storage.sql.sqlite_file import SQLiteFile
from mrtr_server.testing import Clock
from mrtr_server.testing.store import TaskStoreContract

from ..support.databases import TOOLS, PostgreSQL, explained, note_forgotten, process, task_row
from ..support.serving import TIMEOUT
from ..support.stores import InOneProcess, Stores

pytestmark = pytest.mark.anyio
T = TypeVar("T")

LONG = 600.0
"""How long who waits for tasks would wait without a word, in seconds."""


@pytest.fixture(autouse=True)
def quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where notices arrive, look for nothing else: so a notice it was that woke who waited."""
    monkeypatch.setattr("mrtr_server.storage.sql.tasks.QUIET", LONG)


OF_A_SERVER_THAT_GOES = (
    "can't connect: ",
    "the database system is shutting down",
    "the database system is starting up",
    "terminating connection due to administrator command",
    "connection was closed in the middle of operation",
    "connection is closed",
)
"""What PostgreSQL and its driver say of a server that is shut down, and starts again."""
STATUSES = ["working", "working", "input_required", "completed", "failed", "cancelled"]


class TaskStoreBench(Stores[Store]):
    """A store of tasks, and a way to let its time pass without waiting."""

    async def add(self, **given: Any) -> TaskRow:
        """Keep a new task."""
        row = task_row(**given)
        await self.store.add_task(row)
        return row

    async def claim(self, lease: str = "lease", *, seconds: float = 30, most: int = 10) -> list[TaskRow]:
        """Take tasks."""
        return await self.store.claim_tasks(lease, seconds=seconds, most=most, tools=TOOLS)

    async def found(self, row: TaskRow) -> TaskRow:
        """Find a task that is there."""
        found = await self.another.find_task(row.id)
        assert found is not None
        return found


class OwnContract(TaskStoreContract):
    """The contract, and what ours promise besides."""

    second = 10.0  # no test waits for one, and no busy machine is late

    async def rows(self) -> int:
        """Count what is kept, whether expired or not."""
        raise NotImplementedError  # each store has its own

    @pytest.fixture
    async def bench(self) -> AsyncIterator[TaskStoreBench]:
        store, another = await self.new_store(), await self.new_store()
        yield TaskStoreBench(store, another, self.pass_time, self.rows)
        await store.close()
        await another.close()

    async def test_nobody_lists_what_is_nobodys(self, bench: TaskStoreBench) -> None:
        await bench.add(owner="")
        assert await bench.store.list_owned_tasks("", before=(math.inf, ""), most=9, most_bytes=10**6) == []

    async def test_who_stops_waiting_for_a_task_disturbs_nobody(
        self, bench: TaskStoreBench, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(SQLiteFile, "find", lambda *_: None)  # what is found on the spot is not waited for
        row = await bench.add()
        finding = [asyncio.create_task(bench.store.find_task(row.id)) for _ in range(30)]
        await asyncio.sleep(0)  # all have begun, and none has had the turn in which an answer would reach it
        stopped = {task for task in finding[::3] if task.cancel()}
        assert len(stopped) == (0 if isinstance(bench.store, InProcessStore) else 10), "where anything is waited for"
        for task in finding[1::3]:
            await asyncio.sleep(0)
            if task.cancel():
                stopped.add(task)
        for task, each in zip(finding, await asyncio.gather(*finding, return_exceptions=True), strict=True):
            assert isinstance(each, asyncio.CancelledError) if task in stopped else each == row

    async def test_a_message_may_hold_whatever_a_handler_says(self, bench: TaskStoreBench) -> None:
        row = await bench.add(message="a\0b\ud800")
        assert (await bench.found(row)).message[0] == "a"
        changed = await bench.store.change_task(await bench.found(row), message="c\0d\ud800")
        assert changed is not None
        assert await bench.found(row) == changed

    async def test_what_has_expired_is_removed(self, bench: TaskStoreBench, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(module, "SWEEP_INTERVAL", 0.0)
        for _ in range(20):
            await bench.add(expires=time.time() + 10)
        assert await bench.rows() == 20
        await bench.pass_time(11)
        row = await bench.add(expires=time.time() + 900, deadline=time.time() + 900)
        await bench.claim()
        assert await bench.rows() == 1
        assert await bench.store.find_task(row.id) is not None

    async def test_what_has_expired_is_removed_by_any_replica_that_only_works(
        self, bench: TaskStoreBench, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        await bench.add(expires=time.time() + 10)
        monkeypatch.setattr(module, "SWEEP_INTERVAL", 0.0)
        await bench.pass_time(11)
        assert await bench.rows() == 1
        assert await bench.another.overdue_tasks(most=10) == []
        assert await bench.rows() == 0

    async def test_nothing_wakes_for_what_runs(self, bench: TaskStoreBench) -> None:
        await bench.add()
        (row,) = await bench.claim()
        waiting = asyncio.create_task(bench.store.wait_for_tasks(1.0, tools=TOOLS))
        await asyncio.sleep(0.3)
        assert await bench.store.renew_tasks("lease", [row.id], seconds=30)
        changed = await bench.store.change_task(row, message="half of it")
        assert changed is not None
        changed = await bench.store.change_task(changed, lease="another", seconds=30)
        assert changed is not None
        assert await bench.store.change_task(changed, status="completed")
        assert await asyncio.wait([waiting], timeout=0.3) == (set(), {waiting})
        await waiting


class TestInProcessTasks(InOneProcess, OwnContract):
    async def rows(self) -> int:
        return len(self.only._tasks)

    async def test_what_all_tasks_hold_is_bounded(self) -> None:
        clock = Clock()
        store = InProcessStore(clock, most_bytes=100_000)
        rows = [task_row(journal=bytes(9_000), expires=clock.now + number) for number in range(1, 20)]
        for row in rows[:10]:
            await store.add_task(row)
        with pytest.raises(StoreUnavailable, match=r"its tasks hold 9\d{4} bytes; give it a larger most_bytes"):
            await store.add_task(rows[10])
        assert await store.change_task(rows[9], status="completed", journal=b"")
        assert await store.add_task(rows[10])
        with pytest.raises(StoreUnavailable):
            await store.add_task(rows[11])
        clock.now += 11
        for row in rows[11:]:
            assert await store.add_task(row)
        clock.now += 60
        await store.overdue_tasks(most=1)
        assert (store._bytes, store._tasks) == (0, {})

    async def test_what_has_expired_is_absent_from_that_moment_on(self) -> None:
        store = InProcessStore(clock := Clock())
        row = task_row(expires=clock.now + 10)
        assert await store.add_task(row)
        clock.now = row.expires - 0.001
        assert await store.find_task(row.id) == row
        assert not await store.add_task(row)
        clock.now = row.expires
        assert await store.find_task(row.id) is None
        assert await store.change_task(row, message="late") is None
        assert await store.add_task(row._replace(expires=row.expires + 10))

    async def test_a_task_that_asks_again_and_again_leaves_nothing_behind(self) -> None:
        store = InProcessStore(clock := Clock())
        row: TaskRow | None = task_row()
        assert row is not None
        await store.add_task(row)
        for number in range(1000):
            row = await store.change_task(row, deadline=clock.now + number + 2)
            assert row is not None
        assert len(store._deadlines) < 200
        clock.now = row.deadline + 1
        assert [each.id for each in await store.overdue_tasks(most=5)] == [row.id]


class SQLContract(OwnContract):
    database: str
    """The URL of the test's database."""

    @pytest.fixture
    def url(self) -> str:
        return self.database

    async def forget(self, caller: str) -> None:
        await note_forgotten(self.database, caller)

    def test_it_has_a_column_for_every_field(self) -> None:
        for kind in ("sqlite", "postgresql"):
            statements = [statement for steps in read_migrations(kind).values() for statement in steps]
            (made,) = [each for each in statements if each.startswith("CREATE TABLE mrtr_tasks")]
            columns = [line.split()[0] for line in made.splitlines()[1:-1]]
            added = [each.split()[5] for each in statements if each.startswith("ALTER TABLE mrtr_tasks ADD COLUMN")]
            others = {"PRIMARY", "blocks", "queued", "shard", "tenant", "writer"}
            assert {*columns, *added} - others == {*TaskRow._fields}

    async def test_every_search_has_an_index(self, bench: TaskStoreBench) -> None:
        assert isinstance(bench.store, SQLStore)
        await bench.add()
        database = bench.store.database
        for statement, index in (
            ("find_task", "mrtr_tasks"),
            ("find_tasks", "mrtr_tasks"),
            ("any_free_task", "ix_mrtr_tasks_queued" if database.notifies else "ix_mrtr_tasks_waiting"),
            ("any_free_task", "ix_mrtr_tasks_queued" if database.notifies else "ix_mrtr_tasks_running"),
            ("overdue_tasks", "ix_mrtr_tasks_open"),
            ("list_owned_tasks", "ix_mrtr_tasks_owned"),
            ("task_names", "ix_mrtr_tasks_listed"),
            ("list_tasks", "ix_mrtr_tasks_listed"),
            ("find_referenced_tasks", "mrtr_tasks"),
            ("sweep_tasks", "ix_mrtr_tasks_expires"),
            ("wait_names", "ix_mrtr_waits"),
            ("find_waits", "ix_mrtr_waits_paged"),
            ("find_referenced_waits", "mrtr_waits"),
            ("list_waits", "ix_mrtr_waits_listed"),
        ):
            if statement not in database.statements:
                continue
            plan = await explained(database, statement)
            assert index in plan, plan
            assert "Seq Scan" not in plan.replace("Seq Scan on mrtr_schema", ""), plan  # it has one row
            assert not re.search(r"SCAN mrtr_(tasks|waits)(?! USING)", plan), plan
            assert "Sort" not in plan.replace("Incremental Sort", "").replace("Sort Key", ""), plan  # of one moment
            assert "TEMP B-TREE" not in plan.partition("SCAN newest")[0], (
                plan
            )  # of one page, SQLite sorts what is sorted

    async def test_of_many_processes_each_task_goes_to_one(self, bench: TaskStoreBench, url: str) -> None:
        workers = [process("claim", url, "200") for _ in range(4)]
        for worker in workers:
            assert worker.stdout is not None
            assert worker.stdout.readline() == "ready\n"
        rows = [await bench.add() for _ in range(200)]
        replies = await asyncio.gather(*(asyncio.to_thread(worker.communicate, "go\n", 60) for worker in workers))
        assert [worker.returncode for worker in workers] == [0] * 4
        taken = [json.loads(reply) for reply, _ in replies]
        assert sorted(id for each in taken for id in each) == sorted(row.id for row in rows)
        assert sum(map(bool, taken)) > 1, "there was nothing to share"
        assert {(await bench.found(row)).status for row in rows} == {"completed"}

    @pytest.mark.alone
    async def test_a_worker_that_waits_in_another_process_is_woken_within_a_second(
        self, bench: TaskStoreBench, url: str
    ) -> None:
        worker = process("claim", url, "1")
        assert worker.stdin is not None
        assert worker.stdout is not None
        assert worker.stdout.readline() == "ready\n"
        worker.stdin.write("go\n")
        worker.stdin.flush()
        await asyncio.sleep(1.5)
        row, start = await bench.add(), time.monotonic()
        while (await bench.found(row)).status != "completed":
            assert time.monotonic() - start < 1
            await asyncio.sleep(0.02)
        assert json.loads(worker.communicate(timeout=TIMEOUT)[0]) == [row.id]

    async def test_what_a_killed_process_has_added_is_there_and_what_it_had_claimed_comes_back(
        self, bench: TaskStoreBench, url: str
    ) -> None:
        await bench.add()
        worker = process("add-and-hold", url)
        assert worker.stdout is not None
        added, claimed = json.loads(worker.stdout.readline())
        worker.kill()
        worker.communicate(timeout=TIMEOUT)
        assert await bench.store.find_task(added) is not None
        assert {row.id for row in await bench.claim()} == {added} - {claimed}
        await bench.pass_time(400)  # the other process has a clock of its own
        assert claimed in {row.id for row in await bench.claim()}

    async def test_a_reply_that_was_lost_changes_nothing_twice(
        self, bench: TaskStoreBench, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        assert isinstance(bench.store, SQLStore)
        execute = bench.store.database.execute

        async def execute_twice(sql: str, given: Any) -> Any:
            await execute(sql, given)  # whose reply is lost with the connection
            return await execute(sql, given)

        monkeypatch.setattr(bench.store.database, "execute", execute_twice)
        row = await bench.add()
        changed = await bench.store.change_task(row, status="input_required", journal=b"once")
        assert changed == row._replace(status="input_required", journal=b"once", version=1)
        assert await bench.found(row) == changed
        assert await bench.rows() == 1

    async def test_a_claim_whose_reply_was_lost_comes_back_when_its_lease_has_ended(
        self, bench: TaskStoreBench, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        assert isinstance(bench.store, SQLStore)
        row, execute = await bench.add(), bench.store.database.execute

        async def execute_twice(sql: str, given: Any) -> Any:
            await execute(sql, given)
            return await execute(sql, given)

        with monkeypatch.context() as patched:
            patched.setattr(bench.store.database, "execute", execute_twice)
            assert await bench.claim("mine", seconds=5) == []
        assert await bench.claim("other") == []
        await bench.pass_time(6)
        (claimed,) = await bench.claim("other")
        assert (claimed.id, claimed.lease, claimed.attempts) == (row.id, "other", 2)


class TestSQLiteTasks(SQLContract):
    @pytest.fixture(autouse=True)
    def file(self, tmp_path: Path) -> None:
        self.database, self.clock = f"sqlite:///{tmp_path}/tasks.db", Clock()

    async def new_store(self) -> Store:
        return SQLStore(self.database, clock=self.clock)

    async def pass_time(self, seconds: float) -> None:
        self.clock.advance(seconds)

    async def rows(self) -> int:
        connection = sqlite3.connect(self.database.removeprefix("sqlite:///"))
        (count,) = connection.execute("SELECT count(*) FROM mrtr_tasks").fetchone()
        connection.close()
        return int(count)

    async def test_who_is_woken_asks_the_database_only_by_claiming(
        self, bench: TaskStoreBench, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        assert isinstance(bench.store, SQLStore)
        asked, rows = [], bench.store.database.rows

        async def counted(statement: str, **given: Any) -> Any:
            asked.append(statement)
            return await rows(statement, **given)

        monkeypatch.setattr(bench.store.database, "rows", counted)
        waiting = asyncio.create_task(bench.store.wait_for_tasks(LONG, tools=TOOLS))
        await asyncio.sleep(0)
        bench.store.wakes.here.set()
        await asyncio.wait_for(waiting, TIMEOUT)
        assert asked == []

    async def test_a_disk_that_is_full_loses_no_task_and_has_room_again(
        self, bench: TaskStoreBench, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        assert isinstance(bench.store, SQLStore)
        kept = [await bench.add(deadline=time.time() + 9000, expires=time.time() + 9000)]
        await bench.store.database.execute("PRAGMA max_page_count=100", {})
        errors: list[BaseException] = []
        while not errors:
            rows = [task_row(journal=bytes(9_000), expires=time.time() + 10) for _ in range(5)]
            done = await asyncio.gather(*map(bench.store.add_task, rows), return_exceptions=True)
            kept += [row for row, added in zip(rows, done, strict=True) if added is True]
            errors = [error for error in done if isinstance(error, BaseException)]
        assert {type(error) for error in errors} == {StoreUnavailable}
        assert "database or disk is full; free some space" in str(errors[0])
        assert len(kept) > 5
        assert [await bench.another.find_task(row.id) for row in kept] == kept
        await bench.pass_time(1_000)
        monkeypatch.setattr(module, "SWEEP_INTERVAL", 0.0)
        await bench.add(journal=bytes(9_000))
        assert len(await bench.claim()) == 2

    async def test_a_file_that_is_locked_by_another_process_is_waited_for_and_read_meanwhile(
        self, bench: TaskStoreBench, url: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("mrtr_server.storage.sql.sqlite.CONNECT_TIMEOUT", 0.3)
        row = await bench.add()
        other = sqlite3.connect(url.removeprefix("sqlite:///"))
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(StoreUnavailable, match="database is locked; another process"):
            await bench.add()
        assert await bench.store.find_task(row.id) == row
        other.rollback()
        other.close()
        await bench.add()


class TestPostgreSQLTasks(SQLContract):
    @pytest.fixture(autouse=True)
    def server(self, postgresql: PostgreSQL) -> None:
        self.postgresql, self.name = postgresql, asyncio.run(postgresql.new_database())
        self.database = postgresql.url(self.name)

    async def new_store(self) -> Store:
        return SQLStore(self.database)

    async def pass_time(self, seconds: float) -> None:
        # It is the database's own clock that counts: what is in it grows older instead.
        await self.postgresql.fetch(
            f"UPDATE mrtr_tasks SET leased_until = leased_until - {seconds}, "  # noqa: S608
            f"deadline = deadline - {seconds}, expires = expires - {seconds}",
            self.name,
        )

    async def rows(self) -> int:
        return int(await self.postgresql.fetch("SELECT count(*) FROM mrtr_tasks", self.name))

    async def test_its_own_clock_counts_and_not_the_replicas(self, bench: TaskStoreBench, url: str) -> None:
        await bench.add()
        assert len(await bench.claim()) == 1
        ahead = SQLStore(url, clock=lambda: 9e9)
        assert await ahead.claim_tasks("ahead", seconds=5, most=5, tools=TOOLS) == []
        await ahead.close()

    async def test_a_claim_that_was_held_up_takes_no_lease_that_ended_meanwhile(
        self, bench: TaskStoreBench, postgresql: PostgreSQL
    ) -> None:
        await bench.add()
        assert len(await bench.claim("mine", seconds=1)) == 1
        with postgresql.frozen():  # the worker can't renew, either
            claiming = asyncio.create_task(bench.another.claim_tasks("other", seconds=5, most=5, tools=TOOLS))
            await asyncio.sleep(1.5)
        assert await claiming == []
        assert len(await bench.another.claim_tasks("other", seconds=5, most=5, tools=TOOLS)) == 1

    async def test_a_server_that_goes_away_and_comes_back_loses_no_task(
        self, bench: TaskStoreBench, postgresql: PostgreSQL
    ) -> None:
        assert isinstance(bench.store, SQLStore)
        added: list[TaskRow] = []
        failures: list[str] = []
        done: Counter[str] = Counter()
        stop = asyncio.Event()

        async def add() -> None:
            while not stop.is_set():
                try:
                    added.append(await bench.add())
                except StoreUnavailable as error:
                    failures.append(str(error))
                await asyncio.sleep(0.01)

        async def are_left() -> bool:
            with suppress(StoreUnavailable):
                return {(await bench.found(row)).status for row in added} != {"completed"}
            return True

        async def work(worker: str) -> None:
            while not stop.is_set() or await are_left():
                with suppress(StoreUnavailable):
                    for row in await bench.another.claim_tasks(worker, seconds=2, most=5, tools=TOOLS):
                        if await bench.another.change_task(row, status="completed"):
                            done[row.id] += 1
                    await bench.another.wait_for_tasks(0.5, tools=TOOLS)
                await asyncio.sleep(0.01)

        tasks = [asyncio.create_task(work(f"worker {number}")) for number in range(2)] + [asyncio.create_task(add())]
        await asyncio.sleep(0.5)
        await asyncio.to_thread(postgresql.stop)
        await asyncio.sleep(1)
        await asyncio.to_thread(postgresql.start)
        await asyncio.sleep(2)
        stop.set()
        async with asyncio.timeout(TIMEOUT):
            await asyncio.gather(*tasks)
        assert failures
        for each in failures:
            assert each.startswith(f"{bench.store.database.name}: "), each
            assert any(words in each for words in OF_A_SERVER_THAT_GOES), each
        assert done
        assert set(done.values()) == {1}  # one whose reply was lost is completed, and not in here
        # And who waits is woken at once again.
        await bench.another.claim_tasks("last", seconds=5, most=50, tools=TOOLS)
        waiting = asyncio.create_task(bench.another.wait_for_tasks(LONG, tools=TOOLS))
        await asyncio.sleep(2)
        start = time.monotonic()
        await bench.add()
        await waiting
        assert time.monotonic() - start < TIMEOUT


class Model(RuleBasedStateMachine):
    """Whatever is done in whatever order, a store says what this simple model says."""

    LEASES = st.sampled_from(["mine", "yours"])
    SECONDS = st.sampled_from([1.0, 5.0])

    def __init__(self) -> None:
        super().__init__()
        self.runner = asyncio.Runner()
        self.clock = Clock()
        self.rows: dict[str, TaskRow] = {}
        self.seen: list[TaskRow] = []
        self.store = self.make()

    def make(self) -> InProcessStore | SQLStore:
        return InProcessStore(self.clock)

    def do(self, work: Coroutine[Any, Any, T]) -> T:
        return self.runner.run(work)

    def alive(self, id: str) -> TaskRow | None:
        row = self.rows.get(id)
        return row if row is not None and row.expires > self.clock.now else None

    def keep(self, row: TaskRow) -> None:
        self.rows[row.id] = row
        self.seen.append(row)

    @rule(seconds=st.sampled_from([1.0, 2.0, 10.0]))
    def time_passes(self, seconds: float) -> None:
        self.clock.now += seconds

    @rule(lives=st.sampled_from([4.0, 30.0]), due=st.sampled_from([3.0, 20.0]), status=st.sampled_from(STATUSES))
    def add(self, lives: float, due: float, status: Any) -> None:
        now = self.clock.now
        row = task_row(status=status, updated=now + len(self.seen) / 1e3, deadline=now + due, expires=now + lives)
        self.do(self.store.add_task(row))
        self.keep(row)

    @precondition(lambda self: self.seen)
    @rule(
        data=st.data(),
        status=st.sampled_from(STATUSES),
        lease=st.none() | st.just("") | LEASES,
        seconds=SECONDS,
        journal=st.binary(max_size=3),
    )
    def change(self, data: st.DataObject, status: Any, lease: str | None, seconds: float, journal: bytes) -> None:
        row = data.draw(st.sampled_from(self.seen))
        changes: dict[str, Any] = {"journal": journal}
        if row.status not in ENDED:  # which no task leaves
            changes["status"] = status
        if lease is not None:
            changes |= {"lease": lease, "attempts": 0} | ({} if lease else {"leased_until": 0.0})
        leased = {"leased_until": self.clock.now + seconds} if lease else {}
        present = self.alive(row.id)
        expected = None
        if present is not None and present.version == row.version:
            expected = present._replace(**(changes | leased), version=row.version + 1)
        assert self.do(self.store.change_task(row, seconds=seconds if lease else None, **changes)) == expected
        if expected is not None:
            self.keep(expected)

    @rule(lease=LEASES, seconds=SECONDS, most=st.integers(1, 3))
    def claim(self, lease: str, seconds: float, most: int) -> None:
        now = self.clock.now
        free = [
            row
            for row in self.rows.values()
            if self.alive(row.id) and row.status == "working" and row.leased_until <= now
        ]
        expected = [
            row._replace(lease=lease, leased_until=now + seconds, attempts=row.attempts + 1, version=row.version + 1)
            for row in sorted(free, key=lambda row: row.updated)[:most]
        ]
        assert self.do(self.store.claim_tasks(lease, seconds=seconds, most=most, tools=TOOLS)) == expected
        for row in expected:
            self.keep(row)

    @rule(lease=LEASES, seconds=SECONDS)
    def renew(self, lease: str, seconds: float) -> None:
        taken = [row for row in self.rows.values() if self.alive(row.id) and row.lease == lease]
        held = {row.id for row in taken if row.status == "working"}
        assert self.do(self.store.renew_tasks(lease, list(self.rows), seconds=seconds)) == held
        for row in taken:
            if row.status in ("working", "cancelled"):
                self.rows[row.id] = row._replace(leased_until=self.clock.now + seconds)
            assert self.do(self.store.holds_task(lease, row.id)) == (row.status == "working")

    @rule()
    def look(self) -> None:
        for id in self.rows:
            assert self.do(self.store.find_task(id)) == self.alive(id)
        overdue = {
            row.id
            for row in self.rows.values()
            if self.alive(row.id) and row.status in ("working", "input_required") and row.deadline <= self.clock.now
        }
        assert {row.id for row in self.do(self.store.overdue_tasks(most=100))} == overdue

    def teardown(self) -> None:
        self.do(self.store.close())
        self.runner.close()


class SQLiteModel(Model):
    def make(self) -> InProcessStore | SQLStore:
        self.directory = TemporaryDirectory(prefix="mrtr-")
        return SQLStore(f"sqlite:///{self.directory.name}/store.db", clock=self.clock)

    def teardown(self) -> None:
        super().teardown()
        self.directory.cleanup()


TestModel = Model.TestCase
TestModel.settings = settings(max_examples=100, stateful_step_count=40)
TestSQLiteModel = SQLiteModel.TestCase
TestSQLiteModel.settings = settings(max_examples=25, stateful_step_count=30)


async def test_a_claim_from_many_after_a_failover_finds_what_began_to_run_before(
    postgresql: PostgreSQL, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another server gives lower numbers to transactions than were seen at the former one."""
    monkeypatch.setattr("mrtr_server.storage.sql.tasks.QUEUES", 2)
    store, now = SQLStore(postgresql.url(await postgresql.new_database())), time.time()
    lapsed = task_row(updated=now - 60, lease="dead")
    await store.add_task(lapsed, seconds=-1)
    for _ in range(3):
        await store.add_task(task_row())
    await store.measure(TOOLS)
    store._seen = dict.fromkeys(TOOLS, (2**60, 2**60))
    assert [row.id for row in await store.claim_tasks("mine", seconds=60, most=1, tools=TOOLS)] == [lapsed.id]
    await store.close()


async def test_a_claim_that_leaves_nothing_of_its_tools_says_nothing_of_others(
    postgresql: PostgreSQL, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mrtr_server.storage.sql.tasks.QUEUES", 2)
    monkeypatch.setattr("mrtr_server.storage.sql.tasks.MANY_FOR", 600.0)
    store, run = SQLStore(postgresql.url(await postgresql.new_database())), list[str]()
    for tool in "ab":
        for _ in range(4):
            await store.add_task(task_row(name=tool))
    rows = store.database.rows

    async def noted(statement: str, **given: Any) -> Any:
        run.append(statement)
        return await rows(statement, **given)

    monkeypatch.setattr(store.database, "rows", noted)
    for tool, most in (("a", 1), ("b", 1), ("b", 10)):
        await store.claim_tasks("mine", seconds=60, most=most, tools=[tool])
    run.clear()
    await store.claim_tasks("mine", seconds=60, most=1, tools=["a"])
    assert run == ["claim_from_many"], "that many of its tasks wait is known still"
    await store.close()
