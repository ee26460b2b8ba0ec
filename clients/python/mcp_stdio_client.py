"""The official SDK 2: `Client` over stdio; the arguments after the address start the server."""

import sys

from mcp import Client, StdioServerParameters
from official_sdk import elicit, sample
from probe import probe, run


async def main(url: str) -> None:
    """Start the server, and connect once for everything."""
    server = StdioServerParameters(command=sys.argv[2], args=sys.argv[3:])
    async with Client(server, elicitation_callback=elicit, sampling_callback=sample) as client:
        await probe(
            client.call_tool,
            tools=client.list_tools,
            prompts=client.list_prompts,
            resources=client.list_resources,
            elicits=True,
            samples=True,
            era=str(client.protocol_version),
        )


run(main)
