"""What every store promises: one contract, held by the one in the process and by those in real databases."""

import asyncio
import gc
import inspect
import json
import sqlite3
import time
import tracemalloc
from collections import Counter
from collections.abc import AsyncIterator, Coroutine
from pathlib import Path
from secrets import token_hex
from tempfile import TemporaryDirectory
from typing import Any, TypeVar

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, rule

from mrtr_server import InProcessStore, Redemption, SQLStore, Store, StoreUnavailable
from mrtr_server.errors import ClocksApart
from mrtr_server.storage.health import Outage
from mrtr_server.storage.sql import database
from mrtr_server.storage.sql import store as module
from mrtr_server.storage.sql.administration import new_epoch
from mrtr_server.storage.watched import WatchedStore
from mrtr_server.testing import Clock
from mrtr_server.testing.store import StoreContract

from ..support.databases import KEEP, LEASE, PostgreSQL, explained, note_forgotten, process
from ..support.serving import TIMEOUT
from ..support.stores import InOneProcess, Stores

ROWS = "(SELECT count(*) FROM mrtr_redemptions) + (SELECT count(*) FROM mrtr_kept)"

pytestmark = pytest.mark.anyio
T = TypeVar("T")


class StoreBench(Stores[Store]):
    """A store of single use, and a way to let its time pass without waiting."""

    async def redeem(
        self, state: str, answers: str = "answers", *, lease: float = LEASE, keep: float = KEEP
    ) -> Redemption:
        """Deliver a state."""
        return await self.store.redeem(state, answers, lease=lease, keep=keep)


@pytest.fixture
def state() -> str:
    return token_hex(16)


class OwnContract(StoreContract):
    """The contract, and what ours promise besides."""

    second = 10.0  # no test waits for one, and no busy machine is late

    async def rows(self) -> int:
        """Count what is kept, whether expired or not."""
        raise NotImplementedError  # each store has its own

    async def clear(self) -> None:
        """Remove what other tests have left, where they use the same tables."""

    @pytest.fixture
    async def bench(self) -> AsyncIterator[StoreBench]:
        store, another = await self.new_store(), await self.new_store()
        await self.clear()
        yield StoreBench(store, another, self.pass_time, self.rows)
        await store.close()
        await another.close()

    async def test_what_has_expired_is_removed(self, bench: StoreBench, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(module, "SWEEP_INTERVAL", 0.0)
        await bench.pass_time(10 * KEEP)
        await bench.redeem(token_hex(16))
        await bench.store.put(token_hex(16), b"value", keep=KEEP)
        before = await bench.rows()
        for _ in range(20):
            await bench.redeem(token_hex(16), keep=10)
            await bench.store.put(token_hex(16), b"value", keep=10)
        assert await bench.rows() == before + 40
        await bench.pass_time(11)
        await bench.redeem(token_hex(16))
        await bench.store.put(token_hex(16), b"value", keep=KEEP)
        assert await bench.rows() == before + 2

    async def test_closing_waits_for_what_is_under_way(self, bench: StoreBench) -> None:
        tasks = [asyncio.create_task(bench.redeem(token_hex(16))) for _ in range(20)]
        await asyncio.sleep(0)
        await bench.store.close()
        assert {grant.verdict for grant in await asyncio.gather(*tasks)} == {"granted"}


class TestInProcessStore(InOneProcess, OwnContract):
    async def rows(self) -> int:
        return len(self.only._redeemed._items) + len(self.only._values._items)

    def test_it_is_not_shared(self) -> None:
        assert InProcessStore.shared is False

    def test_it_holds_100_000_of_a_kind_and_256_mib_unless_it_is_told(self) -> None:
        defaults = inspect.signature(InProcessStore).parameters
        assert defaults["most_records"].default == 100_000
        assert defaults["most_bytes"].default == 256 * 2**20

    async def test_what_has_expired_is_absent_from_that_moment_on(self) -> None:
        clock = Clock()
        store, now = InProcessStore(clock, most_records=1), clock.now
        assert await store.put("key", b"value", keep=10)
        granted = await store.redeem("state", "answers", lease=5, keep=10)
        clock.now = now + 9.999
        assert await store.get("key") == b"value"
        assert await store.renew("state", granted.token, lease=5)
        clock.now = now + 10
        assert await store.get("key") is None
        assert not await store.renew("state", granted.token, lease=5)
        assert await store.put("another", b"value", keep=10)
        assert (await store.redeem("another", "answers", lease=5, keep=10)).verdict == "granted"

    async def test_a_lease_ends_at_its_moment(self) -> None:
        clock = Clock()
        store, now = InProcessStore(clock), clock.now
        await store.redeem("state", "answers", lease=5, keep=10)
        clock.now = now + 4.999
        assert (await store.redeem("state", "answers", lease=5, keep=10)).verdict == "running"
        clock.now = now + 5
        assert (await store.redeem("state", "answers", lease=5, keep=10)).attempt == 2

    async def test_it_refuses_more_than_it_may_hold(self) -> None:
        clock = Clock()
        store = InProcessStore(clock, most_records=3)
        grants = [await store.redeem(f"state-{number}", "answers", lease=5, keep=10) for number in range(3)]
        with pytest.raises(StoreUnavailable, match=r"full: 3 records .* most_records"):
            await store.redeem("state-3", "answers", lease=5, keep=10)
        assert await store.put("key", b"value", keep=10)  # each kind has its own room
        assert (await store.redeem("state-0", "answers", lease=5, keep=10)).verdict == "running"
        assert await store.record("state-0", grants[0].token, b"done")
        await store.release("state-1", grants[1].token)
        assert (await store.redeem("state-3", "answers", lease=5, keep=10)).verdict == "granted"
        clock.now += 11
        assert (await store.redeem("state-4", "answers", lease=5, keep=10)).verdict == "granted"

    async def test_it_refuses_more_bytes_than_it_may_hold(self) -> None:
        """Whoever calls a tool with a large result again and again must not fill the memory."""
        clock = Clock()
        store = InProcessStore(clock, most_bytes=1_000)
        for state in ("first", "second"):
            granted = await store.redeem(state, "answers", lease=5, keep=10)
            for _ in range(3):  # the same again takes no more room
                assert await store.record(state, granted.token, bytes(600))
        with pytest.raises(StoreUnavailable, match=r"full: 1200 bytes .* most_bytes"):
            await store.redeem("third", "answers", lease=5, keep=10)
        assert (await store.redeem("first", "answers", lease=5, keep=10)).outcome == bytes(600)
        assert await store.put("key", bytes(1_000), keep=10)  # each kind has its own room
        assert not await store.put("key", b"", keep=10)
        with pytest.raises(StoreUnavailable, match="full"):
            await store.put("other", b"", keep=10)
        clock.now += 11
        assert await store.put("other", bytes(1_000), keep=10)
        for state in ("first", "third"):
            assert (await store.redeem(state, "answers", lease=5, keep=10)).verdict == "granted"

    async def test_memory_goes_back(self) -> None:
        clock = Clock()
        store = InProcessStore(clock)
        tracemalloc.start()
        try:
            await store.redeem("state", "answers", lease=1, keep=1)
            before = tracemalloc.get_traced_memory()[0]
            for number in range(5_000):
                granted = await store.redeem(f"state-{number}", "answers", lease=5, keep=10)
                await store.record(f"state-{number}", granted.token, bytes(200))
            full = tracemalloc.get_traced_memory()[0] - before
            clock.now += 11
            await store.redeem("last", "answers", lease=5, keep=10)
            gc.collect()
            left = tracemalloc.get_traced_memory()[0] - before
        finally:
            tracemalloc.stop()
        assert full > 2_000_000
        assert left < full / 5  # a dictionary keeps its table until it grows again

    async def test_giving_back_again_and_again_takes_no_memory(self) -> None:
        store = InProcessStore(Clock())
        for _ in range(5_000):
            granted = await store.redeem("state", "answers", lease=5, keep=10)
            await store.release("state", granted.token)
        assert len(store._redeemed._expiring) < 200

    async def test_threads_with_loops_of_their_own_may_use_it_at_once(self) -> None:
        store = InProcessStore()

        async def deliver() -> list[str]:
            return [(await store.redeem(f"{n}", "answers", lease=60, keep=60)).verdict for n in range(2_000)]

        threads = (asyncio.to_thread(asyncio.run, deliver()) for _ in range(4))
        verdicts = Counter(verdict for each in await asyncio.gather(*threads) for verdict in each)
        assert verdicts == {"granted": 2_000, "running": 6_000}


class SQLContract(OwnContract):
    url: str

    async def begin_epoch(self) -> None:
        await new_epoch(self.url)

    async def forget(self, caller: str) -> None:
        await note_forgotten(self.url, caller)

    async def test_it_is_shared(self, bench: StoreBench) -> None:
        assert bench.store.shared is True

    async def test_of_many_processes_exactly_one_is_granted(self, empty: str) -> None:
        # They make the tables at once, too.
        workers = [process("deliver", empty, "20", "10") for _ in range(4)]
        for worker in workers:
            assert worker.stdout is not None
            assert worker.stdout.readline() == "ready\n"
        replies = await asyncio.gather(*(asyncio.to_thread(worker.communicate, "go\n", 60) for worker in workers))
        assert [worker.returncode for worker in workers] == [0] * 4
        given = [json.loads(reply) for reply, _ in replies]
        for state in given[0]:
            assert Counter(verdict for each in given for verdict in each[state]) == {"granted": 1, "running": 39}, state

    async def test_a_sweep_takes_a_batch_at_a_time_and_goes_on_with_the_next_call(
        self, bench: StoreBench, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(module, "SWEEP_BATCH", 5)
        sweeping = await self.new_store()
        await bench.pass_time(10 * KEEP)
        await bench.redeem(token_hex(16))
        await asyncio.gather(*(bench.redeem(token_hex(16), keep=10) for _ in range(12)))
        await bench.pass_time(11)
        before = await bench.rows()
        left = []
        for _ in range(5):  # each of them keeps one more
            await sweeping.put(token_hex(16), b"value", keep=KEEP)
            left.append(await bench.rows() - before)
        await sweeping.close()
        assert left == [1 - 5, 2 - 10, 3 - 12, 4 - 12, 5 - 12]

    async def test_a_reply_that_was_lost_changes_nothing_twice(
        self, bench: StoreBench, state: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        assert isinstance(bench.store, SQLStore)
        execute, lost = bench.store.database.execute, []

        async def execute_twice(sql: str, given: Any) -> Any:
            lost.append(await execute(sql, given))  # with its connection
            return await execute(sql, given)

        monkeypatch.setattr(bench.store.database, "execute", execute_twice)
        granted = await bench.redeem(state, lease=5)
        assert granted == Redemption("granted", granted.token)
        assert await bench.redeem(state) == Redemption("running")
        await bench.pass_time(6)
        again = await bench.redeem(state)
        assert again == Redemption("granted", again.token, attempt=2)
        assert await bench.store.renew(state, again.token, lease=LEASE)
        assert await bench.store.record(state, again.token, b"done")
        assert await bench.another.redeem(state, "answers", lease=LEASE, keep=KEEP) == Redemption(
            "recorded", outcome=b"done"
        )
        assert await bench.store.put(state, b"value", keep=KEEP)
        assert await bench.another.get(state) == b"value"
        released = await bench.redeem(token_hex(16))
        await bench.store.release(state, released.token)
        assert any(lost)

    async def test_it_sweeps_now_and_then_only(self, bench: StoreBench) -> None:
        await bench.redeem(token_hex(16), keep=10)  # a process's first call sweeps
        await bench.pass_time(11)
        before = await bench.rows()
        await bench.redeem(token_hex(16))
        assert await bench.rows() == before + 1

    async def test_every_search_has_an_index(self, bench: StoreBench) -> None:
        assert isinstance(bench.store, SQLStore)
        await bench.redeem(token_hex(16))
        database = bench.store.database
        for statement, index in (
            ("find_redemption", "mrtr_redemptions"),
            ("get_value", "mrtr_kept"),
            ("sweep_redemptions", "ix_mrtr_redemptions_expires"),
            ("sweep_values", "ix_mrtr_kept_expires"),
            ("list_logins", "ix_mrtr_kept_logins"),
        ):
            plan = await explained(database, statement)
            assert index in plan, plan
            assert "Seq Scan" not in plan.replace("Seq Scan on mrtr_schema", ""), plan  # it has one row
            assert f"SCAN {index}" not in plan, plan


class TestSQLiteStore(SQLContract):
    @pytest.fixture(autouse=True)
    def file(self, tmp_path: Path) -> None:
        self.url, self.clock = f"sqlite:///{tmp_path}/store.db", Clock()

    @pytest.fixture
    def empty(self, tmp_path: Path) -> str:
        return f"sqlite:///{tmp_path}/empty.db"

    async def new_store(self) -> Store:
        return SQLStore(self.url, clock=self.clock)

    async def pass_time(self, seconds: float) -> None:
        self.clock.advance(seconds)

    async def rows(self) -> int:
        connection = sqlite3.connect(self.url.removeprefix("sqlite:///"))
        (count,) = connection.execute(f"SELECT {ROWS}").fetchone()
        connection.close()
        return int(count)

    async def test_a_process_that_is_killed_while_it_writes_leaves_nothing_behind(self, bench: StoreBench) -> None:
        await bench.redeem("before")
        worker = process("linger", self.url, "half-written")
        assert worker.stdout is not None
        assert worker.stdout.readline() == "writing\n"
        worker.kill()
        worker.communicate(timeout=TIMEOUT)
        assert (await bench.redeem("half-written")).attempt == 1
        assert (await bench.redeem("before")).verdict == "running"

    async def test_a_power_cut_loses_no_record(self, bench: StoreBench) -> None:
        assert isinstance(bench.store, SQLStore)

        assert await bench.store.get("any") is None
        database = bench.store.database
        values = [await database.execute(f"PRAGMA {name}", {}) for name in ("synchronous", "journal_mode")]
        assert values == [[(2,)], [("wal",)]]  # 2 is FULL


class TestPostgreSQLStore(SQLContract):
    @pytest.fixture(autouse=True)
    def database(self, postgresql: PostgreSQL) -> None:
        self.server, self.url = postgresql, postgresql.url()

    @pytest.fixture
    async def empty(self, postgresql: PostgreSQL) -> str:
        return postgresql.url(await postgresql.new_database())

    async def new_store(self) -> Store:
        store = SQLStore(self.url)
        await store.check()
        return store

    async def pass_time(self, seconds: float) -> None:
        # It is the database's own clock that counts: what is in it grows older instead.
        earlier = f"expires = expires - {seconds}"
        await self.server.fetch(f"UPDATE mrtr_redemptions SET leased_until = leased_until - {seconds}, {earlier}")  # noqa: S608
        await self.server.fetch(f"UPDATE mrtr_kept SET {earlier}")  # noqa: S608

    async def rows(self) -> int:
        return int(await self.server.fetch(f"SELECT {ROWS}"))

    async def clear(self) -> None:
        await self.server.fetch("TRUNCATE mrtr_redemptions, mrtr_kept")

    async def test_its_own_clock_counts_and_not_the_replicas(self, postgresql: PostgreSQL, state: str) -> None:
        behind = SQLStore(postgresql.url(), clock=lambda: time.time() - 20)
        ahead = SQLStore(postgresql.url(), clock=lambda: time.time() + 20)
        assert (await behind.redeem(state, "answers", lease=15, keep=30)).verdict == "granted"
        assert (await ahead.redeem(state, "answers", lease=15, keep=30)).verdict == "running"
        for store in (behind, ahead):
            await store.close()

    async def test_that_is_apart_from_this_machines_is_said_once(
        self, postgresql: PostgreSQL, caplog: pytest.LogCaptureFixture
    ) -> None:
        apart = [4.0]
        store = SQLStore(postgresql.url(), clock=lambda: time.time() + apart[0])
        assert await store.get("any") is None
        assert caplog.messages == []
        apart[0] = 20.0
        for _ in range(3):
            await store.database.compare_clocks()
        apart[0] = -20.0
        await store.database.compare_clocks()
        (line,) = caplog.messages
        assert "its clock is 20.0 s behind this machine's" in line
        assert "Set both clocks by NTP" in line
        assert "over 30 s apart, confirmations and single-use rounds are refused" in line
        apart[0] = 0.0
        await store.database.compare_clocks()
        assert caplog.messages[1:] == [f"{store.database.name}: its clock and this machine's agree again"]
        await store.close()

    @pytest.mark.parametrize("ahead", [-120.0, 120.0])
    async def test_that_is_far_from_this_machines_refuses_single_use_and_nothing_else(
        self,
        postgresql: PostgreSQL,
        state: str,
        caplog: pytest.LogCaptureFixture,
        monkeypatch: pytest.MonkeyPatch,
        ahead: float,
    ) -> None:
        monkeypatch.setattr(database, "COMPARE_AGAIN", 0.0)
        apart = [ahead]
        store = SQLStore(postgresql.url(), clock=lambda: time.time() + apart[0])
        watched = WatchedStore(store, Outage("it"), lease=LEASE)
        assert await watched.put(state, b"value", keep=60)
        for _ in range(3):
            with pytest.raises(ClocksApart, match="Set both clocks by NTP") as refused:
                await watched.redeem(state, "answers", lease=LEASE, keep=KEEP)
            assert refused.value.reference in caplog.text
        assert await watched.get(state) == b"value"
        (line,) = caplog.messages
        assert f"its clock is 120.0 s {'behind' if ahead > 0 else 'ahead of'} this machine's" in line
        apart[0] = 0.0  # as soon as it is set right
        assert (await watched.redeem(state, "answers", lease=LEASE, keep=KEEP)).verdict == "granted"
        await store.close()

    async def test_is_looked_at_again_while_connections_live(
        self, postgresql: PostgreSQL, state: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        apart = [0.0]
        store = SQLStore(postgresql.url(), clock=lambda: time.time() + apart[0])
        assert (await store.redeem(state, "answers", lease=LEASE, keep=KEEP)).verdict == "granted"
        apart[0] = 120.0
        assert (await store.redeem(state, "answers", lease=LEASE, keep=KEEP)).verdict == "running"
        monkeypatch.setattr(store, "_swept", -module.SWEEP_INTERVAL)  # as half a minute later
        with pytest.raises(ClocksApart):
            await store.redeem(state, "answers", lease=LEASE, keep=KEEP)
        await store.close()


class Model(RuleBasedStateMachine):
    """Whatever is done in whatever order, a store says what this simple model says."""

    STATES, ANSWERS = st.sampled_from(["s", "t"]), st.sampled_from(["a", "b"])
    LEASES, KEEPS = st.sampled_from([1.0, 5.0]), st.sampled_from([3.0, 20.0])
    OUTCOMES = st.sampled_from([b"", b"x", b"y"])

    def __init__(self) -> None:
        super().__init__()
        self.runner = asyncio.Runner()
        self.clock = Clock()
        self.tokens = ["never granted"]
        self.redeemed: dict[str, dict[str, Any]] = {}
        self.values: dict[str, tuple[bytes, float]] = {}
        self.store = self.make()

    def make(self) -> Store:
        return InProcessStore(self.clock)

    def do(self, work: Coroutine[Any, Any, T]) -> T:
        return self.runner.run(work)

    def alive(self, state: str) -> dict[str, Any] | None:
        record = self.redeemed.get(state)
        return record if record and record["expires"] > self.clock.now else None

    def open(self, state: str, token: str) -> dict[str, Any] | None:
        record = self.alive(state)
        return record if record and record["token"] == token and record["outcome"] is None else None

    @rule(seconds=st.sampled_from([1.0, 2.0, 10.0]))
    def time_passes(self, seconds: float) -> None:
        self.clock.now += seconds

    @rule(state=STATES, answers=ANSWERS, lease=LEASES, keep=KEEPS)
    def redeem(self, state: str, answers: str, lease: float, keep: float) -> None:
        got = self.do(self.store.redeem(state, answers, lease=lease, keep=keep))
        now, record = self.clock.now, self.alive(state)
        if record is None:
            record = self.redeemed[state] = {"answers": answers, "expires": now + keep, "outcome": None, "attempt": 0}
        elif record["answers"] != answers:
            assert got == Redemption("spent")
            return
        elif record["outcome"] is not None:
            assert got == Redemption("recorded", outcome=record["outcome"])
            return
        elif record["until"] > now:
            assert got == Redemption("running")
            return
        record.update(token=got.token, attempt=record["attempt"] + 1, until=now + lease)
        assert got == Redemption("granted", got.token, attempt=record["attempt"])
        assert got.token not in self.tokens
        self.tokens.append(got.token)

    @rule(data=st.data(), state=STATES, lease=LEASES)
    def renew(self, data: st.DataObject, state: str, lease: float) -> None:
        token = data.draw(st.sampled_from(self.tokens))
        record = self.open(state, token)
        assert self.do(self.store.renew(state, token, lease=lease)) == (record is not None)
        if record:
            record["until"] = self.clock.now + lease

    @rule(data=st.data(), state=STATES, outcome=OUTCOMES)
    def record(self, data: st.DataObject, state: str, outcome: bytes) -> None:
        token = data.draw(st.sampled_from(self.tokens))
        record = self.alive(state)
        kept = record is not None and record["token"] == token and record["outcome"] in (None, outcome)
        assert self.do(self.store.record(state, token, outcome)) == kept
        if record and kept:
            record["outcome"] = outcome

    @rule(data=st.data(), state=STATES)
    def release(self, data: st.DataObject, state: str) -> None:
        token = data.draw(st.sampled_from(self.tokens))
        self.do(self.store.release(state, token))
        if self.open(state, token):
            del self.redeemed[state]

    @rule(key=STATES, value=OUTCOMES, keep=KEEPS)
    def put(self, key: str, value: bytes, keep: float) -> None:
        absent = self.values.get(key, (b"", 0.0))[1] <= self.clock.now
        assert self.do(self.store.put(key, value, keep=keep)) == absent
        if absent:
            self.values[key] = (value, self.clock.now + keep)

    @rule(key=STATES)
    def get(self, key: str) -> None:
        value, expires = self.values.get(key, (None, 0.0))
        assert self.do(self.store.get(key)) == (value if expires > self.clock.now else None)

    def teardown(self) -> None:
        self.do(self.store.close())
        self.runner.close()


class SQLiteModel(Model):
    def make(self) -> Store:
        self.directory = TemporaryDirectory(prefix="mrtr-")
        return SQLStore(f"sqlite:///{self.directory.name}/store.db", clock=self.clock)

    def teardown(self) -> None:
        super().teardown()
        self.directory.cleanup()


TestModel = Model.TestCase
TestModel.settings = settings(max_examples=100, stateful_step_count=40)
TestSQLiteModel = SQLiteModel.TestCase
TestSQLiteModel.settings = settings(max_examples=25, stateful_step_count=30)
