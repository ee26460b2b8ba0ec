"""A server of scripts/chaos with a store: each state of the order is redeemed once."""

import os

from chaos_order import order

from mrtr_server import Limits, MRTRServer, Shutdown

# What a server that was killed had begun is taken up again when its lease has ended.
app = MRTRServer(
    "chaos", shutdown=Shutdown(lame_duck=0.3), store=os.environ["CHAOS_DATABASE"], limits=Limits(lease_seconds=3)
)
app.tool(single_use=True)(order)
