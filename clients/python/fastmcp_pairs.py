"""Calls tools of servers with the client of FastMCP 4, and prints what it was asked and told.

Standard input has a list of calls: the `mode` of the client, a `tool`, its `arguments`, the `answers` by words of the
question, and either a `url` or the `code` of a server of FastMCP in the variable `mcp`.
"""

import asyncio
import json
import sys
from typing import Any

import fastmcp_tasks  # noqa: F401  the client follows tasks with it
from fastmcp import Client


async def called(call: dict[str, Any]) -> dict[str, Any]:
    """Return what a call was asked, told on its way, and told at the end."""
    questions: list[str] = []
    progress: list[list[Any]] = []

    async def elicit(message: str, response_type: Any, params: Any, context: Any) -> Any:
        questions.append(message)
        name, answer = next(each for words, each in call["answers"].items() if words in message)
        names = list(params.requested_schema["properties"])
        return {name if name in names else names[0]: answer}

    async def keep(done: float, total: float | None, message: str | None) -> None:
        progress.append([done, total, message])

    served: Any = call.get("url")
    if served is None:
        names: dict[str, Any] = {"__name__": "example"}
        exec(compile(call["code"], "example.py", "exec"), names)  # noqa: S102  a block of the page
        served = names["mcp"]
    async with Client(served, mode=call["mode"], elicitation_handler=elicit, progress_handler=keep) as client:
        result = await client.call_tool(call["tool"], call["arguments"], raise_on_error=False)
        tools = [tool.name for tool in await client.list_tools()]
    text = "".join(part.text for part in result.content)
    return {"questions": questions, "progress": progress, "text": text, "failed": result.is_error, "tools": tools}


async def main() -> None:
    """Make the calls, one after the other."""
    json.dump([await called(call) for call in json.load(sys.stdin)], sys.stdout)


asyncio.run(main())
