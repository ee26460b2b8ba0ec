"""Tools given by a raw JSON Schema: served as it is, and their arguments held to it."""

import copy
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from mrtr_server import SetupError
from mrtr_server.raw_schema import RawArguments
from mrtr_server.schema import ArgumentsMisfit

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
    assert problems(arguments, {"days": "3"}) == [("days", "'3' is not of type 'integer'")]


def test_every_problem_is_named_by_its_path() -> None:
    found = problems(RawArguments("tool", SCHEMA, None), {"city": "", "near": [1, "x", 2], "more": 1})
    assert sorted(where for where, _ in found) == ["", "", "city", "near", "near.1"]
    assert all(what for _, what in found)


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
    "reference", ["http://127.0.0.1:9/schema", "https://example.com/schema", "file:///etc/passwd", "#/$defs/nothing"]
)
def test_a_reference_is_never_followed_out_of_the_schema(reference: str) -> None:
    arguments = RawArguments("tool", {"type": "object", "properties": {"a": {"$ref": reference}}}, None)
    ((where, what),) = problems(arguments, {"a": 1})
    assert where == ""
    assert "has a reference that can't be followed" in what
