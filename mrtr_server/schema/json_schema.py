"""Values that a JSON Schema describes: whether they fit, and where they don't. The only importer of jsonschema-rs.

Patterns are matched in linear time, and misfits are looked for from the outside to the inside, until enough are
found. The library's own errors are all or none, each with those of every branch within it: 600,000 wrong items took a
gigabyte, and a schema that refers to itself from within a union more at each level.
"""

import re
from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Any
from urllib.parse import quote, unquote

from pydantic_core import to_json

from ..crypto.digests import canonical
from ..errors import SetupError, lacking
from .misfits import MOST_PROBLEMS, part_at, problem

try:
    import jsonschema_rs
    from jsonschema_rs import FancyRegexOptions, RegexOptions, ValidationError, Validator
except ImportError as error:  # pragma: no cover  tests run with every extra
    raise lacking(
        "Checking arguments by input_schema= (InputSchema(validate=False) leaves that to the tool)", "schemas", error
    ) from error

Path = tuple[str | int, ...]
Problem = tuple[str, str]
Part = tuple[str, Any, str | int | None]
"""The pointer of a part of the schema, what must fit it, and the name of that; None for the value itself."""

DEEPEST = 32
"""Levels of a value whose problems are named. Longer paths are cut anyway."""

_URI = "mrtr:schema"  # the name of the whole schema where a part of it is compiled alone

_OF_ALL = {"$ref", "$dynamicRef", "$recursiveRef", "allOf", "anyOf", "oneOf", "not", "if", "then", "else"}
_OF_OBJECTS = {"properties", "patternProperties", "propertyNames", "unevaluatedProperties", "dependentSchemas"}
_OF_ARRAYS = {"items", "prefixItems", "additionalItems", "contains", "unevaluatedItems"}
_PARTS = frozenset(_OF_ALL | _OF_OBJECTS | _OF_ARRAYS)  # keywords whose value is a schema, has schemas, or leads to one

_ELSEWHERE = frozenset(
    ("$schema", "$id", "id", "$anchor", "$dynamicAnchor", "$recursiveAnchor", "$vocabulary", "$defs", "definitions")
)
"""Keywords that do not restrict values themselves."""

_NAMES_ONLY = frozenset({"required", "dependentRequired", "additionalProperties"})
"""The library's messages for them repeat names, but no values."""

_OLD = (jsonschema_rs.Draft4Validator, jsonschema_rs.Draft6Validator, jsonschema_rs.Draft7Validator)
"""Dialects in which a `$ref` makes its siblings meaningless."""

_LARGEST = 1.7976931348623157e308
_LONG_NUMBER = re.compile(rb"(?<![0-9])[0-9]{309}")  # from its first digit on, or each digit would begin a search


class _UniqueItems:
    """`uniqueItems` in one pass: the library compares each two of the integers that need more than 64 bits."""

    def __init__(self, _schema: Any, wanted: Any, _path: Any) -> None:
        self._wanted = wanted is True

    def validate(self, value: Any) -> None:
        if self._wanted and isinstance(value, list) and len(set(map(canonical, value))) < len(value):
            raise ValueError("has items that are equal")


class JSONSchema:
    """A JSON Schema that values are validated against: of 2020-12 unless its `$schema` says otherwise.

    `format` is an annotation only. Raises `SetupError` for a schema that is not valid, a pattern that can't be
    matched in linear time, or a reference that leads nowhere or outside: nothing is fetched.
    """

    def __init__(self, where: str, schema: Mapping[str, Any]) -> None:
        self._schema = dict(schema)
        self._dialect = {"$schema": self._schema["$schema"]} if "$schema" in self._schema else {}
        try:
            _compile(self._dialect)
        except ValueError:
            raise SetupError(f"{where}: the schema dialect {self._dialect['$schema']!r} is not known") from None
        try:
            self._whole = _compile(self._schema)
        except ValueError as error:
            raise SetupError(f"{where}: input_schema is not valid: {_why_not(error)}") from error
        self._registry: jsonschema_rs.Registry | None = None
        self._compiled: dict[tuple[str, str], Validator] = {}

    def problems(self, value: Any) -> list[Problem]:
        """Return the first problems of a value as (where, what), in no particular order; none where it fits."""
        text = to_json(value)
        # The library takes milliseconds for each of the longest integers that the parser takes.
        if len(text) > 309 and _LONG_NUMBER.search(text) and (found := [*islice(_too_large(value, ()), MOST_PROBLEMS)]):
            return found
        if self._whole.is_valid(value):
            return []
        return [*islice(self._explain("", value, (), frozenset()), MOST_PROBLEMS)]

    def _explain(self, pointer: str, value: Any, path: Path, above: frozenset[str]) -> Iterator[Problem]:
        # `above` has the pointers that have led here, for this value.
        schema = part_at(self._schema, pointer)
        if schema is False:
            yield problem(path, "the schema allows no value here")
            return
        elsewhere = pointer and isinstance(schema, Mapping) and ("$id" in schema or "$schema" in schema)
        if not isinstance(schema, Mapping) or elsewhere or len(path) == DEEPEST:
            yield problem(path, "does not fit its schema")
            return
        found = False
        for error in self._alone(pointer, schema).iter_errors(value):
            found = True
            yield problem(path, _in_words(error, schema))
        above |= {pointer}
        for below, part, name in self._parts(pointer, schema, value):
            if (name is None and below in above) or self._part(below).is_valid(part):
                continue
            found = True
            if name is None:
                yield from self._explain(below, part, path, above)
            else:
                yield from self._explain(below, part, (*path, name), frozenset())
        if not found:
            left = [f'"{name}": {to_json(schema[name]).decode()}' for name in schema if name in _PARTS]
            yield problem(path, f"does not fit {' or '.join(left) or 'its schema'}")

    def _parts(self, pointer: str, schema: Mapping[str, Any], value: Any) -> Iterator[Part]:
        reference = schema.get("$ref")
        if isinstance(reference, str) and reference.startswith("#"):
            pointer_of = unquote(reference[1:])
            if part_at(self._schema, pointer_of) is not None:
                yield pointer_of, value, None
        if reference is not None and isinstance(self._whole, _OLD):
            return
        for position in range(len(schema.get("allOf", ()))):
            yield f"{pointer}/allOf/{position}", value, None
        if "if" in schema:
            branch = "then" if self._part(f"{pointer}/if").is_valid(value) else "else"
            if branch in schema:
                yield f"{pointer}/{branch}", value, None
        if isinstance(value, dict):
            yield from self._properties(pointer, schema, value)
        elif isinstance(value, list):
            yield from _items(pointer, schema, value)

    def _properties(self, pointer: str, schema: Mapping[str, Any], value: dict[str, Any]) -> Iterator[Part]:
        for name in schema.get("dependentSchemas", ()):
            if name in value:
                yield f"{pointer}/dependentSchemas/{_escaped(name)}", value, None
        declared = schema.get("properties", {})
        for name in declared:
            if name in value:
                yield f"{pointer}/properties/{_escaped(name)}", value[name], name
        patterns = schema.get("patternProperties", ())
        others = isinstance(schema.get("additionalProperties"), Mapping)
        if not patterns and not others:
            return
        for name, part in value.items():
            matched = [pattern for pattern in patterns if self._pattern(pattern).is_valid(name)]
            for pattern in matched:
                yield f"{pointer}/patternProperties/{_escaped(pattern)}", part, name
            if others and not matched and name not in declared:
                yield f"{pointer}/additionalProperties", part, name

    # Validators of parts, compiled when they are first needed. There are no more than the schema has parts.

    def _part(self, pointer: str) -> Validator:
        return self._once("part", pointer, {"$ref": f"{_URI}#{quote(pointer, safe='/~')}"})

    def _alone(self, pointer: str, schema: Mapping[str, Any]) -> Validator:
        """Return the validator of a part's own keywords, without those of the parts within it."""
        if "$ref" in schema and isinstance(self._whole, _OLD):
            return self._once("alone", pointer, {})
        own = {name: schema[name] for name in schema.keys() - _PARTS - _ELSEWHERE}
        for names in ("properties", "patternProperties"):
            if names in schema:
                own[names] = {name: {} for name in schema[names]}
        if "additionalProperties" in own and own["additionalProperties"] is not False:
            del own["additionalProperties"]
        if "dependencies" in own:
            own["dependencies"] = {name: each for name, each in own["dependencies"].items() if isinstance(each, list)}
        return self._once("alone", pointer, own)

    def _pattern(self, pattern: str) -> Validator:
        return self._once("pattern", pattern, {"pattern": pattern})

    def _once(self, kind: str, name: str, schema: dict[str, Any]) -> Validator:
        validator = self._compiled.get((kind, name))
        if validator is None:
            if self._registry is None:
                self._registry = jsonschema_rs.Registry([(_URI, self._schema)])
            validator = self._compiled[kind, name] = _compile({**self._dialect, **schema}, self._registry)
        return validator


def _compile(
    schema: dict[str, Any],
    registry: jsonschema_rs.Registry | None = None,
    patterns: RegexOptions | FancyRegexOptions = RegexOptions(),  # noqa: B008  it can't be changed
) -> Validator:
    return jsonschema_rs.validator_for(
        schema,
        registry=registry,
        pattern_options=patterns,
        keywords={"uniqueItems": _UniqueItems},
        validate_formats=False,
        offline=True,
        mask="…",  # or each error holds the whole value in its text
    )


def _why_not(error: ValueError) -> str:
    if not isinstance(error, ValidationError):
        return str(error)
    path = [str(step) for step in error.instance_path]
    place = f" (at {'.'.join(path)})" if path else ""
    if isinstance(error.kind, jsonschema_rs.ValidationErrorKind.Referencing):
        return (
            f'it has a $ref that can\'t be resolved: {error.message}. Nothing is fetched; put the target into "$defs"'
        )
    patterns = path[-1:] == ["pattern"] or path[-2:-1] == ["patternProperties"]
    if error.kind.name != "format" or not patterns:
        return f"{error.message}{place}"
    pattern = error.instance if path[-1] == "pattern" else path[-1]
    try:
        _compile({"pattern": pattern}, None, FancyRegexOptions())
    except ValueError:
        return f"the pattern {pattern!r} is not a regular expression, or is too large{place}"
    return (
        f"the pattern {pattern!r} can't be matched in linear time{place}: a client could block the server "
        "with it. Write it without lookaround and backreferences; or pass InputSchema(..., validate=False), and check "
        "the arguments yourself"
    )


def _in_words(error: ValidationError, schema: Mapping[str, Any]) -> str:
    keyword = error.kind.name
    if keyword in _NAMES_ONLY:
        return error.message
    # Not the library's message, though it is masked: it may be of any length.
    return f'does not fit "{keyword}": {to_json(schema.get(keyword)).decode()}'


def _items(pointer: str, schema: Mapping[str, Any], value: list[Any]) -> Iterator[Part]:
    items = schema.get("items")
    several = isinstance(items, list | tuple)  # before 2020-12
    rest, after = ("additionalItems", schema.get("additionalItems")) if several else ("items", items)
    first = ("items", items) if several else ("prefixItems", schema.get("prefixItems", ()))
    for position, part in enumerate(value):
        if position < len(first[1] or ()):
            yield f"{pointer}/{first[0]}/{position}", part, position
        elif after is None:
            return
        else:
            yield f"{pointer}/{rest}", part, position


def _too_large(value: Any, path: Path) -> Iterator[Problem]:
    if isinstance(value, dict | list):
        for name, part in value.items() if isinstance(value, dict) else enumerate(value):
            yield from _too_large(part, (*path, name))
    elif isinstance(value, int) and not -_LARGEST <= value <= _LARGEST:
        yield problem(path, "the number is too large")


def _escaped(name: str) -> str:
    return name.replace("~", "~0").replace("/", "~1")
