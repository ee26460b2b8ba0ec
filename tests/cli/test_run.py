"""`mrtr-server run` serves over HTTP within limits, and refuses what can't work."""

import json
import os
import re
import resource
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
import uvicorn
from click.testing import CliRunner
from uvicorn.protocols.http.h11_impl import H11Protocol

from mrtr_server import SetupError
from mrtr_server.cli import main
from mrtr_server.cli.web_servers import _note_protocol, inherited_socket
from mrtr_server.uvicorn_http.bounded_protocol import BoundedProtocol, bounded
from mrtr_server.uvicorn_http.one_write import one_write

from ..support.serving import (
    KEYS,
    ROOT,
    TIMEOUT,
    Process,
    end,
    free_ports,
    in_process,
    is_ready,
    wait_until,
    without_settings,
)
from ..support.wire import Wire

pytestmark = pytest.mark.processes

APP = "tests.support.several_app:app"
COMMAND = [str(Path(sys.executable).with_name("mrtr-server")), "run"]


@contextmanager
def running(log: Path, *options: str, command: Sequence[str] = tuple(COMMAND), **variables: str) -> Iterator[Process]:
    """Run the command on a free port, and wait until it is ready."""
    (port,) = free_ports(1)
    with log.open("wb") as output:
        process = subprocess.Popen(
            [*command, *options],
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
    with running(tmp_path / "log", MRTR_APP=APP, MRTR_RUN_LOG_FORMAT="json", MRTR_SHUTDOWN_LAME_DUCK="0.2") as server:
        wire = Wire(f"http://127.0.0.1:{server.port}/mcp")
        with closing(wire.client):
            assert wire.call("who").text == str(server.process.pid)
        assert (
            "server"
            not in httpx.get(f"http://127.0.0.1:{server.port}/health", trust_env=False, timeout=TIMEOUT).headers
        )
        assert server.stop() == -signal.SIGTERM
    lines = [json.loads(line) for line in server.text.splitlines()]
    assert all(line.keys() >= {"time", "level", "logger", "message"} for line in lines)
    assert {line["level"] for line in lines} == {"INFO"}
    assert any(line["logger"] == "mrtr_server" and line["message"].startswith("Draining") for line in lines)


@pytest.mark.parametrize("options", [[], ["--workers", "2"], ["--server", "granian"]])
def test_ctrl_c_ends_it_in_order_and_that_is_no_failure(tmp_path: Path, options: list[str]) -> None:
    with running(tmp_path / "log", APP, *options, MRTR_SHUTDOWN_LAME_DUCK="0") as server:
        server.process.send_signal(signal.SIGINT)
        assert server.process.wait(TIMEOUT) == 0
    assert "Aborted" not in server.text
    assert "Traceback" not in server.text


def test_several_workers_without_a_store_are_started_with_a_warning_about_questions(tmp_path: Path) -> None:
    """Clients that begin with a handshake can't be asked then, and others can."""
    with running(tmp_path / "log", "examples.weather:app", "--workers", "2", MRTR_SHUTDOWN_LAME_DUCK="0") as server:
        assert "get an error when they are asked by get_weather" in server.text


HANGING = """
import asyncio
from mrtr_server import MRTRServer
server = MRTRServer("hanging")

async def app(scope, receive, send):
    if scope["type"] == "lifespan" or scope["path"] == "/ready":
        return await server(scope, receive, send)
    print("hangs", flush=True)
    await asyncio.sleep(600)
"""


def test_a_second_ctrl_c_ends_it_before_its_calls_have_and_that_is_one(tmp_path: Path) -> None:
    (tmp_path / "hanging.py").write_text(HANGING)
    options = ("hanging:app", "--app-dir", str(tmp_path))
    with running(tmp_path / "log", *options) as server, socket.create_connection(("127.0.0.1", server.port)) as call:
        call.sendall(b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
        wait_until(lambda: "hangs" in server.text, "the call")
        server.process.send_signal(signal.SIGINT)
        wait_until(lambda: "Shutting down" in server.text, "the shutdown")
        server.process.send_signal(signal.SIGINT)
        assert server.process.wait(TIMEOUT) == 128 + signal.SIGINT
    assert "Aborted" not in server.text


FAILING = """
from mrtr_server import MRTRServer
server = MRTRServer("failing")

async def app(scope, receive, send):
    if scope["type"] == "lifespan" or scope["path"] == "/ready":
        await server(scope, receive, send)
    elif scope["path"] == "/raise":
        raise ValueError("always the same")
"""


@pytest.mark.parametrize("command", ["run", "uvicorn"])
def test_what_clients_cause_in_the_web_server_has_a_line_for_each_reason(tmp_path: Path, command: str) -> None:
    """However often it happens: whoever can send bytes could fill a disk."""
    (tmp_path / "failing.py").write_text(FAILING)
    asked = {
        b"nonsense\r\n\r\n": "Invalid HTTP request received.",
        b"GET /upgrade HTTP/1.1\r\nHost: x\r\nConnection: upgrade\r\nUpgrade: websocket\r\n\r\n": "Unsupported upgrade",
        b"GET /nothing HTTP/1.1\r\nHost: x\r\n\r\n": "ASGI callable returned without starting response.",
        b"GET /raise HTTP/1.1\r\nHost: x\r\n\r\n": "Exception in ASGI application",
    }
    log, app = tmp_path / "log", "failing:app"
    with (
        running(log, app, "--app-dir", str(tmp_path))
        if command == "run"
        else in_process(app, "--app-dir", str(tmp_path), log=log, environment={"MRTR_KEYS": KEYS})
    ) as server:
        for request in asked:
            for _ in range(20):
                with closing(socket.create_connection(("127.0.0.1", server.port), TIMEOUT)) as connection:
                    connection.sendall(request)
                    connection.settimeout(TIMEOUT)
                    assert connection.recv(100)
        text = server.text
    lines = dict.fromkeys(asked.values(), 1)
    if command == "run":
        lines["Unsupported upgrade"] = 0  # which is served as any other request, so that there is nothing to say
    assert {said: text.count(said) for said in asked.values()} == lines


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
        assert "MRTR_LISTS_PAGE_SIZE='many'" in self.refused(APP, MRTR_LISTS_PAGE_SIZE="many")

    @pytest.mark.parametrize(
        ("arguments", "variables", "said"),
        [
            ([APP], {"MRTR_RUN_PROT": "1"}, "MRTR_RUN_PROT: there is no such option"),
            (["nowhere:app"], {}, "There is no module 'nowhere'"),
            (["nowhere:app"], {"MRTR_RUN_TASKS": "no"}, "There is no module 'nowhere'"),
            ([APP, "--port", "many"], {}, "Invalid value for '--port'"),
            ([APP], {"MRTR_RUN_PORT": "many"}, "Invalid value for '--port'"),
            ([APP, "--keep-alive", "nan"], {}, "Invalid value for '--keep-alive'"),
            ([APP, "--keep-alive", "inf"], {}, "Invalid value for '--keep-alive'"),
            ([APP], {"MRTR_RUN_KEEP_ALIVE": "nan"}, "MRTR_RUN_KEEP_ALIVE"),
            ([APP], {"WEB_CONCURRENCY": "many"}, "WEB_CONCURRENCY"),
            ([APP], {"WEB_CONCURRENCY": "0"}, "WEB_CONCURRENCY"),
            ([APP, "--forwarded-allow-ips", "proxy"], {}, "Give addresses and networks, separated by commas"),
            ([APP, "--forwarded-allow-ips", "10.0.0.0/33"], {}, "'10.0.0.0/33' does not appear to be"),
            ([APP, "--forwarded-allow-ips", "10.0.0.1/8"], {}, "has host bits set"),
            ([APP, "--forwarded-allow-ips", "10.0.0.1,*"], {}, "or * alone"),
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


class TestOpenFiles:
    @staticmethod
    @contextmanager
    def limited(log: Path, soft: int, hard: int, *options: str, **variables: str) -> Iterator[Process]:
        shell = f'ulimit -Sn {soft}; ulimit -Hn {hard}; exec "$0" "$@"'
        with running(log, *options, command=["sh", "-c", shell, *COMMAND], **variables) as server:
            yield server

    def test_the_soft_limit_is_raised_to_the_hard_one_and_connections_follow(self, tmp_path: Path) -> None:
        with self.limited(tmp_path / "log", 100, 200, APP) as server:
            assert resource.prlimit(server.process.pid, resource.RLIMIT_NOFILE) == (200, 200)
            opened = [socket.create_connection(("127.0.0.1", server.port)) for _ in range(120)]
            assert is_ready(server.port), "100 files were too few"
            for each in opened:
                each.close()
            assert server.text.count("may open 200 files, which is enough for 136 connections, and not for 16384") == 1

    def test_workers_have_it_too(self, tmp_path: Path) -> None:
        with self.limited(tmp_path / "log", 100, 20_000, APP, "--workers", "2") as server:
            children = Path(f"/proc/{server.process.pid}/task/{server.process.pid}/children").read_text().split()
            limits = [resource.prlimit(int(child), resource.RLIMIT_NOFILE) for child in children]
            assert limits
            assert set(limits) == {(20_000, 20_000)}
            assert "may open" not in server.text

    @pytest.mark.parametrize(("wanted", "warned"), [("100", 0), ("1000", 1)])
    def test_a_limit_that_is_enough_for_what_is_wanted_is_not_mentioned(
        self, wanted: str, warned: int, tmp_path: Path
    ) -> None:
        with self.limited(tmp_path / "log", 100, 500, APP, "--max-connections", wanted) as server:
            assert server.text.count("may open 500 files") == warned


class TestAnotherUvicorn:
    """What a server loses with a uvicorn that this release does not know is said once, when it starts."""

    def noted(self, protocol: Any, caplog: pytest.LogCaptureFixture) -> list[str]:
        with caplog.at_level("INFO", "mrtr_server"):
            _note_protocol(protocol)
        return caplog.messages

    def test_that_serves_in_its_own_way_is_named(self, caplog: pytest.LogCaptureFixture) -> None:
        (line,) = self.noted(bounded(one_write(H11Protocol)), caplog)
        assert f"this release does not know uvicorn {uvicorn.__version__}: pip install" in line

    def test_that_bounds_nothing_is_a_warning(self, caplog: pytest.LogCaptureFixture) -> None:
        class Unknown:
            pass

        assert "no timeout for receiving requests" in self.noted(bounded(one_write(Unknown)), caplog)[0]
        assert caplog.records[0].levelname == "WARNING"

    def test_that_is_known_needs_no_line(self, caplog: pytest.LogCaptureFixture) -> None:
        assert self.noted(BoundedProtocol, caplog) == []


def test_every_option_has_a_variable_that_help_names() -> None:
    result = CliRunner().invoke(main, ["run", "--help"], prog_name="mrtr-server")
    assert "MRTR_RUN_PORT" in result.output
    assert "MRTR_APP" in result.output
    assert re.search(r"--log-format \[text\|json\]", result.output)
