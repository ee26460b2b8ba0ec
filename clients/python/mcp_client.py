"""The official SDK 2: `Client`; the second argument is its mode."""

import sys
from typing import Any

from mcp import Client
from official_sdk import elicit, sample
from probe import probe, run


async def main(url: str) -> None:
    """Connect once for everything."""
    options: dict[str, Any] = {"mode": sys.argv[2]} if len(sys.argv) > 2 else {}
    async with Client(url, elicitation_callback=elicit, sampling_callback=sample, **options) as client:
        await probe(
            client.call_tool,
            tools=client.list_tools,
            prompts=client.list_prompts,
            resources=client.list_resources,
            elicits=True,
            samples=True,
        )


run(main)
