"""A pooler between servers and their database is noticed: everything works, and the log says what would be better."""

import asyncio
import logging
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pytest

from mrtr_server import SQLStore, StoreUnavailable
from mrtr_server.protocol.messages import Change

from ..support.databases import PostgreSQL, task_row
from ..support.pgbouncer import PgBouncer, running_pgbouncer
from ..support.serving import TIMEOUT, without_settings

pytestmark = pytest.mark.anyio

AT_ONCE = 15
"""Operations that share the few connections of a pooler."""


@pytest.fixture
async def direct(postgresql: PostgreSQL) -> str:
    """The URL of an empty database, past every pooler."""
    return postgresql.url(await postgresql.new_database())


@pytest.fixture(params=["session", "transaction", "statement"])
async def pooler(request: pytest.FixtureRequest, direct: str) -> AsyncIterator[PgBouncer]:
    """A pooler in front of a database whose tables are there."""
    owner = SQLStore(direct)
    await owner.check()
    await owner.close()
    # A pooler of sessions needs as many connections as its clients have.
    with running_pgbouncer(direct, request.param, 30 if request.param == "session" else 3) as running:
        yield running


async def do_everything(store: SQLStore, name: str) -> None:
    """Do all that servers and workers do with a store, and see that it comes to what it should."""
    granted = await store.redeem(name, "answers", lease=30, keep=600)
    assert granted.verdict == "granted"
    assert await store.renew(name, granted.token, lease=30)
    assert not await store.renew(name, "of another", lease=30)
    assert await store.record(name, granted.token, name.encode())
    assert (await store.redeem(name, "answers", lease=30, keep=600)).outcome == name.encode()
    assert await store.put(name, b"value", keep=600)
    await store.replace(name, name.encode(), keep=600)
    assert await store.get(name) == name.encode()
    row = task_row(name=name)
    assert await store.add_task(row)
    (claimed,) = await store.claim_tasks(name, seconds=30, most=5, tools=[name])
    assert claimed.id == row.id
    assert await store.holds_task(name, row.id)
    assert await store.renew_tasks(name, [row.id], seconds=30) == {row.id}
    assert await store.change_task(claimed, status="completed", lease="", leased_until=0.0)
    found = await store.find_task(row.id)
    assert found is not None
    assert found.status == "completed"
    assert [each.id for each in await store.find_tasks([row.id], most_bytes=1000)] == [row.id]
    assert await store.list_owned_tasks("me", before=(9e9, ""), most=5, most_bytes=1000)
    await store.wait_for_tasks(0.01, tools=[name])


@asynccontextmanager
async def stores(*urls: str) -> AsyncIterator[list[SQLStore]]:
    """Use stores as several processes would."""
    made = [SQLStore(url) for url in urls]
    try:
        yield made
    finally:
        for store in made:
            await store.close()


async def hears(listener: SQLStore, teller: SQLStore) -> bool:
    """Whether a change that one of them publishes reaches the other."""
    change = Change("resource", "a:b")
    listening = listener.fanout().subscribe(frozenset({change}))
    try:
        async with asyncio.timeout(TIMEOUT):
            while not listener.notices.connected:  # noqa: ASYNC110  a thread connects
                await asyncio.sleep(0.01)
            with suppress(TimeoutError):  # it may begin with what it may have missed
                async with asyncio.timeout(0.5):
                    await listening.next()
            teller.fanout().publish(change)
            return await listening.next() == [change]
    finally:
        listening.close()


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]


class TestWithoutADirectURL:
    async def test_everything_works_and_the_log_says_once_what_would_be_better(
        self, pooler: PgBouncer, direct: str, caplog: pytest.LogCaptureFixture
    ) -> None:
        url = pooler.url(direct)
        async with stores(url, url) as (first, second):
            for each in (first, second):  # two processes, which would give their statements the same names
                names = [f"{id(each)} {number}" for number in range(AT_ONCE)]
                await asyncio.gather(*(do_everything(each, name) for name in names))
            assert await hears(first, second)
            assert await hears(second, first)
            lines = warnings(caplog)
            assert len(lines) == 2, lines  # one of each
            assert {first.database.name, second.database.name} == {line.partition(": a pooler")[0] for line in lines}
            assert all("Set MRTR_DATABASE_DIRECT_URL to the address of the database itself" in line for line in lines)

    async def test_who_listens_past_the_pooler_hears_of_what_comes_through_it(
        self, pooler: PgBouncer, direct: str
    ) -> None:
        """As while a fleet is given the direct URL, one process after the other."""
        async with stores(pooler.url(direct), direct) as (pooled, listening):
            assert await hears(listening, pooled)


class TestWithADirectURL:
    async def test_nothing_is_said_and_changes_are_heard_at_once(
        self, pooler: PgBouncer, direct: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("MRTR_DATABASE_DIRECT_URL", direct)
        url = pooler.url(direct)
        async with stores(url, url) as (first, second):
            await do_everything(first, "direct")
            assert await hears(first, second)
            assert await first.database.execute("SELECT number FROM mrtr_changes", {}) == []
            assert warnings(caplog) == []

    async def test_that_leads_to_the_pooler_as_well_is_named(
        self, pooler: PgBouncer, direct: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        url = pooler.url(direct)
        monkeypatch.setenv("MRTR_DATABASE_DIRECT_URL", url)
        async with stores(url, url) as (first, second):
            assert await hears(first, second)
            lines = warnings(caplog)
            assert all("MRTR_DATABASE_DIRECT_URL leads to a pooler, too" in line for line in lines)
            assert len(lines) == 2


async def test_a_database_itself_is_taken_for_no_pooler(direct: str, caplog: pytest.LogCaptureFixture) -> None:
    async with stores(direct, direct) as (first, second):
        await do_everything(first, "direct")
        assert await hears(first, second)
        assert warnings(caplog) == []


@pytest.fixture
def later(direct: str) -> Iterator[PgBouncer]:
    with running_pgbouncer(direct, "transaction", 3) as running:
        yield running


async def test_a_pooler_that_comes_later_is_noticed_by_the_first_connection_to_it(
    direct: str, later: PgBouncer, caplog: pytest.LogCaptureFixture
) -> None:
    socket = f"{parse_qs(urlsplit(direct).query)['host'][0]}/.s.PGSQL.5432"
    port = urlsplit(later.url(direct)).port
    is_pooled = False
    writers: list[asyncio.StreamWriter] = []

    async def pass_on(source: asyncio.StreamReader, to: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            while data := await source.read(65536):
                to.write(data)
        to.close()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if is_pooled:
            there = await asyncio.open_connection("127.0.0.1", port)
        else:
            there = await asyncio.open_unix_connection(socket)
        writers.extend((writer, there[1]))
        await asyncio.gather(pass_on(reader, there[1]), pass_on(there[0], writer))

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as relay:
        url = f"postgresql://postgres@127.0.0.1:{relay.sockets[0].getsockname()[1]}{urlsplit(direct).path}"
        async with stores(url) as (store,):
            await asyncio.gather(*(do_everything(store, f"before {number}") for number in range(AT_ONCE)))
            assert warnings(caplog) == []
            is_pooled = True
            for writer in writers:
                writer.close()
            await asyncio.gather(*(do_everything(store, f"after {number}") for number in range(AT_ONCE)))
            assert sum("a pooler answers in its place" in line for line in warnings(caplog)) == 1


async def test_tables_can_t_be_made_through_a_pooler_of_statements_which_is_said(direct: str) -> None:
    with running_pgbouncer(direct, "statement") as pooler:
        async with stores(pooler.url(direct)) as (store,):
            with pytest.raises(StoreUnavailable, match="make the tables past it: set MRTR_DATABASE_DIRECT_URL"):
                await store.check()
            owner = SQLStore(direct)
            await owner.check()
            await owner.close()
            await do_everything(store, "made")


async def test_the_command_that_checks_a_server_names_it(direct: str, tmp_path: Path) -> None:
    (tmp_path / "small.py").write_text("from mrtr_server import MRTRServer\napp = MRTRServer('small')\n")
    command = [str(Path(sys.executable).with_name("mrtr-server")), "check", "small:app"]
    with running_pgbouncer(direct, "transaction") as pooler:
        environment = without_settings(MRTR_DATABASE_URL=pooler.url(direct), MRTR_KEYS="00" * 32)
        done = await asyncio.to_thread(
            lambda: subprocess.run(
                command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=TIMEOUT
            )
        )
    assert done.returncode == 0
    assert "warning  database: a pooler answers in its place, such as PgBouncer." in done.stdout
