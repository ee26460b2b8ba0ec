"""Every replica with the key serves every round of a flow, and of that flow alone."""

import pytest

from mrtr_server import (
    Context,
    Elicit,
    InputRequired,
    Inputs,
    KeyRing,
    ListRoots,
    MRTRServer,
    State,
)
from mrtr_server.testing import AsyncClient, accept, roots

from ..support.effects import EFFECTS, effect
from ..support.models import Cart, Login

pytestmark = pytest.mark.anyio


class TestAnyReplicaServesAnyRound:
    async def test_three_of_them_in_every_style(self) -> None:
        ring = KeyRing.generate()

        def replica() -> MRTRServer:
            app = MRTRServer("fleet", keys=ring)

            @app.tool
            async def inline(ctx: Context) -> str:
                done = await ctx.step(effect, "once")
                login = await ctx.elicit("who?", Login)
                roots = await ctx.list_roots()
                return f"{done} {login.name} {roots[0].uri}"

            @app.tool
            def pure(inputs: Inputs, state: State[Cart]) -> str | InputRequired:
                cart = state.value or Cart()
                login = inputs.get("login", Login)
                if login is None:
                    return InputRequired(login=Elicit("who?", Login), state=Cart(items=[*cart.items, "a"]))
                roots = inputs.get("roots", ListRoots())
                if roots is None:
                    return InputRequired(roots=ListRoots(), state=Cart(items=[*cart.items, "b"]))
                return f"{''.join(cart.items)} {login.name} {roots[0].uri}"

            @app.prompt
            async def letter(to: str, ctx: Context) -> str:
                login = await ctx.elicit("who?", Login)
                roots = await ctx.list_roots()
                return f"{to} {login.name} {roots[0].uri}"

            return app

        fleet = [replica() for _ in range(3)]
        listed = {"roots": roots("file:///x")}
        for target, text in (("inline", "once ann file:///x"), ("pure", "ab ann file:///x")):
            flow = AsyncClient(*fleet).flow(target)
            assert set((await flow.start()).questions) == {"login"}
            assert set((await flow.answer(login=accept(name="ann"))).questions) == {"roots"}
            assert (await flow.send(listed)).text == text
        assert EFFECTS == ["once"]
        flow = AsyncClient(*fleet).prompt_flow("letter", to="Bo")
        assert (await flow.start()).needs_input
        assert (await flow.answer(login=accept(name="ann"))).needs_input
        assert (await flow.send(listed)).text == "Bo ann file:///x"

    async def test_a_state_of_another_tool_argument_set_server_or_ring_is_refused(
        self, caplog: pytest.LogCaptureFixture
    ) -> None:
        ring = KeyRing.generate()

        def replica(name: str, keys: KeyRing) -> MRTRServer:
            app = MRTRServer(name, keys=keys)

            async def ask(ctx: Context, n: int = 0) -> str:
                return (await ctx.elicit("who?", Login)).name

            app.tool(name="one")(ask)
            app.tool(name="two")(ask)
            app.prompt(name="one")(ask)
            return app

        home = replica("home", ring)
        flow = AsyncClient(home).flow("one", n=1)
        assert (await flow.start()).needs_input
        state = flow.state
        others = {
            "belongs to another target": AsyncClient(home).flow("two", n=1),
            "belongs to other arguments": AsyncClient(home).flow("one", n=2),
            "belongs to another method": AsyncClient(home).prompt_flow("one", n="1"),
            "belongs to another audience": AsyncClient(replica("away", ring)).flow("one", n=1),
            "a key that is not in the ring": AsyncClient(replica("home", KeyRing.generate())).flow("one", n=1),
        }
        errors = []
        for reason, other in others.items():
            caplog.clear()
            other.state = state
            errors.append((await other.send({"login": accept(name="mallory")})).error)
            assert reason in caplog.text
            assert "mallory" not in caplog.text
        assert all(error == errors[0] for error in errors)
        same = AsyncClient(home).flow("one", n=1.0)
        same.state = state
        assert (await same.send({"login": accept(name="ann")})).text == "ann"
