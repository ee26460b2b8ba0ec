"""How the end of a call, or of a round of a task, is shown: its labels, looked up by the word in its trace."""

from collections.abc import Mapping
from typing import Any, NamedTuple, TypeGuard

from ..errors import Declined, InternalFault, OverBudget, ProtocolError, RequestError
from ..methods.middleware import Came
from ..protocol.trace import End, Trace
from .names import reason_of

_NO_ROOM = frozenset({"busy", "overloaded"})
"""The errors of calls for which there is no room, and no other replica that the client could be sent to."""


class Labels(NamedTuple):
    """The labels of an end, and what else is counted of it.

    Args:
        outcome: in a word.
        error: the class of its error; empty for none.
        code: the code of its JSON-RPC error; empty for none.
        ends_flow: whether no further round of its flow is to come.
        had_no_room: whether it was refused since too much runs.
    """

    outcome: End
    error: str = ""
    code: str = ""
    ends_flow: bool = False
    had_no_room: bool = False


_LABELS: Mapping[End, Labels] = {
    "completed": Labels("completed", ends_flow=True),
    "declined": Labels("declined", "tool_error", ends_flow=True),
    "tool_error": Labels("tool_error", "tool_error", ends_flow=True),
    "task": Labels("task", ends_flow=True),
    "asked": Labels("asked"),
    "handed_over": Labels("handed_over"),
    "listening": Labels("listening"),
    "cancelled": Labels("cancelled", "cancelled"),
}
"""Those of each end but of an error."""


def labels_of_task(trace: Trace, came: Came) -> Labels:
    """Return the labels of a round of a task that has come to something."""
    return Labels(trace.end, reason_of(came)) if _is_error(came, trace) else _LABELS[trace.end]


def labels_of_call(trace: Trace, came: Came, form: Any) -> Labels:
    """Return the labels of a call that has come to something, and note the reference of an error in its trace.

    Args:
        trace: that of the call.
        came: its outcome, or the error that it has instead.
        form: the dialect, which has the codes of errors; None where there is none.
    """
    if not _is_error(came, trace):
        return _LABELS[trace.end]
    known = came if isinstance(came, RequestError) else InternalFault("")
    trace.reference = trace.reference or str((known.data or {}).get("reference") or "")
    code = "" if form is None else str(form.dump_error(known)[1]["code"])
    ends = isinstance(came, Declined | ProtocolError | InternalFault) or (
        isinstance(came, OverBudget) and trace.journal is not None
    )
    return Labels(trace.end, code or reason_of(known), code, ends, reason_of(came) in _NO_ROOM)


def _is_error(came: Came, trace: Trace) -> TypeGuard[BaseException]:
    return isinstance(came, BaseException) and trace.end != "cancelled"
