"""What a server is made of: decorators and options that can't work are refused at once, with the way out."""

import asyncio
import inspect
import json
import logging
import types
from collections.abc import AsyncIterator, Callable, Generator
from contextlib import asynccontextmanager
from functools import partial, wraps
from pathlib import Path
from typing import Annotated, Any, Literal

import pytest
from pydantic import BaseModel, BeforeValidator, Field
from starlette.authentication import AuthenticationError
from starlette.requests import HTTPConnection
from starlette.types import Message

from mrtr_server import (
    BearerTokens,
    Context,
    EmbeddedResource,
    ImageContent,
    Inputs,
    KeyRing,
    Lists,
    MRTRServer,
    ResourceContents,
    SetupError,
    Shutdown,
    State,
    Task,
    TextContent,
    ToolResult,
)
from mrtr_server.auth.fixed_tokens import TokenUser
from mrtr_server.protocol.callers import principal_of
from mrtr_server.registration.handlers import compile_handler
from mrtr_server.testing import Client

from .conftest import Serve
from .support.direct import headers_for, send
from .support.wire import modern

ANYTHING = {"type": "object"}


@pytest.fixture
def app() -> MRTRServer:
    return MRTRServer("registration", keys=[bytes(32)])


def refusal(register: Callable[..., Any], *args: Any, **kwargs: Any) -> str:
    with pytest.raises(SetupError) as caught:
        register(*args, **kwargs)
    return str(caught.value)


class Shelf:
    def count(self, books: int) -> str:
        return str(books)

    def unbound(self, books: int) -> str:
        return str(books)

    @classmethod
    def empty(cls) -> str:
        return cls.__name__

    async def __call__(self, books: int) -> str:
        return str(books)


class Tree(BaseModel):
    branches: list["Tree"] = []


class TestFunctions:
    def test_a_generator_is_refused(self, app: MRTRServer) -> None:
        def items() -> Generator[str, None, None]:
            yield "a"

        for function in (items, partial(items), staticmethod(items)):
            assert "is a generator" in refusal(app.tool(name="items"), function)

    def test_a_function_around_a_generator_is_none(self, app: MRTRServer) -> None:
        def items() -> Any:
            yield "a"

        @app.tool
        @wraps(items)
        def listed() -> Any:
            return list(items())

    def test_a_method_without_its_object_is_refused_with_the_way_out(self, app: MRTRServer) -> None:
        for register in (app.tool, app.prompt, app.resource("shelf://x")):
            assert "app.tool(obj.method)" in refusal(register, Shelf.unbound)
        assert "app.tool(obj.method)" in refusal(app.tool(name="it"), classmethod(Shelf.unbound))  # type: ignore[arg-type]
        app.tool(Shelf().count)
        app.tool(Shelf.empty)

    def test_a_function_of_its_own_may_have_a_parameter_self(self, app: MRTRServer) -> None:
        def local(self) -> None: ...  # type: ignore[no-untyped-def]

        app.tool(local)

    def test_what_partial_gives_is_not_the_clients_to_fill(self, app: MRTRServer) -> None:
        def tool(city: str, admin: bool = False) -> str:
            """What it does."""
            return city

        bound = compile_handler(partial(tool, admin=True), "it", {})
        assert list(bound.parameters) == ["city"]
        app.tool(name="it")(partial(tool, admin=True))
        assert app.registry.tools["it"].entry["description"] == "What it does."

        def anything(admin: bool = False, **arguments: Any) -> str:
            return str(admin)

        assert "'admin'" in refusal(app.tool(name="x", input_schema=ANYTHING), partial(anything, admin=True))

    @pytest.mark.parametrize("ours", [Context, Inputs, State[int]])
    def test_our_types_may_be_optional_and_annotated(self, ours: Any) -> None:
        def function(it: Any = None) -> None: ...

        for annotation in (ours | None, Annotated[ours, "note"], Annotated[ours | None, "note"]):
            function.__annotations__["it"] = annotation
            handler = compile_handler(function, "function", {})
            assert "it" in (handler.context, handler.inputs, handler.state)
            assert dict(handler.parameters) == {}
            assert handler.stored_state is not None

    @pytest.mark.parametrize("source", ["ctx: Context, /", "*ctx: Context", "**ctx: Context"])
    def test_our_types_that_can_not_be_filled_by_name_are_refused(self, app: MRTRServer, source: str) -> None:
        namespace: dict[str, Any] = {"Context": Context}
        exec(f"def function({source}): ...", namespace)  # noqa: S102
        assert "'ctx' takes the context, which is passed by name" in refusal(app.tool, namespace["function"])


class TestRawSchemas:
    @pytest.mark.parametrize(
        "source",
        [
            "ctx, *, admin=False, **arguments",
            "ctx, admin=False, **arguments",
            "arguments, admin=False",
            "arguments, *, admin=False",
            "arguments, /",
            "*arguments",
            "",
        ],
    )
    def test_nothing_but_the_arguments_can_be_filled_by_the_client(self, app: MRTRServer, source: str) -> None:
        namespace: dict[str, Any] = {"Context": Context}
        exec(f"def function({source.replace('ctx', 'ctx: Context')}): ...", namespace)  # noqa: S102
        said = refusal(app.tool(input_schema=ANYTHING), namespace["function"])
        assert "the function takes one dictionary, or **arguments" in said

    def test_an_argument_of_the_name_of_one_of_ours_is_refused(self, app: MRTRServer) -> None:
        def tool(ctx: Context, **arguments: Any) -> None: ...
        def fine(ctx: Context, arguments: dict[str, Any]) -> None: ...

        schema = {**ANYTHING, "properties": {"ctx": {"type": "string"}}}
        assert "'ctx' is in input_schema= and is also a parameter" in refusal(app.tool(input_schema=schema), tool)
        app.tool(input_schema=schema)(fine)


class TestTypes:
    @pytest.mark.parametrize(
        "annotation",
        [
            *(list[str], dict[str, int], Shelf | None, BaseModel, list[str] | None, None),
            *(Tree, Annotated[Tree, Field(description="A tree")]),
        ],
    )
    def test_an_argument_of_a_prompt_comes_as_a_string(self, app: MRTRServer, annotation: Any) -> None:
        class Model(BaseModel):
            x: int

        def function(it: Any) -> str:
            return ""

        function.__annotations__["it"] = Model if annotation == Shelf | None else annotation
        assert "'it' is an argument of a prompt" in refusal(app.prompt, function)
        assert "'it' is a variable of a URI" in refusal(app.resource("it://{it}"), function)
        assert "json_schema_input_type=str" in refusal(app.prompt, function)

    @pytest.mark.parametrize(
        "annotation",
        [
            str,
            int,
            float | None,
            bool,
            Any,
            Literal["1", "2"],
            list[str] | str,
            Annotated[list[str], BeforeValidator(str.split, json_schema_input_type=str)],
        ],
    )
    def test_what_a_string_can_fill_is_served(self, app: MRTRServer, annotation: Any) -> None:
        def function(it: Any) -> str:
            return "filled"

        function.__annotations__["it"] = annotation
        app.prompt(function)
        assert Client(app).get_prompt("function", it="1").result["messages"][0]["content"]["text"] == "filled"

    @pytest.mark.parametrize("returns", [bytes, bytearray, bytes | None, Annotated[bytes, "it"], str | bytes])
    def test_bytes_of_a_tool_need_a_kind(self, app: MRTRServer, returns: Any) -> None:
        def tool() -> Any: ...

        tool.__annotations__["return"] = returns
        said = refusal(app.tool, tool)
        assert "ImageContent" in said
        assert "EmbeddedResource" in said
        app.resource("bytes://x")(tool)


class TestDecorators:
    def test_one_used_the_wrong_way_says_the_right_one(self, app: MRTRServer) -> None:
        decorators: Any = app

        def function() -> None: ...

        assert refusal(decorators.resource, function).endswith('use @app.resource("scheme://...")')
        assert "use @app.tool(name='x')" in refusal(decorators.tool, "x")
        assert "use @app.prompt(name='x')" in refusal(decorators.prompt, "x")
        assert "@app.completion(" in refusal(decorators.completion, function)
        assert "can't be called" in refusal(app.tool(name="it"), 5)


class TestOptions:
    @pytest.mark.parametrize(
        ("option", "why"),
        [
            ({"name": ""}, "MRTRServer needs a name"),
            ({"path": "mcp"}, "path='mcp' must start with a slash"),
        ],
        ids=str,
    )
    def test_those_that_can_not_work_are_refused(self, option: dict[str, Any], why: str) -> None:
        assert refusal(MRTRServer, **{"name": "x", "keys": [bytes(32)], **option}) == why

    def test_so_are_those_of_a_group(self) -> None:
        assert refusal(Lists, page_size=0) == "page_size must be at least 1"
        assert refusal(Shutdown, lame_duck=-0.1) == "lame_duck= takes a number of seconds; it got -0.1"

    @pytest.mark.parametrize("option", ["dialects", "origins", "allowed_hosts"])
    def test_one_string_is_no_list(self, option: str) -> None:
        options: Any = {option: "2026-07-28"}
        assert refusal(MRTRServer, "x", **options).endswith(f"give a list: {option}=['2026-07-28']")

    @pytest.mark.parametrize("keys", ["00" * 32, bytes(32), bytearray(32), ["00" * 32]])
    def test_keys_are_no_text_and_not_one(self, keys: Any) -> None:
        said = refusal(MRTRServer, "x", keys=keys)
        assert "KeyRing.parse(text)" in said
        assert "00" not in said
        MRTRServer("x", keys=KeyRing.parse("00" * 32))

    def test_a_lifespan_is_a_context_manager(self) -> None:
        async def lifespan(app: MRTRServer) -> AsyncIterator[None]:
            yield

        options: Any = {"lifespan": lifespan}
        assert "@asynccontextmanager" in refusal(MRTRServer, "x", **options)


async def live(app: MRTRServer) -> list[Message]:
    """Lead an application through one lifespan; return what it said."""
    coming: asyncio.Queue[Message] = asyncio.Queue()
    said: list[Message] = []

    async def say(message: Message) -> None:
        said.append(message)

    for event in ("startup", "shutdown"):
        coming.put_nowait({"type": f"lifespan.{event}"})
    await app({"type": "lifespan"}, coming.get, say)
    return said


class TestTasks:
    def test_how_many_run_at_once_needs_some(self, app: MRTRServer) -> None:
        assert refusal(app.tool, concurrency=2).startswith("concurrency=")
        app.tool(task="optional", concurrency=2)(count)

    def test_a_short_form_is_the_same(self, app: MRTRServer) -> None:
        app.tool(name="short", task="required")(count)
        app.tool(name="long", task=Task("required"))(count)
        assert app.registry.tasks["short"] == app.registry.tasks["long"]
        assert "choose from" in refusal(Task, "never")

    @pytest.mark.parametrize("seconds", [0, -1, float("inf"), float("nan"), "1h"])
    @pytest.mark.parametrize("option", ["ttl", "poll", "answer_within", "timeout"])
    def test_times_are_seconds(self, app: MRTRServer, option: str, seconds: Any) -> None:
        said = refusal(Task if option in ("ttl", "poll") else app.tool, **{option: seconds})
        assert said == f"{option}={seconds!r} must be a positive number of seconds"

    def test_answers_in_rounds_have_their_time_in_seconds_too(self, app: MRTRServer) -> None:
        assert "answer_within=0" in refusal(lambda: app.prompt(answer_within=0)(count))
        assert "answer_within=0" in refusal(lambda: app.resource("a://b", answer_within=0)(count))

    def test_a_plain_function_does_not_go_on_in_the_background(self, app: MRTRServer) -> None:
        def later(ctx: Context) -> str:
            ctx.background()  # type: ignore[unused-coroutine]
            return "done"

        assert refusal(app.tool(task="optional"), later) == (
            "later: ctx.background() is awaited; make the function `async def`"
        )

    def test_a_tool_that_goes_on_in_the_background_and_has_none_is_logged(
        self, app: MRTRServer, caplog: pytest.LogCaptureFixture
    ) -> None:
        @app.tool
        async def later(ctx: Context) -> str:
            await ctx.background()
            return "done"

        (message,) = caplog.messages
        assert "'later' calls ctx.background() but has no tasks" in message

    def test_a_tool_with_tasks_that_goes_on_in_the_background_says_how_its_calls_begin(self, app: MRTRServer) -> None:
        async def later(ctx: Context) -> str:
            await ctx.background()
            return "done"

        assert "task=Task('optional', rounds_first=True)" in refusal(app.tool(task="optional"), later)
        assert "task=Task('required', rounds_first=True)" in refusal(app.tool(task="required"), later)
        app.tool(task=Task(rounds_first=False))(later)

    def test_a_tool_whose_helper_does_is_logged_once_where_it_has_not_said(
        self, app: MRTRServer, caplog: pytest.LogCaptureFixture
    ) -> None:
        async def helper(context: Context) -> str:
            await context.background()
            return "done"

        async def moved(ctx: Context) -> str:
            return await helper(ctx)

        for name, first in (("unsaid", None), ("at_once", False), ("in_rounds", True)):
            app.tool(name=name, task=Task(rounds_first=first))(moved)
            for _ in range(2):
                assert Client(app, tasks=True).call(name).text == "done"
        (message,) = [each for each in caplog.messages if "ctx.background()" in each]
        assert message.startswith("'unsaid' calls ctx.background(), which does nothing")

    def test_another_thing_of_that_name_is_not_mistaken_for_it(
        self, app: MRTRServer, caplog: pytest.LogCaptureFixture
    ) -> None:
        @app.tool(task="optional")
        async def paint(ctx: Context) -> str:
            page = types.SimpleNamespace(background=lambda: "red")
            return str(page.background())

        app.tool(name="again")(paint)
        assert caplog.messages == []
        assert Client(app, tasks=True).flow("paint").start().is_task  # at once, and not in rounds for ever

    def test_left_to_others_they_need_a_store_that_is_shared(
        self, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, tmp_path: Path
    ) -> None:
        monkeypatch.delenv("MRTR_DATABASE_URL", raising=False)
        app = MRTRServer("enqueues", keys=[bytes(32)], run_tasks=False)
        app.tool(task="optional")(count)
        assert "run_tasks=False leaves the tasks of 'count' to other processes" in caplog.text
        assert "MRTR_DATABASE_URL" in caplog.text
        said = asyncio.run(live(app))[0]
        assert said["type"] == "lifespan.startup.failed"
        caplog.clear()
        shared = MRTRServer("enqueues", keys=[bytes(32)], run_tasks=False, store=f"sqlite:///{tmp_path}/tasks.db")
        shared.tool(task="optional")(count)
        assert caplog.messages == []

    def test_that_outlive_their_key_are_logged(
        self, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, tmp_path: Path
    ) -> None:
        monkeypatch.delenv("MRTR_KEYS", raising=False)
        app = MRTRServer("forgetful", store=f"sqlite:///{tmp_path}/tasks.db")
        caplog.clear()
        app.tool(task="optional")(count)
        app.tool(task="optional", name="again")(count)
        (message,) = caplog.messages
        assert message.startswith("forgetful: the tasks of 'count' are in a database")


def count() -> str:
    return "1"


class TestLifespan:
    def test_it_is_entered_at_startup_and_left_at_shutdown_each_time(self, serve: Serve) -> None:
        seen: list[str] = []

        @asynccontextmanager
        async def lifespan(app: MRTRServer) -> AsyncIterator[None]:
            seen.append(f"{app.name} starts")
            yield
            seen.append("ends")

        app = MRTRServer("alive", keys=[bytes(32)], lifespan=lifespan)

        @app.tool
        def so_far() -> list[str]:
            return seen

        assert asyncio.run(live(app)) == asyncio.run(live(app))
        assert seen == ["alive starts", "ends"] * 2
        serve(app, lifespan="on").call("so_far").text.endswith("alive starts")

    @pytest.mark.parametrize("phase", ["startup", "shutdown"])
    def test_a_failure_is_told_and_logged(self, phase: str, caplog: pytest.LogCaptureFixture) -> None:
        @asynccontextmanager
        async def lifespan(app: MRTRServer) -> AsyncIterator[None]:
            if phase == "startup":
                raise OSError("no database")
            yield
            raise OSError("no database")

        said = asyncio.run(live(MRTRServer("sick", keys=[bytes(32)], lifespan=lifespan)))[-1]
        assert said["type"] == f"lifespan.{phase}.failed"
        assert said["message"] == f"sick: lifespan= failed at {phase}: OSError: no database"
        assert caplog.messages == [said["message"]]
        assert caplog.records[0].exc_info is not None


class TestRefusedServer:
    def test_the_reason_is_logged_at_each_request(
        self, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        monkeypatch.delenv("MRTR_KEYS", raising=False)
        monkeypatch.setattr("mrtr_server.deployment.shared_resources.worker_count", lambda: 4)
        app = MRTRServer("several")
        caplog.clear()
        for _ in range(2):
            reply = asyncio.run(send(app, modern("tools/list")))
            assert reply.status == 500
            assert b"keygen" not in reply.body
        assert [record.levelno for record in caplog.records] == [logging.ERROR] * 2
        assert all("mrtr-server keygen" in message for message in caplog.messages)

    @pytest.mark.parametrize(("root", "path", "endpoint"), [("", "/x", "/mcp"), ("/tools", "/tools/x/y", "/tools/mcp")])
    def test_another_path_names_the_endpoint(self, app: MRTRServer, root: str, path: str, endpoint: str) -> None:
        reply = asyncio.run(send(app, modern("tools/list"), path=path, root_path=root))
        assert reply.status == 404
        assert json.loads(reply.body) == {"error": f"Not found: the MCP endpoint is {endpoint}"}


class TestCredentials:
    @pytest.mark.parametrize("header", ["Bearer s3cret-token", "Basic s3cret-token"])
    def test_that_are_rejected_are_logged_with_the_reason_and_without_the_token(
        self, header: str, caplog: pytest.LogCaptureFixture
    ) -> None:
        class Chatty(BearerTokens):
            async def authenticate(self, conn: HTTPConnection) -> Any:
                try:
                    return await super().authenticate(conn)
                except AuthenticationError as error:
                    raise AuthenticationError(f"{error}: {conn.headers['authorization']}") from None

        app = MRTRServer("guarded", keys=[bytes(32)], auth=Chatty({"token": "ada"}))
        message = modern("tools/list")
        given = [*headers_for(message), (b"authorization", header.encode())]
        reply = asyncio.run(send_with(app, message, given))
        assert reply.status == 401
        ((logger, level, text),) = caplog.record_tuples
        assert (logger, level) == ("mrtr_server", logging.WARNING)
        assert "bearer token" in text
        assert "s3cret" not in caplog.text

    @pytest.mark.parametrize("identity", [0, "0", 7])
    def test_only_none_and_an_empty_string_are_no_identity(self, identity: Any) -> None:
        principal = principal_of(TokenUser(identity))
        assert principal is not None
        assert principal.subject == str(identity)
        for nobody in (None, ""):
            assert principal_of(TokenUser(nobody)) is None  # type: ignore[arg-type]


async def send_with(app: MRTRServer, message: dict[str, Any], headers: Any) -> Any:
    from .support.direct import exchange

    return await exchange(app, json.dumps(message).encode(), headers)


class TestContent:
    def test_bytes_become_base64(self) -> None:
        assert ImageContent(data=b"\x00").data == "AA=="
        assert ImageContent(data="AA==").data == "AA=="
        assert ResourceContents(blob=b"\x00").blob == "AA=="
        assert ImageContent(data=b"\x00").wire()["data"] == "AA=="

    def test_meta_is_a_parameter_and_underscored_on_the_wire(self) -> None:
        for made in (
            TextContent(text="x", meta={"a": 1}),
            ToolResult(meta={"a": 1}),
            ResourceContents(text="x", meta={"a": 1}),
            EmbeddedResource(resource=ResourceContents(uri="file:///x", text="x"), meta={"a": 1}),
        ):
            assert made.wire()["_meta"] == {"a": 1}
            assert "meta" in inspect.signature(type(made)).parameters
        assert TextContent.model_validate({"type": "text", "text": "x", "_meta": {"a": 1}}).meta == {"a": 1}
