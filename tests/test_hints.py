"""Whoever comes from FastMCP or the official SDK is told our word for theirs, and nothing of theirs is there."""

import copy
import inspect
import re
from collections.abc import Callable, Mapping
from typing import Any

import mcp.types
import pytest
from mcp.server.mcpserver import Context as TheirContext
from mcp.server.mcpserver import Image as TheirImage
from mcp.server.mcpserver import MCPServer
from mcp.server.mcpserver.exceptions import ToolError as TheirToolError
from pydantic import BaseModel

import mrtr_server
from mrtr_server import (
    BearerTokens,
    Context,
    Elicit,
    Elicited,
    InputRequired,
    Limits,
    Lists,
    Metrics,
    MRTRServer,
    ServerInfo,
    SetupError,
    Shutdown,
)
from mrtr_server.deployment.settings import Settings
from mrtr_server.hints import CONTEXT, PROMPT_OPTIONS, RESOURCE_OPTIONS, SERVER_ATTRIBUTES, SERVER_OPTIONS, TOOL_OPTIONS
from mrtr_server.registration.options import (
    CallbackOptions,
    CompletionOptions,
    PromptOptions,
    ResourceOptions,
    ToolOptions,
)
from mrtr_server.testing import Client, replica

from .support.models import Login


@pytest.fixture
def app() -> MRTRServer:
    return MRTRServer("hinted", keys=[bytes(32)])


def members(cls: type) -> set[str]:
    return {name for name in dir(cls) if not name.startswith("_")}


def options(function: Callable[..., Any]) -> set[str]:
    return set(inspect.signature(function).parameters) - {"self"}


class TestTheTables:
    """They know what the SDK has, and say nothing of what we have ourselves."""

    KNOWN_ELSEWHERE = {"completion", "name", "title", "description", "instructions", "icons", "version", "website_url"}  # noqa: RUF012
    OF_PYDANTIC = members(BaseModel)

    def test_every_method_of_the_sdks_server_has_a_hint_or_is_ours(self) -> None:
        left = (
            members(MCPServer) - members(MRTRServer) - SERVER_ATTRIBUTES.keys() - self.KNOWN_ELSEWHERE - {"middleware"}
        )
        assert left == set()

    @pytest.mark.parametrize("name", ["run", "run_stdio_async"])
    def test_how_to_serve_over_stdio_is_said(self, app: MRTRServer, name: str) -> None:
        with pytest.raises(AttributeError, match="mrtr-server stdio module:app"):
            getattr(app, name)

    def test_every_member_of_the_sdks_context_has_a_hint_or_is_ours(self) -> None:
        assert members(TheirContext) - self.OF_PYDANTIC - members(Context) - CONTEXT.keys() == set()

    @pytest.mark.parametrize(
        ("theirs", "ours", "hints"),
        [
            (MCPServer, MRTRServer, SERVER_OPTIONS),
            (MCPServer.tool, MRTRServer.tool, TOOL_OPTIONS),
            (MCPServer.prompt, MRTRServer.prompt, PROMPT_OPTIONS),
            (MCPServer.resource, MRTRServer.resource, RESOURCE_OPTIONS),
        ],
        ids=["server", "tool", "prompt", "resource"],
    )
    def test_every_option_of_the_sdk_has_a_hint_or_is_ours(
        self, theirs: Callable[..., Any], ours: Callable[..., Any], hints: Mapping[str, str]
    ) -> None:
        assert options(theirs) - options(ours) - hints.keys() == set()
        assert options(ours) & hints.keys() == set()

    def test_no_word_of_ours_has_a_hint(self) -> None:
        assert members(MRTRServer) & SERVER_ATTRIBUTES.keys() == set()
        assert members(Context) & CONTEXT.keys() == set()

    def test_every_word_that_a_hint_names_is_there(self) -> None:
        tables = (SERVER_ATTRIBUTES, CONTEXT, SERVER_OPTIONS, TOOL_OPTIONS, PROMPT_OPTIONS, RESOURCE_OPTIONS)
        text = "\n".join(hint for table in tables for hint in table.values())
        for name in re.findall(r"\bctx\.(\w+)", text):
            assert hasattr(Context, name), name
        for name in re.findall(r"\bapp\.([a-z_]+[a-z])\b", text):
            assert hasattr(MRTRServer, name) or name == "notify", name
        for name in re.findall(r"\b(State|Inputs|Depends|ToolError|ToolResult|BearerTokens)\b", text):
            assert hasattr(mrtr_server, name), name


class TestAttributes:
    @pytest.mark.parametrize("name", SERVER_ATTRIBUTES)
    def test_a_method_of_theirs_is_told_ours_and_is_not_there(self, app: MRTRServer, name: str) -> None:
        assert not hasattr(app, name)
        assert getattr(app, name, None) is None
        assert name not in dir(app)
        with pytest.raises(AttributeError, match=f"^MRTRServer has no '{name}': .") as raised:
            getattr(app, name)
        assert raised.value.__context__ is None

    def test_any_other_name_is_the_error_that_it_always_is(self, app: MRTRServer) -> None:
        with pytest.raises(AttributeError, match=r"^'MRTRServer' object has no attribute 'rnu'$") as raised:
            app.rnu  # type: ignore[attr-defined]  # noqa: B018
        assert raised.value.name == "rnu"  # so that Python can suggest another one
        assert raised.value.obj is app

    def test_in_a_handler_the_log_has_it_with_the_line(self, app: MRTRServer) -> None:
        @app.tool
        async def work(ctx: Context, name: str) -> bool:
            assert not hasattr(ctx, name)
            return bool(getattr(ctx, name))

        for name, hint in CONTEXT.items():
            failed = Client(app).call("work", name=name)
            assert f"AttributeError: Context has no '{name}': {hint}" in failed.log
            assert "in work" in failed.log
        assert "'Context' object has no attribute 'inof'" in Client(app).call("work", name="inof").log

    def test_a_subclass_may_have_methods_of_these_names(self) -> None:
        class Runnable(MRTRServer):
            def run(self) -> str:
                return "running"

            @property
            def mount(self) -> str:
                raise AttributeError("the author's own")

        app = Runnable("own", keys=[bytes(32)])
        assert app.run() == "running"
        with pytest.raises(AttributeError, match=r"^the author's own$"):
            app.mount  # noqa: B018

    def test_servers_are_copied_and_inspected_as_before(self, app: MRTRServer) -> None:
        assert copy.copy(app).name == app.name
        assert replica(app).name == app.name
        assert not inspect.isabstract(app)
        assert not callable(getattr(app, "__wrapped__", None))
        assert list(inspect.signature(MRTRServer).parameters)[:3] == ["name", "info", "instructions"]
        assert "version" not in inspect.signature(app.tool).parameters
        assert inspect.getdoc(app.tool) == inspect.getdoc(MRTRServer.tool)


class TestOptions:
    @pytest.mark.parametrize("option", SERVER_OPTIONS)
    def test_of_the_server(self, option: str) -> None:
        given: Any = {option: None}
        with pytest.raises(TypeError, match=rf"^MRTRServer\(\) has no option {option}=: .{{5,}}"):
            MRTRServer("x", **given)

    @pytest.mark.parametrize(
        ("decorator", "option"),
        [
            *(("tool", option) for option in TOOL_OPTIONS),
            *(("prompt", option) for option in PROMPT_OPTIONS),
            *(("resource", option) for option in RESOURCE_OPTIONS),
        ],
    )
    def test_of_the_decorators(self, app: MRTRServer, decorator: str, option: str) -> None:
        given: Any = {option: None}
        uri = ("a://b",) if decorator == "resource" else ()
        with pytest.raises(TypeError, match=rf"^@app\.{decorator}\(\) has no option {option}=: .{{5,}}"):
            getattr(app, decorator)(*uri, **given)

    def test_a_slip_gets_the_nearest_one(self, app: MRTRServer) -> None:
        given: Any = {"titel": "x"}
        with pytest.raises(TypeError, match=r"has no option titel=; did you mean title=\?$"):
            app.tool(**given)
        with pytest.raises(TypeError, match=r"has no option zzz=$"):
            MRTRServer("x", zzz=1)  # type: ignore[call-arg]

    def test_a_slip_of_a_completion_or_a_callback_gets_the_nearest_one(self, app: MRTRServer) -> None:
        given: Any = {"promt": "x"}
        with pytest.raises(TypeError, match=r"^@app\.completion\(\) has no option promt=; did you mean prompt=\?$"):
            app.completion("city", **given)
        given = {"method": ["POST"]}
        with pytest.raises(TypeError, match=r"^@app\.callback\(\) has no option method=; did you mean methods=\?$"):
            app.callback("done", **given)

    def test_what_is_missing_is_named(self, app: MRTRServer) -> None:
        for make, name in ((MRTRServer, "name"), (app.resource, "uri"), (app.completion, "argument")):
            function: Any = make
            with pytest.raises(TypeError, match=f"missing a required argument: '{name}'$"):
                function()

    def test_editors_and_type_checkers_see_each_option_with_its_default(self, app: MRTRServer) -> None:
        for function, options in (
            (app.tool, ToolOptions),
            (app.prompt, PromptOptions),
            (app.resource, ResourceOptions),
            (app.completion, CompletionOptions),
            (app.callback, CallbackOptions),
            (MRTRServer, Settings),
        ):
            shown = dict(inspect.signature(function).parameters)
            shown.pop("function", None)
            assert shown == dict(inspect.signature(options).parameters)

    def test_options_are_given_by_name(self) -> None:
        make: Any = MRTRServer
        with pytest.raises(TypeError, match="takes only 'name' by position; give the others by name"):
            make("x", "instructions")

    def test_annotations_in_quotes_are_still_resolved_where_the_decorator_stands(self, app: MRTRServer) -> None:
        class Local(BaseModel):
            city: str

        @app.tool
        def plain(place: "Local") -> str:
            return place.city

        @app.tool(name="called")
        def called(place: "Local") -> str:
            return place.city

        for name in ("plain", "called"):
            assert Client(app).call(name, place={"city": "Oslo"}).text == "Oslo"

    @pytest.mark.parametrize(
        ("option", "value", "said"),
        [
            ("limits", {}, "limits= takes Limits(...), such as Limits(rounds=5); it got dict"),
            ("limits", Limits, "it got the class Limits"),
            ("auth", "secret-token", 'for fixed tokens BearerTokens({"token": "user"}); it got str'),
            ("auth", object(), "it got object"),
            ("auth", BearerTokens, "it got the class BearerTokens"),
            ("middleware", [object()], "Starlette's Middleware(Class, option=...)"),
            ("middleware", object(), "Starlette's Middleware(Class, option=...)"),
            ("lifespan", {}, "lifespan= takes a function"),
            ("info", "1.2", 'info= takes ServerInfo(...), such as ServerInfo(version="1.2"); it got str'),
            ("path", None, "path= takes text"),
            ("lists", {}, "lists= takes Lists(...), such as Lists(page_size=50)"),
            ("shutdown", 25, "shutdown= takes Shutdown(...), such as Shutdown(seconds=50); it got 25"),
            ("metrics", "/metrics", 'metrics= takes Metrics(...), such as Metrics("/metrics"); it got str'),
            ("metrics", Metrics, "it got the class Metrics"),
            ("store", 3, 'store= takes the URL of a database, such as "sqlite:///mrtr.db"'),
            ("codec", "x", "codec= takes a Codec"),
            ("identify", 3, "identify= takes a function"),
            ("base_url", 3, "base_url= takes text"),
            ("debug", "yes", "debug= takes True or False"),
            ("dialects", True, "dialects= takes a list of texts"),
            ("origins", [1], "origins= takes a list of texts"),
            ("origins", None, "origins= takes a list of texts; it got None"),
        ],
    )
    def test_what_is_of_another_type_is_refused_at_once(self, option: str, value: Any, said: str) -> None:
        given: Any = {option: value}
        with pytest.raises(SetupError) as raised:
            MRTRServer("x", **given)
        assert said in str(raised.value)
        assert "secret" not in str(raised.value)

    @pytest.mark.parametrize(
        ("group", "option", "value", "said"),
        [
            (ServerInfo, "version", 1, "version= takes text; it got 1"),
            (ServerInfo, "version", None, "version= takes text; it got None"),
            (ServerInfo, "icons", "x.png", "icons= takes a list of icons"),
            (ServerInfo, "icons", ["x.png"], "icons= takes a list of icons"),
            (Lists, "page_size", "3", "page_size= takes a number of entries"),
            (Lists, "cache_seconds", "x", "cache_seconds= takes a number of seconds"),
            (Lists, "cache_seconds", -1, "cache_seconds= takes a number of seconds; it got -1"),
            (Lists, "cache", "all", '"public" or "private"'),
            (Shutdown, "lame_duck", "1", "lame_duck= takes a number of seconds"),
            (Shutdown, "seconds", None, "seconds=None must be a positive number of seconds"),
            (Shutdown, "ready_needs_store", 1, "ready_needs_store= takes True or False"),
            (Metrics, "path", None, "path= takes text"),
        ],
    )
    def test_so_is_what_is_of_another_type_in_a_group(self, group: Any, option: str, value: Any, said: str) -> None:
        with pytest.raises(SetupError) as raised:
            group(**{option: value})
        assert said in str(raised.value)

    @pytest.mark.parametrize(
        ("option", "value"),
        [
            ("name", 3),
            ("title", 3),
            ("description", 3),
            ("icons", "x"),
            ("meta", "x"),
            ("meta", [1]),
            ("annotations", "x"),
            ("input_schema", "x"),
            ("single_use", "yes"),
            ("concurrency", "2"),
        ],
    )
    def test_what_is_of_another_type_is_refused_by_a_decorator(self, app: MRTRServer, option: str, value: Any) -> None:
        given: Any = {option: value, **({"task": "optional"} if option == "concurrency" else {})}
        with pytest.raises(SetupError, match=f"^{option}= takes "):
            app.tool(**{"name": "it", **given})(lambda a: a)

    @pytest.mark.parametrize(
        ("option", "value"), [("cache_seconds", "x"), ("cache", "all"), ("size", "3"), ("mime_type", 3)]
    )
    def test_what_is_of_another_type_is_refused_of_a_resource(self, app: MRTRServer, option: str, value: Any) -> None:
        given: Any = {option: value}
        with pytest.raises(SetupError, match=f"^{option}= takes "):
            app.resource("a://b", **given)


class TestTypesOfOthers:
    def test_a_parameter_of_no_json_is_named_in_one_line(self, app: MRTRServer) -> None:
        class Opaque:
            pass

        with pytest.raises(SetupError) as raised:

            @app.tool
            def work(city: str, it: Opaque) -> str:
                return "done"

        assert "\n" not in str(raised.value)
        assert "work: a client can't fill parameter 'it'" in str(raised.value)
        assert "fill it with Depends(...)" in str(raised.value)

    @pytest.mark.parametrize(
        ("annotation", "ours"),
        [
            (mcp.types.CallToolResult, "mrtr_server.ToolResult"),
            (mcp.types.CallToolResult | str, "mrtr_server.ToolResult"),
            (TheirImage, r"mrtr_server.ImageContent\(data=...\)"),
            (list[TheirImage], r"mrtr_server.ImageContent\(data=...\)"),
        ],
        ids=str,
    )
    def test_a_result_of_theirs_is_refused_when_the_decorator_runs(
        self, app: MRTRServer, annotation: Any, ours: str
    ) -> None:
        def work() -> Any: ...

        work.__annotations__["return"] = annotation
        with pytest.raises(SetupError, match=f"return {ours}$"):
            app.tool(work)

    @pytest.mark.parametrize(
        ("result", "ours"),
        [
            (mcp.types.CallToolResult(content=[]), "mrtr_server.ToolResult"),
            (TheirImage(data=b"x", format="png"), "mrtr_server.ImageContent(data=...)"),
        ],
        ids=["result", "image"],
    )
    def test_a_result_of_theirs_without_an_annotation_is_refused_when_it_comes(
        self, app: MRTRServer, result: Any, ours: str
    ) -> None:
        app.tool(name="work")(lambda: result)
        failed = Client(app).call("work")
        assert f"return {ours}" in failed.log

    def test_their_content_is_content(self, app: MRTRServer) -> None:
        @app.tool
        def work() -> list[mcp.types.TextContent]:
            return [mcp.types.TextContent(type="text", text="done")]

        assert Client(app).call("work").text == "done"

    def test_their_tool_error_is_told_ours(self, app: MRTRServer) -> None:
        @app.tool
        def work() -> str:
            raise TheirToolError("no such city")

        failed = Client(app).call("work")
        assert "): raise mrtr_server.ToolError for the client to read it" in failed.log
        assert "no such city" not in failed.failure


class TestCallsAsOthersHaveThem:
    @pytest.mark.parametrize(
        ("call", "said"),
        [
            (lambda ctx: ctx.elicit("Who?", response_type=Login), "ctx.elicit(message, Model) takes a pydantic model"),
            (lambda ctx: ctx.elicit("Who?", ["a", "b"]), "can't be a form: pass a pydantic model"),
            (lambda ctx: ctx.elicit_url("Go", "https://a.example", elicitation_id="1"), "makes the id by itself"),
            (lambda ctx: ctx.log("info", "it is so"), 'ctx.log(data, level="info")'),
            (lambda ctx: ctx.log("it is so", logger_name="me"), "use logger="),
            (lambda ctx: ctx.sample("Hi", result_type=Login), "the text of the answer is .text"),
            (lambda ctx: ctx.sample(3), "A sampling's messages can't be sent: int is not content"),
            (lambda ctx: ctx.ask("Who?"), "takes asks: Elicit(...), Confirm(...) or the like, and not 'Who?'"),
            (lambda ctx: ctx.ask(login=Login), "takes asks: Elicit(...)"),
            (lambda ctx: ctx.step("roll_out"), "ctx.step takes a function and its arguments"),
        ],
    )
    def test_the_log_says_how_they_are_written_here(self, app: MRTRServer, call: Callable[..., Any], said: str) -> None:
        @app.tool
        async def work(ctx: Context) -> str:
            await call(ctx)
            return "done"

        failed = Client(app).call("work")
        assert said in failed.log
        assert __file__ in failed.log

    @pytest.mark.parametrize("name", ["action", "data"])
    def test_an_answer_is_the_model_itself(self, app: MRTRServer, name: str) -> None:
        @app.tool
        async def work(ctx: Context) -> str:
            return str(getattr(await ctx.elicit("Who?", Login), name))

        failed = Client(app).call("work", answers={"login": {"name": "ann"}})
        assert "the answer is the Login itself; ask for Elicited[Login] to branch on a no" in failed.log

    def test_an_answer_that_is_not_the_model_has_its_form_in_content(self, app: MRTRServer) -> None:
        @app.tool
        async def work(ctx: Context) -> str:
            return str(getattr(await ctx.elicit("Who?", Elicited[Login]), "data"))  # noqa: B009

        assert "the form is in .content" in Client(app).call("work", answers={"login": {"name": "ann"}}).log

    def test_asks_have_keys(self) -> None:
        make: Any = InputRequired
        with pytest.raises(SetupError, match=r"InputRequired\(login=Elicit\(...\)\)"):
            make(Elicit("Who?", Login))

    @pytest.mark.parametrize("annotation", [int, str, Any])
    def test_a_forgotten_await_of_their_own_names_what_was_called(self, app: MRTRServer, annotation: Any) -> None:
        async def count() -> int:
            return 3

        def work() -> Any:
            return count()

        async def working() -> Any:
            return work()

        working.__annotations__["return"] = annotation
        app.tool(working)
        failed = Client(app).call("working")
        place = f'File "{__file__}", line {count.__code__.co_firstlineno}, in '
        assert "never awaited; write `await count(...)`" in failed.log
        assert place in failed.log
        assert len(failed.log.text.splitlines()) == 2

    def test_a_result_that_does_not_fit_is_named_without_its_value(self, app: MRTRServer) -> None:
        @app.tool
        def work() -> dict[str, int]:
            return {"secret": "the-value"}  # type: ignore[dict-item]

        failed = Client(app).call("work")
        assert "The result does not fit its annotation: secret: Input should be a valid integer" in failed.log
        assert "the-value" not in failed.log
        assert len(failed.log.text.splitlines()) == 2

    def test_a_result_that_is_no_json_says_what_may_be(self, app: MRTRServer) -> None:
        app.tool(name="work")(lambda: object())
        failed = Client(app).call("work")
        assert "return text, content, a model, a dataclass or plain JSON values" in failed.log
