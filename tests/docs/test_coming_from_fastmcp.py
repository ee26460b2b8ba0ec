"""The page for those who come from FastMCP: its own client is asked and told the same by both examples of a pair."""

import re
import sys
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

import pytest

from ..support.clients import results_of
from ..support.serving import ROOT, in_thread

sys.path.insert(0, str(ROOT / "scripts"))

from clients_install import read_clients
from compare_lines import pairs, table

pytestmark = pytest.mark.processes

PAGE = ROOT / "docs" / "coming-from-fastmcp.md"
PAIRS = {pair.title: pair for pair in pairs(PAGE)}
ANSWERS = {"How many": ["copies", 2], "Order 2": ["confirm", True]}
CALLS: dict[str, tuple[str, dict[str, Any], str]] = {
    "A plain tool": ("price", {"title": "Emma"}, "12"),
    "A tool that asks": ("order", {"title": "Emma"}, "2 × Emma ordered"),
    "A tool that tells its progress": ("count", {"shelves": 3}, "120 books"),
    "A tool with a dependency": ("stock", {"title": "Emma"}, "3 × Emma"),
    "A server within a server": ("billing_invoice", {"number": 7}, "Invoice 7"),
    "A tool that runs in the background": ("inventory", {"shelves": 3}, "123 books"),
}


@pytest.fixture(scope="module")
def outcomes() -> dict[tuple[str, str, str], dict[str, Any]]:
    """What FastMCP's client found: by title, whose server it is, and the client's mode."""
    (listed,) = (client for client in read_clients() if client.name == "fastmcp 4")
    packages = tuple(each.replace("fastmcp==", "fastmcp[tasks]==") for each in listed.pip)
    client = replace(listed, name="fastmcp 4 tasks", pip=packages, run=("python/fastmcp_pairs.py",))
    client.install()
    keys: list[tuple[str, str, str]] = []
    calls: list[dict[str, Any]] = []
    with ExitStack() as stack:
        for title, (tool, arguments, _) in CALLS.items():
            names: dict[str, Any] = {"__name__": "example"}
            exec(compile(PAIRS[title].ours, "example.py", "exec"), names)  # noqa: S102  a block of the page
            ours = {"url": f"http://127.0.0.1:{stack.enter_context(in_thread(names['app'], wait=False))}/mcp"}
            for whose, server in (("fastmcp", {"code": PAIRS[title].theirs}), ("mrtr_server", ours)):
                for mode in ("auto", "legacy"):
                    keys.append((title, whose, mode))
                    calls.append({"mode": mode, "tool": tool, "arguments": arguments, "answers": ANSWERS, **server})
        return dict(zip(keys, results_of(client, calls), strict=True))


@pytest.mark.parametrize("title", CALLS)
def test_its_client_is_asked_and_told_the_same(
    outcomes: dict[tuple[str, str, str], dict[str, Any]], title: str
) -> None:
    theirs, ours = (outcomes[title, whose, "legacy"] for whose in ("fastmcp", "mrtr_server"))
    assert ours["text"] == theirs["text"] == CALLS[title][2]
    assert ours["questions"] == theirs["questions"]
    assert ours["tools"] == theirs["tools"]
    if title == "A tool that tells its progress":
        assert ours["progress"] == theirs["progress"] == [[n, 3, f"Counted shelf {n}"] for n in (1, 2, 3)]


@pytest.mark.parametrize("title", CALLS)
def test_ours_do_the_same_for_a_client_of_2026_07_28(
    outcomes: dict[tuple[str, str, str], dict[str, Any]], title: str
) -> None:
    theirs, ours = (outcomes[title, whose, "auto"] for whose in ("fastmcp", "mrtr_server"))
    assert ours["text"] == CALLS[title][2]
    if title == "A tool that asks":
        assert len(ours["questions"]) == 2
        assert theirs["failed"], "the page says that it fails"
    else:
        assert theirs["text"] == ours["text"]


def test_every_pair_is_called_and_counted() -> None:
    assert list(PAIRS) == list(CALLS)
    text = PAGE.read_text()
    assert text.endswith(table(PAGE) + "\n")
    assert len(re.findall(r'^```python title="fastmcp"$', text, re.MULTILINE)) == len(PAIRS)
