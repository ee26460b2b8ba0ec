"""Failures: each is in the log under a reference, which is all that a client sees of it."""

import logging
import secrets
from collections.abc import Mapping

from ..errors import StoreUnavailable

logger = logging.getLogger("mrtr_server")


def report_failure(
    what: str,
    *values: object,
    why: str = "",
    error: BaseException | None = None,
    fields: Mapping[str, str] | None = None,
) -> str:
    """Log a failure under a new reference.

    Args:
        what: what failed, with a `%s` or `%r` for each of the values.
        values: what a client chose, or anything else; no answer, argument or state.
        why: the reason; empty where the error says it.
        error: is logged with its traceback, which may show values; None where `why` says it all.
        fields: further facts, for logs that are read by programs.

    Returns:
        The reference, 8 hex digits.
    """
    reference = secrets.token_hex(4)
    facts = {"event": "failure", "reference": reference, **(fields or {})}
    logger.error(
        f"{what} (reference %s)%s", *values, reference, why and f": {why}", exc_info=error, extra={"fields": facts}
    )
    return reference


def report_outage(error: StoreUnavailable, what: str, *values: object) -> str:
    """Log that the store is away, unless that is in the log already.

    Args:
        error: what the store said. It gets the reference of its entry.
        what: what could not be done without it; as for `report_failure`.
        *values: what `what` is filled with.

    Returns:
        The reference.
    """
    if not error.reference:
        error.reference = report_failure(what, *values, why=str(error))
    return error.reference
