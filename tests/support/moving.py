"""An application whose calls tests move from one process to another. What it does, it writes into files.

`MOVING` names the directory of the files, `LAME_DUCK` the seconds that its servers take to leave.
"""

import asyncio
import os
import time
from pathlib import Path

from starlette.applications import Starlette
from starlette.routing import Mount

from mrtr_server import Context, InputRequired, Inputs, MRTRServer, Shutdown

DIRECTORY = Path(os.environ.get("MOVING", "."))

LAME_DUCK = float(os.environ.get("LAME_DUCK", "0.5"))

app = MRTRServer("moving", shutdown=Shutdown(lame_duck=LAME_DUCK, seconds=LAME_DUCK + 25))
site = Starlette(routes=[Mount("/tools", app)])


def effect(what: str) -> str:
    """Write down that something has happened."""
    with (DIRECTORY / "effects").open("a") as effects:
        effects.write(f"{what}\n")
    return what


def opened(gate: str) -> bool:
    """Return whether the test has let the calls go on."""
    return (DIRECTORY / gate).exists()


def long_effect(what: str) -> str:
    """Take a while over something, in a thread."""
    effect(f"{what} begins")
    while not opened("gate"):
        time.sleep(0.005)
    return effect(f"{what} ends")


@app.tool
async def between_steps(label: str, ctx: Context) -> str:
    """Wait between two steps."""
    (DIRECTORY / "server").write_text(str(os.getpid()))
    first = await ctx.step(effect, f"{label} first")
    while not opened("gate"):  # noqa: ASYNC110  the test is another process
        await asyncio.sleep(0.005)
    await ctx.step(effect, f"{label} second", key="second")
    return f"{first}, and the rest by {os.getpid()}"


@app.tool
async def inside_a_step(label: str, ctx: Context) -> str:
    """Be inside a long step."""
    await ctx.step(long_effect, label)
    await ctx.step(effect, f"{label} is over")
    return f"by {os.getpid()}"


@app.tool
async def checkpoints(ctx: Context) -> str:
    """Wait, and have a boundary without a step."""
    effect("checkpoint waits")
    while not opened("gate"):  # noqa: ASYNC110  the test is another process
        await asyncio.sleep(0.005)
    await ctx.checkpoint()
    return f"by {os.getpid()}"


@app.tool
def who() -> str:
    """Say which process it is; a handler that takes nothing of the flow."""
    return f"by {os.getpid()}"


@app.tool
def pure(inputs: Inputs) -> str | InputRequired:
    """Answer without a question."""
    return f"by {os.getpid()}"


@app.tool
async def confirmed(ctx: Context) -> str:
    """Ask for a confirmation."""
    await ctx.confirm("Sure?")
    return f"by {os.getpid()}"
