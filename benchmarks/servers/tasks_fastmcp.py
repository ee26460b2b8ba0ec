"""The same tools on `fastmcp` with its tasks package: `FASTMCP_DOCKET_URL` says where, `memory://` or a Redis.

As in `fastmcp_server.py`, JSON replies, no sessions, no output schema, no telemetry and no log. The worker looks for
tasks as often as it may (each millisecond instead of 50) and runs as many at once as ours (100 instead of 10).
"""

import os
from datetime import timedelta

os.environ["FASTMCP_LOG_ENABLED"] = "false"  # read when the package is imported

import fastmcp
from fastmcp import Context, FastMCP
from fastmcp_tasks import TasksExtension
from mcp_types import ElicitRequest, ElicitRequestFormParams, ElicitResult, InputRequiredResult
from starlette.applications import Starlette

ASK_LOGIN = ElicitRequest(
    params=ElicitRequestFormParams(
        message="Please provide your GitHub username",
        requested_schema={"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]},
    )
)


async def add(a: int, b: int) -> str:
    return str(a + b)


async def greet(ctx: Context) -> str | InputRequiredResult:
    answer = (ctx.input_responses or {}).get("github_login")
    if not isinstance(answer, ElicitResult) or answer.content is None:
        return InputRequiredResult(input_requests={"github_login": ASK_LOGIN}, request_state="asked")
    return f"Hello, {answer.content['name']}"


def app() -> Starlette:
    fastmcp.settings.telemetry_mode = "off"
    server = FastMCP("bench")
    server.add_extension(TasksExtension(concurrency=100, minimum_check_interval=timedelta(milliseconds=1)))
    for tool in (add, greet):
        server.tool(tool, task=True, output_schema=None)
    return server.http_app(json_response=True, stateless_http=True)
