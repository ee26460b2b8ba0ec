"""Pure functions: they read their answers from the journal, and return what they want to ask. They never wait."""

import logging
from functools import partial
from inspect import isawaitable
from types import CoroutineType
from typing import Any

from pydantic import ValidationError

from ..concurrency.threads import Threads, failure_of
from ..errors import CallEnded, FlowError, InvalidAnswer, Refusal, SetupError
from ..logs.failures import calls_author
from ..protocol.messages import JSON, Question
from ..well_formed import escape_halves
from .asks import CONFIRMATION_SHAPES, Ask, InputRequired, Inputs, State, reader
from .endings import Completed, Failed, Refused, RoundEnd, YieldReason
from .handler import Handler
from .journal import UNSET
from .round import Round

logger = logging.getLogger("mrtr_server")

_NO_END = Completed(None)


@calls_author
async def run_pure(handler: Handler, arguments: JSON, round_: Round, threads: Threads) -> RoundEnd:
    keywords, inputs = fill_in(handler, arguments, round_)
    try:  # as in `call_function`, which would be one more coroutine
        function = handler.function
        result = function(**keywords) if handler.is_async else await threads(partial(function, **keywords))
        result = await result if type(result) is CoroutineType or isawaitable(result) else result
    except BaseException as error:
        return conclude_error(round_, failure_of(error, handler.name))
    if isinstance(result, InputRequired):
        return conclude_asking(handler, round_, result, inputs)
    return round_.conclude(Completed(result))


def fill_in(handler: Handler, arguments: JSON, round_: Round) -> tuple[JSON, "JournalInputs | None"]:
    """Return the arguments of a handler with its `Inputs` and its `State`, and the former by themselves."""
    keywords, inputs = arguments.copy(), None
    if handler.inputs is not None:
        keywords[handler.inputs] = inputs = JournalInputs(round_)
    if handler.state is not None:
        keywords[handler.state] = _own_state(handler, round_)
    return keywords, inputs


def conclude_asking(
    handler: Handler, round_: Round, required: InputRequired, inputs: "JournalInputs | None" = None
) -> RoundEnd:
    if not round_.asked:
        _require(handler, required, round_, inputs)
    if not round_.asked:
        round_.leave(YieldReason.OWN_STATE)
    return round_.conclude(_NO_END)


def ended_by(error: BaseException) -> Refused | Failed:
    """Return how a call ends whose handler has raised. Raises the error if it ends more than the call."""
    if isinstance(error, Refusal):
        return Refused(error)
    if isinstance(error, Exception):
        return Failed(error)
    raise error


def conclude_error(round_: Round, error: BaseException) -> RoundEnd:
    is_end = isinstance(error, CallEnded | BaseExceptionGroup) and not isinstance(error, Exception | Refusal)
    own = _NO_END if is_end and (round_.ending or round_.asked) else ended_by(error)
    return round_.conclude(own)


def _require(handler: Handler, required: InputRequired, round_: Round, inputs: "JournalInputs | None") -> None:
    if required.state is not UNSET:
        try:
            what = f"The state of {handler.name!r}"
            (round_.journal.state, round_.journal.exact_state), _ = handler.stored_state.keep(required.state, what)
        except Exception:  # of the type's own code, too
            round_.fail("InputRequired(state=...) can't be kept as its declared type")
            return
    elif not required.asks:
        round_.fail("InputRequired() has neither an ask nor a state, so nothing would change")
        return
    try:
        _ask(handler, required, round_, inputs)
    except (FlowError, SetupError) as mistake:
        round_.fail(mistake)


def _ask(handler: Handler, required: InputRequired, round_: Round, inputs: "JournalInputs | None") -> None:
    """Ask what is not answered yet.

    A function that asks only what has been answered saw the answers and wants others: those to the questions that are
    new, if there are any, and else to all of them.
    """
    asked = {key: (ask, ask.question()) for key, ask in required.asks.items()}
    open_ = {key: each for key, each in asked.items() if not _is_answered(handler, key, *each, round_, inputs)}
    answers = round_.journal.answers
    new = {key: each for key, each in asked.items() if each[1].digest not in answers.get(key, ())}
    for key, (ask, question) in (open_ or new or asked).items():
        if inputs is None:
            round_.require(key, ask, question)
        else:
            round_.require(key, ask, question, inputs.read, inputs.reasons.get(key, ""))


def _is_answered(
    handler: Handler, key: str, ask: Ask[Any], question: Question, round_: Round, inputs: "JournalInputs | None"
) -> bool:
    if question.digest in round_.journal.answers.get(key, ()):
        return True
    if inputs is not None and any(key == name for name, _ in inputs.read):
        return not handler.single_use and inputs.found(key, question)
    # One that came without a state, and that the function has not come to read.
    return round_.take_early(key, question.digest, ask.needs_state) is not None


class JournalInputs(Inputs):
    __slots__ = ("_found", "_round", "read", "reasons")

    def __init__(self, round_: Round) -> None:
        self._round = round_
        self._found: set[tuple[str, str, str | None]] = set()
        """Answers that were read by their model alone: key, kind and shape of each; the shape is None for any."""
        self.read: list[tuple[str, str]] = []
        """The questions whose answers were read, by key and digest; some may be there twice."""
        self.reasons: dict[str, str] = {}

    def get(self, key: str, asked: Any, /) -> Any:
        key, question, raw = escape_halves(key), "", None
        try:
            question, raw, read = self._find(key, asked)
            if raw is None:
                return None
            self.read.append((key, question))
            answer = read(raw)
            if not isinstance(asked, Ask):
                self._found.add((key, *reader(asked)[:2]))
            return answer
        except Refusal as refusal:
            self._round.refuse(refusal)
            raise
        except InvalidAnswer as misfit:
            if not self._round.take_misfit(key, question, raw or {}, misfit.reason):
                raise CallEnded(misfit.reason) from None
            self.reasons[key] = misfit.reason
            return None
        except Exception as error:
            detail = str(error) if isinstance(error, SetupError | FlowError) else type(error).__name__
            raise CallEnded(str(self._round.fail(f"inputs.get({key!r}, ...) failed: {detail}"))) from None

    def found(self, key: str, question: Question) -> bool:
        """Whether an answer was read by its model that is one to this question, whatever the message."""
        kind = question.kind
        return (key, kind, question.shape) in self._found or (key, kind, None) in self._found

    def _find(self, key: str, asked: Any) -> tuple[str, JSON | None, Any]:
        """Return the digest of a question, its answer if there is one, and what reads it."""
        round_ = self._round
        if isinstance(asked, Ask):
            question = asked.question()
            return question.digest, round_.kept(key, question, asked.needs_state), asked.parse
        kind, shape, read = reader(asked)
        found = round_.journal.newest_answer(key, kind, shape) if round_.journal.answers else None
        if found is None:
            if not round_.early:
                return "", None, read
            digest = f"{kind}..{shape or ''}"
            return digest, round_.take_early(key, digest, shape in CONFIRMATION_SHAPES), read
        return *found, read


def _own_state(handler: Handler, round_: Round) -> State[Any]:
    stored = round_.journal.state
    if stored is UNSET:
        return State()
    try:
        return State(handler.stored_state.load(stored, round_.journal.exact_state))
    except Exception as error:
        # Another version of the handler kept it; should that continue the flow, it finds it unless we keep another.
        logger.warning(
            "%s %r: the kept state no longer fits the type of %r (%s), so it is None",
            round_.call.method,
            round_.name,
            handler.state,
            ", ".join(_problems(error)),
        )
        return State()


def _problems(error: Exception) -> list[str]:
    """Return what kinds of problems there are; where they are, may be part of a value."""
    if isinstance(error, ValidationError):
        return sorted({problem["type"] for problem in error.errors()})
    return [type(error).__name__]
