"""Patterns in types: those with which a client could stop the server are refused."""

from collections.abc import Iterator, Mapping
from re import Pattern
from typing import Any

from ..errors import SetupError


def refuse_backtracking(where: str, schema: Any) -> None:
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


def _backtracking(schema: Any, *, python: bool) -> Iterator[str]:
    if isinstance(schema, Mapping):
        if isinstance(config := schema.get("config"), Mapping) and "type" in schema:
            python = config.get("regex_engine") == "python-re"
        if schema.get("type") == "str" and (pattern := schema.get("pattern")) is not None:
            engine = schema.get("regex_engine", "python-re" if python else "rust-regex")
            if isinstance(pattern, Pattern):
                yield pattern.pattern
            elif engine == "python-re":
                yield pattern
        for name, part in schema.items():
            if name not in ("metadata", "serialization", "default"):
                yield from _backtracking(part, python=python)
    elif isinstance(schema, list | tuple):
        for part in schema:
            yield from _backtracking(part, python=python)
