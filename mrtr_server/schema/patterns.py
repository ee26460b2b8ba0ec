"""Patterns in types: those with which a client could stop the server are refused."""

from collections.abc import Iterator, Mapping
from re import Pattern

from ..errors import SetupError
from .core_schema import Node, parts


def refuse_backtracking(where: str, schema: Node) -> None:
    """Check that no pattern of a type is matched by Python's `re`, where 40 letters may take an hour.

    pydantic uses `re` for compiled patterns, and for all patterns of a model that asks for it. Its own engine takes a
    time in proportion to the text.

    Args:
        where: what the type is of, for errors.
        schema: pydantic's core schema of the type.

    Raises:
        SetupError: there is such a pattern.
    """
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
