"""One round of a flow: what the journal can answer, what has to be asked, which steps run.

An ask that can't be answered *parks*: it never returns. The runner sees that, lets running steps finish, and ends the
round by cancelling the handler. So nothing after an unanswered ask runs, whatever the code around it catches.
"""

import asyncio
import inspect
import logging
from collections.abc import Callable, Coroutine
from contextlib import suppress
from contextvars import ContextVar
from functools import lru_cache, partial
from typing import Any

from pydantic import ValidationError
from pydantic_core import PydanticSerializationError, to_jsonable_python

from .asks import Ask, InputRequired, Inputs, Refusal, reader
from .digests import digest
from .errors import AnswerMisfit, FlowError, KeyConflict, MisplacedCall, SetupError, StepChanged
from .forms import describe
from .journal import Journal, Step
from .messages import JSON, Call, Question
from .schema import Stored

logger = logging.getLogger("mrtr_server")

Threads = Callable[..., Coroutine[Any, Any, Any]]
"""Runs a plain function in a thread: `await threads(function)`."""

_OPEN: Any = object()

_current_step: ContextVar[str] = ContextVar("mrtr_server_step", default="")


class Branch:
    """The steps of one asyncio task, counted by name, so that branches side by side replay the same."""

    __slots__ = ("counts", "name")

    def __init__(self, name: str) -> None:
        self.name = name
        self.counts: dict[str, int] = {}

    def next_key(self, name: str) -> str:
        """Name the next step of that function: `build`, `build_2`; in a side branch `1/build`, `1/build_2`."""
        count = self.counts[name] = self.counts.get(name, 0) + 1
        numbered = name if count == 1 else f"{name}_{count}"
        return f"{self.name}/{numbered}" if self.name else numbered


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
        self.running: set[asyncio.Task[Any]] = set()
        self.parked: list[asyncio.Task[Any]] = []
        self.closed = False
        self.main: asyncio.Task[Any] | None = None
        self._claimed: dict[str, str] = {}
        self._reasons: dict[str, str] = {}
        self._branches: dict[asyncio.Task[Any], Branch] = {}
        self._steps: dict[str, tuple[dict[str, str], asyncio.Task[Any]]] = {}
        self._woken: asyncio.Future[None] | None = None

    # What the runner watches

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
        if step := _current_step.get():
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
        if key in self.journal.steps or key in self._steps:
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
        """Run a function once in the flow, or give what it returned when it ran."""
        self._refuse_if_closed("a step")
        if self.ending:
            await self.park()
        stored = _stored(function)
        digests = _argument_digests(function, args, kwargs)
        key = key or self._step_key(function, digests)
        if key in self._claimed or key in self.journal.answers:
            raise self.fail(KeyConflict(f"The step {key!r} has the key of the ask {key!r}; give one of them a key="))
        if (record := self.journal.steps.get(key)) is not None:
            if record.arguments == digests:
                return self._recorded(key, stored, record)
            if not rerun:
                raise self.fail(_moved(key, record, digests))
        if key in self._steps:
            started_with, task = self._steps[key]
            if started_with != digests:
                raise self.fail(KeyConflict(f"The key {key!r} is used for two different steps in one run"))
        else:
            task = asyncio.create_task(self._run_step(key, stored, digests, partial(function, *args, **kwargs)))
            self._steps[key] = (digests, task)
            self.running.add(task)
            task.add_done_callback(self._step_done)
            self.wake()
        # Shielded: whatever ends the handler, a step that has begun runs to its end.
        return await asyncio.shield(task)

    def _recorded(self, key: str, stored: Stored, record: Step) -> Any:
        try:
            return stored.read(record.result)
        except ValidationError as error:
            message = f"The recorded result of the step {key!r} is not of its declared type any more: {describe(error)}"
            raise self.fail(StepChanged(message)) from None

    async def _run_step(self, key: str, stored: Stored, digests: dict[str, str], function: partial[Any]) -> Any:
        _current_step.set(key)
        if inspect.iscoroutinefunction(function.func):
            value = await function()
        else:
            value = await self._threads(function)
            if inspect.isawaitable(value):
                value = await value
        try:
            written = stored.write(value)
            value = stored.read(written)
        except (PydanticSerializationError, ValidationError) as error:
            why = describe(error) if isinstance(error, ValidationError) else str(error)
            raise self.fail(
                FlowError(f"The step {key!r} returned what can't be kept as its declared type: {why}")
            ) from None
        self.journal.steps[key] = Step(digests, written)
        return value

    def _step_done(self, task: asyncio.Task[Any]) -> None:
        self.running.discard(task)
        if not task.cancelled():
            task.exception()  # taken here, so that a step nobody waits for any more is not reported as lost
        self.wake()

    def _step_key(self, function: Callable[..., Any], digests: dict[str, str]) -> str:
        name = getattr(function, "__name__", "")
        if not name or name == "<lambda>":
            raise self.fail(
                FlowError("A step that is a lambda or has no name needs a key=; the name is its key otherwise")
            )
        task = asyncio.current_task()
        assert task is not None  # noqa: S101  steps run on the loop
        if task not in self._branches:
            self._branches[task] = Branch(self._branch_name(name, digests, task))
        return self._branches[task].next_key(name)

    def _branch_name(self, name: str, digests: dict[str, str], task: asyncio.Task[Any]) -> str:
        """Name a task: the handler's own is empty, those beside it are numbered as they come.

        Where the order in which branches reach their first step depends on the outside, the recorded arguments of
        that step tell which branch this one was.
        """
        if task is self.main:
            return ""
        taken = {branch.name for branch in self._branches.values()}
        recorded = {key.partition("/")[0] for key in self.journal.steps if "/" in key}
        for candidate in sorted(recorded - taken, key=int):
            record = self.journal.steps.get(f"{candidate}/{name}")
            if record is not None and record.arguments == digests:
                return candidate
        number = 1
        while str(number) in taken:
            number += 1
        return str(number)


class _JournalInputs(Inputs):
    """The answers that a journal holds."""

    __slots__ = ("_round",)

    def __init__(self, round_: Round) -> None:
        self._round = round_

    def get(self, key: str, asked: Any, /) -> Any:
        return self._round.read_input(key, asked)


@lru_cache(maxsize=1024)
def _stored(function: Callable[..., Any]) -> Stored:
    """Find the declared type of a step's result. A class is its own type; what declares nothing gives plain JSON."""
    if inspect.isclass(function):
        return Stored(function)
    try:
        annotation = inspect.signature(function, eval_str=True).return_annotation
    except (TypeError, ValueError, NameError):
        annotation = inspect.Signature.empty
    return Stored(Any if annotation is inspect.Signature.empty else annotation)


@lru_cache(maxsize=1024)
def _signature(function: Callable[..., Any]) -> inspect.Signature | None:
    try:
        return inspect.signature(function)
    except (TypeError, ValueError):
        return None


def _argument_digests(function: Callable[..., Any], args: tuple[Any, ...], kwargs: JSON) -> dict[str, str]:
    named: JSON = {**{str(position): value for position, value in enumerate(args, 1)}, **kwargs}
    signature = _signature(function)
    if signature is not None:
        with suppress(TypeError):  # the call itself will say what is wrong
            named = dict(signature.bind(*args, **kwargs).arguments)
    return {name: _digest_argument(value) for name, value in named.items()}


def _digest_argument(value: Any) -> str:
    # What is no JSON, such as a connection, counts by its type only.
    plain = to_jsonable_python(value, fallback=lambda item: f"<{type(item).__qualname__}>", inf_nan_mode="strings")
    return digest(plain)[:11]


def _moved(key: str, record: Step, digests: dict[str, str]) -> StepChanged:
    moved = sorted(n for n in record.arguments.keys() | digests.keys() if record.arguments.get(n) != digests.get(n))
    return StepChanged(
        f"The step {key!r} has run in an earlier round with another value of {', '.join(map(repr, moved))}. Running it "
        "again would repeat its effect, and its result no longer fits: compute the argument in a step, or pass "
        "rerun=True if the step may run again"
    )
