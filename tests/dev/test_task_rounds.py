"""What the page shows of a task: the steps of its last rounds in this process, and what its journal holds."""

from typing import Any, cast

import pytest

from mrtr_server.dev.page import MOST_ROUNDS, MOST_TASKS, TaskRounds
from mrtr_server.flow.journal import Journal
from mrtr_server.protocol.messages import Call, Complete, Outcome, Outlet
from mrtr_server.protocol.trace import Event
from mrtr_server.storage.rows import Lease
from mrtr_server.tasks.records import TaskRecords
from mrtr_server.tasks.task_run import TaskRun

from ..support.databases import task_row

pytestmark = pytest.mark.anyio

NOT_SEEN = {"error": "No round of it has run in this process."}


class Run(TaskRun):
    """A round of a task without a store."""

    @property
    def journal(self) -> Journal:
        return Journal(0.0, expires=600.0)


async def run(rounds: TaskRounds, id: str, *events: tuple[Event, str]) -> list[Any]:
    """Run a round of a task in which this happens; return what was shown while it ran."""
    shown = []

    async def serve(call: Call, outlet: Outlet) -> Outcome:
        for event, name in events:
            call.trace.note(event, name)
            shown.append(repr(rounds.describe(id)["rounds"][-1]))
        return Complete({})

    task = Run(cast(TaskRecords, None), task_row(id=id), Lease(9, 0))
    await rounds.middleware(serve)(Call("tools/call", {}, "act"), task)
    return shown


async def test_a_round_shows_what_ran_and_what_was_replayed_as_it_happens() -> None:
    rounds = TaskRounds()
    assert rounds.describe("one") == NOT_SEEN
    assert await run(rounds, "one", ("ran", "book")) == ["{'ran': ['book'], 'replayed': []}"]
    await run(rounds, "one", ("replayed", "book"), ("ran", "pay"), ("rolled_back", "transaction"))
    shown = rounds.describe("one")
    assert shown["rounds"] == [{"ran": ["book"], "replayed": []}, {"ran": ["pay"], "replayed": ["book"]}]
    assert shown["held"]


async def test_only_the_last_tasks_and_rounds_are_remembered() -> None:
    rounds = TaskRounds()
    for number in range(MOST_ROUNDS + 1):
        await run(rounds, "first", ("ran", f"step {number}"))
    shown = rounds.describe("first")["rounds"]
    assert [each["ran"] for each in shown] == [[f"step {number}"] for number in range(1, MOST_ROUNDS + 1)]
    for number in range(MOST_TASKS):
        await run(rounds, str(number))
    assert rounds.describe("first") == NOT_SEEN
    assert rounds.describe("0") != NOT_SEEN
