"""`mrtr-server run` serves over HTTP within limits, and refuses what can't work."""

import asyncio
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path

import httpx
import pytest
from click.testing import CliRunner

from mrtr_server import MRTRServer
from mrtr_server.cli import main
from mrtr_server.cli.web_servers import inherited_socket, most_connections
from mrtr_server.errors import SetupError
from mrtr_server.transport import bounded_protocol

from ..support.serving import (
    KEYS,
    ROOT,
    TIMEOUT,
    Process,
    end,
    free_ports,
    in_thread,
    is_ready,
    wait_until,
    without_settings,
)
from ..support.wire import Wire

pytestmark = pytest.mark.processes

APP = "tests.support.several_app:app"
COMMAND = [str(Path(sys.executable).with_name("mrtr-server")), "run"]


@contextmanager
def running(log: Path, *options: str, **variables: str) -> Iterator[Process]:
    """Run the command on a free port, and wait until it is ready."""
    (port,) = free_ports(1)
    with log.open("wb") as output:
        process = subprocess.Popen(
            [*COMMAND, *options],
            cwd=ROOT,
            env=without_settings(MRTR_RUN_PORT=str(port), MRTR_KEYS=KEYS, **variables),
            stdout=output,
            stderr=output,
        )
    server = Process(process, log, port)

    def ready() -> bool:
        assert process.poll() is None, server.text
        return is_ready(port)

    try:
        wait_until(ready, "the server")
        yield server
    finally:
        end(process)


def test_it_serves_and_logs_json_from_info_on_and_drains(tmp_path: Path) -> None:
    """All options have variables; MODULE:APP has `MRTR_APP`."""
    with running(tmp_path / "log", MRTR_APP=APP, MRTR_RUN_LOG_FORMAT="json", MRTR_LAME_DUCK="0.2") as server:
        wire = Wire(f"http://127.0.0.1:{server.port}/mcp")
        with closing(wire.client):
            assert wire.call("who").text == str(server.process.pid)
        assert "server" not in httpx.get(f"http://127.0.0.1:{server.port}/health", trust_env=False).headers
        assert server.stop() in (0, -signal.SIGTERM)
    lines = [json.loads(line) for line in server.text.splitlines()]
    assert all(line.keys() >= {"time", "level", "logger", "message"} for line in lines)
    assert {line["level"] for line in lines} == {"INFO"}
    assert any(line["logger"] == "mrtr_server" and line["message"].startswith("Draining") for line in lines)


def test_granian_serves_the_same(tmp_path: Path) -> None:
    with running(tmp_path / "log", APP, "--server", "granian") as server:
        wire = Wire(f"http://127.0.0.1:{server.port}/mcp")
        with closing(wire.client):
            assert wire.call("who").text.isdigit()


@pytest.mark.usefixtures("no_settings")
class TestRefusals:
    def refused(self, *arguments: str, **variables: str) -> str:
        environment = without_settings(**variables)
        done = subprocess.run(
            [*COMMAND, *arguments], cwd=ROOT, env=environment, capture_output=True, text=True, timeout=TIMEOUT
        )
        assert done.returncode == 1, done.stderr
        return done.stderr

    def test_several_workers_without_keys(self) -> None:
        said = self.refused(APP, "--workers", "2")
        assert "2 workers need one shared key" in said
        assert "mrtr-server keygen" in said

    def test_what_the_environment_has_wrong(self) -> None:
        assert "MRTR_PAGE_SIZE='many'" in self.refused(APP, MRTR_PAGE_SIZE="many")

    @pytest.mark.parametrize(
        ("arguments", "variables", "said"),
        [
            ([APP], {"MRTR_RUN_PROT": "1"}, "MRTR_RUN_PROT: there is no such option"),
            (["nowhere:app"], {}, "There is no module 'nowhere'"),
            (["nowhere:app"], {"MRTR_RUN_TASKS": "no"}, "There is no module 'nowhere'"),
            ([APP, "--port", "many"], {}, "Invalid value for '--port'"),
            ([APP], {"MRTR_RUN_PORT": "many"}, "Invalid value for '--port'"),
            ([], {}, "Missing argument 'MODULE:APP'"),
        ],
    )
    def test_what_is_mistyped(self, arguments: list[str], variables: dict[str, str], said: str) -> None:
        result = CliRunner().invoke(main, ["run", *arguments], env=variables, prog_name="mrtr-server")
        assert result.exit_code != 0
        assert said in result.output


class TestSockets:
    def test_a_socket_is_taken_over_only_if_it_is_for_this_process(self) -> None:
        assert inherited_socket({}) is None
        assert inherited_socket({"LISTEN_PID": "1", "LISTEN_FDS": "1"}) is None

    def test_one_socket_is_passed_and_no_more(self) -> None:
        with pytest.raises(SetupError, match="LISTEN_FDS=2: the unit must pass one socket"):
            inherited_socket({"LISTEN_PID": str(os.getpid()), "LISTEN_FDS": "2"})

    def test_there_is_room_for_other_files_than_connections(self) -> None:
        assert 64 <= most_connections() <= 16_384


class TestHeads:
    """uvicorn with httptools bounds neither the size of a head nor its time, nor that of a body."""

    @pytest.fixture
    def serving(self, monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
        from ..support.several_app import app

        monkeypatch.setattr(bounded_protocol, "HEAD_SECONDS", 0.5)
        monkeypatch.setattr(bounded_protocol, "BODY_SECONDS", 0.5)
        with in_thread(app, http="mrtr_server.transport.bounded_protocol:BoundedProtocol") as port:
            yield port

    def test_a_head_that_never_ends_is_refused_before_it_fills_the_memory(self, serving: int) -> None:
        with closing(socket.create_connection(("127.0.0.1", serving), timeout=TIMEOUT)) as connection:
            connection.sendall(b"GET /health HTTP/1.1\r\nhost: x\r\n")
            received = b""
            for number in range(40):
                try:
                    connection.sendall(b"x-%d: %s\r\n" % (number, b"y" * 1024))
                except ConnectionError:
                    break
                time.sleep(0.002)  # each in a packet of its own
            try:
                received = connection.recv(4096)
            except ConnectionError:
                received = b"reset"
        assert received.startswith(b"HTTP/1.1 431") or received == b"reset"

    @pytest.mark.parametrize("sent", [b"", b"GET /hea", b"GET /health HTTP/1.1\r\nhost: x\r\n\r\nGET /hea"])
    def test_a_client_that_ends_no_head_is_disconnected(self, serving: int, sent: bytes) -> None:
        with closing(socket.create_connection(("127.0.0.1", serving), timeout=TIMEOUT)) as connection:
            connection.sendall(sent)
            received = b""
            while part := connection.recv(4096):
                received += part
        assert (b"200 OK" in received) == (b"host" in sent)

    @pytest.mark.parametrize("begun", [b"", b"{"])
    def test_a_client_that_ends_no_body_is_disconnected(self, serving: int, begun: bytes) -> None:
        head = b"POST /mcp HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: 50\r\n\r\n"
        with closing(socket.create_connection(("127.0.0.1", serving), timeout=TIMEOUT)) as connection:
            connection.sendall(head + begun)
            assert connection.recv(4096) == b""

    def test_a_head_that_never_ends_writes_into_no_other_response(self) -> None:
        app = MRTRServer("waits", keys=[bytes(32)])
        begun = threading.Event()

        @app.tool
        async def wait() -> str:
            begun.set()
            await asyncio.Event().wait()
            return "never"

        asked = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "wait", "arguments": {}}}
        body = json.dumps(asked).encode()
        call = b"POST /mcp HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n"
        received = b""
        with (
            in_thread(app, http="mrtr_server.transport.bounded_protocol:BoundedProtocol") as port,
            closing(socket.create_connection(("127.0.0.1", port), timeout=TIMEOUT)) as connection,
        ):
            connection.sendall(call % len(body) + body)
            assert begun.wait(TIMEOUT)
            with suppress(ConnectionError):
                connection.sendall(b"GET /health HTTP/1.1\r\nhost: x\r\n")
                for number in range(40):
                    connection.sendall(b"x-%d: %s\r\n" % (number, b"y" * 1024))
                    time.sleep(0.002)  # each in a packet of its own
            with suppress(ConnectionError):
                received = connection.recv(4096)
        assert received == b""

    def test_requests_one_after_the_other_take_as_long_as_they_like(self, serving: int) -> None:
        with httpx.Client(trust_env=False) as client:
            for _ in range(3):
                assert client.get(f"http://127.0.0.1:{serving}/health").status_code == 200
                time.sleep(0.4)

    def test_a_large_head_within_the_bound_is_served(self, serving: int) -> None:
        headers = {f"x-{number}": "y" * 1000 for number in range(20)}
        response = httpx.get(f"http://127.0.0.1:{serving}/health", headers=headers, trust_env=False)
        assert response.status_code == 200


def test_every_option_has_a_variable_that_help_names() -> None:
    result = CliRunner().invoke(main, ["run", "--help"], prog_name="mrtr-server")
    assert "MRTR_RUN_PORT" in result.output
    assert "MRTR_APP" in result.output
    assert re.search(r"--log-format \[text\|json\]", result.output)
