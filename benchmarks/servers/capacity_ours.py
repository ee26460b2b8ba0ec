"""What `capacity.py` calls, on this server: each thing of the table, and which statements there were so far."""

import os
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import BaseModel

from mrtr_server import Context, MRTRServer, SQLStore

STORE = SQLStore(os.environ["CAPACITY_DATABASE"])
app = MRTRServer("capacity", keys=[bytes(32)], store=STORE)

executed: Counter[str] = Counter()
execute = STORE.database.execute


async def counted(sql: str, given: Mapping[str, Any]) -> Sequence[Any]:
    executed["all"] += 1
    return await execute(sql, given)


STORE.database.execute = counted  # type: ignore[method-assign]


class GitHubLogin(BaseModel):
    name: str


@app.tool
async def statements() -> str:
    return str(executed["all"])


@app.tool
async def add(a: int, b: int) -> str:
    return str(a + b)


@app.tool
async def greet(ctx: Context) -> str:
    login = await ctx.elicit("Please provide your GitHub username", GitHubLogin)
    return f"Hello, {login.name}"


# As `handshake_load.py` knows it.
@app.tool
async def get_weather_live(location: str, ctx: Context) -> str:
    login = await ctx.elicit("Please provide your GitHub username", GitHubLogin)
    return f"Current weather in {location} for {login.name}: 72 degrees, partly cloudy"


@app.tool
async def pay(ctx: Context) -> str:
    await ctx.confirm("Pay?")
    return "paid"


@app.tool(task="required")
async def report(a: int) -> str:
    return str(a)


@app.tool(task="required")
async def approve(ctx: Context) -> str:
    login = await ctx.elicit("Please provide your GitHub username", GitHubLogin)
    return f"approved by {login.name}"
