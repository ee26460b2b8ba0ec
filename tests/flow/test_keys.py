"""Rule 6 of a flow: steps and asks under the same key, and an order that has changed, fail loudly."""

import asyncio

import pytest

from mrtr_server import (
    Context,
    MRTRServer,
)
from mrtr_server.testing import AsyncClient, accept, yes

from ..support.effects import EFFECTS, effect
from ..support.models import Login

pytestmark = pytest.mark.anyio


class TestRule6OrderChangesFailLoudly:
    """Rule 6. A replay that meets a step or an ask under a key of another kind is an error for the author, with both
    names. The same key twice in a run is the same question, or an author's error.
    """

    async def test_an_ask_under_the_key_of_a_step(self, app: MRTRServer, caplog: pytest.LogCaptureFixture) -> None:
        version = {"new": False}

        @app.tool
        async def deploy(ctx: Context) -> str:
            if version["new"]:
                await ctx.confirm("sure?", key="effect")
            else:
                await ctx.step(effect, "x")
            await ctx.confirm("really?", key="really")
            return "done"

        flow = AsyncClient(app).flow("deploy")
        assert (await flow.start()).needs_input
        version["new"] = True
        assert "reference" in (await flow.answer(really=yes)).failure
        assert "An ask and a step both have the key 'effect'" in caplog.text

    async def test_a_step_under_the_key_of_an_ask(self, app: MRTRServer, caplog: pytest.LogCaptureFixture) -> None:
        version = {"new": False}

        @app.tool
        async def deploy(ctx: Context) -> str:
            if version["new"]:
                await ctx.step(effect, "x", key="first")
            else:
                await ctx.confirm("sure?", key="first")
            await ctx.confirm("really?", key="really")
            return "done"

        flow = AsyncClient(app).flow("deploy")
        assert (await flow.start()).needs_input
        assert (await flow.answer(first=yes)).needs_input
        version["new"] = True
        assert "reference" in (await flow.answer(really=yes)).failure
        assert "An ask and a step both have the key 'first'" in caplog.text
        assert EFFECTS == []

    async def test_an_ask_under_the_key_of_a_step_that_runs(
        self, app: MRTRServer, caplog: pytest.LogCaptureFixture
    ) -> None:
        @app.tool
        async def deploy(ctx: Context) -> str:
            await asyncio.gather(ctx.step(asyncio.sleep, 0.1, key="wait"), ctx.confirm("sure?", key="wait"))
            return "done"

        assert "reference" in (await AsyncClient(app).flow("deploy").start()).failure
        assert "An ask and a step both have the key 'wait'" in caplog.text

    async def test_the_same_key_twice_is_the_same_question(self, app: MRTRServer) -> None:
        @app.tool
        async def same(ctx: Context) -> str:
            one = await ctx.elicit("who?", Login, key="who")
            two = await ctx.elicit("who?", Login, key="who")
            return one.name + two.name

        flow = AsyncClient(app).flow("same")
        assert (await flow.start()).questions == {"who": "who?"}
        assert (await flow.answer(who=accept(name="a"))).text == "aa"

    async def test_the_same_key_for_another_question_is_an_error_for_the_author(
        self, app: MRTRServer, caplog: pytest.LogCaptureFixture
    ) -> None:
        @app.tool
        async def different(ctx: Context) -> str:
            await asyncio.gather(
                ctx.elicit("who?", Login, key="who"), ctx.elicit("whom?", Login, key="who"), return_exceptions=True
            )
            return "done"

        assert "reference" in (await AsyncClient(app).flow("different").start()).failure
        assert "'who' is used for two different questions" in caplog.text

    async def test_no_key_of_an_author_s_can_be_that_of_a_generated_one(
        self, app: MRTRServer, caplog: pytest.LogCaptureFixture
    ) -> None:
        @app.tool
        async def marked(ctx: Context) -> str:
            return await ctx.step(effect, "x", key="effect#2")

        assert "reference" in (await AsyncClient(app).flow("marked").start()).failure
        assert "key='effect#2': '#' is reserved for generated keys" in caplog.text
        assert EFFECTS == []

    async def test_default_keys_of_branches_are_not_taken_by_each_other(self, app: MRTRServer) -> None:
        """Nobody is asked twice because a branch comes to its next ask before the others look for their answers."""

        async def chain(ctx: Context) -> str:
            first = await ctx.elicit("first?", Login)
            third = await ctx.elicit("third?", Login)
            return f"{first.name} {third.name}"

        @app.tool
        async def beside(ctx: Context) -> str:
            one, two = await asyncio.gather(chain(ctx), ctx.elicit("second?", Login))
            return f"{one} {two.name}"

        flow = AsyncClient(app).flow("beside")
        assert (await flow.start()).questions == {"login": "first?", "login_2": "second?"}
        answers = {"login": accept(name="a"), "login_2": accept(name="b")}
        assert (await flow.send(answers)).questions == {"login_3": "third?"}
        assert (await flow.answer(login_3=accept(name="c"))).text == "a c b"

    async def test_default_keys_are_numbered(self, app: MRTRServer) -> None:
        @app.tool
        async def twice(ctx: Context) -> str:
            one, two = await asyncio.gather(ctx.elicit("first?", Login), ctx.elicit("second?", Login))
            third = await ctx.elicit("third?", Login)
            return f"{one.name} {two.name} {third.name}"

        flow = AsyncClient(app).flow("twice")
        assert (await flow.start()).questions == {"login": "first?", "login_2": "second?"}
        answers = {"login": accept(name="a"), "login_2": accept(name="b")}
        assert (await flow.send(answers)).questions == {"login_3": "third?"}
        assert (await flow.answer(login_3=accept(name="c"))).text == "a b c"
