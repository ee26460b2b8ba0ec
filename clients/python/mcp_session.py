"""The official SDK 1.x: `ClientSession` over `streamablehttp_client`."""

from mcp import ClientSession, types
from mcp.client.streamable_http import streamablehttp_client
from official_sdk import elicit, sample
from probe import probe, run


async def main(url: str) -> None:
    """Open one session for everything."""
    elicits = hasattr(types, "ElicitResult")  # since 1.10
    handlers = {"sampling_callback": sample} | ({"elicitation_callback": elicit} if elicits else {})
    async with streamablehttp_client(url) as (read, write, _), ClientSession(read, write, **handlers) as session:
        initialized = await session.initialize()
        await probe(
            session.call_tool,
            tools=session.list_tools,
            prompts=session.list_prompts,
            resources=session.list_resources,
            elicits=elicits,
            samples=True,
            era=str(initialized.protocolVersion),
        )


run(main)
