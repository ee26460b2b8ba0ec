"""What the log says of a request that was refused."""

from ..errors import Full, MissingCapability, OverShare, RequestError
from ..logs.refusals import RefusalLog
from ..protocol.messages import Call


def note_refused(refusals: RefusalLog, call: Call | None, error: RequestError) -> None:
    """Log why a request was refused, if somebody other than its client can change that.

    Args:
        refusals: the log.
        call: the request; None if it could not be read.
        error: why.
    """
    if isinstance(error, MissingCapability):
        what = f"{call.method} {call.target}" if call is not None else "a request about tasks"
        client = str(call.client.info.get("name") or "") if call is not None else ""
        refusals.note_lacking(what, client, error)
    elif isinstance(error, Full):
        one = isinstance(error, OverShare)
        whose = "a caller has used up its share" if one else "all callers together have used up all"
        refusals.note("%s was refused: %s of Limits(%s=...)", named(call), whose, error.limit)


def named(call: Call | None) -> str:
    """Return the name of a request in the log."""
    return f"{call.method} {call.target[:200]!r}" if call is not None else "A request that was still coming in"
