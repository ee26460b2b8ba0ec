"""What the page shows of a task: the steps of its last rounds in this process, and what its journal holds."""

from typing import Any

import pytest

from mrtr_server.flow.journal import Journal
from mrtr_server.flow.steps import step_watcher
from mrtr_server.playground.observed_tasks import MOST_ROUNDS, MOST_TASKS, ObservedTasks
from mrtr_server.protocol.messages import Call

from ..support.databases import task_row

pytestmark = pytest.mark.anyio

NOT_SEEN = {"error": "No round of it has run in this process."}


async def run(observed: ObservedTasks, id: str, *steps: tuple[str, bool]) -> str:
    """Run a round of a task in which these steps ran, or were replayed."""

    async def work() -> str:
        watcher: Any = step_watcher.get()
        for step, runs in steps:
            watcher(step, runs)
        return "done"

    return await observed.serve(Call("tools/call", {}, "act"), Journal(0.0, expires=600.0), task_row(id=id), work)


async def test_a_round_shows_what_ran_and_what_was_replayed() -> None:
    observed = ObservedTasks()
    assert observed.describe("one") == NOT_SEEN
    assert await run(observed, "one", ("book", True)) == "done"
    await run(observed, "one", ("book", False), ("pay", True))
    shown = observed.describe("one")
    assert shown["rounds"] == [{"ran": ["book"], "replayed": []}, {"ran": ["pay"], "replayed": ["book"]}]
    assert shown["held"]


async def test_who_watched_the_steps_before_watches_on() -> None:
    watched: list[tuple[str, bool]] = []
    token = step_watcher.set(lambda step, runs: watched.append((step, runs)))
    try:
        await run(ObservedTasks(), "one", ("book", True))
        watcher: Any = step_watcher.get()
        watcher("another", False)
    finally:
        step_watcher.reset(token)
    assert watched == [("book", True), ("another", False)]


async def test_only_the_last_tasks_and_rounds_are_remembered() -> None:
    observed = ObservedTasks()
    for number in range(MOST_ROUNDS + 1):
        await run(observed, "first", (f"step {number}", True))
    rounds = observed.describe("first")["rounds"]
    assert [each["ran"] for each in rounds] == [[f"step {number}"] for number in range(1, MOST_ROUNDS + 1)]
    for number in range(MOST_TASKS):
        await run(observed, str(number))
    assert observed.describe("first") == NOT_SEEN
    assert observed.describe("0") != NOT_SEEN
