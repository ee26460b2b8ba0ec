"""Show what flows leave in a server that nobody goes on with: `python benchmarks/memory.py`.

Each kind of flow is begun and abandoned, over HTTP, in a server process of its own. The first flows warm it up; what
its memory grows by after that is what counts. A plain call, which has nothing to remember, stands beside them.
"""

import argparse
import http.client
import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any

from contenders import CONTENDERS, OURS
from processes import Server, find_ports, running
from scenarios import META, PROTOCOL_VERSION

WARM_UP = 3000
SAMPLES = 5
TOOLS: dict[str, tuple[str, dict[str, Any]]] = {
    "add": ("plain calls", {"a": 1, "b": 2}),
    "get_weather": ("flows of a pure function", {"location": "Oslo"}),
    "get_weather_inline": ("flows that park inline", {"location": "Oslo"}),
    "compare_weather": ("flows that park in two tasks", {"location": "Oslo"}),
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--flows", type=int, default=10_000, help="flows to abandon, of each kind (%(default)s)")
    options = parser.parse_args()
    print(f"| {options.flows:,} | before, MB | after, MB | grown by, MB |\n|---|--:|--:|--:|")
    for tool, (what, arguments) in TOOLS.items():
        (port,) = find_ports(1)
        with running(CONTENDERS[OURS], Path(sys.executable), port, None) as server:
            server.wait_until_ready()
            with calling(port, tool, arguments) as call:
                call(WARM_UP)
                before = resident(server)
                call(options.flows)
                after = resident(server)
        print(f"| {what} | {before:.1f} | {after:.1f} | {after - before:+.1f} |", flush=True)
    return 0


def resident(server: Server) -> float:
    """Return the resident memory in MB: the median of a few looks."""
    found = [memory for _ in range(SAMPLES) if (memory := server.memory_mb()) is not None]
    if not found:
        raise RuntimeError("This system does not say how much memory a process holds")
    return median(found)


@contextmanager
def calling(port: int, tool: str, arguments: dict[str, Any]) -> Iterator[Any]:
    """Return a function that calls the tool so many times, and never goes on with a flow that asks."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    headers = {
        "Content-Type": "application/json",
        "Accept": "application/json, text/event-stream",
        "MCP-Protocol-Version": PROTOCOL_VERSION,
        "Mcp-Method": "tools/call",
        "Mcp-Name": tool,
    }
    kind = "complete" if tool == "add" else "input_required"

    def call(times: int) -> None:
        for number in range(times):
            # Each differs: the same is not asked again and again in vain.
            given = arguments if tool == "add" else {**arguments, "location": f"Oslo {number}"}
            params = {"name": tool, "arguments": given, "_meta": META}
            message = {"jsonrpc": "2.0", "id": number, "method": "tools/call", "params": params}
            connection.request("POST", "/mcp", json.dumps(message), headers)
            reply = json.loads(connection.getresponse().read())
            if reply["result"]["resultType"] != kind:
                raise RuntimeError(f"{tool} answered {reply}")

    try:
        yield call
    finally:
        connection.close()


if __name__ == "__main__":
    sys.exit(main())
