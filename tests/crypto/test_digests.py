"""The canonical form of JSON agrees with RFC 8785 on which values are the same, and goes on where that ends."""

import json
import math
from typing import Any

import pytest
import rfc8785
from hypothesis import example, given
from hypothesis import strategies as st
from pydantic_core import from_json, to_json

from mrtr_server.crypto.digests import canonical, digest, digest_bytes, digest_twice

SAFE = 2**53 - 1
"""RFC 8785 ends here: past it not every integer is a double."""

scalars = (
    st.none()
    | st.booleans()
    | st.integers(min_value=-SAFE, max_value=SAFE)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.integers(min_value=-SAFE, max_value=SAFE).map(float)
    | st.text()
)
values = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4)
)

# Few scalars, so that two values drawn apart are often the same.
few = st.sampled_from([None, True, False, 0, 1, 0.0, -0.0, 1.0, 0.5, "", "1", "true"])
small = st.recursive(
    few, lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from("ab"), inner, max_size=2)
)


def respelled(value: Any) -> Any:
    """The same JSON value, with its keys in another order and its whole numbers of the other type."""
    match value:
        case bool():
            return value
        case int():
            return float(value)
        case float() if value.is_integer() and abs(value) <= SAFE:
            return int(value)
        case list():
            return [respelled(item) for item in value]
        case dict():
            return {key: respelled(value[key]) for key in reversed(value)}
        case _:
            return value


def as_in_javascript(digits: str) -> int | float:
    return int(digits) if abs(int(digits)) <= SAFE else float(digits)


@given(values)
def test_another_spelling_of_a_value_has_the_same_digest(value: Any) -> None:
    assert rfc8785.dumps(value) == rfc8785.dumps(respelled(value))
    assert digest(value) == digest(respelled(value))


@given(values, values)
@example({"a": 1, "b": 2}, {"b": 2.0, "a": 1.0})
@example(0, -0.0)
@example(True, 1)
@example(False, 0)
@example(None, "null")
@example("1", 1)
@example([1, 2], [2, 1])
@example([], {})
@example({"a": None}, {})
@example("\u00e9", "e\u0301")
@example("\U0001f600", "\\ud83d\\ude00")
@example({"\u20ac": 1, "\U0001f600": 2, "\ufb33": 3}, {"\ufb33": 3, "\u20ac": 1, "\U0001f600": 2})
@example(1e21, 10**15)
@example(5e-324, 0)
@example(1e-7, 0.0000001)
@example(333333333.33333329, 333333333.3333333)
def test_digests_are_equal_exactly_where_rfc_8785_is(one: Any, other: Any) -> None:
    assert (digest(one) == digest(other)) == (rfc8785.dumps(one) == rfc8785.dumps(other))


@given(small, small)
def test_they_are_so_for_values_that_are_nearly_the_same(one: Any, other: Any) -> None:
    assert (digest(one) == digest(other)) == (rfc8785.dumps(one) == rfc8785.dumps(other))


@given(values)
def test_the_canonical_form_is_json_of_the_same_value(value: Any) -> None:
    reread = json.loads(canonical(value), parse_int=as_in_javascript)
    assert rfc8785.dumps(reread) == rfc8785.dumps(value)


@given(values)
def test_what_was_sent_over_the_wire_has_the_digest_of_what_was_meant(value: Any) -> None:
    assert digest(from_json(json.dumps(value))) == digest(value)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (2**53, 2**53 + 1),
        (-(2**53), -(2**53) - 1),
        (2**63, 2**63 + 1),
        (10**40, 10**40 + 1),
        ({"id": 2**53 + 1}, {"id": 2**53}),
    ],
)
def test_whole_numbers_past_two_to_the_53_are_told_apart(one: Any, other: Any) -> None:
    assert digest(one) != digest(other)
    assert canonical(one) != canonical(other)


def test_a_whole_number_past_two_to_the_53_may_still_be_written_as_a_float() -> None:
    assert digest(2**53) == digest(float(2**53))
    assert digest(10**22) == digest(1e22)


@pytest.mark.parametrize(
    "number", [1e21, 1e22, 1e100, 1e308, -1.7976931348623157e308, float(2**80), 2**100, int(1e30)], ids="{:.3g}".format
)
def test_a_large_number_costs_no_more_than_its_shortest_form(number: float) -> None:
    """Or a request of some megabytes would become hundreds of them."""
    assert len(canonical(number)) <= len("-1.7976931348623157e+308")
    assert canonical(number) == to_json(float(number))


@pytest.mark.parametrize("number", [1e21, -1e21, 1e22, -1e22, 1e300, -1e300, float(2**1000)])
def test_a_large_whole_number_is_the_same_as_the_float_that_it_equals(number: float) -> None:
    assert digest(int(number)) == digest(number)
    assert len({digest(each) for each in (int(number) - 1, number, int(number) + 1)}) == 3


@pytest.mark.parametrize(
    "number", [10**309, -(10**4000), 10**21 + 1, 2**70 + 1], ids=lambda number: f"{number.bit_length()} bits"
)
def test_a_whole_number_that_no_float_equals_has_all_of_its_digits(number: int) -> None:
    assert canonical(number) == str(number).encode()


@pytest.mark.parametrize(("value", "text"), [(math.nan, "NaN"), (math.inf, "Infinity"), (-math.inf, "-Infinity")])
def test_a_number_that_is_not_finite_is_like_no_json_at_all(value: float, text: str) -> None:
    # None comes from a client; an argument of a step may be one.
    assert digest(value) == digest(float(text))
    assert digest(value) not in {digest(other) for other in (text, text.lower(), None, 0, 1e308, -1e308, "")}


@pytest.mark.parametrize("value", [object(), {"a": object()}, [lambda: None], {object()}])
def test_what_is_no_json_has_no_canonical_form(value: Any) -> None:
    with pytest.raises(ValueError, match="serialize"):
        canonical(value)


@given(values)
def test_a_digest_is_32_hex_digits(value: Any) -> None:
    assert len(bytes.fromhex(digest(value))) == 16
    assert len(digest(value)) == 32


def test_a_digest_stays_what_it_is() -> None:
    # A change would end every flow that is under way: the arguments in its state would be others.
    assert canonical({"b": [1.0, True, None], "a": "é"}) == '{"a":"é","b":[1,true,null]}'.encode()
    assert digest({"b": [1.0, True, None], "a": "é"}) == "170409917e32971e79e71df2c0a04cc8"
    numbers = [0, -0.0, -5.0, 0.1, 2**53 + 1, 1e20, 999999999999999999999, -(2**63), 1e-7]
    text = "[0,0,-5,0.1,9007199254740993,100000000000000000000,999999999999999999999,-9223372036854775808,1e-7]"
    assert canonical(numbers) == text.encode()
    assert digest_bytes(b"") == "e3b0c44298fc1c149afbf4c8996fb924"


@given(st.binary(), st.binary())
def test_two_digests_in_one_pass_are_those_of_each(data: bytes, more: bytes) -> None:
    assert digest_twice(data, more) == (digest_bytes(data), digest_bytes(data + more))
