"""Implements `TaskTools` on the registry."""

import logging
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import assert_never

from ..errors import ArgumentsMisfit, InvalidParams, UnknownTarget
from ..flow.authorization import Authorizer
from ..flow.endings import Asking, Backgrounded, Completed, Failed, Refused, Yielded
from ..flow.handler import TaskTerms
from ..flow.journal import Journal
from ..flow.round_service import RoundService
from ..flow.waiting_round import ShouldYield
from ..protocol.messages import Call, Complete
from ..registration.registry import Registry
from ..registration.tools import Tool
from ..schema.results import failed
from ..storage.tasks import TaskRow
from ..tasks.round_executor import TaskEnd
from ..tasks.task_run import TaskRun
from .failures import ErrorReporter, problems, refused, tool_failure

logger = logging.getLogger("mrtr_server")


Work = Callable[[], Awaitable[TaskEnd]]
"""Runs a round of a task."""

Observe = Callable[[Call, Journal, TaskRow, Work], Awaitable[TaskEnd]]
"""Runs a round of a task that is observed: the request, the flow, the task, and what runs the round."""

Surround = Callable[[Call, Journal, Work], Awaitable[TaskEnd]]
"""Runs a round of a task between hooks: the request, the flow, and what runs the round."""


class BackgroundTools:
    """Runs rounds of tasks; see `TaskTools`.

    Args:
        registry: has the tools.
        rounds: runs the rounds.
        errors: notes what goes wrong on our side.
        authorizer: knows who may call what.
    """

    def __init__(self, registry: Registry, rounds: RoundService, errors: ErrorReporter, authorizer: Authorizer) -> None:
        self._registry = registry
        self._rounds = rounds
        self._errors = errors
        self._authorizer = authorizer
        self._serve: Observe | None = None
        self._surround: Surround | None = None

    def observe(self, serve: "Observe") -> None:
        """Run every round from now on through what observes it, and through what observes it already.

        Args:
            serve: runs a round.
        """
        inner = self._serve
        if inner is None:
            self._serve = serve
        else:
            self._serve = lambda call, journal, row, work: serve(
                call, journal, row, lambda: inner(call, journal, row, work)
            )

    def surround(self, serve: "Surround") -> None:
        """Run every round between hooks from now on.

        Args:
            serve: runs a round between them.
        """
        self._surround = serve

    @property
    def terms(self) -> Mapping[str, TaskTerms]:
        """How calls become tasks, by tool; see `TaskTools.terms`."""
        return self._registry.tasks

    def answer_within(self, tool: str) -> float | None:
        """Return how long a person has to answer, in seconds; see `TaskTools.answer_within`."""
        found = self._registry.find("tools", tool)
        return None if found is None else found.handler.answer_within

    async def run(self, call: Call, journal: Journal, run: TaskRun, should_yield: ShouldYield) -> TaskEnd:
        """Run a round of a task; see `TaskTools.run`."""
        work: Work = partial(self._run, call, journal, run, should_yield)
        if self._surround is not None:
            work = partial(self._surround, call, journal, work)
        return await (work() if self._serve is None else self._serve(call, journal, run.row, work))

    async def _run(self, call: Call, journal: Journal, run: TaskRun, should_yield: ShouldYield) -> TaskEnd:
        tool = self._registry.find("tools", call.target)
        if tool is None:
            raise UnknownTarget("tool", call.target)
        if self._authorizer.guards(tool.authorize):
            await self._check_caller(tool, call)
        try:
            arguments = tool.arguments.validate(call.arguments, self._rounds.limits)
        except ArgumentsMisfit as misfit:  # the tool has changed since
            self._errors.note_changed(tool.handler.name)
            return Complete(failed(problems(call.target, misfit)))
        end = await self._rounds.run_task(tool.handler, arguments, call, journal, run, run, should_yield)
        match end:
            case Asking() | Yielded() | Backgrounded():
                return end
            case Completed(result):
                try:
                    return Complete(tool.write(result))
                except Exception as error:
                    return tool_failure(call, error, self._errors)
            case Refused(refusal):
                if call.facts is not None:
                    call.facts.declined = True
                return Complete(failed(refused(refusal)))
            case Failed(error):
                return tool_failure(call, error, self._errors)
            case unknown:
                assert_never(unknown)

    async def _check_caller(self, tool: Tool, call: Call) -> None:
        """Check that the one who began a task may still do so; what is asked has the scopes that they had then."""
        if not await self._authorizer.still_allowed(call.caller, (tool.authorize, call.target)):
            logger.warning("A task of %r has failed: authorize= refuses its caller", call.target)
            unknown = UnknownTarget("tool", call.target)
            raise InvalidParams(unknown.message, unknown.data)  # of an unknown tool, others might still run it
