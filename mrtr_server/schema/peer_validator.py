"""Validation of what a peer sends, at a cost that its size bounds, and with the types that JSON has."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextvars import ContextVar
from functools import lru_cache, partial
from itertools import islice
from typing import Any, cast

from pydantic import BaseModel, TypeAdapter, ValidationError
from pydantic_core import PydanticCustomError, SchemaValidator, to_json

from . import type_parts
from .hardening import refuse_backtracking, refuse_imports, scattered, short_text, validate_together
from .misfits import MOST_PROBLEMS, UNREAD, problems_of
from .type_parts import TABLES, Node, definitions_of, parts, rebuilt, walk

MOST_KEYS = 1000  # keys of an object that are read to find out what is wrong with it

_FIELDS = frozenset({"model-field", "typed-dict-field", "dataclass-field", "named-tuple-field"})

_PLAIN = frozenset({"str", "int", "float", "bool"})
"""Strict types of them take the same from JSON and from what was read of it."""


class PeerValidator:
    """Validates values of one type that a peer sends; without `is_json`, all of them as strings. Raises `SetupError`.

    pydantic notes every problem of every item before it raises, some 700 bytes for each: 135 KB of empty objects took
    a gigabyte. So an array or a table ends at its first wrong item, which costs valid input nothing. Where problems
    could multiply all the same (`without_floods`), the first validation only finds that something does not fit, and a
    second one what: that ends once it has found enough.
    """

    def __init__(self, where: str, adapter: TypeAdapter[Any], *, is_json: bool = True) -> None:
        schema: Node = adapter.core_schema
        nodes = walk(schema)
        refuse_imports(where, nodes)
        if any("pattern" in each for each in nodes):
            refuse_backtracking(where, schema)
        type_parts.refuse_many_ways(where, schema, nodes)
        typed = _typed_as_json(nodes) if is_json else lambda node: node
        labelled = rebuilt(schema, partial(_labelled, schema, typed))
        self._bounded = rebuilt(labelled, lambda node: _bounded(typed(node)))
        quick = _with_one_problem(self._bounded)
        self._names_all = quick is self._bounded
        self._has_tables = any(each.get("fail_fast") and each["type"] in TABLES for each in walk(quick))
        self._has_texts = any(each["type"] == "json" for each in nodes)  # which are validated together
        self._is_strict = _is_strict(nodes)
        self._has_integers = is_json and any(each["type"] == "int" for each in nodes)
        self._explain: Callable[[Any], Any] | None = None
        validator = adapter.validator if quick is schema else compiled(quick)
        validate = partial(_of_json, validator) if self._is_strict else validator.validate_python
        self.exactly = self._with_texts(validate)  # `validate`, which makes no integer of 1.0
        self.validate = self._with_texts(partial(_or_whole, validate)) if self._has_integers else self.exactly

    def problems(self, value: Any, error: ValidationError) -> list[tuple[str, str]]:
        """Return the first problems of a value that `validate` refused with an error, as (where, what)."""
        is_short = self._names_all and error.error_count() <= MOST_KEYS
        value = _whole(value) if self._has_integers else value
        found = None if is_short else self._explained(value)
        return problems_of(found or error, value, tables=self._has_tables)

    def _explained(self, value: Any) -> ValidationError | None:
        if self._explain is None:
            validator = compiled(rebuilt(self._bounded, _read_in_part))
            explain = partial(_as_json, validator) if self._is_strict else validator.validate_python
            self._explain = self._with_texts(explain)
        token = _to_find.set([MOST_PROBLEMS])
        try:
            self._explain(_with_fewer_keys(value))
        except ValidationError as error:
            return error
        except Exception:  # of a validator of the author's, which minds what was left out
            return None
        finally:
            _to_find.reset(token)
        return None

    def _with_texts(self, validate: Callable[[Any], Any]) -> Callable[[Any], Any]:
        return partial(validate_together, validate) if self._has_texts else validate


@lru_cache(maxsize=64)
def validator_of(model: type[BaseModel]) -> PeerValidator:
    """Return the validator of a model of our own, compiled once."""
    return PeerValidator(model.__name__, TypeAdapter(model))


def compiled(schema: Node) -> SchemaValidator:
    """Return a validator by a core schema, also of the models within it, whatever their classes have."""
    return SchemaValidator(cast(Any, schema), _use_prebuilt=False)


def _is_strict(nodes: Sequence[Node]) -> bool:
    """Return whether a part is strict: from JSON alone, that takes text for a date, or a list for a set."""
    return any(
        (each.get("strict") and each["type"] not in _PLAIN) or (each.get("config") or {}).get("strict")
        for each in nodes
    )


def _or_whole(validate: Callable[[Any], Any], value: Any) -> Any:
    try:
        return validate(value)
    except ValidationError:
        if (read := _whole(value)) is value:
            raise
    return validate(read)


def _of_json(validator: Any, value: Any) -> Any:
    try:
        return validator.validate_python(value)
    except ValidationError:
        return _as_json(validator, value)


def _as_json(validator: Any, value: Any) -> Any:
    return validator.validate_json(to_json(value))


def without_floods(schema: Node) -> Node:
    """Return a core schema of which no value has very many problems."""
    # Arrays and tables end at their first wrong item. A choice of a union has one problem, if it could have one for
    # each unknown key; so has the value of such a key, and a value of a recursive type. Or each choice, and each value
    # within another, would add its own.
    return _with_one_problem(rebuilt(schema, _ending))


def _with_one_problem(ends: Node) -> Node:
    if not any(each["type"] in _FLOODING or "extras_schema" in each for each in walk(ends)):
        return ends
    recursive = _recursive(definitions_of(ends))

    def change(node: Node) -> Node:
        if node["type"] == "definition-ref" and node["schema_ref"] in recursive:
            return _as_one(node)
        if node["type"] == "union":
            choices = [each if isinstance(each, tuple) else (each, None) for each in node["choices"]]
            if any(_may_flood(choice) for choice, _ in choices):
                ones = [
                    (_as_one(choice), label) if _may_flood(choice) else (choice, label) for choice, label in choices
                ]
                return {**node, "choices": [one if label is None else (one, label) for one, label in ones]}
        if "extras_schema" in node and type_parts.is_compound(node["extras_schema"]):
            return {**node, "extras_schema": _as_one(node["extras_schema"])}
        return node

    return rebuilt(ends, change)


_FLOODING = frozenset({"union", "definition-ref"})


def _bounded(node: Node) -> Node:
    return _checked(_ending(node))


def _checked(node: Node) -> Node:
    return short_text(scattered(node))


def _ending(node: Node) -> Node:
    node = type_parts.listed(node)
    if node["type"] not in type_parts.ARRAYS | TABLES or node.get("fail_fast"):
        return node
    items = [each["type"] for each in parts(node)]
    return node if all(each == "any" for each in items) else {**node, "fail_fast": True}


def _labelled(schema: Node, typed: Callable[[Node], Node], node: Node) -> Node:
    """Name the choices of a union in the paths of problems by what they are, and not by what checks them."""
    if node["type"] != "union" or all(_checked(typed(each)) is each for each in walk(node)):
        return node
    definitions = definitions_of(schema)
    choices = [each if isinstance(each, tuple) else (each, _title(each, definitions)) for each in node["choices"]]
    return {**node, "choices": choices}


def _title(node: Node, definitions: dict[str, Node]) -> str:
    alone: Any = {"type": "definitions", "schema": node, "definitions": [*definitions.values()]}
    return SchemaValidator(alone).title


def _recursive(definitions: dict[str, Node]) -> set[str]:
    """Return the names of definitions that lead back to themselves, but no defaults of fields."""
    leads = {
        name: {each["schema_ref"] for each in walk(node) if "schema_ref" in each} for name, node in definitions.items()
    }
    found = set()
    for name, to in leads.items():
        reached: set[str] = set()
        while new := to - reached:
            reached |= new
            to = {each for one in new for each in leads[one]}
        if name in reached and definitions[name]["type"] != "default":
            found.add(name)
    return found


def _may_flood(node: Node) -> bool:
    return any(
        each["type"] in ("definition-ref", "named-tuple")
        or "extras_schema" in each
        or "forbid" in (each.get("extra_behavior"), (each.get("config") or {}).get("extra_fields_behavior"))
        for each in walk(node)
    )


def _as_one(node: Node) -> Node:
    """Return a node that has one problem in place of all those of another."""
    # A union does so without a call of Python, and lets all other exceptions pass; pydantic's `custom-error` does not.
    return {
        "type": "union",
        "mode": "left_to_right",
        "auto_collapse": False,
        "choices": [node],
        "custom_error_type": "misfit",
        "custom_error_message": "Input does not fit",
    }


# What is wrong with a value that was refused

_to_find: ContextVar[list[int]] = ContextVar("_to_find")  # how many more problems are to be found


def _read_in_part(node: Node) -> Node:
    name = "schema" if node["type"] in _FIELDS else "extras_schema"
    return {**node, name: _within_default(node[name])} if name in node and type_parts.is_compound(node[name]) else node


def _within_default(schema: Node) -> Node:
    if schema["type"] == "default":
        return {**schema, "schema": _within_default(schema["schema"])}
    return type_parts.calling(_read, "wrap", schema)


def _read(value: Any, handler: Callable[[Any], Any]) -> Any:
    left = _to_find.get()
    before = left[0]
    if before <= 0:
        raise PydanticCustomError(UNREAD, "Not looked at")
    try:
        return handler(value)
    except ValidationError as error:
        left[0] = min(left[0], before - error.error_count())  # problems within were counted already
        raise


def _with_fewer_keys(value: Any) -> Any:
    """Return a value whose objects have at most `MOST_KEYS` keys: each unknown key is a problem."""
    if isinstance(value, dict):
        return {key: _with_fewer_keys(each) for key, each in islice(value.items(), MOST_KEYS)}
    return [_with_fewer_keys(each) for each in value] if isinstance(value, list) else value


# Numbers and booleans as JSON has them: `"5"` and `true` are no integers, and `1.0` is one. pydantic reads them from
# strings, too, and each from the other, where a type is not strict. What clients are served says otherwise, and a
# string that is meant to be one would pass for a number.


_NUMBERS = frozenset({"int", "float", "bool"})

_CONVERTING = frozenset({"function-before", "function-wrap", "json"})
"""The nodes within them get another value than the client has sent."""

_KEYS = ("keys_schema", "extras_keys_schema")  # nodes of keys, which are strings in JSON
_MOST = 2**63  # below it, a number with a fraction of zero is read as an integer


def _typed_as_json(nodes: Sequence[Node]) -> Callable[[Node], Node]:
    """Return what changes nodes so that they take no other JSON than their JSON Schema says."""
    # Nodes that an author has given another value, or has said to be strict or not, stay as they are.
    kept = {id(node) for node in _converted(nodes)}

    def change(node: Node) -> Node:
        if id(node) in kept or "strict" in node:
            return node
        if node["type"] in _NUMBERS:
            return {**node, "strict": True}
        check = _check_of(node)
        if check is None:
            return node
        inner = {name: value for name, value in node.items() if name != "ref"}
        return type_parts.calling(check, "before", inner)

    return change


def _whole(value: Any) -> Any:
    """Return JSON with integers for numbers with a fraction of zero; the same value if there are none."""
    if type(value) is float:
        return int(value) if value.is_integer() and -_MOST < value < _MOST else value
    if type(value) is list:
        items = [_whole(item) for item in value]
        return items if any(new is not old for new, old in zip(items, value, strict=True)) else value
    if isinstance(value, dict):
        read = {name: _whole(item) for name, item in value.items()}
        return read if any(read[name] is not item for name, item in value.items()) else value
    return value


def _converted(nodes: Sequence[Node]) -> Iterator[Node]:
    for node in nodes:
        is_authors = node["type"] in _CONVERTING and type_parts.pydantics_function(node) is None
        converted: Iterable[Node] = parts(node) if is_authors else ()
        if node["type"] == "chain":
            converted = [each for each in node["steps"] if each["type"] != "is-instance"][1:]
        for part in converted:
            yield from walk(part)
        for keys in _KEYS:
            if keys in node:
                yield from walk(node[keys])


def _check_of(node: Node) -> Callable[[Any], Any] | None:
    if node["type"] == "literal":
        values = [getattr(each, "value", each) for each in node["expected"]]
    elif node["type"] == "enum" and "missing" not in node:  # or its class has a say in what it takes
        values = [each.value for each in node["members"]]
    else:
        return None
    types = {type(each) for each in values}
    if types == {str} or types.isdisjoint((int, float, bool)):
        return None
    refused = tuple(kind for kind in (str, bool, int, float) if not types & _SAME.get(kind, {kind}))

    def check(value: Any) -> Any:
        return _NO_CHOICE if type(value) in refused else value

    return check


_SAME = {int: {int, float}, float: {int, float}}

_NO_CHOICE = object()  # no choice is equal to it
