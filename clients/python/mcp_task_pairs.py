"""Calls tools as tasks with the official SDK 1.x, and prints what it was asked and told.

Standard input has a list of calls: a `tool`, its `arguments`, and either the `url` of a server, or the `code` of one
of the SDK in the variable `mcp`.
"""

import asyncio
import json
import sys
from contextlib import AsyncExitStack
from typing import Any

from mcp import ClientSession, types
from mcp.client.streamable_http import streamablehttp_client
from mcp.shared.memory import create_connected_server_and_client_session


async def called(call: dict[str, Any]) -> dict[str, Any]:
    """Return what a call was asked, and told at the end."""
    questions: list[str] = []

    async def elicit(context: Any, params: Any) -> types.ElicitResult:
        questions.append(params.message)
        return types.ElicitResult(action="accept", content={"confirm": True})

    async def sample(context: Any, params: types.CreateMessageRequestParams) -> types.CreateMessageResult:
        questions.append("".join(each.content.text for each in params.messages))
        content = types.TextContent(type="text", text="an old pond")
        return types.CreateMessageResult(role="assistant", content=content, model="a model")

    callbacks: dict[str, Any] = {"elicitation_callback": elicit, "sampling_callback": sample}
    async with AsyncExitStack() as stack:
        if "url" in call:
            read, write, _ = await stack.enter_async_context(streamablehttp_client(call["url"]))
            session = await stack.enter_async_context(ClientSession(read, write, **callbacks))
            await session.initialize()
        else:
            names: dict[str, Any] = {"__name__": "example"}
            exec(compile(call["code"], "example.py", "exec"), names)  # noqa: S102  a block of the page
            connected = create_connected_server_and_client_session(names["mcp"], **callbacks)
            session = await stack.enter_async_context(connected)
        tools = [
            [tool.name, tool.execution and tool.execution.taskSupport] for tool in (await session.list_tools()).tools
        ]
        tasks = session.experimental
        task = (await tasks.call_tool_as_task(call["tool"], call["arguments"])).task
        result = await tasks.get_task_result(task.taskId, types.CallToolResult)
        ended = await tasks.get_task(task.taskId)
    text = "".join(part.text for part in result.content if isinstance(part, types.TextContent))
    return {"questions": questions, "text": text, "began": task.status, "ended": ended.status, "tools": tools}


async def main() -> None:
    """Make the calls, one after the other."""
    json.dump([await called(call) for call in json.load(sys.stdin)], sys.stdout)


asyncio.run(main())
