"""What a peer sends is validated as pydantic does it, at a cost that its size bounds."""

import re
import time
from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from fractions import Fraction
from inspect import Parameter
from ipaddress import IPv4Interface, IPv6Network
from typing import Annotated, Any, Literal, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import (
    BaseModel,
    ConfigDict,
    DirectoryPath,
    Field,
    FilePath,
    ImportString,
    IPvAnyNetwork,
    Json,
    NewPath,
    TypeAdapter,
    ValidationError,
    create_model,
    model_validator,
)
from pydantic_core import PydanticOmit, PydanticUseDefault, to_json
from typing_extensions import TypedDict

from mrtr_server import SetupError
from mrtr_server.errors import ArgumentsMisfit
from mrtr_server.schema.arguments import SignatureArguments
from mrtr_server.schema.hardening import MOST_IN_TEXTS
from mrtr_server.schema.misfits import MOST_PROBLEMS
from mrtr_server.schema.peer_validator import PeerValidator
from mrtr_server.schema.stored import Stored

FIELDS: dict[str, Any] = {f"field{each}": (int, ...) for each in range(18)}
"""Each is a problem of an empty object."""

Row: Any = create_model("Row", **FIELDS)
Other: Any = create_model("Other", **{f"other{each}": (int, ...) for each in range(18)})  # type: ignore[call-overload]


Imported: Any = ImportString


class Strict(BaseModel):
    model_config = ConfigDict(extra="forbid")
    x: int
    y: str = ""


class Closed(TypedDict):
    __pydantic_config__ = ConfigDict(extra="forbid")  # type: ignore[misc]
    x: int


class Pair(NamedTuple):
    x: int
    y: int = 2


class Open(BaseModel):
    model_config = ConfigDict(extra="allow")
    __pydantic_extra__: dict[str, Row]


class Leaf(BaseModel):
    x: float
    z: int | None = None


class Tree(BaseModel):
    x: int
    left: "Tree | None" = None
    right: "Tree | None" = None
    children: "list[Tree | Strict]" = []
    named: "dict[str, Tree]" = {}


class Typed(TypedDict, total=False):
    left: "Typed"
    right: "Typed"
    x: "Annotated[int, Field(strict=True)]"


node: dict[str, Any] = {"left": ("Node | None", None), "right": ("Node | None", None), **FIELDS}
Node: Any = create_model("Node", **node)
Node.model_rebuild()

node.update(left=("Kinds | None", None), right=("Kinds | None", None), kind=(Literal["a"], ...))
one: Any = create_model("One", **node)
node.update(kind=(Literal["b"], ...))
other: Any = create_model("Two", **node)
Kinds: Any = Annotated[one | other, Field(discriminator="kind")]
one.model_rebuild()
other.model_rebuild()


def arguments_of(annotation: Any) -> SignatureArguments:
    return SignatureArguments("tool", {"it": Parameter("it", Parameter.KEYWORD_ONLY, annotation=annotation)})


def tree(levels: int, **more: Any) -> dict[str, Any]:
    return {**more, **({"left": tree(levels - 1, **more), "right": tree(levels - 1, **more)} if levels else {})}


EMPTY: list[Any] = [{}] * 45_000
TABLE: dict[str, Any] = {str(each): {} for each in range(30_000)}
KEYS: dict[str, Any] = {f"key{each}": 1 for each in range(90_000)}

FLOODS: list[tuple[Any, Any]] = [
    (list[Row], EMPTY),
    (list[Row] | None, EMPTY),
    (list[Row] | list[Other], EMPTY),
    (list[Row | Other], EMPTY),
    (tuple[Row, ...], EMPTY),
    (Sequence[Row], EMPTY),
    (Iterable[Row], EMPTY),
    (deque[Row], EMPTY),
    (list[list[Row]], [[{}]] * 30_000),
    (list[tuple[Row, Row]], [[{}, {}]] * 15_000),
    (set[int], ["x"] * 90_000),
    (dict[str, Row], TABLE),
    (dict[int, Row], {f"x{each}": {} for each in range(30_000)}),
    (dict[str, Row] | dict[str, Other], TABLE),
    (Mapping[str, Row], TABLE),
    (OrderedDict[str, Row], TABLE),
    (defaultdict[str, list[Row]], {str(each): [{}] for each in range(20_000)}),
    (Json[list[Row]], to_json(EMPTY).decode()),
    (Json[dict[str, Row]], to_json(TABLE).decode()),
    (Open, TABLE),
    (Strict, KEYS),
    (Strict | Leaf | Closed, KEYS),
    (list[Strict | Closed], [KEYS]),
    (Pair | Strict, KEYS),
    (Node, tree(14)),
    (list[Node], [tree(6)] * 200),
    (Kinds, tree(13, kind="a")),
    (Typed, tree(14, x="1")),
]


@pytest.mark.alone  # measures time
@pytest.mark.parametrize(("annotation", "value"), FLOODS)
def test_of_very_many_problems_the_first_are_named_and_the_others_never_made(annotation: Any, value: Any) -> None:
    make: Any = TypedDict
    validator, raw = PeerValidator("tool", TypeAdapter(make("Arguments", {"it": annotation}))), {"it": value}
    began = time.process_time()
    with pytest.raises(ValidationError) as caught:
        validator.validate(raw)
    found = validator.problems(raw, caught.value)
    assert time.process_time() - began < 1
    assert caught.value.error_count() <= max(100, len(value) + 1)  # one for each key that is not known
    assert 1 <= len(found) <= MOST_PROBLEMS
    assert found[-1][1].endswith("(and more may follow)")
    assert not any("Not looked at" in what for _, what in found)


TYPES: list[Any] = [
    *(Strict | Leaf, Leaf | Strict | Tree, Tree, list[Tree], Tree | list[Tree] | dict[str, Tree], Typed | Strict),
    *(Pair | Strict, list[Pair | int], dict[int, Strict | Leaf], Json[list[Strict | Tree]] | Strict, Closed | Leaf),
    *(Annotated[Strict | Leaf | Tree, Field(union_mode="left_to_right")], tuple[Strict | Leaf, ...], set[int] | Leaf),
]

values = st.recursive(
    st.sampled_from([0, 1, 1.5, "1", "a", None, True, '[{"x": 1}]']),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["y", "z", "left", "right", "children", "named", "q", "0"]), inner, max_size=3
        )
        | st.fixed_dictionaries(
            {"x": st.sampled_from([1, 1.5, "2"])},
            optional={"left": inner, "children": st.lists(inner, max_size=2), "named": inner, "y": inner, "z": inner},
        )
    ),
    max_leaves=8,
)


@given(values)
def test_what_is_accepted_and_why_not_is_what_pydantic_says(value: Any) -> None:
    for annotation, (adapter, validator) in VALIDATORS.items():
        try:
            expected = adapter.validate_python(value)
        except ValidationError as error:
            with pytest.raises(ValidationError) as caught:
                validator.validate(value)
            of_pydantic = {(".".join(map(str, each["loc"])), each["msg"]) for each in error.errors()}
            found = validator.problems(value, caught.value)
            assert {(where, what.removesuffix(" (and more may follow)")) for where, what in found} <= of_pydantic
        else:
            made = validator.validate(value)
            assert repr(made) == repr(expected), annotation


VALIDATORS: dict[str, tuple[TypeAdapter[Any], PeerValidator]] = {
    str(each): (TypeAdapter(each), PeerValidator("tool", TypeAdapter(each), is_json=False)) for each in TYPES
}


def test_what_follows_is_said_only_where_something_does() -> None:
    arguments = arguments_of(list[Strict | Leaf])
    for value, more in (([{"x": 1}, {}], False), ([{}, {"x": 1}], True)):
        with pytest.raises(ArgumentsMisfit) as caught:
            arguments.validate({"it": value})
        assert caught.value.problems[-1][1].endswith("(and more may follow)") is more


class Own(BaseModel):
    x: int
    more: "list[Own | Strict]" = []
    one: "Annotated[Own | None, Field(default=None)]" = None

    @model_validator(mode="wrap")
    @classmethod
    def read(cls, value: Any, inner: Callable[[Any], Any]) -> Any:
        if isinstance(value, str):
            raise {"omit": PydanticOmit(), "default": PydanticUseDefault()}.get(value, RuntimeError(value))
        return inner(value)


def test_validators_omit_use_a_default_and_fail_as_they_do_without_bounds() -> None:
    arguments = arguments_of(list[Own | Strict])
    (made,) = arguments.validate({"it": ["omit", {"x": 1, "more": ["omit", {"x": 2}], "one": "default"}, "omit"]})["it"]
    assert made == Own(x=1, more=[Own(x=2)])
    for value in (["broken"], [{"x": 1, "more": ["broken"]}], [{"x": 1, "one": "broken"}]):
        with pytest.raises(RuntimeError, match="broken"):
            arguments.validate({"it": value})


@pytest.mark.parametrize("count", [1, 12])
def test_values_of_json_texts_are_counted_together_before_they_are_parsed(count: int) -> None:
    arguments = arguments_of(list[Json[list[Leaf]]])
    one = "[" + ",".join(['{"x":1}'] * (MOST_IN_TEXTS // (3 * count))) + "]"
    assert len(arguments.validate({"it": [one] * count})["it"]) == count
    with pytest.raises(ArgumentsMisfit) as caught:
        arguments.validate({"it": [one] * (count * 3)})
    assert "JSON texts should have at most 100000 values" in str(caught.value.problems)
    assert len(arguments.validate({"it": [one] * count})["it"]) == count  # each call counts anew


@pytest.mark.parametrize("annotation", [IPv6Network, IPv4Interface, IPvAnyNetwork])
def test_python_is_given_no_prefix_of_a_network_to_keep_that_is_longer_than_any(annotation: Any) -> None:
    address = "1.2.3.4/{}8" if annotation is IPv4Interface else "::/{}8"
    arguments = arguments_of(dict[str, annotation])
    arguments.validate({"it": {"short": address.format(""), "long": address.format("0" * 30)}})
    with pytest.raises(ArgumentsMisfit) as caught:
        arguments.validate({"it": {"longest": address.format("0" * 4000)}})
    assert caught.value.problems == [("it.longest", "Input has a part of more than 40 characters")]


@pytest.mark.alone  # measures time
@pytest.mark.parametrize(
    ("annotation", "good", "bad"),
    [
        (Fraction, "1e-30", "1e3000000"),
        (re.Pattern, "(?i)[a-z]+", "(?i)" + "[\0-\U0010ffff]" * 1000),
        (re.Pattern[str] | None, None, "|".join("a" * each for each in range(500))),
    ],
)
def test_no_text_makes_python_compute_for_long(annotation: Any, good: Any, bad: str) -> None:
    arguments, began = arguments_of(annotation), time.process_time()
    arguments.validate({"it": good})
    with pytest.raises(ArgumentsMisfit):
        arguments.validate({"it": bad})
    assert time.process_time() - began < 0.5


@pytest.mark.parametrize(
    ("annotation", "bad"),
    [
        (FilePath, "a" * 300),
        (list[DirectoryPath], ["a" * 300]),
        (NewPath | None, "a" * 300),
        (re.Pattern, "a{99999999999}"),
    ],
)
def test_what_python_fails_at_does_not_fit(annotation: Any, bad: Any) -> None:
    with pytest.raises(ArgumentsMisfit) as caught:
        arguments_of(annotation).validate({"it": bad})
    assert [what for _, what in caught.value.problems] == ["Input can't be read as this type"]


@pytest.mark.parametrize("annotation", [Imported, list[Imported], dict[str, Imported | None]])
def test_a_type_that_imports_what_a_client_names_is_refused(annotation: Any) -> None:
    with pytest.raises(SetupError, match="ImportString imports whatever the client names"):
        arguments_of(annotation)


@pytest.mark.alone  # measures time
def test_what_no_longer_fits_is_loaded_at_the_same_cost() -> None:
    began = time.process_time()
    with pytest.raises(ValidationError) as caught:
        Stored(list[Row]).load(EMPTY)
    assert caught.value.error_count() == len(FIELDS)
    with pytest.raises(ValidationError) as caught:
        Stored(Node).load(tree(12))
    assert caught.value.error_count() <= len(node)
    assert time.process_time() - began < 1
