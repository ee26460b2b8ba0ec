"""Rule 7 of a flow: how many rounds, how long, how large."""

import pytest

from mrtr_server import (
    Context,
    InputRequired,
    KeyRing,
    Limits,
    MRTRServer,
    State,
)
from mrtr_server.testing import Clock

from ..support.effects import EFFECTS, effect
from ..support.walk import YES, Walk

pytestmark = pytest.mark.anyio


class TestRule7Budgets:
    """Rule 7. Rounds, state-only rounds, the life of a state and of a flow, and the size of a state have limits, and a
    flow over budget ends with a clear error. Those of a request (its size, depth, numbers and answers) are in
    `transport/test_bad_input.py`, the defaults in `test_limits.py`.
    """

    async def test_rounds_of_a_flow(self) -> None:
        app = MRTRServer("rules", keys=KeyRing.generate(), limits=Limits(rounds=3))

        @app.tool
        async def endless(ctx: Context) -> str:
            for n in range(100):
                await ctx.confirm(f"{n}?", key=f"c{n}")
            return "done"

        walk = Walk(app, target="endless")
        for n in range(3):
            assert await walk.questions({f"c{n - 1}": YES}) == {f"c{n}": f"{n}?"}
        error = await walk.error({"c2": YES})
        assert (error["code"], error["data"]) == (-32602, {"limit": "rounds", "value": 3})

    async def test_the_official_clients_patience_is_enough_for_the_default(self, app: MRTRServer) -> None:
        @app.tool
        async def ten(ctx: Context) -> str:
            for n in range(10):
                await ctx.confirm(f"{n}?", key=f"c{n}")
            return "done"

        walk = Walk(app, target="ten")
        await walk.questions()
        for n in range(9):
            await walk.questions({f"c{n}": YES})
        assert await walk.text({"c9": YES}) == "done"

    async def test_a_handler_that_keeps_another_state_each_time_has_all_rounds(self, app: MRTRServer) -> None:
        @app.tool
        def counting(to: int, state: State[int]) -> str | InputRequired:
            count = state.value or 0
            return f"counted to {count}" if count == to else InputRequired(state=count + 1)

        walk = Walk(app, target="counting", arguments={"to": 10})
        for _ in range(10):
            assert await walk.questions() == {}
        assert await walk.text() == "counted to 10"
        walk = Walk(app, target="counting", arguments={"to": 11})
        for _ in range(10):
            assert await walk.questions() == {}
        assert (await walk.error())["data"] == {"limit": "rounds", "value": 10}

    async def test_state_only_rounds_are_the_servers_own(self, app: MRTRServer) -> None:
        """What a handler does of its own accord is not among them, and leaves them to the server."""

        @app.tool
        async def counting(state: State[int], ctx: Context) -> str | InputRequired:
            count = state.value or 0
            for part in "ab":
                await ctx.step(effect, part, key=f"{part} {count}")
            return f"counted to {count}" if count == 4 else InputRequired(state=count + 1)

        app.drain()
        walk = Walk(app, target="counting")
        done = []
        while (reply := await walk.send())["result"]["resultType"] == "input_required":
            done.append("".join(EFFECTS))
        handed_over = [effects for effects in done if len(effects) % 2 or not effects]
        assert handed_over == ["", "a", "aba"], "three times; then it goes on here"
        assert done == ["", "a", "ab", "aba", "abab", "ababab", "abababab"]
        assert reply["result"]["content"][0]["text"] == "counted to 4"

    async def test_never_two_without_anything_new(self, app: MRTRServer) -> None:
        @app.tool
        def stuck(state: State[int]) -> str | InputRequired:
            return InputRequired(state=1)

        walk = Walk(app, target="stuck")
        assert await walk.questions() == {}
        assert (await walk.error())["data"]["limit"] == "state_only_rounds"

    async def test_the_life_of_a_state_and_of_a_flow(self) -> None:
        clock = Clock(1_000_000.0)
        limits = Limits(state_seconds=100, flow_seconds=150)
        app = MRTRServer("rules", keys=KeyRing.generate(), limits=limits, clock=clock)

        @app.tool
        async def two(ctx: Context) -> str:
            await ctx.confirm("first?", key="first")
            await ctx.confirm("second?", key="second")
            return "done"

        @app.tool(answer_within=5)
        async def hurried(ctx: Context) -> str:
            await ctx.confirm("first?", key="first")
            return "done"

        walk = Walk(app, target="two")
        await walk.questions()
        clock.advance(99)
        await walk.questions({"first": YES})
        clock.advance(52)  # within the state's life, past the flow's
        assert (await walk.error({"second": YES}))["code"] == -32602
        walk = Walk(app, target="two")
        await walk.questions()
        clock.advance(101)
        assert (await walk.error({"first": YES}))["code"] == -32602
        walk = Walk(app, target="hurried")
        await walk.questions()
        clock.advance(6)
        assert (await walk.error({"first": YES}))["code"] == -32602

    async def test_the_size_of_a_state_names_the_largest_entry(self) -> None:
        app = MRTRServer("rules", keys=KeyRing.generate(), limits=Limits(state_bytes=2000))

        @app.tool
        async def big(ctx: Context) -> str:
            await ctx.step(lambda: "x" * 3000, key="download")
            await ctx.confirm("sure?")
            return "done"

        error = await Walk(app, target="big").error()
        assert error["data"] == {"limit": "state_bytes", "value": 2000}
        assert "the step 'download'" in error["message"]
