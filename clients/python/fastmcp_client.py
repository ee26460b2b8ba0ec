"""FastMCP 2, 3 and 4: `Client`."""

from typing import Any

from fastmcp import Client
from probe import SUMMARY, fill_in, probe, run


async def elicit(message: str, response_type: Any, params: Any, context: Any) -> Any:
    """Answer a form."""
    schema = getattr(params, "requested_schema", None) or params.requestedSchema
    return response_type(**await fill_in(schema))


async def sample(messages: Any, params: Any, context: Any) -> str:
    """Answer for the model."""
    return SUMMARY


async def main(url: str) -> None:
    """Connect once for everything."""
    async with Client(url, elicitation_handler=elicit, sampling_handler=sample) as client:
        await probe(
            client.call_tool,
            tools=client.list_tools,
            prompts=client.list_prompts,
            resources=client.list_resources,
            elicits=True,
            samples=True,
        )


run(main)
