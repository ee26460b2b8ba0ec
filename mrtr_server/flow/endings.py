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
    """The handler returned.

    Args:
        result: what it returned; each method turns it into its own result.
    """

    result: object


@dataclass(slots=True)
class Asking:
    """The client has to answer first.

    Args:
        questions: by key; at least one.
        together: whether the handler has returned them, and is to run again only when all of them are answered.
    """

    questions: dict[str, Question]
    together: bool = False


@dataclass(slots=True)
class Yielded:
    """The flow continues in another round, here or elsewhere, without a question.

    Args:
        why: why it continues in another round.
    """

    why: YieldReason


@dataclass(slots=True)
class Backgrounded:
    """The flow becomes a task.

    Args:
        journal: what it has done so far.
    """

    journal: Journal


@dataclass(slots=True)
class Refused:
    """The person said no to what the handler can't do without.

    Args:
        refusal: how they said it.
    """

    refusal: Refusal


@dataclass(slots=True)
class Failed:
    """There is no result.

    Args:
        error: what the handler raised; `MissingCapability`, if the client can't do what has to be asked of it; or a
            `FlowError`, if the handler's code made a mistake.
    """

    error: Exception


RoundEnd = Completed | Asking | Yielded | Backgrounded | Refused | Failed
"""How the runner ends a round."""

CallEnd = Completed | NeedsInput | HandedOver | Backgrounded | Refused | Failed
"""How a round of a call ends: as the runner ended it, and sealed where the client is to come again."""
