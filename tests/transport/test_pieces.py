"""Pieces of a result over a connection: each goes at once, none is dropped, and nothing grows for a slow client."""

import asyncio
import json
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from typing import Any

import httpx
import pytest

from mrtr_server import Context, MRTRServer
from mrtr_server.transport.event_stream import BACKLOG_BYTES

from ..support.direct import Exchange, exchange, headers_for, scope_of
from ..support.serving import TIMEOUT, in_thread, wait_until
from ..support.stdio import over_pipes
from ..support.wire import ACCEPT, JSON, Reply, mirrored, modern
from .test_slow_clients import Unread

PIECE = "notifications/tools/content"


class Gate:
    """Lets a tool go on, from any thread."""

    def __init__(self) -> None:
        self.is_open = threading.Event()
        self.closed: list[str] = []

    async def passed(self) -> None:
        async with asyncio.timeout(TIMEOUT):
            while not self.is_open.is_set():  # noqa: ASYNC110  it is no event of this loop
                await asyncio.sleep(0.005)


@pytest.fixture
def gate() -> Iterator[Gate]:
    gate = Gate()
    yield gate
    gate.is_open.set()


@pytest.fixture
def app(gate: Gate) -> MRTRServer:
    app = MRTRServer("pieces", keys=[bytes(32)])

    @app.tool
    async def held(ctx: Context) -> AsyncIterator[str]:
        """Yield a piece, and the rest when the test says so."""
        try:
            yield "first"
            await gate.passed()
            yield "second"
        finally:
            gate.closed.append("closed")

    @app.tool
    async def much(pieces: int, size: int) -> AsyncIterator[str]:
        """Yield so much, and note how far it has come."""
        for number in range(pieces):
            yield "x" * size
            gate.closed.append(str(number))

    return app


def call(tool: str, arguments: JSON | None = None, **wanted: Any) -> JSON:
    return modern("tools/call", {"name": tool, "arguments": arguments or {}, "stream": {}}, **wanted)


def pieces(reply: Reply) -> list[str]:
    return [each["params"]["content"]["text"] for each in reply.received if each.get("method") == PIECE]


@contextmanager
def streamed(url: str, message: JSON, **headers: str) -> Iterator[Iterator[JSON]]:
    """Post a message, and give the messages of the stream as they come."""
    given = {"Content-Type": "application/json", "Accept": ACCEPT, **headers}
    with httpx.stream("POST", url, json=message, headers=given, timeout=TIMEOUT, trust_env=False) as response:
        assert response.headers["content-type"].startswith("text/event-stream")
        yield (json.loads(line[6:]) for line in response.iter_lines() if line.startswith("data: {"))


class TestOverHTTP:
    def test_a_piece_goes_before_the_next_one_is_made(self, app: MRTRServer, gate: Gate) -> None:
        message = call("held")
        with in_thread(app) as port, streamed(f"http://127.0.0.1:{port}/mcp", message, **mirrored(message)) as stream:
            assert next(stream)["params"]["content"] == {"type": "text", "text": "first"}
            gate.is_open.set()
            assert next(stream)["params"]["index"] == 1
            assert next(stream)["result"]["content"] == [{"type": "text", "text": "firstsecond"}]

    def test_likewise_for_a_client_of_the_drafts(self, app: MRTRServer, gate: Gate) -> None:
        message = {"jsonrpc": "2.0", "id": 7, "method": "tools/call", "params": {"name": "held", "stream": {}}}
        with in_thread(app) as port, streamed(f"http://127.0.0.1:{port}/mcp", message) as stream:
            assert next(stream)["params"] == {
                "requestId": 7,
                "index": 0,
                "block": 0,
                "content": {"type": "text", "text": "first"},
            }
            gate.is_open.set()
            assert [each.get("method", "result") for each in stream] == [PIECE, "result"]

    def test_a_client_that_leaves_closes_the_generator(self, app: MRTRServer, gate: Gate) -> None:
        message = call("held")
        with in_thread(app) as port:
            with streamed(f"http://127.0.0.1:{port}/mcp", message, **mirrored(message)) as stream:
                next(stream)
                assert gate.closed == []
            wait_until(lambda: gate.closed == ["closed"], "the generator's end")
        assert not gate.is_open.is_set()


@pytest.mark.anyio
class TestAClientThatReads:
    async def test_no_stream_gets_the_result_alone(self, app: MRTRServer, gate: Gate) -> None:
        gate.is_open.set()
        message = call("held")
        reply = await exchange(app, json.dumps(message).encode(), headers_for(message, accept="application/json"))
        assert reply.headers["content-type"] == "application/json"
        assert reply.text == "firstsecond"

    async def test_slowly_makes_the_tool_wait_and_misses_nothing(self, app: MRTRServer, gate: Gate) -> None:
        size, count = 10_000, 200
        under_way = Unread(app, call("much", {"pieces": count, "size": size})).start()
        async with asyncio.timeout(TIMEOUT):
            while len(gate.closed) < BACKLOG_BYTES // (size + 200):  # noqa: ASYNC110
                await asyncio.sleep(0.001)
        for _ in range(100):  # turns of the loop in which it would go on
            await asyncio.sleep(0)
        assert len(gate.closed) <= BACKLOG_BYTES // size + 1
        assert isinstance(under_way, Unread)
        under_way.reads.set()
        reply = await under_way.end()
        assert len(pieces(reply)) == count
        assert len(reply.text) == count * size

    async def test_no_more_and_leaves_lets_a_tool_that_waits_go(self, app: MRTRServer, gate: Gate) -> None:
        under_way = Unread(app, call("much", {"pieces": 200, "size": 10_000}))
        under_way.start()
        async with asyncio.timeout(TIMEOUT):
            while len(gate.closed) < 20:  # noqa: ASYNC110
                await asyncio.sleep(0.001)
        under_way.disconnect()
        under_way.reads.set()
        await under_way.end()
        assert under_way.has_ended

    async def test_one_piece_is_not_too_large_by_itself(self, app: MRTRServer) -> None:
        message = call("much", {"pieces": 2, "size": 2 * BACKLOG_BYTES})
        under_way = Exchange(app, scope_of(headers_for(message))).body(json.dumps(message).encode())
        assert [len(piece) for piece in pieces(await under_way.end())] == [2 * BACKLOG_BYTES] * 2


class TestOverStdio:
    @pytest.mark.parametrize("modern", [True, False], ids=["modern", "handshake"])
    def test_a_piece_goes_before_the_next_one_is_made(self, app: MRTRServer, gate: Gate, modern: bool) -> None:
        with over_pipes(app) as client:
            if not modern:
                client.initialize()
            id = client.begin("tools/call", {"name": "held", "arguments": {}, "stream": {}}, modern=modern)
            first = client.next()
            assert (first["method"], first["params"]["requestId"]) == (PIECE, id)
            gate.is_open.set()
            assert client.next()["params"]["content"]["text"] == "second"
            assert client.next()["result"]["content"] == [{"type": "text", "text": "firstsecond"}]

    @pytest.mark.parametrize("modern", [True, False], ids=["modern", "handshake"])
    def test_a_cancellation_closes_the_generator(self, app: MRTRServer, gate: Gate, modern: bool) -> None:
        with over_pipes(app) as client:
            if not modern:
                client.initialize()
            id = client.begin("tools/call", {"name": "held", "arguments": {}, "stream": {}}, modern=modern)
            client.next()
            client.send(method="notifications/cancelled", params={"requestId": id})
            wait_until(lambda: gate.closed == ["closed"], "the generator's end")
            assert not gate.is_open.is_set()
