"""Three processes behind a round robin, ended by SIGKILL while people log in, with keys that rotate: nobody notices.

`TEST_LOGINS=1000 TEST_RESTARTS=100` runs as many.
"""

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from examples.round_robin import Replica, RoundRobin

from ..support.front import running_front
from ..support.serving import Process, free_ports, in_process, without_settings
from .conftest import Provider
from .people import Browser, Client
from .test_logins import said

LOGINS = int(os.environ.get("TEST_LOGINS", "40"))
RESTARTS = int(os.environ.get("TEST_RESTARTS", "15"))

KEYS = ["01" * 32, "02" * 32, "03" * 32]

RINGS = ["{0}", "{0},{1}", "{1},{0}", "{1},{0},{2}", "{2},{1},{0}"]
"""The steps of two rotations. Each reaches every replica before the next."""

pytestmark = [pytest.mark.processes, pytest.mark.alone]


class Patient(httpx.BaseTransport):
    """Sends a request again that got no reply, or was put off: as a client, or a person, does."""

    repeated = 0
    """How often that was, of all of them."""

    def __init__(self) -> None:
        self._inner = httpx.HTTPTransport()

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        """Send a request."""
        request.read()
        deadline = time.monotonic() + 60
        while True:
            try:
                response = self._inner.handle_request(request)
                response.read()
                if response.status_code not in (502, 503) or time.monotonic() > deadline:
                    return response
            except httpx.TransportError:
                if time.monotonic() > deadline:
                    raise
            Patient.repeated += 1
            time.sleep(0.1)

    def close(self) -> None:
        """Close what is open."""
        self._inner.close()


class Fleet:
    """Three replicas, of which one after the other is killed."""

    def __init__(self, folder: Path, environment: dict[str, str]) -> None:
        self.folder = folder
        self.ports = free_ports(3)
        self._environment = environment
        self._stacks = [ExitStack() for _ in self.ports]
        self._processes: list[Process | None] = [None, None, None]
        self._started = 0

    def start(self, at: int, ring: str) -> None:
        """Start a replica with a ring of keys."""
        self._started += 1
        log = self.folder / f"log-{self._started}"
        server = in_process(
            "tests.support.login_app:app",
            "--port",
            str(self.ports[at]),
            "--no-access-log",
            log=log,
            environment={**self._environment, "MRTR_KEYS": ring.format(*KEYS)},
        )
        self._processes[at] = self._stacks[at].enter_context(server)

    def kill(self, at: int) -> None:
        """End a replica at once."""
        process = self._processes[at]
        assert process is not None
        process.process.send_signal(signal.SIGKILL)
        process.wait()

    def close(self) -> None:
        """End all of them."""
        for each in self._stacks:
            each.close()

    def logged(self) -> str:
        """Return what all of them have logged."""
        return "".join(each.read_text(errors="replace") for each in self.folder.glob("log-*"))


@contextmanager
def fleet(folder: Path, provider: str, base: str, database: str = "", **more: str) -> Iterator[Fleet]:
    """Run three replicas, on a database of SQLite unless one is given, with more variables."""
    more["MRTR_DATABASE_URL"] = database or f"sqlite:///{folder}/logins.db"
    made = Fleet(folder, without_settings(PROVIDER=provider, BASE_URL=base, **more))
    try:
        for at in range(3):
            made.start(at, RINGS[0])
        yield made
    finally:
        made.close()


def in_background(work: Callable[[], None], failures: list[BaseException]) -> threading.Thread:
    """Run a function in a thread; what it raises is among the failures."""

    def run() -> None:
        try:
            work()
        except BaseException as error:
            failures.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    return thread


def test_nobody_notices_restarts_and_rotations(tmp_path: Path, provider: Provider) -> None:
    (front_port,) = free_ports(1)
    base, failures, done = f"http://127.0.0.1:{front_port}", list[BaseException](), threading.Event()
    with fleet(tmp_path, provider.url, base) as replicas:
        front = RoundRobin([Replica(port, str(port)) for port in replicas.ports])
        with running_front(front, front_port):
            with httpx.Client(transport=Patient(), follow_redirects=False, timeout=60) as http:
                client = Client(http, base)  # which never registers again
                tokens: list[Any] = []

                def log_in() -> None:
                    while len(tokens) < LOGINS or not done.is_set():
                        with httpx.Client(transport=Patient(), follow_redirects=False, timeout=60) as own:
                            tokens.append(client.tokens(Browser(own)))
                        assert said(client.call(tokens[-1])) == ["583231", "with a token"]
                        if len(tokens) % 5 == 0:
                            tokens[-5] = _refreshed(client, tokens[-5])

                logins = in_background(log_in, failures)
                step = max(RESTARTS // len(RINGS), 3)
                for count in range(RESTARTS):
                    at = count % 3
                    replicas.kill(at)
                    replicas.start(at, RINGS[min(count // step, len(RINGS) - 1)])
                done.set()
                logins.join(3600)
                assert not failures, failures
                assert len(tokens) >= LOGINS
                for each in tokens:  # also of those that were given under the first key, long before
                    assert said(client.call(_refreshed(client, each))) == ["583231", "with a token"]
                print(f"{len(tokens)} logins, {RESTARTS} restarts, {Patient.repeated} requests sent again")
    assert "Traceback" not in replicas.logged()


def _refreshed(client: Client, tokens: Any) -> Any:
    answer = client.refresh(tokens)
    assert answer.status_code == 200, answer.text
    return answer.json()


def test_several_workers_without_a_store_do_not_start(tmp_path: Path, provider: Provider) -> None:
    environment = without_settings(
        PROVIDER=provider.url, BASE_URL="http://127.0.0.1:1", MRTR_KEYS=KEYS[0], MRTR_WORKERS="2"
    )
    with in_process("tests.support.login_app:app", log=tmp_path / "log", environment=environment) as server:
        assert server.port == 0
        assert "2 workers need one shared store for logins" in server.text
