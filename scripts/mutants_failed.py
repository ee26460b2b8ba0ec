"""A plugin of pytest that writes down which test, or file of tests, failed first."""

import os
from pathlib import Path

import pytest
from mutants_contexts import name_of


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Note a test that fails."""
    _note(report)


def pytest_collectreport(report: pytest.CollectReport) -> None:
    """Note a file that can't be imported."""
    _note(report)


def _note(report: pytest.TestReport | pytest.CollectReport) -> None:
    file = Path(os.environ["MRTR_TESTS_FAILED"])
    if report.failed and not file.read_text():
        file.write_text(name_of(report.nodeid))
