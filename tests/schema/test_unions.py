"""No union of a type lets a client stop the server: where choices multiply at each level, the type is refused."""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from inspect import Parameter
from typing import Annotated, Any, Generic, Literal, NamedTuple, TypeVar, Union

import pytest
from pydantic import (
    AliasChoices,
    AliasPath,
    BaseModel,
    ConfigDict,
    Discriminator,
    Field,
    Json,
    JsonValue,
    RootModel,
    Tag,
    create_model,
    field_validator,
)
from typing_extensions import TypeAliasType, TypedDict

from mrtr_server import Context, Elicit, Inputs, MRTRServer, SetupError, State
from mrtr_server.errors import ArgumentsMisfit
from mrtr_server.schema.arguments import SignatureArguments
from mrtr_server.testing import Client

T = TypeVar("T")


def arguments_of(annotation: Any) -> SignatureArguments:
    return SignatureArguments("tool", {"it": Parameter("it", Parameter.KEYWORD_ONLY, annotation=annotation)})


def complete(*models: type[BaseModel]) -> None:
    for model in models:
        model.model_rebuild()


class Is(BaseModel):
    field: str
    value: str


class And(BaseModel):
    items: "list[Expr]"


class Or(BaseModel):
    items: "list[Expr]"


Expr = And | Or | Is


class ByName(BaseModel):
    model_config = ConfigDict(populate_by_name=True)
    items: "list[Named]" = Field(alias="and")


class ByNameToo(BaseModel):
    model_config = ConfigDict(validate_by_name=True)
    items: "list[Named]" = Field(alias="or")


Named = ByName | ByNameToo


class Choice(BaseModel):
    left: "list[Chosen]" = Field(validation_alias=AliasChoices("and", "items"))


class ChoiceToo(BaseModel):
    right: "list[Chosen]" = Field(validation_alias=AliasChoices("or", "items"))


Chosen = Choice | ChoiceToo


class Path(BaseModel):
    one: "Reached" = Field(validation_alias=AliasPath("deep", 0, "items"))


class PathToo(BaseModel):
    other: "Reached" = Field(validation_alias=AliasPath("deep", 0, "items"))


Reached = Path | PathToo | int


class Kind(BaseModel):
    kind: Literal["a"]
    items: "list[Kinds]"


class KindToo(BaseModel):
    kind: Literal["b"]
    items: "list[Kinds]"


Kinds = Kind | KindToo
"""The kinds differ, and nothing says that they tell the choices apart."""


class InOrder(BaseModel):
    items: "list[Ordered]"

    @field_validator("items", mode="before")
    @classmethod
    def read(cls, items: Any) -> Any:
        return items


class InOrderToo(BaseModel):
    items: "list[Ordered]"


Ordered = Annotated[InOrder | InOrderToo, Field(union_mode="left_to_right")]


class Typed(TypedDict):
    items: "list[Typed | TypedToo]"


class TypedToo(TypedDict):
    items: "list[Typed | TypedToo]"


@dataclass
class Data:
    items: "list[Data | DataToo]"


@dataclass
class DataToo:
    items: "list[Data | DataToo]"


class Pair(NamedTuple):
    left: "Pairs"


class PairToo(NamedTuple):
    right: "Pairs"


Pairs = Pair | PairToo | int
"""Their fields differ, and not their places in an array."""


class Text(BaseModel):
    items: "Json[list[Texts]]"


class TextToo(BaseModel):
    items: "Json[list[Texts]]"


Texts = Text | TextToo


class Open(BaseModel):
    model_config = ConfigDict(extra="allow")
    __pydantic_extra__: "dict[str, Opened]"


class OpenToo(BaseModel):
    model_config = ConfigDict(extra="allow")
    __pydantic_extra__: "dict[str, Opened]"


Opened = Open | OpenToo | int


class Root(RootModel["list[Rooted]"]):
    pass


class RootToo(RootModel["list[Rooted]"]):
    pass


Rooted = Root | RootToo | int


class Box(BaseModel, Generic[T]):
    items: list[T]


class Boxed(BaseModel):
    items: "list[Box[Boxed] | Boxed]"


class Pointing(BaseModel):
    items: "list[AnyOf]"


Arrays = TypeAliasType("Arrays", "list[Arrays] | tuple[Arrays, ...] | int")
Sets = TypeAliasType("Sets", "list[Sets] | frozenset[Sets] | int")
AnyOf = TypeAliasType("AnyOf", "dict[str, AnyOf] | Pointing | list[AnyOf] | str")

complete(And, Or, ByName, ByNameToo, Choice, ChoiceToo, Path, PathToo, Kind, KindToo, InOrder, InOrderToo)
complete(Text, TextToo, Open, OpenToo, Root, RootToo, Boxed, Pointing)


def chain(length: int, leaf: Any = int, width: int = 2) -> Any:
    """Return a union of models that have a union of models, and so on."""
    for level in range(length):
        fields: dict[str, Any] = {"x": (leaf, ...)}
        leaf = Union[tuple(create_model(f"Link{level}{choice}", **fields) for choice in range(width))]  # noqa: UP007
    return leaf


def arrays(length: int) -> Any:
    made: Any = int
    for _ in range(length):
        made = list[made] | tuple[made, ...]
    return made


REFUSED: list[Any] = [
    *(Expr, list[Expr], Expr | None, And, dict[str, Expr], Box[Expr]),
    *(Named, Chosen, Reached, Kinds, Ordered, Typed | TypedToo, Data | DataToo, Pairs, Texts, Opened, Rooted, Boxed),
    *(Arrays, Sets, AnyOf, chain(8), chain(12), arrays(8)),
]


@pytest.mark.parametrize("annotation", REFUSED)
def test_choices_that_multiply_at_each_level_are_refused(annotation: Any) -> None:
    with pytest.raises(SetupError, match=r"tool: a client could block the server with it.* pydantic tries more ways"):
        arguments_of(annotation)


def test_the_error_says_where_which_and_what_to_write() -> None:
    with pytest.raises(SetupError) as caught:
        arguments_of(Expr)
    said = str(caught.value)
    assert said.startswith("tool: a client could block the server with it.items[].items[]")
    assert "Annotated[And | Or | Is, Field(discriminator=\"kind\")]" in said  # fmt: skip
    assert "a callable Discriminator does, too" in said


class All(BaseModel):
    all: "list[Apart]"


class Any_(BaseModel):
    any: "list[Apart]"


Apart = All | Any_ | Is


class Alias(BaseModel):
    items: "list[Aliased]" = Field(alias="and")


class AliasToo(BaseModel):
    items: "list[Aliased]" = Field(alias="or")


Aliased = Alias | AliasToo | Is


class Tagged(BaseModel):
    kind: Literal["and"] = "and"
    items: "list[Tags]"


class TaggedToo(BaseModel):
    kind: Literal["or"] = "or"
    items: "list[Tags]"


Tags = Annotated[Tagged | TaggedToo, Field(discriminator="kind")]


def told(value: Any) -> str:
    return "and" if isinstance(value, dict) and "all" in value else "or"


class Told(BaseModel):
    items: "list[Tells]"


class ToldToo(BaseModel):
    items: "list[Tells]"


Tells = Annotated[Annotated[Told, Tag("and")] | Annotated[ToldToo, Tag("or")], Discriminator(told)]


class Tree(BaseModel):
    left: "Tree | None" = None
    right: "Tree | None" = None
    children: "list[Tree] | None" = None
    named: "dict[str, Tree]" = {}


class Not(BaseModel):
    item: "Negated"


class Both(BaseModel):
    items: "list[Negated]"


Negated = Not | Both | Is


class Section(BaseModel):
    children: "list[Section | Paragraph]"


class Paragraph(BaseModel):
    children: "list[Paragraph | str]"


class Camel(BaseModel):
    """Each field is found by its name, and by an alias that is the same."""

    model_config = ConfigDict(populate_by_name=True, alias_generator=str)
    first: "Camel | None" = None
    second: "list[Camel] | Camel | str" = ""


class Rows(BaseModel):
    rows: "Sequence[Rows | int]" = ()


Nested = TypeAliasType("Nested", "dict[str, Nested] | list[Nested] | str | int | None")
Listed = TypeAliasType("Listed", "str | Sequence[Listed]")

complete(All, Any_, Alias, AliasToo, Tagged, TaggedToo, Told, ToldToo, Tree, Not, Both, Section, Camel, Rows)


def wide(choices: int) -> Any:
    """Return a union of many models, which share fields with a union of two."""
    user, bot = create_model("User", name=(str, ...)), create_model("Bot", name=(str, ...))
    fields: dict[str, Any] = {"id": (int, ...), "by": (user | bot, ...), "tags": (list[str] | str, ...)}
    return Union[tuple(create_model(f"Event{each}", **fields) for each in range(choices))]  # noqa: UP007


ACCEPTED: list[Any] = [
    *(Apart, Aliased, Tags, list[Tags], Tags | None, Tells, Tagged | TaggedToo, Tree, Negated, Section, Camel, Rows),
    *(Nested, Listed, JsonValue, dict[str, Any], Is | dict[str, Is] | str, chain(3), wide(100)),
]


@pytest.mark.parametrize("annotation", ACCEPTED)
def test_choices_that_something_tells_apart_are_not(annotation: Any) -> None:
    arguments_of(annotation)


def nested(build: Callable[[Any], Any], leaf: Any, depth: int) -> Any:
    for _ in range(depth):
        leaf = build(leaf)
    return leaf


@pytest.mark.parametrize(
    ("annotation", "build", "leaf"),
    [
        (Apart, lambda inner: {"all": [inner], "any": [inner, {"field": "a", "value": 1}]}, {"field": 1}),
        (Tags, lambda inner: {"kind": "and", "items": [inner]}, {"kind": "or", "items": 1}),
        (Tells, lambda inner: {"items": [inner]}, {"items": 1}),
        (Tree, lambda inner: {"left": inner, "right": inner, "children": [inner]}, {"left": 1}),
        (Negated, lambda inner: {"item": inner, "items": [inner]}, {"item": 1}),
        (Section, lambda inner: {"children": [inner]}, 1),
        (Nested, lambda inner: {"a": [inner]}, {"a": 1.5}),
    ],
    ids=["keys", "tags", "callable", "tree", "not", "section", "nested"],
)
def test_what_is_accepted_takes_a_time_that_grows_with_the_value(annotation: Any, build: Any, leaf: Any) -> None:
    several = len(str(build("@")).split("@")) - 1  # how often one level has the one within it
    depth = {1: 28, 2: 12, 3: 8}[several]
    arguments = arguments_of(annotation)

    def seconds(levels: int) -> float:
        value, began = nested(build, leaf, levels), time.process_time()
        with pytest.raises(ArgumentsMisfit):
            arguments.validate({"it": value})
        return time.process_time() - began

    small, large = (min(seconds(levels) for _ in range(3)) for levels in (depth - 4, depth))
    assert large < 4 * several**4 * small, "16 times as long, if each of four levels took twice as long"
    assert large < 5, "it would be minutes, if all did"


def registered() -> Iterator[tuple[str, Callable[[MRTRServer], object]]]:
    """Yield each way by which a type meets a value that somebody sends."""

    def tool(it: Expr) -> str:
        return ""

    def prompt(it: Json[Expr]) -> str:
        return ""

    def state(inputs: Inputs, state: State[Expr]) -> str:
        return ""

    class Asked(BaseModel):
        it: Expr

    def declared(it: Annotated[Asked, Elicit("?")]) -> str:
        return ""

    def callback(request: Any) -> Expr:
        return And(items=[])

    yield "tool", lambda app: app.tool(tool)
    yield "prompt", lambda app: app.prompt(prompt)
    yield "resource", lambda app: app.resource("a://{it}")(prompt)
    yield "state", lambda app: app.tool(state)
    yield "form", lambda app: app.tool(declared)
    yield "callback", lambda app: app.callback("done")(callback)


@pytest.mark.parametrize(
    ("way", "register"), list(registered()), ids=lambda each: each if isinstance(each, str) else ""
)
def test_every_decorator_refuses_it(way: str, register: Callable[[MRTRServer], object]) -> None:
    with pytest.raises(SetupError, match="a client could block the server with"):
        register(MRTRServer("unions", keys=[bytes(32)]))


def test_a_step_is_refused_before_it_runs(caplog: pytest.LogCaptureFixture) -> None:
    app, ran = MRTRServer("unions", keys=[bytes(32)]), []

    def parse() -> Expr:
        ran.append("parse")
        return And(items=[])

    @app.tool
    async def search(ctx: Context) -> str:
        return str(await ctx.step(parse))

    assert Client(app).call("search").failed
    assert ran == []
    assert "And | Or | Is" in caplog.text
