"""The same tools on the official SDK, `mcp`: in the fastest form that its documentation supports, and as it comes.

What `fastest` sets, and why:

- `json_response=True` answers in the ASGI task; the default starts two tasks and a stream for each request.
- `stateless_http=True` keeps no sessions. A request of 2026-07-28 has none either way.
- `structured_output=False`: the default builds, validates and sends every text a second time, as `structuredContent`.
- The tracing middleware is taken off, as the SDK's page on OpenTelemetry shows.
- Protection against DNS rebinding is off: it is two header look-ups for a port that only this machine reaches.

Nothing is logged for a request in either. State is sealed in both, with AES-GCM under a key made at start.
"""

from mcp.server._otel import OpenTelemetryMiddleware
from mcp.server.mcpserver import Context, MCPServer
from mcp.server.transport_security import TransportSecuritySettings
from mcp.types import ElicitRequest, ElicitRequestFormParams, ElicitResult, InputRequiredResult
from pydantic import BaseModel
from starlette.applications import Starlette


class GitHubLogin(BaseModel):
    name: str


# Made once, as in the SDK's own examples.
ASK_LOGIN = ElicitRequest(
    params=ElicitRequestFormParams(
        message="Please provide your GitHub username",
        requested_schema={"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]},
    )
)


async def add(a: int, b: int) -> str:
    return str(a + b)


def add_sync(a: int, b: int) -> str:
    return str(a + b)


async def get_weather(location: str, ctx: Context) -> str | InputRequiredResult:
    answer = (ctx.input_responses or {}).get("github_login")
    if not isinstance(answer, ElicitResult) or answer.content is None:
        return InputRequiredResult(input_requests={"github_login": ASK_LOGIN}, request_state="asked")
    login = GitHubLogin.model_validate(answer.content)
    return f"Current weather in {location} for {login.name}: 72 degrees, partly cloudy"


async def get_weather_live(location: str, ctx: Context) -> str:
    """Ask while the call is open, as clients of 2025-11-25 are asked."""
    answer = await ctx.elicit("Please provide your GitHub username", GitHubLogin)
    if answer.action != "accept":
        return "no"
    return f"Current weather in {location} for {answer.data.name}: 72 degrees, partly cloudy"


def make_server(structured_output: bool | None) -> MCPServer:
    server = MCPServer("bench", log_level="WARNING")
    for tool in (add, add_sync, get_weather, get_weather_live):
        server.add_tool(tool, structured_output=structured_output)
    return server


def fastest() -> Starlette:
    server = make_server(structured_output=False)
    server.middleware[:] = [each for each in server.middleware if not isinstance(each, OpenTelemetryMiddleware)]
    return server.streamable_http_app(
        json_response=True,
        stateless_http=True,
        transport_security=TransportSecuritySettings(enable_dns_rebinding_protection=False),
    )


def defaults() -> Starlette:
    return make_server(structured_output=None).streamable_http_app()
