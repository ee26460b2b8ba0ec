"""A handler: a decorated function, what it declares, and how far one round can fill that in."""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from inspect import Parameter
from typing import Any, NamedTuple

from ..concurrency.threads import RunInThread, call_function
from ..errors import CallEnded
from ..logs.failures import calls_author
from ..protocol.messages import JSON, Outlet, Question
from ..schema.stored import Stored
from .asks import Ask, Confirm, InputRequired
from .context import Context
from .home import OWN, Addresses, Home
from .round import OPEN
from .steps import current_dependency
from .teardown import Teardown
from .waiting_round import WaitingRound


@dataclass(slots=True, eq=False)
class DeclaredAsk:
    """An ask that fills a parameter, or that `confirm=` makes."""

    where: str
    ask: Ask[Any]
    parse: Callable[[JSON], Any]
    made: Mapping[str, tuple[Callable[..., Any], "Sources"]]
    needs: tuple["Node", ...]
    question: Question | None
    """None where it depends on the call."""
    key: str = ""


@dataclass(slots=True, eq=False)
class Dependency:
    function: Callable[..., Any]
    is_async: bool
    """Whether it is, or wraps, an `async def`."""
    yields: bool
    context: str | None
    sources: "Sources"
    needs: tuple["Node", ...]
    commits: bool = False
    """Whether its teardown runs normally in a round without a result."""
    name: str = ""
    request: str | None = None
    needs_request: bool = True


@dataclass(slots=True, eq=False)
class Lasting:
    needs: tuple["Node", ...] = ()


Node = DeclaredAsk | Dependency | Lasting
Sources = Mapping[str, str | Node]
"""Where parameters come from, by name: an argument of the call, or a node."""


@dataclass(frozen=True, slots=True)
class Declared:
    nodes: tuple[Node, ...]
    """All asks and dependencies in the order in which they are asked and run: as declared, but each after those that it
    needs, and the ask of `confirm=` last.
    """
    parameters: Mapping[str, Node]
    defaults: Mapping[str, Any]
    rest: str | None
    """The parameter that takes all arguments together, if one of the nodes wants them."""
    keys: frozenset[str]
    compile_again: "Callable[[Mapping[Any, Callable[..., Any]]], Declared | None]"
    """Compiles it with other functions in the place of some; see `Home.overrides`."""
    may_park: bool = field(init=False)
    """Whether one of the dependencies may ask or run steps."""
    has_teardown: bool = field(init=False)

    def __post_init__(self) -> None:
        dependencies = [node for node in self.nodes if isinstance(node, Dependency)]
        object.__setattr__(self, "may_park", any(each.is_async and each.context for each in dependencies))
        object.__setattr__(self, "has_teardown", any(each.yields for each in dependencies))

    async def resolve(
        self, arguments: JSON, round_: WaitingRound, outlet: Outlet, threads: RunInThread, teardown: Teardown | None
    ) -> JSON | None:
        """Ask and run what is declared, one after another, up to the first failure.

        An ask that is open holds back the dependencies after it; the asks before those go out in one round. Return the
        declared parameters of the handler; None if the round ends without it. Raises what a dependency raised.

        `threads`: runs those that are a plain `def`.
        """
        values: dict[Any, Any] = {**self.defaults, **arguments}
        if self.rest is not None:  # a client may send whatever it likes there
            values[self.rest] = {name: value for name, value in arguments.items() if name not in self.parameters}
        round_.reserved = self.keys
        resolution = _Resolution(values, round_, outlet, threads, teardown)
        is_open = False
        for node in self.nodes:
            if isinstance(node, Lasting):
                values[node] = round_.lifespan()
            elif isinstance(node, Dependency):
                if is_open or round_.ending:
                    return None
                await resolution.run(node)
            elif any(need not in values for need in node.needs):  # which are open asks: a dependency would be there
                is_open = True
            elif not resolution.ask(node):
                is_open = True
                if round_.settled:
                    return None
        return None if is_open or round_.ending else {name: values[node] for name, node in self.parameters.items()}


@dataclass(slots=True)
class _Resolution:
    values: dict[Any, Any]
    round: WaitingRound
    outlet: Outlet
    threads: RunInThread
    teardown: Teardown | None

    def ask(self, asked: DeclaredAsk) -> bool:
        """Look an answer up, or ask for it; return whether it is there."""
        ask, question = asked.ask, asked.question
        if question is None:
            try:
                ask = ask.filled({text: self._make(asked, text) for text in asked.made})
                question = ask.question()
            except CallEnded:  # the function returned no text; already recorded in the round
                return False
            except Exception as error:
                self.round.fail_with(error)
                return False
            except SystemExit:  # would end the whole server
                self.round.fail_with(RuntimeError("the function that makes a text called sys.exit()"))
                return False
        answer = self.round.answer(asked.key, ask, question, asked.parse)
        if answer is not OPEN:
            self.values[asked] = answer
        return answer is not OPEN

    @calls_author
    def _make(self, asked: DeclaredAsk, text: str) -> Any:
        function, sources = asked.made[text]
        made = function(**self._keywords(sources))
        if not isinstance(made, str) and text != "messages":
            message = f"{asked.where}: the function for its {text} returned a {type(made).__name__}, not a string"
            raise CallEnded(str(self.round.fail(message)))
        return made

    def _keywords(self, sources: Sources) -> JSON:
        return {name: self.values[source] for name, source in sources.items()}

    async def run(self, dependency: Dependency) -> None:
        """Run a dependency whose needs are all there. An error from it ends the call, whatever it asks itself."""
        function, name, is_async = dependency.function, dependency.name, dependency.is_async
        keywords = self._keywords(dependency.sources)
        if dependency.context is not None:
            keywords[dependency.context] = Context(self.round, self.outlet, can_await=dependency.is_async)
        if dependency.request is not None:
            request = Context(self.round, self.outlet, can_await=False).request
            if request is None and dependency.needs_request:
                raise self.round.fail(
                    f"The dependency {name} takes the HTTP request as {dependency.request!r}; there is none over stdio "
                    "or in a task, so annotate it Request | None to do without"
                )
            keywords[dependency.request] = request
        outer = current_dependency.set(name)
        try:
            if dependency.yields and self.teardown is not None:
                make = partial(function, **keywords)
                value = await self.teardown.enter(make, name, is_async=is_async, commits=dependency.commits)
            else:
                value = await call_function(function, name, self.threads, is_async=is_async, keywords=keywords)
        except Exception as error:
            if self.round.stopped is None:  # or it is what it made of the round's end
                self.round.fail_with(error)
            raise
        finally:
            current_dependency.reset(outer)
        if self.round.stopped is not None:  # it caught the end of the round, which had come in the middle of it
            raise asyncio.CancelledError("the round has ended")
        if isinstance(value, InputRequired):
            raise self.round.fail(
                f"The dependency {name} returned InputRequired, which only a handler may return; declare the ask as "
                "its parameter, or await ctx.elicit(...)"
            )
        self.values[dependency] = value
        rolled_back = name if dependency.yields and not dependency.commits else ""
        self.round.undone.note(dependency, dependency.needs, value, rolled_back=rolled_back)


class TaskTerms(NamedTuple):
    required: bool
    """Whether they always do, so that a client that takes none is refused."""
    rounds_first: bool | None
    """Whether calls begin in rounds, and become tasks at `ctx.background()`, or at once. None if nobody has said."""
    ttl: float | None = None
    """For how many seconds a task is kept, unless its client asks for fewer; None for the server's own limit."""
    poll: float | None = None
    """How often its client should ask for it, in seconds; None for the server's own."""
    concurrency: int | None = None
    """How many of its tasks run at once in a process; None for as many as the server lets."""


@dataclass(frozen=True, slots=True)
class Handler:
    function: Callable[..., Any]
    name: str
    is_async: bool
    context: str | None
    inputs: str | None
    state: str | None
    stored_state: Stored
    parameters: Mapping[str, Parameter]
    returns: Any
    """The resolved return annotation, without `InputRequired`; `Parameter.empty` if there is none."""
    answer_within: float | None = None
    """In seconds; None for the server's own limit."""
    declared: Declared | None = None
    single_use: bool = False
    needs_store: bool = False
    """Whether its author asked for single use, which several workers without one store can't keep."""
    task: TaskTerms | None = None
    """None if its calls never become tasks."""
    timeout: float | None = None
    """How long it may run in each round, in seconds."""
    write: Callable[[Any], Any] | None = None
    """Writes its result while its dependencies are still there; None if that can wait."""
    homes: tuple[Home, ...] = ()
    """The application that serves it, and, if that includes the one which registered it, those down to that one."""
    addresses: Addresses = OWN
    yields: bool = False
    reports_progress: bool = False
    """Whether it reports progress itself, so that its pieces are not reported as progress."""
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
        return self.declared is not None and self.declared.has_teardown

    @property
    def declares_confirmation(self) -> bool:
        nodes = () if self.declared is None else self.declared.nodes
        return any(isinstance(node, DeclaredAsk) and isinstance(node.ask, Confirm) for node in nodes)

    @property
    def own_parameters(self) -> set[str]:
        """The parameters that no client fills."""
        ours = {name for name in (self.context, self.inputs, self.state) if name is not None}
        declared = () if self.declared is None else self.declared.parameters.keys()
        return ours.union(declared) - self.parameters.keys()  # the text of a ticket is an argument
