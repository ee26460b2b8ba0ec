"""A plugin of pytest that tells coverage which test runs, and writes down how long each took and whether it passed."""

import json
import os
from collections.abc import Iterator
from pathlib import Path

import coverage
import pytest

_took: dict[str, float] = {}
_failed: set[str] = set()


def name_of(test: str) -> str:
    """Return the name of a test without its parameters, some of which no command line can name."""
    return test.partition("[")[0]


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """Record the lines that a test runs under its name."""
    measured = coverage.Coverage.current()
    if measured is not None:
        measured.switch_context(name_of(item.nodeid))
    return (yield)


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Add up how long a test took, and note whether it failed."""
    name = name_of(report.nodeid)
    _took[name] = _took.get(name, 0.0) + report.duration
    if report.failed:
        _failed.add(name)


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Write down how long each test took that passed."""
    if not hasattr(session.config, "workerinput"):  # the one that hears from all workers
        passed = {name: seconds for name, seconds in _took.items() if name not in _failed}
        Path(os.environ["MUTANTS_TOOK"]).write_text(json.dumps(passed))
