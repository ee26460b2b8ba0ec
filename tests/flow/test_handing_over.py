"""Rule 10 of a flow: a server that leaves, or has too much to do, hands calls over with a state alone."""

import asyncio
from dataclasses import replace
from typing import Any, cast

import pytest

from mrtr_server import (
    Context,
    Elicit,
    InputRequired,
    Inputs,
    KeyRing,
    Limits,
    MRTRServer,
)
from mrtr_server.protocol.callers import Sender
from mrtr_server.protocol.drafts import SepDraftDialect
from mrtr_server.protocol.envelope import Envelope
from mrtr_server.protocol.messages import Call
from mrtr_server.protocol.served_dialects import DIALECTS
from mrtr_server.testing import AsyncClient, Flow, Reply, accept

from ..support.effects import EFFECTS, effect, happened, slow_effect
from ..support.flows import is_state_only
from ..support.models import Login

pytestmark = pytest.mark.anyio


gates: dict[MRTRServer, asyncio.Event] = {}

reached: dict[MRTRServer, asyncio.Event] = {}
"""Set when a call waits at the gate of its server."""


async def gate_of(app: MRTRServer) -> None:
    """Wait for the gate of a server."""
    reached[app].set()
    await gates[app].wait()


class TestRule10StateOnlyOutcomes:
    """Rule 10. A server that drains, or has too many calls, ends rounds with a state and no question, at every step
    and `ctx.checkpoint()`; new calls get one at once. With real signals and processes: `system/test_draining.py`.
    """

    @pytest.fixture
    def other(self, app: MRTRServer) -> MRTRServer:
        return self.serving(MRTRServer("rules", keys=self.ring))

    @pytest.fixture
    def app(self) -> MRTRServer:
        return self.serving(MRTRServer("rules", keys=self.ring))

    ring = KeyRing.generate()

    def serving(self, app: MRTRServer) -> MRTRServer:
        """Return it with a tool of each style. The gate is what a call waits for between its steps."""
        gates[app], reached[app] = asyncio.Event(), asyncio.Event()

        @app.tool
        def plain() -> str:
            return effect("plain")

        @app.tool
        def pure(inputs: Inputs) -> str | InputRequired:
            login = inputs.get("login", Login)
            return effect(login.name) if login else InputRequired(login=Elicit("who?", Login))

        @app.tool
        async def inline(ctx: Context) -> str:
            who = (await ctx.elicit("who?", Login)).name
            return await ctx.step(effect, who)

        @app.tool
        async def two_steps(ctx: Context) -> str:
            first = await ctx.step(effect, "first")
            await gates[app].wait()
            return first + await ctx.step(effect, "second", key="second")

        @app.tool
        async def side_by_side(ctx: Context) -> str:
            return " ".join(await asyncio.gather(ctx.step(slow_effect, "a"), self.late(ctx, app)))

        @app.tool
        async def marked(ctx: Context) -> str:
            await gate_of(app)
            await ctx.checkpoint()
            return effect("marked")

        @app.tool
        async def many(ctx: Context) -> str:
            for n in range(8):
                await ctx.step(effect, str(n), key=f"step {n}")
            return "done"

        @app.prompt
        def greeting() -> str:
            return effect("greeting")

        @app.resource("notes://{topic}")
        def note(topic: str) -> str:
            return effect(topic)

        return app

    async def late(self, ctx: Context, app: MRTRServer) -> str:
        await gate_of(app)
        return await ctx.step(effect, "b")

    @pytest.mark.parametrize(
        ("method", "target"), [("tools/call", "plain"), ("prompts/get", "greeting"), ("resources/read", "notes://a")]
    )
    async def test_a_new_call_is_handed_back_before_anything_runs(
        self, app: MRTRServer, other: MRTRServer, method: str, target: str
    ) -> None:
        app.drain()
        flow = Flow(AsyncClient(app, other), method, target, {})
        assert is_state_only(await flow.start())
        assert EFFECTS == []
        assert (await flow.send()).result["resultType"] == "complete"
        assert len(EFFECTS) == 1

    @pytest.mark.parametrize("target", ["pure", "inline"])
    async def test_the_answers_that_came_with_it_are_kept(
        self, app: MRTRServer, other: MRTRServer, target: str
    ) -> None:
        flow = AsyncClient(app, app, other).flow(target)
        assert (await flow.start()).needs_input
        app.drain()
        assert is_state_only(await flow.answer(login=accept(name="ann")))
        assert (await flow.send()).text == "ann"
        assert EFFECTS == ["ann"]

    async def test_a_running_call_goes_at_its_next_step(self, app: MRTRServer, other: MRTRServer) -> None:
        flow = AsyncClient(app, other).flow("two_steps")
        under_way = asyncio.create_task(flow.start())
        await happened("first")
        app.drain()
        gates[app].set()
        gates[other].set()
        assert is_state_only(await under_way)
        assert (await flow.send()).text == "firstsecond"
        assert EFFECTS == ["first", "second"]

    async def test_a_running_call_goes_at_its_checkpoint(self, app: MRTRServer, other: MRTRServer) -> None:
        flow = AsyncClient(app, other).flow("marked")
        under_way = asyncio.create_task(flow.start())
        await reached[app].wait()
        app.drain()
        gates[app].set()
        gates[other].set()
        assert is_state_only(await under_way)
        assert (await flow.send()).text == "marked"
        assert EFFECTS == ["marked"]

    async def test_a_step_that_runs_beside_ends_first_and_is_kept(self, app: MRTRServer, other: MRTRServer) -> None:
        flow = AsyncClient(app, other).flow("side_by_side")
        under_way = asyncio.create_task(flow.start())
        await reached[app].wait()  # the step has begun before
        app.drain()
        gates[app].set()
        gates[other].set()
        assert is_state_only(await under_way)
        assert EFFECTS == ["a"]
        assert (await flow.send()).text == "a b"
        assert EFFECTS == ["a", "b"]

    async def test_what_has_been_done_is_replayed_without_a_boundary(self, app: MRTRServer) -> None:
        gates[app].set()
        app.drain()
        flow = AsyncClient(app).flow("two_steps")
        assert is_state_only(await flow.start())
        # Nothing is new, so the first step runs here; the second is elsewhere's.
        assert is_state_only(await flow.send())
        assert EFFECTS == ["first"]
        assert (await flow.send()).text == "firstsecond"

    async def test_a_step_of_an_earlier_round_is_no_boundary(self, app: MRTRServer) -> None:
        @app.tool
        async def prepared(ctx: Context) -> str:
            effect("begun")
            await gates[app].wait()
            await ctx.step(effect, "prepared")
            return (await ctx.elicit("who?", Login)).name

        flow = AsyncClient(app).flow("prepared")
        gates[app].set()
        assert (await flow.start()).questions
        gates[app].clear()
        EFFECTS.clear()
        under_way = asyncio.create_task(flow.answer(login={"name": "ann"}))
        await happened("begun")
        app.drain()
        gates[app].set()
        assert (await under_way).text == "ann"

    async def test_a_step_that_runs_already_is_no_boundary(self, app: MRTRServer) -> None:
        gate = asyncio.Event()

        async def held() -> str:
            EFFECTS.append("held")
            await gate.wait()
            return "held"

        async def again(ctx: Context) -> str:
            await happened("held")
            app.drain()
            gate.set()
            return await ctx.step(held, key="held")

        @app.tool
        async def twice(ctx: Context) -> str:
            return " ".join(await asyncio.gather(ctx.step(held, key="held"), again(ctx)))

        assert (await AsyncClient(app).flow("twice").start()).text == "held held"
        assert EFFECTS == ["held"]

    async def test_a_call_that_comes_back_with_nothing_new_runs_here(self, app: MRTRServer) -> None:
        app.drain()
        flow = AsyncClient(app).flow("plain")
        assert is_state_only(await flow.start())
        assert (await flow.send()).text == "plain"

    async def test_a_flow_is_handed_over_three_times_at_most(self, app: MRTRServer) -> None:
        app.drain()
        flow = AsyncClient(app).flow("many")
        handed_over = 0
        while (await flow.send()).needs_input:
            handed_over += 1
        assert handed_over == 3
        assert "".join(EFFECTS) == "01234567"

    async def test_a_flow_is_not_handed_over_past_the_last_of_its_rounds(self) -> None:
        app = self.serving(MRTRServer("rules", keys=self.ring, limits=Limits(rounds=1)))
        flow = AsyncClient(app).flow("inline")
        assert (await flow.start()).needs_input
        app.drain()
        assert (await flow.answer(login=accept(name="ann"))).text == "ann"

    async def test_a_flow_is_not_handed_over_where_its_state_would_be_too_large(self) -> None:
        app = MRTRServer("rules", keys=self.ring, limits=Limits(state_bytes=4000))

        @app.tool
        async def big(ctx: Context) -> str:
            await ctx.step(lambda: "x" * 4000, key="download")
            app.drain()
            return await ctx.step(effect, "done")

        assert (await AsyncClient(app).flow("big").start()).text == "done"

    async def test_too_many_calls_are_shed_in_the_same_way(self, other: MRTRServer) -> None:
        app = self.serving(MRTRServer("rules", keys=self.ring, limits=Limits(shed_above=1)))
        gates[other].set()
        first = AsyncClient(app, other).flow("two_steps")
        under_way = asyncio.create_task(first.start())
        await happened("first")
        new, stubborn = AsyncClient(app, other).flow("plain"), AsyncClient(app).flow("marked")
        assert is_state_only(await new.start())
        assert is_state_only(await stubborn.start())
        coming_back = asyncio.create_task(stubborn.send())  # has done nothing since, so it stays
        await reached[app].wait()
        gates[app].set()
        assert is_state_only(await under_way)  # and the call that can go on elsewhere makes room
        assert (await coming_back).text == "marked"
        assert (await first.send()).text == "firstsecond"
        assert (await new.send()).text == "plain"

    async def test_calls_wait_their_turn(self) -> None:
        app = MRTRServer("rules", keys=self.ring, limits=Limits(max_concurrency=2))
        running: list[str] = []

        @app.tool
        async def slow(name: str) -> str:
            running.append(name)
            EFFECTS.append(str(len(running)))
            await asyncio.sleep(0.005)
            running.remove(name)
            return name

        flows = [AsyncClient(app).flow("slow", name=name) for name in "abcdefg"]
        replies = await asyncio.gather(*(flow.send() for flow in flows))
        assert [reply.text for reply in replies] == list("abcdefg")
        assert set(EFFECTS) == {"1", "2"}, "both turns are taken, and no third"

    async def test_a_client_that_leaves_gives_up_its_turn(self) -> None:
        app = MRTRServer("rules", keys=self.ring, limits=Limits(max_concurrency=1))
        gate = asyncio.Event()

        @app.tool
        async def slow(name: str) -> str:
            EFFECTS.append(name)
            await gate.wait()
            return name

        calls = [asyncio.create_task(AsyncClient(app).flow("slow", name=name).start()) for name in "abc"]
        await happened("a")
        calls[1].cancel()
        gate.set()
        assert (await calls[0]).text == "a"
        assert (await calls[2]).text == "c"
        assert EFFECTS == ["a", "c"]

    async def test_a_client_that_can_not_retry_is_told_when_to_come_again(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        app = self.serving(self.for_clients_that_can_not_retry(monkeypatch))
        app.drain()
        refused = await self.post(app, "plain")
        assert (refused.status, refused.headers["retry-after"]) == (503, "1")
        assert refused.headers["connection"] == "close"
        assert refused.error.code == -31002
        assert EFFECTS == []

    async def test_a_client_that_can_not_retry_finishes_where_it_is(self, monkeypatch: pytest.MonkeyPatch) -> None:
        app = self.serving(self.for_clients_that_can_not_retry(monkeypatch))
        under_way = asyncio.create_task(self.post(app, "two_steps"))
        await happened("first")
        app.drain()
        gates[app].set()
        assert (await under_way).text == "firstsecond"

    def for_clients_that_can_not_retry(self, monkeypatch: pytest.MonkeyPatch) -> MRTRServer:
        """Return a server with a dialect in which a call is one request, as in those that began with a handshake."""

        class OneRequest(SepDraftDialect):
            name = "one-request"

            def load_call(self, envelope: Envelope, sender: Sender) -> Call:
                return replace(super().load_call(envelope, sender), can_retry=False)

        monkeypatch.setitem(cast(dict[str, Any], DIALECTS), "one-request", OneRequest)
        return MRTRServer("rules", keys=self.ring, dialects=["one-request"])

    async def post(self, app: MRTRServer, tool: str) -> Reply:
        return await AsyncClient(app, era="sep-draft").flow(tool).start()
