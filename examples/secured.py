r"""Authentication: bearer tokens, and a flow that belongs to the user who began it.

A `requestState` is valid only for the user for whom it was made. With another user's token, or with none, it is
refused. `BearerTokens` is for development only; use any Starlette authentication backend in its place.

    uvicorn examples.secured:app

Round 1: alice is asked.

    state=$(curl -s http://127.0.0.1:8000/mcp -H 'Content-Type: application/json' \
      -H 'Authorization: Bearer alice-token' -d '{
      "jsonrpc": "2.0", "id": 1, "method": "tools/call",
      "params": {"name": "book_room", "arguments": {"day": "Friday"}}
    }' | tee /dev/stderr | grep -o '"requestState":"[^"]*"')

Round 2: alice answers. Try bob's token, which is bob-token: he can't continue her booking.

    curl -s http://127.0.0.1:8000/mcp -H 'Content-Type: application/json' \
      -H 'Authorization: Bearer alice-token' -d '{
      "jsonrpc": "2.0", "id": 2, "method": "tools/call",
      "params": {"name": "book_room", "arguments": {"day": "Friday"},
        "inputResponses": {"party": {"action": "accept", "content": {"people": 4}}},
        '"$state"'}
    }'
"""

from typing import Annotated

from pydantic import BaseModel, Field

from mrtr_server import BearerTokens, Context, MRTRServer

app = MRTRServer("secured", auth=BearerTokens({"alice-token": "alice", "bob-token": "bob"}))


class Party(BaseModel):
    """Who will come."""

    people: Annotated[int, Field(ge=1, le=12, description="How many of you there will be")]


@app.tool
async def book_room(day: str, ctx: Context) -> str:
    """Book a meeting room in the caller's name."""
    party = await ctx.elicit(f"How many people will meet on {day}?", Party)
    return f"Booked for {ctx.user.identity}: a room for {party.people} on {day}."
