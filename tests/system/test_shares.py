"""What one caller does shuts nobody out: attacks that used up a server, run by one caller, while another is served."""

import asyncio
import gc
import json
import re
import time
import tracemalloc
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from statistics import median
from typing import Any

import pytest

from mrtr_server import Context, InProcessStore, Limits, MRTRServer, SQLStore
from mrtr_server.protocol.messages import Change
from mrtr_server.testing import AsyncClient, no, yes

from ..support.direct import Exchange, headers_for, scope_of
from ..support.serving import TIMEOUT
from ..support.users import Bearer
from ..support.wire import TASKS, modern

pytestmark = pytest.mark.anyio


class SharedSite:
    """A server for several callers, and what its tools did."""

    def __init__(self, store: Any = None, *, auth: bool = True, **limits: Any) -> None:
        self.done: list[str] = []
        self.sleep = asyncio.Event()
        store = InProcessStore() if store is None else store
        backend = Bearer() if auth else None
        self.app = MRTRServer("site", keys=[bytes(32)], auth=backend, store=store, limits=Limits(**limits))
        self.app.tool(self.add)
        self.app.tool(self.pay)
        self.app.tool(task="required")(self.work)
        self.app.tool(task="required")(self.sleeps)

    async def add(self, a: int, b: int) -> int:
        """Add."""
        return a + b

    async def pay(self, ctx: Context) -> str:
        """Pay, after a confirmation."""
        await ctx.confirm("Pay?")
        self.done.append("paid")
        return "paid"

    async def work(self, data: str = "") -> str:
        """Work for a moment."""
        return "worked"

    async def sleeps(self, data: str = "") -> str:
        """Wait, and hold a place."""
        await self.sleep.wait()
        return "slept"

    def as_(self, user: str | None) -> AsyncClient:
        """Return a client of a user."""
        return AsyncClient(self.app, token=user, tasks=True, log_level=None)

    async def serves(self, user: str) -> None:
        """Check that a caller can do everything."""
        async with asyncio.timeout(TIMEOUT):
            assert (await self.as_(user).call("add", a=1, b=2)).text == "3"
            assert (await self.as_(user).call("work")).text == "worked"
            assert (await self.as_(user).call("pay", answers={"confirm": yes})).text == "paid"


@asynccontextmanager
async def running(site: SharedSite) -> AsyncIterator[SharedSite]:
    try:
        yield site
    finally:
        site.sleep.set()
        await site.app._parts.worker.close()


async def test_tasks_with_large_arguments_fill_no_more_than_a_share_of_the_store() -> None:
    async with running(SharedSite(InProcessStore(most_bytes=20_000_000))) as site:
        refused = 0
        for _ in range(10):
            reply = await site.as_("ann").flow("sleeps", {"data": "x" * 500_000}).start()
            if reply.status == 429:
                refused += 1
                assert reply.error.code == -31002
                assert reply.error.message.startswith("You have used up your share: 2000000 bytes are stored for you")
                assert reply.error.data == {"limit": "stored_bytes", "value": 2_000_000}
                assert reply.headers["retry-after"] == "30"
        assert refused >= 1
        await site.serves("bob")


async def test_tasks_of_one_caller_are_no_more_than_its_share(caplog: pytest.LogCaptureFixture) -> None:
    async with running(SharedSite(stored_tasks=100)) as site:
        replies = [await site.as_("ann").flow("work").start() for _ in range(15)]
        assert [reply.status for reply in replies] == [200] * 10 + [429] * 5
        assert "a caller has used up its share of Limits(stored_tasks=...)" in caplog.text
        await site.serves("bob")


async def test_tasks_of_one_tenant_are_no_more_than_its_share(caplog: pytest.LogCaptureFixture) -> None:
    async with running(SharedSite(stored_tasks=8, tenant_share=0.5, caller_share=0.25)) as site:
        replies = [await site.as_(f"{name}@acme").flow("work").start() for name in ("ann", "ann", "bob", "cat", "dan")]
        assert [reply.status for reply in replies] == [200, 429, 200, 200, 200], "a quarter of a half of 8 for each"
        reply = await site.as_("eve@acme").flow("work").start()
        assert reply.error.data == {"limit": "stored_tasks", "value": 4}
        assert reply.error.message.startswith("You have used up your share")
        assert re.search(r"the tenant [0-9a-f]{32} has used up its share of Limits\(stored_tasks=...\)", caplog.text)
        assert "acme" not in caplog.text + reply.body.decode()
        for name in ("ann@other", "ann"):
            await site.serves(name)


async def test_where_all_is_used_up_everybody_is_told_and_the_log_names_the_limit(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with running(SharedSite(stored_tasks=2, caller_share=0.5)) as site:
        replies = [await site.as_(user).flow("work").start() for user in ("ann", "bob", "cat")]
        assert [reply.status for reply in replies] == [200, 200, 503]
        assert replies[-1].error.data == {"limit": "stored_tasks", "value": 2}
        assert "all callers together have used up all of Limits(stored_tasks=...)" in caplog.text


async def test_declined_confirmations_use_up_no_more_than_a_share_of_what_is_remembered() -> None:
    async with running(SharedSite(InProcessStore(most_records=100))) as site:
        for _ in range(10):
            flow = site.as_("ann").flow("pay")
            await flow.start()
            assert (await flow.answer(confirm=no)).failed
        flow = site.as_("ann").flow("pay")
        await flow.start()
        refused = await flow.answer(confirm=yes)
        assert refused.error.data == {"limit": "stored_states", "value": 10}
        assert "Nothing was done" in refused.error.message
        assert site.done == []
        await site.serves("bob")
        assert site.done == ["paid"]


@pytest.mark.parametrize("database", [False, True], ids=["memory", "sqlite"])
async def test_tasks_that_sleep_never_hold_all_workers(database: bool, tmp_path: Any) -> None:
    store = SQLStore(f"sqlite:///{tmp_path}/store.db") if database else None
    async with running(SharedSite(store, tasks=20)) as site:
        for _ in range(40):
            await site.as_("ann").flow("sleeps").start()
        worker = next(iter(site.app._parts.worker._loop_workers.values()))
        async with asyncio.timeout(TIMEOUT):
            while len(worker._running) < 18:  # noqa: ASYNC110  nothing tells of it
                await asyncio.sleep(0.01)
        for user in ("bob", "cat"):
            await site.serves(user)
        assert len(worker._running) == 18, "and the caller that is alone has the others"
        site.sleep.set()
        async with asyncio.timeout(TIMEOUT):
            while worker._running:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
    if store is not None:
        await store.close()


class SlowClaims(InProcessStore):
    """A store whose claims take their time."""

    def __init__(self) -> None:
        super().__init__()
        self.answer = asyncio.Event()

    async def claim_tasks(self, *args: Any, **kwargs: Any) -> Any:
        await self.answer.wait()
        return await super().claim_tasks(*args, **kwargs)


async def test_nor_do_those_that_come_while_the_worker_asks_for_others() -> None:
    store = SlowClaims()
    async with running(SharedSite(store, tasks=20)) as site:
        for _ in range(40):
            await site.as_("ann").flow("sleeps").start()
        store.answer.set()
        worker = next(iter(site.app._parts.worker._loop_workers.values()))
        async with asyncio.timeout(TIMEOUT):
            while len(worker._running) < 18:  # noqa: ASYNC110  nothing tells of it
                await asyncio.sleep(0.01)
        await site.serves("bob")
        assert len(worker._running) == 18


async def test_callers_who_are_not_authenticated_may_use_all() -> None:
    async with running(SharedSite(auth=False, tasks=5)) as site:
        for _ in range(5):
            await site.as_(None).flow("sleeps").start()
        worker = next(iter(site.app._parts.worker._loop_workers.values()))
        async with asyncio.timeout(TIMEOUT):
            while len(worker._running) < 5:  # noqa: ASYNC110  nothing tells of it
                await asyncio.sleep(0.01)


@asynccontextmanager
async def listening(site: SharedSite, user: str, wanted: dict[str, Any], **more: Any) -> AsyncIterator[Exchange]:
    message = modern("subscriptions/listen", {"notifications": wanted, **more}, capabilities=TASKS)
    headers = [*headers_for(message), (b"authorization", f"Bearer {user}".encode())]
    exchange = Exchange(site.app, scope_of(headers)).body(json.dumps(message).encode()).start()
    try:
        yield exchange
    finally:
        exchange.disconnect()
        await exchange.end()


async def test_listeners_of_one_caller_are_no_more_than_its_share() -> None:
    async with running(SharedSite(listeners=10, caller_share=0.2)) as site:
        for _ in range(3):  # what is closed makes room
            async with listening(site, "ann", {"toolsListChanged": True}) as first:
                await first.until(b"acknowledged")
                async with listening(site, "ann", {}) as second:
                    await second.until(b"acknowledged")
                    async with listening(site, "ann", {}) as third:
                        await third.until(b"listeners")
                        assert third.reply.status == 429
                        assert third.reply.error.data == {"limit": "listeners", "value": 2}
                    async with listening(site, "bob", {}) as other:
                        await other.until(b"acknowledged")


async def test_a_listener_keeps_nothing_of_its_request_but_what_it_listens_to() -> None:
    async with running(SharedSite()) as site:
        tracemalloc.start()
        try:
            async with listening(site, "bob", {}) as warm:
                await warm.until(b"acknowledged")
            gc.collect()
            before = tracemalloc.get_traced_memory()[0]
            junk = {"junk": ["x" * 1000] * 1000}
            open_ = [listening(site, "ann", {"toolsListChanged": True}, **junk) for _ in range(5)]
            for each in open_:
                exchange = await each.__aenter__()
                await exchange.until(b"acknowledged")
                exchange._coming = asyncio.Queue()  # the test itself keeps nothing either
            gc.collect()
            held = (tracemalloc.get_traced_memory()[0] - before) / len(open_)
        finally:
            tracemalloc.stop()
        assert held < 50_000


async def test_a_thousand_tasks_are_looked_up_in_one_statement(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    store = SQLStore(f"sqlite:///{tmp_path}/store.db")
    async with running(SharedSite(store)) as site:
        flow = site.as_("ann").flow("work")
        await flow.start()
        await flow.wait()
        statements: list[str] = []
        rows = store.database.rows

        async def counted(statement: str, **given: Any) -> Any:
            statements.append(statement)
            return await rows(statement, **given)

        monkeypatch.setattr(store.database, "rows", counted)
        ids = [flow.task, *(f"{number:048x}" for number in range(999))]
        async with listening(site, "ann", {"taskIds": ids}) as listener:
            await listener.until(b"worked")
        # A worker and a sweep have statements of their own meanwhile, more of them on a slow machine.
        others = ("claim", "free", "overdue", "renew", "sweep")
        assert sum("task" in each and not any(word in each for word in others) for each in statements) <= 4
        assert statements.count("look_at_tasks") <= 4
    await store.close()


@pytest.mark.alone
async def test_an_idle_listener_adds_nothing_to_the_cost_of_a_task() -> None:
    async def cost(site: SharedSite) -> float:
        times = []
        for _ in range(50):
            start = time.process_time()
            await site.as_("bob").call("work")
            times.append(time.process_time() - start)
        return min(times)  # what a busy machine adds is not the listeners' doing

    async with running(SharedSite(listeners=1000)) as site:
        await cost(site)
        fanout, quotients = site.app._parts.fanout, []
        wanted = [frozenset({Change("task", f"{number}"), Change("tools")}) for number in range(5000)]
        for _ in range(7):  # in pairs: from one second to the next, a machine's speed may change by more than the bound
            without = await cost(site)
            idle = list(map(fanout.subscribe, wanted))
            quotients.append(await cost(site) / without)
            for each in idle:
                each.close()
        assert median(quotients) < 1.25
