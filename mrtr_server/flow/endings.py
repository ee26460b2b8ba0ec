"""How a round ends: one value of a closed union, which the runner returns.

Code that makes an outcome of it matches on it, with `assert_never` at the end, so that mypy finds a missing case.
"""

from dataclasses import dataclass

from ..errors import Refusal
from ..protocol.messages import HandedOver, NeedsInput, Question
from ..protocol.messages import YieldReason as YieldReason
from .journal import Journal


@dataclass(slots=True)
class Completed:
    result: object


@dataclass(slots=True)
class Asking:
    questions: dict[str, Question]
    together: bool = False


@dataclass(slots=True)
class Yielded:
    why: YieldReason


@dataclass(slots=True)
class Backgrounded:
    journal: Journal
    waits: str = ""
    """What it waits for that somebody else answers, in words; empty where it goes on at once."""


@dataclass(slots=True)
class Refused:
    refusal: Refusal


@dataclass(slots=True)
class Failed:
    """What the handler raised, `MissingCapability` of its client, or a `FlowError` for a mistake in its code."""

    error: Exception


RoundEnd = Completed | Asking | Yielded | Backgrounded | Refused | Failed

CallEnd = Completed | NeedsInput | HandedOver | Backgrounded | Refused | Failed
"""How a round of a call ends: as the runner ended it, and sealed where the client is to come again."""
