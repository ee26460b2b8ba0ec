"""The pages for those who come from another framework: both examples of a pair run, and show their clients the same."""

import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from mcp import Client
from mcp.client import ClientRequestContext
from mcp.server import MCPServer, Server
from mcp.types import ElicitRequestParams, ElicitResult

from mrtr_server import MRTRServer

from ..support.serving import in_thread

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "scripts"))

from compare_lines import Pair, pairs, table  # noqa: E402

SDK = ROOT / "docs" / "coming-from-the-sdk.md"
PAIRS = {pair.title: pair for pair in pairs(SDK)}

Ask = Callable[[Client], Any]


async def text_of(client: Client, tool: str, **arguments: Any) -> str:
    result: Any = await client.call_tool(tool, arguments)
    assert not result.is_error, result
    return str(result.content[0].text)


async def prompt_of(client: Client, name: str) -> str:
    result: Any = await client.get_prompt(name)
    return str(result.messages[0].content.text)


CASES: dict[str, tuple[dict[str, Any], Ask, str]] = {
    "A form in the middle of a tool": (
        {"accept": True, "date": "2025-12-27"},
        lambda client: text_of(client, "book_table", date="2025-12-25", party_size=2),
        "Booked a table for 2 on 2025-12-27.",
    ),
    "A question that depends on the arguments": (
        {},
        lambda client: text_of(client, "delete_folder", path="/project"),
        "deleted /project",
    ),
    "Rounds by hand": (
        {"region": "eu-west-1"},
        lambda client: text_of(client, "provision", name="orders"),
        "Provisioned orders in eu-west-1.",
    ),
    "A prompt that asks": (
        {"audience": "the board"},
        lambda client: prompt_of(client, "briefing"),
        "Write a briefing for the board.",
    ),
    "A confirmation": ({}, lambda client: text_of(client, "deploy", env="production"), "deployed to production"),
}
SAME = [pytest.param(PAIRS[title], *case, id=title) for title, case in CASES.items()]


def run(code: str, variable: str) -> Any:
    names: dict[str, Any] = {"__name__": "example"}
    exec(compile(code, "example.py", "exec"), names)  # noqa: S102  a block of the page
    return names[variable]


def connected(target: Any, content: dict[str, Any], asked: list[str], **options: Any) -> Client:
    """Return a client of the SDK that answers with a content, and ticks a lone boolean."""

    async def answer(context: ClientRequestContext, params: ElicitRequestParams) -> ElicitResult:
        asked.append(params.message)
        schema: dict[str, Any] = getattr(params, "requested_schema", None) or {}
        ticked = {name: True for name, each in schema["properties"].items() if each["type"] == "boolean"}
        return ElicitResult(action="accept", content=content or ticked)

    return Client(target, elicitation_callback=answer, **options)


@pytest.mark.anyio
@pytest.mark.parametrize(("pair", "content", "ask", "answer"), SAME)
async def test_clients_of_both_see_the_same(pair: Pair, content: dict[str, Any], ask: Ask, answer: str) -> None:
    theirs, ours = run(pair.theirs, "mcp"), run(pair.ours, "app")
    assert isinstance(theirs, MCPServer | Server)
    assert isinstance(ours, MRTRServer)
    questions: tuple[list[str], list[str]] = ([], [])
    legacy = {"mode": "legacy"} if pair.title == "A form in the middle of a tool" else {}
    async with connected(theirs, content, questions[0], **legacy) as client:
        assert await ask(client) == answer
    with in_thread(ours) as port:
        async with connected(f"http://127.0.0.1:{port}/mcp", content, questions[1]) as client:
            assert await ask(client) == answer
    assert questions[0] == questions[1]
    assert questions[0]


def test_every_pair_runs() -> None:
    for pair in PAIRS.values():
        assert isinstance(run(pair.theirs, "mcp"), MCPServer | Server)
        assert isinstance(run(pair.ours, "app"), MRTRServer)
    assert PAIRS.keys() - CASES.keys() == {"A page to open"}


def test_the_table_has_the_lines_as_they_are_counted() -> None:
    text = SDK.read_text()
    assert text.endswith(table(SDK) + "\n")
    blocks = len(re.findall(r'^```python title="mcp"$', text, re.MULTILINE))
    assert blocks == len(PAIRS), "every block is counted"
