"""The official SDK 1.x with a server on stdio, as desktop applications have it: the npm package mcp-remote."""

import os
import sys

from mcp import ClientSession, StdioServerParameters
from mcp.client.stdio import stdio_client
from official_sdk import elicit, sample
from probe import probe, run


async def main(url: str) -> None:
    """Run the bridge, and open one session for everything. The second argument is the program of the bridge."""
    bridge = StdioServerParameters(command="node", args=[sys.argv[2], url], env=dict(os.environ))
    async with (
        stdio_client(bridge) as (read, write),
        ClientSession(read, write, sampling_callback=sample, elicitation_callback=elicit) as session,
    ):
        await session.initialize()
        await probe(
            session.call_tool,
            tools=session.list_tools,
            prompts=session.list_prompts,
            resources=session.list_resources,
            elicits=True,
            samples=True,
        )


run(main)
