"""Pieces of the result of a task: kept by whoever runs it, and sent by any replica to clients that wait for it."""

import asyncio
import json
import logging
import math
from collections.abc import AsyncIterator, Awaitable
from contextlib import AsyncExitStack
from typing import Any

import pytest
from typing_extensions import override

from mrtr_server import (
    Context,
    ImageContent,
    InProcessStore,
    KeyRing,
    Limits,
    MRTRServer,
    Principal,
    StoreUnavailable,
    Task,
    TaskRow,
)
from mrtr_server.errors import Full
from mrtr_server.protocol.messages import NOTHING, Call, Change, Note, Piece
from mrtr_server.storage.pubsub import InProcessFanout
from mrtr_server.storage.quotas import ANY, Quota
from mrtr_server.tasks import records as tasks_records
from mrtr_server.tasks.records import PieceReader, PieceWriter, TaskPieces, TaskRecords
from mrtr_server.testing import AsyncClient, replica, sampled

from ..support.direct import Exchange, scope_of
from ..support.flows import pieces_of
from ..support.serving import TIMEOUT
from ..support.users import Bearer
from ..support.virtual_time import VirtualTime
from ..support.wire import ACCEPT, JSON, PREFIX, Reply, request

pytestmark = pytest.mark.anyio

PIECE = "notifications/tools/content"

app = MRTRServer("pieces", keys=[bytes(32)])
gates: dict[str, asyncio.Event] = {}


def gate(name: str) -> asyncio.Event:
    return gates.setdefault(name, asyncio.Event())


@app.tool(task="optional")
async def story(ctx: Context, name: str = "a") -> AsyncIterator[str | ImageContent]:
    """Yield, wait for the test, yield, ask, yield."""
    yield "Once "
    yield "upon "
    await gate(name).wait()
    yield "a time"
    yield ImageContent(data=b"x")
    await ctx.sample("And then?", key="then")
    yield "the end"


@app.tool(task="optional")
async def recorded(ctx: Context) -> AsyncIterator[str]:
    """Yield, and run a step."""
    yield "one, "
    await asyncio.sleep(0.01)
    yield "two, "
    await ctx.step(str, key="step")
    gate("recorded").set()
    await gate("a").wait()
    yield "three"


@app.tool(task=Task(rounds_first=True))
async def later(ctx: Context) -> AsyncIterator[str]:
    """Become a task in the middle."""
    yield "in a round, "
    await ctx.background()
    await gate("later").wait()
    yield "in a task"


class Replicas:
    """A server that is asked, and one that runs the tasks; they may be the same."""

    def __init__(self, front: MRTRServer) -> None:
        self.front = front

    def opening(self, message: JSON) -> Exchange:
        """Return a request as the drafts send it, which begins when the test says so."""
        headers = [(b"content-type", b"application/json"), (b"accept", ACCEPT.encode())]
        return Exchange(self.front, scope_of(headers)).body(json.dumps(message).encode())

    async def send(self, message: JSON) -> Reply:
        return await self.opening(message).end()

    async def start(self, tool: str = "story", **arguments: Any) -> str:
        """Start a task; return its id."""
        params = {"name": tool, "arguments": arguments, "task": {"ttl": 60000}}
        return str((await self.send(request("tools/call", params))).result["task"]["taskId"])

    async def answer(self, task: str) -> None:
        answers = {"then": {"role": "assistant", "content": {"type": "text", "text": "x"}, "model": "m"}}
        reply = await self.send(request("tasks/input_response", {"taskId": task, "inputResponses": answers}))
        assert "result" in reply.message


async def _replicas(stack: AsyncExitStack, url: str | None, **settings: Any) -> Replicas:
    if url is None:
        alone = replica(app, **settings)
        stack.push_async_callback(alone._parts.worker.close)
        return Replicas(alone)
    front, back = replica(app, store=url, run_tasks=False, **settings), replica(app, store=url)
    await stack.enter_async_context(back.worker())
    stack.push_async_callback(front._parts.shared.store.close)
    return Replicas(front)


@pytest.fixture(autouse=True)
def closed_gates() -> None:
    gates.clear()


@pytest.fixture
async def replicas(store_url: str | None) -> AsyncIterator[Replicas]:
    """On each kind of store; where there is a database, the tasks run on another replica."""
    async with AsyncExitStack() as stack:
        yield await _replicas(stack, store_url)


@pytest.fixture
async def alone() -> AsyncIterator[Replicas]:
    async with AsyncExitStack() as stack:
        yield await _replicas(stack, None)


def notes(reply: Reply) -> list[JSON]:
    return [each["params"] for each in reply.received if each.get("method") == PIECE]


def asking(task: str, **more: Any) -> JSON:
    """Return a request for the result of a task, with `stream` as the draft prints it: beside the parameters."""
    return {**request("tasks/result", {"taskId": task, **more}, id=4), "stream": {}}


class TestAClientOfTheDrafts:
    async def test_gets_the_pieces_as_they_come_from_whichever_replica_runs_the_task(self, replicas: Replicas) -> None:
        task = await replicas.start()
        waiting = replicas.opening(asking(task)).start()
        await waiting.until(b"upon ")
        assert not waiting.has_ended
        gate("a").set()
        asked = await waiting.end()
        assert pieces_of(asked) == ["Once ", "upon ", "a time", "image"]
        assert [(each["index"], each["block"]) for each in notes(asked)] == [(0, 0), (1, 0), (2, 0), (3, 1)]
        assert notes(asked)[0] == {
            "requestId": 4,
            "index": 0,
            "block": 0,
            "content": {"type": "text", "text": "Once "},
            "_meta": {PREFIX + "related-task": {"taskId": task}},
        }
        assert asked.result["inputRequests"].keys() == {"then"}
        await replicas.answer(task)
        done = await replicas.send(asking(task))
        assert [block.get("text", block["type"]) for block in done.content] == ["Once upon a time", "image", "the end"]

    async def test_may_ask_within_the_parameters(self, alone: Replicas) -> None:
        gate("a").set()
        task = await alone.start()
        reply = await alone.send(request("tasks/result", {"taskId": task, "stream": {}}))
        assert pieces_of(reply)[:2] == ["Once ", "upon "]

    async def test_gets_none_unless_it_asks(self, alone: Replicas) -> None:
        gate("a").set()
        task = await alone.start()
        reply = await alone.send(request("tasks/result", {"taskId": task}))
        assert (notes(reply), reply.is_stream) == ([], False)

    async def test_that_accepts_no_stream_gets_the_result_alone(self, alone: Replicas) -> None:
        gate("a").set()
        task = await alone.start()
        reply = (
            await Exchange(alone.front, scope_of([(b"content-type", b"application/json")]))
            .body(json.dumps(asking(task)).encode())
            .end()
        )
        assert reply.result["inputRequests"].keys() == {"then"}
        assert not reply.is_stream

    async def test_that_comes_again_with_its_state_continues_where_it_was(self) -> None:
        async with AsyncExitStack() as stack:
            hurried = await _replicas(stack, None, limits=Limits(result_wait_seconds=0.05))
            task = await hurried.start()
            came: list[str] = []
            state: JSON = {}
            async with asyncio.timeout(TIMEOUT):
                while len(came) < 2:
                    reply = await hurried.send(asking(task, **state))
                    came += pieces_of(reply)
                    state = {"requestState": reply.result["requestState"]}
            again = await hurried.send(asking(task, **state))
            assert (came, pieces_of(again)) == (["Once ", "upon "], [])
            gate("a").set()
            async with asyncio.timeout(TIMEOUT):
                while "inputRequests" not in reply.result:
                    reply = await hurried.send(asking(task, **state))
                    came += pieces_of(reply)
                    state = {"requestState": reply.result.get("requestState")}
            assert came == ["Once ", "upon ", "a time", "image"]

    async def test_that_took_none_at_first_gets_them_all_when_it_comes_again_for_them(self) -> None:
        async with AsyncExitStack() as stack:
            hurried = await _replicas(stack, None, limits=Limits(result_wait_seconds=0.05))
            task = await hurried.start()
            state = (await hurried.send(request("tasks/result", {"taskId": task}))).result["requestState"]
            gate("a").set()
            reply = await hurried.send(asking(task, requestState=state))
            assert pieces_of(reply)[:2] == ["Once ", "upon "]

    async def test_of_a_task_that_has_ended_gets_the_result_alone(self, alone: Replicas) -> None:
        gate("a").set()
        task = await alone.start()
        await alone.send(request("tasks/result", {"taskId": task}))
        await alone.answer(task)
        await alone.send(request("tasks/result", {"taskId": task}))
        reply = await alone.send(asking(task))
        assert (notes(reply), reply.complete) == ([], True)

    async def test_gets_what_was_yielded_in_rounds_with_the_rest(self, alone: Replicas) -> None:
        params = {"name": "later", "arguments": {}, "task": {"ttl": 60000}, "stream": {}}
        began = await alone.send(request("tools/call", params))
        assert pieces_of(began) == ["in a round, "]
        waiting = alone.opening(asking(began.result["task"]["taskId"])).start()
        await waiting.until(b"in a round, ")
        gate("later").set()
        reply = await waiting.end()
        assert pieces_of(reply) == ["in a round, ", "in a task"]
        assert reply.text == "in a round, in a task"


class TestAClientOfTheHandshake:
    async def test_gets_the_pieces_on_the_stream_that_waits_for_the_result(self) -> None:
        client = AsyncClient(replica(app), era="2025-11-25", tasks=True, stream=True)
        flow = client.flow("story")
        gate("a").set()
        await flow.start()
        asked = await flow.wait()
        assert asked.asks.keys() == {"then"}
        done = await flow.finish(then=sampled("The dog"))
        assert [block.get("text", block["type"]) for block in done.content] == ["Once upon a time", "image", "the end"]
        came = [
            message["params"] for each in flow.replies for message in each.received if message.get("method") == PIECE
        ]
        assert [each["index"] for each in came][:4] == [0, 1, 2, 3]
        assert all(each["_meta"][PREFIX + "related-task"] == {"taskId": flow.task} for each in came)

    async def test_gets_progress_besides_since_whoever_looks_at_the_task_may_not_take_pieces(self) -> None:
        flow = AsyncClient(replica(app), era="2025-11-25", tasks=True, stream=True).flow("story")
        gate("a").set()
        await flow.start()
        asked = await flow.wait()
        assert len(asked.pieces) == 4
        assert asked.progress[-1].progress == 4

    async def test_gets_progress_instead_where_it_asked_for_that(self) -> None:
        client = AsyncClient(replica(app), era="2025-11-25", tasks=True)
        flow = client.flow("story")
        gate("a").set()
        await flow.start()
        asked = await flow.wait()
        assert asked.pieces == []
        assert asked.progress[-1].progress == 4


class KeepingOutlet:
    """An outlet that keeps what it gets."""

    def __init__(self) -> None:
        self.texts: list[str] = []

    def send(self, note: Note) -> Awaitable[None]:
        assert isinstance(note, Piece)
        self.texts.append(note.content.get("text", ""))
        return asyncio.sleep(0)


class Failing(InProcessStore):
    """A store that takes no more values when told so."""

    error: Exception | None = None

    def __init__(self) -> None:
        super().__init__()
        self.kept_for: list[tuple[float, Quota]] = []
        """How many seconds each value was to be kept, and for whom."""

    @override
    async def put(self, key: str, value: bytes, *, keep: float, quota: Quota = ANY) -> bool:
        if self.error is not None:
            raise self.error
        self.kept_for.append((keep, quota))
        return await super().put(key, value, keep=keep, quota=quota)


class TestWhatIsKept:
    """By a worker, for whoever reads it."""

    store: Failing
    pieces: TaskPieces
    row: TaskRow

    @pytest.fixture(autouse=True)
    def prepared(self) -> None:
        self.store = Failing()
        self.pieces = TaskRecords(self.store, KeyRing([bytes(32)]), InProcessFanout(), Limits()).pieces
        fields: JSON = dict.fromkeys(TaskRow._fields, "")
        self.row = TaskRow(**{**fields, "id": "t", "owner": "o", "name": "story", "created": 0.0, "ttl": 60.0})

    def writer(self) -> PieceWriter:
        return PieceWriter(self.pieces, self.row, Quota(), lambda: False)

    async def read(self) -> list[str]:
        kept = KeepingOutlet()
        await PieceReader(self.pieces, Call("tasks/result", {}, "t"), "o", kept).send_new()
        return kept.texts

    def piece(self, index: int, text: str = "") -> Piece:
        return Piece(0, index, 0, {"type": "text", "text": text or str(index)})

    async def test_is_read_in_order_whatever_it_was_kept_with(self) -> None:
        writer = self.writer()
        for index in range(5):
            writer.add(self.piece(index))
            if index % 2:
                await writer.flush()
        await writer.end()
        assert await self.read() == ["0", "1", "2", "3", "4"]

    async def test_stays_when_another_worker_yields_it_again(self) -> None:
        """One that died had kept more than its journal says."""
        first = self.writer()
        first.add(self.piece(0))
        await first.flush()
        for index in (1, 2, 3):
            first.add(self.piece(index))
        await first.flush()
        second = self.writer()
        for index in (1, 2, 3, 4):  # its journal says one
            second.add(self.piece(index, f"{index} again"))
            await second.flush()
        assert await self.read() == ["0", "1", "2", "3", "4 again"]
        assert await self.pieces.keep(self.row, [self.piece(1)], Quota()) == 3, "those that the first one kept together"
        assert await self.pieces.keep(self.row, [self.piece(5), self.piece(6)], Quota()) == 2

    @pytest.mark.parametrize("error", [StoreUnavailable("away"), Full("stored_bytes", 1)])
    async def test_ends_where_the_store_takes_no_more(self, error: Exception, caplog: pytest.LogCaptureFixture) -> None:
        writer = self.writer()
        writer.add(self.piece(0, "secret"))
        await writer.flush()
        self.store.error = error
        for index in range(1, 4):
            writer.add(self.piece(index, "secret"))
            await writer.flush()
        assert await self.read() == ["secret"]
        (line,) = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
        assert "Pieces of the result of a task of 'story'" in line
        assert "secret" not in line

    def test_is_kept_within_half_a_second(self, virtual_time: VirtualTime) -> None:
        async def yielding() -> None:
            writer = self.writer()
            for index in range(20):
                writer.add(self.piece(index))
                await asyncio.sleep(0.1)
                kept = len(await self.read())
                assert index - 5 <= kept - 1 <= index
            await asyncio.sleep(0.5)
            assert len(await self.read()) == 20
            assert len(self.store.kept_for) <= 5, "twice a second, however many come"
            await asyncio.sleep(60)
            assert asyncio.all_tasks() == {asyncio.current_task()}, "it rests while there are none"
            writer.add(self.piece(20))
            await asyncio.sleep(0.1)
            assert len(await self.read()) == 21, "after a while without any"

        virtual_time.run(yielding())

    def test_nothing_is_left_to_do_at_the_end(self, virtual_time: VirtualTime) -> None:
        async def yielding() -> None:
            writer = self.writer()
            writer.add(self.piece(0))
            await asyncio.sleep(0.1)
            writer.add(self.piece(1))
            await writer.end()
            await asyncio.sleep(0)
            assert asyncio.all_tasks() == {asyncio.current_task()}
            assert await self.read() == ["0", "1"]

        virtual_time.run(yielding())

    @pytest.mark.parametrize(
        ("tool", "texts"), [("story", ["Once ", "upon ", "a time", ""]), ("recorded", ["one, ", "two, "])]
    )
    async def test_is_whole_when_its_task_asks_and_when_it_records(
        self, monkeypatch: pytest.MonkeyPatch, tool: str, texts: list[str]
    ) -> None:
        monkeypatch.setattr(tasks_records, "KEEP_INTERVAL", 3600.0)
        alone = replica(app)
        flow = AsyncClient(alone, tasks=True).flow(tool)
        await flow.start()
        if tool == "story":
            gate("a").set()
            assert (await flow.wait()).task.status == "input_required"
        else:
            await gate("recorded").wait()
        store = alone._parts.shared.store
        assert flow.task is not None
        row = await store.find_task(flow.task)
        assert row is not None
        kept = KeepingOutlet()
        reading = TaskRecords(store, KeyRing([bytes(32)]), InProcessFanout(), Limits()).pieces
        await PieceReader(reading, Call("tasks/result", {}, row.id), row.owner, kept).send_new()
        assert kept.texts == texts
        gate("a").set()
        await alone._parts.worker.close()

    @pytest.mark.parametrize(("ttl", "seconds"), [(600.0, 400.0), (200.0, 60.0)])
    async def test_stays_as_long_as_the_task_a_minute_at_least(self, ttl: float, seconds: float) -> None:
        pieces = TaskRecords(self.store, KeyRing([bytes(32)]), InProcessFanout(), Limits(), clock=lambda: 200.0).pieces
        await pieces.keep(self.row._replace(ttl=ttl), [self.piece(0)], Quota())
        assert self.store.kept_for == [(seconds, Quota())]

    async def test_is_its_caller_s_and_its_tenant_s(self) -> None:
        mine = replica(app, store=self.store, auth=Bearer())
        flow = AsyncClient(mine, token="ann@acme", tasks=True).flow("recorded")
        gate("a").set()
        await flow.start()
        assert (await flow.wait()).text == "one, two, three"
        quotas = {quota._replace(begun=math.inf) for _, quota in self.store.kept_for}
        assert quotas == {mine._parts.tasks._records.quotas.of(Principal("ann@acme", tenant="acme"))}
        await mine._parts.worker.close()

    async def test_does_not_grow_while_it_waits(self) -> None:
        writer, size = self.writer(), 100 * 1024
        for index in range(20):
            await writer.add(self.piece(index, "x" * size))
            assert len(writer._waiting) * size <= tasks_records.MOST_WAITING
        await writer.end()
        assert len(await self.read()) == 20

    async def test_ends_with_the_run_and_nothing_is_left_to_do(self) -> None:
        writer = PieceWriter(self.pieces, self.row, Quota(), lambda: True)
        assert writer.add(self.piece(0)) is NOTHING
        assert (writer._waiting, writer._keeping) == ([], None)

    async def test_is_passed_by_where_its_place_is_taken_by_what_can_not_be_read(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Who yields goes on after its own pieces, and does not try these again and again."""
        await self.pieces.keep(self.row, [self.piece(0)], Quota())

        async def nothing(key: str) -> None:
            """Find nothing: it expires just now."""

        monkeypatch.setattr(self.store, "get", nothing)
        assert await self.pieces.keep(self.row, [self.piece(0), self.piece(1)], Quota()) == 2

    async def test_is_json_whatever_its_tool_yields(self) -> None:
        await self.pieces.keep(self.row, [Piece(0, 0, 0, {"type": "number", "number": float("nan")})], Quota())
        assert await self.pieces.find("t", "o", 0) == [(0, {"type": "number", "number": None})]

    async def test_is_told_at_once_to_who_waits_for_it(self) -> None:
        fanout = InProcessFanout()
        pieces = TaskRecords(self.store, KeyRing([bytes(32)]), fanout, Limits()).pieces
        listening = fanout.subscribe(frozenset({Change("piece", "t")}))
        await pieces.keep(self.row, [self.piece(0)], Quota())
        async with asyncio.timeout(TIMEOUT):
            assert await listening.next() == [Change("piece", "t")]
        listening.close()

    async def test_opens_for_its_own_task_and_owner_alone(self) -> None:
        writer = self.writer()
        writer.add(self.piece(0))
        await writer.end()
        assert await self.pieces.find("other", "o", 0) == []
