"""The server of the open calls of scripts/chaos: the order, asked for while the call is open."""

import os

from chaos_order import order

from mrtr_server import Limits, MRTRServer, Shutdown

ANSWER_WITHIN = 15
"""How long a question waits, in seconds: for no longer does an answer that was lost keep its call open."""

# A round whose server was killed is taken up again when its lease has ended, be its state expired by then or not.
app = MRTRServer(
    "chaos", shutdown=Shutdown(lame_duck=0.3), store=os.environ["CHAOS_DATABASE"], limits=Limits(lease_seconds=3)
)
app.tool(answer_within=ANSWER_WITHIN)(order)
