"""Exception groups, as task groups raise them: which one of several errors counts."""

import asyncio
import logging
from collections.abc import Iterator

from ..errors import (
    CallEnded,
    FlowContinues,
    FlowError,
    MissingCapability,
    NotAnswered,
    Refusal,
    RequestError,
    StoreUnavailable,
    ToolError,
)
from ..logs.failures import report_failure

logger = logging.getLogger("mrtr_server")

_RANKS: tuple[tuple[type[BaseException], ...], ...] = (
    (Refusal,),
    (FlowError,),
    (MissingCapability,),
    (RequestError, ToolError),
    (StoreUnavailable, NotAnswered, CallEnded),
)
"""What ends a call in a way of its own. Of several, those of the first row count: a person's no before all. The other
rows are in the order in which the events of a round count."""


_ENDED = (CallEnded, FlowContinues, asyncio.CancelledError)
"""What only says that something has ended."""


def ending_in(error: BaseException, where: str) -> BaseException:
    """Return the error that counts: of a group with errors that end a call in a way of their own, the first of these.

    What else is in the group is logged, unless it only says that the call has ended: a failure under a reference.

    Args:
        error: what was raised.
        where: what raised it, for the log.

    Returns:
        The error itself, if it is no group, or a group without such an error.
    """
    if not isinstance(error, BaseExceptionGroup):
        return error
    counts = min(_leaves(error), key=_rank)  # of equals the first
    if _rank(counts) == len(_RANKS):
        return error
    _, others = error.split(lambda each: each is counts or isinstance(each, _ENDED))
    if others is not None:
        messages, failures = others.split(lambda each: isinstance(each, ToolError | RequestError))
        if messages is not None:
            said = "; ".join(map(str, _leaves(messages)))
            logger.warning("%r ended with one error of several. Nobody is told of the others: %s", where, said)
        if failures is not None:
            kind = type(counts).__name__
            report_failure("%r raised more than the %s that it ended with", where, kind, error=failures)
    return counts


def _leaves(group: BaseException) -> Iterator[BaseException]:
    left = [group]
    while left:
        each = left.pop()
        if isinstance(each, BaseExceptionGroup):
            left.extend(reversed(each.exceptions))
        else:
            yield each


def _rank(error: BaseException) -> int:
    return next((rank for rank, kinds in enumerate(_RANKS) if isinstance(error, kinds)), len(_RANKS))
