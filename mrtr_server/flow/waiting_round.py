"""A round whose handler may wait for answers and run steps.

An ask that can't be answered *parks*: it never returns, not even when it is cancelled. The runner sees that, lets
running steps finish, and ends the round by cancelling the handler. So nothing after an unanswered ask runs, whatever
the code around it catches.
"""

import asyncio
import logging
from collections.abc import Callable, Coroutine
from enum import Enum
from typing import Any, Protocol, TypeVar, cast

from ..callbacks.callback_service import Callbacks, Reports
from ..concurrency.threads import Threads
from ..errors import CallEnded, FlowError, MisplacedCall
from ..logs.tracebacks import CallSite, call_site, format_call_site
from ..protocol.messages import JSON, Call
from .asks import Ask
from .endings import YieldReason
from .journal import Journal
from .round import NO_REPORTS, OPEN, Round
from .steps import NotBegun, Planned, Steps, current_step

logger = logging.getLogger("mrtr_server")

T = TypeVar("T")

_NONE: set[asyncio.Task[Any]] = set()

ShouldYield = Callable[[], YieldReason | None]
"""Asks whether a round is to end at its next boundary, and what for; None if it continues."""


def _never() -> None:
    return None


class Background(Protocol):
    """The task that a round belongs to."""

    @property
    def lost(self) -> bool:
        """Whether the task has ended, or another worker runs it, so that nothing more may happen here."""
        ...

    async def may_begin(self) -> bool:
        """Check that the task has not ended and is run here alone, before a step begins."""
        ...

    async def keep(self) -> None:
        """Keep what the journal holds now, before anything else happens."""
        ...

    def say(self, message: str) -> None:
        """Store what the task is doing, for clients that ask."""
        ...


class Stop(Enum):
    """Why a handler runs no longer."""

    RETURNED = "it has come to its own end"
    PARKED = "all that is left of it waits for the client"
    CANCELLED = "the client has gone"


class WaitingRound(Round):
    """What happens in a round whose handler may wait.

    Args:
        call, journal, name, takes_early, callbacks, reports: as for `Round`.
        threads: runs plain functions.
        should_yield: asked at each boundary; its first answer that is not None is final.
        task: the task that the flow is; None in the foreground.
        may_become_task: whether the flow may become a task, at `ctx.background()`.
    """

    _steps: Steps | None = None
    _woken: "asyncio.Future[None] | None" = None
    _awaitables = 0
    activity = 0
    main: "asyncio.Task[Any] | None" = None
    """The task that the handler runs in."""
    stopped: Stop | None = None
    """Why the handler runs no longer; None while it does."""
    in_teardown = False
    """Whether the dependencies of the handler are being left: that is waited for."""

    def __init__(
        self,
        call: Call,
        journal: Journal,
        name: str,
        threads: Threads,
        *,
        takes_early: bool = True,
        callbacks: Callbacks | None = None,
        reports: Reports[YieldReason] = NO_REPORTS,
        should_yield: ShouldYield = _never,
        task: Background | None = None,
        may_become_task: bool = False,
    ) -> None:
        super().__init__(call, journal, name, takes_early=takes_early, callbacks=callbacks, reports=reports)
        self.task = task
        self.parked: list[asyncio.Task[Any]] = []
        self._threads = threads
        self._should_yield = should_yield
        self._may_become_task = may_become_task
        self._unawaited: dict[int, CallSite] = {}

    # What the runner watches

    @property
    def running(self) -> set[asyncio.Task[Any]]:
        """The steps that are running now."""
        return self._steps.running if self._steps is not None else _NONE

    @property
    def ending(self) -> bool:
        """Whether nothing new may begin, since it is known how the round ends; see `Round.ending`."""
        if self.task is not None and self.task.lost:
            self.leave(YieldReason.LEASE_IN_DOUBT)
        return self._end is not None

    def wake(self, _: Any = None) -> None:
        """Wake the runner, since something has changed."""
        self.activity += 1
        if self._woken is not None and not self._woken.done():
            self._woken.set_result(None)

    async def changed(self) -> None:
        """Wait until something changes."""
        self._woken = asyncio.get_running_loop().create_future()
        await self._woken

    def begin_teardown(self) -> None:
        """Note that the handler is over, and its dependencies are being left: that is waited for."""
        self.in_teardown = True
        self.wake()

    def check_awaited(self) -> None:
        """End the flow if the handler returned without having awaited all that it called."""
        if self._unawaited and not self.asked and not self.ending:
            site = next(iter(self._unawaited.values()))
            call = f"ctx.{site[-1].co_name}"
            self.fail(
                MisplacedCall(
                    f"{call}() was called but never awaited; write `await {call}(...)`: {format_call_site(site)}"
                )
            )

    async def _park(self) -> Any:
        """Never return, except to end the handler with the round."""
        if (task := asyncio.current_task()) is not None:
            self.parked.append(task)
        self.wake()
        while True:
            try:
                await asyncio.get_running_loop().create_future()
            except asyncio.CancelledError:
                if self.stopped is not None:
                    raise
                # A timeout, or a sibling that failed: its owner would take the open question for answered.
                self.ask_nothing_more()

    def _refuse_here(self, what: str) -> None:
        """Refuse an ask or a step where there can be none, and where it can't park either: by an exception."""
        if self.in_teardown and asyncio.current_task() is self.main:
            message = f"{what} was called after the yield of a dependency; by then the round has ended"
            raise self.fail(MisplacedCall(message))
        if self.stopped is not None:
            logger.error(
                "%s %r continued after its round had ended: it caught the cancellation and called %s. Re-raise "
                "asyncio.CancelledError in handlers.",
                self.call.method,
                self.name,
                what,
            )
            raise asyncio.CancelledError("the round has ended")
        if step := current_step.get():
            message = f"{what} was called inside the step {step!r}; a step can't contain an ask or another step"
            raise self.fail(MisplacedCall(message))
        if self.main is not None and asyncio.get_running_loop() is not self.main.get_loop():
            raise self.fail(MisplacedCall(f"{what} was called on another event loop than its handler's"))

    def refuse_plain(self, what: str) -> CallEnded:
        """End the flow, since a function that can't await has called what must be awaited."""
        message = f"{what} was called in a plain `def`; make the handler `async def`"
        if what == "an ask":
            message += ", or return InputRequired"
        self.fail(MisplacedCall(message))
        return CallEnded(message)

    def awaited(self, work: Callable[[], Coroutine[Any, Any, Any]]) -> Coroutine[Any, Any, Any]:
        """Return the coroutine of an ask or a step, and note whether it is awaited."""
        self._awaitables += 1
        self._unawaited[self._awaitables] = site = call_site()
        coroutine: Any = self._counted(self._awaitables, work)
        coroutine.__qualname__ = site[-1].co_qualname  # for Python's own warning of what is never awaited
        return cast(Coroutine[Any, Any, Any], coroutine)

    async def _counted(self, number: int, work: Callable[[], Coroutine[Any, Any, Any]]) -> Any:
        del self._unawaited[number]
        return await work()

    # Asks

    async def ask(self, make: Callable[[], list[tuple[str | None, Ask[Any]]]]) -> list[Any]:
        """Return the answers of several asks, or park: the client has to be asked for those that are missing."""
        self._refuse_here("an ask")
        answers = self.look_up(lambda: [self.answer_inline(key, ask) for key, ask in make()])
        if self.ending or any(answer is OPEN for answer in answers):
            await self._park()
        return answers

    async def ask_one(self, make: Callable[[], Ask[T]]) -> T:
        """Return the answer of an ask, or park: the client has to be asked for it."""
        self._refuse_here("an ask")
        answers = self.look_up(lambda: [self.answer_inline(None, make())])
        if self.ending or answers[0] is OPEN:
            await self._park()
        return cast(T, answers[0])

    # Steps, and other boundaries

    def step(
        self, function: Callable[..., Any], args: tuple[Any, ...], kwargs: JSON, key: str | None, rerun: bool
    ) -> Coroutine[Any, Any, Any]:
        """Run a function once in the flow, or return what it returned when it ran; see `Steps`."""
        if self._steps is None:
            keep, may_begin = (None, None) if self.task is None else (self._keep, self._may_begin)
            self._steps = Steps(self.journal, self._threads, self.main, self._claimed, self.wake, keep, may_begin)
            self._started = self._steps.started
        steps = self._steps
        planned = steps.plan(function, args, kwargs, key, rerun)
        return self.awaited(lambda: self._step(steps, planned))

    async def checkpoint(self) -> None:
        """Park if the flow is to continue elsewhere; otherwise do nothing."""
        self._refuse_here("a checkpoint")
        if self._yields():
            await self._park()

    async def continue_in_background(self) -> None:
        """Park if the flow becomes a task here; in a task, and where there can be none, do nothing."""
        self._refuse_here("ctx.background()")
        if self._may_become_task:
            if not self.ending:
                self.leave_for_background()
            await self._park()

    def _yields(self) -> bool:
        """Whether nothing after this boundary may run in this round."""
        if not self.ending and (why := self._should_yield()) is not None:
            self.leave(why)
        return self.ending

    async def _may_begin(self) -> bool:
        """Check once more, by the store, whether a step of a task may begin."""
        assert self.task is not None  # noqa: S101  or every step may
        try:
            return await self.task.may_begin() and not self._yields() and self.stopped is None
        except Exception as error:
            self.fail_with(error)
            return False

    async def _keep(self) -> None:
        """Keep what a step has done, before its result is used."""
        if self.task is not None:
            try:
                await self.task.keep()
            except Exception as error:  # the handler must not continue without
                self.fail_with(error)

    async def _step(self, steps: Steps, planned: Planned) -> Any:
        self._refuse_here("a step")
        if not self.ending and not (steps.is_new(planned) and self._yields()):
            try:
                result = await steps.run(planned)
                if self.task is None or not self.ending:
                    return result
            except NotBegun:
                pass
            except FlowError as mistake:
                self.fail(mistake)
            except Exception:
                # Beside an open ask the failure is not handed on: whoever handles it would continue without the answer.
                # The step runs again in the next round, and fails again when the answer is there.
                if not self.asked and not self.ending:
                    raise
        return await self._park()
