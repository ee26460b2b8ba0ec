"""Signatures: what a function takes and gives, with its annotations resolved."""

import inspect
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from inspect import Parameter
from types import FrameType, NoneType
from typing import Annotated, Any, get_args, get_origin, get_type_hints

from ..errors import SetupError
from ..flow.asks import Inputs, State
from ..flow.context import Context
from ..schema.type_parts import union_members
from .foreign import refuse_foreign_marks

_PACKAGE = __name__.partition(".")[0]

BY_NAME = (Parameter.POSITIONAL_OR_KEYWORD, Parameter.KEYWORD_ONLY)
"""The kinds of parameters that a call by name can fill."""


_OURS = {
    "ctx": "Context",
    "inputs": "Inputs",
    "input_responses": "Inputs",
    "state": "State[...]",
    "request_state": "State[...]",
}
"""The types of what goes by these names here and in the protocol."""


@dataclass(frozen=True, slots=True)
class Signature:
    """What a function takes and gives.

    Args:
        parameters: its parameters, with resolved annotations; `Parameter.empty` where there is none.
        returns: its resolved return annotation; `Parameter.empty` if there is none.
        is_async: whether it is, or wraps, an `async def`.
        yields: whether it is, or wraps, a generator.
        streams: whether a call of it returns an async generator.
    """

    parameters: Mapping[str, Parameter]
    returns: Any
    is_async: bool
    yields: bool = False
    streams: bool = False


def read_signature(
    function: Any, where: str, namespace: Mapping[str, Any], *, may_yield: bool = False, may_stream: bool = False
) -> Signature:
    """Read a function's signature.

    Args:
        function: a function, a method, a class, or an object with `__call__`.
        where: what it is, for errors.
        namespace: the local names where it is used, for annotations that are strings.
        may_yield: whether it may be a generator.
        may_stream: whether it may be an async generator.

    Raises:
        SetupError: it can't be called, an annotation can't be resolved, or a parameter is marked for another framework.
    """
    layers = list(_layers(function, where))
    streams = _streams(layers)
    if not may_yield and _yields(layers[0]) and not (may_stream and streams):
        also = "; or make it an `async def`, which sends what it yields as it comes" if may_stream else ""
        raise SetupError(f"{where} is a generator, but a call has one result; return a list instead of yielding{also}")
    hints = _hints(layers[-1], where, namespace)
    parameters = {
        name: parameter.replace(annotation=hints.get(name, parameter.annotation))  # of a `__signature__` of its own
        for name, parameter in _parameters(function, where).items()
    }
    for name, parameter in parameters.items():
        if isinstance(parameter.annotation, str):
            raise SetupError(f"{where}: the annotation of {name!r} in __signature__ is a string; write the type itself")
    refuse_foreign_marks(where, parameters.values())
    is_async = any(inspect.iscoroutinefunction(layer) or inspect.isasyncgenfunction(layer) for layer in layers)
    returns = hints.get("return", Parameter.empty)
    if not inspect.isclass(function) and isinstance(own := getattr(function, "__signature__", None), inspect.Signature):
        returns = returns if isinstance(own.return_annotation, str) else own.return_annotation
    return Signature(parameters, returns, is_async, any(map(_yields, layers)), streams)


def names_around_decorator() -> Mapping[str, Any]:
    """Return the local names where a decorator of ours stands: they resolve annotations that are strings."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and str(frame.f_globals.get("__name__")).partition(".")[0] == _PACKAGE:
        frame = frame.f_back
    return frame.f_locals if frame is not None else {}


def own_type(annotation: Any) -> tuple[str | None, Any]:
    """Return which of our types an annotation is, optional or not.

    Returns:
        "context", "inputs", "state" or None; and the annotation without None and `Annotated`.
    """
    if get_origin(annotation) is Annotated:
        return own_type(get_args(annotation)[0])
    members = [member for member in union_members(annotation) if member is not NoneType]
    if len(members) == 1:
        for base, kind in ((Context, "context"), (Inputs, "inputs"), (State, "state")):
            if members[0] is base or get_origin(members[0]) is base:
                return kind, members[0]
    return None, annotation


def refuse_unannotated(where: str, parameter: Parameter) -> None:
    """Refuse a parameter that has one of our names and no annotation: it would not get what its name says.

    Args:
        where: the function, for errors.
        parameter: one that no mark and none of our types fills.

    Raises:
        SetupError: it has such a name, and no annotation.
    """
    name, kind = parameter.name, parameter.kind
    if name in _OURS and parameter.annotation is Parameter.empty and kind is not Parameter.VAR_KEYWORD:
        raise SetupError(
            f"{where}: {name!r} without an annotation would be an argument, which the model fills; write "
            f"{name}: {_OURS[name]}, or, if it is meant to be an argument, annotate its type"
        )


def _hints(target: Any, where: str, namespace: Mapping[str, Any]) -> dict[str, Any]:
    names = namespace
    if "<locals>" not in getattr(target, "__qualname__", ""):  # what is not local has names of its own
        own = getattr(target, "__globals__", {})
        names = {name: value for name, value in namespace.items() if name not in own}
    try:
        hints = get_type_hints(target, localns=dict(names), include_extras=True)
        if inspect.isclass(target):
            hints |= get_type_hints(target.__init__, localns=dict(names), include_extras=True)
            hints.pop("return", None)
    except NameError as error:
        raise SetupError(
            f"{where}: the annotation {error.name!r} can't be resolved; define it before the handler"
        ) from None
    except (TypeError, SyntaxError) as error:
        raise SetupError(f"{where}: the annotations can't be resolved: {error}") from error
    return hints


def _layers(function: Any, where: str) -> Iterator[Callable[..., Any]]:
    """Return what is called, and what it wraps, down to the function that has the annotations.

    Raises:
        SetupError: it can't be called.
    """
    if not callable(function):
        raise SetupError(
            f"{where}: a {type(function).__name__} can't be called; register a method with its object, "
            "outside the class: app.tool(obj.method)"
        )
    called = function
    while isinstance(called, partial | staticmethod):
        called = called.func if isinstance(called, partial) else called.__func__
    if not inspect.isroutine(called) and not inspect.isclass(called):
        if hasattr(called, "__wrapped__"):  # a decorator that is a class
            yield called.__call__
            called = called.__wrapped__
        else:
            called = called.__call__
    yield called
    while isinstance(called, partial) or hasattr(called, "__wrapped__"):
        called = called.func if isinstance(called, partial) else called.__wrapped__
        yield called


def _yields(layer: Callable[..., Any]) -> bool:
    return inspect.isgeneratorfunction(layer) or inspect.isasyncgenfunction(layer)


def _streams(layers: Sequence[Callable[..., Any]]) -> bool:
    """Return whether a call returns an async generator: it is one, or wraps one and does not await."""
    outermost = layers[0]
    if inspect.isasyncgenfunction(outermost):
        return True
    is_plain = not (inspect.iscoroutinefunction(outermost) or inspect.isgeneratorfunction(outermost))
    return is_plain and any(map(inspect.isasyncgenfunction, layers))


def _parameters(function: Callable[..., Any], where: str) -> dict[str, Parameter]:
    """Return the parameters that a call by name can fill. Raises `SetupError` for a method without its object."""
    try:
        parameters = dict(inspect.signature(function).parameters)
    except ValueError as error:  # some that are written in C
        raise SetupError(f"{where} has no signature that can be read; wrap it in a function") from error
    bound = set(function.keywords) if isinstance(function, partial) else set()
    if bound and any(parameter.kind is Parameter.VAR_KEYWORD for parameter in parameters.values()):
        raise SetupError(
            f"{where}: the function takes **arguments, so a client could replace the {min(bound)!r} of partial(); "
            "wrap it in a function instead"
        )
    parameters = {each: parameter for each, parameter in parameters.items() if each not in bound}
    first = next(iter(parameters.values()), None)
    owner = getattr(function, "__qualname__", "").rpartition(".")[0]
    in_class = inspect.isfunction(function) and owner and not owner.endswith("<locals>")
    if in_class and first is not None and first.name in ("self", "cls") and first.annotation is Parameter.empty:
        raise SetupError(
            f"{where} is a method without its object, so a client would fill {first.name!r}; create the "
            "object first, then register its method: app.tool(obj.method)"
        )
    return parameters
