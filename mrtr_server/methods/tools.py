"""Calls of tools: in rounds, redeemed once, or as tasks."""

import logging
from collections.abc import Callable

from ..errors import (
    ArgumentsMisfit,
    InvalidParams,
    MissingCapability,
    Refusal,
    RequestError,
    StoreUnavailable,
    ToolError,
    Unavailable,
    UnknownTarget,
)
from ..flow.authorization import Authorizer
from ..flow.journal import Journal
from ..flow.round import Background
from ..flow.runner import Asking
from ..flow.service import Opened, RoundService
from ..flow.single_use import Lease
from ..protocol.messages import (
    JSON,
    NEEDS_TASKS,
    Call,
    Complete,
    NeedsInput,
    Outcome,
    Outlet,
    Question,
    TaskCreated,
)
from ..registration.registry import Registry
from ..registration.tools import Tool
from ..schema.results import failed
from ..schema.unknown_arguments import read_arguments
from ..tasks.service import Tasks
from .failures import ErrorReporter, problems, refused

logger = logging.getLogger("mrtr_server")


class _Foreground:
    """What a flow may become that is no task yet."""

    started = False
    lost = False

    async def keep(self) -> None:
        """Keep nothing: the journal goes with the client when the round ends."""

    def say(self, message: str) -> None:
        """Say it to nobody."""


_FOREGROUND = _Foreground()


class Tools:
    """Calls tools, and answers for their tasks.

    Args:
        registry: has the tools.
        flows: runs their rounds.
        tasks: starts tasks.
        wake_worker: sees that somebody works on them.
        errors: notes what goes wrong on our side.
        authorizer: knows who may call what.
    """

    def __init__(
        self,
        registry: Registry,
        flows: RoundService,
        tasks: Tasks,
        wake_worker: Callable[[], None],
        errors: ErrorReporter,
        authorizer: Authorizer,
    ) -> None:
        self._registry = registry
        self._flows = flows
        self._tasks = tasks
        self._wake_worker = wake_worker
        self._errors = errors
        self._authorizer = authorizer

    async def call(self, call: Call, outlet: Outlet) -> Outcome:
        """Answer a `tools/call`. Raises `RequestError`."""
        tool = self._registry.tools.get(call.target)
        if tool is None:
            raise UnknownTarget("tool", call.target)
        if self._authorizer.guards(tool.authorize):
            await self._authorizer.require(call.caller, call.method, "tool", (tool.authorize, call.target))
        if call.mismatch is not None:
            raise call.mismatch
        try:
            # A flow that has begun may have been begun by a version that took more.
            arguments = read_arguments(tool.arguments, tool.names if call.state is None else None, call.arguments)
        except ArgumentsMisfit as misfit:
            return Complete(failed(problems(call.target, misfit)))
        if tool.handler.task is not None and tool.handler.task.required and call.task is None:
            raise MissingCapability(NEEDS_TASKS)
        if call.state is None:
            return await self._run_tool(tool, arguments, call, outlet, None, None)

        async def run(opened: Opened | None, lease: Lease | None) -> Outcome:
            return await self._run_tool(tool, arguments, call, outlet, opened, lease)

        try:
            outcome = await self._flows.deliver(tool.handler, call, run)
        except Exception as error:
            return self._failed(call, error)
        if isinstance(outcome, TaskCreated) and call.task is None:
            raise MissingCapability(NEEDS_TASKS)  # the delivery that started it took tasks, and this one does not
        return outcome

    async def _run_tool(
        self,
        tool: Tool,
        arguments: JSON,
        call: Call,
        outlet: Outlet,
        opened: Opened | None,
        lease: Lease | None,
    ) -> Outcome:
        """Run a round of a tool, or start its task."""
        background = None
        try:
            if tool.handler.task is not None and call.task is not None:
                if not tool.handler.task.rounds_first:
                    return await self._start(tool, call, opened)
                background = _FOREGROUND
            result = await self._flows.run(tool.handler, arguments, call, outlet, opened, lease, background)
            if isinstance(result, NeedsInput):
                return result
            if isinstance(result, Journal):
                return await self._start_task(tool, call, result)
            return Complete(tool.write(result))
        except (Exception, Refusal) as error:
            return self._failed(call, error)

    async def _start(self, tool: Tool, call: Call, opened: Opened | None) -> Outcome:
        if tool.handler.single_use and call.state is None:  # or a repetition of this request would be another task
            return self._flows.hand_over(tool.handler, call)
        journal, _ = opened or self._flows.open_state(tool.handler, call)
        return await self._start_task(tool, call, journal)

    async def _start_task(self, tool: Tool, call: Call, journal: Journal) -> Outcome:
        terms = tool.handler.task
        assert terms is not None  # noqa: S101  or nothing would lead here
        self._wake_worker()
        once = tool.handler.single_use or journal.single_use
        try:
            return TaskCreated(await self._tasks.start(terms, call, journal, once=once))
        except StoreUnavailable as error:
            raise self._errors.report(call, error) from None

    async def run_task(
        self, call: Call, journal: Journal, background: Background, outlet: Outlet, should_yield: Callable[[], bool]
    ) -> Complete | dict[str, Question]:
        """Run a round of a task.

        Args:
            call: the request that it came from.
            journal: what its flow remembers.
            background: the task, which takes what is to be kept.
            outlet: takes the notes of the handler.
            should_yield: says whether the round is to end at its next boundary.

        Returns:
            The result; or the questions that it asks, none if it was handed over.

        Raises:
            UnknownTarget: there is no such tool here.
            RequestError: what the task fails with.
            StoreUnavailable: what pages have reported, or whether its caller may go on, can't be known now; nothing has
                been run.
        """
        tool = self._registry.tools.get(call.target)
        if tool is None:
            raise UnknownTarget("tool", call.target)
        if self._authorizer.guards(tool.authorize):
            await self._check_task(tool, call)
        try:
            arguments = tool.arguments.validate(call.arguments)
        except ArgumentsMisfit as misfit:  # the tool has changed since
            return Complete(failed(problems(call.target, misfit)))
        reports = await self._flows.reports_for_task(journal, should_yield)
        if reports is None:
            return {}
        try:
            result = await self._flows.run_task(
                tool.handler, arguments, call, journal, background, outlet, should_yield, reports
            )
            return result.questions if isinstance(result, Asking) else Complete(tool.write(result))
        except (Exception, Refusal) as error:
            return self._failed(call, error)

    async def _check_task(self, tool: Tool, call: Call) -> None:
        """Check that the one who began a task may still do so; what is asked has the scopes that they had then."""
        if not await self._authorizer.still_allowed(call.caller, (tool.authorize, call.target)):
            logger.warning("A task of %r has failed: authorize= refuses its caller", call.target)
            unknown = UnknownTarget("tool", call.target)
            raise InvalidParams(unknown.message, unknown.data)  # of an unknown tool, others might still run it

    def _failed(self, call: Call, error: Exception | Refusal) -> Complete:
        """Give the result of a tool that failed. Raises the errors that are no results."""
        if isinstance(error, RequestError):
            raise error
        if isinstance(error, ToolError):
            return Complete(failed(str(error) or "The tool failed."))
        if isinstance(error, Refusal):
            return Complete(failed(refused(error)))
        fault = self._errors.report(call, error)
        if isinstance(fault, Unavailable):  # to try again may help, and that is the client's to know
            raise fault
        return Complete(failed(fault.message))
