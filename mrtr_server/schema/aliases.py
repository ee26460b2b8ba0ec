"""Whether results have the aliases of fields or their names: aliases, except where a model says otherwise itself."""

from collections import deque
from collections.abc import Callable, Mapping
from typing import Any

Write = Callable[[bool | None], Any]
"""Writes a value as plain JSON: by its aliases (True), or as each model says, by its names unless it says otherwise."""


def has_names(cls: Any) -> bool:
    """Return whether a model, or a dataclass of pydantic's, says `serialize_by_alias=False`."""
    return _said(cls) is False


def _said(cls: Any) -> Any:
    config = getattr(cls, "model_config", None) or getattr(cls, "__pydantic_config__", None) or {}
    return config.get("serialize_by_alias")


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
    if getattr(type(value), "__pydantic_root_model__", False):
        return _merged(value.root, aliased, named)
    if isinstance(aliased, list) and isinstance(named, list) and len(aliased) == len(named):  # a generator ends once
        items = list(value) if isinstance(value, list | tuple | set | frozenset | deque) else []
        return [_merged(*each) for each in zip(_as_many(items, aliased), aliased, named, strict=True)]
    if not (isinstance(aliased, dict) and isinstance(named, dict) and len(aliased) == len(named)):
        return aliased
    if isinstance(value, Mapping):
        parts = list(value.values())
    else:
        own: dict[str, str] = {}
        if _said(type(value)):  # so that it was written by aliases both times
            fields = getattr(type(value), "model_fields", {})
            own = {field.serialization_alias or name: name for name, field in fields.items()}
        parts = [getattr(value, str(own.get(key, key)), None) for key in named]
    keys = named if has_names(type(value)) else aliased
    pairs = zip(keys, _as_many(parts, aliased), aliased.values(), named.values(), strict=True)
    return {key: _merged(part, one, other) for key, part, one, other in pairs}


def _as_many(parts: list[Any], written: Any) -> list[Any]:
    """Return the parts of a value, or as many unknown ones where a serializer of the author's made others of them."""
    return parts if len(parts) == len(written) else [None] * len(written)
