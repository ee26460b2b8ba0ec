"""A server that desktop clients would start, with tools that do what such a server must survive."""

import asyncio
import os
import subprocess
import sys
import time

from mrtr_server import Context, Elicit, ListRoots, MRTRServer, Sample, ServerInfo

from .models import Login

print("printed while it is imported")


def exists(file: str) -> bool:
    return bool(file) and os.path.exists(file)


app = MRTRServer("desktop", info=ServerInfo(version="1.0"))


@app.tool
def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


@app.tool
async def everything(ctx: Context) -> str:
    """Ask the person, the model and the client at once, and then for a yes."""
    login, sampled, roots = await ctx.ask(Elicit("Who?", Login), Sample("Say hello"), ListRoots())
    await ctx.confirm("Sure?")
    return f"{sampled.text}, {login.name} in {len(roots)} places"


@app.tool
async def notes(ctx: Context) -> str:
    """Show progress, and send a message."""
    for step in range(3):
        await ctx.progress(step + 1, 3)
    await ctx.log("half way", level="warning")
    return "done"


@app.tool
def noisy() -> str:
    """Print in every way, and read what is not there."""
    print("printed by a handler")
    sys.stdout.write("written by a handler\n")
    sys.__stdout__.write("written to the first stdout\n")  # type: ignore[union-attr]
    os.write(1, b"written to descriptor 1\n")
    return f"read {sys.stdin.read()!r} and {os.read(0, 10)!r}"


@app.tool
def child() -> str:
    """Start a process that prints, and that reads to the end."""
    code = "import sys; print('printed by a child'); print('child read', repr(sys.stdin.read()), file=sys.stderr)"
    return str(subprocess.run([sys.executable, "-c", code], timeout=60).returncode)


@app.tool
def leave_child(file: str) -> str:
    """Start a process that outlives this one, until there is a file."""
    code = f"import os, time\nwhile not os.path.exists({file!r}): time.sleep(0.05)"
    subprocess.Popen([sys.executable, "-c", code])
    return "left"


@app.tool
async def wait(ctx: Context, file: str = "") -> str:
    """Wait until there is a file, for as long as it takes."""
    await ctx.log("waits", level="error")
    while not exists(file):  # noqa: ASYNC110  it is no event of this process
        await asyncio.sleep(0.01)
    return "waited"


@app.tool
def hang() -> str:
    """Never return, in a thread."""
    print("hangs", flush=True)
    while True:
        time.sleep(1)


@app.tool
async def block() -> str:
    """Never let the event loop run again."""
    return hang()


@app.prompt
def review(file: str) -> str:
    """Ask for a review."""
    return f"Review {file}"


@app.resource("notes://{name}")
def note(name: str) -> str:
    """Read a note."""
    return f"note {name}"


@app.completion("name", resource="notes://{name}")
def names(typed: str) -> list[str]:
    return [name for name in ("ada", "bob") if name.startswith(typed)]


@app.tool(task="optional")
async def roll_out(ctx: Context) -> str:
    """Take long."""
    return await ctx.step(lambda: "rolled out", key="roll_out")


if __name__ == "__main__":
    app.run_stdio()
