"""Show what a new process takes to its first answer: `python benchmarks/cold.py`.

Servers start in turn, each in a process of its own, and answer one call. What counts is the CPU time of the process,
with the start of Python, of uvicorn and of the libraries. All modules are compiled: the first start of each does that.
"""

import argparse
import sys
from pathlib import Path
from statistics import median

from contenders import CONTENDERS, HERE
from environments import make_environment
from load import check
from processes import Server, find_ports, running
from scenarios import SCENARIOS

SERVERS = ("ours", "asgi", "mcp-defaults", "fastmcp-defaults", "typescript-defaults")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default=",".join(SERVERS), metavar="NAME,...", help="servers to start (%(default)s)")
    parser.add_argument("--rounds", type=int, default=11, help="how often each of them starts (%(default)s)")
    options = parser.parse_args()
    names = options.only.split(",")
    programs = {name: make_environment(CONTENDERS[name].environment, HERE / ".venvs") for name in names}
    took: dict[str, list[float]] = {name: [] for name in names}
    for number in range(options.rounds + 1):
        for name, program in programs.items():
            (port,) = find_ports(1)
            with running(CONTENDERS[name], program, port, None) as server:
                server.wait_until_ready()
                check(SCENARIOS["call"], port)
                if number:
                    took[name].append(cpu_milliseconds(server))
    print("| server | CPU to the first answer, ms | min–max |\n|---|--:|--:|")
    for name, samples in took.items():
        print(f"| {CONTENDERS[name].title} | {median(samples):.0f} | {min(samples):.0f}–{max(samples):.0f} |")
    return 0


def cpu_milliseconds(server: Server) -> float:
    """Return the processor time of all threads of a server (Linux)."""
    threads = Path(f"/proc/{server.process.pid}/task").glob("*/schedstat")
    return sum(int(each.read_text().split()[0]) for each in threads) / 1e6


if __name__ == "__main__":
    sys.exit(main())
