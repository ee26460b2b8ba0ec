"""Streams open in turn, and what comes meanwhile does not wait for them."""

import asyncio
import json
from typing import Any

import pytest

from mrtr_server import MRTRServer
from mrtr_server.transport.openings import AT_ONCE, LONGEST, Opening, Openings

from ..support.direct import Exchange, headers_for, scope_of, send
from ..support.virtual_time import VirtualTime
from ..support.wire import modern, text_of

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend(virtual_time: VirtualTime) -> Any:
    """Nothing here waits for anything but time."""
    return virtual_time.backend


async def settle() -> None:
    for _ in range(10 * AT_ONCE):
        await asyncio.sleep(0)


async def queue(many: int) -> tuple[list["asyncio.Task[Opening]"], list[Opening]]:
    """Let so many wait for their turns; return them, and the turns that have come."""
    turns, begun = Openings(), list[Opening]()

    async def take() -> Opening:
        begun.append(turn := await turns.turn())
        return turn

    tasks = [asyncio.create_task(take()) for _ in range(many)]
    await settle()
    return tasks, begun


class TestTurns:
    async def test_come_one_in_a_turn_of_the_event_loop(self) -> None:
        turns = Openings()
        tasks = [asyncio.create_task(turns.turn()) for _ in range(AT_ONCE)]
        begun = []
        while not all(each.done() for each in tasks):
            await asyncio.sleep(0)
            begun.append(sum(each.done() for each in tasks))
        assert begun[-AT_ONCE:] == list(range(1, AT_ONCE + 1))

    async def test_come_in_order_when_an_earlier_one_ends_and_two_ends_are_one(self) -> None:
        tasks, begun = await queue(AT_ONCE + 3)
        assert [each.done() for each in tasks] == [True] * AT_ONCE + [False] * 3
        begun[0].end()
        begun[0].end()
        await settle()
        assert [each.done() for each in tasks] == [True] * (AT_ONCE + 1) + [False] * 2

    async def test_end_by_themselves_after_a_moment(self) -> None:
        tasks, _ = await queue(2 * AT_ONCE + 1)
        await asyncio.sleep(LONGEST)
        await settle()
        assert [each.done() for each in tasks] == [True] * (2 * AT_ONCE) + [False]

    async def test_pass_over_requests_that_were_cut_off(self) -> None:
        tasks, begun = await queue(AT_ONCE + 2)
        tasks[AT_ONCE].cancel()
        begun[0].end()
        await settle()
        assert tasks[-1].done()


async def test_streams_that_come_together_open_a_few_at_once_and_a_plain_call_overtakes_them() -> None:
    app, opening, go_on = MRTRServer("opening", keys=[bytes(32)]), list[str](), asyncio.Event()

    async def look(caller: Any, name: str) -> bool:
        opening.append(name)
        await go_on.wait()
        return True

    app.resource("doc://{name}", name="doc", authorize=look)(lambda name: name)

    @app.tool
    async def add(a: int, b: int) -> int:
        return a + b

    streams = []
    for number in range(2 * AT_ONCE):
        wanted = {"resourceSubscriptions": [f"doc://{number}"]}
        message = modern("subscriptions/listen", {"notifications": wanted})
        streams.append(Exchange(app, scope_of(headers_for(message))).body(json.dumps(message).encode()).start())
    await settle()
    reply = await send(app, modern("tools/call", {"name": "add", "arguments": {"a": 1, "b": 2}}))
    assert text_of(reply.message) == "3"
    assert len(opening) == AT_ONCE
    go_on.set()
    for each in streams:
        await each.until(b"acknowledged")
    for each in streams:
        each.disconnect()
        await each.end()
