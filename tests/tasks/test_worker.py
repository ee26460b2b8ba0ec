"""The worker: what becomes of tasks when stores go away, leases end, and servers stop."""

import asyncio
import gc
import logging
import threading
import time
import weakref
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import suppress
from contextvars import ContextVar
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest
from starlette.requests import Request

from mrtr_server import (
    BearerTokens,
    Context,
    InProcessStore,
    Limits,
    MRTRServer,
    Shutdown,
    StoreUnavailable,
    Task,
    TaskRow,
)
from mrtr_server.concurrency.shutdown import ShutdownDeadline
from mrtr_server.errors import Full, UnknownTarget
from mrtr_server.flow.handler import TaskTerms
from mrtr_server.flow.journal import Step
from mrtr_server.protocol.messages import Call, Change
from mrtr_server.storage.rows import Lease
from mrtr_server.tasks import task_run, worker
from mrtr_server.testing import AsyncClient, Client, Clock, accept, replica, short_lease

from ..support.databases import task_row
from ..support.models import Login
from ..support.serving import TIMEOUT
from ..support.virtual_time import VirtualTime
from .test_task_service import Listener

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend(virtual_time: VirtualTime) -> Any:
    """Time passes when nothing else happens: no busy machine ends a lease."""
    return virtual_time.backend


KEYS = [bytes(32)]


class Flaky(InProcessStore):
    """A store that goes away for some of what it does, and breaks in ways that no store should."""

    def __init__(self, clock: Any = None) -> None:
        super().__init__(**({} if clock is None else {"clock": clock}))
        self.away: set[str] = set()
        self.broken: set[str] = set()
        self.broken_once: set[str] = set()
        self.calls: list[str] = []
        self.slow = 0.0

    async def _pass(self, what: str) -> None:
        self.calls.append(what)
        await asyncio.sleep(self.slow)
        if what in self.away:
            raise StoreUnavailable("it is away")
        if what in self.broken | self.broken_once:
            self.broken_once.discard(what)
            raise RuntimeError("it is broken")

    async def add_task(self, row: TaskRow, *, seconds: float = 0.0, **more: Any) -> bool:
        await self._pass("add")
        return await super().add_task(row, seconds=seconds, **more)

    async def find_task(self, id: str) -> TaskRow | None:
        await self._pass("find")
        return await super().find_task(id)

    async def change_task(self, row: TaskRow, *, seconds: float | None = None, **changes: Any) -> TaskRow | None:
        await self._pass("change")
        changed = await super().change_task(row, seconds=seconds, **changes)
        await asyncio.sleep(self.slow)
        return changed

    async def claim_tasks(
        self, lease: str, *, seconds: float, most: int, tools: Sequence[str], without: Sequence[str] = (), **more: Any
    ) -> list[TaskRow]:
        await self._pass("claim")
        return await super().claim_tasks(lease, seconds=seconds, most=most, tools=tools, without=without, **more)

    async def renew_tasks(self, lease: str, ids: list[str], *, seconds: float) -> set[str]:
        await self._pass("renew")
        return await super().renew_tasks(lease, ids, seconds=seconds)

    async def holds_task(self, lease: str, id: str) -> bool:
        await self._pass("holds")
        return await super().holds_task(lease, id)

    async def overdue_tasks(self, *, most: int) -> list[TaskRow]:
        await self._pass("overdue")
        return await super().overdue_tasks(most=most)


class LateReplies(Flaky):
    """A store whose reply to a claim that found tasks takes its time.

    Args:
        seconds: how long.
    """

    def __init__(self, seconds: float) -> None:
        super().__init__()
        self.claimed = asyncio.Event()
        self._seconds = seconds

    async def claim_tasks(self, *args: Any, **given: Any) -> list[TaskRow]:
        rows = await super().claim_tasks(*args, **given)
        if rows:
            self.claimed.set()
            await asyncio.sleep(self._seconds)
        return rows


class Tools:
    """A server with tools that wait to be let go on, and what they did."""

    def __init__(self, store: Any, clock: Callable[[], float] = time.time, **settings: Any) -> None:
        self.ran: list[str] = []
        self.began = asyncio.Event()
        self.gate = asyncio.Event()
        self.store = store
        times = Shutdown(lame_duck=0, seconds=0.8)
        self.app = replica(MRTRServer("worker", keys=KEYS, store=store, shutdown=times, **settings), clock=clock)
        self.app.tool(task=Task("optional", ttl=600))(self.steps)
        self.app.tool(task="optional")(self.greet)
        self.app.tool(task="optional")(self.says)
        self.app.tool(task="optional")(self.at_once)

    async def _wait(self, name: str) -> str:
        self.began.set()
        await self.gate.wait()
        return self.did(name)

    def did(self, name: str) -> str:
        self.ran.append(name)
        return name

    async def waits(self) -> str:
        """Wait, and record nothing."""
        return await self._wait("waits")

    async def steps(self, ctx: Context) -> str:
        """Run a step, one that waits, and another one."""
        await ctx.step(self.did, "first", key="first")
        await ctx.step(self._wait, "waits", key="waits")
        self.ran.append("between")
        return await ctx.step(self.did, "last", key="last")

    async def greet(self, ctx: Context) -> str:
        """Ask for a name."""
        return (await ctx.elicit("Who are you?", Login)).name

    def says(self, ctx: Context) -> str:
        """Say something, and go on in a thread after its end."""
        ctx.progress(message="one")
        ctx.progress(message="two")
        return "done"

    async def at_once(self) -> str:
        """Do it."""
        return self.did("at once")

    async def start(self, tool: str, app: MRTRServer | AsyncClient | None = None) -> Any:
        client = app if isinstance(app, AsyncClient) else AsyncClient(app or self.app, tasks=True, log_level=None)
        flow = client.flow(tool)
        await flow.start()
        return flow

    async def row(self, flow: Any) -> TaskRow:
        row = await InProcessStore.find_task(self.store, flow.task)
        assert row is not None
        return row

    async def until(self, true: Callable[[], Any], what: str) -> None:
        async with asyncio.timeout(TIMEOUT):
            while not true():  # noqa: ASYNC110  what it waits for has no event
                await asyncio.sleep(0.01)


@pytest.fixture(autouse=True)
def hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    for module, name, seconds in (
        (worker, "HEARTBEAT_INTERVAL", 0.05),
        (worker, "POLL_INTERVAL", 0.1),
        (worker, "AGAIN_AFTER", 0.02),
        (worker, "SKIP_TASK_SECONDS", 0.05),
        (task_run, "AGAIN_AFTER", 0.02),
        (task_run, "REPORT_INTERVAL", 0.05),
    ):
        monkeypatch.setattr(module, name, seconds)


@pytest.fixture
async def tools() -> AsyncIterator[Tools]:
    made = Tools(Flaky())
    yield made
    made.gate.set()
    await made.app._parts.worker.close()


class TestAStoreThatIsAway:
    async def test_is_waited_for_by_a_step_that_has_run(self, tools: Tools) -> None:
        flow = await tools.start("steps")
        await tools.began.wait()
        tools.store.away = {"change", "find", "claim", "renew", "overdue"}
        tools.gate.set()
        await asyncio.sleep(0.2)
        assert tools.ran == ["first", "waits"]  # what it gave does not go on before it is kept
        tools.store.away = set()
        assert (await flow.wait()).text == "last"
        assert tools.ran == ["first", "waits", "between", "last"]

    async def test_is_waited_for_by_a_result(self, tools: Tools) -> None:
        tools.store.away = {"change"}
        flow = await tools.start("at_once")
        await asyncio.sleep(0.2)
        assert (await flow.look()).task.status == "working"
        tools.store.away = set()
        assert (await flow.wait()).text == "at once"
        assert tools.ran == ["at once"]

    async def test_is_asked_again_in_steps_and_not_in_a_loop(self, tools: Tools, monkeypatch: Any) -> None:
        monkeypatch.setattr(task_run, "AGAIN_AFTER", 0.1)
        flow = await tools.start("steps")
        await tools.began.wait()
        tools.store.away = {"change"}
        tools.store.calls.clear()
        tools.gate.set()
        began = time.monotonic()
        await tools.until(lambda: tools.store.calls.count("change") >= 5, "it to be asked again")
        assert time.monotonic() - began == pytest.approx(4 * 0.1, abs=0.02)  # it is looked at every 0.01 s
        tools.store.away = set()
        assert (await flow.wait()).text == "last"

    async def test_is_a_clear_error_for_clients(self, tools: Tools, caplog: pytest.LogCaptureFixture) -> None:
        flow = await tools.start("greet")
        await flow.wait()
        tools.store.away = {"add", "find"}
        seen, begun = await flow.look(), await AsyncClient(tools.app, tasks=True).flow("greet").start()
        for reply in (seen, begun):
            assert (reply.error.code, reply.error.data.keys()) == (-32603, {"reference"})
        assert flow.task not in caplog.text
        tools.store.away = set()
        assert (await flow.answer(login={"name": "Ann"})).text == "Ann"

    async def test_begins_nothing_new_once_another_worker_may_run_the_task(self) -> None:
        tools = Tools(Flaky(), limits=short_lease(0.2))
        flow = await tools.start("steps")
        await tools.began.wait()
        tools.store.away = {"renew", "claim"}
        await asyncio.sleep(0.4)
        tools.gate.set()
        await asyncio.sleep(0.3)
        assert "last" not in tools.ran
        tools.store.away = set()
        assert (await flow.wait()).text == "last"
        assert [tools.ran.count(each) for each in ("first", "waits", "last")] == [1, 1, 1]
        await tools.app._parts.worker.close()

    async def test_is_said_once_to_be_away_and_once_to_be_back(
        self, tools: Tools, caplog: pytest.LogCaptureFixture
    ) -> None:
        await (await tools.start("at_once")).wait()
        tools.store.away = {"claim", "renew", "overdue"}
        await asyncio.sleep(0.6)
        assert caplog.text.count("worker: the store can't be used (reference ") == 1
        assert caplog.text.count("it is away") == 1
        tools.store.away = set()
        await tools.until(lambda: "the store is back" in caplog.text, "somebody to notice")
        await asyncio.sleep(0.4)
        assert caplog.text.count("worker: the store is back (reference ") == 1


class TestTheLoops:
    @pytest.mark.parametrize("what", ["claim", "renew", "overdue"])
    async def test_outlive_errors_that_no_store_should_make(
        self, tools: Tools, what: str, caplog: pytest.LogCaptureFixture
    ) -> None:
        blocked = await tools.start("steps")
        await tools.began.wait()
        tools.store.broken = {what}
        await tools.until(lambda: "it is broken" in caplog.text, "the error")
        tools.store.broken = set()
        tools.gate.set()
        assert (await blocked.wait()).text == "last"
        assert (await (await tools.start("at_once")).wait()).text == "at once"

    @pytest.mark.parametrize("how", ["away", "broken"])
    async def test_rest_before_they_try_again(self, tools: Tools, how: str) -> None:
        await (await tools.start("at_once")).wait()
        setattr(tools.store, how, {"claim"})
        await tools.until(lambda: tools.store.calls[-1] == "claim", "a failure")
        tools.store.calls.clear()
        await asyncio.sleep(0.3)
        assert tools.store.calls.count("claim") < 30

    @pytest.mark.parametrize(
        ("error", "seconds"), [(StoreUnavailable("it is away"), 0.02), (RuntimeError("it is broken"), 0.1)], ids=str
    )
    async def test_rest_also_where_waiting_for_several_things_fails(self, error: Exception, seconds: float) -> None:
        """A worker waits for a task of one tool, and for the end of one of another."""

        class Failing(Flaky):
            async def wait_for_tasks(self, *args: Any, **given: Any) -> None:
                self.calls.append("wait")
                await asyncio.sleep(0)
                raise error

        failing = Tools(Failing())
        failing.app.tool(task="optional", concurrency=1)(failing.waits)
        await failing.start("waits")
        await failing.began.wait()
        await asyncio.sleep(1)
        failing.store.calls.clear()
        await asyncio.sleep(1)
        assert failing.store.calls.count("wait") <= 1 / seconds + 1
        failing.gate.set()
        await failing.app._parts.worker.close()

    async def test_of_a_task_that_can_not_be_kept_rest_too(self, tools: Tools) -> None:
        blocked = await tools.start("steps")
        await tools.began.wait()
        tools.store.away = {"change"}
        tools.gate.set()
        tools.store.calls.clear()
        await asyncio.sleep(0.3)
        assert 0 < tools.store.calls.count("change") < 30
        tools.store.away = set()
        assert (await blocked.wait()).text == "last"

    @pytest.mark.parametrize("column", ["call", "journal", "questions"])
    async def test_outlive_a_task_that_does_not_open(
        self, tools: Tools, column: str, caplog: pytest.LogCaptureFixture
    ) -> None:
        flow = await tools.start("greet")
        await flow.wait()
        await tools.store.change_task(await tools.row(flow), **{"status": "working", column: b"poison"})
        await tools.until(lambda: "can't be run here" in caplog.text, "the poison to be found")
        assert (await (await tools.start("at_once")).wait()).text == "at once"
        await asyncio.sleep(0.3)
        assert caplog.text.count("can't be run here") == 1
        row = await tools.row(flow)
        assert (row.status, row.attempts <= 1) == ("working", True)  # it is left to others, and counts for nothing

    async def test_wait_for_no_task_that_is_left_to_others(self) -> None:
        """A database would find it at once, again and again."""
        without: list[Sequence[str]] = []

        class Noting(Flaky):
            async def wait_for_tasks(self, *args: Any, **given: Any) -> None:
                without.append(given["without"])
                await super().wait_for_tasks(*args, **given)

        noting = Tools(Noting())
        flow = await noting.start("greet")
        await flow.wait()
        without.clear()
        await noting.store.change_task(await noting.row(flow), status="working", call=b"poison")
        await asyncio.sleep(worker.SKIP_TASK_SECONDS / 2)
        assert without[-1] == [flow.task]
        await noting.app._parts.worker.close()

    async def test_keep_no_context_of_the_request_that_came_first(self, tools: Tools) -> None:
        tenant: ContextVar[str] = ContextVar("tenant", default="nobody")

        async def who() -> str:
            """Say whose context it is."""
            return tenant.get()

        tools.app.tool(task="optional")(who)
        tenant.set("ann")
        assert (await (await tools.start("who")).wait()).text == "nobody"

    async def test_keep_none_for_what_they_do_by_themselves(self) -> None:
        tenant: ContextVar[str] = ContextVar("tenant", default="nobody")
        whose: set[tuple[str, str]] = set()

        class Noting(Flaky):
            async def _pass(self, what: str) -> None:
                whose.add((what, tenant.get()))
                await super()._pass(what)

        tools = Tools(Noting())
        tenant.set("ann")
        await tools.start("steps")
        await tools.began.wait()
        await asyncio.sleep(0.3)
        loops = {"claim", "renew", "overdue"}
        assert {each for each in whose if each[0] in loops} == {(what, "nobody") for what in loops}
        tools.gate.set()
        await tools.app._parts.worker.close()

    async def test_begin_no_task_at_the_last_moment_of_its_time(self) -> None:
        clock = Clock()
        tools = Tools(Flaky(clock), clock=clock)
        flow = await tools.start("at_once", replica(tools.app, run_tasks=False))
        clock.now = (await tools.row(flow)).deadline
        tools.app._parts.worker.start()
        await tools.until(lambda: tools.store._tasks[flow.task].status != "working", "its end")
        assert (tools.store._tasks[flow.task].status, tools.ran) == ("failed", [])
        await tools.app._parts.worker.close()

    async def test_pass_at_once_from_tasks_whose_time_is_over_to_the_next(self, tools: Tools, monkeypatch: Any) -> None:
        for name in ("POLL_INTERVAL", "HEARTBEAT_INTERVAL"):
            monkeypatch.setattr(worker, name, 3600.0)
        tools.app.tool(name="alone", task="optional", concurrency=1)(tools.at_once)
        *late, last = [await tools.start("alone", replica(tools.app, run_tasks=False)) for _ in range(4)]
        for flow in late:
            await tools.store.change_task(await tools.row(flow), deadline=time.time() - 1)
        tools.app._parts.worker.start()
        await asyncio.sleep(1)
        assert [(await tools.row(flow)).status for flow in (*late, last)] == [*["failed"] * 3, "completed"]

    async def test_fail_all_tasks_whose_time_is_over_one_part_after_the_other(
        self, tools: Tools, monkeypatch: Any
    ) -> None:
        monkeypatch.setattr(worker, "POLL_INTERVAL", 3600.0)
        monkeypatch.setattr(worker, "_MOST_OVERDUE", 2)
        overdue = [task_row(name="elsewhere", deadline=time.time() - 1) for _ in range(9)]
        for row in overdue:
            await tools.store.add_task(row)
        tools.store.slow = 0.1  # longer than the time for one look
        tools.app._parts.worker.start()
        await asyncio.sleep(5)
        found = [await InProcessStore.find_task(tools.store, row.id) for row in overdue]
        assert [row.status for row in found if row is not None] == ["failed"] * 9
        assert tools.store.calls.count("overdue") == 5

    async def test_leave_connections_to_callers_while_hundreds_of_tasks_expire(
        self, tools: Tools, monkeypatch: Any
    ) -> None:
        under_way, change, failed = list[int](), tools.store.change_task, 0

        async def counted(row: TaskRow, **changes: Any) -> TaskRow | None:
            nonlocal failed
            under_way.append(under_way[-1] + 1 if under_way else 1)
            await asyncio.sleep(0.01)
            changed: TaskRow | None = await change(row, **changes)
            under_way.append(under_way[-1] - 1)
            failed += 1
            return changed

        monkeypatch.setattr(tools.store, "change_task", counted)
        for _ in range(250):
            await tools.store.add_task(task_row(name="elsewhere", deadline=time.time() - 1))
        tools.app._parts.worker.start()
        await tools.until(lambda: failed == 250, "their end")
        assert max(under_way) == 2  # of five connections

    async def test_fail_those_of_several_parts_at_once_where_the_store_is_quick(
        self, tools: Tools, monkeypatch: Any
    ) -> None:
        monkeypatch.setattr(worker, "_MOST_OVERDUE", 2)
        overdue = [task_row(name="elsewhere", deadline=time.time() - 1) for _ in range(5)]
        for row in overdue:
            await tools.store.add_task(row)
        tools.app._parts.worker.start()
        await asyncio.sleep(worker.HEARTBEAT_INTERVAL * 1.5)  # for one heartbeat
        found = [await InProcessStore.find_task(tools.store, row.id) for row in overdue]
        assert [row.status for row in found if row is not None] == ["failed"] * 5

    async def test_look_for_those_once_in_a_while(self, tools: Tools, monkeypatch: Any) -> None:
        monkeypatch.setattr(worker, "POLL_INTERVAL", 2.0)
        tools.app._parts.worker.start()
        await asyncio.sleep(9)
        assert tools.store.calls.count("overdue") == 5


class TestATaskThatCanNotBeStored:
    async def test_fails_with_a_reference_into_the_log(self, tools: Tools, caplog: pytest.LogCaptureFixture) -> None:
        tools.store.broken_once = {"change"}
        flow = await tools.start("at_once")
        error = (await flow.wait()).error
        (record,) = (each for each in caplog.records if "could not be run or stored" in each.message)
        fields: Any = record.__dict__["fields"]
        reference = fields.pop("reference")
        assert fields == {"event": "failure", "tool": "at_once", "task": (await tools.row(flow)).reference}
        assert (error.code, error.data) == (-32603, {"reference": reference})
        assert error.message == f"Internal error (reference {reference})"
        assert record.message == f"A task of 'at_once' could not be run or stored (reference {reference})"
        assert record.exc_text is not None
        assert "it is broken" in record.exc_text


class TestTasksThatBeginHere:
    """A server that has room runs what it starts, and what is answered on it, without anybody claiming it."""

    async def test_are_stored_once_before_they_run(self, tools: Tools, monkeypatch: Any) -> None:
        monkeypatch.setattr(worker, "POLL_INTERVAL", 600.0)
        await (await tools.start("at_once")).wait()  # the worker begins with it
        await asyncio.sleep(0.05)
        tools.store.calls.clear()
        flow = await tools.start("greet")
        await flow.wait()
        await flow.answer(login={"name": "Ann"})
        assert (await flow.wait()).text == "Ann"
        wrote = [each for each in tools.store.calls if each in ("add", "claim", "change")]
        assert wrote == ["add", "change", "change", "change"]  # parked, answered, completed

    async def test_are_looked_up_and_stored_once_when_they_are_answered(self, tools: Tools) -> None:
        async def asks(ctx: Context) -> str:
            """Ask, and wait."""
            await ctx.elicit("Who are you?", Login)
            return await tools._wait("asks")

        tools.app.tool(task="optional")(asks)
        flow = await tools.start("asks")
        await flow.wait()
        await asyncio.sleep(0.01)
        tools.store.calls.clear()
        await tools.app._parts.tasks.answer(Call("tasks/update", {}, flow.task), {"login": accept(name="Ann").raw})
        assert tools.store.calls == ["find", "change"]
        await tools.began.wait()
        row = await tools.row(flow)
        assert (row.lease != "", row.attempts) == (True, 1)
        tools.gate.set()
        assert (await flow.wait()).text == "asks"

    async def test_are_heard_of_by_the_worker_that_has_them_alone(self, tools: Tools) -> None:
        flow = await tools.start("steps")
        await tools.began.wait()
        other = replica(tools.app)
        other._parts.worker.start()
        row = await tools.row(flow)
        assert [app._parts.worker.on_change(row) for app in (tools.app, other)] == [True, False]
        await other._parts.worker.close()

    @pytest.mark.parametrize("elsewhere", [True, False])
    async def test_are_told_of_through_the_fan_out_where_they_run_elsewhere(
        self, tools: Tools, monkeypatch: Any, elsewhere: bool
    ) -> None:
        flow = await tools.start("steps")
        await tools.began.wait()
        other = replica(tools.app)
        other._parts.worker.start()
        asked = other if elsewhere else tools.app
        told: list[Change] = []
        monkeypatch.setattr(asked._parts.tasks._records._fanout, "publish", told.append)
        await asked._parts.tasks.cancel(Call("tasks/cancel", {}, flow.task))
        assert (Change("run", flow.task) in told) == elsewhere
        await other._parts.worker.close()

    async def test_count_among_what_is_stored(self) -> None:
        tools = Tools(Flaky(), limits=Limits(stored_tasks=1))
        start, call = tools.app._parts.tasks.start, Call("tools/call", {}, "at_once")
        tools.app._parts.worker.start()
        await start(TaskTerms(required=False, rounds_first=False), call, None)
        with pytest.raises(Full):
            await start(TaskTerms(required=False, rounds_first=False), call, None)
        await tools.app._parts.worker.close()

    async def test_are_not_handed_back_where_one_that_ran_is_claimed_again_and_finds_no_place_free(self) -> None:
        """It has its place: its lease had ended for a moment."""
        store = LateReplies(0.01)
        tools = Tools(store, limits=Limits(tasks=2))
        tools.app.tool(task="optional")(tools.waits)
        flow = await tools.start("steps")
        await tools.began.wait()
        (here,) = tools.app._parts.worker._loop_workers.values()
        (run,) = here._running.values()
        tools.store.away = {"renew"}
        await tools.store.change_task(await tools.row(flow), leased_until=0.0)
        await store.claimed.wait()
        other = await tools.start("waits")
        assert len(here._running) == 2
        await asyncio.sleep(0.02)
        assert ((await tools.row(flow)).lease, run.over) == (here._name, False)
        tools.store.away = set()
        tools.gate.set()
        assert [(await each.wait()).text for each in (flow, other)] == ["last", "waits"]
        assert tools.ran.count("first") == 1
        await tools.app._parts.worker.close()

    async def test_have_their_place_before_one_that_was_being_claimed_which_is_handed_back(self) -> None:
        store = LateReplies(0.01)
        tools = Tools(store, limits=Limits(tasks=1))
        tools.app.tool(task="optional")(tools.waits)
        tools.app._parts.worker.start()
        await asyncio.sleep(1)
        other = await tools.start("at_once", replica(tools.app, run_tasks=False))
        await store.claimed.wait()
        flow = await tools.start("waits")
        await asyncio.sleep(1)
        rows = [await tools.row(each) for each in (flow, other)]
        assert [(row.lease != "", row.attempts) for row in rows] == [(True, 1), (False, 0)]
        assert tools.ran == []
        tools.gate.set()
        assert [(await each.wait()).text for each in (flow, other)] == ["waits", "at once"]
        await tools.app._parts.worker.close()

    async def test_are_stored_by_others_wake_a_worker_that_rests(self, tools: Tools, monkeypatch: Any) -> None:
        monkeypatch.setattr(worker, "POLL_INTERVAL", 600.0)
        tools.app._parts.worker.start()
        await asyncio.sleep(1)
        before = time.monotonic()
        await tools.start("at_once", replica(tools.app, run_tasks=False))
        await tools.until(lambda: tools.ran, "the task to be run")
        assert time.monotonic() - before < 0.1

    async def test_are_for_others_where_there_is_no_room(self) -> None:
        tools = Tools(Flaky(), limits=Limits(tasks=1))
        blocked = await tools.start("steps")
        await tools.began.wait()
        waits = await tools.start("at_once")
        assert (await tools.row(waits)).lease == ""
        other = replica(tools.app)
        other._parts.worker.start()
        waits.move_to(other)
        assert (await waits.wait()).text == "at once"
        tools.gate.set()
        assert (await blocked.wait()).text == "last"
        for each in (tools.app, other):
            await each._parts.worker.close()

    async def test_get_the_last_place_too(self) -> None:
        tools = Tools(Flaky(), limits=Limits(tasks=1))
        tools.app.tool(name="waits", task="optional")(tools.waits)
        await (await tools.start("at_once")).wait()  # the worker begins with it
        flow = await tools.start("waits")
        row = await tools.row(flow)
        assert (row.lease != "", row.version, row.attempts) == (True, 0, 1), "it was claimed, and not begun here"
        tools.gate.set()
        assert (await flow.wait()).text == "waits"
        await tools.app._parts.worker.close()

    @pytest.mark.parametrize(
        ("places", "begins"),
        [(10, True), (2, False)],
        ids=["a place that others need not", "no place past its caller's share"],
    )
    async def test_get_a_place_where_their_caller_may_have_one_more(self, places: int, begins: bool) -> None:
        tools = Tools(Flaky(), limits=Limits(tasks=places, caller_share=0.1), auth=BearerTokens({"token": "ann"}))
        tools.app.tool(name="waits", task="optional")(tools.waits)
        client = AsyncClient(tools.app, tasks=True, token="token", log_level=None)
        await (await tools.start("at_once", client)).wait()  # the worker begins with it
        flows = [await tools.start("waits", client) for _ in range(2)]
        rows = [await tools.row(flow) for flow in flows]
        assert [row.lease != "" for row in rows] == [True, begins]
        tools.gate.set()
        for flow in flows:
            assert (await flow.wait()).text == "waits"
        await tools.app._parts.worker.close()

    async def test_are_for_others_where_the_server_is_leaving(self, tools: Tools) -> None:
        await (await tools.start("at_once")).wait()
        tools.app._parts.admission.drain()
        flow = await tools.start("greet")
        assert (await tools.row(flow)).lease == ""
        tools.app._parts.admission.reopen()

    async def test_are_for_others_soon_where_the_server_ended_in_between(self) -> None:
        clock = Clock()
        tools = Tools(Flaky(clock), clock=clock)
        await (await tools.start("at_once")).wait()
        tools.store.slow = 0.2
        starting = asyncio.create_task(tools.start("at_once"))
        await tools.until(lambda: tools.store.calls.count("add") == 2, "the second")
        await tools.app._parts.worker.close()
        flow = await starting
        row = await tools.row(flow)
        assert row.lease
        assert 4 < row.leased_until - clock() <= worker.RESERVED_LEASE_SECONDS
        assert tools.ran == ["at once"]
        clock.advance(6)
        tools.store.slow = 0.0
        other = replica(tools.app)
        other._parts.worker.start()
        flow.move_to(other)
        assert (await flow.wait()).text == "at once"
        await other._parts.worker.close()

    async def test_hold_their_lease_for_longer_once_they_run(self) -> None:
        clock = Clock()
        tools = Tools(Flaky(clock), clock=clock)
        flow = await tools.start("steps")
        await tools.began.wait()
        await asyncio.sleep(0.2)
        assert (await tools.row(flow)).leased_until - clock() > 20
        tools.gate.set()
        assert (await flow.wait()).text == "last"
        await tools.app._parts.worker.close()

    async def test_are_not_said_to_have_had_no_worker(self, caplog: pytest.LogCaptureFixture) -> None:
        clock = Clock()
        tools = Tools(Flaky(clock), clock=clock)
        tools.app.tool(name="waits", task=Task("optional", ttl=5))(tools.waits)
        flow = await tools.start("waits")
        await tools.began.wait()
        assert (await tools.row(flow)).version == 0
        clock.advance(6)
        assert (await flow.look()).task.status == "failed"
        assert "No worker began" not in caplog.text
        tools.gate.set()
        await tools.app._parts.worker.close()

    async def test_nor_are_those_that_a_worker_began_and_handed_back(self, caplog: pytest.LogCaptureFixture) -> None:
        clock = Clock()
        tools = Tools(Flaky(clock), clock=clock)
        tools.app.tool(name="waits", task=Task("optional", ttl=5))(tools.waits)
        flow = await tools.start("waits")
        await tools.began.wait()
        await tools.app._parts.worker.close()
        row = await tools.row(flow)
        assert (row.status, row.lease, row.attempts) == ("working", "", 0)
        clock.advance(6)
        assert (await flow.look()).task.status == "failed"
        assert "No worker began" not in caplog.text

    async def test_are_begun_once_where_a_flow_becomes_one_task_only(self, tools: Tools) -> None:
        async def pay(ctx: Context) -> str:
            """Ask, and pay in the background."""
            await ctx.elicit("Who are you?", Login)
            await ctx.background()
            return tools.did("paid")

        tools.app.tool(task=Task(rounds_first=True), single_use=True)(pay)
        await (await tools.start("at_once")).wait()
        flow = AsyncClient(tools.app, tasks=True, log_level=None).flow("pay")
        await flow.start()
        await flow.answer(login={"name": "Ann"})
        assert (await flow.wait()).text == "paid"
        assert tools.ran == ["at once", "paid"]


class OnceInDoubt(Lease):
    """A lease that is in doubt when it is asked for, and is renewed before anybody asks again."""

    asked_for = 0
    """How often it is still to be in doubt."""

    @property
    def in_doubt(self) -> bool:
        if OnceInDoubt.asked_for:
            OnceInDoubt.asked_for -= 1
            return True
        return super().in_doubt


@pytest.fixture
def once_in_doubt(monkeypatch: pytest.MonkeyPatch) -> Iterator[type[OnceInDoubt]]:
    monkeypatch.setattr(worker, "Lease", OnceInDoubt)
    yield OnceInDoubt
    assert not OnceInDoubt.asked_for, "it was in doubt"


class TestALease:
    @pytest.mark.parametrize("times", [1, 2, 3])
    async def test_that_is_renewed_just_after_a_round_has_yielded_fails_no_task(
        self, tools: Tools, once_in_doubt: type[OnceInDoubt], times: int
    ) -> None:
        flow = await tools.start("steps")
        await tools.began.wait()
        once_in_doubt.asked_for = times  # at the boundary before the last step, with nothing done in between
        tools.gate.set()
        assert (await flow.wait()).text == "last"
        assert tools.ran == ["first", "waits", *["between"] * (times + 1), "last"]

    async def test_that_is_renewed_just_after_a_wait_for_a_page_has_yielded_asks_no_second_time(
        self, tools: Tools, once_in_doubt: type[OnceInDoubt]
    ) -> None:
        @tools.app.callback("paid")
        async def paid(request: Request) -> str:
            return "paid"

        @tools.app.tool(task="optional")
        async def pays(ctx: Context) -> str:
            return await ctx.elicit_url("Please pay", callback=paid)

        flow = await tools.start("pays")
        page = urlsplit((await flow.wait()).asked["paid"].url)
        once_in_doubt.asked_for = 1  # as it looks for the report
        await flow.send({"paid": accept()}, wait=False)
        await tools.until(lambda: not once_in_doubt.asked_for, "the round that yields")
        browser = httpx.AsyncClient(transport=httpx.ASGITransport(tools.app), base_url="http://127.0.0.1")
        assert (await browser.get(f"{page.path}?{page.query}")).status_code == 200
        assert (await flow.wait()).text == "paid"

    async def test_that_can_not_be_looked_up_lets_none_of_several_steps_begin(self, tools: Tools) -> None:
        @tools.app.tool(task="required")
        async def both(ctx: Context) -> str:
            await ctx.step(tools.did, "first", key="first")
            await asyncio.sleep(1)
            tools.store.calls.clear()
            tools.store.broken = {"holds"}
            await asyncio.gather(*(ctx.step(tools.did, name, key=name) for name in "abc"), return_exceptions=True)
            await asyncio.sleep(1)
            return "done"

        flow = await tools.start("both")
        await flow.wait()
        assert tools.store.calls.count("holds") == 1, "steps that begin at once share a look"
        assert tools.ran == ["first"]

    async def test_that_was_taken_over_ends_the_run(self, tools: Tools, caplog: pytest.LogCaptureFixture) -> None:
        flow = await tools.start("steps")
        await tools.began.wait()
        row = await tools.row(flow)
        await tools.store.change_task(row, lease="another's", leased_until=row.leased_until)
        tools.gate.set()
        await asyncio.sleep(0.3)
        assert tools.ran == ["first", "waits"]
        assert (await tools.row(flow)).lease == "another's"
        (line,) = (each for each in caplog.messages if "is dropped" in each)
        assert line.startswith(f"A task of 'steps' ({row.reference}): the result of a step is dropped, since another ")
        assert flow.task not in caplog.text, "the id may be all that protects it"

    async def test_that_was_taken_over_drops_the_result_and_says_so(
        self, tools: Tools, caplog: pytest.LogCaptureFixture
    ) -> None:
        tools.app.tool(task="optional")(tools.waits)
        flow = await tools.start("waits")
        await tools.began.wait()
        row = await tools.row(flow)
        await tools.store.change_task(row, lease="another's", leased_until=row.leased_until)
        tools.gate.set()
        await tools.until(lambda: "is dropped" in caplog.text, "the result to be dropped")
        assert f"({row.reference}): how a round ended is dropped, since another " in caplog.text
        assert (await tools.row(flow)).status == "working"

    async def test_that_holds_to_the_end_lets_nothing_be_said(
        self, tools: Tools, caplog: pytest.LogCaptureFixture
    ) -> None:
        assert (await (await tools.start("at_once")).wait()).text == "at once"
        await tools.app._parts.worker.close()
        assert "is dropped" not in caplog.text

    async def test_of_a_cancelled_task_lets_no_warning_be_logged(
        self, tools: Tools, caplog: pytest.LogCaptureFixture
    ) -> None:
        flow = await tools.start("steps")
        await tools.began.wait()
        caplog.clear()
        caplog.set_level(logging.INFO)
        await flow.cancel()
        tools.gate.set()
        await tools.until(lambda: caplog.messages, "the result to be dropped")
        (record,) = caplog.records
        assert record.levelno == logging.INFO
        assert "is dropped, since the task was cancelled" in record.getMessage()

    async def test_of_a_task_that_was_handed_back_before_its_step_ended_is_named(
        self, tools: Tools, caplog: pytest.LogCaptureFixture
    ) -> None:
        flow = await tools.start("steps")
        await tools.began.wait()
        row = await tools.row(flow)
        closing = asyncio.create_task(tools.app._parts.worker.close())
        await tools.until(lambda: not tools.store._tasks[row.id].lease, "it to be handed back")
        tools.gate.set()
        await closing
        await tools.until(lambda: "is dropped" in caplog.text, "its result to be dropped")
        assert f"({row.reference}): the result of a step is dropped, since this worker has handed" in caplog.text

    async def test_that_was_found_again_holds_anew(self) -> None:
        """The run need not be given up, and its code not be run again, for an outage that is over."""
        tools = Tools(Flaky(), limits=short_lease(1))
        flow = await tools.start("steps")
        await tools.began.wait()
        tools.store.away = {"renew"}
        attempts = (await tools.row(flow)).attempts
        claimed = asyncio.Event()
        found = tools.store.claim_tasks

        async def claim(*args: Any, **given: Any) -> list[TaskRow]:
            rows: list[TaskRow] = await found(*args, **given)
            if rows:
                claimed.set()
            return rows

        tools.store.claim_tasks = claim
        async with asyncio.timeout(TIMEOUT):
            await claimed.wait()
        assert (await tools.row(flow)).attempts > attempts
        await asyncio.sleep(0.05)
        tools.gate.set()
        assert (await flow.wait()).text == "last"
        assert tools.ran == ["first", "waits", "between", "last"]
        await tools.app._parts.worker.close()

    async def test_holds_for_longer_each_time_that_it_is_renewed(self, tools: Tools) -> None:
        await tools.start("steps")
        await tools.began.wait()
        (here,) = tools.app._parts.worker._loop_workers.values()
        (run,) = here._running.values()
        for _ in range(2):
            until = run.lease._until
            await tools.until(lambda until=until: run.lease._until > until, "the heartbeat")  # type: ignore[misc]

    async def test_that_another_worker_has_by_now_ends_the_run_with_its_next_renewal(self, tools: Tools) -> None:
        flow = await tools.start("steps")
        await tools.began.wait()
        (here,) = tools.app._parts.worker._loop_workers.values()
        (run,) = here._running.values()
        row = await tools.row(flow)
        await InProcessStore.change_task(tools.store, row, lease="another", leased_until=time.time() + 600)
        await asyncio.sleep(0.2)  # some heartbeats
        assert run.lost, "while a step runs, and before anything else asks the store"
        tools.gate.set()
        await asyncio.sleep(0.2)
        assert tools.ran == ["first", "waits"], "the step that was running ended, and nothing began after it"

    async def test_is_renewed_beside_one_of_a_run_that_is_over(self, tools: Tools) -> None:
        tools.app.tool(task="optional")(tools.waits)
        for _ in range(2):
            await tools.start("waits")
        await tools.began.wait()
        (here,) = tools.app._parts.worker._loop_workers.values()
        over, goes_on = here._running.values()
        over.over = True  # it stores its end, which takes a while
        until = goes_on.lease._until
        await asyncio.sleep(0.2)
        assert goes_on.lease._until > until
        over.over = False

    async def test_that_is_given_back_with_the_end_of_its_run_does_not_cut_off_the_reply_of_the_store(self) -> None:
        replied: list[str] = []

        class Late(Flaky):
            async def change_task(
                self, row: TaskRow, *, seconds: float | None = None, **changes: Any
            ) -> TaskRow | None:
                changed = await super().change_task(row, seconds=seconds, **changes)
                if changes.get("status") == "completed":
                    await self.renewed.wait()
                    await asyncio.sleep(0.05)
                    replied.append(row.id)
                return changed

            async def renew_tasks(self, lease: str, ids: list[str], *, seconds: float) -> set[str]:
                held = await super().renew_tasks(lease, ids, seconds=seconds)
                if not held:
                    self.renewed.set()
                return held

            renewed = asyncio.Event()

        late = Tools(Late())
        flow = await late.start("at_once")
        await late.store.renewed.wait()
        await asyncio.sleep(0.2)
        (here,) = late.app._parts.worker._loop_workers.values()
        assert (late.ran, here._running, replied) == (["at once"], {}, [flow.task])
        await late.app._parts.worker.close()

    async def test_that_was_given_back_and_taken_again_begins_a_run_anew(self, tools: Tools) -> None:
        flow = await tools.start("steps")
        await tools.began.wait()
        (here,) = tools.app._parts.worker._loop_workers.values()
        (run,) = here._running.values()
        await run.leave()  # and its code has yet to end
        await tools.until(lambda: here._running[flow.task] is not run, "the next run")
        tools.gate.set()
        assert (await flow.wait()).text == "last"

    async def test_that_comes_back_after_others_have_worked_ends_the_run_that_lacks_what_they_recorded(
        self, tools: Tools, monkeypatch: Any
    ) -> None:
        monkeypatch.setattr(worker, "HEARTBEAT_INTERVAL", 600.0)
        flow = await tools.start("steps")
        await tools.began.wait()
        (here,) = tools.app._parts.worker._loop_workers.values()
        (run,) = here._running.values()
        running = run.task
        assert running is not None
        records, row = tools.app._parts.tasks._records, await tools.row(flow)
        journal = records.sealed.unseal_journal(row, records.now())
        journal.steps["theirs"] = Step("theirs", {}, "theirs", [])
        sealed = records.seal_journal(row, journal)
        await tools.store.change_task(row, journal=sealed, lease="", leased_until=0.0)
        await tools.until(lambda: here._running[row.id] is not run, "the next run")
        assert (run.lost, running.cancelling()) == (True, 1)
        tools.gate.set()

    async def test_that_ended_and_was_found_again_loses_nothing(self, tools: Tools) -> None:
        flow = await tools.start("steps")
        await tools.began.wait()
        await tools.store.change_task(
            await tools.row(flow), leased_until=0.0
        )  # it is claimed again, by the same worker
        await asyncio.sleep(0.3)
        tools.gate.set()
        assert (await flow.wait()).text == "last"
        assert tools.ran == ["first", "waits", "between", "last"]

    async def test_of_a_worker_that_died_passes_on_with_all_that_was_kept(
        self, caplog: pytest.LogCaptureFixture
    ) -> None:
        clock = Clock()
        tools = Tools(Flaky(clock), clock=clock)
        flow = await tools.start("steps")
        await tools.began.wait()
        (dead,) = tools.app._parts.worker._loop_workers.values()
        for task in (dead._claims, dead._heard):  # it says nothing more, and its step goes on for ever
            task.cancel()
        clock.advance(31)
        other = replica(tools.app)
        flow.move_to(other)
        tools.gate.set()
        tools.gate = asyncio.Event()
        tools.gate.set()
        assert (await flow.wait()).text == "last"
        assert tools.ran.count("first") == 1
        (line,) = (each for each in caplog.messages if "is taken over" in each)
        assert line.startswith(f"A task of 'steps' ({flow.task[:8]}) is taken over: ")
        await other._parts.worker.close()
        await tools.app._parts.worker.close()

    async def test_of_a_worker_that_died_is_taken_over_once_though_the_next_one_hands_the_task_back(
        self, tools: Tools, caplog: pytest.LogCaptureFixture
    ) -> None:
        flow = await tools.start("steps", replica(tools.app, run_tasks=False))
        await tools.store.change_task(await tools.row(flow), attempts=1, lease="dead", leased_until=0.0)
        tools.app._parts.worker.start()
        await tools.began.wait()
        row = await tools.row(flow)
        await tools.store.change_task(row, journal=row.journal, attempts=2)  # as if it had recorded nothing
        await tools.app._parts.worker.close()
        assert (await tools.row(flow)).attempts == 0
        tools.gate.set()
        other = replica(tools.app)
        flow.move_to(other)
        other._parts.worker.start()
        assert (await flow.wait()).text == "last"
        assert len([each for each in caplog.messages if "is taken over" in each]) == 1
        await other._parts.worker.close()

    async def test_lost_again_and_again_fails_the_task(self, caplog: pytest.LogCaptureFixture) -> None:
        tools = Tools(Flaky(), limits=Limits(task_attempts=2))
        flow = await tools.start("greet", replica(tools.app, run_tasks=False))
        await tools.store.change_task(await tools.row(flow), attempts=2)
        tools.app._parts.worker.start()
        reply = await flow.wait()
        assert "could not be run to its end" in reply.error.message
        assert "it was started 2 times and reached no step, question or end" in caplog.text
        assert "as when its event loop is blocked" in caplog.text, "its worker need not have ended"
        await tools.app._parts.worker.close()

    async def test_of_the_last_attempts_is_held_for_one_task_at_a_time(self) -> None:
        """One of them may be ending its workers, and none is failed for what ran beside it."""
        tools = Tools(Flaky(), limits=Limits(task_attempts=2))
        running: list[None] = []
        seen: list[int] = []
        leased: list[int] = []

        async def suspect() -> str:
            running.append(None)
            seen.append(len(running))
            leased.append(sum(row.lease != "" for row in tools.store._tasks.values()))
            await asyncio.sleep(4 * worker.SKIP_TASK_SECONDS)  # until the others are claimed again
            running.pop()
            return "done"

        tools.app.tool(task="optional")(suspect)
        flows = [await tools.start("suspect", replica(tools.app, run_tasks=False)) for _ in range(3)]
        for flow in flows:
            await tools.store.change_task(await tools.row(flow), attempts=1)
        tools.app._parts.worker.start()
        assert [(await flow.wait()).text for flow in flows] == ["done"] * 3, "what went back has lost no attempt"
        assert (seen, leased) == ([1] * 3, [1] * 3)
        await tools.app._parts.worker.close()

    async def test_is_nobody_s_where_the_loop_was_blocked_while_nothing_ran(
        self, caplog: pytest.LogCaptureFixture, virtual_time: VirtualTime
    ) -> None:
        tools = Tools(InProcessStore(), limits=short_lease(0.2))
        await (await tools.start("at_once")).wait()
        virtual_time.compute(0.5)
        await tools.until(lambda: "stood still" in caplog.text, "the worker to say so")
        assert "may have started its tasks again (none ran)" in caplog.text
        await tools.app._parts.worker.close()

    async def test_that_a_block_of_the_loop_did_not_outlast_is_said_to_nobody(
        self, caplog: pytest.LogCaptureFixture, virtual_time: VirtualTime
    ) -> None:
        tools = Tools(InProcessStore(), limits=short_lease(0.2))
        await (await tools.start("at_once")).wait()
        virtual_time.compute(0.18)
        await asyncio.sleep(0.3)
        assert "stood still" not in caplog.text
        await tools.app._parts.worker.close()

    @pytest.mark.parametrize(("most", "named"), [(2, "{}, {}"), (1, "{}, and 1 more")])
    async def test_because_the_loop_was_blocked_is_said_of_so_many_tasks_and_the_others_are_counted(
        self, caplog: pytest.LogCaptureFixture, virtual_time: VirtualTime, monkeypatch: Any, most: int, named: str
    ) -> None:
        monkeypatch.setattr(worker, "_MOST_NAMED", most)
        tools = Tools(InProcessStore(), limits=short_lease(0.2))
        tools.app.tool(task="optional")(tools.waits)
        flows = [await tools.start("waits") for _ in range(2)]
        await tools.began.wait()
        virtual_time.compute(0.5)
        await tools.until(lambda: "stood still" in caplog.text, "the worker to say so")
        assert f"again ({named.format(*(flow.task[:8] for flow in flows))})" in caplog.text
        tools.gate.set()
        await tools.app._parts.worker.close()

    async def test_because_the_loop_was_blocked_is_said_by_whose_it_is(
        self, caplog: pytest.LogCaptureFixture, virtual_time: VirtualTime
    ) -> None:
        tools = Tools(InProcessStore(), limits=short_lease(0.2))
        await (await tools.start("greet")).wait()
        running = await tools.start("steps")
        await tools.began.wait()
        assert "stood still" not in caplog.text
        virtual_time.compute(0.5)  # as a tool that should be a plain `def`
        await tools.until(lambda: "stood still" in caplog.text, "the worker to say so")
        assert "The event loop stood still for 0." in caplog.text
        assert f"may have started its tasks again ({running.task[:8]})" in caplog.text
        tools.gate.set()
        await tools.app._parts.worker.close()


class TestARowThatHasChangedMeanwhile:
    """What a run records is kept although the row is another version than the one it knew."""

    async def test_takes_the_record_of_a_step(self, tools: Tools) -> None:
        between, go_on = asyncio.Event(), asyncio.Event()

        async def two(ctx: Context) -> str:
            """Run a step that waits; wait, and run another one."""
            await ctx.step(tools._wait, "waits", key="waits")
            between.set()
            await go_on.wait()
            return await ctx.step(tools.did, "last", key="last")

        tools.app.tool(task="optional")(two)
        flow = await tools.start("two")
        await tools.began.wait()
        row = await tools.row(flow)
        assert await tools.store.change_task(row, attempts=row.attempts)
        tools.gate.set()
        await between.wait()
        await tools.app._parts.worker.close()  # its run is cancelled here, and goes on elsewhere
        other = replica(tools.app)
        flow.move_to(other)
        other._parts.worker.start()
        go_on.set()
        assert (await flow.wait()).text == "last"
        assert tools.ran == ["waits", "last"], "the step was recorded before the code after it ran"
        await other._parts.worker.close()

    async def test_takes_a_message_and_the_result(self, tools: Tools) -> None:
        said, go_on = asyncio.Event(), asyncio.Event()

        async def talks(ctx: Context) -> str:
            """Say something, and wait."""
            said.set()
            await go_on.wait()
            await ctx.progress(message="one")
            await tools.gate.wait()
            return "done"

        tools.app.tool(task="optional")(talks)
        flow = await tools.start("talks")
        await said.wait()
        row = await tools.row(flow)
        assert await tools.store.change_task(row, attempts=row.attempts)
        go_on.set()
        await message(tools, flow, "one")
        row = await tools.row(flow)
        assert await tools.store.change_task(row, attempts=row.attempts)
        tools.gate.set()
        assert (await flow.wait()).text == "done"


async def message(tools: Tools, flow: Any, text: str) -> None:
    """Wait until a task that works has a message."""
    async with asyncio.timeout(TIMEOUT):
        while (await tools.row(flow)).message != text:  # noqa: ASYNC110  what it waits for has no event
            await asyncio.sleep(0.005)
    assert (await tools.row(flow)).status == "working"


class TestMessages:
    async def test_each_is_stored_while_the_task_works_and_told_once(self, tools: Tools, monkeypatch: Any) -> None:
        monkeypatch.setattr(task_run, "REPORT_INTERVAL", 0.3)
        turns = [asyncio.Event() for _ in range(3)]

        async def talks(ctx: Context) -> str:
            """Say a thing whenever it is let."""
            for number, turn in enumerate(turns):
                await turn.wait()
                await ctx.progress(message=f"message {number}")
            await tools.gate.wait()
            return "done"

        tools.app.tool(task="optional")(talks)
        flow = await tools.start("talks")
        async with Listener(tools.app, [flow.task], "") as listener:
            for number, turn in enumerate(turns):
                turn.set()  # the next one comes while the one before it waits for its time
                await message(tools, flow, f"message {number}")
                await listener.hears(f"message {number}")
            tools.gate.set()
            await listener.until("completed")
            told = [(each["status"], each.get("statusMessage", "")) for each in listener.told]
        works = [("working", f"message {number}") for number in range(3)]
        assert told[-4:] == [*works, ("completed", "")], "and each once"

    async def test_that_come_with_the_result_are_over_with_it(self, tools: Tools) -> None:
        flow = await tools.start("says")
        reply = await flow.wait()
        assert (reply.text, reply.task.message) == ("done", "")

    async def test_that_come_after_the_end_are_dropped(self, tools: Tools) -> None:
        late: list[Any] = []

        def chats(ctx: Context) -> str:
            """Leave somebody behind who goes on talking."""
            late.append(ctx)
            return "done"

        tools.app.tool(task="optional")(chats)
        flow = await tools.start("chats")
        await flow.wait()
        thread = threading.Thread(target=late[0].progress, kwargs={"message": "still here"})
        thread.start()
        thread.join()
        await asyncio.sleep(0.2)
        assert (await flow.look()).task.message == ""

    @pytest.mark.parametrize(
        ("said", "shown"),
        [
            ("x" * 2_000, "x" * 2_000),
            ("x" * 2_000 + "y", "x" * 2_000),
            ("a\0b", "a\N{REPLACEMENT CHARACTER}b"),
            ("\ud800!", "\N{REPLACEMENT CHARACTER}!"),
        ],
    )
    async def test_are_what_everybody_can_keep_and_are_stored_once(self, tools: Tools, said: str, shown: str) -> None:
        async def tells(ctx: Context) -> str:
            """Tell it, and wait."""
            await ctx.progress(message=said)
            return await tools._wait("tells")

        tools.app.tool(task="optional")(tells)
        flow = await tools.start("tells")
        async with asyncio.timeout(TIMEOUT):
            while not (message := (await flow.look()).task.message):  # noqa: ASYNC110  as `Tools.until`
                await asyncio.sleep(0.01)
        assert message == shown
        changes = tools.store.calls.count("change")
        await asyncio.sleep(3 * task_run.REPORT_INTERVAL)
        assert tools.store.calls.count("change") == changes

    async def test_that_are_being_stored_do_not_cost_the_result(self, tools: Tools) -> None:
        async def talks(ctx: Context) -> str:
            """End while its message is on its way."""
            await ctx.progress(message="working")
            await asyncio.sleep(0.03)
            return "done"

        tools.app.tool(task="optional")(talks)
        tools.store.slow = 0.02
        assert (await (await tools.start("talks")).wait()).text == "done"


def begin_to_end(app: MRTRServer) -> ShutdownDeadline:
    """Let a server be past the cut-off of its shutdown, and before the deadline."""
    shutdown = app._parts.admission.shutdown
    shutdown.seconds, shutdown.began = 20.0, time.monotonic() - 17
    assert shutdown.until_cut_off() == 0 < shutdown.left()
    return shutdown


class TestServersThatEnd:
    async def test_hand_tasks_back_at_their_next_boundary(self, tools: Tools) -> None:
        flow = await tools.start("steps")
        await tools.began.wait()
        tools.app.drain()
        tools.gate.set()
        await tools.until(lambda: "between" in tools.ran, "the step")
        await tools.until(lambda: not tools.store._tasks[flow.task].lease, "it to be handed back")
        row = await tools.row(flow)
        assert (row.status, row.lease, row.attempts) == ("working", "", 0)
        other = replica(tools.app)
        flow.move_to(other)
        assert (await flow.wait()).text == "last"
        assert [tools.ran.count(each) for each in ("first", "waits", "last")] == [1, 1, 1]
        await other._parts.worker.close()
        tools.app._parts.admission.reopen()

    async def test_hand_back_what_comes_to_no_boundary_and_it_counts_for_nothing(self, tools: Tools) -> None:
        async def forever() -> None:
            """Never end."""
            tools.began.set()
            await asyncio.sleep(600)

        tools.app.tool(task="optional")(forever)
        flow = await tools.start("forever")
        await tools.began.wait()
        await tools.app._parts.worker.close()
        row = await tools.row(flow)
        assert (row.status, row.lease, row.attempts) == ("working", "", 0)

    async def test_leave_what_can_not_be_cancelled_before_their_deadline(self, tools: Tools) -> None:
        async def stubborn() -> None:
            """Go on whatever happens."""
            tools.began.set()
            while not tools.gate.is_set():
                with suppress(asyncio.CancelledError):
                    await tools.gate.wait()

        tools.app.tool(task="optional")(stubborn)
        await tools.start("stubborn")
        await tools.began.wait()
        (here,) = tools.app._parts.worker._loop_workers.values()
        (run,) = here._running.values()
        shutdown = begin_to_end(tools.app)
        await tools.app._parts.worker.close()
        assert shutdown.left() > 0
        assert run.task is not None
        assert run.task.cancelling() == 2, "its handler, and then the wait for its steps"

    async def test_hold_the_leases_of_their_tasks_for_as_long_as_they_wait_for_them(self) -> None:
        tools = Tools(Flaky(), limits=short_lease(0.2))
        flow = await tools.start("steps")
        await tools.began.wait()
        closing = asyncio.create_task(tools.app._parts.worker.close())
        await asyncio.sleep(0.5)
        row = await tools.row(flow)
        assert (row.lease != "", row.leased_until > time.time()) == (True, True)
        tools.gate.set()
        await closing

    async def test_listen_to_what_clients_do_to_their_tasks_until_then(self, tools: Tools) -> None:
        def followed() -> list[str]:
            fanout: Any = tools.app._parts.fanout
            return list(fanout._listeners_to.get("run", ()))

        flow = await tools.start("steps")
        await tools.until(followed, "the heartbeat")
        assert followed() == [flow.task]
        await tools.app._parts.worker.close()
        assert followed() == []

    async def test_end_in_their_time_though_a_look_at_the_store_does_not(self) -> None:
        class Stubborn(Flaky):
            async def overdue_tasks(self, *, most: int) -> list[TaskRow]:
                self.calls.append("overdue")
                with suppress(asyncio.CancelledError):
                    await asyncio.sleep(3600)
                await asyncio.sleep(3600)  # a database takes its time to end a statement
                return []

        stubborn = Tools(Stubborn())
        stubborn.app._parts.worker.start()
        await stubborn.until(lambda: "overdue" in stubborn.store.calls, "the look")
        before = time.monotonic()
        await stubborn.app._parts.worker.close()
        assert time.monotonic() - before <= 0.8

    async def test_end_at_once_where_nothing_runs(self, tools: Tools, monkeypatch: Any) -> None:
        monkeypatch.setattr(worker, "POLL_INTERVAL", 600.0)
        tools.app._parts.worker.start()
        await asyncio.sleep(1)
        before = time.monotonic()
        await tools.app._parts.worker.close()
        assert time.monotonic() == before

    async def test_end_at_once_where_they_have_no_tool_for_tasks(self, monkeypatch: Any) -> None:
        monkeypatch.setattr(worker, "POLL_INTERVAL", 600.0)
        app = MRTRServer("worker", keys=KEYS, store=Flaky())
        app._parts.worker.start()
        await asyncio.sleep(1)
        before = time.monotonic()
        await app._parts.worker.close()
        assert time.monotonic() == before

    async def test_leave_no_look_at_the_store_behind(self) -> None:
        ended: list[str] = []

        class Slow(Flaky):
            async def wait_for_tasks(self, *args: Any, **given: Any) -> None:
                try:
                    await super().wait_for_tasks(*args, **given)
                finally:
                    await asyncio.sleep(0.1)  # a database takes its time to end a statement
                    ended.append("wait")

        slow = Tools(Slow(), limits=Limits(tasks=2))
        slow.app.tool(task="optional", concurrency=1)(slow.waits)  # so that the worker waits for two things
        await slow.start("waits")
        await slow.began.wait()
        await asyncio.sleep(0.01)
        slow.gate.set()
        await slow.app._parts.worker.close()
        assert ended

    async def test_hand_back_what_is_being_claimed(self, tools: Tools) -> None:
        flow = await tools.start("at_once", replica(tools.app, run_tasks=False))
        tools.store.slow = 0.1
        tools.app._parts.worker.start()
        await tools.until(lambda: "claim" in tools.store.calls, "the claim")
        await tools.app._parts.worker.close()
        row = await tools.row(flow)
        assert (row.lease, row.attempts, tools.ran) == ("", 0, [])

    @pytest.mark.parametrize("late", [False, True], ids=["in time", "after the cut-off"])
    async def test_hand_back_what_a_claim_brings_that_was_under_way(self, late: bool) -> None:
        store = LateReplies(0.1)
        slow = Tools(store)
        flow = await slow.start("at_once", replica(slow.app, run_tasks=False))
        slow.app._parts.worker.start()
        await store.claimed.wait()
        if late:
            begin_to_end(slow.app)
        await slow.app._parts.worker.close()
        row = await slow.row(flow)
        assert (row.lease, row.attempts, slow.ran) == ("", 0, [])

    async def test_claim_no_tasks_of_another_tool_after_a_claim_that_was_under_way(self, monkeypatch: Any) -> None:
        monkeypatch.setattr(worker, "POLL_INTERVAL", 3600.0)
        claimed: list[Sequence[str]] = []

        class Late(Flaky):
            async def claim_tasks(self, *args: Any, tools: Sequence[str], **given: Any) -> list[TaskRow]:
                claimed.append(tools)
                await asyncio.sleep(0.1)  # the reply of a database takes its time
                return await super().claim_tasks(*args, tools=tools, **given)

        late = Tools(Late())
        late.app.tool(task="optional", concurrency=1)(late.waits)  # of its own, so it is claimed by itself
        late.app._parts.worker.start()
        await late.until(lambda: claimed, "the claim")
        before = time.monotonic()
        await late.app._parts.worker.close()
        assert len(claimed) == 1
        assert time.monotonic() - before <= 0.1, "and they wait for none"

    async def test_end_in_their_time_though_a_claim_does_not(self, tools: Tools) -> None:
        tools.store.slow = 3600.0
        tools.app._parts.worker.start()
        await tools.until(lambda: "claim" in tools.store.calls, "the claim")
        (here,) = tools.app._parts.worker._loop_workers.values()
        before = time.monotonic()
        await tools.app._parts.worker.close()
        assert time.monotonic() - before <= 0.8
        assert here._claims.cancelled()

    async def test_end_before_their_deadline_though_a_claim_does_not(self, tools: Tools) -> None:
        tools.store.slow = 3600.0
        tools.app._parts.worker.start()
        await tools.until(lambda: "claim" in tools.store.calls, "the claim")
        shutdown = begin_to_end(tools.app)
        left = shutdown.left()
        await tools.app._parts.worker.close()
        assert shutdown.left() == pytest.approx(left * 3 / 4), "each thing that is late has a quarter of what is left"

    async def test_end_while_the_store_is_away(self, tools: Tools) -> None:
        flow = await tools.start("steps")
        await tools.began.wait()
        tools.store.away = {"change", "find", "claim", "renew", "overdue"}
        tools.gate.set()
        async with asyncio.timeout(TIMEOUT):
            await tools.app._parts.worker.close()
        tools.store.away = set()
        row = await tools.row(flow)
        assert (row.status, row.lease != "", row.attempts) == ("working", True, 1), "its lease runs out by itself"
        await tools.store.change_task(row, leased_until=0.0)
        other = replica(tools.app)
        flow.move_to(other)
        assert (await flow.wait()).text == "last"
        assert tools.ran == ["first", "waits", "waits", "between", "last"], "a worker that ends costs one step at most"
        await other._parts.worker.close()

    async def test_hand_a_task_back_once_and_do_not_wait_for_a_store_that_is_away(self, tools: Tools) -> None:
        tools.app.tool(task="optional")(tools.waits)
        await tools.start("waits")
        await tools.began.wait()
        tools.store.away = {"change", "find", "claim", "renew", "overdue"}
        tools.store.calls.clear()
        await tools.app._parts.worker.close()
        assert tools.store.calls.count("change") == 1

    async def test_work_again_when_they_start_again(self) -> None:
        tools = Tools(Flaky())
        client = AsyncClient(tools.app, tasks=True)
        for _ in range(3):
            async with client:
                assert (await client.call("at_once")).text == "at once"
            assert tools.app._parts.worker._loop_workers.values() == []

    async def test_find_the_tasks_of_before_with_their_start(self) -> None:
        tools = Tools(Flaky())
        flow = await tools.start("at_once", replica(tools.app, run_tasks=False))
        async with AsyncClient(replica(tools.app)):
            await tools.until(lambda: tools.ran, "the task to be run")
        assert (await flow.look()).text == "at once"

    async def test_that_do_not_work_leave_tasks_to_others(self) -> None:
        tools = Tools(Flaky(), run_tasks=False)
        flow = await tools.start("at_once")
        await asyncio.sleep(0.2)
        assert (await flow.look()).task.status == "working"
        worker_of = replica(tools.app, run_tasks=True)
        flow.move_to(worker_of)
        assert (await flow.wait()).text == "at once"
        await worker_of._parts.worker.close()

    async def test_that_have_no_tool_for_tasks_rest(self, caplog: pytest.LogCaptureFixture, monkeypatch: Any) -> None:
        rests = 0

        async def rest(seconds: float, work: Any) -> None:
            nonlocal rests
            rests += 1
            await within(seconds, work)

        within = worker._within
        monkeypatch.setattr(worker, "_within", rest)
        app = MRTRServer("worker", keys=KEYS, store=Flaky())
        app._parts.worker.start()
        await asyncio.sleep(0.25)
        await app._parts.worker.close()
        assert 1 <= rests <= 4
        assert caplog.messages == []

    async def test_that_have_not_the_tool_leave_its_tasks_to_others(self, caplog: pytest.LogCaptureFixture) -> None:
        clock = Clock()
        tools = Tools(Flaky(clock), run_tasks=False, clock=clock)
        flow = await tools.start("at_once")
        stranger = replica(MRTRServer("worker", keys=KEYS, store=tools.store), clock=clock)
        stranger._parts.tasks.wake_worker()
        await asyncio.sleep(0.3)
        row = await tools.row(flow)
        assert (row.status, row.version) == ("working", 0)
        clock.advance(row.ttl + 1)
        await tools.until(
            lambda: "No worker began a task of 'at_once' before it expired" in caplog.text, "the stranger"
        )
        assert (await flow.look()).task.status == "failed"
        await stranger._parts.worker.close()

    async def test_that_get_a_tool_while_they_run_run_its_tasks(self, tools: Tools) -> None:
        other = replica(tools.app)
        other._parts.worker.start()
        await (await tools.start("at_once")).wait()  # both workers have begun
        tools.app.tool(name="later", task="optional")(tools.at_once)
        assert (await (await tools.start("later")).wait()).text == "at once"
        await tools.app._parts.worker.close()
        flow = await tools.start("later", replica(tools.app, run_tasks=False))
        assert (await flow.wait()).text == "at once"
        await other._parts.worker.close()

    async def test_claim_no_tasks_of_a_tool_that_they_have_lost_until_they_have_it_again(self, tools: Tools) -> None:
        await (await tools.start("at_once")).wait()  # the worker has begun
        tools.app._parts.admission.drain()
        flow = await tools.start("at_once", replica(tools.app, run_tasks=False))
        tools.app.disable(tools=["at_once"])
        tools.app._parts.admission.reopen()
        await asyncio.sleep(1)
        assert (await tools.row(flow)).version == 0
        tools.app.enable(tools=["at_once"])
        assert (await flow.wait()).text == "at once"

    async def test_whose_tool_is_removed_as_its_task_is_claimed_leave_it_and_say_so_once(
        self, caplog: pytest.LogCaptureFixture
    ) -> None:
        claimed: list[str] = []

        class Removing(Flaky):
            async def claim_tasks(self, *args: Any, **given: Any) -> list[TaskRow]:
                rows = await super().claim_tasks(*args, **given)
                if rows and not claimed:
                    made.app.remove_tool("at_once")
                claimed.extend(row.id for row in rows)
                return rows

        made = Tools(Removing())
        other = replica(made.app, run_tasks=False)
        flows = [await made.start("at_once", other) for _ in range(3)]
        made.app._parts.worker.start()
        await made.until(lambda: len(claimed) >= 3, "the claims")
        await made.app._parts.worker.close()
        rows = [await made.row(flow) for flow in flows]
        assert [(row.status, row.lease, row.attempts) for row in rows] == [("working", "", 0)] * 3
        assert caplog.text.count("There are tasks of 'at_once', a tool that this server does not have") == 1
        assert made.ran == []


async def test_a_task_whose_tool_has_changed_since_fails_with_what_does_not_fit_any_more() -> None:
    store = InProcessStore()
    older = MRTRServer("worker", keys=KEYS, store=store, run_tasks=False)
    newer = MRTRServer("worker", keys=KEYS, store=store)

    @older.tool(name="order", task="optional")
    async def order(size: str) -> str:
        return size

    @newer.tool(name="order", task="optional")
    async def order_by_number(size: int) -> str:
        return str(size)

    flow = AsyncClient(older, tasks=True, log_level=None).flow("order", size="large")
    await flow.start()
    newer._parts.worker.start()
    flow.move_to(newer)
    assert "size" in (await flow.wait()).failure
    await newer._parts.worker.close()


async def test_an_error_that_a_handler_raises_ends_its_task_even_if_it_names_an_unknown_tool() -> None:
    app = MRTRServer("worker", keys=KEYS, store=InProcessStore())

    @app.tool(task="optional")
    async def lost() -> str:
        raise UnknownTarget("tool", "another")

    flow = AsyncClient(app, tasks=True, log_level=None).flow("lost")
    await flow.start()
    assert (await flow.wait()).task.status == "failed"
    await app._parts.worker.close()


def test_workers_run_on_each_event_loop_that_has_tasks() -> None:
    app = MRTRServer("loops", keys=KEYS, store=InProcessStore())

    @app.tool(task="optional")
    def thread() -> str:
        """Do nothing."""
        return "done"

    def call() -> None:
        texts.append(Client(app, tasks=True).call("thread").text)

    texts: list[str] = []
    threads = [threading.Thread(target=call) for _ in range(3)]
    for each in threads:
        each.start()
    for each in threads:
        each.join(TIMEOUT)
    call()
    assert texts == ["done"] * 4


class TestConcurrency:
    async def test_of_a_tool_is_held_and_others_are_not_kept_waiting(self, tools: Tools) -> None:
        running: list[int] = [0]
        seen: list[int] = []

        async def few() -> str:
            """Count how many run at once."""
            running[0] += 1
            seen.append(running[0])
            await asyncio.sleep(0.02)
            running[0] -= 1
            return "done"

        tools.app.tool(task="optional", concurrency=2)(few)
        flows = [await tools.start("few") for _ in range(12)]
        assert (await (await tools.start("at_once")).wait()).text == "at once"
        for flow in flows:
            assert (await flow.wait()).text == "done"
        assert max(seen) == 2
        assert len(seen) == 12

    async def test_of_a_tool_leaves_the_rest_to_other_servers(self, tmp_path: Path) -> None:
        ran: list[str] = []

        def server(name: str) -> MRTRServer:
            app = MRTRServer("replica", keys=[bytes(32)], store=f"sqlite:///{tmp_path}/tasks.db")

            @app.tool(task=Task("required", poll=0.05), concurrency=1)
            async def one_at_a_time() -> str:
                await asyncio.sleep(0.3)
                ran.append(name)
                return name

            return app

        first, second = server("first"), server("second")
        flows = [AsyncClient(first, tasks=True).flow("one_at_a_time") for _ in range(8)]
        for flow in flows:
            await flow.start()
        second._parts.worker.start()
        for flow in flows:
            await flow.wait()
        assert min(ran.count("first"), ran.count("second")) >= 3
        for app in (first, second):
            await app._parts.worker.close()
            await app._parts.shared.store.close()

    async def test_of_a_tool_goes_on_as_soon_as_one_has_ended(self, tools: Tools, monkeypatch: Any) -> None:
        monkeypatch.setattr(worker, "POLL_INTERVAL", 600.0)

        async def one() -> str:
            """Run alone."""
            return "done"

        tools.app.tool(task="optional", concurrency=1)(one)
        flows = [await tools.start("one", replica(tools.app, run_tasks=False)) for _ in range(40)]
        tools.app._parts.worker.start()
        async with asyncio.timeout(TIMEOUT):
            for flow in flows:
                await flow.wait()
        assert tools.store.calls.count("claim") < 130, "those that have no turn are left where they are"

    async def test_of_a_caller_goes_on_as_soon_as_one_has_ended(self, monkeypatch: Any) -> None:
        monkeypatch.setattr(worker, "POLL_INTERVAL", 3600.0)
        auth = BearerTokens({"token": "ann"})
        tools = Tools(Flaky(), limits=Limits(tasks=2, caller_share=0.5), auth=auth)
        tools.app.tool(task="optional")(tools.waits)
        client = AsyncClient(tools.app, tasks=True, token="token", log_level=None)
        flows = [await tools.start("waits", client) for _ in range(2)]
        await asyncio.sleep(1)
        rows = [await tools.row(flow) for flow in flows]
        assert [row.lease != "" for row in rows] == [True, False]
        assert rows[1].version == 0, "it was claimed, and handed back"
        tools.gate.set()
        await asyncio.sleep(1)
        assert [(await tools.row(flow)).status for flow in flows] == ["completed"] * 2
        await tools.app._parts.worker.close()

    async def test_of_a_server_is_held(self) -> None:
        tools = Tools(Flaky(), limits=Limits(tasks=1))
        blocked, waits = await tools.start("steps"), await tools.start("at_once")
        await tools.began.wait()
        await asyncio.sleep(0.2)
        assert (await waits.look()).task.status == "working"
        tools.gate.set()
        assert (await blocked.wait()).text == "last"
        assert (await waits.wait()).text == "at once"
        await tools.app._parts.worker.close()


class TestMemory:
    async def test_holds_nothing_of_a_parked_task(self, tools: Tools) -> None:
        held: list[weakref.ref[Any]] = []

        class Large:
            """What a handler has in its hands."""

        async def parks(ctx: Context) -> str:
            """Ask with something in its hands."""
            large = Large()
            held.append(weakref.ref(large))
            login = await ctx.elicit("Who are you?", Login)
            return f"{login.name} {large}"

        tools.app.tool(task="optional")(parks)
        for _ in range(3):
            await (await tools.start("parks")).wait()
        await asyncio.sleep(0.1)
        gc.collect()
        assert [each() for each in held] == [None] * 3
        (loop_worker,) = tools.app._parts.worker._loop_workers.values()
        assert loop_worker._running == {}


class TestAClientThatLeaves:
    async def test_before_it_knows_the_id_cancels_its_task(self, tools: Tools) -> None:
        """A client of the flat form waits for the first ask, and nobody else can ever ask for the task."""
        tools.gate.clear()
        request = asyncio.create_task(
            AsyncClient(tools.app, era="sep-draft").request(
                "tools/call", {"name": "steps", "arguments": {}, "task": {}}
            )
        )
        await tools.began.wait()
        request.cancel()
        with pytest.raises(asyncio.CancelledError):
            await request
        await tools.until(lambda: all(r.status == "cancelled" for r in tools.store._tasks.values()), "the end")
        tools.gate.set()
        await asyncio.sleep(0.2)
        assert tools.ran == ["first", "waits"]
