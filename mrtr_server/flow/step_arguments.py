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
from types import FunctionType, UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints
from uuid import UUID
from weakref import WeakKeyDictionary

from pydantic import BaseModel
from pydantic_core import PydanticSerializationError, to_jsonable_python

from ..crypto.digests import canonical, digest
from ..errors import FlowError
from ..protocol.messages import JSON

# Weak, since a function may be made again in every round, with all that its closure holds.
_known: WeakKeyDictionary[FunctionType, str | None] = WeakKeyDictionary()

MOST_PARTS = 500_000
"""Of how many collections and objects an argument may consist. Objects that refer to each other have no end of them."""

_DATA = (
    *(bool, int, float, str, bytes, Decimal, UUID, Enum, date, time, timedelta, PurePath),
    *(list, tuple, dict, set, frozenset),
)


class IdempotencyKey(str):
    """The key by which a service recognizes a repeated step.

    Declare a parameter of this type, with `IdempotencyKey()` as default, and `ctx.step` fills it in. The key is the
    same whenever the flow runs the step with these arguments, on any replica, also after a failure or when a replica
    died while it ran; no other step has it. So a payment or mail service that gets it twice carries the order out
    once. It is 32 hex digits, and no secret.
    """

    __slots__ = ()


def idempotency_key(flow: str, step: str, function: str, arguments: dict[str, str]) -> IdempotencyKey:
    return IdempotencyKey(digest(["idempotency key", flow, step, function, arguments]))


def key_parameter(function: Callable[..., Any]) -> str | None:
    """Return the parameter of a function that takes the idempotency key. Raises `FlowError` if no name fills it."""
    while isinstance(function, partial):
        function = function.func
    if not (inspect.isroutine(function) or inspect.isclass(function)):
        function = type(function).__call__
    function = inspect.unwrap(getattr(function, "__func__", function))
    if not inspect.isfunction(function):
        return None
    found = _known.get(function, "")
    if found == "":
        found = _known[function] = _find(function)
    return found


def _find(function: FunctionType) -> str | None:
    for parameter in inspect.signature(function).parameters.values():
        if _is_key(parameter.annotation, function.__globals__):
            if parameter.kind is parameter.POSITIONAL_ONLY:
                raise FlowError(
                    f"{parameter.name!r} of {function!r} takes the idempotency key, which is passed by name; move "
                    "it behind the /"
                )
            return parameter.name
    return None


def _is_key(annotation: Any, namespace: dict[str, Any]) -> bool:
    # One by one: another annotation of the function may name what only a type checker can see.
    alone = type("_", (), {"__annotations__": {"it": annotation}})
    try:
        resolved = get_type_hints(alone, globalns=namespace)["it"]
    except Exception:
        return False
    return resolved is IdempotencyKey or (
        get_origin(resolved) in (Union, UnionType) and IdempotencyKey in get_args(resolved)
    )


def full_name(function: Callable[..., Any]) -> str:
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
        named.update((name, contents(cell)) for name, cell in cells)
    elif isinstance(function, partial):
        names, named = (), {"partial": [full_name(function.func), *function.args, *sorted(function.keywords.items())]}
    else:
        names = ()
    positions = (str(position) for position in range(len(names) + 1, len(args) + 1))
    named.update(zip((*names, *positions), args, strict=False))
    named.update(kwargs)
    return {name: _digest_argument(name, value) for name, value in named.items()}


def contents(cell: Any) -> Any:
    """Return what a cell of a closure holds."""
    try:
        return cell.cell_contents
    except ValueError:  # not assigned yet
        return None


def _digest_argument(name: str, value: Any) -> str:
    if isinstance(value, Iterator):
        raise FlowError(f"The argument {name!r} of a step is an iterator, which can be read only once; pass a list")
    return digest(plain(value))[:16]


def plain(value: Any, depth: int = 16, left: Iterator[int] | None = None) -> Any:
    """Return what a value is made of as JSON. An object whose data are not all plain, say a connection, is its type."""
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if depth == 0:
        return _type(value)
    left = iter(range(MOST_PARTS)) if left is None else left
    if next(left, None) is None:
        raise FlowError(
            f"What a step is called with refers to its own parts again and again, or has more than {MOST_PARTS:,} of "
            "them; pass the plain data that the step needs"
        )
    if isinstance(value, Enum):
        return [_type(value), value.name or value.value]
    if isinstance(value, bytes | bytearray):
        return ["bytes", b64encode(value).decode()]
    if isinstance(value, Mapping):
        items = ((key if isinstance(key, str) else f"{_type(key)}{key!r}", item) for key, item in value.items())
        return {key: plain(item, depth - 1, left) for key, item in items}
    if isinstance(value, list | tuple):
        return [plain(item, depth - 1, left) for item in value]
    if isinstance(value, set | frozenset):
        return sorted((plain(item, depth - 1, left) for item in value), key=canonical)
    return _plain_object(value, depth, left)


def _plain_object(value: Any, depth: int, left: Iterator[int]) -> Any:
    if isinstance(value, BaseModel):
        return plain(dict(value), depth - 1, left)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: plain(getattr(value, field.name), depth - 1, left) for field in dataclasses.fields(value)}
    if callable(value):
        return full_name(value)
    data = getattr(value, "__dict__", None)
    if data and all(_is_data(item) for item in data.values()):
        return [_type(value), plain(data, depth - 1, left)]
    if isinstance(value, PurePath):  # which the next one refuses with halves of characters
        return str(value)
    try:
        return to_jsonable_python(value)  # dates, decimals, URLs and the like
    except (PydanticSerializationError, ValueError):
        return _type(value)


def _is_data(value: Any) -> bool:
    return value is None or isinstance(value, _DATA)


def _type(value: Any) -> str:
    return f"<{type(value).__qualname__}>"
