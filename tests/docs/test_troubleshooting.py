"""The page of troubleshooting quotes what the code says, and messages for authors and operators lead to it."""

import ast
import json
import logging
import re
import tomllib
from functools import cache
from pathlib import Path

import pytest

import mrtr_server
from mrtr_server import Context, MRTRServer, SetupError
from mrtr_server.documentation import DOCS, ENTRIES, help_for
from mrtr_server.logs.formats import JSONFormatter, TextFormatter
from mrtr_server.testing import Client, yes

from .test_pages import ROOT, anchors

PAGE = ROOT / "docs" / "troubleshooting.md"
TEXT = PAGE.read_text()
BY_MESSAGE, FAULTS = TEXT.partition("## Symptoms without a message")[0], TEXT.partition("## Faults, by their lines")[2]
HEADINGS = re.findall(r"^### (.+)$", BY_MESSAGE, re.MULTILINE)


def quoted(part: str) -> list[str]:
    """Return what the first cell, or the second of three, of each row of a part's tables has as code."""
    rows = re.findall(r"^\|(?: [^|]+ \|(?= [^|]+ \| [^|]+ \|$))? ([^|]+) \| [^|]+ \|$", part, re.MULTILINE)
    return sorted({text for row in rows for text in re.findall(r"`([^`]+)`", row)})


QUOTED = [*HEADINGS, *quoted(BY_MESSAGE), *quoted(FAULTS)]
DATABASES_SAY = {"too many connections", "too many clients", "disk is full"}
"""Words of SQLite and PostgreSQL, for which the code has a hint."""


@cache
def texts() -> set[str]:
    """Return all texts of the code, each put together from its parts, but for those of the page itself."""
    found = set()
    for path in Path(mrtr_server.__file__).parent.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())) if path.name != "documentation.py" else ():
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                found.add(node.value)
            elif isinstance(node, ast.JoinedStr):
                found.add("".join(str(part.value) for part in node.values if isinstance(part, ast.Constant)))
    return found


def test_there_are_entries_and_lines() -> None:
    assert len(HEADINGS) >= 25
    assert len(quoted(FAULTS)) > 15
    assert set(QUOTED) >= DATABASES_SAY


@pytest.mark.parametrize("part", dict.fromkeys([*QUOTED, *ENTRIES]))
def test_the_code_says_it_in_these_words(part: str) -> None:
    assert any(part in text for text in texts())


def test_each_address_leads_to_an_entry() -> None:
    assert set(ENTRIES.values()) <= anchors(PAGE)
    urls = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["urls"]
    site = tomllib.loads((ROOT / "zensical.toml").read_text())["project"]["site_url"]
    assert urls["Documentation"] == site == DOCS


def test_an_error_of_the_set_up_has_its_page_in_a_note_and_not_in_its_text() -> None:
    error = SetupError("2 workers need one shared key: ...")
    assert error.__notes__ == [f"See {DOCS}troubleshooting/#need-one-shared-key"]
    assert DOCS not in str(error)
    assert not hasattr(SetupError("something else"), "__notes__")


@pytest.mark.parametrize("debug", [True, False])
def test_the_log_leads_to_the_page_and_what_a_client_reads_does_not(
    debug: bool, caplog: pytest.LogCaptureFixture
) -> None:
    app = MRTRServer("shop", debug=debug)

    @app.tool
    async def order(ctx: Context) -> str:
        await ctx.confirm("Order?")
        return await ctx.step(lambda: "ordered")

    with caplog.at_level(logging.WARNING, "mrtr_server"):
        failed = Client(app).call("order", answers={"confirm": yes})
    address = help_for("needs a key=")
    assert address
    (record,) = (each for each in caplog.records if "order" in each.getMessage() and each.exc_info)
    assert json.loads(JSONFormatter().format(record))["help"] == address
    assert f"help={address}" in TextFormatter().format(record)
    assert DOCS not in failed.failure


def test_a_refused_state_leads_to_its_entry_in_the_log_alone(caplog: pytest.LogCaptureFixture) -> None:
    app = MRTRServer("shop")

    @app.tool(confirm="Sure?")
    def order() -> str:
        return "ordered"

    flow = Client(app).flow("order")
    flow.start()
    flow.tamper()
    with caplog.at_level(logging.WARNING, "mrtr_server"):
        refused = flow.answer(confirm=yes)
    fields = [getattr(each, "fields", {}) for each in caplog.records]
    assert {"help": help_for("refused a requestState")} in fields
    assert DOCS not in refused.error.message
