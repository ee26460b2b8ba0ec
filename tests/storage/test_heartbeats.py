"""What the holder of a lease asks of a database waits behind nobody else, and not for long."""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from mrtr_server import SQLStore, StoreUnavailable
from mrtr_server.storage.sql.postgresql import CONNECTIONS

from ..support.databases import TOOLS, PostgreSQL, table_locks, task_row, write_lock
from ..support.serving import TIMEOUT

pytestmark = pytest.mark.anyio

SOON = 5.0
"""Within which a heartbeat comes that waits behind nobody, in seconds: a thousandth of it on a quiet machine."""


def name_of(url: str) -> str:
    """Return the name of a database."""
    return url.partition("?")[0].rpartition("/")[2]


class Holder:
    """A worker, or a replica that runs a round, and its leases.

    Args:
        store: where these are.
    """

    def __init__(self, store: SQLStore) -> None:
        self.store = store
        self.tasks: list[str] = []
        self.tokens: dict[str, str] = {}

    async def take(self, rounds: int = 1, tasks: int = 1) -> "Holder":
        """Take leases."""
        for number in range(rounds):
            granted = await self.store.redeem(f"round {number}", "answers", lease=60, keep=600)
            self.tokens[f"round {number}"] = granted.token
        for _ in range(tasks):
            await self.store.add_task(task_row())
        claimed = await self.store.claim_tasks("worker", seconds=60, most=tasks, tools=TOOLS)
        self.tasks = [row.id for row in claimed]
        return self

    async def renew(self) -> None:
        state, token = next(iter(self.tokens.items()))
        assert await self.store.renew(state, token, lease=60)

    async def renew_tasks(self) -> None:
        assert await self.store.renew_tasks("worker", self.tasks, seconds=60) == set(self.tasks)

    async def hold(self) -> None:
        assert await self.store.holds_task("worker", self.tasks[0])

    async def record(self) -> None:
        state, token = next(iter(self.tokens.items()))
        assert await self.store.record(state, token, b"done")

    def heartbeats(self) -> list[Callable[[], Awaitable[None]]]:
        return [self.renew, self.renew_tasks, self.hold, self.record]


class TestPostgreSQL:
    @pytest.fixture
    async def url(self, postgresql: PostgreSQL) -> str:
        return postgresql.url(await postgresql.new_database())

    @pytest.fixture
    async def store(self, url: str) -> AsyncIterator[SQLStore]:
        store = SQLStore(url)
        await store.check()
        yield store
        await store.close()

    @asynccontextmanager
    async def full_pool(self, store: SQLStore, url: str) -> AsyncIterator[None]:
        """Let clients wait on every connection of the pool, and others for one."""
        locks = table_locks(url, "mrtr_kept")
        await asyncio.to_thread(locks.__enter__)
        waiting = [asyncio.create_task(store.get(f"key {number}")) for number in range(20)]
        try:
            await asyncio.sleep(0.5)  # until they have their connections
            yield
            assert not any(each.done() for each in waiting)
        finally:
            await asyncio.to_thread(locks.__exit__, None, None, None)
            await asyncio.gather(*waiting)

    async def test_none_waits_for_a_pool_that_clients_have_filled(self, store: SQLStore, url: str) -> None:
        holder = await Holder(store).take()
        async with self.full_pool(store, url):
            for beat in holder.heartbeats():
                async with asyncio.timeout(SOON):
                    await beat()

    async def test_none_waits_for_the_records_of_many_rounds_that_wait_for_their_turn(
        self, store: SQLStore, url: str
    ) -> None:
        holder = await Holder(store).take(rounds=100)
        async with self.full_pool(store, url), asyncio.timeout(SOON):
            recording = [
                asyncio.create_task(store.record(state, token, b"done")) for state, token in holder.tokens.items()
            ]
            await asyncio.sleep(0)
            await holder.renew_tasks()
            assert sum(each.done() for each in recording) < 50
            assert all(await asyncio.gather(*recording))

    async def test_renewals_of_many_rounds_at_once_are_one_statement_and_each_has_its_own_end(
        self, store: SQLStore
    ) -> None:
        holder = await Holder(store).take(rounds=50)
        lost = next(iter(holder.tokens))
        await store.release(lost, holder.tokens[lost])
        renewed = await asyncio.gather(
            *(
                store.renew(state, token, lease=60 + number)
                for number, (state, token) in enumerate(holder.tokens.items())
            )
        )
        assert renewed == [False, *[True] * 49]
        statement = "SELECT count(DISTINCT leased_until), count(DISTINCT xmin::text) FROM mrtr_redemptions"
        ((ends, transactions),) = await store.database.execute(statement, {})
        assert ends == 49
        assert transactions < 10

    async def test_a_lease_is_of_no_loop_alone(self, store: SQLStore) -> None:
        holder = await Holder(store).take()

        def elsewhere() -> None:
            async def beat() -> None:
                for each in holder.heartbeats():
                    await each()
                await store.close()

            asyncio.run(beat())

        await asyncio.to_thread(elsewhere)

    @pytest.mark.parametrize("ending", ["its server ends it", "its caller is cancelled"])
    async def test_the_connection_is_made_again_when_it_is_lost(
        self, store: SQLStore, url: str, postgresql: PostgreSQL, ending: str
    ) -> None:
        holder = await Holder(store).take()
        await holder.renew_tasks()
        if ending == "its server ends it":
            async with postgresql.connection() as other:
                ends = "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE datname = $1"
                assert await other.fetchval(ends, name_of(url)) >= 2
        else:
            beating = asyncio.create_task(holder.renew_tasks())
            await asyncio.sleep(0.001)
            beating.cancel()
            await asyncio.wait([beating])
        async with asyncio.timeout(SOON):
            await holder.renew_tasks()

    async def test_one_that_gets_no_answer_ends_within_a_quarter_of_the_lease_and_a_record_in_its_time(
        self, store: SQLStore, postgresql: PostgreSQL
    ) -> None:
        holder = Holder(store)
        granted = await store.redeem("round 0", "answers", lease=4, keep=600)
        holder.tokens = {"round 0": granted.token}
        holder.tasks = ["task"]
        await store.holds_task("worker", "task")  # so that there is a connection
        with postgresql.frozen():
            for beat in holder.heartbeats():
                began = time.monotonic()
                with pytest.raises(StoreUnavailable, match="no answer in time"):
                    await asyncio.wait_for(beat(), TIMEOUT)
                least = 5 if beat == holder.record else 1  # it may be large, and the lease is renewed meanwhile
                assert least * 0.9 < time.monotonic() - began < least + 3

    async def test_a_row_that_somebody_has_locked_holds_up_no_other_lease(
        self, store: SQLStore, url: str, postgresql: PostgreSQL
    ) -> None:
        holder = await Holder(store).take(rounds=2, tasks=2)
        (first, token), (second, other_token) = holder.tokens.items()
        async with postgresql.connection(name_of(url)) as other, other.transaction():
            await other.fetch("SELECT 1 FROM mrtr_tasks WHERE id = $1 FOR UPDATE", holder.tasks[0])
            await other.fetch("SELECT 1 FROM mrtr_redemptions WHERE state = $1 FOR UPDATE", first)
            async with asyncio.timeout(SOON):
                await holder.renew_tasks()  # nobody else can take the one that is locked
                assert await store.renew(second, other_token, lease=60)
                with pytest.raises(StoreUnavailable, match="something else has locked the row of a lease"):
                    await store.renew(first, token, lease=60)
        assert await store.renew(first, token, lease=60)

    async def test_a_process_has_seven_connections_at_most(
        self, store: SQLStore, url: str, postgresql: PostgreSQL
    ) -> None:
        """Those for clients, one for heartbeats, and one that listens."""
        holder = await Holder(store).take(tasks=30)
        await asyncio.gather(*(store.put(f"key {number}", b"", keep=60) for number in range(50)))
        await asyncio.gather(*(beat() for beat in holder.heartbeats()[:3] for _ in range(10)))
        async with asyncio.timeout(TIMEOUT), postgresql.connection() as other:
            while not store.notices.connected:  # noqa: ASYNC110  a thread connects
                await asyncio.sleep(0.01)
            count = "SELECT count(*) FROM pg_stat_activity WHERE datname = $1"
            assert await other.fetchval(count, name_of(url)) == CONNECTIONS + 1 + 1 == 7


class TestASQLiteFile:
    async def test_none_waits_for_the_writes_that_clients_wait_for(self, tmp_path: Path) -> None:
        store = SQLStore(f"sqlite:///{tmp_path}/store.db")
        holder = await Holder(store).take()
        for beat in holder.heartbeats():
            done: list[str] = []

            async def note(what: str, work: Awaitable[object], done: list[str] = done) -> None:
                await work
                done.append(what)

            with write_lock(tmp_path / "store.db"):  # until all of them wait
                writes = (store.put(f"{beat} {number}", b"", keep=60) for number in range(400))
                waiting = [asyncio.create_task(note("write", write)) for write in writes]
                await asyncio.sleep(0)
                waiting.append(asyncio.create_task(note("beat", beat())))
                await asyncio.sleep(0)
            await asyncio.gather(*waiting)
            assert done.index("beat") < 200
        await store.close()
