"""Show how long another caller waits while all streams come back: `python benchmarks/reconnects.py`.

One process, `mrtr-server run` with a SQLite file, has many streams: half of them are subscriptions of 2026-07-28, and
half are calls of 2025-11-25 that wait for a person. It is killed and starts again at once, and all clients come back as
soon as it listens. Meanwhile somebody else makes plain calls, each on a connection of its own, or all on one.

It says when all streams were there again, how long the longest of the plain calls took, and what the server's quiet
streams cost it before the kill, each beyond the first: while anybody waits for a person, a process looks into a SQLite
file more often. `--quiet` is for how long that is watched, and `--kind` for which streams. `--streams 9500` needs a
limit of 10,000 open files. The exit code is 1 if a client got an error, or if a call took longer than `--most`.
"""

import argparse
import asyncio
import json
import os
import resource
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from handshake_load import INITIALIZE, VERSION
from processes import SERVERS, Server, find_ports
from scenarios import META, PROTOCOL_VERSION
from typing_extensions import override

AT_ONCE = 32
"""How many streams are opened at once, at first."""

RETRY = 0.05
"""Seconds until a client tries again that was refused, since nobody listens."""

BETWEEN = 0.01
"""Seconds between two plain calls."""

WITHIN = 120.0
"""Seconds that all streams may take to come back."""

SETTLED = 2.0
"""Seconds until the server has nothing more to do with what was opened."""


class UnexpectedResponseError(Exception):
    """A client got something else than it needs."""


def request(method: str, message: Mapping[str, Any] | None, **headers: str) -> bytes:
    """Write down a request."""
    body = b"" if message is None else json.dumps(message, separators=(",", ":")).encode()
    named = "".join(f"{name.replace('_', '-')}: {value}\r\n" for name, value in headers.items())
    kind = "application/json, text/event-stream" if body else "text/event-stream"
    sized = f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n" if body else ""
    return f"{method} /mcp HTTP/1.1\r\nHost: 127.0.0.1\r\nAccept: {kind}\r\n{named}{sized}\r\n".encode() + body


def call(tool: str, number: int, meta: Mapping[str, Any] | None = None, **arguments: Any) -> dict[str, Any]:
    """Return a call of a tool."""
    params = {"name": tool, "arguments": arguments, **({} if meta is None else {"_meta": meta})}
    return {"jsonrpc": "2.0", "id": number, "method": "tools/call", "params": params}


def of_today(message: Mapping[str, Any]) -> bytes:
    """Write down a request of 2026-07-28."""
    named = {"Mcp_Name": message["params"]["name"]} if "name" in message["params"] else {}
    return request("POST", message, MCP_Protocol_Version=PROTOCOL_VERSION, Mcp_Method=message["method"], **named)


class Stream(asyncio.Protocol):
    """A connection that sends one request, and waits for an event of the stream that it gets.

    Args:
        sent: the request.
        wanted: bytes that the event has.
    """

    def __init__(self, sent: bytes, wanted: bytes) -> None:
        self._sent, self._wanted = sent, wanted
        self.data = b""
        self.there = asyncio.get_running_loop().create_future()
        self.lost = asyncio.get_running_loop().create_future()

    @override
    def connection_made(self, transport: Any) -> None:
        self.transport = transport
        transport.write(self._sent)

    @override
    def data_received(self, data: bytes) -> None:
        if self.there.done():
            return
        self.data += data
        if b"\r\n\r\n" in self.data and not self.data.startswith(b"HTTP/1.1 20"):
            self.there.set_exception(UnexpectedResponseError(self.data[:200]))
        elif self._wanted in self.data:
            self.there.set_result(None)

    @override
    def connection_lost(self, error: Exception | None) -> None:
        self.lost.set_result(None)
        if not self.there.done():
            self.there.set_exception(UnexpectedResponseError("The connection was closed"))


class Client:
    """One client, with a stream.

    Args:
        port: of the server.
        number: which one it is.
    """

    def __init__(self, port: int, number: int) -> None:
        self.port, self.number = port, number
        self._stream: Stream | None = None

    async def open(self) -> None:
        """Open the stream."""
        raise NotImplementedError

    async def lose(self) -> None:
        """Wait until the server is gone."""
        assert self._stream is not None
        await self._stream.lost

    async def come_back(self) -> None:
        """Open the stream again, as soon as the server listens."""
        raise NotImplementedError

    async def begin(self, sent: bytes, wanted: bytes, *, patient: bool = False) -> bytes:
        """Send a request; return what came until it was there."""
        loop = asyncio.get_running_loop()
        while True:
            try:
                _, self._stream = await loop.create_connection(lambda: Stream(sent, wanted), "127.0.0.1", self.port)
            except ConnectionRefusedError:
                if not patient:
                    raise
                await asyncio.sleep(RETRY)
                continue
            await self._stream.there
            return self._stream.data


class Listener(Client):
    """A client of 2026-07-28 that listens to changes."""

    @override
    async def open(self, *, patient: bool = False) -> None:
        params = {"notifications": {"toolsListChanged": True}, "_meta": META}
        message = {"jsonrpc": "2.0", "id": self.number, "method": "subscriptions/listen", "params": params}
        await self.begin(of_today(message), b"notifications/subscriptions/acknowledged", patient=patient)

    @override
    async def come_back(self) -> None:
        await self.open(patient=True)


class Asked(Client):
    """A client of 2025-11-25 whose call waits for a person."""

    @override
    async def open(self) -> None:
        message = {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": INITIALIZE}
        head = await self.begin(request("POST", message), b'"serverInfo"')
        assert self._stream is not None
        self._stream.transport.close()
        self._named = {"Mcp_Session_Id": _after(head, b"mcp-session-id: "), "MCP_Protocol_Version": VERSION}
        message = call("get_weather_live", 2, location=f"City {self.number}")
        asked = await self.begin(request("POST", message, **self._named), b"elicitation/create")
        self._last = _after(asked[: asked.index(b"elicitation/create")], b"id: ", last=True)

    @override
    async def come_back(self) -> None:
        sent = request("GET", None, Last_Event_ID=self._last, **self._named)
        await self.begin(sent, b"event: ", patient=True)


KINDS: dict[str, Sequence[type[Client]]] = {
    "both": (Listener, Asked),
    "subscriptions": (Listener,),
    "calls": (Asked,),
}


def _after(data: bytes, name: bytes, *, last: bool = False) -> str:
    at = (data.rindex if last else data.index)(name) + len(name)
    return data[at:].split(b"\n", 1)[0].strip().decode()


# Another caller, in a process of its own: the clients keep theirs busy


class Waits(NamedTuple):
    """How long the plain call took that took longest, in seconds.

    Args:
        longest: by the clock.
        computed: how long the server's event loop computed meanwhile, of the call for which it did so longest.
    """

    longest: float = 0.0
    computed: float = 0.0


def call_again_and_again(port: int, process: int, ended: threading.Event, found: list[Waits], *, anew: bool) -> None:
    """Make plain calls until that is to end; note how long they took."""
    connection: socket.socket | None = None
    sent = of_today(call("add", 7, META, a=1, b=2))
    schedule = Path(f"/proc/{process}/schedstat")
    longest = Waits()
    while not ended.is_set():
        began, before = time.perf_counter(), int(schedule.read_text().split()[0])
        try:
            if connection is None:
                connection = socket.create_connection(("127.0.0.1", port), timeout=WITHIN)
            connection.sendall(sent)
            data = b""
            while b'"3"' not in data:
                if not (part := connection.recv(65_536)):
                    raise UnexpectedResponseError(data[:200])
                data += part
            if not data.startswith(b"HTTP/1.1 200"):
                raise UnexpectedResponseError(data[:200])
            computed = (int(schedule.read_text().split()[0]) - before) / 1e9
            longest = Waits(max(longest.longest, time.perf_counter() - began), max(longest.computed, computed))
        except ConnectionRefusedError:
            connection = None  # it does not listen yet
        if anew and connection is not None:
            connection.close()
            connection = None
        time.sleep(BETWEEN)
    found.append(longest)


def probe(port: int, process: int) -> None:
    """Call until standard input ends; print how long the calls of either kind took."""
    ended = threading.Event()
    waits: tuple[list[Waits], list[Waits]] = ([], [])
    threads = [
        threading.Thread(target=call_again_and_again, args=(port, process, ended, found), kwargs={"anew": anew})
        for found, anew in zip(waits, (True, False), strict=True)
    ]
    for each in threads:
        each.start()
    sys.stdin.read()
    ended.set()
    for each in threads:
        each.join()
    print(json.dumps(waits))


@contextmanager
def serving(port: int, folder: str) -> Iterator[Server]:
    """Run a server until the end of the block, which kills it."""
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join((str(SERVERS), str(SERVERS.parents[1]))),
        "MRTR_KEYS": "00" * 32,
        "MRTR_DATABASE_URL": f"sqlite:///{folder}/reconnects.db",
        "MRTR_LIMITS_LISTENERS": "20000",
    }
    command = [sys.executable, "-m", "mrtr_server", "run", "ours:app", "--port", str(port), "--log-level", "warning"]
    with tempfile.TemporaryFile() as log:
        process = subprocess.Popen(command, cwd=SERVERS, env=environment, stdout=log, stderr=subprocess.STDOUT)
        server = Server(process, port, log)
        try:
            yield server
        finally:
            process.kill()
            process.wait()
            if said := server.read_log():
                print(said, file=sys.stderr)


@dataclass(frozen=True)
class Figures:
    """What was measured. Times are in seconds.

    Args:
        quiet: microseconds of CPU a second for each stream on which nothing happens.
        back: until all streams were there again, since the server listened.
        cpu: of the server in that time.
        anew: how long plain calls took, each with a connection of its own.
        kept: and on a connection that is used again.
        errors: what clients got instead of their streams.
    """

    quiet: float
    back: float
    cpu: float
    anew: Waits
    kept: Waits
    errors: list[BaseException]


async def use(server: Server, seconds: float) -> float:
    """Return how many seconds of CPU a server uses in one second."""
    before, began = server.cpu_seconds() or 0.0, time.monotonic()
    await asyncio.sleep(seconds)
    return ((server.cpu_seconds() or 0.0) - before) / (time.monotonic() - began)


async def measure(streams: int, kinds: Sequence[type[Client]], quiet: float, folder: str) -> Figures:
    """Open streams, kill the server, and watch how they come back."""
    (port,) = find_ports(1)
    clients: list[Client] = [kinds[number % len(kinds)](port, number) for number in range(streams)]
    with serving(port, folder) as server:
        await asyncio.to_thread(server.wait_until_ready)
        first = clients[: len(kinds)]
        await asyncio.gather(*(client.open() for client in first))
        await asyncio.sleep(SETTLED)
        idle = await use(server, quiet) if quiet else 0.0
        places = asyncio.Semaphore(AT_ONCE)

        async def open_one(client: Client) -> None:
            async with places:
                await client.open()

        others = clients[len(first) :]
        await asyncio.gather(*map(open_one, others))
        await asyncio.sleep(SETTLED)
        each = 1e6 * (await use(server, quiet) - idle) / len(others) if quiet else 0.0
    await asyncio.gather(*(client.lose() for client in clients))
    coming = [asyncio.create_task(client.come_back()) for client in clients]
    with serving(port, folder) as server:
        command = [sys.executable, __file__, "--probe", str(port), str(server.process.pid)]
        pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        other = subprocess.Popen(command, text=True, **pipes)  # noqa: ASYNC220  it takes no time that is measured
        while True:
            with suppress(OSError):
                socket.create_connection(("127.0.0.1", port)).close()
                break
            await asyncio.sleep(BETWEEN)
        began, started = time.monotonic(), server.cpu_seconds() or 0.0
        _, late = await asyncio.wait(coming, timeout=WITHIN)
        back, cpu = time.monotonic() - began, (server.cpu_seconds() or 0.0) - started
        told, _ = await asyncio.to_thread(other.communicate, "")
        for task in late:
            task.cancel()
        ended = await asyncio.gather(*coming, return_exceptions=True)
    anew, kept = (Waits(*found) for (found,) in json.loads(told))
    return Figures(each, back, cpu, anew, kept, [error for error in ended if error is not None])


def main(arguments: Sequence[str]) -> int:
    """Print a row of figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--streams", type=int, default=2_000)
    parser.add_argument("--kind", choices=KINDS, default="both", help="which streams there are (%(default)s)")
    parser.add_argument("--quiet", type=float, default=0.0, help="seconds to watch quiet streams for (%(default)s)")
    parser.add_argument("--most", type=float, default=1.0, help="seconds that a plain call may take (%(default)s)")
    parser.add_argument("--probe", type=int, nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.probe:
        probe(*options.probe)
        return 0
    files = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (files, files))
    with tempfile.TemporaryDirectory() as folder:
        found = asyncio.run(measure(options.streams, KINDS[options.kind], options.quiet, folder))
    print("| streams | a quiet one, CPU | all are back after | CPU of that | a plain call, new connection | kept one |")
    print("|--:|--:|--:|--:|--:|--:|")
    anew, kept = (f"{each.longest:.2f} s, {each.computed:.2f} s computed" for each in (found.anew, found.kept))
    print(
        f"| {options.streams:,} | {found.quiet:.1f} µs/s | {found.back:.1f} s | {found.cpu:.1f} s | {anew} | {kept} |"
    )
    if found.errors:
        print(f"{len(found.errors)} clients failed: {found.errors[0]!r}", file=sys.stderr)
    return int(bool(found.errors) or max(found.anew.computed, found.kept.computed) > options.most)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
