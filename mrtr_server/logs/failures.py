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
    """Note the failures that are reported in the block, and in the tasks and threads that it starts."""
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
    """Log a failure under a new reference, and return that: 8 hex digits.

    `what` has a `%s` or `%r` for each of the values: what a client chose, or anything else, but no answer, argument or
    state. The error is logged with its traceback, which may show values; leave it out where `why` says it all. The
    fields are further facts, for programs that read the log. What is noted (see `noting`) is the error, or `noted`.
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
    """Log that the store is unavailable, unless that is in the log already, and return the reference.

    The error gets the reference of its entry. `what` could not be done without the store; as for `report_failure`.
    """
    if not error.reference:
        error.reference = report_failure(what, *values, why=str(error), noted=StoreUnavailable(str(error)))
    return error.reference
