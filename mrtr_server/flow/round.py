"""One round of a flow: what the journal can answer, what has to be asked, and how the round ends because of that."""

import logging
from collections.abc import Callable, Container, Iterable, Mapping
from dataclasses import dataclass
from math import inf, isfinite
from types import MappingProxyType
from typing import Any, Protocol, cast

from ..concurrency.threads import ending_in
from ..errors import FlowError, InvalidAnswer, MissingCapability, Refusal, SetupError, cannot_show
from ..logs.failures import format_stack
from ..protocol.apps import drawn_by, draws_forms, uri_of
from ..protocol.ask_kinds import FORM, KINDS, ask_kind
from ..protocol.callers import lacking, nested
from ..protocol.messages import JSON, PAGE, Call, Outlet, Question
from ..well_formed import escape_halves
from .asks import Ask
from .endings import Asking, Backgrounded, Failed, Refused, RoundEnd, Yielded, YieldReason
from .home import OWN
from .journal import Journal
from .url_asks import UNFINISHED, Callback, Callbacks, ElicitUrl, Reports

logger = logging.getLogger("mrtr_server")


OPEN: Any = object()

_CONFIRMING = frozenset(kind.name for kind in KINDS.values() if kind.confirms)

NO_REPORTS = Reports[YieldReason]()

_NO_ANSWERS: Mapping[str, JSON] = MappingProxyType({})


class Background(Outlet, Protocol):
    """The task that a round belongs to, and where its notes go."""

    @property
    def journal(self) -> Journal: ...

    def should_yield(self) -> YieldReason | None: ...

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

    async def publish(self, asked: Mapping[str, Question]) -> None:
        """Publish what is asked, for the client to see beside what runs. What is answered meanwhile leaves `asked`."""
        ...

    def on_answers(self, take: Callable[[], None]) -> None: ...

    def say(self, message: str) -> None: ...


# Why a round ends: of several reasons, the first in this order counts. No enum, whose members take long to find before
# Python 3.12.
_MISTAKE, _LACKING, _REFUSED, _FAILED, _ASKING, _YIELDED, _BACKGROUNDED, _NOTHING = range(8)


@dataclass(slots=True)
class Claim:
    key: str
    ask: Ask[Any]
    question: Question
    value: Any


class Round:
    """What one round has asked, and how it ends: all that a pure function needs. See `WaitingRound`.

    `takes_early`: whether answers that come without a state count at all.
    """

    addresses = OWN
    """Where clients find the resources of the application that registered the handler."""
    reserved: Container[str] = ()
    """The keys that no ask without a key of its own may have."""
    _started: Container[str] = ()
    _gravity = _NOTHING
    _end: RoundEnd | None = None
    _required: Asking | None = None
    _lacking: tuple[str, ...] = ()
    _progress = -inf
    _stood_still = False
    is_confirmed = False
    """Whether its person has confirmed something, to us or on a page."""

    def __init__(
        self,
        call: Call,
        journal: Journal,
        name: str,
        callbacks: Callbacks,
        takes_early: bool = True,
        reports: Reports[YieldReason] = NO_REPORTS,
    ) -> None:
        self.call = call
        self.journal = journal
        self.name = name
        self.asked: dict[str, Question] = {}
        self._callbacks = callbacks
        self._reports = reports
        self.early = call.answers if takes_early and call.state is None and call.answers else _NO_ANSWERS
        self._claimed: dict[str, str] = {}

    def advance(self, progress: float) -> bool:
        """Return whether progress has grown, as it must from note to note (Progress, Behavior Requirements)."""
        if progress > self._progress and isfinite(progress):
            self._progress = progress
            return True
        if not self._stood_still:
            self._stood_still = True
            logger.warning(
                "%r reports progress that does not grow: %r after %r; such progress is not sent",
                self.name,
                progress,
                self._progress,
            )
        return False

    # How it ends

    @property
    def ending(self) -> bool:
        """Whether nothing new may begin, since it is known how the round ends."""
        return self._end is not None

    @property
    def settled(self) -> bool:
        """Whether no further ask can change how the round ends."""
        # Of a client that lacks something, all of it is to be named.
        return self._gravity <= _ASKING and self._gravity != _LACKING

    def fail(self, mistake: FlowError | SetupError | str) -> FlowError:
        """End the flow for a mistake in the handler's code, whatever the handler makes of the error. Return it."""
        error = mistake if isinstance(mistake, FlowError) else FlowError(str(mistake))
        if self._gravity != _MISTAKE:
            # The error does not pass through the handler's frames, so the stack says where it comes from.
            if calls := format_stack():
                error.add_note(f"Called from:\n{calls}".rstrip())
            self._end_with(_MISTAKE, Failed(error))
        return error

    def fail_with(self, error: Exception) -> None:
        counts = ending_in(error, self.name)
        self._end_with(_FAILED, Failed(counts if isinstance(counts, Exception) else error))

    def refuse(self, refusal: Refusal) -> None:
        self._end_with(_REFUSED, Refused(refusal))

    def leave(self, why: YieldReason) -> None:
        self._end_with(_YIELDED, Yielded(why))

    def leave_for_background(self, waits: str = "") -> None:
        self._end_with(_BACKGROUNDED, Backgrounded(self.journal, waits))

    def ask_nothing_more(self) -> None:
        if self.asked:
            self._end_with(_ASKING, Asking(self.asked))

    def _end_with(self, gravity: int, end: RoundEnd) -> None:
        if gravity < self._gravity:
            self._gravity, self._end = gravity, end

    def _lack(self, capabilities: Iterable[str]) -> None:
        """End the call, since the client can't be asked; the error names all that it lacks."""
        self._lacking += tuple(capabilities)
        if self._gravity >= _LACKING:
            self._gravity, self._end = _LACKING, Failed(MissingCapability(nested(self._lacking)))

    def conclude(self, own: RoundEnd) -> RoundEnd:
        """Return how the round ends.

        Events of the round count before the handler's result, or an `except` could turn a no into a yes.
        """
        if self.asked and self._gravity > _ASKING:
            return self._required or Asking(self.asked)
        return self._end or own

    # Asks

    def answer(self, key: str, ask: Ask[Any], question: Question, read: Callable[[JSON], Any]) -> Any:
        """Return the answer to an ask that has a key; `OPEN`, if the client has to be asked."""
        found = self.look_up(lambda: [self._answer(self._claim(key, "", question), ask, question, read)])
        return found[0] if found else OPEN

    def look_up(self, look: Callable[[], list[Any]]) -> list[Any]:
        """Look answers up; return none if the call ends, or has ended before.

        Asks side by side are all looked up, so that an error can name all that is missing.
        """
        if not self.settled:
            try:
                return look()
            except (FlowError, SetupError) as mistake:
                self.fail(mistake)
            except Exception as unexpected:  # of the model's own code; its text may hold the answer
                self.fail(f"Reading an answer failed with {type(unexpected).__name__}")
        return []

    def claim_inline(self, key: str | None, ask: Ask[Any]) -> "Claim":
        """Return an ask, under a key instead of its own or a default one, with its answer if there is one."""
        question = ask.question()
        claimed = self._claim(key or ask.key, ask.default_key, question)
        return Claim(claimed, ask, question, self._answer(claimed, ask, question, ask.parse))

    def _answer(self, key: str, ask: Ask[Any], question: Question, read: Callable[[JSON], Any]) -> Any:
        raw = self.kept(key, question, ask.needs_state)
        if raw is not None:
            try:
                value = read(raw)
                self.is_confirmed = self.is_confirmed or question.kind in _CONFIRMING
                return value
            except Refusal as refusal:
                self.refuse(refusal)
                return OPEN
            except InvalidAnswer as misfit:
                if not self.take_misfit(key, question.digest, raw, misfit.reason):
                    return OPEN
                question = question.because(misfit.reason)
        self._send(key, ask, question)
        return OPEN

    def take_misfit(self, key: str, question: str, raw: JSON, reason: str) -> bool:
        """Drop an answer that does not fit; return whether to ask again.

        Whoever answers twice the same would do so for ever: the client can't show what is asked, and the call ends with
        what the model can do. A page may take its time.
        """
        kind = ask_kind(question)
        if key in self.early:  # or it would be a second answer where the handler reads it again in this run
            self.early = {name: each for name, each in self.early.items() if name != key}
        if not self.journal.drop_misfit(key, question, raw) or kind.reports_back:
            return True
        is_filled_in = kind is FORM and raw.get("content")  # maybe by a person who means it
        can_not = "may be unable to" if is_filled_in else "can't"
        # What approves something can't be asked for in the chat instead.
        self.fail_with(cannot_show(f"{can_not} {kind.can_not}", key, reason, "" if kind.approves else kind.member))
        return False

    def kept(self, key: str, question: Question, needs_state: bool) -> JSON | None:
        raw = self.journal.answer(key, question.digest)
        if raw is None:
            raw = self.take_early(key, question.digest, needs_state)
        else:
            raw = self._reports.found.get((key, question.digest), raw)
        if raw is not None:
            self.call.trace.note_answered(key, question.params.get("message", ""))
        return raw

    def take_early(self, key: str, digest: str, needs_state: bool) -> JSON | None:
        """Return an answer that came without a state, if it may count; it is kept for later rounds."""
        if needs_state or key not in self.early:
            return None
        self.journal.keep(key, digest, self.early[key])
        return self.early[key]

    def require(
        self, key: str, ask: Ask[Any], question: Question, read: Iterable[tuple[str, str]] = (), reason: str = ""
    ) -> None:
        """Ask what a pure function has returned, whether it was answered before or not. Raises `FlowError`."""
        self._refuse_taken(key, question)
        if self._required is None:
            self._required = Asking(self.asked, together=True)
        journal = self.journal
        if key in journal.answers:
            for digest in (question.digest, *(other for name, other in read if name == key)):
                journal.forget(key, digest)
        self._send(key, ask, question.because(reason) if reason else question)

    def _send(self, key: str, ask: Ask[Any], question: Question) -> None:
        if missing := lacking(self.call.client, question.needs):
            self._lack(missing)
        elif self.call.asked_by == "model" and not ask.through_model:  # whose answer nobody could tell from a person's
            self._lack(question.needs)
        elif question.needs == PAGE:
            name = self._callbacks.page(self.journal, key, question.digest)
            if ask_kind(question).reports_back:
                question = self._leading_back(key, cast(ElicitUrl[Any], ask), question)
                question.page = name
            self.asked[key] = question.having(elicitationId=name)
        elif ask.ui is not None and draws_forms(self.call.client):
            self.asked[key] = question.having(_meta=drawn_by(self.addresses.link(uri_of(ask.ui))))
        else:
            self.asked[key] = question.open_to_models() if ask.through_model else question

    def _leading_back(self, key: str, ask: ElicitUrl[Any], question: Question) -> Question:
        callback = cast(Callback[Any], ask.callback)
        back = self._callbacks.callback_link(callback, key, question.digest, self.call, self.journal)
        unfinished = (key, question.digest) in self._reports.unfinished
        return ask.leading(question.because(UNFINISHED if unfinished else ""), back)

    def _claim(self, given_key: str | None, default: str, question: Question) -> str:
        """Return the ask's key: its own, or the first of its default keys that is free and fits the journal best."""
        key = self._default_key(default, question) if given_key is None else escape_halves(given_key)
        self._refuse_taken(key, question)
        self._claimed[key] = question.digest
        return key

    def _refuse_taken(self, key: str, question: Question) -> None:
        if self._claimed.get(key, question.digest) != question.digest:
            raise FlowError(
                f"The key {key!r} is used for two different questions in one round; give one of them another key="
            )
        if key in self.journal.steps or key in self._started:
            raise FlowError(f"An ask and a step both have the key {key!r}; give one of them another key=")

    @property
    def _is_branch(self) -> bool:
        """Whether other branches of the handler may come to their asks later, so that no key of theirs may be taken."""
        return False

    def _default_key(self, base: str, question: Question) -> str:
        if self._is_branch and (known_as := self._known_key(base, question.digest)):
            return known_as
        free = ""
        count = 1
        while True:
            key = base if count == 1 else f"{base}_{count}"
            if key not in self._claimed and key not in self.reserved:
                known = self.journal.answers.get(key)
                if known and question.digest in known:
                    return key
                asked = self.journal.asked.get(key)
                if asked == question.digest:
                    return key
                if asked is None and not (known and self._is_branch):
                    free = free or key
                    if not known:
                        return free
            count += 1

    def _known_key(self, base: str, question: str) -> str:
        """Return the default key under which a question is open or answered; one before it may have been withdrawn."""
        keys = {key for key, asked in self.journal.asked.items() if asked == question}
        keys |= {key for key, answers in self.journal.answers.items() if question in answers}
        keys = {key for key in keys if key not in self._claimed and key not in self.reserved and _is_of(base, key)}
        return min(keys, key=lambda key: (len(key), key), default="")


def _is_of(base: str, key: str) -> bool:
    """Return whether a key is one of the default keys `base`, `base_2`, `base_3`."""
    return key == base or (key.startswith(f"{base}_") and key[len(base) + 1 :].isdecimal())
