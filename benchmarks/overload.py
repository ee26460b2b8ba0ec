"""Show what callers get of three full replicas: `python benchmarks/overload.py`; about two minutes.

Three servers run behind the round-robin front of the examples. Calls come at fixed times, whether earlier ones are
answered or not. A call that is handed over is sent again at once, as clients do. Where the tool waits, calls come five
times as often as the replicas can take them. Where it computes, one and a half times as often as was measured before.

For each it says how long calls took that were answered, the bound for that (twice as long as without load, and
`queue_seconds`), how soon the others were told, how many requests a call took, and how long `/health` took meanwhile.
The exit code is 1 if a bound is broken, a call got neither, or a probe failed.
"""

import argparse
import asyncio
import json
import os
import secrets
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from processes import find_ports

ROOT = Path(__file__).parents[1]
SERVERS = Path(__file__).parent / "servers"
REPLICAS = 3
TIMEOUT = 60.0
"""How long a server may take to start, and a call to be answered at all, in seconds."""

PROBE_INTERVAL = 0.1
"""How long a client waits between two probes, in seconds."""


@dataclass(frozen=True)
class Load:
    """A way to overload the replicas.

    Args:
        tool: what is called.
        seconds: how long it takes.
        at_once: how many calls of it a replica runs at once.
        queue: how many wait.
        queue_seconds: and how long.
        factor: how many times as many calls come as the replicas can take.
    """

    tool: str
    seconds: float
    at_once: int
    queue: int
    queue_seconds: float
    factor: float

    @property
    def limits(self) -> dict[str, float]:
        """Return the limits of each replica."""
        return {"max_concurrency": self.at_once, "max_queue": self.queue, "queue_seconds": self.queue_seconds}


LOADS = {
    "waits": Load("waits", 0.5, at_once=4, queue=4, queue_seconds=0.5, factor=5.0),
    "computes": Load("computes", 0.02, at_once=1, queue=10, queue_seconds=0.5, factor=1.5),
}


@dataclass
class Found:
    """What became of calls.

    Args:
        answered: the seconds that each took.
        told: the seconds after which each was told that there is no room.
        failed: what else came.
        requests: how many were sent.
    """

    answered: list[float] = field(default_factory=list)
    told: list[float] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)
    requests: int = 0


@dataclass(frozen=True)
class Report:
    """The figures of one load. Times are in milliseconds, calls and requests a second or a call."""

    tool: str
    capacity: float
    offered: float
    answered: float
    told_share: float
    unloaded_p99: float
    answered_p99: float
    bound: float
    told_p99: float
    requests_a_call: float
    probe_p99: float
    probes_failed: int
    failed: list[str]

    @property
    def holds(self) -> bool:
        """Whether every call got a result or a refusal in time."""
        return not self.failed and not self.probes_failed and self.answered_p99 <= self.bound


def p99(seconds: list[float]) -> float:
    """Return the time that one of a hundred exceeds, in milliseconds; 0 if there are none."""
    ordered = sorted(seconds)
    return 1000 * ordered[min(len(ordered) - 1, int(len(ordered) * 0.99))] if ordered else 0.0


async def request(port: int, method: str, path: str, body: bytes = b"", headers: str = "") -> tuple[int, bytes]:
    """Send a request on a connection of its own; return the status and the body."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=2**22)
    try:
        head = f"{method} {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n{headers}"
        writer.write(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
        start, _, rest = (await reader.read()).partition(b"\r\n")
        return int(start.split()[1]), rest.partition(b"\r\n\r\n")[2]
    finally:
        writer.close()
        with suppress(OSError):
            await writer.wait_closed()


class Caller:
    """Calls a tool through the front.

    Args:
        port: of the front.
        load: has the tool.
    """

    def __init__(self, port: int, load: Load) -> None:
        self._port = port
        self._load = load
        version = "2026-07-28"
        meta = {
            "io.modelcontextprotocol/protocolVersion": version,
            "io.modelcontextprotocol/clientInfo": {"name": "overload", "version": "1"},
            "io.modelcontextprotocol/clientCapabilities": {},
        }
        self._params: dict[str, Any] = {"name": load.tool, "arguments": {"seconds": load.seconds}, "_meta": meta}
        self._headers = (
            f"Content-Type: application/json\r\nAccept: application/json, text/event-stream\r\n"
            f"MCP-Protocol-Version: {version}\r\nMcp-Method: tools/call\r\nMcp-Name: {load.tool}\r\n"
        )

    async def call(self, found: Found) -> None:
        """Call once, and note what comes of it."""
        began = time.monotonic()
        params = self._params
        try:
            async with asyncio.timeout(TIMEOUT):
                while True:
                    found.requests += 1
                    message = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}
                    status, body = await request(
                        self._port, "POST", "/mcp", json.dumps(message).encode(), self._headers
                    )
                    reply = json.loads(body) if body else {}
                    state = reply.get("result", {}).get("requestState")
                    if state is None:
                        break
                    params = {**self._params, "requestState": state}
        except (OSError, TimeoutError, ValueError, IndexError) as error:
            found.failed.append(f"{type(error).__name__}: {error}")
            return
        took = time.monotonic() - began
        if status == 200 and "result" in reply:
            found.answered.append(took)
        elif status == 503 and reply.get("error", {}).get("code") == -31002:
            found.told.append(took)
        else:
            found.failed.append(f"{status}: {body[:200]!r}")


async def at_rate(caller: Caller, rate: float, seconds: float) -> Found:
    """Let calls begin at a rate, whatever becomes of those before."""
    found, calls = Found(), list[asyncio.Task[None]]()
    began = time.monotonic()
    for number in range(int(rate * seconds)):
        await asyncio.sleep(max(0.0, began + number / rate - time.monotonic()))
        calls.append(asyncio.create_task(caller.call(found)))
    await asyncio.gather(*calls)
    return found


async def measured_capacity(caller: Caller, clients: int, seconds: float) -> float:
    """Return how many calls a second are answered where each client waits for one before it sends the next."""
    found, end = Found(), time.monotonic() + seconds

    async def work() -> None:
        while time.monotonic() < end:
            await caller.call(found)

    await asyncio.gather(*(work() for _ in range(clients)))
    return len(found.answered) / seconds


@asynccontextmanager
async def probing(ports: list[int]) -> AsyncIterator[tuple[list[float], list[str]]]:
    """Ask each replica for its health for as long as the block lasts; yield how long that took, and what failed."""
    took: list[float] = []
    failed: list[str] = []

    async def probe(port: int) -> None:
        while True:
            began = time.monotonic()
            try:
                status, body = await request(port, "GET", "/health")
            except OSError as error:
                failed.append(str(error))
            else:
                took.append(time.monotonic() - began)
                if status != 200:
                    failed.append(f"{status}: {body[:200]!r}")
            await asyncio.sleep(PROBE_INTERVAL)

    probes = [asyncio.create_task(probe(port)) for port in ports]
    try:
        yield took, failed
    finally:
        for each in probes:
            each.cancel()
        await asyncio.gather(*probes, return_exceptions=True)


@contextmanager
def fleet(load: Load) -> Iterator[tuple[int, list[int]]]:
    """Run the replicas and the front for as long as the block lasts; yield their ports."""
    *ports, front = find_ports(REPLICAS + 1)
    environment = {
        **os.environ,
        "MRTR_KEYS": secrets.token_hex(32),
        "QUEUE": json.dumps(load.limits),
        "PYTHONPATH": str(ROOT),
    }
    uvicorn = ("-m", "uvicorn", "overloaded:app", "--no-access-log", "--log-level", "error")
    commands: list[tuple[str, ...]] = [(*uvicorn, "--port", str(port)) for port in ports]
    commands.append(("-m", "examples.round_robin", *map(str, ports), "--port", str(front)))
    running: list[subprocess.Popen[bytes]] = []
    try:
        for command in commands:
            folder = ROOT if "examples.round_robin" in command else SERVERS
            running.append(
                subprocess.Popen(
                    [sys.executable, *command],
                    cwd=folder,
                    env=environment,
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                )
            )
        yield front, ports
    finally:
        for process in running:
            process.terminate()
        for process in running:
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


async def ready(ports: list[int]) -> None:
    """Wait until all answer."""
    async with asyncio.timeout(TIMEOUT):
        for port in ports:
            while True:
                try:
                    await request(port, "GET", "/health")
                    break
                except (OSError, IndexError):
                    await asyncio.sleep(0.05)


async def measure(load: Load, seconds: float) -> Report:
    """Overload the replicas in one way."""
    with fleet(load) as (front, ports):
        await ready([*ports, front])
        caller = Caller(front, load)
        if load.tool == "waits":
            capacity = REPLICAS * load.at_once / load.seconds
            await at_rate(caller, capacity / 10, 1)
        else:
            capacity = await measured_capacity(caller, REPLICAS, max(2.0, seconds / 2))
        unloaded = await at_rate(caller, capacity / 10, seconds)
        async with probing(ports) as (took, failed):
            found = await at_rate(caller, capacity * load.factor, seconds)
        calls = int(capacity * load.factor * seconds)
        return Report(
            load.tool,
            capacity,
            capacity * load.factor,
            len(found.answered) / seconds,
            len(found.told) / calls,
            p99(unloaded.answered),
            p99(found.answered),
            2 * p99(unloaded.answered) + 1000 * load.queue_seconds,
            p99(found.told),
            found.requests / calls,
            p99(took),
            len(failed),
            [*unloaded.failed, *map("told without load after {:.3f} s".format, unloaded.told), *found.failed][:10],
        )


HEAD = """\
| the tool | calls a second: taken at most | offered | answered | ms unloaded, p99 | answered, p99 | at most \
| told, p99 | requests a call | `/health`, p99 |
|---|--:|--:|--:|--:|--:|--:|--:|--:|--:|"""


def row(found: Report) -> str:
    """Return a report as a row of a table."""
    times = (found.unloaded_p99, found.answered_p99, found.bound, found.told_p99)
    rates = (found.capacity, found.offered, found.answered)
    cells = [*(f"{each:.0f}" for each in (*rates, *times)), f"{found.requests_a_call:.2f}", f"{found.probe_p99:.0f}"]
    return f"| {found.tool} | {' | '.join(cells)} |"


def main() -> int:
    """Measure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tools", nargs="*", default=list(LOADS), help="%(default)s")
    parser.add_argument("--seconds", type=float, default=15.0, help="that each load lasts (%(default)s)")
    parser.add_argument("--at-once", type=int, help="calls that a replica runs at once, and as many wait")
    parser.add_argument("--json", action="store_true", help="print each report as JSON")
    options = parser.parse_args()
    holds = True
    if not options.json:
        print(HEAD)
    for tool in options.tools:
        load = LOADS[tool]
        if options.at_once is not None:
            load = replace(load, at_once=options.at_once, queue=options.at_once)
        found = asyncio.run(measure(load, options.seconds))
        holds = holds and found.holds
        print(json.dumps({**asdict(found), "holds": found.holds}) if options.json else row(found), flush=True)
        for each in found.failed:
            print(f"failed: {each}", file=sys.stderr)
    return 0 if holds else 1


if __name__ == "__main__":
    sys.exit(main())
