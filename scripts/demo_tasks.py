"""The second part of scripts/demo: a flow that starts in rounds and ends as a task, its worker killed in between."""

import asyncio
import re
import tempfile
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

from demo_fleet import ROOT, DemoFailed, Running, post, running

from examples.round_robin import RoundRobin

TASKS = "io.modelcontextprotocol/tasks"
META = {
    "io.modelcontextprotocol/protocolVersion": "2026-07-28",
    "io.modelcontextprotocol/clientCapabilities": {"elicitation": {}, "extensions": {TASKS: {}}},
}
DATABASE_FILE = "tasks.db"
TIMEOUT = 120.0
"""How long it may take in all, in seconds."""

KILLED_AT = "people"
"""The chapter during which the worker is killed; two are recorded then."""


class Client:
    """A client of the ratified protocol that takes tasks.

    Args:
        port: where to.
    """

    def __init__(self, port: int) -> None:
        self._port = port

    async def call(self, **more: Any) -> tuple[str, dict[str, Any]]:
        """Call the tool; return who answered it, and the result."""
        return await self._send("tools/call", "report", {"name": "report", "arguments": {}, **more})

    async def ask(self, method: str, task: str, **more: Any) -> tuple[str, dict[str, Any]]:
        """Send a request about a task; return who answered it, and the result."""
        return await self._send(method, task, {"taskId": task, **more})

    async def _send(self, method: str, name: str, params: dict[str, Any]) -> tuple[str, dict[str, Any]]:
        message = {"jsonrpc": "2.0", "id": 1, "method": method, "params": {**params, "_meta": META}}
        headers = {"Mcp-Method": method, "Mcp-Name": name, "MCP-Protocol-Version": "2026-07-28"}
        headers["Accept"] = "application/json, text/event-stream"
        return await asyncio.to_thread(lambda: post(self._port, message, **headers))


async def demo(key: str) -> None:
    """Start three servers with a database, and go through it."""
    print("\n\nThree servers with one key and one database, a file of SQLite:")
    with tempfile.TemporaryDirectory(prefix="mrtr-demo-") as directory:
        environment = {"MRTR_KEYS": key, "MRTR_DATABASE_URL": f"sqlite:///{Path(directory) / DATABASE_FILE}"}
        async with AsyncExitStack() as stack:
            contexts = [
                running(number, "demo_task_server:app", ROOT / "scripts", **environment) for number in (1, 2, 3)
            ]
            servers = [await stack.enter_async_context(context) for context in contexts]
            for server in servers:
                print(f"  http://127.0.0.1:{server.replica.port}/mcp   {server.replica.name}")
            front = await RoundRobin([server.replica for server in servers]).listen()
            try:
                async with asyncio.timeout(TIMEOUT):
                    await play(Client(front.sockets[0].getsockname()[1]), servers)
            except TimeoutError:
                raise DemoFailed(f"The task did not end within {TIMEOUT:g} s") from None
            finally:
                front.close()


async def play(client: Client, servers: list[Running]) -> None:
    """Go through the rounds and the task, and kill its worker; return who did what."""
    print("\nRound 1\n  client     report()")
    who, result = await client.call()
    print(f"  {who}\n             asks: {result['inputRequests']['quarter']['params']['message']}")
    print('\nRound 2\n  client     the same call, with {"quarter": "Q3"} and the requestState of round 1')
    answers = {"quarter": {"action": "accept", "content": {"quarter": "Q3"}}}
    state = result["requestState"]
    who, result = await client.call(inputResponses=answers, requestState=state)
    if result["resultType"] != "task":
        raise DemoFailed(f"The second round was to become a task, but was {result}")
    task = result["taskId"]
    print(f"  {who}\n             goes on in the background, as the task {task[:8]}…")
    print("\nThe task, as the client sees it")
    pages = await follow(client, task, servers)
    for page in pages:
        print(f"             {page}")
    check(pages)


async def follow(client: Client, task: str, servers: list[Running]) -> list[str]:
    """Ask for a task until it has ended, and answer what it asks; kill who works on it, once."""
    said, killed = "", False
    while True:
        who, found = await client.ask("tasks/get", task)
        if found["status"] == "completed":
            print(f"  completed  says {who}:")
            pages: list[str] = found["result"]["structuredContent"]
            return pages
        if found["status"] == "input_required":
            print(f"  asks       {found['inputRequests']['confirm']['params']['message']}")
            print("             and no process waits for the answer\n  client     yes")
            answers = {"confirm": {"action": "accept", "content": {"confirm": True}}}
            await client.ask("tasks/update", task, inputResponses=answers)
        elif found["status"] != "working":
            raise DemoFailed(f"The task is {found['status']}: {found.get('error')}")
        elif (message := found.get("statusMessage", said)) != said:
            said = message
            print(f"  working    {said}")
            if KILLED_AT in said and not killed:
                killed = True
                await kill(int(re.findall(r"\d+", said)[0]), servers)
        await asyncio.sleep(found["pollIntervalMs"] / 1000)


async def kill(pid: int, servers: list[Running]) -> None:
    """End the process that works on the task, without a warning."""
    server = next(server for server in servers if server.process.pid == pid)
    server.process.kill()
    await server.process.wait()
    print(f"  SIGKILL    for process {pid}. Its lease ends in five seconds, and another process takes over")


def check(pages: list[str]) -> None:
    """See that the first two steps stayed, and that another process did the rest."""
    pids = [page.rpartition(" ")[2] for page in pages]
    if pids[0] != pids[1] or pids[0] in pids[2:]:
        raise DemoFailed("The first process was to write two chapters, and others the rest")
    print(
        "\nWhat was recorded when its process was killed was not done again. Nobody called anybody: what the task knows"
        "\nis in the database, sealed, and any free process continues it."
    )
