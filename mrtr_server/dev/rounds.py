"""Rounds as lines on the terminal of their author: what was answered, ran and was asked."""

import asyncio
import os
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import suppress
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, NamedTuple
from weakref import WeakSet

from ..errors import RequestError
from ..flow.asks import PLAIN_SHAPE
from ..flow.endings import Asking
from ..flow.journal import CONFIRMATION, Journal
from ..logs.formats import plain
from ..methods.middleware import Came
from ..protocol import messages
from ..protocol.messages import Call, Complete, Outlet, Question
from ..tasks.task_run import TaskRun
from ..well_formed import write_json

# The terminal of an author: lines on standard error, in colour where that is one


_STYLES = {"bold": "1", "dim": "2", "red": "31", "green": "32", "yellow": "33", "cyan": "36"}
_LONGEST = 72
_ELLIPSIS = "…"


def takes_colour(environment: Mapping[str, str] = os.environ) -> bool:
    """Return whether standard error shows colour: it is a terminal, and nobody has said no (https://no-color.org)."""
    return sys.stderr.isatty() and not environment.get("NO_COLOR") and environment.get("TERM") != "dumb"


class Terminal:
    """Writes lines to standard error. `colour`: whether they have colour; None for where standard error shows it."""

    def __init__(self, colour: bool | None = None) -> None:
        self._colour = takes_colour() if colour is None else colour

    def style(self, text: str, *styles: str) -> str:
        if not self._colour or not text:
            return text
        return f"\x1b[{';'.join(_STYLES[each] for each in styles)}m{text}\x1b[0m"

    def head(self, kind: str, *styles: str) -> str:
        return f"{self.style(time.strftime('%H:%M:%S'), 'dim')}  {self.style(f'{kind:9}', *styles)}"

    def write(self, text: str) -> None:
        with suppress(OSError, ValueError):  # the terminal is gone, and requests are still served
            sys.stderr.write(f"{text}\n")
            sys.stderr.flush()


def short(text: str, longest: int = _LONGEST) -> str:
    """Return the beginning of a text that somebody else wrote, on one line, without control characters."""
    line = plain(" ".join(text[: longest * 4].split()))
    return line if len(line) <= longest else f"{line[: longest - 1]}{_ELLIPSIS}"


def plural(count: int, what: str) -> str:
    return f"{count} {what}" if count == 1 else f"{count} {what}s"


def quoted(text: str) -> str:
    return f'"{short(text)}"'


# Rounds


_KINDS = {"tools/call": "tool", "prompts/get": "prompt", "resources/read": "resource"}

_WIDEST = 24

_BETWEEN = " · "

_ENDS = {"cancelled": "cancelled", "declined": "the person said no", "handed_over": "handed over to the next round"}

_LONGEST_REASON = 160


class SourceLine(NamedTuple):
    file: str
    line: int


@dataclass(slots=True, eq=False)
class SeenRound:
    """A round of a flow, or a request that has no rounds."""

    call: Call  # of a round of a task, the request that it came from; its trace says what happened
    task: str = ""  # what the log calls the task whose round it is; empty for a request
    # The outcomes by key: accept, decline, cancel, answered; of confirmations yes or no.
    answered: dict[str, str] = field(default_factory=dict)
    came: Came | None = None
    reason: str = ""  # why its handler failed, in words; empty where the log has no exception
    effects: dict[SourceLine, str] = field(default_factory=dict)  # outside of steps
    tasks: "WeakSet[asyncio.Task[Any]]" = field(default_factory=WeakSet)

    @property
    def is_round(self) -> bool:
        """Whether a handler runs in it."""
        return bool(self.task) or self.call.method in messages.ASKING_METHODS

    @property
    def runs_again(self) -> bool:
        """Whether its flow has not come to its end, so that the handler is to run again from the top."""
        return self.call.trace.end in ("asked", "handed_over", "task")

    @property
    def asked(self) -> Mapping[str, Question]:
        return self.came.questions if isinstance(self.came, messages.NeedsInput | Asking) else {}


# The round that the code runs in, where there is a console.
current_round: ContextVar[SeenRound | None] = ContextVar("mrtr_server_seen_round", default=None)


class SeenAnswers:
    def __init__(self) -> None:
        # The answers in the journal of each task after its last round here, by the task's reference.
        self._known: dict[str, set[tuple[str, str]]] = {}

    def begin(self, call: Call, outlet: Outlet) -> SeenRound:
        if not isinstance(outlet, TaskRun):
            return SeenRound(call)
        self._known.setdefault(outlet.row.reference, _answers_in(outlet.journal))
        return SeenRound(call, outlet.row.reference)

    def end(self, seen: SeenRound, outlet: Outlet) -> None:
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


def _word(question: str, answer: messages.JSON) -> str:
    """Return the outcome of a question, in a word. `question`: its digest; empty where it is not known."""
    action = messages.action_of(answer)
    if action != "accept" or messages.kind_of(question) != CONFIRMATION:
        return action
    content = answer.get("content")
    confirmed = content.get("confirm") if isinstance(content, dict) else None
    if confirmed is None and question.endswith(PLAIN_SHAPE):
        return "yes"
    return "yes" if confirmed is True else "no" if confirmed is False else action


class RoundLines:
    def __init__(self, terminal: Terminal) -> None:
        self._terminal = terminal
        self._width = 12

    def show(self, seen: SeenRound) -> None:
        if seen.is_round:
            number = seen.task[:8] if seen.task else f"round {seen.call.trace.rounds + 1}"
            events = [*self._answers(seen), *self._steps(seen), self._end(seen)]
            self._write("task" if seen.task else _KINDS[seen.call.method], seen.call.target, number, seen, events)
        elif isinstance(seen.came, Exception):
            self._write("refused", seen.call.method, "", seen, [self._failure(_reason(seen))], "red")
        elif seen.call.method == "tasks/cancel" and isinstance(seen.came, messages.Acknowledged):
            task = seen.came.task
            reference = "" if task is None else task.reference
            self._write("task", "" if task is None else task.tool, reference, seen, ["cancelled by its client"])

    def _write(self, kind: str, name: str, number: str, seen: SeenRound, events: list[str], *styles: str) -> None:
        shown = short(name, _WIDEST)
        self._width = max(self._width, len(shown))
        style = self._terminal.style
        columns = (
            self._terminal.head(kind, *(styles or ("cyan",))),
            style(f"{shown:{self._width}}", "bold"),
            f"{number:8}",
            style(f"{seen.call.trace.seconds * 1000:8.1f} ms", "dim"),
        )
        self._terminal.write(f"{' '.join(columns)}  {_BETWEEN.join(events)}".rstrip())

    # What happened

    def _answers(self, seen: SeenRound) -> Iterator[str]:
        style = self._terminal.style
        if seen.answered:
            given = ", ".join(f"{short(key, _WIDEST)}: {action}" for key, action in seen.answered.items())
            yield f"{style('answered', 'cyan')} {given}"

    def _steps(self, seen: SeenRound) -> Iterator[str]:
        style = self._terminal.style
        replayed, ran = (seen.call.trace.names(event) for event in ("replayed", "ran"))
        if replayed:
            yield style(f"replayed {_counted(replayed)}", "dim")
        if ran:
            yield f"{style('ran', 'green')} {_counted(ran)}"

    def _end(self, seen: SeenRound) -> str:
        style, came = self._terminal.style, seen.came
        match seen.call.trace.end:
            case "asked":
                asked = ", ".join(_asked(key, question) for key, question in seen.asked.items())
                return f"{style('asked', 'yellow')} {asked}"
            case "completed" if isinstance(came, Complete):
                return f"{style('result', 'green')} {_summary(came.body)}"
            case "task" if isinstance(came, messages.TaskCreated):
                return f"{style('becomes task', 'cyan')} {came.task.reference[:8]}"
            case "cancelled" | "declined" | "handed_over" as end:
                return style(_ENDS[end], "yellow")
            case _:
                return self._failure(_reason(seen))

    def _failure(self, reason: str) -> str:
        return f"{self._terminal.style('failed', 'red')} {short(reason, _LONGEST_REASON)}"


def _counted(names: list[str]) -> str:
    counts = Counter(names)
    return ", ".join(short(name, _WIDEST) + (f" ×{count}" if count > 1 else "") for name, count in counts.items())


def _asked(key: str, question: Question) -> str:
    message = question.params.get("message")
    what = quoted(message) if isinstance(message, str) else question.method
    return f"{key} {what}"


def _reason(seen: SeenRound) -> str:
    came = seen.came
    if seen.reason:
        return seen.reason
    if isinstance(came, Complete):
        return _text(came.body)
    return came.message if isinstance(came, RequestError) else f"{type(came).__name__}: {came}"


def _summary(body: dict[str, Any]) -> str:
    if "messages" in body:
        return plural(len(body["messages"]), "message")
    if "contents" in body:
        return plural(len(body["contents"]), "content")
    text = _text(body)
    if text:
        return quoted(text)
    if "structuredContent" in body:
        return short(write_json(body["structuredContent"], fallback=str).decode())
    return plural(len(body.get("content", ())), "content")


def _text(body: dict[str, Any]) -> str:
    texts = [part["text"] for part in body.get("content", ()) if isinstance(part, dict) and part.get("type") == "text"]
    return str(texts[0]) if texts else ""
