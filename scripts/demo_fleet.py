"""The servers of scripts/demo, each a process of its own, and requests to them."""

import asyncio
import http.client
import json
import os
import re
import signal
import sys
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from examples.round_robin import Replica  # noqa: E402  found by the line above

TIMEOUT = 5.0
"""How long a server may take to end when it is asked to, in seconds."""


class DemoFailed(Exception):
    """Something is not as it should be; the message says what."""


@dataclass(frozen=True)
class Running:
    """A server.

    Args:
        replica: what the front knows of it.
        process: its process.
    """

    replica: Replica
    process: Process


@asynccontextmanager
async def running(number: int, target: str, directory: Path, **environment: str) -> AsyncIterator[Running]:
    """Run one server process, on a port that the system chooses, until the context ends.

    Args:
        number: names it.
        target: the import string of its application, in that directory.
        directory: where it is.
        environment: variables for it.
    """
    inherited = {name: value for name, value in os.environ.items() if name != "WEB_CONCURRENCY"}
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "uvicorn", target, "--app-dir", str(directory)),
        *("--port", "0", "--timeout-graceful-shutdown", "1"),
        cwd=ROOT,
        env={
            **inherited,
            "PYTHONPATH": os.pathsep.join(filter(None, [str(ROOT), inherited.get("PYTHONPATH")])),
            **environment,
        },
        stdout=DEVNULL,
        stderr=PIPE,
        start_new_session=True,  # so that Ctrl-C reaches us alone, and we end it
    )
    reading: asyncio.Task[bytes] | None = None
    try:
        assert process.stderr is not None  # noqa: S101  it is a pipe
        said = b""
        async for line in process.stderr:
            said += line
            if found := re.search(rb"running on http://127\.0\.0\.1:(\d+)", line):
                reading = asyncio.create_task(process.stderr.read())  # what it says from now on may not fill the pipe
                yield Running(Replica(int(found[1]), f"replica {number}, process {process.pid}"), process)
                return
        raise DemoFailed(f"A server did not start. It said:\n{said.decode()}")
    finally:
        await end(process)
        if reading is not None:
            await reading


async def end(process: Process) -> None:
    """End a process that we started."""
    with suppress(ProcessLookupError):
        process.terminate()
    try:
        async with asyncio.timeout(TIMEOUT):
            await process.wait()
    except TimeoutError:
        pass
    finally:  # also where a second Ctrl-C ends our own patience
        if process.returncode is None:
            process.kill()
    await process.wait()


async def end_session(process: Process) -> None:
    """End a process that leads a session, at once, and what it started there."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    await process.wait()


def post(port: int, message: dict[str, Any], **headers: str) -> tuple[str, dict[str, Any]]:
    """Send a JSON-RPC request; return who answered it, and the result."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    connection.request("POST", "/mcp", json.dumps(message), {"Content-Type": "application/json", **headers})
    response = connection.getresponse()
    reply = json.loads(response.read())
    if "result" not in reply:
        raise DemoFailed(f"{response.headers['X-Served-By']} answered with {response.status}: {reply}")
    return response.headers["X-Served-By"], reply["result"]
