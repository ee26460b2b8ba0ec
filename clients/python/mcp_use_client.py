"""mcp-use: a session of an `MCPClient`."""

from mcp_use import MCPClient
from official_sdk import elicit, sample
from probe import probe, run


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
