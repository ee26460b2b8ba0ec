"""From a signature to JSON Schema and back: what validates is what arrives, and what can't be is refused at once."""

import __future__

import json
import math
import re
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import date, datetime
from decimal import Decimal
from enum import Enum
from inspect import Parameter, signature
from keyword import iskeyword
from pathlib import Path
from threading import Lock
from time import process_time
from typing import Annotated, Any, ClassVar, Literal
from uuid import UUID

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st
from jsonschema import Draft202012Validator
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, create_model
from typing_extensions import TypedDict

from mrtr_server import Context, Header, MRTRServer, SetupError
from mrtr_server.errors import ArgumentsMisfit
from mrtr_server.protocol.header_params import HeaderParameter, header_parameters
from mrtr_server.registration.handlers import compile_handler
from mrtr_server.schema.arguments import SignatureArguments
from mrtr_server.schema.forms import form
from mrtr_server.schema.misfits import MOST_PROBLEMS
from mrtr_server.schema.structured import Structured


class Color(Enum):
    RED = "red"
    BLUE = "blue"


class Point(BaseModel):
    x: int
    y: float = 0.5


class Line(BaseModel):
    points: list[Point] = []
    label: str | None = None


@dataclass
class Size:
    width: int
    unit: Literal["px", "em"] = "px"


class Place(TypedDict):
    city: str
    zip: int


def arguments_of(function: Callable[..., Any]) -> SignatureArguments:
    handler = compile_handler(function, function.__name__, {})
    return SignatureArguments(function.__name__, handler.parameters)


def problems(arguments: SignatureArguments, raw: dict[str, Any]) -> list[tuple[str, str]]:
    with pytest.raises(ArgumentsMisfit) as caught:
        arguments.validate(raw)
    return caught.value.problems


def valid(schema: Any, instance: Any) -> bool:
    return Draft202012Validator(schema).is_valid(instance)


def nodes(schema: Any) -> Iterator[dict[str, Any]]:
    """Every object within a schema."""
    if isinstance(schema, dict):
        yield schema
        for value in schema.values():
            yield from nodes(value)
    elif isinstance(schema, list):
        for value in schema:
            yield from nodes(value)


def agrees(value: Any, sent: Any, annotation: Any) -> bool:
    """Whether a value is what was sent, besides what its type has not asked for or has added."""
    adapter: TypeAdapter[Any] = TypeAdapter(annotation)
    schema = adapter.json_schema()
    defaults = {"unit": "px"} if annotation is Size else {}  # a dataclass does not know which of its fields were set
    return bool(
        adapter.dump_python(value, mode="json", exclude_unset=True) == with_defaults(sent, schema, schema, defaults)
    )


def with_defaults(sent: Any, schema: Any, root: Any, defaults: dict[str, Any]) -> Any:
    """What was sent, without the properties that the schema does not name."""
    if "$ref" in schema:
        schema = root["$defs"][schema["$ref"].rpartition("/")[2]]
    if isinstance(sent, dict) and "properties" in schema:
        fields = schema["properties"]
        known = {name: with_defaults(item, fields[name], root, {}) for name, item in sent.items() if name in fields}
        return {**defaults, **known}
    if isinstance(sent, list) and "items" in schema:
        return [with_defaults(item, schema["items"], root, defaults) for item in sent]
    return sent


numbers = st.integers(-(2**53), 2**53) | st.floats(allow_nan=False, allow_infinity=False, width=32)
json_values = st.recursive(
    st.none() | st.booleans() | numbers | st.text(max_size=4) | st.sampled_from(["red", "px", "x", "points"]),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["x", "y", "city", "a"]), inner, max_size=3)
    ),
    max_leaves=5,
)

# Each type, with JSON that is of it.
TYPES: dict[Any, st.SearchStrategy[Any]] = {
    str: st.text(max_size=5),
    int: st.integers(-(2**70), 2**70),
    float: numbers,
    bool: st.booleans(),
    Any: json_values,
    Color: st.sampled_from(["red", "blue"]),
    Literal["on", "off"]: st.sampled_from(["on", "off"]),
    Literal[1, 2]: st.sampled_from([1, 2]),
    Point: st.fixed_dictionaries({"x": st.integers()}, optional={"y": numbers}),
    Line: st.fixed_dictionaries(
        {}, optional={"points": st.lists(st.fixed_dictionaries({"x": st.integers()}), max_size=2), "label": st.text()}
    ),
    Size: st.fixed_dictionaries({"width": st.integers()}, optional={"unit": st.sampled_from(["px", "em"])}),
    Place: st.fixed_dictionaries({"city": st.text(max_size=3), "zip": st.integers()}),
    list[int]: st.lists(st.integers(), max_size=3),
    list[Point]: st.lists(st.fixed_dictionaries({"x": st.integers(), "y": numbers}), max_size=3),
    dict[str, float]: st.dictionaries(st.text(max_size=2), numbers, max_size=2),
    tuple[int, str]: st.tuples(st.integers(), st.text(max_size=2)).map(list),
    str | None: st.none() | st.text(max_size=3),
    int | str: st.integers() | st.text(max_size=3),
    list[str | None]: st.lists(st.none() | st.text(max_size=3), max_size=3),
    Annotated[int, Field(ge=0, le=10)]: st.integers(0, 10),
    Annotated[float, Field(gt=0, lt=1)]: st.floats(0, 1, exclude_min=True, exclude_max=True),
    Annotated[str, Field(min_length=1, max_length=3)]: st.text(min_size=1, max_size=3),
    Annotated[list[int], Field(min_length=1, max_length=2)]: st.lists(st.integers(), min_size=1, max_size=2),
    Annotated[int, Field(multiple_of=3)]: st.integers(-10, 10).map(lambda number: 3 * number),
    Annotated[str, Field(description="what it is", title="A Title")]: st.text(max_size=5),
}

names = st.sampled_from(
    [
        "schema",
        "json",
        "self",
        "_x",
        "model_config",
        "__private",
        "copy",
        "items",
        "keys",
        "title",
        "default",
        "properties",
        "cls",
    ]
) | st.text("abcXYZ_0é", min_size=1, max_size=4).filter(lambda name: name.isidentifier() and not iskeyword(name))


@st.composite
def signatures(draw: st.DrawFn) -> dict[str, tuple[Parameter, st.SearchStrategy[Any]]]:
    """Parameters by name, each with a strategy for what a client may send."""
    made: dict[str, tuple[Parameter, st.SearchStrategy[Any]]] = {}
    for name in draw(st.lists(names, max_size=4, unique=True)):
        annotation = draw(st.sampled_from(list(TYPES)))
        default: Any = Parameter.empty
        fitting = TYPES[annotation].map(TypeAdapter(annotation).validate_python)
        match draw(st.sampled_from(["required", "plain", "field", "factory", "constrained"])):
            case "plain":
                default = draw(fitting)
            case "field":
                default = Field(draw(fitting), description="from a field")
            case "factory":
                default = Field(default_factory=list)
            case "constrained":
                default = Field(description="still required")
        parameter = Parameter(name, Parameter.KEYWORD_ONLY, annotation=annotation, default=default)
        made[name] = parameter, TYPES[annotation]
    return made


class TestSignatures:
    @given(signatures())
    def test_every_signature_gives_a_valid_schema_of_an_object(
        self, made: dict[str, tuple[Parameter, st.SearchStrategy[Any]]]
    ) -> None:
        schema = SignatureArguments("tool", {name: parameter for name, (parameter, _) in made.items()}).schema
        Draft202012Validator.check_schema(schema)
        assert schema["type"] == "object"
        assert list(schema["properties"]) == list(made)
        assert json.loads(json.dumps(schema, allow_nan=False)) == schema

    @given(signatures(), st.data())
    def test_what_is_read_is_what_the_function_can_be_called_with(
        self, made: dict[str, tuple[Parameter, st.SearchStrategy[Any]]], data: st.DataObject
    ) -> None:
        parameters = {name: parameter for name, (parameter, _) in made.items()}
        arguments = SignatureArguments("tool", parameters)
        sent = set(arguments.schema.get("required", [])) | {name for name in made if data.draw(st.booleans())}
        raw = {name: data.draw(strategy) for name, (_, strategy) in made.items() if name in sent}
        assert valid(arguments.schema, raw)
        read = arguments.validate(raw)
        assert all(agrees(read[name], raw[name], made[name][0].annotation) for name in sent)
        # As Python binds it: what was not sent has a plain default in the signature, or was filled in.
        signature(lambda: None).replace(parameters=list(parameters.values())).bind(**read)
        assert all(parameters[name].default is not Parameter.empty for name in parameters.keys() - sent)

    @given(st.sampled_from(list(TYPES)), st.data())
    def test_what_validates_is_accepted_and_what_does_not_fit_is_named(
        self, annotation: Any, data: st.DataObject
    ) -> None:
        arguments = SignatureArguments("tool", {"it": Parameter("it", Parameter.KEYWORD_ONLY, annotation=annotation)})
        sent = data.draw(json_values | TYPES[annotation])
        found: list[tuple[str, str]] = []
        try:
            read = arguments.validate({"it": sent})
        except ArgumentsMisfit as misfit:
            found = misfit.problems
        if valid(arguments.schema, {"it": sent}):
            assert found == []
            assert agrees(read["it"], sent, annotation)
        assert all(where.split(".")[0] == "it" and what for where, what in found)

    @example("self")
    @example("schema")
    @example("json")
    @example("_x")
    @example("model_config")
    @example("model_fields")
    @example("__dict__")
    @example("validate")
    @given(names)
    def test_any_name_is_a_fine_name_for_a_parameter(self, name: str) -> None:
        arguments = SignatureArguments("tool", {name: Parameter(name, Parameter.KEYWORD_ONLY, annotation=int)})
        assert arguments.schema["properties"] == {name: {"type": "integer"}}
        assert arguments.validate({name: 7}) == {name: 7}

    def test_arguments_that_the_signature_does_not_name_are_dropped(self) -> None:
        def tool(city: str) -> None: ...

        assert arguments_of(tool).validate({"city": "Oslo", "country": "Norway", "self": 1}) == {"city": "Oslo"}

    def test_a_parameter_without_an_annotation_takes_anything(self) -> None:
        def tool(it) -> None: ...  # type: ignore[no-untyped-def]

        arguments = arguments_of(tool)
        assert arguments.schema == {"type": "object", "properties": {"it": {}}, "required": ["it"]}
        assert arguments.validate({"it": [1, None]}) == {"it": [1, None]}

    def test_a_function_without_parameters_takes_an_empty_object(self) -> None:
        def tool() -> None: ...

        arguments = arguments_of(tool)
        assert arguments.schema == {"type": "object", "properties": {}}
        assert arguments.validate({"anything": 1}) == {}

    def test_what_our_own_types_fill_is_not_an_argument(self) -> None:
        def tool(city: str, ctx: Context) -> None: ...

        assert list(arguments_of(tool).schema["properties"]) == ["city"]

    def test_titles_are_only_those_that_were_written(self) -> None:
        def tool(city: Annotated[str, Field(title="The City")], days: int, line: Line) -> None: ...

        assert re.findall('"title": "([^"]*)"', json.dumps(arguments_of(tool).schema)) == ["The City"]

    def test_all_problems_are_named_by_their_path_without_the_values(self) -> None:
        def tool(line: Line, days: Annotated[int, Field(le=7)], city: str) -> None: ...

        found = problems(arguments_of(tool), {"line": {"points": [{"x": 1}, {"x": "s3cret"}]}, "days": 99})
        assert [where for where, _ in found] == ["line.points.1.x", "days", "city"]
        assert "s3cret" not in str(found)
        assert found[1:] == [("days", "Input should be less than or equal to 7"), ("city", "Field required")]

    def test_of_each_list_the_first_mistake_is_named_and_that_more_may_follow(self) -> None:
        def tool(xs: list[int], city: str, few: list[int]) -> None: ...

        found = problems(arguments_of(tool), {"xs": [1, "", *[""] * 100], "few": [1, ""]})
        assert found == [
            ("xs.1", "Input should be a valid integer"),
            ("city", "Field required"),
            ("few.1", "Input should be a valid integer (and more may follow)"),
        ]
        assert problems(arguments_of(tool), {"xs": [1], "city": "", "few": [1, ""]}) == [
            ("few.1", "Input should be a valid integer")
        ]

    def test_a_long_list_of_mistakes_is_cut_short(self) -> None:
        def tool(row: Wide, rows: list[Wide]) -> None: ...

        found = problems(arguments_of(tool), {"row": {}, "rows": []})
        assert [where for where, _ in found] == [f"row.f{position}" for position in range(MOST_PROBLEMS)]
        assert found[-1][1] == "Field required (and more may follow)"

    def test_no_problem_is_longer_than_a_line_or_two(self) -> None:
        def tool(by_name: dict[str, int], choice: Literal["a" * 300]) -> None: ...  # type: ignore[valid-type]

        found = problems(arguments_of(tool), {"by_name": {"n" * 100_000: ""}, "choice": ""})
        assert all(len(where) <= 200 and len(what) <= 200 for where, what in found)

    def test_classes_have_no_titles_but_those_that_were_written(self) -> None:
        class Named(BaseModel):
            model_config = ConfigDict(title="A Name")

            at: Point
            place: Place
            size: Size
            color: Color

        def tool(it: Named) -> None: ...

        schema = arguments_of(tool).schema
        assert [node["title"] for node in nodes(schema) if isinstance(node.get("title"), str)] == ["A Name"]
        for annotation in (Point, Place, Size, Color):
            assert "title" not in Structured("tool", annotation).schema


WIDE: dict[str, Any] = {f"f{position}": (int, ...) for position in range(MOST_PROBLEMS + 1)}
Wide: Any = create_model("Wide", **WIDE)

ORIGIN = Point(x=0)


class Unset:
    """What some use as a default to see whether an argument was given."""

    def __init__(self, held: Any = None) -> None:
        self.held = held


class TestDefaults:
    def test_a_default_is_shown_and_left_to_the_function_where_no_call_can_change_it(self) -> None:
        def tool(days: int = 3, point: Point = ORIGIN) -> tuple[int, Point]:
            return days, point

        arguments = arguments_of(tool)
        assert arguments.schema["properties"]["days"] == {"type": "integer", "default": 3}
        assert arguments.schema["properties"]["point"]["default"] == {"x": 0, "y": 0.5}
        assert "required" not in arguments.schema
        assert arguments.validate({}) == {"point": ORIGIN}
        assert tool(**arguments.validate({})) == (3, ORIGIN)

    @pytest.mark.parametrize(
        ("annotation", "default"),
        [
            (list[str], []),
            (dict[str, int], {"a": 1}),
            (set[int], {1}),
            (Point, ORIGIN),
            (Any, [[]]),
            (list[str], Field([])),
        ],
    )
    def test_each_call_has_a_default_of_its_own(self, annotation: Any, default: Any) -> None:
        def tool(it: Any = default) -> None: ...

        tool.__annotations__["it"] = annotation
        arguments = arguments_of(tool)
        first, second = arguments.validate({})["it"], arguments.validate({})["it"]
        assert first == second
        assert first is not second
        assert first is not default

    @pytest.mark.parametrize("default", [object(), Unset(), Unset("name"), Unset(("a", 1)), iter])
    def test_a_sentinel_is_the_very_object(self, default: Any) -> None:
        def tool(bare: Any = default, field: Any = Field(default)) -> tuple[Any, Any]:  # noqa: B008
            return bare, field

        arguments = arguments_of(tool)
        assert all(each is default for _ in range(2) for each in tool(**arguments.validate({})))

    def test_what_can_change_within_an_object_is_not_shared(self) -> None:
        default = Unset([])

        def tool(it: Any = default) -> Any:
            return it

        assert arguments_of(tool).validate({})["it"].held is not default.held

    def test_a_default_that_can_not_be_copied_is_shared(self) -> None:
        lock = Lock()

        def tool(it: Any = lock) -> None: ...

        assert arguments_of(tool).validate({}) == {}

    @pytest.mark.parametrize(
        ("annotation", "default", "why"),
        [
            (
                int,
                "x",
                r"the default 'x' of parameter 'it' does not fit its annotation \(Input should",
            ),
            (int, "3", "change the default or the annotation"),
            (int, None, r"add `\| None` to its annotation"),
            (Literal["a", "b"], "c", "Input should be 'a' or 'b'"),
            (list[str], (), "Input should be a valid list"),
            (Iterable[str], (1,), "Input should be a valid string"),
            (Point, {"x": 0}, "does not fit"),
            (Annotated[int, Field(ge=1)], 0, "greater than or equal to 1"),
            (int, Field(9, le=8), "less than or equal to 8"),
        ],
    )
    def test_a_default_that_is_not_of_its_type_is_refused(self, annotation: Any, default: Any, why: str) -> None:
        def tool(it: Any = default) -> None: ...

        tool.__annotations__["it"] = annotation
        with pytest.raises(SetupError, match=why):
            arguments_of(tool)

    @pytest.mark.parametrize(
        ("annotation", "default"),
        [
            (float, 1),
            (Decimal, 0),
            (Sequence[str], ()),
            (Iterable[str], ()),
            (Iterable[int] | None, [1]),
            (int | None, None),
            (Path, Path("a")),
            (date, date(2026, 1, 2)),
        ],
    )
    def test_a_default_that_equals_a_value_of_its_type_fits(self, annotation: Any, default: Any) -> None:
        def tool(it: Any = default) -> None: ...

        tool.__annotations__["it"] = annotation
        arguments_of(tool)

    @pytest.mark.parametrize("default", [object(), math.inf, -math.inf, math.nan, [math.nan], b"\xff"])
    def test_a_default_that_is_no_json_is_not_shown(self, default: Any) -> None:
        def tool(it: Any = default) -> None: ...

        assert arguments_of(tool).schema == {"type": "object", "properties": {"it": {}}}

    def test_a_field_gives_a_default_and_constraints(self) -> None:
        def tool(days: int = Field(3, ge=1, le=7, description="how many", title="Days", examples=[5])) -> None: ...

        arguments = arguments_of(tool)
        assert arguments.schema["properties"]["days"] == {
            "type": "integer",
            "default": 3,
            "minimum": 1,
            "maximum": 7,
            "description": "how many",
            "title": "Days",
            "examples": [5],
        }
        assert arguments.validate({}) == {"days": 3}
        assert arguments.validate({"days": 7}) == {"days": 7}
        assert problems(arguments, {"days": 8}) == [("days", "Input should be less than or equal to 7")]

    def test_a_field_adds_to_the_constraints_of_the_annotation(self) -> None:
        def tool(days: Annotated[int, Field(ge=1)] = Field(3, le=7)) -> None: ...

        arguments = arguments_of(tool)
        assert problems(arguments, {"days": 0})
        assert problems(arguments, {"days": 8})

    def test_a_field_without_a_default_is_required(self) -> None:
        def tool(city: str = Field(min_length=2), zip_code: int = Field(...)) -> None: ...

        arguments = arguments_of(tool)
        assert arguments.schema["required"] == ["city", "zip_code"]
        assert problems(arguments, {"city": "A"}) == [
            ("city", "String should have at least 2 characters"),
            ("zip_code", "Field required"),
        ]

    def test_a_default_within_annotated_counts(self) -> None:
        def tool(days: Annotated[int, Field(default=3)]) -> None: ...

        assert arguments_of(tool).validate({}) == {"days": 3}
        assert "required" not in arguments_of(tool).schema

    def test_a_factory_makes_a_new_default_for_each_call(self) -> None:
        def tool(tags: list[str] = Field(default_factory=list)) -> None: ...  # noqa: B008

        arguments = arguments_of(tool)
        first, second = arguments.validate({}), arguments.validate({})
        assert first == second == {"tags": []}
        assert first["tags"] is not second["tags"]

    def test_a_factory_may_use_the_arguments_before_it(self) -> None:
        def tool(city: str, label: str = Field(default_factory=lambda known: known["city"].upper())) -> None: ...

        assert arguments_of(tool).validate({"city": "Oslo"}) == {"city": "Oslo", "label": "OSLO"}

    def test_what_a_factory_makes_is_not_shown_since_every_replica_makes_another(self) -> None:
        def tool(request: uuid.UUID = Field(default_factory=uuid.uuid4)) -> None: ...  # noqa: B008

        assert arguments_of(tool).schema["properties"] == {"request": {"type": "string", "format": "uuid"}}

    def test_a_mutable_default_of_a_field_is_not_shared(self) -> None:
        def tool(tags: list[str] = Field(["a"])) -> None: ...  # noqa: B008

        arguments = arguments_of(tool)
        assert arguments.schema["properties"]["tags"]["default"] == ["a"]
        arguments.validate({})["tags"].append("b")
        assert arguments.validate({}) == {"tags": ["a"]}

    @pytest.mark.parametrize("default", [object(), math.inf, [math.nan], b"\xff"])
    def test_a_default_of_a_field_that_is_no_json_is_not_shown(self, default: Any) -> None:
        def tool(it: Any = Field(default)) -> None: ...  # noqa: B008

        arguments = arguments_of(tool)
        assert arguments.schema == {"type": "object", "properties": {"it": {}}}
        assert "it" in arguments.validate({})

    @pytest.mark.parametrize("inner", [Field(default=3), Field(default_factory=int)])
    @pytest.mark.parametrize("outer", [5, None, Field(5), Field(default_factory=int)])
    def test_two_defaults_are_refused(self, inner: Any, outer: Any) -> None:
        def tool(count: Any = outer) -> None: ...

        tool.__annotations__["count"] = Annotated[int, inner]
        with pytest.raises(SetupError, match="tool: parameter 'count' has two defaults"):
            arguments_of(tool)

    def test_an_alias_is_the_name_that_clients_use(self) -> None:
        def tool(class_: Annotated[str, Field(alias="class")], from_: int = Field(1, alias="from")) -> None: ...

        arguments = arguments_of(tool)
        assert list(arguments.schema["properties"]) == ["class", "from"]
        assert arguments.validate({"class": "a", "from": 2}) == {"class_": "a", "from_": 2}
        assert arguments.validate({"class": "a"}) == {"class_": "a", "from_": 1}


class TestRefusals:
    """What can't be served is refused when the decorator runs, not when a client calls."""

    @pytest.fixture
    def app(self) -> MRTRServer:
        return MRTRServer("refusals", keys=[bytes(32)])

    def refusal(self, app: MRTRServer, function: Callable[..., Any]) -> str:
        with pytest.raises(SetupError) as caught:
            app.tool(function)
        assert function.__name__ in str(caught.value)
        return str(caught.value)

    def test_parameters_that_can_not_be_filled_by_name(self, app: MRTRServer) -> None:
        def positional(city: str, /) -> None: ...
        def several(*cities: str) -> None: ...
        def anything(**cities: str) -> None: ...
        def unsaid(**cities) -> None: ...  # type: ignore[no-untyped-def]

        assert "'city' can't be filled by name" in self.refusal(app, positional)
        assert "'cities' can't be filled by name" in self.refusal(app, several)
        for function in (anything, unsaid):
            assert "write **cities: Any to accept any other arguments" in self.refusal(app, function)

    def test_types_that_have_no_schema(self, app: MRTRServer) -> None:
        class Opaque: ...

        def opaque(it: Opaque) -> None: ...
        def nested(them: list[dict[str, Opaque]]) -> None: ...
        def called(back: Callable[[int], int]) -> None: ...

        for function in (opaque, nested, called):
            assert "no JSON Schema" in self.refusal(app, function)

    def test_constraints_that_can_not_hold(self, app: MRTRServer) -> None:
        def pattern(it: str = Field(pattern="(")) -> None: ...
        def bound(it: Annotated[int, Field(ge="a")]) -> None: ...

        for function in (pattern, bound):
            assert "no JSON Schema" in self.refusal(app, function)

    def test_names_that_mean_nothing(self, app: MRTRServer) -> None:
        def unknown(it: "Nowhere") -> None: ...  # type: ignore[name-defined]  # noqa: F821
        def unknown_result() -> "Nowhere": ...  # type: ignore[name-defined]  # noqa: F821

        assert "'Nowhere' can't be resolved" in self.refusal(app, unknown)
        assert "'Nowhere' can't be resolved" in self.refusal(app, unknown_result)

    def test_a_model_that_names_what_is_not_there(self, app: MRTRServer) -> None:
        class Unfinished(BaseModel):
            it: "Nowhere"  # type: ignore[name-defined]  # noqa: F821

        def unfinished(it: Unfinished) -> None: ...

        assert "no JSON Schema" in self.refusal(app, unfinished)

    def test_our_own_types_twice(self, app: MRTRServer) -> None:
        def twice(one: Context, other: Context) -> None: ...

        assert "'one' and 'other' both take the context" in self.refusal(app, twice)

    def test_nothing_of_a_refused_tool_is_registered(self, app: MRTRServer) -> None:
        def tool(it: object, /) -> None: ...

        self.refusal(app, tool)

        @app.tool(name="tool")
        def mended(it: object) -> None: ...

        with pytest.raises(SetupError, match="already"):
            app.tool(name="tool")(mended)


class TestStringAnnotations:
    def test_they_may_name_models_that_are_local_to_where_the_decorator_stands(self) -> None:
        app = MRTRServer("strings", keys=[bytes(32)])

        class Local(BaseModel):
            x: int

        @app.tool
        def tool(it: "Local", many: "list[Local]" = [], *, ctx: "Context") -> "Local":  # noqa: B006
            return it

        local: dict[str, Any] = {}
        handler = compile_handler(tool, "tool", {"Local": Local})
        assert handler.context == "ctx"
        assert handler.returns is Local
        local.update(SignatureArguments("tool", handler.parameters).validate({"it": {"x": 1}}))
        assert local == {"it": Local(x=1), "many": []}

    @pytest.mark.parametrize("flags", [0, __future__.annotations.compiler_flag], ids=["evaluated", "postponed"])
    def test_a_module_with_postponed_evaluation_is_the_same(self, flags: int) -> None:
        source = """
def build(app):
    class Local(BaseModel):
        x: int

    @app.tool
    def plain(it: Local, ctx: Context) -> Local:
        return it

    @app.tool(name="named")
    def other(it: Annotated[Local, Field(description="local")], region: Annotated[str, Header("Region")]) -> str:
        return region

    @app.prompt
    def prompt(it: Annotated[str, Field(description="local")]) -> str:
        return it

    @app.resource("local://{it}")
    def resource(it: str, ctx: Context) -> bytes:
        return b""

    return Local, plain, other
"""
        namespace: dict[str, Any] = {
            "BaseModel": BaseModel,
            "Context": Context,
            "Annotated": Annotated,
            "Field": Field,
            "Header": Header,
        }
        exec(compile(source, "postponed", "exec", flags, dont_inherit=True), namespace)  # noqa: S102
        local, plain, other = namespace["build"](MRTRServer("postponed", keys=[bytes(32)]))
        read = SignatureArguments("plain", compile_handler(plain, "plain", {"Local": local}).parameters).validate
        assert read({"it": {"x": 1}}) == {"it": local(x=1)}
        schema = SignatureArguments("other", compile_handler(other, "other", {"Local": local}).parameters).schema
        assert schema["properties"]["region"] == {"type": "string", "x-mcp-header": "Region"}


MARKED = {"type": "string", "x-mcp-header": "Region"}


class TestHeaders:
    """The constraints on `x-mcp-header` (Tools, and Streamable HTTP, Custom Headers from Tool Parameters)."""

    def headers(self, function: Callable[..., Any]) -> tuple[HeaderParameter, ...]:
        return header_parameters("tool", arguments_of(function).schema)

    def refusal(self, function: Callable[..., Any]) -> str:
        with pytest.raises(SetupError) as caught:
            MRTRServer("headers", keys=[bytes(32)]).tool(function)
        return str(caught.value)

    def test_the_mark_stands_in_the_schema_of_the_property(self) -> None:
        def tool(region: Annotated[str, Header("Region")], query: str) -> None: ...

        assert arguments_of(tool).schema["properties"] == {
            "region": {"type": "string", "x-mcp-header": "Region"},
            "query": {"type": "string"},
        }

    @pytest.mark.parametrize(
        "annotation",
        [
            Annotated[int, Field(le=2**53), Header("N")],
            Annotated[int, Field(gt=-(2**60)), Header("N")],
            Annotated[int, Field(multiple_of=2, ge=-(2**53)), Header("N")],
        ],
    )
    def test_an_integer_that_no_header_mirrors_is_not_promised(self, annotation: Any) -> None:
        def tool(it: int) -> None: ...

        tool.__annotations__["it"] = annotation
        assert "'it' can't be mirrored into a header: its schema names " in self.refusal(tool)

    def test_nor_is_such_a_default(self) -> None:
        def tool(it: Annotated[int, Field(le=2**53 - 1), Header("N")] = 2**53) -> None: ...

        with pytest.raises(SetupError):
            MRTRServer("headers", keys=[bytes(32)]).tool(tool)

        def other(it: Annotated[int, Header("N")] = 2**53) -> None: ...

        assert "its schema names 9007199254740992" in self.refusal(other)

    def test_strings_integers_and_booleans_can_be_mirrored(self) -> None:
        def tool(
            region: Annotated[str, Header("Region")],
            shard: Annotated[int, Field(ge=0), Header("Shard")] = 0,
            dry: Annotated[bool, Header("Dry-Run")] = Field(False),
            tier: Annotated[Literal["hot", "cold"], Header("Tier")] = "hot",
            color: Annotated[Color, Header("Color")] = Color.RED,
        ) -> None: ...

        assert self.headers(tool) == (
            HeaderParameter("mcp-param-region", ("region",), "string"),
            HeaderParameter("mcp-param-shard", ("shard",), "integer"),
            HeaderParameter("mcp-param-dry-run", ("dry",), "boolean"),
            HeaderParameter("mcp-param-tier", ("tier",), "string"),
            HeaderParameter("mcp-param-color", ("color",), "string"),
        )

    @pytest.mark.parametrize(
        "annotation", [float, list[str], dict[str, str], Point, Any, None, str | None, int | str, list[int], object]
    )
    def test_nothing_else_can(self, annotation: Any) -> None:
        def tool(it: Any) -> None: ...

        tool.__annotations__["it"] = Annotated[annotation, Header("It")]
        assert "only str, int and bool can" in self.refusal(tool)

    def test_the_refusal_says_why_and_what_to_write(self) -> None:
        Mixed = Enum("Mixed", {"ONE": 1, "TWO": "two"})

        def optional(it: Annotated[str | None, Header("It")] = None) -> None: ...
        def part(it: Annotated[str, Header("It")] | None = None) -> None: ...
        def choice(it: Annotated[Mixed, Header("It")]) -> None: ...

        assert "it is optional or a union" in self.refusal(optional)
        assert "give it a default" in self.refusal(optional)
        assert "instead of an optional type, give a default" in self.refusal(part)
        assert "it is an enum or a model" in self.refusal(choice)
        assert "Literal[" in self.refusal(choice)

    @given(st.text("!#$%&'*+-.^_`|~019azAZ", min_size=1, max_size=20))
    def test_a_name_is_a_token_of_http(self, name: str) -> None:
        def tool(it: Annotated[str, Header(name)]) -> None: ...

        assert self.headers(tool) == (HeaderParameter(f"mcp-param-{name.lower()}", ("it",), "string"),)

    @example("")
    @example("\r")
    @example("\n")
    @example("A\r\nB: c")
    @example("A B")
    @example("A:")
    @example("Ä")
    @example("\x00")
    @example("\x7f")
    @example("A\t")
    @example("(A)")
    @given(st.text(max_size=10).filter(lambda name: not name.isascii() or not name.replace("-", "").isalnum()))
    def test_any_other_text_is_no_name(self, name: str) -> None:
        assume(
            not name
            or any(
                character not in "!#$%&'*+-.^_`|~" and not (character.isascii() and character.isalnum())
                for character in name
            )
        )

        def tool(it: Annotated[str, Header(name)]) -> None: ...

        assert "can't be the name of a header" in self.refusal(tool)

    def test_names_are_unique_in_any_case(self) -> None:
        def tool(one: Annotated[str, Header("Region")], other: Annotated[str, Header("REGION")]) -> None: ...

        assert "share the header 'mcp-param-region'" in self.refusal(tool)

    def test_a_mark_is_reached_by_properties_alone(self) -> None:
        class Target(BaseModel):
            region: Annotated[str, Header("Region")]
            targets: "list[Target]"

        def by_reference(it: Target) -> None: ...
        def by_items(it: list[Annotated[str, Header("Region")]]) -> None: ...
        def by_composition(it: Annotated[str, Header("Region")] | None = None) -> None: ...
        def by_additional(it: dict[str, Annotated[str, Header("Region")]]) -> None: ...

        for function in (by_reference, by_items, by_composition, by_additional):
            assert "reached by properties alone" in self.refusal(function)

    @pytest.mark.parametrize(
        "schema",
        [
            MARKED,
            {"items": MARKED},
            {"prefixItems": [MARKED]},
            {"properties": {"it": {"items": MARKED}}},
            {"properties": {"it": {"contains": MARKED}}},
            {"oneOf": [{"properties": {"it": MARKED}}]},
            {"anyOf": [{"properties": {"it": MARKED}}]},
            {"allOf": [{"properties": {"it": MARKED}}]},
            {"not": {"properties": {"it": MARKED}}},
            {"if": {"properties": {"it": MARKED}}},
            {"then": {"properties": {"it": MARKED}}},
            {"else": {"properties": {"it": MARKED}}},
            {"$defs": {"it": MARKED}, "properties": {"it": {"$ref": "#/$defs/it"}}},
            {"$defs": {"default": MARKED}},
            {"patternProperties": {"^it$": MARKED}},
            {"additionalProperties": MARKED},
            {"dependentSchemas": {"it": {"properties": {"it": MARKED}}}},
            {"properties": {"it": {"properties": {"it": {"anyOf": [MARKED]}}}}},
        ],
    )
    def test_no_other_keyword_leads_to_one(self, schema: dict[str, Any]) -> None:
        with pytest.raises(SetupError, match="reached by properties alone"):
            header_parameters("tool", {"type": "object", **schema})

    def test_properties_within_properties_do(self) -> None:
        class Target(BaseModel):
            region: Annotated[str, Header("Region")]

        def tool(target: Target) -> None: ...

        assert self.headers(tool) == (HeaderParameter("mcp-param-region", ("target", "region"), "string"),)
        target = {"type": "object", "properties": {"region": {"type": "string", "x-mcp-header": "Region"}}}
        schema = {"type": "object", "properties": {"target": target}}
        assert header_parameters("tool", schema) == (
            HeaderParameter("mcp-param-region", ("target", "region"), "string"),
        )

    @pytest.mark.parametrize(
        "name", ["default", "examples", "const", "enum", "properties", "x-mcp-header", "$defs", "items"]
    )
    def test_a_parameter_may_be_called_like_a_keyword(self, name: str) -> None:
        schema = {"type": "object", "properties": {name: {"type": "string", "x-mcp-header": "Region"}}}
        assert header_parameters("tool", schema) == (HeaderParameter("mcp-param-region", (name,), "string"),)

    def test_data_that_looks_like_a_mark_is_none(self) -> None:
        look_alike = {"x-mcp-header": "Region"}
        field = {"default": look_alike, "examples": [look_alike], "const": look_alike, "enum": [look_alike]}
        assert header_parameters("tool", {"type": "object", "properties": {"it": field, "x-mcp-header": True}}) == ()

    @pytest.mark.parametrize("wrong", [1, None, True, ["Region"], {"a": 1}])
    def test_a_name_in_a_raw_schema_is_text(self, wrong: Any) -> None:
        with pytest.raises(SetupError, match="can't be the name of a header"):
            header_parameters("tool", {"properties": {"it": {"type": "string", "x-mcp-header": wrong}}})


class StrictOrder(BaseModel):
    model_config = ConfigDict(strict=True)
    day: date
    id: UUID
    color: Color
    pages: tuple[int, ...] = ()
    tags: frozenset[str] = frozenset()
    count: int = 0


class TestStrictTypes:
    """JSON has no dates, UUIDs, enums, sets and tuples, so a strict type takes them as JSON has them."""

    ORDER: ClassVar[dict[str, Any]] = {"day": "2026-05-01", "id": str(UUID(int=1)), "color": "red", "pages": [1, 2]}

    def test_take_what_json_has_for_them(self) -> None:
        def tool(
            order: StrictOrder,
            orders: dict[str, list[StrictOrder]],
            day: Annotated[date, Field(strict=True)],
            raw: Annotated[bytes, Field(strict=True)] = b"",
        ) -> None: ...

        given = {"order": self.ORDER, "orders": {"a": [self.ORDER]}, "day": "2026-05-01", "raw": "text"}
        arguments = arguments_of(tool).validate(given)
        expected = StrictOrder(day=date(2026, 5, 1), id=UUID(int=1), color=Color.RED, pages=(1, 2))
        assert arguments == {"order": expected, "orders": {"a": [expected]}, "day": date(2026, 5, 1), "raw": b"text"}

    def test_take_nothing_else(self) -> None:
        def tool(order: StrictOrder) -> None: ...

        wrong = {**self.ORDER, "count": "1", "day": 20_000, "tags": "ab"}
        assert {where for where, _ in problems(arguments_of(tool), {"order": wrong})} == {
            "order.count",
            "order.day",
            "order.tags",
        }

    def test_leave_the_types_beside_them_as_they_were(self) -> None:
        def tool(number: Annotated[int, Field(strict=True)], when: datetime | str, color: Color) -> None: ...

        given = {"number": 1, "when": "2026-05-01T00:00:00", "color": "red"}
        assert arguments_of(tool).validate(given) == {**given, "color": Color.RED}

    def test_cost_no_more_than_others(self) -> None:
        def tool(orders: list[StrictOrder]) -> None: ...

        began = process_time()
        found = problems(arguments_of(tool), {"orders": [{}] * 30_000})
        assert process_time() - began < 1
        assert len(found) <= MOST_PROBLEMS

    def test_in_forms_are_answered_as_others_are(self) -> None:
        model = create_model("Filled", __config__=ConfigDict(strict=True), day=(date, ...), color=(Color, ...))
        answer = form(model).validate({"day": "2026-05-01", "color": "red"})
        assert answer == model(day=date(2026, 5, 1), color=Color.RED)


class TestStructured:
    @given(st.sampled_from(list(TYPES)), st.data())
    def test_what_is_written_conforms_to_the_schema(self, annotation: Any, data: st.DataObject) -> None:
        structured = Structured("tool", annotation)
        Draft202012Validator.check_schema(structured.schema)
        written = structured.dump(data.draw(TYPES[annotation]))
        assert list(Draft202012Validator(structured.schema).iter_errors(written)) == []

    def test_a_type_without_a_schema_is_refused(self) -> None:
        class Opaque: ...

        with pytest.raises(SetupError, match=r"tool: results of type .*Opaque.* have no JSON Schema"):
            Structured("tool", Opaque)
