"""What HTTP and standard streams do alike with a request: its end at a shutdown, why it was refused, its notes."""

import asyncio
import logging
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import fields
from typing import Any

from .. import errors
from ..concurrency.running import PerLoop, running_loop
from ..concurrency.shutdown import ShutdownDeadline
from ..limits import Limits
from ..live.events import NONE_YET, Origin
from ..logs.failures import report_failure
from ..logs.refusals import RefusalLog
from ..protocol.callers import ClientInfo
from ..protocol.envelope import read_message
from ..protocol.handshake import HandshakeDialect
from ..protocol.messages import JSON, LOG_LEVELS, Call, LogLevel, LogMessage, PageReported, Piece, Progress, Question
from ..protocol.sessions import NO_SESSION, Session
from ..telemetry.names import reason_of

logger = logging.getLogger("mrtr_server")


STEP = 1e-6  # by how much progress grows that only shows that the call is still open

_LIMITS = frozenset(each.name for each in fields(Limits))


class InFlight:
    """Knows the task of each request, and cancels the requests that a shutdown has no time left for.

    It does so twice: the first time lets a running step end, the second time, halfway to the deadline, does not.
    """

    def __init__(self, shutdown: ShutdownDeadline) -> None:
        self._shutdown = shutdown
        self._requests: set[asyncio.Task[object]] = set()
        self._cut: dict[asyncio.Task[object], int] = {}  # how often a request was cancelled
        self._armed = PerLoop[float]()  # for which shutdown an event loop has its timers, by when that began
        shutdown.on_begin(self._begin)

    def enter(self, request: "asyncio.Task[object]") -> None:
        self._requests.add(request)
        if self._shutdown.began is not None:
            self._arm()

    def leave(self, request: "asyncio.Task[object]") -> bool:
        """Note that a request has ended, and return whether the shutdown had cancelled it; `forgive` undoes that."""
        self._requests.discard(request)
        return bool(self._cut) and self.forgive(request)

    def forgive(self, request: "asyncio.Task[object]") -> bool:
        """Undo the shutdown's cancellation of a request, so that it can be answered; return whether there was one."""
        times = self._cut.pop(request, 0)
        for _ in range(times):
            request.uncancel()
        return times > 0

    def cut_off(self, step_timeout: float) -> None:
        """Cancel all requests of this event loop, once the shutdown has begun; a step has `step_timeout` seconds."""
        began, loop = self._shutdown.began, asyncio.get_running_loop()
        if began is not None:
            self._cut_off(loop, began)
            loop.call_later(step_timeout, self._cut_off, loop, began)

    def _begin(self) -> None:
        for loop in {request.get_loop() for request in tuple(self._requests)}:
            with suppress(RuntimeError):  # it has ended
                loop.call_soon_threadsafe(self._arm)

    def _arm(self) -> None:
        began, loop = self._shutdown.began, running_loop()
        if began is None or self._armed.get() == began:
            return
        self._armed.put(began)
        first, end = self._shutdown.until_cut_off(), self._shutdown.left()
        for seconds in (first, (first + end) / 2, end):
            loop.call_later(seconds, self._cut_off, loop, began)

    def _cut_off(self, loop: asyncio.AbstractEventLoop, began: float) -> None:
        if self._shutdown.began != began:  # the server has restarted meanwhile
            return
        for request in [each for each in self._requests if each.get_loop() is loop]:
            self._cut[request] = self._cut.get(request, 0) + 1
            request.cancel()


def note_refusal(refusals: RefusalLog, call: Call | None, error: errors.RequestError) -> None:
    failed = errors.InternalFault | errors.ProtocolError | errors.Declined | errors.CutOff
    if not isinstance(error, failed):
        refusals.count(*_counted(error))
    if isinstance(error, errors.AnswerNotShared):
        refusals.note(
            "Refused an answer to a question that another process asks: they share no database, so that call never "
            "gets its answer. Set MRTR_DATABASE_URL for all replicas"
        )
    elif isinstance(error, errors.MissingCapability):
        what = f"{call.method} {_shown(call)}" if call is not None else "a request about tasks"
        client = call.client if call is not None else ClientInfo()
        refusals.note_lacking(what, client.name, error, has_declared=client is not NO_SESSION.client)
    elif isinstance(error, errors.Full):
        refusals.note("%s was refused: %s of Limits(%s=...)", named(call), error.used_up_by, error.limit)
    elif isinstance(error, errors.RateLimited):
        refusals.note("%s was refused: its rate limit is used up: %s, %s", named(call), error.limit, error.rate)


def failure_of(refusals: RefusalLog, call: Call | None, error: Exception) -> errors.RequestError:
    if not isinstance(error, errors.RequestError):
        return errors.InternalFault(report_failure("A request failed", error=error))
    note_refusal(refusals, call, error)
    return error


def _counted(error: errors.RequestError) -> tuple[str, str]:
    """Return why a request was refused, in a word, and the limit that it is over, if it is one."""
    if isinstance(error, errors.InvalidRequestState):
        return error.fault, ""
    if isinstance(error, errors.RateLimited):
        return reason_of(error), error.limit
    limited = isinstance(error, errors.OverBudget | errors.Busy | errors.PayloadTooLarge)
    limit = str((error.data or {}).get("limit", ""))
    # An error of an extension may be of others, so only a limit of ours is a label.
    return reason_of(error), limit if limited or limit in _LIMITS else ""


def note_cancellation(params: Mapping[str, Any]) -> None:
    """Log why a client cancels a request, if it says so (Cancellation, Implementation Notes)."""
    reason = params.get("reason")
    if isinstance(reason, str):
        logger.debug("A client cancels a request: %.200s", reason)


def named(call: Call | None) -> str:
    return f"{call.method} {_shown(call)!r}" if call is not None else "A request that was still coming in"


def _shown(call: Call) -> str:
    """Return what the log shows of what a request is about: not the whole id of a task, which may protect it alone."""
    return call.target[: 8 if call.method.startswith("tasks/") else 200]


class OpenCallNotes:
    """What the connections of the handshake era have in common, whatever they write to; see `Channel`."""

    form: HandshakeDialect  # of the version that the client speaks
    session: Session
    call: Call | None = None
    gone: bool
    _then: Callable[[], object] | None = None
    _body = b""  # the request as it came, until the origin is made of it
    _origin: Origin | None = None
    progress = NONE_YET  # the progress that was sent last
    _reported: frozenset[str] = frozenset()  # the pages that the client knows to have reported

    # The request

    def origin(self) -> Origin:
        if self._origin is None:
            message, session = read_message(self._body), self.session
            client = session.client if self.call is None else self.call.client
            session = session.of(self.form.form.name, client)
            self._origin = Origin(message["method"], message.get("params", {}), message["id"], session)
            self._body = b""
        return self._origin

    def load(
        self, origin: Origin, state: str | None = None, answers: Mapping[str, JSON] | None = None, grace: float = 0.0
    ) -> Call:
        call = self.call
        assert call is not None  # noqa: S101  it is that of this very request, so all else is as it was
        return self.form.load_again(call, origin.params_to_use(), state, answers, grace)

    def on_gone(self, then: Callable[[], object] | None) -> None:
        self._then = then
        if self.gone and then is not None:
            then()

    # Notes

    def check(self, question: Question) -> None:
        self.dump_question("", question)

    def dump_question(self, id: str, question: Question) -> bytes:
        client = self.session.client if self.call is None else self.call.client
        return self.form.dump_question(id, question, client)

    def take_news(self, note: Progress | PageReported | Piece) -> bool:
        """Return whether the client does not know a note yet, and note that it does from now on.

        Progress grows with each note (Progress, Behavior Requirements). A page reports once. A flow's journal knows
        which pieces were sent.
        """
        if isinstance(note, Progress):
            is_news = note.progress > self.progress
            if is_news:
                self.progress = note.progress
        elif isinstance(note, Piece):
            is_news = True
        else:
            is_news = note.page not in self._reported
            self._reported |= {note.page}
        return is_news

    def take_step(self, token: str | int) -> Progress:
        self.progress = max(self.progress, 0.0) + STEP
        return Progress(token, self.progress)


def is_wanted(note: LogMessage, level: LogLevel) -> bool:
    return LOG_LEVELS.index(note.level) >= LOG_LEVELS.index(level)
