"""Implements `TaskTools` on the registry."""

import logging
from collections.abc import Mapping, Sequence
from typing import assert_never, cast

from ..errors import ArgumentsMisfit, InvalidParams, UnknownTarget
from ..flow.authorization import Authorizer
from ..flow.endings import Asking, Backgrounded, Completed, Failed, Refused, Yielded
from ..flow.handler import TaskTerms
from ..flow.round_context import RoundContext
from ..flow.round_service import RoundService
from ..protocol.messages import Call, Complete, Outlet
from ..registration.registry import Registry
from ..registration.tools import Tool
from ..schema.results import failed
from ..tasks.round_executor import TaskEnd
from ..tasks.task_run import TaskRun
from .failures import ErrorReporter, problems, refused, tool_failure
from .middleware import Middleware, Serve, compose

logger = logging.getLogger("mrtr_server")


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
        self._serve: Serve = self._run

    def serve_within(self, around: Sequence[Middleware]) -> None:
        """Run every round within middlewares from now on, of which the first is the outermost."""
        self._serve = compose(self._run, around)

    @property
    def terms(self) -> Mapping[str, TaskTerms]:
        """How calls become tasks, by tool; see `TaskTools.terms`."""
        return self._registry.tasks

    def answer_within(self, tool: str) -> float | None:
        """Return how long a person has to answer, in seconds; see `TaskTools.answer_within`."""
        found = self._registry.find("tools", tool)
        return None if found is None else found.handler.answer_within

    async def run(self, call: Call, run: TaskRun) -> TaskEnd:
        """Run a round of a task; see `TaskTools.run`."""
        call.trace.resume(run.journal)
        return cast(TaskEnd, await self._serve(call, run))

    async def _run(self, call: Call, outlet: Outlet) -> TaskEnd:
        run = cast(TaskRun, outlet)
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
        end = await self._rounds.run_task(RoundContext(tool.handler, call, run, arguments), run)
        match end:
            case Asking() | Yielded() | Backgrounded():
                return end
            case Completed(result):
                try:
                    return Complete(tool.write(result))
                except Exception as error:
                    return tool_failure(call, error, self._errors)
            case Refused(refusal):
                call.trace.declined = True
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
