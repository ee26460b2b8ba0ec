"""The server of scripts/chaos: one flow in three rounds, with an effect in the second and another in the third."""

from chaos_ledger import shared
from pydantic import BaseModel

from mrtr_server import Context, MRTRServer, Shutdown

app = MRTRServer("chaos", shutdown=Shutdown(lame_duck=0.3))
ledger = shared()


class Wish(BaseModel):
    item: str


def reserve(intent: str) -> str:
    """Have an effect that nobody could know for a repetition."""
    return ledger.write(intent, "reservation")


def charge(intent: str, key: str) -> str:
    """Have an effect under a key."""
    return ledger.write(intent, "charge", key)


@app.tool
async def order(intent: str, ctx: Context) -> str:
    """Ask what is wished for, reserve it, have it confirmed, charge for it."""
    wish = await ctx.elicit("What will it be?", Wish)
    reserved = await ctx.step(reserve, intent)
    await ctx.confirm(f"Pay for {wish.item}?")
    charged = await ctx.step(charge, intent, ctx.flow)
    return f"{reserved}, {charged}"
