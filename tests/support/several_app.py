"""A server without keys and without a store, which works in one process only."""

import os

from mrtr_server import MRTRServer, Shutdown

app = MRTRServer("several", shutdown=Shutdown(lame_duck=0.1))


@app.tool
def who() -> str:
    """Say which worker serves."""
    return str(os.getpid())
