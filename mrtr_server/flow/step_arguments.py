"""What the call of a step depends on, in a form that is the same in every round and on every replica."""

import dataclasses
import inspect
from base64 import b64encode
from collections.abc import Callable, Iterator, Mapping
from datetime import date, time, timedelta
from decimal import Decimal
from enum import Enum
from functools import partial
from pathlib import PurePath
from typing import Any
from uuid import UUID

from pydantic import BaseModel
from pydantic_core import PydanticSerializationError, to_jsonable_python

from ..crypto.digests import canonical, digest
from ..errors import FlowError
from ..protocol.messages import JSON


def full_name(function: Callable[..., Any]) -> str:
    """Return the name of a function with that of its module."""
    target = getattr(function, "__func__", function)
    name = getattr(target, "__qualname__", type(target).__qualname__)
    return f"{getattr(target, '__module__', None) or type(target).__module__}.{name}"


def argument_digests(function: Callable[..., Any], args: tuple[Any, ...], kwargs: JSON) -> dict[str, str]:
    """Digest all that a call depends on: its arguments by their parameters' names, defaults, `self`, a closure."""
    target = getattr(function, "__func__", function)
    code = getattr(target, "__code__", None)
    named: JSON = {}
    if code is not None:
        names: tuple[str, ...] = code.co_varnames[: code.co_argcount]
        defaults = getattr(target, "__defaults__", None) or ()
        named.update(zip(names[len(names) - len(defaults) :], defaults, strict=True))
        named.update(getattr(target, "__kwdefaults__", None) or {})
        if inspect.ismethod(function):
            args = (function.__self__, *args)
        cells = zip(code.co_freevars, getattr(target, "__closure__", None) or (), strict=True)
        named.update((name, _contents(cell)) for name, cell in cells)
    elif isinstance(function, partial):
        names, named = (), {"partial": [full_name(function.func), *function.args, *sorted(function.keywords.items())]}
    else:
        names = ()
    positions = (str(position) for position in range(len(names) + 1, len(args) + 1))
    named.update(zip((*names, *positions), args, strict=False))
    named.update(kwargs)
    return {name: _digest_argument(name, value) for name, value in named.items()}


def _contents(cell: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # not assigned yet
        return None


def _digest_argument(name: str, value: Any) -> str:
    if isinstance(value, Iterator):
        raise FlowError(f"The argument {name!r} of a step is an iterator, which can be read only once; pass a list")
    return digest(plain(value))[:16]


def plain(value: Any, depth: int = 16) -> Any:
    """Return what a value is made of as JSON. An object whose data are not all plain, say a connection, is its type."""
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if depth == 0:
        return _type(value)
    if isinstance(value, Enum):
        return [_type(value), value.name or value.value]
    if isinstance(value, bytes | bytearray):
        return ["bytes", b64encode(value).decode()]
    if isinstance(value, Mapping):
        items = ((key if isinstance(key, str) else f"{_type(key)}{key!r}", item) for key, item in value.items())
        return {key: plain(item, depth - 1) for key, item in items}
    if isinstance(value, list | tuple):
        return [plain(item, depth - 1) for item in value]
    if isinstance(value, set | frozenset):
        return sorted((plain(item, depth - 1) for item in value), key=canonical)
    return _plain_object(value, depth)


def _plain_object(value: Any, depth: int) -> Any:
    if isinstance(value, BaseModel):
        return plain(dict(value), depth - 1)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: plain(getattr(value, field.name), depth - 1) for field in dataclasses.fields(value)}
    if callable(value):
        return full_name(value)
    data = getattr(value, "__dict__", None)
    if data and all(_is_data(item) for item in data.values()):
        return [_type(value), plain(data, depth - 1)]
    if isinstance(value, PurePath):  # which the next one refuses with halves of characters
        return str(value)
    try:
        return to_jsonable_python(value)  # dates, decimals, URLs and the like
    except (PydanticSerializationError, ValueError):
        return _type(value)


_DATA = (
    *(bool, int, float, str, bytes, Decimal, UUID, Enum, date, time, timedelta, PurePath),
    *(list, tuple, dict, set, frozenset),
)


def _is_data(value: Any) -> bool:
    return value is None or isinstance(value, _DATA)


def _type(value: Any) -> str:
    return f"<{type(value).__qualname__}>"
