"""Admission: who runs, who waits, in which order, and who goes on elsewhere."""

import asyncio
import threading
from collections.abc import Iterable

import pytest

from mrtr_server import Limits
from mrtr_server.flow.admission import Admission

pytestmark = pytest.mark.anyio


class Calls:
    """Calls that run until they are told to end.

    Args:
        limits: of the admission.
    """

    def __init__(self, **limits: int) -> None:
        self.admission = Admission(Limits(**limits))
        self.begun: list[str] = []
        self.handed_back: list[str] = []
        self._ends: dict[str, asyncio.Event] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}

    async def come(self, names: Iterable[str], *, may_leave: bool = True) -> None:
        for name in names:
            self._ends[name] = asyncio.Event()
            self._tasks[name] = asyncio.create_task(self._call(name, may_leave))
            await settled()

    async def _call(self, name: str, may_leave: bool) -> None:
        if not await self.admission.enter(lambda: may_leave):
            self.handed_back.append(name)
            return
        try:
            self.begun.append(name)
            await self._ends[name].wait()
        finally:
            self.admission.leave()

    async def end(self, *names: str) -> None:
        for name in names:
            self._ends[name].set()
        await settled()

    async def cancel(self, *names: str) -> None:
        for name in names:
            self._tasks[name].cancel()
        await settled()

    async def all_end(self) -> None:
        """End all; see that nothing of them is left to count."""
        for _ in self._tasks:
            await self.end(*self._tasks)
        await asyncio.wait(self._tasks.values())
        assert (self.admission._in_flight, self.admission._running) == (0, 0)
        assert not self.admission._waiting
        assert not self.admission._watching


async def settled() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


class TestConcurrency:
    async def test_the_first_to_come_is_the_first_to_run(self) -> None:
        calls = Calls(max_concurrency=2)
        await calls.come("abcde")
        assert calls.begun == ["a", "b"]
        await calls.end("b")
        assert calls.begun == ["a", "b", "c"]
        await calls.end("a", "c")
        assert calls.begun == ["a", "b", "c", "d", "e"]
        await calls.all_end()

    async def test_who_comes_later_does_not_go_first(self) -> None:
        calls = Calls(max_concurrency=1)
        await calls.come("ab")
        calls._ends["a"].set()
        await calls.come("c")
        assert calls.begun == ["a", "b"]
        await calls.all_end()
        assert calls.begun == ["a", "b", "c"]

    async def test_who_leaves_while_waiting_is_skipped(self) -> None:
        calls = Calls(max_concurrency=1)
        await calls.come("abc")
        await calls.cancel("b")
        await calls.end("a")
        assert calls.begun == ["a", "c"]
        await calls.all_end()

    async def test_who_leaves_as_the_turn_comes_passes_it_on(self) -> None:
        calls = Calls(max_concurrency=1)
        await calls.come("abc")
        calls._ends["a"].set()
        while not next(iter(calls.admission._waiting)).done():  # noqa: ASYNC110  the last moment is what matters
            await asyncio.sleep(0)
        await calls.cancel("b")
        assert calls.begun == ["a", "c"]
        await calls.all_end()

    async def test_who_leaves_just_before_the_turn_comes_is_skipped(self) -> None:
        calls = Calls(max_concurrency=1)
        await calls.come("abc")
        calls._tasks["b"].cancel()  # it has not noticed yet
        calls._ends["a"].set()
        await settled()
        assert calls.begun == ["a", "c"]
        await calls.all_end()

    async def test_a_call_that_is_cancelled_while_it_runs_makes_room(self) -> None:
        calls = Calls(max_concurrency=1)
        await calls.come("ab")
        await calls.cancel("a")
        assert calls.begun == ["a", "b"]
        await calls.all_end()


class TestShedding:
    async def test_new_calls_are_handed_back_above_the_limit(self) -> None:
        calls = Calls(shed_above=2)
        await calls.come("abcd")
        assert (calls.begun, calls.handed_back) == (["a", "b"], ["c", "d"])
        assert calls.admission.is_full
        await calls.end("a")
        assert not calls.admission.is_full
        await calls.come("e")
        assert calls.begun == ["a", "b", "e"]
        await calls.all_end()

    async def test_those_who_wait_count_too(self) -> None:
        calls = Calls(max_concurrency=1, shed_above=2)
        await calls.come("abc")
        assert (calls.begun, calls.handed_back) == (["a"], ["c"])
        await calls.all_end()
        assert calls.begun == ["a", "b"]

    async def test_who_may_not_leave_stays_and_running_ones_make_room(self) -> None:
        calls = Calls(max_concurrency=1, shed_above=1)
        await calls.come("a")
        assert not calls.admission.should_yield
        await calls.come("b", may_leave=False)
        assert (calls.begun, calls.handed_back) == (["a"], [])
        assert calls.admission.should_yield
        await calls.end("a")
        assert calls.begun == ["a", "b"]
        assert not calls.admission.should_yield
        await calls.all_end()

    async def test_who_is_gone_does_not_count(self) -> None:
        calls = Calls(max_concurrency=1, shed_above=2)
        await calls.come("ab")
        assert calls.admission.is_full
        await calls.cancel("b")
        assert not calls.admission.is_full
        await calls.all_end()


class TestDraining:
    async def test_hands_back_those_who_wait_at_once(self) -> None:
        calls = Calls(max_concurrency=1)
        await calls.come("ab")
        await calls.come("c", may_leave=False)
        await calls.come("d")
        calls.admission.drain()
        await settled()
        assert (calls.begun, sorted(calls.handed_back)) == (["a"], ["b", "d"])
        await calls.end("a")
        assert calls.begun == ["a", "c"]
        await calls.all_end()

    async def test_may_begin_in_any_thread(self) -> None:
        calls = Calls(max_concurrency=1)
        await calls.come("ab")
        thread = threading.Thread(target=calls.admission.drain)
        thread.start()
        await asyncio.to_thread(thread.join)
        async with asyncio.timeout(5):
            await calls._tasks["b"]
        assert calls.handed_back == ["b"]
        await calls.all_end()

    async def test_ends_with_the_next_start(self) -> None:
        calls = Calls()
        assert calls.admission.is_open
        calls.admission.drain()
        assert not calls.admission.is_open
        await calls.come("a")
        calls.admission.reopen()
        assert calls.admission.is_open
        await calls.come("b")
        assert (calls.begun, calls.handed_back) == (["b"], ["a"])
        await calls.all_end()

    async def test_tells_those_who_watch_while_they_do(self) -> None:
        admission = Admission(Limits())
        told: list[str] = []
        with admission.on_drain(lambda: told.append("early")):
            pass
        with admission.on_drain(lambda: told.append("in time")):
            admission.drain()
            await settled()
            with admission.on_drain(lambda: told.append("late")):
                await settled()
        assert told == ["in time", "late"]

    async def test_does_not_stumble_over_a_loop_that_has_ended(self) -> None:
        admission = Admission(Limits())

        async def watch() -> None:
            admission.on_drain(lambda: None).__enter__()

        await asyncio.to_thread(asyncio.run, watch())
        admission.drain()
        assert admission.draining


def test_without_limits_nothing_is_counted() -> None:
    assert Admission(Limits()).is_open
    assert not Admission(Limits(max_concurrency=1)).is_open
    assert not Admission(Limits(shed_above=1)).is_open
