"""The callbacks of a program: what they can answer is what the client declares; and what they get of a running call."""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from inspect import isawaitable
from typing import Any, NamedTuple, TypeVar

from ..concurrency.threads import ending_in
from ..errors import BadReply, NotAnswered
from ..protocol.ask_kinds import KINDS, Choice, Filled, Form, Link, Listed, Sampling, Written, read_request
from ..protocol.callers import nested
from ..protocol.messages import JSON, TASKS
from .results import TaskState

T = TypeVar("T")


class Progress(NamedTuple):
    """A note on how far a call has come.

    Args:
        progress: how far, in the unit of the server.
        total: what it will be at the end; None if that is not known.
        message: what is being done, in words of the server.
    """

    progress: float
    total: float | None = None
    message: str | None = None


@dataclass(frozen=True, slots=True)
class Piece:
    """A piece of the result of a tool, as it comes.

    Args:
        index: which piece of the result it is, from 0.
        block: which block of the result's content it is, or is added to: texts of one block are one text.
        content: the piece, a block of content as plain JSON.
    """

    index: int
    block: int
    content: JSON

    @property
    def text(self) -> str:
        """The text of the piece; empty if it is something else."""
        return str(self.content.get("text", "")) if self.content.get("type") == "text" else ""


OnElicit = Callable[[Form], Filled | Awaitable[Filled]]
OnLink = Callable[[Link], Choice | Awaitable[Choice]]
OnSample = Callable[[Sampling], Written | Awaitable[Written]]
OnRoots = Callable[[], Listed | Awaitable[Listed]]
OnPiece = Callable[[Piece], Awaitable[None] | None]
OnProgress = Callable[[Progress], Awaitable[None] | None]
OnTask = Callable[[TaskState], Awaitable[None] | None]

Callbacks = Mapping[str, Callable[[Any], Any] | None]
"""What answers each kind of ask, by the name of the kind; None where nothing does."""


def capabilities_of(callbacks: Callbacks, *, tasks: bool) -> JSON:
    """Return what the client declares: each kind of ask that has a callback, and tasks if it follows them."""
    declared = nested(KINDS[name].capabilities[0] for name, callback in callbacks.items() if callback is not None)
    return {**declared, "extensions": {TASKS: {}}} if tasks else declared


async def answers_to(callbacks: Callbacks, requests: Mapping[str, object]) -> JSON:
    """Return the answers to the questions of one round, asked one after the other.

    Raises `BadReply` if something is no question, and `NotAnswered` with all questions for which a callback raised it.
    """
    questions = {key: read_request(key, request) for key, request in requests.items()}
    answers: JSON = {}
    open_: JSON = {}
    for key, (kind, question) in questions.items():
        callback = callbacks.get(kind.name)
        if callback is None:
            raise BadReply(f"The server asks {key!r}, which this client did not declare that it answers")
        try:
            answers[key] = kind.write(await awaited(callback(question)))
        except Exception as error:
            if not isinstance(ending_in(error, key), NotAnswered):
                raise
            open_[key] = requests[key]
    if open_:
        raise NotAnswered(open_)
    return answers


async def awaited(value: T | Awaitable[T]) -> T:
    """Return what a callback returned, awaited if it is a coroutine."""
    return await value if isawaitable(value) else value
