"""One round of a flow, from the state that the client brought to the one that it takes with it."""

import logging
import time
from collections.abc import Awaitable, Callable
from typing import Any

from ..callbacks.service import Callbacks, Reports
from ..concurrency.threads import Threads, call_function
from ..crypto.codec import Codec
from ..errors import Busy, InvalidRequestState, NotExecuted, OverBudget, StoreUnavailable
from ..limits import Limits
from ..logs.failures import report_failure
from ..protocol.messages import JSON, Call, NeedsInput, Outcome, Outlet
from ..storage.watched import not_executed
from .admission import Admission
from .handler import Handler
from .inputs import InputRequired
from .journal import Journal, binding
from .round import NO_REPORTS, Background, Round
from .runner import Asking, Backgrounded, conclude, run
from .single_use import Lease, Redeemer

logger = logging.getLogger("mrtr_server")

RETRY_AFTER = 1.0
"""When a client that can't go on elsewhere is to try again, in seconds."""


Opened = tuple[Journal, list[str]]
"""The flow that a call belongs to, and what its states are bound to."""


class RoundService:
    """Runs rounds: opens the state, runs the handler, seals what it leaves.

    Args:
        codec: seals and unseals journals.
        redeemer: sees that states are redeemed once, where they must be.
        threads: runs plain functions.
        limits: what a flow may use.
        admission: says what runs here and now.
        callbacks: knows what pages have reported.
        audience: what states are bound to.
        require_shared_store: takes note of a handler whose states are redeemed once from now on, by its name.
        clock: gives the time in seconds since the epoch.
    """

    def __init__(
        self,
        codec: Codec,
        redeemer: Redeemer,
        threads: Threads,
        limits: Limits,
        admission: Admission,
        callbacks: Callbacks,
        *,
        audience: str,
        require_shared_store: Callable[[str], None],
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._codec = codec
        self._redeemer = redeemer
        self._require_shared_store = require_shared_store
        self._threads = threads
        self._limits = limits
        self._admission = admission
        self._callbacks = callbacks
        # Whatever the codec adds, in Base64: enough for every one, and checked before it does any work.
        self._longest_state = limits.state_bytes * 4 // 3 + 2048
        self._audience = audience
        self._clock = clock
        self._warned: set[str] = set()

    async def deliver(
        self, handler: Handler, call: Call, run: Callable[[Opened | None, Lease | None], Awaitable[Outcome]]
    ) -> Outcome:
        """Run a delivery of a call, or return what came of an earlier one, where its state is redeemed once.

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
            return await run(None, None)
        opened = self.open_state(handler, call)  # what does not open is not redeemed
        journal, _ = opened
        if not (handler.single_use or journal.single_use):
            return await run(opened, None)
        return await self._redeemer.once(call, journal.expires, lambda lease: run(opened, lease))

    async def run(
        self,
        handler: Handler,
        arguments: JSON,
        call: Call,
        outlet: Outlet,
        opened: Opened | None = None,
        lease: Lease | None = None,
        background: Background | None = None,
    ) -> Any:
        """Run one round.

        Args:
            handler: what to run.
            arguments: what the client fills, validated.
            call: the request.
            outlet: takes the notes that the handler sends on its way.
            opened: what `open_state` returned, if it has been called before.
            lease: of a round whose state is redeemed once: while it is in doubt, nothing new begins.
            background: what the flow may become; None if it must not become a task.

        Returns:
            What the handler returned; the need for input, with the journal sealed; or the journal of a flow that is to
            become a task.

        Raises:
            RequestError: the state does not open, the flow is over budget, or the client can't do what must be asked;
                or it can neither be served now nor go on elsewhere.
            Refusal: the person said no to what the handler can't do without.
            Exception: whatever the handler raised.
        """
        is_open = self._admission.is_open
        if handler.is_simple and call.state is None and call.answers is None and is_open:
            # Most calls have nothing to remember.
            result = await call_function(handler, arguments, self._threads)
            if not isinstance(result, InputRequired):
                return result
            journal, bound_to = Journal(self._clock()), binding(self._audience, call)
            round_ = Round(call, journal, self._threads, handler.name, callbacks=self._callbacks)
            result = conclude(handler, round_, result, None)
        else:
            # Before the handler runs, since it may change the arguments that it is given.
            journal, bound_to = opened or self.open_state(handler, call)
            unsealed = handler.single_use and call.state is None
            if unsealed and not handler.can_pause:
                # It is all effect, and each effect must belong to a flow that a retry can name.
                return self._seal(handler, journal, bound_to, {})
            reports = await self._reports(call, journal) if journal.answers and self._callbacks else NO_REPORTS
            if reports is None:
                return self._seal(handler, journal, bound_to, {})
            round_ = self._round(handler, call, journal, lease, reports, background)
            if is_open:
                result = await run(handler, arguments, round_, outlet, self._threads)
            else:
                result = await self._run_in_turn(handler, arguments, round_, outlet)
            if isinstance(result, Backgrounded):
                # A repetition of a request without a state would become a second task.
                return self._seal(handler, journal, bound_to, {}) if unsealed else journal
            if unsealed and not isinstance(result, Asking):
                self._warn_unsealed(handler)
            if round_.handed_over and not round_.asked and lease is not None and journal.is_as_handed_over:
                raise self._in_doubt(handler)
        if not isinstance(result, Asking):
            return result
        return self._seal(handler, journal, bound_to, result.questions, keeps_state=result.keeps_state)

    async def _run_in_turn(self, handler: Handler, arguments: JSON, round_: Round, outlet: Outlet) -> Any:
        """Run a round when its turn has come, or hand the call back as it is."""
        if not await self._admission.enter(lambda: self._may_leave(round_.call, round_.journal)):
            return Asking({})
        try:
            return await run(handler, arguments, round_, outlet, self._threads)
        finally:
            self._admission.leave()

    def _may_leave(self, call: Call, journal: Journal) -> bool:
        return call.can_retry and journal.may_hand_over(self._limits)

    async def _reports(self, call: Call, journal: Journal) -> Reports | None:
        try:
            return await self._reported(journal, lambda: self._admission.draining and self._may_leave(call, journal))
        except StoreUnavailable as error:
            raise not_executed(error, "The report of a callback can't be read") from None

    async def reports_for_task(self, journal: Journal, should_yield: Callable[[], bool]) -> Reports | None:
        """Wait for what pages report to a task; None if it goes on elsewhere. Raises `StoreUnavailable`."""
        return await self._reported(journal, should_yield) if journal.answers else NO_REPORTS

    async def _reported(self, journal: Journal, should_yield: Callable[[], bool]) -> Reports | None:
        """Wait for what pages report; what is still open then is asked again. None if the flow goes on elsewhere."""
        reports = await self._callbacks.wait(journal, should_yield)
        if reports.unfinished and should_yield():
            return None
        for key, question in reports.unfinished:
            journal.forget(key, question)
        return reports

    def open_state(self, handler: Handler, call: Call) -> Opened:
        """Open the flow that a call belongs to: that of its state, or a new one.

        Raises:
            RequestError: the state does not open, the call has too many answers, or it can neither be served now nor go
                on elsewhere.
        """
        if not self._admission.is_open and self._admission.is_full and not call.can_retry:
            raise Busy(RETRY_AFTER)
        bound_to = binding(self._audience, call)
        if call.answers is not None and len(call.answers) > self._limits.answers:
            message = f"The request has more than {self._limits.answers} inputResponses"
            raise OverBudget(message, "answers", self._limits.answers)
        if call.state is None:
            return Journal(self._clock()), bound_to
        try:
            if not isinstance(call.state, str):
                raise InvalidRequestState("not a string")
            if len(call.state) > self._longest_state:
                raise InvalidRequestState("too large")
            journal = Journal.load(self._codec.unseal(call.state), bound_to, self._clock())
        except InvalidRequestState as refused:
            logger.warning("%s %r: refused a requestState: %s", call.method, handler.name, refused.reason)
            raise
        journal.deliver(call.answers or {})
        return journal, bound_to

    def hand_over(self, handler: Handler, call: Call) -> NeedsInput:
        """End a round before anything has run, so that the flow has a state that a retry can name."""
        journal, bound_to = self.open_state(handler, call)
        return self._seal(handler, journal, bound_to, {})

    async def run_task(
        self,
        handler: Handler,
        arguments: JSON,
        call: Call,
        journal: Journal,
        background: Background,
        outlet: Outlet,
        should_yield: Callable[[], bool],
        reports: Reports,
    ) -> Any:
        """Run a round of a task; its journal lies with the task, so nothing is sealed for the client.

        Args:
            handler, arguments, call, outlet: as for `run`.
            journal: what the flow remembers.
            background: the task.
            should_yield: says whether the round is to end at its next boundary.
            reports: what pages have reported.

        Returns:
            What the handler returned, or `Asking`.

        Raises:
            OverBudget: the handler keeps its state as it was, and asks nothing.
        """
        round_ = Round(
            call,
            journal,
            self._threads,
            handler.name,
            takes_early=False,
            callbacks=self._callbacks,
            reports=reports,
            should_yield=should_yield,
            background=background,
        )
        result = await run(handler, arguments, round_, outlet, self._threads)
        if isinstance(result, Asking) and result.keeps_state:
            journal.hand_over(self._limits)
        return result

    def _round(
        self,
        handler: Handler,
        call: Call,
        journal: Journal,
        lease: Lease | None,
        reports: Reports,
        background: Background | None,
    ) -> Round:
        def should_yield() -> bool:
            if handler.single_use and lease is None:  # the first round: the state goes out before the first step
                return True
            if lease is not None and lease.in_doubt:  # better over budget than twice
                return True
            return self._admission.should_yield and self._may_leave(call, journal)

        return Round(
            call,
            journal,
            self._threads,
            handler.name,
            takes_early=not handler.single_use,
            callbacks=self._callbacks,
            reports=reports,
            should_yield=should_yield,
            background=background,
        )

    def _in_doubt(self, handler: Handler) -> NotExecuted:
        return NotExecuted(report_failure("%r did not begin, since its lease had expired", handler.name))

    def _warn_unsealed(self, handler: Handler) -> None:
        if handler.name not in self._warned:
            self._warned.add(handler.name)
            logger.warning(
                "%r is single_use, and completed in its first round, without a question or a step: the server can't "
                "tell whether such a request is new or sent again. Ask first, or put each effect into ctx.step",
                handler.name,
            )

    def _seal(
        self,
        handler: Handler,
        journal: Journal,
        bound_to: list[str],
        questions: dict[str, Any],
        *,
        keeps_state: bool = False,
    ) -> NeedsInput:
        try:
            digests = {key: question.digest for key, question in questions.items()}
            journal.count_round(digests, self._limits, keeps_state=keeps_state)
            seconds = self._limits.state_seconds if handler.answer_within is None else handler.answer_within
            payload = journal.dump(bound_to, self._clock(), seconds, self._limits)
        except OverBudget as error:
            logger.warning("%s %r: %s", bound_to[2], handler.name, error.message)
            raise
        if journal.single_use:
            self._require_shared_store(handler.name)
        return NeedsInput(questions, self._codec.seal(payload))
