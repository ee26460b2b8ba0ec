"""What a task group raises ends a call as the one error in it would that has an end of its own."""

import asyncio
from collections.abc import AsyncIterator, Coroutine
from contextlib import suppress
from typing import Annotated, Any

import pytest
from starlette.requests import Request

from mrtr_server import (
    Caller,
    CallInfo,
    CallNext,
    Context,
    Depends,
    Elicit,
    InputRequired,
    Inputs,
    InsufficientScope,
    MRTRServer,
    NotFound,
    ProtocolError,
    Refusal,
    ToolError,
)
from mrtr_server.testing import AsyncClient, accept, decline, yes

from ..support.effects import EFFECTS, effect
from ..support.models import Login

pytestmark = pytest.mark.anyio


async def raising(*errors: BaseException) -> None:
    """Raise errors side by side, as an author's code does."""

    async def fail(error: BaseException) -> None:
        raise error

    async with asyncio.TaskGroup() as group:
        for error in errors:
            group.create_task(fail(error))


NO_EMMA = "There is no Emma."


class TestATool:
    async def test_shows_the_message_of_its_error_in_every_style(self, app: MRTRServer) -> None:
        @app.tool
        async def simple() -> str:
            await raising(ValueError("a value"), ToolError(NO_EMMA))
            return ""

        @app.tool
        def plain() -> str:
            raise ExceptionGroup("several", [ToolError(NO_EMMA)])

        @app.tool
        async def inline(ctx: Context) -> str:
            await raising(ToolError(NO_EMMA))
            return ""

        @app.tool
        async def pure(inputs: Inputs) -> str | InputRequired:
            await raising(ToolError(NO_EMMA))
            return ""

        @app.tool
        async def nested(ctx: Context) -> str:
            async with asyncio.TaskGroup() as group:
                group.create_task(raising(ToolError(NO_EMMA)))
            return ""

        @app.tool
        async def stepping(ctx: Context) -> str:
            async def look() -> None:
                await raising(ToolError(NO_EMMA))

            async with asyncio.TaskGroup() as group:
                group.create_task(ctx.step(look))
            return ""

        @app.tool
        async def pieces() -> AsyncIterator[str]:
            yield "one"
            await raising(ToolError(NO_EMMA))

        @app.tool
        async def told(who: Annotated[Login, Elicit(lambda: _raise(ExceptionGroup("", [ToolError(NO_EMMA)])))]) -> str:
            return ""

        for tool in ("simple", "plain", "inline", "pure", "nested", "stepping", "pieces", "told"):
            assert (await AsyncClient(app).call(tool)).failure == NO_EMMA, tool

    async def test_names_its_other_errors_in_the_log_and_to_hooks(
        self, app: MRTRServer, caplog: pytest.LogCaptureFixture
    ) -> None:
        told: list[BaseException] = []
        app.on_error(lambda failure: told.append(failure.error))

        @app.tool
        async def look(ctx: Context) -> str:
            await raising(KeyError("a key"), ToolError(NO_EMMA), ToolError("nor Ann"))
            return ""

        assert (await AsyncClient(app).call("look")).failure == NO_EMMA
        assert "'look' raised more than the ToolError that it ended with" in caplog.text
        assert "KeyError: 'a key'" in caplog.text
        assert [type(each) for error in told for each in getattr(error, "exceptions", ())] == [KeyError]

    async def test_fails_the_request_by_an_error_of_the_protocol(self, app: MRTRServer) -> None:
        @app.tool
        async def refuse(ctx: Context) -> str:
            await raising(ProtocolError("Not now.", {"a": 1}))
            return ""

        @app.tool
        async def lack() -> str:
            await raising(ToolError("no"), InsufficientScope("read"))
            return ""

        error = (await AsyncClient(app).call("refuse")).error
        assert (error.message, error.data) == ("Not now.", {"a": 1})
        assert (await AsyncClient(app).call("lack")).failure == "no", "of two that are alike, the first counts"

    async def test_a_no_counts_before_all_else(self, app: MRTRServer) -> None:
        @app.tool
        async def simple() -> str:
            await raising(ToolError("an error"), Refusal("decline"))
            return ""

        @app.tool
        async def asking(inputs: Inputs) -> str | InputRequired:
            async def look() -> None:
                inputs.get("login", Login)

            async def fail() -> None:
                raise ToolError("an error")

            if inputs.get("ready", Login) is None:
                return InputRequired(ready=Elicit("Ready?", Login), login=Elicit("Who?", Login))
            async with asyncio.TaskGroup() as group:
                group.create_task(look())
                group.create_task(fail())
            return effect("done")

        assert "declined" in (await AsyncClient(app).call("simple")).failure
        answers = {"ready": accept(name="a"), "login": decline}
        assert "declined" in (await AsyncClient(app).call("asking", answers=answers)).failure
        assert EFFECTS == []

    async def test_in_the_background_ends_in_the_same_way(self, app: MRTRServer) -> None:
        @app.tool(task="required")
        async def work(ctx: Context, how: str) -> str:
            await raising(ToolError(NO_EMMA) if how == "tool" else ProtocolError("Not now."))
            return ""

        client = AsyncClient(app, capabilities={"extensions": {"io.modelcontextprotocol/tasks": {}}})
        assert (await client.call("work", how="tool")).failure == NO_EMMA
        assert (await client.call("work", how="protocol")).error.message == "Not now."

    async def test_a_group_that_leads_to_an_error_is_no_end(self, app: MRTRServer) -> None:
        @app.tool
        async def look() -> str:
            try:
                await raising(ValueError("a value"), ToolError("within"))
            except* ValueError as group:
                raise ToolError(NO_EMMA) from group
            return ""

        assert (await AsyncClient(app).call("look")).failure in (NO_EMMA, "within")


def _raise(error: Exception) -> str:
    raise error


class TestAnAskBesideIt:
    """Rule 5: nothing after an ask without an answer runs, whatever has failed beside it and whoever handles that."""

    @pytest.fixture(params=["a task", "the body", "both", "a group within", "with a dependency"])
    def buy(self, app: MRTRServer, request: pytest.FixtureRequest) -> str:
        """A tool that handles the failure of what runs beside its confirmation, and continues."""

        async def left() -> AsyncIterator[int]:
            try:
                yield 1
            finally:
                await asyncio.sleep(0.1)
                effect("left")

        async def fail() -> None:
            await asyncio.sleep(0.01 if request.param == "both" else 0)
            raise ToolError("no price")

        async def ask(ctx: Context) -> None:
            async with asyncio.TaskGroup() as group:
                group.create_task(fail())
                if request.param in ("the body", "both"):
                    if request.param == "both":
                        group.create_task(ctx.confirm("Buy it?", key="confirm"))
                    await ctx.confirm("Buy it?", key="confirm")
                else:
                    group.create_task(ctx.confirm("Buy it?", key="confirm"))

        @app.tool
        async def caught(ctx: Context) -> str:
            try:
                if request.param == "a group within":
                    async with asyncio.TaskGroup() as group:
                        group.create_task(asyncio.sleep(100))
                        await ask(ctx)
                else:
                    await ask(ctx)
            except* Exception:
                effect("handled")
            finally:
                for _ in range(3):
                    await asyncio.sleep(0.1)
                effect("left")
            return effect("bought")

        @app.tool
        async def torn_down(ctx: Context, it: Annotated[int, Depends(left)]) -> str:
            with suppress(BaseExceptionGroup):
                await ask(ctx)
            return effect("bought")

        return "torn_down" if request.param == "with a dependency" else "caught"

    async def test_is_asked_and_nothing_more_runs(
        self, app: MRTRServer, buy: str, caplog: pytest.LogCaptureFixture
    ) -> None:
        flow = AsyncClient(app).flow(buy)
        assert (await flow.start()).asks.keys() == {"confirm"}
        await asyncio.sleep(1)
        assert EFFECTS == ["left"]
        assert [record.message for record in caplog.records if record.levelname == "ERROR"] == []
        assert (await flow.answer(confirm=yes)).text == "bought"

    async def test_that_is_declined_ends_the_call(self, app: MRTRServer, buy: str) -> None:
        reply = await AsyncClient(app).call(buy, answers={"confirm": decline})
        await asyncio.sleep(1)
        assert "declined" in reply.failure
        assert [each for each in EFFECTS if each != "left"] == []

    async def test_and_whose_client_leaves_runs_nothing_more(self, app: MRTRServer) -> None:
        @app.tool
        async def slow(ctx: Context) -> str:
            try:
                async with asyncio.TaskGroup() as group:
                    group.create_task(raising(ToolError("no price")))
                    group.create_task(ctx.step(asyncio.sleep, 5, key="sleep"))
                    group.create_task(ctx.confirm("Buy it?", key="confirm"))
            except* ToolError:
                effect("handled")
            return effect("bought")

        calling = asyncio.ensure_future(_call(AsyncClient(app).flow("slow").start()))
        await asyncio.sleep(1)
        calling.cancel()
        with suppress(asyncio.CancelledError):
            await calling
        await asyncio.sleep(10)
        assert EFFECTS == []


class TestDependencies:
    @pytest.mark.parametrize(
        ("raised", "shown"),
        [(ToolError(NO_EMMA), NO_EMMA), (Refusal("decline"), "declined"), (ValueError("a value"), "Internal error")],
        ids=lambda value: type(value).__name__,
    )
    async def test_a_task_group_around_the_yield_changes_no_error(
        self, app: MRTRServer, raised: BaseException, shown: str, caplog: pytest.LogCaptureFixture
    ) -> None:
        async def group() -> AsyncIterator[asyncio.TaskGroup]:
            async with asyncio.TaskGroup() as made:
                yield made

        @app.tool
        async def look(group: Annotated[Any, Depends(group)], ctx: Context) -> str:
            raise raised

        assert shown in (await AsyncClient(app).call("look")).failure
        assert "The teardown of" not in caplog.text

    async def test_what_they_raise_before_and_after_the_yield_counts(self, app: MRTRServer) -> None:
        async def before() -> AsyncIterator[int]:
            await raising(ToolError(NO_EMMA))
            yield 1

        async def after() -> AsyncIterator[int]:
            yield 1
            await raising(ToolError(NO_EMMA))

        async def made() -> int:
            await raising(ToolError(NO_EMMA))
            return 1

        @app.tool
        async def one(it: Annotated[int, Depends(before)]) -> str:
            return ""

        @app.tool
        async def two(it: Annotated[int, Depends(after)]) -> str:
            return ""

        @app.tool
        async def three(it: Annotated[int, Depends(made)]) -> str:
            return ""

        for tool in ("one", "two", "three"):
            assert (await AsyncClient(app).call(tool)).failure == NO_EMMA

    async def test_a_mistake_comes_back_through_a_task_group_as_it_is(
        self, app: MRTRServer, caplog: pytest.LogCaptureFixture
    ) -> None:
        async def group() -> AsyncIterator[asyncio.TaskGroup]:
            async with asyncio.TaskGroup() as made:
                yield made

        @app.tool
        async def look(group: Annotated[Any, Depends(group)], ctx: Context) -> str:
            await ctx.step(lambda: None)  # which needs a key=
            return ""

        assert "Internal error" in (await AsyncClient(app).call("look")).failure
        assert "needs a key=" in caplog.text
        assert "The teardown of" not in caplog.text


class TestOtherFunctions:
    async def test_prompts_resources_and_completions(self, app: MRTRServer) -> None:
        @app.prompt
        async def review() -> str:
            await raising(ToolError(NO_EMMA))
            return ""

        @app.resource("books://{title}")
        async def book(title: str) -> str:
            await raising(NotFound())
            return ""

        @app.completion(argument="title", resource="books://{title}")
        async def titles(value: str) -> list[str]:
            await raising(ToolError(NO_EMMA) if value else ProtocolError("Not now."))
            return []

        client = AsyncClient(app)
        assert (await client.get_prompt("review")).error.message == NO_EMMA
        error = (await client.read("books://emma")).error
        assert (error.code, error.data) == (-32602, {"uri": "books://emma"})
        for value, message in (("e", NO_EMMA), ("", "Not now.")):
            given = {
                "ref": {"type": "ref/resource", "uri": "books://{title}"},
                "argument": {"name": "title", "value": value},
            }
            assert (await client.request("completion/complete", given)).error.message == message

    async def test_hooks_around_a_call(self, app: MRTRServer) -> None:
        @app.around
        async def beside(call: CallInfo, call_next: CallNext) -> None:
            async with asyncio.TaskGroup() as group:
                group.create_task(_call(call_next(call)))
                if call.name == "refused":
                    group.create_task(raising(ToolError(NO_EMMA)))

        @app.tool
        async def fails() -> str:
            raise ProtocolError("Not now.")

        @app.tool
        async def refused() -> str:
            await asyncio.sleep(1)
            return ""

        @app.prompt
        async def unknown() -> str:
            raise ToolError(NO_EMMA)

        client = AsyncClient(app)
        assert (await client.call("fails")).error.message == "Not now."
        assert (await client.call("refused")).failure == NO_EMMA
        assert (await client.get_prompt("unknown")).error.message == NO_EMMA

    @pytest.mark.parametrize("is_async", [True, False])
    async def test_authorize(self, app: MRTRServer, is_async: bool) -> None:
        async def asks(caller: Caller, name: str) -> bool:
            await raising(InsufficientScope("books.write"))
            return True

        def plain(caller: Caller, name: str) -> bool:
            raise ExceptionGroup("several", [InsufficientScope("books.write")])

        @app.tool(authorize=asks if is_async else plain)
        async def write() -> str:
            return ""

        assert (await AsyncClient(app).call("write")).error.data == {"requiredScopes": ["books.write"]}

    @pytest.mark.parametrize(
        ("raised", "title"), [(ToolError(NO_EMMA), "That did not work"), (Refusal("decline"), "Nothing was done")]
    )
    async def test_callbacks(self, app: MRTRServer, raised: BaseException, title: str) -> None:
        import httpx

        @app.callback("login")
        async def login(request: Request) -> str:
            await raising(raised)
            return ""

        @app.tool
        async def enter(ctx: Context) -> str:
            return await ctx.elicit_url("Log in", callback=login)

        asked = await AsyncClient(app, headers={"Host": "localhost"}).flow("enter").start()
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app)) as browser:
            assert title in (await browser.get(asked.asks["login"].url)).text


async def _call(work: Coroutine[Any, Any, Any] | Any) -> None:
    await work
