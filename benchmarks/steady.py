"""Show a server under steady load: `python benchmarks/steady.py`; ten minutes at 80 % of what it can take.

What it can take is measured first, or given as `--rate`. Then flows of two rounds begin at fixed times, whether earlier
ones are answered or not. A request that has to wait for a free connection counts from when it was due, since the server
is why; one that this program sends late by itself counts from when it was sent. Each row has what the requests of one
part of the time took, and the memory of the server at its end.

The exit code is 1 if a response was wrong, if not all that was due was answered, if this program was too slow for the
rate, or if the memory grew after the first part by more than `--growth`.
"""

import argparse
import asyncio
import importlib
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
class Held:
    """What came of a load.

    Args:
        problems: why it does not count, or what was wrong; empty if all was right.
        requests: how many were answered.
        p99s: one for each part, in milliseconds.
        memory: at the end of each part, in megabytes.
    """

    problems: list[str]
    requests: int
    p99s: list[float]
    memory: list[float]


def at(share: float, ordered: list[float]) -> float:
    """Return what a share of sorted times does not exceed, in milliseconds; 0 if there are none."""
    return 1000 * ordered[min(len(ordered) - 1, int(len(ordered) * share))] if ordered else 0.0


async def hold(server: Server, rate: float, seconds: float, parts: int, growth: float) -> Held:
    """Load a server at a rate, and print a row for each part of the time."""
    loop = asyncio.get_running_loop()
    run, pace = Run(SCENARIO, server.port), Pace(rate)
    began = time.perf_counter()
    opened = [
        await loop.create_connection(lambda: PacedConnection(run, pace), "127.0.0.1", server.port)
        for _ in range(CONNECTIONS)
    ]
    held = Held([], 0, [], [])
    print("| until, s | requests/s | p50, ms | p99, ms | slowest, ms | memory, MB |\n|--:|--:|--:|--:|--:|--:|")
    for part in range(1, parts + 1):
        await asyncio.sleep(began + seconds * part / parts - time.perf_counter())
        took, run.latencies = sorted(run.latencies), []
        held.requests += len(took)
        held.p99s.append(at(0.99, took))
        held.memory.append(server.memory_mb() or 0.0)
        cells = (f"{at(0.5, took):.2f}", f"{held.p99s[-1]:.2f}", f"{at(1.0, took):.1f}", f"{held.memory[-1]:.1f}")
        a_second = len(took) * parts / seconds
        print(f"| {seconds * part / parts:.0f} | {a_second:,.0f} | {' | '.join(cells)} |", flush=True)
    run.over = True
    for _, connection in opened:
        connection.close()
    if run.errors:
        held.problems.append(f"{run.errors} wrong responses")
    if held.requests < rate * seconds - CONNECTIONS - rate:  # a second of them may be under way
        held.problems.append(f"{held.requests:,} requests of {rate * seconds:,.0f} were answered")
    late = at(0.99, sorted(pace.late))
    if late > 1000 * LATEST:
        held.problems.append(
            f"this program sent one of a hundred requests {late:.0f} ms late, so the times say nothing"
        )
    if (grown := held.memory[-1] - held.memory[0]) > growth:
        held.problems.append(f"the memory has grown by {grown:.1f} MB")
    return held


async def measure_all(server: Server, options: argparse.Namespace) -> Held:
    """Measure what a server can take, unless that is given, and load it with a share of that."""
    rate = options.rate
    if rate is None:
        figures = await measure(SCENARIO, server.port, min(10.0, options.seconds), CONNECTIONS)
        taken = 2 * figures["complete"] / figures["seconds"]
        rate = taken * options.share
        print(f"It takes {taken:,.0f} requests a second; {options.share:.0%} of that:\n")
    return await hold(server, rate, options.seconds, options.parts, options.growth)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=600.0, help="that the load lasts (%(default)s)")
    parser.add_argument("--parts", type=int, default=10, help="rows of the table (%(default)s)")
    parser.add_argument("--share", type=float, default=0.8, help="of what the server can take (%(default)s)")
    parser.add_argument("--rate", type=float, help="requests a second, in place of that share")
    parser.add_argument("--growth", type=float, default=3.0, help="of the memory, in MB, at most (%(default)s)")
    options = parser.parse_args()
    cores = choose_cores()
    (port,) = find_ports(1)
    with running(CONTENDERS[OURS], Path(sys.executable), port, cores.server) as server:
        server.wait_until_ready()
        loops = importlib.import_module("uvloop")  # as the server has
        held = loops.run(measure_all(server, options))
    grown = held.memory[-1] - held.memory[0]
    print(
        f"\n{held.requests:,} requests; p99 of the parts {min(held.p99s):.2f}–{max(held.p99s):.2f} ms; the memory has "
        f"grown by {grown:+.1f} MB after the first part"
    )
    for problem in held.problems:
        print(f"failed: {problem}", file=sys.stderr)
    return 1 if held.problems else 0


if __name__ == "__main__":
    sys.exit(main())
