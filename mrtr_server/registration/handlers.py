"""Handlers: what a decorated function takes, compiled once."""

import dis
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from inspect import Parameter, unwrap
from types import CodeType
from typing import Any, Union, get_args

from ..errors import SetupError
from ..flow.asks import Confirm, Text
from ..flow.idempotency import IdempotencyKey
from ..flow.inputs import InputRequired
from ..flow.resolver import Asked, Declared
from ..schema.annotations import union_members
from ..schema.arguments import Stored
from .dependencies import Declaration, compile_declared, read_declaration
from .signatures import BY_NAME, own_type, read_signature, refuse_unannotated


@dataclass(frozen=True, slots=True)
class TaskTerms:
    """How a tool's calls become tasks.

    Parameters:
        required: whether they always do, so that a client that takes none is refused.
        rounds_first: whether they begin in rounds, and become tasks at `ctx.background()`; otherwise at once.
        ttl: how long a task is kept, from its creation, in seconds, unless its client asks for less; None for the
            server's own limit.
        poll: how often its client should ask for it, in seconds; None for the server's own.
        concurrency: how many of its tasks run at once in a process; None for as many as the server lets.
    """

    required: bool
    rounds_first: bool
    ttl: float | None = None
    poll: float | None = None
    concurrency: int | None = None


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
        declared: the parameters that asks and dependencies fill, and `confirm=`; None if there are none.
        single_use: whether each of its states is redeemed once.
        task: how its calls become tasks; None if they never do.
        timeout: how long it may run in each round, in seconds; None for as long as it takes.
        write: writes its result while its dependencies are still there; None if that can wait.
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
    declared: Declared | None = None
    single_use: bool = False
    task: TaskTerms | None = None
    timeout: float | None = None
    write: Callable[[Any], Any] | None = None

    @property
    def is_simple(self) -> bool:
        """Whether it takes nothing of the flow, so that no journal is needed unless it asks."""
        ours = self.context is None and self.inputs is None and self.state is None and self.declared is None
        return ours and not self.single_use and self.timeout is None

    @property
    def may_park(self) -> bool:
        """Whether an ask or a step may be awaited in it, or in one of its dependencies."""
        return (self.is_async and self.context is not None) or (self.declared is not None and self.declared.may_park)

    @property
    def can_pause(self) -> bool:
        """Whether its first round can end before its effects: it asks first, or its effects are steps."""
        asks_first = self.declared is not None and bool(self.declared.keys)
        return asks_first or self.inputs is not None or (self.is_async and self.context is not None)

    @property
    def has_teardown(self) -> bool:
        """Whether one of its dependencies is to be left at the end of a round."""
        return self.declared is not None and self.declared.has_teardown

    @property
    def confirms(self) -> bool:
        """Whether it was registered with `confirm=`."""
        return self.declared is not None and self.declared.confirms

    @property
    def declares_confirmation(self) -> bool:
        """Whether a parameter of it or of a dependency is a confirmation, or `confirm=` is."""
        nodes = () if self.declared is None else self.declared.nodes
        return any(isinstance(node, Asked) and isinstance(node.ask, Confirm) for node in nodes)

    @property
    def own_parameters(self) -> set[str]:
        """The parameters that no client fills."""
        ours = {name for name in (self.context, self.inputs, self.state) if name is not None}
        return ours | self.declared.parameters.keys() if self.declared is not None else ours


def compile_handler(
    function: Callable[..., Any],
    name: str,
    namespace: Mapping[str, Any],
    *,
    answer_within: float | None = None,
    confirm: Text | None = None,
    single_use: bool = False,
) -> Handler:
    """Read a function's signature.

    Parameters:
        function: a function, a method, or an object with `__call__`.
        name: what it is registered as.
        namespace: the local names where it was defined, for annotations that are strings.
        answer_within, single_use: see `Handler`.
        confirm: what the person must have agreed to before the function runs; None for nothing.

    Raises:
        SetupError: an annotation can't be resolved, one of our own parameters is there twice, or what is declared
            can't be asked or made.
    """
    signature = read_signature(function, name, namespace)
    ours: dict[str, str] = {}
    parameters: dict[str, Parameter] = {}
    declarations: dict[str, Declaration] = {}
    stored = Stored(Any)
    for parameter in signature.parameters.values():
        if parameter.annotation is IdempotencyKey:
            raise SetupError(
                f"{name}: parameter {parameter.name!r} would be the client's to fill; an IdempotencyKey is for the "
                "function of a step, see ctx.step"
            )
        declaration = read_declaration(name, parameter)
        if declaration is not None:  # never an argument, or the model could give the person's answer itself
            declarations[parameter.name] = declaration
            continue
        kind, bare = own_type(parameter.annotation)
        if kind is None:
            refuse_unannotated(name, parameter)
            parameters[parameter.name] = parameter
            continue
        if parameter.kind not in BY_NAME:
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
        is_async=signature.is_async,
        context=ours.get("context"),
        inputs=ours.get("inputs"),
        state=ours.get("state"),
        stored_state=stored,
        parameters=parameters,
        returns=_without_asks(signature.returns),
        answer_within=answer_within,
        declared=compile_declared(name, declarations, parameters, namespace, confirm),
        single_use=single_use,
    )


def _without_asks(annotation: Any) -> Any:
    members = union_members(annotation)
    kept = tuple(member for member in members if member is not InputRequired)
    if len(kept) == len(members):
        return annotation
    return Union[kept] if kept else type(None)  # noqa: UP007  built from values


def calls_background(handler: Handler) -> bool:
    """Say whether a handler's own code calls `ctx.background()`, as far as can be seen from its names."""
    function = getattr(handler.function, "func", handler.function)
    code = getattr(unwrap(getattr(function, "__func__", function)), "__code__", None)
    return code is not None and handler.context is not None and _takes(code, handler.context, "background")


def _takes(code: CodeType, variable: str, attribute: str) -> bool:
    """Say whether code, or that of a function within it, takes an attribute of a variable of this name."""
    loaded: Any = None
    for instruction in dis.get_instructions(code):
        if instruction.argval == attribute and loaded == variable:
            return True
        loaded = instruction.argval if instruction.opname.startswith(("LOAD_FAST", "LOAD_DEREF")) else None
        if isinstance(loaded, tuple):  # newer versions load two variables at once
            loaded = loaded[-1]
    return any(_takes(const, variable, attribute) for const in code.co_consts if isinstance(const, CodeType))
