"""Applications with tools that become tasks; tests serve them by import string."""

from pydantic import BaseModel

from mrtr_server import Context, ListRoots, MRTRServer, ProtocolError, Sample, ServerInfo, Task, ToolError

from .apps import weather_for_somebody
from .models import Login

promising = MRTRServer("promising", keys=[bytes(32)])
"""The city weather of the earliest sketches, as a promise."""

promising.tool(name="get_weather", task=Task("optional", ttl=3600, poll=5))(weather_for_somebody)


class Size(BaseModel):
    size: int


working = MRTRServer("working", info=ServerInfo(version="1.2.3"), keys=[bytes(32)])
"""Has a tool of every kind that can become a task."""


@working.tool
def at_once(name: str) -> str:
    """Never become a task."""
    return f"Hello, {name}"


@working.tool(task=Task("optional", ttl=600, poll=0.2))
async def greet(ctx: Context) -> str:
    """Ask for a name."""
    return f"Hello, {(await ctx.elicit('Who are you?', Login)).name}"


@working.tool(task=Task("optional", ttl=600, poll=0.2, rounds_first=True))
async def measure(ctx: Context) -> str:
    """Ask in rounds, and again as a task."""
    login = await ctx.elicit("Who are you?", Login)
    await ctx.background()
    await ctx.progress(message=f"Waiting for the size of {login.name}")
    size = await ctx.elicit("How tall?", Size)
    return f"{login.name} is {size.size} tall"


@working.tool(task=Task("optional", ttl=600, poll=0.2))
async def twice(ctx: Context) -> str:
    """Ask the same thing twice, under one key and then another."""
    first = await ctx.elicit("Who is first?", Login)
    second = await ctx.elicit("Who is second?", Login)
    return f"{first.name}, {second.name}"


@working.tool(task=Task("optional", ttl=600, poll=0.2))
async def everything(ctx: Context) -> str:
    """Ask the client's model, and for its roots."""
    said, roots = await ctx.ask(Sample("Where to?"), ListRoots())
    return f"{said.text} from {roots[0].uri}"


@working.tool(task="required")
def fail() -> str:
    """Fail with a message for the model."""
    raise ToolError("it is closed")


@working.tool(task="required")
def break_down() -> str:
    """Fail with an error for the client."""
    raise ProtocolError("API rate limit exceeded", {"retryAfter": 5})
