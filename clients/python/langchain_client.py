"""LangChain: the tools of a `MultiServerMCPClient`, each call in a session of its own."""

from typing import Any

from langchain_mcp_adapters.callbacks import Callbacks
from langchain_mcp_adapters.client import MultiServerMCPClient
from mcp.types import ElicitResult
from probe import fill_in, probe, run


async def elicit(mcp_context: Any, params: Any, context: Any) -> ElicitResult:
    """Answer a form."""
    return ElicitResult(action="accept", content=await fill_in(params.requestedSchema))


async def main(url: str) -> None:
    """Take the tools, as an agent would."""
    server: Any = {"url": url, "transport": "http"}
    client = MultiServerMCPClient({"server": server}, callbacks=Callbacks(on_elicitation=elicit))

    async def call(name: str, arguments: dict[str, Any]) -> Any:
        tools = {tool.name: tool for tool in await client.get_tools()}
        return await tools[name].ainvoke(arguments)

    async def tools() -> list[str]:
        return [tool.name for tool in await client.get_tools()]

    async def resources() -> list[str]:
        return [f"today: {blob.as_string()}" for blob in await client.get_resources("server")]

    await probe(call, tools=tools, resources=resources, elicits=True)


run(main)
