"""A server that tests let go wrong: `CLOCK_AHEAD` sets its clock, in seconds; `VERSION` 2 takes other arguments."""

import os
import time

_time, _ahead = time.time, float(os.environ.get("CLOCK_AHEAD", "0"))
if _ahead:
    time.time = lambda: _time() + _ahead  # before anybody has taken it over

import asyncio  # noqa: E402

from mrtr_server import Context, MRTRServer  # noqa: E402

from .models import Login  # noqa: E402

IS_NEW = os.environ.get("VERSION") == "2"

app = MRTRServer("shop")


@app.tool
async def add(a: int) -> int:
    """Need nothing."""
    return a + 1


@app.tool(single_use=True)
async def pay(ctx: Context) -> str:
    """Need the store."""
    await ctx.confirm("Pay?")
    return "paid"


@app.tool
async def wait(seconds: float) -> str:
    """Wait, and leave the event loop to others."""
    await asyncio.sleep(seconds)
    return "over"


@app.tool
async def block(seconds: float) -> str:
    """Block the event loop."""
    time.sleep(seconds)  # noqa: ASYNC251  that is the fault
    return "over"


if IS_NEW:

    @app.tool(name="order")
    async def order_copies(item: str, copies: int, ctx: Context) -> str:
        """Take another argument than before."""
        return f"{copies} {item} for {(await ctx.elicit('Who?', Login)).name}"

else:

    @app.tool
    async def order(item: str, ctx: Context) -> str:
        """Ask who orders."""
        return f"{item} for {(await ctx.elicit('Who?', Login)).name}"

    @app.tool
    async def reserve(item: str, ctx: Context) -> str:
        """Be dropped in the new version."""
        return f"{item} for {(await ctx.elicit('Who?', Login)).name}"
