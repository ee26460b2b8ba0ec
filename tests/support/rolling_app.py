"""A shop in two versions, whose flows are walked while its replicas are replaced: `SHOP` is `1` or `2`."""

import os

from mrtr_server import Context, MRTRServer

from .models import Login

app = MRTRServer("shop")

VERSION = os.environ.get("SHOP", "1")


def price_of(item: str) -> int:
    """Return the price of an item."""
    return 10 * len(item)


@app.tool
async def buy(item: str, ctx: Context) -> str:
    """Buy something."""
    price = await ctx.step(price_of, item)
    login = await ctx.elicit("Who pays?", Login, key="who")
    if VERSION == "2":
        await ctx.confirm(f"Is {login.name} of age?", key="age")
    await ctx.confirm(f"Buy {item} for {price}?", key="sure")
    return f"{login.name} pays {price}"


@app.tool
async def look(item: str) -> str:
    """Look at something."""
    return f"{item}, version {VERSION}"


@app.tool
async def count(ctx: Context, to: int) -> str:
    """Count, and say so."""
    import asyncio

    for number in range(to):
        await ctx.progress(number, to)
        await asyncio.sleep(0.2)
    return "counted"
