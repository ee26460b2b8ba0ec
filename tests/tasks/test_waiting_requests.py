"""Requests that wait for a task: woken by what changes it, wherever that happens; bounded, and holding nothing."""

import asyncio
import json
import logging
import signal
import threading
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

from mrtr_server import BearerTokens, Context, Limits, MRTRServer, StoreUnavailable, TaskRow
from mrtr_server.flow.admission import Admission
from mrtr_server.protocol.messages import Change
from mrtr_server.storage.pubsub import InProcessFanout
from mrtr_server.tasks import notifications as task_waiting
from mrtr_server.tasks.notifications import WaitingRequests
from mrtr_server.testing import replica

from ..support.databases import PostgreSQL, task_row
from ..support.direct import Exchange, exchange, scope_of
from ..support.fleet import fleet
from ..support.models import Login
from ..support.serving import TIMEOUT
from ..support.stores import carrying
from ..support.virtual_time import VirtualTime
from ..support.wire import JSON, PREFIX, Reply, Wire, accept, request

pytestmark = pytest.mark.anyio

RELATED, RESPONSE = PREFIX + "related-task", PREFIX + "elicitation-response"
PENDING = PREFIX + "pending-elicitations"

app = MRTRServer("waiting", keys=[bytes(32)])
gates: dict[str, asyncio.Event] = {}
"""What lets a tool go on."""


class Size(BaseModel):
    size: int


def gate(name: str) -> asyncio.Event:
    return gates.setdefault(name, asyncio.Event())


@app.tool(task="optional")
async def held(name: str) -> str:
    """End when the test says so."""
    await gate(name).wait()
    return f"{name} is done"


@app.tool(task="optional")
async def asks_later(name: str, ctx: Context) -> str:
    """Ask when the test says so, and end when it says so."""
    await gate(name).wait()
    login = await ctx.elicit("Who are you?", Login)
    await gate(f"{name} again").wait()
    return f"Hello, {login.name}"


@app.tool(task="optional")
async def both(ctx: Context) -> str:
    """Ask two things at once."""
    login, size = await asyncio.gather(ctx.elicit("Who are you?", Login), ctx.elicit("How tall?", Size))
    return f"{login.name} is {size.size} tall"


@dataclass
class Replicas:
    """Two servers of one application: one is asked, the other, which may be the same, runs the tasks.

    Args:
        front: the one that is asked.
        back: the one that runs them.
    """

    front: MRTRServer
    back: MRTRServer

    @property
    def waiting(self) -> int:
        """How many requests wait."""
        return self.front._parts.tasks._waiting.places.taken

    async def until_waiting(self, count: int = 1) -> None:
        """Wait until so many requests do."""
        async with asyncio.timeout(TIMEOUT):
            while self.waiting != count:  # noqa: ASYNC110  nothing tells of it
                await asyncio.sleep(0)

    def opening(self, method: str, params: JSON, token: str = "") -> Exchange:
        """Return a request as the drafts send it, which begins when the test says so."""
        headers = [(b"content-type", b"application/json")]
        if token:
            headers.append((b"authorization", f"Bearer {token}".encode()))
        return Exchange(self.front, scope_of(headers)).body(json.dumps(request(method, params)).encode())

    async def send(self, method: str, params: JSON, token: str = "") -> Reply:
        """Send a request as the drafts do."""
        return await self.opening(method, params, token).end()

    async def start(self, tool: str, token: str = "", **arguments: Any) -> str:
        """Start a task; return its id."""
        params = {"name": tool, "arguments": arguments, "task": {"ttl": 60000}}
        return str((await self.send("tools/call", params, token)).result["task"]["taskId"])

    async def answer(self, task: str, key: str, **content: Any) -> Reply:
        """Send an answer with a look at the task."""
        return await self.send("tasks/get", _answering(task, key, **content))


def _answering(task: str, key: str, **content: Any) -> JSON:
    return {"taskId": task, "_meta": {RESPONSE: {"elicitationId": key, **accept(**content)}}}


async def _replicas(stack: AsyncExitStack, url: str | None, **settings: Any) -> Replicas:
    if url is None:
        alone = replica(app, **settings)
        stack.push_async_callback(alone._parts.worker.close)
        return Replicas(alone, alone)
    front, back = replica(app, store=url, run_tasks=False, **settings), replica(app, store=url)
    await stack.enter_async_context(back.worker())
    stack.push_async_callback(front._parts.shared.store.close)
    return Replicas(front, back)


@pytest.fixture(autouse=True)
def closed_gates() -> None:
    gates.clear()


@pytest.fixture
async def replicas(store_url: str | None) -> AsyncIterator[Replicas]:
    """On each kind of store; where there is a database, the tasks run on another replica."""
    async with AsyncExitStack() as stack:
        yield await _replicas(stack, store_url, limits=Limits(first_ask_seconds=TIMEOUT))


@pytest.fixture
async def alone() -> AsyncIterator[Replicas]:
    """One server, with its tasks in memory."""
    async with AsyncExitStack() as stack:
        yield await _replicas(stack, None)


@pytest.fixture
def no_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    """See that requests are woken, and do not happen to look at the right moment."""
    monkeypatch.setattr(task_waiting, "FIRST_LOOK", 600.0)


@pytest.mark.usefixtures("no_looks")
class TestARequestIsWoken:
    """By the change that it waits for, on whichever replica that happens."""

    async def test_by_the_end_of_the_task_that_it_wants_the_result_of(self, replicas: Replicas) -> None:
        task = await replicas.start("held", name="a")
        waiting = replicas.opening("tasks/result", {"taskId": task}).start()
        await replicas.until_waiting()
        gate("a").set()
        assert (await waiting.end()).text == "a is done"
        assert replicas.waiting == 0

    async def test_by_a_question(self, replicas: Replicas) -> None:
        task = await replicas.start("asks_later", name="a")
        waiting = replicas.opening("tasks/result", {"taskId": task}).start()
        await replicas.until_waiting()
        gate("a").set()
        result = (await waiting.end()).result
        assert result["inputRequests"].keys() == {"login"}
        assert result.keys() == {"inputRequests", "_meta"}

    async def test_by_a_cancellation(self, replicas: Replicas) -> None:
        task = await replicas.start("held", name="a")
        waiting = replicas.opening("tasks/result", {"taskId": task}).start()
        await replicas.until_waiting()
        await replicas.send("tasks/cancel", {"taskId": task})
        reply = await waiting.end()
        assert (reply.status, reply.code) == (400, -32602)

    async def test_by_the_first_ask_of_the_task_that_it_starts(self, replicas: Replicas) -> None:
        call = {"name": "asks_later", "arguments": {"name": "a"}, "task": {}}
        waiting = replicas.opening("tools/call", call).start()
        await replicas.until_waiting()
        gate("a").set()
        result = (await waiting.end()).result
        assert (result["status"], len(result["_meta"][PENDING])) == ("input_required", 1)

    async def test_by_what_comes_of_the_answer_that_it_brings(self, replicas: Replicas) -> None:
        gate("a").set()
        task = await replicas.start("asks_later", name="a")
        await replicas.send("tasks/result", {"taskId": task})
        waiting = replicas.opening("tasks/get", _answering(task, "login", name="octocat")).start()
        await replicas.until_waiting()
        gate("a again").set()
        assert (await waiting.end()).task.status == "completed"


class TestARequestDoesNotWait:
    async def test_that_looks_at_a_task_and_brings_nothing(self, alone: Replicas) -> None:
        """Rationale: polling has the same latency, whatever the task does."""
        task = await alone.start("held", name="a")
        looking = alone.opening("tasks/get", {"taskId": task}).start()
        assert (await looking.end()).result["status"] == "working"
        assert alone.waiting == 0
        gate("a").set()

    async def test_that_brings_one_of_two_answers(self, alone: Replicas) -> None:
        task = await alone.start("both")
        await alone.send("tasks/result", {"taskId": task})
        seen = (await alone.answer(task, "login", name="octocat")).result
        assert seen["status"] == "input_required"
        assert (await alone.answer(task, "size", size=180)).task.status == "completed"

    async def test_whose_task_has_ended(self, alone: Replicas) -> None:
        gate("a").set()
        task = await alone.start("held", name="a")
        for _ in range(2):
            assert (await alone.send("tasks/result", {"taskId": task})).text == "a is done"


class TestTheWaitEnds:
    @pytest.fixture
    async def hurried(self) -> AsyncIterator[Replicas]:
        async with AsyncExitStack() as stack:
            yield await _replicas(stack, None, limits=Limits(result_wait_seconds=0.05, first_ask_seconds=0.05))

    async def test_with_a_state_to_come_again_with_when_the_task_takes_longer(self, hurried: Replicas) -> None:
        """An incomplete result without a question: a client sends the request again at once, with its state."""
        task = await hurried.start("held", name="a")
        incomplete = (await hurried.send("tasks/result", {"taskId": task})).result
        assert incomplete == {"requestState": incomplete["requestState"], "_meta": {RELATED: {"taskId": task}}}
        again = {"taskId": task, "requestState": incomplete["requestState"]}
        assert (await hurried.send("tasks/result", again)).result.keys() == {"requestState", "_meta"}
        gate("a").set()
        async with asyncio.timeout(TIMEOUT):
            while "content" not in (reply := await hurried.send("tasks/result", again)).result:
                again["requestState"] = reply.state
        assert reply.text == "a is done"

    async def test_with_the_task_as_it_is_when_nothing_comes_of_an_answer_for_a_while(self, hurried: Replicas) -> None:
        gate("a").set()
        task = await hurried.start("asks_later", name="a")
        async with asyncio.timeout(TIMEOUT):
            while "inputRequests" not in (await hurried.send("tasks/result", {"taskId": task})).result:
                pass
        began = time.monotonic()
        assert (await hurried.answer(task, "login", name="octocat")).result["status"] == "working"
        assert time.monotonic() - began < TIMEOUT
        gate("a again").set()

    async def test_after_a_second_when_the_first_ask_takes_longer(self, alone: Replicas) -> None:
        began = time.monotonic()
        call = {"name": "held", "arguments": {"name": "a"}, "task": {}}
        assert (await alone.send("tools/call", call)).result["status"] == "working"
        assert 0.9 < time.monotonic() - began < TIMEOUT
        gate("a").set()

    @pytest.mark.parametrize(("first_ask", "ttl"), [(0.3, 600.0), (600.0, 0.3)], ids=["the server's", "the task's own"])
    async def test_for_the_first_ask_at_the_sooner_of_two_bounds(self, first_ask: float, ttl: float) -> None:
        async with AsyncExitStack() as stack:
            # Nobody runs the task, or ends it when its time is over.
            limits = Limits(first_ask_seconds=first_ask, task_seconds=ttl)
            server = await _replicas(stack, None, limits=limits, run_tasks=False)
            began = time.monotonic()
            call = {"name": "held", "arguments": {"name": "a"}, "task": {}}
            assert (await server.send("tools/call", call)).result["status"] == "working"
            assert 0.25 < time.monotonic() - began < TIMEOUT
            gate("a").set()

    async def test_when_the_client_leaves(self, alone: Replicas) -> None:
        task = await alone.start("held", name="a")
        waiting = alone.opening("tasks/result", {"taskId": task}).start()
        await alone.until_waiting()
        waiting.disconnect()
        await waiting.end()
        fanout: Any = alone.front._parts.fanout
        assert (alone.waiting, fanout._listeners, fanout._listeners_to) == (0, set(), {})
        gate("a").set()
        assert (await alone.send("tasks/result", {"taskId": task})).text == "a is done"

    async def test_when_the_server_begins_to_drain(self, alone: Replicas) -> None:
        task = await alone.start("held", name="a")
        waiting = [alone.opening("tasks/result", {"taskId": task}).start() for _ in range(3)]
        await alone.until_waiting(3)
        alone.front.drain()
        for reply in [await each.end() for each in waiting]:
            assert reply.result.keys() == {"requestState", "_meta"}
            assert reply.headers["connection"] == "close"
        gate("a").set()

    async def test_within_a_moment_when_it_begins_on_a_server_that_drains(
        self, alone: Replicas, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Its client would come again at once, and again, where no other replica is there to take it."""
        monkeypatch.setattr(task_waiting, "WHILE_DRAINING", 0.2)
        task = await alone.start("held", name="a")
        alone.front.drain()
        for _ in range(2):
            began = time.monotonic()
            assert "requestState" in (await alone.send("tasks/result", {"taskId": task})).result
            assert 0.15 < time.monotonic() - began < TIMEOUT
        gate("a").set()

    async def test_by_a_look_where_nobody_could_tell_of_the_change(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Whoever changed the task died before it told; or a fan-out of the author's carries nothing to here."""

        class Deaf(InProcessFanout):
            def publish(self, change: Change) -> None:
                pass

        monkeypatch.setattr(task_waiting, "FIRST_LOOK", 0.01)
        async with AsyncExitStack() as stack:
            deaf = await _replicas(stack, None, store=carrying(Deaf()))
            task = await deaf.start("held", name="a")
            waiting = deaf.opening("tasks/result", {"taskId": task}).start()
            await deaf.until_waiting()
            gate("a").set()
            assert (await waiting.end()).text == "a is done"


class TestARequestThatNobodyTells:
    """It looks at its task by itself: soon at first, and then less and less often."""

    def looks(self, virtual_time: VirtualTime, seconds: float, *, is_over: bool = False, drains: float = 0) -> str:
        """Wait for a task that works on.

        Args:
            virtual_time: passes.
            seconds: how long to wait at most.
            is_over: whether the fan-out ends the subscription at once.
            drains: after how many seconds the server begins to drain; 0 for never.

        Returns:
            After how many seconds it looked at its task.
        """
        fanout, limits, looks, row = InProcessFanout(), Limits(), list[str](), task_row()
        admission = Admission(limits)
        waiting = WaitingRequests(fanout, admission, limits, lambda row: row.status)

        async def find() -> TaskRow:
            looks.append(f"{virtual_time.now - began:g}")
            assert len(looks) < 20, "it waits in between"
            return row

        async def wait() -> None:
            work = asyncio.create_task(waiting.wait_for(row, find, seconds))
            await asyncio.sleep(0)
            if is_over:
                for listener in tuple(fanout._listeners):
                    listener.close()
            if drains:
                asyncio.get_running_loop().call_later(drains, admission.drain)
            assert await work == row
            assert fanout._listeners == set()

        began = virtual_time.now
        virtual_time.run(wait())
        return " ".join(looks)

    def test_looks_after_twice_the_time_and_every_five_seconds_at_last(self, virtual_time: VirtualTime) -> None:
        assert self.looks(virtual_time, 20) == "0 0.5 1.5 3.5 7.5 12.5 17.5 20"

    def test_looks_on_by_itself_where_the_fan_out_has_ended_the_subscription(self, virtual_time: VirtualTime) -> None:
        assert self.looks(virtual_time, 20, is_over=True) == "0 0 1 3 7 12 17 20"

    def test_looks_once_more_when_the_server_begins_to_drain_and_waits_no_longer(
        self, virtual_time: VirtualTime
    ) -> None:
        assert self.looks(virtual_time, 20, drains=4.25) == "0 0.5 1.5 3.5 4.25"


class TestARequestLooksAtItsTask:
    """Each time that it has to, and no more often."""

    def looks(self, virtual_time: VirtualTime, row: TaskRow, *, sends_pieces: bool) -> tuple[list[float], list[float]]:
        """Wait for half a second, while a piece comes after a quarter.

        Returns:
            After how many seconds it looked at its task, and sent what pieces there were.
        """
        fanout, limits, looked, sent = InProcessFanout(), Limits(), list[float](), list[float]()
        waiting = WaitingRequests(fanout, Admission(limits), limits, lambda row: row.status)

        async def find() -> TaskRow:
            looked.append(virtual_time.now - began)
            return row

        class Reader:
            async def send_new(self) -> None:
                sent.append(virtual_time.now - began)

        async def wait() -> None:
            asyncio.get_running_loop().call_later(0.25, fanout.publish, Change("piece", row.id))
            reader: Any = Reader() if sends_pieces else None
            assert await waiting.wait_for(row, find, 0.5, reader) == row

        began = virtual_time.now
        virtual_time.run(wait())
        return looked, sent

    def test_looks_when_a_piece_comes_that_it_is_to_send(self, virtual_time: VirtualTime) -> None:
        assert self.looks(virtual_time, task_row(), sends_pieces=True) == ([0, 0.25, 0.5], [0, 0.25, 0.5])

    def test_does_not_look_for_pieces_that_its_client_does_not_want(self, virtual_time: VirtualTime) -> None:
        assert self.looks(virtual_time, task_row(), sends_pieces=False) == ([0, 0.5], [])

    @pytest.mark.parametrize("status", ["input_required", "completed", "failed", "cancelled"])
    def test_does_not_look_again_where_it_asks_or_has_ended(self, virtual_time: VirtualTime, status: str) -> None:
        assert self.looks(virtual_time, task_row(status=status), sends_pieces=True) == ([], [0])


class TestWaitingIsBounded:
    async def test_waiting_requests_are_bounded_in_number(self) -> None:
        async with AsyncExitStack() as stack:
            small = await _replicas(stack, None, limits=Limits(task_waits=2, first_ask_seconds=600))
            task = await small.start("held", name="a")
            waiting = [small.opening("tasks/result", {"taskId": task}).start() for _ in range(2)]
            await small.until_waiting(2)
            refused = await small.send("tasks/result", {"taskId": task})
            assert (refused.status, refused.headers["retry-after"]) == (503, "1")
            assert "later" in refused.error.message
            # What has another answer than to wait gives it.
            gate("done").set()
            call = {"name": "held", "arguments": {"name": "done"}, "task": {"ttl": 60000}}
            done = (await small.send("tools/call", call)).result["task"]["taskId"]
            async with asyncio.timeout(TIMEOUT):
                while (await small.send("tasks/get", {"taskId": done})).task.status == "working":
                    pass
            assert (await small.send("tasks/result", {"taskId": done})).text == "done is done"
            call = {"name": "held", "arguments": {"name": "a"}, "task": {}}
            assert (await small.send("tools/call", call)).result["status"] == "working"
            assert (await small.answer(task, "login", name="x")).result["status"] == "working"
            assert (await small.send("tasks/get", {"taskId": task})).result["status"] == "working"
            gate("a").set()
            assert {(await each.end()).text for each in waiting} == {"a is done"}
            assert (await small.send("tasks/result", {"taskId": task})).text == "a is done"

    async def test_those_of_one_caller_leave_room_to_others(self) -> None:
        async with AsyncExitStack() as stack:
            limits = Limits(task_waits=4, caller_share=0.25, first_ask_seconds=600)
            shared = await _replicas(stack, None, limits=limits, auth=BearerTokens({"a": "ann", "b": "bob"}))
            tasks = {token: await shared.start("held", token, name="a") for token in "ab"}
            waiting = [shared.opening("tasks/result", {"taskId": tasks["a"]}, "a").start()]
            await shared.until_waiting()
            refused = await shared.send("tasks/result", {"taskId": tasks["a"]}, "a")
            assert (refused.status, refused.headers["retry-after"]) == (503, "1")
            assert "later" in refused.error.message
            # What has another answer than to wait gives it.
            call = {"name": "held", "arguments": {"name": "a"}, "task": {}}
            assert (await shared.send("tools/call", call, "a")).result["status"] == "working"
            waiting.append(shared.opening("tasks/result", {"taskId": tasks["b"]}, "b").start())
            await shared.until_waiting(2)
            gate("a").set()
            assert {(await each.end()).text for each in waiting} == {"a is done"}

    async def test_waiting_holds_no_place_among_the_calls_that_run(self) -> None:
        async with AsyncExitStack() as stack:
            narrow = await _replicas(stack, None, limits=Limits(max_concurrency=1, first_ask_seconds=600))
            task = await narrow.start("held", name="a")
            call = {"name": "held", "arguments": {"name": "a"}, "task": {}}
            waiting = [narrow.opening("tasks/result", {"taskId": task}), narrow.opening("tools/call", call)]
            for each in waiting:
                each.start()
            await narrow.until_waiting(2)
            gate("b").set()
            assert (await narrow.send("tools/call", {"name": "held", "arguments": {"name": "b"}})).text == "b is done"
            gate("a").set()
            for each in waiting:
                assert (await each.end()).status == 200

    async def test_waiting_holds_no_connection_to_the_database(self, postgresql: PostgreSQL) -> None:
        url = postgresql.url(await postgresql.new_database())
        async with AsyncExitStack() as stack:
            replicas = await _replicas(stack, url, limits=Limits(result_wait_seconds=600))
            task = await replicas.start("held", name="a")
            many = [replicas.opening("tasks/result", {"taskId": task}).start() for _ in range(100)]
            await replicas.until_waiting(100)
            for _ in range(20):
                assert (await replicas.send("tasks/get", {"taskId": task})).result["status"] == "working"
            begin = time.monotonic()
            gate("a").set()
            assert {(await each.end()).text for each in many} == {"a is done"}
            assert time.monotonic() - begin < TIMEOUT

    async def test_by_what_those_cost_who_wait_for_the_same_task(self) -> None:
        """A change of one task does not ask everybody who waits for others."""
        fanout, asked = InProcessFanout(), 0

        class Counted(frozenset[Change]):
            def __contains__(self, change: object) -> bool:
                nonlocal asked
                asked += 1
                return super().__contains__(change)

        others = [fanout.subscribe(Counted({Change("task", str(number))})) for number in range(100)]
        mine = fanout.subscribe(frozenset({Change("task", "mine")}))
        fanout.publish(Change("task", "mine"))
        assert await mine.next() == [Change("task", "mine")]
        assert asked == 0
        for each in (*others, mine):
            each.close()
        assert (fanout._listeners, fanout._listeners_to) == (set(), {})


class TestAStateToComeAgainWith:
    @pytest.fixture
    async def shared(self) -> AsyncIterator[Replicas]:
        auth = BearerTokens({"a": "ann", "b": "bob"})
        limits = Limits(result_wait_seconds=0.01)
        async with AsyncExitStack() as stack:
            yield await _replicas(stack, None, auth=auth, limits=limits)

    async def test_is_good_for_its_task_and_its_caller_alone(
        self, shared: Replicas, caplog: pytest.LogCaptureFixture
    ) -> None:
        mine, other = await shared.start("held", "a", name="a"), await shared.start("held", "a", name="a")
        theirs = await shared.start("held", "b", name="a")
        state, others, strangers = [
            (await shared.send("tasks/result", {"taskId": task}, token)).state
            for task, token in ((mine, "a"), (other, "a"), (theirs, "b"))
        ]
        asked = await shared.opening("tools/call", {"name": "both", "arguments": {}}, "a").end()
        assert (
            "requestState" in (await shared.send("tasks/result", {"taskId": mine, "requestState": state}, "a")).result
        )
        bad: list[Any] = [others, strangers, asked.state, state[:-1], state + "A", "", "x", "A" * 60_000, 5, [state]]
        with caplog.at_level(logging.WARNING):
            refused = [await shared.send("tasks/result", {"taskId": mine, "requestState": each}, "a") for each in bad]
        assert {reply.body for reply in refused} == {refused[0].body}
        assert (refused[0].status, refused[0].code) == (400, -32602)
        assert "requestState is not valid" in refused[0].error.message
        reasons = [line for line in caplog.messages if "refused a requestState" in line]
        assert 4 <= len(reasons) == len(set(reasons)) < len(bad), "each reason is told once"
        assert not any(task in caplog.text for task in (mine, other, theirs)), "the id is a secret"
        gate("a").set()

    async def test_may_come_with_answers_too(self, shared: Replicas) -> None:
        """A client that knows one way to go on from an incomplete result takes that."""
        task = await shared.start("held", "a", name="a")
        state = (await shared.send("tasks/result", {"taskId": task}, "a")).state
        sent = {"taskId": task, "inputResponses": {}, "requestState": state}
        assert (await shared.send("tasks/input_response", sent, "a")).result == {"_meta": {RELATED: {"taskId": task}}}
        gate("a").set()


async def test_a_store_that_goes_away_is_no_endless_wait(alone: Replicas, monkeypatch: pytest.MonkeyPatch) -> None:
    task = await alone.start("held", name="a")
    waiting = alone.opening("tasks/result", {"taskId": task}).start()
    await alone.until_waiting()
    monkeypatch.setattr(alone.front._parts.tasks, "_find", _away)
    alone.front._parts.tasks._records.notify(task)
    assert (await waiting.end()).status == 500
    assert alone.waiting == 0
    gate("a").set()


async def _away(*_: Any) -> None:
    raise StoreUnavailable("it is away")


async def test_only_methods_that_give_states_take_them(alone: Replicas) -> None:
    reply = await exchange(
        alone.front,
        json.dumps(request("tasks/get", {"taskId": "x", "requestState": "y"})).encode(),
        [(b"content-type", b"application/json")],
    )
    assert (reply.status, reply.code) == (400, -32602)
    assert "requestState is not valid" in reply.error.message


def test_who_waits_at_a_server_that_ends_goes_on_at_another(tmp_path: Path) -> None:
    """Real processes: SIGTERM ends the wait with a state, and the request comes again elsewhere, with it."""
    replies: list[Reply] = []

    def ask(wire: Wire, **state: str) -> None:
        replies.append(wire.draft(request("tasks/result", {"taskId": task, **state})))

    with fleet(tmp_path) as processes, ExitStack() as stack:
        processes.environment["TASKS_LAME_DUCK"] = "2"  # so that the request is taken, however slow its thread
        ending, staying = (processes.serve(run_tasks=run_tasks)[0] for run_tasks in (False, True))
        first, second = (Wire(f"http://127.0.0.1:{server.port}/mcp") for server in (ending, staying))
        for wire in (first, second):
            stack.callback(wire.close)
        with processes.held():
            call = {"name": "work", "arguments": {"parts": 1}, "task": {"ttl": 60000}}
            task = first.draft(request("tools/call", call)).result["task"]["taskId"]
            processes.wait_for("part")
            waiting = threading.Thread(target=ask, args=(first,))
            waiting.start()
            ending.process.send_signal(signal.SIGTERM)
            waiting.join(TIMEOUT)
            (handed_over,) = replies
            assert handed_over.result.keys() == {"requestState", "_meta"}
            assert handed_over.headers["connection"] == "close"
            ending.wait(TIMEOUT)  # nobody holds it up
            again = threading.Thread(target=ask, args=(second,), kwargs={"requestState": handed_over.state})
            again.start()
        again.join(TIMEOUT)
        assert replies[1].text == str(staying.process.pid)
