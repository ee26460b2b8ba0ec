r"""From rounds to a task: ask first, work in the background, ask once more, finish. The function is written once.

What comes before `ctx.background()` is asked in rounds, and the server keeps nothing between them. What comes after
runs as a task. Each step is recorded as soon as it has run, so a server that dies costs one step at most. The message
of `ctx.progress` becomes the task's status message. The commands below speak the protocol of 2026-07-28, in which a
client declares with each request that it supports tasks.

    uvicorn examples.report:app

Step 1: the reply asks what to count, and there is no task yet.

    mcp() {
      curl -s http://127.0.0.1:8000/mcp -H 'Content-Type: application/json' \
        -H 'MCP-Protocol-Version: 2026-07-28' -H "Mcp-Method: $1" -H "Mcp-Name: $2" -d '{
        "jsonrpc": "2.0", "id": 1, "method": "'"$1"'", "params": {'"$3"', "_meta": {
          "io.modelcontextprotocol/protocolVersion": "2026-07-28",
          "io.modelcontextprotocol/clientCapabilities": {
            "elicitation": {}, "extensions": {"io.modelcontextprotocol/tasks": {}}}}}}'
    }
    state=$(mcp tools/call report '"name": "report"' | tee /dev/stderr | grep -o '"requestState":"[^"]*"')

Step 2: the answer starts the task.

    task=$(mcp tools/call report '"name": "report", '"$state"',
      "inputResponses": {"wanted": {"action": "accept", "content": {"thousands": 5}}}
    ' | tee /dev/stderr | grep -o '"taskId":"[^"]*"')
    id=$(echo "$task" | cut -d '"' -f 4)

Step 3: look at it while it works, until it needs input.

    until mcp tasks/get "$id" "$task" | tee /dev/stderr | grep -q '"status":"input_required"'; do sleep 0.3; done

Step 4: answer, and wait for the end; the task has its result by then.

    mcp tasks/update "$id" "$task"',
      "inputResponses": {"layout": {"action": "accept", "content": {"style": "table"}}}'
    until mcp tasks/get "$id" "$task" | tee /dev/stderr | grep -q '"status":"completed"'; do sleep 0.3; done
"""

import time
from typing import Literal

from pydantic import BaseModel, Field

from mrtr_server import Context, MRTRServer, Task

PACE = 0.2
"""How many seconds a step takes at least, so that there is something to watch."""

app = MRTRServer("report")


class Wanted(BaseModel):
    """How far the report should go."""

    thousands: int = Field(ge=1, le=50, description="How many thousand numbers to look at")


class Layout(BaseModel):
    """How the report should look."""

    style: Literal["table", "sentence"]


def count_primes(thousand: int) -> int:
    """Count the primes of a thousand numbers, the first thousand being number 1."""
    time.sleep(PACE)
    numbers = range(max(2, 1000 * (thousand - 1)), 1000 * thousand)
    return sum(all(number % divisor for divisor in range(2, int(number**0.5) + 1)) for number in numbers)


@app.tool(task=Task("optional", ttl=3600, poll=0.5, rounds_first=True), answer_within=1800)
async def report(ctx: Context) -> str:
    """Report how the primes thin out."""
    wanted = await ctx.elicit("How far should the report go?", Wanted)

    await ctx.background()
    counts: list[int] = []
    for thousand in range(1, wanted.thousands + 1):
        counts.append(await ctx.step(count_primes, thousand))
        await ctx.progress(thousand, wanted.thousands, f"Counted {thousand} of {wanted.thousands} thousand")

    layout = await ctx.elicit(f"There are {sum(counts)} primes. How should the report look?", Layout)
    await ctx.progress(message="Writing the report")
    if layout.style == "sentence":
        return (
            f"There are {sum(counts)} primes below {wanted.thousands},000, {counts[-1]} of them in the last thousand."
        )
    lines = [f"| {number},000 | {count} |" for number, count in enumerate(counts, 1)]
    return "\n".join(["| below | primes |", "|---|---|", *lines])
