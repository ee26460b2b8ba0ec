"""The pages for those who come from another framework: both examples of a pair run, and show their clients the same."""

import asyncio
import json
import re
import sys
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from mcp import Client
from mcp.client import ClientRequestContext
from mcp.server import MCPServer, Server
from mcp.types import CreateMessageRequestParams, CreateMessageResult, ElicitRequestParams, ElicitResult, TextContent

from mrtr_server import MRTRServer

from ..support.clients import results_of
from ..support.serving import in_thread

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "scripts"))

from clients_install import read_clients  # noqa: E402
from compare_lines import Pair, pairs, table  # noqa: E402

pytestmark = pytest.mark.processes

SDK = ROOT / "docs" / "coming-from-the-sdk.md"
PAIRS = {pair.title: pair for pair in pairs(SDK)}
CLIENT = "A client that answers"
DIFFERENT = {"A page to open", "A page in place of a result"}
"""What is not the same with ours, as the page says."""

Ask = Callable[[Client], Any]


async def text_of(client: Client, tool: str, **arguments: Any) -> str:
    result: Any = await client.call_tool(tool, arguments)
    assert not result.is_error, result
    return str(result.content[0].text)


async def structured_of(client: Client, tool: str, **arguments: Any) -> str:
    result: Any = await client.call_tool(tool, arguments)
    assert not result.is_error, result
    return json.dumps(result.structured_content)


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
    "A question in every call": (
        {"copies": 2},
        lambda client: text_of(client, "reserve", title="Dune"),
        "Reserved 2 of Dune.",
    ),
    "A dependency that may ask": (
        {},
        lambda client: text_of(client, "order_book", title="Neuromancer"),
        "Backordered Neuromancer; it ships in 2-3 weeks.",
    ),
    "Questions that follow from each other": (
        {},
        lambda client: structured_of(client, "refund_order", order_id="ORD-7002"),
        '{"order_id": "ORD-7002", "refunded_cents": 2400, "restocked": true}',
    ),
    "A message of the client's model": (
        {},
        lambda client: text_of(client, "recommend_book", genre="fantasy"),
        "Today's fantasy pick: Emma",
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

    async def sample(context: ClientRequestContext, params: CreateMessageRequestParams) -> CreateMessageResult:
        (message,) = params.messages
        asked.append(getattr(message.content, "text", ""))
        return CreateMessageResult(role="assistant", content=TextContent(text="Emma"), model="a model")

    return Client(target, elicitation_callback=answer, sampling_callback=sample, **options)


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


def test_both_clients_answer_the_same(capsys: pytest.CaptureFixture[str]) -> None:
    with in_thread(run(PAIRS["Rounds by hand"].ours, "app")) as port:
        for code in (PAIRS[CLIENT].theirs, PAIRS[CLIENT].ours):
            assert (
                asyncio.run(run(code, "provision")(f"http://127.0.0.1:{port}/mcp"))
                == "Provisioned orders in eu-west-1."
            )
            assert capsys.readouterr().out == "Which region?\n"


TASKS: dict[str, tuple[str, dict[str, Any], list[str], str]] = {
    "A task that tells its status": ("long_running_task", {}, [], "Task completed!"),
    "A task that asks": (
        "confirm_delete",
        {"filename": "a.txt"},
        ["Are you sure you want to delete a.txt?"],
        "Deleted a.txt",
    ),
    "A task that asks the client's model": (
        "write_haiku",
        {"topic": "frogs"},
        ["Write a haiku about frogs"],
        "Haiku: an old pond",
    ),
}


def test_a_client_of_the_sdk_1_sees_the_same_tasks() -> None:
    (listed,) = (client for client in read_clients() if client.name == "mcp 1")
    client = replace(listed, run=("python/mcp_task_pairs.py",))
    client.install()
    calls: list[dict[str, Any]] = []
    with ExitStack() as stack:
        for title, (tool, arguments, _, _) in TASKS.items():
            port = stack.enter_context(in_thread(run(PAIRS[title].ours, "app"), wait=False))
            servers = {"code": PAIRS[title].theirs}, {"url": f"http://127.0.0.1:{port}/mcp"}
            calls += [{"tool": tool, "arguments": arguments, **server} for server in servers]
        found = iter(results_of(client, calls))
    for title, (tool, _, questions, text) in TASKS.items():
        theirs, ours = next(found), next(found)
        expected = {"questions": questions, "text": text, "began": "working", "ended": "completed"}
        assert theirs == ours == {**expected, "tools": [[tool, "required"]]}, title


def test_every_pair_is_called() -> None:
    for title in DIFFERENT:
        assert isinstance(run(PAIRS[title].theirs, "mcp"), MCPServer)
        assert isinstance(run(PAIRS[title].ours, "app"), MRTRServer)
    assert PAIRS.keys() == CASES.keys() | TASKS.keys() | DIFFERENT | {CLIENT}


def test_the_table_has_the_lines_as_they_are_counted() -> None:
    text = SDK.read_text()
    assert text.endswith(table(SDK) + "\n")
    blocks = len(re.findall(r'^```python title="mcp1?"$', text, re.MULTILINE))
    assert blocks == len(PAIRS), "every block is counted"
