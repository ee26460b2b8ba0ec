"""Idempotency keys: keys by which the service behind a step recognizes a repeated order."""

import inspect
from collections.abc import Callable
from functools import partial
from types import FunctionType, UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints
from weakref import WeakKeyDictionary

from ..crypto.digests import digest
from ..errors import FlowError


class IdempotencyKey(str):
    """The key by which a service recognizes a repeated step.

    Declare a parameter of this type, with `IdempotencyKey()` as default, and `ctx.step` fills it in. The key is the
    same whenever the flow runs the step with these arguments, on any replica, also after a failure or when a replica
    died while it ran; no other step has it. So a payment or mail service that gets it twice carries the order out
    once. It is 32 hex digits, and no secret.
    """

    __slots__ = ()


def idempotency_key(flow: str, step: str, function: str, arguments: dict[str, str]) -> IdempotencyKey:
    """Make the key of a step.

    Args:
        flow: the flow's id.
        step: the step's key.
        function: the full name of its function.
        arguments: a digest for each of its arguments, by name.
    """
    return IdempotencyKey(digest(["idempotency key", flow, step, function, arguments]))


def key_parameter(function: Callable[..., Any]) -> str | None:
    """Find the parameter of a step's function that takes the idempotency key; None if there is none.

    Raises:
        FlowError: the parameter can't be filled by name.
    """
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


# Weak, since a function may be made again in every round, with all that its closure holds.
_known: WeakKeyDictionary[FunctionType, str | None] = WeakKeyDictionary()


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
