"""Show a server under steady load: `python benchmarks/steady.py`; ten minutes at 80 % of what it can take.

What it can take is measured first. Then flows of two rounds begin at fixed times, whether earlier ones are answered or
not, and the time of a request counts from when it was due. Each row has what the requests of one part of the time took,
and the memory of the server at its end. The exit code is 1 if a response was wrong.
"""

import argparse
import asyncio
import importlib
import sys
import time
from pathlib import Path

from contenders import CONTENDERS, OURS
from load import Connection, Run, measure
from processes import Server, choose_cores, find_ports, running
from scenarios import SCENARIOS

CONNECTIONS = 32
SCENARIO = SCENARIOS["flow"]


class Pace:
    """When the next requests are due, at a rate.

    Args:
        rate: requests a second.
    """

    def __init__(self, rate: float) -> None:
        self._step = 1 / rate
        self._next = time.perf_counter()

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
            asyncio.get_running_loop().call_later(left, self._send_now)
        else:
            self._send_now()

    def _send_now(self) -> None:
        if not self._run.over:
            self._transport.write(self._run.next_request())


async def hold(server: Server, rate: float, seconds: float, parts: int) -> int:
    """Load a server at a rate, and print a row for each part of the time; return how many responses were wrong."""
    loop = asyncio.get_running_loop()
    run, pace = Run(SCENARIO, server.port), Pace(rate)
    began = time.perf_counter()
    opened = [
        await loop.create_connection(lambda: PacedConnection(run, pace), "127.0.0.1", server.port)
        for _ in range(CONNECTIONS)
    ]
    print("| until, s | requests | p50, ms | p99, ms | slowest, ms | memory, MB |\n|--:|--:|--:|--:|--:|--:|")
    for part in range(1, parts + 1):
        await asyncio.sleep(began + seconds * part / parts - time.perf_counter())
        took, run.latencies = sorted(run.latencies) or [0.0], []
        p50, p99, slowest = (1000 * took[min(len(took) - 1, int(len(took) * at))] for at in (0.5, 0.99, 1.0))
        memory = server.memory_mb() or 0.0
        row = f"| {seconds * part / parts:.0f} | {len(took):,} | {p50:.2f} | {p99:.2f} | {slowest:.1f} | {memory:.1f} |"
        print(row, flush=True)
    run.over = True
    for _, connection in opened:
        connection.close()
    return run.errors


async def measure_all(server: Server, seconds: float, parts: int, share: float) -> int:
    """Measure what a server can take, and load it with a share of that; return how many responses were wrong."""
    figures = await measure(SCENARIO, server.port, min(10.0, seconds), CONNECTIONS)
    requests = 2 * figures["complete"] / figures["seconds"]
    print(f"It takes {requests:,.0f} requests a second; {share:.0%} of that:\n")
    return await hold(server, requests * share, seconds, parts)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=600.0, help="that the load lasts (%(default)s)")
    parser.add_argument("--parts", type=int, default=10, help="rows of the table (%(default)s)")
    parser.add_argument("--share", type=float, default=0.8, help="of what the server can take (%(default)s)")
    options = parser.parse_args()
    cores = choose_cores()
    (port,) = find_ports(1)
    with running(CONTENDERS[OURS], Path(sys.executable), port, cores.server) as server:
        server.wait_until_ready()
        loops = importlib.import_module("uvloop")  # as the server has
        errors = loops.run(measure_all(server, options.seconds, options.parts, options.share))
    print(f"\n{errors} wrong responses")
    return 1 if errors else 0


if __name__ == "__main__":
    sys.exit(main())
