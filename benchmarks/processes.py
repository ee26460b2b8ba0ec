"""Starts servers, each pinned to one core, and stops just those."""

import http.client
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from contenders import HERE, Contender

SERVERS = HERE / "servers"
UVICORN = (
    *("-m", "uvicorn", "--host", "127.0.0.1", "--loop", "uvloop"),
    *("--no-access-log", "--log-level", "warning", "--timeout-graceful-shutdown", "1"),
)
START_WITHIN = 60.0


@dataclass(frozen=True)
class Cores:
    """The cores that the servers and the load generator are pinned to; None where a process can't be pinned."""

    server: int | None
    load: int | None


def choose_cores() -> Cores:
    """Choose two cores, and pin this process (and so the load generator, its child) to the second."""
    if not hasattr(os, "sched_setaffinity"):
        print("This system can't pin a process to a core", file=sys.stderr)
        return Cores(None, None)
    allowed = sorted(os.sched_getaffinity(0))
    if len(allowed) < 2:
        print("There is one core only: the load generator takes its share of it", file=sys.stderr)
        return Cores(None, None)
    os.sched_setaffinity(0, {allowed[1]})
    return Cores(allowed[0], allowed[1])


@dataclass(frozen=True)
class Server:
    """A server that this program started."""

    process: subprocess.Popen[bytes]
    port: int
    log: IO[bytes]

    def wait_until_ready(self) -> None:
        """Wait until the server answers HTTP.

        Raises:
            RuntimeError: it ended instead, or took too long.
        """
        deadline = time.monotonic() + START_WITHIN
        while time.monotonic() < deadline:
            if self.process.poll() is not None:
                raise RuntimeError(f"The server ended with code {self.process.returncode}:\n{self.read_log()}")
            connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=5)
            try:
                connection.request("GET", "/no-such-path")
                connection.getresponse()
            except OSError:
                time.sleep(0.05)
            else:
                return
            finally:
                connection.close()
        raise RuntimeError(f"The server did not answer within {START_WITHIN:.0f} s:\n{self.read_log()}")

    def read_log(self) -> str:
        """Return the end of what the server has written."""
        self.log.seek(0)
        return self.log.read()[-4000:].decode(errors="replace")

    def cpu_seconds(self) -> float | None:
        """Return the processor time used so far, or None where it can't be read."""
        try:
            fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
            return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
        except (OSError, ValueError):
            return None

    def memory_mb(self) -> float | None:
        """Return the resident memory in MB (10^6 bytes), or None where it can't be read."""
        try:
            for line in Path(f"/proc/{self.process.pid}/status").read_text().splitlines():
                if line.startswith("VmRSS:"):
                    return int(line.split()[1]) * 1024 / 1e6
            told = subprocess.run(["ps", "-o", "rss=", "-p", str(self.process.pid)], capture_output=True, text=True)
            return int(told.stdout) * 1024 / 1e6
        except (OSError, ValueError):
            return None


def find_ports(count: int) -> list[int]:
    """Return ports of this machine that are free, all different."""
    with ExitStack() as stack:
        probes = [stack.enter_context(socket.socket()) for _ in range(count)]
        for probe in probes:
            probe.bind(("127.0.0.1", 0))
        return [probe.getsockname()[1] for probe in probes]


@contextmanager
def running(contender: Contender, python: Path, port: int, core: int | None) -> Iterator[Server]:
    """Run a server for as long as the block lasts; `core` is the one to pin it to."""
    factory = ["--factory"] if contender.factory else []
    command = [str(python), *UVICORN, "--http", contender.http, "--port", str(port), *factory, contender.target]
    if python.suffix == ".mjs":
        command = ["node", str(python), str(port), contender.target]
    left_out = ("PYTHONPATH", "PYTHONHOME", "PYTHONDONTWRITEBYTECODE")  # what is installed is compiled
    environment = {name: value for name, value in os.environ.items() if name not in left_out}
    with tempfile.TemporaryFile() as log:
        # In a session of its own, so that Ctrl-C comes to this program alone, which then stops what it started.
        process = subprocess.Popen(
            command, cwd=SERVERS, env=environment, stdout=log, stderr=subprocess.STDOUT, start_new_session=True
        )
        try:
            if core is not None:
                os.sched_setaffinity(process.pid, {core})
            yield Server(process, port, log)
        finally:
            _stop(process)


def _stop(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(timeout=5)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
