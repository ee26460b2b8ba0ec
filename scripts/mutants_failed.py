"""A plugin of pytest that writes down which test ran last, or which file of tests could not be imported.

pytest ends with the first failure, or with the test itself: one that takes too long ends the process.
"""

import os
from pathlib import Path

import pytest
from mutants_contexts import name_of


def pytest_runtest_logstart(nodeid: str) -> None:
    """Note a test that begins."""
    _note(nodeid)


def pytest_collectreport(report: pytest.CollectReport) -> None:
    """Note a file that can't be imported."""
    if report.failed:
        _note(report.nodeid)


def _note(test: str) -> None:
    Path(os.environ["MUTANTS_FAILED"]).write_text(name_of(test))
