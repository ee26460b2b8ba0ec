"""The same tools on this server, as it comes."""

import asyncio
import tempfile

from pydantic import BaseModel

from mrtr_server import Context, Elicit, InputRequired, Inputs, MRTRServer

app = MRTRServer("bench")


class GitHubLogin(BaseModel):
    name: str


@app.tool
async def add(a: int, b: int) -> str:
    return str(a + b)


@app.tool
def add_sync(a: int, b: int) -> str:
    return str(a + b)


@app.tool
async def get_weather(location: str, inputs: Inputs) -> str | InputRequired:
    login = inputs.get("github_login", GitHubLogin)
    if login is None:
        return InputRequired(github_login=Elicit("Please provide your GitHub username", GitHubLogin))
    return f"Current weather in {location} for {login.name}: 72 degrees, partly cloudy"


@app.tool
async def get_weather_live(location: str, ctx: Context) -> str:
    login = await ctx.elicit("Please provide your GitHub username", GitHubLogin)
    return f"Current weather in {location} for {login.name}: 72 degrees, partly cloudy"


def with_sqlite() -> MRTRServer:
    """Return a server whose replicas could take each other's answers."""
    server = MRTRServer("bench", keys=[bytes(32)], store=f"sqlite:///{tempfile.mkdtemp()}/bench.db")
    for tool in (add, get_weather_live):
        server.tool(tool)
    return server


# What follows is for memory.py alone: flows that wait in the middle of a function.


@app.tool
async def get_weather_inline(location: str, ctx: Context) -> str:
    login = await ctx.elicit("Please provide your GitHub username", GitHubLogin)
    return f"Current weather in {location} for {login.name}: 72 degrees, partly cloudy"


@app.tool
async def compare_weather(location: str, ctx: Context) -> str:
    async with asyncio.TaskGroup() as group:
        one = group.create_task(ctx.elicit("Who is the first?", GitHubLogin, key="first"))
        other = group.create_task(ctx.elicit("Who is the second?", GitHubLogin, key="second"))
    return f"Current weather in {location} for {one.result().name} and {other.result().name}: 72 degrees"
