r"""The official client with tasks: with an extension of a few lines, `call_tool` follows a call into its task.

The official SDK has no tasks of its own, but its clients take extensions. This one declares in every request that the
client supports tasks, polls each task until it has ended, and asks the person what the task asks. Such a client needs
nothing else, whether a call is answered at once, in rounds, or as a task.

    uvicorn examples.report:app
    python -m examples.official_client http://127.0.0.1:8000/mcp report
"""

import asyncio
import sys
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Literal

import mcp_types as types
from mcp import Client
from mcp.client import ClaimContext, ClientExtension, ResultClaim
from mcp.client.session import ClientRequestContext
from pydantic import Field

Ask = Callable[[types.ElicitRequestFormParams], Awaitable[types.ElicitResult]]


class TaskResult(types.Result):
    """A task, in place of the result of a call."""

    result_type: Literal["task"] = "task"
    task_id: str


class Task(types.Result):
    """A task as it is now."""

    status: Literal["working", "input_required", "completed", "cancelled", "failed"]
    poll_interval_ms: int = 1000
    input_requests: dict[str, Any] = Field(default_factory=dict)
    result: dict[str, Any] = Field(default_factory=dict)
    error: dict[str, Any] = Field(default_factory=dict)


class AboutTask(types.Request[dict[str, Any], str]):
    """A request about a task; its id goes into the `Mcp-Name` header, too."""

    name_param = "taskId"


class Tasks(ClientExtension):
    """Follows calls into their tasks.

    Args:
        ask: asks the person what a task asks.
    """

    identifier = "io.modelcontextprotocol/tasks"

    def __init__(self, ask: Ask) -> None:
        self._ask = ask

    def claims(self) -> Sequence[ResultClaim[Any]]:
        """Return the results that the extension takes."""
        return [ResultClaim(result_type="task", model=TaskResult, resolve=self._follow)]

    async def _follow(self, task: TaskResult, context: ClaimContext) -> types.CallToolResult:
        answered: set[str] = set()
        while True:
            look = AboutTask(method="tasks/get", params={"taskId": task.task_id})
            now = await context.session.send_request(look, Task)
            if now.status == "completed":
                return types.CallToolResult.model_validate(now.result)
            if now.status in ("failed", "cancelled"):
                said = types.TextContent(type="text", text=now.error.get("message", "The task was cancelled"))
                return types.CallToolResult(content=[said], is_error=True)
            answers: dict[str, Any] = {}
            for key in now.input_requests.keys() - answered:  # a key stands for one question in the task's life
                asked = types.ElicitRequestFormParams.model_validate(now.input_requests[key]["params"])
                answers[key] = (await self._ask(asked)).model_dump(exclude_none=True)
            if answers:
                answered |= answers.keys()
                given = {"taskId": task.task_id, "inputResponses": answers}
                await context.session.send_request(AboutTask(method="tasks/update", params=given), types.EmptyResult)
            await asyncio.sleep(now.poll_interval_ms / 1000)


async def ask_here(asked: types.ElicitRequestFormParams) -> types.ElicitResult:
    """Ask at the terminal."""
    print(asked.message)
    content: dict[str, Any] = {}
    for name, field in asked.requested_schema["properties"].items():
        typed = await asyncio.to_thread(input, f"  {name} ({field['type']}): ")
        content[name] = int(typed) if field["type"] == "integer" else typed
    return types.ElicitResult(action="accept", content=content)


async def elicit(
    context: ClientRequestContext, params: types.ElicitRequestParams
) -> types.ElicitResult | types.ErrorData:
    """Ask what is asked in rounds."""
    if not isinstance(params, types.ElicitRequestFormParams):
        return types.ElicitResult(action="decline")
    return await ask_here(params)


async def main(url: str, tool: str) -> None:
    """Call a tool, and print its result."""
    async with Client(url, elicitation_callback=elicit, extensions=[Tasks(ask_here)]) as client:
        print((await client.call_tool(tool)).content)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2]))
