"""`mrtr-server tasks`: what an operator sees of tasks, and does to them, while servers run."""

import asyncio
import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anyio
import pytest
from click.testing import CliRunner, Result

from mrtr_server import SQLStore, TaskRow, WaitRow
from mrtr_server.cli import main

from ..support.databases import PostgreSQL, task_row
from ..support.fleet import Client, Fleet, fleet
from ..support.serving import wait_until

pytestmark = pytest.mark.processes


class Operator:
    """Runs the commands beside a server that shares their database."""

    def __init__(self, processes: Fleet) -> None:
        self.processes = processes
        _, self.client = processes.serve()

    def run(self, *arguments: str, keys: bool = True) -> Result:
        environment = {
            "MRTR_DATABASE_URL": self.processes.environment["TASKS_DATABASE"],
            "MRTR_KEYS": self.processes.environment["MRTR_KEYS"] if keys else "",
        }
        return CliRunner().invoke(main, ["tasks", *arguments], env=environment)

    def printed(self, *arguments: str, keys: bool = True) -> str:
        result = self.run(*arguments, keys=keys)
        assert result.exit_code == 0, result.output
        return result.stdout

    def refused(self, *arguments: str, keys: bool = True) -> str:
        result = self.run(*arguments, keys=keys)
        assert result.exit_code == 1, result.output
        return result.output

    def listed(self, *arguments: str) -> list[Any]:
        return [json.loads(line) for line in self.printed("list", "--json", *arguments).splitlines()]


@pytest.fixture(params=["sqlite", "postgresql"])
def operator(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Operator]:
    database = ""
    if request.param == "postgresql":
        postgresql: PostgreSQL = request.getfixturevalue("postgresql")
        database = postgresql.url(anyio.run(postgresql.new_database))
    with fleet(tmp_path, database) as processes:
        yield Operator(processes)


def reference(task: str) -> str:
    return task.removeprefix("task-")[:8]


def parked(client: Client) -> str:
    """Start a task that waits for an answer; return its id."""
    task = client.start("approve")
    wait_until(lambda: client.status(task) == "input_required", "the task to ask")
    return task


def test_tasks_are_listed_by_status_and_tool_those_first_that_changed_last(operator: Operator) -> None:
    asking = parked(operator.client)
    done = operator.client.start("work", parts=1)
    operator.client.ended(done)
    assert [(row["id"], row["tool"], row["status"]) for row in operator.listed()] == [
        (done, "work", "completed"),
        (asking, "approve", "input_required"),
    ]
    assert [row["id"] for row in operator.listed("--tool", "approve")] == [asking]
    assert [row["id"] for row in operator.listed("--status", "completed")] == [done]
    first = operator.run("list", "--limit", "1")
    assert first.stdout.splitlines()[0].split()[:2] == [done, "completed"]
    *_, before = first.stderr.split()
    assert [row["id"] for row in operator.listed("--before", before)] == [asking]
    assert operator.listed("--before", "2020-01-01") == []


def test_a_task_is_shown_by_its_id_or_by_what_the_log_calls_it_and_its_arguments_only_when_asked_for(
    operator: Operator,
) -> None:
    with operator.processes.held():
        task = operator.client.start("work", parts=3)
        shown = json.loads(operator.printed("show", task, keys=False))
        again = json.loads(operator.printed("show", reference(task), keys=False))
        assert shown == {**again, "leased until": shown["leased until"]}
        assert shown["leased until"] <= again["leased until"], "which a heartbeat moves on"
        assert (shown["tool"], shown["status"], shown["reference"]) == ("work", "working", reference(task))
        assert "arguments" not in shown
        assert json.loads(operator.printed("show", task, "--values"))["arguments"] == {"parts": 3}
        assert "MRTR_KEYS is not set" in operator.refused("show", task, "--values", keys=False)


def test_a_task_that_is_not_there_is_named_as_such(operator: Operator) -> None:
    for command in ("show", "cancel", "retry"):
        for task in ("0123abcd", "%", "_", "no such", ""):
            assert "There is no such task" in operator.refused(command, task), (command, task)


def test_a_cancelled_task_begins_no_further_step_and_its_client_sees_it(operator: Operator) -> None:
    task = operator.client.start("endless")
    operator.processes.wait_for("begun")
    assert operator.printed("cancel", reference(task), keys=False) == f"Task {reference(task)} is cancelled\n"
    operator.processes.wait_for("ended")  # the worker was told, and has ended the handler
    assert operator.client.status(task) == "cancelled"
    assert operator.printed("cancel", task) == f"Task {reference(task)} is cancelled\n"  # as often as you like


def test_a_task_that_has_ended_otherwise_is_not_cancelled(operator: Operator) -> None:
    task = operator.client.start("fragile")
    operator.client.ended(task)
    assert "has ended already: failed" in operator.refused("cancel", task)
    assert operator.client.status(task) == "failed"


def test_a_failed_task_is_retried_as_a_new_one_and_no_step_of_it_runs_again(operator: Operator) -> None:
    task = operator.client.start("fragile")
    assert operator.client.ended(task).task.status == "failed"
    (operator.processes.directory / "mended").touch()
    new = operator.printed("retry", reference(task)).strip()
    assert new != task
    assert operator.client.text(new)
    assert len(operator.processes.notes("part")) == 1
    assert operator.client.status(task) == "failed"  # its client has been told


def test_only_a_task_that_failed_is_retried_and_only_with_its_keys(operator: Operator) -> None:
    asking = parked(operator.client)
    assert "only a task that failed can be retried" in operator.refused("retry", asking)
    failed = operator.client.start("fragile")
    operator.client.ended(failed)
    assert "MRTR_KEYS is not set" in operator.refused("retry", failed, keys=False)
    operator.processes.environment["MRTR_KEYS"] = "ab" * 32
    assert "does not open: sealed under a key that is not in the ring" in operator.refused("retry", failed)
    assert len(operator.listed()) == 2


@pytest.mark.anyio
@pytest.mark.parametrize("what", ["tasks", "waits"])
async def test_of_many_rows_of_one_moment_each_is_in_one_page(url: str, what: str) -> None:
    store, now = SQLStore(url), time.time()
    ids = {f"{number:032x}" for number in range(7)}
    for id in ids:
        if what == "tasks":
            await store.add_task(task_row(id=id, name=f"tool-{id[-1]}", updated=now))
        else:
            await store.put_wait(WaitRow(id, "task", f"wait-{int(id) % 2}", "", now, now + 60, ""))
    await store.close()

    def page(*more: str) -> Result:
        return CliRunner(env={"MRTR_DATABASE_URL": url}).invoke(main, [what, "list", "--limit", "2", *more])

    found, more = list[str](), list[str]()
    for _ in range(4):
        result = await asyncio.to_thread(page, *more)
        found += [line.split()[0] for line in result.stdout.splitlines()]
        more = result.stderr.rpartition(" or add ")[2].split()
    assert (sorted(found), more) == (sorted(ids), [])


def test_a_mistyped_file_is_said_and_not_made(tmp_path: Path) -> None:
    result = CliRunner().invoke(main, ["tasks", "list"], env={"MRTR_DATABASE_URL": f"sqlite:///{tmp_path}/mistyped.db"})
    assert (result.exit_code, "there is no such file" in result.output) == (1, True), result.output
    assert list(tmp_path.iterdir()) == []


def test_a_list_sends_nothing_to_the_terminal_but_text(monkeypatch: pytest.MonkeyPatch) -> None:
    nasty = "a\x1b[2J\x9b31m\x7f\u202eb\n\u2066"
    given = dict.fromkeys(TaskRow._fields, 0.0)
    texts = dict.fromkeys(("name", "message", "caller"), nasty) | {"id": "t-1", "status": "working", "lease": ""}
    row = TaskRow(**given | texts)  # type: ignore[arg-type]
    monkeypatch.setattr(sys.modules["mrtr_server.cli.stored"], "run_on", lambda *_: [row])
    for arguments in ([], ["--json"]):
        result = CliRunner().invoke(main, ["tasks", "list", "--database", "sqlite:///x.db", *arguments])
        assert result.exit_code == 0, result.output
        assert result.stdout.removesuffix("\n").isprintable()
