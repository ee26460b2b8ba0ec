"""Signatures with resolved annotations, and without markers of other frameworks, which would do nothing here.

A client would fill their parameters. They are known by names, so that none of these frameworks is imported.
"""

import inspect
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from inspect import Parameter, isclass, isroutine
from pathlib import Path
from types import FrameType, NoneType
from typing import Annotated, Any, NamedTuple, get_args, get_origin, get_type_hints

from ..errors import SetupError
from ..flow.asks import Inputs, State
from ..flow.context import Context
from ..schema.exact import full_name
from ..schema.type_parts import metadata_within, resolved, union_members

_PACKAGE = __name__.partition(".")[0]

BY_NAME = (Parameter.POSITIONAL_OR_KEYWORD, Parameter.KEYWORD_ONLY)  # a call by name can fill them


_OURS = {
    "ctx": "Context",
    "inputs": "Inputs",
    "input_responses": "Inputs",
    "state": "State[...]",
    "request_state": "State[...]",
}
"""The types of these names, here and in the protocol."""


class Signature(NamedTuple):
    """What a function takes and returns."""

    # Its parameters, with resolved annotations; `Parameter.empty` where there is none.
    parameters: Mapping[str, Parameter]
    returns: Any  # its resolved return annotation; `Parameter.empty` if there is none
    is_async: bool  # whether it is, or wraps, an `async def`
    yields: bool = False  # whether it is, or wraps, a generator
    streams: bool = False  # whether a call of it returns an async generator


def read_signature(
    function: Any, where: str, namespace: Mapping[str, Any], *, may_yield: bool = False, may_stream: bool = False
) -> Signature:
    """Read a function's signature. Raises `SetupError`."""
    # `namespace` has the local names where the function is used, for annotations that are strings.
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
    frame = _around()
    return frame.f_locals if frame is not None else {}


def folder_around_decorator() -> Path:
    """Return the folder of the module that calls us; the current one where it has no file."""
    frame = _around()
    file = None if frame is None else frame.f_globals.get("__file__")
    return Path(file).parent if isinstance(file, str) else Path()


def _around() -> FrameType | None:
    """Return the frame that called this package."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and str(frame.f_globals.get("__name__")).partition(".")[0] == _PACKAGE:
        frame = frame.f_back
    return frame


def own_type(annotation: Any) -> tuple[str | None, Any]:
    """Return "context", "inputs", "state" or None for an annotation, and it without None and `Annotated`."""
    if get_origin(annotation) is Annotated:
        return own_type(get_args(annotation)[0])
    members = [member for member in union_members(annotation) if member is not NoneType]
    if len(members) == 1:
        for base, kind in ((Context, "context"), (Inputs, "inputs"), (State, "state")):
            if members[0] is base or get_origin(members[0]) is base:
                return kind, members[0]
    return None, annotation


def refuse_unannotated(where: str, parameter: Parameter) -> None:
    """Refuse a parameter with one of our names and no annotation: it would not get what its name says."""
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
    """Yield what is called, and what it wraps, down to the function that has the annotations. Raises `SetupError`."""
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


_FRAMEWORKS = {
    "fastapi": "FastAPI",
    "starlette": "Starlette",
    "mcp": "the official SDK",
    "fastmcp": "FastMCP",
    "fastmcp_tasks": "FastMCP",
    "uncalled_for": "FastMCP",
    "docket": "Docket",
}
"""Frameworks by the packages of their types."""

_DEPENDS = "Annotated[..., Depends(...)] with Depends of mrtr_server"
_FIELD = "Annotated[..., Field(...)] with Field of pydantic, or the type alone"
_REQUEST = "ctx: Context, and read ctx.request, ctx.principal or ctx.user"

_MARKS = {
    "Depends": _DEPENDS,
    "Security": f"{_DEPENDS}, and let the function check who calls",
    "Resolve": _DEPENDS,
    "Shared": _DEPENDS,
    "Dependency": _DEPENDS,
    "Query": _FIELD,
    "Path": _FIELD,
    "Body": _FIELD,
    "Form": _FIELD,
    "File": _FIELD,
    "Header": "ctx: Context, and read ctx.headers; Header of mrtr_server is for an argument that a header repeats",
    "Cookie": "ctx: Context, and read ctx.headers",
    "Elicit": "Annotated[Model, Elicit(...)] with Elicit of mrtr_server",
    "Sample": "Annotated[Sampled, Sample(...)] with Sample of mrtr_server",
    "ListRoots": "Annotated[list[Root], ListRoots()] with ListRoots of mrtr_server",
    "CallArgument": "the argument's name as that of the parameter",
    "CurrentContext": "ctx: Context",
    "OptionalCurrentContext": "ctx: Context",
    "CurrentRequest": _REQUEST,
    "CurrentHeaders": "ctx: Context, and read ctx.headers",
    "CurrentAccessToken": "ctx: Context, and read ctx.principal or ctx.user",
    "TokenClaim": "ctx: Context, and read ctx.principal or ctx.user",
    "Progress": "ctx: Context, and call ctx.progress(...)",
}
"""The remedy for a default, or for what is in `Annotated`; underscores before a name do not count."""

_TYPES = {
    "Context": "ctx: Context with Context of mrtr_server",
    "RequestContext": "ctx: Context with Context of mrtr_server",
    "ServerRequestContext": "ctx: Context with Context of mrtr_server",
    "HTTPConnection": _REQUEST,
    "WebSocket": _REQUEST,
    "Response": _REQUEST,
    "SecurityScopes": _REQUEST,
    "BackgroundTasks": "ctx: Context, and await ctx.background()",
    "Progress": _MARKS["Progress"],
}
"""The remedy for a type that its framework fills without a mark."""


def refuse_foreign_marks(where: str, parameters: Iterable[Parameter]) -> None:
    """Refuse parameters whose default or annotation is a mark of another framework. Raises `SetupError`."""
    for parameter in parameters:
        for mark in (parameter.default, *metadata_within(parameter.annotation)):
            _refuse(where, parameter, _known(mark, _MARKS))


def refuse_foreign_types(where: str, parameters: Iterable[Parameter]) -> None:
    """Refuse parameters whose type tells another framework to fill them. Raises `SetupError`."""
    for parameter in parameters:
        for member in union_members(resolved(parameter.annotation)):
            while get_origin(member) is Annotated:
                member = resolved(get_args(member)[0])
            if isclass(kind := get_origin(member) or member):
                _refuse(where, parameter, _known(kind, _TYPES))


def is_request(annotation: Any) -> bool:
    """Return whether an annotation is Starlette's request, or FastAPI's, which is the same; optional or not."""
    members = [resolved(member) for member in union_members(resolved(annotation)) if member is not type(None)]
    known = "starlette.requests.Request", "starlette.requests.HTTPConnection"
    return len(members) == 1 and isclass(members[0]) and full_name(members[0]) in known


def _refuse(where: str, parameter: Parameter, known: tuple[str, str, str] | None) -> None:
    if known is not None:
        framework, name, instead = known
        raise SetupError(
            f"{where}: parameter {parameter.name!r} has {name} of {framework}, which has no effect here, so a "
            f"client could fill the parameter; write {instead}"
        )


def _known(thing: Any, words: Mapping[str, str]) -> tuple[str, str, str] | None:
    """Return the framework of a value, a class or a function, its name there, and what to write instead."""
    is_kind = isclass(thing) or isroutine(thing)  # a mark that was not called
    kinds = getattr(thing if is_kind else type(thing), "__mro__", (thing,))
    names = [(_package(kind), getattr(kind, "__name__", "").lstrip("_")) for kind in kinds]
    if any(package == "mrtr_server" for package, _ in names):
        return None
    for package, name in names:
        if name in words and package in _FRAMEWORKS:
            return _FRAMEWORKS[package], names[0][1], words[name]
        if name == "Depends":  # whoever calls something so means the same
            return package, name, _DEPENDS
    return None


def _package(kind: Any) -> str:
    return str(getattr(kind, "__module__", "")).partition(".")[0]
