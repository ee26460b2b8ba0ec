"""The server of the open calls of scripts/chaos: two questions, with an effect after each."""

import os

from chaos_ledger import shared
from pydantic import BaseModel

from mrtr_server import Context, IdempotencyKey, Limits, MRTRServer

ANSWER_WITHIN = 40
"""How long a question waits, in seconds: for no longer does an answer that was lost keep its call open."""

# A round whose server was killed is taken up again when its lease has ended, and that must be before its state expires.
app = MRTRServer("chaos", lame_duck=0.3, database=os.environ["CHAOS_DATABASE"], limits=Limits(lease_seconds=3))
ledger = shared()


class Wish(BaseModel):
    item: str


def reserve(intent: str) -> str:
    """Have an effect that nobody could know for a repetition."""
    return ledger.write(intent, "reservation")


def charge(intent: str, key: IdempotencyKey = IdempotencyKey()) -> str:
    """Have an effect under the key of the step."""
    return ledger.write(intent, "charge", key)


@app.tool(answer_within=ANSWER_WITHIN)
async def order(intent: str, ctx: Context) -> str:
    """Ask what is wished for, reserve it, have it confirmed, charge for it."""
    wish = await ctx.elicit("What will it be?", Wish)
    reserved = await ctx.step(reserve, intent)
    await ctx.confirm(f"Pay for {wish.item}?")
    charged = await ctx.step(charge, intent)
    return f"{reserved}, {charged}"
