"""Count the lines of the examples in docs/coming-from-*.md: of the other framework's, and of ours beside it."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

DOCS = Path(__file__).parents[1] / "docs"
PAIR = re.compile(
    r'^## ([^\n]+)\n(?:(?!^## ).)*?^```python title="(\w+)"\n(.*?)^```$.*?^```python\n(.*?)^```$',
    re.MULTILINE | re.DOTALL,
)


class Pair(NamedTuple):
    """One example, twice.

    Args:
        title: the heading above it.
        framework: whose the first one is.
        theirs: the first one's code.
        ours: the second one's.
    """

    title: str
    framework: str
    theirs: str
    ours: str


def pairs(page: Path) -> Iterator[Pair]:
    """Return the examples of a page."""
    for found in PAIR.finditer(page.read_text()):
        yield Pair(*found.groups())


def lines(code: str) -> int:
    """Return how many lines of code are not empty."""
    return sum(1 for line in code.splitlines() if line.strip())


def table(page: Path) -> str:
    """Return the rows of the table at the end of a page."""
    counted = [(pair.title, lines(pair.theirs), lines(pair.ours)) for pair in pairs(page)]
    rows = [f"| {title} | {theirs} | {ours} |" for title, theirs, ours in counted]
    return "\n".join([*rows, f"| together | {sum(row[1] for row in counted)} | {sum(row[2] for row in counted)} |"])


if __name__ == "__main__":
    for page in sorted(DOCS.glob("coming-from-*.md")):
        print(page.name, table(page), "", sep="\n")
