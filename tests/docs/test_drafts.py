"""The page about the drafts: each row says what is so, and names tests that are there."""

import ast
import re
from functools import cache
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]
PAGE = TESTS.parent / "docs" / "drafts.md"
TEXT = PAGE.read_text()
ROW = re.compile(r"^\| (?P<what>.+?) \| (?P<status>.+?) \|(?P<tests>.*)\|$", re.MULTILINE)
TABLES = TEXT[TEXT.index("## Response types") :]
ROWS = [row for row in ROW.finditer(TABLES) if row["status"].strip() and not row["what"].startswith("what")]
NAMED = re.compile(r"`([\w/-]+\.(?:py|json)(?:::\w+)*)`")


@cache
def defined(path: Path) -> frozenset[str]:
    """Return the tests of a file, each by its class and its name."""
    found = set()
    for node in ast.parse(path.read_text()).body:
        holders = [(f"{node.name}::", each) for each in node.body] if isinstance(node, ast.ClassDef) else [("", node)]
        found |= {
            f"{holder}{each.name}"
            for holder, each in holders
            if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef) and each.name.startswith("test_")
        }
    return frozenset(found)


def is_there(reference: str) -> bool:
    """Return whether a test, or a transcript, is there."""
    file, _, test = reference.partition("::")
    if file.endswith(".json"):
        return (TESTS / "protocol" / file).is_file()
    return (TESTS / file).is_file() and test in defined(TESTS / file)


def test_every_draft_has_its_part() -> None:
    assert re.findall(r"^## (.+)$", TEXT, re.MULTILINE) == [
        "Who is served these forms",
        "Tasks of these clients",
        "Other encodings",
        "Response types",
        "Message structure of MRTR and tasks",
        "Non-blocking elicitations (#1869)",
        "SEP, revision 1",
        "SEP, revision 2",
    ]


def test_every_line_of_a_table_is_read() -> None:
    lines = [line for line in TABLES.splitlines() if line.startswith("|")]
    headings = [line for line in lines if line.startswith(("| what ", "|---"))]
    assert len(lines) == len(ROWS) + len(headings)
    assert len(ROWS) > 60


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row["what"])
def test_every_row_says_what_is_so_and_what_shows_it(row: re.Match[str]) -> None:
    status, tests = row["status"], NAMED.findall(row["tests"])
    assert re.match(r"yes\b|superseded by [\w`]|not yet\b", status), status
    assert tests or status.startswith("not yet")
    assert re.sub(rf"{NAMED.pattern}|[, ]", "", row["tests"]) == "", "there is nothing beside the tests"
    assert [reference for reference in tests if not is_there(reference)] == []


def test_every_transcript_of_the_drafts_is_named() -> None:
    paths = [
        path
        for folder in ("draft", "draft-tasks", "draft-encodings")
        for path in (TESTS / "protocol/transcripts" / folder).iterdir()
    ]
    there = {str(path.relative_to(TESTS / "protocol")) for path in paths}
    assert there <= {reference for row in ROWS for reference in NAMED.findall(row["tests"])}


@pytest.mark.parametrize(
    "reference",
    ["test_nowhere.py::test_x", "docs/test_drafts.py::test_x", "docs/test_drafts.py", "transcripts/draft/x.json"],
)
def test_a_test_that_is_not_there_is_noticed(reference: str) -> None:
    assert not is_there(reference)
