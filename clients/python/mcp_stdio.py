"""The official SDK 1.x: `ClientSession` over `stdio_client`; the arguments after the address start the server."""

import sys

from mcp import ClientSession, StdioServerParameters
from mcp.client.stdio import stdio_client
from official_sdk import elicit, sample
from probe import probe, run


async def main(url: str) -> None:
    """Start the server, and open one session for everything."""
    server = StdioServerParameters(command=sys.argv[2], args=sys.argv[3:])
    async with (
        stdio_client(server) as (read, write),
        ClientSession(read, write, sampling_callback=sample, elicitation_callback=elicit) as session,
    ):
        initialized = await session.initialize()
        await probe(
            session.call_tool,
            tools=session.list_tools,
            prompts=session.list_prompts,
            resources=session.list_resources,
            elicits=True,
            samples=True,
            era=str(initialized.protocolVersion),
        )


run(main)
