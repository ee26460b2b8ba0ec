"""What a task has asked, and what was answered."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from pydantic_core import from_json, to_json

from ..errors import InvalidParams
from ..protocol.messages import JSON, Question

_NUMBER = re.compile("[2-9]|[1-9][0-9]{1,8}")
"""Number suffix of repeated keys: the second key of a name ends with 2."""

_REQUIRED = {"sampling/createMessage": "content", "roots/list": "roots"}
"""What the answer to each request must have, besides those that are elicitations."""


@dataclass(slots=True)
class Questions:
    """What a task has asked, and what was answered.

    Args:
        open: the questions that wait for their answer, by a key that the task never uses again.
        names: the key that the handler knows each by.
        answers: the answers since the handler was last run, by that key.
        used: for each name so far, the number of its last key. Whoever makes a task ask again and again must not make
            it grow, so the keys themselves are not kept.
    """

    open: dict[str, Question] = field(default_factory=dict)
    names: dict[str, str] = field(default_factory=dict)
    answers: dict[str, JSON] = field(default_factory=dict)
    used: dict[str, int] = field(default_factory=dict)

    def ask(self, questions: Mapping[str, Question]) -> None:
        """Ask these, under keys that have not been used."""
        self.open, self.names, self.answers = {}, {}, {}
        for name, question in questions.items():
            key = self._unused(name)
            self.open[key], self.names[key] = question, name

    def _unused(self, name: str) -> str:
        key, number = name, 1
        while self._was_used(key):
            number = max(number, self.used.get(name, 0)) + 1
            key = f"{name}_{number}"
        self.used[name] = max(number, self.used.get(name, 0))
        return key

    def _was_used(self, key: str) -> bool:
        name, _, number = key.rpartition("_")
        return key in self.used or (_NUMBER.fullmatch(number) is not None and int(number) <= self.used.get(name, 0))

    def take(self, answers: Mapping[str, JSON]) -> bool:
        """Keep the answers to open questions, by key; return whether there were any."""
        taken = [key for key in answers if key in self.open]
        for key in taken:
            self.answers[self.names.pop(key)] = dict(answers[key])
            del self.open[key]
        return bool(taken)

    def by_name(self, answers: Mapping[str, JSON]) -> dict[str, JSON]:
        """Return answers by the task's keys instead of the handler's; those alone that fit their question."""
        return {
            key: answers[name]
            for key, name in self.names.items()
            if name in answers and _fits(self.open[key], answers[name])
        }

    def to_the_only_one(self, answers: Mapping[str, JSON]) -> dict[str, JSON]:
        """Return the one answer that there is, by the key of the only question that is open, if it fits that.

        Raises `InvalidParams` if several are open.
        """
        if len(self.names) != 1:
            raise InvalidParams(
                f"The task has {len(self.names)} questions open, so an answer must name the one that it answers"
            )
        return self.by_name(dict(zip(self.names.values(), answers.values(), strict=True)))

    def dump(self) -> bytes:
        """Write them down."""
        open_ = {key: (q.kind, q.method, q.params, q.needs, q.shape) for key, q in self.open.items()}
        return to_json([open_, self.names, self.answers, self.used])

    @classmethod
    def load(cls, written: bytes) -> "Questions":
        """Read what `dump` returned."""
        open_, names, answers, used = from_json(written)
        return cls({key: Question(*parts) for key, parts in open_.items()}, names, answers, used)


def _fits(question: Question, answer: JSON) -> bool:
    """Check whether an answer has what its question requires. The handler that reads it checks the rest."""
    if question.method != "elicitation/create":
        return _REQUIRED[question.method] in answer
    if answer.get("action") != "accept":
        return answer.get("action") in ("decline", "cancel")
    content, required = answer.get("content", {}), question.params.get("requestedSchema", {}).get("required", ())
    return not required or (isinstance(content, dict) and all(name in content for name in required))
