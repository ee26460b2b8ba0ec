"""The experimental tasks of the official SDKs 1.x, in Python and TypeScript, against three replicas."""

import asyncio
import json
import sys
from dataclasses import replace
from typing import Any

import pytest

from ..support.serving import ROOT

sys.path.insert(0, str(ROOT / "scripts"))

from clients_fleet import replicas
from clients_install import Client, environment, read_clients

CLIENTS = {client.name: client for client in read_clients()}
PYTHON = replace(CLIENTS["mcp 1"], run=("python/mcp_tasks.py",))
TYPESCRIPT = replace(CLIENTS["@modelcontextprotocol/sdk 1"], run=("js/sdk_1_tasks.mjs",))


async def found_by(client: Client, database: str) -> dict[str, Any]:
    """Run a client's program against three replicas; return what it printed."""
    async with replicas(database, "tests.support.live_tasks_app:app", ROOT) as front:
        running = await asyncio.create_subprocess_exec(
            *client.command(front.url),
            env=environment(),
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        try:
            async with asyncio.timeout(120):
                printed, said = await running.communicate()
        finally:
            if running.returncode is None:
                running.kill()
    assert running.returncode == 0, said.decode()
    found: dict[str, Any] = json.loads(printed.decode().splitlines()[-1])
    return found


@pytest.mark.parametrize(
    ("client", "database"), [(PYTHON, "postgresql"), (TYPESCRIPT, "sqlite")], ids=["Python", "TypeScript"]
)
def test_a_client_of_the_official_sdk_follows_lists_and_cancels_tasks(client: Client, database: str) -> None:
    client.install()
    found = asyncio.run(found_by(client, database))
    assert found["declared"]
    assert [found["support"][name] for name in ("add", "greet", "render")] == ["forbidden", "optional", "required"]
    assert found["greet"].pop("text") == "Hello, octocat!"
    assert found["say_hello"].pop("text") == "Much ado about nothing."
    assert found["greet"].pop("asked")
    assert {found[name]["ended"] for name in ("greet", "say_hello")} == {"completed"}
    assert {found[name]["began"] for name in ("greet", "say_hello", "fail")} == {"working"}
    assert found["fail"]["ended"] == "failed"
    assert found["listed"] == 3
    assert found["cancelled"] == "cancelled"
    assert found["codes"].pop("cancelled again") == -32602
    assert found["codes"].pop("unknown") == -32602
    if client is PYTHON:
        assert found["fail"]["text"] == "The film is torn"
        assert found["codes"] == {"without a task": -32601, "as a task": -32601}
