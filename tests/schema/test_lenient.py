"""JSON within a string, and null for what is absent, are read where the schema leaves no other meaning."""

from collections.abc import Sequence
from enum import Enum, IntEnum
from typing import Annotated, Any, Literal

import pytest
from pydantic import AfterValidator, BaseModel, BeforeValidator, Field, PositiveInt, Secret

from mrtr_server import Context, Limits, MRTRServer
from mrtr_server.testing import Client, accept, yes

ONES = f"[{'1,' * 39}1]"


class Order(BaseModel):
    title: str
    copies: int = 1
    note: str | None = None


class Level(IntEnum):
    LOW = 1
    HIGH = 2


class Mixed(Enum):
    ONE = 1
    X = "x"


def called(annotation: Any, default: Any = ..., /, **options: Any) -> Any:
    """Return what calls a tool of one argument, and returns its `repr`; or what is wrong with the argument."""
    app = MRTRServer("lenient", **options)

    def tool(value: Any = default) -> str:
        return repr(value)

    if default is ...:
        tool.__defaults__ = None
    tool.__annotations__ = {"value": annotation, "return": str}
    app.tool(tool)
    client = Client(app)

    def call(**arguments: Any) -> str:
        reply = client.call("tool", **arguments)
        return f"refused: {reply.failure}" if reply.failed else reply.text

    return call


class TestTexts:
    @pytest.mark.parametrize(
        ("annotation", "sent", "got"),
        [
            (list[int], "[1, 2]", "[1, 2]"),
            (list[int], " [1.0]\n", "[1]"),
            (dict[str, Any], '{"a": "[1]"}', "{'a': '[1]'}"),
            (Order, '{"title": "Emma"}', "Order(title='Emma', copies=1, note=None)"),
            (Order | None, '{"title": "Emma"}', "Order(title='Emma', copies=1, note=None)"),
            (list[Order] | Order, '{"title": "Emma"}', "Order(title='Emma', copies=1, note=None)"),
            (set[str], '["a", "a"]', "{'a'}"),
            (tuple[int, str], '[1, "a"]', "(1, 'a')"),
        ],
    )
    def test_a_string_of_json_is_read_where_the_type_takes_none(self, annotation: Any, sent: str, got: str) -> None:
        assert called(annotation)(value=sent) == got

    @pytest.mark.parametrize(
        "annotation", [str, str | None, Any, str | list[int], Annotated[Any, Field(description="any")]]
    )
    def test_a_string_stays_one_where_the_type_takes_it(self, annotation: Any) -> None:
        assert called(annotation)(value="[1, 2]") == repr("[1, 2]")

    @pytest.mark.parametrize(
        ("annotation", "sent"),
        [
            (list[int], '"[1]"'),  # once alone
            (list[list[int]], '["[1]"]'),  # not within
            (list[int], "[1"),
            (list[int], "[NaN]"),
            (dict[str, int], '{"a": "1"}'),
            (int, "5"),
            (bool, "true"),
            (float, "1.5"),
            (int, "[5]"),
        ],
    )
    def test_nothing_else_is_read(self, annotation: Any, sent: str) -> None:
        assert called(annotation)(value=sent).startswith("refused: The arguments of tool do not fit:\n- value")

    def test_the_mistake_is_that_of_what_the_string_holds(self) -> None:
        assert "- value.1: Input should be a valid integer" in called(list[int])(value='[1, "x"]')

    @pytest.mark.parametrize(
        ("sent", "other"),
        [(f"[{ONES},{ONES}]", "[]"), ("[[[[[[[1]]]]]]]", "[]"), (ONES, ONES), ("[1e999]", "[]")],
        ids=["values", "depth", "together", "overflow"],
    )
    def test_a_string_may_cost_no_more_than_a_request(self, sent: str, other: str) -> None:
        app = MRTRServer("lenient", limits=Limits(values=60, json_depth=9))

        @app.tool
        def tool(value: list[Any], other: list[int]) -> str:
            return str(len(value) + len(other))

        assert Client(app).call("tool", value=ONES, other="[]").text == "40"
        assert Client(app).call("tool", value="[[[[[[]]]]]]", other="[]").text == "1"
        assert Client(app).call("tool", value=sent, other=other).failed

    @pytest.mark.parametrize("by_name", [True, False])
    def test_raw_schemas_read_it_too(self, by_name: bool) -> None:
        app = MRTRServer("lenient")
        schema = {
            "type": "object",
            "properties": {
                "values": {"$ref": "#/$defs/Values"},
                "free": {"type": ["array", "string"]},
                "number": {"type": "number"},
                "hidden": {"anyOf": [{"type": "object"}, {"enum": [1, None]}]},
            },
            "$defs": {"Values": {"type": "array", "items": {"type": "integer"}}},
            "required": ["values"],
        }

        def named(**arguments: Any) -> str:
            return repr(arguments)

        def whole(arguments: dict[str, Any]) -> str:
            return repr(arguments)

        app.tool(name="tool", input_schema=schema)(named if by_name else whole)

        client = Client(app)
        assert client.call("tool", values="[1]", free="[2]").text == "{'values': [1], 'free': '[2]'}"
        assert client.call("tool", values="[1]", hidden='{"a": null}').text == "{'values': [1], 'hidden': {'a': None}}"
        assert client.call("tool", values=[1], number=None, hidden=None).text == "{'values': [1], 'hidden': None}"
        assert client.call("tool", values=[1], number="1").failed
        assert client.call("tool", values=None).failed

    def test_a_flow_is_bound_to_what_was_sent(self) -> None:
        app = MRTRServer("lenient")

        @app.tool
        async def order(ctx: Context, values: list[int]) -> str:
            await ctx.confirm("Sure?")
            return str(sum(values))

        flow = Client(app).flow("order", values="[1, 2]")
        flow.start()
        assert flow.answer(confirm=yes).text == "3"


class TestNulls:
    def test_null_is_absent_where_there_is_a_default_and_the_type_takes_none(self) -> None:
        assert called(int, 5)(value=None) == "5"
        assert called(list[int], Field(default_factory=list))(value=None) == "[]"
        assert called(Literal["a", "b"], "b")(value=None) == "'b'"

    def test_null_stays_where_the_type_takes_it(self) -> None:
        assert called(int | None, 5)(value=None) == "None"
        assert called(Any, 5)(value=None) == "None"

    def test_null_is_refused_where_there_is_no_default(self) -> None:
        assert "- value: Input should be a valid integer" in called(int)(value=None)

    def test_prompts_and_templates_have_the_same(self) -> None:
        app = MRTRServer("lenient")

        @app.prompt
        def greet(name: str = "you", times: int = 1) -> str:
            return f"{name} {times}"

        @app.resource("shelf://{name}/{count}")
        def shelf(name: str, count: int) -> str:
            return f"{name} {count}"

        client = Client(app)
        none: Any = None
        prompted = client.get_prompt("greet", name=none, times="2")
        assert prompted.message["result"]["messages"][0]["content"]["text"] == "you 2"
        assert client.read("shelf://a/2").content[0]["text"] == "a 2"


class TestJsonTypes:
    @pytest.mark.parametrize(
        ("annotation", "taken", "refused"),
        [
            (int, [5, 5.0], ["5", "1.0", True, 1.5]),
            (PositiveInt, [5, 5.0], ["5", True, 0]),
            (float, [1, 1.5], ["1.5", True]),
            (bool, [True], ["true", 1, 0, "yes"]),
            (Literal[1, 2], [1, 1.0], ["1", True]),
            (Literal[True], [True], [1, "true"]),
            (Level, [1, 1.0], ["1", True]),
            (Mixed, [1, "x"], ["1", True]),
            (int | None, [5.0, None], ["5", False]),
            (list[int], [[1, 2.0]], [["1"], [True]]),
            (Sequence[int], [[1, 2.0]], [["1"], [True]]),
            (Secret[int], [1, 2.0], ["1", True]),
            (Annotated[int, AfterValidator(abs)], [1, 2.0], ["1", True]),
            (dict[str, int], [{"1": 1}], [{"1": "1"}]),
        ],
    )
    def test_a_number_takes_numbers_and_a_boolean_booleans(self, annotation: Any, taken: Any, refused: Any) -> None:
        call = called(annotation)
        assert not [each for each in taken if call(value=each).startswith("refused")]
        assert not [each for each in refused if not call(value=each).startswith("refused")]

    def test_a_union_takes_what_was_sent(self) -> None:
        assert called(int | str)(value="5") == "'5'"
        assert called(int | float)(value=1.0) == "1.0"
        assert called(bool | int)(value=1) == "1"

    def test_a_whole_number_is_an_integer_within_models_too(self) -> None:
        assert called(Order)(value={"title": "Emma", "copies": 2.0}) == "Order(title='Emma', copies=2, note=None)"
        assert called(dict[int, int])(value={"1": 2.0}) == "{1: 2}"

    def test_what_an_author_converts_stays_as_it_is(self) -> None:
        def strip(value: Any) -> Any:
            return value.strip(" €") if isinstance(value, str) else value

        assert called(Annotated[int, BeforeValidator(strip)])(value="5 €") == "5"
        assert called(Annotated[int, Field(strict=False)])(value="5") == "5"

    def test_a_null_in_an_answer_is_absent_likewise(self) -> None:
        app = MRTRServer("lenient")

        @app.tool
        async def order(ctx: Context) -> str:
            return repr(await ctx.elicit("What?", Order))

        flow = Client(app).flow("order")
        flow.start()
        assert flow.answer(order=accept(title=None, copies=None, note=None)).asked
        assert flow.answer(order=accept(title="Emma", copies=None, note=None)).text == (
            "Order(title='Emma', copies=1, note=None)"
        )

    @pytest.mark.parametrize("sent", ["5", True, "[5]"])
    def test_answers_have_the_same(self, sent: Any) -> None:
        app = MRTRServer("lenient")

        @app.tool
        async def count(ctx: Context) -> str:
            return str(await ctx.elicit("How many?", int))

        flow = Client(app).flow("count")
        flow.start()
        assert flow.answer(value=accept(value=sent)).asked
        assert flow.answer(value=accept(value=5.0)).text == "5"
