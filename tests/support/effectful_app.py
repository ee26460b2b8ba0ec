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
from collections.abc import AsyncIterator, Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import Annotated, Any

import httpx
from sqlalchemy import create_engine, delete
from sqlalchemy.orm import DeclarativeBase, Mapped, MappedAsDataclass, Session, mapped_column
from sqlalchemy.pool import StaticPool

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


def database() -> Iterator[sqlite3.Connection]:
    with closing(sqlite3.connect("orders.db", check_same_thread=False)) as db:
        db.execute("CREATE TABLE IF NOT EXISTS orders (item)")
        with db:
            yield db


@app.tool
async def statements(ctx: Context, db: Annotated[sqlite3.Connection, Depends(database)]) -> str:
    db.execute("INSERT INTO orders VALUES ('secret')")  # told
    db.execute("SELECT item FROM orders WHERE item = 'update'").fetchone()
    db.executemany("  update orders SET item = ?", [("a",), ("b",)])  # told
    db.execute("WITH old AS (SELECT 'x' AS item) DELETE FROM orders WHERE item IN old")  # told
    await asyncio.to_thread(count_items, db)
    await ctx.confirm("?")
    db.execute("INSERT INTO orders VALUES ('last')")
    return "done"


class Base(MappedAsDataclass, DeclarativeBase):
    pass


class Table(Base):
    __tablename__ = "things"
    number: Mapped[int] = mapped_column(init=False, primary_key=True)
    item: Mapped[str]


# A connection whose statements only SQLAlchemy knows, as those of other databases.
CONNECTION = sqlite3.Connection("things.db", check_same_thread=False)
engine = create_engine("sqlite://", creator=lambda: CONNECTION, poolclass=StaticPool)
Table.metadata.create_all(engine)


def orm() -> Iterator[Session]:
    with Session(engine) as db, db.begin():  # told
        yield db


def undone() -> Iterator[Session]:
    with Session(engine) as db, db.begin():
        yield db


@app.tool
async def orm_statements(ctx: Context, db: Annotated[Session, Depends(orm, on_ask="commit")]) -> str:
    db.add(Table(item=f"added in round {ctx.round}"))
    db.execute(delete(Table).where(Table.item == "secret"))  # told
    db.add(Table(item=f"then added in round {ctx.round}"))
    await ctx.confirm("?")
    return "done"


@app.tool
async def orm_objects(ctx: Context, db: Annotated[Session, Depends(undone)]) -> str:
    db.add(Table(item="never written in the round that asks"))
    await ctx.confirm("?")
    return "done"


def count_items(db: sqlite3.Connection) -> None:
    db.execute("SELECT count(*) FROM orders")
    db.execute("REPLACE INTO orders VALUES ('c')")  # told


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
