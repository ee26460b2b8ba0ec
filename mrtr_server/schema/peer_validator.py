"""Validation of what a peer sends, at a cost that its size bounds."""

from collections.abc import Callable, Mapping
from contextvars import ContextVar
from fractions import Fraction
from functools import lru_cache, partial
from ipaddress import IPv4Interface, IPv4Network, IPv6Interface, IPv6Network
from itertools import islice
from re import Pattern
from typing import Any, cast

from pydantic import BaseModel, IPvAnyInterface, IPvAnyNetwork, TypeAdapter, ValidationError
from pydantic_core import PydanticCustomError, SchemaValidator

from ..protocol.json_size import has_more_values, most_values
from .core_schema import ARRAYS, TABLES, Node, definitions_of, is_compound, parts, rebuilt, walk
from .hashed import scattered
from .patterns import refuse_backtracking
from .problems import MOST_PROBLEMS, UNREAD, problems_of
from .unions import refuse_many_ways

MOST_IN_TEXTS = 100_000
"""How many values the JSON texts of one input, which `Json[...]` parses, may hold: as many as a request by default."""

MOST_KEYS = 1000
"""How many keys of an object are looked at to find out what is wrong with it."""

LONGEST_PREFIX = 40
"""How long the prefix of a network may be: Python keeps each that it has read, and reads any number of zeros first."""

LONGEST_EXPONENT = 5
"""How long the exponent of a fraction may be, with its sign: Python writes out as many zeros."""

LONGEST_PATTERN = 250
"""How long a pattern may be that is compiled: seven characters may take milliseconds."""

_FIELDS = frozenset({"model-field", "typed-dict-field", "dataclass-field", "named-tuple-field"})

_to_name: ContextVar[list[int]] = ContextVar("_to_name")
"""How many more problems are to be named."""

_in_texts: ContextVar[list[int] | None] = ContextVar("_in_texts", default=None)
"""How many more values JSON texts may hold."""


class PeerValidator:
    """Validates values of one type that a peer sends.

    pydantic notes every problem of every item before it raises, some 700 bytes for each: 135 KB of empty objects took a
    gigabyte. So an array or a table ends at its first wrong item, which costs valid input nothing. Where problems could
    multiply all the same (`without_floods`), the first validation only finds that something does not fit there, and a
    second one what: that looks no further once it has found enough.

    Args:
        where: what the type is of, for errors.
        adapter: of the type.

    Raises:
        SetupError: a small value could take very long, because of a pattern or of unions.
    """

    def __init__(self, where: str, adapter: TypeAdapter[Any]) -> None:
        schema: Node = adapter.core_schema
        refuse_backtracking(where, schema)
        refuse_many_ways(where, schema)
        self._bounded = rebuilt(rebuilt(schema, partial(_labelled, definitions_of(schema))), _bounded)
        quick = without_floods(self._bounded)
        self._names_all = quick is self._bounded
        self._has_tables = any(each.get("fail_fast") and each["type"] in TABLES for each in walk(quick))
        self._has_texts = any(each["type"] == "json" for each in walk(schema))
        self._explain: Callable[[Any], Any] | None = None
        self.validate = self._with_texts(adapter.validator.validate_python if quick is schema else compiled(quick))
        """Return a value as its type. Raises pydantic's `ValidationError`."""

    def problems(self, value: Any, error: ValidationError) -> list[tuple[str, str]]:
        """Return the first problems of a value as (where, what).

        Args:
            value: was refused.
            error: what `validate` raised.
        """
        is_short = self._names_all and error.error_count() <= MOST_KEYS
        found = None if is_short else self._explained(value)
        return problems_of(found or error, value, tables=self._has_tables)

    def _explained(self, value: Any) -> ValidationError | None:
        """Find what is wrong with a value that was refused; None if it can't be found."""
        if self._explain is None:
            self._explain = self._with_texts(compiled(rebuilt(self._bounded, _read_in_part)))
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
        return partial(_validate_texts, validate) if self._has_texts else validate


@lru_cache(maxsize=64)
def validator_of(model: type[BaseModel]) -> PeerValidator:
    """Return the validator of a model of our own, compiled once."""
    return PeerValidator(model.__name__, TypeAdapter(model))


def compiled(schema: Node) -> Callable[[Any], Any]:
    """Return the function that validates by a core schema, whose models have validators of their own no longer."""
    return SchemaValidator(cast(Any, schema), _use_prebuilt=False).validate_python


def without_floods(schema: Node) -> Node:
    """Return a core schema of which no value has very many problems: it ends at what does not fit.

    Arrays and tables end at their first wrong item. Each choice of a union has one problem, if it could have one for
    each key that it does not know; so has each value of such a key, and each value of a recursive type. Otherwise each
    choice, and each value within another, would add its own to them.

    Args:
        schema: is left as it is.
    """
    ends = rebuilt(schema, _ending)
    definitions = definitions_of(ends)
    recursive = {name for name in definitions if name in _led_to(definitions[name], definitions)}
    recursive -= {name for name in recursive if definitions[name]["type"] == "default"}  # a field reads it through it

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
        if "extras_schema" in node and is_compound(node["extras_schema"]):
            return {**node, "extras_schema": _as_one(node["extras_schema"])}
        return node

    return rebuilt(ends, change)


def _bounded(node: Node) -> Node:
    """Bound what the values of one node may cost."""
    return _checked(_ending(node))


def _checked(node: Node) -> Node:
    """Check what only a function can."""
    return _short_text(_counted_text(scattered(node)))


def _ending(node: Node) -> Node:
    """End an array or a table at its first wrong item."""
    kind = node["type"]
    if kind not in ARRAYS | TABLES or kind == "generator" or node.get("fail_fast"):  # a generator ends by itself
        return node
    items = [each["type"] for each in parts(node)]
    return node if all(each == "any" for each in items) else {**node, "fail_fast": True}


def _labelled(definitions: Mapping[str, Node], node: Node) -> Node:
    """Name the choices of a union as they are, in the paths of problems, and not by what checks them."""
    if node["type"] != "union" or all(_checked(each) is each for each in walk(node)):
        return node
    choices = [each if isinstance(each, tuple) else (each, _title(each, definitions)) for each in node["choices"]]
    return {**node, "choices": choices}


def _title(node: Node, definitions: Mapping[str, Node]) -> str:
    """Return the name that pydantic gives to a node."""
    alone: Any = {"type": "definitions", "schema": node, "definitions": [*definitions.values()]}
    return SchemaValidator(alone).title


def _led_to(node: Node, definitions: Mapping[str, Node]) -> set[str]:
    """Return the names of the definitions that a node leads to."""
    found: set[str] = set()
    nodes = [node]
    while nodes:
        names = {each["schema_ref"] for each in walk(nodes.pop()) if each["type"] == "definition-ref"}
        nodes += [definitions[name] for name in names - found]
        found |= names
    return found


def _may_flood(node: Node) -> bool:
    return any(
        each["type"] in ("definition-ref", "named-tuple")
        or "extras_schema" in each
        or "forbid" in (each.get("extra_behavior"), (each.get("config") or {}).get("extra_fields_behavior"))
        for each in walk(node)
    )


def _as_one(node: Node) -> Node:
    """Return a node that has one problem in the place of all that another has.

    A union does so without a call of Python, and lets all other exceptions pass, which pydantic's `custom-error` does
    not.
    """
    return {
        "type": "union",
        "mode": "left_to_right",
        "auto_collapse": False,
        "choices": [node],
        "custom_error_type": "misfit",
        "custom_error_message": "Input does not fit",
    }


# What is wrong with a value that was refused

_to_find: ContextVar[list[int]] = ContextVar("_to_find")
"""How many more problems are to be found."""


def _read_in_part(node: Node) -> Node:
    """Read a field, or the value of an unknown key, only if more problems are to be found."""
    name = "schema" if node["type"] in _FIELDS else "extras_schema"
    return {**node, name: _within_default(node[name])} if name in node and is_compound(node[name]) else node


def _within_default(schema: Node) -> Node:
    if schema["type"] == "default":
        return {**schema, "schema": _within_default(schema["schema"])}
    return {"type": "function-wrap", "function": {"type": "no-info", "function": _read}, "schema": schema}


def _read(value: Any, handler: Callable[[Any], Any]) -> Any:
    left = _to_find.get()
    before = left[0]
    if before <= 0:
        raise PydanticCustomError(UNREAD, "Not looked at")
    try:
        return handler(value)
    except ValidationError as error:
        left[0] = min(left[0], before - error.error_count())  # those within were counted already
        raise


def _with_fewer_keys(value: Any) -> Any:
    """Return a value whose objects have no more than `MOST_KEYS` keys: each that is not known is a problem."""
    if isinstance(value, dict):
        return {key: _with_fewer_keys(each) for key, each in islice(value.items(), MOST_KEYS)}
    return [_with_fewer_keys(each) for each in value] if isinstance(value, list) else value


# Texts: of JSON, networks and fractions


def _counted_text(node: Node) -> Node:
    """Count the values of a JSON text before it is parsed."""
    return _before(_count_values, node) if node["type"] == "json" else node


def _validate_texts(validate: Callable[[Any], Any], value: Any) -> Any:
    """Validate a value whose JSON texts are counted together."""
    token = _in_texts.set([MOST_IN_TEXTS])
    try:
        return validate(value)
    finally:
        _in_texts.reset(token)


def _count_values(value: Any) -> Any:
    if isinstance(value, str | bytes):
        text = value.encode(errors="surrogatepass") if isinstance(value, str) else value
        left = _in_texts.get() or [MOST_IN_TEXTS]
        if has_more_values(text, left[0]):
            raise PydanticCustomError(
                "json_values", "JSON texts should have at most {most} values", {"most": MOST_IN_TEXTS}
            )
        left[0] = max(0, left[0] - most_values(text))
    return value


def _short_text(node: Node) -> Node:
    """Bound the length of a text of which Python makes much, or keeps something for ever."""
    kind = node["type"]
    if kind == "lax-or-strict":
        classes = {each["cls"] for each in walk(node["strict_schema"]) if each["type"] == "is-instance"}
    elif kind == "function-plain":
        function = node["function"]["function"]
        classes = {getattr(function, "__self__", None), _COMPILERS.get(getattr(function, "__qualname__", ""))}
    else:
        return node
    checks = [check for cls, check in _TEXTS.items() if cls in classes]
    return _before(checks[0], node) if checks else node


def _check_prefix(value: Any) -> Any:
    return _check_length(value, str(value).partition("/")[2], LONGEST_PREFIX)


def _check_exponent(value: Any) -> Any:
    return _check_length(value, str(value).lower().partition("e")[2].strip(), LONGEST_EXPONENT)


def _check_pattern(value: Any) -> Any:
    return _check_length(value, value, LONGEST_PATTERN)


def _check_length(value: Any, part: Any, longest: int) -> Any:
    if isinstance(value, str) and len(part) > longest:
        raise PydanticCustomError(
            "too_long", "Input has a part of more than {longest} characters", {"longest": longest}
        )
    return value


_TEXTS: Mapping[Any, Callable[[Any], Any]] = {
    **dict.fromkeys((IPv4Network, IPv6Network, IPv4Interface, IPv6Interface), _check_prefix),
    **dict.fromkeys((IPvAnyNetwork, IPvAnyInterface), _check_prefix),
    Fraction: _check_exponent,
    Pattern: _check_pattern,
}

_COMPILERS = dict.fromkeys(("pattern_either_validator", "pattern_str_validator", "pattern_bytes_validator"), Pattern)
"""The functions by which pydantic compiles what a peer sends."""


def _before(check: Callable[[Any], Any], node: Node) -> Node:
    return {"type": "function-before", "function": {"type": "no-info", "function": check}, "schema": node}
