"""Whether results have the aliases of fields or their names: aliases, except where a model says otherwise itself."""

from collections.abc import Callable, Mapping
from typing import Any

Write = Callable[[bool | None], Any]
"""Writes a value as plain JSON: by its aliases (True), or as each model says, by its names unless it says otherwise."""


def has_names(cls: Any) -> bool:
    """Return whether a model, or a dataclass of pydantic's, says `serialize_by_alias=False`."""
    config = getattr(cls, "model_config", None) or getattr(cls, "__pydantic_config__", None) or {}
    return config.get("serialize_by_alias") is False


def written(value: Any, write: Write) -> Any:
    """Return a value as plain JSON: with the aliases of fields, or the names where a model says so.

    Args:
        value: what is written.
        write: writes it.
    """
    aliased = write(True)
    if aliased == value:  # plain JSON already, so there is no model in it
        return aliased
    named = write(None)
    return aliased if named == aliased else _merged(value, aliased, named)


def _merged(value: Any, aliased: Any, named: Any) -> Any:
    """Return the JSON with aliases, with the keys of the other where a model says so; both are of one value."""
    if isinstance(aliased, list) and isinstance(named, list):
        items = list(value) if isinstance(value, list | tuple | set | frozenset) else [None] * len(aliased)
        return [_merged(*each) for each in zip(items, aliased, named, strict=True)]
    if not (isinstance(aliased, dict) and isinstance(named, dict) and len(aliased) == len(named)):
        return aliased
    if isinstance(value, Mapping):
        parts = list(value.values())
    else:  # a field by its own name, which is the key of what was written by names
        own = {field.serialization_alias: name for name, field in getattr(type(value), "model_fields", {}).items()}
        parts = [getattr(value, own.get(name) or name, None) for name in named]
    if len(parts) != len(aliased):
        parts = [None] * len(aliased)
    keys = named if has_names(type(value)) else aliased
    pairs = zip(keys, parts, aliased.values(), named.values(), strict=True)
    return {key: _merged(part, one, other) for key, part, one, other in pairs}
