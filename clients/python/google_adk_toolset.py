"""Google ADK: the tools of an `McpToolset`, run as an agent runs them."""

from typing import Any

from google.adk.agents.invocation_context import InvocationContext
from google.adk.agents.llm_agent import LlmAgent
from google.adk.sessions.in_memory_session_service import InMemorySessionService
from google.adk.tools.mcp_tool import McpToolset, StreamableHTTPConnectionParams
from google.adk.tools.tool_context import ToolContext
from official_sdk import elicit, sample
from probe import probe, run


async def main(url: str) -> None:
    """Take the tools, as an agent would."""
    sessions = InMemorySessionService()
    session = await sessions.create_session(app_name="probe", user_id="somebody")
    agent = LlmAgent(name="probe")
    invocation = InvocationContext(session_service=sessions, session=session, agent=agent, invocation_id="1")
    toolset = McpToolset(
        connection_params=StreamableHTTPConnectionParams(url=url), sampling_callback=sample, elicitation_callback=elicit
    )

    async def call(name: str, arguments: dict[str, Any]) -> Any:
        tools = {tool.name: tool for tool in await toolset.get_tools()}
        return await tools[name].run_async(args=arguments, tool_context=ToolContext(invocation))

    async def tools() -> list[str]:
        return [tool.name for tool in await toolset.get_tools()]

    try:
        await probe(call, tools=tools, resources=toolset.list_resources, elicits=True, samples=True)
    finally:
        await toolset.close()


run(main)
