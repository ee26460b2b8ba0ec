"""The README and the ten first pages stay short, begin with code, and lead where they say."""

import re
import tomllib
from pathlib import Path

import pytest

from mrtr_server.documentation import DOCS

from .test_pages import FENCE, README, ROOT, anchors

REPOSITORY = "https://github.com/mrtr-server/mrtr_server/blob/main/"
IMAGES = "https://raw.githubusercontent.com/mrtr-server/mrtr_server/main/"
LINKS = re.findall(r"\]\(([^)]+)\)", README)
LONGEST_START = 25
"""The line by which the first code has begun."""

BUDGETS = {
    "tutorial": 1500,
    "how-it-works": 1050,
    "asking": 1400,
    "effects": 900,
    "tools": 1150,
    "users": 1000,
    "tasks": 900,
    "testing": 900,
    "clients": 1000,
    "deploying": 1300,
}
"""How many words each of the first pages may have; a newcomer can read them all in an hour."""

COINED = re.compile(r"\b(flow|journal|principal|replicas?|rounds?|sealed|redeemed)\b")
VERSIONS = {"2026-07-28", "2025-11-25", "2025-06-18", "2025-03-26", "2024-11-05"}

first_pages = pytest.mark.parametrize("name", BUDGETS)


def text_of(name: str) -> str:
    return (ROOT / "docs" / f"{name}.md").read_text()


def words_of(text: str) -> int:
    return len(text.split())


def line_of_code(text: str) -> int:
    """Return the number of the line at which the first code begins."""
    return next(number for number, line in enumerate(text.splitlines(), 1) if line.startswith("```"))


def test_the_readme_is_short_and_begins_with_its_tool() -> None:
    assert len(README.splitlines()) <= 120
    assert words_of(README) <= 800
    assert line_of_code(README) <= LONGEST_START


def test_each_link_of_the_readme_leads_somewhere_from_anywhere() -> None:
    assert len(LINKS) > 15
    assert [link for link in LINKS if not link.startswith("https://")] == []
    for link in LINKS:
        address, _, anchor = link.partition("#")
        if address.startswith(DOCS):
            page = ROOT / "docs" / f"{address.removeprefix(DOCS).strip('/') or 'index'}.md"
            assert page.is_file(), link
            assert not anchor or anchor in anchors(page), link
        for base in (REPOSITORY, IMAGES):
            assert not address.startswith(base) or (ROOT / address.removeprefix(base)).is_file(), link


def test_the_readme_lists_the_first_pages() -> None:
    listed = re.findall(rf"^\| \[.+\]\({DOCS}([\w-]+)/\) \|", README, re.MULTILINE)
    assert listed == list(BUDGETS)
    assert sum(BUDGETS.values()) <= 11_100


def test_the_first_pages_are_the_first_in_the_navigation() -> None:
    first = (ROOT / "zensical.toml").read_text().partition('{ "Cookbook"')[0]
    assert [name for name in BUDGETS if f'"{name}.md"' not in first] == []
    assert tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["readme"] == "README.md"


@first_pages
def test_each_is_short_and_begins_with_code(name: str) -> None:
    text = text_of(name)
    assert words_of(text) <= BUDGETS[name]
    assert line_of_code(text) <= LONGEST_START
    assert not re.search(r"^- \[.+\]\(#", text, re.MULTILINE), "the site and GitHub show its contents beside it"


@first_pages
def test_each_is_for_users(name: str) -> None:
    text = text_of(name)
    assert re.findall(r"(?:scripts|tests|benchmarks)/|[Bb]efore this change", text) == []
    assert set(re.findall(r"\d{4}-\d\d-\d\d", text)) <= VERSIONS, "no dates of measurements"


@first_pages
def test_each_leads_to_the_page_that_explains_its_words(name: str) -> None:
    text = text_of(name)
    if name != "how-it-works" and COINED.search(FENCE.sub("", text)):
        assert "](how-it-works.md" in text


def test_each_page_is_read_from_the_tree() -> None:
    assert Path(ROOT / "docs" / "index.md").is_file()
    for name in BUDGETS:
        assert f"]({name}.md)" in text_of("index"), name


def cells(page: str, heading: str) -> dict[str, list[str]]:
    """Return the cells of the table whose head begins so, by the first of each row."""
    table = text_of(page).partition(f"\n{heading}")[2].partition("\n\n")[0]
    rows = [[cell.strip(" `") for cell in row.strip("|").split("|")] for row in table.splitlines()[2:]]
    return {row[0]: row[1:] for row in rows}


def test_the_hosts_are_as_they_were_run() -> None:
    ran, shown = cells("clients-in-detail", "| host | version |"), cells("clients", "| host | shows a form |")
    assert len(ran) >= 6
    for host, found in ran.items():
        form, yes, page = shown[host][:3]
        assert [form.partition(",")[0], yes, page] == [found[4], found[7], found[9]], host
