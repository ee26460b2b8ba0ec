"""Types of which a small value could cost much: they are refused, or get a check before what is expensive."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from fractions import Fraction
from functools import wraps
from ipaddress import IPv4Interface, IPv4Network, IPv6Interface, IPv6Network
from re import Pattern
from typing import Any

from pydantic import IPvAnyInterface, IPvAnyNetwork
from pydantic_core import PydanticCustomError

from ..errors import SetupError
from ..limits import has_more_values, most_values
from .type_parts import SETS, TABLES, Node, calling, parts, pydantics_function, walk

# Patterns


def refuse_backtracking(where: str, schema: Node) -> None:
    """Refuse patterns that Python's `re` matches, where 40 letters may take an hour."""
    # pydantic uses `re` for compiled patterns, and for all patterns of a model that asks for it. The time of its own
    # engine is in proportion to the text.
    for pattern in _backtracking(schema, python=False):
        raise SetupError(
            f"{where}: the pattern {pattern!r} is matched by Python's re, with which a client could block the "
            "server. Pass it as plain text, in a model without regex_engine; or, if it needs lookaround, "
            "match it in a validator of your own, after you have checked the length"
        )


def _backtracking(node: Node, *, python: bool) -> Iterator[str]:
    if isinstance(config := node.get("config"), Mapping):
        python = config.get("regex_engine") == "python-re"
    if node["type"] == "str" and (pattern := node.get("pattern")) is not None:
        engine = node.get("regex_engine", "python-re" if python else "rust-regex")
        if isinstance(pattern, Pattern):
            yield pattern.pattern
        elif engine == "python-re":
            yield pattern
    for part in parts(node):
        yield from _backtracking(part, python=python)


# Texts, and names to import


MOST_IN_TEXTS = 100_000
"""Values in the JSON texts of one input, which `Json[...]` parses: as many as a request may have by default."""

LONGEST_PREFIX = 40
"""Characters of the prefix of a network: Python keeps each that it has read, and reads any number of zeros first."""

LONGEST_EXPONENT = 5  # characters of the exponent of a fraction, with its sign: Python writes out as many zeros
LONGEST_PATTERN = 250  # characters of a pattern that is compiled: seven may take milliseconds
_left: ContextVar[list[int] | None] = ContextVar("_left", default=None)  # values that JSON texts may still hold


def refuse_imports(where: str, nodes: Sequence[Node]) -> None:
    """Refuse a type that imports, as pydantic's `ImportString` does: a client could run any code that is there."""
    for each in nodes:
        if "function" in each and getattr(pydantics_function(each), "__name__", "") == "import_string":
            raise SetupError(
                f"{where}: an ImportString imports whatever the client names, and so runs code. Take a str or a "
                "Literal, and look it up in a dictionary of your own"
            )


def validate_together(validate: Callable[[Any], Any], value: Any) -> Any:
    """Validate a value whose JSON texts are counted together."""
    token = _left.set([MOST_IN_TEXTS])
    try:
        return validate(value)
    finally:
        _left.reset(token)


def short_text(node: Node) -> Node:
    """Return a node that refuses a text of which Python would make too much, or which it would keep for ever."""
    # Where pydantic lets an error of Python's pass, which would fail the call and name the text in the log, the text
    # does not fit.
    node = _without_failures(node)
    kind = node["type"]
    if kind == "json":
        return calling(_count_values, "before", node)
    if kind == "lax-or-strict":
        made = {each["cls"] for each in walk(node["strict_schema"]) if each["type"] == "is-instance"}
    elif kind == "function-plain":
        function = node["function"]["function"]
        made = {getattr(function, "__self__", None), _COMPILERS.get(getattr(function, "__qualname__", ""))}
    else:
        return node
    checks = [check for cls, check in _CHECKS.items() if cls in made]
    return calling(checks[0], "before", node) if checks else node


def _without_failures(node: Node) -> Node:
    function = pydantics_function(node)
    if function is None or not function.__qualname__.startswith(_FAILING):
        return node

    @wraps(function)
    def read(*given: Any) -> Any:
        try:
            return function(*given)
        except (OSError, OverflowError):
            raise PydanticCustomError("unreadable", "Input can't be read as this type") from None

    return {**node, "function": {**node["function"], "function": read}}


def _count_values(value: Any) -> Any:
    if isinstance(value, str | bytes):
        text = value.encode(errors="surrogatepass") if isinstance(value, str) else value
        left = _left.get() or [MOST_IN_TEXTS]
        if has_more_values(text, left[0]):
            most = {"most": MOST_IN_TEXTS}
            raise PydanticCustomError("json_values", "JSON texts should have at most {most} values", most)
        left[0] = max(0, left[0] - most_values(text))
    return value


def _limited(longest: int, part: Callable[[str], str]) -> Callable[[Any], Any]:
    def check(value: Any) -> Any:
        if isinstance(value, str) and len(part(value)) > longest:
            bound = {"longest": longest}
            raise PydanticCustomError("too_long", "Input has a part of more than {longest} characters", bound)
        return value

    return check


_check_prefix = _limited(LONGEST_PREFIX, lambda text: text.partition("/")[2])

_CHECKS: Mapping[Any, Callable[[Any], Any]] = {
    **dict.fromkeys((IPv4Network, IPv6Network, IPv4Interface, IPv6Interface), _check_prefix),
    **dict.fromkeys((IPvAnyNetwork, IPvAnyInterface), _check_prefix),
    Fraction: _limited(LONGEST_EXPONENT, lambda text: text.lower().partition("e")[2].strip()),
    Pattern: _limited(LONGEST_PATTERN, str),
}

_FAILING = ("PathType.", "pattern_")
"""Functions of pydantic's that fail: at too long a name of a file, or at `a{99999999999}`."""

_COMPILERS = dict.fromkeys(("pattern_either_validator", "pattern_str_validator", "pattern_bytes_validator"), Pattern)


# Hashes


MOST_ALIKE = 64  # elements of a set, or keys of a table, of one hash
MOST_COMPARED = 10_000  # comparisons with others of one hash, where the same ones come again: -1 and -2 have one hash
LARGEST_INT = 2**63 - 1  # of the whole numbers up to it, and down to its negative, nine at most have one hash

_SCATTERED = frozenset(
    ("str", "bytes", "float", "bool", "none", "date", "time", "datetime", "timedelta", "enum", "literal")
)
"""Types whose hashes differ in each process, or of which few values have one hash: of floats, some 200."""

_SAME_VALUE = frozenset({"nullable", "default", "custom-error", "function-before", "json"})
"""Nodes that pass their value on to the node within."""

_seen: ContextVar["_Seen"] = ContextVar("_seen")


class _Seen:
    __slots__ = ("compared", "first", "others")

    def __init__(self) -> None:
        self.first: dict[int, Any] = {}
        self.others: dict[int, list[Any]] = {}
        self.compared = 0


def scattered(node: Node) -> Node:
    """Return a node that refuses elements of one hash before they are put into a set, or become keys."""
    # Whole numbers must fit into 64 bits. All else is counted where the elements can be numbers, which costs some 0.2
    # µs each.
    kind = node["type"]
    if kind not in SETS and kind not in TABLES:
        return node
    name = "items_schema" if kind in SETS else "keys_schema"
    elements = node.get(name, {"type": "any"})
    if kind in TABLES and elements["type"] == "any":  # keys of JSON are strings
        return node
    within = _within_64_bits(elements)
    if within is not None:
        return node if within is elements else {**node, name: within}
    counted = calling(_counted, "after", elements)
    return calling(_counting, "wrap", {**node, name: counted, "fail_fast": True})  # or it would compare all the rest


def _within_64_bits(node: Node) -> Node | None:
    """Return a node whose whole numbers are bounded; None if its values may have any hash."""
    kind = node["type"]
    if kind in _SCATTERED:
        return node
    if kind == "int":
        least, most = node.get("ge", -LARGEST_INT), node.get("le", LARGEST_INT)
        if least >= -LARGEST_INT and most <= LARGEST_INT and {"ge", "le"} <= node.keys():
            return node
        return {**node, "ge": max(least, -LARGEST_INT), "le": min(most, LARGEST_INT)}
    if kind in _SAME_VALUE and "schema" in node:
        inner = _within_64_bits(node["schema"])
        return inner and (node if inner is node["schema"] else {**node, "schema": inner})
    if kind == "union":
        choices = [_choice_within_64_bits(each) for each in node["choices"]]
        return None if None in choices else {**node, "choices": choices}
    return None


def _choice_within_64_bits(choice: Any) -> Any:
    old, label = choice if isinstance(choice, tuple) else (choice, None)
    new = _within_64_bits(old)
    return choice if new is old else new and (new, label or new["type"])  # pydantic would call it `constrained-int`


def _counting(value: Any, handler: Callable[[Any], Any]) -> Any:
    token = _seen.set(_Seen())
    try:
        return handler(value)
    finally:
        _seen.reset(token)


def _counted(element: Any) -> Any:
    seen = _seen.get()
    try:
        hashed = hash(element)
    except TypeError:  # it can't be in a set, as pydantic says itself
        return element
    first = seen.first.setdefault(hashed, element)
    if first is not element and first != element:
        others = seen.others.setdefault(hashed, [])
        seen.compared += 1
        if element not in others:
            others.append(element)
        if len(others) >= MOST_ALIKE or seen.compared > MOST_COMPARED:
            raise PydanticCustomError("alike", "Too many of these have one and the same hash")
    return element
