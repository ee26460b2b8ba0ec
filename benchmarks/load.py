"""A load generator in plain Python, for machines without wrk. It does what `wrk.lua` does.

As a program it reads a scenario from standard input: `load.py PORT SECONDS CONNECTIONS < scenario.json`.
"""

import asyncio
import http.client
import importlib
import json
import re
import sys
import time
from collections import deque
from typing import Any, cast

from scenarios import Scenario


class UnexpectedResponseError(Exception):
    """A response that is not the right answer to its request."""


class Flows:
    """Makes the requests of one scenario and checks the responses.

    A state that arrives is queued, and whoever sends next answers the oldest one: a round of a flow may come over any
    connection.
    """

    def __init__(self, scenario: Scenario) -> None:
        self._scenario = scenario
        self._started = 0
        self._pending: deque[dict[str, str]] = deque()
        self.complete = 0

    def next_body(self) -> str:
        """Return the body of a second round if a flow waits for one, else of a new flow."""
        if self._pending:
            return _fill(self._scenario.retry, self._pending.popleft())
        self._started += 1
        return _fill(self._scenario.first, {"n": str(self._started)})

    def take(self, status: int, body: bytes) -> dict[str, Any]:
        """Check one response and return its result.

        Raises:
            UnexpectedResponseError: it is not the right answer.
        """
        try:
            if status != 200:
                raise ValueError("not a success")
            return self._take_message(json.loads(body))
        except (ValueError, LookupError, TypeError) as error:
            raise UnexpectedResponseError(f"{status} {body[:2000].decode(errors='replace')}") from error

    def _take_message(self, message: dict[str, Any]) -> dict[str, Any]:
        n, is_retry = str(message["id"])[:-1], str(message["id"]).endswith("1")
        has_retry = bool(self._scenario.retry)
        match message["result"]:
            case {"resultType": "complete", "content": [{"type": "text", "text": text}]} as result:
                right = is_retry == has_retry and text == _fill(self._scenario.text, {"n": n})
                if not right or result.get("isError"):
                    raise ValueError("not the answer to this request")
                self.complete += 1
            case {
                "resultType": "input_required",
                "inputRequests": {"github_login": _},
                "requestState": state,
            } as result:
                if is_retry or not has_retry:
                    raise ValueError("asked again")
                self._pending.append({"n": n, "state": state})
            case _:
                raise ValueError("neither an answer nor a question")
        return dict(result)


class Run:
    """What the connections of one run share."""

    def __init__(self, scenario: Scenario, port: int) -> None:
        lines = [f"{name}: {value}\r\n" for name, value in scenario.headers().items()]
        self._head = f"POST /mcp HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\n{''.join(lines)}Content-Length: "
        self.flows = Flows(scenario)
        self.latencies: list[float] = []
        self.errors = 0
        self.over = False

    def next_request(self) -> bytes:
        body = self.flows.next_body().encode()
        return f"{self._head}{len(body)}\r\n\r\n".encode() + body

    def refuse(self, why: str) -> None:
        self.errors += 1
        if self.errors == 1:
            print(f"unexpected response: {why}", file=sys.stderr)


class Connection(asyncio.Protocol):
    """One connection that is kept alive, with one request in flight."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._received = bytearray()
        self._sent_at = 0.0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is none by class
        self._send()

    def data_received(self, data: bytes) -> None:
        self._received += data
        end = self._received.find(b"\r\n\r\n")
        if end < 0 or self._run.over:
            return
        head, body = self._received[:end], bytes(self._received[end + 4 :])
        length = re.search(rb"\r\ncontent-length: *(\d+)", head, re.IGNORECASE)
        if len(body) < int(length[1]) if length else not body.endswith(b"0\r\n\r\n"):
            return
        self._run.latencies.append(time.perf_counter() - self._sent_at)
        try:
            self._run.flows.take(int(head[9:12]), body if length else _joined(body))
        except UnexpectedResponseError as error:
            self._run.refuse(str(error))
        self._received.clear()
        self._send()

    def connection_lost(self, exc: Exception | None) -> None:
        if not self._run.over:
            self._run.refuse(f"the connection was closed: {exc}")

    def close(self) -> None:
        self._transport.close()

    def _send(self) -> None:
        self._sent_at = time.perf_counter()
        self._transport.write(self._run.next_request())


def check(scenario: Scenario, port: int) -> dict[str, Any]:
    """Run one flow and return its last result.

    Raises:
        UnexpectedResponseError: a response is not the right answer.
    """
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    flows = Flows(scenario)
    result: dict[str, Any] = {}
    try:
        while not flows.complete:
            connection.request("POST", "/mcp", flows.next_body(), scenario.headers())
            response = connection.getresponse()
            result = flows.take(response.status, response.read())
    finally:
        connection.close()
    return result


async def measure(scenario: Scenario, port: int, seconds: float, connections: int) -> dict[str, float]:
    """Load the server for `seconds` and return the figures, under the names that `wrk.lua` gives them."""
    loop = asyncio.get_running_loop()
    run = Run(scenario, port)
    started = time.perf_counter()
    opened = [await loop.create_connection(lambda: Connection(run), "127.0.0.1", port) for _ in range(connections)]
    await asyncio.sleep(seconds)
    run.over = True
    elapsed = time.perf_counter() - started
    for _, connection in opened:
        connection.close()
    latencies = sorted(run.latencies) or [0.0]
    return {
        "complete": run.flows.complete,
        "errors": run.errors,
        "seconds": elapsed,
        "p50_ms": 1000 * latencies[len(latencies) // 2],
        "p99_ms": 1000 * latencies[len(latencies) * 99 // 100],
    }


def _joined(body: bytes) -> bytes:
    """Return what a body in chunks holds."""
    joined = b""
    while body:
        size, _, rest = body.partition(b"\r\n")
        joined += rest[: int(size, 16)]
        body = rest[int(size, 16) + 2 :]
    return joined


def _fill(template: str, values: dict[str, str]) -> str:
    return re.sub("@([a-z]+)@", lambda found: values[found[1]], template)


def main() -> None:
    port, seconds, connections = int(sys.argv[1]), float(sys.argv[2]), int(sys.argv[3])
    scenario = Scenario(**json.load(sys.stdin))
    measuring = measure(scenario, port, seconds, connections)
    try:
        uvloop = importlib.import_module("uvloop")
    except ImportError:
        figures = asyncio.run(measuring)
    else:
        figures = uvloop.run(measuring)
    print("RESULT", json.dumps(figures))


if __name__ == "__main__":
    main()
