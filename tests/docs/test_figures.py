"""The figures of the README and of the pages are those that were measured, and their claims are no better."""

import math
import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()
PAGE = (ROOT / "benchmarks" / "results.md").read_text()
COMPARE = (ROOT / "docs" / "compare.md").read_text()
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
    """Return the figures of the comparison that were measured."""
    rows = [row for row in COMPARE.splitlines() if row.startswith("| ") and "benchmarks/results.md" in row]
    return [figure for row in rows for cell in row.split("|")[2:] for figure in re.findall(FIGURE, cell)]


def test_there_are_two_runs_of_each() -> None:
    assert len(CALLS) == len(FLOWS) == 2


def test_the_claim_of_speed_has_the_medians_of_the_runs() -> None:
    claims = re.findall(r"(\d+\.\d) to (\d+\.\d) times the plain calls", README)
    assert claims == [(f"{min(CALLS):.1f}", f"{max(CALLS):.1f}")]


def test_each_figure_of_the_comparison_was_measured() -> None:
    figures = compared()
    assert len(figures) > 15
    assert [each for each in figures if not re.search(rf"(?<![\d,.]){re.escape(each)}(?!\d|,\d)", PAGE)] == []


def test_the_ratios_of_the_text_are_those_of_the_tables() -> None:
    (now, before), (flows_now, flows_before) = CALLS, FLOWS
    assert f"have {now:.1f} times the plain calls and {flows_now:.1f} times the flows" in SAYS
    assert f"had {before:.1f} and {flows_before:.1f} times as many" in SAYS


def test_what_a_rate_needs_is_what_the_measured_rows_say() -> None:
    """With processors that are half busy, and 16 of them in a database."""
    page = (ROOT / "docs" / "capacity.md").read_text()
    rows = [[cell.strip() for cell in row.split("|")[1:-1]] for row in page.splitlines() if row.startswith("| a")]
    measured = [row for row in rows if re.fullmatch(r"measured, [\d,]+ times", row[-1])]
    computed = {row[0]: row[1:-1] for row in rows if row[-1] == "computed"}
    assert [row[0] for row in measured] == list(computed)
    for thing, *cells in measured:
        servers, database, statements = (int(cell.replace(",", "")) / 1e6 for cell in cells[:3])
        for rate, need in zip((100, 1_000, 10_000), computed[thing], strict=True):
            assert need.split(" ")[0] == f"{math.ceil(rate * servers / 0.5):,}", thing
            if statements:
                processors = rate * database / 0.5
                assert need.partition(" + ")[2] == f"{math.ceil(processors / 16)} ({processors:,.1f})", thing
