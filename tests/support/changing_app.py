"""A server whose tools announce changes, for tests that run it in several processes on one database."""

import asyncio

from mrtr_server import MRTRServer

app = MRTRServer("changing")


@app.tool
def change() -> str:
    """From a thread of the pool."""
    app.notify_tools_changed()
    return "changed"


@app.tool
async def update(uri: str, times: int = 1) -> str:
    """From the event loop."""
    for _ in range(times):
        app.notify_resource_updated(uri)
        await asyncio.sleep(0)
    return "updated"


@app.resource("doc://{name}")
def document(name: str) -> str:
    """Whatever is asked for."""
    return name


@app.prompt
def greet() -> str:
    """Greet somebody."""
    return "hi"
