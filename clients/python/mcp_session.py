"""The official SDK 1.x: `ClientSession` over `streamablehttp_client`."""

from typing import Any

from mcp import ClientSession, types
from mcp.client.streamable_http import streamablehttp_client
from probe import SUMMARY, fill_in, probe, run


async def elicit(context: Any, params: Any) -> Any:
    """Answer a form."""
    return types.ElicitResult(action="accept", content=await fill_in(params.requestedSchema))


async def sample(context: Any, params: types.CreateMessageRequestParams) -> types.CreateMessageResult:
    """Answer for the model."""
    return types.CreateMessageResult(
        role="assistant", content=types.TextContent(type="text", text=SUMMARY), model="constant"
    )


async def main(url: str) -> None:
    """Open one session for everything."""
    elicits = hasattr(types, "ElicitResult")  # since 1.10
    handlers = {"sampling_callback": sample} | ({"elicitation_callback": elicit} if elicits else {})
    async with streamablehttp_client(url) as (read, write, _), ClientSession(read, write, **handlers) as session:
        await session.initialize()
        await probe(
            session.call_tool,
            tools=session.list_tools,
            prompts=session.list_prompts,
            resources=session.list_resources,
            elicits=elicits,
            samples=True,
        )


run(main)
