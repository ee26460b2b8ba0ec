"""Experimental tasks of the official SDK 1.x: `session.experimental`. Prints one line of JSON with what it found."""

import asyncio
import json
import sys
from typing import Any

from mcp import ClientSession, McpError, types
from mcp.client.streamable_http import streamablehttp_client
from official_sdk import elicit, sample


async def code_of(work: Any) -> int:
    """Return the code of the error that something ends with; 0 for none."""
    try:
        await work
    except McpError as error:
        return error.error.code
    return 0


async def follow(session: ClientSession, tool: str) -> dict[str, Any]:
    """Call a tool as a task, poll it as the SDK does, and fetch what it came to."""
    tasks = session.experimental
    created = await tasks.call_tool_as_task(tool, {}, ttl=60_000)
    statuses = []
    async for status in tasks.poll_task(created.task.taskId):
        statuses.append(status.status)
        if status.status == "input_required":
            break
    result = await tasks.get_task_result(created.task.taskId, types.CallToolResult)
    last = await tasks.get_task(created.task.taskId)
    return {
        "began": created.task.status,
        "asked": "input_required" in statuses,
        "ended": last.status,
        "text": text(result),
    }


def text(result: types.CallToolResult) -> str:
    """Return the text of a result."""
    return "".join(block.text for block in result.content if isinstance(block, types.TextContent))


async def main(url: str) -> None:
    """Open one session for everything."""
    async with (
        streamablehttp_client(url) as (read, write, _),
        ClientSession(read, write, elicitation_callback=elicit, sampling_callback=sample) as session,
    ):
        initialized = await session.initialize()
        tasks = session.experimental
        found: dict[str, Any] = {"declared": initialized.capabilities.tasks is not None}
        listed = await session.list_tools()
        found["support"] = {tool.name: tool.execution and tool.execution.taskSupport for tool in listed.tools}
        found["greet"] = await follow(session, "greet")
        found["say_hello"] = await follow(session, "say_hello")
        found["fail"] = await follow(session, "fail")
        found["listed"] = len((await tasks.list_tasks()).tasks)
        waits = (await tasks.call_tool_as_task("greet", {})).task.taskId
        found["cancelled"] = (await tasks.cancel_task(waits)).status
        found["codes"] = {
            "cancelled again": await code_of(tasks.cancel_task(waits)),
            "without a task": await code_of(session.call_tool("render", {})),
            "as a task": await code_of(tasks.call_tool_as_task("add", {"a": 1, "b": 2})),
            "unknown": await code_of(tasks.get_task("unknown")),
        }
        print(json.dumps(found))


asyncio.run(main(sys.argv[1]))
