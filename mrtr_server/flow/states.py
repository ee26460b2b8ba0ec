"""The states of flows: begun, opened from what a client sent, and sealed for the client to bring back."""

import time
from collections.abc import Callable

from ..crypto.codec import Codec
from ..errors import InvalidRequestState, OverBudget
from ..limits import Limits
from ..logs.refusals import RefusalLog
from ..protocol.messages import Call, HandedOver, NeedsInput, Question
from .endings import YieldReason
from .journal import Journal, binding
from .round_context import RoundContext
from .unanswered import UnansweredAsks

_FULL, _OWN_STATE = YieldReason.FULL, YieldReason.OWN_STATE  # before Python 3.12, members take long to find


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

    def bind(self, round_: RoundContext) -> list[str]:
        """Return what the states of a round are bound to; see `binding`.

        To be asked before the handler runs, which may change the arguments.
        """
        if round_.binding is None:
            round_.binding = binding(self._audience, round_.call)
        return round_.binding

    def begin(self, round_: RoundContext) -> Journal:
        """Open a round without a state: it begins a flow.

        Raises:
            OverBudget: the call has too many answers.
            RateLimited: it was asked too often, and never answered.
        """
        call, bound_to = round_.call, self.bind(round_)
        self._check_answers(call)
        self._unanswered.admit(call, bound_to, None)
        journal = Journal(self._clock())
        call.trace.begin(journal)
        round_.journal, round_.is_open = journal, True
        return journal

    def unseal(self, round_: RoundContext) -> Journal:
        """Open a round by its state, and take its answers. `Journal.load` checks the binding and the expiry.

        Raises:
            InvalidRequestState: it does not open, has expired, or belongs to another call.
            OverBudget: the call has too many answers.
            RateLimited: it was asked too often, and never answered.
        """
        call, handler, bound_to = round_.call, round_.handler, self.bind(round_)
        state = call.state
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
        round_.journal, round_.is_open = journal, True
        return journal

    def _check_answers(self, call: Call) -> None:
        if call.answers is not None and len(call.answers) > self._limits.answers:
            message = f"The request has more than {self._limits.answers} inputResponses"
            raise OverBudget(message, "answers", self._limits.answers)

    def seal(self, round_: RoundContext, questions: dict[str, Question]) -> NeedsInput:
        """Seal the state in which a flow leaves to be answered.

        Args:
            round_: the round.
            questions: what the client is to answer, by key.

        Raises:
            OverBudget: it has used up its rounds, makes no progress, or remembers too much.
        """
        state, journal = self._seal(round_, questions, None), round_.journal
        return NeedsInput(questions, state, journal.expires, journal.epoch if round_.call.stays_open else "")

    def hand_over(self, round_: RoundContext, why: YieldReason) -> HandedOver:
        """Seal the state in which a flow leaves to be continued at once; see `seal`."""
        state, journal = self._seal(round_, {}, why), round_.journal
        return HandedOver(state, journal.expires, why, journal.epoch if round_.call.stays_open else "")

    def _seal(self, round_: RoundContext, questions: dict[str, Question], why: YieldReason | None) -> str:
        handler, call, journal, bound_to = round_.handler, round_.call, round_.journal, self.bind(round_)
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

    def end(self, round_: RoundContext) -> None:
        """Note that a flow has ended with the result of a call."""
        self._unanswered.ended(round_.call, self.bind(round_))
