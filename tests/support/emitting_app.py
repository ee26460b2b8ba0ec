"""A server whose tool emits events."""

from pydantic import BaseModel

from mrtr_server import BearerTokens, MRTRServer


class Incident(BaseModel):
    id: str


app = MRTRServer("ops", auth=BearerTokens({"ann": "ann"}))
incidents = app.event("incident.created", payload=Incident)


@app.tool
async def report(id: str) -> bool:
    """Say that there is an incident."""
    return await app.emit(incidents, Incident(id=id))
