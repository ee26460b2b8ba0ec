"""Tools, prompts, resources and completions: how they are listed, found, and refused."""

import asyncio
import sys
from collections.abc import Callable
from functools import partial
from inspect import Parameter, Signature
from typing import Annotated, Any, Literal, Tuple  # noqa: UP035  without a parameter it is another type

import pytest
from pydantic import Field

from mrtr_server import Completion, Context, Icon, Inputs, Lists, MRTRServer, SetupError, ToolAnnotations
from mrtr_server.concurrency.threads import Threads
from mrtr_server.flow.home import Home
from mrtr_server.registration.inclusion import LISTINGS
from mrtr_server.registration.options import ResourceOptions
from mrtr_server.registration.records import Completer, build_completer, build_resource
from mrtr_server.registration.registry import Registry
from mrtr_server.testing import AsyncClient, Client

from ..support.models import Login


@pytest.fixture
def app() -> MRTRServer:
    return MRTRServer("registry", keys=[bytes(32)])


def listed(app: MRTRServer, method: str) -> list[dict[str, Any]]:
    """What a client sees in a list."""
    result = Client(app).request(method).result
    (entries,) = (value for name, value in result.items() if isinstance(value, list))
    return list(entries)


class TestLists:
    def test_a_tool_is_listed_with_what_its_function_says(self, app: MRTRServer) -> None:
        @app.tool
        def get_weather(city: str, ctx: Context, days: int = 3) -> Login:
            """Look up the weather.

            Slowly.
            """
            return Login(name=city)

        (entry,) = listed(app, "tools/list")
        assert entry.pop("outputSchema")["properties"] == {"name": {"type": "string"}}
        assert entry == {
            "name": "get_weather",
            "description": "Look up the weather.\n\nSlowly.",
            "inputSchema": {
                "type": "object",
                "properties": {"city": {"type": "string"}, "days": {"type": "integer", "default": 3}},
                "required": ["city"],
                "additionalProperties": False,
            },
        }

    def test_a_tool_is_listed_with_what_its_decorator_says(self, app: MRTRServer) -> None:
        @app.tool(
            name="weather.get",
            title="Weather",
            description="What the model reads",
            annotations=ToolAnnotations(read_only_hint=True),
            icons=[Icon(src="https://example.com/a.png", mime_type="image/png"), {"src": "data:image/png,"}],
            meta={"example.com/team": "sky"},
        )
        def get_weather() -> str:
            """What people read."""
            return ""

        assert listed(app, "tools/list") == [
            {
                "name": "weather.get",
                "title": "Weather",
                "description": "What the model reads",
                "inputSchema": {"type": "object", "properties": {}, "additionalProperties": False},
                "annotations": {"readOnlyHint": True},
                "icons": [{"src": "https://example.com/a.png", "mimeType": "image/png"}, {"src": "data:image/png,"}],
                "_meta": {"example.com/team": "sky"},
            }
        ]

    def test_names_of_python_in_dictionaries_are_listed_as_those_of_the_protocol(self, app: MRTRServer) -> None:
        icon = {"src": "https://example.com/a.png", "mime_type": "image/png", "sizes": None, "shape": "round"}
        app.tool(name="it", annotations={"read_only_hint": True, "title": None, "costs": 5}, icons=[icon])(lambda: None)
        (entry,) = listed(app, "tools/list")
        assert entry["annotations"] == {"readOnlyHint": True, "costs": 5}
        assert entry["icons"] == [{"src": "https://example.com/a.png", "mimeType": "image/png", "shape": "round"}]

    def test_nothing_is_listed_that_was_not_said(self, app: MRTRServer) -> None:
        @app.tool
        def bare() -> None: ...

        @app.prompt(name="bare")
        def bare_prompt() -> str:
            return ""

        @app.resource("bare://x", name="bare")
        def bare_resource() -> str:
            return ""

        (tool,) = listed(app, "tools/list")
        assert tool.keys() == {"name", "inputSchema"}
        assert listed(app, "prompts/list") == [{"name": "bare"}]
        assert listed(app, "resources/list") == [{"name": "bare", "uri": "bare://x"}]
        assert listed(app, "resources/templates/list") == []

    def test_a_prompt_is_listed_with_its_arguments(self, app: MRTRServer) -> None:
        @app.prompt(title="Review")
        def review(
            code: Annotated[str, Field(description="what to review", title="Code")], inputs: Inputs, tone: str = "kind"
        ) -> str:
            """Review some code."""
            return code

        assert listed(app, "prompts/list") == [
            {
                "name": "review",
                "title": "Review",
                "description": "Review some code.",
                "arguments": [
                    {"name": "code", "title": "Code", "description": "what to review", "required": True},
                    {"name": "tone", "required": False},
                ],
            }
        ]

    def test_a_template_has_no_size(self, app: MRTRServer) -> None:
        """Each of the resources that it stands for has one of its own (Resources, Resource Templates)."""
        with pytest.raises(SetupError, match="leave size= out"):

            @app.resource("file:///{+path}", size=3)
            def template(path: str) -> str:
                return path

    def test_a_resource_is_listed_by_its_uri_and_a_template_by_its_template(self, app: MRTRServer) -> None:
        @app.resource("file:///a", mime_type="text/plain", size=3, annotations={"audience": ["user"]}, title="A")
        def fixed() -> str:
            return "abc"

        @app.resource("file:///{+path}", mime_type="text/plain", meta={"k": 1})
        def template(path: str) -> str:
            """Any file."""
            return path

        assert listed(app, "resources/list") == [
            {
                "uri": "file:///a",
                "name": "fixed",
                "title": "A",
                "mimeType": "text/plain",
                "size": 3,
                "annotations": {"audience": ["user"]},
            }
        ]
        assert listed(app, "resources/templates/list") == [
            {
                "uriTemplate": "file:///{+path}",
                "name": "template",
                "description": "Any file.",
                "mimeType": "text/plain",
                "_meta": {"k": 1},
            }
        ]

    def test_a_raw_schema_is_listed_as_it_is(self, app: MRTRServer) -> None:
        schema = {"type": "object", "title": "Kept", "properties": {"a": {"const": 1}}, "x-anything": [None]}

        @app.tool(input_schema=schema)
        def raw(arguments: dict[str, Any]) -> str:
            return ""

        assert listed(app, "tools/list") == [{"name": "raw", "inputSchema": schema}]

    def test_lists_are_in_the_order_of_registration_and_grow(self, app: MRTRServer) -> None:
        for name in ("zebra", "apple"):
            app.tool(name=name)(lambda: None)
        assert [entry["name"] for entry in listed(app, "tools/list")] == ["zebra", "apple"]
        app.tool(name="mango")(lambda: None)
        assert [entry["name"] for entry in listed(app, "tools/list")] == ["zebra", "apple", "mango"]

    def test_there_is_a_list_for_every_listing(self) -> None:
        registry = Registry(Home("x"))
        assert [dict(registry.records(listing)) for listing in LISTINGS] == [{}, {}, {}, {}]


class TestManyTools:
    @staticmethod
    def steps(count: int) -> list[int]:
        """Return how many Python functions a new tool, the list and a call take beside so many tools."""
        app = MRTRServer("many", keys=[bytes(32)], lists=Lists(page_size=5))
        steps = 0

        def count_call(frame: object, event: str, argument: object) -> None:
            nonlocal steps
            steps += event == "call"

        def tool(a: int, b: str = "x") -> dict[str, int]:
            return {b: a}

        async def scene() -> list[int]:
            nonlocal steps
            taken = []
            async with AsyncClient(app) as client:
                for number in range(count):
                    app.tool(name=f"t{number}")(tool)
                cursor = (await client.request("tools/list")).result["nextCursor"]
                for number in range(count, count + 2):
                    sys.setprofile(count_call)
                    app.tool(name=f"t{number}")(tool)
                    await client.request("tools/list")
                    await client.request("tools/list", {"cursor": cursor})
                    assert (await client.call(f"t{number}", a=1)).structured == {"x": 1}
                    sys.setprofile(None)
                    taken.append(steps)
                    steps = 0
            return taken

        return asyncio.run(scene())

    def test_one_more_costs_the_same_with_ten_and_with_a_thousand(self) -> None:
        few, many = self.steps(10), self.steps(1000)
        assert many[1] < few[1] + 100, (few, many)

    def test_alike_types_are_told_apart(self, app: MRTRServer) -> None:
        """Tools of one signature share what was compiled for it."""

        def schema(annotation: Any, default: Any = Parameter.empty) -> Any:
            def tool(**given: Any) -> None: ...

            parameter = Parameter("it", Parameter.KEYWORD_ONLY, annotation=annotation, default=default)
            tool.__signature__ = Signature([parameter])  # type: ignore[attr-defined]
            name = f"t{len(listed(app, 'tools/list'))}"
            app.tool(name=name)(tool)
            return listed(app, "tools/list")[-1]["inputSchema"]["properties"]["it"]

        alike: list[tuple[Any, dict[str, Any]]] = [
            (int | str, {"anyOf": [{"type": "integer"}, {"type": "string"}]}),
            (str | int, {"anyOf": [{"type": "string"}, {"type": "integer"}]}),
            (Literal[1], {"const": 1, "type": "integer"}),
            (Literal[True], {"const": True, "type": "boolean"}),
            (Tuple, {"items": {}, "type": "array"}),  # noqa: UP006
            (tuple[()], {"maxItems": 0, "minItems": 0, "type": "array"}),
            (Annotated[int, Field(ge=1)], {"minimum": 1, "type": "integer"}),
            (Annotated[int, Field(ge=2)], {"minimum": 2, "type": "integer"}),
            (list[Literal[1]], {"items": {"const": 1, "type": "integer"}, "type": "array"}),
            (list[Literal[True]], {"items": {"const": True, "type": "boolean"}, "type": "array"}),
        ]
        for annotation, expected in alike * 2:
            assert schema(annotation) == expected
        for default in (1, True, 1, 1.0):
            assert schema(Any, default) == {"default": default}
            assert type(schema(Any, default)["default"]) is type(default)

    def test_what_is_refused_is_refused_of_each(self, app: MRTRServer) -> None:
        def tool(it: Callable[[], None]) -> None: ...

        for name in ("one", "two"):
            with pytest.raises(SetupError, match=f"{name}: a client can't fill parameter 'it'"):
                app.tool(name=name)(tool)


class TestNames:
    @pytest.mark.parametrize("name", ["getUser", "DATA_EXPORT_v2", "admin.tools.list", "a", "-", "a" * 128])
    def test_names_are_as_the_specification_has_them(self, app: MRTRServer, name: str) -> None:
        app.tool(name=name)(lambda: None)
        app.prompt(name=name)(lambda: None)
        app.resource(f"x:{name}", name=name)(lambda: None)
        assert listed(app, "tools/list")[0]["name"] == name

    @pytest.mark.parametrize("name", ["a b", "a,b", "a/b", "é", "a\n", "a:b", "a" * 129, "<lambda>", " ", "\x00"])
    def test_other_names_are_refused(self, app: MRTRServer, name: str) -> None:
        decorators: list[Callable[..., Any]] = [app.tool, app.prompt, partial(app.resource, "x:y")]
        for decorator in decorators:
            with pytest.raises(SetupError, match=r"can't be a name; pass name= with 1 to 128 of the characters A-Z"):
                decorator(name=name)(lambda: None)

    def test_a_function_without_a_name_needs_one(self, app: MRTRServer) -> None:
        for function in (lambda: None, partial(print)):
            with pytest.raises(SetupError, match="pass name="):
                app.tool(function)

    def test_a_name_is_taken_once(self, app: MRTRServer) -> None:
        app.tool(name="it")(lambda: None)
        app.prompt(name="it")(lambda: None)
        app.resource("x:it", name="it")(lambda: None)
        app.resource("x:{it}", name="it")(lambda it: None)
        with pytest.raises(SetupError, match="There is a tool 'it' already"):
            app.tool(name="it")(lambda: None)
        with pytest.raises(SetupError, match="There is a prompt 'it' already"):
            app.prompt(name="it")(lambda: None)
        with pytest.raises(SetupError, match="There is a resource 'x:it' already"):
            app.resource("x:it", name="other")(lambda: None)
        with pytest.raises(SetupError, match=r"There is a resource template 'x:\{it\}' already"):
            app.resource("x:{it}", name="other")(lambda it: None)
        assert len(listed(app, "tools/list")) == 1

    def test_names_are_told_apart_by_case(self, app: MRTRServer) -> None:
        app.tool(name="it")(lambda: None)
        app.tool(name="IT")(lambda: None)
        assert len(listed(app, "tools/list")) == 2


class TestDecorators:
    @pytest.mark.parametrize("kind", ["tool", "prompt"])
    def test_they_are_used_with_and_without_parentheses(self, app: MRTRServer, kind: str) -> None:
        decorator: Callable[..., Any] = getattr(app, kind)

        def bare() -> str:
            """Bare."""
            return "bare"

        def called() -> str:
            """Called."""
            return "called"

        def titled() -> str:
            """Titled."""
            return "titled"

        assert decorator(bare) is bare
        assert decorator()(called) is called
        assert decorator(title="Titled")(titled) is titled
        entries = listed(app, f"{kind}s/list")
        assert [(entry["name"], entry["description"]) for entry in entries] == [
            ("bare", "Bare."),
            ("called", "Called."),
            ("titled", "Titled."),
        ]

    def test_one_function_may_be_several_tools(self, app: MRTRServer) -> None:
        def function() -> str:
            return "x"

        app.tool(function)
        app.tool(name="another")(function)
        assert [entry["name"] for entry in listed(app, "tools/list")] == ["function", "another"]

    def test_a_raw_schema_fits_one_dictionary_or_keywords(self, app: MRTRServer) -> None:
        schema = {"type": "object"}
        app.tool(name="one", input_schema=schema)(lambda arguments: None)
        app.tool(name="keywords", input_schema=schema)(lambda **arguments: None)

        def with_context(arguments: dict[str, Any], ctx: Context) -> None: ...

        app.tool(input_schema=schema)(with_context)
        wrong: list[Callable[..., Any]] = [lambda: None, lambda a, b: None]
        for function in wrong:
            with pytest.raises(SetupError, match=r"the function takes one dictionary, or \*\*arguments"):
                app.tool(name="wrong", input_schema=schema)(function)

    def test_a_raw_schema_is_checked_when_the_decorator_runs(self, app: MRTRServer) -> None:
        with pytest.raises(SetupError, match="wrong: input_schema is not valid"):
            app.tool(name="wrong", input_schema={"type": "object", "required": 5})(lambda arguments: None)

    def test_headers_in_a_raw_schema_are_held_to_the_rules(self, app: MRTRServer) -> None:
        schema = {"type": "object", "properties": {"a": {"type": "number", "x-mcp-header": "A"}}}
        with pytest.raises(SetupError, match="wrong: 'a' can't be mirrored into a header"):
            app.tool(name="wrong", input_schema=schema)(lambda arguments: None)


class TestResources:
    def test_every_variable_is_a_parameter(self, app: MRTRServer) -> None:
        with pytest.raises(SetupError, match="has the variable 'country', but the function has no such parameter"):
            app.resource("weather://{country}/{city}", name="weather")(lambda city: None)

    def test_every_parameter_is_a_variable_or_has_a_default(self, app: MRTRServer) -> None:
        with pytest.raises(SetupError, match=r"nothing fills the parameter 'days': .* has no \{days\}"):
            app.resource("weather://{city}", name="weather")(lambda city, days: None)
        with pytest.raises(SetupError, match="nothing fills the parameter 'city'"):
            app.resource("weather://oslo", name="weather")(lambda city: None)
        app.resource("weather://{city}", name="weather")(lambda city, days=3: None)

    def test_what_our_own_types_take_is_no_variable(self, app: MRTRServer) -> None:
        @app.resource("weather://{city}")
        def weather(city: str, ctx: Context, inputs: Inputs) -> str:
            return city

        assert listed(app, "resources/templates/list")[0]["name"] == "weather"

    @pytest.mark.parametrize("uri", ["", "oslo", "/oslo", "{city}"])
    def test_a_uri_has_a_scheme(self, app: MRTRServer, uri: str) -> None:
        with pytest.raises(SetupError, match="is not a URI: it has no scheme"):
            app.resource(uri, name="it")(lambda city="": None)

    def test_a_template_that_can_not_be_matched_is_refused(self, app: MRTRServer) -> None:
        with pytest.raises(SetupError, match="is not supported"):
            app.resource("weather://{/city}", name="it")(lambda city: None)

    def test_fixed_uris_are_found_before_templates_and_those_in_their_order(self) -> None:
        registry = Registry(Home("x"))
        functions: dict[str, Callable[..., int]] = {
            "x://{a}/{b}": lambda a, b: 1,
            "x://{+all}": lambda all: 2,
            "x://fixed/it": lambda: 3,
        }
        for uri, function in functions.items():
            registry.add(build_resource(function, ResourceOptions(uri, name=f"n{len(uri)}"), Home("x")))

        def found(uri: str) -> tuple[int, dict[str, str]] | None:
            match = registry.find_resource(uri)
            return None if match is None else (match[0].handler.function(**match[1]), match[1])

        assert found("x://fixed/it") == (3, {})
        assert found("x://fixed/them") == (1, {"a": "fixed", "b": "them"})
        assert found("x://fixed") == (2, {"all": "fixed"})
        assert found("y://fixed") is None


class TestCompletions:
    def completer(self, function: Callable[..., Any]) -> Completer:
        return build_completer(function, Home("x"))

    def suggest(self, function: Callable[..., Any], known: dict[str, str]) -> Any:
        threads = Threads(1)
        try:
            return asyncio.run(self.completer(function).suggest("o", known, threads))
        finally:
            threads.close()

    def test_a_completion_takes_the_value_and_if_it_likes_what_is_known(self) -> None:
        def one(value: str) -> list[str]:
            return [value]

        async def two(value: str, known: dict[str, str]) -> Completion:
            return Completion(values=[value, known["country"]])

        assert self.suggest(one, {"country": "no"}) == ["o"]
        assert self.suggest(two, {"country": "no"}) == Completion(values=["o", "no"])

    def test_it_takes_nothing_else(self) -> None:
        def nothing() -> None: ...
        def three(value: str, known: dict[str, str], more: int) -> None: ...
        def asking(value: str, ctx: Context) -> None: ...

        for function in (nothing, three, asking):
            with pytest.raises(SetupError, match=r"a completion takes \(value\), or"):
                self.completer(function)

    def test_it_is_for_a_prompt_or_for_a_resource(self, app: MRTRServer) -> None:
        for where in ({}, {"prompt": "a", "resource": "b"}):
            with pytest.raises(SetupError, match="one of the two"):
                app.completion("city", **where)

    def test_an_argument_has_one(self, app: MRTRServer) -> None:
        app.completion("city", prompt="weather")(lambda value: [])
        app.completion("country", prompt="weather")(lambda value: [])
        app.completion("city", resource="weather")(lambda value: [])
        with pytest.raises(SetupError, match="already"):
            app.completion("city", prompt="weather")(lambda value: [])
