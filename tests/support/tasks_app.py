"""Tools with tasks, for tests that run them in several processes, and stop and kill those.

`TASKS_DIR` holds the ledger, and while parts are to take their time, a file `hold`; `TASKS_DATABASE` is the URL of the
database, or `memory` for none; `TASKS_LEASE` and `TASKS_ATTEMPTS` are limits, and `TASKS_LAME_DUCK` is that of the
server. With `TASKS_LEFT_TO_OTHERS`, a server only starts tasks.
"""

import asyncio
import os
import random
import signal
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from starlette.applications import Starlette
from starlette.routing import Mount

from mrtr_server import Context, Limits, MRTRServer, ProtocolError, Shutdown, Task

POLL = 0.1
"""In seconds."""

PLACE = Path(os.environ["TASKS_DIR"])
DATABASE = None if os.environ["TASKS_DATABASE"] == "memory" else os.environ["TASKS_DATABASE"]


def note(*words: object) -> None:
    with (PLACE / "ledger").open("a") as ledger:
        ledger.write(" ".join(map(str, words)) + "\n")


@asynccontextmanager
async def lifespan(_: MRTRServer) -> AsyncIterator[None]:
    note("entered", os.getpid())
    yield
    note("left", os.getpid())


app = MRTRServer(
    "tasks",
    store=DATABASE,
    limits=Limits(
        lease_seconds=float(os.environ.get("TASKS_LEASE", "30")),
        task_attempts=int(os.environ.get("TASKS_ATTEMPTS", "5")),
    ),
    lifespan=lifespan,
    shutdown=Shutdown(lame_duck=float(os.environ.get("TASKS_LAME_DUCK", "0.1"))),
    run_tasks=not os.environ.get("TASKS_LEFT_TO_OTHERS"),
)
mounted = Starlette(routes=[Mount("/", app)])  # which passes no lifespan on
without_tasks = MRTRServer("plain", store=DATABASE)
without_store = MRTRServer("alone")


async def part(number: int) -> int:
    note("part", number, os.getpid())
    while (PLACE / "hold").exists():  # noqa: ASYNC110  the test is another process
        await asyncio.sleep(0.01)
    await asyncio.sleep(0.01)
    return os.getpid()


@app.tool(task=Task("required", poll=POLL))
@without_store.tool(task="required")
async def work(parts: int, ctx: Context) -> str:
    """Do a work of several parts; return which processes did them."""
    done = []
    for number in range(parts):
        done.append(str(await ctx.step(part, number)))
        note("had", number, os.getpid())
    return " ".join(done)


@app.tool(task=Task("required", poll=POLL))
async def approve(ctx: Context) -> str:
    """Ask, and go on."""
    await ctx.confirm("Go on?")
    return "gone on"


@app.tool(task=Task("required", poll=POLL))
async def beside(ctx: Context) -> str:
    """Ask beside a part, and do another one when that is answered."""

    async def approved() -> int:
        await ctx.confirm("Go on?")
        return await ctx.step(part, 1)

    return " ".join(map(str, await asyncio.gather(ctx.step(part, 0), approved())))


async def die() -> None:
    note("dies", os.getpid())
    os._exit(1)


@app.tool(task=Task("required", poll=POLL))
async def deadly(ctx: Context) -> str:
    """Take the process along."""
    await ctx.step(die)
    return "alive"


@app.tool(task=Task("required", poll=POLL))
async def signalled_twice(number: int, ctx: Context) -> str:
    """Send the process a signal twice, before its event loop turns, and go on for long."""
    for _ in range(2):
        signal.raise_signal(number)
    return str(await ctx.step(part, 0))


@app.tool(task=Task("required", poll=POLL))
async def fragile(ctx: Context) -> str:
    """Do a part, and fail unless the file `mended` is there."""
    done = await ctx.step(part, 0)
    if not (PLACE / "mended").exists():
        raise ProtocolError("Broken")
    return str(done)


async def drop(name: str, number: int) -> int:
    note("drop", name, number, time.time())
    await asyncio.sleep(0.002)
    return number


@app.tool(task=Task("required", poll=POLL))
async def drip(name: str, ctx: Context) -> str:
    """Have one effect after the other, with pauses of every length in between."""
    for number in range(1000):
        note("call", name, number, time.time())
        await ctx.step(drop, name, number)
        await asyncio.sleep(random.choice((0, 0, 0.001, 0.01, 0.03)))
    return "dry"


@app.tool(task=Task("required", poll=POLL))
async def endless(ctx: Context) -> str:
    """Run until somebody ends it."""
    note("begun", os.getpid())
    try:
        await asyncio.Event().wait()
    finally:
        note("ended", os.getpid())
    return "over"
