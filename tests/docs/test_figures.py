"""The figures of the README are those of the page of measurements, and its claims are no better than these."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()
PAGE = (ROOT / "docs" / "performance.md").read_text()
SAYS = " ".join(PAGE.partition("## What the figures say")[2].partition("\n## ")[0].split())
FIGURE = r"\d{1,3}(?:,\d{3})*(?:\.\d+)?"


def ratios(headings: str) -> list[float]:
    """Return how many times as many as `mcp` at its default settings we answer: the median of each run.

    Args:
        headings: how the headings of the tables begin, as a pattern.
    """
    tables = re.findall(rf"^### (?:{headings})(.*?)(?=^##)", PAGE, re.MULTILINE | re.DOTALL)
    return [
        float(ratio)
        for table in tables
        for ratio in re.findall(r"^\| mcp, default settings \|.*?\| (\d+\.\d+) \(", table, re.MULTILINE)
    ]


CALLS = ratios("Plain calls|Plain `tools/call` of an `async def`")
FLOWS = ratios("Two-round flow")


def compared() -> list[str]:
    """Return the figures of the README's comparison that were measured by that page."""
    rows = [row for row in README.splitlines() if row.startswith("| ") and "docs/performance.md" in row]
    return [figure for row in rows for cell in row.split("|")[2:] for figure in re.findall(FIGURE, cell)]


def test_there_are_two_runs_of_each() -> None:
    assert len(CALLS) == len(FLOWS) == 2


def test_the_claim_of_speed_has_the_medians_of_the_runs() -> None:
    number = r"(\d+\.\d)"
    claims = re.findall(
        rf"\*\*Fast\.\*\* {number} to {number} times the plain calls and {number} to {number} times the flows", README
    )
    assert claims == [tuple(f"{end:.1f}" for end in (min(CALLS), max(CALLS), min(FLOWS), max(FLOWS)))]


def test_each_figure_of_the_comparison_was_measured() -> None:
    figures = compared()
    assert len(figures) > 15
    assert [each for each in figures if not re.search(rf"(?<![\d,.]){re.escape(each)}(?!\d|,\d)", PAGE)] == []


def test_the_ratios_of_the_text_are_those_of_the_tables() -> None:
    (now, before), (flows_now, flows_before) = CALLS, FLOWS
    assert f"have {now:.1f} times the plain calls and {flows_now:.1f} times the flows" in SAYS
    assert f"had {before:.1f} and {flows_before:.1f} times as many" in SAYS
