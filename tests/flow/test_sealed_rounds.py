"""Rule 1 of a flow: every outcome that needs input is sealed."""

from typing import Annotated

import pytest

from mrtr_server import (
    Context,
    Elicit,
    InputRequired,
    Inputs,
    KeyRing,
    MRTRServer,
)
from mrtr_server.testing import AsyncClient, Flow, accept

from ..support.effects import EFFECTS
from ..support.models import Login

pytestmark = pytest.mark.anyio


class TestRule1EveryNeedForInputIsSealed:
    """Rule 1. Every outcome that needs input is sealed, even when the handler keeps no state: the journal also carries
    the flow's id, the digests of the questions that were asked, and the budgets.
    """

    @pytest.mark.parametrize(
        ("method", "target"),
        [
            ("tools/call", "pure"),
            ("tools/call", "declared"),
            ("tools/call", "inline"),
            ("prompts/get", "prompt"),
            ("resources/read", "notes://resource"),
        ],
    )
    async def test_in_every_style_and_of_every_request_that_may_ask(
        self, app: MRTRServer, method: str, target: str
    ) -> None:
        @app.tool
        def pure(inputs: Inputs) -> str | InputRequired:
            login = inputs.get("login", Login)
            return login.name if login else InputRequired(login=Elicit("who?", Login))

        @app.tool
        def declared(login: Annotated[Login, Elicit("who?")]) -> str:
            return login.name

        async def inline(ctx: Context) -> str:
            return (await ctx.elicit("who?", Login)).name

        app.tool(inline)
        app.prompt(name="prompt")(inline)
        app.resource("notes://resource")(inline)
        flow = Flow(AsyncClient(app), method, target, {})
        assert (await flow.start()).questions == {"login": "who?"}
        assert flow.state
        assert (await flow.answer(login=accept(name="ann"))).result["resultType"] == "complete"

    async def test_with_the_flows_id_and_how_far_it_is(self) -> None:
        ring = KeyRing.generate()
        one, other = (MRTRServer("rules", keys=ring) for _ in range(2))

        async def ask(ctx: Context) -> str:
            EFFECTS.append(f"{ctx.flow} {ctx.round}")
            return (await ctx.elicit("who?", Login)).name

        for app in (one, other):
            app.tool(ask)
        flow = AsyncClient(one, other).flow("ask")
        assert (await flow.start()).needs_input
        assert (await flow.answer(login=accept(name="ann"))).text == "ann"
        first, second = (line.split() for line in EFFECTS)
        assert first[0] == second[0]
        assert (first[1], second[1]) == ("1", "2")

    async def test_even_when_the_handler_keeps_no_state(self, app: MRTRServer) -> None:
        @app.tool
        def greet(inputs: Inputs) -> str | InputRequired:
            login = inputs.get("login", Login)
            return f"hi {login.name}" if login else InputRequired(login=Elicit("who?", Login))

        flow = AsyncClient(app).flow("greet")
        assert (await flow.start()).questions == {"login": "who?"}
        assert flow.state
        assert (await flow.answer(login=accept(name="ann"))).text == "hi ann"
