"""The one wait: it misses no change, looks by itself where none comes, and ends when it is to."""

import asyncio
import threading
from collections.abc import Callable, Sequence
from itertools import repeat
from typing import Any

import pytest

from mrtr_server.concurrency import waiting
from mrtr_server.concurrency.waiting import Turning, Wakes, growing, wait_until
from mrtr_server.protocol.messages import Change, Subscription
from mrtr_server.storage.pubsub import InProcessFanout

from ..support.virtual_time import VirtualTime

pytestmark = pytest.mark.anyio

Heard = Sequence[Any] | None


@pytest.fixture
def anyio_backend(virtual_time: VirtualTime) -> Any:
    return virtual_time.backend


@pytest.fixture
def fanout() -> InProcessFanout:
    return InProcessFanout()


def topics(*names: str) -> frozenset[Change]:
    return frozenset(Change("task", name) for name in names)


class Looks:
    """A look that finds something at last, and notes when it was asked, and what it was told.

    Args:
        finds: how many looks find nothing.
        seconds: how long each takes.
    """

    def __init__(self, finds: float = float("inf"), seconds: float = 0.0) -> None:
        self.began = asyncio.get_running_loop().time()
        self.seen: list[tuple[float, Any]] = []
        self._finds = finds
        self._seconds = seconds

    async def __call__(self, heard: Heard) -> str | None:
        now = asyncio.get_running_loop().time() - self.began
        told = None if heard is None else [getattr(each, "uri", "") for each in heard]
        self.seen.append((round(now, 6), told))
        await asyncio.sleep(self._seconds)
        return "found" if len(self.seen) > self._finds else None

    @property
    def times(self) -> list[float]:
        return [at for at, _ in self.seen]


class Ended:
    """What tells a wait to end, after so many seconds."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self.is_watched = False

    def __call__(self, end: Callable[[], object]) -> Callable[[], object]:
        self.is_watched = True
        timer = asyncio.get_running_loop().call_later(self._seconds, end)

        def stop() -> None:
            timer.cancel()
            self.is_watched = False

        return stop


def later(seconds: float, fanout: InProcessFanout, *names: str) -> None:
    for name in names:
        asyncio.get_running_loop().call_later(seconds, fanout.publish, Change("task", name))


class TestItLooks:
    async def test_at_once_and_no_more_where_that_finds_something(self, fanout: InProcessFanout) -> None:
        look = Looks(finds=0)
        assert await wait_until(look, fanout.subscribe(topics("a"))) == "found"
        assert look.seen == [(0, None)]

    async def test_only_after_a_change_where_nothing_can_have_happened(self, fanout: InProcessFanout) -> None:
        look = Looks(finds=0)
        later(3, fanout, "a")
        assert await wait_until(look, fanout.subscribe(topics("a")), at_once=False) == "found"
        assert look.seen == [(3, ["a"])]

    async def test_after_each_change(self, fanout: InProcessFanout) -> None:
        look = Looks(finds=2)
        later(3, fanout, "a")
        later(7, fanout, "b")
        assert await wait_until(look, fanout.subscribe(topics("a", "b"))) == "found"
        assert look.seen == [(0, None), (3, ["a"]), (7, ["b"])]

    async def test_after_a_change_that_came_during_the_look_before(self, fanout: InProcessFanout) -> None:
        look = Looks(finds=1, seconds=5)
        later(3, fanout, "a")
        assert await wait_until(look, fanout.subscribe(topics("a"))) == "found"
        assert look.seen == [(0, None), (5, ["a"])]

    async def test_after_a_change_that_came_before_it_began(self, fanout: InProcessFanout) -> None:
        look, changes = Looks(finds=1), fanout.subscribe(topics("a"))
        fanout.publish(Change("task", "a"))
        assert await wait_until(look, changes) == "found"
        assert look.seen == [(0, None), (0, ["a"])]

    async def test_once_for_all_that_came_meanwhile(self, fanout: InProcessFanout) -> None:
        look = Looks(finds=2, seconds=1)
        for number in range(1, 100):
            later(number / 100, fanout, "a", "b")
        later(2.5, fanout, "a")
        assert await wait_until(look, fanout.subscribe(topics("a", "b"))) == "found"
        assert [(at, sorted(heard or "-")) for at, heard in look.seen] == [(0, ["-"]), (1, ["a", "b"]), (2.5, ["a"])]

    async def test_after_each_pause_without_a_change(self, fanout: InProcessFanout) -> None:
        look = Looks(finds=5)
        later(1.25, fanout, "a")
        assert await wait_until(look, fanout.subscribe(topics("a")), pauses=growing(0.5, 3)) == "found"
        assert look.seen == [(0, None), (0.5, None), (1.25, ["a"]), (3.25, None), (6.25, None), (9.25, None)]

    async def test_after_pauses_alone_where_nothing_tells_of_changes(self) -> None:
        look = Looks(finds=3)
        assert await wait_until(look, pauses=repeat(2)) == "found"
        assert look.times == [0, 2, 4, 6]


class TestItEnds:
    async def test_at_the_deadline_with_a_last_look(self, fanout: InProcessFanout) -> None:
        look = Looks()
        deadline = asyncio.get_running_loop().time() + 5
        assert await wait_until(look, fanout.subscribe(topics("a")), deadline=deadline, pauses=repeat(2)) is None
        assert look.seen == [(0, None), (2, None), (4, None), (5, [])]

    async def test_with_what_the_last_look_finds(self, fanout: InProcessFanout) -> None:
        deadline = asyncio.get_running_loop().time() + 5
        assert await wait_until(Looks(finds=1), fanout.subscribe(topics("a")), deadline=deadline) == "found"

    async def test_after_one_look_where_the_deadline_has_passed(self, fanout: InProcessFanout) -> None:
        look = Looks()
        now = asyncio.get_running_loop().time()
        assert await wait_until(look, fanout.subscribe(topics("a")), deadline=now, pauses=repeat(2)) is None
        assert look.times == [0]

    @pytest.mark.parametrize("anyio_backend", [("asyncio", {"use_uvloop": True})], ids=["uvloop"])
    async def test_not_before_the_deadline_whose_timer_may_be_a_part_of_a_millisecond_early(self) -> None:
        loop = asyncio.get_running_loop()
        for number in range(100):
            deadline = loop.time() + 0.001 + number / 100_000
            assert await wait_until(Looks(), deadline=deadline) is None
            assert loop.time() >= deadline

    @pytest.mark.parametrize("pauses", [None, 3.0])
    async def test_at_once_when_it_is_told_to(self, fanout: InProcessFanout, pauses: float | None) -> None:
        look, drain, leave = Looks(), Ended(4), Ended(60)
        found = await wait_until(
            look,
            fanout.subscribe(topics("a")),
            pauses=None if pauses is None else repeat(pauses),
            endings=(drain, leave),
        )
        assert (found, look.seen[-1]) == (None, (4, []))
        assert [each.is_watched for each in (drain, leave)] == [False, False]
        assert not fanout._listeners

    async def test_after_what_had_come_before_it_was_told_to(self, fanout: InProcessFanout) -> None:
        look = Looks(seconds=0.4)
        later(0.2, fanout, "a")
        assert await wait_until(look, fanout.subscribe(topics("a")), endings=(Ended(0.3),)) is None
        assert look.seen == [(0, None), (0.4, ["a"]), (0.8, [])]

    async def test_within_a_moment_with_changes_that_take_no_notice(self) -> None:
        class Deaf:
            async def next(self) -> list[Change]:
                await asyncio.Event().wait()
                raise AssertionError

            def close(self) -> None:
                pass

        look = Looks()
        assert await wait_until(look, Deaf(), endings=(Ended(4),)) is None
        assert look.seen == [(0, None), (4 + waiting.CLOSE_WITHIN, [])]

    async def test_at_once_without_changes(self) -> None:
        look = Looks()
        assert await wait_until(look, pauses=repeat(3), endings=(Ended(4),)) is None
        assert look.seen == [(0, None), (3, None), (4, [])]

    async def test_with_the_changes_where_there_are_no_pauses(self, fanout: InProcessFanout) -> None:
        look, changes = Looks(), fanout.subscribe(topics("a"))
        asyncio.get_running_loop().call_later(2, changes.close)
        assert await wait_until(look, changes) is None
        assert look.seen == [(0, None), (2, [])]

    async def test_not_with_the_changes_where_there_are_pauses(self, fanout: InProcessFanout) -> None:
        look, changes = Looks(finds=3), fanout.subscribe(topics("a"))
        asyncio.get_running_loop().call_later(2, changes.close)
        assert await wait_until(look, changes, pauses=repeat(3)) == "found"
        assert look.seen == [(0, None), (2, []), (5, None), (8, None)]

    async def test_when_it_is_cancelled_and_loses_no_change(self, fanout: InProcessFanout) -> None:
        changes, drain = fanout.subscribe(topics("a")), Ended(60)
        work = asyncio.create_task(wait_until(Looks(), changes, pauses=repeat(3), endings=(drain,)))
        await asyncio.sleep(4)
        fanout.publish(Change("task", "a"))
        work.cancel()
        with pytest.raises(asyncio.CancelledError):
            await work
        assert not drain.is_watched
        assert await changes.next() == [Change("task", "a")]

    @pytest.mark.parametrize("fails", ["look", "changes"])
    async def test_with_what_either_raises_also_a_timeout(self, fails: str) -> None:
        class Slow:
            async def next(self) -> list[Change]:
                raise TimeoutError("its own")

            def close(self) -> None:
                pass

        async def look(heard: Heard) -> None:
            if fails == "look":
                raise TimeoutError("its own")

        with pytest.raises(TimeoutError, match="its own"):
            await wait_until(look, Slow(), pauses=repeat(3))


class TestAListenerThatTurns:
    async def test_hears_what_came_to_the_former_changes_first(self, fanout: InProcessFanout) -> None:
        changes = Turning(fanout.subscribe(topics("a")))
        fanout.publish(Change("task", "a"))
        changes.turn_to(fanout.subscribe(topics("b")))
        fanout.publish(Change("task", "b"))
        assert [await changes.next(), await changes.next()] == [[Change("task", "a")], [Change("task", "b")]]
        assert len(fanout._listeners) == 1

    async def test_while_it_waits_hears_of_the_others(self, fanout: InProcessFanout) -> None:
        changes = Turning(fanout.subscribe(topics("a")))
        heard = asyncio.create_task(changes.next())
        for name in "bc":
            await asyncio.sleep(1)
            changes.turn_to(fanout.subscribe(topics(name)))
        later(1, fanout, "c")
        assert await heard == [Change("task", "c")]

    async def test_loses_nothing_that_another_thread_has_told_of(self, fanout: InProcessFanout) -> None:
        changes = Turning[Change](fanout.subscribe(topics("a")))
        thread = threading.Thread(target=fanout.publish, args=(Change("task", "a"),))
        thread.start()
        thread.join()  # what it has told of is still on its way through the event loop
        changes.turn_to(fanout.subscribe(topics("b")))
        assert await changes.next() == [Change("task", "a")]

    async def test_ends_with_the_newest(self, fanout: InProcessFanout) -> None:
        changes = Turning(fanout.subscribe(topics("a")))
        changes.turn_to(newest := fanout.subscribe(topics("b")))
        newest.close()
        assert await changes.next() == []

    async def test_is_closed_with_all(self, fanout: InProcessFanout) -> None:
        subscriptions: list[Subscription] = [fanout.subscribe(topics(name)) for name in "ab"]
        changes = Turning(subscriptions[0])
        changes.turn_to(subscriptions[1])
        changes.close()
        assert await changes.next() == []
        assert not fanout._listeners


class TestWakes:
    async def test_are_not_lost_before_somebody_waits(self) -> None:
        wakes = Wakes()
        wakes.clear()
        wakes.set()
        assert await wait_until(Looks(finds=0), wakes, at_once=False) == "found"
