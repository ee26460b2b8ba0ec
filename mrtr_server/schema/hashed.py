"""Sets, and tables with keys of some type: what is put into them has no hash that a peer can choose.

Python's hash of a number is its remainder by a number that everybody knows. 24,000 numbers of one hash are compared
with each other, which takes seconds, and a request may hold four times as many.
"""

from collections.abc import Callable, Mapping
from contextvars import ContextVar
from typing import Any

from pydantic_core import PydanticCustomError

from .core_schema import SETS, TABLES, Node

MOST_ALIKE = 64
"""How many elements of a set, or keys of a table, may have one hash."""

MOST_COMPARED = 10_000
"""How many may be compared with others of their hash, where the same ones come again: -1 and -2 have one hash."""

LARGEST_INT = 2**63 - 1
"""Of the whole numbers up to it, and down to its negative, nine at most have one hash."""

_SCATTERED = frozenset(
    ("str", "bytes", "float", "bool", "none", "date", "time", "datetime", "timedelta", "enum", "literal")
)
"""What has a hash that differs in each process, or of which few values have one hash: of floats, some 200."""

_SAME_VALUE = frozenset({"nullable", "default", "custom-error", "function-before", "json"})
"""What passes on the value of the node within it."""

_seen: ContextVar["_Seen"] = ContextVar("_seen")
"""The elements of the set that is being validated."""


class _Seen:
    """The elements of a set so far, by their hashes."""

    __slots__ = ("compared", "first", "others")

    def __init__(self) -> None:
        self.first: dict[int, Any] = {}
        self.others: dict[int, list[Any]] = {}
        self.compared = 0


def scattered(node: Node) -> Node:
    """Return a node that refuses elements of one hash before they are put into a set, or become keys.

    Whole numbers must fit into 64 bits. Of all else, no more than `MOST_ALIKE` that differ may have one hash; they are
    counted where the elements can be numbers, which costs some 0.2 µs each.

    Args:
        node: a node of a core schema.
    """
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
    counted = {"type": "function-after", "function": _no_info(_counted), "schema": elements}
    ends = {**node, name: counted, "fail_fast": True}  # or it would compare all the rest
    return {"type": "function-wrap", "function": _no_info(_counting), "schema": ends}


def _within_64_bits(node: Node) -> Node | None:
    """Return a node whose whole numbers are bounded; None for one whose values may have any hash."""
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


def _no_info(function: Callable[..., Any]) -> Mapping[str, Any]:
    return {"type": "no-info", "function": function}


def _counting(value: Any, handler: Callable[[Any], Any]) -> Any:
    """Validate a set whose elements are counted."""
    token = _seen.set(_Seen())
    try:
        return handler(value)
    finally:
        _seen.reset(token)


def _counted(element: Any) -> Any:
    """Return an element, unless too many have its hash already."""
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
