"""Tools given by a raw JSON Schema: served as it is, and their arguments held to it."""

import copy
import socket
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from mrtr_server import InputSchema, MRTRServer, SetupError
from mrtr_server.errors import ArgumentsMisfit
from mrtr_server.schema.arguments import RawArguments
from mrtr_server.schema.misfits import MOST_PROBLEMS

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
        arguments.validate(raw)
    return caught.value.problems


def test_the_schema_is_served_as_it_is() -> None:
    before = copy.deepcopy(SCHEMA)
    assert RawArguments("tool", SCHEMA, "arguments").schema == before
    assert before == SCHEMA


def nested(levels: int, keyword: str) -> dict[str, Any]:
    """Return a schema in which so many stand within each other."""
    schema: Any = {"type": "object"}
    for _ in range(levels - 1):
        below = {"a": schema} if keyword in ("properties", "$defs") else [schema] if keyword == "allOf" else schema
        schema = {"type": "object", keyword: below}
    found: dict[str, Any] = schema
    return found


@pytest.mark.parametrize("keyword", ["properties", "$defs", "allOf", "not", "default"])
@pytest.mark.parametrize("validate", [True, False])
def test_schemas_stand_within_each_other_up_to_64_times(keyword: str, validate: bool) -> None:
    RawArguments("tool", nested(64, keyword), "arguments", validate=validate)
    for levels in (65, 3000):
        with pytest.raises(SetupError, match=r"^tool: input_schema= has more than 64 schemas within each other"):
            RawArguments("tool", nested(levels, keyword), "arguments", validate=validate)


def test_a_schema_of_many_that_are_the_same_is_read_at_once() -> None:
    schema: dict[str, Any] = {"type": "object"}
    for _ in range(60):
        schema = {"type": "object", "properties": {"a": schema, "b": schema}}
    assert RawArguments("tool", schema, "arguments", validate=False).schema == schema


def test_the_function_takes_one_dictionary_or_each_by_name() -> None:
    raw = {"city": "Oslo", "days": 2}
    assert RawArguments("tool", SCHEMA, "arguments").validate(raw) == {"arguments": raw}
    assert RawArguments("tool", SCHEMA, None).validate(raw) == raw


def test_nothing_is_added_dropped_or_converted() -> None:
    arguments = RawArguments(
        "tool", {"type": "object", "properties": {"days": {"type": "integer", "default": 3}}}, "it"
    )
    assert arguments.validate({}) == {"it": {}}
    assert arguments.validate({"other": 1.0}) == {"it": {"other": 1.0}}
    assert problems(arguments, {"days": "3"}) == [("days", 'does not fit "type": "integer"')]


def test_every_problem_is_named_by_its_path() -> None:
    found = problems(RawArguments("tool", SCHEMA, None), {"city": "", "near": [1, "x", 2], "more": 1})
    assert sorted(where for where, _ in found) == ["", "", "city", "near.1", "near.2"]
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
        accepted = RawArguments("tool", SCHEMA, None).validate(raw)
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
    assert arguments.validate({"days": 2}) == {"days": 2}
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
        ({"type": "object", "properties": {"a": {"pattern": "("}}}, "the pattern '(' is not a regular expression"),
        ({"type": "object", "properties": {"a": {"pattern": "(a{1000}){1000}"}}}, "or is too large"),
        ({"type": "object", "$schema": "https://example.com/schema"}, "'https://example.com/schema' is not known"),
    ],
)
def test_what_is_no_schema_of_an_object_is_refused(schema: dict[str, Any], what: str) -> None:
    with pytest.raises(SetupError) as caught:
        RawArguments("tool", schema, None)
    assert str(caught.value).startswith("tool: ")
    assert what in str(caught.value)


@pytest.mark.parametrize(
    "reference",
    ["https://example.com/schema", "file:///schema.json", "other.json", "#/$defs/nothing", "#nowhere"],
)
def test_a_reference_that_leads_nowhere_is_refused_when_the_decorator_runs(reference: str) -> None:
    schema = {"type": "object", "properties": {"a": {"$ref": reference}}}
    with pytest.raises(SetupError, match=r"tool: .*a \$ref that can't be resolved.*put the target into"):
        RawArguments("tool", schema, None)


@pytest.mark.parametrize("keyword", ["$ref", "$dynamicRef", "$schema"])
def test_a_reference_is_never_followed_to_the_network(keyword: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = f"http://127.0.0.1:{listener.getsockname()[1]}/schema"
        with suppress(SetupError):
            RawArguments("tool", {"type": "object", "properties": {"a": {keyword: address}}}, None).validate({"a": 1})
        with suppress(SetupError):
            RawArguments("tool", {"type": "object", keyword: address}, None).validate({"a": 1})
        listener.setblocking(False)
        with pytest.raises(BlockingIOError):  # who had connected would wait here
            listener.accept()


NESTED = "^([a-z0-9]+)*@x$"
"""300 letters would have the engine of Python's `re` busy until the sun burns out."""


def within(seconds: float, work: Callable[[], object]) -> object:
    """Do something in a time of the processor's, whoever else is busy."""
    began = time.process_time()
    result = work()
    assert time.process_time() - began < seconds
    return result


@pytest.mark.parametrize("letters", [300, 3_000_000])
@pytest.mark.parametrize(
    "field", [{"pattern": NESTED}, {"patternProperties": {NESTED: False}}, {"propertyNames": {"pattern": NESTED}}]
)
def test_a_pattern_takes_a_time_that_grows_with_the_text(field: dict[str, Any], letters: int) -> None:
    arguments = RawArguments("tool", {"type": "object", "properties": {"a": field}}, "it")
    text = "a" * letters
    raw = {"a": text if "pattern" in field else {text: 1}}
    if "patternProperties" in field:  # nothing matches, so nothing is refused
        assert within(5, lambda: arguments.validate(raw)) == {"it": raw}
    else:
        ((where, _),) = cast("list[tuple[str, str]]", within(5, lambda: problems(arguments, raw)))
        assert where == "a"


@pytest.mark.parametrize("pattern", ["(?=a)b", "(?!a)b", "(?<=a)b", "(?<!a)b", r"(a)\1"])
@pytest.mark.parametrize("dialect", [SCHEMA["$schema"], "http://json-schema.org/draft-07/schema#"])
def test_a_pattern_that_needs_more_than_that_is_refused_with_the_ways_out(pattern: str, dialect: str) -> None:
    for field, place in (
        ({"pattern": pattern}, "properties.a.pattern"),
        ({"patternProperties": {pattern: {}}}, f"properties.a.patternProperties.{pattern}"),
        ({"not": {"items": {"pattern": pattern}}}, "properties.a.not.items.pattern"),
    ):
        with pytest.raises(SetupError) as caught:
            RawArguments("tool", {"$schema": dialect, "type": "object", "properties": {"a": field}}, None)
        said = str(caught.value)
        assert f"{pattern!r} can't be matched in linear time (at {place})" in said
        assert "Write it without lookaround and backreferences; or pass InputSchema(..., validate=False)" in said


def test_without_validation_a_schema_is_served_and_nothing_is_held_to_it() -> None:
    schema = {"type": "object", "properties": {"a": {"pattern": "(?=a)b", "$ref": "https://example.com/schema"}}}
    arguments = RawArguments("tool", schema, "it", validate=False)
    assert arguments.schema == schema
    assert arguments.validate({"a": 1, "b": 2}) == {"it": {"a": 1, "b": 2}}
    with pytest.raises(SetupError, match='must have "type": "object"'):
        RawArguments("tool", {"type": "string"}, "it", validate=False)


def test_leaving_validation_out_is_said_to_the_decorator() -> None:
    app = MRTRServer("raw", keys=[bytes(32)])
    schema = {"type": "object", "properties": {"a": {"pattern": "(?=a)b"}}}
    with pytest.raises(SetupError, match="can't be matched in linear time"):
        app.tool(name="held", input_schema=schema)(lambda arguments: None)
    app.tool(name="served", input_schema=InputSchema(schema, validate=False))(lambda arguments: None)


def test_unique_items_take_a_time_that_grows_with_their_number() -> None:
    schema = {"type": "object", "properties": {"them": {"type": "array", "uniqueItems": True}}}
    arguments = RawArguments("tool", {**schema, "$schema": SCHEMA["$schema"]}, "it")
    many = {"them": [each for number in range(5000) for each in (number, [number], {"n": number}, str(number))]}
    assert within(5, lambda: arguments.validate(many)) == {"it": many}
    again = {"them": [*many["them"], [7]]}
    assert within(5, lambda: problems(arguments, again)) == [("them", 'does not fit "uniqueItems": true')]


@pytest.mark.parametrize("digits", [19, 30, 300])
def test_numbers_of_many_digits_take_a_time_that_grows_with_their_length(digits: int) -> None:
    keywords = {"uniqueItems": True, "items": {"minimum": 5, "multipleOf": 0.5, "not": {"enum": [5, "x"]}}}
    arguments = RawArguments("tool", {"type": "object", "properties": {"them": keywords}}, "it")
    raw = {"them": [10**digits + number for number in range(300_000 // digits)]}
    assert within(5, lambda: arguments.validate(raw)) == {"it": raw}


def test_a_number_beyond_any_float_is_refused() -> None:
    arguments = RawArguments("tool", {"type": "object", "properties": {"a": {"minimum": 5}}}, "it")
    many = {"a": 10**308, "b": "9" * 400, "c": [{"d": 10**309}, *[-(10**4200)] * 1000]}
    found = cast("list[tuple[str, str]]", within(2, lambda: problems(arguments, many)))
    assert found[:2] == [(f"c.{name}", "the number is too large") for name in ("0.d", "1")]
    assert len(found) == MOST_PROBLEMS
    del many["c"]
    assert arguments.validate(many) == {"it": many}


def test_a_reference_to_the_schema_itself_leads_to_the_same_checks() -> None:
    schema = {"type": "object", "properties": {"them": {"items": {"$ref": "#"}, "uniqueItems": True}}}
    arguments = RawArguments("tool", {**schema, "$schema": SCHEMA["$schema"]}, "it")
    items = [{"n": number} for number in range(4000)]
    within(5, lambda: arguments.validate({"them": [{"them": items}]}))
    assert problems(arguments, {"them": [{"them": [1, {"them": [{}, {}]}]}]}) == [
        ("them.0.them.0", 'does not fit "type": "object"'),
        ("them.0.them.1.them", 'does not fit "uniqueItems": true'),
    ]


def test_many_mistakes_take_a_time_that_grows_with_their_number() -> None:
    schema = {"type": "object", "properties": {"them": {"items": {"type": "string"}}}, "additionalProperties": False}
    arguments = RawArguments("tool", schema, None)
    found = within(5, lambda: problems(arguments, {"them": list(range(500_000))}))
    assert found == [(f"them.{position}", 'does not fit "type": "string"') for position in range(MOST_PROBLEMS)]
    ((where, what),) = cast(
        "list[tuple[str, str]]", within(5, lambda: problems(arguments, dict.fromkeys(map(str, range(100_000)))))
    )
    assert where == ""
    assert len(what) <= 200


@pytest.mark.parametrize("union", ["anyOf", "oneOf", "allOf"])
def test_a_union_that_refers_to_itself_takes_a_time_that_grows_with_the_depth(union: str) -> None:
    branches = [
        {"type": "object", "properties": {"below": {"$ref": "#/$defs/node"}, other: {"type": "integer"}}}
        for other in ("left", "right")
    ]
    node = {union: [*branches, {"type": "integer"}]} if union != "allOf" else {union: branches}
    arguments = RawArguments("tool", {"type": "object", "properties": {"a": node}, "$defs": {"node": node}}, None)
    value: Any = "x"
    for _ in range(60):
        value = {"below": value}
    if union == "allOf":
        value = {"below": {"below": {"below": {"left": "x"}}}}
    found = cast("list[tuple[str, str]]", within(2, lambda: problems(arguments, {"a": value})))
    assert 1 <= len(found) <= MOST_PROBLEMS
    assert all(where.startswith("a") for where, _ in found)


def test_what_a_schema_refers_to_in_circles_is_told_once() -> None:
    schema = {
        "type": "object",
        "properties": {"a": {"$ref": "#/$defs/a"}},
        "$defs": {"a": {"allOf": [{"$ref": "#/$defs/a"}, {"type": "integer"}]}},
    }
    assert ("a", 'does not fit "type": "integer"') in problems(RawArguments("tool", schema, None), {"a": "x"})


DEEP: dict[str, Any] = {
    "type": "object",
    "properties": {
        "pair": {"prefixItems": [{"type": "string"}, {"enum": ["x"]}], "items": {"minimum": 1}},
        "map": {"patternProperties": {"^x-": {"type": "string"}}, "additionalProperties": {"type": "integer"}},
        "both": {"allOf": [{"$ref": "#/$defs/a~1b%25"}, {"maxLength": 2}]},
        "when": {"if": {"required": ["a"]}, "then": {"required": ["b"]}, "else": {"properties": {"c": False}}},
        "with": {"dependentSchemas": {"a": {"properties": {"b": {"const": 1}}}}},
        "any": {"anyOf": [{"type": "string"}, {"type": "integer"}]},
        "names": {"propertyNames": {"maxLength": 1}},
        "not": {"not": {"type": "string"}},
    },
    "$defs": {"a/b%": {"pattern": "^a"}},
}


@pytest.mark.parametrize(
    ("raw", "expected"),
    [
        ({"pair": [1, "y", 0, 5]}, {"pair.0": "type", "pair.1": "enum", "pair.2": "minimum"}),
        ({"map": {"x-1": 1, "y": "z", "x-2": "fine"}}, {"map.x-1": "type", "map.y": "type"}),
        ({"both": "b"}, {"both": "pattern"}),
        ({"both": "abc"}, {"both": "maxLength"}),
        ({"when": {"a": 1}}, {"when": "required"}),
        ({"when": {"c": 1}}, {"when.c": "no value"}),
        ({"with": {"a": 1, "b": 2}}, {"with.b": "const"}),
        ({"any": []}, {"any": "anyOf"}),
        ({"names": {"long": 1}}, {"names": "propertyNames"}),
        ({"not": "text"}, {"not": "not"}),
    ],
)
def test_a_problem_is_found_as_far_inside_as_can_be(raw: dict[str, Any], expected: dict[str, str]) -> None:
    found = dict(problems(RawArguments("tool", DEEP, None), raw))
    assert found.keys() == expected.keys()
    assert all(what in found[where] for where, what in expected.items())


def test_older_dialects_are_explained_by_their_own_rules() -> None:
    schema = {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "type": "object",
        "properties": {
            "pair": {"items": [{"type": "string"}], "additionalItems": {"type": "integer"}},
            "ref": {"$ref": "#/definitions/text", "maxLength": 1},
            "after": {"dependencies": {"a": ["b"]}},
        },
        "definitions": {"text": {"type": "string"}},
    }
    arguments = RawArguments("tool", schema, "it")
    assert [where for where, _ in problems(arguments, {"pair": [1, "x"]})] == ["pair.0", "pair.1"]
    assert problems(arguments, {"after": {"a": 1}})[0][0] == "after"
    assert problems(arguments, {"ref": 1}) == [("ref", 'does not fit "type": "string"')]
    arguments.validate({"ref": "more than one, and nothing beside a reference counts here"})


def test_a_format_is_an_annotation() -> None:
    schema = {"type": "object", "properties": {"a": {"format": "email"}, "b": {"format": "of our own"}}}
    RawArguments("tool", schema, "it").validate({"a": "no address", "b": 1})


def test_what_json_schema_has_for_an_integer_is_one() -> None:
    arguments = RawArguments("tool", {"type": "object", "properties": {"a": {"type": "integer"}}}, "it")
    for value in (1.0, -0.0, 1e300, 2**53 + 1, 10**300):
        arguments.validate({"a": value})
    assert problems(arguments, {"a": 1.5}) == problems(arguments, {"a": True}) == problems(arguments, {"a": "1"})


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers(-2, 2) | st.sampled_from(["", "a", "ab", "x-1", 1.0, 10**20]),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(st.sampled_from(["a", "b", "c", "x-1", "left"]), inner, max_size=3)
        ),
        max_leaves=6,
    ),
    st.sampled_from(list(DEEP["properties"])),
)
def test_what_does_not_fit_is_always_explained(value: Any, name: str) -> None:
    arguments = RawArguments("tool", DEEP, None)
    if value is None or Draft202012Validator(DEEP).is_valid({name: value}):  # null is what may be left out
        arguments.validate({name: value})
    else:
        assert all(where.startswith(name) and what for where, what in problems(arguments, {name: value}))


@pytest.mark.parametrize(
    ("items", "unique"),
    [([1, 1.0], False), ([1, True], True), ([{"a": 1, "b": 2}, {"b": 2, "a": 1}], False), ([], True)],
)
def test_unique_is_what_json_schema_says(items: list[Any], unique: bool) -> None:
    schema = {"type": "object", "properties": {"them": {"uniqueItems": True}}}
    assert Draft202012Validator(schema).is_valid({"them": items}) is unique
    if unique:
        RawArguments("tool", schema, "it").validate({"them": items})
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
    assert ("c", "the schema allows no value here") in found
    assert ("d", '"e" is a required property') in found
    assert "s3cret" not in str(found)
    assert all(len(where) <= 200 and len(what) <= 200 for where, what in found)


def test_the_digits_of_a_number_are_looked_at_once() -> None:
    arguments = RawArguments("tool", {"type": "object", "properties": {"them": {"type": "array"}}}, "it")
    raw = {"them": [int("7" * 308)] * 20_000}
    assert within(0.5, lambda: arguments.validate(raw)) == {"it": raw}
