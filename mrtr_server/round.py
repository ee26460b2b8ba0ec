"""One round of a flow: what the journal can answer, what has to be asked, which steps run.

An ask that can't be answered *parks*: it never returns. The runner sees that, lets running steps finish, and ends the
round by cancelling the handler. So nothing after an unanswered ask runs, whatever the code around it catches.
"""

import asyncio
import logging
from collections.abc import Callable
from typing import Any

from .asks import Ask, InputRequired, Inputs, Refusal, reader
from .errors import AnswerMisfit, FlowError, KeyConflict, MisplacedCall, SetupError
from .journal import Journal
from .messages import JSON, Call, Question
from .steps import Steps, current_step
from .threads import Threads

logger = logging.getLogger("mrtr_server")

_OPEN: Any = object()
_NONE: set[asyncio.Task[Any]] = set()


class Round:
    """What happens in one round.

    Parameters:
        call: the request.
        journal: what the flow remembers; updated as the round goes on.
        threads: runs plain functions.
        early: whether answers that came without a state count, for the asks that allow it.
        is_async: whether the handler is an `async def`, so that it can wait for an ask or a step.
    """

    def __init__(self, call: Call, journal: Journal, threads: Threads, *, early: bool, is_async: bool) -> None:
        self.call = call
        self.journal = journal
        self.is_async = is_async
        self._threads = threads
        self._early = call.answers or {} if early else {}
        self.asked: dict[str, Question] = {}
        self.missing: list[str] = []
        self.refusal: Refusal | None = None
        self.fault: FlowError | None = None
        self.activity = 0
        self.steps: Steps | None = None
        self.parked: list[asyncio.Task[Any]] = []
        self.closed = False
        self.main: asyncio.Task[Any] | None = None
        self._claimed: dict[str, str] = {}
        self._reasons: dict[str, str] = {}
        self._woken: asyncio.Future[None] | None = None

    # What the runner watches

    @property
    def running(self) -> "set[asyncio.Task[Any]]":
        """The steps that are running now."""
        return self.steps.running if self.steps is not None else _NONE

    @property
    def ending(self) -> bool:
        """Whether the call ends with this round, so that nothing new may begin."""
        return bool(self.missing or self.refusal or self.fault)

    def wake(self, _: Any = None) -> None:
        """Tell the runner that something has changed."""
        self.activity += 1
        if self._woken is not None and not self._woken.done():
            self._woken.set_result(None)

    async def changed(self) -> None:
        """Wait until something changes."""
        self._woken = asyncio.get_running_loop().create_future()
        await self._woken

    async def park(self) -> Any:
        """Never return."""
        if (task := asyncio.current_task()) is not None:
            self.parked.append(task)
        self.wake()
        await asyncio.get_running_loop().create_future()

    def fail(self, error: FlowError) -> FlowError:
        """End the flow for a mistake in the handler's code, whatever the handler makes of the error."""
        if self.fault is None:
            self.fault = error
        return error

    def _refuse_if_closed(self, what: str) -> None:
        if self.closed:
            logger.error(
                "%s %r went on after its round had ended: it caught the cancellation and called %s. "
                "Re-raise asyncio.CancelledError in handlers.",
                self.call.method,
                self.call.target,
                what,
            )
            raise asyncio.CancelledError("the round has ended")
        if step := current_step.get():
            raise self.fail(
                MisplacedCall(f"{what} was called inside the step {step!r}; a step can hold no ask or step")
            )

    def require_async(self, what: str) -> None:
        """Refuse what has to be awaited in a handler that can't await."""
        if not self.is_async:
            message = f"{what} was called in a plain `def`; make the handler `async def`, or return InputRequired"
            raise self.fail(MisplacedCall(message))

    # Asks

    async def ask(self, make: Callable[[], list[tuple[str | None, Ask[Any]]]]) -> list[Any]:
        """Give the answers of several asks, or park: the client has to be asked for those that are missing."""
        self._refuse_if_closed("an ask")
        try:
            asks = make()
        except SetupError as error:
            raise self.fail(FlowError(str(error))) from None
        answers = [self._answer(key or ask.key, ask) for key, ask in asks]
        if _OPEN in answers or self.ending:
            await self.park()
        return answers

    def _answer(self, given_key: str | None, ask: Ask[Any]) -> Any:
        question = ask.question()
        key = self._claim(given_key, ask, question)
        raw = self.journal.answer(key, question.digest)
        if raw is None and not ask.needs_state and key in self._early:
            raw = self._early[key]
            self.journal.keep(key, question.digest, raw)
        if raw is not None:
            try:
                return ask.read(raw)
            except Refusal as refusal:
                self.refusal = self.refusal or refusal
                return _OPEN
            except AnswerMisfit as misfit:
                question = question.because(misfit.reason)
        self.journal.forget(key)
        self._send(key, question)
        return _OPEN

    def _send(self, key: str, question: Question) -> None:
        if not self.call.client.supports(question.needs):
            self.missing.append(question.needs)
        else:
            self.asked[key] = question

    def _claim(self, given_key: str | None, ask: Ask[Any], question: Question) -> str:
        """Give the ask its key: its own, or the first of its default keys that is free and fits the journal best."""
        if given_key is not None:
            if self._claimed.get(given_key, question.digest) != question.digest:
                raise self.fail(KeyConflict(f"The key {given_key!r} is used for two different questions in one run"))
            key = given_key
        else:
            key = self._default_key(ask.default_key, question)
        if key in self.journal.steps or (self.steps is not None and key in self.steps.started):
            raise self.fail(KeyConflict(f"The ask {key!r} has the key of the step {key!r}; give one of them a key="))
        self._claimed[key] = question.digest
        return key

    def _default_key(self, base: str, question: Question) -> str:
        free = ""
        count = 1
        while True:
            key = base if count == 1 else f"{base}_{count}"
            if key not in self._claimed:
                known = key in self.journal.answers
                if known and self.journal.answer(key, question.digest) is not None:
                    return key
                free = free or key
                if not known:
                    return free
            count += 1

    # Answers for pure functions

    def inputs(self) -> Inputs:
        """Give the answers so far, for a pure function."""
        return _JournalInputs(self)

    def read_input(self, key: str, asked: Any) -> Any:
        """Give the answer for a key, or None; see `Inputs.get`."""
        try:
            raw, read = self._pinned(key, asked) if isinstance(asked, Ask) else self._shaped(key, asked)
        except SetupError as error:
            raise self.fail(FlowError(f"inputs.get({key!r}, ...): {error}")) from None
        if raw is None:
            return None
        try:
            return read(raw)
        except Refusal as refusal:
            self.refusal = self.refusal or refusal
            raise
        except AnswerMisfit as misfit:
            self._reasons[key] = misfit.reason
            self.journal.forget(key)
            return None

    def _pinned(self, key: str, ask: Ask[Any]) -> tuple[JSON | None, Any]:
        question = ask.question()
        raw = self.journal.answer(key, question.digest)
        if raw is None and key in self._early and not ask.needs_state:
            raw = self._early[key]
            self.journal.keep(key, question.digest, raw)
        return raw, ask.read

    def _shaped(self, key: str, asked: Any) -> tuple[JSON | None, Any]:
        shape, read, needs_state = reader(asked)
        kept = self.journal.answers.get(key)
        raw = kept.raw if shape is None and kept else self.journal.answer_of_shape(key, shape or "")
        if raw is None and key in self._early and not needs_state:
            raw = self._early[key]
            self.journal.keep(key, f".{shape or ''}", raw)
        return raw, read

    def require(self, required: InputRequired) -> None:
        """Take what a pure function returned: ask what is not answered yet, keep its state."""
        questions = {key: ask.question() for key, ask in required.asks.items()}
        open_ = {key: q for key, q in questions.items() if self.journal.answer(key, q.digest) is None}
        # A function that asks only what has been answered saw the answers and wants others.
        for key, question in (open_ or questions).items():
            if key in self.journal.steps:
                raise self.fail(KeyConflict(f"The ask {key!r} has the key of the step {key!r}; rename one of them"))
            self.journal.forget(key)
            self._send(key, question.because(self._reasons.get(key, "")))

    # Steps

    async def step(
        self, function: Callable[..., Any], args: tuple[Any, ...], kwargs: JSON, key: str | None, rerun: bool
    ) -> Any:
        """Run a function once in the flow, or give what it returned when it ran; see `Steps.run`."""
        self._refuse_if_closed("a step")
        if self.ending:
            await self.park()
        if self.steps is None:
            self.steps = Steps(self.journal, self._threads, self.main, self._claimed, self.fail, self.wake)
        return await self.steps.run(function, args, kwargs, key, rerun)


class _JournalInputs(Inputs):
    """The answers that a journal holds."""

    __slots__ = ("_round",)

    def __init__(self, round_: Round) -> None:
        self._round = round_

    def get(self, key: str, asked: Any, /) -> Any:
        return self._round.read_input(key, asked)
