"""Handlers with effects. A line that ends with `told` has one that its flow will repeat, outside of a step."""

import asyncio
import logging
import os
import shutil
import socket
import sqlite3
import subprocess
import sys
import tempfile
import urllib.request
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any

import httpx

from mrtr_server import Caller, Confirm, Context, Depends, InputRequired, Inputs, MRTRServer

HERE = Path.cwd()


def may_call(caller: Caller, name: str) -> bool:
    (HERE / "audit.txt").write_text(name)
    return True


app = MRTRServer("effectful", keys=[bytes(32)], authorize=may_call)
log = logging.getLogger("effectful")
log.addHandler(logging.FileHandler(HERE / "log.txt", delay=True))


def write(name: str) -> None:
    (HERE / name).write_text("written")


def helper() -> None:
    with open("helper.txt", "a") as file:  # told
        file.write("x")


# What is told


@app.tool
async def files(ctx: Context) -> str:
    Path("a").write_text("x")  # told
    helper()
    os.rename("a", "b")  # told
    os.remove("b")  # told
    os.mkdir("folder")  # told
    shutil.rmtree("folder")  # told
    os.close(os.open("c", os.O_CREAT | os.O_WRONLY))  # told
    await ctx.confirm("?")
    return "done"


@app.tool
async def programs(ctx: Context) -> str:
    subprocess.run(["true"], check=True)  # told
    running = await asyncio.create_subprocess_exec("true")  # told
    await running.wait()
    os.system("true")  # told
    await ctx.confirm("?")
    return "done"


@app.tool
async def connections(port: int, ctx: Context) -> str:
    sqlite3.connect("local.db").close()  # told
    socket.create_connection(("127.0.0.1", port)).close()  # told
    _, writer = await asyncio.open_connection("127.0.0.1", port)  # told
    writer.close()
    async with httpx.AsyncClient(trust_env=False, timeout=httpx.Timeout(60, read=0.01)) as client:
        with suppress(httpx.TransportError):
            await client.get(f"http://localhost:{port}")  # told
    await asyncio.gather(asyncio.to_thread(connect, port), asyncio.sleep(0))
    await ctx.confirm("?")
    return "done"


def connect(port: int) -> None:
    socket.create_connection(("127.0.0.1", port)).close()  # told


@app.tool
async def through_libraries(ctx: Context) -> str:
    await asyncio.to_thread(shutil.copyfile, __file__, "copy")  # told
    await ctx.confirm("?")
    return "done"


@app.tool
def pure(inputs: Inputs) -> str | InputRequired:
    Path("pure.txt").write_text("x")  # told
    sure = Confirm("?")
    return "done" if inputs.get("confirm", sure) else InputRequired(confirm=sure)


@app.tool(task="required")
async def task(ctx: Context) -> str:
    Path("task.txt").write_text("x")  # told
    await ctx.confirm("?")
    return "done"


@app.tool
async def in_pieces(ctx: Context) -> AsyncIterator[str]:
    Path("pieces.txt").write_text("x")  # told
    yield "one"
    await asyncio.to_thread(shutil.copyfile, __file__, "copy")  # told
    yield "two"
    await ctx.confirm("?")
    yield "three"


@app.prompt
async def prompt(ctx: Context) -> str:
    Path("prompt.txt").write_text("x")  # told
    await ctx.confirm("?")
    return "done"


# What is not


@app.tool
async def in_steps(ctx: Context) -> str:
    await ctx.step(write, "in_step.txt")
    await ctx.step(asyncio.to_thread, write, "in_thread.txt", key="thread")
    await ctx.confirm("?")
    await ctx.step(write, "after.txt", key="after")
    return "done"


@app.tool
async def never_asks(ctx: Context) -> str:
    write("never.txt")
    return "done"


@app.tool
def plain() -> str:
    write("plain.txt")
    return "done"


@app.tool
async def after_the_last_ask(ctx: Context) -> str:
    await ctx.confirm("?")
    Path("last.txt").write_text("x")
    return "done"


async def opened() -> AsyncIterator[Any]:
    with open("dependency.txt", "a") as file:
        yield file
    os.remove("dependency.txt")


def counted() -> int:
    write("counted.txt")
    return 1


@app.tool
async def dependencies(
    ctx: Context, file: Annotated[Any, Depends(opened)], count: Annotated[int, Depends(counted)]
) -> str:
    await ctx.confirm("?")
    return "done"


@app.tool
async def harmless(ctx: Context) -> str:
    Path(__file__).read_text()
    log.warning("logged")
    with tempfile.TemporaryDirectory() as folder, tempfile.NamedTemporaryFile():
        assert folder
    with open(os.devnull, "w") as nothing:
        nothing.write("x")
    sqlite3.connect(":memory:").close()
    with socket.socket(type=socket.SOCK_DGRAM) as unused:
        unused.connect(("127.0.0.1", 9))
    sys.path.insert(0, str(HERE))
    (HERE / "imported.py").exists()
    __import__("imported")
    with suppress(OSError):
        urllib.request.urlopen(f"file://{__file__}").close()
    await ctx.confirm("?")
    return "done"
