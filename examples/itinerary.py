r"""A result in pieces: the plan of a trip comes a day at a time, with a question in the middle.

The tool is an async generator. A client that asks for it with `stream: {}` gets each piece as it comes, and others get
progress. The result has all of it. No revision of the protocol has this: the parameter is from a sketch in the drafts.

    uvicorn examples.itinerary:app

Round 1: the days come one after the other, and then the question. Each piece is an event of the stream.

    call() {
      curl -sN http://127.0.0.1:8000/mcp -H 'Content-Type: application/json' \
        -H 'Accept: application/json, text/event-stream' -d '{
        "jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {
          "name": "plan", "arguments": {"city": "Lisbon", "days": 3}, "stream": {}'"$1"'}}'
    }
    state=$(call | tee /dev/stderr | grep -o '"requestState":"[^"]*"')

Round 2: the pieces of the first round are not sent again. They are in the result, with the rest.

    call ', '"$state"', "inputResponses": {"taste": {"action": "accept", "content": {"evening": "music"}}}'
"""

import time
from collections.abc import AsyncIterator
from typing import Annotated, Literal

from pydantic import BaseModel, Field

from mrtr_server import Context, MRTRServer

PACE = 0.2
"""How many seconds a day takes to plan, so that there is something to watch."""

SIGHTS = ("the castle", "the old town", "the river", "the market", "the museum", "the gardens", "the harbour")
EVENINGS = {"music": "a concert", "food": "a long dinner", "sleep": "an early night"}

app = MRTRServer("itinerary")


class Taste(BaseModel):
    """What the evenings should be like."""

    evening: Literal["music", "food", "sleep"]


def plan_day(day: int) -> str:
    """Plan a day: slow work, which a step does once in the flow."""
    time.sleep(PACE)
    return SIGHTS[day - 1]


@app.tool
async def plan(city: str, days: Annotated[int, Field(ge=1, le=7)], ctx: Context) -> AsyncIterator[str]:
    """Plan a trip, a day at a time."""
    yield f"{days} days in {city}.\n"
    for day in range(1, days + 1):
        yield f"Day {day}: {await ctx.step(plan_day, day)}.\n"
    taste = await ctx.elicit("What do you like in the evening?", Taste)
    yield f"Each evening: {EVENINGS[taste.evening]}.\n"
