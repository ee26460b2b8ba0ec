"""The server of the events of scripts/chaos."""

import os

from pydantic import BaseModel

from mrtr_server import BearerTokens, Limits, MRTRServer, Shutdown, Webhooks

READER, TYPE = "bea", "order.placed"


class Placed(BaseModel):
    number: int


app = MRTRServer(
    "chaos",
    auth=BearerTokens({READER: READER}),
    shutdown=Shutdown(lame_duck=0.3),
    store=os.environ["CHAOS_DATABASE"],
    webhooks=Webhooks(allow=[os.environ["CHAOS_WEBHOOK"]]),
    limits=Limits(lease_seconds=4, caller_share=1.0),
)
placed = app.event(TYPE, payload=Placed)


@app.tool
async def place(number: int) -> None:
    """Emit an event. A call that is sent again, since it got no response, emits none again."""
    await app.emit(placed, Placed(number=number), id=f"order-{number}")
