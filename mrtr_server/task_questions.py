"""What a task has asked, and what was answered."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from pydantic_core import from_json, to_json

from .errors import InvalidParams
from .messages import JSON, Question


@dataclass(slots=True)
class Questions:
    """What a task has asked, and what was answered.

    Parameters:
        open: the questions that wait for their answer, by a key that the task never uses again.
        names: the key that the handler knows each by.
        answers: the answers since the handler was last run, by that key.
        used: all keys so far.
    """

    open: dict[str, Question] = field(default_factory=dict)
    names: dict[str, str] = field(default_factory=dict)
    answers: dict[str, JSON] = field(default_factory=dict)
    used: list[str] = field(default_factory=list)

    def ask(self, questions: Mapping[str, Question]) -> None:
        """Ask these, under keys that have not been used."""
        self.open, self.names, self.answers = {}, {}, {}
        for name, question in questions.items():
            key, count = name, 1
            while key in self.used:
                count += 1
                key = f"{name}_{count}"
            self.used.append(key)
            self.open[key], self.names[key] = question, name

    def take(self, answers: Mapping[str, JSON]) -> bool:
        """Take the answers to open questions, by key; say whether there were any."""
        taken = [key for key in answers if key in self.open]
        for key in taken:
            self.answers[self.names.pop(key)] = dict(answers[key])
            del self.open[key]
        return bool(taken)

    def by_key(self, answers: Mapping[str, JSON]) -> dict[str, JSON]:
        """Give answers by the task's keys instead of the handler's; those alone that fit their question.

        The empty key is that of the only question that is open. Raises `InvalidParams` if there are several.
        """
        keys = {name: key for key, name in self.names.items()}
        if "" in answers:
            if len(keys) != 1:
                raise InvalidParams(f"The task has {len(keys)} questions open, so an answer must name its own")
            keys[""] = next(iter(keys.values()))
        return {
            keys[name]: answer
            for name, answer in answers.items()
            if name in keys and _fits(self.open[keys[name]], answer)
        }

    def write(self) -> bytes:
        """Write them down."""
        open_ = {key: (q.kind, q.method, q.params, q.needs, q.shape) for key, q in self.open.items()}
        return to_json([open_, self.names, self.answers, self.used])

    @classmethod
    def read(cls, written: bytes) -> "Questions":
        """Read what `write` wrote."""
        open_, names, answers, used = from_json(written)
        return cls({key: Question(*parts) for key, parts in open_.items()}, names, answers, used)


def _fits(question: Question, answer: JSON) -> bool:
    """Say whether an answer has what its question's form requires; all else is for the handler's model to check."""
    if question.kind != "form" or answer.get("action") != "accept":
        return True
    content, required = answer.get("content"), question.params.get("requestedSchema", {}).get("required", ())
    return isinstance(content, dict) and all(name in content for name in required)
