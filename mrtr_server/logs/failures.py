"""Failures: each is in the log under a reference, which is all that a client sees of it."""

import logging
import secrets
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar

from ..errors import StoreUnavailable

logger = logging.getLogger("mrtr_server")

Noted = list[tuple[BaseException, str]]
"""Failures, each with its reference."""

_noted: ContextVar[Noted | None] = ContextVar("mrtr_server_failures", default=None)


@contextmanager
def noting(failures: Noted) -> Iterator[None]:
    """Note the failures that are reported in the block, and in the tasks and threads that it starts.

    Args:
        failures: takes them.
    """
    token = _noted.set(failures)
    try:
        yield
    finally:
        _noted.reset(token)


def report_failure(
    what: str,
    *values: object,
    why: str = "",
    error: BaseException | None = None,
    fields: Mapping[str, str] | None = None,
    noted: BaseException | None = None,
) -> str:
    """Log a failure under a new reference.

    Args:
        what: what failed, with a `%s` or `%r` for each of the values.
        values: what a client chose, or anything else; no answer, argument or state.
        why: the reason; empty where the error says it.
        error: is logged with its traceback, which may show values; None where `why` says it all.
        fields: further facts, for logs that are read by programs.
        noted: what is noted of it, where that is not the error; see `noting`.

    Returns:
        The reference, 8 hex digits.
    """
    reference = secrets.token_hex(4)
    facts = {"event": "failure", "reference": reference, **(fields or {})}
    logger.error(
        f"{what} (reference %s)%s", *values, reference, why and f": {why}", exc_info=error, extra={"fields": facts}
    )
    failures, error = _noted.get(), noted or error
    if failures is not None and error is not None and all(error is not known for known, _ in failures):
        failures.append((error, reference))
    return reference


def report_outage(error: StoreUnavailable, what: str, *values: object) -> str:
    """Log that the store is unavailable, unless that is in the log already.

    Args:
        error: what the store said. It gets the reference of its entry.
        what: what could not be done without it; as for `report_failure`.
        *values: what `what` is filled with.

    Returns:
        The reference.
    """
    if not error.reference:
        error.reference = report_failure(what, *values, why=str(error), noted=StoreUnavailable(str(error)))
    return error.reference
