"""Show a server under steady load: `python benchmarks/steady.py`; ten minutes at 80 % of what it can take.

The time has parts of 30 seconds. What the server can take is measured anew shortly before each of them, since the speed
of a machine drifts, or given as `--rate`. In a part, flows of two rounds begin at fixed times, whether earlier ones are
answered or not. A request that has to wait for a free connection counts from when it was due, since the server is why;
one that this program sends late by itself counts from when it was sent. Each row has what the requests of one part
took, and the memory of the server at its end.

The exit code is 1 if a response was wrong, or if the memory grew after the first part by more than `--tolerance`. A
part in which the machine became too slow for its rate is named, and fails nothing.
"""

import argparse
import asyncio
import importlib
import statistics
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from contenders import CONTENDERS, OURS
from load import Connection, Run, measure
from processes import Server, choose_cores, find_ports, running
from scenarios import SCENARIOS

CONNECTIONS = 32
SCENARIO = SCENARIOS["flow"]
LATEST = 0.02
"""How late this program may send one of a hundred requests by itself, in seconds."""


class Pace:
    """When the next requests are due, at a rate.

    Args:
        rate: requests a second.
    """

    def __init__(self, rate: float) -> None:
        self._step = 1 / rate
        self._next = time.perf_counter()
        self.late: list[float] = []
        """How late requests were sent for which a connection was free, in seconds."""

    def take(self) -> float:
        """Return when the next request is due, by `time.perf_counter`; each is taken once."""
        due, self._next = self._next, self._next + self._step
        return due


class PacedConnection(Connection):
    """A connection whose requests are sent when they are due.

    Args:
        run: what the connections share.
        pace: says when.
    """

    def __init__(self, run: Run, pace: Pace) -> None:
        super().__init__(run)
        self._pace = pace

    def _send(self) -> None:
        self._sent_at = self._pace.take()
        left = self._sent_at - time.perf_counter()
        if left > 0:
            asyncio.get_running_loop().call_later(left, self._send_in_time)
        else:
            self._send_now()

    def _send_in_time(self) -> None:
        now = time.perf_counter()
        self._pace.late.append(max(0.0, now - self._sent_at))
        self._sent_at = max(now, self._sent_at)
        self._send_now()

    def _send_now(self) -> None:
        if not self._run.over:
            self._transport.write(self._run.next_request())


@dataclass
class Part:
    """What came of a part of the time.

    Args:
        rate: how many requests a second were due.
        seconds: how long it was.
        took: what each request took, sorted, in seconds.
        errors: how many responses were wrong, also while the rate was measured.
        late: what the latest of a hundred requests was sent late by this program, in seconds.
        memory: of the server at its end, in megabytes.
    """

    rate: float
    seconds: float
    took: list[float]
    errors: int
    late: float
    memory: float

    @property
    def p99(self) -> float:
        """What 99 of 100 requests did not exceed, in milliseconds."""
        return at(0.99, self.took)

    def row(self, number: int) -> str:
        """Return its row of the table."""
        cells = (f"{len(self.took) / self.seconds:,.0f}", f"{at(0.5, self.took):.2f}", f"{self.p99:.2f}")
        return f"| {number} | {self.rate:,.0f} | {' | '.join(cells)} | {at(1.0, self.took):.1f} | {self.memory:.1f} |"

    def remark(self) -> str:
        """Return why its times say little; empty if they count."""
        if len(self.took) < self.rate * self.seconds - CONNECTIONS - self.rate:  # a second of them may be under way
            return f"{len(self.took):,} requests of {self.rate * self.seconds:,.0f} were answered"
        if self.late > LATEST:
            return f"this program sent one of a hundred requests {1000 * self.late:.0f} ms late"
        return ""


def at(share: float, ordered: list[float]) -> float:
    """Return what a share of sorted times does not exceed, in milliseconds; 0 if there are none."""
    return 1000 * ordered[min(len(ordered) - 1, int(len(ordered) * share))] if ordered else 0.0


async def capacity(server: Server, seconds: float) -> tuple[float, int]:
    """Return how many requests a second a server takes now, and how many responses were wrong."""
    figures = await measure(SCENARIO, server.port, seconds, CONNECTIONS)
    return max(1.0, 2 * figures["complete"] / figures["seconds"]), int(figures["errors"])


async def hold(server: Server, rate: float, seconds: float) -> Part:
    """Load a server at a rate."""
    loop = asyncio.get_running_loop()
    run, pace = Run(SCENARIO, server.port), Pace(rate)
    opened = [
        await loop.create_connection(lambda: PacedConnection(run, pace), "127.0.0.1", server.port)
        for _ in range(CONNECTIONS)
    ]
    await asyncio.sleep(seconds)
    run.over = True
    for _, connection in opened:
        connection.close()
    late = at(0.99, sorted(pace.late)) / 1000
    return Part(rate, seconds, sorted(run.latencies), run.errors, late, server.memory_mb() or 0.0)


async def hold_all(server: Server, options: argparse.Namespace) -> tuple[float, list[Part]]:
    """Load a server for all parts, and print a row for each; return its memory before, in megabytes, and the parts."""
    await hold(server, 10.0, 1.0)  # loads what is loaded at the first call
    before, parts, seconds = server.memory_mb() or 0.0, [], options.seconds / options.parts
    print("| part | due/s | answered/s | p50, ms | p99, ms | slowest, ms | memory, MB |\n" + "|--:" * 7 + "|")
    for number in range(1, options.parts + 1):
        rate, errors = options.rate, 0
        if rate is None:
            taken, errors = await capacity(server, min(5.0, seconds / 3))
            rate = options.share * taken
        parts.append(await hold(server, rate, seconds))
        parts[-1].errors += errors
        print(parts[-1].row(number), flush=True)
    return before, parts


def slope(parts: list[Part]) -> float:
    """Return by how much the memory grows in a minute, in megabytes: the line of least squares through all parts."""
    if len(parts) < 2:
        return 0.0
    fitted = statistics.linear_regression(range(len(parts)), [part.memory for part in parts])
    return fitted.slope * 60 / parts[0].seconds


def report(before: float, parts: list[Part], tolerance: float) -> list[str]:
    """Print what came of all parts; return what was wrong."""
    p99s, last = [part.p99 for part in parts], parts[-1].memory
    errors, grown = sum(part.errors for part in parts), last - parts[0].memory
    print(f"\nrequests: {sum(len(part.took) for part in parts):,}; errors: {errors}")
    print(f"p99: {statistics.median(p99s):.2f} ms, the median of {len(parts)} parts ({min(p99s):.2f}–{max(p99s):.2f})")
    print(f"memory: {before:.1f} MB at the start, {last:.1f} MB at the end, {slope(parts):+.2f} MB a minute")
    for number, part in enumerate(parts, 1):
        if remark := part.remark():
            print(f"part {number} says little: {remark}")
    problems = [f"{errors} wrong responses"] if errors else []
    if not all(part.took for part in parts):
        problems.append("no request of a part was answered")
    if grown > tolerance:
        problems.append(f"the memory has grown by {grown:.1f} MB after the first part")
    return problems


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=600.0, help="that the load lasts in all (%(default)s)")
    parser.add_argument("--parts", type=int, default=20, help="rows of the table (%(default)s)")
    parser.add_argument("--share", type=float, default=0.8, help="of what the server can take (%(default)s)")
    parser.add_argument("--rate", type=float, help="requests a second, in place of that share")
    parser.add_argument("--tolerance", type=float, default=3.0, help="growth of the memory, in MB (%(default)s)")
    options = parser.parse_args()
    cores = choose_cores()
    (port,) = find_ports(1)
    with running(CONTENDERS[OURS], Path(sys.executable), port, cores.server) as server:
        server.wait_until_ready()
        loops = importlib.import_module("uvloop")  # as the server has
        before, parts = loops.run(hold_all(server, options))
    problems = report(before, parts, options.tolerance)
    for problem in problems:
        print(f"failed: {problem}", file=sys.stderr)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
