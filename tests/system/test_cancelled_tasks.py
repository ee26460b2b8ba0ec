"""Tasks that run in one process and are cancelled through another: nothing begins once that was said."""

import random
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import repeat
from pathlib import Path
from typing import NamedTuple

import anyio
import pytest

from ..support.databases import PostgreSQL
from ..support.fleet import Client, Fleet, fleet
from ..support.serving import wait_until

TASKS = 200
AT_ONCE = 10
"""How many of them run at a time."""
AFTERWARDS = 1.5
"""How long effects are waited for that should not come, in seconds: longer than a worker takes to hear of anything."""


@pytest.fixture(params=["memory", "sqlite", "postgresql"])
def processes(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Fleet]:
    database = request.param if request.param == "memory" else ""
    if request.param == "postgresql":
        postgresql: PostgreSQL = request.getfixturevalue("postgresql")
        database = postgresql.url(anyio.run(postgresql.new_database))
    with fleet(tmp_path, database) as made:
        yield made


class Seen(NamedTuple):
    """A task as it was first seen to be cancelled."""

    at: float
    message: str


def cancelled(client: Client, processes: Fleet, name: str) -> Seen:
    """Start a task, cancel it as it works, and look at it at once."""
    task = client.start("drip", name=name)
    wait_until(lambda: any(of == name for of, *_ in processes.notes("drop")), f"the first effect of {name}")
    time.sleep(random.uniform(0, 0.1))
    client.cancel(task)
    found = client.get(task).task
    assert found.status == "cancelled"
    return Seen(time.time(), found.message)


def test_no_step_begins_after_its_task_was_seen_to_be_cancelled(
    processes: Fleet, request: pytest.FixtureRequest
) -> None:
    """One whose check was under way counts as begun, and the message says so."""
    in_memory = request.node.callspec.params["processes"] == "memory"
    _, client = processes.serve(run_tasks=in_memory)  # a store in memory is that of one process
    if not in_memory:
        processes.worker()
    names = [f"task-{number}" for number in range(TASKS)]
    with ThreadPoolExecutor(AT_ONCE) as pool:
        seen = dict(zip(names, pool.map(cancelled, repeat(client), repeat(processes), names), strict=True))
    time.sleep(AFTERWARDS)
    called = {(name, number): float(at) for name, number, at in processes.notes("call")}
    late = [(name, number) for name, number, at in processes.notes("drop") if float(at) > seen[name].at]
    assert [step for step in late if called[step] > seen[step[0]].at] == []
    assert [step for step in late if "may still be running" not in seen[step[0]].message] == []
