"""Show what a server holds for people who think: `python benchmarks/held.py`.

Clients that begin with a handshake keep a call open while somebody answers. So many calls are opened, over HTTP, and
wait; then their clients leave. What the server's memory grows by, for each, is what counts. An allocator keeps memory
that was given back, so as many come and leave again: what it grows by then would be what they leave behind.
"""

import argparse
import asyncio
import sys
from pathlib import Path

from contenders import CONTENDERS, OURS
from handshake_load import Connection, Held
from memory import resident
from processes import find_ports, running

WARM_UP = 100
LEAVE = 2.0
"""How long the server has to notice that its clients have left, in seconds."""


async def hold(port: int, many: int) -> list[Connection]:
    """Open so many calls, each asked, and none answered."""
    held = []
    for number in range(many):
        client = Held(port, number)
        held.append(await client.open())
    return held


async def leave(held: list[Connection]) -> None:
    """Close all of them."""
    for connection in held:
        connection.close()
    await asyncio.sleep(LEAVE)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--people", type=int, default=800, help="calls that wait (%(default)s)")
    parser.add_argument("--server", default=OURS, choices=[OURS, "ours-sqlite", "mcp-defaults"])
    parser.add_argument("--venvs", type=Path, default=Path(__file__).parent / ".venvs", help="as for run.py")
    options = parser.parse_args()
    contender = CONTENDERS[options.server]
    python = options.venvs / contender.environment / "bin" / "python"
    (port,) = find_ports(1)
    with running(contender, python, port, None) as server, asyncio.Runner() as runner:
        server.wait_until_ready()
        runner.run(leave(runner.run(hold(port, WARM_UP))))
        before = resident(server)
        held = runner.run(hold(port, options.people))
        during = resident(server)
        runner.run(leave(held))
        after = resident(server)
        runner.run(leave(runner.run(hold(port, options.people))))
        again = resident(server)
    each = (during - before) * 1024 / options.people
    print(f"{contender.title}: {each:.0f} KB for each of {options.people} people who think")
    print(f"{before:.1f} MB before, {during:.1f} MB while they think, {after:.1f} MB when they have left")
    print(f"{(again - after) * 1024 / options.people:.1f} KB left behind by each of as many again")
    return 0


if __name__ == "__main__":
    sys.exit(main())
