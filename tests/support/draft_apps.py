"""Applications that serve the other encodings of the drafts, by import string; their tools are those of the drafts."""

from pydantic import BaseModel

from examples.echo_task import echo
from mrtr_server import Context, MRTRServer, Task

from .apps import weather_for_somebody


class Described(BaseModel):
    """What stands for any form in the drafts."""

    propertyName: str
    anotherProperty: int


async def describe(ctx: Context) -> str:
    """Ask for whatever properties."""
    described = await ctx.elicit("Please describe it", Described)
    return f"{described.propertyName} {described.anotherProperty}"


def serving(encoding: str) -> MRTRServer:
    """Return the tools of the drafts in one of their encodings, and in the newest version for tests to listen by."""
    app = MRTRServer("drafts", keys=[bytes(32)], dialects=["2026-07-28", encoding])
    app.tool(name="get_weather", task=Task("optional", ttl=3600, poll=5))(weather_for_somebody)
    app.tool(task=Task("optional", ttl=3600, poll=0.1))(echo)
    app.tool(task=Task("optional", ttl=3600, poll=5))(describe)
    return app


bare_requests = serving("draft-bare-requests")
additional_info = serving("draft-additional-info")
content = serving("draft-content")
revision_1 = serving("draft-revision-1")
