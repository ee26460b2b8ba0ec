"""The threat model: each test that it names exists, and what it says of no test is said openly."""

import re

import pytest

from .test_drafts import TESTS, is_there

PAGE = TESTS.parent / "docs" / "security.md"
TEXT = PAGE.read_text()
NAMED = re.compile(r"`((?:[\w-]+/)?test_\w+\.py)((?:::\w+)*)`")
REFERENCES = sorted({file + test for file, test in NAMED.findall(TEXT)})
TABLES = re.findall(r"^(\|.+\| shown by \|)\n\|[-|]+\|\n((?:\|.+\n)+)", TEXT, re.MULTILINE)
ADVERSARIES = (
    "on the network, without a token",
    "Another user",
    "A malicious client",
    "A page of an app in a host",
    "A page in a browser",
    "A hostile authorization server",
    "the database and the load balancer",
    "Mistakes of a tool's author",
    "Prompt injection",
    "The supply chain",
)


@pytest.mark.parametrize("reference", REFERENCES)
def test_each_test_that_is_named_exists(reference: str) -> None:
    assert is_there(reference) if "::" in reference else (TESTS / reference).is_file()


def test_many_are_named() -> None:
    assert len(REFERENCES) > 80


@pytest.mark.parametrize("who", ADVERSARIES)
def test_each_adversary_has_a_part(who: str) -> None:
    assert re.search(rf"^### .*{who}", TEXT, re.MULTILINE)


def test_each_row_names_its_tests_or_says_what_does_not_hold() -> None:
    assert len(TABLES) == 13
    for heading, rows in TABLES:
        for row in rows.splitlines():
            cells = [cell.strip() for cell in row[1:-1].split("|")]
            assert len(cells) == heading.count("|") - 1, row
            assert NAMED.search(cells[-1]) or cells[-2], row


def test_the_policy_leads_to_it() -> None:
    assert "docs/security.md" in (TESTS.parent / "SECURITY.md").read_text()
