"""A listener is told only of what it may read at that moment, and of each change once, however it waits."""

import asyncio
from collections.abc import Callable

import pytest

from mrtr_server.methods.subscriptions import AuthorizedChanges, Select
from mrtr_server.protocol.messages import Change, Subscription
from mrtr_server.storage.pubsub import InProcessFanout

pytestmark = pytest.mark.anyio

A, B = Change("resource", "doc://a"), Change("resource", "doc://b")
Listen = Callable[[Select], Subscription]


@pytest.fixture
def fanout() -> InProcessFanout:
    return InProcessFanout()


@pytest.fixture
def listen(fanout: InProcessFanout) -> Listen:
    return lambda select: AuthorizedChanges(fanout.subscribe(frozenset({A, B})), select)


async def everything(changes: list[Change]) -> list[Change]:
    return changes


async def test_what_is_refused_is_left_out_and_the_others_are_told(fanout: InProcessFanout, listen: Listen) -> None:
    async def select(changes: list[Change]) -> list[Change]:
        return [change for change in changes if change == A]

    changes = listen(select)
    fanout.publish(B)
    fanout.publish(A)
    assert await changes.next() == [A]


async def test_where_nothing_is_left_the_wait_goes_on(fanout: InProcessFanout, listen: Listen) -> None:
    may = False

    async def select(changes: list[Change]) -> list[Change]:
        return changes if may else []

    changes = listen(select)
    waiting = asyncio.ensure_future(changes.next())
    fanout.publish(A)
    await asyncio.sleep(1)
    assert not waiting.done()
    may = True
    fanout.publish(B)
    assert await waiting == [B], "what was refused then is not told later"


async def test_it_is_asked_again_for_each_delivery(fanout: InProcessFanout, listen: Listen) -> None:
    asked: list[list[Change]] = []

    async def select(changes: list[Change]) -> list[Change]:
        asked.append(changes)
        return changes

    changes = listen(select)
    for _ in range(2):
        fanout.publish(A)
        assert await changes.next() == [A]
    assert asked == [[A], [A]]


async def test_who_is_interrupted_while_it_is_asked_is_told_the_next_time(
    fanout: InProcessFanout, listen: Listen
) -> None:
    """As for each comment that keeps a stream open. The question is asked once."""
    gate, asked = asyncio.Event(), list[Change]()

    async def select(changes: list[Change]) -> list[Change]:
        asked.extend(changes)
        await gate.wait()
        return changes

    changes = listen(select)
    fanout.publish(A)
    for _ in range(3):
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(changes.next(), 1)
    gate.set()
    assert await changes.next() == [A]
    assert asked == [A]


async def test_the_end_of_a_subscription_is_the_end_of_the_wait(listen: Listen) -> None:
    changes = listen(everything)
    waiting = asyncio.ensure_future(changes.next())
    await asyncio.sleep(1)
    changes.close()
    assert await waiting == []


async def test_its_end_also_ends_the_question_that_is_open(fanout: InProcessFanout, listen: Listen) -> None:
    ended: list[str] = []

    async def select(changes: list[Change]) -> list[Change]:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            ended.append("asked no more")
            raise
        return changes

    changes = listen(select)
    fanout.publish(A)
    waiting = asyncio.ensure_future(changes.next())
    await asyncio.sleep(1)
    changes.close()
    assert await waiting == []
    assert ended == ["asked no more"]
