"""How calls, and the rounds of tasks, ended."""

import asyncio
from typing import Any, NamedTuple, assert_never

from ..errors import Declined, InternalFault, OverBudget, ProtocolError, RequestError
from ..flow.endings import Asking, Backgrounded, Yielded
from ..protocol.call_facts import CallFacts
from ..protocol.messages import (
    Acknowledged,
    Complete,
    Discovery,
    HandedOver,
    Listening,
    NeedsInput,
    Outcome,
    TaskCreated,
    TaskPage,
    TaskResult,
    TaskStatusResult,
)
from ..tasks.round_executor import TaskEnd
from .names import reason_of

_NO_ROOM = frozenset({"busy", "overloaded"})
"""The errors of calls for which there is no room, and no other replica that the client could be sent to."""


class End(NamedTuple):
    """How a call ended.

    Args:
        outcome: in a word.
        error: the class of its error; empty for none.
        code: the code of its JSON-RPC error; empty for none.
        ends_flow: whether no further round of its flow is to come.
        had_no_room: whether it was refused since too much runs.
    """

    outcome: str
    error: str = ""
    code: str = ""
    ends_flow: bool = False
    had_no_room: bool = False


ASKED, HANDED_OVER, COMPLETED = End("asked"), End("handed_over"), End("completed", ends_flow=True)


def end_of(outcome: Outcome, facts: CallFacts) -> End:
    """Return how a call ended that has an outcome.

    Args:
        outcome: its outcome.
        facts: what is known of it.
    """
    match outcome:
        case Complete(body):
            if not body.get("isError"):
                return COMPLETED
            return End("declined" if facts.declined else "tool_error", "tool_error", ends_flow=True)
        case NeedsInput():
            return ASKED
        case HandedOver():
            return HANDED_OVER
        case TaskCreated():
            return End("task", ends_flow=True)
        case Listening():
            return End("listening")
        case Discovery() | TaskStatusResult() | TaskResult() | TaskPage() | Acknowledged():
            return End("completed")
        case unknown:
            assert_never(unknown)


def end_of_error(error: BaseException, facts: CallFacts, form: Any) -> End:
    """Return how a call ended that has none, and note the reference that its client gets.

    Args:
        error: why not.
        facts: what is known of it.
        form: the dialect, which has the codes of errors; None where there is none.
    """
    if isinstance(error, asyncio.CancelledError):
        return End("cancelled", "cancelled")
    known = error if isinstance(error, RequestError) else InternalFault("")
    facts.reference = facts.reference or str((known.data or {}).get("reference") or "")
    code = "" if form is None else str(form.dump_error(known)[1]["code"])
    reason = reason_of(error)
    ends = isinstance(error, Declined | ProtocolError | InternalFault) or (
        isinstance(error, OverBudget) and facts.journal is not None
    )
    outcome = "declined" if isinstance(error, Declined) else "error"
    return End(outcome, code or reason_of(known), code, ends, reason in _NO_ROOM)


def end_of_task(outcome: TaskEnd, facts: CallFacts) -> End:
    """Return how a round of a task ended.

    Args:
        outcome: its outcome.
        facts: what is known of it.
    """
    match outcome:
        case Complete(body):
            if not body.get("isError"):
                return End("completed")
            return End("declined" if facts.declined else "tool_error", "tool_error")
        case RequestError():
            return End("error", reason_of(outcome))
        case Asking():
            return ASKED
        case Yielded() | Backgrounded():
            return HANDED_OVER
        case unknown:
            assert_never(unknown)


def end_of_task_error(error: BaseException) -> End:
    """Return how a failed round of a task ended.

    Args:
        error: why.
    """
    if isinstance(error, asyncio.CancelledError):
        return End("cancelled", "cancelled")
    return End("error", reason_of(error))
