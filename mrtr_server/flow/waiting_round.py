"""A round whose handler may wait for answers and run steps.

An ask that can't be answered *parks*: it never returns, not even when it is cancelled. The runner sees that, lets
running steps finish, and ends the round by cancelling the handler. So nothing after an unanswered ask runs, whatever
the code around it catches.

In a task it returns when it is answered while its round still runs.
"""

import asyncio
import logging
import sys
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import replace
from enum import Enum
from functools import cached_property, lru_cache, partial
from itertools import chain
from threading import get_ident
from types import CoroutineType
from typing import Any, NoReturn, Protocol, TypeVar, cast

from typing_extensions import override

from ..concurrency.running import running_loop
from ..concurrency.threads import Threads
from ..errors import CallEnded, FlowError, NotBegun, RoundOver, StoreUnavailable
from ..logs.failures import CallSite, format_call_site
from ..protocol.ask_kinds import ask_kind
from ..protocol.messages import JSON, Call, Question
from .asks import Ask
from .endings import RoundEnd, Yielded, YieldReason
from .events import Emitter
from .journal import UNSET, Journal
from .round import NO_REPORTS, OPEN, Background, Claim, Round
from .steps import Planned, Steps, current_step
from .undone import Undone
from .url_asks import Callbacks, Reports
from .waits import Desk


class UpstreamTokens(Protocol):
    """Where the tokens of people are."""

    question: str
    """What a task asks that has no token. The request with the answer brings one."""

    async def token(self, call: Call, scopes: Sequence[str], *, task: str = "", asked: int = 0) -> str | None:
        """Return the access token of whoever calls; None where a task has to ask.

        `task` is the flow of one, and `asked` how often it has asked. Raises `InsufficientScope`, `ToolError`,
        `StoreUnavailable`.
        """
        ...


logger = logging.getLogger("mrtr_server")

T = TypeVar("T")

ShouldYield = Callable[[], YieldReason | None]
"""Asks whether a round is to end at its next boundary, and what for."""


SETTLE_TICKS = 5
"""How many turns of the loop must pass without an ask or a step before a round with an open ask ends.

Branches that are about to run are known, and have more. Turns are still needed: asyncio tells the end of a branch to
what waits for it by callbacks, and nobody knows the tasks that a handler has begun and does not wait for.
"""

MOST_TICKS = 1000
"""How many turns a branch may take to its next ask or step. One that takes more may run for ever, as one that polls."""

LOOK_AGAIN_AFTER = 0.3


def _nothing() -> None:
    return None


def _can_never() -> bool:
    return False


class Stop(Enum):
    RETURNED = "it has come to its own end"
    PARKED = "all that is left of it waits for the client"
    CANCELLED = "the client has gone"


class Parked:
    """A coroutine that waits until it can continue, or for the end of its round.

    `was_cancelled`: whether its owner has cancelled it before, and may wait for its end: a task group does, of which
        another task has failed.
    """

    __slots__ = ("continues", "may_continue", "task", "waiter", "was_cancelled")

    def __init__(self, may_continue: Callable[[], bool], *, was_cancelled: bool = False) -> None:
        self.may_continue = may_continue
        self.was_cancelled = was_cancelled
        self.task = asyncio.current_task(loop := running_loop())
        self.continues = False
        self.waiter: asyncio.Future[None] = loop.create_future()


@lru_cache(maxsize=1024)  # once for each tool
def _note_at_once(name: str) -> None:
    logger.warning(
        "%r calls ctx.background(), which does nothing, since its task began at once; say so by "
        "task=Task(rounds_first=False), or have it begin in rounds by task=Task(rounds_first=True)",
        name,
    )


class WaitingRound(Round):
    """What happens in a round whose handler may wait.

    `should_yield`: asked at each boundary; its first answer that is not None is final.
    `task`: the task that the flow is; None in the foreground.
    `may_become_task`: whether the flow may become one, at `ctx.background()`.
    `may_wait`: whether the flow may become one where it waits for somebody else.
    `at_once`: whether it was one from the start, though nobody has said so of its tool.
    `desk`: where it answers what others wait for; `emitter`: where its events are kept.
    `upstream`: where the tokens of people are at the provider where they logged in; None where nobody logs in here.
    `opened`: what the `lifespan=` of the handler's application has yielded; `UNSET` for nothing.
    """

    _steps: Steps | None = None
    running: "set[asyncio.Task[Any]] | frozenset[asyncio.Task[Any]]" = frozenset()
    _woken: "asyncio.Future[None] | None" = None
    _awaitables = 0
    _activity = 0
    main: "asyncio.Task[Any] | None" = None
    thread = 0
    stopped: Stop | None = None
    in_teardown = False
    """Whether the dependencies of the handler are being left: that is waited for."""

    def __init__(
        self,
        call: Call,
        journal: Journal,
        name: str,
        threads: Threads,
        *,
        callbacks: Callbacks,
        takes_early: bool = True,
        reports: Reports[YieldReason] = NO_REPORTS,
        should_yield: ShouldYield = _nothing,
        task: Background | None = None,
        may_become_task: bool = False,
        may_wait: bool = False,
        at_once: bool = False,
        desk: Desk | None = None,
        emitter: Emitter | None = None,
        upstream: UpstreamTokens | None = None,
        opened: Any = UNSET,
    ) -> None:
        super().__init__(call, journal, name, callbacks, takes_early, reports)
        self.task = task
        self.parked: list[Parked] = []
        self._published: dict[str, Question] = {}
        self._threads = threads
        self._should_yield = should_yield
        self._may_become_task = may_become_task
        self._may_wait = may_wait
        self.desk = desk
        self.emitter = emitter
        self.upstream = upstream
        self._at_once = at_once
        self.opened = opened
        self._unawaited: dict[int, CallSite] = {}
        if task is not None:
            task.on_answers(self._continue_answered)

    @cached_property
    def undone(self) -> Undone:
        """What is rolled back with this round; most have no dependencies and no steps, and so none."""
        return Undone(self.opened)

    @property
    @override
    def _is_branch(self) -> bool:
        # In a task, answers come at different times, so the branches come to their asks in another order each time.
        return self.task is not None or asyncio.current_task() is not self.main

    # What the runner watches

    @property
    def ending(self) -> bool:
        if self.task is not None and self.task.lost:
            self.leave(YieldReason.LEASE_IN_DOUBT)
        return self._end is not None

    def wake(self, _: Any = None) -> None:
        """Wake the runner, since something has changed; unless all waits for the client now, if that lasts."""
        self._activity += 1
        if self._woken is not None and not self._woken.done():
            if self.parked and self._waits_for_client:
                self._settle(SETTLE_TICKS, self._activity)
            else:
                self._woken.set_result(None)

    def changed(self) -> "asyncio.Future[None]":
        """Return what is done when something changes, or all that is left of the handler waits for the client."""
        assert self.main is not None  # noqa: S101  who waits has begun it
        self._woken = self.main.get_loop().create_future()
        if self.parked and self._waits_for_client:
            self._settle(SETTLE_TICKS, self._activity)
        return self._woken

    @property
    def _waits_for_client(self) -> bool:
        if self.running or self.in_teardown or self.stopped is not None:
            return False
        return self.main is not None  # one that is done has said why it stopped

    def _settle(self, ticks: int, seen: int, most: int = MOST_TICKS) -> None:
        """Wait for branches that are about to ask or to start a step; stop the handler if none did.

        It counts by callbacks, since each turn of a task would go through all that awaits it. `most`: how many turns
        while a branch is about to run.
        """
        if self._activity != seen or self.stopped is not None or self.main is None or self._woken is None:
            return  # what happened has woken the runner, or starts the count again
        if not ticks and most > 0 and self.has_branches and _is_about_to_run(self.main):
            ticks, most = SETTLE_TICKS, most - SETTLE_TICKS
        if ticks:
            self.main.get_loop().call_soon(self._settle, ticks - 1, seen, most)
            return
        self.stopped = Stop.PARKED
        self.main.cancel()  # whatever the handler has cancelled itself: its open ask has outlived that
        self.main.get_loop().call_soon(self.wake)  # by then it has ended, as a rule

    @property
    def has_branches(self) -> bool:
        return any(parked.task is not self.main for parked in self.parked)

    def let_go(self) -> None:
        """Break the circles of a round that has ended: they would hold its call until the next garbage collection."""
        for parked in self.parked:
            if parked.task is not None:
                parked.task._log_destroy_pending = False  # type: ignore[attr-defined]
        self.parked.clear()
        self._steps = self.main = None
        self._should_yield = _nothing  # which knows the call, and so its arguments
        if self.task is not None:
            self.task.on_answers(_nothing)  # those that come now are of no use

    def begin_teardown(self) -> None:
        self.in_teardown = True  # what ends the handler has woken the runner

    def lifespan(self) -> Any:
        if self.opened is UNSET:
            raise self.fail(f"{self.name!r} needs what lifespan= yields, and its MRTRServer has no lifespan=")
        return self.opened

    def check_awaited(self) -> None:
        if self._unawaited and not self.asked and not self.ending:
            site = next(iter(self._unawaited.values()))
            call = f"ctx.{site[-1].co_name}"
            self.fail(f"{call}() was called but never awaited; write `await {call}(...)`: {format_call_site(site)}")

    async def _park(self, may_continue: Callable[[], bool] = _can_never) -> None:
        """Return when this coroutine can continue; if it never can, only end the handler with the round."""
        parked = Parked(may_continue)
        while not parked.continues:
            self.parked.append(parked)
            self.wake()
            try:
                await parked.waiter
            except asyncio.CancelledError:
                if self.stopped is not None and parked.was_cancelled and parked.task is self.main:
                    raise RoundOver from None
                self._end_if_cancelled(continues=parked.continues)
                if not parked.continues:
                    self.parked.remove(parked)
                parked = Parked(may_continue, was_cancelled=True)

    def _end_if_cancelled(self, *, continues: bool = False) -> None:
        """End the round when a coroutine with an open question is cancelled: its owner would take it for answered.

        Raises `CancelledError` if the round has ended anyway, or if the coroutine `continues` and nothing is open.
        """
        if self.stopped is not None or (continues and not self.asked and not self.ending):
            raise asyncio.CancelledError
        self.ask_nothing_more()

    async def _park_for_good(self) -> NoReturn:
        while True:
            await self._park()

    def _continue_answered(self) -> None:
        if self.ending or self.stopped is not None:
            return
        for each in tuple(self.parked):
            if each.may_continue():
                self.parked.remove(each)
                each.continues = True
                if not each.waiter.done():
                    each.waiter.set_result(None)
        self.wake()

    def begin(self, number: int, what: str) -> None:
        """Note that an ask or a step is awaited. Raises `FlowError` or `CancelledError` where there can be none."""
        del self._unawaited[number]
        if self.in_teardown and asyncio.current_task() is self.main:
            raise self.fail(f"{what} was called after the yield of a dependency; by then the round has ended")
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
            raise self.fail(f"{what} was called inside the step {step!r}; a step can't contain an ask or another step")
        if self.main is not None and get_ident() != self.thread:
            raise self.fail(f"{what} was called on another event loop than its handler's")

    def refuse_plain(self, what: str) -> CallEnded:
        """End the flow, since a function that can't await has called what must be awaited."""
        message = f"{what} was called in a plain `def`; make the handler `async def`"
        if what == "an ask":
            message += ", or return InputRequired"
        self.fail(message)
        return CallEnded(message)

    def awaited(self, work: Callable[[int], Coroutine[Any, Any, Any]]) -> Coroutine[Any, Any, Any]:
        """Return the coroutine of an ask or a step, for a method of the context or a function that one has called."""
        self._awaitables += 1
        called, caller = sys._getframe(2), sys._getframe(3)
        self._unawaited[self._awaitables] = caller.f_code, caller.f_lineno, called.f_code
        coroutine: Any = work(self._awaitables)
        coroutine.__qualname__ = called.f_code.co_qualname  # for Python's own warning of what is never awaited
        return cast(Coroutine[Any, Any, Any], coroutine)

    # Asks

    async def ask(self, make: Callable[[], list[tuple[str | None, Ask[Any]]]]) -> list[Any]:
        claims = self.look_up(lambda: [self.claim_inline(key, ask) for key, ask in make()])
        if self.ending or any(claim.value is OPEN for claim in claims):
            await self._answered(claims)
        return [claim.value for claim in claims]

    async def ask_one(self, make: Callable[[], Ask[T]], number: int) -> T:
        self.begin(number, "an ask")
        return await self._ask_one(make)

    async def _ask_one(self, make: Callable[[], Ask[T]]) -> T:
        claims = self.look_up(lambda: [self.claim_inline(None, make())])
        if self.ending or claims[0].value is OPEN:
            await self._answered(claims)
        return cast(T, claims[0].value)

    async def wait_for(self, make: Callable[[], Ask[T]], number: int) -> T:
        """Wait for somebody else, in a task; a call that is no task yet becomes one here."""
        self.begin(number, "ctx.wait_for()")
        if self.task is None:
            if not self._may_wait:
                self.fail(
                    f"{self.name!r} waits for somebody else, so its calls must be able to become tasks; write "
                    '@app.tool(task="optional")'
                )
            for question in self.look_up(lambda: [make().question()]):  # a mistake is one here, and not in the task
                self.leave_for_background(question.params["message"])
            await self._park_for_good()
        return await self._ask_one(make)

    async def _answered(self, claims: list[Claim]) -> None:
        """Return when all of these asks are answered, in a task whose round still runs; otherwise never."""

        def has_news() -> bool:
            return any(self._has_news(claim) for claim in claims)

        while self.ending or any(claim.value is OPEN for claim in claims):
            await self._park(has_news)
            for claim in claims:
                if self._has_news(claim):
                    await self._look_again(claim)

    def _has_all_answers(self) -> bool:
        return not self.asked

    def _has_news(self, claim: Claim) -> bool:
        return claim.value is OPEN and self.journal.answer(claim.key, claim.question.digest) is not None

    async def _look_again(self, claim: Claim) -> None:
        """Look up what was answered while the round runs; ask again where that does not fit."""
        if ask_kind(claim.question).reports_back:
            try:
                await self._reported(claim)
            except asyncio.CancelledError:
                self._end_if_cancelled()
        if self.ending:
            return
        self.asked.pop(claim.key, None)
        for value in self.look_up(lambda: [self._answer(claim.key, claim.ask, claim.question, claim.ask.parse)]):
            claim.value = value
        self._continue_answered()  # what waits until nothing is asked any more

    async def _reported(self, claim: Claim) -> None:
        """Wait for the page of an ask to report; forget its answer if that takes too long, to ask again."""
        key, question = claim.key, claim.question.digest
        alone = replace(self.journal, answers={key: {question: self.journal.answers[key][question]}})
        while True:
            try:
                reports = await self._callbacks.reports(alone, self._should_yield)
                break
            except StoreUnavailable:  # of which the log has a line
                await asyncio.sleep(LOOK_AGAIN_AFTER)
        if reports.left is not None:
            self.leave(reports.left)
        found = {**self._reports.found, **reports.found}
        self._reports = Reports(found, (*self._reports.unfinished, *reports.unfinished))
        if reports.unfinished and not self.ending:
            self.journal.forget(key, question)

    # Steps, and other boundaries

    def step(
        self, function: Callable[..., Any], args: tuple[Any, ...], kwargs: JSON, key: str | None, rerun: bool
    ) -> Coroutine[Any, Any, Any]:
        if self._steps is None:
            keep, may_begin = (None, None) if self.task is None else (self._keep, self._may_begin)
            note = self.call.trace.note
            self._steps = Steps(
                self.journal, self._threads, self.main, self._claimed, self.wake, self.undone, note, keep, may_begin
            )
            self._started, self.running = self._steps.started, self._steps.running
        steps = self._steps
        planned = steps.plan(function, args, kwargs, key, rerun)
        return self.awaited(partial(self._step, steps, planned))

    async def checkpoint(self, number: int) -> None:
        """Park if the flow is to continue elsewhere; otherwise do nothing."""
        self.begin(number, "a checkpoint")
        if self._yields():
            await self._park_for_good()

    async def continue_in_background(self, number: int) -> None:
        """Park if the flow becomes a task here; in a task, and where there can be none, do nothing."""
        self.begin(number, "ctx.background()")
        if self._may_become_task:
            if not self.ending:
                self.leave_for_background()
            await self._park_for_good()
        elif self._at_once:
            _note_at_once(self.name)

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
        if self.task is not None:
            try:
                await self.task.keep()
            except Exception as error:  # the handler must not continue without
                self.fail_with(error)

    @property
    def may_publish(self) -> bool:
        """Whether there is a question of a task that its client can't see yet, and is to see while the round runs."""
        if self.task is None or self.ending:
            return False
        return any(self._published.get(key) is not each for key, each in self.asked.items())

    async def publish(self) -> None:
        if self.task is not None:
            self._published = dict(self.asked)
            try:
                await self.task.publish(self.asked)
            except Exception as error:  # such as too much to keep
                self.fail_with(error)

    def conclude(self, own: RoundEnd) -> RoundEnd:
        """Return how the round ends. A task that is to continue elsewhere works, whatever it has asked beside that."""
        if self.task is not None and isinstance(self._end, Yielded):
            return self._end
        return super().conclude(own)

    async def _step(self, steps: Steps, planned: Planned, number: int) -> Any:
        self.begin(number, "a step")
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
                if self.asked:
                    await self._park(self._has_all_answers)
                if self._has_all_answers() and not self.ending:
                    raise
        return await self._park_for_good()


def _is_about_to_run(main: "asyncio.Task[Any]") -> bool:
    """Return whether a task, or one that it waits for, runs in the next turn of the loop, as after `sleep(0)`.

    asyncio has no public names for what a task waits for. Where it has others than these, the answer is no.
    """
    left, seen = [main], set[asyncio.Task[Any]]()
    while left:
        task = left.pop()
        waits_for = getattr(task, "_fut_waiter", task)
        if task in seen or task.done():
            continue
        if waits_for is None or waits_for.done():
            return True
        seen.add(task)
        within = library_locals(task)  # as of a task group, of `asyncio.wait` or of `wait_for`
        several = getattr(waits_for, "_children", ()), getattr(within.get("self"), "_tasks", ())
        held = [each if isinstance(each, set | list | tuple) else (each,) for each in (*several, *within.values())]
        left += [each for each in (waits_for, *chain(*held)) if isinstance(each, asyncio.Task)]
    return False


_LIBRARIES = ("asyncio", "anyio")


def library_locals(task: "asyncio.Task[Any]") -> Mapping[str, Any]:
    """Return the local variables of the function of asyncio or AnyIO in which a task waits; none of the author's."""
    innermost: Any = task.get_coro()
    while isinstance(within := getattr(innermost, "cr_await", None), CoroutineType):
        innermost = within
    frame = getattr(innermost, "cr_frame", None)
    if frame is None or frame.f_globals.get("__name__", "").partition(".")[0] not in _LIBRARIES:
        return {}
    return cast(Mapping[str, Any], frame.f_locals)
