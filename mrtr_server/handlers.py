"""Handlers: what a decorated function takes, compiled once."""

import inspect
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from inspect import Parameter
from types import NoneType
from typing import Annotated, Any, Union, get_args, get_origin, get_type_hints

from .asks import Ask
from .context import Context
from .errors import SetupError
from .idempotency import IdempotencyKey
from .inputs import InputRequired, Inputs, State
from .results import union_members
from .schema import Stored


@dataclass(frozen=True, slots=True)
class Handler:
    """A decorated function, ready to be run in rounds.

    Parameters:
        function: the function.
        name: what it was registered as, for logs and errors.
        is_async: whether it is, or wraps, an `async def`.
        context: the parameter that takes the `Context`, if there is one.
        inputs: the parameter that takes the `Inputs`, if there is one.
        state: the parameter that takes the `State`, if there is one.
        stored_state: how that state goes to JSON and back.
        parameters: the parameters that the client fills, with resolved annotations.
        returns: the resolved return annotation, without `InputRequired`; `Parameter.empty` if there is none.
        answer_within: how long an answer may take, in seconds; None for the server's own limit.
        single_use: whether each of its states is redeemed once.
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
    answer_within: float | None = None
    single_use: bool = False

    @property
    def is_simple(self) -> bool:
        """Whether it takes nothing of the flow, so that no journal is needed unless it asks."""
        return self.context is None and self.inputs is None and self.state is None and not self.single_use

    @property
    def can_pause(self) -> bool:
        """Whether its first round can end before its effects: it asks first, or its effects are steps."""
        return self.inputs is not None or (self.is_async and self.context is not None)


def compile_handler(
    function: Callable[..., Any],
    name: str,
    namespace: Mapping[str, Any],
    *,
    answer_within: float | None = None,
    single_use: bool = False,
) -> Handler:
    """Read a function's signature.

    Parameters:
        function: a function, a method, or an object with `__call__`.
        name: what it is registered as.
        namespace: the local names where it was defined, for annotations that are strings.
        answer_within, single_use: see `Handler`.

    Raises:
        SetupError: an annotation can't be resolved, or one of our own parameters is there twice.
    """
    layers = list(_layers(function, name))
    target = layers[-1]
    try:
        hints = get_type_hints(target, localns=dict(namespace), include_extras=True)
    except NameError as error:
        raise SetupError(
            f"{name}: the annotation {error.name!r} can't be resolved; define it before the handler"
        ) from None
    except (TypeError, SyntaxError) as error:
        raise SetupError(f"{name}: the annotations can't be resolved: {error}") from error
    ours: dict[str, str] = {}
    parameters: dict[str, Parameter] = {}
    stored = Stored(Any)
    for parameter in _signature(function, name).values():
        annotation = hints.get(parameter.name, Parameter.empty)
        kind, bare = _ours(annotation)
        if any(isinstance(mark, Ask) for mark in getattr(annotation, "__metadata__", ())):
            # It must not become an argument, or the model could give the person's answer itself.
            raise SetupError(
                f"{name}: parameter {parameter.name!r} is annotated with an ask, which is not supported; ask with "
                "ctx in the body, or return InputRequired"
            )
        if annotation is IdempotencyKey:
            raise SetupError(
                f"{name}: parameter {parameter.name!r} would be the client's to fill; an IdempotencyKey is for the "
                "function of a step, see ctx.step"
            )
        if kind is None:
            parameters[parameter.name] = parameter.replace(annotation=annotation)
            continue
        if parameter.kind not in (Parameter.POSITIONAL_OR_KEYWORD, Parameter.KEYWORD_ONLY):
            raise SetupError(
                f"{name}: parameter {parameter.name!r} can't be filled by name, but that is how the {kind} comes; "
                "make it an ordinary parameter"
            )
        if kind in ours:
            raise SetupError(f"{name}: {ours[kind]!r} and {parameter.name!r} both take the {kind}")
        ours[kind] = parameter.name
        if kind == "state" and get_args(bare):
            stored = Stored(get_args(bare)[0])
    return Handler(
        function=function,
        name=name,
        is_async=any(map(inspect.iscoroutinefunction, layers)),
        context=ours.get("context"),
        inputs=ours.get("inputs"),
        state=ours.get("state"),
        stored_state=stored,
        parameters=parameters,
        returns=_without_asks(hints["return"]) if "return" in hints else Parameter.empty,
        answer_within=answer_within,
        single_use=single_use,
    )


def _layers(function: Any, name: str) -> Iterator[Callable[..., Any]]:
    """Give what is called, and what it wraps, down to the function that has the annotations.

    Raises:
        SetupError: it can't be called, or what is called is a generator.
    """
    if not callable(function):
        raise SetupError(
            f"{name}: {type(function).__name__} can't be called; a method is registered where there is an object or a "
            "class to call it on: app.tool(obj.method)"
        )
    called = function
    while isinstance(called, partial | staticmethod):
        called = called.func if isinstance(called, partial) else called.__func__
    if not inspect.isroutine(called) and not inspect.isclass(called):
        called = called.__call__
    if inspect.isgeneratorfunction(called) or inspect.isasyncgenfunction(called):
        raise SetupError(f"{name} is a generator, and a handler gives one result: return a list instead of yielding")
    yield called
    while isinstance(called, partial) or hasattr(called, "__wrapped__"):
        called = called.func if isinstance(called, partial) else called.__wrapped__
        yield called


def _signature(function: Callable[..., Any], name: str) -> dict[str, Parameter]:
    """Give the parameters that a call by name can fill. Raises `SetupError` for a method without its object."""
    parameters = dict(inspect.signature(function).parameters)
    bound = set(function.keywords) if isinstance(function, partial) else set()
    if bound and any(parameter.kind is Parameter.VAR_KEYWORD for parameter in parameters.values()):
        raise SetupError(f"{name}: with **arguments, a client could replace what partial() gives for {min(bound)!r}")
    parameters = {each: parameter for each, parameter in parameters.items() if each not in bound}
    first = next(iter(parameters.values()), None)
    owner = getattr(function, "__qualname__", "").rpartition(".")[0]
    in_class = inspect.isfunction(function) and owner and not owner.endswith("<locals>")
    if in_class and first is not None and first.name in ("self", "cls") and first.annotation is Parameter.empty:
        raise SetupError(
            f"{name} is a method without its object, so {first.name!r} would be the client's to fill; make the object "
            "first, then register its method: app.tool(obj.method)"
        )
    return parameters


def _ours(annotation: Any) -> tuple[str | None, Any]:
    """Say which of our types an annotation is, optional or not, and give it bare."""
    if get_origin(annotation) is Annotated:
        return _ours(get_args(annotation)[0])
    members = [member for member in union_members(annotation) if member is not NoneType]
    if len(members) == 1:
        for base, kind in ((Context, "context"), (Inputs, "inputs"), (State, "state")):
            if members[0] is base or get_origin(members[0]) is base:
                return kind, members[0]
    return None, annotation


def _without_asks(annotation: Any) -> Any:
    members = union_members(annotation)
    kept = tuple(member for member in members if member is not InputRequired)
    if len(kept) == len(members):
        return annotation
    return Union[kept] if kept else type(None)  # noqa: UP007  built from values
