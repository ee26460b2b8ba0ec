"""A test may put another function into the place of a dependency, and take it away again."""

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Annotated, Any

import pytest
from pydantic import BaseModel

from mrtr_server import Context, Depends, Elicit, KeyRing, MRTRServer, SetupError
from mrtr_server.testing import AsyncClient, accept, replica

pytestmark = pytest.mark.anyio


class Named(BaseModel):
    name: str


def settings() -> str:
    return "production"


async def connect(settings: Annotated[str, Depends(settings)]) -> AsyncIterator[str]:
    yield f"connected to {settings}"


def unused() -> str:
    return ""


happened: list[str] = []


@pytest.fixture
def app() -> MRTRServer:
    happened.clear()
    app = MRTRServer("overridden", keys=KeyRing.generate())

    @app.tool
    async def query(text: str, connection: Annotated[str, Depends(connect)]) -> str:
        return f"{text} {connection}"

    return app


async def query(app: MRTRServer) -> str:
    return (await AsyncClient(app).flow("query", text="x").start()).text


class TestOverrides:
    async def test_one_takes_the_place_of_a_dependency_for_as_long_as_the_block_lasts(self, app: MRTRServer) -> None:
        @app.prompt
        def prompted(connection: Annotated[str, Depends(connect)]) -> str:
            return connection

        with app.override(connect, lambda: "a fake"):
            assert await query(app) == "x a fake"
            assert "a fake" in str((await AsyncClient(app).get_prompt("prompted")).result)
        assert await query(app) == "x connected to production"

    async def test_one_of_a_dependency_of_a_dependency(self, app: MRTRServer) -> None:
        with app.override(settings, lambda: "test"):
            assert await query(app) == "x connected to test"
        assert await query(app) == "x connected to production"

    async def test_one_may_have_dependencies_arguments_asks_and_a_clean_up_of_its_own(self, app: MRTRServer) -> None:
        async def fake(
            text: str,
            settings: Annotated[str, Depends(settings)],
            who: Annotated[Named, Elicit("Who?")],
            ctx: Context,
        ) -> AsyncIterator[str]:
            yield f"{text} {settings} {who.name} {ctx.round}"
            happened.append("left")

        with app.override(connect, fake):
            reply = await AsyncClient(app).call("query", text="x", answers={"named": accept(name="Ann")})
        assert reply.text == "x x production Ann 2"
        assert happened == ["left"]  # the first round had not entered it

    async def test_a_plain_generator_as_well(self, app: MRTRServer) -> None:
        def fake() -> Iterator[str]:
            yield "plain"
            happened.append("left")

        with app.override(connect, fake):
            assert await query(app) == "x plain"
        assert happened == ["left"]

    async def test_one_is_left_as_the_parameter_says_and_need_not_be_a_generator(self, app: MRTRServer) -> None:
        def kept() -> Iterator[str]:
            yield "real"
            happened.append("kept")

        def fake() -> Iterator[str]:
            yield "fake"
            happened.append("left")

        @app.tool
        async def ask(it: Annotated[str, Depends(kept, on_ask="commit")], ctx: Context) -> str:
            await ctx.confirm("sure?")
            return it

        for other in (fake, lambda: "plain"):
            with app.override(kept, other):
                assert (await AsyncClient(app).flow("ask").start()).questions == {"confirm": "sure?"}
        assert happened == ["left"]

    async def test_the_context_manager_puts_back_what_was_there_whatever_happens(self, app: MRTRServer) -> None:
        async def fail() -> None:
            with app.override(connect, lambda: "second"):
                assert await query(app) == "x second"
                raise ZeroDivisionError

        with app.override(connect, lambda: "first"), app.override(settings, lambda: "test"):
            with pytest.raises(ZeroDivisionError):
                await fail()
            assert await query(app) == "x first"
        assert await query(app) == "x connected to production"

    async def test_those_that_end_out_of_order_leave_the_others(self, app: MRTRServer) -> None:
        one, other = app.override(connect, lambda: "fake"), app.override(settings, lambda: "test")
        one.__enter__()
        other.__enter__()
        one.__exit__(None, None, None)
        assert await query(app) == "x connected to test"
        other.__exit__(None, None, None)
        assert await query(app) == "x connected to production"

    async def test_what_is_registered_later_has_it_too(self, app: MRTRServer) -> None:
        with app.override(connect, lambda: "a fake"):

            @app.tool
            def later(connection: Annotated[str, Depends(connect)]) -> str:
                return connection

            assert (await AsyncClient(app).call("later")).text == "a fake"
        assert (await AsyncClient(app).call("later")).text == "connected to production"

    async def test_the_schema_never_shows_what_one_takes(self, app: MRTRServer) -> None:
        def fake(text: str, other: str = "default") -> str:
            return other

        with app.override(connect, fake):
            (tool,) = (await AsyncClient(app).request("tools/list")).result["tools"]
        assert list(tool["inputSchema"]["properties"]) == ["text"]

    async def test_steps_have_the_names_that_they_had(self, app: MRTRServer) -> None:
        def count() -> int:
            happened.append("step")
            return 7

        async def numbered(ctx: Context) -> int:
            return await ctx.step(count)

        @app.tool
        async def ask(number: Annotated[int, Depends(numbered)], ctx: Context) -> str:
            await ctx.confirm("Sure?")
            return str(number)

        async def other(ctx: Context) -> int:
            return await ctx.step(count)

        flow = AsyncClient(app).flow("ask")
        await flow.start()
        with app.override(numbered, other):
            assert (await flow.answer({"confirm": accept(confirm=True)})).text == "7"
        assert happened == ["step"]

    def test_one_for_what_nothing_depends_on_is_refused(self, app: MRTRServer) -> None:
        refused = pytest.raises(SetupError, match="overridden: nothing depends on unused; an override is for the very")
        with refused, app.override(unused, settings):
            pass

    @pytest.mark.parametrize("value", ["text", None, 3])
    def test_one_that_is_no_function_is_refused(self, app: MRTRServer, value: object) -> None:
        given: Any = value
        with pytest.raises(SetupError, match="is not a function"), app.override(connect, given):
            pass

    def test_one_that_can_not_take_the_place_in_a_prompt_is_refused_at_once(self, app: MRTRServer) -> None:
        def named() -> str:
            return "Ann"

        def wrong(nothing: str) -> str:
            return nothing

        @app.prompt
        def greet(name: Annotated[str, Depends(named)]) -> str:
            return name

        app.disable(prompts=["greet"])
        with pytest.raises(SetupError, match="needs 'nothing', which is neither"), app.override(named, wrong):
            pytest.fail("it was put there")

    async def test_one_that_can_not_take_the_place_changes_nothing(self, app: MRTRServer) -> None:
        def wrong(nothing: str) -> str:
            return nothing

        refused = pytest.raises(SetupError, match="needs 'nothing', which is neither an argument nor")
        with refused, app.override(connect, wrong):
            pass
        assert await query(app) == "x connected to production"

    async def test_replicas_share_them_as_they_share_handlers(self, app: MRTRServer) -> None:
        other = replica(app)
        with app.override(connect, lambda: "a fake"):
            assert await query(other) == "x a fake"


class TestOfLifespans:
    def make(self) -> MRTRServer:
        app = MRTRServer("living", keys=KeyRing.generate(), lifespan=real)

        @app.tool
        async def use(database: Annotated[str, Depends(real)], ctx: Context) -> str:
            return f"{database} {ctx.opened}"

        return app

    async def test_the_real_one_is_not_entered(self) -> None:
        happened.clear()
        app = self.make()
        with app.override(real, fake):
            async with AsyncClient(app) as client:
                assert (await client.call("use")).text == "fake fake"
            assert (await AsyncClient(app).call("use")).text == "fake fake"
        assert happened == ["enter fake", "leave fake", "enter fake"]
        assert (await AsyncClient(app).call("use")).text == "real real"


@asynccontextmanager
async def real(app: MRTRServer) -> AsyncIterator[str]:
    happened.append("enter real")
    yield "real"


@asynccontextmanager
async def fake(app: MRTRServer) -> AsyncIterator[str]:
    happened.append("enter fake")
    yield "fake"
    happened.append("leave fake")
