"""What the log says of a request that was refused, by which setting or for want of what; or that its client cancels."""

import logging
from collections.abc import Mapping
from typing import Any

from ..errors import (
    AnswerNotShared,
    Busy,
    CutOff,
    Declined,
    Full,
    InternalFault,
    InvalidRequestState,
    MissingCapability,
    OverBudget,
    OverShare,
    PayloadTooLarge,
    ProtocolError,
    RateLimited,
    RequestError,
)
from ..logs.refusals import RefusalLog
from ..protocol.callers import ClientInfo
from ..protocol.messages import Call
from ..protocol.sessions import NO_SESSION
from ..telemetry.names import reason_of

logger = logging.getLogger("mrtr_server")


def note_refusal(refusals: RefusalLog, call: Call | None, error: RequestError) -> None:
    """Count a refused request, and log why where its operator or author can do something about it.

    Args:
        refusals: the log.
        call: the request; None where it could not be read, or is none.
        error: what its client gets.
    """
    if not isinstance(error, InternalFault | ProtocolError | Declined | CutOff):  # these have failed
        refusals.count(*_counted(error))
    if isinstance(error, AnswerNotShared):
        refusals.note(
            "Refused an answer to a question that another process asks: they share no database, so that call never "
            "gets its answer. Set MRTR_DATABASE_URL for all replicas"
        )
    elif isinstance(error, MissingCapability):
        what = f"{call.method} {_shown(call)}" if call is not None else "a request about tasks"
        client = call.client if call is not None else ClientInfo()
        refusals.note_lacking(what, client.name, error, has_declared=client is not NO_SESSION.client)
    elif isinstance(error, Full):
        one = isinstance(error, OverShare)
        whose = "a caller has used up its share" if one else "all callers together have used up all"
        refusals.note("%s was refused: %s of Limits(%s=...)", named(call), whose, error.limit)
    elif isinstance(error, RateLimited):
        refusals.note("%s was refused: its rate limit is used up: %s, %s", named(call), error.limit, error.rate)


def _counted(error: RequestError) -> tuple[str, str]:
    """Return why a request was refused, in a word, and the limit that it is over, if it is one."""
    if isinstance(error, InvalidRequestState):
        return error.fault, ""
    if isinstance(error, RateLimited):
        return reason_of(error), error.limit
    limited = isinstance(error, OverBudget | Busy | PayloadTooLarge)
    return reason_of(error), str((error.data or {}).get("limit", "")) if limited else ""


def note_cancellation(params: Mapping[str, Any]) -> None:
    """Log why a client cancels a request, if it says so (Cancellation, Implementation Notes).

    Args:
        params: of the notification.
    """
    reason = params.get("reason")
    if isinstance(reason, str):
        logger.debug("A client cancels a request: %.200s", reason)


def named(call: Call | None) -> str:
    """Return how the log calls a request."""
    return f"{call.method} {_shown(call)!r}" if call is not None else "A request that was still coming in"


def _shown(call: Call) -> str:
    """Return what the log shows of what a request is about: not the whole id of a task, which may protect it alone."""
    return call.target[: 8 if call.method.startswith("tasks/") else 200]
