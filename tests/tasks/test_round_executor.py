"""A round of a task: what its handler begins with, and what becomes of the task however the round ends."""

import asyncio
from collections.abc import Callable, Mapping
from typing import Any

import pytest

from mrtr_server import InProcessStore, StoreUnavailable, TaskRow
from mrtr_server.errors import InvalidRequestState, UnknownTarget
from mrtr_server.flow.handler import TaskTerms
from mrtr_server.flow.journal import Journal
from mrtr_server.protocol.messages import Call, Complete, YieldReason
from mrtr_server.tasks.round_executor import RoundExecutor, TaskEnd
from mrtr_server.tasks.task_run import AGAIN_AFTER, TaskRun

from ..support.help import FAULTS
from .test_task_run import TaskRunBench, answered, question, stored

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend(simulated: Any) -> Any:
    """Time passes when nothing else happens: no busy machine ends a lease."""
    return simulated


DONE = Complete({"content": []})


class Tools:
    """Tools whose every round is the same function of the journal."""

    terms: Mapping[str, TaskTerms] = {}

    def __init__(self, round_: Callable[[Journal], TaskEnd]) -> None:
        self._round = round_

    def answer_within(self, tool: str) -> float | None:
        return None

    async def run(self, call: Call, run: TaskRun) -> TaskEnd:
        return self._round(run.journal)


class Breaking(InProcessStore):
    """A store that breaks once, in a way that no store should."""

    broken = False

    async def change_task(self, row: TaskRow, **changes: Any) -> TaskRow | None:
        if self.broken:
            self.broken = False
            raise RuntimeError("it is broken")
        return await super().change_task(row, **changes)


@pytest.fixture
async def bench() -> TaskRunBench:
    made = TaskRunBench(Breaking())
    await made.start()
    return made


async def execute(bench: TaskRunBench, run: TaskRun, round_: Callable[[Journal], TaskEnd] = lambda _: DONE) -> TaskRow:
    """Run a round, and return the task as it is then."""
    executor = RoundExecutor(bench.records, Tools(round_), lambda *_: None)
    await executor.execute(run, asyncio.Semaphore())
    return await stored(bench, run)


async def test_a_task_whose_end_the_store_refuses_for_no_known_reason_fails(
    bench: TaskRunBench, caplog: pytest.LogCaptureFixture
) -> None:
    run = await bench.run("worker")
    assert isinstance(bench.store, Breaking)
    bench.store.broken = True
    row = await execute(bench, run)
    [record] = caplog.records
    assert record.getMessage().startswith("A task of 'act' could not be run or stored (reference ")
    reference = record.__dict__["fields"]["reference"]
    assert (row.status, row.message, row.lease) == ("failed", f"Internal error (reference {reference})", "")


async def test_a_round_begins_with_the_answers_that_have_come(bench: TaskRunBench) -> None:
    answer, login = {"action": "accept", "content": {}}, question("Who?")
    first = await bench.run("worker")
    await first.publish({"login": login})
    await first.leave()
    await answered(bench, first, "login", answer)
    seen: list[Any] = []

    def round_(journal: Journal) -> TaskEnd:
        seen.append(journal.answer("login", login.digest))
        return DONE

    assert (await execute(bench, await bench.run("worker"), round_)).status == "completed"
    assert seen == [answer]


async def test_a_takeover_names_its_task_to_programs(bench: TaskRunBench, caplog: pytest.LogCaptureFixture) -> None:
    await bench.run("dead")
    run = await bench.run("worker")
    await execute(bench, run)
    [record] = caplog.records
    assert "is taken over" in record.getMessage()
    named = {"event": "takeover", "work": "task", "tool": "act", "task": run.row.reference}
    assert vars(record)["fields"] == {**named, "help": FAULTS}


async def test_a_round_that_is_cancelled_hands_its_task_back_and_stays_cancelled(bench: TaskRunBench) -> None:
    class Endless(Tools):
        async def run(self, call: Call, run: TaskRun) -> TaskEnd:
            await asyncio.sleep(3600)
            return DONE

    run = await bench.run("worker")
    executor = RoundExecutor(bench.records, Endless(lambda _: DONE), lambda *_: None)
    working = asyncio.create_task(executor.execute(run, asyncio.Semaphore()))
    await asyncio.sleep(1)
    working.cancel()
    with pytest.raises(asyncio.CancelledError):
        await working
    row = await stored(bench, run)
    assert (row.status, row.lease) == ("working", "")


async def test_a_round_does_not_begin_where_its_worker_is_to_run_no_more(bench: TaskRunBench) -> None:
    run = await bench.run("worker")
    run.leaves = lambda: YieldReason.DRAINING
    executor = RoundExecutor(bench.records, Tools(lambda _: pytest.fail("it began")), lambda *_: None)
    await executor.execute(run, asyncio.Semaphore())
    row = await stored(bench, run)
    assert (row.status, row.lease, row.leased_until) == ("working", "", 0.0)


@pytest.mark.parametrize(
    ("error", "left"),
    [
        (StoreUnavailable("it is away"), (AGAIN_AFTER,)),
        (UnknownTarget("tool", "act"), ()),
        (InvalidRequestState("sealed under another key"), ()),
    ],
    ids=["soon again", "to who has the tool", "to who has the key"],
)
async def test_a_task_that_can_not_be_run_here_is_handed_back_and_left_to_others_for_a_while(
    bench: TaskRunBench, error: Exception, left: tuple[float, ...]
) -> None:
    def failing(journal: Journal) -> TaskEnd:
        raise error

    run, told = await bench.run("worker"), list[tuple[Any, ...]]()
    executor = RoundExecutor(bench.records, Tools(failing), lambda *given: told.append(given))
    await executor.execute(run, asyncio.Semaphore())
    assert [(row.id, *seconds) for row, *seconds in told] == [(run.row.id, *left)]
    assert (await stored(bench, run)).lease == ""
