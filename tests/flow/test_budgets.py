"""Rule 7 of a flow: how many rounds, how long, how large."""

from datetime import date

import pytest
from pydantic import BaseModel, Field, SecretStr

from mrtr_server import (
    Context,
    Elicit,
    InputRequired,
    Inputs,
    KeyRing,
    Limits,
    MRTRServer,
    State,
)
from mrtr_server.testing import AsyncClient, Clock, accept, replica, yes

from ..support.effects import EFFECTS, effect
from ..support.flows import is_state_only
from ..support.models import Login

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

        flow = AsyncClient(app).flow("endless")
        for n in range(3):
            assert (await flow.send({f"c{n - 1}": yes})).questions == {f"c{n}": f"{n}?"}
        error = (await flow.answer(c2=yes)).error
        assert (error.code, error.data) == (-32602, {"limit": "rounds", "value": 3})

    async def test_rounds_of_a_function_that_asks_and_reads_nothing(self) -> None:
        app = MRTRServer("rules", keys=KeyRing.generate(), limits=Limits(rounds=2))

        @app.tool
        def deaf() -> str | InputRequired:
            return InputRequired(login=Elicit("who?", Login))

        flow = AsyncClient(app).flow("deaf")
        assert (await flow.start()).questions == {"login": "who?"}
        assert (await flow.answer(login=accept(name="ann"))).questions == {"login": "who?"}
        assert (await flow.send()).error.data == {"limit": "rounds", "value": 2}

    async def test_the_official_clients_patience_is_enough_for_the_default(self, app: MRTRServer) -> None:
        @app.tool
        async def ten(ctx: Context) -> str:
            for n in range(10):
                await ctx.confirm(f"{n}?", key=f"c{n}")
            return "done"

        flow = AsyncClient(app).flow("ten")
        assert (await flow.start()).needs_input
        for n in range(9):
            assert (await flow.send({f"c{n}": yes})).needs_input
        assert (await flow.answer(c9=yes)).text == "done"

    async def test_a_handler_that_keeps_another_state_each_time_has_all_rounds(self, app: MRTRServer) -> None:
        @app.tool
        def counting(to: int, state: State[int]) -> str | InputRequired:
            count = state.value or 0
            return f"counted to {count}" if count == to else InputRequired(state=count + 1)

        flow = AsyncClient(app).flow("counting", to=10)
        for _ in range(10):
            assert is_state_only(await flow.send())
        assert (await flow.send()).text == "counted to 10"
        flow = AsyncClient(app).flow("counting", to=11)
        for _ in range(10):
            assert is_state_only(await flow.send())
        assert (await flow.send()).error.data == {"limit": "rounds", "value": 10}

    async def test_a_state_that_differs_in_what_its_json_hides_is_another_one(self, app: MRTRServer) -> None:
        class Counted(BaseModel):
            number: SecretStr
            since: date | str = Field("never", alias="from")

        @app.tool
        def count(inputs: Inputs, state: State[Counted]) -> str | InputRequired:
            if state.value is None:
                return InputRequired(state=Counted.model_validate({"number": "0", "from": date(2026, 5, 1)}))
            number = int(state.value.number.get_secret_value())
            if number < 3:
                return InputRequired(state=state.value.model_copy(update={"number": SecretStr(str(number + 1))}))
            return f"{number} {state.value.since!r}"

        assert (await AsyncClient(app).call("count")).text == "3 datetime.date(2026, 5, 1)"

    async def test_state_only_rounds_are_the_servers_own(self, app: MRTRServer) -> None:
        """What a handler does of its own accord is not among them, and leaves them to the server."""

        @app.tool
        async def counting(state: State[int], ctx: Context) -> str | InputRequired:
            count = state.value or 0
            for part in "ab":
                await ctx.step(effect, part, key=f"{part} {count}")
            return f"counted to {count}" if count == 4 else InputRequired(state=count + 1)

        app.drain()
        flow = AsyncClient(app).flow("counting")
        done = []
        while (reply := await flow.send()).needs_input:
            done.append("".join(EFFECTS))
        handed_over = [effects for effects in done if len(effects) % 2 or not effects]
        assert handed_over == ["", "a", "aba"], "three times; then it goes on here"
        assert done == ["", "a", "ab", "aba", "abab", "ababab", "abababab"]
        assert reply.text == "counted to 4"

    async def test_never_two_without_anything_new(self, app: MRTRServer) -> None:
        @app.tool
        def stuck(state: State[int]) -> str | InputRequired:
            return InputRequired(state=1)

        flow = AsyncClient(app).flow("stuck")
        assert is_state_only(await flow.start())
        assert (await flow.send()).error.data["limit"] == "state_only_rounds"

    async def test_the_life_of_a_state_and_of_a_flow(self) -> None:
        clock = Clock(1_000_000.0)
        limits = Limits(state_seconds=100, flow_seconds=150)
        app = replica(MRTRServer("rules", keys=KeyRing.generate(), limits=limits), clock=clock)

        @app.tool
        async def two(ctx: Context) -> str:
            await ctx.confirm("first?", key="first")
            await ctx.confirm("second?", key="second")
            return "done"

        @app.tool(answer_within=5)
        async def hurried(ctx: Context) -> str:
            await ctx.confirm("first?", key="first")
            return "done"

        flow = AsyncClient(app).flow("two")
        assert (await flow.start()).needs_input
        clock.advance(99)
        assert (await flow.answer(first=yes)).needs_input
        clock.advance(52)  # within the state's life, past the flow's
        assert (await flow.answer(second=yes)).error.code == -32602
        flow = AsyncClient(app).flow("two")
        assert (await flow.start()).needs_input
        clock.advance(101)
        assert (await flow.answer(first=yes)).error.code == -32602
        flow = AsyncClient(app).flow("hurried")
        assert (await flow.start()).needs_input
        clock.advance(6)
        assert (await flow.answer(first=yes)).error.code == -32602

    async def test_the_size_of_a_state_names_the_largest_entry(self) -> None:
        app = MRTRServer("rules", keys=KeyRing.generate(), limits=Limits(state_bytes=2000))

        @app.tool
        async def big(ctx: Context) -> str:
            await ctx.step(lambda: "x" * 3000, key="download")
            await ctx.confirm("sure?")
            return "done"

        error = (await AsyncClient(app).flow("big").start()).error
        assert error.data == {"limit": "state_bytes", "value": 2000}
        assert "the step 'download'" in error.message
