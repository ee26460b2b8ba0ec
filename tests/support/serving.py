"""Real servers for the tests: uvicorn on a free port of the loopback, in a thread or in a process of its own."""

import asyncio
import atexit
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from random import SystemRandom
from typing import Any

import httpx
import uvicorn
from starlette.types import ASGIApp

from .forking import Started, start

ROOT = Path(__file__).parents[2]
TIMEOUT = 60.0
"""How long anything may take before a test takes it for hung, in seconds. No rule: a busy machine keeps it."""

KEEP_ALIVE = 600
"""How long servers keep idle connections, in seconds: a slow client must not send into one that is being closed."""

LISTENS = re.compile(r"running on http://127\.0\.0\.1:(\d+) ")
"""What uvicorn logs with its port. What follows the port shows that all of it has been written."""

KEYS = "00" * 32
"""A ring for `MRTR_KEYS` that everybody knows."""


def wait_until(true: Any, what: str, seconds: float = TIMEOUT) -> None:
    """Wait until a function gives something true."""
    deadline = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < deadline, f"waited {seconds} s for {what}"
        time.sleep(0.005)


async def until(true: Callable[[], object], what: str, seconds: float = TIMEOUT) -> None:
    """Wait until a function returns something true, while the event loop goes on."""
    deadline = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < deadline, f"waited {seconds} s for {what}"
        await asyncio.sleep(0.001)


def _choosable() -> range:
    """Return the ports below those that the system gives to outgoing connections."""
    given = Path("/proc/sys/net/ipv4/ip_local_port_range")
    first = int(given.read_text().split()[0]) if given.exists() else 32_768
    return range(10_000, first if first > 11_000 else 32_768)


_HELD = ExitStack()
"""Holds the ports that this process has chosen, until it ends."""

atexit.register(_HELD.close)


def free_ports(count: int) -> list[int]:
    """Return different ports that nothing listens on, and that no connection or other test gets meanwhile.

    Each is held for as long as this process lives: the same number is taken for UDP, which all others see.
    """
    ports: list[int] = []
    choosable = _choosable()
    while len(ports) < count:
        port = SystemRandom().choice(choosable)
        with ExitStack() as stack, suppress(OSError):  # that it is taken
            stack.enter_context(socket.socket(type=socket.SOCK_DGRAM)).bind(("127.0.0.1", port))
            with closing(socket.socket()) as probe:
                probe.bind(("127.0.0.1", port))
            _HELD.push(stack.pop_all())
            ports.append(port)
    return ports


def listens(port: int) -> bool:
    """Return whether a connection to a port can be opened."""
    with closing(socket.socket()) as connection:
        return connection.connect_ex(("127.0.0.1", port)) == 0


def is_ready(port: int) -> bool:
    """Return whether a server takes calls."""
    try:
        return httpx.get(f"http://127.0.0.1:{port}/ready", timeout=TIMEOUT, trust_env=False).status_code == 200
    except httpx.TransportError:
        return False


def without_settings(**more: str) -> dict[str, str]:
    """Return the environment of the tests without settings of servers, and with more variables."""
    return {name: value for name, value in os.environ.items() if not name.startswith("MRTR_")} | more


def lines_of(path: Path) -> list[str]:
    """Return the lines that processes have added to a file; none if it isn't there.

    A last line without its end is left out: its process is still writing it.
    """
    return path.read_text().rpartition("\n")[0].splitlines() if path.exists() else []


@contextmanager
def in_thread(app: ASGIApp, *, wait: bool = True, of: object = None, **options: Any) -> Iterator[int]:
    """Serve an application in a thread; return its port.

    Args:
        app: the application.
        wait: for the server's end, of which uvicorn makes a fifth of a second; `ended` and `all_ended` wait for others.
        of: what it is that is served, where the application is only around it.
        options: of `uvicorn.Config`.
    """
    defaults = {"port": 0, "log_level": "warning", "ws": "none", "access_log": False, "timeout_graceful_shutdown": 1}
    defaults["timeout_keep_alive"] = KEEP_ALIVE
    server = uvicorn.Server(uvicorn.Config(app, **{**defaults, **options}))
    # Should it hang, its test fails, and the process ends all the same.
    thread = threading.Thread(target=server.run, name="server", daemon=True)
    thread.start()
    try:
        wait_until(lambda: server.started or not thread.is_alive(), "the server to start")
        assert server.started, "the server did not start"
        yield int(server.servers[0].sockets[0].getsockname()[1])
    finally:
        server.should_exit = True
        _ENDING.append((thread, app if of is None else of))
        if wait:
            all_ended()


_ENDING: list[tuple[threading.Thread, object]] = []


def all_ended() -> None:
    """Wait for the end of every server in a thread that was told to end."""
    while _ENDING:
        thread, _ = _ENDING.pop()
        thread.join(TIMEOUT)
        assert not thread.is_alive(), "a server did not stop"


def ended(app: object) -> None:
    """Wait for the servers of an application that were told to end: they drain it, whoever else it serves by then."""
    for thread, served in _ENDING:
        if served is app:
            thread.join(TIMEOUT)
            assert not thread.is_alive(), "a server did not stop"


@dataclass
class Process:
    """A server in a process of its own.

    Args:
        process: uvicorn, or the parent of its workers.
        log: the file that it writes to.
        port: where it listens; 0 if it did not come that far.
    """

    process: Started
    log: Path
    port: int = 0

    @property
    def text(self) -> str:
        """All that it has logged so far."""
        return self.log.read_text(errors="replace")

    def wait(self, seconds: float = TIMEOUT) -> int:
        """Wait for its end; return the exit code."""
        return self.process.wait(seconds)

    def stop(self, seconds: float = TIMEOUT) -> int:
        """Ask it to end as an orchestrator does; return the exit code."""
        self.process.send_signal(signal.SIGTERM)
        return self.wait(seconds)


@contextmanager
def started(
    target: str,
    *arguments: str,
    log: Path,
    environment: dict[str, str] | None = None,
    python: Path | str = sys.executable,
    folder: Path = ROOT,
) -> Iterator[Process]:
    """Run the command `uvicorn`; return the process at once.

    Args:
        target: the import string of the application.
        arguments: further ones of the command.
        log: where its output goes.
        environment: variables besides the ones of the tests; `MRTR_KEYS` is set only if it is here.
        python: what runs it.
        folder: where it runs, and looks for modules first.
    """
    variables = {name: value for name, value in os.environ.items() if name != "MRTR_KEYS"}
    given = (target, "--port", "0", "--ws", "none", "--timeout-keep-alive", str(KEEP_ALIVE), *arguments)
    with log.open("wb") as output:
        how: Any = {"folder": folder, "environment": {**variables, **(environment or {})}, "output": output}
        process = start("uvicorn", *given, python=str(python), **how)
    try:
        yield Process(process, log)
    finally:
        end(process)


def end(process: Started) -> None:
    """Stop a process as an orchestrator does: kill it only if it does not end in time."""
    if process.poll() is None:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(TIMEOUT)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


@contextmanager
def in_process(target: str, *arguments: str, log: Path, **how: Any) -> Iterator[Process]:
    """Run the command `uvicorn` as `started` does; return the process once it listens or has ended."""
    workers = int(arguments[arguments.index("--workers") + 1]) if "--workers" in arguments else 1
    with started(target, *arguments, log=log, **how) as server:

        def listening() -> bool:
            found = LISTENS.search(server.text)
            ready = server.text.count("Application startup complete") >= workers
            server.port = int(found[1]) if found and ready else 0
            return server.port > 0 or server.process.poll() is not None

        wait_until(listening, f"{target} to listen")
        yield server
