"""Tools given by a raw JSON Schema: served as it is, and their arguments held to it."""

import copy
import socket
import threading
import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from mrtr_server import SetupError
from mrtr_server.raw_schema import RawArguments
from mrtr_server.schema import MOST_PROBLEMS, ArgumentsMisfit

SCHEMA: dict[str, Any] = {
    "$schema": "https://json-schema.org/draft/2020-12/schema",
    "$comment": "keywords that pydantic knows nothing of",
    "type": "object",
    "properties": {
        "city": {"type": "string", "minLength": 1},
        "days": {"type": "integer", "default": 3, "x-vendor": {"anything": True}},
        "near": {"$ref": "#/$defs/near"},
    },
    "$defs": {"near": {"type": "array", "prefixItems": [{"type": "number"}, {"type": "number"}], "items": False}},
    "required": ["city"],
    "dependentRequired": {"near": ["days"]},
    "additionalProperties": False,
}


def problems(arguments: RawArguments, raw: dict[str, Any]) -> list[tuple[str, str]]:
    with pytest.raises(ArgumentsMisfit) as caught:
        arguments.read(raw)
    return caught.value.problems


def test_the_schema_is_served_as_it_is() -> None:
    before = copy.deepcopy(SCHEMA)
    assert RawArguments("tool", SCHEMA, "arguments").schema == before
    assert before == SCHEMA


def test_the_function_takes_one_dictionary_or_each_by_name() -> None:
    raw = {"city": "Oslo", "days": 2}
    assert RawArguments("tool", SCHEMA, "arguments").read(raw) == {"arguments": raw}
    assert RawArguments("tool", SCHEMA, None).read(raw) == raw


def test_nothing_is_added_dropped_or_converted() -> None:
    arguments = RawArguments(
        "tool", {"type": "object", "properties": {"days": {"type": "integer", "default": 3}}}, "it"
    )
    assert arguments.read({}) == {"it": {}}
    assert arguments.read({"other": 1.0}) == {"it": {"other": 1.0}}
    assert problems(arguments, {"days": "3"}) == [("days", 'does not fit "type": "integer"')]


def test_every_problem_is_named_by_its_path() -> None:
    found = problems(RawArguments("tool", SCHEMA, None), {"city": "", "near": [1, "x", 2], "more": 1})
    assert sorted(where for where, _ in found) == ["", "", "city", "near", "near.1"]
    assert all(what for _, what in found)


def test_a_long_list_of_mistakes_is_cut_short() -> None:
    schema = {"type": "object", "properties": {"days": {"items": {"type": "integer"}}}}
    found = problems(RawArguments("tool", schema, None), {"days": ["x"] * 1000})
    assert [where for where, _ in found] == [f"days.{position}" for position in range(MOST_PROBLEMS)]


@given(
    st.dictionaries(
        st.sampled_from(["city", "days", "near", "more"]),
        st.text(max_size=1) | st.integers() | st.lists(st.integers() | st.none(), max_size=3),
    )
)
def test_what_is_accepted_is_what_validates(raw: dict[str, Any]) -> None:
    try:
        accepted = RawArguments("tool", SCHEMA, None).read(raw)
    except ArgumentsMisfit:
        assert not Draft202012Validator(SCHEMA).is_valid(raw)
    else:
        assert accepted == raw
        assert Draft202012Validator(SCHEMA).is_valid(raw)


def test_another_dialect_is_held_to_its_own_rules() -> None:
    draft_4 = {
        "$schema": "http://json-schema.org/draft-04/schema#",
        "type": "object",
        "properties": {"days": {"minimum": 1, "exclusiveMinimum": True}},
    }
    arguments = RawArguments("tool", draft_4, None)
    assert arguments.read({"days": 2}) == {"days": 2}
    assert problems(arguments, {"days": 1})
    with pytest.raises(SetupError, match="input_schema is not valid"):
        RawArguments("tool", {**draft_4, "$schema": SCHEMA["$schema"]}, None)


@pytest.mark.parametrize(
    ("schema", "what"),
    [
        ({}, 'must have "type": "object"'),
        ({"type": "string"}, 'must have "type": "object"'),
        ({"type": ["object", "null"]}, 'must have "type": "object"'),
        ({"type": "object", "properties": []}, "input_schema is not valid"),
        ({"type": "object", "required": "city"}, "input_schema is not valid"),
        ({"type": "object", "properties": {"a": {"type": "text"}}}, "input_schema is not valid"),
        ({"type": "object", "properties": {"a": {"pattern": "("}}}, "input_schema is not valid"),
        ({"type": "object", "$schema": "https://example.com/schema"}, "'https://example.com/schema' is not known"),
    ],
)
def test_what_is_no_schema_of_an_object_is_refused(schema: dict[str, Any], what: str) -> None:
    with pytest.raises(SetupError) as caught:
        RawArguments("tool", schema, None)
    assert str(caught.value).startswith("tool: ")
    assert what in str(caught.value)


@pytest.mark.parametrize(
    "reference", ["https://example.com/schema", "file:///schema.json", "#/$defs/nothing", "#nowhere"]
)
def test_a_reference_that_leads_nowhere_fails_the_call_and_says_why(reference: str) -> None:
    arguments = RawArguments("tool", {"type": "object", "properties": {"a": {"$ref": reference}}}, None)
    ((where, what),) = problems(arguments, {"a": 1})
    assert where == ""
    assert "has a reference that can't be followed" in what


@pytest.mark.filterwarnings("ignore")
def test_a_reference_is_never_followed_to_the_network() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(0.2)
        reference = f"http://127.0.0.1:{listener.getsockname()[1]}/schema"
        arguments = RawArguments("tool", {"type": "object", "properties": {"a": {"$ref": reference}}}, None)
        caller = threading.Thread(target=problems, args=(arguments, {"a": 1}))
        caller.start()
        with pytest.raises(TimeoutError):
            listener.accept()
    caller.join()


def test_unique_items_take_a_time_that_grows_with_their_number() -> None:
    schema = {"type": "object", "properties": {"them": {"type": "array", "uniqueItems": True}}}
    arguments = RawArguments("tool", {**schema, "$schema": SCHEMA["$schema"]}, "it")
    many = {"them": [each for number in range(5000) for each in (number, [number], {"n": number}, str(number))]}
    began = time.perf_counter()
    assert arguments.read(many) == {"it": many}
    assert problems(arguments, {"them": [*many["them"], [7]]}) == [("them", 'does not fit "uniqueItems": true')]
    assert time.perf_counter() - began < 5


def test_a_reference_to_the_schema_itself_leads_to_the_same_checks() -> None:
    schema = {"type": "object", "properties": {"them": {"items": {"$ref": "#"}, "uniqueItems": True}}}
    arguments = RawArguments("tool", {**schema, "$schema": SCHEMA["$schema"]}, "it")
    items = [{"n": number} for number in range(4000)]
    began = time.perf_counter()
    arguments.read({"them": [{"them": items}]})
    assert time.perf_counter() - began < 5


@pytest.mark.parametrize(
    ("items", "unique"),
    [([1, 1.0], False), ([1, True], True), ([{"a": 1, "b": 2}, {"b": 2, "a": 1}], False), ([], True)],
)
def test_unique_is_what_json_schema_says(items: list[Any], unique: bool) -> None:
    schema = {"type": "object", "properties": {"them": {"uniqueItems": True}}}
    assert Draft202012Validator(schema).is_valid({"them": items}) is unique
    if unique:
        RawArguments("tool", schema, "it").read({"them": items})
    else:
        assert problems(RawArguments("tool", schema, "it"), {"them": items})


def test_no_problem_repeats_a_value_or_is_long() -> None:
    schema = {
        "type": "object",
        "properties": {"a": {"maxLength": 3}, "b": {"enum": ["x" * 500]}, "c": False, "d": {"required": ["e"]}},
        "additionalProperties": False,
    }
    secret = "s3cret" * 1000
    found = problems(RawArguments("tool", schema, None), {"a": secret, "b": secret, "c": 1, "d": {}, "n" * 900: 1})
    assert ("a", 'does not fit "maxLength": 3') in found
    assert ("", "a value stands where the schema allows none") in found
    assert ("d", "'e' is a required property") in found
    assert "s3cret" not in str(found)
    assert all(len(where) <= 200 and len(what) <= 200 for where, what in found)
