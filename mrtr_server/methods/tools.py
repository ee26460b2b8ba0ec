"""Tools: calls of them, in rounds, redeemed once, or as tasks; and the rounds of their tasks."""

import logging
from collections.abc import Awaitable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import assert_never, cast

from ..errors import (
    ArgumentsMisfit,
    Busy,
    InvalidParams,
    MissingCapability,
    RequestError,
    StoreUnavailable,
    UnknownMethod,
    UnknownTarget,
)
from ..flow.authorization import Authorizer
from ..flow.endings import Asking, Backgrounded, Completed, Failed, Refused, Yielded
from ..flow.handler import TaskTerms
from ..flow.rate_limiter import RateLimiter
from ..flow.round_service import RoundService
from ..flow.states import RoundContext
from ..protocol.header_params import check_mirrored
from ..protocol.messages import NEEDS_TASKS, Call, Complete, HandedOver, NeedsInput, Outcome, Outlet, TaskCreated
from ..registration.registry import Registry
from ..registration.tools import Tool
from ..schema.arguments import validate_arguments
from ..schema.results import failed
from ..storage.health import not_executed
from ..tasks.round_executor import TaskEnd
from ..tasks.task_run import TaskRun
from ..tasks.task_service import Tasks
from .failures import ErrorReporter, problems, refused, tool_failure
from .middleware import Middleware, Serve, compose

logger = logging.getLogger("mrtr_server")


class Tools:
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
        """Answer `tools/call` (Tools, Calling Tools). Raises `RequestError` where no result could say what is wrong."""
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
        if self._authorizer.guards(tool.authorize):
            await self._authorizer.require(
                call.caller, call.method, "tool", (tool.authorize, call.target), has_begun=call.state is not None
            )
        if self._rates.is_on and call.state is None:
            await self._rates.admit_to_tool(call, tool.rate)
        return await self._call_now(tool, call, outlet)

    def _call_now(self, tool: Tool, call: Call, outlet: Outlet) -> Awaitable[Outcome]:
        if tool.headers:
            check_mirrored(call.headers, call.arguments, tool.headers, required=call.must_mirror)
        if call.refusal is not None:
            raise call.refusal
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
        round_ = RoundContext(tool.handler, call, outlet, arguments)
        if call.state is None and not self._rates.is_on:
            return self._run(tool, round_)
        return self._deliver(tool, round_)

    async def _deliver(self, tool: Tool, round_: RoundContext) -> Outcome:
        call = round_.call
        try:
            outcome = await self._rounds.deliver(round_, partial(self._run, tool))
        except Exception as error:
            return self._failed(call, error)
        # The delivery that started it took tasks, and this one does not. Of a task that waits for somebody else, which
        # alone has a message from the start, its client is told in words.
        if call.task is None and isinstance(outcome, TaskCreated) and not outcome.task.message:
            raise MissingCapability(NEEDS_TASKS)
        return outcome

    async def _run(self, tool: Tool, round_: RoundContext) -> Outcome:
        call = round_.call
        offer = call.task
        terms = tool.handler.task if offer is not None else None
        try:
            if terms is not None and offer is not None and (offer.at_once or not terms.rounds_first):
                return await self._start(round_)
            round_.may_become_task = terms is not None
            end = await self._rounds.run(round_)
            match end:
                case Completed():
                    return Complete(tool.write(end.result))
                case NeedsInput() | HandedOver():
                    return end
                case Backgrounded(waits=waits):
                    return await self._start_task(round_, waits)
                case Refused():
                    call.trace.declined = True
                    return Complete(failed(refused(end.refusal)))
                case Failed(error):
                    return await self._end_failed(round_, error)
                case unknown:
                    assert_never(unknown)
        except Exception as error:
            return self._failed(call, error)

    async def _start(self, round_: RoundContext) -> Outcome:
        if round_.handler.single_use and round_.call.state is None:  # or a repetition would be another task
            return await self._rounds.hand_over(round_)
        if not round_.is_open:
            self._rounds.open(round_)
        return await self._start_task(round_)

    async def _start_task(self, round_: RoundContext, waits: str = "") -> Outcome:
        """Start a task of a round that has ended."""
        # `waits`: what it waits for that somebody else answers, in words. Then its client need not take tasks.
        call, journal, terms = round_.call, round_.journal, round_.handler.task
        assert terms is not None  # noqa: S101  or nothing would lead here
        self._tasks.wake_worker()
        once = round_.handler.single_use or journal.single_use
        try:
            task = await self._tasks.start(terms, call, journal, once=once)
            return TaskCreated(replace(task, message=task.message or waits))
        except StoreUnavailable as error:
            if len(journal.steps) == round_.steps_before:
                raise not_executed(error, f"{call.target!r} did not become a task without its store") from None
            return await self._end_failed(round_, error)

    async def _end_failed(self, round_: RoundContext, error: Exception) -> Outcome:
        """Return what a client gets of a round that has failed. Raises `RequestError`."""
        try:
            return self._failed(round_.call, error)
        except Busy:  # the client comes again, and carries what was done
            if (handed_over := await self._rounds.hand_over_done(round_)) is not None:
                return handed_over
            raise

    def _failed(self, call: Call, error: Exception) -> Complete:
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


class BackgroundTools:
    """Runs rounds of tasks; see `TaskTools`."""

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
        return self._registry.tasks

    def answer_within(self, tool: str) -> float | None:
        found = self._registry.find("tools", tool)
        return None if found is None else found.handler.answer_within

    async def run(self, call: Call, run: TaskRun) -> TaskEnd:
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
