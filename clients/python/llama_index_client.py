"""LlamaIndex: the tools of a `BasicMCPClient`, each call in a session of its own."""

from typing import Any

from llama_index.tools.mcp import BasicMCPClient, McpToolSpec
from official_sdk import sample
from probe import probe, run


async def main(url: str) -> None:
    """Take the tools, as an agent would."""
    client = BasicMCPClient(url, sampling_callback=sample)

    async def call(name: str, arguments: dict[str, Any]) -> Any:
        tools = {tool.metadata.name: tool for tool in await McpToolSpec(client).to_tool_list_async()}
        return await tools[name].acall(**arguments)

    async def tools() -> list[str | None]:
        return [tool.metadata.name for tool in await McpToolSpec(client).to_tool_list_async()]

    await probe(call, tools=tools, prompts=client.list_prompts, resources=client.list_resources, samples=True)


run(main)
