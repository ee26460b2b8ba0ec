"""One round of a flow: what the journal can answer, what has to be asked, which steps run.

An ask that can't be answered *parks*: it never returns, not even when it is cancelled. The runner sees that, lets
running steps finish, and ends the round by cancelling the handler. So nothing after an unanswered ask runs, whatever
the code around it catches.
"""

import asyncio
import logging
from collections.abc import Callable, Container, Coroutine
from typing import Any, Literal, Protocol, cast

from ..callbacks.service import Callbacks, Reports
from ..concurrency.threads import Threads
from ..errors import CallEnded, FlowError, InvalidAnswer, KeyConflict, MisplacedCall, Refusal, SetupError
from ..logs.tracebacks import CallSite, call_site, format_call_site, format_stack
from ..protocol.messages import JSON, Call, Question
from .asks import CONFIRMATION_SHAPE, Ask
from .inputs import InputRequired, Inputs, reader
from .journal import Journal
from .steps import Planned, Steps, current_step
from .url_asks import UNFINISHED, ElicitUrl

logger = logging.getLogger("mrtr_server")


class Background(Protocol):
    """What a round can do whose flow is a task, or may become one."""

    started: bool
    """Whether the flow is a task already."""

    @property
    def lost(self) -> bool:
        """Whether that task has ended, or another worker runs it, so that nothing more may happen here."""
        ...

    async def keep(self) -> None:
        """Keep what the journal holds now, before anything else happens."""
        ...

    def say(self, message: str) -> None:
        """Tell whoever asks for the task what it is doing."""
        ...


OPEN: Any = object()
"""Stands for the answer of an ask that the client has to be asked."""

_NONE: set[asyncio.Task[Any]] = set()
NO_REPORTS = Reports()


class Round:
    """What happens in one round.

    Args:
        call: the request.
        journal: what the flow remembers; updated as the round goes on.
        threads: runs plain functions.
        name: what the handler is registered as, for the log.
        takes_early: whether answers that come without a state count at all.
        callbacks: makes the links of asks that a page answers; None where there are none.
        reports: what such pages have reported.
        should_yield: says whether the round is to end at its next boundary and go on elsewhere, in a round of its own.
        background: the task that the flow is, or may become; None if it must not become one.
    """

    def __init__(
        self,
        call: Call,
        journal: Journal,
        threads: Threads,
        name: str,
        *,
        takes_early: bool = True,
        callbacks: Callbacks | None = None,
        reports: Reports = NO_REPORTS,
        should_yield: Callable[[], bool] = lambda: False,
        background: Background | None = None,
    ) -> None:
        self.call = call
        self.journal = journal
        self.name = name
        self.asked: dict[str, Question] = {}
        self.missing: list[str] = []
        self.refusal: Refusal | None = None
        self.fault: FlowError | None = None
        self.failure: BaseException | None = None
        self.activity = 0
        self.parked: list[asyncio.Task[Any]] = []
        self.reserved: Container[str] = ()
        self.closed = False
        self.end: Literal["", "parked", "cancelled"] = ""
        self.in_teardown = False
        self.main: asyncio.Task[Any] | None = None
        self.handed_over = False
        self._callbacks = callbacks
        self._reports = reports
        self.backgrounded = False
        self._should_yield = should_yield
        self._background = background
        self._threads = threads
        self._early = call.answers or {} if takes_early and call.state is None else {}
        self._steps: Steps | None = None
        self._claimed: dict[str, str] = {}
        self._reasons: dict[str, str] = {}
        self._read: dict[str, set[str]] = {}
        self._abandoned = False
        self._unawaited: dict[int, CallSite] = {}
        self._awaitables = 0
        self._woken: asyncio.Future[None] | None = None

    # What the runner watches

    @property
    def running(self) -> set[asyncio.Task[Any]]:
        """The steps that are running now."""
        return self._steps.running if self._steps is not None else _NONE

    @property
    def ending(self) -> bool:
        """Whether nothing new may begin: the call ends with this round, or its author gave up on an open ask."""
        over = self._has_left() or self.backgrounded
        return bool(over or self.missing or self.refusal or self.fault or self.failure or self._abandoned)

    def wake(self, _: Any = None) -> None:
        """Tell the runner that something has changed."""
        self.activity += 1
        if self._woken is not None and not self._woken.done():
            self._woken.set_result(None)

    async def changed(self) -> None:
        """Wait until something changes."""
        self._woken = asyncio.get_running_loop().create_future()
        await self._woken

    def begin_teardown(self) -> None:
        """Tell the runner that the handler is over, and its dependencies are being left: that is waited for."""
        self.in_teardown = True
        self.wake()

    def check_awaited(self) -> None:
        """End the flow if the handler returned without having awaited all that it called."""
        if self._unawaited and not self.asked and not self.ending:
            site = next(iter(self._unawaited.values()))
            call = f"ctx.{site[-1].co_name}"
            self.fault = MisplacedCall(
                f"{call}() was called but never awaited; write `await {call}(...)`: {format_call_site(site)}"
            )

    def fail(self, error: FlowError) -> FlowError:
        """End the flow for a mistake in the handler's code, whatever the handler makes of the error."""
        if self.fault is None:
            # The error does not pass through the handler's frames, so the stack says where it comes from.
            if calls := format_stack():
                error.add_note(f"Called from:\n{calls}".rstrip())
            self.fault = error
        return error

    async def _park(self) -> Any:
        """Never return, except to end the handler with the round."""
        if (task := asyncio.current_task()) is not None:
            self.parked.append(task)
        self.wake()
        while True:
            try:
                await asyncio.get_running_loop().create_future()
            except asyncio.CancelledError:
                if self.closed:
                    raise
                # A timeout, or a sibling that failed: its owner would take the open question for answered.
                self._abandoned = True

    def _refuse(self, what: str) -> None:
        """Refuse an ask or a step where there can be none, and where it can't park either: by an exception."""
        if self.in_teardown and asyncio.current_task() is self.main:
            message = f"{what} was called after the yield of a dependency; by then the round has ended"
            raise self.fail(MisplacedCall(message))
        if self.closed:
            logger.error(
                "%s %r continued after its round had ended: it caught the cancellation and called %s. Re-raise "
                "asyncio.CancelledError in handlers.",
                self.call.method,
                self.name,
                what,
            )
            raise asyncio.CancelledError("the round has ended")
        if step := current_step.get():
            message = f"{what} was called inside the step {step!r}; a step can't contain an ask or another step"
            raise self.fail(MisplacedCall(message))
        if self.main is not None and asyncio.get_running_loop() is not self.main.get_loop():
            raise self.fail(MisplacedCall(f"{what} was called on another event loop than its handler's"))

    def refuse_plain(self, what: str) -> CallEnded:
        """End the flow, since a function that can't await has called what must be awaited."""
        message = f"{what} was called in a plain `def`; make the handler `async def`"
        if what == "an ask":
            message += ", or return InputRequired"
        self.fail(MisplacedCall(message))
        return CallEnded(message)

    def awaited(self, work: Callable[[], Coroutine[Any, Any, Any]]) -> Coroutine[Any, Any, Any]:
        """Give the coroutine of an ask or a step, and note whether it is awaited."""
        self._awaitables += 1
        self._unawaited[self._awaitables] = site = call_site()
        coroutine: Any = self._counted(self._awaitables, work)
        coroutine.__qualname__ = site[-1].co_qualname  # for Python's own warning of what is never awaited
        return cast(Coroutine[Any, Any, Any], coroutine)

    async def _counted(self, number: int, work: Callable[[], Coroutine[Any, Any, Any]]) -> Any:
        del self._unawaited[number]
        return await work()

    # Asks

    async def ask(self, make: Callable[[], list[tuple[str | None, Ask[Any]]]]) -> list[Any]:
        """Give the answers of several asks, or park: the client has to be asked for those that are missing."""
        self._refuse("an ask")
        answers = self._looked(lambda: [self._inline(key or ask.key, ask) for key, ask in make()])
        if self.ending or OPEN in answers:
            await self._park()
        return answers

    def answer(self, key: str, ask: Ask[Any], question: Question, read: Callable[[JSON], Any]) -> Any:
        """Give the answer to a declared ask, or `OPEN`: the client has to be asked."""
        found = self._looked(lambda: [self._answer(self._claim(key, "", question), ask, question, read)])
        return found[0] if found else OPEN

    def _looked(self, look: Callable[[], list[Any]]) -> list[Any]:
        """Look answers up; give none if the call ends, or has ended before.

        Asks side by side are all looked at, so that an error can name all that is missing.
        """
        if not (self.refusal or self.fault or self._abandoned):
            try:
                return look()
            except FlowError as conflict:
                self.fail(conflict)
            except SetupError as mistake:
                self.fail(FlowError(str(mistake)))
            except Exception as unexpected:  # of the model's own code; its text may hold the answer
                self.fail(FlowError(f"Reading an answer failed with {type(unexpected).__name__}"))
        return []

    def _inline(self, given_key: str | None, ask: Ask[Any]) -> Any:
        question = ask.question()
        key = self._claim(given_key, ask.default_key, question)
        return self._answer(key, ask, question, ask.parse)

    def _answer(self, key: str, ask: Ask[Any], question: Question, read: Callable[[JSON], Any]) -> Any:
        raw = self._kept(key, question, ask.needs_state)
        if raw is not None:
            try:
                return read(raw)
            except Refusal as refusal:
                self.refusal = self.refusal or refusal
                return OPEN
            except InvalidAnswer as misfit:
                question = question.because(misfit.reason)
        self.journal.forget(key, question.digest)
        self._send(key, ask, question)
        return OPEN

    def _kept(self, key: str, question: Question, needs_state: bool) -> JSON | None:
        raw = self.journal.answer(key, question.digest)
        if raw is None:
            return self._take_early(key, question.digest, needs_state)
        return self._reports.found.get((key, question.digest), raw)

    def _take_early(self, key: str, digest: str, needs_state: bool) -> JSON | None:
        """Give an answer that came without a state, if it may count; it is kept for later rounds."""
        if needs_state or key not in self._early:
            return None
        self.journal.keep(key, digest, self._early[key])
        return self._early[key]

    def _send(self, key: str, ask: Ask[Any], question: Question) -> None:
        if not self.call.client.supports(question.needs):
            self.missing.append(question.needs)
        else:
            self.asked[key] = self._leading_back(key, ask, question) if isinstance(ask, ElicitUrl) else question

    def _leading_back(self, key: str, ask: ElicitUrl[Any], question: Question) -> Question:
        if ask.callback is None:
            return question
        if self._callbacks is None:
            raise FlowError(f"This server has no callback {ask.callback.name!r}; register it with @app.callback")
        back = self._callbacks.callback_link(ask.callback, key, question.digest, self.call, self.journal)
        unfinished = (key, question.digest) in self._reports.unfinished
        return ask.leading(question.because(UNFINISHED if unfinished else ""), back)

    def _claim(self, given_key: str | None, default: str, question: Question) -> str:
        """Give the ask its key: its own, or the first of its default keys that is free and fits the journal best."""
        key = self._default_key(default, question) if given_key is None else given_key
        self._refuse_other_question(key, question)
        self._refuse_step_key(key)
        self._claimed[key] = question.digest
        return key

    def _refuse_other_question(self, key: str, question: Question) -> None:
        if self._claimed.get(key, question.digest) != question.digest:
            raise KeyConflict(
                f"The key {key!r} is used for two different questions in one round; give one of them another key="
            )

    def _refuse_step_key(self, key: str) -> None:
        if key in self.journal.steps or (self._steps is not None and key in self._steps.started):
            raise KeyConflict(f"An ask and a step both have the key {key!r}; give one of them another key=")

    def _default_key(self, base: str, question: Question) -> str:
        free = ""
        count = 1
        while True:
            key = base if count == 1 else f"{base}_{count}"
            if key not in self._claimed and key not in self.reserved:
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
        question = ""
        try:
            question, raw, read = self._find_input(key, asked)
            if raw is None:
                return None
            self._read.setdefault(key, set()).add(question)
            return read(raw)
        except Refusal as refusal:
            self.refusal = self.refusal or refusal
            raise
        except InvalidAnswer as misfit:
            self._reasons[key] = misfit.reason
            self.journal.forget(key, question)
            return None
        except Exception as error:
            detail = str(error) if isinstance(error, SetupError | FlowError) else type(error).__name__
            raise CallEnded(str(self.fail(FlowError(f"inputs.get({key!r}, ...) failed: {detail}")))) from None

    def _find_input(self, key: str, asked: Any) -> tuple[str, JSON | None, Callable[[JSON], Any]]:
        """Find the answer for a key: the digest of its question, the answer if there is one, and what reads it."""
        if isinstance(asked, Ask):
            question = asked.question()
            return question.digest, self._kept(key, question, asked.needs_state), asked.parse
        kind, shape, read = reader(asked)
        found = self.journal.newest_answer(key, kind, shape)
        if found is None:
            digest = f"{kind}..{shape or ''}"
            return digest, self._take_early(key, digest, shape == CONFIRMATION_SHAPE), read
        return *found, read

    def require(self, required: InputRequired) -> None:
        """Take what a pure function returned: ask what is not answered yet. Raises `KeyConflict`."""
        questions = {key: ask.question() for key, ask in required.asks.items()}
        open_ = {key: q for key, q in questions.items() if self.journal.answer(key, q.digest) is None}
        # A function that asks only what has been answered saw the answers and wants others.
        for key, question in (open_ or questions).items():
            self._refuse_other_question(key, question)
            self._refuse_step_key(key)
            for digest in (question.digest, *self._read.get(key, ())):
                self.journal.forget(key, digest)
            self._send(key, required.asks[key], question.because(self._reasons.get(key, "")))

    # Steps

    def step(
        self, function: Callable[..., Any], args: tuple[Any, ...], kwargs: JSON, key: str | None, rerun: bool
    ) -> Coroutine[Any, Any, Any]:
        """Run a function once in the flow, or give what it returned when it ran; see `Steps`."""
        if self._steps is None:
            keep = self._keep if self.task is not None else None
            self._steps = Steps(self.journal, self._threads, self.main, self._claimed, self.wake, keep)
        steps = self._steps
        planned = steps.plan(function, args, kwargs, key, rerun)
        return self.awaited(lambda: self._step(steps, planned))

    async def checkpoint(self) -> None:
        """Park if the flow is to go on elsewhere; otherwise do nothing."""
        self._refuse("a checkpoint")
        if self._leaves():
            await self._park()

    @property
    def task(self) -> Background | None:
        """The task that the flow is; None in the foreground."""
        return self._background if self._background is not None and self._background.started else None

    async def go_on_in_background(self) -> None:
        """Park if the flow becomes a task here; in a task, and where there can be none, do nothing."""
        self._refuse("ctx.background()")
        if self._background is not None and not self._background.started:
            if not self.ending:
                self.backgrounded = True
            await self._park()

    def _has_left(self) -> bool:
        """Whether the flow goes on elsewhere, or not at all."""
        if self._background is not None and self._background.lost:
            self.handed_over = True
        return self.handed_over

    def _leaves(self) -> bool:
        """Whether the round ends here, at a boundary, with what the journal holds."""
        if not self.ending and self._should_yield():
            self.handed_over = True
        return self._has_left()

    async def _keep(self) -> None:
        """Keep what a step has done, before its result goes on."""
        if self.task is not None:
            try:
                await self.task.keep()
            except Exception as error:  # the handler must not go on without
                self.failure = self.failure or error

    async def _step(self, steps: Steps, planned: Planned) -> Any:
        self._refuse("a step")
        if not self.ending and not (steps.is_new(planned) and self._leaves()):
            try:
                result = await steps.run(planned)
                if self.task is None or not self.ending:
                    return result
            except FlowError as mistake:
                self.fail(mistake)
            except Exception:
                # Beside an open ask the failure is not handed on: whoever handles it would go on without the answer.
                # The step runs again in the next round, and fails again when the answer is there.
                if not self.asked and not self.ending:
                    raise
        return await self._park()


class _JournalInputs(Inputs):
    """The answers that a journal holds."""

    __slots__ = ("_round",)

    def __init__(self, round_: Round) -> None:
        self._round = round_

    def get(self, key: str, asked: Any, /) -> Any:
        return self._round.read_input(key, asked)
