"""A server with little room: a tool that waits, and one that computes. `MRTR_*` has its keys; `QUEUE` its limits."""

import asyncio
import json
import os
import time

from mrtr_server import Limits, MRTRServer

app = MRTRServer("overloaded", limits=Limits(**json.loads(os.environ.get("QUEUE", "{}"))))


@app.tool
async def waits(seconds: float) -> str:
    """Wait, as for a service elsewhere."""
    await asyncio.sleep(seconds)
    return "done"


@app.tool
async def computes(seconds: float) -> str:
    """Use the processor for so long, and let nothing else run meanwhile."""
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        pass
    return "done"
