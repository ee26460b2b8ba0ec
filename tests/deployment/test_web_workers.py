"""Several workers without shared keys are noticed, whichever web server starts them: real ones do here."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from ..support.serving import KEYS, ROOT, TIMEOUT, Process, free_ports, is_ready, wait_until, without_settings
from ..support.wire import Wire

pytestmark = pytest.mark.processes

APP = "tests.support.several_app:app"
GUNICORN = ["gunicorn", APP, "--worker-class", "uvicorn_worker.UvicornWorker"]
GRANIAN = (APP, "--interface", "asgi", "--workers-kill-timeout", "5")
COMMANDS: dict[str, Callable[[str, str], list[str]]] = {
    "uvicorn": lambda port, workers: ["uvicorn", APP, "--port", port, "--workers", workers],
    "gunicorn": lambda port, workers: [
        *(*GUNICORN, "--bind", f"127.0.0.1:{port}", "-w", workers),
    ],
    "hypercorn": lambda port, workers: ["hypercorn", APP, "--bind", f"127.0.0.1:{port}", "--workers", workers],
    "granian": lambda port, workers: ["granian", *GRANIAN, "--port", port, "--workers", workers],
    # As granian does where Python spawns processes instead of forking them: on macOS, and from Python 3.14 on.
    "granian, spawning": lambda port, workers: [
        *("tests.support.spawning", *GRANIAN, "--port", port, "--workers", workers),
    ],
}


@contextmanager
def serving(server: str, workers: int, log: Path, *arguments: str, **environment: str) -> Iterator[Process]:
    """Run a web server with so many workers; return its process at once."""
    (port,) = free_ports(1)
    with running([*COMMANDS[server](str(port), str(workers)), *arguments], log, environment, port) as process:
        yield process


@contextmanager
def running(command: list[str], log: Path, environment: dict[str, str], port: int = 0) -> Iterator[Process]:
    """Run a module of Python as a command; return its process at once."""
    with log.open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", *command],
            cwd=ROOT,
            env=without_settings(**environment),
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
    try:
        yield Process(process, log, port)
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(TIMEOUT)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)  # a session of its own
            process.wait()


def answers(server: Process) -> bool:
    """Return whether a server is ready."""
    assert server.process.poll() is None, server.text
    return is_ready(server.port)


def worker_of(server: Process) -> str:
    """Call a tool on a connection of its own; return the process that served it."""
    wire = Wire(f"http://127.0.0.1:{server.port}/mcp")
    try:
        return wire.call("who").text
    finally:
        wire.close()


@pytest.mark.parametrize("server", COMMANDS)
class TestWorkers:
    def test_several_without_keys_are_refused_with_the_way_out(self, server: str, tmp_path: Path) -> None:
        with serving(server, 2, tmp_path / "log") as several:
            wait_until(lambda: "need one shared key" in several.text, "the refusal")
            assert "2 workers need one shared key" in several.text
            assert "mrtr-server keygen" in several.text
            wait_until(lambda: several.process.poll() is not None, "the server to give up")

    def test_one_without_keys_is_served(self, server: str, tmp_path: Path) -> None:
        with serving(server, 1, tmp_path / "log") as single:
            wait_until(lambda: answers(single), "the server to be ready")
            assert "no keys are given" in single.text

    def test_several_that_share_their_keys_serve(self, server: str, tmp_path: Path) -> None:
        with serving(server, 2, tmp_path / "log", MRTR_KEYS=KEYS) as several:
            wait_until(lambda: answers(several), "the server to be ready")
            first = worker_of(several)
            wait_until(lambda: worker_of(several) != first, "the other worker to serve")
            assert "key" not in several.text


@pytest.mark.parametrize(
    ("command", "environment"),
    [
        pytest.param(["uvicorn", APP], {"WEB_CONCURRENCY": "2"}, id="the variable that uvicorn reads"),
        pytest.param(["uvicorn", APP], {"UVICORN_WORKERS": "2"}, id="that of uvicorn's option"),
        pytest.param(["uvicorn", APP, "--workers=2"], {}, id="an option with its value"),
        pytest.param(["gunicorn", APP, "-w2", "-k", "uvicorn_worker.UvicornWorker"], {}, id="a short option"),
        pytest.param(
            ["gunicorn", APP, "-k", "uvicorn_worker.UvicornWorker"], {"GUNICORN_CMD_ARGS": "-w 2"}, id="gunicorn's"
        ),
        pytest.param(
            ["hypercorn", APP, "--config", "python:tests.support.hypercorn_settings"], {}, id="a file of hypercorn"
        ),
        pytest.param(["tests.support.uvicorn_script"], {}, id="a script"),
        pytest.param(["uvicorn", APP], {"MRTR_WORKERS": "2"}, id="an operator"),
        pytest.param(["uvicorn", APP, "--workers=3"], {"MRTR_WORKERS": "2"}, id="an operator, before the arguments"),
        pytest.param(["uvicorn", APP, "--workers=2"], {"WEB_CONCURRENCY": "3"}, id="the arguments, before a variable"),
    ],
)
def test_the_number_is_known_whoever_says_it(command: list[str], environment: dict[str, str], tmp_path: Path) -> None:
    bind = {"uvicorn": "--port=0", "gunicorn": "--bind=127.0.0.1:0", "hypercorn": "--bind=127.0.0.1:0"}.get(command[0])
    with running([*command, *([bind] if bind else [])], tmp_path / "log", environment) as several:
        wait_until(lambda: "2 workers need one shared key" in several.text, "the refusal")


@pytest.mark.parametrize("server", ["uvicorn", "hypercorn", "granian"])
def test_one_that_reloads_is_one(server: str, tmp_path: Path) -> None:
    with serving(server, 1, tmp_path / "log", "--reload") as single:
        wait_until(lambda: answers(single), "the server to be ready")
        assert "no keys are given" in single.text
