"""Run one round of one handler against a journal. Every style and every workflow is a way into here."""

import asyncio
import logging
from collections.abc import Callable, Coroutine
from contextlib import suppress
from functools import partial
from typing import Any

from pydantic import ValidationError
from pydantic_core import PydanticSerializationError

from ..concurrency.threads import Threads, call_function
from ..errors import CallEnded, FlowError, MissingCapability, SetupError, ToolError
from ..protocol.messages import JSON, Outlet, Question
from .context import Context
from .handler import Handler
from .inputs import InputRequired, State
from .journal import UNSET
from .resolver import Declared
from .round import Round
from .teardown import Teardown

logger = logging.getLogger("mrtr_server")

SETTLE_TICKS = 5
"""How many turns of the loop must pass without an ask or a step before a round with an open ask ends."""

END_TICKS = 20
"""How many turns of the loop a cancellation has to go down to every ask that is open, through all that awaits it."""

WIND_DOWN_SECONDS = 5.0
"""How long a cancelled handler may take to end, in seconds."""


Work = Callable[[], Coroutine[Any, Any, Any]]
"""Begins what a round runs."""


class Asking:
    """The round ended with questions, or with a state alone.

    Args:
        questions: by key; none for a state alone.
        keeps_state: whether the handler itself ended the round without a question, to be run again with another state
            of its own; otherwise it was the server.
    """

    __slots__ = ("keeps_state", "questions")

    def __init__(self, questions: dict[str, Question], *, keeps_state: bool = False) -> None:
        self.questions = questions
        self.keeps_state = keeps_state


class Backgrounded:
    """The round ended where the flow becomes a task."""


async def run(handler: Handler, arguments: JSON, round_: Round, outlet: Outlet, threads: Threads) -> Any:
    """Run a handler from the top.

    Args:
        handler: what to run.
        arguments: what the client fills, validated.
        round_: the round; its journal is updated.
        outlet: takes progress and log messages.
        threads: runs a plain `def`.

    Returns:
        What the handler returned; `Asking`, if the client has to answer or to retry first; or `Backgrounded`.

    Raises:
        Refusal: the person said no to what the handler can't do without.
        MissingCapability: the client can't do what has to be asked of it.
        FlowError: the handler's code made a mistake; it has been logged.
        Exception: whatever the handler raised.
    """
    keywords = dict(arguments)
    if handler.inputs is not None:
        keywords[handler.inputs] = round_.inputs()
    if handler.state is not None:
        keywords[handler.state] = _own_state(handler, round_)
    if handler.context is not None:
        keywords[handler.context] = Context(round_, outlet, can_await=handler.is_async)
    declared = handler.declared
    teardown = Teardown(round_, threads) if declared is not None and declared.has_teardown else None
    work: Work = partial(call_function, handler, keywords, threads)
    if declared is not None:
        work = partial(_fill_and_call, handler, declared, arguments, keywords, round_, outlet, threads, teardown)
    if teardown is not None:
        running = _run_asking(handler, round_, _torn_down(handler, round_, work, teardown))
    else:
        running = _concluded(handler, round_, work)
        running = _run_asking(handler, round_, running) if handler.may_park else running
    return await (running if handler.timeout is None else _in_time(handler, handler.timeout, running))


async def _in_time(handler: Handler, seconds: float, running: Coroutine[Any, Any, Any]) -> Any:
    """Run a round for so long at most. Raises `ToolError`: the model had better know why there is no result."""
    try:
        async with asyncio.timeout(seconds) as limit:
            return await running
    except TimeoutError:
        if not limit.expired():  # one of the handler's own
            raise
    left = "" if handler.is_async else "; it continues in its thread, and occupies it until it returns"
    logger.warning("%r timed out after %g s%s", handler.name, seconds, left)
    raise ToolError(f"{handler.name} timed out after {seconds:g} seconds. Part of its work may have been done.")


async def _fill_and_call(
    handler: Handler,
    declared: Declared,
    arguments: JSON,
    keywords: JSON,
    round_: Round,
    outlet: Outlet,
    threads: Threads,
    teardown: Teardown | None,
) -> Any:
    """Call a handler once all of its declared parameters are there; otherwise the round ends without it."""
    in_thread = threads if teardown is None else teardown.in_thread
    resolved = await declared.resolve(arguments, round_, outlet, in_thread, teardown)
    return None if resolved is None else await call_function(handler, {**keywords, **resolved}, in_thread)


async def _concluded(handler: Handler, round_: Round, work: Work) -> Any:
    """Run a handler to its end, or to that of its round; return and raise as `run` does."""
    result: Any = None
    raised: BaseException | None = None
    try:
        result = await work()
        if round_.end:
            logger.warning(
                "%r caught the cancellation that ended its round, and returned a value; the value is dropped",
                round_.name,
            )
        else:
            round_.check_awaited()
    except asyncio.CancelledError:
        if round_.end != "parked":
            raise
    except (Exception, CallEnded, BaseExceptionGroup) as error:
        raised = error
    finally:
        if round_.running and not round_.end:
            await _finish_steps(round_)
        round_.closed = True
    if round_.end == "cancelled":
        raise asyncio.CancelledError("the round has ended")
    if round_.end:
        result = raised = None
        if (task := asyncio.current_task()) is not None:
            task.uncancel()
    return conclude(handler, round_, result, raised)


async def _torn_down(handler: Handler, round_: Round, work: Work, teardown: Teardown) -> Any:
    """Run a handler, then leave its dependencies with what the round came to; return and raise as `run` does."""
    try:
        outcome = await _concluded(handler, round_, work)
        if handler.write is not None and not isinstance(outcome, Asking | Backgrounded):
            outcome = handler.write(outcome)
    except GeneratorExit:  # the loop is gone
        raise
    except BaseException as error:
        await _leave_dependencies(round_, teardown, error)
        if isinstance(error, asyncio.CancelledError) and round_.end != "cancelled":
            raise RuntimeError(f"{round_.name!r} raised CancelledError, but was not cancelled") from error
        raise
    lost = round_.task is not None and round_.task.lost  # it runs elsewhere, and nothing more may happen here
    await _leave_dependencies(round_, teardown, asyncio.CancelledError("the task runs elsewhere") if lost else None)
    return outcome


async def _leave_dependencies(round_: Round, teardown: Teardown, error: BaseException | None) -> None:
    round_.begin_teardown()
    fault = round_.fault
    try:
        await _finish_steps(round_)
    finally:
        with suppress(CallEnded):  # an ask or a step after the yield; the round knows
            await teardown.leave(error)
    if error is None and round_.fault is not fault and round_.fault is not None:
        raise round_.fault


def conclude(handler: Handler, round_: Round, result: Any, raised: BaseException | None) -> Any:
    """Say what a round came to, from what the handler returned or raised; returns and raises as `run` does."""
    # What the round came to goes before what the handler made of it, or an `except` could turn a no into a yes.
    if isinstance(result, InputRequired) and not round_.asked:
        _require(handler, result, round_)
    if round_.fault is not None:
        raise round_.fault
    if round_.missing:
        raise MissingCapability(_capabilities(round_.missing))
    if round_.refusal is not None:
        raise round_.refusal
    if round_.failure is not None:
        raise round_.failure
    if round_.asked or round_.handed_over or isinstance(result, InputRequired):
        return Asking(round_.asked, keeps_state=not (round_.asked or round_.handed_over))
    if round_.backgrounded:
        return Backgrounded()
    if raised is not None:
        raise raised
    return result


async def _run_asking(handler: Handler, round_: Round, coroutine: Coroutine[Any, Any, Any]) -> Any:
    """Run a handler that may park in a task of its own; end it when all that is left of it waits for the client."""
    task = asyncio.create_task(coroutine)
    round_.main = task
    task.add_done_callback(round_.wake)
    try:
        while not task.done():
            if not round_.parked or round_.running or round_.in_teardown:
                await round_.changed()
            elif await _settled(task, round_):
                break
        await _finish_steps(round_)
        if not task.done():
            round_.end = "parked"
            await _end(task, round_)
    except asyncio.CancelledError:  # the client is gone
        round_.end = "cancelled"
        await _end(task, round_)
        await _finish_steps(round_)
        raise
    _leave(round_)
    return task.result() if task.done() else conclude(handler, round_, None, None)


async def _settled(task: asyncio.Task[Any], round_: Round) -> bool:
    """Give branches that are about to ask or to start a step the time to do so; say whether none did."""
    seen = round_.activity
    for _ in range(SETTLE_TICKS):
        await asyncio.sleep(0)
        if task.done() or round_.activity != seen:
            return False
    return True


async def _finish_steps(round_: Round) -> None:
    while round_.running:
        await asyncio.wait(round_.running)


async def _end(task: asyncio.Task[Any], round_: Round) -> None:
    """Cancel what is left of a handler.

    Only its own task is cancelled; what that awaits is cancelled with it. Any other task that still waits for an ask is
    left to waste away: its owner would take a cancellation for a result.
    """
    round_.closed = True
    if not task.done():
        if not (round_.in_teardown or task.cancelling()):
            task.cancel()
        for _ in range(END_TICKS):
            if task.done() or round_.in_teardown:
                break
            await asyncio.sleep(0)
        if not task.done() and all(parked.done() for parked in round_.parked):
            with suppress(TimeoutError):
                async with asyncio.timeout(WIND_DOWN_SECONDS):
                    while not (task.done() or round_.in_teardown):
                        await round_.changed()
        if round_.in_teardown:
            await _end_of_teardown(task, round_)
    if not task.done():
        task._log_destroy_pending = False  # type: ignore[attr-defined]
        logger.error("%r does not end when it is cancelled, and is abandoned", round_.name)
    # What it comes to is taken, so that it is not reported as lost where nobody waits for it any more.
    task.add_done_callback(lambda ended: ended.cancelled() or ended.exception())
    _leave(round_)


async def _end_of_teardown(task: asyncio.Task[Any], round_: Round) -> None:
    """Wait for the end of a teardown, however long it takes; of cancellations, only a second one cuts it."""
    try:
        await asyncio.wait((task,))
    except asyncio.CancelledError:
        if round_.end == "cancelled":
            task.cancel()
        raise


def _leave(round_: Round) -> None:
    for parked in round_.parked:
        parked._log_destroy_pending = False  # type: ignore[attr-defined]


def _own_state(handler: Handler, round_: Round) -> State[Any]:
    stored = round_.journal.state
    if stored is UNSET:
        return State()
    try:
        return State(handler.stored_state.load(stored))
    except Exception as error:
        # Another version of the handler kept it; should that go on with the flow, it finds it unless we keep another.
        logger.warning(
            "%s %r: the kept state no longer fits the type of %r (%s), so it is None",
            round_.call.method,
            round_.name,
            handler.state,
            ", ".join(_problems(error)),
        )
        return State()


def _problems(error: Exception) -> list[str]:
    """Return what kinds of problems there are; where they are, may be part of a value."""
    if isinstance(error, ValidationError):
        return sorted({problem["type"] for problem in error.errors(include_url=False, include_input=False)})
    return [type(error).__name__]


def _require(handler: Handler, required: InputRequired, round_: Round) -> None:
    if required.state is not UNSET:
        try:
            round_.journal.state = handler.stored_state.dump(required.state)
        except PydanticSerializationError:
            round_.fail(FlowError("InputRequired(state=...) can't be kept as its declared type"))
    elif not required.asks:
        round_.fail(FlowError("InputRequired() has neither an ask nor a state, so nothing would change"))
    if round_.fault is None:
        try:
            round_.require(required)
        except FlowError as error:
            round_.fail(error)
        except SetupError as mistake:
            round_.fail(FlowError(str(mistake)))


def _capabilities(missing: list[str]) -> JSON:
    """Give dotted paths in the shape of `ClientCapabilities`."""
    required: JSON = {}
    for path in missing:
        level = required
        for part in path.split("."):
            level = level.setdefault(part, {})
    return required
