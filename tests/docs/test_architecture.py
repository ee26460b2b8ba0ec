"""The walks through the code are short, and lead to files and names that are there."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "architecture.md").read_text()
WALKS = ("A plain call", "A retry with an answer", "A task that asks, and is answered elsewhere")
SECTIONS = {
    title: text
    for page in ("architecture", "architecture-open-calls", "stdio")
    for title, text in re.findall(
        r"^##? ([^\n]+)\n(.*?)(?=^## |\Z)", (ROOT / "docs" / f"{page}.md").read_text(), re.MULTILINE | re.DOTALL
    )
}
IN_THE_CODE = [*WALKS, "An open call in the code", "In the code"]
FILE = re.compile(r"\b([a-z_]+(?:/\w+)+\.(?:py|sql))\b")
WHERE = [row for row in SECTIONS["Where is it?"].splitlines() if row.startswith("| ") and "`" in row]


def sources(named: str) -> str:
    """Return the text of the files that are named; a name without a folder is of the folder before it."""
    folder, found = Path(), ""
    for name in re.findall(r"`([\w/]+\.(?:py|sql))`", named):
        folder = Path(name).parent if "/" in name else folder
        found += (ROOT / "mrtr_server" / folder / Path(name).name).read_text()
    return found


def test_the_architecture_has_at_most_200_lines() -> None:
    assert len(PAGE.splitlines()) <= 200


@pytest.mark.parametrize("title", IN_THE_CODE)
def test_each_walk_has_one_diagram(title: str) -> None:
    assert len(re.findall(r"^```text$", SECTIONS[title], re.MULTILINE)) == 1


@pytest.mark.parametrize("text", [PAGE, *(SECTIONS[title] for title in IN_THE_CODE)], ids=["page", *IN_THE_CODE])
def test_each_file_that_is_named_exists(text: str) -> None:
    named = sorted(set(FILE.findall(text)))
    assert len(named) >= 5
    assert [name for name in named if not ((ROOT / "mrtr_server" / name).exists() or (ROOT / name).exists())] == []


@pytest.mark.parametrize("row", WHERE, ids=lambda row: row[2:].partition(" |")[0])
def test_each_place_has_what_is_looked_for(row: str) -> None:
    where = row.split("|")[2]
    found = sources(where)
    assert found
    for name in re.findall(r"`([A-Za-z_.]+)`", re.sub(r"`[\w/]+\.(?:py|sql)`", "", where)):
        for part in name.split("."):
            assert re.search(rf"(?:def|class|name:) {part}\b", found), name


def test_there_are_places_to_look_for() -> None:
    assert len(WHERE) >= 6
