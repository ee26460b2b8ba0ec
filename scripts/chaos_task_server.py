"""The server of the tasks of scripts/chaos: a round that asks, then a task of four steps, a question among them."""

import asyncio
import os
from collections.abc import Callable, Coroutine
from typing import Any

from chaos_task_ledger import shared
from pydantic import BaseModel

from mrtr_server import Context, IdempotencyKey, Limits, MRTRServer, Shutdown, Task

# A task whose server was killed is taken up again when its lease has ended. Here it is never the task that kills it.
limits = Limits(lease_seconds=4, task_attempts=1000)
app = MRTRServer("chaos", shutdown=Shutdown(lame_duck=0.3), store=os.environ["CHAOS_DATABASE"], limits=limits)
ledger = shared()


class Wish(BaseModel):
    item: str


async def charge(intent: str, key: IdempotencyKey = IdempotencyKey()) -> int:
    """Have an effect."""
    return await ledger.run(intent, "charge", key)


async def pack(intent: str, key: IdempotencyKey = IdempotencyKey()) -> int:
    """Have an effect."""
    return await ledger.run(intent, "pack", key)


async def reserve(intent: str, key: IdempotencyKey = IdempotencyKey()) -> int:
    """Have an effect."""
    return await ledger.run(intent, "reserve", key)


async def weigh(intent: str, key: IdempotencyKey = IdempotencyKey()) -> int:
    """Have an effect."""
    return await ledger.run(intent, "weigh", key)


@app.tool(task=Task("required", poll=0.5, rounds_first=True), single_use=True)
async def order(intent: str, ctx: Context) -> str:
    """Ask what is wished for; in the background reserve it, weigh and pack it, have it confirmed, charge for it."""

    async def effect(function: Callable[..., Coroutine[Any, Any, int]]) -> int:
        receipt = await ctx.step(function, intent)
        await asyncio.to_thread(ledger.keep, intent, function.__name__, receipt)
        return receipt

    wish = await ctx.elicit("What will it be?", Wish)
    await ctx.background()
    reserved = await effect(reserve)
    packed, weighed = await asyncio.gather(effect(pack), effect(weigh))
    await ctx.confirm(f"Pay for {wish.item}?")
    charged = await effect(charge)
    return f"{charged}, {packed}, {reserved}, {weighed}"
