"""Marks of other frameworks are refused when the decorator runs, with our word for what they mean.

FastAPI and the official SDK are the real ones, and so is the `Depends` of FastMCP, which comes from `uncalled-for`.
FastMCP's own types are stood in for by classes of the same module and name, by which they are known: its server would
bring twenty packages into the tests.
"""

import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Annotated, Any, Literal, Protocol

import annotated_types
import fastapi
import fastapi.params
import mcp.server.context
import mcp.server.mcpserver
import mcp.server.mcpserver.resolve as sdk
import pytest
import starlette.requests
import uncalled_for
from pydantic import AfterValidator, BaseModel, BeforeValidator, Field, StringConstraints
from typing_extensions import Doc, TypeAliasType

from mrtr_server import Confirm, Context, Depends, Elicit, Header, MRTRServer, SetupError
from mrtr_server.testing import Client

from ..flow.test_resolver import with_parameters


def current_user() -> str:
    return "alice"


def stand_in(module: str, name: str, *bases: type) -> Any:
    """Make a class that looks like another framework's."""
    return type(name, bases, {"__module__": module})


CurrentContext = stand_in("fastmcp.server.dependencies", "_CurrentContext", uncalled_for.Dependency)
CurrentHeaders = stand_in("fastmcp.server.dependencies", "_CurrentHeaders", uncalled_for.Dependency)
Retry = stand_in("docket.dependencies._retry", "Retry", uncalled_for.Dependency)
for kind in (CurrentContext, CurrentHeaders, Retry):
    kind.__abstractmethods__ = frozenset()
FastMCPContext = stand_in("fastmcp.server.context", "Context")
OlderContext = stand_in("mcp.server.fastmcp.server", "Context", BaseModel)
FastDepends = stand_in("fast_depends.dependencies.model", "Depends")


class User(BaseModel):
    name: Annotated[str, fastapi.Depends(current_user)]


class OwnSecurity(fastapi.params.Security):
    pass


Alias = TypeAliasType("Alias", Annotated[str, fastapi.Depends(current_user)])

OUR_DEPENDS = r"write Annotated\[..., Depends\(...\)\] with Depends of mrtr_server"
OUR_FIELD = r"write Annotated\[..., Field\(...\)\] with Field of pydantic"

FASTAPI_FIELDS = [
    fastapi.Query(max_length=9),
    fastapi.Path(),
    fastapi.Body(),
    fastapi.Form(),
    fastapi.File(),
]
MARKS: list[tuple[Any, str]] = [
    (fastapi.Depends(current_user), f"has Depends of FastAPI, .*{OUR_DEPENDS}"),
    (fastapi.Security(current_user, scopes=["admin"]), f"has Security of FastAPI, .*{OUR_DEPENDS}, and let .* check"),
    (OwnSecurity(current_user), f"has OwnSecurity of FastAPI, .*{OUR_DEPENDS}"),
    *((mark, f"has {type(mark).__name__} of FastAPI, .*{OUR_FIELD}") for mark in FASTAPI_FIELDS),
    (fastapi.Header(), "has Header of FastAPI, .*write ctx: Context, and read ctx.headers; Header of mrtr_server is"),
    (fastapi.Cookie(), "has Cookie of FastAPI, .*write ctx: Context, and read ctx.headers"),
    (sdk.Resolve(current_user), f"has Resolve of the official SDK, .*{OUR_DEPENDS}"),
    (sdk.Elicit("who?", User), r"has Elicit of the official SDK, .*write Annotated\[Model, Elicit"),
    (sdk.Sample([], max_tokens=5), r"has Sample of the official SDK, .*write Annotated\[Sampled, Sample"),
    (sdk.ListRoots(), r"has ListRoots of the official SDK, .*write Annotated\[list\[Root\], ListRoots"),
    (uncalled_for.Depends(current_user), f"has Depends of FastMCP, .*{OUR_DEPENDS}"),
    (uncalled_for.Shared(current_user), f"has Shared of FastMCP, .*{OUR_DEPENDS}"),
    (CurrentContext(), "has CurrentContext of FastMCP, .*write ctx: Context"),
    (CurrentHeaders(), "has CurrentHeaders of FastMCP, .*write ctx: Context, and read ctx.headers"),
    (Retry(), f"has Retry of FastMCP, .*{OUR_DEPENDS}"),
    (FastDepends(), f"has Depends of fast_depends, .*{OUR_DEPENDS}"),
]
IDS = [f"{type(mark).__module__}.{type(mark).__name__}" for mark, _ in MARKS]


@pytest.fixture
def app() -> MRTRServer:
    return MRTRServer("foreign", keys=[bytes(32)])


class TestMarks:
    @pytest.mark.parametrize(("mark", "message"), MARKS, ids=IDS)
    def test_one_in_an_annotation(self, app: MRTRServer, mark: Any, message: str) -> None:
        with pytest.raises(SetupError, match=f"bad: parameter 'it' {message}"):
            app.tool(name="bad")(with_parameters({"it": Annotated[str, mark]}))
        assert not app.registry.tools

    @pytest.mark.parametrize(("mark", "message"), MARKS, ids=IDS)
    def test_one_for_a_default(self, app: MRTRServer, mark: Any, message: str) -> None:
        with pytest.raises(SetupError, match=f"bad: parameter 'it' {message}"):
            app.tool(name="bad")(with_parameters({"it": (str, mark)}))

    @pytest.mark.parametrize(
        "annotation",
        [
            Annotated[str, fastapi.Depends(current_user)] | None,
            list[Annotated[str, fastapi.Depends(current_user)]],
            Annotated[str, Field(min_length=1), fastapi.Depends(current_user)],
            Annotated[Annotated[str, fastapi.Depends(current_user)], Field(min_length=1)],
            Annotated[str, fastapi.Depends],
            Annotated[str, fastapi.params.Depends],
            Alias,
            Alias | None,
            User,
            Annotated[str, Depends(current_user), fastapi.Depends(current_user)],
            Annotated[User, fastapi.Depends(current_user), Elicit("who?")],
        ],
        ids=lambda annotation: re.sub(r" at 0x\w+", "", str(annotation)),
    )
    def test_one_anywhere_in_an_annotation(self, app: MRTRServer, annotation: Any) -> None:
        with pytest.raises(SetupError, match="'it' has Depends of FastAPI"):
            app.tool(name="bad")(with_parameters({"it": annotation}))

    @pytest.mark.parametrize("decorate", ["tool", "raw tool", "prompt", "resource", "completion", "callback"])
    def test_wherever_functions_are_registered(self, app: MRTRServer, decorate: str) -> None:
        def function(it: Annotated[str, fastapi.Depends(current_user)]) -> str:
            return f"secrets of {it}"

        register: dict[str, Callable[..., Any]] = {
            "tool": app.tool,
            "raw tool": app.tool(input_schema={"type": "object"}),
            "prompt": app.prompt,
            "resource": app.resource("secrets://{it}"),
            "completion": app.completion("it", prompt="letter"),
            "callback": app.callback("signed_in"),
        }
        with pytest.raises(SetupError, match="parameter 'it' has Depends of FastAPI"):
            register[decorate](function)

    def test_in_a_dependency_too(self, app: MRTRServer) -> None:
        def by_annotation(it: Annotated[str, sdk.Resolve(current_user)] = "nobody") -> str:
            return it

        def by_default(it: str = fastapi.Depends(current_user)) -> str:
            return it

        for dependency, framework in ((by_annotation, "the official SDK"), (by_default, "FastAPI")):
            tool = with_parameters({"given": Annotated[str, Depends(dependency)], "it": str})
            message = rf"'given': {dependency.__name__}\(\): parameter 'it' has \w+ of {framework}"
            with pytest.raises(SetupError, match=message):
                app.tool(name="bad")(tool)

    def test_in_the_function_of_a_message_too(self, app: MRTRServer) -> None:
        def message(user: str = fastapi.Depends(current_user)) -> str:
            return f"{user}?"

        with pytest.raises(SetupError, match="the function for its message: parameter 'user' has Depends of FastAPI"):
            app.tool(name="bad")(with_parameters({"it": Annotated[bool, Confirm(message)]}))


class TestTypes:
    """Types that their framework fills without a mark."""

    @pytest.mark.parametrize(
        ("annotation", "message"),
        [
            (
                mcp.server.mcpserver.Context,
                "has Context of the official SDK, .*write ctx: Context with Context of",
            ),
            (mcp.server.mcpserver.Context[Any, Any], "of the official SDK, .*write ctx: Context"),
            (mcp.server.mcpserver.Context | None, "has Context of the official SDK"),
            (Annotated[mcp.server.mcpserver.Context, "a note"], "has Context of the official SDK"),
            (mcp.server.context.Context, "has Context of the official SDK"),
            (mcp.server.context.Context[dict[str, Any]], "has Context of the official SDK"),
            (mcp.server.context.ServerRequestContext, "has ServerRequestContext of the official SDK"),
            (OlderContext, "has Context of the official SDK"),
            (FastMCPContext, "has Context of FastMCP"),
            (starlette.requests.Request, "has Request of Starlette, .*write ctx: Context, and read ctx.request"),
            (fastapi.WebSocket, "has WebSocket of Starlette"),
            (fastapi.Response, "has Response of Starlette"),
            (fastapi.BackgroundTasks, r"has BackgroundTasks of FastAPI, .*await ctx.background\(\)"),
        ],
        ids=str,
    )
    def test_of_a_parameter_or_of_a_dependency(self, app: MRTRServer, annotation: Any, message: str) -> None:
        with pytest.raises(SetupError, match=f"bad: parameter 'it' .*{message}"):
            app.tool(name="bad")(with_parameters({"it": annotation}))
        if annotation is starlette.requests.Request:  # which a dependency may take
            return
        dependency = with_parameters({"it": annotation})
        with pytest.raises(SetupError, match=message):
            app.tool(name="bad")(with_parameters({"given": Annotated[str, Depends(dependency)], "it": str}))


class TestRequests:
    """A dependency of FastAPI that takes the request works as it is."""

    def test_it_gets_the_request(self, app: MRTRServer) -> None:
        def language(request: fastapi.Request) -> str:
            return request.headers["accept-language"]

        def connection(it: starlette.requests.HTTPConnection | None = None) -> str:
            return "none" if it is None else it.url.path

        @app.tool
        def hello(lang: Annotated[str, Depends(language)], path: Annotated[str, Depends(connection)]) -> str:
            return f"{lang} {path}"

        assert Client(app, headers={"Accept-Language": "de"}).call("hello").text == "de /mcp"

    def test_a_task_has_none(self, app: MRTRServer) -> None:
        def maybe(request: starlette.requests.Request | None) -> str:
            return "none" if request is None else "one"

        @app.tool(task="required")
        def hello(it: Annotated[str, Depends(maybe)]) -> str:
            return it

        assert Client(app, tasks=True).flow("hello").finish().text == "none"

    def test_it_takes_one_request(self, app: MRTRServer) -> None:
        def two(a: fastapi.Request, b: fastapi.Request) -> str:
            return ""

        with pytest.raises(SetupError, match="'b' can't take the request; write one parameter"):
            app.tool(name="bad")(with_parameters({"it": Annotated[str, Depends(two)]}))


class Animal:
    pass


class Dog(Animal):
    pass


class Meows(Protocol):
    def meow(self) -> None: ...


@contextmanager
def a_text() -> Iterator[str]:
    yield ""


def returning(kind: Any) -> Any:
    function = with_parameters({})
    function.__annotations__["return"] = kind
    return function


def named(value: Any) -> str:
    return str(getattr(value, "__name__", value))


class TestReturnedTypes:
    @pytest.mark.parametrize(
        ("wanted", "function"),
        [(int, returning(str)), (int, a_text), (str, Animal), (list, returning(tuple)), (Dog, returning(User))],
        ids=named,
    )
    def test_a_dependency_that_returns_another_class_is_refused(
        self, app: MRTRServer, wanted: Any, function: Any
    ) -> None:
        with pytest.raises(SetupError, match=rf"'it' is annotated with {wanted.__name__}, but \w+\(\) returns"):
            app.tool(name="bad")(with_parameters({"it": Annotated[wanted, Depends(function)]}))

    @pytest.mark.parametrize(
        ("wanted", "function"),
        [
            (Animal, returning(Dog)),
            (Dog, returning(Animal)),
            (float, returning(int)),
            (Meows, returning(Dog)),
            (object, returning(str)),
            (int, returning(Any)),
            (int, returning(int | None)),
            (str, a_text),
        ],
        ids=named,
    )
    def test_one_that_may_return_it_is_not(self, app: MRTRServer, wanted: Any, function: Any) -> None:
        app.tool(name="good")(with_parameters({"it": Annotated[wanted, Depends(function)]}))


class TestAllowed:
    """What says more about an argument stays."""

    def test_what_pydantic_and_we_read_and_what_nobody_reads(self, app: MRTRServer) -> None:
        @app.tool
        def good(
            ctx: Context,
            city: Annotated[str, Field(description="A city", max_length=9), Header("City")],
            size: Annotated[int, annotated_types.Ge(1), annotated_types.Le(9)],
            code: Annotated[str, StringConstraints(pattern="^[a-z]+$")],
            trimmed: Annotated[str, BeforeValidator(str.strip), AfterValidator(str.lower)],
            noted: Annotated[str, "a note", 5, object(), Doc("words"), str.strip],
            user: Annotated[str, Depends(current_user)],
            kinds: list[Literal[1, 2]] = [1],  # noqa: B006
            much: int = Field(5, le=9),
        ) -> str:
            return user

        properties = app.registry.tools["good"].entry["inputSchema"]["properties"]
        assert list(properties) == ["city", "size", "code", "trimmed", "noted", "kinds", "much"]
        assert properties["size"] == {"maximum": 9, "minimum": 1, "type": "integer"}

    def test_a_model_that_fastapi_reads_as_well(self, app: MRTRServer) -> None:
        class Filter(BaseModel):
            words: str = fastapi.Query("", max_length=9)

        @app.tool
        def search(filter: Filter) -> str:
            return filter.words

        assert "filter" in app.registry.tools["search"].entry["inputSchema"]["properties"]

    def test_types_of_ours_with_a_name_of_theirs(self, app: MRTRServer) -> None:
        class Context(BaseModel):
            words: str

        class Progress(BaseModel):
            percent: int

        @app.tool
        def summarize(context: Context, progress: Progress) -> str:
            return context.words

        assert app.registry.tools["summarize"].entry["inputSchema"]["required"] == ["context", "progress"]


def test_none_of_these_frameworks_is_imported() -> None:
    code = """
import sys
from typing import Annotated
from mrtr_server import Depends, MRTRServer
app = MRTRServer("x", keys=[bytes(32)])
@app.tool
def tool(city: str, it: Annotated[str, Depends(lambda city: city)]) -> str:
    return city
print([name for name in ("fastapi", "mcp", "fastmcp", "uncalled_for", "docket") if name in sys.modules])
"""
    assert subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout == "[]\n"
