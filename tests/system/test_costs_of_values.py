"""What a small body can cost a real server: memory and time by its size, whatever the types of its tools are."""

import http.client
import json
import os
from contextlib import closing
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from ..support.serving import in_process

P = 2**61 - 1
"""Multiples of it have the hash 0."""


def tree(levels: int) -> dict[str, Any]:
    return {"left": tree(levels - 1), "right": tree(levels - 1), "row": {}} if levels else {"row": {}}


def attacks() -> dict[str, Any]:
    """Return a value for each tool."""
    return {
        "rows": [{}] * 45_000,
        "either": [{}] * 45_000,
        "table": {str(each): {} for each in range(45_000)},
        "tree": tree(13),
        "closed": {f"k{each}": 1 for each in range(90_000)},
        "text": json.dumps([{}] * 700_000),
        "numbers": [each * P for each in range(90_000)],
        "users": {str(UUID(int=each * P)): 1 for each in range(60_000)},
        "sums": [str(each * P) for each in range(90_000)],
    }


def memory_of(process: int) -> float:
    """Return the most memory that a process has had, in megabytes."""
    lines = Path(f"/proc/{process}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) / 1000


def seconds_of(process: int) -> float:
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="reads /proc")
def test_no_value_costs_more_than_its_size_allows(tmp_path: Path) -> None:
    with (
        in_process("tests.support.costly_app:app", log=tmp_path / "log") as server,
        closing(http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)) as connection,
    ):

        def call(tool: str, it: Any) -> Any:
            body = {
                "jsonrpc": "2.0",
                "id": 1,
                "method": "tools/call",
                "params": {"name": tool, "arguments": {"it": it}},
            }
            connection.request("POST", "/mcp", json.dumps(body), {"Content-Type": "application/json"})
            return json.loads(connection.getresponse().read())["result"]

        values = attacks()
        for tool in values:
            call(tool, None)  # what is made once is there
        for tool, it in values.items():
            pid = server.process.pid
            memory, seconds = memory_of(pid), seconds_of(pid)
            result = call(tool, it)
            assert result["isError"], tool
            assert "do not fit" in result["content"][0]["text"], tool
            assert seconds_of(pid) - seconds < 1, tool
            assert memory_of(pid) - memory < 100, tool
