"""Runs a load generator against one server: wrk where it is installed, else `load.py`."""

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

from contenders import HERE
from scenarios import Scenario


@dataclass(frozen=True)
class Measurement:
    """One short run.

    complete: flows that ended with the right answer.
    errors: responses that were not as they should be, and connections that failed. Any makes the figure invalid.
    seconds: how long the run took.
    p50_ms, p99_ms: latency of a single request, which is one round of a flow.
    busy: share of the run that the server spent computing; None where that can't be read.
    """

    complete: int
    errors: int
    seconds: float
    p50_ms: float
    p99_ms: float
    busy: float | None = None

    @property
    def rate(self) -> float:
        return self.complete / self.seconds

    @property
    def cpu_us(self) -> float | None:
        """Microseconds that the server computed for each right answer; None where that can't be read."""
        return None if self.busy is None or not self.complete else self.busy * self.seconds / self.complete * 1e6


@dataclass(frozen=True)
class Generator:
    """A load generator: its name, and how its command line is made from (scenario, port, seconds, connections).

    Clients that begin with a handshake are played by `handshake_load.py`, whatever is installed.
    """

    name: str
    command: Callable[[Scenario, int, float, int], list[str]]
    python: Path

    def measure(self, scenario: Scenario, port: int, seconds: float, connections: int) -> Measurement:
        command = self.command(scenario, port, seconds, connections)
        if scenario.handshake:
            command = [str(self.python), str(HERE / "handshake_load.py"), str(port), str(seconds), str(connections)]
        done = subprocess.run(
            command,
            input=json.dumps(asdict(scenario)),
            stdout=subprocess.PIPE,
            text=True,
            check=True,
            timeout=seconds + 60,
        )
        for line in done.stdout.splitlines():
            if line.startswith("RESULT "):
                return Measurement(**json.loads(line.removeprefix("RESULT ")))
        raise RuntimeError(f"{command[0]} gave no result: {done.stdout}")


def find_generator(python: Path) -> Generator:
    """Return the best load generator there is. `python` is an interpreter with uvloop, for `load.py`."""
    wrk = shutil.which("wrk")
    return _wrk(wrk, python) if wrk else _plain(python)


def _wrk(path: str, python: Path) -> Generator:
    def command(scenario: Scenario, port: int, seconds: float, connections: int) -> list[str]:
        # wrk takes whole seconds only.
        options = ["-t1", f"-c{connections}", f"-d{max(1, round(seconds))}s", "-s", str(HERE / "wrk.lua")]
        headers = [part for header in scenario.headers().items() for part in header]
        url = f"http://127.0.0.1:{port}/mcp"
        return [path, *options, url, "--", scenario.first, scenario.retry, scenario.text, *headers]

    version = subprocess.run([path, "-v"], capture_output=True, text=True).stdout.split("[")[0].strip()
    return Generator(version or "wrk", command, python)


def _plain(python: Path) -> Generator:
    def command(scenario: Scenario, port: int, seconds: float, connections: int) -> list[str]:
        return [str(python), str(HERE / "load.py"), str(port), str(seconds), str(connections)]

    print("wrk is not installed: load.py takes its place, and may be slower than the bare app", file=sys.stderr)
    return Generator("load.py", command, python)
