"""One round of a flow, from the state that the client brought to the one that it takes with it."""

import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from inspect import isawaitable
from types import CoroutineType
from typing import assert_never

from ..concurrency.threads import Threads, failure_of
from ..errors import Busy, NotExecuted, StoreUnavailable
from ..limits import Limits
from ..logs.failures import calls_author, report_failure
from ..protocol.messages import HandedOver, NeedsInput, Outcome, PageReported, Question
from ..storage.health import not_executed
from ..storage.rows import Lease
from .admission import Admission
from .asks import InputRequired
from .endings import Asking, Backgrounded, CallEnd, Completed, Failed, Refused, RoundEnd, Yielded, YieldReason
from .events import Emitter
from .handler import Handler
from .home import Lifespans
from .journal import CONFIRMATION, UNSET, Journal
from .pure import conclude_asking, ended_by, run_pure
from .rate_limiter import RateLimiter
from .round import NO_REPORTS, Background, Round
from .runner import in_pieces, run
from .single_use import Redeemer
from .states import RoundContext, States
from .url_asks import Callbacks, Reports
from .waiting_round import ShouldYield, UpstreamTokens, WaitingRound
from .waits import Desk

logger = logging.getLogger("mrtr_server")

RETRY_AFTER = 1.0
"""When a client that can't continue elsewhere is to try again, in seconds."""


Run = Callable[[RoundContext], Awaitable[Outcome]]
"""Runs a round of a call that has a state, whose journal is open by then; or one that has none."""


@dataclass(eq=False, repr=False)
class RoundService:
    states: States
    redeemer: Redeemer
    threads: Threads
    limits: Limits
    admission: Admission
    callbacks: Callbacks
    rates: RateLimiter
    lifespans: Lifespans | None = None
    desk: Desk | None = None
    emitter: Emitter | None = None
    upstream: UpstreamTokens | None = None
    _warned: set[str] = field(default_factory=set, init=False)

    def deliver(self, round_: RoundContext, run: Run) -> Awaitable[Outcome]:
        """Run a delivery of a call, or return the outcome of an earlier one if its state is redeemed once.

        That is so for every state of a `single_use` handler, and from the state that asks for a confirmation on. Raises
        what `run` raised, now or earlier, or a `RequestError` where the state does not open, or came with other answers
        before.
        """
        if round_.call.state is None:
            return self._deliver_first(round_, run) if self.rates.is_on else run(round_)
        if round_.call.principal is not None and self.states.forgotten.is_due:
            return self._look_and_continue(round_, run)
        return self._continue(round_, run)

    async def _look_and_continue(self, round_: RoundContext, run: Run) -> Outcome:
        await self.states.forgotten.look()
        return await self._continue(round_, run)

    def _continue(self, round_: RoundContext, run: Run) -> Awaitable[Outcome]:
        journal = self.states.unseal(round_)  # what does not open is not redeemed
        if round_.handler.single_use or journal.single_use:
            run = partial(self._redeem, run)
        return self._deliver_counted(round_, run) if self.rates.is_on else run(round_)

    async def _deliver_first(self, round_: RoundContext, run: Run) -> Outcome:
        call, bound_to = round_.call, self.states.bind(round_)  # now, since the handler may change the arguments
        await self.rates.admit_repetition(call, bound_to)
        outcome = await run(round_)
        if isinstance(outcome, NeedsInput):
            await self.rates.count_question(call, bound_to)
        return outcome

    async def _deliver_counted(self, round_: RoundContext, run: Run) -> Outcome:
        await self.rates.admit_round(round_.journal.flow)
        return await run(round_)

    def _redeem(self, run: Run, round_: RoundContext) -> Awaitable[Outcome]:
        journal = round_.journal

        def run_leased(lease: Lease) -> Awaitable[Outcome]:
            round_.lease = lease
            return run(round_)

        call, begun = round_.call, journal.started
        return self.redeemer.once(call, journal.expires, run_leased, epoch=journal.epoch, begun=begun)

    @calls_author
    async def run(self, round_: RoundContext) -> CallEnd:
        """Run one round of a call. Where the client is to come again, its end has the journal sealed.

        Raises `RequestError` if nothing was run, since the state does not open, the call can neither be served now nor
        continue elsewhere, or the store is unavailable; or the flow is over budget.
        """
        handler, call = round_.handler, round_.call
        is_open, unsealed = self.admission.is_open, False
        if handler.is_simple and call.state is None and call.answers is None and is_open:
            # Most calls have nothing to remember. As in `call_function`, which would be one more coroutine.
            try:
                function, given = handler.function, round_.arguments
                result = function(**given) if handler.is_async else await self.threads(partial(function, **given))
                result = await result if type(result) is CoroutineType or isawaitable(result) else result
            except BaseException as error:
                return ended_by(failure_of(error, handler.name))
            if not isinstance(result, InputRequired):
                return Completed(result)
            journal = self.states.begin(round_)
            pure = Round(call, journal, handler.name, self.callbacks)
            pure.addresses = handler.addresses
            end = conclude_asking(handler, pure, result)
        else:
            # Before the handler runs, since it may change the arguments that it is given.
            journal = round_.journal if round_.is_open else self.open(round_)
            unsealed = handler.single_use and call.state is None
            if is_open and not unsealed and not (self.callbacks.known and journal.answers):  # nothing to wait for
                end = await self._begin(round_)
            else:
                end = await self._begin_in_turn(round_)
        match end:
            case Asking():
                journal.single_use = journal.single_use or call.asked_by != "client"
                await self._name_epoch(round_, end.questions)
                return self.states.seal(round_, end.questions)
            case Completed() | Refused() | Failed():
                if unsealed and isinstance(end, Completed):
                    self._warn_unsealed(handler)
                self.states.end(round_)
                return end
            case Yielded(why):
                return await self._hand_over(round_, why)
            case Backgrounded():
                # A repetition of a request without a state would become a second task.
                return await self._hand_over(round_, YieldReason.STATE_FIRST) if unsealed else end
            case unknown:
                assert_never(unknown)

    async def _begin_in_turn(self, round_: RoundContext) -> RoundEnd:
        """Run a round when pages have reported and its turn has come, or hand the call back as it is."""
        handler, call, journal = round_.handler, round_.call, round_.journal
        if handler.single_use and call.state is None and not handler.can_pause:
            # It is all effect, and each effect must belong to a flow that a retry can name.
            return Yielded(YieldReason.STATE_FIRST)
        reports = NO_REPORTS
        if self.callbacks.known:
            reports = await self._reports(round_)
            if reports.left is not None:
                return Yielded(reports.left)
            for key, question in reports.found:
                if key in (call.answers or ()):  # else the client has been told in an earlier round
                    round_.outlet.send(PageReported(self.callbacks.page(journal, key, question)))
        if self.admission.is_open:
            return await self._begin(round_, reports)
        why = await self.admission.enter(
            lambda: self._may_leave(round_),
            was_shed=journal.shed,
            has_begun=bool(journal.answers or journal.steps),
        )
        if why is not None:
            return Yielded(why)
        try:
            return await self._begin(round_, reports)
        finally:
            self.admission.leave()

    def _begin(self, round_: RoundContext, reports: Reports[YieldReason] = NO_REPORTS) -> Awaitable[RoundEnd]:
        handler, call, journal, task = round_.handler, round_.call, round_.journal, round_.task
        takes_early = task is None and not handler.single_use
        if handler.is_pure:
            pure = Round(call, journal, handler.name, self.callbacks, takes_early, reports)
            pure.addresses = handler.addresses
            return run_pure(handler, round_.arguments, pure, self.threads)
        lifespans, opened = self.lifespans, UNSET
        if lifespans is not None and lifespans.known:
            opened = lifespans.here.get(handler.homes[-1], UNSET)
        waiting = WaitingRound(
            call,
            journal,
            handler.name,
            self.threads,
            takes_early=takes_early,
            callbacks=self.callbacks,
            reports=reports,
            should_yield=partial(self._why_yield, round_) if task is None else task.should_yield,
            task=task,
            may_become_task=round_.may_become_task,
            may_wait=handler.task is not None,
            at_once=task is not None and handler.task is not None and handler.task.rounds_first is None,
            desk=self.desk,
            emitter=self.emitter,
            upstream=self.upstream,
            opened=opened,
        )
        if handler.yields:
            handler = in_pieces(handler, waiting, round_.outlet, self.limits)
        return run(handler, round_.arguments, waiting, round_.outlet, self.threads)

    def _why_yield(self, round_: RoundContext) -> YieldReason | None:
        lease = round_.lease
        if round_.handler.single_use and lease is None:  # the first round: the state goes out before the first step
            return YieldReason.STATE_FIRST
        if lease is not None and lease.in_doubt:  # better over budget than twice
            return YieldReason.LEASE_IN_DOUBT
        why = self.admission.should_yield
        return why if why is not None and self._may_leave(round_) else None

    def _may_leave(self, round_: RoundContext) -> bool:
        return round_.call.can_retry and round_.journal.may_hand_over(self.limits)

    async def _reports(self, round_: RoundContext) -> Reports[YieldReason]:
        def should_yield() -> YieldReason | None:
            return YieldReason.DRAINING if self.admission.draining and self._may_leave(round_) else None

        try:
            return await self._reported(round_.journal, should_yield)
        except StoreUnavailable as error:
            raise not_executed(error, "The report of a callback can't be read") from None

    async def _reported(self, journal: Journal, should_yield: ShouldYield) -> Reports[YieldReason]:
        """Wait for what pages report; what is still open then is asked again, unless the flow continues elsewhere."""
        reports = await self.callbacks.reports(journal, should_yield)
        if reports.left is None:
            for key, question in reports.unfinished:
                journal.forget(key, question)
        return reports

    def open(self, round_: RoundContext) -> Journal:
        """Open the flow that a round belongs to: that of its state, or a new one. Raises `RequestError`."""
        call = round_.call
        if call.state is not None:
            return self.states.unseal(round_)
        if not self.admission.is_open and self.admission.is_full and not call.can_retry:
            self.admission.note_turned_away()
            raise Busy(RETRY_AFTER)
        return self.states.begin(round_)

    async def hand_over(self, round_: RoundContext) -> HandedOver:
        """End a round before anything has run, so that the flow has a state that a retry can name."""
        self.open(round_)
        return await self._hand_over(round_, YieldReason.STATE_FIRST)

    async def hand_over_done(self, round_: RoundContext) -> HandedOver | None:
        """End a round, which could not go on, with a state that holds the steps that it ran.

        None where it ran none, or may not leave: then the client has what it needs to send the request again.
        """
        has_run = round_.call.state is not None and len(round_.journal.steps) > round_.steps_before
        return await self._hand_over(round_, YieldReason.BUSY) if has_run and self._may_leave(round_) else None

    async def run_task(self, round_: RoundContext, task: Background) -> RoundEnd:
        """Run a round of a task; its journal lies with the task, so nothing is sealed for the client.

        Raises `StoreUnavailable`, before anything has run, if nobody knows what pages have reported; or `OverBudget`.
        """
        round_.journal = journal = task.journal
        round_.is_open, round_.task = True, task
        reports = await self._reported(journal, task.should_yield) if journal.answers else NO_REPORTS
        if reports.left is not None:
            return Yielded(reports.left)
        end = await self._begin(round_, reports)
        if isinstance(end, Yielded) and end.why is YieldReason.OWN_STATE:
            journal.hand_over(self.limits)
        return end

    async def _hand_over(self, round_: RoundContext, why: YieldReason) -> HandedOver:
        if why is YieldReason.LEASE_IN_DOUBT and round_.journal.is_as_handed_over:
            name = round_.handler.name
            raise NotExecuted(report_failure("%r did not begin, since its lease had expired", name))
        await self._name_epoch(round_, {})
        return self.states.hand_over(round_, why)

    async def _name_epoch(self, round_: RoundContext, asked: Mapping[str, Question]) -> None:
        """Name the epoch of the store in the state with which a round ends, if that is redeemed once.

        That of a call which stays open is, whatever it asks: its client may answer here, and come back elsewhere.
        """
        journal = round_.journal
        is_redeemed_once = round_.handler.single_use or journal.single_use or round_.call.stays_open
        if not journal.epoch and (is_redeemed_once or CONFIRMATION in [question.kind for question in asked.values()]):
            journal.epoch = await self.redeemer.epoch()

    def _warn_unsealed(self, handler: Handler) -> None:
        if handler.name not in self._warned:
            self._warned.add(handler.name)
            logger.warning(
                "%r is single_use, and completed in its first round, without a question or a step: the server can't "
                "tell whether such a request is new or sent again. Ask first, or put each effect into ctx.step",
                handler.name,
            )
