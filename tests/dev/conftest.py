"""What commands change in the process that runs them."""

import logging
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True)
def logging_as_it_was() -> Iterator[None]:
    """Undo how a command configures the log."""
    loggers = [logging.getLogger(name) for name in (None, "mrtr_server", "uvicorn", "uvicorn.access", "_granian")]
    before = [(each.level, list(each.handlers), each.propagate) for each in loggers]
    yield
    for each, (level, handlers, propagate) in zip(loggers, before, strict=True):
        each.setLevel(level)
        each.handlers[:] = handlers
        each.propagate = propagate
