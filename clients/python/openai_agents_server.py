"""OpenAI Agents: an `MCPServerStreamableHttp`."""

from agents.mcp import MCPServerStreamableHttp
from probe import probe, run


async def main(url: str) -> None:
    """Connect once for everything, as an agent does."""
    async with MCPServerStreamableHttp(params={"url": url}) as server:
        await probe(
            server.call_tool, tools=server.list_tools, prompts=server.list_prompts, resources=server.list_resources
        )


run(main)
