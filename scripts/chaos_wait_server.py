"""The server of the waits of scripts/chaos: a task that waits for one of two managers, between two steps."""

import asyncio
import os
from collections.abc import Callable, Coroutine
from typing import Annotated, Any

from chaos_task_ledger import shared
from pydantic import BaseModel

from mrtr_server import BearerTokens, Context, IdempotencyKey, Limits, MRTRServer, Shutdown, Task, Ticket

BUYER, MANAGERS = "bea", ("eve", "max")
SCOPE = "orders:approve"

limits = Limits(lease_seconds=4, task_attempts=1000, caller_share=1.0)
app = MRTRServer(
    "chaos",
    auth=BearerTokens({each: each for each in (BUYER, *MANAGERS)}, scopes={each: [SCOPE] for each in MANAGERS}),
    shutdown=Shutdown(lame_duck=0.3),
    store=os.environ["CHAOS_DATABASE"],
    limits=limits,
)
ledger = shared()


class Wish(BaseModel):
    item: str


class Order(BaseModel):
    intent: str


class Decision(BaseModel):
    by: str


class Waiting(Order):
    ticket: str


approval = app.wait("approval", about=Order, answer=Decision, who=[SCOPE])


async def reserve(intent: str, key: IdempotencyKey = IdempotencyKey()) -> int:
    """Have an effect."""
    return await ledger.run(intent, "reserve", key)


async def charge(intent: str, by: str, key: IdempotencyKey = IdempotencyKey()) -> int:
    """Have an effect. Whoever decided is an argument: with another one, the step would not be replayed."""
    return await ledger.run(intent, "charge", key)


@app.tool(task=Task("required", poll=0.5, rounds_first=True), single_use=True)
async def order(intent: str, ctx: Context) -> str:
    """Ask what is wished for; in the background reserve it, wait for a manager, and charge for it."""

    async def effect(function: Callable[..., Coroutine[Any, Any, int]], *given: str) -> int:
        receipt = await ctx.step(function, *given)
        await asyncio.to_thread(ledger.keep, intent, function.__name__, receipt)
        return receipt

    await ctx.elicit("What will it be?", Wish)
    await ctx.background()
    reserved = await effect(reserve, intent)
    decision = await ctx.wait_for(approval, Order(intent=intent), answer_within=86_400)
    charged = await effect(charge, intent, decision.by)
    return f"{charged}, {reserved} by {decision.by}"


@app.tool(scopes=[SCOPE])
async def approvals(ctx: Context) -> list[Waiting]:
    """List what waits."""
    return [Waiting(ticket=each, intent=each.about.intent) for each in (await ctx.tickets(approval)).tickets]


@app.tool(scopes=[SCOPE])
async def approve(ticket: Annotated[Ticket[Order, Decision], approval], ctx: Context) -> str:
    """Approve an order, once the manager agrees."""
    await ctx.confirm("Approve?")
    await ctx.answer(ticket, Decision(by=ctx.user.identity))
    return "approved"
