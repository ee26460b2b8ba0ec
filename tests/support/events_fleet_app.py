"""A server that emits events, for tests that run it in several processes on one database."""

import os
from fnmatch import fnmatchcase

from pydantic import BaseModel, Field

from mrtr_server import BearerTokens, Limits, MRTRServer, Webhooks
from mrtr_server.errors import StoreUnavailable

LEASE = 5.0
"""In seconds: a process that lives on a busy machine keeps it."""


class Filter(BaseModel):
    severity: str | None = None


class Incident(BaseModel):
    id: str
    severity: str = "P1"


class Mailbox(BaseModel):
    sender: str = Field(alias="from")
    redact_pii: bool = False


class Mail(BaseModel):
    message: str = Field(alias="messageId")
    sender: str = Field(alias="from")
    subject: str


app = MRTRServer(
    "ops",
    auth=BearerTokens({"ann-token": "ann"}),
    webhooks=Webhooks(allow=[os.environ.get("EVENTS_ALLOW", "hooks.example.com")]),
    limits=Limits(lease_seconds=LEASE),
)

incidents = app.event(
    "incident.created",
    arguments=Filter,
    payload=Incident,
    matches=lambda incident, wants, caller: wants.severity in (None, incident.severity),
)

mails = app.event(
    "email.received",
    arguments=Mailbox,
    payload=Mail,
    matches=lambda mail, wants, caller: fnmatchcase(mail.sender, wants.sender),
)


@app.tool
async def receive(mail: Mail) -> None:
    """Tell whoever follows the mailbox."""
    await app.emit(mails, mail, id=f"evt_{mail.message}")


@app.tool
async def open_incidents(first: int, count: int) -> list[int]:
    """Return the numbers of those that are stored."""
    stored = []
    for number in range(first, first + count):
        try:
            await app.emit(incidents, Incident(id=str(number)), id=f"INC-{number}")
        except StoreUnavailable:
            continue
        stored.append(number)
    return stored
