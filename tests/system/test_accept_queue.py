"""What waits in the listening socket of a server that ends is served, and not reset."""

import json
import os
import signal
import socket
import threading
from collections import Counter
from contextlib import closing
from pathlib import Path

import pytest

from ..support.rolling import Replica, keys_of
from ..support.serving import KEYS, TIMEOUT, free_ports, is_ready, wait_until
from ..support.wire import ACCEPT, mirrored, modern

CLIENTS = 12


def request() -> bytes:
    """Return a whole request, on a connection of its own."""
    message = modern("tools/call", {"name": "look", "arguments": {"item": "tea"}})
    body = json.dumps(message).encode()
    headers = {"Host": "x", "Content-Type": "application/json", "Accept": ACCEPT, **mirrored(message)}
    head = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    return f"POST /mcp HTTP/1.1\r\n{head}Connection: close\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body


class Connecting:
    """Clients that open a connection for each request, until nobody listens any more.

    Args:
        port: where.
    """

    def __init__(self, port: int) -> None:
        self._port = port
        self._request = request()
        self.outcomes: Counter[str] = Counter()
        self._threads = [threading.Thread(target=self._run, daemon=True) for _ in range(CLIENTS)]
        for thread in self._threads:
            thread.start()

    def ended(self) -> Counter[str]:
        """Wait until every client was refused; return how the requests ended that were sent."""
        for thread in self._threads:
            thread.join(TIMEOUT)
            assert not thread.is_alive()
        return self.outcomes

    def _run(self) -> None:
        while True:
            with closing(socket.socket()) as connection:
                connection.settimeout(TIMEOUT)
                try:
                    connection.connect(("127.0.0.1", self._port))
                except ConnectionError:
                    return
                self.outcomes[self._send(connection)] += 1

    def _send(self, connection: socket.socket) -> str:
        try:
            connection.sendall(self._request)
            return connection.recv(12).decode() or "closed without an answer"
        except ConnectionError as error:
            return type(error).__name__


@pytest.mark.parametrize(
    ("options", "code"),
    [
        pytest.param([], -signal.SIGTERM, id="one process"),
        pytest.param(["--workers", "2"], 0, id="two workers"),
    ],
)
def test_every_request_that_reached_the_socket_is_answered_but_for_one_of_the_last_moment(
    tmp_path: Path, options: list[str], code: int
) -> None:
    (port,) = free_ports(1)
    replica = Replica(port, tmp_path / "log")
    replica.start(*options, MRTR_SHUTDOWN_LAME_DUCK="0.3", **keys_of(KEYS))
    process = replica.process
    assert process is not None
    wait_until(lambda: replica.text.count("Application startup complete") == max(1, len(options)), "the start")
    wait_until(lambda: is_ready(port), "the socket")
    clients = Connecting(port)
    wait_until(lambda: clients.outcomes["HTTP/1.1 200"] > 100, "some calls")
    os.kill(process.pid, signal.SIGTERM)
    outcomes = clients.ended()
    assert process.wait(TIMEOUT) == code, replica.text
    # What connects between the last two system calls is reset; without serving what waits, it is each of the clients.
    assert outcomes.total() - outcomes["HTTP/1.1 200"] <= 1, outcomes
