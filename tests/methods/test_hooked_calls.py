"""Hooks run around each round of a call and are told of each failure, and see no values unless they say so."""

import asyncio
import json
import re
import subprocess
import sys
import time
import traceback
from collections.abc import AsyncIterator, Iterator
from contextvars import ContextVar
from dataclasses import replace
from types import TracebackType
from typing import Annotated, Any

import pytest
from pydantic import BaseModel

from mrtr_server import (
    Caller,
    CallInfo,
    CallNext,
    ClientInfo,
    Confirm,
    Context,
    Depends,
    Ended,
    Failure,
    Header,
    InputRequired,
    Inputs,
    KeyRing,
    MRTRServer,
    ProtocolError,
    SetupError,
    Task,
    ToolError,
)
from mrtr_server.testing import AsyncClient, Clock, Reply, decline, no, replica, yes

from ..support.serving import TIMEOUT

pytestmark = pytest.mark.anyio

ARGUMENT = "a secret argument"
CONFIRMED = {"action": "accept", "content": {"confirm": True}}


@pytest.fixture
def app() -> MRTRServer:
    app = MRTRServer("hooked", keys=KeyRing.generate())

    @app.tool
    async def ask(text: str, ctx: Context) -> str:
        await ctx.confirm("Sure?")
        return text

    @app.tool
    def fail(text: str) -> str:
        raise ValueError("it broke")

    @app.tool
    def refuse() -> str:
        raise ToolError("No.")

    @app.tool(task=Task(rounds_first=True))
    async def work(ctx: Context) -> str:
        await ctx.background()
        raise LookupError("in the background")

    @app.prompt
    def prompted() -> str:
        raise ValueError("a prompt broke")

    @app.resource("books://{isbn}")
    def book(isbn: str) -> str:
        raise ValueError("a resource broke")

    return app


@pytest.fixture
def ended(app: MRTRServer) -> list[tuple[CallInfo, Ended | BaseException]]:
    """How each round ended."""
    ended: list[tuple[CallInfo, Ended | BaseException]] = []

    @app.around
    async def audit(call: CallInfo, call_next: CallNext) -> None:
        try:
            ended.append((call, await call_next(call)))
        except BaseException as error:
            ended.append((call, error))
            raise

    return ended


@pytest.fixture
def failures(app: MRTRServer) -> list[Failure]:
    failures: list[Failure] = []
    app.on_error(failures.append)
    return failures


def values_of(thing: Any, seen: set[int] | None = None) -> Iterator[str]:
    """All that can be found in an exception: its text, and every local variable of its tracebacks."""
    seen = set() if seen is None else seen
    if not isinstance(thing, BaseException) or id(thing) in seen:
        return
    seen.add(id(thing))
    yield str(thing)
    traceback: TracebackType | None = thing.__traceback__
    while traceback is not None:
        frame: Any = traceback.tb_frame
        while frame is not None:
            yield from (repr(value) for value in frame.f_locals.values())
            frame = frame.f_back
        traceback = traceback.tb_next
    for linked in (thing.__cause__, thing.__context__, *getattr(thing, "exceptions", ())):
        yield from values_of(linked, seen)


def text_of(reply: Reply) -> str:
    """The text of a result, also of one that says that the call failed."""
    (block,) = reply.result["content"]
    return str(block["text"])


Rounds = list[tuple[CallInfo, Ended | BaseException]]


class Account(BaseModel):
    name: str


class AsyncHook:
    """A hook that is an object; as a class it takes as many arguments as `app.on_error` passes."""

    def __init__(self, failure: Failure) -> None:
        self.called: list[str] = []

    async def __call__(self, call: CallInfo, call_next: CallNext) -> None:
        self.called.append(call.method)
        await call_next(call)


class TestAround:
    async def test_it_runs_around_each_round(self, app: MRTRServer, ended: Rounds) -> None:
        await AsyncClient(app).call("ask", text="x", answers={"confirm": yes})
        (first, asked), (second, done) = ended
        assert isinstance(asked, Ended)
        assert isinstance(done, Ended)
        assert (first.method, first.name, first.is_retry, first.is_task) == ("tools/call", "ask", False, False)
        assert (second.name, second.is_retry) == ("ask", True)
        assert (asked.outcome, asked.round, done.outcome, done.round) == ("asked", 1, "completed", 2)
        assert asked.flow == done.flow != ""
        assert first.request is not None
        assert first.client.name == "mrtr_server.testing"

    async def test_it_sees_how_rounds_end(self, app: MRTRServer, ended: Rounds) -> None:
        client = AsyncClient(app, tasks=True)
        await client.call("ask", text="x", answers={"confirm": no})
        await client.flow("refuse").start()
        await client.flow("fail", text="x").start()
        await client.call("work")
        words = [(call.name, call.is_task, each.outcome) for call, each in ended if isinstance(each, Ended)]
        assert words == [
            ("ask", False, "asked"),
            ("ask", False, "declined"),
            ("refuse", False, "failed"),
            ("fail", False, "failed"),
            ("work", False, "task"),
            ("work", True, "failed"),
        ]

    async def test_what_there_is_not_has_no_name_and_raises(self, app: MRTRServer, ended: Rounds) -> None:
        await AsyncClient(app).flow("nothing\n at all").start()
        ((call, error),) = ended
        assert call.name == ""
        assert "Unknown tool" in str(error)

    async def test_a_resource_is_named_by_its_template(self, app: MRTRServer, ended: Rounds) -> None:
        await AsyncClient(app).resource_flow(f"books://{ARGUMENT.replace(' ', '')}").start()
        ((call, _),) = ended
        assert call.name == "books://{isbn}"
        assert ARGUMENT.replace(" ", "") not in repr(call)

    def test_that_ends_a_call_in_its_own_way_ends_its_first_round_unless_it_says_another(self) -> None:
        assert Ended("completed") == Ended("completed", reference="", flow="", round=1)

    async def test_several_nest_in_the_order_of_their_registration(self, app: MRTRServer) -> None:
        happened: list[str] = []

        def hook(name: str) -> Any:
            async def around(call: CallInfo, call_next: CallNext) -> Ended:
                happened.append(f"{name} in")
                ended = await call_next(call)
                happened.append(f"{name} out")
                return ended

            return around

        app.around(hook("outer"))
        app.around(hook("inner"))
        await AsyncClient(app).flow("refuse").start()
        assert happened == ["outer in", "inner in", "inner out", "outer out"]

    @pytest.mark.parametrize("sees", [{}, {"sees_arguments": True}, {"sees_answers": True}])
    async def test_it_sees_only_what_it_says(self, app: MRTRServer, sees: dict[str, bool]) -> None:
        calls: list[CallInfo] = []

        @app.around(**sees)
        async def around(call: CallInfo, call_next: CallNext) -> None:
            calls.append(call)
            await call_next(call)

        await AsyncClient(app).call("ask", text=ARGUMENT, answers={"confirm": yes})
        assert [call.arguments for call in calls] == [{"text": ARGUMENT} if "sees_arguments" in sees else None] * 2
        answered = [call.answers for call in calls]
        assert answered == [None, {"confirm": CONFIRMED} if "sees_answers" in sees else None]
        assert ARGUMENT not in repr(calls)

    @pytest.mark.parametrize("style", ["inline", "declared", "pure", "task"])
    @pytest.mark.parametrize(("answer", "outcome"), [(yes, "completed"), (decline, "declined")])
    async def test_it_sees_the_text_of_the_question_that_was_answered(
        self, app: MRTRServer, style: str, answer: Any, outcome: str
    ) -> None:
        approved: list[tuple[Any, ...]] = []

        @app.around(sees_answers=True)
        async def audit(call: CallInfo, call_next: CallNext) -> None:
            ended = await call_next(call)
            approved.append((ended.outcome, ended.answered))

        @app.around
        async def sees_less(call: CallInfo, call_next: CallNext) -> None:
            assert (await call_next(call)).answered is None

        @app.tool(name="inline")
        async def inline(amount: int, ctx: Context) -> str:
            await ctx.confirm(f"Pay {amount}?")
            return "paid"

        @app.tool(name="declared")
        def declared(amount: int, confirm: Annotated[bool, Confirm(lambda amount: f"Pay {amount}?")]) -> str:
            return "paid"

        @app.tool(name="pure")
        def pure(amount: int, inputs: Inputs) -> str | InputRequired:
            sure = Confirm(f"Pay {amount}?")
            return "paid" if inputs.get("confirm", sure) else InputRequired(confirm=sure)

        @app.tool(name="task", task="required")
        async def task(amount: int, ctx: Context) -> str:
            await ctx.confirm(f"Pay {amount}?")
            return "paid"

        flow = AsyncClient(app, tasks=style == "task").flow(style, amount=3)
        await flow.start()
        if style == "task":
            await flow.wait()
        await flow.answer(confirm=answer)
        if style == "task":
            await flow.wait()
        assert approved[-1] == (outcome, {"confirm": "Pay 3?"})
        assert "Pay 3?" not in repr(Ended("completed", answered={"confirm": "Pay 3?"}))

    @pytest.mark.parametrize("sees", [{}, {"sees_arguments": True}])
    async def test_it_sees_no_headers_that_mirror_what_it_does_not_see(
        self, app: MRTRServer, sees: dict[str, bool]
    ) -> None:
        sent: list[str] = []

        @app.around(**sees)
        async def around(call: CallInfo, call_next: CallNext) -> None:
            assert call.request is not None
            sent.append(str(call.request.headers.raw))
            await call_next(call)

        @app.tool
        async def mirrored(text: Annotated[str, Header("Text")]) -> str:
            return text

        @app.resource("notes://{title}")
        async def note(title: str) -> str:
            return title

        client = AsyncClient(app)
        assert (await client.call("mirrored", text="secret-argument")).text == "secret-argument"
        assert (await client.resource_flow("notes://secret-argument").start()).status == 200
        assert ["secret-argument" in headers for headers in sent] == [bool(sees)] * 2
        assert ["mcp-name" in headers for headers in sent] == [True, bool(sees)]

    async def test_context_variables_reach_the_handler(self, app: MRTRServer) -> None:
        request_id: ContextVar[str] = ContextVar("request_id", default="")

        @app.around
        async def around(call: CallInfo, call_next: CallNext) -> None:
            request_id.set("r1")
            await call_next(call)

        @app.tool
        async def read() -> str:
            return request_id.get()

        assert (await AsyncClient(app).call("read")).text == "r1"

    async def test_it_may_refuse_a_call_before_it_runs(self, app: MRTRServer) -> None:
        @app.around
        async def around(call: CallInfo, call_next: CallNext) -> None:
            if call.name == "fail":
                raise ToolError("Not today.")
            if call.method == "prompts/get":
                raise ProtocolError("No prompts.")
            await call_next(call)

        client = AsyncClient(app)
        assert "Not today." in str((await client.flow("fail", text="x").start()).result)
        assert (await client.prompt_flow("prompted").start()).error.message == "No prompts."

    async def test_one_that_fails_fails_the_call_under_a_reference(
        self, app: MRTRServer, failures: list[Failure]
    ) -> None:
        @app.around
        async def around(call: CallInfo, call_next: CallNext) -> None:
            raise ZeroDivisionError

        reply = await AsyncClient(app).flow("refuse").start()
        assert [type(failure.error) for failure in failures] == [ZeroDivisionError]
        assert failures[0].reference in str(reply.result)

    async def test_one_that_does_not_go_on_is_named(self, app: MRTRServer) -> None:
        @app.around
        async def forgets(call: CallInfo, call_next: CallNext) -> None:
            pass

        reply = await AsyncClient(app).flow("refuse").start()
        assert reply.result["isError"]
        assert "forgets of app.around returned without `await call_next(call)`" in reply.log

    async def test_one_that_goes_on_twice_runs_the_call_once(self, app: MRTRServer) -> None:
        @app.around
        async def twice(call: CallInfo, call_next: CallNext) -> None:
            await call_next(call)
            await call_next(call)

        reply = await AsyncClient(app).flow("refuse").start()
        assert "call_next was awaited twice" in reply.log

    async def test_one_can_not_swallow_an_error(self, app: MRTRServer) -> None:
        @app.around
        async def swallows(call: CallInfo, call_next: CallNext) -> None:
            try:
                await call_next(call)
            except Exception:
                return

        assert "Unknown tool" in (await AsyncClient(app).flow("nothing").start()).error.message

    @pytest.mark.parametrize("sees", [False, True])
    async def test_an_error_shows_it_local_variables_only_if_it_sees_everything(
        self, app: MRTRServer, sees: bool
    ) -> None:
        shown: list[str] = []

        @app.around(sees_arguments=sees, sees_answers=sees)
        async def looks(call: CallInfo, call_next: CallNext) -> None:
            try:
                await call_next(call)
            except Exception as error:
                frames = traceback.walk_tb(error.__traceback__)
                shown.extend(repr(value) for frame, _ in frames for value in frame.f_locals.values())
                raise

        await AsyncClient(app).flow("nothing", what=ARGUMENT).start()
        assert any(ARGUMENT in value for value in shown) == sees

    async def test_a_client_that_leaves_cancels_it(self, app: MRTRServer) -> None:
        begun, cancelled = asyncio.Event(), asyncio.Event()

        @app.around
        async def watch(call: CallInfo, call_next: CallNext) -> None:
            try:
                await call_next(call)
            except asyncio.CancelledError:
                cancelled.set()
                raise

        @app.tool
        async def slow() -> str:
            begun.set()
            await asyncio.sleep(600)
            return ""

        task = asyncio.ensure_future(AsyncClient(app).flow("slow").start())
        await begun.wait()
        task.cancel()
        async with asyncio.timeout(TIMEOUT):
            await cancelled.wait()

    def test_wrong_ones_are_refused(self, app: MRTRServer) -> None:
        with pytest.raises(SetupError, match=re.escape("app.around takes an `async def` of (call, call_next)")):
            app.around(time.time)
        with pytest.raises(SetupError, match=re.escape("it got one that takes (call)")):

            @app.around
            async def one(call): ...  # type: ignore[no-untyped-def]

        with pytest.raises(SetupError, match=re.escape("app.on_error takes a function of (failure)")):
            app.on_error(lambda: None)

    @pytest.mark.parametrize("wrong", [AsyncHook, "no function"])
    def test_a_class_and_what_can_not_be_called_are_refused(self, app: MRTRServer, wrong: Any) -> None:
        with pytest.raises(SetupError, match=r"app.around takes an `async def` of \(call, call_next\): "):
            app.around(wrong)
        with pytest.raises(SetupError, match=r"app.on_error takes a function of \(failure\): "):
            app.on_error(wrong)

    async def test_an_object_that_can_be_called_is_taken(self, app: MRTRServer) -> None:
        hook = AsyncHook(None)  # type: ignore[arg-type]
        app.around(hook)

        @app.tool
        def plain() -> str:
            return "done"

        assert (await AsyncClient(app).call("plain")).text == "done"
        assert hook.called == ["tools/call"]


class TestResults:
    @pytest.fixture
    def redacts(self, app: MRTRServer) -> list[Any]:
        """The results that a hook saw which hides the word secret."""
        seen: list[Any] = []

        @app.around(sees_results=True)
        async def redact(call: CallInfo, call_next: CallNext) -> Ended:
            ended = await call_next(call)
            seen.append(ended.result)
            if ended.result is None:
                return ended
            return replace(ended, result=json.loads(json.dumps(ended.result).replace("secret", "***")))

        return seen

    async def test_of_tools_prompts_and_resources_are_replaced(self, app: MRTRServer, redacts: list[Any]) -> None:
        @app.tool
        def structured() -> Account:
            return Account(name="a secret")

        @app.prompt
        def letter() -> str:
            return "a secret"

        @app.resource("notes://all", cache_seconds=60)
        def notes() -> str:
            return "a secret"

        client = AsyncClient(app)
        found = await client.call("structured")
        assert found.structured == {"name": "a ***"}
        assert found.text == '{"name":"a ***"}'
        assert "a ***" in str((await client.get_prompt("letter")).result)
        read = (await client.read("notes://all")).result
        assert read["contents"][0]["text"] == "a ***"
        assert read["cacheScope"] == "private"
        assert len(redacts) == 3

    async def test_of_a_failure_and_of_each_round_are_seen(self, app: MRTRServer, redacts: list[Any]) -> None:
        @app.tool
        def fails() -> str:
            raise ToolError("a secret")

        client = AsyncClient(app)
        assert text_of(await client.flow("fails").start()) == "a ***"
        assert (await client.call("ask", text="a secret", answers={"confirm": yes})).text == "a ***"
        assert [bool(result) for result in redacts] == [True, False, True]

    async def test_of_a_task_are_replaced_before_they_are_stored(self, app: MRTRServer, redacts: list[Any]) -> None:
        @app.tool(task="required")
        def slowly() -> str:
            return "a secret"

        assert (await AsyncClient(app, tasks=True).call("slowly")).text == "a ***"
        assert [bool(result) for result in redacts] == [False, True]

    async def test_come_in_no_pieces_that_nobody_has_looked_at(self, app: MRTRServer, redacts: list[Any]) -> None:
        @app.tool
        async def streamed() -> AsyncIterator[str]:
            yield "a "
            yield "secret"

        for client in (AsyncClient(app, stream=True), AsyncClient(app)):
            reply = await client.call("streamed")
            assert reply.text == "a ***"
            assert "secret" not in str([response.body for response in reply.responses])

    async def test_are_not_seen_by_others_nor_replaced_by_them(self, app: MRTRServer) -> None:
        @app.around
        async def blind(call: CallInfo, call_next: CallNext) -> Ended:
            ended = await call_next(call)
            assert ended.result is None
            return replace(ended, result={"content": []})

        reply = await AsyncClient(app).flow("refuse").start()
        assert "blind of app.around returned a result; only one with sees_results=True may replace results" in reply.log

    @pytest.mark.parametrize(
        ("result", "why"),
        [
            ({"content": "text"}, "a result without a list of objects, 'content'"),
            ({"content": []}, "a result without 'structuredContent', which the call's result has"),
            ({"content": [], "structuredContent": object()}, "a result that is no JSON: PydanticSerializationError"),
            (["content"], "a result without fields"),
            (None, "no result; raise ToolError to refuse it"),
        ],
    )
    async def test_that_can_not_be_sent_fail_the_call_and_leak_nothing(
        self, app: MRTRServer, result: Any, why: str
    ) -> None:
        @app.tool
        def structured() -> Account:
            return Account(name="a secret")

        @app.around(sees_results=True)
        async def breaks(call: CallInfo, call_next: CallNext) -> Ended:
            return replace(await call_next(call), result=result)

        reply = await AsyncClient(app).flow("structured").start()
        assert f"breaks of app.around returned {why}" in reply.log
        assert reply.result["isError"]
        assert "secret" not in str(reply.result)

    async def test_change_only_by_what_is_returned(self, app: MRTRServer) -> None:
        @app.around(sees_results=True)
        async def scribbles(call: CallInfo, call_next: CallNext) -> None:
            ended = await call_next(call)
            assert ended.result is not None
            ended.result["content"].clear()

        assert text_of(await AsyncClient(app).flow("refuse").start()) == "No."

    async def test_go_from_hook_to_hook(self, app: MRTRServer) -> None:
        seen: list[str] = []

        def adds(word: str) -> Any:
            async def around(call: CallInfo, call_next: CallNext) -> Ended:
                ended = await call_next(call)
                assert ended.result is not None
                (block,) = ended.result["content"]
                seen.append(block["text"])
                return replace(ended, result={**ended.result, "content": [{**block, "text": block["text"] + word}]})

            return around

        app.around(sees_results=True)(adds(" outer"))
        app.around(sees_results=True)(adds(" inner"))
        assert text_of(await AsyncClient(app).flow("refuse").start()) == "No. inner outer"
        assert seen == ["No.", "No. inner"]

    def test_are_in_no_repr(self) -> None:
        assert "secret" not in repr(Ended("completed", result={"content": "a secret"}))


class TestOnError:
    async def test_it_is_told_once_of_each_failure(self, app: MRTRServer, failures: list[Failure]) -> None:
        client = AsyncClient(app)
        reply = await client.flow("fail", text=ARGUMENT).start()
        (failure,) = failures
        assert type(failure.error) is ValueError
        assert (failure.call.method, failure.call.name) == ("tools/call", "fail")
        assert f"reference {failure.reference}" in str(reply.result)
        assert f"reference {failure.reference}" in reply.log
        await client.prompt_flow("prompted").start()
        await client.resource_flow("books://1").start()
        assert [each.call.name for each in failures[1:]] == ["prompted", "books://{isbn}"]

    async def test_what_is_no_failure_of_the_server_is_none(self, app: MRTRServer, failures: list[Failure]) -> None:
        client = AsyncClient(app)
        await client.flow("refuse").start()
        await client.call("ask", text="x", answers={"confirm": decline})
        await client.flow("ask", wrong=1).start()
        await client.flow("nothing").start()
        assert failures == []

    async def test_failures_of_dependencies_of_authorize_and_in_tasks_are(
        self, app: MRTRServer, failures: list[Failure]
    ) -> None:
        def broken() -> str:
            raise KeyError("a dependency")

        @app.tool
        def needs(it: Annotated[str, Depends(broken)]) -> str:
            return it

        def allows(caller: object, name: str) -> bool:
            raise OSError("authorize")

        @app.tool(authorize=allows)
        def guarded() -> str:
            return ""

        client = AsyncClient(app, tasks=True)
        await client.flow("needs").start()
        await client.flow("guarded").start()
        await client.call("work")
        assert [type(failure.error) for failure in failures] == [KeyError, OSError, LookupError]
        assert [failure.call.is_task for failure in failures] == [False, False, True]

    async def test_an_async_one_runs_on_the_loop_and_all_of_them_before_the_reply(self, app: MRTRServer) -> None:
        seen: list[object] = []

        @app.on_error
        async def report(failure: Failure) -> None:
            await asyncio.sleep(0)
            seen.append(asyncio.get_running_loop())

        @app.on_error
        def count(failure: Failure) -> None:
            with pytest.raises(RuntimeError):
                asyncio.get_running_loop()
            seen.append("in a thread")

        await AsyncClient(app).flow("fail", text="x").start()
        assert seen == [asyncio.get_running_loop(), "in a thread"]

    async def test_one_that_fails_itself_is_logged_and_changes_nothing(
        self, app: MRTRServer, failures: list[Failure]
    ) -> None:
        @app.on_error
        def broken(failure: Failure) -> None:
            raise OSError("no network")

        reply = await AsyncClient(app).flow("fail", text="x").start()
        assert len(failures) == 1
        assert "broken of app.on_error failed" in reply.log
        assert failures[0].reference in str(reply.result)

    async def test_an_exception_shows_no_local_variables(self, app: MRTRServer, failures: list[Failure]) -> None:
        @app.tool
        async def linked(text: str, ctx: Context) -> str:
            def inner(value: str) -> None:
                raise ExceptionGroup("several", [KeyError("one")])

            try:
                inner(text)
            except ExceptionGroup as error:
                raise LookupError("outer") from error
            return ""

        await AsyncClient(app).flow("linked", text=ARGUMENT).start()
        await AsyncClient(app).flow("fail", text=ARGUMENT).start()
        for failure in failures:
            assert not [value for value in values_of(failure.error) if ARGUMENT in value]
        tracebacks = failures[0].error.__traceback__
        lines = []
        while tracebacks is not None:
            lines.append((tracebacks.tb_frame.f_code.co_name, tracebacks.tb_frame.f_code.co_filename == __file__))
            tracebacks = tracebacks.tb_next
        assert lines[-1] == ("linked", True)

    async def test_it_shows_them_to_one_that_sees_arguments_and_answers(self, app: MRTRServer) -> None:
        seen: list[Failure] = []
        found: list[bool] = []

        @app.on_error(sees_arguments=True, sees_answers=True)
        def see(failure: Failure) -> None:
            seen.append(failure)
            found.append(any(ARGUMENT in value for value in values_of(failure.error)))

        blind: list[Failure] = []
        app.on_error(blind.append)
        await AsyncClient(app).flow("fail", text=ARGUMENT).start()
        assert seen[0].call.arguments == {"text": ARGUMENT}
        assert found == [True]
        assert blind[0].call.arguments is None
        assert not [value for value in values_of(blind[0].error) if ARGUMENT in value]


class TestOff:
    async def test_nothing_is_in_the_way_of_calls_without_hooks(self, app: MRTRServer) -> None:
        dispatcher = app._parts._dispatcher
        before = dict(dispatcher._methods)
        app.around(_go_on)
        assert dispatcher._methods.keys() == before.keys()
        assert dispatcher._methods["tools/call"] is not before["tools/call"]

    async def test_a_replica_calls_those_that_are_registered_before_and_after(self, app: MRTRServer) -> None:
        failures: list[Failure] = []
        early = replica(app, clock=Clock())
        app.on_error(failures.append)
        late = replica(app)
        for server in (early, late):
            await AsyncClient(server).flow("fail", text="x").start()
        assert len(failures) == 2


SENTRY = """
import sentry_sdk
from sentry_sdk.integrations.logging import ignore_logger
from sentry_sdk.transport import Transport
from mrtr_server import Failure, MRTRServer
from mrtr_server.testing import Client

events = []

class KeepingTransport(Transport):
    def capture_envelope(self, envelope):
        events.append(envelope.get_event())

app = MRTRServer("shop")
# It shows local variables, unless they are gone.
sentry_sdk.init(dsn="http://key@127.0.0.1:9/1", transport=KeepingTransport)
ignore_logger("mrtr_server")

@app.on_error
def report(failure: Failure) -> None:
    sentry_sdk.capture_exception(failure.error, tags={"tool": failure.call.name, "reference": failure.reference})

@app.tool
def fail(text: str) -> str:
    raise ValueError("it broke")

reply = Client(app).flow("fail", text="a " + "secret argument").start()
(event,) = events
(shown,) = event["exception"]["values"]
assert (shown["type"], shown["value"]) == ("ValueError", "it broke")
assert shown["stacktrace"]["frames"][-1]["function"] == "fail"
assert event["tags"]["tool"] == "fail" and event["tags"]["reference"] in str(reply.result)
assert "a secret argument" not in str(event), event
print("reported")
"""


def test_sentry_gets_one_event_with_the_tool_and_the_reference_and_no_values() -> None:
    done = subprocess.run([sys.executable, "-c", SENTRY], capture_output=True, text=True, timeout=TIMEOUT)
    assert done.stdout.strip() == "reported", done.stderr


async def _go_on(call: CallInfo, call_next: CallNext) -> None:
    await call_next(call)


def test_a_call_that_an_author_s_own_test_makes_is_a_first_one_with_nothing_to_see() -> None:
    call = CallInfo("tools/call", "pay", Caller(), ClientInfo())
    assert (call.is_task, call.is_retry) == (False, False)
    assert (call.request, call.arguments, call.answers) == (None, None, None)


def test_a_call_that_is_printed_shows_no_values() -> None:
    given = {"arguments": {"pin": "a secret"}, "answers": {"login": "a secret"}}
    call = CallInfo("tools/call", "pay", Caller(), ClientInfo(), **given)  # type: ignore[arg-type]
    assert "pay" in repr(call)
    assert "secret" not in repr(call)


@pytest.mark.parametrize("sees", [False, True])
async def test_hooks_see_which_resource_is_read(sees: bool) -> None:
    app, seen = MRTRServer("read"), list[Any]()

    @app.resource("notes://{folder}/{name}")
    def note(folder: str, name: str) -> str:
        return f"{folder} {name}"

    @app.resource("notes://all")
    def every() -> str:
        return "all"

    @app.around(sees_arguments=sees)
    async def see(call: CallInfo, call_next: CallNext) -> None:
        seen.append((call.template, call.uri, call.variables))
        await call_next(call)

    client = AsyncClient(app)
    for uri in ("notes://plans/a%20b", "notes://all", "nowhere://x"):
        await client.read(uri)
    found = ("notes://plans/a%20b", {"folder": "plans", "name": "a b"}) if sees else ("", None)
    assert seen == [("notes://{folder}/{name}", *found), ("", "notes://all", None), ("", "", None)]
