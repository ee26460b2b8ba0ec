"""The server of scripts/clients --hosts: a tool for each kind of question."""

import asyncio
from typing import Annotated, Literal

from pydantic import BaseModel, Field

from mrtr_server import Context, MRTRServer, Shutdown

app = MRTRServer("shop", shutdown=Shutdown(lame_duck=0))


class Colour(BaseModel):
    colour: str = Field(title="Colour", description="As on the label")


class Cup(BaseModel):
    size: Literal["small", "large"] = Field(title="Size", description="How big")
    gift: bool = Field(title="Gift", description="Wrapped in paper")
    mail: str = Field(title="Mail", description="For the bill", json_schema_extra={"format": "email"})


class Paper(BaseModel):
    pattern: Literal["dots", "stripes"] = Field(title="Pattern", description="Of the paper")


class Tea(BaseModel):
    cups: int = Field(ge=1, le=9, title="Cups", description="How many")
    extras: list[Literal["milk", "sugar"]] = Field(default=[], title="Extras", description="What goes in")


@app.tool
def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


@app.tool
async def paint(thing: str, ctx: Context, colour: str | None = None) -> str:
    """Paint a thing. The person chooses the colour, here or in the chat."""
    if colour is None:
        if not ctx.client.supports("elicitation"):
            return "Call again with the colour, which the person has to tell you."
        colour = (await ctx.elicit(f"Which colour for the {thing}?", Colour)).colour
    return f"Painted the {thing} {colour}"


@app.tool
async def pick(thing: str, ctx: Context) -> str:
    """Pick a thing for the person."""
    cup = await ctx.elicit(f"Which {thing}?", Cup)
    return f"Picked a {cup.size} {thing}, {'wrapped' if cup.gift else 'as it is'}, for {cup.mail}"


@app.tool
async def wrap(thing: str, ctx: Context) -> str:
    """Wrap a thing. Where the person can't be asked otherwise, the model may ask them."""
    paper = await ctx.elicit(f"Which paper for the {thing}?", Paper, through_model=True)
    return f"Wrapped the {thing} in {paper.pattern}"


@app.tool
async def brew(ctx: Context) -> str:
    """Brew tea for the person."""
    tea = await ctx.elicit("How do you want your tea?", Tea)
    return f"Brewed {tea.cups} cups with {' and '.join(tea.extras) or 'nothing'}"


@app.tool
async def wipe(folder: str, ctx: Context) -> str:
    """Wipe a folder, if the person says yes."""
    await ctx.confirm(f"Wipe the folder {folder}?")
    return f"Wiped {folder}"


@app.tool
async def login(site: str, ctx: Context) -> str:
    """Send the person to a page."""
    await ctx.elicit_url(f"Log in to {site}", f"https://{site}/login")
    return f"Logged in to {site}"


@app.tool
async def poem(topic: str, ctx: Context) -> str:
    """Let the host's model write about a topic."""
    return f"The poem: {(await ctx.sample(f'Write a line about {topic}', max_tokens=50)).text}"


@app.tool
async def wait(seconds: Annotated[float, Field(ge=0, le=600)]) -> str:
    """Wait without a question."""
    await asyncio.sleep(seconds)
    return f"Waited {seconds:g} s"
