"""A server whose every kind of request needs its store, for tests that take that away.

`ASKING_DIR` holds, while a payment is to take its time, a file `hold`; `ASKING_DATABASE` is the URL of the database.
"""

import asyncio
import os
from pathlib import Path

from starlette.requests import Request

from mrtr_server import Context, Metrics, MRTRServer, Shutdown, Task

PLACE = Path(os.environ["ASKING_DIR"])

app = MRTRServer(
    "asking", store=os.environ["ASKING_DATABASE"], shutdown=Shutdown(lame_duck=0.1), metrics=Metrics("/metrics")
)


@app.tool(single_use=True)
async def pay(ctx: Context) -> str:
    """Pay, once it is confirmed."""
    await ctx.confirm("Pay?")
    while (PLACE / "hold").exists():
        (PLACE / "paying").touch()
        await asyncio.sleep(0.01)
    return "paid"


@app.tool(task=Task(rounds_first=True), single_use=True)
async def ship(ctx: Context) -> str:
    """Ship in the background, once it is confirmed."""
    await ctx.confirm("Ship?")
    while (PLACE / "hold").exists():
        (PLACE / "shipping").touch()
        await asyncio.sleep(0.01)
    await ctx.background()
    return "shipped"


async def lay(brick: int) -> int:
    """Take its time; note by which process it was done."""
    with (PLACE / "ledger").open("a") as ledger:
        ledger.write(f"laid {brick} {os.getpid()}\n")
    while (PLACE / "hold").exists():  # noqa: ASYNC110  likewise
        await asyncio.sleep(0.01)
    return brick


@app.tool(task="required")
async def build(brick: int, ctx: Context) -> str:
    """Build in a task, by two steps."""
    await ctx.step(lay, brick)
    await ctx.step(lay, brick + 1)
    return "built"


@app.tool(single_use=True)
async def mend(brick: int, ctx: Context) -> str:
    """Build in a round that counts once."""
    await ctx.confirm("Mend?")
    await ctx.step(lay, brick)
    return "mended"


@app.tool(task="required")
async def approve(ctx: Context) -> str:
    """Ask in a task."""
    await ctx.confirm("Go on?")
    return "gone on"


@app.callback("consented")
def consented(request: Request) -> str:
    """Report that a person has consented."""
    return "yes"


@app.tool
async def consent(ctx: Context) -> str:
    """Wait for a page."""
    return await ctx.elicit_url("Do you consent?", callback=consented)


@app.resource("plain://text")
def text() -> str:
    """Return a text."""
    return "text"
