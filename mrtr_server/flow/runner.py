"""Run one round of one handler against a journal. Every style of asking and every task runs through here."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import aclosing, suppress
from dataclasses import replace
from functools import partial
from inspect import isawaitable
from threading import get_ident
from traceback import clear_frames
from types import CoroutineType
from typing import Any, assert_never

from ..concurrency.running import retrieve, running_loop, running_task
from ..concurrency.threads import RunInThread, Threads, failure_of
from ..errors import CallEnded, FlowContinues, FlowError, OverBudget, Refusal, RoundOver, ToolError
from ..limits import Limits
from ..logs.failures import calls_author
from ..protocol.messages import JSON, NOTHING, Outlet, Piece, Progress
from ..schema.results import piece_blocks
from ..well_formed import write_json
from .asks import InputRequired
from .context import Context
from .endings import Asking, Backgrounded, Completed, Failed, Refused, RoundEnd, Yielded
from .handler import Handler
from .pure import JournalInputs, conclude_asking, conclude_error, fill_in
from .teardown import Teardown
from .waiting_round import SETTLE_TICKS, Stop, WaitingRound, library_locals

logger = logging.getLogger("mrtr_server")

END_TICKS = 20
"""How many turns of the loop a cancellation has to go down to every ask that is open, through all that awaits it."""

WIND_DOWN_SECONDS = 5.0


Fill = Callable[[], Coroutine[Any, Any, JSON | None]]

LONGEST_MESSAGE = 1000


def run(
    handler: Handler, arguments: JSON, round_: WaitingRound, outlet: Outlet, threads: Threads
) -> Coroutine[Any, Any, RoundEnd]:
    if handler.inputs is None and handler.state is None:  # it is no pure function
        keywords, inputs = arguments.copy(), None
    else:
        keywords, inputs = fill_in(handler, arguments, round_)
    round_.addresses = handler.addresses
    if handler.context is not None:
        keywords[handler.context] = Context(round_, outlet, can_await=handler.is_async)
    declared = handler.declared
    teardown = Teardown(round_, threads) if declared is not None and declared.has_teardown else None
    in_thread: RunInThread = threads if teardown is None else teardown.in_thread
    fill: Fill | None = None
    if declared is not None:
        fill = partial(declared.resolve, arguments, round_, outlet, in_thread, teardown)
    running = _concluded(handler, round_, keywords, fill, in_thread, inputs)
    if teardown is not None:
        running = _torn_down(handler, round_, running, teardown)
    if teardown is not None or handler.may_park:
        running = _run_as_asyncio_task(round_, running, wakes=teardown is None)
    return running if handler.timeout is None else _in_time(handler, handler.timeout, running)


async def _in_time(handler: Handler, seconds: float, running: Coroutine[Any, Any, RoundEnd]) -> RoundEnd:
    try:
        async with asyncio.timeout(seconds) as limit:
            return await running
    except TimeoutError:
        if not limit.expired():  # one of the handler's own
            raise
    left = "" if handler.is_async else "; it continues in its thread, and occupies it until it returns"
    logger.warning("%r timed out after %g s%s", handler.name, seconds, left)
    message = f"{handler.name} timed out after {seconds:g} seconds. Part of its work may have been done."
    return Failed(ToolError(message))


@calls_author
async def _concluded(
    handler: Handler,
    round_: WaitingRound,
    keywords: JSON,
    fill: Fill | None,
    in_thread: RunInThread,
    inputs: JournalInputs | None,
) -> RoundEnd:
    """Run a handler to its end, or to that of its round: that may come before all that it declares is there."""
    result: Any = None
    raised: BaseException | None = None
    try:
        declared = {} if fill is None else await fill()
        if declared is not None:  # as in `call_function`, which would be one more coroutine
            function, given = handler.function, {**keywords, **declared}
            result = function(**given) if handler.is_async else await in_thread(partial(function, **given))
            result = await result if type(result) is CoroutineType or isawaitable(result) else result
        if round_.stopped is not None:
            logger.warning(
                "%r caught the cancellation that ended its round, and returned a value; the value is dropped",
                round_.name,
            )
        else:
            round_.check_awaited()
    except BaseException as error:
        raised = failure_of(error, handler.name)
        ends = isinstance(raised, Exception | CallEnded | BaseExceptionGroup)
        if not (ends or (isinstance(raised, asyncio.CancelledError) and round_.stopped is Stop.PARKED)):
            raised = None  # or it would hold itself
            raise
    finally:
        if round_.running and round_.stopped is None:
            await _finish_steps(round_)
        round_.stopped = round_.stopped or Stop.RETURNED
        round_.wake()  # with what follows at once, or a teardown, the task ends
    try:
        match round_.stopped:
            case Stop.CANCELLED:
                raise asyncio.CancelledError("the round has ended")
            case Stop.PARKED:
                running_task().uncancel()
                if raised is not None and round_.has_branches:  # a task group has it, and so all that the handler held
                    clear_frames(raised.__traceback__)
                    raised.__traceback__ = None  # which has this frame, too
                return round_.conclude(Completed(None))
            case Stop.RETURNED:
                return (
                    conclude_error(round_, raised)
                    if raised is not None
                    else conclude_asking(handler, round_, result, inputs)
                    if isinstance(result, InputRequired)
                    else round_.conclude(Completed(result))
                )
            case unknown:
                assert_never(unknown)
    finally:
        del raised  # it knows this frame, and so would hold itself, and all that the handler held


async def _torn_down(
    handler: Handler, round_: WaitingRound, concluded: Coroutine[Any, Any, RoundEnd], teardown: Teardown
) -> RoundEnd:
    try:
        try:
            end = _write_or_raise(handler, await concluded)
        except GeneratorExit:  # the loop is gone
            raise
        except BaseException as error:
            await _leave_dependencies(round_, teardown, error)
            if isinstance(error, asyncio.CancelledError) and round_.stopped is not Stop.CANCELLED:
                raise RuntimeError(f"{round_.name!r} raised CancelledError, but was not cancelled") from error
            raise
        if round_.task is not None and round_.task.lost:  # it runs elsewhere, and nothing more may happen here
            await _leave_dependencies(round_, teardown, asyncio.CancelledError("the task runs elsewhere"))
            return end
        continues = isinstance(end, Asking | Yielded | Backgrounded)
        await _leave_dependencies(round_, teardown, FlowContinues() if continues else None)
        return round_.conclude(end)  # a dependency may have asked after its yield
    except Refusal as refusal:
        return Refused(refusal)
    except Exception as error:
        return Failed(error)


def _write_or_raise(handler: Handler, end: RoundEnd) -> RoundEnd:
    """Serialize what a handler returned, as long as its dependencies live; raise what it failed with."""
    match end:
        case Completed(result):
            return end if handler.write is None else Completed(handler.write(result))
        case Failed(error):
            raise error
        case Refused(refusal):
            raise refusal
        case Asking() | Yielded() | Backgrounded():
            return end
        case unknown:
            assert_never(unknown)


async def _leave_dependencies(round_: WaitingRound, teardown: Teardown, error: BaseException | None) -> None:
    round_.begin_teardown()
    try:
        await _finish_steps(round_)
    finally:
        with suppress(CallEnded):  # an ask or a step after the yield; the round knows
            await teardown.leave(error)


async def _run_as_asyncio_task(
    round_: WaitingRound, coroutine: Coroutine[Any, Any, RoundEnd], *, wakes: bool
) -> RoundEnd:
    """Run a handler that may park in a task of its own; end it when all that is left of it waits for the client."""
    round_.main = task = running_loop().create_task(coroutine)
    round_.thread = get_ident()
    if not wakes:
        task.add_done_callback(round_.wake)
    try:
        while not task.done() and round_.stopped is not Stop.PARKED:
            if round_.running and round_.parked and not round_.in_teardown and round_.may_publish:
                await _publish(round_)
            else:
                await round_.changed()
        if round_.running:
            await _finish_steps(round_)
        if not task.done():
            await _end(task, round_)
    except asyncio.CancelledError:  # the client is gone
        if not (round_.in_teardown or round_.stopped is Stop.PARKED):  # or it is cancelled already
            task.cancel()
        round_.stopped = Stop.CANCELLED
        await _end(task, round_)
        await _finish_steps(round_)
        raise
    round_.let_go()
    return task.result() if task.done() else round_.conclude(Completed(None))


async def _publish(round_: WaitingRound) -> None:
    """Publish what is asked beside running steps, together with what other branches are about to ask."""
    for _ in range(SETTLE_TICKS):
        await asyncio.sleep(0)
    await round_.publish()


async def _finish_steps(round_: WaitingRound) -> None:
    while round_.running:
        await asyncio.wait(round_.running)


async def _end(task: asyncio.Task[RoundEnd], round_: WaitingRound) -> None:
    """Wait for the end of a handler that was cancelled.

    Only its own task is cancelled; what that awaits is cancelled with it. Any other task that still waits for an ask is
    left pending: its owner would take a cancellation for a result.
    """
    if not task.done():
        await _give_turns(task, round_)
        has_left = False
        while not round_.in_teardown and any(each.was_cancelled for each in round_.parked) and _leave_group(task):
            has_left = True
            await _give_turns(task, round_)
        beside = [each.task for each in round_.parked if each.task is not None and each.task is not task]
        if not task.done() and (has_left or all(each.done() for each in beside)):
            with suppress(TimeoutError):
                async with asyncio.timeout(WIND_DOWN_SECONDS):
                    while not (task.done() or round_.in_teardown):
                        await round_.changed()
        if round_.in_teardown:
            await _end_of_teardown(task, round_)
    if not task.done():
        task._log_destroy_pending = False  # type: ignore[attr-defined]
        logger.error("%r does not end when it is cancelled, and is abandoned", round_.name)
    if task.done():
        retrieve(task)
    else:
        task.add_done_callback(retrieve)
    round_.let_go()


async def _give_turns(task: asyncio.Task[RoundEnd], round_: WaitingRound) -> None:
    for _ in range(END_TICKS):
        if task.done() or round_.in_teardown:
            return
        await asyncio.sleep(0)


def _leave_group(task: asyncio.Task[RoundEnd]) -> bool:
    """Raise `RoundOver` in a task group at whose end a handler waits; return False if it waits for anything else.

    A group that is ending, since one of its tasks has failed, takes no cancellation while it waits for the others.
    """
    group = library_locals(task).get("self")
    ended: asyncio.Future[bool] | None = getattr(group, "_on_completed_fut", None)  # of asyncio's groups and of AnyIO's
    if task.done() or ended is None or ended.done():
        return False
    ended.set_exception(RoundOver())
    return True


async def _end_of_teardown(task: asyncio.Task[RoundEnd], round_: WaitingRound) -> None:
    """Wait for the end of a teardown, however long it takes; of cancellations, only a second one cuts it."""
    try:
        await asyncio.wait((task,))
    except asyncio.CancelledError:
        if round_.stopped is Stop.CANCELLED:
            task.cancel()
        raise


def in_pieces(handler: Handler, round_: WaitingRound, outlet: Outlet, limits: Limits) -> Handler:
    return replace(handler, function=_Pieces(handler, round_, outlet, limits.streamed_bytes).collect)


class _Pieces:
    def __init__(self, handler: Handler, round_: WaitingRound, outlet: Outlet, most_bytes: int) -> None:
        self._handler = handler
        self._round = round_
        self._outlet = outlet
        self._most_bytes = most_bytes
        self._size = 0
        self._count = 0
        self._content: list[JSON] = []
        self._texts: list[str] = []
        call = round_.call
        self._shows_pieces = not call.trace.is_whole
        self._takes_pieces = self._shows_pieces and (round_.task is not None or call.takes_pieces)
        # Who looks at a task may not take pieces, so it has both: its own call has no `stream`.
        self._token = None if call.takes_pieces or handler.reports_progress else call.progress_token

    @calls_author
    async def collect(self, **keywords: Any) -> list[JSON]:
        """Call the handler, and return the content of its result. Raises `FlowError`, `OverBudget`."""
        made = self._handler.function(**keywords)
        if not (hasattr(made, "__aiter__") and hasattr(made, "aclose")):
            raise FlowError(f"{self._handler.name!r} is an async generator that is wrapped to return something else")
        # Closed as soon as it is left, as when its client leaves: otherwise that would wait for the garbage collector.
        async with aclosing(made) as pieces:
            async for value in pieces:
                if self._round.stopped is not None:  # it has caught the cancellation that ended its round
                    break
                for block, is_text in piece_blocks(value):
                    await self._take(self._handler.addresses.block(block), is_text=is_text)
        self._end_text()
        return self._content

    async def _take(self, block: JSON, *, is_text: bool) -> None:
        self._size += len(write_json(block, inf_nan_mode="null"))
        if self._size > self._most_bytes:
            message = f"The result is over {self._most_bytes} bytes"
            raise OverBudget(message, "streamed_bytes", self._most_bytes)
        if is_text:
            place = len(self._content)
            self._texts.append(block["text"])
        else:
            self._end_text()
            place = len(self._content)
            self._content.append(block)
        index, self._count = self._count, self._count + 1
        if not self._round.ending:  # or nothing of this round counts
            await self._send(index, place, block)

    def _end_text(self) -> None:
        if self._texts:
            self._content.append({"type": "text", "text": "".join(self._texts)})
            self._texts = []

    async def _send(self, index: int, place: int, block: JSON) -> None:
        call, journal = self._round.call, self._round.journal
        if self._takes_pieces and index >= journal.pieces:
            sent: Awaitable[None] = self._outlet.send(Piece(call.request_id, index, place, block))
            if sent is not NOTHING:
                journal.pieces = index + 1
                await sent
        if self._token is not None and self._round.advance(index + 1):
            is_shown = self._shows_pieces and block["type"] == "text"
            text = block["text"][:LONGEST_MESSAGE] if is_shown else None
            await self._outlet.send(Progress(self._token, index + 1, None, text))
