"""How long a call waits for its turn, what a line learns from that, and whom it refuses."""

import asyncio
from typing import Any

import pytest

from mrtr_server import Limits
from mrtr_server.flow.admission import TurnEnd, WaitingLine

from ..support.virtual_time import VirtualTime

pytestmark = pytest.mark.anyio

EVER = 1e5
"""Seconds."""


def line_of(max_queue: int | None = None, queue_seconds: float | None = None) -> WaitingLine:
    return WaitingLine(Limits(max_concurrency=1, max_queue=max_queue, queue_seconds=queue_seconds))


async def learned(clock: VirtualTime, max_queue: int | None = None, queue_seconds: float | None = None) -> WaitingLine:
    """Return a line after two calls waited: the only one for 2 s, and the second of two for 6 s.

    By a weight of 0.2, a place takes 0.2 · 2 = 0.4 s, and then 0.4 + 0.2 · (6/2 - 0.4) = 0.92 s. An estimate is off by
    0.2 · 2 = 0.4 s, and then by 0.4 + 0.2 · (6 - 2 · 0.4 - 0.4) = 1.36 s.
    """
    line = line_of(max_queue, queue_seconds)
    first = line.join(1)
    second = line.join(1)
    clock.compute(2)
    assert line.next_turn()
    assert first.result() is TurnEnd.RUNS
    line.leave(first)
    clock.compute(4)
    assert line.next_turn()
    assert second.result() is TurnEnd.RUNS
    line.leave(second)
    return line


class TestAnEnd:
    @pytest.mark.parametrize(
        ("max_queue", "queue_seconds", "has_limits"), [(None, None, False), (4, None, True), (None, 4, True)]
    )
    async def test_a_line_has_where_a_limit_says_so(
        self, max_queue: int | None, queue_seconds: float | None, has_limits: bool
    ) -> None:
        assert line_of(max_queue, queue_seconds).has_limits is has_limits

    async def test_there_is_none_where_no_limit_says_so(self, virtual_time: VirtualTime) -> None:
        line = await learned(virtual_time)
        turns = [line.join(1) for _ in range(100)]
        line.note_turned_away()
        assert not line.refuses(1, waited=EVER)
        await asyncio.sleep(EVER)
        assert not any(turn.done() for turn in turns)


class TestRefusal:
    async def test_there_is_none_where_nobody_waits(self, virtual_time: VirtualTime) -> None:
        line = await learned(virtual_time, queue_seconds=10)
        line.note_turned_away()
        assert not line.refuses(1, waited=EVER)

    async def test_comes_at_so_many_as_may_wait_times_the_share(self) -> None:
        line = line_of(max_queue=2)
        line.join(1)
        assert not line.refuses(1)
        line.join(1)
        assert line.refuses(1)
        line.join(2)
        assert not line.refuses(2)
        line.join(2)
        assert line.refuses(2)

    async def test_comes_where_the_wait_would_be_too_long_with_three_times_the_usual_error(
        self, virtual_time: VirtualTime
    ) -> None:
        line = await learned(virtual_time, queue_seconds=10)
        line.join(1)
        takes = 2 * 0.92 + 3 * 1.36  # two places, and the error
        assert not line.refuses(1, waited=10 - takes - 0.01)
        assert line.refuses(1, waited=10 - takes + 0.01)
        assert not line.refuses(2, waited=20 - takes - 0.01)
        assert line.refuses(2, waited=20 - takes + 0.01)

    async def test_there_is_none_for_what_would_wait_just_as_long_as_it_may_on_a_machine_that_has_just_started(
        self, virtual_time: VirtualTime
    ) -> None:
        virtual_time.now = 0.5
        line = line_of(queue_seconds=4)
        line._pace = 2.0
        turns = [line.join(1)]
        assert not line.refuses(1)
        turns.append(line.join(1))
        assert line.refuses(1)
        await asyncio.sleep(3.5)
        assert not any(turn.done() for turn in turns), "neither has waited before"
        await asyncio.sleep(1)
        assert [turn.result() for turn in turns] == [TurnEnd.TOO_LATE] * 2

    async def test_keeps_a_line_a_third_as_long_for_a_while_after_a_call_was_turned_away(
        self, virtual_time: VirtualTime
    ) -> None:
        line = await learned(virtual_time, queue_seconds=10)
        line.join(8)
        line.note_turned_away()
        once, thrice = 10 - 2 * 0.92 - 3 * 1.36, 10 - 3 * 2 * 0.92 - 3 * 1.36
        await asyncio.sleep(4 * 10 - 0.01)
        assert not line.refuses(1, waited=thrice - 0.01)
        assert line.refuses(1, waited=thrice + 0.01)
        assert not line.refuses(2, waited=10 + once - 0.01)  # not for what may wait for longer
        await asyncio.sleep(0.02)
        assert not line.refuses(1, waited=once - 0.01)
        assert line.refuses(1, waited=once + 0.01)

    async def test_says_when_to_come_again_between_a_second_and_a_minute(self, virtual_time: VirtualTime) -> None:
        line = await learned(virtual_time)
        assert line.retry_after == 1.0  # less than that: 0.92
        line.join(1)
        line.join(1)
        assert line.retry_after == pytest.approx(3 * 0.92)
        for _ in range(70):
            line.join(1)
        assert line.retry_after == 60.0


class TestATurn:
    async def test_comes_in_the_order_of_joining(self) -> None:
        line = line_of()
        first, second = line.join(1), line.join(1)
        assert len(line) == 2
        assert line.next_turn()
        assert (first.done(), second.done()) == (True, False)
        assert line.next_turn()
        assert second.result() is TurnEnd.RUNS
        assert not line.next_turn()
        line.leave(first)
        assert len(line) == 1

    async def test_is_none_after_the_longest_wait(self, virtual_time: VirtualTime) -> None:
        for share, waited, seconds in [(1, 0.0, 10.0), (2, 0.0, 20.0), (2, 5.0, 15.0), (1, 11.0, 0.0)]:
            line = line_of(queue_seconds=10)
            line.join(9)  # those before it are what it waits for
            began = virtual_time.now
            assert await line.join(share, waited) is TurnEnd.TOO_LATE
            assert virtual_time.now - began == pytest.approx(seconds)

    async def test_what_came_first_has_not_waited_for_anybody(self, virtual_time: VirtualTime) -> None:
        began = virtual_time.now
        assert await line_of(queue_seconds=10).join(1, waited=9) is TurnEnd.TOO_LATE
        assert virtual_time.now - began == pytest.approx(10)

    async def test_goes_to_the_next_where_one_comes_too_late(self, virtual_time: VirtualTime) -> None:
        line = line_of(queue_seconds=10)
        late, in_time = line.join(1), line.join(2)
        virtual_time.compute(10.01)  # nothing else can say that it is late
        assert line.next_turn()
        assert (late.result(), in_time.result()) == (TurnEnd.TOO_LATE, TurnEnd.RUNS)

    async def test_comes_at_the_last_moment(self, virtual_time: VirtualTime) -> None:
        virtual_time.now = float(round(virtual_time.now))
        line = line_of(queue_seconds=8)
        turn = line.join(1)
        virtual_time.compute(8)
        assert line.next_turn()
        assert turn.result() is TurnEnd.RUNS

    async def test_is_not_given_to_what_has_ended_otherwise(self) -> None:
        line = line_of()
        ended, waits = line.join(1), line.join(1)
        ended.set_result(TurnEnd.LEAVES)
        assert line.next_turn()
        assert (ended.result(), waits.result()) == (TurnEnd.LEAVES, TurnEnd.RUNS)

    async def test_of_what_has_left_is_never_looked_at_again(self) -> None:
        line = line_of(queue_seconds=1)
        problems: list[dict[str, Any]] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, problem: problems.append(problem))
        line.leave(line.join(1))
        ended = line.join(1)
        ended.set_result(TurnEnd.RUNS)
        await asyncio.sleep(2)
        assert problems == []
        assert line.retry_after == 1.0

    async def test_that_never_came_is_learned_from(self, virtual_time: VirtualTime) -> None:
        line = await learned(virtual_time, queue_seconds=10)
        line.leave(line.join(1))
        turn = line.join(1)
        assert await turn is TurnEnd.TOO_LATE
        line.leave(turn)
        line.join(1)
        assert line.retry_after == pytest.approx(2 * (0.92 + 0.2 * (10 - 0.92)))
