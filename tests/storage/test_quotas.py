"""What one caller may keep in a store, and how the tasks of callers are claimed: one contract for every store."""

import asyncio
import gc
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from secrets import token_hex
from typing import Any

import pytest

from mrtr_server import InProcessStore, KeyRing, Limits, Principal, SQLStore, TaskRow, TaskStore
from mrtr_server.errors import OverShare
from mrtr_server.storage.quotas import Quota, Quotas, UsageByCaller
from mrtr_server.storage.rows import FREE, Places
from mrtr_server.storage.sql import store as module
from mrtr_server.storage.sql.tasks import BLOCK, budget
from mrtr_server.testing import Clock

from ..support.databases import TOOLS, PostgreSQL, task_row
from ..support.serving import TIMEOUT

pytestmark = pytest.mark.anyio

ANN, BOB, ACME = (character * 32 for character in "abc")
MANY = 50_000
"""Tasks that one caller leaves; a walk through them takes far longer than what is allowed."""


@dataclass
class QuotaBench:
    """A store, and a way to let its time pass without waiting."""

    store: TaskStore
    another: TaskStore
    pass_time: Callable[[float], Awaitable[None]]

    async def add(self, quota: Quota | None = None, **given: Any) -> TaskRow:
        """Keep a new task of a caller."""
        quota = quota or Quota(given.pop("caller", ""))
        row = task_row(caller=quota.caller, **given)
        assert await self.store.add_task(row, quota=quota)
        return row

    async def redeem(self, quota: Quota, state: str = "", **given: Any) -> str:
        """Deliver a state."""
        times = {"lease": 5.0, "keep": 60.0} | given
        return (await self.store.redeem(state or token_hex(16), "answers", quota=quota, **times)).verdict

    async def claim(self, most: int = 10, places: Places = FREE) -> dict[str, int]:
        """Claim tasks, and count whose they are."""
        claimed = await self.store.claim_tasks("lease", seconds=30, most=most, tools=TOOLS, places=places)
        return dict(Counter(row.caller for row in claimed))


@pytest.fixture(params=["memory", "sqlite", "postgresql"])
async def bench(request: pytest.FixtureRequest, tmp_path: Any) -> AsyncIterator[QuotaBench]:
    clock = Clock()
    if request.param == "memory":
        store: TaskStore = InProcessStore(clock)
        another = store
    elif request.param == "sqlite":
        store, another = (SQLStore(f"sqlite:///{tmp_path}/store.db", clock=clock) for _ in range(2))
    else:
        postgresql: PostgreSQL = request.getfixturevalue("postgresql")
        name = await postgresql.new_database()
        store, another = SQLStore(postgresql.url(name)), SQLStore(postgresql.url(name))

    async def pass_time(seconds: float) -> None:
        clock.now += seconds
        if request.param == "postgresql":  # whose own clock counts: what is in it grows older instead
            for table in ("mrtr_tasks", "mrtr_redemptions"):
                earlier = f"expires = expires - {seconds}, leased_until = leased_until - {seconds}"
                await postgresql.fetch(f"UPDATE {table} SET {earlier}", name)  # noqa: S608

    yield QuotaBench(store, another, pass_time)
    await store.close()
    if another is not store:
        await another.close()


class TestTasks:
    async def test_that_have_expired_make_room(self, bench: QuotaBench, monkeypatch: pytest.MonkeyPatch) -> None:
        quota = Quota(ANN, tasks=20, share=0.1)
        for _ in range(2):
            await bench.add(quota, expires=time.time() + 10)
        with pytest.raises(OverShare):
            await bench.add(quota)
        await bench.pass_time(11)
        monkeypatch.setattr(module, "SWEEP_INTERVAL", 0.0)
        for _ in range(2):
            await bench.add(quota)
        with pytest.raises(OverShare):
            await bench.add(quota)

    async def test_are_refused_by_what_they_hold_as_well(self, bench: QuotaBench) -> None:
        quota = Quota(ANN, bytes=10_000_000, share=0.1)
        refused = 0
        for _ in range(7):
            try:
                await bench.add(quota, call=bytes(200_000))
            except OverShare:
                refused += 1
        assert refused == 2
        with pytest.raises(OverShare) as refusal:
            await bench.add(quota)
        assert refusal.value.data == {"limit": "stored_bytes", "value": 1_000_000}
        await bench.add(Quota(BOB, bytes=10_000_000, share=0.1), call=bytes(200_000))

    async def test_that_shrink_make_room(self, bench: QuotaBench) -> None:
        quota = Quota(ANN, bytes=100_000)
        row = await bench.add(quota, call=bytes(110_000))
        with pytest.raises(OverShare):
            await bench.add(quota)
        assert await bench.store.change_task(row, status="completed", call=b"")
        await bench.add(quota)


class TestRoomThatComesMeanwhile:
    """A store that was full has room by the time that it says so: what was refused is stored."""

    @pytest.fixture
    async def full(self, tmp_path: Path) -> AsyncIterator[SQLStore]:
        class Emptied(SQLStore):
            async def _usage(self, quota: Quota) -> UsageByCaller:
                for table in ("mrtr_tasks", "mrtr_kept"):
                    await self.database.execute(f"DELETE FROM {table}", {})  # noqa: S608
                return await super()._usage(quota)

        store = Emptied(f"sqlite:///{tmp_path}/store.db")
        yield store
        await store.close()

    async def test_lets_a_task_in(self, full: SQLStore) -> None:
        quota = Quota(ANN, tasks=1)
        assert await full.add_task(task_row(caller=ANN), quota=quota)
        second = task_row(caller=ANN)
        assert await full.add_task(second, quota=quota)
        assert await full.find_task(second.id)

    async def test_lets_a_value_in(self, full: SQLStore) -> None:
        quota = Quota(ANN, states=1)
        assert await full.put("one", b"1", keep=60, quota=quota)
        assert await full.put("two", b"2", keep=60, quota=quota)
        assert await full.get("two") == b"2"
        await full.replace("three", b"3", keep=60, quota=quota)
        assert await full.get("three") == b"3"


class TestStates:
    async def test_that_have_expired_make_room(self, bench: QuotaBench, monkeypatch: pytest.MonkeyPatch) -> None:
        quota = Quota(ANN, states=1)
        await bench.redeem(quota, keep=10)
        await bench.pass_time(11)
        monkeypatch.setattr(module, "SWEEP_INTERVAL", 0.0)
        assert await bench.redeem(quota) == "granted"

    async def test_of_many_at_once_are_refused_but_for_a_few(self, bench: QuotaBench) -> None:
        quota = Quota(ANN, states=100, share=0.1)
        came = await asyncio.gather(*(bench.redeem(quota) for _ in range(60)), return_exceptions=True)
        granted = sum(each == "granted" for each in came)
        assert 10 <= granted <= 15, "at most as many more as there are connections"
        assert all(isinstance(each, OverShare) for each in came if each != "granted")


class TestConnections:
    """What is stored is counted in the transaction that stores it."""

    async def test_wait_for_no_other_one_that_has_not_committed_yet(self, postgresql: PostgreSQL) -> None:
        store = SQLStore(postgresql.url(name := await postgresql.new_database()))
        await store.check()
        async with postgresql.connection(name) as other, other.transaction():
            await other.execute(
                "INSERT INTO mrtr_redemptions (state, answers, token, attempt, leased_until, expires) "
                "VALUES ('another-0', 'answers', 'token', 1, 1, 9e9)"
            )
            granted = await asyncio.wait_for(store.redeem("state-0", "answers", lease=60, keep=600), TIMEOUT / 4)
            assert granted.verdict == "granted"
            assert (await store.measure([])).usage.states == 1
        assert (await store.measure([])).usage.states == 2
        await store.close()

    async def test_count_right_though_one_stores_and_another_one_removes(self, bench: QuotaBench) -> None:
        for state in "abc":
            granted = await bench.store.redeem(state, "answers", lease=60, keep=600, quota=Quota(ANN))
            if state != "c":
                await bench.another.release(state, granted.token)
        for store in (bench.store, bench.another):
            assert (await store.measure([])).usage.states == 1
        assert await bench.redeem(Quota(ANN, states=2)) == "granted"
        with pytest.raises(OverShare):
            await bench.redeem(Quota(ANN, states=2))


class TestTenants:
    """What all callers of a tenant have stored is counted as that of a caller is."""

    @staticmethod
    def quota(**totals: int) -> Quota:
        """Return the quota of another caller of the tenant, which may have a tenth."""
        return Quota(token_hex(16), **totals, tenant=ACME, tenant_share=0.1)

    @staticmethod
    async def rows(store: TaskStore) -> list[tuple[Any, ...]]:
        """Return how much is counted for the tenant, in all its rows."""
        counted = (
            "SELECT sum(tasks), sum(states), sum(blocks) FROM mrtr_usage WHERE caller = :tenant HAVING count(*) > 0"
        )
        assert isinstance(store, SQLStore)
        return [tuple(map(int, row)) for row in await store.database.execute(counted, {"tenant": ACME})]

    async def test_are_refused_by_what_they_hold_until_it_shrinks_or_goes(
        self, bench: QuotaBench, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        row = await bench.add(self.quota(bytes=1_000_000), call=bytes(60_000), expires=time.time() + 10)
        granted = await bench.another.redeem("state", "answers", lease=60, keep=60, quota=self.quota(bytes=1_000_000))
        assert await bench.store.record("state", granted.token, bytes(60_000))
        with pytest.raises(OverShare) as refusal:
            await bench.add(self.quota(bytes=1_000_000))
        assert (refusal.value.tenant, refusal.value.data) == (ACME, {"limit": "stored_bytes", "value": 100_000})
        changed = await bench.another.change_task(row, status="completed", call=b"")
        assert changed
        await bench.add(self.quota(bytes=1_000_000), call=bytes(60_000))
        with pytest.raises(OverShare):
            await bench.redeem(self.quota(bytes=1_000_000))
        with pytest.raises(OverShare):
            await bench.add(self.quota(tasks=20))
        await bench.pass_time(11)
        monkeypatch.setattr(module, "SWEEP_INTERVAL", 0.0)
        await bench.add(self.quota(tasks=20))

    async def test_leave_no_rows_behind_whatever_comes_and_goes_over_many_connections(self, bench: QuotaBench) -> None:
        if not isinstance(bench.store, SQLStore):
            pytest.skip("there are no tables")
        for _ in range(2):
            kept = [token_hex(16) for _ in range(40)]
            both = (bench.store, bench.another)
            quota = self.quota()
            await asyncio.gather(
                *(both[place % 2].put(key, b"value", keep=60, quota=quota) for place, key in enumerate(kept))
            )
            await asyncio.gather(*(bench.add(self.quota()) for _ in range(5)))
            for key in kept[:20]:
                await bench.store.replace(key, bytes(10_000), keep=60, quota=quota._replace(tenant="", caller=BOB))
            assert await self.rows(bench.store) == [(5, 20, 0)]
            await asyncio.gather(
                *(
                    bench.store.database.execute(f"DELETE FROM {table} WHERE tenant = :tenant", {"tenant": ACME})  # noqa: S608
                    for table in ("mrtr_kept", "mrtr_tasks")
                )
            )
            await bench.add(self.quota())
            assert await self.rows(bench.store) == [(1, 0, 0)], "of those that went at once, too"
            await bench.store.database.execute("DELETE FROM mrtr_tasks", {})
            assert await self.rows(bench.store) == []

    async def test_do_not_wait_for_a_transaction_of_theirs_that_has_not_committed_yet(
        self, postgresql: PostgreSQL
    ) -> None:
        store = SQLStore(postgresql.url(name := await postgresql.new_database()))
        await store.check()
        async with postgresql.connection(name) as other, other.transaction():
            await other.execute(
                "INSERT INTO mrtr_redemptions (state, answers, token, attempt, leased_until, expires, tenant) "
                "VALUES ('another-0', 'answers', 'token', 1, 1, 9e9, $1)",
                ACME,
            )
            granting = store.redeem("state-0", "answers", lease=60, keep=600, quota=self.quota())
            assert (await asyncio.wait_for(granting, TIMEOUT / 4)).verdict == "granted"
            assert await self.rows(store) == [(0, 1, 0)]
        assert await self.rows(store) == [(0, 2, 0)]
        await store.close()


class TestClaims:
    async def test_find_the_tasks_of_many_callers_and_tools(self, bench: QuotaBench) -> None:
        tools = [f"tool {number}" for number in range(4)]
        rows = [await bench.add(caller=f"{number:032x}", name=tools[number % 4]) for number in range(60)]
        taken: list[str] = []
        while claimed := await bench.store.claim_tasks("lease", seconds=30, most=7, tools=tools):
            taken += [row.id for row in claimed]
        assert sorted(taken) == sorted(row.id for row in rows)

    async def test_find_those_of_more_callers_than_one_claim_looks_at(
        self, bench: QuotaBench, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("mrtr_server.storage.sql.tasks.QUEUES", 5)
        monkeypatch.setattr("mrtr_server.storage.memory_tasks.CALLERS_IN_VIEW", 5)
        rows = [await bench.add(caller=token_hex(16)) for _ in range(40)]
        taken: list[str] = []
        async with asyncio.timeout(TIMEOUT):
            while len(taken) < len(rows):
                taken += [row.id for row in await bench.store.claim_tasks("lease", seconds=30, most=3, tools=TOOLS)]
        assert sorted(taken) == sorted(row.id for row in rows)


class TestABacklog:
    """Of one caller costs others nothing: what is looked at does not grow with it."""

    @pytest.fixture
    async def backlog(self, bench: QuotaBench) -> int:
        row = await bench.add(caller=ANN)
        if isinstance(bench.store, SQLStore):
            columns = "owner, name, status, message, created, updated, ttl, poll, deadline, expires, call, journal"
            columns += ", questions, outcome, version, lease, leased_until, attempts, writer, caller"
            copies = f"""
                INSERT INTO mrtr_tasks (id, {columns})
                WITH RECURSIVE numbers (number) AS (
                    SELECT 1 UNION ALL SELECT number + 1 FROM numbers WHERE number < {MANY}
                )
                SELECT id || '-' || number, {columns} FROM mrtr_tasks, numbers WHERE id = :id
            """  # noqa: S608
            await bench.store.database.execute(copies, {"id": row.id})
        else:
            for number in range(MANY):
                await bench.store.add_task(task_row(id=f"{row.id}-{number}", caller=ANN))
        return MANY

    @pytest.mark.alone
    async def test_of_tasks_that_wait_is_not_walked_through(self, bench: QuotaBench, backlog: int) -> None:
        places = Places({ANN: 100}, share=10, spare=0)

        async def took(work: Callable[[], Awaitable[object]]) -> float:
            times = []
            gc.collect()
            gc.disable()  # a collection that looks at the whole backlog says nothing of the work
            try:
                for _ in range(20):
                    start = time.perf_counter()
                    await work()
                    times.append(time.perf_counter() - start)
            finally:
                gc.enable()
            return sorted(times)[len(times) // 2]

        async def add_and_claim() -> None:
            await bench.add(caller=BOB)
            assert await bench.claim(10, places) == {BOB: 1}

        async def claim_nothing() -> None:
            assert await bench.claim(10, places) == {}

        most = 0.02  # of which commits to the disk take a part; a walk takes ten times as long
        assert await took(claim_nothing) < most
        assert await took(add_and_claim) < 2 * most
        assert await took(lambda: bench.store.overdue_tasks(most=100)) < most


def test_what_may_be_stored_is_counted_in_blocks_and_the_last_one_may_be_begun() -> None:
    quota = Quota(ANN, bytes=10 * BLOCK, share=0.5, begun=7.0)
    given = {"caller": ANN, "begun": 7.0, "most": 30, "share": 15, "most_blocks": 11, "share_blocks": 6}
    nobody = {"tenant": "", "tenant_share": 30, "tenant_blocks": 11}
    assert budget(quota, 30) == given | nobody
    acme = {"tenant": ACME, "tenant_share": 7, "tenant_blocks": 3}
    assert budget(quota._replace(tenant=ACME, tenant_share=0.25), 30) == given | acme


class TestQuotas:
    RING = KeyRing([bytes(32)])

    def test_are_those_of_the_limits_for_a_person_whatever_the_application(self) -> None:
        quotas = Quotas(self.RING, Limits(stored_tasks=7, stored_states=8, stored_bytes=9, caller_share=0.5))
        quota = quotas.of(Principal("ann", "issuer", "client"))
        assert (quota.tasks, quota.states, quota.bytes, quota.share) == (7, 8, 9, 0.5)
        assert quota == quotas.of(Principal("ann", "issuer", "another"))
        assert quota.caller != quotas.of(Principal("ann", "another")).caller
        assert quotas.of(None).caller == ""

    def test_name_a_caller_by_a_digest_that_nobody_makes_without_the_key(self) -> None:
        principal = Principal("ann")
        callers = {Quotas(KeyRing([bytes([key]) * 32]), Limits()).of(principal).caller for key in range(3)}
        assert len(callers) == 3
        assert all(len(caller) == 32 for caller in callers)
