"""Calls of tools: in rounds, redeemed once, or as tasks."""

from collections.abc import Awaitable
from functools import partial
from typing import assert_never

from ..errors import (
    ArgumentsMisfit,
    InvalidParams,
    MissingCapability,
    RequestError,
    StoreUnavailable,
    UnknownMethod,
    UnknownTarget,
)
from ..flow.authorization import Authorizer
from ..flow.endings import Backgrounded, Completed, Failed, Refused
from ..flow.handler import TaskTerms
from ..flow.journal import Journal
from ..flow.round_service import RoundService
from ..flow.states import Opened
from ..protocol.messages import JSON, NEEDS_TASKS, Call, Complete, HandedOver, NeedsInput, Outcome, Outlet, TaskCreated
from ..rates.rate_limiter import RateLimiter
from ..registration.registry import Registry
from ..registration.tools import Tool
from ..schema.known_arguments import validate_arguments
from ..schema.results import failed
from ..storage.lease import Lease
from ..storage.watched import not_executed
from ..tasks.task_service import Tasks
from .failures import ErrorReporter, problems, refused, tool_failure


class Tools:
    """Calls tools.

    Args:
        registry: has the tools.
        rounds: runs their rounds.
        tasks: starts tasks.
        errors: notes what goes wrong on our side.
        authorizer: knows who may call what.
        rates: counts the calls of tools that have a rate.
    """

    def __init__(
        self,
        registry: Registry,
        rounds: RoundService,
        tasks: Tasks,
        errors: ErrorReporter,
        authorizer: Authorizer,
        rates: RateLimiter,
    ) -> None:
        self._registry = registry
        self._rounds = rounds
        self._tasks = tasks
        self._errors = errors
        self._authorizer = authorizer
        self._rates = rates

    def call(self, call: Call, outlet: Outlet) -> Awaitable[Outcome]:
        """Answer `tools/call` (Tools, Calling Tools).

        Raises:
            RequestError: there is no result that could say what went wrong.
        """
        tool = self._registry.find("tools", call.target)
        if tool is None:
            if call.state is not None:
                self._errors.note_gone(call.target)
            raise UnknownTarget("tool", call.target, has_begun=call.state is not None)
        is_counted = self._rates.is_on and call.state is None
        if is_counted or tool.authorize is not None or self._authorizer.guards_all:
            return self._call_if_admitted(tool, call, outlet)
        return self._call_now(tool, call, outlet)

    async def _call_if_admitted(self, tool: Tool, call: Call, outlet: Outlet) -> Outcome:
        """Call a tool that the caller may call, unless its rate is used up."""
        if self._authorizer.guards(tool.authorize):
            await self._authorizer.require(
                call.caller, call.method, "tool", (tool.authorize, call.target), has_begun=call.state is not None
            )
        if self._rates.is_on and call.state is None:
            await self._rates.admit_to_tool(call, tool.rate)
        return await self._call_now(tool, call, outlet)

    def _call_now(self, tool: Tool, call: Call, outlet: Outlet) -> Awaitable[Outcome]:
        """Call a tool that the caller may call now."""
        if call.mismatch is not None:
            raise call.mismatch
        try:
            # A flow that has begun may have been begun by a version that took more.
            names = tool.names if call.state is None else None
            arguments = validate_arguments(tool.arguments, names, call.arguments, self._rounds.limits)
        except ArgumentsMisfit as misfit:
            if call.state is not None:
                self._errors.note_changed(tool.handler.name)
            return _done(_misfit(call, problems(call.target, misfit)))
        if call.task is not None or tool.handler.task is not None:
            _check_offer(call, tool.handler.task)
        if call.state is None and not self._rates.is_on:
            return self._run(tool, arguments, call, outlet, None, None)
        return self._deliver(tool, arguments, call, outlet)

    async def _deliver(self, tool: Tool, arguments: JSON, call: Call, outlet: Outlet) -> Outcome:
        """Run a round that continues a flow, or one that counts for a rate."""
        try:
            outcome = await self._rounds.deliver(tool.handler, call, partial(self._run, tool, arguments, call, outlet))
        except Exception as error:
            return self._failed(call, error)
        if call.task is None and isinstance(outcome, TaskCreated):
            raise MissingCapability(NEEDS_TASKS)  # the delivery that started it took tasks, and this one does not
        return outcome

    async def _run(
        self, tool: Tool, arguments: JSON, call: Call, outlet: Outlet, opened: Opened | None, lease: Lease | None
    ) -> Outcome:
        """Run a round of a tool, or start its task."""
        offer = call.task
        terms = tool.handler.task if offer is not None else None
        steps_before = len(opened[0].steps) if opened is not None else 0
        try:
            if terms is not None and offer is not None and (offer.at_once or not terms.rounds_first):
                return await self._start(tool, call, opened)
            end = await self._rounds.run(
                tool.handler, arguments, call, outlet, opened, lease, may_become_task=terms is not None
            )
            match end:
                case Completed():
                    return Complete(tool.write(end.result))
                case NeedsInput() | HandedOver():
                    return end
                case Backgrounded(journal):
                    has_run = len(journal.steps) > steps_before
                    return await self._start_task(tool, call, journal, opened if has_run else None, has_run=has_run)
                case Refused():
                    if call.facts is not None:
                        call.facts.declined = True
                    return Complete(failed(refused(end.refusal)))
                case Failed():
                    return self._failed(call, end.error)
                case unknown:
                    assert_never(unknown)
        except Exception as error:
            return self._failed(call, error)

    async def _start(self, tool: Tool, call: Call, opened: Opened | None) -> Outcome:
        if tool.handler.single_use and call.state is None:  # or a repetition of this request would be another task
            return await self._rounds.hand_over(tool.handler, call)
        journal, _ = opened or self._rounds.open_state(tool.handler, call)
        return await self._start_task(tool, call, journal, None, has_run=False)

    async def _start_task(
        self, tool: Tool, call: Call, journal: Journal, opened: Opened | None, *, has_run: bool
    ) -> Outcome:
        """Start a task of a round that has ended.

        Args:
            tool: the tool.
            call: the request.
            journal: what the flow remembers.
            opened: what its state held, if this round may end with another state instead.
            has_run: whether this round has run a step, so that it must not be run again.
        """
        terms = tool.handler.task
        assert terms is not None  # noqa: S101  or nothing would lead here
        self._tasks.wake_worker()
        once = tool.handler.single_use or journal.single_use
        try:
            return TaskCreated(await self._tasks.start(terms, call, journal, once=once))
        except StoreUnavailable as error:
            if not has_run:  # no outcome of the round, or a repetition would get this error for ever
                raise not_executed(error, f"{call.target!r} did not become a task without its store") from None
            handed_over = opened and await self._rounds.hand_over_round(tool.handler, call, opened)
            if handed_over:  # the client carries what was done, and comes again at once
                return handed_over
            raise self._errors.report(call, error) from None

    def _failed(self, call: Call, error: Exception) -> Complete:
        """Return the result of a tool that could not be run. Raises the errors that are no results."""
        result = tool_failure(call, error, self._errors)
        if isinstance(result, RequestError):
            raise result
        return result


async def _done(outcome: Outcome) -> Outcome:
    return outcome


def _misfit(call: Call, problems: str) -> Complete:
    """Return the result of a call whose arguments do not fit. Raises `InvalidParams` where it could only be a task."""
    if call.task is not None and call.task.at_once:
        raise InvalidParams(problems, {"name": call.target})
    return Complete(failed(problems))


def _check_offer(call: Call, terms: TaskTerms | None) -> None:
    """Check that the client takes what calls of a tool become. Raises `RequestError`."""
    if call.task is None and terms is not None and terms.required:
        raise MissingCapability(NEEDS_TASKS)
    if call.task is not None and call.task.at_once and terms is None:
        message = f"{call.target!r} can't be called as a task; call it without params.task"
        raise UnknownMethod(call.method, message, {"name": call.target})
