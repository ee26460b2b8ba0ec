"""Load shedding: a call goes on at another replica once, and is refused at once where every replica is full."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from mrtr_server import Context, InProcessStore, KeyRing, Limits, MRTRServer
from mrtr_server.testing import AsyncClient, yes

from ..support.direct import exchange
from ..support.effects import EFFECTS, effect, happened
from ..support.flows import is_state_only
from ..support.serving import TIMEOUT, in_thread

pytestmark = pytest.mark.anyio


class Fleet:
    """Replicas that run one call at once, of which one more may wait."""

    def __init__(self, replicas: int = 2, **limits: Any) -> None:
        self.gate = asyncio.Event()
        self.ring, self.store = KeyRing.generate(), InProcessStore()
        given = {"max_concurrency": 1, "max_queue": 1, **limits}
        self.apps = [self._replica(number, Limits(**given)) for number in range(replicas)]
        self._running: list[asyncio.Task[Any]] = []

    def _replica(self, number: int, limits: Limits) -> MRTRServer:
        app = MRTRServer("fleet", keys=self.ring, limits=limits, store=self.store)

        @app.tool
        async def hold() -> str:
            EFFECTS.append(f"held {number}")
            await self.gate.wait()
            return "held"

        @app.tool
        async def plain() -> str:
            return effect("plain")

        @app.tool(single_use=True)
        async def pay(ctx: Context) -> str:
            await ctx.confirm("Pay?")
            return await ctx.step(effect, "paid")

        return app

    @asynccontextmanager
    async def full(self, *numbers: int) -> AsyncIterator[None]:
        """Fill replicas, all of them by default: one call runs in each, and one waits."""
        chosen = numbers or range(len(self.apps))
        for number in chosen:
            for _ in range(2):
                self._running.append(asyncio.create_task(AsyncClient(self.apps[number]).call("hold")))
            await happened(f"held {number}")
            async with asyncio.timeout(TIMEOUT):
                while not len(self.apps[number]._parts.admission._line):  # noqa: ASYNC110  nothing tells of it
                    await asyncio.sleep(0.001)
        try:
            yield
        finally:
            self.gate.set()
            await asyncio.gather(*self._running)


async def test_a_call_goes_on_where_there_is_room() -> None:
    fleet = Fleet()
    async with fleet.full(0):
        flow = AsyncClient(*fleet.apps).flow("plain")
        assert is_state_only(await flow.start())
        assert (await flow.send()).text == "plain"


async def test_where_all_are_full_it_is_handed_on_once_and_then_refused() -> None:
    fleet = Fleet()
    async with fleet.full():
        flow = AsyncClient(*fleet.apps).flow("plain")
        assert is_state_only(await flow.start())
        refused = await flow.send()
        assert (refused.status, refused.error.code, refused.headers["retry-after"]) == (503, -31002, "1")
        assert refused.error.data == {"retryAfter": 1}
        assert (
            refused.error.message == "The server has too much to do. Nothing was done; send the request again after 1 s"
        )
        assert "plain" not in EFFECTS
    assert (await flow.replay(refused)).text == "plain"


async def test_a_replica_that_knows_that_others_are_full_refuses_at_once() -> None:
    fleet = Fleet()
    async with fleet.full():
        first = AsyncClient(*fleet.apps).flow("plain")
        assert is_state_only(await first.start())
        assert (await first.send()).status == 503
        statuses = [(await AsyncClient(fleet.apps[1]).flow("plain").start()).status for _ in range(20)]
        assert statuses == [503] * 20, "a second request for each would double the load"


@pytest.mark.parametrize("era", ["2025-11-25", "2025-06-18", "2025-03-26"])
async def test_who_can_not_go_elsewhere_is_refused_at_once(era: str) -> None:
    fleet = Fleet(1)
    async with fleet.full():
        refused = await AsyncClient(*fleet.apps, era=era, headers={"Accept": "application/json"}).flow("plain").start()
        assert (refused.status, refused.error.code, refused.headers["retry-after"]) == (200, -31002, "1")


async def test_answers_of_people_wait_where_new_calls_are_refused_and_a_refusal_is_no_outcome() -> None:
    fleet = Fleet(1)
    (app,) = fleet.apps
    flows = [AsyncClient(app).flow("pay") for _ in range(2)]
    for flow in flows:
        await flow.start()
    async with fleet.full():
        app._parts.admission._others_full_until = float("inf")
        waiting = asyncio.create_task(flows[0].answer(confirm=yes))
        async with asyncio.timeout(TIMEOUT):
            while len(app._parts.admission._line) < 2:  # noqa: ASYNC110  nothing tells of it
                await asyncio.sleep(0.001)
        assert (await AsyncClient(app).flow("plain").start()).status == 503
        refused = await flows[1].answer(confirm=yes)
        assert refused.status == 503
        assert "paid" not in EFFECTS
    assert (await waiting).text == "paid"
    assert (await flows[1].replay(refused)).text == "paid"
    assert EFFECTS.count("paid") == 2


async def test_a_flow_that_has_done_a_step_elsewhere_waits_where_new_calls_are_refused() -> None:
    fleet = Fleet()
    leaving, other = fleet.apps

    def leaves() -> str:
        leaving.drain()
        return effect("first")

    for app in fleet.apps:

        @app.tool
        async def two(ctx: Context) -> str:
            await ctx.step(leaves)
            return await ctx.step(effect, "second")

    flow = AsyncClient(leaving, other).flow("two")
    async with fleet.full(1):
        other._parts.admission._others_full_until = float("inf")
        assert is_state_only(await flow.start())
        waiting = asyncio.create_task(flow.send())
        async with asyncio.timeout(TIMEOUT):
            while len(other._parts.admission._line) < 2:  # noqa: ASYNC110  nothing tells of it
                await asyncio.sleep(0.001)
        assert (await AsyncClient(other).flow("plain").start()).status == 503
    assert (await waiting).text == "second"
    assert [EFFECTS.count(each) for each in ("first", "second")] == [1, 1]


async def test_the_probes_answer_meanwhile() -> None:
    fleet = Fleet(1)
    async with fleet.full():
        for path in ("/health", "/ready"):
            reply = await exchange(fleet.apps[0], b"", [], method="GET", path=path)
            assert (reply.status, reply.body) == (200, b'{"status":"ok"}')


async def test_a_call_that_can_not_move_and_has_begun_completes_where_it_is(caplog: pytest.LogCaptureFixture) -> None:
    fleet = Fleet(1, max_queue=None, max_concurrency=None, shed_above=1)
    client = AsyncClient(*fleet.apps, era="2025-06-18")
    flow = client.flow("pay")
    assert (await flow.start()).questions
    holding = asyncio.create_task(AsyncClient(*fleet.apps).call("hold"))
    await happened("held 0")
    caplog.clear()
    assert (await client.flow("plain").start()).error.code == -31002, "a new one is refused"
    assert [message.partition(":")[0] for message in caplog.messages] == ["Overloaded"]
    assert (await flow.answer(confirm=yes)).text == "paid"
    fleet.gate.set()
    await holding


async def test_a_tool_that_computes_does_not_hide_who_waits() -> None:
    app = MRTRServer("computing", keys=[bytes(32)], limits=Limits(max_concurrency=1, max_queue=5))

    @app.tool
    async def computes() -> str:
        time.sleep(0.1)  # noqa: ASYNC251  as if it computed: nothing else runs meanwhile
        return "computed"

    with in_thread(app) as port:
        clients = [AsyncClient(f"http://127.0.0.1:{port}/mcp") for _ in range(40)]
        replies = await asyncio.gather(*(client.flow("computes").start() for client in clients))
    refused = [reply for reply in replies if reply.status == 503]
    assert len(refused) >= 20, "they would all wait, where nobody sees them"
    assert {reply.text for reply in replies if reply.status == 200 and not reply.needs_input} == {"computed"}
