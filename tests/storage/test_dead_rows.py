"""While a transaction stays open, PostgreSQL keeps the index entries of what has gone: no look walks through them."""

import asyncio
import json
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from secrets import token_hex
from typing import Any

import pytest

from mrtr_server import SQLStore
from mrtr_server.storage.rows import Position
from mrtr_server.storage.sql import store as module
from mrtr_server.storage.sql.database import CLOCK, number_parameters
from mrtr_server.storage.sql.postgresql import PostgreSQLDatabase

from ..support.databases import TOOLS, PostgreSQL, event_row, task_row
from ..support.serving import TIMEOUT

pytestmark = pytest.mark.anyio

DEAD = 100_000
MOST_BLOCKS = 50

COME = """
    INSERT INTO mrtr_tasks (
        id, owner, name, status, message, created, updated, ttl, poll, deadline, expires, call, journal, questions,
        outcome, version, lease, leased_until, attempts, caller, writer
    )
    SELECT
        id || n, owner, name, 'working', message, created, updated, ttl, poll, deadline, expires, call, journal,
        questions, outcome, version, lease, leased_until, attempts, md5((n % 100)::text), writer
    FROM mrtr_tasks, generate_series($2::int, $3::int) AS n WHERE id = $1
"""
RUN = "UPDATE mrtr_tasks SET lease = 'another', leased_until = 9e9 WHERE status = 'working'"
END = "UPDATE mrtr_tasks SET lease = '', status = 'completed' WHERE status = 'working'"

EXPIRED = """
    INSERT INTO mrtr_redemptions (state, answers, token, attempt, leased_until, expires)
    SELECT n::text, '', '', 1, 0, :now - 100 + n / 10000.0 FROM generate_series(1, :dead::int) AS n
"""


@pytest.fixture
async def name(postgresql: PostgreSQL) -> str:
    return await postgresql.new_database()


@pytest.fixture
async def store(postgresql: PostgreSQL, name: str) -> AsyncIterator[SQLStore]:
    store = SQLStore(postgresql.url(name))
    await store.check()
    yield store
    await store.close()


@asynccontextmanager
async def open_transaction(store: SQLStore) -> AsyncIterator[None]:
    """Keep a snapshot for as long as the block lasts, as `pg_dump` does."""
    other = await store.database.connect_alone()
    try:
        async with other.transaction(isolation="repeatable_read", readonly=True):
            await other.fetch("SELECT FROM mrtr_schema")
            yield
    finally:
        await other.close()


class Reads:
    """How many blocks each statement of a store reads, by its name."""

    def __init__(self, store: SQLStore, monkeypatch: pytest.MonkeyPatch) -> None:
        self.blocks: Counter[str] = Counter()
        assert isinstance(store.database, PostgreSQLDatabase)
        self._database, self._rows = store.database, store.database.rows
        monkeypatch.setattr(store.database, "rows", self.rows)

    async def rows(self, statement: str, **given: Any) -> Any:
        sql, names = number_parameters(self._database.statements[statement], CLOCK)

        async def explain(connection: Any) -> None:
            transaction = connection.transaction()
            await transaction.start()
            await connection.execute("SET LOCAL enable_seqscan = off")  # as where there are more rows
            explained = f"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) {sql}"
            (found,) = json.loads(await connection.fetchval(explained, *(given[name] for name in names)))
            await transaction.rollback()
            self.blocks[statement] = sum(found["Plan"][f"Shared {kind} Blocks"] for kind in ("Hit", "Read"))

        await self._database.run(explain)
        return await self._rows(statement, **given)


class TestTasks:
    async def claimed(self, store: SQLStore) -> list[str]:
        return [row.id for row in await store.claim_tasks("mine", seconds=60, most=1, tools=TOOLS)]

    async def test_that_have_ended_are_not_walked_through(
        self, store: SQLStore, postgresql: PostgreSQL, name: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        model = task_row(status="completed")
        await store.add_task(model)
        async with open_transaction(store):
            async with postgresql.connection(name) as connection:  # where a statement may take long
                await connection.execute(COME, model.id, 1, DEAD)
                await connection.execute(RUN)
                await connection.execute(END)
            reads = Reads(store, monkeypatch)
            assert await self.claimed(store) == []
            assert reads.blocks["claim_tasks"] > 20 * MOST_BLOCKS, "the first look is at all of them"
            assert await self.claimed(store) == []
            assert reads.blocks["claim_tasks"] <= MOST_BLOCKS
            row = task_row(caller="ann")
            await store.add_task(row)
            await store.wait_for_tasks(0.01, tools=TOOLS)
            await store.measure(TOOLS)
            assert await self.claimed(store) == [row.id]
        looks = {name: reads.blocks[name] for name in ("claim_tasks", "any_free_task", "measure")}
        assert max(looks.values()) <= MOST_BLOCKS, looks

    async def test_that_were_overdue_and_have_ended_are_not_walked_through(
        self, store: SQLStore, postgresql: PostgreSQL, name: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        model = task_row(status="completed", deadline=time.time() - 60)
        await store.add_task(model)
        async with open_transaction(store):
            async with postgresql.connection(name) as connection:
                await connection.execute(COME, model.id, 1, DEAD)
                await connection.execute(END)
            reads = Reads(store, monkeypatch)
            assert await store.overdue_tasks(most=5) == []
            assert reads.blocks["overdue_tasks"] > 20 * MOST_BLOCKS, "the first look is at all of them"
            row = task_row(deadline=time.time() - 1)
            await store.add_task(row)
            assert [each.id for each in await store.overdue_tasks(most=5)] == [row.id]
            assert reads.blocks["overdue_tasks"] <= MOST_BLOCKS
            assert [each.id for each in await store.overdue_tasks(most=5)] == [row.id], "until somebody has ended it"

    async def test_are_claimed_however_late_their_transaction_commits(self, store: SQLStore) -> None:
        """Where the queue begins is moved by what comes meanwhile, but not past what nobody can see yet."""
        late, early = task_row(updated=0.0), task_row()
        other = await store.database.connect_alone()
        await store.add_task(late._replace(status="input_required"))
        transaction = other.transaction()
        await transaction.start()
        await other.execute("UPDATE mrtr_tasks SET status = 'working' WHERE id = $1", late.id)
        await store.add_task(early)
        assert await self.claimed(store) == [early.id]
        assert await self.claimed(store) == []
        await transaction.commit()
        await other.close()
        assert await self.claimed(store) == [late.id]

    async def test_are_claimed_when_they_are_given_back_or_answered_after_others_have_gone(
        self, store: SQLStore
    ) -> None:
        """A task that has waited before comes to wait anew, and is behind where the queue was seen to begin."""
        await store.add_task(task_row())
        (row,) = await store.claim_tasks("mine", seconds=60, most=1, tools=TOOLS)
        back, asks, answered = {"lease": ""}, {"lease": "", "status": "input_required"}, {"status": "working"}
        changes: list[dict[str, Any]] = [back, asks, answered]
        for given in changes:
            await store.add_task(task_row())
            assert len(await self.claimed(store)) == 1
            assert await self.claimed(store) == []
            changed = await store.change_task(row, **given, leased_until=0.0)
            assert changed is not None
            row = changed
            if row.status == "working":
                (row,) = await store.claim_tasks("mine", seconds=60, most=1, tools=TOOLS)

    async def test_are_claimed_after_another_server_has_taken_over_with_fewer_transactions(
        self, store: SQLStore, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        row = task_row()
        monkeypatch.setattr(store, "_seen", {"tool": (10**15, 10**15)})
        monkeypatch.setattr(store, "_look_at_all", 9e9)
        await store.add_task(row)
        assert await self.claimed(store) == [row.id]


class TestEvents:
    NAMES = tuple(f"name {number}" for number in range(50))
    COME = """
        INSERT INTO mrtr_events (id, name, audience, body, created, expires)
        SELECT n::text, 'name ' || n % 50, '', repeat('x', 200)::bytea, 0, CASE WHEN n <= :gone THEN 1 ELSE 9e9 END
        FROM generate_series(1, :events::int) AS n
    """

    async def test_of_before_are_not_read_however_many_there_are(
        self, store: SQLStore, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        await store.database.execute(self.COME, {"events": DEAD, "gone": 0})
        page = await store.read_events(self.NAMES, None, most=100, most_bytes=10**6)
        assert page.rows == []
        reads = Reads(store, monkeypatch)
        for number in range(3):
            await store.add_event(event_row(name=self.NAMES[number]))
        async with asyncio.timeout(TIMEOUT):
            while len((await store.read_events(self.NAMES, page.reached, most=100, most_bytes=10**6)).rows) < 3:
                pass  # whatever else runs in the cluster
        assert reads.blocks["read_events"] <= 4 * len(self.NAMES), "one look in the index for each name"
        assert reads.blocks["add_event"] <= MOST_BLOCKS
        await store.read_events(self.NAMES[:1], page.reached, most=100, most_bytes=10**6)
        assert reads.blocks["read_events"] <= MOST_BLOCKS
        await store.database.execute("ANALYZE mrtr_events", {})
        assert len((await store.read_events(self.NAMES[:1], Position(), most=20, most_bytes=10**6)).rows) == 20
        assert reads.blocks["read_events"] <= MOST_BLOCKS, "who is far behind reads a page at a time, too"
        await store.measure([])
        assert reads.blocks["measure"] <= MOST_BLOCKS

    async def test_that_were_removed_are_not_walked_through(
        self, store: SQLStore, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        gone = 20 * module.SWEEP_BATCH
        await store.database.execute(self.COME, {"events": gone + 5_000, "gone": gone})
        monkeypatch.setattr(module, "SWEEP_INTERVAL", 0.0)
        async with open_transaction(store):
            for _ in range(21):
                await store.add_event(event_row())
            reads = Reads(store, monkeypatch)
            await store.add_event(event_row())
            await store.trim_events(self.NAMES[0], 10)
            await store.trim_events(self.NAMES[0], 10)
        ((left,),) = await store.database.execute("SELECT count(*) FROM mrtr_events WHERE expires = 9e9", {})
        assert left == 5_000 - 90
        assert reads.blocks["sweep_events"] <= MOST_BLOCKS
        assert reads.blocks["trim_events"] <= MOST_BLOCKS


class TestRedemptions:
    async def test_that_were_removed_are_not_walked_through(
        self, store: SQLStore, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        await store.database.execute(EXPIRED, {"dead": 20 * module.SWEEP_BATCH})
        monkeypatch.setattr(module, "SWEEP_INTERVAL", 0.0)
        async with open_transaction(store):
            for _ in range(21):
                await store.redeem(token_hex(32), "answers", lease=60, keep=600)
            reads = Reads(store, monkeypatch)
            await store.redeem(token_hex(32), "answers", lease=60, keep=600)
        ((left,),) = await store.database.execute("SELECT count(*) FROM mrtr_redemptions", {})
        assert left == 22
        assert reads.blocks["sweep_redemptions"] <= MOST_BLOCKS
