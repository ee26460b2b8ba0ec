"""The callbacks of a program: what they can answer is what the client declares."""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from inspect import isawaitable
from typing import TypeVar

from ..concurrency.threads import ending_in
from ..errors import BadReply, NotAnswered
from ..protocol.messages import JSON, TASKS
from .questions import (
    Choice,
    Filled,
    Form,
    Link,
    Piece,
    Progress,
    Question,
    Rooted,
    Sampled,
    Sampling,
    read_question,
    write_filled,
    write_roots,
    write_sampled,
)
from .results import TaskState

T = TypeVar("T")

OnElicit = Callable[[Form], Filled | Awaitable[Filled]]
OnLink = Callable[[Link], Choice | Awaitable[Choice]]
OnSample = Callable[[Sampling], Sampled | Awaitable[Sampled]]
OnRoots = Callable[[], Rooted | Awaitable[Rooted]]
OnPiece = Callable[[Piece], Awaitable[None] | None]
OnProgress = Callable[[Progress], Awaitable[None] | None]
OnTask = Callable[[TaskState], Awaitable[None] | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Callbacks:
    """What a program answers; `Client` documents each."""

    elicit: OnElicit | None
    link: OnLink | None
    sample: OnSample | None
    roots: OnRoots | None

    def capabilities(self, *, tasks: bool) -> JSON:
        """Return what the client declares: what there is a callback for, and tasks if it follows them."""
        modes: JSON = {mode: {} for mode, given in (("form", self.elicit), ("url", self.link)) if given is not None}
        declared: JSON = {"elicitation": modes} if modes else {}
        if self.sample is not None:
            declared["sampling"] = {}
        if self.roots is not None:
            declared["roots"] = {}
        if tasks:
            declared["extensions"] = {TASKS: {}}
        return declared

    async def answer(self, requests: Mapping[str, object]) -> JSON:
        """Return the answers to the questions of one round, asked one after the other.

        Args:
            requests: the questions, by key, as they came.

        Raises:
            NotAnswered: callbacks raised it, or there is none; it has all questions without an answer.
            BadReply: something is no question.
        """
        questions = {key: read_question(key, request) for key, request in requests.items()}
        answers: JSON = {}
        open_: JSON = {}
        for key, question in questions.items():
            try:
                answers[key] = await self._answer(question)
            except Exception as error:
                if not isinstance(ending_in(error, key), NotAnswered):
                    raise
                open_[key] = requests[key]
        if open_:
            raise NotAnswered(open_)
        return answers

    async def _answer(self, question: Question) -> JSON:
        match question:
            case Form() if self.elicit is not None:
                return write_filled(await awaited(self.elicit(question)))
            case Link() if self.link is not None:
                return write_filled(await awaited(self.link(question)))
            case Sampling() if self.sample is not None:
                return write_sampled(await awaited(self.sample(question)))
            case _ if self.roots is not None and not isinstance(question, Form | Link | Sampling):
                return write_roots(await awaited(self.roots()))
            case _:
                raise BadReply(f"The server asks {question.key!r}, which this client did not declare that it answers")


async def awaited(value: T | Awaitable[T]) -> T:
    """Return what a callback returned, awaited if it is a coroutine."""
    return await value if isawaitable(value) else value
