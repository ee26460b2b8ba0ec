"""Numbers and booleans as JSON has them: `"5"` and `true` are no integers, and `1.0` is one.

pydantic reads them from strings, too, and each from the other, where a type is not strict. What clients are served says
otherwise, and a string that is meant to be one would pass for a number.
"""

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from .core_schema import Node, parts, walk

_PLAIN = frozenset({"int", "float", "bool"})

_CONVERTING = frozenset({"function-before", "function-wrap", "json"})
"""What gives another value to the nodes within it than the client has sent."""

_KEYS = ("keys_schema", "extras_keys_schema")
"""What has the keys of objects, which are strings in JSON."""

_MOST = 2**63
"""Below it, a number with a fraction of zero is read as an integer."""


def as_json(schema: Node) -> Callable[[Node], Node]:
    """Return what changes the nodes of a type so that they take no other JSON than its JSON Schema says.

    Those that an author has given another value, or has said to be strict or not, stay as they are.

    Args:
        schema: pydantic's core schema of the type.
    """
    kept = {id(node) for node in _converted(schema)}

    def change(node: Node) -> Node:
        if id(node) in kept or "strict" in node:
            return node
        if node["type"] in _PLAIN:
            return {**node, "strict": True}
        check = _check_of(node)
        if check is None:
            return node
        inner = {name: value for name, value in node.items() if name != "ref"}
        return {"type": "function-before", "function": {"type": "no-info", "function": check}, "schema": inner}

    return change


def has_integers(schema: Node) -> bool:
    """Return whether a type has an integer that `whole` may help."""
    return any(node["type"] == "int" for node in walk(schema))


def whole(value: Any) -> Any:
    """Return JSON with integers for the numbers that have a fraction of zero; the value itself if there are none."""
    if type(value) is float:
        return int(value) if value.is_integer() and -_MOST < value < _MOST else value
    if type(value) is list:
        items = [whole(item) for item in value]
        return items if any(new is not old for new, old in zip(items, value, strict=True)) else value
    if isinstance(value, dict):
        read = {name: whole(item) for name, item in value.items()}
        return read if any(read[name] is not item for name, item in value.items()) else value
    return value


def _converted(schema: Node) -> Iterator[Node]:
    """Yield the nodes that get another value than the client has sent, or a key."""
    for node in walk(schema):
        function = (node.get("function") or {}).get("function")
        is_pydantics = str(getattr(function, "__module__", "")).startswith("pydantic.")  # as for a `Sequence`
        converted: Iterable[Node] = parts(node) if node["type"] in _CONVERTING and not is_pydantics else ()
        if node["type"] == "chain":
            converted = [each for each in node["steps"] if each["type"] != "is-instance"][1:]
        for part in converted:
            yield from walk(part)
        for keys in _KEYS:
            if keys in node:
                yield from walk(node[keys])


def _check_of(node: Node) -> Callable[[Any], Any] | None:
    """Return what refuses values that are equal to one of a choice, and of another JSON type; None if none is."""
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
_NO_CHOICE = object()
"""What no choice is equal to."""
