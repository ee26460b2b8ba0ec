"""Rule 8 of a flow: what the client did not declare is not asked."""

import asyncio
from typing import Annotated, Any

import pytest

from mrtr_server import (
    Context,
    Elicit,
    ElicitUrl,
    InputRequired,
    ListRoots,
    MRTRServer,
    Root,
    Sample,
    Sampled,
)
from mrtr_server.testing import AsyncClient, accept

from ..support.models import Login

pytestmark = pytest.mark.anyio


class TestRule8CapabilitiesGateWhatIsSent:
    """Rule 8. An ask that the client did not declare is never sent: the call fails, naming exactly what is missing. An
    answer that is there already counts, and a tool can choose another way first.
    """

    @pytest.mark.parametrize(
        ("capabilities", "missing"),
        [
            ({}, {"elicitation": {"form": {}, "url": {}}, "sampling": {"tools": {}}, "roots": {}}),
            ({"elicitation": {}}, {"elicitation": {"url": {}}, "sampling": {"tools": {}}, "roots": {}}),
            ({"elicitation": {"url": {}}, "roots": {}}, {"elicitation": {"form": {}}, "sampling": {"tools": {}}}),
            ({"elicitation": {"form": {}, "url": {}}, "sampling": {}, "roots": {}}, {"sampling": {"tools": {}}}),
        ],
    )
    async def test_in_every_style_and_exactly(
        self, app: MRTRServer, capabilities: dict[str, Any], missing: dict[str, Any]
    ) -> None:
        def asks() -> dict[str, Any]:
            return {
                "form": Elicit("who?", Login),
                "page": ElicitUrl("open", "https://example.com"),
                "said": Sample("hi", tools=[]),
                "roots": ListRoots(),
            }

        @app.tool
        def pure() -> str | InputRequired:
            return InputRequired(asks())

        @app.tool
        async def inline(ctx: Context) -> str:
            await ctx.ask(**asks())
            return "done"

        @app.tool
        async def gathered(ctx: Context) -> str:
            each = [ctx.ask(**{key: ask}) for key, ask in asks().items()]
            await asyncio.gather(*each, return_exceptions=True)
            return "done"

        @app.tool
        def declared(
            form: Annotated[Login, Elicit("who?")],
            page: Annotated[bool, ElicitUrl("open", "https://example.com")],
            said: Annotated[Sampled, Sample("hi", tools=[])],
            roots: Annotated[list[Root], ListRoots()],
        ) -> str:
            return "done"

        for target in ("pure", "inline", "gathered", "declared"):
            error = (await AsyncClient(app, capabilities=capabilities).flow(target).start()).error
            assert (error.code, error.data) == (-32021, {"requiredCapabilities": missing})

    async def test_an_answer_that_is_there_counts(self, app: MRTRServer) -> None:
        @app.tool
        async def ask(ctx: Context) -> str:
            return (await ctx.elicit("who?", Login)).name

        assert (await AsyncClient(app, capabilities={}).flow("ask").start(login=accept(name="ann"))).text == "ann"

    async def test_a_tool_can_choose_another_way(self, app: MRTRServer) -> None:
        @app.tool
        async def ask(ctx: Context) -> str:
            return (await ctx.elicit("who?", Login)).name if ctx.client.supports("elicitation") else "anonymous"

        assert (await AsyncClient(app, capabilities={"sampling": {}}).flow("ask").start()).text == "anonymous"
