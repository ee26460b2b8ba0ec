"""Tools that run as tasks, on this server: `MRTR_DATABASE_URL` says where; without it, in memory."""

from pydantic import BaseModel

from mrtr_server import Context, MRTRServer

app = MRTRServer("bench", keys=[bytes(32)])


class GitHubLogin(BaseModel):
    name: str


@app.tool(task="optional")
async def add(a: int, b: int) -> str:
    return str(a + b)


@app.tool(task="optional")
async def greet(ctx: Context) -> str:
    login = await ctx.elicit("Please provide your GitHub username", GitHubLogin)
    return f"Hello, {login.name}"
