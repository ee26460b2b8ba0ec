"""examples/round_robin.py: each request goes to the next replica, and what comes back is what the replica said."""

import asyncio
import re
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from ..support.serving import KEYS, ROOT, TIMEOUT, free_ports, in_process, wait_until
from ..support.wire import Wire, accept, request


@pytest.fixture(name="ports", scope="module")
def _ports(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[int]]:
    """The ports of two replicas, and of one that is not there."""
    logs = tmp_path_factory.mktemp("logs")
    keys = {"MRTR_KEYS": KEYS}
    with (
        in_process("examples.conformance:app", log=logs / "first.log", environment=keys) as first,
        in_process("examples.conformance:app", log=logs / "second.log", environment=keys) as second,
    ):
        assert first.port, first.text
        assert second.port, second.text
        yield [first.port, second.port, free_ports(1)[0]]


@pytest.fixture(name="front", scope="module")
def _front(ports: list[int], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Wire]:
    log = tmp_path_factory.mktemp("logs") / "front.log"
    port = free_ports(1)[0]
    command = [sys.executable, "-m", "examples.round_robin", *map(str, ports), "--port", str(port)]
    with log.open("wb") as output:
        process = subprocess.Popen(command, cwd=ROOT, stdout=output, stderr=output)
    try:
        wait_until(lambda: "Round robin on" in log.read_text() or process.poll() is not None, "the front to listen")
        wire = Wire(f"http://127.0.0.1:{port}/mcp")
        yield wire
        wire.close()
    finally:
        process.terminate()
        process.wait(TIMEOUT)
    assert "Traceback" not in log.read_text()


def test_requests_go_to_the_replicas_in_turn_and_past_those_that_are_not_there(front: Wire, ports: list[int]) -> None:
    served = [front.call("test_simple_text").headers["X-Served-By"] for _ in range(4)]
    first, second, _ = (f"127.0.0.1:{port}" for port in ports)
    assert served in ([first, second] * 2, [second, first] * 2)


def test_a_request_among_many_finds_a_replica_that_is_there(front: Wire) -> None:
    async def posted() -> list[int]:
        async with httpx.AsyncClient(timeout=TIMEOUT) as client:
            requests = (client.post(front.url, json=request("tools/list")) for _ in range(60))
            return [response.status_code for response in await asyncio.gather(*requests)]

    assert asyncio.run(posted()) == [200] * 60


def test_a_flow_goes_on_at_another_replica(front: Wire) -> None:
    tool = "test_input_required_result_multi_round"
    first = front.call(tool)
    second = front.call(tool, id=2, answers={"step1": accept(name="Alice")}, state=first.state)
    third = front.call(tool, id=3, answers={"step2": accept(color="green")}, state=second.state)
    assert third.text == "Alice likes green."
    assert first.headers["X-Served-By"] != second.headers["X-Served-By"] != third.headers["X-Served-By"]


def test_a_stream_comes_through_as_it_is(front: Wire) -> None:
    reply = front.call("test_tool_with_progress", progressToken="token")
    assert reply.is_stream
    assert [message["params"]["progress"] for message in reply.received[:-1]] == [0, 50, 100]


def test_a_body_that_waits_for_a_go_ahead_gets_one(front: Wire) -> None:
    message = b'{"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "test_simple_text"}}'
    head = (
        f"POST /mcp HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(message)}\r\nExpect: 100-continue\r\n\r\n"
    )
    with socket.create_connection(("127.0.0.1", httpx.URL(front.url).port or 0), timeout=TIMEOUT) as connection:
        connection.sendall(head.encode())
        assert connection.recv(64).startswith(b"HTTP/1.1 100 ")
        connection.sendall(message)
        reply = b"".join(iter(lambda: connection.recv(65536), b""))
    assert reply.startswith(b"HTTP/1.1 200 ")
    assert b"This is a simple text response" in reply


@pytest.mark.parametrize(
    "request_head",
    [
        b"POST /mcp HTTP/1.1\r\nContent-Length: many\r\n\r\n",
        b"POST /mcp HTTP/1.1\r\nContent-Length: -1\r\n\r\n",
        b"POST /mcp HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n",
        b"POST /mcp HTTP/1.1\r\n" + b"X: x\r\n" * 20_000 + b"\r\n",
    ],
    ids=["length", "negative", "chunked", "headers"],
)
def test_what_it_can_not_read_is_refused(front: Wire, request_head: bytes) -> None:
    with socket.create_connection(("127.0.0.1", httpx.URL(front.url).port or 0), timeout=TIMEOUT) as connection:
        connection.sendall(request_head)
        assert connection.recv(64).startswith(b"HTTP/1.1 400 ")


def test_without_any_replica_the_answer_says_so(tmp_path: Path) -> None:
    port = free_ports(1)[0]
    log = tmp_path / "front.log"
    command = [sys.executable, "-m", "examples.round_robin", str(free_ports(1)[0]), "--port", str(port)]
    with log.open("wb") as output:
        process = subprocess.Popen(command, cwd=ROOT, stdout=output, stderr=output)
    try:
        wait_until(lambda: re.search("Round robin on", log.read_text()), "the front to listen")
        assert httpx.post(f"http://127.0.0.1:{port}/mcp", json={}, timeout=TIMEOUT).status_code == 502
    finally:
        process.terminate()
        process.wait(TIMEOUT)
