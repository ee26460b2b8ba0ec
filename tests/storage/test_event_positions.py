"""Where an event is in the log: nobody misses one, whatever order their transactions commit in."""

import asyncio
import random
import sqlite3
from collections.abc import AsyncIterator
from contextlib import closing
from pathlib import Path
from secrets import token_hex

import pytest

from mrtr_server import SQLStore
from mrtr_server.storage.rows import EventPage, EventRow, Position
from mrtr_server.storage.sql.administration import new_epoch
from mrtr_server.storage.sql.outbox import add_event_on

from ..support.databases import PostgreSQL, event_row
from ..support.serving import TIMEOUT

pytestmark = pytest.mark.anyio


class Reader:
    """Reads a log from its end on, again and again, as whoever delivers does.

    Args:
        store: of a replica.
    """

    def __init__(self, store: SQLStore) -> None:
        self.store = store
        self.after: Position | None = None
        self.rows: list[EventRow] = []

    @property
    def bodies(self) -> list[bytes]:
        """Of the events that it has read."""
        return [row.body for row in self.rows]

    async def read(self, most: int = 100) -> EventPage:
        """Read a page from where the last one ended."""
        page = await self.store.read_events(["n"], self.after, most=most, most_bytes=10**9)
        assert self.after is None or page.reached >= self.after
        self.after = page.reached
        self.rows += page.rows
        return page

    async def read_all(self) -> None:
        """Read until there is no more, and nothing is held up by what else runs in the cluster."""
        async with asyncio.timeout(TIMEOUT):
            while not (page := await self.read()).is_last or page.delayed:  # noqa: ASYNC110  others' transactions
                await asyncio.sleep(0)


@pytest.fixture
async def name(postgresql: PostgreSQL) -> str:
    return await postgresql.new_database()


@pytest.fixture
async def replicas(postgresql: PostgreSQL, name: str) -> AsyncIterator[tuple[Reader, Reader]]:
    readers = Reader(SQLStore(postgresql.url(name))), Reader(SQLStore(postgresql.url(name)))
    for reader in readers:
        await reader.read_all()
    yield readers
    for reader in readers:
        await reader.store.close()


class TestTwoReplicasThatEmitAtOnce:
    async def test_and_one_commits_late_deliver_both_events_in_one_order_and_neither_before_the_late_one(
        self, postgresql: PostgreSQL, name: str, replicas: tuple[Reader, Reader]
    ) -> None:
        one, other = replicas
        async with postgresql.connection(name) as late:
            transaction = late.transaction()
            await transaction.start()
            assert await add_event_on(late, event_row(body=b"late"))
            assert await other.store.add_event(event_row(body=b"early"))
            for reader in replicas:
                page = await reader.read()
                assert (list(page.rows), page.is_last) == ([], True), "it would miss the other one"
                assert page.delayed > 0
            await transaction.commit()
        for reader in replicas:
            await reader.read_all()
            assert reader.bodies == [b"late", b"early"]
        assert [row.position for row in one.rows] == [row.position for row in other.rows]

    async def test_and_one_whose_number_is_higher_commits_first_miss_nothing(
        self, postgresql: PostgreSQL, name: str, replicas: tuple[Reader, Reader]
    ) -> None:
        """The transaction that began first takes its number last, and that which has the lower number commits last."""
        async with postgresql.connection(name) as first, postgresql.connection(name) as second:
            outer, inner = first.transaction(), second.transaction()
            await outer.start()
            await first.fetch("SELECT pg_current_xact_id()")
            await inner.start()
            await add_event_on(second, event_row(body=b"of the second"))
            await add_event_on(first, event_row(body=b"of the first"))
            await outer.commit()
            page = await replicas[0].read()
            assert [row.body for row in page.rows] in ([b"of the first"], []), "nothing of what still runs"
            await inner.commit()
        for reader in replicas:
            await reader.read_all()
            assert reader.bodies == [b"of the first", b"of the second"]

    async def test_and_many_writers_commit_in_any_order_let_nobody_miss_one(
        self, postgresql: PostgreSQL, name: str, replicas: tuple[Reader, Reader]
    ) -> None:
        chance, sent, is_over = random.Random(7), list[bytes](), asyncio.Event()

        async def write(writer: int) -> None:
            async with postgresql.connection(name) as connection:
                for number in range(20):
                    transaction = connection.transaction()
                    await transaction.start()
                    body = f"{writer} {number}".encode()
                    await add_event_on(connection, event_row(body=body))
                    await asyncio.sleep(chance.uniform(0, 0.02))
                    if chance.random() < 0.2:
                        await transaction.rollback()
                    else:
                        await transaction.commit()
                        sent.append(body)

        async def follow(reader: Reader) -> None:
            while not is_over.is_set():
                await reader.read(most=3)
            await reader.read_all()

        following = [asyncio.create_task(follow(reader)) for reader in replicas]
        await asyncio.gather(*(write(writer) for writer in range(8)))
        is_over.set()
        await asyncio.gather(*following)
        one, other = replicas
        assert sorted(one.bodies) == sorted(sent), "each of them once"
        assert one.bodies == other.bodies
        assert [row.position for row in one.rows] == sorted({row.position for row in one.rows})


class TestATransactionThatStaysOpen:
    async def test_delays_events_wherever_in_the_cluster_it_writes_and_is_named(
        self, postgresql: PostgreSQL, replicas: tuple[Reader, Reader]
    ) -> None:
        reader, store = replicas[0], replicas[0].store
        async with postgresql.connection("postgres") as elsewhere:
            await elsewhere.execute("SET application_name = 'a long report'")
            await elsewhere.execute("BEGIN; SELECT pg_current_xact_id()")
            process = elsewhere.get_server_pid()
            now = event_row()
            await store.add_event(now._replace(created=now.created - 100))
            assert 90 < (await reader.read()).delayed < 200
            vitals = await store.measure([])
            assert 90 < vitals.event_delay < 200
            assert vitals.event_blocker == f"session {process}, user postgres, database postgres, a long report"
            await elsewhere.execute("COMMIT")
        await reader.read_all()
        assert len(reader.rows) == 1
        vitals = await store.measure([])
        assert (vitals.event_delay, vitals.event_blocker) == (0.0, "")

    async def test_that_only_reads_delays_nothing(
        self, postgresql: PostgreSQL, name: str, replicas: tuple[Reader, Reader]
    ) -> None:
        async with postgresql.connection(name) as other, other.transaction(isolation="repeatable_read", readonly=True):
            await other.fetch("SELECT FROM mrtr_events")
            await replicas[0].store.add_event(event_row(body=b"seen"))
            await replicas[1].read_all()
            assert replicas[1].bodies == [b"seen"]

    async def test_is_named_to_a_user_with_rights_of_the_tables_alone_who_needs_none_of_a_sequence(
        self, postgresql: PostgreSQL, name: str, replicas: tuple[Reader, Reader]
    ) -> None:
        role = f"r{token_hex(4)}"
        async with postgresql.connection(name) as owner:
            await owner.execute(f"CREATE ROLE {role} LOGIN")
            await owner.execute(f"GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA public TO {role}")
            store = SQLStore(postgresql.url(name, user=role))
            await owner.execute("BEGIN; SELECT pg_current_xact_id()")
            now = event_row()
            assert await store.add_event(now._replace(created=now.created - 100))
            vitals = await store.measure([])
            await owner.execute("COMMIT")
        await store.close()
        assert vitals.event_delay > 90
        assert vitals.event_blocker.endswith(f"user postgres, database {name}")


class TestALogWithoutEvents:
    async def test_moves_on_with_what_else_is_written_so_that_a_position_stays_near_its_end(
        self, postgresql: PostgreSQL, name: str, replicas: tuple[Reader, Reader]
    ) -> None:
        reader = replicas[0]
        before = reader.after
        assert before is not None
        for _ in range(3):
            await postgresql.fetch("SELECT pg_current_xact_id()", name)
        await reader.read()
        assert reader.after is not None
        assert reader.after.transaction >= before.transaction + 3
        assert reader.after.number == 0

    async def test_that_were_removed_ends_where_the_last_one_was_on_sqlite(self, tmp_path: Path) -> None:
        store = SQLStore(f"sqlite:///{tmp_path}/events.db")
        assert (await store.read_events(["n"], None, most=1, most_bytes=1)).reached == Position()
        for _ in range(3):
            await store.add_event(event_row())
        await store.trim_events("n", 0)
        page = await store.read_events(["n"], None, most=1, most_bytes=1)
        assert (page.reached, page.lost) == (Position(0, 3), frozenset())
        await store.add_event(event_row())
        assert [
            row.position.number for row in (await store.read_events(["n"], page.reached, most=9, most_bytes=1)).rows
        ] == [4]
        await store.close()


class TestARestoredDatabase:
    """A backup that is restored elsewhere, where fewer transactions have been."""

    async def test_has_its_events_in_order_after_a_new_epoch_and_new_ones_after_them(
        self, postgresql: PostgreSQL, name: str, replicas: tuple[Reader, Reader]
    ) -> None:
        store = replicas[0].store
        for number in range(4):
            await store.add_event(event_row(body=b"%d" % number))
        await store.trim_events("n", 3)
        for table in ("mrtr_events", "mrtr_event_floors"):
            await postgresql.fetch(f"UPDATE {table} SET xid = xid + 1000000000", name)  # noqa: S608
        page = await store.read_events(["n"], Position(), most=9, most_bytes=10**9)
        assert list(page.rows) == []
        assert page.delayed > 0
        await new_epoch(postgresql.url(name))
        await store.add_event(event_row(body=b"new"))
        reader = Reader(store)
        reader.after = Position()
        await reader.read_all()
        assert reader.bodies == [b"1", b"2", b"3", b"new"]
        assert (await store.read_events(["n"], Position(), most=1, most_bytes=10**9)).lost == {"n"}
        assert (await store.read_events(["n"], reader.rows[0].position, most=1, most_bytes=10**9)).lost == frozenset()


class TestRemoval:
    async def test_says_what_is_lost_in_the_same_transaction_whoever_removes_it(
        self, postgresql: PostgreSQL, name: str, replicas: tuple[Reader, Reader]
    ) -> None:
        """Also by hand: a trigger does it."""
        reader = replicas[0]
        for _ in range(3):
            await reader.store.add_event(event_row())
        begin = reader.after
        await reader.read_all()
        removes = f"DELETE FROM mrtr_events WHERE id = '{reader.rows[1].id}'"  # noqa: S608
        async with postgresql.connection(name) as other:
            transaction = other.transaction()
            await transaction.start()
            await other.execute(removes)
            await transaction.rollback()
            assert (await reader.store.read_events(["n"], begin, most=9, most_bytes=10**9)).lost == frozenset()
            await other.execute(removes)
        assert (await reader.store.read_events(["n"], reader.rows[0].position, most=9, most_bytes=1)).lost == {"n"}
        assert (
            await reader.store.read_events(["n"], reader.rows[1].position, most=9, most_bytes=1)
        ).lost == frozenset()

    async def test_says_so_on_sqlite_too(self, tmp_path: Path) -> None:
        store = SQLStore(f"sqlite:///{tmp_path}/events.db")
        for _ in range(3):
            await store.add_event(event_row())
        with closing(sqlite3.connect(tmp_path / "events.db")) as other:
            other.execute("DELETE FROM mrtr_events WHERE number = 2")
            other.commit()
        for number, lost in ((1, {"n"}), (2, set[str]())):
            assert (await store.read_events(["n"], Position(0, number), most=9, most_bytes=1)).lost == lost
        await store.close()
