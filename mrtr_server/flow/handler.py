"""A handler: a decorated function, ready to be run in rounds."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from inspect import Parameter
from typing import Any

from ..schema.stored import Stored
from .asks import Confirm
from .home import OWN, Addresses, Home
from .resolver import Declared, DeclaredAsk


@dataclass(frozen=True, slots=True)
class TaskTerms:
    """How a tool's calls become tasks."""

    required: bool
    """Whether they always do, so that a client that takes none is refused."""
    rounds_first: bool | None
    """Whether they begin in rounds, and become tasks at `ctx.background()`; otherwise at once. None if nobody has
    said.
    """
    ttl: float | None = None
    """How long a task is kept, from its creation, in seconds, unless its client asks for less; None for the server's
    own limit.
    """
    poll: float | None = None
    """How often its client should ask for it, in seconds; None for the server's own."""
    concurrency: int | None = None
    """How many of its tasks run at once in a process; None for as many as the server lets."""


@dataclass(frozen=True, slots=True)
class Handler:
    """A decorated function, ready to be run in rounds."""

    function: Callable[..., Any]
    name: str
    is_async: bool
    """Whether it is, or wraps, an `async def`."""
    context: str | None
    """The parameter that takes the `Context`, if there is one."""
    inputs: str | None
    """The parameter that takes the `Inputs`, if there is one."""
    state: str | None
    """The parameter that takes the `State`, if there is one."""
    stored_state: Stored
    parameters: Mapping[str, Parameter]
    returns: Any
    """The resolved return annotation, without `InputRequired`; `Parameter.empty` if there is none."""
    answer_within: float | None = None
    """How long an answer may take, in seconds; None for the server's own limit."""
    declared: Declared | None = None
    """The parameters that asks and dependencies fill, and `confirm=`; None if there are none."""
    single_use: bool = False
    """Whether each of its states is redeemed once."""
    task: TaskTerms | None = None
    """How its calls become tasks; None if they never do."""
    timeout: float | None = None
    """How long it may run in each round, in seconds; None for as long as it takes."""
    write: Callable[[Any], Any] | None = None
    """Writes its result while its dependencies are still there; None if that can wait."""
    homes: tuple[Home, ...] = ()
    """The applications that it belongs to: that which serves it, and, if that includes the one which registered it,
    down to that one.
    """
    addresses: Addresses = OWN
    yields: bool = False
    """Whether it is an async generator, which yields its result in pieces."""
    reports_progress: bool = False
    """Whether it reports progress itself, so that its pieces are not told as progress."""
    is_pure: bool = field(init=False)
    """Whether it takes its arguments, `Inputs` and `State` alone, so calling it is enough."""
    is_simple: bool = field(init=False)
    """Whether it takes nothing of the flow, so that no journal is needed unless it asks."""
    may_park: bool = field(init=False)
    """Whether an ask or a step may be awaited in it, or in one of its dependencies."""

    def __post_init__(self) -> None:
        declared = self.declared
        is_pure = self.context is None and declared is None and self.timeout is None and not self.yields
        waits_itself = self.is_async and self.context is not None
        object.__setattr__(self, "is_pure", is_pure)
        takes_none = self.inputs is None and self.state is None
        object.__setattr__(self, "is_simple", is_pure and takes_none and not self.single_use)
        object.__setattr__(self, "may_park", waits_itself or (declared is not None and declared.may_park))

    @property
    def can_pause(self) -> bool:
        """Whether its first round can end before its effects: it asks first, or its effects are steps."""
        asks_first = self.declared is not None and bool(self.declared.keys)
        return asks_first or self.inputs is not None or (self.is_async and self.context is not None)

    @property
    def has_teardown(self) -> bool:
        """Whether one of its dependencies has a teardown at the end of a round."""
        return self.declared is not None and self.declared.has_teardown

    @property
    def confirms(self) -> bool:
        """Whether it was registered with `confirm=`."""
        return self.declared is not None and self.declared.confirms

    @property
    def declares_confirmation(self) -> bool:
        """Whether a parameter of it or of a dependency is a confirmation, or `confirm=` is."""
        nodes = () if self.declared is None else self.declared.nodes
        return any(isinstance(node, DeclaredAsk) and isinstance(node.ask, Confirm) for node in nodes)

    @property
    def own_parameters(self) -> set[str]:
        """The parameters that no client fills."""
        ours = {name for name in (self.context, self.inputs, self.state) if name is not None}
        return ours | self.declared.parameters.keys() if self.declared is not None else ours
