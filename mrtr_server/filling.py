"""Declared parameters at run time: asks and dependencies, as far as one round can fill them."""

import asyncio
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from .asks import Ask, CallEnded
from .context import Context
from .errors import FlowError
from .inputs import InputRequired
from .messages import JSON, Outlet, Question
from .round import OPEN, Round
from .steps import current_dependency
from .threads import Threads, call_function

logger = logging.getLogger("mrtr_server")

PATIENCE = 5.0
"""How long a cancelled dependency may take to end, in seconds."""


@dataclass(slots=True, eq=False)
class Asked:
    """An ask that fills a parameter, or that `confirm=` makes.

    Parameters:
        where: what it fills, for errors.
        ask: the ask; its texts may be functions.
        read: reads an answer.
        made: the texts that are functions, by attribute, each with where its parameters come from.
        needs: what must be there first.
        question: the ask as it goes to the client, if it is the same in every call.
        key: names it, in every round the same.
    """

    where: str
    ask: Ask[Any]
    read: Callable[[JSON], Any]
    made: Mapping[str, tuple[Callable[..., Any], "Sources"]]
    needs: tuple["Node", ...]
    question: Question | None
    key: str = ""


@dataclass(slots=True, eq=False)
class Dependency:
    """A function that makes a value.

    Parameters:
        function: the function.
        is_async: whether it is, or wraps, an `async def`.
        context: the parameter that takes the `Context`, if there is one.
        sources: where its other parameters come from.
        needs: what must be there first.
        name: tells it from the handler's other dependencies, in every round the same.
    """

    function: Callable[..., Any]
    is_async: bool
    context: str | None
    sources: "Sources"
    needs: tuple["Node", ...]
    name: str = ""


Node = Asked | Dependency
Sources = Mapping[str, str | Node]
"""Where parameters come from, by name: an argument of the call, or a node."""


@dataclass(frozen=True, slots=True)
class Declared:
    """What a handler declares, ready to be filled in rounds.

    Parameters:
        nodes: all asks and dependencies; each comes after those that it needs.
        parameters: what fills which parameter of the handler.
        defaults: the arguments that a call may leave out.
        rest: names the parameter that takes all arguments together, if one of the nodes wants them.
        keys: the keys of the asks.
        confirms: whether one of the asks is that of `confirm=`.
    """

    nodes: tuple[Node, ...]
    parameters: Mapping[str, Node]
    defaults: Mapping[str, Any]
    rest: str | None
    keys: frozenset[str]
    confirms: bool
    may_park: bool = field(init=False)
    """Whether one of the dependencies may ask or run steps."""

    def __post_init__(self) -> None:
        parks = any(isinstance(node, Dependency) and node.is_async and node.context for node in self.nodes)
        object.__setattr__(self, "may_park", parks)

    async def fill(self, arguments: JSON, round_: Round, outlet: Outlet, threads: Threads) -> JSON | None:
        """Ask what can be asked, and run the dependencies that have all that they need.

        Parameters:
            arguments: what the client fills, validated.
            round_: the round.
            outlet: takes the notes of dependencies.
            threads: runs those that are a plain `def`.

        Returns:
            The declared parameters of the handler; None if the round ends without it, which the round then says.
        """
        values: dict[Any, Any] = {**self.defaults, **arguments}
        if self.rest is not None:  # a client may send whatever it likes there
            values[self.rest] = {name: value for name, value in arguments.items() if name not in self.parameters}
        round_.reserved = self.keys
        filling = _Filling(self.nodes, values, round_, outlet, threads)
        if not await filling.run():
            return None
        return {name: values[node] for name, node in self.parameters.items()}


class _Filling:
    """The nodes of one round: those that wait for others, and those that run."""

    def __init__(
        self, nodes: tuple[Node, ...], values: dict[Any, Any], round_: Round, outlet: Outlet, threads: Threads
    ) -> None:
        self._waiting = nodes
        self._values = values
        self._round = round_
        self._outlet = outlet
        self._threads = threads
        self._open = False
        self._running: dict[asyncio.Task[Any], Dependency] = {}

    async def run(self) -> bool:
        """Fill what can be filled; say whether that is all."""
        self._advance()
        try:
            while self._running and self._round.failure is None:
                ended, _ = await asyncio.wait(self._running, return_when=asyncio.FIRST_COMPLETED)
                for task in ended:
                    self._take(task)
                self._advance()
        finally:
            if self._running:
                await self._stop()
        return not (self._open or self._waiting or self._round.ending or self._round.failure)

    def _advance(self) -> None:
        """Go on with all that has what it needs: asks first, so that no dependency runs after a no."""
        waiting: list[Node] = []
        ready: list[Dependency] = []
        for node in self._waiting:
            if any(need not in self._values for need in node.needs):
                waiting.append(node)
            elif isinstance(node, Dependency):
                ready.append(node)
            elif (answer := self._ask(node)) is OPEN:
                self._open = True
            else:
                self._values[node] = answer
        self._waiting = tuple(waiting)
        if self._round.failure is None and not self._round.ending:
            for dependency in ready:
                self._start(dependency)
        else:
            self._open = True

    def _ask(self, asked: Asked) -> Any:
        ask, question = asked.ask, asked.question
        if question is None:
            try:
                ask = ask.filled({text: self._make(asked, text) for text in asked.made})
                question = ask.question()
            except CallEnded:  # a text that is none; the round knows
                return OPEN
            except (Exception, SystemExit) as error:
                self._fail(error)
                return OPEN
        return self._round.answer(asked.key, ask, question, asked.read)

    def _make(self, asked: Asked, text: str) -> Any:
        function, sources = asked.made[text]
        made = function(**self._keywords(sources))
        if not isinstance(made, str) and text != "messages":
            message = f"{asked.where}: the function for its {text} gave a {type(made).__name__}, and not a string"
            raise CallEnded(str(self._round.fail(FlowError(message))))
        return made

    def _keywords(self, sources: Sources) -> JSON:
        return {name: self._values[source] for name, source in sources.items()}

    def _start(self, dependency: Dependency) -> None:
        task = asyncio.create_task(self._call(dependency), name=dependency.name)
        self._running[task] = dependency
        self._round.busy.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._round.busy.discard(task)
        self._round.wake()

    async def _call(self, dependency: Dependency) -> Any:
        current_dependency.set(asyncio.current_task())
        keywords = self._keywords(dependency.sources)
        if dependency.context is not None:
            keywords[dependency.context] = Context(self._round, self._outlet, can_await=dependency.is_async)
        return await call_function(dependency, keywords, self._threads)

    def _take(self, task: asyncio.Task[Any]) -> None:
        dependency = self._running.pop(task)
        error = asyncio.CancelledError() if task.cancelled() else task.exception()
        if error is not None:
            self._fail(error)
        elif isinstance(task.result(), InputRequired):
            message = (
                f"The dependency {dependency.name} returned InputRequired, and only a handler can; declare the ask as "
                "its parameter, or await ctx.elicit(...)"
            )
            self._round.fail(FlowError(message))
        else:
            self._values[dependency] = task.result()

    def _fail(self, error: BaseException) -> None:
        """End the call with the error of a dependency, or of the function that makes a text."""
        if isinstance(error, SystemExit):  # would end the whole server
            error = RuntimeError("the function that makes a text called sys.exit()")
        self._round.failure = self._round.failure or error

    async def _stop(self) -> None:
        """End the dependencies that still run. Their steps go on to their end."""
        self._round.closed = True
        for task in self._running:
            task.cancel()
        ended, left = await asyncio.wait(self._running, timeout=PATIENCE)
        for task in ended:
            if not task.cancelled():
                task.exception()  # taken here, so that it is not reported as lost: the call ends for another reason
        for task in left:
            message = "%s of %r does not end when it is cancelled; it is left behind"
            logger.error(message, task.get_name(), self._round.name)
