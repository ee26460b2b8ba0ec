"""Rule 5 of a flow, for a no: a declined ask ends the handler that can't do without the answer."""

import asyncio
from typing import Any

import pytest

from mrtr_server import (
    Context,
    Elicit,
    Elicited,
    InputRequired,
    Inputs,
    MRTRServer,
)
from mrtr_server.testing import Answer, AsyncClient, Flow, accept, cancel, decline

from ..support.effects import EFFECTS, effect
from ..support.models import Login

pytestmark = pytest.mark.anyio


class TestRule5ADeclinedAskParksToo:
    """Rule 5, continued. A declined or dismissed ask parks in the same way and ends the call, unless the handler said
    that it would branch.
    """

    @pytest.mark.parametrize(("answer", "word"), [(decline, "declined"), (cancel, "dismissed")])
    async def test_a_handler_that_wants_the_model_ends(self, app: MRTRServer, answer: Answer, word: str) -> None:
        @app.tool
        async def inline(ctx: Context) -> str:
            await ctx.elicit("who?", Login)
            return effect("after")

        @app.tool
        def pure(inputs: Inputs) -> str | InputRequired:
            try:
                login = inputs.get("login", Login)
            except Exception:
                return effect("swallowed")
            return effect("after") if login else InputRequired(login=Elicit("who?", Login))

        for target in ("inline", "pure"):
            flow = AsyncClient(app).flow(target)
            assert (await flow.start()).needs_input
            failure = (await flow.answer(login=answer)).failure
            assert word in failure
            assert "confirm" not in failure
            assert EFFECTS == []

    async def test_a_no_can_not_be_swallowed_by_a_pure_function(self, app: MRTRServer) -> None:
        @app.tool
        def pure(inputs: Inputs) -> str | InputRequired:
            try:
                login = inputs.get("login", Login)
            except BaseException:
                return "carried out"
            return "after" if login else InputRequired(login=Elicit("who?", Login))

        flow = AsyncClient(app).flow("pure")
        assert (await flow.start()).needs_input
        assert "declined" in (await flow.answer(login=decline)).failure

    async def test_elicited_branches(self, app: MRTRServer) -> None:
        @app.tool
        async def inline(ctx: Context) -> str:
            done = await ctx.elicit("who?", Elicited[Login])
            return f"{done.action} {done.content.name if done.content else None}"

        @app.tool
        def pure(inputs: Inputs) -> str | InputRequired:
            done = inputs.get("login", Elicited[Login])
            if done is None:
                return InputRequired(login=Elicit("who?", Elicited[Login]))
            return f"{done.action} {done.content.name if done.content else None}"

        for target in ("inline", "pure"):
            for answer, text in ((decline, "decline None"), (cancel, "cancel None"), (accept(name="a"), "accept a")):
                flow = AsyncClient(app).flow(target)
                assert (await flow.start()).needs_input
                assert (await flow.answer(login=answer)).text == text

    async def test_prompts_and_resources_end_with_a_code_of_our_own(self, app: MRTRServer) -> None:
        @app.prompt
        async def letter(ctx: Context) -> str:
            return (await ctx.elicit("who?", Login)).name

        @app.resource("letters://mine")
        async def letters(ctx: Context) -> str:
            return (await ctx.elicit("who?", Login)).name

        for method, target in (("prompts/get", "letter"), ("resources/read", "letters://mine")):
            flow = Flow(AsyncClient(app), method, target, {})
            assert (await flow.start()).needs_input
            error = (await flow.answer(login=decline)).error
            assert not -32768 <= error.code <= -32000
            assert error.data == {"action": "decline"}


class TestWaysAroundANo:
    """What was tried to turn a no into a yes."""

    async def test_a_task_group_does_not_hide_a_no(self, app: MRTRServer) -> None:
        @app.tool
        async def grouped(inputs: Inputs) -> str | InputRequired:
            async def read() -> Any:
                return inputs.get("login", Login)

            async with asyncio.TaskGroup() as group:
                login = group.create_task(read())
            return login.result().name if login.result() else InputRequired(login=Elicit("who?", Login))

        flow = AsyncClient(app).flow("grouped")
        assert (await flow.start()).needs_input
        assert "declined" in (await flow.answer(login=decline)).failure
