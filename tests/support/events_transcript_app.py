"""A server with events, for transcripts: one that anybody may use, and one whose callers are known."""

from typing import Literal

from pydantic import BaseModel

from mrtr_server import BearerTokens, Caller, Limits, MRTRServer, Webhooks


class Filter(BaseModel):
    severity: Literal["P1", "P2"] | None = None


class Incident(BaseModel):
    id: str


app = MRTRServer("ops")
incidents = app.event("incident.created", payload=Incident, arguments=Filter, description="Something is broken")
app.event("mail.received", payload=Incident, modes=["poll"])


@app.tool
async def report(id: str) -> str:
    """Report an incident, always at the same time."""
    await app.emit(incidents, Incident(id=id), id=id, at=0.0)
    return id


def is_minor(wants: Filter, caller: Caller) -> bool:
    return wants.severity != "P1"


known = MRTRServer(
    "known",
    auth=BearerTokens({"ann-token": "ann"}),
    limits=Limits(subscriptions=1),
    webhooks=Webhooks(allow=["http://127.0.0.1:9"]),  # where nobody answers
)
known.event("incident.created", payload=Incident, arguments=Filter, admits=is_minor)
