"""A lease is kept however many clients wait for the database: what runs under it runs once."""

import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import anyio
import pytest

from mrtr_server.testing import Client, yes

from ..support.databases import PostgreSQL, table_locks
from ..support.handshake import Handshake
from ..support.serving import KEYS, Process, in_process, lines_of, wait_until
from ..support.wire import Wire

pytestmark = pytest.mark.alone

LEASE = 3.0
"""In seconds: the shortest that a server accepts."""
CLIENTS = 12
"""More than a process has connections."""


class Replicas:
    """Two servers that run tasks, with one database.

    Args:
        directory: for what they note.
        url: of the database.
        stack: ends what is started.
    """

    def __init__(self, directory: Path, url: str, stack: ExitStack) -> None:
        self._directory = directory
        self._stack = stack
        self._environment = {"MRTR_KEYS": KEYS, "ASKING_DIR": str(directory), "ASKING_DATABASE": url}
        self._environment |= {"MRTR_LIMITS_LEASE_SECONDS": f"{LEASE:g}", "MRTR_SHUTDOWN_SECONDS": "8"}
        self.first = self.start()

    def start(self) -> Process:
        """Start one more."""
        log = self._directory / f"log-{time.monotonic_ns()}"
        server = in_process("tests.support.asking_app:app", log=log, environment=self._environment)
        started = self._stack.enter_context(server)
        assert started.port, started.text
        return started

    def wire(self, server: Process) -> Wire:
        wire = Wire(f"http://127.0.0.1:{server.port}/mcp")
        self._stack.callback(wire.close)
        return wire

    def session(self) -> Handshake:
        """Begin a session at the first one."""
        client = Handshake([f"http://127.0.0.1:{self.first.port}/mcp"])
        client.begin()
        self._stack.callback(client.close)
        return client

    def laid(self) -> Counter[str]:
        """Return how often each brick was laid."""
        return Counter(line.split()[1] for line in lines_of(self._directory / "ledger"))


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as made:
        yield made


class TestWhileClientsFillThePool:
    def test_nothing_that_runs_under_a_lease_runs_twice(
        self, tmp_path: Path, postgresql: PostgreSQL, stack: ExitStack
    ) -> None:
        url = postgresql.url(anyio.run(postgresql.new_database))
        replicas = Replicas(tmp_path, url, stack)
        first, second = replicas.wire(replicas.first), replicas.wire(replicas.start())
        tasks = Client(first.url, tasks=True, log_level=None)
        state = first.call("mend", {"brick": 7}).result["requestState"]
        answered = {"state": state, "answers": {"confirm": yes.raw}}
        sessions = [replicas.session() for _ in range(CLIENTS)]
        hold = tmp_path / "hold"
        hold.touch()
        pool = stack.enter_context(ThreadPoolExecutor(CLIENTS + 2))
        stack.callback(hold.unlink, missing_ok=True)
        mending = pool.submit(lambda: first.call("mend", {"brick": 7}, **answered))
        flows = [tasks.flow("build", {"brick": brick}) for brick in (1, 3, 5)]
        for flow in flows:
            flow.start()
        wait_until(lambda: sum(replicas.laid().values()) == 4, "all that takes long to run")
        with table_locks(url, "mrtr_kept"):
            waiting = [pool.submit(each.send, "logging/setLevel", {"level": "info"}) for each in sessions]
            again = pool.submit(lambda: second.call("mend", {"brick": 7}, **answered))
            time.sleep(3 * LEASE)
            assert not any(each.done() for each in waiting), "the pool is full"
            assert not again.done()
        hold.unlink()
        texts = [each.result().result["content"][0]["text"] for each in (mending, again)]
        assert texts == ["mended", "mended"]
        assert [flow.wait().text for flow in flows] == ["built"] * 3
        assert replicas.laid() == dict.fromkeys("1234567", 1)
