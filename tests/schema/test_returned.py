"""What an author returns is checked before it goes out: the log names the mistake, and the client gets a reference."""

import json
import math
from base64 import b64encode, encodebytes
from collections.abc import AsyncIterator, Iterable
from dataclasses import dataclass, field
from decimal import Decimal
from enum import Enum
from typing import Annotated, Any

import mcp.types
import pytest
from pydantic import AnyUrl, BaseModel, ValidationError, computed_field

from mrtr_server import (
    Annotations,
    AudioContent,
    Completion,
    EmbeddedResource,
    ImageContent,
    Message,
    MRTRServer,
    PromptResult,
    ResourceContents,
    ResourceLink,
    Sample,
    SetupError,
    TextContent,
    ToolResult,
)
from mrtr_server.testing import Client

PNG = b"\x89PNG"
DATA = b64encode(PNG).decode()
IMAGE = ImageContent(data=PNG)
BLOCK = {"type": "image", "data": DATA, "mimeType": "image/png"}
FOREIGN = mcp.types.ImageContent(type="image", data=DATA, mime_type="image/png")


def text(value: str) -> dict[str, Any]:
    return {"type": "text", "text": value}


def called(value: Any, returns: Any = Any) -> Any:
    """The result of a tool that returns a value."""

    def tool() -> Any:
        return value

    tool.__annotations__["return"] = returns
    app = MRTRServer("app")
    app.tool(tool)
    return Client(app).call("tool").message


def prompted(value: Any) -> Any:
    app = MRTRServer("app")
    app.prompt(lambda: value, name="prompt")  # type: ignore[call-overload]
    return Client(app).get_prompt("prompt").message


def named() -> str:
    return "x"


def is_refused(message: Any, caplog: pytest.LogCaptureFixture, why: str) -> bool:
    """Whether a call ended with a reference alone, and the log says why."""
    log = caplog.text
    caplog.clear()
    outward = json.dumps(message)
    assert why in log, log
    assert why not in outward
    assert DATA not in log
    return "error" in message or message["result"]["isError"]


class TestMessages:
    @pytest.mark.parametrize(
        ("message", "why"),
        [
            ({"role": "system", "content": "x"}, "the role of a message is one of user, assistant"),
            ({"role": ["user"], "content": "x"}, "the role of a message is one of user, assistant"),
            ({"content": "x"}, 'has "role" and "content"'),
            ({"role": "user"}, 'has "role" and "content"'),
            ({"messages": [{"role": "user", "content": "x"}]}, 'has "role" and "content"'),
            ({"role": "user", "content": {"type": "nothing"}}, "content if its type is one of text, image"),
            ({"role": "user", "content": {"type": ["text"]}}, "content if its type is one of text, image"),
            ({"role": "user", "content": {"type": "text"}}, "this text content can't be sent: text"),
            ({"role": "user", "content": {**BLOCK, "data": "no data"}}, "it is not Base64"),
            ({"role": "user", "content": {"type": "resource_link", "name": "a"}}, "uri: Field required"),
            ({"role": "user", "content": {**text("x"), "annotations": {"priority": 2}}}, "annotations.priority"),
            ({"role": "user", "content": ["a"]}, "list is not content"),
            ({"role": "user", "content": None}, "NoneType is not content"),
            (Message(5), "int is not content"),
        ],
    )
    def test_of_prompts_are_those_of_the_protocol(
        self, message: Any, why: str, caplog: pytest.LogCaptureFixture
    ) -> None:
        assert is_refused(prompted([message]), caplog, why)
        assert is_refused(prompted(PromptResult(messages=[message])), caplog, why)

    @pytest.mark.parametrize("content", [BLOCK, IMAGE, FOREIGN, {**BLOCK, "data": f"data:image/png;base64,{DATA}"}])
    def test_of_prompts_may_be_dictionaries(self, content: Any) -> None:
        for message in ({"role": "user", "content": content}, content, Message(content)):
            assert prompted(message)["result"]["messages"] == [{"role": "user", "content": BLOCK}]

    @pytest.mark.parametrize(
        ("message", "why"),
        [
            ({"role": "system", "content": "x"}, "the role of a message is one of user, assistant"),
            ({"role": "user"}, 'has "role" and "content"'),
            ({"role": "user", "content": {"type": "nothing"}}, "content if its type is one of"),
            ({"role": "user", "content": {**BLOCK, "data": "no data"}}, "it is not Base64"),
            ({"role": "user", "content": {"type": "resource_link", "uri": "a:b", "name": "a"}}, "and no resources"),
            (EmbeddedResource(resource=ResourceContents(uri="a:b", text="x")), "and no resources"),
            ({"role": "assistant", "content": {"type": "tool_use", "id": "1", "name": "t"}}, "a tool_use has id"),
            ({"role": "user", "content": [{"type": "tool_result", "toolUseId": "1"}]}, "a tool_result has toolUseId"),
            (5, "int is not content"),
        ],
    )
    def test_of_samplings_are_those_of_the_protocol(self, message: Any, why: str) -> None:
        with pytest.raises(SetupError, match=why):
            Sample([message])

    def test_of_samplings_may_be_dictionaries(self) -> None:
        use = {"type": "tool_use", "id": "1", "name": "t", "input": {}}
        result = {"type": "tool_result", "toolUseId": "1", "content": [text("done")]}
        messages = [
            {"role": "user", "content": "hello"},
            {"role": "user", "content": [BLOCK, "hello"]},
            {"role": "assistant", "content": use},
            {"role": "user", "content": [{**result, "content": ["done"]}]},
        ]
        assert Sample(messages).question().params["messages"] == [
            {"role": "user", "content": text("hello")},
            {"role": "user", "content": [BLOCK, text("hello")]},
            {"role": "assistant", "content": use},
            {"role": "user", "content": [result]},
        ]


class TestData:
    @pytest.mark.parametrize(
        "data", ["no data", "iVBORw", "iVBORw====", "iVBO====", "iVBO=Rw==", "iVBO-_==", "data:image/png;base64", "é"]
    )
    def test_is_base64(self, data: str) -> None:
        for make in (ImageContent, AudioContent):
            with pytest.raises(ValidationError, match=r"not Base64|no comma") as caught:
                make(data=data)
            assert data not in str(caught.value)
        with pytest.raises(ValidationError):
            ResourceContents(blob=data)

    def test_may_be_broken_into_lines(self) -> None:
        image = ImageContent(data=encodebytes(PNG * 100).decode())
        assert image.data == b64encode(PNG * 100).decode()

    @pytest.mark.parametrize(
        ("url", "data", "kind"),
        [
            (f"data:image/jpeg;base64,{DATA}", PNG, "image/jpeg"),
            (f"DATA:image/jpeg;charset=x;BASE64,{DATA}", PNG, "image/jpeg"),
            ("data:image/svg+xml,%3Csvg/%3E", b"<svg/>", "image/svg+xml"),
            (f"data:;base64,{DATA}", PNG, "image/png"),
        ],
    )
    def test_of_a_url_is_taken_apart(self, url: str, data: bytes, kind: str) -> None:
        assert ImageContent(data=url).wire() == {
            "type": "image",
            "data": b64encode(data).decode(),
            "mimeType": kind,
        }
        assert ImageContent(data=url, mime_type="image/gif").mime_type == "image/gif"

    def test_of_a_blob_is_taken_apart(self) -> None:
        contents = ResourceContents(uri="a:b", blob="data:text/plain;base64,AAA=")
        assert contents.wire() == {"uri": "a:b", "blob": "AAA=", "mimeType": "text/plain"}

    @pytest.mark.parametrize("kind", ["png", "", "image/", "/png", "image png", "text/plain", "image/png\n", "é/png"])
    def test_has_a_type_of_its_kind(self, kind: str) -> None:
        for make in (ImageContent, AudioContent):
            with pytest.raises(ValidationError, match="mime_type"):
                make(data=PNG, mime_type=kind)

    @pytest.mark.parametrize("kind", ["png", "text plain"])
    def test_of_resources_has_a_type(self, kind: str) -> None:
        with pytest.raises(ValidationError, match="no MIME type"):
            ResourceContents(text="x", mime_type=kind)
        with pytest.raises(ValidationError, match="no MIME type"):
            ResourceLink(uri="a:b", name="a", mime_type=kind)
        with pytest.raises(SetupError, match="no MIME type"):
            MRTRServer("app").resource("a://b", mime_type=kind)(named)

    def test_of_a_resource_is_there_once(self) -> None:
        with pytest.raises(ValidationError, match="text and blob"):
            ResourceContents(text="x", blob=b"x")
        for contents in (ResourceContents(uri="a:b"), ResourceContents(text="x")):
            with pytest.raises(ValidationError, match="needs its uri, and text or blob"):
                EmbeddedResource(resource=contents)

    def test_of_a_resource_is_no_content_of_a_result(self, caplog: pytest.LogCaptureFixture) -> None:
        app = MRTRServer("app")

        @app.resource("a://b")
        def picture() -> Any:
            return IMAGE

        @app.resource("a://c")
        def pictures() -> Any:
            return [ResourceContents(text="x"), IMAGE]

        for uri in ("a://b", "a://c"):
            assert is_refused(Client(app).read(uri).message, caplog, "ImageContent is no content of a resource")

    def test_other_fields_are_within_their_bounds(self) -> None:
        with pytest.raises(ValidationError, match="size"):
            ResourceLink(uri="a:b", name="a", size=-1)
        with pytest.raises(ValidationError, match="no date of ISO 8601"):
            Annotations(last_modified="yesterday")
        with pytest.raises(ValidationError, match="total"):
            Completion(values=[], total=-1)
        with pytest.raises(SetupError, match="annotations= can't be sent: priority"):
            MRTRServer("app").resource("a://b", annotations={"priority": 2})(named)


class Measure(BaseModel):
    value: float


class Report(BaseModel):
    title: str
    more: Any = None


@dataclass
class Plot:
    picture: Any


class TestContentBesideData:
    @pytest.mark.parametrize(
        "returns",
        [
            *(Any, list, list[Any], tuple[Any, ...], list[ImageContent | dict[str, int]]),
            *(list[object], list[Any] | None, tuple[object, ...] | None),
        ],
    )
    @pytest.mark.parametrize("image", [IMAGE, FOREIGN])
    def test_a_picture_in_a_list_is_a_picture_and_data_beside_it_is_text(self, returns: Any, image: Any) -> None:
        result = called(["drawn", image, {"width": 3}, None], returns)["result"]
        assert result == {
            **result,
            "content": [text("drawn"), BLOCK, text('{"width":3}')],
            "isError": False,
        }
        assert "structuredContent" not in result

    @pytest.mark.parametrize("returns", [list, list[Any], list[object] | None])
    def test_a_list_of_data_is_data(self, returns: Any) -> None:
        for value in ([{"type": "text"}, 1], ["a", "b"], []):
            assert called(value, returns)["result"]["structuredContent"] == value

    @pytest.mark.parametrize("image", [IMAGE, FOREIGN, TextContent(text="x")])
    def test_content_within_data_is_refused(self, image: Any, caplog: pytest.LogCaptureFixture) -> None:
        why = f"The result has {type(image).__name__} within data"
        values: list[tuple[Any, Any]] = [
            ({"picture": image}, dict),
            ({"picture": image}, dict[str, Any]),
            ({"pictures": [{"first": image}]}, Any),
            (Report(title="a", more=[image]), Report),
            (Report(title="a", more=image), Any),
            (Plot(image), Plot),
            ([[image]], list),
            ([IMAGE, {"picture": image}], list),
            (ToolResult(structured_content={"picture": image}), ToolResult),
        ]
        for value, returns in values:
            assert is_refused(called(value, returns), caplog, why)

    @pytest.mark.parametrize(
        "value", [ResourceContents(text="x"), ToolResult(content=["x"]), PromptResult(messages=["x"])]
    )
    def test_so_is_what_other_handlers_return(self, value: Any, caplog: pytest.LogCaptureFixture) -> None:
        assert is_refused(called({"a": [value]}), caplog, f"has {type(value).__name__} within data")
        if not isinstance(value, ResourceContents):
            app = MRTRServer("app")
            app.resource("a://b", name="b")(lambda: value)
            assert is_refused(Client(app).read("a://b").message, caplog, "is no content of a resource")

    @pytest.mark.parametrize("returns", [dict[str, ImageContent], dict[str, list[TextContent] | None]])
    def test_a_type_with_content_within_data_is_refused(self, returns: Any) -> None:
        with pytest.raises(SetupError, match="within data, which no client would show"):
            called(None, returns)

    @pytest.mark.parametrize("value", [b"\xff", [b"\xff"]])
    def test_bytes_that_are_no_text_are_refused(self, value: Any, caplog: pytest.LogCaptureFixture) -> None:
        assert is_refused(called(value), caplog, "it has bytes that are no text")

    def test_beside_content_a_dictionary_that_looks_like_content_is_content(self) -> None:
        assert called([IMAGE, text("x"), {"type": "text"}])["result"]["content"] == [
            BLOCK,
            text("x"),
            text('{"type":"text"}'),
        ]

    @pytest.mark.parametrize("returns", [Any, list, Iterable[Any]])
    def test_a_generator_is_the_list_of_its_values(self, returns: Any) -> None:
        made = called(({"a": each} for each in range(2)), returns)["result"]
        assert made["structuredContent"] == [{"a": 0}, {"a": 1}]
        nested = called({"rows": (each for each in range(2))})["result"]
        assert nested["structuredContent"] == {"rows": [0, 1]}
        if returns != Iterable[Any]:
            assert called((each for each in (IMAGE, "x")), returns)["result"]["content"] == [BLOCK, text("x")]

    def test_data_that_looks_like_content_stays_data(self) -> None:
        for value in ({"type": "text", "text": "x"}, [{"type": "image"}]):
            assert called(value)["result"]["structuredContent"] == value


class Level(Enum):
    LOW = "low"


class Item(BaseModel):
    count: int = 1
    price: Decimal = Decimal(1)
    level: Level = Level.LOW
    page: AnyUrl | None = None
    tags: list[str] = []


@dataclass
class Row:
    count: int
    level: Level = Level.LOW
    rows: list["Row"] = field(default_factory=list)


class Box(BaseModel):
    row: Row

    @computed_field  # type: ignore[prop-decorator]
    @property
    def half(self) -> int:
        return self.row.count / 2  # type: ignore[return-value]


def changed(**values: Any) -> Item:
    item = Item()
    for name, value in values.items():
        setattr(item, name, value)
    return item


class TestObjects:
    """Nobody has validated a dataclass, or what was assigned to a model."""

    @pytest.mark.parametrize(
        ("value", "returns", "why"),
        [
            (Row(None), Row, "count: Input should be a valid integer"),  # type: ignore[arg-type]
            (Row("no number"), Row, "count: Input should be a valid integer"),  # type: ignore[arg-type]
            ([Row(1, rows=[Row(1.5)])], list[Row], "0.rows.0.count: Input should be a valid integer"),  # type: ignore[arg-type]
            (Box(row=Row(1)), Box, "half: Input should be a valid integer"),
            (changed(level="secret"), Item, "level: Input should be 'low'"),
            (changed(price=5), Item, "price: Input should be a valid string"),
            (changed(tags=["a", 5]), Item | None, "tags.1: Input should be a valid string"),
            (Item.model_construct(), Item, None),
            (Report.model_construct(more=1), Report, "title: Field required"),  # type: ignore[call-arg]
            ({"count": None}, Annotated[ToolResult, Item], "count: Input should be a valid integer"),
        ],
    )
    def test_are_what_their_schema_promises(
        self, value: Any, returns: Any, why: str | None, caplog: pytest.LogCaptureFixture
    ) -> None:
        if why is None:
            assert called(value, returns)["result"]["structuredContent"]["count"] == 1
            return
        value = ToolResult(structured_content=value) if isinstance(value, dict) else value
        assert is_refused(called(value, returns), caplog, why)
        assert "secret" not in caplog.text

    def test_may_have_other_values_that_are_written_alike(self) -> None:
        item = changed(count=2.0, level="low", page="https://example.com")
        assert called(item, Item)["result"]["structuredContent"] == {
            "count": 2.0,
            "price": "1",
            "level": "low",
            "page": "https://example.com",
            "tags": [],
        }
        assert called(Box(row=Row(4, "low")), Box)["result"]["structuredContent"]["half"] == 2  # type: ignore[arg-type]
        assert called(changed(count="5"))["result"]["structuredContent"]["count"] == "5"


class TestToolResults:
    @pytest.mark.parametrize(
        ("value", "as_text"), [({"a": 1}, '{"a":1}'), ([1, 2], "[1,2]"), (5, "5"), (False, "false"), ("x", "x")]
    )
    def test_structured_content_alone_is_text_too(self, value: Any, as_text: str) -> None:
        result = called(ToolResult(structured_content=value), ToolResult)["result"]
        assert result["content"] == [text(as_text)]
        assert result["structuredContent"] == value

    def test_a_model_is_text_as_declared(self) -> None:
        result = called(ToolResult(structured_content={"title": "a"}), Annotated[ToolResult, Report])["result"]
        assert json.loads(result["content"][0]["text"]) == result["structuredContent"] == {"title": "a", "more": None}

    def test_content_may_be_dictionaries(self, caplog: pytest.LogCaptureFixture) -> None:
        assert called(ToolResult(content=[BLOCK, text("x")]), ToolResult)["result"]["content"] == [BLOCK, text("x")]
        wrong: list[tuple[Any, str]] = [
            ({"width": 3}, "content if its type is one of"),
            ({"type": "tool_use"}, "content if its type is one of"),
            ({**BLOCK, "mimeType": "png"}, "this image content can't be sent: mimeType"),
        ]
        for block, why in wrong:
            assert is_refused(called(ToolResult(content=[block]), ToolResult), caplog, why)

    @pytest.mark.parametrize("number", [math.nan, math.inf])
    def test_numbers_that_json_has_not_are_refused(self, number: float, caplog: pytest.LogCaptureFixture) -> None:
        for value in (
            ToolResult(structured_content={"a": number}),
            ToolResult(structured_content=[number]),
            [IMAGE, {"a": number}],
            Measure(value=number),
        ):
            assert is_refused(called(value), caplog, "NaN or an infinity, which JSON can't hold")
        with pytest.raises(ValidationError, match="NaN"):
            ToolResult(meta={"a": number})
        with pytest.raises(ValidationError):
            Annotations(priority=number)


class Stock(BaseModel):
    """What is left of something."""

    title: str
    left: int


BOOKS = Stock(title="Dune", left=3)
SHORT = "3 of Dune"


def shortly(stock: Any) -> Any:
    return f"{stock.left} of {stock.title}"


class TestText:
    """`@app.tool(text=...)`: what a person and a model read of a structured result."""

    def told(self, value: Any, returns: Any = Any, says: Any = shortly) -> Any:
        def tool() -> Any:
            return value

        tool.__annotations__["return"] = returns
        app = MRTRServer("app")
        app.tool(text=says)(tool)
        return Client(app).call("tool").message["result"]

    @pytest.mark.parametrize("returns", [Stock, Any, Stock | None, Stock | str, Annotated[ToolResult, Stock]])
    def test_it_stands_beside_the_value_whatever_is_declared(self, returns: Any) -> None:
        result = self.told(BOOKS, returns)
        assert result["content"] == [text(SHORT)]
        assert result["structuredContent"] == {"title": "Dune", "left": 3}

    def test_it_is_made_from_what_the_function_returned(self) -> None:
        several = (stock for stock in [BOOKS, BOOKS])
        result = self.told(several, Iterable[Stock], says=lambda stocks: f"{len(stocks)} of {stocks[0].title}")
        assert result["content"] == [text("2 of Dune")]
        assert result["structuredContent"] == [{"title": "Dune", "left": 3}] * 2

    def test_it_may_be_content(self) -> None:
        result = self.told(BOOKS, Stock, says=lambda stock: [shortly(stock), IMAGE])
        assert result["content"] == [text(SHORT), BLOCK]

    def test_what_a_tool_result_says_itself_goes_before_it(self) -> None:
        whole = ToolResult(content=["mine"], structured_content=BOOKS)
        assert self.told(whole, Stock)["content"] == [text("mine")]
        assert self.told(ToolResult(structured_content=BOOKS), Stock)["content"] == [text(SHORT)]
        assert self.told(ToolResult(content=["sold out"], is_error=True), Stock)["content"] == [text("sold out")]

    def test_what_is_text_already_stays(self) -> None:
        assert self.told("none left", Stock | str) == {**self.told("none left"), "content": [text("none left")]}

    @pytest.mark.parametrize(
        ("says", "why"),
        [(lambda stock: stock.left, "text= returned a int"), (lambda stock: stock.right, "has no attribute 'right'")],
    )
    def test_one_that_fails_is_the_author_s_mistake(
        self, says: Any, why: str, caplog: pytest.LogCaptureFixture
    ) -> None:
        app = MRTRServer("app")
        app.tool(name="tool", text=says)(lambda: BOOKS)
        assert is_refused(Client(app).call("tool").message, caplog, why)

    @pytest.mark.parametrize("returns", [str, ToolResult, None, list[TextContent], str | ImageContent])
    def test_it_is_refused_where_there_is_nothing_structured(self, returns: Any) -> None:
        with pytest.raises(SetupError, match="text= is for structured results"):
            self.told("x", returns)

    def test_a_tool_that_yields_has_none(self) -> None:
        async def tool() -> AsyncIterator[str]:
            yield "x"

        with pytest.raises(SetupError, match="an async generator yields its text itself"):
            MRTRServer("app").tool(text=shortly)(tool)

    def test_it_is_a_plain_function(self) -> None:
        async def slowly(stock: Stock) -> str:
            return ""

        with pytest.raises(SetupError, match="text= takes a plain function of the result"):
            self.told(BOOKS, Stock, says=slowly)
        with pytest.raises(SetupError, match="text= takes a function of the result; it got str"):
            self.told(BOOKS, Stock, says="stock")


class TestMeta:
    @pytest.mark.parametrize(
        "key",
        [
            *("a b", "-a", "a-", "_a", "é", "1a/b", "a-/b", ".a/b", "a..b/c", "a/b/c", "/a", "a/-"),
            *("io.modelcontextprotocol/x", "dev.mcp/x", "com.mcp.tools/", "org.ModelContextProtocol.api/x"),
            *("modelcontextprotocol.io/x", "mcp.dev/x", "progressToken", 5),
        ],
    )
    def test_malformed_and_reserved_keys_are_refused(self, key: Any) -> None:
        meta = {key: 1}
        for option in (MRTRServer("app").tool, MRTRServer("app").prompt):
            with pytest.raises(SetupError, match="_meta"):
                option(meta=meta)(named)
        with pytest.raises(SetupError, match="_meta"):
            MRTRServer("app").resource("a://b", meta=meta)(named)
        for make in (
            lambda: ToolResult(meta=meta),
            lambda: PromptResult(messages=[], meta=meta),
            lambda: TextContent(text="x", meta=meta),
            lambda: ResourceContents(text="x", meta=meta),
        ):
            with pytest.raises(ValidationError, match="meta"):
                make()

    @pytest.mark.parametrize(
        "key",
        ["a", "a.b-c_d", "com.example/a", "com.example.mcp/a", "com.example/", "ui", "ui/resourceUri", "mcp/a", "a1"],
    )
    def test_all_others_are_sent(self, key: str) -> None:
        meta = {key: {"a": [1]}}
        app = MRTRServer("app")

        @app.tool(meta=meta)
        def tool() -> ToolResult:
            return ToolResult(content=["x"], meta=meta)

        assert Client(app).request("tools/list").result["tools"][0]["_meta"] == meta
        assert Client(app).call("tool").result["_meta"][key] == {"a": [1]}

    def test_so_are_those_of_a_client_that_has_two_slashes(self) -> None:
        assert ToolResult(meta={"openai/toolInvocation/invoking": "Looking"}).meta

    def test_is_json(self) -> None:
        with pytest.raises(SetupError, match="can't be written as JSON"):
            MRTRServer("app").tool(meta={"a": object()})(named)


class TestCompletions:
    def test_a_text_is_no_list_of_its_letters(self, caplog: pytest.LogCaptureFixture) -> None:
        app = MRTRServer("app")

        @app.prompt
        def greet(name: str) -> str:
            return name

        @app.completion("name", prompt="greet")
        def names(value: str) -> Any:
            return "Ann"

        ref = {"type": "ref/prompt", "name": "greet"}
        reply = Client(app).request("completion/complete", {"ref": ref, "argument": {"name": "name", "value": "A"}})
        assert "error" in reply.message
        assert "return a list of values" in caplog.text
