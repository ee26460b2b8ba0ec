"""An order in three rounds, for servers of scripts/chaos: an effect in the second, another under a key in the third."""

from chaos_ledger import shared
from pydantic import BaseModel

from mrtr_server import Context, IdempotencyKey

ledger = shared()


class Wish(BaseModel):
    item: str


def reserve(intent: str) -> str:
    """Have an effect that nobody could know for a repetition."""
    return ledger.write(intent, "reservation")


def charge(intent: str, key: IdempotencyKey = IdempotencyKey()) -> str:
    """Have an effect under the key of the step."""
    return ledger.write(intent, "charge", key)


async def order(intent: str, ctx: Context) -> str:
    """Ask what is wished for, reserve it, have it confirmed, charge for it."""
    wish = await ctx.elicit("What will it be?", Wish)
    reserved = await ctx.step(reserve, intent)
    await ctx.confirm(f"Pay for {wish.item}?")
    charged = await ctx.step(charge, intent)
    return f"{reserved}, {charged}"
