"""What docs/stdio.md shows is what clients read, and what it names starts the server that it shows."""

import json
import sys
import tomllib
from pathlib import Path
from typing import Any

import anyio
import mcp_types as types
import pytest
from mcp import Client, StdioServerParameters

from ..support.serving import TIMEOUT
from .test_pages import BIN, ROOT, blocks

pytestmark = pytest.mark.anyio

PAGE = ROOT / "docs" / "stdio.md"
TOP = {"mcpServers", "servers", "context_servers", "mcp_servers"}
"""Where clients list their servers."""


def entries() -> list[dict[str, Any]]:
    """Return what the page tells clients of the server, one entry for each block."""
    files = [json.loads(block) for block in blocks(PAGE, "json")]
    files += [tomllib.loads(block) for block in blocks(PAGE, "toml")]
    found = []
    for file in files:
        ((top, servers),) = file.items()
        assert top in TOP
        ((name, entry),) = servers.items()
        assert name == "weather"
        found.append(entry)
    return found


ENTRIES = entries()


def test_each_way_of_listing_servers_is_shown() -> None:
    shown = {next(iter(json.loads(block))) for block in blocks(PAGE, "json")}
    assert shown == {"mcpServers", "servers", "context_servers"}
    assert len(ENTRIES) == len(blocks(PAGE, "json")) + 1


def distinct() -> list[tuple[str, ...]]:
    """Return the commands that they name, each once."""
    return list(dict.fromkeys((entry["command"], *entry["args"]) for entry in ENTRIES))


def here(part: str, folder: Path) -> str:
    """Return a part of a command with the paths of this machine."""
    if part in ("/home/ada/weather/.venv/bin/mrtr-server", "uv"):
        return str(BIN / Path(part).name)
    if part.endswith("python.exe"):
        return sys.executable
    return str(folder) if part in ("/home/ada/weather", "C:\\Users\\ada\\weather") else part


async def elicit(context: Any, params: Any) -> types.ElicitResult:
    return types.ElicitResult(action="accept", content={"city": "Oslo"})


@pytest.mark.parametrize("command", [*distinct(), ("python.exe", "weather.py")], ids=" ".join)
async def test_each_command_starts_the_server(command: tuple[str, ...], tmp_path: Path) -> None:
    (tmp_path / "weather.py").write_text(blocks(PAGE, "python")[0])
    first, *rest = [here(part, tmp_path) for part in command]
    # The clients' own folder is another one, unless the command names a file.
    folder = tmp_path if "weather.py" in command else ROOT
    environment = {"VIRTUAL_ENV": str(BIN.parent), "UV_OFFLINE": "1", "PATH": f"{BIN}:/usr/bin:/bin"}
    server = StdioServerParameters(command=first, args=rest, cwd=folder, env=environment)
    with anyio.fail_after(TIMEOUT):
        async with Client(server, elicitation_callback=elicit) as client:
            done = await client.call_tool("get_weather", {})
            assert done.content[0].text == "Weather in Oslo: 72°F, partly cloudy"  # type: ignore[union-attr]
