"""A client at the other end of standard input and output, which shows each line."""

import asyncio
import json
import os
import queue
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any

from mrtr_server import MRTRServer
from mrtr_server.deployment.stdio_process import serve_stdio
from mrtr_server.testing import EVERYTHING
from mrtr_server.transport.standard_streams import StandardStreams

from .handshake import NEWEST
from .serving import TIMEOUT

JSON = dict[str, Any]

ROOT = Path(__file__).parents[2]

PREFIX = "io.modelcontextprotocol/"
META: JSON = {
    f"{PREFIX}protocolVersion": "2026-07-28",
    f"{PREFIX}clientInfo": {"name": "test", "version": "1"},
    f"{PREFIX}clientCapabilities": {**EVERYTHING, "extensions": {f"{PREFIX}tasks": {}}},
}


class StdioClient:
    """Sends lines, and reads them as they come.

    Args:
        to: a descriptor to write to.
        source: a descriptor to read from.
    """

    def __init__(self, to: int, source: int) -> None:
        self._to = to
        self._source = source
        self._ids = count(1)
        self._lines: queue.Queue[bytes] = queue.Queue()
        self._may_read = threading.Event()
        self._may_read.set()
        self._open = True
        self._reading = threading.Thread(target=self._read, daemon=True)
        self._reading.start()

    def _read(self) -> None:
        with os.fdopen(self._source, "rb", buffering=0) as source:
            rest = b""
            while data := source.read(65536):
                *lines, rest = (rest + data).split(b"\n")
                for line in lines:
                    self._lines.put(line)
                self._may_read.wait()
            self._lines.put(rest)
            self._lines.put(b"")

    # What goes out

    def write(self, data: bytes) -> None:
        """Send bytes as they are."""
        left = memoryview(data)
        while left:
            left = left[os.write(self._to, left) :]

    def send(self, **message: Any) -> None:
        """Send a message."""
        self.write(json.dumps({"jsonrpc": "2.0", **message}).encode() + b"\n")

    def begin(self, method: str, params: JSON | None = None, *, modern: bool = False, meta: JSON | None = None) -> int:
        """Send a request; return its id."""
        id = next(self._ids)
        params = dict(params or {})
        if modern:
            params["_meta"] = {**META, **(meta or {})}
        elif meta:
            params["_meta"] = meta
        self.send(id=id, method=method, params=params)
        return id

    def begin_call(
        self, tool: str, arguments: JSON | None = None, *, modern: bool = False, meta: JSON | None = None
    ) -> int:
        """Send a call of a tool; return its id."""
        return self.begin("tools/call", {"name": tool, "arguments": arguments or {}}, modern=modern, meta=meta)

    def close(self) -> None:
        """End what the server reads."""
        if self._open:
            self._open = False
            os.close(self._to)

    # What comes in

    def stop_reading(self) -> None:
        """Leave what comes unread, but for what is read already."""
        self._may_read.clear()

    def read_on(self) -> None:
        """Read again."""
        self._may_read.set()

    def next(self) -> JSON:
        """Return the next message."""
        line = self._lines.get(timeout=TIMEOUT)
        assert line, "the server has closed its output"
        message: JSON = json.loads(line)
        assert message["jsonrpc"] == "2.0"
        return message

    def next_line(self) -> bytes:
        """Return the next line; it is empty at the end."""
        return self._lines.get(timeout=TIMEOUT)

    def rest(self) -> list[JSON]:
        """Return all messages until the server closes its output."""
        messages = []
        while line := self.next_line():
            messages.append(json.loads(line))
        return messages

    def request(self, method: str, params: JSON | None = None, *, modern: bool = False) -> JSON:
        """Send a request; return its response, which must be what comes next."""
        id = self.begin(method, params, modern=modern)
        message = self.next()
        assert message["id"] == id, message
        return message

    def call(self, tool: str, arguments: JSON | None = None, *, modern: bool = False) -> JSON:
        """Call a tool; return the response."""
        return self.request("tools/call", {"name": tool, "arguments": arguments or {}}, modern=modern)

    def initialize(self, version: str = NEWEST, capabilities: JSON = EVERYTHING) -> JSON:
        """Begin a session; return the result."""
        params = {"protocolVersion": version, "capabilities": capabilities, "clientInfo": {"name": "t", "version": "1"}}
        result: JSON = self.request("initialize", params)["result"]
        self.send(method="notifications/initialized")
        return result


@contextmanager
def over_pipes(app: MRTRServer, user: Any = None, scopes: frozenset[str] = frozenset()) -> Iterator[StdioClient]:
    """Serve an application to a client through pipes, on an event loop of its own."""
    input, to = os.pipe()
    source, output = os.pipe()
    failures: list[BaseException] = []

    def run() -> None:
        try:
            asyncio.run(serve_stdio(app._parts, StandardStreams(input, output), user, scopes))
        except BaseException as error:
            failures.append(error)
        finally:
            os.close(output)
            os.close(input)

    serving = threading.Thread(target=run)
    serving.start()
    client = StdioClient(to, source)
    try:
        yield client
    finally:
        client.close()
        client.read_on()
        serving.join(TIMEOUT)
        assert not serving.is_alive(), "the server does not end"
        client._reading.join(TIMEOUT)
        if failures:
            raise failures[0]


class StdioProcess(StdioClient):
    """A client that has started its server.

    Args:
        process: the server.
        log: what it writes to standard error.
    """

    def __init__(self, process: "subprocess.Popen[bytes]", log: Path) -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        super().__init__(os.dup(process.stdin.fileno()), os.dup(process.stdout.fileno()))
        process.stdin.close()
        process.stdout.close()
        self.process = process
        self._log = log

    @property
    def log(self) -> str:
        """What the server has written to standard error."""
        return self._log.read_text("utf-8")

    def wait(self) -> int:
        """Wait until the server has ended; return its exit code."""
        return self.process.wait(TIMEOUT)


@contextmanager
def started(*arguments: str, log: Path, **environment: str) -> Iterator[StdioProcess]:
    """Start a server with this Python, and be its client.

    Args:
        *arguments: the command, without Python.
        log: where its standard error goes.
        **environment: what is set for it, besides what is set here.
    """
    unset = {"MRTR_KEYS", "MRTR_DATABASE_URL"}
    settings: Mapping[str, str] = {
        **{name: value for name, value in os.environ.items() if name not in unset},
        **environment,
    }
    with log.open("wb") as file:
        process = subprocess.Popen(
            [sys.executable, *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=file,
            cwd=ROOT,
            env=dict(settings),
        )
    client = StdioProcess(process, log)
    try:
        yield client
    finally:
        client.close()
        client.read_on()
        try:
            process.wait(TIMEOUT)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
