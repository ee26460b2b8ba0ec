r"""Book a table without blocking a call: non-blocking elicitations, as in issue 1869 of the protocol.

A call with `task: {}` is answered as soon as the task asks something, or after a second. The reply has the question,
and a line that the model can show meanwhile. The client sends the answer with its next `tasks/get`, which waits for the
outcome, for a second at most. So there are three requests in all, and no request waits for a person.

    uvicorn examples.dinner:app

Step 1: book a table. The reply asks how many people will come.

    reply=$(curl -s http://127.0.0.1:8000/mcp -H 'Content-Type: application/json' -d '{
      "jsonrpc": "2.0", "id": 1, "method": "tools/call",
      "params": {"name": "book_dinner", "arguments": {"date": "2025-11-22", "time": "19:00"}, "task": {}}
    }' | tee /dev/stderr)
    task=$(echo "$reply" | grep -o '"taskId":"[^"]*"' | head -n 1)
    elicitation=$(echo "$reply" | grep -o '"elicitationId":"[^"]*"')

Step 2: answer, and look at the task, in one request. The reply says that it is completed; for a task that takes longer
it says "working", and the result waits for the end.

    curl -s http://127.0.0.1:8000/mcp -H 'Content-Type: application/json' -d '{
      "jsonrpc": "2.0", "id": 2, "method": "tasks/get",
      "params": {'"$task"', "_meta": {"io.modelcontextprotocol/elicitation-response": {
        '"$elicitation"', "action": "accept", "content": {"partySize": 4}}}}
    }'

Step 3: ask for the result.

    curl -s http://127.0.0.1:8000/mcp -H 'Content-Type: application/json' -d '{
      "jsonrpc": "2.0", "id": 3, "method": "tasks/result", "params": {'"$task"'}
    }'
"""

import datetime
import secrets

from pydantic import BaseModel, Field

from mrtr_server import Context, MRTRServer, Task

app = MRTRServer("dinner")


class Party(BaseModel):
    """Who comes: an integer, which the form shows as a number."""

    partySize: int = Field(ge=1, le=20, title="Number of guests", json_schema_extra={"type": "number"})


def reserve(day: datetime.date, at: datetime.time, guests: int) -> str:
    """Reserve a table, and return the number of the reservation."""
    return f"RES-{day.year}-{secrets.randbelow(1000):03}"


@app.tool(task=Task("optional", ttl=3600, poll=0.1))
async def book_dinner(date: datetime.date, time: datetime.time, ctx: Context) -> str:
    """Book a dinner reservation."""
    await ctx.progress(message="Checking availability for your reservation...")
    party = await ctx.elicit("How many people will be dining?", Party, key="party_size")
    number = await ctx.step(reserve, date, time, party.partySize)
    people = "1 person" if party.partySize == 1 else f"{party.partySize} people"
    when = f"{_day(date)} at {_clock(time)}"
    return f"✓ Reservation confirmed for {people} on {when} at Chez Claude. Confirmation #: {number}"


def _day(date: datetime.date) -> str:
    teen = 10 < date.day < 20
    ending = "th" if teen else {1: "st", 2: "nd", 3: "rd"}.get(date.day % 10, "th")
    return f"{date:%B} {date.day}{ending}"


def _clock(time: datetime.time) -> str:
    return f"{time.hour % 12 or 12}:{time.minute:02} {'AM' if time.hour < 12 else 'PM'}"
