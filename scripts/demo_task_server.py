"""The server of the second part of scripts/demo: it asks, works in the background, and asks again."""

import os
import time

from pydantic import BaseModel

from mrtr_server import Context, Limits, MRTRServer, Shutdown, Task

CHAPTERS = ("sales", "costs", "people", "plans")

# With the default lease, half a minute would pass before a task is taken from a process that was killed.
app = MRTRServer("reports", limits=Limits(lease_seconds=5), shutdown=Shutdown(lame_duck=0))


class Quarter(BaseModel):
    quarter: str


def write(chapter: str, quarter: str) -> str:
    """Take a while; return who has done it."""
    time.sleep(0.6)
    return f"{chapter} of {quarter}, by process {os.getpid()}"


@app.tool(task=Task("optional", poll=0.2, rounds_first=True))
async def report(ctx: Context) -> list[str]:
    """Ask which quarter, write a report on it in the background, and ask whether to send it."""
    asked = await ctx.elicit("Which quarter?", Quarter)
    await ctx.background()
    pages = []
    for chapter in CHAPTERS:
        await ctx.progress(message=f"process {os.getpid()} writes {chapter}")
        pages.append(await ctx.step(write, chapter, asked.quarter))
    await ctx.confirm("Send it to the board?")
    return [*pages, f"sent by process {os.getpid()}"]
