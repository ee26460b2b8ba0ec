"""Scripted answers: what to say to each question of a flow that is run to its end."""

from collections.abc import Mapping, Sequence
from typing import cast

from .answers import Answer, Answerable, is_function, write
from .asked import Asked
from .failure import Unexpected
from .replies import Reply

__tracebackhide__ = True  # pytest then shows the test's line instead

Scripted = Answerable | Sequence[Answerable]
"""An answer, a function that gives one each time, or a list of answers to questions that come under one key in turn."""

Answers = Mapping[str, Scripted]
"""What a test says to each question of a flow, by key."""


class Script:
    """The answers to one flow, each to be used once.

    Args:
        answers: by key.
        defaults: by key, for what is not in `answers`; each may be used any number of times.
    """

    def __init__(self, answers: Answers, defaults: Mapping[str, Answerable]) -> None:
        self._defaults = defaults
        self._functions = {key: each for key, each in answers.items() if is_function(each)}
        self._left = {key: _listed(each) for key, each in answers.items() if key not in self._functions}
        self._asked: dict[str, Asked] = {}

    def answer(self, reply: Reply) -> dict[str, Answer]:
        """Return the answers to what a reply asks. Fails the test if there is none for a question."""
        return {key: write(self._next(asked, reply), asked) for key, asked in reply.asks.items()}

    def _next(self, asked: Asked, reply: Reply) -> Answerable:
        key = asked.key
        before = self._asked.get(key)
        self._asked[key] = asked
        if key in self._functions:
            return self._functions[key]
        if self._left.get(key):
            return self._left[key].pop(0)
        if key in self._defaults and key not in self._left:
            return self._defaults[key]
        if key in self._left:
            again = f", after {before.message!r}" if before is not None and before.message != asked.message else ""
            raise Unexpected(f"No answer is left for {asked}, which was asked again{again}.{reply.described_log()}")
        known = ", ".join(map(repr, [*self._left, *self._functions, *self._defaults])) or "none"
        raise Unexpected(f"No answer is scripted for {asked}. Answers are given for: {known}.{reply.described_log()}")

    def check_used(self, reply: Reply) -> None:
        """Fail the test if an answer was never asked for."""
        unused = [key for key, left in self._left.items() if left] + [
            k for k in self._functions if k not in self._asked
        ]
        if unused:
            raise Unexpected(f"Answers were never asked for: {', '.join(map(repr, unused))}. {reply}")


def _listed(scripted: Scripted) -> list[Answerable]:
    return list(scripted) if isinstance(scripted, list | tuple) else [cast(Answerable, scripted)]
