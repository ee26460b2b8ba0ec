"""Markers of other frameworks, which would do nothing here: a client would fill their parameters.

They are known by the module and the name of their types, so that none of these frameworks is imported.
"""

from collections.abc import Iterable, Mapping
from inspect import Parameter, isclass, isroutine
from typing import Annotated, Any, get_args, get_origin

from ..errors import SetupError
from ..schema.type_parts import metadata_within, resolved, union_members

_FRAMEWORKS = {
    "fastapi": "FastAPI",
    "starlette": "Starlette",
    "mcp": "the official SDK",
    "fastmcp": "FastMCP",
    "fastmcp_tasks": "FastMCP",
    "uncalled_for": "FastMCP",
    "docket": "Docket",
}
"""Those that are known, by the package that their types are in."""

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
"""What to write for a default, or for what is in `Annotated`; underscores before a name do not count."""

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
"""What to write for a type that its framework fills without a mark."""


def refuse_foreign_marks(where: str, parameters: Iterable[Parameter]) -> None:
    """Refuse parameters whose default or annotation is a mark of another framework.

    Args:
        where: the function, for errors.
        parameters: its parameters, with resolved annotations.

    Raises:
        SetupError: there is one; the message has our word for it.
    """
    for parameter in parameters:
        for mark in (parameter.default, *metadata_within(parameter.annotation)):
            _refuse(where, parameter, _known(mark, _MARKS))


def refuse_foreign_types(where: str, parameters: Iterable[Parameter]) -> None:
    """Refuse parameters whose type tells another framework to fill them.

    Args:
        where: the function, for errors.
        parameters: those that a client or the arguments of a call fill, with resolved annotations.

    Raises:
        SetupError: there is one; the message has our word for it.
    """
    for parameter in parameters:
        for member in union_members(resolved(parameter.annotation)):
            while get_origin(member) is Annotated:
                member = resolved(get_args(member)[0])
            if isclass(kind := get_origin(member) or member):
                _refuse(where, parameter, _known(kind, _TYPES))


def is_request(annotation: Any) -> bool:
    """Return whether an annotation is Starlette's request, or FastAPI's, which is the same; optional or not."""
    members = [resolved(member) for member in union_members(resolved(annotation)) if member is not type(None)]
    return len(members) == 1 and (
        getattr(members[0], "__module__", ""),
        getattr(members[0], "__qualname__", ""),
    ) in (("starlette.requests", "Request"), ("starlette.requests", "HTTPConnection"))


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
