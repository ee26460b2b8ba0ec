"""The server of scripts/clients: something to list, to call and to wait for, a form, a confirmation, and a sampling."""

import asyncio
from typing import Annotated

from pydantic import BaseModel, Field
from starlette.applications import Starlette
from starlette.routing import Mount

from mrtr_server import BearerTokens, Context, MRTRServer, Shutdown
from mrtr_server.testing import replica

app = MRTRServer("clients", shutdown=Shutdown(lame_duck=0))


class Person(BaseModel):
    name: str


@app.tool
def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


@app.tool
async def greet(city: str, ctx: Context) -> str:
    """Ask who is there, have it confirmed, greet them."""
    person = await ctx.elicit("Who is there?", Person)
    await ctx.confirm(f"Greet {person.name}?")
    return f"Greeted {person.name} in {city}"


@app.tool
async def summarize(text: str, ctx: Context) -> str:
    """Let the client's model summarize a text."""
    return (await ctx.sample(f"Summarize {text}", max_tokens=100)).text


@app.tool
async def wait(seconds: Annotated[float, Field(ge=0, le=600)]) -> str:
    """Wait without a question."""
    await asyncio.sleep(seconds)
    return f"waited {seconds:g} s"


@app.prompt
def review(text: str) -> str:
    """Have a text reviewed."""
    return f"Review {text}"


@app.resource("notes://today", name="today")
def today() -> str:
    """The note of today."""
    return "today: nothing"


users = replica(app, auth=BearerTokens({"token of ann": "ann"}))
"""The same for known users, below `/users`: some hosts say in their first request alone what they can do."""

site = Starlette(routes=[Mount("/users", users), Mount("/", app)])
