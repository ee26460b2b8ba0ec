"""The diagrams of the concepts: drawn by the script, explained by their pages, and readable in light and dark."""

import re
import sys
from collections.abc import Iterator
from typing import Any, Literal

import pytest
from playwright.sync_api import Browser

from ..support.browser import chromium
from ..support.serving import ROOT

sys.path.insert(0, str(ROOT / "scripts"))

from diagrams import DIAGRAMS, Diagram, Says, svg

PAGES = [ROOT / "docs" / "how-it-works.md", *sorted((ROOT / "docs" / "concepts").glob("*.md"))]
SHOWN = re.compile(r"^\[!\[(.+)\]\((?:\.\./)?images/([\w-]+)\.svg\)\]\((?:\.\./)?images/\2\.svg\)$", re.MULTILINE)
"""A diagram, which leads to itself: in a narrow window, a reader can open it and look closer."""

each = pytest.mark.parametrize("diagram", DIAGRAMS, ids=lambda diagram: diagram.file)

# Of each text: what it says, its box, that of the rectangle in which it stands, its colour and the one behind it.
LOOK = """() => {
    const box = (drawn) => { const {x, y, width, height} = drawn.getBBox(); return [x, y, x + width, y + height] }
    const within = ([x, y], [left, top, right, bottom]) => x >= left && y >= top && x <= right && y <= bottom
    const rectangles = [...document.querySelectorAll("rect")]
    const paint = (drawn) => getComputedStyle(drawn).fill.match(/\\d+/g).slice(0, 3).map(Number)
    return [...document.querySelectorAll("text")].map((text) => {
        const [left, top, right, bottom] = box(text), middle = [(left + right) / 2, (top + bottom) / 2]
        const holds = (outer) => within(middle, box(outer))
        const circle = [...document.querySelectorAll("circle")].find(holds)
        const behind = rectangles.filter(holds).at(-1)
        return {says: text.textContent, box: [left, top, right, bottom], behind: box(behind), numbered: Boolean(circle),
                colours: [paint(text), paint(circle ?? behind)]}
    })
}"""


def luminance(colour: list[int]) -> float:
    """Return the relative luminance of a colour, as WCAG defines it."""
    parts = [part / 255 for part in colour]
    red, green, blue = (part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(one: list[int], other: list[int]) -> float:
    """Return the contrast of two colours, from 1 to 21."""
    dark, light = sorted((luminance(one), luminance(other)))
    return (light + 0.05) / (dark + 0.05)


def overlap(one: list[float], other: list[float]) -> bool:
    """Return whether two boxes have more in common than the rim of a line of text."""
    width = min(one[2], other[2]) - max(one[0], other[0])
    return width > 0 and min(one[3], other[3]) - max(one[1], other[1]) > 3


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as running:
        yield running


@each
def test_the_file_is_what_the_script_draws(diagram: Diagram) -> None:
    drawn = (ROOT / "docs" / "images" / f"{diagram.file}.svg").read_text()
    assert drawn == svg(diagram), "run scripts/diagrams.py"
    assert not re.search(r"(?:href|src|url\(|@import)", drawn), "it asks for nothing else"


def test_each_is_on_one_page_with_words_for_those_who_do_not_see_it() -> None:
    shown = [found for page in PAGES for found in SHOWN.findall(page.read_text())]
    assert sorted(file for _, file in shown) == sorted(diagram.file for diagram in DIAGRAMS)
    assert sorted(diagram.file for diagram in DIAGRAMS) == sorted(
        path.stem for path in (ROOT / "docs" / "images").glob("*.svg")
    )
    assert all(len(words) > 30 for words, _ in shown)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_a_page_explains_each_number_of_its_diagram(page: Any) -> None:
    text = page.read_text()
    files = {file for _, file in SHOWN.findall(text)}
    (arrows,) = {
        sum(isinstance(part, Says) for part in diagram.parts)
        for diagram in DIAGRAMS
        if diagram.file in files and diagram.lanes
    } or {0}
    assert [int(number) for number in re.findall(r"^(\d+)\. ", text, re.MULTILINE)] == list(range(1, arrows + 1))


@each
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_its_words_fit_and_can_be_read(browser: Browser, diagram: Diagram, scheme: Literal["light", "dark"]) -> None:
    page = browser.new_page(color_scheme=scheme)
    page.set_content(svg(diagram))
    texts = page.evaluate(LOOK)
    page.close()
    assert len(texts) > 10
    for text in texts:
        (left, top, right, bottom), behind = text["box"], text["behind"]
        assert contrast(*text["colours"]) > 4.5, text
        if not text["numbered"]:
            assert left >= behind[0] + 3, text
            assert right <= behind[2] - 3, text
            assert top >= behind[1], text
            assert bottom <= behind[3], text
    pairs = [(one, other) for n, one in enumerate(texts) for other in texts[n + 1 :]]
    assert [(one["says"], other["says"]) for one, other in pairs if overlap(one["box"], other["box"])] == []
