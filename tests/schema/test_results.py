"""What a handler returns, and the body of the result that a client gets."""

import json
import math
from base64 import b64encode
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime
from enum import Enum
from pathlib import Path
from typing import Annotated, Any, Literal, Optional, Union
from uuid import UUID

import mcp.types
import pytest
from hypothesis import given
from hypothesis import strategies as st
from jsonschema import Draft202012Validator
from pydantic import BaseModel, ConfigDict, Field, RootModel, computed_field
from pydantic.alias_generators import to_camel
from pydantic.dataclasses import dataclass as pydantic_dataclass
from typing_extensions import TypedDict

from mrtr_server import (
    Annotations,
    AudioContent,
    Completion,
    EmbeddedResource,
    ImageContent,
    InputRequired,
    Message,
    PromptResult,
    ResourceContents,
    ResourceLink,
    SetupError,
    TextContent,
    ToolResult,
)
from mrtr_server.errors import FlowError
from mrtr_server.protocol.messages import JSON
from mrtr_server.registration.handlers import compile_handler
from mrtr_server.schema.results import completion_body, failed, prompt_body, resource_body, tool_results

SPECIFICATION = json.loads((Path(__file__).parents[1] / "schemas" / "2026-07-28.json").read_text())


def conforms(body: JSON, definition: str) -> JSON:
    """The body, once it is found to be as the specification has it and to be plain JSON."""
    validator = Draft202012Validator({"$ref": f"#/$defs/{definition}", "$defs": SPECIFICATION["$defs"]})
    whole = {"resultType": "complete", "ttlMs": 0, "cacheScope": "private", **body}
    assert [error.message for error in validator.iter_errors(whole)] == []
    assert json.loads(json.dumps(body, allow_nan=False)) == body
    return body


def compile_tool(returns: Any) -> tuple[JSON | None, Any]:
    """The output schema of a tool that is annotated so, and what writes its results."""

    def tool() -> None: ...

    tool.__annotations__["return"] = returns
    return tool_results("tool", compile_handler(tool, "tool", {}).returns)


def written(returns: Any, value: Any) -> JSON:
    schema, write = compile_tool(returns)
    body = conforms(write(value), "CallToolResult")
    if schema is not None:
        Draft202012Validator.check_schema(schema)
        Draft202012Validator(schema).validate(body["structuredContent"])
    return body


def text(*texts: str) -> JSON:
    return {"content": [{"type": "text", "text": each} for each in texts], "isError": False}


def structured(value: Any, as_text: str) -> JSON:
    return {**text(as_text), "structuredContent": value}


class Weather(BaseModel):
    model_config = ConfigDict(alias_generator=to_camel, populate_by_name=True)
    temperature: float
    wind_speed: int | None = None


class Snow(BaseModel):
    centimetres: int


@dataclass
class Size:
    width: int
    unit: str = "px"


class Place(TypedDict):
    city: str


class Color(Enum):
    RED = "red"


TEXT = TextContent(text="hello")
IMAGE = ImageContent(data=b"\x89PNG", mime_type="image/png")
BLOCKS: list[tuple[Any, JSON]] = [
    (TEXT, {"type": "text", "text": "hello"}),
    (IMAGE, {"type": "image", "data": "iVBORw==", "mimeType": "image/png"}),
    (ImageContent(data="iVBORw=="), {"type": "image", "data": "iVBORw==", "mimeType": "image/png"}),
    (AudioContent(data=b"RIFF"), {"type": "audio", "data": "UklGRg==", "mimeType": "audio/wav"}),
    (
        EmbeddedResource(resource=ResourceContents(uri="file:///a", text="a", mime_type="text/plain")),
        {"type": "resource", "resource": {"uri": "file:///a", "text": "a", "mimeType": "text/plain"}},
    ),
    (
        EmbeddedResource(resource=ResourceContents(uri="file:///b", blob=b"\x00")),
        {"type": "resource", "resource": {"uri": "file:///b", "blob": "AA=="}},
    ),
    (
        ResourceLink(uri="file:///a", name="a", mime_type="text/plain", size=3),
        {"type": "resource_link", "uri": "file:///a", "name": "a", "mimeType": "text/plain", "size": 3},
    ),
    (
        TextContent(
            text="for you", annotations=Annotations(audience=["user"], priority=0.5, last_modified="2026-07-28")
        ),
        {
            "type": "text",
            "text": "for you",
            "annotations": {"audience": ["user"], "priority": 0.5, "lastModified": "2026-07-28"},
        },
    ),
    (TextContent(text="marked", meta={"k": 1}), {"type": "text", "text": "marked", "_meta": {"k": 1}}),
    # Those of the official SDK are taken as they are, since they can be dumped.
    (mcp.types.TextContent(type="text", text="hello"), {"type": "text", "text": "hello"}),
    (
        mcp.types.ImageContent(type="image", data="AA==", mime_type="image/png"),
        {"type": "image", "data": "AA==", "mimeType": "image/png"},
    ),
    (
        mcp.types.AudioContent(type="audio", data="AA==", mime_type="audio/wav"),
        {"type": "audio", "data": "AA==", "mimeType": "audio/wav"},
    ),
    (
        mcp.types.EmbeddedResource(
            type="resource", resource=mcp.types.TextResourceContents(uri="file:///a", text="a", mime_type="text/plain")
        ),
        {"type": "resource", "resource": {"uri": "file:///a", "text": "a", "mimeType": "text/plain"}},
    ),
    (
        mcp.types.ResourceLink(type="resource_link", uri="file:///a", name="a"),
        {"type": "resource_link", "uri": "file:///a", "name": "a"},
    ),
]


class TestText:
    def test_a_string_is_text(self) -> None:
        assert written(str, "hello") == text("hello")
        assert compile_tool(str)[0] is None

    @pytest.mark.parametrize("returns", [None, type(None), Any, str, str | None, Optional[str]])  # noqa: UP045
    def test_nothing_is_no_content(self, returns: Any) -> None:
        assert written(returns, None) == {"content": [], "isError": False}

    def test_the_asks_of_a_pure_function_are_left_out(self) -> None:
        assert compile_tool(str | InputRequired)[0] is None
        assert written(str | InputRequired, "hello") == text("hello")
        assert compile_tool(InputRequired)[0] is None
        assert compile_tool(Weather | InputRequired)[0] == compile_tool(Weather)[0]
        assert compile_tool(Union[InputRequired, Weather, Snow])[0] == compile_tool(Weather | Snow)[0]  # noqa: UP007
        assert compile_tool(int | None | InputRequired)[0] == compile_tool(int | None)[0]

    def test_what_annotated_adds_makes_no_difference(self) -> None:
        assert written(Annotated[str, "a summary"], "hello") == text("hello")
        assert written(Annotated[TextContent, "a summary"], TEXT) == text("hello")
        assert compile_tool(Annotated[Weather, "today"])[0] == compile_tool(Weather)[0]

    def test_without_an_annotation_the_value_decides(self) -> None:
        def tool():  # type: ignore[no-untyped-def]
            ...

        schema, write = tool_results("tool", compile_handler(tool, "tool", {}).returns)
        assert schema is None
        assert write("hello") == text("hello")
        assert write(None) == {"content": [], "isError": False}
        assert write([TEXT, "world"]) == text("hello", "world")
        assert write({"a": [1, None]}) == structured({"a": [1, None]}, '{"a":[1,null]}')
        assert write([]) == structured([], "[]")
        assert write(Weather(temperature=1.5)) == structured(
            {"temperature": 1.5, "windSpeed": None}, '{"temperature":1.5,"windSpeed":null}'
        )
        assert write(Size(2)) == structured({"width": 2, "unit": "px"}, '{"width":2,"unit":"px"}')


class TestContent:
    @pytest.mark.parametrize(("value", "block"), BLOCKS)
    def test_every_content_block_is_one_of_the_specification(self, value: Any, block: JSON) -> None:
        for returns in (type(value), Any, str | type(value), list[type(value)]):  # type: ignore[misc]
            assert written(returns, value) == {"content": [block], "isError": False}
        assert written(list[type(value)], [value, value])["content"] == [block, block]  # type: ignore[misc]

    @pytest.mark.parametrize(
        "returns",
        [
            TextContent,
            TextContent | ImageContent,
            TextContent | None,
            list[TextContent],
            list[str | ImageContent],
            list[Annotated[TextContent, "part"]],
            tuple[TextContent, ...],
            tuple[str, ImageContent],
            Sequence[TextContent | ImageContent],
            list[TextContent] | InputRequired,
            Weather | str,
            Weather | TextContent,
            list[Weather] | TextContent,
            mcp.types.TextContent,
            list[mcp.types.ContentBlock],
        ],
    )
    def test_a_member_that_is_text_or_content_means_no_schema(self, returns: Any) -> None:
        assert compile_tool(returns)[0] is None

    def test_strings_among_content_are_text(self) -> None:
        assert written(list[str | TextContent], ["hello", TEXT]) == text("hello", "hello")
        assert written(tuple[str, TextContent], ("hello", TEXT)) == text("hello", "hello")

    def test_a_list_of_content_may_be_empty(self) -> None:
        for returns in (
            list[TextContent],
            Sequence[TextContent | ImageContent],
            list[str | TextContent],
            list[mcp.types.ContentBlock],
        ):
            assert written(returns, []) == {"content": [], "isError": False}
        assert written(tuple[TextContent, ...], ()) == {"content": [], "isError": False}

    def test_a_value_of_another_kind_becomes_structured(self) -> None:
        assert written(Weather | str, Weather(temperature=2)) == structured(
            {"temperature": 2.0, "windSpeed": None}, '{"temperature":2.0,"windSpeed":null}'
        )
        assert written(list[Snow] | str, []) == structured([], "[]")

    def test_a_model_of_one_s_own_with_a_type_is_no_content(self) -> None:
        class Vehicle(BaseModel):
            type: Literal["car", "bike"]

        assert compile_tool(Vehicle)[0] is not None
        assert written(Vehicle, Vehicle(type="car")) == structured({"type": "car"}, '{"type":"car"}')

        class Paragraph(BaseModel):
            type: Literal["text", "heading"]
            body: str

        paragraph = {"type": "text", "body": "x"}
        for returns, value in ((Paragraph, Paragraph(**paragraph)), (Any, Paragraph(**paragraph))):
            assert written(returns, value) == structured(paragraph, '{"type":"text","body":"x"}')


# Each type, with a value of it, what the client gets, and what the model reads.
STRUCTURED: list[tuple[Any, Any, Any, str]] = [
    (Weather, Weather(temperature=1), {"temperature": 1.0, "windSpeed": None}, '{"temperature":1.0,"windSpeed":null}'),
    (
        Weather,
        {"temperature": 1, "windSpeed": 3},
        {"temperature": 1.0, "windSpeed": 3},
        '{"temperature":1.0,"windSpeed":3}',
    ),
    (Weather | Snow, Snow(centimetres=3), {"centimetres": 3}, '{"centimetres":3}'),
    (Weather | None, None, None, "null"),
    (Size, Size(3), {"width": 3, "unit": "px"}, '{"width":3,"unit":"px"}'),
    (Place, {"city": "Oslo"}, {"city": "Oslo"}, '{"city":"Oslo"}'),
    (list[str], ["a", "b"], ["a", "b"], '["a","b"]'),
    (list[str], [], [], "[]"),
    (list[Snow], [Snow(centimetres=3)], [{"centimetres": 3}], '[{"centimetres":3}]'),
    (dict[str, int], {"a": 1}, {"a": 1}, '{"a":1}'),
    (dict, {"a": [1]}, {"a": [1]}, '{"a":[1]}'),
    (set[int], {1}, [1], "[1]"),
    (tuple[int, str], (1, "a"), [1, "a"], '[1,"a"]'),
    (int, 5, 5, "5"),
    (float, 5, 5.0, "5.0"),
    (bool, True, True, "true"),
    (int | None, None, None, "null"),
    (date, date(2026, 7, 28), "2026-07-28", "2026-07-28"),
    (UUID, UUID(int=1), "00000000-0000-0000-0000-000000000001", "00000000-0000-0000-0000-000000000001"),
    (Color, Color.RED, "red", "red"),
    (Literal["on", "off"], "on", "on", "on"),
]


class TestStructured:
    @pytest.mark.parametrize(("returns", "value", "content", "as_text"), STRUCTURED)
    def test_any_other_type_is_structured_content_with_its_text_beside_it(
        self, returns: Any, value: Any, content: Any, as_text: str
    ) -> None:
        assert compile_tool(returns)[0] is not None
        assert written(returns, value) == structured(content, as_text)

    def test_the_schema_is_the_one_of_the_type_as_it_is_written(self) -> None:
        schema, _ = compile_tool(Weather)
        assert schema is not None
        assert schema["properties"] == {
            "temperature": {"type": "number"},
            "windSpeed": {"anyOf": [{"type": "integer"}, {"type": "null"}], "default": None},
        }
        assert compile_tool(list[str])[0] == {"type": "array", "items": {"type": "string"}}
        assert compile_tool(list[Annotated[str, "a word"]])[0] == {"type": "array", "items": {"type": "string"}}

    def test_models_side_by_side_become_any_of(self) -> None:
        schema, _ = compile_tool(Weather | Snow)
        assert schema is not None
        assert [list(each["properties"]) for each in schema["anyOf"]] == [["temperature", "windSpeed"], ["centimetres"]]

    def test_a_value_that_is_not_of_the_declared_type_is_the_author_s_mistake(self) -> None:
        _, write = compile_tool(Weather)
        for value in ({"temperature": "hot"}, None, "hot", 5):
            with pytest.raises(FlowError, match="does not fit its annotation"):
                write(value)

    def test_what_a_subclass_adds_is_not_sent(self) -> None:
        class Secret(Snow):
            password: str = "s3cret"

        assert written(Snow, Secret(centimetres=1)) == structured({"centimetres": 1}, '{"centimetres":1}')

    def test_a_type_without_a_schema_is_refused(self) -> None:
        class Opaque: ...

        with pytest.raises(SetupError, match="tool: results of type"):
            compile_tool(Opaque)

    @pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
    def test_numbers_that_json_has_not_are_never_sent(self, value: float) -> None:
        for returns, result in (
            (float, value),
            (list[float], [value]),
            (Any, {"a": value}),
            (Any, ToolResult(structured_content=[value])),
        ):
            with pytest.raises(ValueError, match="which JSON can't hold"):
                compile_tool(returns)[1](result)

    def test_the_words_for_them_are_fine_words(self) -> None:
        assert written(list[str], ["NaN", "Infinity"]) == structured(["NaN", "Infinity"], '["NaN","Infinity"]')

    values = st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    )

    @given(
        st.one_of(
            st.tuples(
                st.just(Weather), st.builds(Weather, temperature=st.floats(allow_nan=False, allow_infinity=False))
            ),
            st.tuples(st.just(Weather | Snow | None), st.none() | st.builds(Snow, centimetres=st.integers())),
            st.tuples(st.just(list[Size]), st.lists(st.builds(Size, st.integers(), st.text()), max_size=3)),
            st.tuples(
                st.just(dict[str, int | bool]), st.dictionaries(st.text(), st.integers() | st.booleans(), max_size=3)
            ),
            st.tuples(st.just(set[int]), st.sets(st.integers(), max_size=3)),
            st.tuples(st.just(datetime), st.datetimes(timezones=st.just(UTC))),
            st.tuples(st.just(Annotated[int, Field(ge=0)]), st.integers(min_value=0)),
            st.tuples(st.just(list[Any]), st.lists(values, max_size=3)),
            st.tuples(st.just(dict[str, Any]), st.dictionaries(st.text(), values, max_size=3)),
            st.tuples(st.just(object), values),
        )
    )
    def test_structured_content_conforms_to_the_output_schema(self, made: tuple[Any, Any]) -> None:
        returns, value = made
        body = written(returns, value)
        (block,) = body["content"]
        assert block["text"] == body["structuredContent"] or json.loads(block["text"]) == body["structuredContent"]

    @given(values)
    def test_any_json_may_be_returned_where_nothing_is_declared(self, value: Any) -> None:
        assert written(Any, {"it": value})["structuredContent"] == {"it": value}
        assert written(Any, [None, value])["structuredContent"] == [None, value]


class TestToolResult:
    def test_it_says_everything(self) -> None:
        result = ToolResult(
            content=["hello", TEXT, mcp.types.TextContent(type="text", text="mcp")],
            structured_content=Weather(temperature=1),
            is_error=True,
            meta={"took": 3},
        )
        assert written(ToolResult, result) == {
            "content": [
                {"type": "text", "text": "hello"},
                {"type": "text", "text": "hello"},
                {"type": "text", "text": "mcp"},
            ],
            "structuredContent": {"temperature": 1.0, "windSpeed": None},
            "isError": True,
            "_meta": {"took": 3},
        }

    def test_it_is_empty_unless_something_is_said(self) -> None:
        assert written(ToolResult, ToolResult()) == {"content": [], "isError": False}

    @pytest.mark.parametrize("returns", [str, Any, TextContent, Weather | ToolResult, str | InputRequired])
    def test_it_may_be_returned_whatever_is_declared(self, returns: Any) -> None:
        assert written(returns, ToolResult(content=["hello"])) == text("hello")

    def test_next_to_a_schema_its_structured_content_is_checked(self) -> None:
        schema, write = compile_tool(Weather)
        assert schema is not None
        failure = ToolResult(content=["no sensor there"], is_error=True)
        assert write(failure) == failed("no sensor there")
        mild = {"temperature": 1.0, "windSpeed": None}
        assert write(ToolResult(structured_content={"temperature": 1.0}))["structuredContent"] == mild
        with pytest.raises(FlowError, match="does not fit its annotation"):
            write(ToolResult(structured_content={"temperature": "high"}))

    @pytest.mark.parametrize("content", [Weather(temperature=1), {"temperature": 1, "windSpeed": None}])
    def test_it_may_declare_its_structured_content(self, content: Any) -> None:
        schema, write = compile_tool(Annotated[ToolResult, Weather])
        assert schema == compile_tool(Weather)[0]
        body = write(ToolResult(content=["mild"], structured_content=content, meta={"took": 3}))
        assert body == {
            **text("mild"),
            "structuredContent": {"temperature": 1.0, "windSpeed": None},
            "_meta": {"took": 3},
        }
        assert write(Weather(temperature=1))["structuredContent"] == {"temperature": 1.0, "windSpeed": None}

    def test_declared_structured_content_is_checked_unless_the_call_failed(self) -> None:
        _, write = compile_tool(Annotated[ToolResult, Weather])
        for content in (None, {"temperature": "high"}):
            with pytest.raises(FlowError, match="does not fit its annotation"):
                write(ToolResult(content=["mild"], structured_content=content))
        assert write(ToolResult(content=["no sensor there"], is_error=True)) == failed("no sensor there")

    def test_what_else_annotated_adds_to_it_declares_nothing(self) -> None:
        assert compile_tool(Annotated[ToolResult, "in full"])[0] is None

    def test_what_is_no_content_is_the_author_s_mistake(self) -> None:
        _, write = compile_tool(ToolResult)
        with pytest.raises(TypeError, match="int is not content"):
            write(ToolResult(content=[5]))

    def test_a_failure_is_text_with_a_flag(self) -> None:
        assert conforms(failed("no"), "CallToolResult") == {
            "content": [{"type": "text", "text": "no"}],
            "isError": True,
        }


def user(content: JSON) -> JSON:
    return {"role": "user", "content": content}


HELLO = {"type": "text", "text": "hello"}


class TestPrompts:
    @pytest.mark.parametrize(
        ("value", "messages"),
        [
            ("hello", [user(HELLO)]),
            (TEXT, [user(HELLO)]),
            (IMAGE, [user({"type": "image", "data": "iVBORw==", "mimeType": "image/png"})]),
            (Message(content="hello"), [user(HELLO)]),
            (Message("hello"), [user(HELLO)]),
            (Message(TEXT, role="assistant"), [{"role": "assistant", "content": HELLO}]),
            (Message(role="assistant", content=TEXT), [{"role": "assistant", "content": HELLO}]),
            (
                ["hello", Message(role="assistant", content="hello")],
                [user(HELLO), {"role": "assistant", "content": HELLO}],
            ),
            ((TEXT, "hello"), [user(HELLO), user(HELLO)]),
            ({"role": "assistant", "content": HELLO}, [{"role": "assistant", "content": HELLO}]),
            ({"role": "assistant", "content": "hello"}, [{"role": "assistant", "content": HELLO}]),
            ([], []),
            (mcp.types.TextContent(type="text", text="hello"), [user(HELLO)]),
            (
                mcp.types.PromptMessage(role="assistant", content=mcp.types.TextContent(type="text", text="hello")),
                [{"role": "assistant", "content": HELLO}],
            ),
        ],
    )
    def test_every_way_to_return_messages(self, value: Any, messages: list[JSON]) -> None:
        assert conforms(prompt_body(value, None), "GetPromptResult") == {"messages": messages}

    def test_the_description_is_the_prompt_s_unless_the_result_has_one(self) -> None:
        assert prompt_body("hello", "a greeting")["description"] == "a greeting"
        assert prompt_body(PromptResult(messages=["hello"]), "a greeting")["description"] == "a greeting"
        full = PromptResult(messages=["hello"], description="of today", meta={"k": 1})
        assert conforms(prompt_body(full, "a greeting"), "GetPromptResult") == {
            "messages": [user(HELLO)],
            "description": "of today",
            "_meta": {"k": 1},
        }

    @pytest.mark.parametrize("value", [5, None, Weather(temperature=1), [5], Message(content=5)])
    def test_anything_else_is_the_author_s_mistake(self, value: Any) -> None:
        with pytest.raises(TypeError, match="is not content"):
            prompt_body(value, None)


URI = "file:///a"


class TestResources:
    @pytest.mark.parametrize(
        ("value", "contents"),
        [
            ("hello", {"mimeType": "text/plain", "text": "hello"}),
            ("", {"mimeType": "text/plain", "text": ""}),
            (b"\x00\xff", {"mimeType": "application/octet-stream", "blob": "AP8="}),
            (bytearray(b"\x00\xff"), {"mimeType": "application/octet-stream", "blob": "AP8="}),
            ({"a": [1, None]}, {"mimeType": "application/json", "text": '{"a":[1,null]}'}),
            (["a", "b"], {"mimeType": "application/json", "text": '["a","b"]'}),
            (None, {"mimeType": "application/json", "text": "null"}),
            (5, {"mimeType": "application/json", "text": "5"}),
            (Weather(temperature=1), {"mimeType": "application/json", "text": '{"temperature":1.0,"windSpeed":null}'}),
            (Size(1), {"mimeType": "application/json", "text": '{"width":1,"unit":"px"}'}),
            (ResourceContents(text="hello"), {"text": "hello"}),
            (ResourceContents(text=""), {"text": ""}),
            (ResourceContents(), {"text": ""}),
            (ResourceContents(blob=b"\x00", mime_type="image/png"), {"mimeType": "image/png", "blob": "AA=="}),
            (ResourceContents(text="x", meta={"k": 1}), {"text": "x", "_meta": {"k": 1}}),
        ],
    )
    def test_every_way_to_return_contents(self, value: Any, contents: JSON) -> None:
        body = conforms(resource_body(value, URI, None), "ReadResourceResult")
        assert body == {"contents": [{"uri": URI, **contents}]}

    def test_the_mime_type_is_the_resource_s_where_it_has_one(self) -> None:
        for value in ("hello", b"hello", {"a": 1}, ResourceContents(text="hello")):
            (contents,) = resource_body(value, URI, "text/markdown")["contents"]
            assert contents["mimeType"] == "text/markdown"
        (contents,) = resource_body(ResourceContents(text="hello", mime_type="text/css"), URI, "text/markdown")[
            "contents"
        ]
        assert contents["mimeType"] == "text/css"

    def test_contents_of_the_official_sdk_are_contents(self) -> None:
        text = mcp.types.TextResourceContents(uri=URI, text="a", mime_type="text/plain")
        blob = mcp.types.BlobResourceContents(uri=URI, blob="AA==", mime_type="image/png")
        written = {"uri": URI, "text": "a", "mimeType": "text/plain"}
        assert resource_body(text, "file:///b", None) == {"contents": [written]}
        assert resource_body([text, blob], "file:///b", None) == {
            "contents": [written, {"uri": URI, "blob": "AA==", "mimeType": "image/png"}]
        }

    def test_one_read_may_give_several_contents(self) -> None:
        parts = [ResourceContents(text="hello"), ResourceContents(uri="file:///a/b", blob=b"\x00"), "plain"]
        assert conforms(resource_body(parts, URI, None), "ReadResourceResult") == {
            "contents": [
                {"uri": URI, "text": "hello"},
                {"uri": "file:///a/b", "blob": "AA=="},
                {"uri": URI, "mimeType": "text/plain", "text": "plain"},
            ]
        }

    @given(st.binary())
    def test_bytes_arrive_as_base64(self, data: bytes) -> None:
        (contents,) = resource_body(data, URI, None)["contents"]
        assert contents["blob"] == b64encode(data).decode()

    def test_numbers_that_json_has_not_are_never_sent(self) -> None:
        with pytest.raises(ValueError, match="which JSON can't hold"):
            resource_body({"a": math.nan}, URI, None)


class TestCompletions:
    def test_values_come_in_their_order_with_their_number(self) -> None:
        assert conforms(completion_body(["b", "a"]), "CompleteResult") == {
            "completion": {"values": ["b", "a"], "total": 2, "hasMore": False}
        }

    @pytest.mark.parametrize("nothing", [None, [], ()])
    def test_there_may_be_none(self, nothing: Any) -> None:
        assert completion_body(nothing) == {"completion": {"values": [], "total": 0, "hasMore": False}}

    @pytest.mark.parametrize("many", [tuple(map(str, range(101))), list(map(str, range(101)))])
    def test_the_first_hundred_are_sent(self, many: Sequence[str]) -> None:
        body = conforms(completion_body(many), "CompleteResult")["completion"]
        assert body == {"values": list(many[:100]), "total": 101, "hasMore": True}

    def test_a_completion_says_what_it_knows_better(self) -> None:
        known = Completion(values=["a"], total=7)
        assert completion_body(known) == {"completion": {"values": ["a"], "total": 7, "hasMore": True}}
        known = Completion(values=["a"], has_more=True)
        assert completion_body(known) == {"completion": {"values": ["a"], "total": 1, "hasMore": True}}


class Named(BaseModel):
    """A model whose author wants names, though its fields have aliases."""

    model_config = ConfigDict(serialize_by_alias=False)
    id: str = Field("1", alias="_id")

    @computed_field(alias="theDouble")  # type: ignore[prop-decorator]
    @property
    def double(self) -> str:
        return self.id * 2


class Aliased(BaseModel):
    id: str = Field("2", alias="_id")
    inner: Named = Field(default_factory=Named, alias="theInner")


class NamedAround(Named):
    a: Aliased = Field(default_factory=Aliased, alias="A")
    many: list[Named] = Field(default_factory=lambda: [Named()], alias="MANY")


@pydantic_dataclass(config=ConfigDict(serialize_by_alias=False))
class NamedDataclass:
    id: int = Field(default=4, serialization_alias="ID")


class Swapped(BaseModel):
    """Each field has the other one's name as its alias."""

    model_config = ConfigDict(serialize_by_alias=False)
    a: list[Named] = Field(default_factory=lambda: [Named()], alias="b")
    b: list[Aliased] = Field(default_factory=list, alias="a")


class NamedList(RootModel[list[Named]]): ...


class Said(BaseModel):
    model_config = ConfigDict(serialize_by_alias=True)
    inner: Named = Field(default_factory=Named, alias="IN")
    few: list[Named] = Field(default_factory=lambda: [Named()], alias="FEW")


NAMED = {"id": "1", "double": "11"}
ALIASED = {"_id": "2", "theInner": NAMED}
AROUND = {**NAMED, "a": ALIASED, "many": [NAMED]}


class TestNamesOrAliases:
    """Fields go out by their aliases, unless their own model says `serialize_by_alias=False`."""

    @pytest.mark.parametrize(
        ("annotation", "value", "should"),
        [
            (Named, Named(), NAMED),
            (Aliased, Aliased(), ALIASED),
            (Swapped, Swapped(), {"a": [NAMED], "b": []}),
            (Said, Said(), {"IN": NAMED, "FEW": [NAMED]}),
            (NamedAround, NamedAround(), AROUND),
            (list[Aliased | Named], [Aliased(), Named()], [ALIASED, NAMED]),
            (NamedDataclass, NamedDataclass(), {"id": 4}),
            (NamedList, NamedList([Named()]), [NAMED]),
            (Iterable[Named], [Named()], [NAMED]),
            (deque[Named | Aliased], deque([Named(), Aliased()]), [NAMED, ALIASED]),
            (
                dict[str, Any],
                {"x": [NamedAround(), (Aliased(), 1)], "y": NamedDataclass()},
                {"x": [AROUND, [ALIASED, 1]], "y": {"id": 4}},
            ),
            (Any, {"x": Named(), "y": {"z": Aliased()}}, {"x": NAMED, "y": {"z": ALIASED}}),
            (ToolResult, ToolResult(structured_content=NamedAround()), AROUND),
            (Annotated[ToolResult, Aliased], ToolResult(structured_content=Aliased()), ALIASED),
        ],
    )
    def test_in_results(self, annotation: Any, value: Any, should: Any) -> None:
        schema, write = tool_results("it", annotation)
        body = write(value)
        assert body["structuredContent"] == should
        if body["content"]:
            assert json.loads(body["content"][0]["text"]) == should
        if schema is not None:
            Draft202012Validator({"additionalProperties": False, **schema}).validate(should)

    def test_in_schemas(self) -> None:
        schema, _ = tool_results("it", NamedAround)
        assert schema is not None
        assert set(schema["properties"]) == {"id", "double", "a", "many"}
        assert set(schema["properties"]["a"]["properties"]) == {"_id", "theInner"}
        assert set(schema["properties"]["many"]["items"]["properties"]) == {"id", "double"}

    def test_in_resources(self) -> None:
        (content,) = resource_body([Named()], "docs://a", None)["contents"]
        assert json.loads(content["text"]) == [NAMED]
