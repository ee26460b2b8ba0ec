"""A session of the official SDK 1.x that makes the calls that it is told, a line of JSON each, and prints what came."""

import asyncio
import json
import sys
from typing import Any

from mcp import ClientSession, McpError, types
from mcp.client.streamable_http import streamablehttp_client
from official_sdk import elicit, sample

PATIENCE = 60
"""How long a call may take, in seconds: in a session that has ended, none comes back."""


async def outcome(session: ClientSession, tool: str, arguments: dict[str, Any]) -> str:
    """Return the text of a call's result, or the code and the message of its error."""
    try:
        async with asyncio.timeout(PATIENCE):
            result = await session.call_tool(tool, arguments)
    except McpError as error:
        return f"{error.error.code} {error.error.message}"
    return "".join(block.text for block in result.content if isinstance(block, types.TextContent))


async def main(url: str, token: str) -> None:
    """Open one session for everything."""
    async with (
        streamablehttp_client(url, headers={"Authorization": f"Bearer {token}"}) as (read, write, _),
        ClientSession(read, write, elicitation_callback=elicit, sampling_callback=sample) as session,
    ):
        await session.initialize()
        print(json.dumps("begun"), flush=True)
        while line := await asyncio.to_thread(sys.stdin.readline):
            print(json.dumps(await outcome(session, *json.loads(line))), flush=True)


asyncio.run(main(*sys.argv[1:]))
