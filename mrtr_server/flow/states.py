"""The states of flows: begun, opened, sealed for the client to bring back, and described for who has the keys."""

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import KW_ONLY, dataclass, field
from datetime import UTC, datetime

from pydantic_core import from_json

from ..crypto.codec import Codec, SealedCodec
from ..crypto.keys import KeyRing
from ..errors import FORGOTTEN, InvalidRequestState, OverBudget, RateLimited, StateFault
from ..limits import Limits
from ..logs.refusals import RefusalLog
from ..protocol.callers import Principal
from ..protocol.messages import JSON, Call, HandedOver, NeedsInput, Outlet, Question, kind_of
from ..storage.base import Store
from ..storage.health import ReadBeside
from ..storage.quotas import Callers
from ..storage.rows import Lease
from .endings import YieldReason
from .handler import Handler
from .journal import BINDINGS, UNSET, Journal, binding
from .rate_limiter import RateLimiter
from .round import Background

ASKED_AGAIN_AFTER = 30.0  # the store is asked again after so many seconds


class Forgotten:
    """Remembers for a while whom the shared store has forgotten, so that a request seldom has to ask it."""

    def __init__(self, store: Store, ring: KeyRing) -> None:
        self._store = store
        self._callers = Callers(ring)
        self._moments: Mapping[str, float] = {}
        self._reader = ReadBeside(self._read)
        self._look_at = -math.inf if store.shared else math.inf  # by the monotonic clock; nobody else writes to our own

    @property
    def is_due(self) -> bool:
        """Whether the store is to be asked again."""
        return time.monotonic() >= self._look_at

    async def look(self) -> None:
        """Ask the store. While it does not answer, what was known counts."""
        # Whatever comes of it: an outage is not to hold each request.
        self._look_at = time.monotonic() + ASKED_AGAIN_AFTER
        await self._reader.again()

    async def _read(self) -> None:
        self._moments = await self._store.forgotten()

    async def has_ended(self, principal: Principal | None, begun: float) -> bool:
        """Do as `ends`, and ask the store before where that is due."""
        if self.is_due:
            await self.look()
        return self.ends(principal, begun)

    def ends(self, principal: Principal | None, begun: float) -> bool:
        """Return whether a flow, or a subscription, has ended, since its caller was forgotten after it began."""
        if not self._moments or principal is None:  # as nearly always
            return False
        # A state may have been sealed, and its caller forgotten, when another key was the first.
        return any(begun <= self._moments.get(each, -math.inf) for each in self._callers.all_of(principal.person))


WINDOW = 60.0

STRANGERS = 10
"""How many times as often callers are asked of whom an address alone is known: it may be that of a proxy."""

MOST_COUNTED = 4_096
"""How many requests are counted so at once, with about 100 bytes each."""

_FULL, _OWN_STATE = YieldReason.FULL, YieldReason.OWN_STATE  # before Python 3.12, members take long to find


@dataclass(slots=True, eq=False, repr=False)
class RoundContext:
    """One round of a flow. It is open once its journal is there: a new one, or that of the state that came."""

    handler: Handler
    call: Call
    outlet: Outlet
    arguments: JSON
    may_become_task: bool = False
    task: Background | None = None
    lease: Lease | None = None
    """Of a round whose state is redeemed once: while it is in doubt, nothing new begins."""
    binding: list[str] | None = None
    is_open: bool = field(default=False, init=False)
    journal: Journal = field(init=False)
    steps_before: int = field(default=0, init=False)
    """How many steps were in the state that the round began with."""


class UnansweredAsks:
    """Counts, in this process, how often a request was answered with questions that nobody has answered."""

    def __init__(self, limits: Limits, rates: RateLimiter, clock: Callable[[], float]) -> None:
        self._most = limits.unanswered_asks
        self._rates = rates
        self._clock = clock
        self._counts: dict[int, int] = {}
        """By a hash, which nobody outside of this process can foresee."""
        self._ends = -math.inf

    def admit(self, call: Call, bound_to: list[str], journal: Journal | None) -> None:
        """Check that a round may begin, and note the answer that it brings to its journal. Raises `RateLimited`."""
        if not self._counts:  # as where nothing asks
            return
        key = _of_request(call, bound_to) if journal is None else hash((journal.flow_id, journal.rounds))
        count = self._counts.get(key, 0)
        if count:
            self._check(call, journal, count)
        elif journal is not None and call.answers and not journal.asked.keys().isdisjoint(call.answers):
            self._counts.pop(_of_request(call, bound_to), None)  # a state that was used before would prove nothing

    def _check(self, call: Call, journal: Journal | None, count: int) -> None:
        most = self._most
        if most is None or self._rates.is_on:
            return
        if journal is None and call.principal is None and not call.session:
            most *= STRANGERS
        if count >= most and (seconds := self._ends - self._clock()) > 0:
            raise RateLimited("unanswered_asks", f"{most}/minute", seconds)

    def asked(self, call: Call, bound_to: list[str], journal: Journal, now: float) -> None:
        if self._most is None or self._rates.is_on:
            return
        if now >= self._ends:
            self._counts.clear()
            self._ends = now + WINDOW
        # The state that came in is one round behind.
        key = _of_request(call, bound_to) if call.state is None else hash((journal.flow_id, journal.rounds - 1))
        if key in self._counts or len(self._counts) < MOST_COUNTED:
            self._counts[key] = self._counts.get(key, 0) + 1
        else:
            # One more that is new takes one from each (Misra and Gries). So a count loses no more than there were
            # questions for `MOST_COUNTED` others, and nobody can reset their own by asking for something else.
            self._counts = {each: count - 1 for each, count in self._counts.items() if count > 1}

    def answered(self, call: Call, bound_to: list[str]) -> None:
        self._counts.pop(_of_request(call, bound_to), None)


def _of_request(call: Call, bound_to: list[str]) -> int:
    """Return what makes requests without a state the same: all that a state would be bound to, and the caller."""
    who = "" if call.principal is not None else call.session or (call.peer[0] if call.peer else "")
    return hash((who, *bound_to))


@dataclass(eq=False, repr=False)
class States:
    """Begins flows, opens the states in which they come back, and seals those in which they leave.

    `require_shared_store`: takes note of a handler whose states are redeemed once from now on, by its name.
    `keeps_plain`: whether the state of a call that stays open may be its journal as it is.
    """

    codec: Codec
    limits: Limits
    _: KW_ONLY
    audience: str
    require_shared_store: Callable[[str], None]
    unanswered: UnansweredAsks
    forgotten: Forgotten
    clock: Callable[[], float] = time.time
    keeps_plain: bool = False

    def __post_init__(self) -> None:
        # Whatever the codec adds, in Base64: enough for every one, and checked before it does any work.
        self._longest = self.limits.state_bytes * 4 // 3 + 2048
        self._refusals = RefusalLog()

    def bind(self, round_: RoundContext) -> list[str]:
        """Return the `binding` of a round, before the handler runs, which may change the arguments."""
        if round_.binding is None:
            round_.binding = binding(self.audience, round_.call)
        return round_.binding

    def begin(self, round_: RoundContext) -> Journal:
        """Open a round that begins a flow. Raises `OverBudget` for its answers, and `RateLimited`."""
        call = round_.call
        self._check_answers(call)
        bound_to = self.bind(round_)
        self.unanswered.admit(call, bound_to, None)
        journal = Journal(self.clock())
        call.trace.begin(journal)
        round_.journal, round_.is_open = journal, True
        return journal

    def unseal(self, round_: RoundContext) -> Journal:
        """Open a round by its state, and take its answers. Raises `InvalidRequestState`, and as `begin`."""
        call, handler, state = round_.call, round_.handler, round_.call.state
        self._check_answers(call)
        bound_to = self.bind(round_)
        try:
            if not isinstance(state, str):
                raise InvalidRequestState("not a string")
            if len(state) > self._longest:
                raise InvalidRequestState("too large")
            payload = state.encode() if call.stays_open and self.keeps_plain else self.codec.unseal(state)
            journal = Journal.load(payload, bound_to, self.clock(), call.grace, single_use=handler.single_use)
            if self.forgotten.ends(call.principal, journal.started):
                raise InvalidRequestState(FORGOTTEN, StateFault.FORGOTTEN)
        except InvalidRequestState as refused:
            self._refusals.note("%s %r: refused a requestState: %s", call.method, handler.name, refused.reason)
            raise
        call.trace.resume(journal)
        self.unanswered.admit(call, bound_to, journal)
        journal.deliver(call.answers or {})
        round_.journal, round_.is_open, round_.steps_before = journal, True, len(journal.steps)
        return journal

    def _check_answers(self, call: Call) -> None:
        if call.answers is not None and len(call.answers) > self.limits.answers:
            message = f"The request has more than {self.limits.answers} inputResponses"
            raise OverBudget(message, "answers", self.limits.answers)

    def seal(self, round_: RoundContext, questions: dict[str, Question]) -> NeedsInput:
        """Seal the state in which a flow leaves to be answered. Raises `OverBudget`."""
        state, journal = self._seal(round_, questions, None), round_.journal
        return NeedsInput(questions, state, journal.expires, journal.epoch if round_.call.stays_open else "")

    def hand_over(self, round_: RoundContext, why: YieldReason) -> HandedOver:
        state, journal = self._seal(round_, {}, why), round_.journal
        return HandedOver(state, journal.expires, why, journal.epoch if round_.call.stays_open else "")

    def _seal(self, round_: RoundContext, questions: dict[str, Question], why: YieldReason | None) -> str:
        handler, call, journal, bound_to = round_.handler, round_.call, round_.journal, self.bind(round_)
        limits, now = self.limits, self.clock()
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
            self.require_shared_store(handler.name)
        if questions:
            self.unanswered.asked(call, bound_to, journal, now)
        # The flow of an open call is sealed with the call.
        return payload.decode() if call.stays_open and self.keeps_plain else self.codec.seal(payload)

    def end(self, round_: RoundContext) -> None:
        """Note that a flow has ended with a result: answers that came without a state have answered what it asks."""
        if round_.call.answers and round_.call.state is None:
            self.unanswered.answered(round_.call, self.bind(round_))


# For an operator


def inspect_state(token: str, ring: KeyRing, *, values: bool = False) -> JSON:
    """Describe a `requestState`, whoever it belongs to and whether or not it has expired.

    `values`: whether to show answers, results and the handler's own state. Raises `InvalidRequestState`.
    """
    payload = SealedCodec(ring).unseal(token)
    try:
        fields = from_json(payload)
        journal = Journal.load(payload, fields["b"], fields["t"])
    except (ValueError, KeyError, TypeError):
        raise InvalidRequestState("not a journal") from None
    return {**dict(zip(BINDINGS, fields["b"], strict=True)), **describe_journal(journal, values=values)}


def describe_journal(journal: Journal, *, values: bool = False) -> JSON:
    described: JSON = {
        "flow": journal.flow,
        "started": utc_time(journal.started),
        "expires": utc_time(journal.expires),
        "rounds": journal.rounds,
        "handed over without a question": journal.state_only,
        "redeemed once": journal.single_use,
        "asked": {key: kind_of(question) for key, question in journal.asked.items()},
        "answered": {key: [kind_of(question) for question in answers] for key, answers in journal.answers.items()},
        "steps": {key: step.function for key, step in journal.steps.items()},
        "has state of the handler": journal.state is not UNSET,
    }
    if journal.epoch:
        described["epoch of the store"] = journal.epoch
    if values:
        described["answers"] = {key: list(answers.values()) for key, answers in journal.answers.items()}
        described["results of steps"] = {key: step.result for key, step in journal.steps.items()}
        described["state of the handler"] = None if journal.state is UNSET else journal.state
    return described


def utc_time(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="seconds")
