"""mcp-use: a session of an `MCPClient`."""

from typing import Any

from mcp import types
from mcp_use import MCPClient
from probe import SUMMARY, fill_in, probe, run


async def elicit(context: Any, params: Any) -> types.ElicitResult:
    """Answer a form."""
    return types.ElicitResult(action="accept", content=await fill_in(params.requestedSchema))


async def sample(context: Any, params: types.CreateMessageRequestParams) -> types.CreateMessageResult:
    """Answer for the model."""
    return types.CreateMessageResult(
        role="assistant", content=types.TextContent(type="text", text=SUMMARY), model="constant"
    )


async def main(url: str) -> None:
    """Open one session for everything."""
    config = {"mcpServers": {"server": {"url": url}}}
    client = MCPClient(config, sampling_callback=sample, elicitation_callback=elicit)
    session = await client.create_session("server")
    try:
        await probe(
            session.call_tool,
            tools=session.list_tools,
            prompts=session.list_prompts,
            resources=session.list_resources,
            elicits=True,
            samples=True,
        )
    finally:
        await client.close_all_sessions()


run(main)
