"""Rounds as the author of their handlers sees them: what was answered, which steps ran, what was asked, and the end."""

import asyncio
from collections.abc import Mapping
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, NamedTuple
from weakref import WeakSet

from ..flow.asks import PLAIN_SHAPE
from ..flow.endings import Asking
from ..flow.journal import CONFIRMATION, Journal
from ..methods.middleware import Came
from ..protocol.messages import ASKING_METHODS, JSON, Call, NeedsInput, Outlet, Question, action_of, kind_of
from ..tasks.task_run import TaskRun


class SourceLine(NamedTuple):
    """A line of the author's code."""

    file: str
    line: int


@dataclass(slots=True, eq=False)
class SeenRound:
    """A round of a flow, or a request that has no rounds.

    Args:
        call: the request; of a round of a task, that which it came from. Its trace says what happened.
        task: what the log calls the task whose round it is; empty for a request.
        answered: the outcomes of questions, by key: `"accept"`, `"decline"`, `"cancel"` or `"answered"`; of
            confirmations `"yes"` or `"no"`.
        came: what it came to.
        reason: why its handler failed, in words; empty where the log has no exception.
        effects: its effects outside of steps: what each is, by its source.
        tasks: the asyncio tasks that run in it.
    """

    call: Call
    task: str = ""
    answered: dict[str, str] = field(default_factory=dict)
    came: Came | None = None
    reason: str = ""
    effects: dict[SourceLine, str] = field(default_factory=dict)
    tasks: "WeakSet[asyncio.Task[Any]]" = field(default_factory=WeakSet)

    @property
    def is_round(self) -> bool:
        """Whether a handler runs in it."""
        return bool(self.task) or self.call.method in ASKING_METHODS

    @property
    def runs_again(self) -> bool:
        """Whether its flow has not come to its end, so that the handler is to run again from the top."""
        return self.call.trace.end in ("asked", "handed_over", "task")

    @property
    def asked(self) -> Mapping[str, Question]:
        """What it asks in the end, by key."""
        return self.came.questions if isinstance(self.came, NeedsInput | Asking) else {}


current_round: ContextVar[SeenRound | None] = ContextVar("mrtr_server_seen_round", default=None)
"""The round that the code runs in, where there is a console."""


class Answers:
    """Finds out what was answered in a round."""

    def __init__(self) -> None:
        self._known: dict[str, set[tuple[str, str]]] = {}
        """The answers that the journal of each task had after its last round here, by the task's reference."""

    def begin(self, call: Call, outlet: Outlet) -> SeenRound:
        """Return a round that begins."""
        if not isinstance(outlet, TaskRun):
            return SeenRound(call)
        self._known.setdefault(outlet.row.reference, _answers_in(outlet.journal))
        return SeenRound(call, outlet.row.reference)

    def end(self, seen: SeenRound, outlet: Outlet) -> None:
        """Note in a round that has ended what was answered in it."""
        call, trace = seen.call, seen.call.trace
        if isinstance(outlet, TaskRun):
            journal, known = outlet.journal, self._known.pop(seen.task)
            now = _answers_in(journal)
            seen.answered = {
                key: _word(question, journal.answers[key][question]) for key, question in sorted(now - known)
            }
            if seen.runs_again:
                self._known[seen.task] = now
            return
        # A request without a state answers questions that were not asked yet.
        seen.answered = {
            key: _word(trace.asked.get(key, ""), raw)
            for key, raw in (call.answers or {}).items()
            if not trace.rounds or key in trace.asked
        }


def _answers_in(journal: Journal) -> set[tuple[str, str]]:
    return {(key, question) for key, answers in journal.answers.items() for question in answers}


def _word(question: str, answer: JSON) -> str:
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
