"""A server with events, for tests that follow them while it is killed. `EVENTS_DATABASE` is its SQLite file."""

import os

from pydantic import BaseModel

from mrtr_server import Context, Events, MRTRServer, SQLStore

FILE = os.environ.get("EVENTS_DATABASE")


class Incident(BaseModel):
    id: int
    notes: str = ""


app = MRTRServer(
    "ops",
    keys=[bytes(32)],
    store=SQLStore(f"sqlite:///{FILE}") if FILE else None,
    events=Events(poll_seconds=1),
)
incidents = app.event("incident.created", payload=Incident, description="An incident was opened")


@app.tool
async def report(ctx: Context, first: int, count: int = 1, size: int = 0) -> str:
    """Open incidents, each with notes of a size."""
    for number in range(first, first + count):
        await ctx.emit(incidents, Incident(id=number, notes="x" * size))
    return "reported"
