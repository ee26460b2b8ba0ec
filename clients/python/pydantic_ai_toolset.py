"""Pydantic AI: an `MCPToolset`."""

from typing import Any

from probe import SUMMARY, fill_in, probe, run
from pydantic_ai.mcp import MCPToolset


async def elicit(message: str, response_type: Any, params: Any, context: Any) -> Any:
    """Answer a form."""
    return await fill_in(params.requested_schema)


async def sample(messages: Any, params: Any, context: Any) -> str:
    """Answer for the model."""
    return SUMMARY


async def main(url: str) -> None:
    """Enter the toolset once, as a run of an agent does."""
    async with MCPToolset(url, elicitation_handler=elicit, sampling_handler=sample) as toolset:
        await probe(
            toolset.direct_call_tool,
            tools=toolset.list_tools,
            prompts=toolset.list_prompts,
            resources=toolset.list_resources,
            elicits=True,
            samples=True,
        )


run(main)
