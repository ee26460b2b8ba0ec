"""The official SDK 2: `Client`; the second argument is its mode."""

import sys
from typing import Any

from mcp import Client, types
from probe import SUMMARY, fill_in, probe, run


async def elicit(context: Any, params: Any) -> types.ElicitResult:
    """Answer a form."""
    return types.ElicitResult(action="accept", content=await fill_in(params.requested_schema))


async def sample(context: Any, params: types.CreateMessageRequestParams) -> types.CreateMessageResult:
    """Answer for the model."""
    return types.CreateMessageResult(
        role="assistant", content=types.TextContent(type="text", text=SUMMARY), model="constant"
    )


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
