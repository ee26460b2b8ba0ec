"""The requirements of the extension Events: each row says what the server does, and names tests that are there."""

import re

import pytest

from .test_drafts import TESTS, is_there

TEXT = (TESTS.parent / "docs" / "events-requirements.md").read_text()
ROW = re.compile(
    r"^\| (?P<what>[^|]+) \| (?P<level>MUST|SHOULD|MAY) \| (?P<status>yes|no|declined) \| (?P<how>[^|]*?) ?\|"
    r"(?P<tests>[^|]*)\|$",
    re.MULTILINE,
)
ROWS = list(ROW.finditer(TEXT))
NAMED = re.compile(r"`([\w/-]+(?:\.py(?:::\w+)+|\.json))`")


def test_every_line_of_a_table_is_read() -> None:
    lines = [line for line in TEXT.splitlines() if line.startswith("|")]
    headings = [line for line in lines if line.startswith(("| requirement ", "|---"))]
    assert len(lines) == len(ROWS) + len(headings)
    assert len(ROWS) > 150


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row["what"])
def test_every_row_names_its_tests_or_says_why_there_are_none(row: re.Match[str]) -> None:
    tests = NAMED.findall(row["tests"])
    assert tests if row["status"] == "yes" else row["how"]
    assert re.sub(rf"{NAMED.pattern}|[, ]", "", row["tests"]) == "", "there is nothing beside the tests"
    assert [reference for reference in tests if not is_there(reference)] == []


def test_every_test_of_messages_and_webhooks_shows_a_row() -> None:
    named = {reference for row in ROWS for reference in NAMED.findall(row["tests"])}
    for file in ("events/test_messages.py", "events/test_standard_streams.py", "events/test_webhooks.py"):
        there = re.findall(r"^(?:async )?def (test_\w+)", (TESTS / file).read_text(), re.MULTILINE)
        assert {f"{file}::{name}" for name in there} <= named
