"""An event in a transaction of the author's own is there, and told, if that commits: with every library."""

import asyncio
import sqlite3
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, closing
from inspect import isawaitable
from pathlib import Path
from typing import Any

import aiosqlite
import asyncpg  # type: ignore[import-untyped]
import psycopg
import pytest
from pydantic import BaseModel
from sqlalchemy import create_engine
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session

from mrtr_server import Events, MRTRServer, SetupError, SQLStore
from mrtr_server.protocol.messages import Change
from mrtr_server.storage.rows import Position
from mrtr_server.storage.sql.outbox import add_event_on

from ..support.databases import PostgreSQL, event_row
from ..support.serving import TIMEOUT

pytestmark = pytest.mark.anyio

UNHEARD = 0.6  # seconds without a word: longer than a notice takes


class Transaction:
    """A transaction that the author has begun.

    Args:
        connection: what the author has in their hands.
        commit: end it.
        rollback: end it, as if it had not been.
    """

    def __init__(self, connection: Any, commit: Callable[[], object], rollback: Callable[[], object]) -> None:
        self.connection = connection
        self._commit, self._rollback = commit, rollback

    async def commit(self) -> None:
        """End it."""
        await done(self._commit())

    async def rollback(self) -> None:
        """End it, as if it had not been."""
        await done(self._rollback())


Begin = Callable[[str], AbstractAsyncContextManager[Transaction]]


async def done(result: object) -> Any:
    return await result if isinstance(result, Awaitable) and isawaitable(result) else result


@asynccontextmanager
async def with_asyncpg(url: str) -> AsyncIterator[Transaction]:
    connection = await asyncpg.connect(url)
    transaction = connection.transaction()
    await transaction.start()
    yield Transaction(connection, transaction.commit, transaction.rollback)
    await connection.close()


@asynccontextmanager
async def with_a_pool_of_asyncpg(url: str) -> AsyncIterator[Transaction]:
    async with asyncpg.create_pool(url, min_size=1) as pool, pool.acquire() as connection:
        transaction = connection.transaction()
        await transaction.start()
        yield Transaction(connection, transaction.commit, transaction.rollback)


@asynccontextmanager
async def with_sqlalchemy(url: str) -> AsyncIterator[Transaction]:
    engine = create_async_engine("postgresql+asyncpg://", async_creator=lambda: asyncpg.connect(url))
    async with engine.connect() as connection:
        yield Transaction(connection, connection.commit, connection.rollback)
    await engine.dispose()


@asynccontextmanager
async def with_a_session_of_sqlalchemy(url: str) -> AsyncIterator[Transaction]:
    engine = create_async_engine("postgresql+asyncpg://", async_creator=lambda: asyncpg.connect(url))
    async with AsyncSession(engine) as session:
        yield Transaction(session, session.commit, session.rollback)
    await engine.dispose()


@asynccontextmanager
async def with_psycopg(url: str) -> AsyncIterator[Transaction]:
    connection = await psycopg.AsyncConnection.connect(url)
    yield Transaction(connection, connection.commit, connection.rollback)
    await connection.close()


@asynccontextmanager
async def with_psycopg_that_blocks(url: str) -> AsyncIterator[Transaction]:
    with closing(psycopg.connect(url)) as connection:
        yield Transaction(connection, connection.commit, connection.rollback)


def file_of(url: str) -> str:
    return url.removeprefix("sqlite:///")


@asynccontextmanager
async def with_sqlite3(url: str) -> AsyncIterator[Transaction]:
    with closing(sqlite3.connect(file_of(url))) as connection:
        yield Transaction(connection, connection.commit, connection.rollback)


@asynccontextmanager
async def with_aiosqlite(url: str) -> AsyncIterator[Transaction]:
    async with aiosqlite.connect(file_of(url)) as connection:
        yield Transaction(connection, connection.commit, connection.rollback)


@asynccontextmanager
async def with_sqlalchemy_on_a_file(url: str) -> AsyncIterator[Transaction]:
    engine = create_engine(url)
    with engine.connect() as connection:
        yield Transaction(connection, connection.commit, connection.rollback)
    engine.dispose()


@asynccontextmanager
async def with_a_session_on_a_file(url: str) -> AsyncIterator[Transaction]:
    engine = create_engine(url)
    with Session(engine) as session:
        yield Transaction(session, session.commit, session.rollback)
    engine.dispose()


ON_POSTGRESQL = (
    with_asyncpg,
    with_a_pool_of_asyncpg,
    with_sqlalchemy,
    with_a_session_of_sqlalchemy,
    with_psycopg,
    with_psycopg_that_blocks,
)
ON_SQLITE = (with_sqlite3, with_aiosqlite, with_sqlalchemy_on_a_file, with_a_session_on_a_file)


class Happened(BaseModel):
    number: int


class Replica:
    """Reads the events of a name from now on, and listens for them.

    Args:
        url: of the database.
    """

    def __init__(self, url: str) -> None:
        self.store = SQLStore(url)
        self._began = Position()
        self._heard = self.store.fanout().subscribe(frozenset({Change("event", "n")}))

    async def begin(self) -> None:
        """Begin at the end of the log, and wait until notices arrive."""
        self._began = (await self.store.read_events(["n"], None, most=1, most_bytes=1)).reached
        async with asyncio.timeout(TIMEOUT):
            while not self.store.notices.connected:  # noqa: ASYNC110  in a thread of its own
                await asyncio.sleep(0.01)
        await asyncio.sleep(0)
        self._heard.close()
        self._heard = self.store.fanout().subscribe(self._heard.wanted)

    async def bodies(self) -> list[bytes]:
        """Return the bodies of all events there are since."""
        page = await self.store.read_events(["n"], self._began, most=100, most_bytes=10**9)
        return [row.body for row in page.rows]

    async def hears(self, within: float = TIMEOUT) -> bool:
        """Whether it hears of events."""
        try:
            return bool(await asyncio.wait_for(self._heard.next(), within))
        except TimeoutError:
            return False

    async def close(self) -> None:
        """End its connections."""
        self._heard.close()
        await self.store.close()


@asynccontextmanager
async def replica(url: str) -> AsyncIterator[Replica]:
    made = Replica(url)
    try:
        await made.begin()
        yield made
    finally:
        await made.close()


async def is_told_if_it_commits(url: str, begin: Begin) -> None:
    async with replica(url) as reader:
        async with begin(url) as author:
            assert await add_event_on(author.connection, event_row(body=b"rolled back"))
            assert await reader.bodies() == []
            await author.rollback()
        row = event_row(body=b"committed")
        async with begin(url) as author:
            assert await add_event_on(author.connection, row)
            assert not await reader.hears(UNHEARD), "neither is it committed, nor was the other one"
            assert await reader.bodies() == []
            await author.commit()
            assert await reader.hears()
            assert await reader.bodies() == [b"committed"]
        async with begin(url) as author:
            assert not await add_event_on(author.connection, row), "it is there already"
            await author.commit()
        assert not await reader.hears(UNHEARD)


@pytest.mark.parametrize("begin", ON_POSTGRESQL, ids=lambda begin: begin.__name__)
async def test_on_postgresql(postgresql: PostgreSQL, begin: Begin) -> None:
    await is_told_if_it_commits(postgresql.url(await postgresql.new_database()), begin)


@pytest.mark.parametrize("begin", ON_SQLITE, ids=lambda begin: begin.__name__)
async def test_on_sqlite(tmp_path: Path, begin: Begin) -> None:
    await is_told_if_it_commits(f"sqlite:///{tmp_path}/events.db", begin)


async def test_one_of_that_id_which_has_expired_gives_its_place_to_the_new_one(url: str) -> None:
    async with replica(url) as reader:
        begin = with_sqlite3 if url.startswith("sqlite") else with_asyncpg
        row = event_row(body=b"old")
        await reader.store.add_event(row._replace(created=row.created - 100, expires=row.created - 10))
        async with begin(url) as author:
            assert await add_event_on(author.connection, row._replace(body=b"new"))
            await author.commit()
        assert await reader.bodies() == [b"new"]


async def test_many_are_stored_in_one_transaction_on_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mrtr_server.events.log.TRIM_AFTER", 0.1)
    file = tmp_path / "events.db"
    app = MRTRServer("ops", store=f"sqlite:///{file}", keys=[bytes(32)], events=Events(keep_most=50))
    happened = app.event("happened", payload=Happened)
    async with app.running():
        with closing(sqlite3.connect(file)) as connection:
            async with asyncio.timeout(5):
                for number in range(100):  # with the last of which the log is trimmed at other times
                    await app.emit(happened, Happened(number=number), connection=connection)
            connection.commit()
            async with asyncio.timeout(TIMEOUT):
                while connection.execute("SELECT count(*) FROM mrtr_events").fetchone() != (50,):  # noqa: ASYNC110
                    await asyncio.sleep(0.05)


async def test_what_is_no_connection_is_refused_by_its_name() -> None:
    engine = create_engine("sqlite://")
    for nothing in (None, object(), "sqlite:///events.db", engine, lambda: None):
        with pytest.raises(SetupError, match=r"can't store an event\. Give a connection to the database"):
            await add_event_on(nothing, event_row())
    with pytest.raises(SetupError, match=r"^sqlalchemy\.engine\.base\.Engine can't"):
        await add_event_on(engine, event_row())
