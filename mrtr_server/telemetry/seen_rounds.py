"""Rounds as the author of their handlers sees them: what was answered, which steps ran, what was asked, and the end.

One observer in the process is notified of each. Without one, calls cost nothing more.
"""

import time
from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

from ..errors import RequestError
from ..flow.asks import PLAIN_SHAPE
from ..flow.endings import Asking
from ..flow.journal import CONFIRMATION, Journal
from ..flow.steps import step_watcher
from ..protocol.call_facts import CallFacts
from ..protocol.messages import (
    ASKING_METHODS,
    JSON,
    Call,
    Complete,
    NeedsInput,
    Outlet,
    Question,
    action_of,
    kind_of,
)
from ..storage.base import TaskRow

T = TypeVar("T")


@dataclass(slots=True, eq=False)
class SeenRound:
    """A round of a flow, or a request that has no rounds; filled in as it proceeds.

    Args:
        method: the method of the request; of a round of a task, that of the request which it came from.
        target: the tool's or prompt's name, or the resource's URI, as the client sent it.
        task: what the log calls the task whose round it is; empty for a request.
        number: which round of its flow it is, from 1 on; 0 in a task.
        answered: the outcomes of questions, by key: `"accept"`, `"decline"`, `"cancel"` or `"answered"`; of
            confirmations `"yes"` or `"no"`.
        steps: the steps that were called, in their order, each with whether it ran; if not, its result was replayed.
        asked: what it asks in the end, by key.
        outcome: what it ended with; None where it failed or was cancelled.
        error: why it failed.
        seconds: how long it took.
        notes: what else an observer has to say of it.
    """

    method: str
    target: str
    task: str = ""
    number: int = 0
    answered: dict[str, str] = field(default_factory=dict)
    steps: list[tuple[str, bool]] = field(default_factory=list)
    asked: dict[str, Question] = field(default_factory=dict)
    outcome: object = None
    error: BaseException | None = None
    seconds: float = 0.0
    notes: dict[str, Any] = field(default_factory=dict)

    @property
    def is_round(self) -> bool:
        """Whether a handler runs in it."""
        return bool(self.task) or self.method in ASKING_METHODS

    @property
    def runs_again(self) -> bool:
        """Whether its flow has not come to its end, so that the handler is to run again from the top."""
        return self.error is None and not isinstance(self.outcome, Complete | RequestError)


class RoundObserver(Protocol):
    """Is told of each request, and of each round of a task."""

    def begin(self, seen: SeenRound) -> None:
        """Note that it begins. `current_round` is set for all that runs in it."""
        ...

    def end(self, seen: SeenRound) -> None:
        """Note that it has ended."""
        ...


current_round: ContextVar[SeenRound | None] = ContextVar("mrtr_server_seen_round", default=None)
"""The round that the code runs in, where there is an observer."""

_observer: RoundObserver | None = None


def set_round_observer(observer: RoundObserver | None) -> None:
    """Show an observer the rounds of every server of this process that starts from now on.

    Args:
        observer: receives them; None for nobody.
    """
    global _observer
    _observer = observer


def round_observer() -> RoundObserver | None:
    """Return who observes rounds in this process; None for nobody."""
    return _observer


class SeenRounds:
    """Shows requests, and rounds of tasks, to an observer.

    Args:
        observer: receives them.
    """

    def __init__(self, observer: RoundObserver) -> None:
        self._observer = observer
        self._known: dict[str, set[tuple[str, str]]] = {}
        """The answers that the journal of each task had after its last round here, by the task's reference."""

    async def serve(self, method: Callable[[Call, Outlet], Awaitable[T]], call: Call, outlet: Outlet) -> T:
        """Serve a call, and show it; see `Dispatcher.observe`."""
        call.facts = CallFacts()
        seen = SeenRound(call.method, call.target)

        def finish() -> None:
            facts = call.facts or CallFacts()
            if seen.is_round:
                seen.number = facts.rounds + 1
            # A request without a state answers questions that were not asked yet.
            counted = (call.answers or {}).items()
            seen.answered = {
                key: _came_of(facts.asked.get(key, ""), raw)
                for key, raw in counted
                if not facts.rounds or key in facts.asked
            }
            if isinstance(seen.outcome, NeedsInput):
                seen.asked = dict(seen.outcome.questions)

        return await self._see(seen, lambda: method(call, outlet), finish)

    async def serve_task(self, call: Call, journal: Journal, row: TaskRow, work: Callable[[], Awaitable[T]]) -> T:
        """Run a round of a task, and show it; see `BackgroundTools.observe`."""
        seen = SeenRound(call.method, call.target, row.reference)
        known = self._known.pop(row.reference, None)
        if known is None:
            known = _answers_of(journal)

        def finish() -> None:
            now = _answers_of(journal)
            seen.answered = {
                key: _came_of(question, journal.answers[key][question]) for key, question in sorted(now - known)
            }
            if isinstance(seen.outcome, Asking):
                seen.asked = dict(seen.outcome.questions)
            if seen.runs_again:
                self._known[row.reference] = now

        return await self._see(seen, work, finish)

    async def _see(self, seen: SeenRound, work: Callable[[], Awaitable[T]], finish: Callable[[], None]) -> T:
        before = step_watcher.get()

        def note_step(step: str, runs: bool) -> None:
            seen.steps.append((step, runs))
            if before is not None:
                before(step, runs)

        current_round.set(seen)
        step_watcher.set(note_step)
        began = time.perf_counter()
        self._observer.begin(seen)
        try:
            outcome = await work()
            seen.outcome = outcome
            return outcome
        except BaseException as error:
            seen.error = error
            raise
        finally:
            seen.seconds = time.perf_counter() - began
            current_round.set(None)  # no tokens: a task that is abandoned ends in another context
            step_watcher.set(before)
            finish()
            self._observer.end(seen)


def _came_of(question: str, answer: JSON) -> str:
    """Return the outcome of a question, in a word.

    Args:
        question: its digest; empty where it is not known.
        answer: what the client sent.
    """
    action = action_of(answer)
    if action != "accept" or kind_of(question) != CONFIRMATION:
        return action
    content = answer.get("content")
    confirmed = content.get("confirm") if isinstance(content, dict) else None
    if confirmed is None and question.endswith(PLAIN_SHAPE):
        return "yes"
    return "yes" if confirmed is True else "no" if confirmed is False else action


def _answers_of(journal: Journal) -> set[tuple[str, str]]:
    return {(key, question) for key, answers in journal.answers.items() for question in answers}
