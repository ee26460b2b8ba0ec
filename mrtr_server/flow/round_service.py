"""One round of a flow, from the state that the client brought to the one that it takes with it."""

import logging
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Any, assert_never

from ..callbacks.callback_service import Callbacks, Reports
from ..concurrency.threads import Threads, call_function
from ..errors import Busy, NotExecuted, Refusal, StoreUnavailable
from ..limits import Limits
from ..logs.failures import report_failure
from ..protocol.messages import JSON, Call, HandedOver, NeedsInput, Outcome, Outlet, PageReported, Question
from ..rates.rate_limiter import RateLimiter
from ..storage.lease import Lease
from ..storage.watched import not_executed
from .admission import Admission
from .background import Background
from .endings import (
    Asking,
    Backgrounded,
    CallEnd,
    Completed,
    Failed,
    Refused,
    RoundEnd,
    Yielded,
    YieldReason,
)
from .handler import Handler
from .inputs import InputRequired
from .journal import CONFIRMATION, UNSET, Journal
from .lifespans import Lifespans
from .pieces import in_pieces
from .pure import conclude_result, run_pure
from .round import NO_REPORTS, Round
from .runner import run
from .single_use import Redeemer
from .states import Opened, States
from .waiting_round import ShouldYield, WaitingRound

logger = logging.getLogger("mrtr_server")

RETRY_AFTER = 1.0
"""When a client that can't continue elsewhere is to try again, in seconds."""


RunRound = Callable[[Opened | None, Lease | None], Awaitable[Outcome]]
"""Runs a round of a call whose state is open, or that has none."""


class RoundService:
    """Runs rounds: opens the state, runs the handler, seals what it leaves.

    Args:
        states: begins, opens and seals what flows remember.
        redeemer: sees that states are redeemed once, where they must be.
        threads: runs plain functions.
        limits: what a flow may use.
        admission: says what runs here and now.
        callbacks: knows what pages have reported.
        rates: counts rounds, where calls have a rate.
        lifespans: know what `lifespan=` has yielded; None if there can be none.
    """

    def __init__(
        self,
        states: States,
        redeemer: Redeemer,
        threads: Threads,
        limits: Limits,
        admission: Admission,
        callbacks: Callbacks,
        rates: RateLimiter,
        lifespans: Lifespans | None = None,
    ) -> None:
        self._states = states
        self._lifespans = lifespans
        self._redeemer = redeemer
        self._threads = threads
        self.limits = limits
        self._admission = admission
        self._callbacks = callbacks
        self._rates = rates
        self._warned: set[str] = set()

    def deliver(self, handler: Handler, call: Call, run: RunRound) -> Awaitable[Outcome]:
        """Run a delivery of a call, or return the outcome of an earlier one if its state is redeemed once.

        That is so for every state of a `single_use` handler, and from the state that asks for a confirmation on.

        Args:
            handler: what the call is of.
            call: the request.
            run: runs the round; takes what `run` below takes as `opened` and `lease`.

        Raises:
            RequestError: what `run` raised, now or earlier; or the state does not open, or was redeemed with other
                answers.
        """
        if call.state is None:
            return self._deliver_first(call, run) if self._rates.is_on else run(None, None)
        opened = self._states.unseal(handler, call)  # what does not open is not redeemed
        if self._rates.is_on:
            return self._deliver_counted(handler, call, run, opened)
        return self._deliver(handler, call, run, opened)

    async def _deliver_first(self, call: Call, run: RunRound) -> Outcome:
        """Run a first round, unless the same request was answered with questions too often."""
        bound_to = self._states.bound(call)  # now, since the handler may change the arguments
        await self._rates.admit_repetition(call, bound_to)
        outcome = await run(None, None)
        if isinstance(outcome, NeedsInput):
            await self._rates.count_question(call, bound_to)
        return outcome

    async def _deliver_counted(self, handler: Handler, call: Call, run: RunRound, opened: Opened) -> Outcome:
        """Run a round that carries a state, unless its flow has had too many."""
        await self._rates.admit_round(opened[0].flow)
        return await self._deliver(handler, call, run, opened)

    def _deliver(self, handler: Handler, call: Call, run: RunRound, opened: Opened) -> Awaitable[Outcome]:
        journal, _ = opened
        if not (handler.single_use or journal.single_use):
            return run(opened, None)
        return self._redeemer.once(call, journal.expires, lambda lease: run(opened, lease), epoch=journal.epoch)

    async def run(
        self,
        handler: Handler,
        arguments: JSON,
        call: Call,
        outlet: Outlet,
        opened: Opened | None = None,
        lease: Lease | None = None,
        *,
        may_become_task: bool = False,
    ) -> CallEnd:
        """Run one round.

        Args:
            handler: what to run.
            arguments: what the client fills, validated.
            call: the request.
            outlet: takes the notes that the handler sends on its way.
            opened: what `open_state` returned, if it has been called before.
            lease: of a round whose state is redeemed once: while it is in doubt, nothing new begins.
            may_become_task: whether the flow may become a task.

        Returns:
            How the round ends; where the client is to come again, with the journal sealed.

        Raises:
            RequestError: nothing was run, since the state does not open, the call can neither be served now nor
                continue elsewhere, or the store is unavailable; or the flow is over budget.
        """
        is_open, unsealed = self._admission.is_open, False
        if handler.is_simple and call.state is None and call.answers is None and is_open:
            # Most calls have nothing to remember.
            try:
                result = await call_function(handler, arguments, self._threads)
            except (Exception, Refusal) as error:
                return Refused(error) if isinstance(error, Refusal) else Failed(error)
            if not isinstance(result, InputRequired):
                return Completed(result)
            journal, bound_to = self._states.begin(call)
            end = conclude_result(handler, Round(call, journal, handler.name, self._callbacks), result)
        else:
            # Before the handler runs, since it may change the arguments that it is given.
            journal, bound_to = opened or self.open_state(handler, call)
            unsealed = handler.single_use and call.state is None
            if is_open and not unsealed and not (self._callbacks.known and journal.answers):  # nothing to wait for
                end = await self._begin(handler, arguments, call, journal, outlet, lease, NO_REPORTS, may_become_task)
            else:
                end = await self._begin_in_turn(handler, arguments, call, journal, outlet, lease, may_become_task)
        match end:
            case Asking():
                await self._name_epoch(handler, call, journal, end.questions)
                return self._states.seal(handler, call, journal, bound_to, end.questions)
            case Completed() | Refused() | Failed():
                if unsealed and isinstance(end, Completed):
                    self._warn_unsealed(handler)
                self._states.end(call, bound_to)
                return end
            case Yielded(why):
                return await self._hand_over(handler, call, journal, bound_to, why)
            case Backgrounded():
                # A repetition of a request without a state would become a second task.
                first = YieldReason.STATE_FIRST
                return await self._hand_over(handler, call, journal, bound_to, first) if unsealed else end
            case unknown:
                assert_never(unknown)

    async def _begin_in_turn(
        self,
        handler: Handler,
        arguments: JSON,
        call: Call,
        journal: Journal,
        outlet: Outlet,
        lease: Lease | None,
        may_become_task: bool,
    ) -> RoundEnd:
        """Run a round when pages have reported and its turn has come, or hand the call back as it is."""
        if handler.single_use and call.state is None and not handler.can_pause:
            # It is all effect, and each effect must belong to a flow that a retry can name.
            return Yielded(YieldReason.STATE_FIRST)
        reports = NO_REPORTS
        if self._callbacks.known:
            reports = await self._reports(call, journal)
            if reports.left is not None:
                return Yielded(reports.left)
            for key, question in reports.found:
                if key in (call.answers or ()):  # else the client has been told in an earlier round
                    outlet.send(PageReported(self._callbacks.page(journal, key, question)))
        begin = partial(self._begin, handler, arguments, call, journal, outlet, lease, reports, may_become_task)
        if self._admission.is_open:
            return await begin()
        why = await self._admission.enter(
            lambda: self._may_leave(call, journal),
            was_shed=journal.shed,
            has_begun=bool(journal.answers or journal.steps),
        )
        if why is not None:
            return Yielded(why)
        try:
            return await begin()
        finally:
            self._admission.leave()

    def _begin(
        self,
        handler: Handler,
        arguments: JSON,
        call: Call,
        journal: Journal,
        outlet: Outlet,
        lease: Lease | None,
        reports: Reports[YieldReason],
        may_become_task: bool,
    ) -> Awaitable[RoundEnd]:
        """Run a round of a call."""
        if handler.is_pure:
            round_ = Round(call, journal, handler.name, self._callbacks, not handler.single_use, reports)
            return run_pure(handler, arguments, round_, self._threads)
        waiting = WaitingRound(
            call,
            journal,
            handler.name,
            self._threads,
            takes_early=not handler.single_use,
            callbacks=self._callbacks,
            reports=reports,
            should_yield=partial(self._why_yield, handler, call, journal, lease),
            may_become_task=may_become_task,
            opened=self._opened(handler),
        )
        return self._run_waiting(handler, arguments, waiting, outlet)

    def _run_waiting(
        self, handler: Handler, arguments: JSON, waiting: WaitingRound, outlet: Outlet
    ) -> Awaitable[RoundEnd]:
        """Run a handler in a round that can wait."""
        if handler.yields:
            handler = in_pieces(handler, waiting, outlet, self.limits)
        return run(handler, arguments, waiting, outlet, self._threads)

    def _opened(self, handler: Handler) -> Any:
        """Return what the `lifespan=` of a handler's application has yielded; `UNSET` for nothing."""
        lifespans = self._lifespans
        return UNSET if lifespans is None or not lifespans.known else lifespans.here.get(handler.homes[-1], UNSET)

    def _why_yield(self, handler: Handler, call: Call, journal: Journal, lease: Lease | None) -> YieldReason | None:
        if handler.single_use and lease is None:  # the first round: the state goes out before the first step
            return YieldReason.STATE_FIRST
        if lease is not None and lease.in_doubt:  # better over budget than twice
            return YieldReason.LEASE_IN_DOUBT
        why = self._admission.should_yield
        return why if why is not None and self._may_leave(call, journal) else None

    def _may_leave(self, call: Call, journal: Journal) -> bool:
        return call.can_retry and journal.may_hand_over(self.limits)

    async def _reports(self, call: Call, journal: Journal) -> Reports[YieldReason]:
        def should_yield() -> YieldReason | None:
            return YieldReason.DRAINING if self._admission.draining and self._may_leave(call, journal) else None

        try:
            return await self._reported(journal, should_yield)
        except StoreUnavailable as error:
            raise not_executed(error, "The report of a callback can't be read") from None

    async def _reported(self, journal: Journal, should_yield: ShouldYield) -> Reports[YieldReason]:
        """Wait for what pages report; what is still open then is asked again, unless the flow continues elsewhere."""
        reports = await self._callbacks.wait(journal, should_yield)
        if reports.left is None:
            for key, question in reports.unfinished:
                journal.forget(key, question)
        return reports

    def open_state(self, handler: Handler, call: Call) -> Opened:
        """Open the flow that a call belongs to: that of its state, or a new one.

        Raises:
            RequestError: the state does not open, the call has too many answers, or it is new and can neither be served
                now nor continue elsewhere.
        """
        if call.state is not None:
            return self._states.unseal(handler, call)
        if not self._admission.is_open and self._admission.is_full and not call.can_retry:
            self._admission.note_turned_away()
            raise Busy(RETRY_AFTER)
        return self._states.begin(call)

    async def hand_over(self, handler: Handler, call: Call) -> HandedOver:
        """End a round before anything has run, so that the flow has a state that a retry can name."""
        journal, bound_to = self.open_state(handler, call)
        return await self._hand_over(handler, call, journal, bound_to, YieldReason.STATE_FIRST)

    async def hand_over_round(self, handler: Handler, call: Call, opened: Opened) -> HandedOver | None:
        """End a round, which could not become a task, with a state that holds what it has done.

        Args:
            handler: what was run.
            call: the request.
            opened: what `open_state` returned, with what the round has added.

        Returns:
            The state; None where the client can't come again with one, or the flow's budget has none left.
        """
        journal, bound_to = opened
        if not self._may_leave(call, journal):
            return None
        return await self._hand_over(handler, call, journal, bound_to, YieldReason.NO_TASK)

    async def run_task(self, handler: Handler, arguments: JSON, call: Call, task: Background) -> RoundEnd:
        """Run a round of a task; its journal lies with the task, so nothing is sealed for the client.

        Args:
            handler: what to run.
            arguments: what the client fills, validated.
            call: the request.
            task: the task.

        Returns:
            How the round ends.

        Raises:
            StoreUnavailable: what pages have reported can't be known now; nothing has been run.
            OverBudget: the handler keeps its state as it was, and asks nothing.
        """
        journal = task.journal
        reports = await self._reported(journal, task.should_yield) if journal.answers else NO_REPORTS
        if reports.left is not None:
            return Yielded(reports.left)
        if handler.is_pure:
            round_ = Round(call, journal, handler.name, self._callbacks, False, reports)
            end = await run_pure(handler, arguments, round_, self._threads)
        else:
            waiting = WaitingRound(
                call,
                journal,
                handler.name,
                self._threads,
                takes_early=False,
                callbacks=self._callbacks,
                reports=reports,
                should_yield=task.should_yield,
                task=task,
                opened=self._opened(handler),
            )
            end = await self._run_waiting(handler, arguments, waiting, task)
        if isinstance(end, Yielded) and end.why is YieldReason.OWN_STATE:
            journal.hand_over(self.limits)
        return end

    async def _hand_over(
        self, handler: Handler, call: Call, journal: Journal, bound_to: list[str], why: YieldReason
    ) -> HandedOver:
        """Seal a round that is to be continued elsewhere. Raises `NotExecuted` if it never began."""
        if why is YieldReason.LEASE_IN_DOUBT and journal.is_as_handed_over:
            raise NotExecuted(report_failure("%r did not begin, since its lease had expired", handler.name))
        await self._name_epoch(handler, call, journal, {})
        return self._states.hand_over(handler, call, journal, bound_to, why)

    async def _name_epoch(self, handler: Handler, call: Call, journal: Journal, asked: Mapping[str, Question]) -> None:
        """Name the epoch of the store in the state with which a round ends, if that is redeemed once.

        That of a call which stays open is, whatever it asks: its client may answer here, and come back elsewhere.
        """
        is_redeemed_once = handler.single_use or journal.single_use or call.stays_open
        if not journal.epoch and (is_redeemed_once or CONFIRMATION in [question.kind for question in asked.values()]):
            journal.epoch = await self._redeemer.epoch()

    def _warn_unsealed(self, handler: Handler) -> None:
        if handler.name not in self._warned:
            self._warned.add(handler.name)
            logger.warning(
                "%r is single_use, and completed in its first round, without a question or a step: the server can't "
                "tell whether such a request is new or sent again. Ask first, or put each effect into ctx.step",
                handler.name,
            )
