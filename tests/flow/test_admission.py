"""Admission: who runs, who waits, in which order, and who goes on elsewhere."""

import asyncio
import threading
from collections.abc import Iterable
from typing import Any

import pytest

from mrtr_server import Limits
from mrtr_server.errors import Busy
from mrtr_server.flow import admission
from mrtr_server.flow.admission import Admission, TurnEnd
from mrtr_server.flow.endings import YieldReason

from ..support.serving import TIMEOUT
from ..support.virtual_time import VirtualTime

pytestmark = pytest.mark.anyio


class Calls:
    """Calls that run until they are told to end.

    Args:
        limits: of the admission.
    """

    def __init__(self, **limits: Any) -> None:
        self.admission = Admission(Limits(**limits))
        self.begun: list[str] = []
        self.handed_back: list[str] = []
        self.refused: list[str] = []
        self._ends: dict[str, asyncio.Event] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}

    async def come(self, names: Iterable[str], *, may_leave: bool = True, **how: bool) -> None:
        for name in names:
            self._ends[name] = asyncio.Event()
            self._tasks[name] = asyncio.create_task(self._call(name, may_leave, **how))
            await settled()

    async def _call(self, name: str, may_leave: bool, **how: bool) -> None:
        try:
            if await self.admission.enter(lambda: may_leave, **how) is not None:
                self.handed_back.append(name)
                return
        except Busy as error:
            self.refused.append(name if 1 <= error.retry_after <= 60 else f"{name} {error.retry_after}")
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
        assert all(task.cancelled() or task.exception() is None for task in self._tasks.values())
        assert (self.admission._in_flight, self.admission._running) == (0, 0)
        assert not self.admission._line._waiting
        assert not self.admission._watching


async def settled() -> None:
    for _ in range(30):  # what begins lets others come first, where there is a queue
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
        while not next(iter(calls.admission._line._waiting)).done():  # noqa: ASYNC110  the last moment is what matters
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

    async def test_who_has_left_the_line_takes_no_room_in_it(self) -> None:
        admission = Admission(Limits(max_concurrency=1, max_queue=1))
        assert await admission.enter(lambda: False) is None
        waiting = asyncio.create_task(admission.enter(lambda: False))
        await settled()
        assert admission.has_no_room
        waiting.cancel()  # it has not noticed yet
        admission.leave()
        assert not admission.has_no_room
        await settled()
        assert waiting.cancelled()

    async def test_who_is_cancelled_where_its_turn_can_come_no_more_passes_nothing_on(self) -> None:
        calls = Calls(max_concurrency=1, max_queue=2)
        await calls.come("ab")
        calls.admission.drain()  # so b is to be handed back
        calls.admission.drain()
        await asyncio.sleep(0)
        assert next(iter(calls.admission._line._waiting)).result() is TurnEnd.LEAVES
        await calls.cancel("b")
        assert calls.admission._running == 1
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
        assert calls.admission.has_no_room
        await calls.end("a")
        assert not calls.admission.is_full
        assert not calls.admission.has_no_room
        await calls.come("e")
        assert calls.begun == ["a", "b", "e"]
        await calls.all_end()

    async def test_new_calls_are_handed_back_above_the_limit_however_few_have_run_where_nobody_waits(
        self, caplog: pytest.LogCaptureFixture
    ) -> None:
        calls = Calls(max_concurrency=1, shed_above=1)
        await calls.come("a")
        assert caplog.messages == []
        await calls.come("bcd")
        assert calls.handed_back == ["b", "c", "d"]
        assert [message.partition(":")[0] for message in caplog.messages] == ["Overloaded"]
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
        assert calls.admission.should_yield is None
        await calls.come("b", may_leave=False)
        assert (calls.begun, calls.handed_back) == (["a"], [])
        assert calls.admission.should_yield is YieldReason.FULL
        await calls.end("a")
        assert calls.begun == ["a", "b"]
        assert calls.admission.should_yield is None
        await calls.all_end()

    async def test_who_is_gone_does_not_count(self) -> None:
        calls = Calls(max_concurrency=1, shed_above=2)
        await calls.come("ab")
        assert calls.admission.is_full
        await calls.cancel("b")
        assert not calls.admission.is_full
        await calls.all_end()


class TestTheQueue:
    async def test_who_finds_it_full_goes_elsewhere_or_is_refused(self) -> None:
        calls = Calls(max_concurrency=1, max_queue=2)
        await calls.come("abcd")
        await calls.come("e", may_leave=False)
        assert (calls.begun, calls.handed_back, calls.refused) == (["a"], ["d"], ["e"])
        await calls.end("a")
        await calls.come("f")
        assert (calls.begun, calls.handed_back) == (["a", "b"], ["d"])
        await calls.all_end()
        assert calls.begun == ["a", "b", "c", "f"]

    async def test_what_another_one_has_shed_is_refused_and_new_calls_are_not_sent_there(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        calls = Calls(max_concurrency=1, max_queue=1)
        await calls.come("abc")
        assert calls.handed_back == ["c"]
        await calls.come("d", may_leave=False, was_shed=True)
        await calls.come("ef")
        assert (calls.handed_back, calls.refused) == (["c"], ["d", "e", "f"])
        calls.admission._others_full_until = 0.0  # a second later
        calls.admission._sheds_left = 1  # and one has run
        await calls.come("g")
        assert calls.handed_back == ["c", "g"]
        await calls.all_end()

    async def test_what_another_one_has_shed_waits_where_there_is_room(self) -> None:
        calls = Calls(max_concurrency=1, max_queue=1)
        await calls.come("a")
        await calls.come("b", may_leave=False, was_shed=True)
        await calls.come("c")
        assert (calls.handed_back, calls.refused) == (["c"], [])
        await calls.all_end()
        assert calls.begun == ["a", "b"]

    async def test_no_more_are_handed_back_than_have_run(self) -> None:
        calls = Calls(max_concurrency=2, max_queue=1)
        await calls.come("abcdefg")
        assert (calls.begun, calls.handed_back, calls.refused) == (["a", "b"], ["d", "e"], ["f", "g"])
        await calls.end("a")
        await calls.come("hij")
        assert (calls.begun, calls.handed_back, calls.refused) == (["a", "b", "c"], ["d", "e", "i"], ["f", "g", "j"])
        await calls.all_end()

    async def test_running_calls_stay_while_others_are_as_full(self) -> None:
        calls = Calls(max_concurrency=1, max_queue=5, shed_above=1)
        await calls.come("a")
        await calls.come("b", may_leave=False)
        assert calls.admission.should_yield is YieldReason.FULL
        await calls.come("c", may_leave=False, was_shed=True)
        assert calls.admission.should_yield is None
        await calls.come("d")
        assert calls.handed_back == [], "it waits here instead"
        await calls.all_end()
        assert calls.begun == ["a", "b", "c", "d"]

    async def test_those_that_bring_answers_wait_where_new_ones_are_refused(self) -> None:
        calls = Calls(max_concurrency=1, max_queue=1)
        await calls.come("ab")
        assert calls.admission.has_no_room
        assert not calls.admission.is_full
        await calls.come("cd", may_leave=False, has_begun=True)
        assert calls.refused == ["d"]
        await calls.all_end()
        assert calls.begun == ["a", "b", "c"]

    async def test_who_has_waited_for_too_long_is_refused(self) -> None:
        calls = Calls(max_concurrency=1, queue_seconds=0.05)
        await calls.come("ab")
        async with asyncio.timeout(TIMEOUT):
            await calls._tasks["b"]
        assert calls.refused == ["b"]
        await calls.come("c")
        await calls.end("a")
        assert calls.begun == ["a", "c"]
        await calls.all_end()

    async def test_who_would_wait_for_too_long_is_refused_at_once(self) -> None:
        calls = Calls(max_concurrency=1, queue_seconds=30)
        await calls.come("ab")
        calls.admission._line._pace = 10.5  # as those before have waited
        await calls.come("c", may_leave=False)
        await calls.come("d", may_leave=False)
        await calls.come("e", may_leave=False, has_begun=True)
        assert calls.refused == ["d"]
        await calls.all_end()
        assert calls.begun == ["a", "b", "c", "e"]

    async def test_who_would_be_in_time_only_with_luck_is_refused_at_once(self) -> None:
        calls = Calls(max_concurrency=1, queue_seconds=30)
        await calls.come("ab")
        calls.admission._line._pace, calls.admission._line._spread = 10.0, 4.0
        await calls.come("c", may_leave=False)
        assert calls.refused == ["c"]
        await calls.all_end()
        assert calls.admission._line._spread > 0

    async def test_new_calls_are_refused_sooner_after_one_was_turned_away(self) -> None:
        calls = Calls(max_concurrency=1, queue_seconds=10)
        await calls.come("ab")
        calls.admission._line._pace = 2.0  # so the next one would wait for four seconds
        calls.admission.note_turned_away()
        await calls.come("c", may_leave=False)
        await calls.come("d", may_leave=False, has_begun=True)
        assert calls.refused == ["c"]
        await calls.all_end()
        assert calls.begun == ["a", "b", "d"]

    async def test_whose_turn_comes_too_late_does_not_run(self, virtual_time: VirtualTime) -> None:
        calls = Calls(max_concurrency=1, queue_seconds=0.2)
        await calls.come("ab")
        virtual_time.compute(0.3)  # the timer that ends the waiting comes as late
        calls._ends["a"].set()
        await calls._tasks["a"]
        await settled()
        assert (calls.begun, calls.refused) == (["a"], ["b"])
        await calls.all_end()

    async def test_what_came_while_a_handler_computed_has_waited_since(self, virtual_time: VirtualTime) -> None:
        queue, told = Admission(Limits(max_concurrency=1, queue_seconds=0.4)), list[str]()
        computed, end = asyncio.Event(), asyncio.Event()

        async def compute() -> None:
            await queue.enter(lambda: False)
            virtual_time.compute(0.5)
            computed.set()
            await end.wait()
            queue.leave()

        async def come(name: str) -> None:
            await computed.wait()
            try:
                await queue.enter(lambda: False)
            except Busy:
                told.append(f"{name} is refused")
                return
            told.append(f"{name} runs")
            queue.leave()

        async with asyncio.TaskGroup() as tasks:
            for name in "ab":
                tasks.create_task(come(name))
            tasks.create_task(compute())
            await computed.wait()
            await settled()
            assert told == ["b is refused"], "a is the next one anyway"
            end.set()
        assert told == ["b is refused", "a runs"]

    async def test_what_came_while_a_call_computed_that_had_waited_itself_has_waited_since(
        self, virtual_time: VirtualTime
    ) -> None:
        queue, told = Admission(Limits(max_concurrency=1, queue_seconds=0.4)), list[str]()

        async def compute() -> None:
            await queue.enter(lambda: False)
            virtual_time.compute(0.5)

        async def come(name: str) -> None:
            try:
                await queue.enter(lambda: False)
            except Busy:
                told.append(f"{name} is refused")

        await queue.enter(lambda: False)
        computing = asyncio.create_task(compute())
        await settled()
        queue.leave()
        await computing
        async with asyncio.TaskGroup() as tasks:
            for name in "ab":
                tasks.create_task(come(name))
            await settled()
            assert told == ["b is refused"], "a is the next one anyway"
            queue.leave()

    async def test_what_comes_later_has_not_waited_for_it(self) -> None:
        blocked = admission._Blocked()
        blocked._began, blocked._ended = 1.0, 1.5
        assert [blocked.unread_for(now) for now in (1.5, 1.75, 2.5)] == [0.5, 0.75, 0.0]

    async def test_what_comes_after_several_that_computed_has_waited_since_the_first(
        self, virtual_time: VirtualTime
    ) -> None:
        blocked = admission._Blocked()
        for seconds in (0.5, 0.25):  # in one turn of the event loop
            blocked.may_begin()
            virtual_time.compute(seconds)
        await settled()
        assert blocked.unread_for(virtual_time.now) == 0.75

    async def test_what_comes_after_another_one_that_computed_has_waited_since_that_one(
        self, virtual_time: VirtualTime
    ) -> None:
        blocked = admission._Blocked()
        assert blocked.unread_for(virtual_time.now) == 0.0
        for seconds in (0.5, 0.25):
            blocked.may_begin()
            virtual_time.compute(seconds)
            await settled()
            assert blocked.unread_for(virtual_time.now) == seconds

    async def test_what_comes_after_one_that_hardly_computed_has_not_waited(self, virtual_time: VirtualTime) -> None:
        blocked = admission._Blocked()
        for seconds, unread in ((0.004, 0.0), (0.006, 0.006)):
            blocked.may_begin()
            virtual_time.compute(seconds)
            await settled()
            assert blocked.unread_for(virtual_time.now) == pytest.approx(unread)

    async def test_how_long_it_takes_is_learned_from_those_who_waited(self) -> None:
        calls = Calls(max_concurrency=2, queue_seconds=30)
        await calls.come("abcdef")
        for name in "abcd":
            await asyncio.sleep(0.05)
            await calls.end(name)
        assert calls.admission._line._pace > 0.005
        await calls.all_end()

    async def test_however_slow_it_was_somebody_waits_from_whom_it_is_learned_anew(self) -> None:
        calls = Calls(max_concurrency=1, queue_seconds=1)
        await calls.come("a")
        calls.admission._line._pace = 1000.0
        await calls.come("b", may_leave=False)
        assert calls.refused == []
        await calls.come("c", may_leave=False)
        assert calls.refused == ["c"]
        await calls.all_end()
        assert calls.admission._line._pace < 1000

    async def test_those_who_came_at_the_same_time_are_told_before_the_first_one_computes(self) -> None:
        told: list[str] = []
        queue = Admission(Limits(max_concurrency=1, max_queue=1))

        async def compute(name: str) -> None:
            try:
                await queue.enter(lambda: False)
            except Busy:
                told.append(f"{name} is refused")
                return
            told.append(f"{name} computes")
            queue.leave()

        await asyncio.gather(*(compute(name) for name in "abcd"))
        assert told == ["c is refused", "d is refused", "a computes", "b computes"]

    async def test_those_who_come_later_are_told_before_the_first_one_computes_if_one_computed_before(
        self, virtual_time: VirtualTime
    ) -> None:
        queue, told = Admission(Limits(max_concurrency=1, max_queue=1)), list[str]()

        async def compute(name: str, after: int) -> None:
            for _ in range(after):
                await asyncio.sleep(0)
            try:
                await queue.enter(lambda: False)
            except Busy:
                told.append(f"{name} is refused")
                return
            told.append(f"{name} computes")
            virtual_time.compute(0.02)
            queue.leave()

        await asyncio.gather(*(compute(name, 5 * number) for number, name in enumerate("abcdef")))
        assert told == ["a computes", "d is refused", "e is refused", "f is refused", "b computes", "c computes"]

    async def test_a_call_waits_for_others_only_after_the_loop_was_blocked(self, virtual_time: VirtualTime) -> None:
        queue = Admission(Limits(max_concurrency=1, max_queue=1))
        turns: list[int] = []
        for computes in (0.0, 0.0, 0.0, 0.006, 0.0, 0.006, 0.004, 0.0):
            call = asyncio.create_task(queue.enter(lambda: False))
            turns.append(0)
            while not call.done():
                await asyncio.sleep(0)
                turns[-1] += 1
            virtual_time.compute(computes)
            queue.leave()
        # After the first one, nothing is known of how long the loop was blocked before.
        assert [number > 2 for number in turns] == [False, True, False, False, True, False, True, False]

    async def test_a_call_waits_for_others_though_another_one_ended_since_the_loop_was_blocked(
        self, virtual_time: VirtualTime
    ) -> None:
        queue = Admission(Limits(max_concurrency=3, max_queue=1))
        for _ in range(3):
            await queue.enter(lambda: False)
        queue._was_blocked = False
        virtual_time.compute(0.006)
        for _ in range(2):
            queue.leave()
        call, turns = asyncio.create_task(queue.enter(lambda: False)), 0
        while not call.done():
            await asyncio.sleep(0)
            turns += 1
        assert turns > 2

    async def test_who_has_waited_for_too_long_is_told_of_in_the_log(self, caplog: pytest.LogCaptureFixture) -> None:
        calls = Calls(max_concurrency=1, queue_seconds=0.05)
        await calls.come("ab")
        assert not caplog.messages
        async with asyncio.timeout(TIMEOUT):
            await calls._tasks["b"]
        assert [message.partition(":")[0] for message in caplog.messages] == ["Overloaded"]
        await calls.all_end()

    async def test_the_log_says_when_it_is_over(self, caplog: pytest.LogCaptureFixture) -> None:
        calls = Calls(max_concurrency=1, max_queue=1)
        await calls.come("abc", may_leave=False)
        calls.admission._overload._last -= 30.0
        await calls.end("a")
        assert [message.partition(",")[0] for message in caplog.messages][1:] == ["Not overloaded any more"]
        await calls.all_end()

    async def test_a_call_that_was_shed_may_have_waited_unread_twice(self, virtual_time: VirtualTime) -> None:
        calls = Calls(max_concurrency=1, max_queue=5, queue_seconds=1.0)
        await calls.come("ab")
        calls.admission._blocked._began, calls.admission._blocked._ended = virtual_time.now - 0.4, virtual_time.now
        await calls.come("c", may_leave=False, was_shed=True)
        assert calls.refused == []
        calls.admission._blocked._began, calls.admission._blocked._ended = virtual_time.now - 0.6, virtual_time.now
        await calls.come("d", may_leave=False)
        assert calls.refused == []
        await calls.come("e", may_leave=False, was_shed=True)
        assert calls.refused == ["e"]
        await calls.all_end()

    async def test_who_leaves_just_before_it_begins_makes_room(self) -> None:
        calls = Calls(max_concurrency=1, max_queue=1)
        calls._ends["a"] = asyncio.Event()
        calls._tasks["a"] = asyncio.create_task(calls._call("a", True))
        await asyncio.sleep(0)  # it is let in, and lets others come
        await calls.cancel("a")
        await calls.come("b")
        assert calls.begun == ["b"]
        await calls.all_end()

    async def test_a_draining_server_hands_back_whoever_else_is_full(self) -> None:
        calls = Calls(max_concurrency=1, max_queue=1)
        await calls.come("ab")
        await calls.come("c", may_leave=False, was_shed=True)
        calls.admission.drain()
        await calls.come("d")
        assert (sorted(calls.handed_back), calls.refused) == (["b", "d"], ["c"])
        await calls.all_end()

    async def test_others_do_not_count_as_full_on_a_machine_that_has_just_started(
        self, virtual_time: VirtualTime
    ) -> None:
        virtual_time.now = 0.5
        calls = Calls(max_concurrency=1, max_queue=1)
        await calls.come("abc")
        assert (calls.handed_back, calls.refused) == (["c"], [])
        await calls.all_end()

    def test_a_second_is_how_long_others_count_as_full(self) -> None:
        assert admission.OTHERS_FULL_SECONDS == 1.0


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
        async with asyncio.timeout(TIMEOUT):
            await calls._tasks["b"]
        assert calls.handed_back == ["b"]
        await calls.all_end()

    async def test_begins_with_the_end_of_the_server_and_ends_with_its_next_start(self) -> None:
        admission = Admission(Limits())
        admission.shut_down()
        assert admission.draining
        assert not admission.is_open
        assert admission.shutdown.began is not None
        admission.reopen()
        assert not admission.draining
        assert admission.is_open
        assert admission.shutdown.began is None

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
        admission.on_drain(lambda: told.append("early"))()
        admission.on_drain(lambda: told.append("in time"))
        admission.drain()
        await settled()
        admission.on_drain(lambda: told.append("late"))
        await settled()
        assert told == ["in time", "late"]

    async def test_does_not_stumble_over_a_loop_that_has_ended(self) -> None:
        admission = Admission(Limits())

        async def watch() -> None:
            admission.on_drain(lambda: None)

        thread = threading.Thread(target=asyncio.run, args=[watch()])
        thread.start()
        thread.join()
        admission.drain()
        assert admission.draining


def test_without_limits_nothing_is_counted() -> None:
    assert Admission(Limits()).is_open
    assert not Admission(Limits(max_concurrency=1)).is_open
    assert not Admission(Limits(shed_above=1)).is_open
