"""Tools that take a minute, for servers and workers that are told to end meanwhile.

`ENDING` names a directory: what a tool does, it writes there. `ENDING_SLOW_EXIT` makes the lifespan's end take a
minute; with `ENDING_LEFT_TO_OTHERS`, a server only starts tasks. `ENDING_DATABASE` is its URL.
"""

import asyncio
import os
import signal
import sys
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Annotated

import uvicorn

from mrtr_server import Context, Depends, MRTRServer, Shutdown

PLACE = Path(os.environ.get("ENDING", "."))
MINUTE = 60.0


def note(what: str) -> None:
    """Write down that something has happened."""
    with (PLACE / "notes").open("a") as notes:
        notes.write(f"{what}\n")


@asynccontextmanager
async def lifespan(_: MRTRServer) -> AsyncIterator[None]:
    yield
    if "ENDING_SLOW_EXIT" in os.environ:
        await asyncio.sleep(MINUTE)


app = MRTRServer(
    "ending",
    shutdown=Shutdown(lame_duck=0.2),
    store=os.environ.get("ENDING_DATABASE", f"sqlite:///{PLACE}/tasks.db"),
    lifespan=lifespan,
    run_tasks="ENDING_LEFT_TO_OTHERS" not in os.environ,
)


def a_minute(what: str) -> str:
    """Block a thread."""
    note(what)
    time.sleep(MINUTE)
    return what


@app.tool(task="optional")
def plain() -> str:
    """Take a minute in a thread."""
    return a_minute("plain")


def held() -> Iterator[str]:
    """Hold something for as long as a round lasts."""
    yield "held"


@app.tool
def holds(_: Annotated[str, Depends(held)]) -> str:
    """Take a minute in a thread, with something that is torn down afterwards."""
    return a_minute("holds")


@app.tool
async def waits() -> str:
    """Take a minute on the loop."""
    note("waits")
    await asyncio.sleep(MINUTE)
    return "waited"


@app.tool
async def streams(ctx: Context) -> str:
    """Take a minute after a first word."""
    await ctx.progress(1)
    note("streams")
    await asyncio.sleep(MINUTE)
    return "streamed"


@app.tool(task="optional")
async def steps(ctx: Context) -> str:
    """Take a minute in a step."""
    return await ctx.step(a_minute, "steps")


@app.tool(single_use=True)
async def once(ctx: Context) -> str:
    """Take a minute in a step that is done once."""
    return await ctx.step(a_minute, "once")


@app.tool(task="required")
async def blocks() -> str:
    """Block the event loop."""
    return a_minute("blocks")


if __name__ == "__main__":  # as PID 1, which no signal ends by itself: that uvicorn sends it once more changes nothing
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    uvicorn.run(app, port=0, ws="none")
    print("uvicorn has ended", file=sys.stderr)
