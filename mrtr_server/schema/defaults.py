"""Defaults of parameters: they fit their annotations, and no call sees what another has changed in one."""

from collections.abc import Callable, Iterator
from copy import deepcopy
from functools import partial
from typing import Any

from pydantic import TypeAdapter, ValidationError

from ..errors import SetupError


def copier_of(default: Any) -> Callable[[], Any] | None:
    """Return what makes a copy of a default for each call; None if none is needed, or can be made.

    Args:
        default: the default of a parameter.
    """
    try:
        return None if deepcopy(default) is default or _is_sentinel(default) else partial(deepcopy, default)
    except Exception:  # an object that can't be copied, such as a lock, is there to be shared
        return None


def _is_sentinel(default: Any) -> bool:
    """Return whether an object is known by its identity alone, as `object()` is, and holds nothing that changes."""
    if getattr(type(default), "__eq__", None) is not object.__eq__:
        return False
    state = default.__getstate__()  # of its attributes and slots
    parts = state if isinstance(state, tuple) else (state,)
    held = [each for part in parts if isinstance(part, dict) for each in part.values()]
    return all(deepcopy(each) is each for each in held)


def refuse_misfit(where: str, name: str, annotation: Any, default: Any) -> None:
    """Refuse a default that is not of its parameter's type: the function would get it as it is.

    Args:
        where: the handler's name, for errors.
        name: of the parameter.
        annotation: its type, which has a schema.
        default: its default.

    Raises:
        SetupError: it does not fit.
    """
    adapter: TypeAdapter[Any] = TypeAdapter(annotation)
    why = "it is data that makes one"
    try:
        read = adapter.validate_python(default, strict=True)
        is_iterable = isinstance(read, Iterator)
        if is_iterable and not isinstance(default, Iterator):
            list(read)  # which validates it
        if is_iterable or type(read) is type(default) or read == default:
            return
    except ValidationError as error:
        why = error.errors(include_url=False, include_input=False)[0]["msg"]
    if not _becomes_equal(adapter, default):
        is_none = default is None
        remedy = (
            "add `| None` to its annotation, or leave it out" if is_none else "change the default or the annotation"
        )
        raise SetupError(
            f"{where}: the default {default!r} of parameter {name!r} does not fit its annotation ({why}); {remedy}"
        )


def _becomes_equal(adapter: TypeAdapter[Any], default: Any) -> bool:
    """Return whether validation makes a value of a default that equals it, as 0 of `Decimal` does."""
    try:
        return bool(adapter.validate_python(default) == default)
    except ValidationError:
        return False
