"""A key is rotated and dropped while tasks that it has sealed still wait, with real processes."""

import os
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import anyio
import pytest

from mrtr_server.testing import yes

from ..support.databases import PostgreSQL
from ..support.fleet import Client, fleet
from ..support.serving import TIMEOUT, wait_until

OLD, NEW = "01" * 32, "02" * 32


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """An empty database."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/tasks.db"
    postgresql: PostgreSQL = request.getfixturevalue("postgresql")
    return postgresql.url(anyio.run(postgresql.new_database))


def test_keys_are_rotated_under_running_processes(tmp_path: Path, url: str) -> None:
    """The three phases, with the database resealed before the last; tasks of the old key end without it."""
    with fleet(tmp_path, url) as processes:
        environment = processes.environment

        def tasks_of(client: Client) -> list[str]:
            tasks = [client.start("approve") for _ in range(5)]
            for task in tasks:
                wait_until(lambda task=task: client.status(task) == "input_required", "the question")
            return tasks

        environment["MRTR_KEYS"] = OLD
        server, client = processes.serve(run_tasks=False)
        worker = processes.worker()
        parked = tasks_of(client)
        for keys in (f"{OLD},{NEW}", f"{NEW},{OLD}"):
            for process in (server, worker):
                process.stop()
            environment["MRTR_KEYS"] = keys
            server, client = processes.serve(run_tasks=False)
            worker = processes.worker()
            parked += tasks_of(client)
        with ExitStack() as hold:
            hold.enter_context(processes.held())
            running = client.start("work", parts=2)
            processes.wait_for("part")
            script = Path(sys.executable).with_name("mrtr-server")
            done = subprocess.run(
                [str(script), "db", "reseal", "--database", url],
                env={**os.environ, "MRTR_KEYS": f"{NEW},{OLD}"},
                capture_output=True,
                text=True,
                timeout=TIMEOUT,
            )
            assert (done.returncode, done.stderr) == (0, "")
            assert "mrtr_tasks: 16 rows, 10 resealed" in done.stdout
        assert client.text(running).split() == [str(worker.process.pid)] * 2
        for process in (server, worker):
            process.stop()
        environment["MRTR_KEYS"] = NEW
        server, client = processes.serve(run_tasks=False)
        processes.worker()
        for task in parked:
            client.answer(task, confirm=yes)
            assert client.text(task) == "gone on"
        assert client.status(running) == "completed"
