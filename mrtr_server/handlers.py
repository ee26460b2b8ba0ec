"""Handlers: what a decorated function takes, compiled once."""

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from inspect import Parameter
from typing import Any, Union, get_args, get_origin, get_type_hints

from .asks import InputRequired, Inputs, State
from .context import Context
from .errors import SetupError
from .results import union_members
from .schema import Stored


@dataclass(frozen=True, slots=True)
class Handler:
    """A decorated function, ready to be run in rounds.

    Parameters:
        function: the function.
        name: what it was registered as, for logs and errors.
        is_async: whether it is an `async def`.
        context: the parameter that takes the `Context`, if there is one.
        inputs: the parameter that takes the `Inputs`, if there is one.
        state: the parameter that takes the `State`, if there is one.
        stored_state: how that state goes to JSON and back.
        parameters: the parameters that the client fills, with resolved annotations.
        returns: the resolved return annotation, without `InputRequired`; `Parameter.empty` if there is none.
    """

    function: Callable[..., Any]
    name: str
    is_async: bool
    context: str | None
    inputs: str | None
    state: str | None
    stored_state: Stored
    parameters: Mapping[str, Parameter]
    returns: Any

    @property
    def is_simple(self) -> bool:
        """Whether it takes nothing of the flow, so that no journal is needed unless it asks."""
        return self.context is None and self.inputs is None and self.state is None


def compile_handler(function: Callable[..., Any], name: str, namespace: Mapping[str, Any]) -> Handler:
    """Read a function's signature.

    Parameters:
        function: a function, a method, or an object with `__call__`.
        name: what it is registered as.
        namespace: the local names where it was defined, for annotations that are strings.

    Raises:
        SetupError: an annotation can't be resolved, or one of our own parameters is there twice.
    """
    target = function if inspect.isroutine(function) else getattr(function, "__call__", function)  # noqa: B004
    target = inspect.unwrap(target)
    try:
        hints = get_type_hints(target, localns=dict(namespace), include_extras=True)
    except NameError as error:
        raise SetupError(
            f"{name}: the annotation {error.name!r} can't be resolved; define it before the handler"
        ) from None
    except TypeError as error:
        raise SetupError(f"{name}: the annotations can't be resolved: {error}") from error
    ours: dict[str, str] = {}
    parameters: dict[str, Parameter] = {}
    stored = Stored(Any)
    for parameter in inspect.signature(function).parameters.values():
        annotation = hints.get(parameter.name, Parameter.empty)
        kind = _ours(annotation)
        if kind is None:
            parameters[parameter.name] = parameter.replace(annotation=annotation)
            continue
        if kind in ours:
            raise SetupError(f"{name}: {ours[kind]!r} and {parameter.name!r} both take the {kind}")
        ours[kind] = parameter.name
        if kind == "state" and get_args(annotation):
            stored = Stored(get_args(annotation)[0])
    return Handler(
        function=function,
        name=name,
        is_async=inspect.iscoroutinefunction(target),
        context=ours.get("context"),
        inputs=ours.get("inputs"),
        state=ours.get("state"),
        stored_state=stored,
        parameters=parameters,
        returns=_without_asks(hints["return"]) if "return" in hints else Parameter.empty,
    )


def _ours(annotation: Any) -> str | None:
    for base, kind in ((Context, "context"), (Inputs, "inputs"), (State, "state")):
        if annotation is base or get_origin(annotation) is base:
            return kind
    return None


def _without_asks(annotation: Any) -> Any:
    members = union_members(annotation)
    kept = tuple(member for member in members if member is not InputRequired)
    if len(kept) == len(members):
        return annotation
    return Union[kept] if kept else type(None)  # noqa: UP007  built from values
