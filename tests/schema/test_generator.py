"""What lists show of a type: clients can read it whatever they drop, and results fit it, by their formats, too."""

import json
import re
from collections.abc import Callable
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum
from ipaddress import IPv6Address
from typing import Annotated, Any, Literal
from uuid import UUID

import pytest
from jsonschema import Draft7Validator, Draft202012Validator, FormatChecker
from pydantic import (
    AnyUrl,
    AwareDatetime,
    BaseModel,
    ConfigDict,
    Field,
    PlainSerializer,
    SecretStr,
    SerializeAsAny,
    WrapSerializer,
    computed_field,
    create_model,
    field_serializer,
    model_serializer,
)
from pydantic.json_schema import SkipJsonSchema

from mrtr_server import MRTRServer, ToolResult
from mrtr_server.schema.generator import LARGEST
from mrtr_server.testing import Client

# As the official TypeScript client checks formats: those of ajv-formats, which know the letters of ASCII alone.
CHECKED = {
    "date": r"\d{4}-\d\d-\d\d",
    "time": r"\d\d:\d\d:\d\d(\.\d+)?(z|[+-]\d\d(:?\d\d)?)",
    "date-time": r"\d{4}-\d\d-\d\d[t\s]\d\d:\d\d:\d\d(\.\d+)?(z|[+-]\d\d(:?\d\d)?)",
    "duration": r"P(?!$)((\d+Y)?(\d+M)?(\d+D)?(T(?=\d)(\d+H)?(\d+M)?(\d+S)?)?|(\d+W)?)",
    "uuid": r"(urn:uuid:)?[0-9a-f]{8}-([0-9a-f]{4}-){3}[0-9a-f]{12}",
    "uri": r"[a-z][a-z0-9+\-.]*:([a-z0-9\-._~!$&'()*+,;=:@/?#]|%[0-9a-f]{2})*",
    "ipv6": r"[0-9a-f:.]+",
}
formats = FormatChecker(formats=())
for name, pattern in CHECKED.items():
    compiled = re.compile(pattern, re.IGNORECASE)
    formats.checks(name)(lambda value, compiled=compiled: compiled.fullmatch(value) is not None)


class Size(Enum):
    SMALL = "s"
    LARGE = "l"


class Address(BaseModel):
    """Where somebody lives."""

    city: str
    kind: Size = Size.SMALL


class Node(BaseModel):
    name: str
    children: "list[Node]" = []


class Cat(BaseModel):
    kind: Literal["cat"] = "cat"


class Dog(BaseModel):
    kind: Literal["dog"] = "dog"
    friends: list[Address] = []


def listed(function: Any) -> Any:
    app = MRTRServer("app")
    app.tool(name="tool")(function)
    return Client(app).request("tools/list").result["tools"][0]


def takes(annotation: Any) -> Any:
    """The input schema of a tool with one argument of a type."""

    def tool(it: Any) -> None: ...

    tool.__annotations__["it"] = annotation
    return listed(tool)["inputSchema"]


def result(annotation: Any, value: Any, **options: Any) -> tuple[Any, Any]:
    """The output schema of a tool and the structured content of its result, as a client has both."""

    def tool() -> Any:
        return value

    tool.__annotations__["return"] = annotation
    app = MRTRServer("app")
    app.tool(tool)
    client = Client(app, **options)
    return client.request("tools/list").result["tools"][0]["outputSchema"], client.call("tool").structured


class TestReferences:
    def test_what_is_referred_to_stands_in_place(self) -> None:
        def tool(to: Address, size: Annotated[Size, Field(description="How large")] = Size.SMALL) -> None: ...

        schema = listed(tool)["inputSchema"]
        assert "$defs" not in schema
        kind = {"enum": ["s", "l"], "type": "string", "default": "s"}
        assert schema["properties"]["size"] == {**kind, "description": "How large"}
        assert schema["properties"]["to"] == {
            "type": "object",
            "description": "Where somebody lives.",
            "properties": {"city": {"type": "string"}, "kind": kind},
            "required": ["city"],
        }

    def test_a_union_with_a_tag_names_no_definitions(self) -> None:
        schema = takes(list[Annotated[Cat | Dog, Field(discriminator="kind")]])
        assert "#/" not in json.dumps(schema)
        choices = schema["properties"]["it"]["items"]["oneOf"]
        assert [each["properties"]["kind"]["const"] for each in choices] == ["cat", "dog"]

    def test_the_choices_of_a_union_keep_their_names(self) -> None:
        class Fish(BaseModel):
            model_config = ConfigDict(title="A Fish")
            kind: Literal["fish"] = "fish"

        choices = takes(Cat | Dog | Fish | None)["properties"]["it"]["anyOf"]
        assert [each.get("title") for each in choices] == ["Cat", "Dog", "A Fish", None]
        assert "title" not in json.dumps(takes(Address | None))

    def test_what_refers_to_itself_stays_a_reference_with_nothing_beside_it(self) -> None:
        def tool(tree: Annotated[Node, Field(description="A tree")], size: Size) -> None: ...

        schema = listed(tool)["inputSchema"]
        assert list(schema["$defs"]) == ["Node"]
        assert schema["properties"]["tree"] == {"allOf": [{"$ref": "#/$defs/Node"}], "description": "A tree"}
        assert schema["properties"]["size"] == {"enum": ["s", "l"], "type": "string"}
        Draft202012Validator.check_schema(schema)
        validator = Draft202012Validator(schema)
        tree = {"name": "a", "children": [{"name": "b"}]}
        assert validator.is_valid({"tree": tree, "size": "s"})
        assert not validator.is_valid({"tree": {"name": "a", "children": [{}]}, "size": "s"})

    def test_a_schema_stays_small(self) -> None:
        levels: list[Any] = [create_model("Level0", size=(Size, ...))]
        for number in range(1, 13):
            levels.append(create_model(f"Level{number}", left=(levels[-1], ...), right=(levels[-1], ...)))
        schema = takes(levels[-1])
        assert len(json.dumps(schema)) < 12_000
        assert schema["properties"]["it"]  # and what is small stands in place
        assert "Size" not in schema["$defs"]
        assert "Level0" not in schema["$defs"]
        value: Any = {"size": "s"}
        for _ in range(12):
            value = {"left": value, "right": value}
        Draft202012Validator(schema).validate({"it": value})

    def test_a_large_schema_does_not_grow(self) -> None:
        fields: Any = {f"field_{number}": (int, Field(description="x" * 50)) for number in range(900)}
        wide = create_model("Wide", **fields)
        schema = takes(tuple[wide, wide])
        assert LARGEST < len(json.dumps(schema)) < 2 * LARGEST
        assert schema["properties"]["it"]["prefixItems"] == [{"$ref": "#/$defs/Wide"}] * 2

    def test_a_parameter_may_be_called_like_the_keyword(self) -> None:
        def tool(it: Annotated[Size, Field(alias="$ref")], properties: Size) -> None: ...

        choice = {"enum": ["s", "l"], "type": "string"}
        assert listed(tool)["inputSchema"]["properties"] == {"$ref": choice, "properties": choice}


class TestObjects:
    @pytest.mark.parametrize("version", ["2025-06-18", "2025-11-25", "2026-07-28"])
    @pytest.mark.parametrize(
        "annotation",
        [Node, Annotated[Node, Field(description="A tree")], Annotated[ToolResult, Node]],
        ids=["recursive", "described", "declared"],
    )
    def test_an_object_is_one_at_the_top_in_every_version(self, annotation: Any, version: str) -> None:
        value: Any = Node(name="a", children=[Node(name="b")])
        content = {"name": "a", "children": [{"name": "b", "children": []}]}
        if annotation == Annotated[ToolResult, Node]:
            value = ToolResult(structured_content=value)
        schema, found = result(annotation, value, era=version)
        assert found == content
        assert schema["type"] == "object"
        assert list(schema["properties"]) == ["name", "children"]
        Draft7Validator(schema).validate(found)

    def test_so_is_one_whose_serializer_is_not_annotated(self) -> None:
        class Money(BaseModel):
            cents: int

            @model_serializer(mode="wrap")
            def write(self, handler: Any):  # type: ignore[no-untyped-def]
                return {"euros": str(handler(self)["cents"] / 100)}

        schema, found = result(Money, Money(cents=150), era="2025-11-25")
        assert (schema, found) == ({"type": "object"}, {"euros": "1.5"})

    def test_what_a_serializer_makes_of_a_model_may_be_anything_else(self) -> None:
        class Money(BaseModel):
            cents: int

            @model_serializer
            def write(self):  # type: ignore[no-untyped-def]
                return f"{self.cents} cents"

        assert result(Money, Money(cents=1)) == ({}, "1 cents")
        assert result(Annotated[Cat, PlainSerializer(lambda cat: cat.kind)], Cat()) == ({}, "cat")


class Stamps(BaseModel):
    at: datetime
    opens: time
    day: date
    exact: AwareDatetime
    named: Annotated[datetime, PlainSerializer(lambda value: f"on {value:%A}")]
    typed: Annotated[datetime, PlainSerializer(lambda value: value.year, return_type=int)]

    @computed_field  # type: ignore[prop-decorator]
    @property
    def again(self) -> datetime:
        return self.at


STAMPS = {
    **dict.fromkeys(("at", "named", "typed"), datetime(2026, 5, 1, 9, 30)),
    "opens": time(9),
    "day": date(2026, 5, 1),
    "exact": datetime(2026, 5, 1, tzinfo=UTC),
}


class Written(BaseModel):
    number: int
    wrapped: Annotated[int, WrapSerializer(lambda value, handler: [handler(value)])] = 1

    @field_serializer("number")
    def write(self, value: int):  # type: ignore[no-untyped-def]
        return f"number {value}"


class Strict(BaseModel):
    model_config = ConfigDict(extra="forbid")
    a: int = 1


class Stricter(Strict):
    b: int = 2


class Secret(BaseModel):
    model_config = ConfigDict(frozen=True)
    word: Annotated[SecretStr, Field(min_length=12)]


class TestPromises:
    @pytest.mark.parametrize(
        ("annotation", "value"),
        [
            (Stamps, STAMPS),
            (Written, Written(number=1)),
            (dict[datetime, int], {datetime(2026, 5, 1): 1}),
            (list[timedelta], [timedelta(seconds=-1), timedelta(seconds=0.5), timedelta(days=400)]),
            (list[Decimal], [Decimal("1E+3")]),
            (AnyUrl, AnyUrl("http://example.com/a|b")),
            (IPv6Address, IPv6Address("fe80::1%eth0")),
            (re.Pattern[str], re.compile("(?P<name>a)")),
            (UUID, UUID(int=1)),
            (dict[Literal["a"], Annotated[bytes, Field(max_length=2)]], {"a": "é".encode()}),
            (set[Secret], {Secret(word=SecretStr("x" * 12)), Secret(word=SecretStr("y" * 12))}),
            (tuple[Annotated[float, Field(multiple_of=0.1)]], (0.1 * 3,)),
            (list[SerializeAsAny[Strict]], [Stricter()]),
            (dict[Annotated[str, Field(pattern=r"^\pL+$")], int], {"a": 1}),
        ],
        ids=str,
    )
    def test_a_result_fits_what_is_declared_of_it_by_its_formats_too(self, annotation: Any, value: Any) -> None:
        schema, found = result(annotation, value)
        for draft in (Draft7Validator, Draft202012Validator):
            draft.check_schema(schema)
            draft(schema, format_checker=formats).validate(found)
        assert "pattern" not in json.dumps(schema).lower()

    def test_what_clients_shall_not_choose_is_written_all_the_same(self) -> None:
        class Found(BaseModel):
            count: int | SkipJsonSchema[None] = None
            made_by: int | Callable[[], int] = 1

        schema, found = result(Found, Found())
        Draft202012Validator(schema).validate(found)
        assert schema["properties"]["count"]["anyOf"] == [{"type": "integer"}, {"type": "null"}]
        assert takes(Found)["properties"]["it"]["properties"]["count"]["type"] == "integer"

    def test_what_is_sure_is_promised(self) -> None:
        properties = result(Stamps, STAMPS)[0]["properties"]
        assert properties["day"] == {"type": "string", "format": "date"}
        assert properties["exact"] == {"type": "string", "format": "date-time"}
        assert properties["at"] == {"type": "string"}
        assert properties["typed"] == {"type": "integer"}
        assert properties["named"] == {}

    def test_arguments_keep_their_formats_and_patterns(self) -> None:
        def tool(at: datetime, code: Annotated[str, Field(pattern="^[A-Z]+$")]) -> None: ...

        properties = listed(tool)["inputSchema"]["properties"]
        assert properties["at"] == {"type": "string", "format": "date-time"}
        assert properties["code"]["pattern"] == "^[A-Z]+$"
