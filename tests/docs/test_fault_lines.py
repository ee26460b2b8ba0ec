"""The table of faults quotes lines that the code logs."""

import ast
import re
from functools import cache
from pathlib import Path

import pytest

import mrtr_server

PAGE = Path(__file__).parents[2] / "docs" / "operating.md"
TABLE = PAGE.read_text().partition("## Faults, by their lines")[2]
QUOTED = sorted(
    {
        part
        for row in re.findall(r"^\| [^|]+ \| ([^|]+) \| [^|]+ \|$", TABLE, re.MULTILINE)
        for part in re.findall(r"`([^`]+)`", row)
    }
)
DATABASES_SAY = {"too many connections", "too many clients", "disk is full"}
"""Words of SQLite and PostgreSQL, for which the code has a hint."""


@cache
def texts() -> set[str]:
    """Return all texts of the code, each put together from its parts."""
    found = set()
    for path in Path(mrtr_server.__file__).parent.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                found.add(node.value)
            elif isinstance(node, ast.JoinedStr):
                found.add("".join(str(part.value) for part in node.values if isinstance(part, ast.Constant)))
    return found


def test_there_are_lines() -> None:
    assert len(QUOTED) > 15
    assert set(QUOTED) >= DATABASES_SAY


@pytest.mark.parametrize("part", QUOTED)
def test_each_is_logged_in_these_words(part: str) -> None:
    assert any(part in text for text in texts())
