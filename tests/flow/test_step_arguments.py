"""What the call of a step depends on: the same in every round and on every replica, and other for another call."""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import date
from decimal import Decimal
from enum import Enum, IntFlag
from functools import partial
from threading import Lock
from typing import Any

import pytest
from pydantic import BaseModel

from mrtr_server.crypto.digests import digest
from mrtr_server.errors import FlowError
from mrtr_server.flow.step_arguments import argument_digests, full_name, plain

HERE = __name__


class Way(Enum):
    THERE = 1
    BACK = 2


class Right(IntFlag):
    READ = 1
    WRITE = 2


class NoData(Enum):
    """An enumeration whose values are no data."""

    A = object()


class Seat(BaseModel):
    where: Any


@dataclass
class Place:
    where: Any


class Shop:
    """Plain data in an object."""

    def __init__(self, **data: Any) -> None:
        self.__dict__.update(data)

    def sell(self, what: str, count: int = 1) -> None:
        """Sell."""

    @classmethod
    def open(cls, town: str) -> None:
        """Open one."""

    def __call__(self) -> None:
        """Be callable."""


class Data:
    """As `Shop`, and not callable."""

    def __init__(self, **data: Any) -> None:
        self.__dict__.update(data)


def buy(what: str, count: int = 1, *, gift: bool = False) -> None:
    """Buy."""


def digests_of(**named: Any) -> dict[str, str]:
    return {name: digest(value)[:16] for name, value in named.items()}


class TestFullName:
    def test_is_that_of_the_module_and_the_function(self) -> None:
        assert full_name(buy) == f"{HERE}.buy"
        assert full_name(Shop.sell) == f"{HERE}.Shop.sell"
        assert full_name(Shop().sell) == f"{HERE}.Shop.sell"
        assert full_name(Shop.open) == f"{HERE}.Shop.open"
        assert full_name(Shop) == f"{HERE}.Shop"

    def test_of_an_object_that_is_called_is_that_of_its_type(self) -> None:
        assert full_name(Shop()) == f"{HERE}.Shop"
        assert full_name(partial(buy, "tea")) == "functools.partial"
        assert full_name(len) == "builtins.len"

    def test_of_what_has_lost_its_module_is_that_of_its_type(self) -> None:
        def lost() -> None:
            """Do nothing."""

        lost.__module__ = None  # type: ignore[assignment]
        assert full_name(lost) == f"builtins.{lost.__qualname__}"


class TestArguments:
    def test_are_named_by_their_parameters_with_their_defaults(self) -> None:
        expected = digests_of(what="tea", count=1, gift=False)
        assert argument_digests(buy, ("tea",), {}) == expected
        assert argument_digests(buy, (), {"what": "tea"}) == expected
        assert argument_digests(buy, ("tea", 1), {"gift": False}) == expected
        assert argument_digests(buy, ("tea", 2), {"gift": True}) == digests_of(what="tea", count=2, gift=True)

    def test_a_default_belongs_to_the_last_parameters(self) -> None:
        def several(a: Any, b: Any = "of b", c: Any = "of c") -> None:
            """Take several."""

        assert argument_digests(several, ("of a",), {}) == digests_of(a="of a", b="of b", c="of c")

    def test_what_is_beyond_the_parameters_is_named_by_its_position(self) -> None:
        def several(first: str, *more: str) -> None:
            """Take more."""

        assert argument_digests(several, ("a", "b", "c"), {}) == digests_of(first="a", **{"2": "b", "3": "c"})

    def test_of_a_function_without_python_code_are_named_by_their_positions(self) -> None:
        assert argument_digests(len, ("tea",), {}) == digests_of(**{"1": "tea"})

    def test_of_a_method_begin_with_its_object(self) -> None:
        shop = {"self": f"{HERE}.Shop"}
        assert argument_digests(Shop().sell, ("tea",), {}) == digests_of(**shop, what="tea", count=1)
        assert argument_digests(Shop.open, ("Oslo",), {}) == digests_of(cls=f"{HERE}.Shop", town="Oslo")

    def test_of_a_partial_are_what_it_holds_and_what_it_is_given(self) -> None:
        held = ["partial", digest([f"{HERE}.buy", "tea", ["count", 2], ["gift", True]])[:16]]
        bought = partial(buy, "tea", gift=True, count=2)
        assert argument_digests(bought, ("now",), {}) == {held[0]: held[1], **digests_of(**{"1": "now"})}
        assert argument_digests(partial(buy, "tea", count=2, gift=True), (), {}) == {held[0]: held[1]}

    def test_what_a_function_closes_over_counts_as_an_argument(self) -> None:
        town = "Oslo"

        def go() -> str:
            return town

        assert argument_digests(go, (), {}) == digests_of(town="Oslo")

    def test_what_a_function_closes_over_and_has_no_value_yet_counts_as_none(self) -> None:
        def go() -> str:
            return town

        assert argument_digests(go, (), {}) == digests_of(town=None)
        town = "Oslo"

    @pytest.mark.parametrize("value", [iter([1]), (each for each in "ab"), map(str, [1])])
    def test_that_can_be_read_only_once_are_refused_by_name(self, value: Any) -> None:
        with pytest.raises(FlowError, match=r"The argument 'what' of a step is an iterator, .*; pass a list"):
            argument_digests(buy, (value,), {})


class Node:
    def __init__(self) -> None:
        self.all: list[Node] = []


def test_objects_that_refer_to_each_other_in_many_ways_are_refused() -> None:
    nodes = [Node() for _ in range(1000)]
    for node in nodes:
        node.all = nodes
    with pytest.raises(FlowError, match="refers to its own parts again and again"):
        argument_digests(buy, (nodes[0],), {})


class TestPlain:
    @pytest.mark.parametrize("value", [None, True, 1, 0.5, "tea"])
    def test_data_of_json_stay_as_they_are_at_any_depth(self, value: Any) -> None:
        assert plain(value) is value
        assert plain(value, 0) is value

    @pytest.mark.parametrize(
        ("value", "expected"),
        [
            (Way.BACK, ["<Way>", "BACK"]),
            (Right.READ | Right.WRITE, 3),
            (NoData.A, ["<NoData>", "A"]),
            (b"tea", ["bytes", "dGVh"]),
            (bytearray(b"tea"), ["bytes", "dGVh"]),
            ((1, [2]), [1, [2]]),
            ({"b": 1, 2: b"x"}, {"b": 1, "<int>2": ["bytes", "eA=="]}),
            ({("a", 1): 1}, {"<tuple>('a', 1)": 1}),
            ({"b", "a"}, ["a", "b"]),
            (frozenset({("b",), ("a",)}), [["a"], ["b"]]),
            (Seat(where="aisle"), {"where": "aisle"}),
            (Place(where="aisle"), {"where": "aisle"}),
            (Place, f"{HERE}.Place"),
            (buy, f"{HERE}.buy"),
            (Shop(town="Oslo"), f"{HERE}.Shop"),
            (Data(town="Oslo", at=None), ["<Data>", {"town": "Oslo", "at": None}]),
            (Data(town="Oslo", on=date(2026, 1, 2)), ["<Data>", {"town": "Oslo", "on": "2026-01-02"}]),
            (Data(town="Oslo", lock=Lock()), "<Data>"),
            (Data(), "<Data>"),
            (date(2026, 1, 2), "2026-01-02"),
            (Decimal("1.50"), "1.50"),
            (Lock(), "<lock>"),
        ],
    )
    def test_is_what_a_value_is_made_of(self, value: Any, expected: Any) -> None:
        assert plain(value) == expected

    @pytest.mark.parametrize(
        ("wrap", "levels", "beyond"),
        [
            (lambda value: [value], 1, "<list>"),
            (lambda value: (value,), 1, "<tuple>"),
            (lambda value: {"a": value}, 1, "<dict>"),
            (lambda value: frozenset({value}), 1, "<frozenset>"),
            (lambda value: Place(where=value), 1, "<Place>"),
            (lambda value: Seat(where=value), 2, "<Seat>"),
        ],
    )
    def test_of_what_lies_more_than_sixteen_levels_deep_is_its_type(
        self, wrap: Callable[[Any], Any], levels: int, beyond: str
    ) -> None:
        def nested(times: int) -> Any:
            value: Any = "tea"
            for _ in range(times):
                value = wrap(value)
            return value

        most = 16 // levels
        assert "tea" in str(plain(nested(most)))
        assert "tea" not in str(plain(nested(most + 1)))
        assert beyond in str(plain(nested(most + 1)))

    def test_of_a_set_is_in_the_same_order_though_its_items_can_not_be_compared(self) -> None:
        assert plain({2, None, "a"}) == plain(frozenset(["a", None, 2])) == ["a", 2, None]

    def test_the_data_of_an_object_lie_one_level_below_it(self) -> None:
        assert plain(Data(towns=[["Oslo"]]), 3) == ["<Data>", {"towns": ["<list>"]}]
        assert plain(Data(towns=["Oslo"]), 2) == ["<Data>", {"towns": "<list>"}]
        assert plain(Data(towns=["Oslo"]), 1) == ["<Data>", "<dict>"]
        assert plain(Data(towns=["Oslo"]), 0) == "<Data>"
