"""A task works while it waits: it asks beside its steps, and each answer continues its own branch."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest
from pydantic import BaseModel
from starlette.requests import Request

from mrtr_server import (
    Context,
    Elicit,
    InProcessStore,
    InputRequired,
    Inputs,
    Limits,
    MRTRServer,
    Shutdown,
    SQLStore,
    Store,
    Task,
    TaskRow,
)
from mrtr_server.flow.waiting_round import WaitingRound
from mrtr_server.storage.pubsub import InProcessFanout
from mrtr_server.tasks import worker
from mrtr_server.tasks.records import TaskRecords
from mrtr_server.testing import AsyncClient, Clock, accept, decline, replica

from ..support.databases import PostgreSQL
from ..support.flows import update
from ..support.models import Login
from ..support.serving import TIMEOUT

pytestmark = pytest.mark.anyio


class Size(BaseModel):
    size: int


class Tools:
    """Tools that ask beside steps, what they did, and what lets their steps go on.

    Args:
        store: where the tasks are.
        settings: of the server.
    """

    def __init__(self, store: Store, clock: Callable[[], float] = time.time, **settings: Any) -> None:
        self.store = store
        self.ran: list[str] = []
        self.runs = 0
        """How often a handler began."""
        self.gates: dict[str, asyncio.Event] = {}
        served = MRTRServer("beside", keys=[bytes(32)], store=store, shutdown=Shutdown(lame_duck=0), **settings)
        self.app = app = replica(served, clock=clock)
        for tool in (self.beside, self.two, self.returns, self.fails, self.chain, self.changes, self.pages):
            app.tool(task="optional")(tool)
        app.tool(task=Task("optional", ttl=600), answer_within=60)(self.hurries)
        self.paid = app.callback("paid")(self.report)

    def gate(self, name: str) -> asyncio.Event:
        return self.gates.setdefault(name, asyncio.Event())

    def did(self, what: str) -> str:
        self.ran.append(what)
        return what

    async def slow(self, name: str) -> str:
        """Say that it has begun, and wait to be let go on."""
        self.gate(f"{name} began").set()
        await self.gate(name).wait()
        return self.did(name)

    async def greets(self, ctx: Context) -> str:
        login = await ctx.elicit("Who are you?", Login)
        return await ctx.step(self.did, f"Hello, {login.name}")

    async def measures(self, ctx: Context) -> str:
        size = await ctx.elicit("How tall?", Size)
        return await ctx.step(self.did, f"{size.size} tall")

    async def beside(self, ctx: Context) -> list[str]:
        """Ask beside a step."""
        self.runs += 1
        return list(await asyncio.gather(ctx.step(self.slow, "work"), self.greets(ctx)))

    async def two(self, ctx: Context, works: bool = False) -> list[str]:
        """Ask two things in branches of their own."""
        self.runs += 1
        work = [ctx.step(self.slow, "work")] if works else []
        return list(await asyncio.gather(self.greets(ctx), self.measures(ctx), *work))

    def returns(self, inputs: Inputs) -> str | InputRequired:
        """Ask two things as a pure function."""
        self.runs += 1
        login, size = inputs.get("login", Login), inputs.get("size", Size)
        if login is None or size is None:
            return InputRequired(login=Elicit("Who are you?", Login), size=Elicit("How tall?", Size))
        return f"{login.name} is {size.size} tall"

    async def breaks(self) -> str:
        await self.slow("breaks")
        raise ValueError("it broke")

    async def fails(self, ctx: Context) -> str:
        """Have a step fail beside an ask."""
        self.runs += 1
        login, failed = await asyncio.gather(
            ctx.elicit("Who are you?", Login), ctx.step(self.breaks), return_exceptions=True
        )
        return f"{getattr(login, 'name', login)}: {failed}"

    async def chain(self, ctx: Context) -> list[str]:
        """Ask twice in one branch, and once in another, by keys that are made of the model."""

        async def first() -> str:
            one = await ctx.elicit("First?", Login)
            other = await ctx.elicit("Third?", Login)
            return f"{one.name} {other.name}"

        async def second() -> str:
            return (await ctx.elicit("Second?", Login)).name

        return list(await asyncio.gather(first(), second()))

    async def changes(self, ctx: Context) -> str:
        """Ask two things, one of them in other words when it is run again."""
        self.runs += 1
        words = "Who are you?" if self.runs == 1 else "Who are you now?"
        login, size = await asyncio.gather(ctx.elicit(words, Login), ctx.elicit("How tall?", Size))
        return f"{login.name} is {size.size} tall"

    async def pages(self, ctx: Context) -> list[str]:
        """Ask for a page beside a step."""
        self.runs += 1

        async def pays() -> str:
            paid = await ctx.elicit_url("Please pay", callback=self.paid)
            return await ctx.step(self.did, f"paid {paid}")

        return list(await asyncio.gather(ctx.step(self.slow, "work"), pays()))

    async def report(self, request: Request) -> int:
        return 5

    async def hurries(self, ctx: Context) -> list[str]:
        """Ask one thing, and another one a while later."""
        self.runs += 1

        async def later() -> str:
            await ctx.step(self.slow, "pause")
            return (await ctx.elicit("How tall?", Size, key="size")).model_dump_json()

        return list(await asyncio.gather(ctx.step(self.slow, "work"), self.greets(ctx), later()))

    # What tests do

    def client(self, app: MRTRServer | None = None) -> AsyncClient:
        return AsyncClient(app or self.app, tasks=True, log_level=None)

    async def start(self, tool: str, **arguments: Any) -> Any:
        flow = self.client().flow(tool, arguments)
        await flow.start()
        return flow

    async def began(self, name: str = "work") -> None:
        async with asyncio.timeout(TIMEOUT):
            await self.gate(f"{name} began").wait()

    async def until(self, true: Callable[[], Any], what: str) -> None:
        async with asyncio.timeout(TIMEOUT):
            while not true():  # noqa: ASYNC110  what it waits for has no event
                await asyncio.sleep(0.01)

    async def asks(self, flow: Any, *keys: str) -> Any:
        """Wait until exactly these questions are open; return the reply that shows them."""
        async with asyncio.timeout(TIMEOUT):
            while sorted((reply := await flow.look()).asks) != sorted(keys):  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        return reply

    async def rests(self) -> None:
        """Wait until no round runs here."""
        (here,) = self.app._parts.worker._loop_workers.values()
        await self.until(lambda: not here._running, "the round to end")

    async def row(self, flow: Any) -> TaskRow:
        row = await self.app._parts.tasks.store.find_task(flow.task)
        assert row is not None
        return row


@pytest.fixture(params=["in process", "sqlite", "postgresql"])
async def stores(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Callable[[], Store]]:
    """Return what makes a store on the same tasks; in the process there is one alone."""
    made: list[Store] = []
    url = f"sqlite:///{tmp_path}/tasks.db"
    if request.param == "postgresql":
        server: PostgreSQL = request.getfixturevalue("postgresql")
        url = server.url(await server.new_database())

    def make() -> Store:
        if request.param != "in process":
            made.append(SQLStore(url))
        elif not made:
            made.append(InProcessStore())
        return made[-1]

    yield make
    for store in made:
        await store.close()


@pytest.fixture
async def tools(stores: Callable[[], Store]) -> AsyncIterator[Tools]:
    made = Tools(stores())
    yield made
    for gate in made.gates.values():
        gate.set()
    await made.app._parts.worker.close()


@pytest.fixture
async def other(tools: Tools, stores: Callable[[], Store]) -> MRTRServer:
    """Another replica, which runs no tasks."""
    return replica(tools.app, store=stores(), run_tasks=False)


class TestAnAsk:
    async def test_is_published_beside_a_running_step(self, tools: Tools) -> None:
        flow = await tools.start("beside")
        await tools.began()
        asked = await tools.asks(flow, "login")
        assert (asked.task.status, asked.questions) == ("input_required", {"login": "Who are you?"})
        assert tools.ran == []

    async def test_is_shown_by_tasks_result_in_the_drafts_form(self, tools: Tools) -> None:
        created = await drafts(tools.app, "tools/call", {"name": "beside", "arguments": {}, "task": {"ttl": 60000}})
        await tools.began()
        task = {"taskId": created["result"]["task"]["taskId"]}
        asked = await drafts(tools.app, "tasks/result", task)
        assert list(asked["result"]["inputRequests"]) == ["login"]
        seen = await drafts(tools.app, "tasks/get", task)
        assert seen["result"]["status"] == "input_required"
        answers = {"login": accept(name="Ann").raw}
        await drafts(tools.app, "tasks/input_response", {**task, "inputResponses": answers})
        await tools.until(lambda: tools.ran == ["Hello, Ann"], "the branch that was answered")
        tools.gate("work").set()
        done = await drafts(tools.app, "tasks/result", task)
        assert done["result"]["structuredContent"] == ["work", "Hello, Ann"]

    async def test_comes_with_the_reply_to_a_call_that_waits_for_the_first_one(self, tools: Tools) -> None:
        reply = await drafts(tools.app, "tools/call", {"name": "beside", "arguments": {}, "task": {}})
        assert reply["result"]["status"] == "input_required"
        assert [each["elicitationId"] for each in reply["result"]["_meta"][PENDING]] == ["login"]

    async def test_goes_out_together_with_those_that_come_at_the_same_time(self, tools: Tools) -> None:
        flow = await tools.start("two", works=True)
        await tools.began()
        await tools.asks(flow, "login", "size")
        # Published once, beside the step, which alone has been begun.
        assert ((await tools.row(flow)).version, tools.runs) == (1, 1)

    async def test_goes_out_together_with_those_that_come_a_turn_later(self, tools: Tools) -> None:
        async def soon(ctx: Context) -> str:
            """Ask in a branch that has something else to do first."""

            async def later() -> Size:
                await asyncio.sleep(0)
                return await ctx.elicit("How tall?", Size)

            done = await asyncio.gather(ctx.elicit("Who?", Login), later(), ctx.step(tools.slow, "slow"))
            return str(done)

        tools.app.tool(task="optional")(soon)
        flow = await tools.start("soon")
        await tools.began("slow")
        await tools.asks(flow, "login", "size")
        assert (await tools.row(flow)).version == 1


PENDING = "io.modelcontextprotocol/pending-elicitations"


async def drafts(app: MRTRServer, method: str, params: dict[str, Any]) -> dict[str, Any]:
    """Send a request in the form of the drafts; return the reply."""
    transport = httpx.ASGITransport(app)
    async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client:
        reply = await client.post("/mcp", json={"jsonrpc": "2.0", "id": 1, "method": method, "params": params})
    answer: dict[str, Any] = reply.json()
    return answer


class TestRule5AnAskOfATaskReturns:
    @pytest.mark.parametrize("where", ["here", "on another replica"])
    async def test_lets_its_own_branch_continue_at_once_in_the_running_round(
        self, tools: Tools, other: MRTRServer, where: str
    ) -> None:
        flow = await tools.start("beside")
        await tools.began()
        await tools.asks(flow, "login")
        if where == "on another replica":
            flow.move_to(other)
        await flow.send({"login": accept(name="Ann")}, wait=False)
        await tools.until(lambda: tools.ran == ["Hello, Ann"], "the branch that was answered")
        flow.move_to(tools.app)
        assert (await flow.look()).task.status == "working"
        tools.gate("work").set()
        assert (await flow.wait()).structured == ["work", "Hello, Ann"]
        assert (tools.ran, tools.runs) == (["Hello, Ann", "work"], 1)

    async def test_whose_notice_is_lost_is_found(
        self, tools: Tools, other: MRTRServer, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(
            TaskRecords, "listen_for_workers", lambda self, ids: InProcessFanout().subscribe(frozenset())
        )
        flow = await tools.start("beside")
        await tools.began()
        await tools.asks(flow, "login")
        flow.move_to(other)
        await flow.send({"login": accept(name="Ann")}, wait=False)
        await tools.until(lambda: tools.ran == ["Hello, Ann"], "the branch that was answered")
        assert tools.runs == 1

    async def test_leaves_other_asks_open_under_their_keys(self, tools: Tools) -> None:
        flow = await tools.start("two", works=True)
        await tools.began()
        await tools.asks(flow, "login", "size")
        await flow.send({"size": accept(size=180)}, wait=False)
        await tools.until(lambda: tools.ran == ["180 tall"], "the branch that was answered")
        assert list((await flow.look()).asks) == ["login"]
        tools.gate("work").set()
        await tools.until(lambda: "work" in tools.ran, "the work")
        assert list((await flow.look()).asks) == ["login"]
        assert (await flow.answer(login={"name": "Ann"})).structured == ["Hello, Ann", "180 tall", "work"]
        assert tools.ran == ["180 tall", "work", "Hello, Ann"]

    async def test_to_one_of_two_begins_a_round_if_none_runs(self, tools: Tools) -> None:
        flow = await tools.start("two")
        await tools.asks(flow, "login", "size")
        await tools.rests()
        await flow.send({"size": accept(size=180)}, wait=False)
        await tools.until(lambda: tools.ran == ["180 tall"], "the branch that was answered")
        await tools.rests()  # an answer that comes sooner counts in the round that still runs
        assert list((await flow.look()).asks) == ["login"]
        assert (await flow.answer(login={"name": "Ann"})).structured == ["Hello, Ann", "180 tall"]
        assert (tools.ran, tools.runs) == (["180 tall", "Hello, Ann"], 3)

    async def test_that_does_not_fit_is_asked_for_again_beside_the_work(self, tools: Tools) -> None:
        flow = await tools.start("beside")
        await tools.began()
        await tools.asks(flow, "login")
        await flow.send({"login": accept(other=5)}, wait=False)
        again = await tools.asks(flow, "login_2")
        assert again.questions["login_2"].endswith("Who are you?")
        assert again.questions["login_2"] != "Who are you?"
        # What comes late for the first question is an answer to none.
        await flow.send({"login": accept(name="Eve")}, wait=False)
        await flow.send({"login_2": accept(name="Ann")}, wait=False)
        await tools.until(lambda: tools.ran == ["Hello, Ann"], "the branch that was answered")
        assert tools.runs == 1

    async def test_that_declines_ends_the_task_when_its_steps_have_run(self, tools: Tools) -> None:
        flow = await tools.start("beside")
        await tools.began()
        await tools.asks(flow, "login")
        await flow.send({"login": decline}, wait=False)
        await asyncio.sleep(0.1)
        tools.gate("work").set()
        assert "declined" in (await flow.wait()).failure
        assert (tools.ran, tools.runs) == (["work"], 1)

    async def test_counts_once_if_it_comes_twice_with_different_contents(self, tools: Tools, other: MRTRServer) -> None:
        flow = await tools.start("beside")
        await tools.began()
        await tools.asks(flow, "login")
        clients = [tools.client(), tools.client(other)]
        answers = [{"inputResponses": {"login": accept(name=name).raw}} for name in ("Ann", "Bob")]
        await asyncio.gather(*(update(each, flow, raw) for each, raw in zip(clients, answers, strict=True)))
        await tools.until(lambda: tools.ran, "the branch that was answered")
        await flow.send({"login": accept(name="Cid")}, wait=False)
        tools.gate("work").set()
        greeting = (await flow.wait()).structured[1]
        assert greeting in ("Hello, Ann", "Hello, Bob")
        assert tools.ran == [greeting, "work"]

    async def test_that_comes_just_as_the_round_ends_is_not_waited_for(
        self, tools: Tools, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        flow = await tools.start("beside")
        await tools.began()
        await tools.asks(flow, "login")
        store = tools.app._parts.tasks.store
        change, parking = store.change_task, 0

        async def answered_first(row: TaskRow, **changes: Any) -> TaskRow | None:
            nonlocal parking
            if changes.get("status") == "input_required":
                parking += 1
                if parking == 1:
                    await flow.send({"login": accept(name="Ann")}, wait=False)
            return await change(row, **changes)

        # By the worker alone, which has the same store.
        monkeypatch.setattr(tools.app._parts.tasks._records.store, "change_task", answered_first)
        tools.gate("work").set()
        await tools.until(lambda: "Hello, Ann" in tools.ran, "the branch that was answered")
        assert (await flow.wait()).structured == ["work", "Hello, Ann"]
        assert (tools.ran, parking) == (["work", "Hello, Ann"], 1)

    async def test_is_not_lost_with_the_worker_that_has_yet_to_use_it(
        self, tools: Tools, other: MRTRServer, stores: Callable[[], Store], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """It dies between the answer and the ask's return, and so does what it knew."""
        flow = await tools.start("beside")
        await tools.began()
        await tools.asks(flow, "login")
        monkeypatch.setattr(worker._LoopWorker, "on_change", lambda *_: True)
        await flow.send({"login": accept(name="Ann")}, wait=False)
        row = await tools.row(flow)
        lost = await tools.app._parts.tasks.store.change_task(row, lease="", leased_until=0.0)
        assert lost is not None
        tools.gate("work").set()
        assert (await flow.wait()).structured == ["work", "Hello, Ann"]
        assert tools.ran.count("Hello, Ann") == 1

    async def test_to_what_a_pure_function_returns_waits_for_the_others(self, tools: Tools) -> None:
        flow = await tools.start("returns")
        await tools.asks(flow, "login", "size")
        partly = await flow.answer(size={"size": 180})
        assert (partly.task.status, list(partly.asks)) == ("input_required", ["login"])
        await asyncio.sleep(0.1)
        assert tools.runs == 1
        assert (await flow.answer(login={"name": "Ann"})).text == "Ann is 180 tall"
        assert tools.runs == 2

    async def test_to_a_page_continues_when_that_has_reported(self, tools: Tools) -> None:
        flow = await tools.start("pages")
        await tools.began()
        page = urlsplit((await tools.asks(flow, "paid")).asked["paid"].url)
        await flow.send({"paid": accept()}, wait=False)
        browser = httpx.AsyncClient(transport=httpx.ASGITransport(tools.app), base_url="http://127.0.0.1")
        async with browser:
            assert (await browser.get(f"{page.path}?{page.query}")).status_code == 200
        await tools.until(lambda: tools.ran == ["paid 5"], "the branch that was answered")
        tools.gate("work").set()
        assert (await flow.wait()).structured == ["work", "paid 5"]
        assert tools.runs == 1


class TestAPageThatDoesNotReport:
    async def test_is_asked_for_again_beside_the_work(self, stores: Callable[[], Store]) -> None:
        tools = Tools(stores(), limits=Limits(hold_seconds=0.1))
        flow = await tools.start("pages")
        await tools.began()
        await tools.asks(flow, "paid")
        await flow.send({"paid": accept()}, wait=False)
        again = await tools.asks(flow, "paid_2")
        assert again.questions["paid_2"].startswith("The page that you opened has not reported back yet.")
        assert tools.runs == 1
        tools.gate("work").set()
        await tools.app._parts.worker.close()


class TestKeys:
    async def test_of_branches_are_not_taken_by_each_other(self, tools: Tools) -> None:
        """Nobody is asked twice because branches come to their asks in another order than before."""
        flow = await tools.start("chain")
        await tools.asks(flow, "login", "login_2")
        assert (await flow.look()).questions == {"login": "First?", "login_2": "Second?"}
        await flow.send({"login_2": accept(name="Bob")}, wait=False)
        await tools.asks(flow, "login")
        await flow.send({"login": accept(name="Ann")}, wait=False)
        third = await tools.asks(flow, "login_3")
        assert third.questions == {"login_3": "Third?"}
        assert (await flow.answer(login_3={"name": "Cid"})).structured == ["Ann Cid", "Bob"]

    async def test_of_a_question_that_was_withdrawn_does_not_hide_the_answer_to_the_next(self, tools: Tools) -> None:
        flow = await tools.start("changes")
        await tools.asks(flow, "login", "size")
        await tools.rests()
        await flow.send({"size": accept(size=180)}, wait=False)
        assert (await tools.asks(flow, "login_2")).questions == {"login_2": "Who are you now?"}
        assert (await flow.answer(login_2={"name": "Ann"})).text == "Ann is 180 tall"
        assert tools.runs == 3


class TestAStepThatFailsBesideAnAsk:
    async def test_is_handed_on_when_that_is_answered(self, tools: Tools) -> None:
        flow = await tools.start("fails")
        await tools.began("breaks")
        await tools.asks(flow, "login")
        # The round goes on as long as something runs, so the answer comes before the failure.
        await flow.send({"login": accept(name="Ann")}, wait=False)
        tools.gate("breaks").set()
        assert (await flow.wait()).text == "Ann: it broke"
        assert (tools.ran, tools.runs) == (["breaks"], 1)

    async def test_does_not_run_again_if_the_answer_comes_while_others_run(self, tools: Tools) -> None:
        async def fails_early(ctx: Context) -> str:
            """Have a step fail beside an ask and another step."""
            tools.runs += 1
            login, failed, slow = await asyncio.gather(
                ctx.elicit("Who are you?", Login),
                ctx.step(tools.breaks),
                ctx.step(tools.slow, "slow"),
                return_exceptions=True,
            )
            return f"{getattr(login, 'name', login)}: {failed}, {slow}"

        tools.app.tool(task="optional")(fails_early)
        flow = await tools.start("fails_early")
        await tools.began("slow")
        await tools.asks(flow, "login")
        tools.gate("breaks").set()
        await asyncio.sleep(0.1)
        assert tools.ran == ["breaks"]
        await flow.send({"login": accept(name="Ann")}, wait=False)
        await asyncio.sleep(0.1)
        tools.gate("slow").set()
        assert (await flow.wait()).text == "Ann: it broke, slow"
        assert (tools.ran, tools.runs) == (["breaks", "slow"], 1)


class TestATaskThatOnlyWaits:
    async def test_is_held_by_nobody(self, tools: Tools) -> None:
        flow = await tools.start("beside")
        await tools.began()
        await tools.asks(flow, "login")
        tools.gate("work").set()
        await tools.rests()
        row = await tools.row(flow)
        assert (row.status, row.lease) == ("input_required", "")
        assert (await flow.answer(login={"name": "Ann"})).structured == ["work", "Hello, Ann"]
        assert tools.ran == ["work", "Hello, Ann"]


class TestACancelledAsk:
    """A timeout, or a sibling that fails, cancels it just as it is answered: nothing continues without the answer."""

    async def test_that_has_just_been_answered_is_answered_in_the_next_round(
        self, tools: Tools, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        asking: list[asyncio.Task[Any]] = []

        async def impatient(ctx: Context) -> list[str]:
            """Continue without an answer, if it can."""
            tools.runs += 1

            async def greets() -> str:
                asking.append(asyncio.ensure_future(ctx.elicit("Who are you?", Login)))
                try:
                    return str((await asking[-1]).name)
                except asyncio.CancelledError:
                    return await ctx.step(tools.did, "without the answer")

            return list(await asyncio.gather(ctx.step(tools.slow, "work"), greets()))

        take = WaitingRound._continue_answered

        def take_and_cancel(round_: WaitingRound) -> None:
            take(round_)
            asking[0].cancel()

        tools.app.tool(task="optional")(impatient)
        monkeypatch.setattr(WaitingRound, "_continue_answered", take_and_cancel)
        flow = await tools.start("impatient")
        await tools.began()
        await tools.asks(flow, "login")
        await flow.send({"login": accept(name="Ann")}, wait=False)
        tools.gate("work").set()
        assert (await flow.wait()).structured == ["work", "Ann"]
        assert (tools.ran, tools.runs) == (["work"], 2)

    async def test_that_waits_for_its_page_is_asked_still(self, tools: Tools) -> None:
        timeouts: list[asyncio.Timeout] = []

        async def impatient(ctx: Context) -> list[str]:
            """Continue without the page, if it can."""
            tools.runs += 1

            async def pays() -> str:
                try:
                    async with asyncio.timeout(None) as each:
                        timeouts.append(each)
                        return f"paid {await ctx.elicit_url('Please pay', callback=tools.paid)}"
                except TimeoutError:
                    return await ctx.step(tools.did, "without the page")

            return list(await asyncio.gather(ctx.step(tools.slow, "work"), pays()))

        tools.app.tool(task="optional")(impatient)
        flow = await tools.start("impatient")
        await tools.began()
        page = urlsplit((await tools.asks(flow, "paid")).asked["paid"].url)
        await flow.send({"paid": accept()}, wait=False)
        timeouts[0].reschedule(0)
        await tools.until(timeouts[0].expired, "its timeout")
        tools.gate("work").set()
        await tools.until(lambda: tools.ran == ["work"], "the work")
        browser = httpx.AsyncClient(transport=httpx.ASGITransport(tools.app), base_url="http://127.0.0.1")
        async with browser:
            assert (await browser.get(f"{page.path}?{page.query}")).status_code == 200
        assert (await flow.wait()).structured == ["work", "paid 5"]
        assert (tools.ran, tools.runs) == (["work"], 2)


class TestWhatEndsARound:
    async def test_hands_over_what_works_whatever_is_asked(self, tools: Tools, stores: Callable[[], Store]) -> None:
        """What is asked stays open under its key, and the work continues elsewhere."""

        async def works_on(ctx: Context) -> list[str]:
            """Ask beside two steps."""
            tools.runs += 1

            async def work() -> str:
                await ctx.step(tools.slow, "one")
                return await ctx.step(tools.slow, "two")

            return list(await asyncio.gather(work(), tools.greets(ctx)))

        tools.app.tool(task="optional")(works_on)
        flow = await tools.start("works_on")
        await tools.began("one")
        await tools.asks(flow, "login")
        tools.app.drain()
        successor = replica(tools.app, store=stores())
        successor._parts.worker.start()
        tools.gate("one").set()
        await tools.began("two")
        assert list((await flow.look()).asks) == ["login"]
        flow.move_to(successor)
        await flow.send({"login": accept(name="Ann")}, wait=False)
        await tools.until(lambda: "Hello, Ann" in tools.ran, "the branch that was answered")
        tools.gate("two").set()
        assert (await flow.wait()).structured == ["two", "Hello, Ann"]
        assert (tools.ran, tools.runs) == (["one", "Hello, Ann", "two"], 2)
        await successor._parts.worker.close()

    async def test_may_be_a_cancellation(self, tools: Tools, other: MRTRServer) -> None:
        flow = await tools.start("beside")
        await tools.began()
        await tools.asks(flow, "login")
        flow.move_to(other)
        await flow.cancel()
        await flow.send({"login": accept(name="Ann")}, wait=False)
        tools.gate("work").set()
        await tools.until(lambda: "work" in tools.ran, "the step")
        await tools.rests()
        assert tools.ran == ["work"]


class TestACancellationOnAnotherReplica:
    async def test_is_heard_of_by_a_notice(
        self, tools: Tools, stores: Callable[[], Store], other: MRTRServer, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        store = tools.store
        if isinstance(store, InProcessStore):
            pytest.skip("a store in memory is that of one process")
        ended = asyncio.Event()

        async def endless() -> None:
            """Run no step, and never end."""
            tools.gate("endless began").set()
            try:
                await asyncio.Event().wait()
            finally:
                ended.set()

        async def held(lease: str, ids: list[str], *, seconds: float) -> set[str]:
            return set(ids)

        tools.app.tool(task="optional")(endless)
        monkeypatch.setattr(tools.app._parts.tasks.store, "renew_tasks", held)  # by which it hears of it otherwise
        monkeypatch.setattr(worker, "HEARTBEAT_INTERVAL", 0.05)
        flow = await tools.start("endless")
        await tools.began("endless")
        assert isinstance(store, SQLStore)
        (here,) = tools.app._parts.worker._loop_workers.values()
        await tools.until(lambda: here._listened and store.notices.connected, "it to listen")
        flow.move_to(other)
        await flow.cancel()
        async with asyncio.timeout(TIMEOUT):
            await ended.wait()


class TestTheTimeForAnAnswer:
    @pytest.fixture
    def clock(self) -> Clock:
        return Clock()

    @pytest.fixture
    async def tools(self, clock: Clock) -> AsyncIterator[Tools]:
        made = Tools(InProcessStore(clock), clock=clock)
        yield made
        for gate in made.gates.values():
            gate.set()
        await made.app._parts.worker.close()

    async def test_ends_the_task_though_it_works(self, tools: Tools, clock: Clock) -> None:
        flow = await tools.start("hurries")
        await tools.began()
        await tools.asks(flow, "login")
        clock.advance(61)
        reply = await flow.look()
        assert (reply.task.status, "input" in reply.error.message) == ("failed", True)

    async def test_is_that_of_each_question(self, tools: Tools, clock: Clock) -> None:
        flow = await tools.start("hurries")
        await tools.began()
        await tools.asks(flow, "login")
        clock.advance(50)
        tools.gate("pause").set()
        await tools.asks(flow, "login", "size")
        await flow.send({"login": accept(name="Ann")}, wait=False)
        clock.advance(50)
        assert list((await flow.look()).asks) == ["size"]
        await flow.send({"size": accept(size=180)}, wait=False)
        clock.advance(100)
        tools.gate("work").set()
        assert (await flow.wait()).structured == ["work", "Hello, Ann", '{"size":180}']
