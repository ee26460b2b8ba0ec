"""The line of the log that each call has, and each round of a task."""

import logging

from ..protocol.messages import JSON
from .ends import Labels

logger = logging.getLogger("mrtr_server")


def log_call(name: str, fields: JSON, end: Labels, reference: str, seconds: float, trace: tuple[str, str]) -> None:
    """Log how a call ended. Whether its level is wanted, the caller has found out.

    Args:
        name: of the call: its method, and the tool or prompt.
        fields: the facts that come before how it ended; the others are added.
        end: how it ended.
        reference: names what went wrong in the log; empty for nothing.
        seconds: how long it took.
        trace: the ids of the trace and of the span; empty where there is none.
    """
    took = round(seconds * 1000, 2)
    text = f"{name}: {end.outcome} in {took} ms"
    fields["outcome"] = end.outcome
    if end.error:
        fields["error"] = end.error
    if reference:
        fields["reference"] = reference
        text += f" (reference {reference})"
    fields["ms"] = took
    if trace[0]:
        fields["trace_id"], fields["span_id"] = trace
    # `logger.info` would look through the stack for the line that calls it, which is always the same here.
    record = logging.getLogRecordFactory()(logger.name, logging.INFO, __file__, 0, text, (), None, "log_call")
    record.fields = fields
    logger.handle(record)
