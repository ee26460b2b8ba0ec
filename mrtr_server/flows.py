"""One round of a flow, from the state that the client brought to the one that it takes with it."""

import logging
import time
from collections.abc import Callable
from typing import Any

from .callbacks import Callbacks, Reports
from .errors import OverBudget, StateRefused
from .handlers import Handler
from .inputs import InputRequired
from .journal import Journal, binding
from .limits import Limits
from .messages import JSON, Call, NeedsInput, Outlet
from .round import NO_REPORTS, Round
from .runner import Asking, call_function, conclude, run
from .sealed_state import Codec
from .threads import Threads

logger = logging.getLogger("mrtr_server")


class Flows:
    """Runs rounds: opens the state, runs the handler, seals what it leaves.

    Parameters:
        codec: seals and opens journals.
        threads: runs plain functions.
        limits: what a flow may use.
        callbacks: knows what pages have reported.
        audience: what states are bound to.
        clock: gives the time in seconds since the epoch.
    """

    def __init__(
        self,
        codec: Codec,
        threads: Threads,
        limits: Limits,
        callbacks: Callbacks,
        *,
        audience: str,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._codec = codec
        self._threads = threads
        self._limits = limits
        self._callbacks = callbacks
        # Whatever the codec adds, in Base64: enough for every one, and checked before it does any work.
        self._longest_state = limits.state_bytes * 4 // 3 + 2048
        self._audience = audience
        self._clock = clock

    async def run(self, handler: Handler, arguments: JSON, call: Call, outlet: Outlet) -> Any:
        """Run one round.

        Parameters:
            handler: what to run.
            arguments: what the client fills, validated.
            call: the request.
            outlet: takes the notes that the handler sends on its way.

        Returns:
            What the handler returned; or the need for input, with the journal sealed.

        Raises:
            RequestError: the state does not open, the flow is over budget, or the client can't do what must be asked.
            Refusal: the person said no to what the handler can't do without.
            Exception: whatever the handler raised.
        """
        if handler.is_simple and call.state is None and call.answers is None:  # most calls have nothing to remember
            result = await call_function(handler, arguments, self._threads)
            if not isinstance(result, InputRequired):
                return result
            journal, bound_to = Journal(self._clock()), binding(self._audience, call)
            round_ = Round(call, journal, self._threads, handler.name, callbacks=self._callbacks)
            result = conclude(handler, round_, result, None)
        else:
            # Before the handler runs, since it may change the arguments that it is given.
            bound_to = binding(self._audience, call)
            journal = self._open(handler, call, bound_to)
            reports = await self._reports(journal) if journal.answers else NO_REPORTS
            round_ = Round(call, journal, self._threads, handler.name, callbacks=self._callbacks, reports=reports)
            result = await run(handler, arguments, round_, outlet, self._threads)
        return self._seal(handler, journal, bound_to, result.questions) if isinstance(result, Asking) else result

    async def _reports(self, journal: Journal) -> Reports:
        """Wait for what pages report; what is still open then is asked again."""
        reports = await self._callbacks.wait(journal)
        for key in reports.unfinished:
            journal.forget(key)
        return reports

    def _open(self, handler: Handler, call: Call, bound_to: list[str]) -> Journal:
        if call.answers is not None and len(call.answers) > self._limits.answers:
            message = f"More than {self._limits.answers} inputResponses"
            raise OverBudget(message, "answers", self._limits.answers)
        if call.state is None:
            return Journal(self._clock())
        try:
            if not isinstance(call.state, str):
                raise StateRefused("not a string")
            if len(call.state) > self._longest_state:
                raise StateRefused("too large")
            journal = Journal.load(self._codec.open(call.state), bound_to, self._clock())
        except StateRefused as refused:
            logger.warning("%s %r: refused a requestState: %s", call.method, handler.name, refused.reason)
            raise
        journal.deliver(call.answers or {})
        return journal

    def _seal(self, handler: Handler, journal: Journal, bound_to: list[str], questions: dict[str, Any]) -> NeedsInput:
        try:
            journal.count_round({key: question.digest for key, question in questions.items()}, self._limits)
            seconds = self._limits.state_seconds if handler.answer_within is None else handler.answer_within
            payload = journal.dump(bound_to, self._clock(), seconds, self._limits)
        except OverBudget as error:
            logger.warning("%s %r: %s", bound_to[2], handler.name, error.message)
            raise
        return NeedsInput(questions, self._codec.seal(payload))
