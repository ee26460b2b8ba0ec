"""The states of flows: begun, opened from what a client sent, and sealed for the client to bring back."""

import time
from collections.abc import Callable

from ..crypto.codec import Codec
from ..errors import InvalidRequestState, OverBudget
from ..limits import Limits
from ..logs.refusals import RefusalLog
from ..protocol.messages import Call, HandedOver, NeedsInput, Question
from .endings import YieldReason
from .handler import Handler
from .journal import Journal, binding
from .unanswered import UnansweredAsks

_FULL, _OWN_STATE = YieldReason.FULL, YieldReason.OWN_STATE  # before Python 3.12, members take long to find

Opened = tuple[Journal, list[str]]
"""The flow that a call belongs to, and what its states are bound to."""


class States:
    """Begins flows, opens the states in which they come back, and seals those in which they leave.

    Args:
        codec: seals and unseals journals.
        limits: what a flow may use.
        audience: what states are bound to.
        require_shared_store: takes note of a handler whose states are redeemed once from now on, by its name.
        clock: returns the time in seconds since the epoch.
        unanswered: counts what is asked without an answer.
        keeps_plain: whether the state of a call that stays open may be its journal as it is.
    """

    def __init__(
        self,
        codec: Codec,
        limits: Limits,
        *,
        audience: str,
        require_shared_store: Callable[[str], None],
        unanswered: UnansweredAsks,
        clock: Callable[[], float] = time.time,
        keeps_plain: bool = False,
    ) -> None:
        self._codec = codec
        self._limits = limits
        # Whatever the codec adds, in Base64: enough for every one, and checked before it does any work.
        self._longest = limits.state_bytes * 4 // 3 + 2048
        self._audience = audience
        self._require_shared_store = require_shared_store
        self._unanswered = unanswered
        self._clock = clock
        self._keeps_plain = keeps_plain
        self._refusals = RefusalLog()

    def bound(self, call: Call) -> list[str]:
        """Return what the states of a call are bound to; see `binding`.

        To be asked before the handler runs, which may change the arguments.
        """
        bound_to = call.binding
        if bound_to is None:
            bound_to = call.binding = binding(self._audience, call)
        return bound_to

    def begin(self, call: Call) -> Opened:
        """Begin the flow of a call without a state.

        Raises:
            OverBudget: the call has too many answers.
            RateLimited: it was asked too often, and never answered.
        """
        bound_to = self.bound(call)
        self._check_answers(call)
        self._unanswered.admit(call, bound_to, None)
        journal = Journal(self._clock())
        call.trace.begin(journal)
        return journal, bound_to

    def unseal(self, handler: Handler, call: Call) -> Opened:
        """Unseal the state of a call, and take its answers. `Journal.load` checks what it is bound to, and its expiry.

        Raises:
            InvalidRequestState: it does not open, has expired, or belongs to another call.
            OverBudget: the call has too many answers.
            RateLimited: it was asked too often, and never answered.
        """
        bound_to, state = self.bound(call), call.state
        self._check_answers(call)
        try:
            if not isinstance(state, str):
                raise InvalidRequestState("not a string")
            if len(state) > self._longest:
                raise InvalidRequestState("too large")
            payload = state.encode() if call.stays_open and self._keeps_plain else self._codec.unseal(state)
            journal = Journal.load(payload, bound_to, self._clock(), call.grace, single_use=handler.single_use)
        except InvalidRequestState as refused:
            self._refusals.note("%s %r: refused a requestState: %s", call.method, handler.name, refused.reason)
            raise
        call.trace.resume(journal)
        self._unanswered.admit(call, bound_to, journal)
        journal.deliver(call.answers or {})
        return journal, bound_to

    def _check_answers(self, call: Call) -> None:
        if call.answers is not None and len(call.answers) > self._limits.answers:
            message = f"The request has more than {self._limits.answers} inputResponses"
            raise OverBudget(message, "answers", self._limits.answers)

    def seal(
        self,
        handler: Handler,
        call: Call,
        journal: Journal,
        bound_to: list[str],
        questions: dict[str, Question],
    ) -> NeedsInput:
        """Seal the state in which a flow leaves to be answered.

        Args:
            handler: what was run.
            call: the request.
            journal: what the flow remembers.
            bound_to: what `begin` or `unseal` returned with it.
            questions: what the client is to answer, by key.

        Raises:
            OverBudget: it has used up its rounds, makes no progress, or remembers too much.
        """
        state = self._seal(handler, call, journal, bound_to, questions, None)
        return NeedsInput(questions, state, journal.expires, journal.epoch if call.stays_open else "")

    def hand_over(
        self, handler: Handler, call: Call, journal: Journal, bound_to: list[str], why: YieldReason
    ) -> HandedOver:
        """Seal the state in which a flow leaves to be continued at once; see `seal`.

        Args:
            handler: what was run.
            call: the request.
            journal: what the flow remembers.
            bound_to: what `begin` or `unseal` returned with it.
            why: why it is continued in another round.
        """
        state = self._seal(handler, call, journal, bound_to, {}, why)
        return HandedOver(state, journal.expires, why, journal.epoch if call.stays_open else "")

    def _seal(
        self,
        handler: Handler,
        call: Call,
        journal: Journal,
        bound_to: list[str],
        questions: dict[str, Question],
        why: YieldReason | None,
    ) -> str:
        limits, now = self._limits, self._clock()
        journal.shed = why is _FULL
        seconds = limits.state_seconds if handler.answer_within is None else handler.answer_within
        asked: dict[str, str] = {}
        for key, question in questions.items():
            asked[key] = question.digest
        try:
            journal.count_round(asked, limits, keeps_state=why is _OWN_STATE)
            payload = journal.dump(bound_to, now, seconds, limits)
        except OverBudget as error:
            self._refusals.note("%s %r: %s", call.method, handler.name, error.message)
            raise
        if journal.single_use:
            self._require_shared_store(handler.name)
        if questions:
            self._unanswered.asked(call, bound_to, journal, now)
        # The flow of an open call is sealed with the call.
        return payload.decode() if call.stays_open and self._keeps_plain else self._codec.seal(payload)

    def end(self, call: Call, bound_to: list[str]) -> None:
        """Note that a flow has ended with the result of a call."""
        self._unanswered.ended(call, bound_to)
