"""What is entered and left on an event loop, without a server around it."""

import asyncio
import gc
import logging
import weakref
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

import pytest

from mrtr_server.flow.home import Home, Lifespans

ONE, TWO = Home("one"), Home("two")


class Log:
    """Lifespans that note when they are entered and left."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.lifespans = Lifespans()

    def entering(self, name: str, value: Any = None) -> Callable[[], AbstractAsyncContextManager[Any]]:
        @asynccontextmanager
        async def enter() -> AsyncIterator[Any]:
            self.lines.append(f"{name} in")
            yield value or name
            self.lines.append(f"{name} out")

        return enter

    def add(self, home: Home, value: Any = None) -> None:
        self.lifespans.add(home, self.entering(home.name, value))


@pytest.fixture
def log() -> Log:
    return Log()


async def settle() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


class TestABlock:
    def test_enters_all_in_order_and_leaves_them_in_reverse(self, log: Log) -> None:
        async def serve() -> None:
            log.add(ONE)
            log.add(TWO)
            assert dict(log.lifespans.here) == {}
            async with log.lifespans.run():
                assert dict(log.lifespans.here) == {ONE: "one", TWO: "two"}
            assert dict(log.lifespans.here) == {}

        asyncio.run(serve())
        assert log.lines == ["one in", "two in", "two out", "one out"]

    def test_in_another_block_gives_back_what_was_there_before(self, log: Log) -> None:
        async def serve() -> None:
            log.add(ONE, ["outer"])
            async with log.lifespans.run():
                log.lifespans.known[ONE] = log.entering("again", ["inner"])
                async with log.lifespans.run():
                    assert log.lifespans.here[ONE] == ["inner"]
                assert log.lifespans.here[ONE] == ["outer"]

        asyncio.run(serve())

    def test_leaves_alone_what_was_put_there_meanwhile(self, log: Log) -> None:
        async def serve() -> None:
            log.add(ONE)
            async with log.lifespans.run():
                log.lifespans.forget(ONE)
                log.lifespans.known[ONE] = log.entering("other", ["other"])
                await log.lifespans.start_here()
                other = log.lifespans.here[ONE]
            assert log.lifespans.here[ONE] is other

        asyncio.run(serve())

    def test_that_loses_what_was_put_there_ends_all_the_same(self, log: Log) -> None:
        async def serve() -> None:
            log.add(ONE)
            async with log.lifespans.run():
                log.lifespans.forget(ONE)
            assert dict(log.lifespans.here) == {}

        asyncio.run(serve())
        assert log.lines == ["one in", "one out"]

    def test_of_one_event_loop_is_not_that_of_another(self, log: Log) -> None:
        async def look() -> dict[Home, Any]:
            return dict(log.lifespans.here)

        async def serve() -> None:
            log.add(ONE)
            async with log.lifespans.run():
                assert await asyncio.to_thread(lambda: asyncio.run(look())) == {}

        asyncio.run(serve())

    def test_of_an_application_that_is_added_twice_is_entered_once(self, log: Log) -> None:
        log.add(ONE, ["first"])
        log.add(ONE, ["second"])

        async def serve() -> None:
            async with log.lifespans.run():
                assert log.lifespans.here[ONE] == ["first"]

        asyncio.run(serve())


class TestALateStart:
    def test_is_one_for_all_calls_that_come_at_a_time(self, log: Log) -> None:
        async def serve() -> None:
            log.add(ONE)
            await asyncio.gather(*(log.lifespans.start_here() for _ in range(5)))
            await log.lifespans.start_here()
            assert log.lifespans.here[ONE] == "one"
            assert log.lines == ["one in"]

        asyncio.run(serve())
        assert log.lines == ["one in", "one out"], "it is left when the event loop ends"

    def test_is_left_when_the_event_loop_ends_though_nobody_has_it_any_more(self, log: Log) -> None:
        tasks: list[weakref.ref[asyncio.Task[Any]]] = []

        async def serve() -> None:
            lifespans = Lifespans()
            lifespans.add(ONE, log.entering("one"))
            await lifespans.start_here()
            del lifespans
            gc.collect()
            await settle()
            assert log.lines == ["one in"]
            tasks.extend(weakref.ref(each) for each in asyncio.all_tasks() if each is not asyncio.current_task())

        asyncio.run(serve())
        assert log.lines == ["one in", "one out"]
        gc.collect()
        assert [task() for task in tasks] == [None], "it is held no longer than that"

    def test_enters_only_what_is_not_there_yet(self, log: Log) -> None:
        async def serve() -> None:
            log.add(ONE)
            async with log.lifespans.run():
                log.add(TWO)
                await log.lifespans.start_here()
                assert dict(log.lifespans.here) == {ONE: "one", TWO: "two"}
                assert log.lines == ["one in", "two in"]

        asyncio.run(serve())

    def test_that_has_ended_leaves_nothing_behind(self, log: Log) -> None:
        async def serve() -> None:
            log.add(ONE)
            for _ in range(3):
                await log.lifespans.start_here()
                log.lifespans.forget(ONE)
                await settle()
            assert [len(each) for each in log.lifespans._late.values()] == [0]
            assert asyncio.all_tasks() == {asyncio.current_task()}

        asyncio.run(serve())
        assert log.lines == ["one in", "one out"] * 3

    def test_that_fails_is_tried_again_by_the_next_call(self, log: Log) -> None:
        tries = 0

        @asynccontextmanager
        async def enter() -> AsyncIterator[str]:
            nonlocal tries
            tries += 1
            await asyncio.sleep(0)
            if tries == 1:
                raise OSError("no database")
            yield "database"

        async def serve() -> None:
            log.lifespans.add(ONE, enter)
            first, second = (asyncio.ensure_future(log.lifespans.start_here()) for _ in range(2))
            for each in (first, second):
                with pytest.raises(OSError, match="no database"):
                    await each
            await settle()
            await log.lifespans.start_here()
            assert log.lifespans.here[ONE] == "database"

        asyncio.run(serve())
        assert tries == 2

    def test_that_fails_when_its_calls_have_gone_is_not_reported_as_lost(
        self, log: Log, caplog: pytest.LogCaptureFixture
    ) -> None:
        failed = False

        @asynccontextmanager
        async def enter() -> AsyncIterator[str]:
            nonlocal failed
            await asyncio.sleep(0.01)
            failed = True
            raise OSError("no database")
            yield "never"

        async def serve() -> None:
            log.lifespans.add(ONE, enter)
            call = asyncio.ensure_future(log.lifespans.start_here())
            await asyncio.sleep(0)
            call.cancel()
            await asyncio.sleep(0.05)
            gc.collect()

        asyncio.run(serve())
        gc.collect()
        assert failed
        assert caplog.records == []

    def test_that_the_end_of_the_loop_cuts_ends_its_calls(self, log: Log) -> None:
        @asynccontextmanager
        async def enter() -> AsyncIterator[str]:
            try:
                await asyncio.Event().wait()
                yield "never"
            finally:
                log.lines.append("cut")

        ended: list[str] = []

        async def call() -> None:
            try:
                await log.lifespans.start_here()
            except asyncio.CancelledError:
                ended.append("cancelled")
                raise

        async def serve() -> None:
            log.lifespans.add(ONE, enter)
            calls = [asyncio.ensure_future(call()) for _ in range(2)]
            await settle()
            late = next(iter(log.lifespans._late.here(set)))
            late.leave()
            await asyncio.wait(calls, timeout=5)
            assert all(each.cancelled() for each in calls)

        asyncio.run(serve())
        assert (log.lines, ended) == (["cut"], ["cancelled", "cancelled"])

    def test_may_await_what_has_a_deadline_when_it_is_left(self, log: Log) -> None:
        @asynccontextmanager
        async def enter() -> AsyncIterator[str]:
            yield "pool"
            try:
                async with asyncio.timeout(0.01):
                    await asyncio.sleep(60)
            except TimeoutError:  # it would be a cancellation, if that of the loop's end still counted
                log.lines.append("closed")

        async def serve() -> None:
            log.lifespans.add(ONE, enter)
            await log.lifespans.start_here()

        asyncio.run(serve())
        assert log.lines == ["closed"]

    def test_is_left_by_a_task_that_does_not_count_as_cancelled(self, log: Log) -> None:
        @asynccontextmanager
        async def enter() -> AsyncIterator[str]:
            yield "pool"
            task = asyncio.current_task()
            assert task
            log.lines.append(f"{task.cancelling()} to come")

        async def serve() -> None:
            log.lifespans.add(ONE, enter)
            await log.lifespans.start_here()

        asyncio.run(serve())
        assert log.lines == ["0 to come"]

    def test_that_fails_when_it_is_left_is_logged_with_its_traceback(
        self, log: Log, caplog: pytest.LogCaptureFixture
    ) -> None:
        @asynccontextmanager
        async def enter() -> AsyncIterator[str]:
            yield "pool"
            raise OSError("can't\x1bclose")

        async def serve() -> None:
            log.lifespans.add(ONE, enter)
            await log.lifespans.start_here()

        asyncio.run(serve())
        [record] = caplog.records
        assert (record.name, record.levelno) == ("mrtr_server", logging.ERROR)
        assert record.getMessage() == r"lifespan= failed at shutdown: can't\x1bclose"
        assert record.exc_info
        assert isinstance(record.exc_info[1], OSError)


class TestForgetting:
    def test_leaves_what_was_entered_late_and_enters_it_anew_before_the_next_call(self, log: Log) -> None:
        async def serve() -> None:
            log.add(ONE)
            await log.lifespans.start_here()
            log.add(TWO)
            await log.lifespans.start_here()
            log.lifespans.forget(TWO)
            assert dict(log.lifespans.here) == {ONE: "one"}
            await settle()
            assert log.lines == ["one in", "two in", "two out"]
            await log.lifespans.start_here()
            assert dict(log.lifespans.here) == {ONE: "one", TWO: "two"}
            await settle()
            assert log.lines == ["one in", "two in", "two out", "two in"]

        asyncio.run(serve())

    def test_of_what_was_never_entered_changes_nothing(self, log: Log) -> None:
        async def serve() -> None:
            log.add(ONE)
            log.lifespans.forget(ONE)
            await log.lifespans.start_here()
            log.lifespans.forget(TWO)
            await settle()
            assert dict(log.lifespans.here) == {ONE: "one"}

        asyncio.run(serve())
        assert log.lines == ["one in", "one out"]

    def test_works_from_another_thread_and_after_the_loop_has_ended(self, log: Log) -> None:
        async def serve() -> None:
            log.add(ONE)
            await log.lifespans.start_here()
            await asyncio.to_thread(log.lifespans.forget, ONE)
            await settle()
            assert log.lines == ["one in", "one out"]

        loop = asyncio.new_event_loop()
        try:
            loop.run_until_complete(serve())
            log.add(TWO)
            loop.run_until_complete(log.lifespans.start_here())
        finally:
            loop.close()
        log.lifespans.forget(TWO)
        assert log.lines[:2] == ["one in", "one out"]
