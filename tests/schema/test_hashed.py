"""Nobody can choose values of one hash for a set, or for the keys of a table: their number is bounded first."""

import time
from collections import Counter, OrderedDict, defaultdict
from collections.abc import Mapping, Set
from dataclasses import dataclass
from datetime import date, timedelta
from decimal import Decimal
from enum import IntEnum
from fractions import Fraction
from inspect import Parameter
from ipaddress import IPv6Address, IPv6Interface, IPv6Network
from typing import Any, Literal, NamedTuple
from uuid import UUID

import pytest
from pydantic import BaseModel, Json, Secret, TypeAdapter

from mrtr_server.errors import ArgumentsMisfit
from mrtr_server.schema.arguments import SignatureArguments
from mrtr_server.schema.hardening import LARGEST_INT, MOST_ALIKE
from mrtr_server.schema.stored import Stored

P = 2**61 - 1
"""The hash of a number is its remainder by this."""

COUNT = 24_000


class Frozen(BaseModel, frozen=True):
    it: int


@dataclass(frozen=True)
class Data:
    it: int


class Named(NamedTuple):
    it: int


class Level(IntEnum):
    LOW = 1
    HIGH = P + 1


def arguments_of(annotation: Any) -> SignatureArguments:
    return SignatureArguments("tool", {"it": Parameter("it", Parameter.KEYWORD_ONLY, annotation=annotation)})


def refused(annotation: Any, value: Any) -> tuple[str, str]:
    """Return the problem of a value that is refused, and soon."""
    arguments, began = arguments_of(annotation), time.process_time()
    with pytest.raises(ArgumentsMisfit) as caught:
        arguments.validate({"it": value})
    assert time.process_time() - began < 0.5
    return caught.value.problems[0]


def numbers(count: int = COUNT) -> list[int]:
    return [each * P for each in range(count)]


WHOLE: list[tuple[Any, Any]] = [
    (set[int], numbers()),
    (frozenset[int | None], numbers()),
    (Set[int | str], [-each for each in numbers()]),
    (set[Json[int]], [str(each) for each in numbers()]),
    (dict[int, str], {str(each): "" for each in numbers()}),
    (Mapping[int, int], {str(each): 1 for each in numbers()}),
    (Counter[int], {str(each): 1 for each in numbers()}),
    (defaultdict[int, int], {str(each): 1 for each in numbers()}),
    (list[OrderedDict[int, int]], [{str(each): 1 for each in numbers()}]),
]


@pytest.mark.parametrize(("annotation", "value"), WHOLE)
def test_whole_numbers_fit_into_64_bits(annotation: Any, value: Any) -> None:
    where, what = refused(annotation, value)
    assert where.startswith("it.")
    assert str(LARGEST_INT) in what


OF_ONE_HASH: list[tuple[Any, Any]] = [
    (set[UUID], [str(UUID(int=each)) for each in numbers()]),
    (frozenset[Decimal], [str(each) for each in numbers()]),
    (set[Fraction], [f"{each}/1" for each in numbers(3000)]),
    (set[Secret[int]], numbers()),
    (set[tuple[int, ...]], [[each] for each in numbers()]),
    (set[Named], [[each] for each in numbers()]),
    (set[Frozen], [{"it": each} for each in numbers()]),
    (set[Data], [{"it": each} for each in numbers()]),
    (set[Any], numbers()),
    (set[IPv6Interface], [str(IPv6Address(each)) for each in numbers()]),
    (set[IPv6Network], [f"{IPv6Address(each << 9)}/119" for each in numbers(100)]),
    (dict[Decimal, int], {str(each): 1 for each in numbers()}),
    (dict[UUID | int, int], {str(UUID(int=each)): 1 for each in numbers()}),
    (Counter[Decimal], {str(each): 1 for each in numbers()}),
    (defaultdict[UUID, int], {str(UUID(int=each)): 1 for each in numbers()}),
    (list[set[UUID] | int], [[str(UUID(int=each)) for each in numbers()]]),
]


@pytest.mark.parametrize(("annotation", "value"), OF_ONE_HASH)
def test_of_all_else_few_have_one_hash(annotation: Any, value: Any) -> None:
    where, what = refused(annotation, value)
    assert where.startswith("it.")
    assert "Too many of these have one and the same hash" in what


def test_few_of_them_are_taken_and_the_same_one_as_often_as_it_comes() -> None:
    few = [str(each) for each in numbers(MOST_ALIKE)]
    assert len(arguments_of(set[Decimal]).validate({"it": few})["it"]) == MOST_ALIKE
    assert refused(set[Decimal], [*few, str(MOST_ALIKE * P)])[0] == f"it.{MOST_ALIKE}"
    again = ["-1", "-2"] * 1000  # Python gives both the same hash
    assert arguments_of(set[Decimal]).validate({"it": again}) == {"it": {Decimal(-1), Decimal(-2)}}
    assert arguments_of(set[UUID]).validate({"it": [str(UUID(int=7))] * 50_000}) == {"it": {UUID(int=7)}}


def test_the_elements_of_each_set_are_counted_by_themselves() -> None:
    few = [str(each) for each in numbers(MOST_ALIKE - 1)]
    sets = [[*few, str(each * P)] for each in range(MOST_ALIKE, MOST_ALIKE + 50)]
    assert len(arguments_of(list[set[Decimal]]).validate({"it": sets})["it"]) == 50
    within = arguments_of(frozenset[frozenset[Decimal]]).validate({"it": [[1, 2], [2, 1], [3]]})
    assert within == {"it": frozenset({frozenset({Decimal(1), Decimal(2)}), frozenset({Decimal(3)})})}


@pytest.mark.parametrize(
    ("annotation", "value"),
    [
        (set[int], [LARGEST_INT, -LARGEST_INT, 5, 5]),
        (dict[int, str], {"5": "a", "-7": "b"}),
        (set[str], ["a", "b", "a"]),
        (set[float], [1, 2.5, 1e300]),
        (set[date], ["2026-01-02"]),
        (set[timedelta], ["P1D", 3]),
        (set[Level], [1, P + 1]),
        (set[Literal[1, "a"]], [1, "a"]),
        (set[UUID], [str(UUID(int=1))]),
        (set[Decimal | None], ["1.5", None]),
        (dict[UUID, int], {str(UUID(int=1)): 1}),
        (Counter[int], {"1": 2}),
        (dict[Any, int], {"a": 1}),
        (set[Any], [1, "a", None, 1.5]),
        (set[Frozen], [{"it": 1}, {"it": 2}]),
    ],
)
def test_usual_values_are_those_that_pydantic_makes(annotation: Any, value: Any) -> None:
    expected = TypeAdapter(annotation).validate_python(value)
    made = arguments_of(annotation).validate({"it": value})["it"]
    assert made == expected
    assert type(made) is type(expected)


def test_what_cannot_be_hashed_is_told_as_pydantic_does() -> None:
    assert refused(set[Any], [[1]]) == ("it.0", "Set items should be hashable")


def test_what_the_server_itself_stored_may_have_any_hash() -> None:
    own = set(numbers(100))
    stored = Stored(set[int])
    assert stored.load(*stored.keep(own, "It")[0]) == own
