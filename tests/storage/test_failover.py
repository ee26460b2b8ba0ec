"""A server that can't be written any more is left for the one that can; where there is none, it is said what to do."""

import asyncio
import re
import time
from collections.abc import AsyncIterator, Iterator

import httpx
import pytest

from mrtr_server import MRTRServer, Shutdown, SQLStore, StoreUnavailable
from mrtr_server.protocol.messages import Change
from mrtr_server.testing import AsyncClient, yes

from ..support.databases import PostgreSQL, running_postgresql
from ..support.serving import TIMEOUT

pytestmark = [pytest.mark.anyio, pytest.mark.processes]

HINT = "Name all servers in the URL (postgresql://user@one,two/name)"


async def works(store: SQLStore, state: str) -> bool:
    """Whether a store grants a delivery."""
    return (await store.redeem(state, "answers", lease=60, keep=600)).verdict == "granted"


async def ready(app: MRTRServer) -> int:
    """Return the status of the probe for readiness."""
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://server") as client:
        return (await client.get("/ready")).status_code


async def failure(store: SQLStore) -> str:
    """What an operator is told when a delivery fails."""
    with pytest.raises(StoreUnavailable) as caught:
        await store.redeem("refused", "answers", lease=60, keep=600)
    return str(caught.value)


class TestAServerThatIsMadeReadOnly:
    @pytest.fixture
    async def store(self, postgresql: PostgreSQL) -> AsyncIterator[SQLStore]:
        store = SQLStore(postgresql.url(await postgresql.new_database()))
        yield store
        await store.close()

    async def test_is_left_and_serves_again_as_soon_as_it_can_be_written(
        self, postgresql: PostgreSQL, store: SQLStore
    ) -> None:
        assert all(await asyncio.gather(*(works(store, f"before {number}") for number in range(20))))
        granted = await store.redeem("kept", "answers", lease=60, keep=600)
        async with postgresql.read_only():
            for _ in range(2):
                assert HINT in await failure(store)
            with pytest.raises(StoreUnavailable, match="can't be written"):  # nor is anything old read there
                await store.get("key")
            with pytest.raises(StoreUnavailable, match="can't be written"):
                await store.renew("kept", granted.token, lease=60)
        assert await works(store, "after")
        assert await store.renew("kept", granted.token, lease=60)

    async def test_is_an_outage_that_is_said_once_and_ends(
        self, postgresql: PostgreSQL, caplog: pytest.LogCaptureFixture
    ) -> None:
        store = SQLStore(postgresql.url(await postgresql.new_database()))
        app = MRTRServer("bank", keys=[bytes(32)], store=store, shutdown=Shutdown(ready_needs_store=True))

        @app.tool(confirm="Pay?")
        def pay() -> str:
            return "paid"

        client = AsyncClient(app, log_level=None)
        assert (await client.call("pay", answers={"confirm": yes})).text == "paid"
        flow = client.flow("pay")
        await flow.start()
        caplog.clear()
        async with postgresql.read_only():
            for _ in range(3):
                assert "Nothing was done" in (await flow.send({"confirm": yes})).error.message
            assert await ready(app) == 503
        assert (await flow.send({"confirm": yes})).text == "paid"
        async with asyncio.timeout(TIMEOUT):
            while await ready(app) == 503:  # noqa: ASYNC110  it looks when it is asked
                await asyncio.sleep(0.1)
        away, back = (record.getMessage() for record in caplog.records if "the store" in record.getMessage())
        said = r"^bank: the store can't be used \(reference \w+\).*the server can't be written; .*"
        assert re.search(said + re.escape(HINT), away)
        assert "the store is back" in back
        await store.close()

    async def test_brings_no_changes_any_more_so_its_connection_that_listens_is_left_as_well(
        self, postgresql: PostgreSQL
    ) -> None:
        name = await postgresql.new_database()
        stores = [SQLStore(postgresql.url(name)) for _ in range(2)]
        change = Change("resource", "a:b")
        listening = stores[0].fanout().subscribe(frozenset({change}))
        assert all([await works(store, f"state {number}") for number, store in enumerate(stores)])
        async with asyncio.timeout(TIMEOUT):
            assert await listening.next() == [change]  # it is connected, and what came before may have been missed
            async with postgresql.read_only():
                await failure(stores[0])
                await failure(stores[1])
            assert await listening.next() == [change]  # likewise, on a new connection
            stores[1].fanout().publish(change)
            assert await listening.next() == [change]
        listening.close()
        for store in stores:
            await store.close()


class Pair:
    """A primary and its standby.

    Args:
        primary: the server.
        standby: follows it.
    """

    def __init__(self, primary: PostgreSQL, standby: PostgreSQL) -> None:
        self.primary = primary
        self.standby = standby

    def url(self, *servers: PostgreSQL) -> str:
        """Return a URL that names several servers."""
        hosts = ",".join(server.url().partition("host=")[2] for server in servers)
        return f"postgresql://postgres@/postgres?host={hosts}"

    async def follows(self) -> None:
        """Wait until the standby has the tables: what it does not have yet is lost when it becomes the primary."""
        async with asyncio.timeout(TIMEOUT):
            while not await self.standby.fetch("SELECT to_regclass('mrtr_schema') IS NOT NULL"):  # noqa: ASYNC110
                await asyncio.sleep(0.01)

    async def fail_over(self) -> None:
        """Make the standby the primary."""
        assert await self.standby.fetch("SELECT pg_promote()")


@pytest.fixture
def pair() -> Iterator[Pair]:
    with running_postgresql() as primary, primary.standby() as standby:
        yield Pair(primary, standby)


class TestAFailover:
    async def test_is_followed_from_a_primary_that_lives_on_and_can_t_be_written(self, pair: Pair) -> None:
        """As where a proxy or a name leads to the old primary for a while, on connections that never break."""
        store = SQLStore(pair.url(pair.primary, pair.standby))
        assert all(await asyncio.gather(*(works(store, f"before {number}") for number in range(20))))
        await pair.follows()
        async with pair.primary.read_only():
            assert "none of its servers can be used" in await failure(store)
            await pair.fail_over()
            began = time.monotonic()
            assert await works(store, "after")
            assert all(await asyncio.gather(*(works(store, f"after {number}") for number in range(20))))
            assert time.monotonic() - began < 2 + 8, "two seconds on a quiet machine"
            assert await pair.standby.fetch("SELECT count(*) FROM mrtr_redemptions WHERE state LIKE 'after%'") == 21
        await store.close()

    async def test_takes_no_standby_for_the_primary_that_stands_first_in_the_url(self, pair: Pair) -> None:
        store = SQLStore(pair.url(pair.standby, pair.primary))
        assert await works(store, "state")
        await store.close()

    async def test_is_followed_from_a_primary_that_answers_nothing_any_more(self, pair: Pair) -> None:
        """As where its machine is gone: nobody refuses a connection to it."""
        with pair.primary.frozen():
            await pair.fail_over()
            store = SQLStore(pair.url(pair.primary, pair.standby))
            began = time.monotonic()
            assert await works(store, "after")
            assert time.monotonic() - began < TIMEOUT, "not only for as long as it takes to give a server up"
            began = time.monotonic()
            assert all(await asyncio.gather(*(works(store, f"after {number}") for number in range(20))))
            assert time.monotonic() - began < 5, "the next connection begins with the other one"
            await store.close()

    async def test_where_no_server_is_left_names_each_with_what_is_wrong(self, pair: Pair) -> None:
        store = SQLStore(pair.url(pair.primary, pair.standby))
        await asyncio.to_thread(pair.primary.stop)
        message = await failure(store)
        assert "none of its servers can be used" in message
        assert "can't connect: " in message
        assert message.endswith("the server can't be written)"), "that all are to be named is not said again"
        await store.close()

    async def test_of_a_standby_that_is_named_alone_is_waited_for_and_said(self, pair: Pair) -> None:
        owner = SQLStore(pair.primary.url())
        assert await works(owner, "makes the tables")
        await owner.close()
        await pair.follows()
        store = SQLStore(pair.standby.url())
        message = await failure(store)
        assert "the server can't be written; it is a standby" in message
        assert HINT in message
        await pair.fail_over()
        assert await works(store, "state")
        await store.close()

    async def test_lets_an_operator_read_a_standby_who_says_so(self, pair: Pair) -> None:
        owner = SQLStore(pair.primary.url())
        assert await owner.put("key", b"value", keep=600)
        await owner.close()
        reader = SQLStore(f"{pair.standby.url()}&target_session_attrs=any")
        count = "SELECT count(*) FROM pg_class WHERE relname = 'mrtr_kept'"
        async with asyncio.timeout(TIMEOUT):
            while not await pair.standby.fetch(count) or await reader.get("key") != b"value":  # noqa: ASYNC110  it follows
                await asyncio.sleep(0.01)
        assert "read-only transaction; it is a standby" in await failure(reader)
        await reader.close()
