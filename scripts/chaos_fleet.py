"""The servers of scripts/chaos, the front before them, and what stops, kills and restarts them."""

import asyncio
import random
import signal
import socket
import sys
import time
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

ROOT = Path(__file__).resolve().parent.parent

PAUSES = (0.3, 1.2)
"""How long the servers are left alone between two strikes, in seconds."""

START_TIMEOUT = 60.0
STOP_PATIENCE = 40.0


@dataclass
class Strikes:
    """What was done to the servers.

    Args:
        terminated, killed: servers that were told to end, and that were ended.
        stuck: servers that did not end in time when they were told to.
        pids: when each process was struck, in seconds since the epoch.
    """

    terminated: int = 0
    killed: int = 0
    stuck: int = 0
    pids: dict[int, float] = field(default_factory=dict)


class Server:
    """A server process at a port of its own, again and again.

    Args:
        port: where it listens.
        target: the import string of its application.
        environment: its variables.
        log: the file for its output.
    """

    def __init__(self, port: int, target: str, environment: dict[str, str], log: IO[bytes]) -> None:
        self.port = port
        self.up = False
        self._command = [sys.executable, "-m", "uvicorn", target, "--app-dir", "scripts", "--port", str(port)]
        self._environment = environment
        self._log = log
        self._process: Process | None = None

    async def start(self) -> None:
        """Start it, and wait until it listens. Raises `RuntimeError` if it does not."""
        self._process = await asyncio.create_subprocess_exec(
            *self._command,
            *("--no-access-log", "--ws", "none", "--log-level", "warning"),
            cwd=ROOT,
            env=self._environment,
            stdout=self._log,
            stderr=self._log,
            start_new_session=True,  # so that Ctrl-C reaches us alone, and we end it
        )
        async with asyncio.timeout(START_TIMEOUT):
            while not await listens(self.port):
                self.check()
                await asyncio.sleep(0.05)
        self.up = True

    def check(self) -> None:
        """Raise `RuntimeError` if it has ended by itself."""
        if self._process is not None and self._process.returncode is not None:
            raise RuntimeError(f"the server at port {self.port} ended with {self._process.returncode}")

    @property
    def pid(self) -> int:
        """The number of the process that runs now, or ran last; 0 before the first."""
        return self._process.pid if self._process is not None else 0

    def send(self, number: signal.Signals) -> None:
        """Send it a signal."""
        self.up = False
        if self._process is not None:
            with suppress(ProcessLookupError):
                self._process.send_signal(number)

    async def ended(self) -> bool:
        """Wait for its end, and bring it about if that takes too long; return whether it came by itself."""
        if self._process is None:
            return True
        try:
            async with asyncio.timeout(STOP_PATIENCE):
                await self._process.wait()
        except TimeoutError:
            return False
        finally:
            if self._process.returncode is None:
                self._process.kill()
                await self._process.wait()
        return True


async def listens(port: int) -> bool:
    """Return whether somebody listens at a port."""
    try:
        _, writer = await asyncio.open_connection("127.0.0.1", port)
    except OSError:
        return False
    writer.close()
    return True


def free_ports(count: int) -> list[int]:
    """Find different ports that nobody has, and below those that the system gives to connections."""
    found: set[int] = set()
    while len(found) < count:
        port = random.randrange(20_000, 32_000)  # noqa: S311
        with closing(socket.socket()) as probe, suppress(OSError):
            probe.bind(("127.0.0.1", port))
            found.add(port)
    return list(found)


@asynccontextmanager
async def front(ports: list[int], port: int) -> AsyncIterator[None]:
    """Run the front in a process of its own. It tries another server only where no connection could be made."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "examples.round_robin", *map(str, ports), "--port", str(port)),
        cwd=ROOT,
        stdout=DEVNULL,
        stderr=PIPE,
        start_new_session=True,
    )
    assert process.stderr is not None  # noqa: S101  it is a pipe
    reading = asyncio.create_task(process.stderr.read())

    async def check() -> None:
        if process.returncode is not None:
            raise RuntimeError(f"the front ended: {(await reading).decode()}")

    try:
        async with asyncio.timeout(START_TIMEOUT):
            while not await listens(port):
                await check()
                await asyncio.sleep(0.05)
        yield
        await check()
    finally:
        with suppress(ProcessLookupError):
            process.kill()
        await process.wait()
        await reading


async def strike(
    servers: list[Server], signals: list[signal.Signals], strikes: Strikes, calm: asyncio.Event | None = None
) -> None:
    """Stop or kill one server after the other, and start it again; until cancelled. Two are always left alone.

    Args:
        servers: the servers.
        signals: what they are struck with.
        strikes: counts what was done.
        calm: set while they may be struck; None if they always may.
    """
    restarting: set[asyncio.Task[None]] = set()
    try:
        while True:
            await asyncio.sleep(random.uniform(*PAUSES))  # noqa: S311
            for task in [task for task in restarting if task.done()]:
                restarting.remove(task)
                await task
            if calm is not None:
                await calm.wait()
            up = [server for server in servers if server.up]
            for server in up:
                server.check()
            if len(up) <= 2:
                continue
            number = random.choice(signals)  # noqa: S311
            server = random.choice(up)  # noqa: S311
            strikes.pids[server.pid] = time.time()
            server.send(number)
            if number is signal.SIGKILL:
                strikes.killed += 1
            else:
                strikes.terminated += 1
            restarting.add(asyncio.create_task(restart(server, strikes)))
    finally:
        for task in restarting:
            task.cancel()
        await asyncio.gather(*restarting, return_exceptions=True)


async def restart(server: Server, strikes: Strikes) -> None:
    """Wait until a server has ended, and start it again."""
    if not await server.ended():
        strikes.stuck += 1
    await asyncio.sleep(random.uniform(0, 0.5))  # noqa: S311
    await server.start()
