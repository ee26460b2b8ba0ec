"""Rule 9 of a flow: which states are redeemed once. How that is held, is in `test_single_use.py`."""

import pytest

from mrtr_server import (
    Context,
    MRTRServer,
)
from mrtr_server.testing import AsyncClient, accept, no, yes

from ..support.effects import EFFECTS, effect, slow_effect
from ..support.models import Login

pytestmark = pytest.mark.anyio


class TestRule9SingleUse:
    """Rule 9. Each state of a `single_use` tool is redeemed once, and each from a confirmation on; a duplicate with the
    same answers gets the recorded outcome, one with others the frozen error. Here in one process;
    `flow/test_single_use.py` and `flow/test_confirmed_once.py` have the rest, and the fleet.
    """

    async def test_a_state_is_redeemed_once(self, app: MRTRServer) -> None:
        @app.tool(single_use=True)
        async def pay(ctx: Context) -> str:
            await ctx.confirm("Pay?")
            return await ctx.step(slow_effect, "paid")

        flow = AsyncClient(app).flow("pay")
        assert (await flow.start()).needs_input
        state = flow.state
        assert (await flow.send({"confirm": yes})).text == "paid"
        flow.state = state
        assert (await flow.send({"confirm": yes})).text == "paid"
        assert "requestState is not valid" in (await flow.send({"confirm": no})).error.message
        assert EFFECTS == ["paid"]

    async def test_without_it_a_state_can_be_redeemed_again(self, app: MRTRServer) -> None:
        @app.tool
        async def note(ctx: Context) -> str:
            return await ctx.step(slow_effect, (await ctx.elicit("Who?", Login)).name)

        flow = AsyncClient(app).flow("note")
        assert (await flow.start()).needs_input
        for _ in range(2):
            assert (await flow.send({"login": accept(name="ann")})).text
        assert EFFECTS == ["ann", "ann"]

    async def test_a_state_of_a_tool_that_confirms_first_is_redeemed_once(
        self, app: MRTRServer, caplog: pytest.LogCaptureFixture
    ) -> None:
        @app.tool(confirm=lambda amount: f"Pay {amount}?")
        def pay(amount: int) -> str:
            return effect("paid")

        flow = AsyncClient(app).flow("pay", amount=3)
        assert (await flow.start()).needs_input
        assert (
            "a state of 'pay', as of every confirmation or single-use tool, is redeemed once in each process"
            in caplog.text
        )
        state = flow.state
        assert (await flow.send({"confirm": yes})).text == "paid"
        flow.state = state
        assert (await flow.send({"confirm": yes})).text == "paid"
        assert EFFECTS == ["paid"]

    async def test_every_state_from_a_confirmation_on_is_redeemed_once(self, app: MRTRServer) -> None:
        @app.tool
        async def pay(ctx: Context) -> str:
            await ctx.confirm("Pay?")
            return await ctx.step(slow_effect, "paid")

        flow = AsyncClient(app).flow("pay")
        assert (await flow.start()).needs_input
        state = flow.state
        for _ in range(2):
            flow.state = state
            assert (await flow.send({"confirm": yes})).text == "paid"
        assert EFFECTS == ["paid"]
