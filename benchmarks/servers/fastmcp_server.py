"""The same tools on `fastmcp`: in the fastest form that its settings support, and as it comes.

What `fastest` sets, and why:

- `json_response=True` answers in the ASGI task; the default starts two tasks and a stream for each request.
- `stateless_http=True` keeps no sessions. A request of 2026-07-28 has none either way.
- `output_schema=None`: the default builds and sends every text a second time, as `structuredContent`.
- `telemetry_mode` is off, so that no span is made.

Logging is off in both. Protection against DNS rebinding, strict validation and tasks are off by default. State is
sealed in both, with AES-GCM under a key made at start.
"""

import os

os.environ["FASTMCP_LOG_ENABLED"] = "false"  # read when the package is imported

import fastmcp
from fastmcp import Context, FastMCP
from mcp_types import ElicitRequest, ElicitRequestFormParams, ElicitResult, InputRequiredResult
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


def fastest() -> Starlette:
    fastmcp.settings.telemetry_mode = "off"
    server = FastMCP("bench")
    for tool in (add, add_sync, get_weather):
        server.tool(tool, output_schema=None)
    return server.http_app(json_response=True, stateless_http=True)


def defaults() -> Starlette:
    server = FastMCP("bench")
    for tool in (add, add_sync, get_weather):
        server.tool(tool)
    return server.http_app()
