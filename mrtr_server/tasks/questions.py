"""What a task has asked, and what was answered."""

import re
from collections.abc import Container, Mapping
from dataclasses import dataclass, field

from pydantic_core import from_json

from ..errors import InvalidParams
from ..protocol.ask_kinds import ask_kind
from ..protocol.messages import FIRST, JSON, UNNAMED, Question
from ..well_formed import write_json

_NUMBER = re.compile("[2-9]|[1-9][0-9]{1,8}")
"""Number suffix of repeated keys: the second key of a name ends with 2."""

_SINCE_0_2 = "\n"
"""Where what is new lies among the numbers of the keys, so that servers of 0.1.0 read the rest. It is no name."""


@dataclass(slots=True)
class Questions:
    """What a task has asked, and what was answered.

    Args:
        open: the questions that wait for their answer, by a key that the task never uses again.
        names: the key that the handler knows each by.
        answers: the answers since the handler was last run, by that key.
        used: for each name so far, the number of its last key. Whoever makes a task ask again and again must not make
            it grow, so the keys themselves are not kept.
        until: when the time for the answer to each open question ends, in seconds since the epoch, by key.
        together: whether the handler runs again only when all of them are answered.
    """

    open: dict[str, Question] = field(default_factory=dict)
    names: dict[str, str] = field(default_factory=dict)
    answers: dict[str, JSON] = field(default_factory=dict)
    used: dict[str, int] = field(default_factory=dict)
    until: dict[str, float] = field(default_factory=dict)
    together: bool = False

    def ask(self, questions: Mapping[str, Question], until: float) -> None:
        """Ask these as well, under keys that have not been used; one whose name is open stays as it is.

        Args:
            questions: by the keys that the handler knows them by.
            until: when the time for their answers ends, in seconds since the epoch.
        """
        open_ = set(self.names.values())
        for name, question in questions.items():
            if name not in open_:
                key = self._unused(name)
                self.open[key], self.names[key], self.until[key] = question, name, until

    def withdraw(self, names: Container[str]) -> None:
        """Withdraw the questions with these names. Later answers to them are ignored."""
        for key in [key for key, name in self.names.items() if name in names]:
            self._close(key)

    def _close(self, key: str) -> str:
        del self.open[key]
        self.until.pop(key, None)
        return self.names.pop(key)

    def ends(self, otherwise: float) -> float:
        """Return when the time for the first of the answers ends, in seconds since the epoch.

        Args:
            otherwise: when it ends at the latest.
        """
        return min(otherwise, *self.until.values()) if self.until else otherwise

    def _unused(self, name: str) -> str:
        key, number = name, 1
        while self._was_used(key):
            number = max(number, self.used.get(name, 0)) + 1
            key = f"{name}_{number}"
        self.used[name] = number
        return key

    def _was_used(self, key: str) -> bool:
        name, _, number = key.rpartition("_")
        return key in self.used or (_NUMBER.fullmatch(number) is not None and int(number) <= self.used.get(name, 0))

    def take(self, answers: Mapping[str, JSON]) -> bool:
        """Keep the answers to open questions, by key; return whether there were any."""
        taken = [key for key in answers if key in self.open]
        for key in taken:
            self.answers[self._close(key)] = dict(answers[key])
        return bool(taken)

    def shown(self) -> dict[str, str]:
        """Return the names of the open questions, by key, for clients that answer by names.

        A name is the author's, and may be used again. What approves something has its key, which is used once.
        """
        return {key: name if self._approves_nothing(key) else key for key, name in self.names.items()}

    def needs_names(self) -> bool:
        """Return whether an answer without a name could be meant for another question; see `answered_by`."""
        return len(self.open) > 1 or (self._has_asked_before() and not all(map(self._approves_nothing, self.open)))

    def _approves_nothing(self, key: str) -> bool:
        return not ask_kind(self.open[key]).approves

    def _has_asked_before(self) -> bool:
        return sum(self.used.values()) > 1

    def by_name(self, answers: Mapping[str, JSON]) -> dict[str, JSON]:
        """Return answers by the task's keys instead of the shown names; those alone that fit their question."""
        return {
            key: answers[name]
            for key, name in self.shown().items()
            if name in answers and _fits(self.open[key], answers[name])
        }

    def answered_by(self, name: str, response: JSON) -> str | None:
        """Return the key of the question that a response answers; None if that is not open any more.

        Args:
            name: the name of the question as it is shown, or `UNNAMED` or `FIRST`.
            response: what came: its `result`, if it is no error.

        Raises:
            InvalidParams: it may be the answer to another question.
        """
        if name not in (UNNAMED, FIRST):
            return next((key for key, known in self.shown().items() if known == name), None)
        if not self.open:
            return None
        is_only = len(self.open) == 1
        likely = [key for key, question in self.open.items() if is_only or _is_of_kind(question, response)]
        is_clear = len(likely) == 1 or (name == FIRST and likely[:1] == list(self.open)[:1])
        if is_clear and likely and (self._approves_nothing(likely[0]) or not self._has_asked_before()):
            return likely[0]
        if is_only:  # a second delivery of an earlier answer must not be a yes to this
            why = "The task has asked before, so an answer to a confirmation or a page must name its question"
        else:
            why = f"The task has {len(self.open)} questions open, so an answer must name the one that it answers"
        raise InvalidParams(f"{why}. tasks/result shows each name, and tasks/input_response takes answers by it")

    def dump(self) -> bytes:
        """Write them down."""
        open_ = {key: q.dump()[:5] for key, q in self.open.items()}  # as 0.1.0 reads it
        pages = {key: q.page for key, q in self.open.items() if q.page}
        since_0_2 = [self.until, self.together, pages]
        return write_json([open_, self.names, self.answers, {**self.used, _SINCE_0_2: since_0_2}])

    @classmethod
    def load(cls, written: bytes) -> "Questions":
        """Read what `dump` returned."""
        open_, names, answers, used = from_json(written)
        until, together, pages = used.pop(_SINCE_0_2, ({}, True, {}))  # they wait for all answers
        questions = {key: Question.load(*parts) for key, parts in open_.items()}
        for key, page in pages.items():
            questions[key].page = page
        return cls(questions, names, answers, used, until, together)


def _is_of_kind(question: Question, response: JSON) -> bool:
    """Return whether a response may answer a question, by what it is; an error may answer any."""
    result = response.get("result")
    if not isinstance(result, dict):
        return True
    if "action" in result:  # a form's answer has `content`, too
        return bool(ask_kind(question).mode)
    return ask_kind(question).required in result


def _fits(question: Question, answer: JSON) -> bool:
    """Check whether an answer has what its question requires. The handler that reads it checks the rest."""
    kind = ask_kind(question)
    if not kind.mode:
        return kind.required in answer
    if answer.get("action") != "accept":
        return answer.get("action") in ("decline", "cancel")
    content, required = answer.get("content", {}), question.params.get("requestedSchema", {}).get("required", ())
    return not required or (isinstance(content, dict) and all(name in content for name in required))
