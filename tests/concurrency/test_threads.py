"""Plain functions beside the event loop."""

import asyncio
import gc
import subprocess
import sys
import threading
import weakref
from contextlib import suppress
from contextvars import ContextVar

import pytest

from mrtr_server.concurrency.threads import Threads, in_own_thread

from ..support.serving import TIMEOUT

pytestmark = [pytest.mark.anyio, pytest.mark.alone]


class TestThreads:
    async def test_as_many_run_at_once_as_may_and_the_others_wait_in_order(self) -> None:
        threads, gate, began = Threads(2), threading.Event(), asyncio.Event()
        loop, order = asyncio.get_running_loop(), list[int]()

        def work(number: int) -> None:
            order.append(number)
            if len(order) == 2:
                loop.call_soon_threadsafe(began.set)
            gate.wait(TIMEOUT)

        calls = [asyncio.create_task(threads(lambda number=number: work(number))) for number in range(5)]
        await began.wait()
        assert (sorted(order), threads.busy) == ([0, 1], 2)
        gate.set()
        await asyncio.gather(*calls)
        assert order[2:] == [2, 3, 4]

    async def test_they_are_used_again(self) -> None:
        threads = Threads(40)
        names = {await threads(threading.get_ident) for _ in range(20)}
        assert len(names) <= 2  # one may not have said yet that it is idle

    async def test_the_context_of_the_caller_goes_along(self) -> None:
        variable: ContextVar[str] = ContextVar("variable", default="")
        variable.set("the caller's")
        assert await Threads(1)(variable.get) == "the caller's"

    @pytest.mark.parametrize("error", [ValueError, SystemExit])
    async def test_what_the_function_raises_is_raised(self, error: type[BaseException]) -> None:
        def work() -> None:
            raise error("no")

        with pytest.raises(error, match="no"):
            await Threads(1)(work)

    async def test_stop_iteration_is_told_in_other_words(self) -> None:
        with pytest.raises(RuntimeError, match="raised StopIteration"):
            await Threads(1)(lambda: next(iter(())))

    async def test_what_a_function_held_is_free_when_its_error_is(self) -> None:
        class Held:
            pass

        held: list[weakref.ref[Held]] = []

        def work() -> None:
            thing = Held()
            held.append(weakref.ref(thing))
            raise ValueError("no")

        threads = Threads(1)
        gc.disable()
        try:
            with suppress(ValueError):
                await threads(work)
            await threads(int)  # by then the thread has let go of the first
            assert held[0]() is None
        finally:
            gc.enable()

    async def test_who_is_cancelled_in_the_queue_is_never_run_and_who_runs_keeps_its_thread(self) -> None:
        threads, gate, ran = Threads(1), threading.Event(), list[str]()
        began = asyncio.Event()
        loop = asyncio.get_running_loop()

        def first() -> None:
            loop.call_soon_threadsafe(began.set)
            gate.wait(TIMEOUT)
            ran.append("first")

        running = asyncio.create_task(threads(first))
        await began.wait()
        waiting = asyncio.create_task(threads(lambda: ran.append("second")))
        await asyncio.sleep(0)
        for each in (running, waiting):
            each.cancel()
        await asyncio.wait((running, waiting))
        assert threads.busy == 1, "its function runs on"
        gate.set()
        assert await threads(lambda: list(ran)) == ["first"]

    async def test_closing_ends_them_and_the_next_call_begins_anew(self) -> None:
        threads = Threads(2)
        thread = await threads(threading.current_thread)
        await asyncio.sleep(0.05)
        threads.close()
        thread.join(TIMEOUT)
        assert not thread.is_alive()
        assert await threads(lambda: 1) == 1

    async def test_they_end_with_the_object(self) -> None:
        threads = Threads(2)
        thread = await threads(threading.current_thread)
        del threads
        gc.collect()
        thread.join(TIMEOUT)
        assert not thread.is_alive()


RUNNING = """
import asyncio, time
from mrtr_server.concurrency.threads import Threads, in_own_thread

async def main():
    threads = Threads(1)
    waiting = [asyncio.create_task(threads(lambda: time.sleep(600)))]
    waiting.append(asyncio.create_task(in_own_thread(lambda: time.sleep(600))))
    await asyncio.sleep(0.1)

asyncio.run(main())
"""


def test_a_function_that_runs_keeps_no_process_alive() -> None:
    subprocess.run([sys.executable, "-c", RUNNING], check=True, timeout=2 * TIMEOUT)


EXITING = """
import asyncio, threading
from mrtr_server.concurrency.threads import Threads

threads = Threads(1)

async def main():
    await threads(int)

asyncio.run(main())
# A thread may have any lock when the interpreter ends it, and never frees that. By chance it has this one too rarely.
taking = threading.Thread(target=threads._pool._guard.acquire, daemon=True)
taking.start()
taking.join()
"""


def test_a_thread_that_the_interpreter_ends_in_the_middle_keeps_no_process_alive() -> None:
    subprocess.run([sys.executable, "-c", EXITING], check=True, timeout=TIMEOUT)


async def test_in_a_thread_of_its_own_as_well() -> None:
    assert await in_own_thread(threading.current_thread) is not threading.current_thread()


class TestOneServerOnSeveralEventLoops:
    """As where a test's server ends while the next test begins, or an application is served twice."""

    def test_one_that_ends_takes_no_call_of_another_with_it(self) -> None:
        threads = Threads(2)
        over, ended = threading.Event(), threading.Event()

        def end_again_and_again() -> None:
            while not over.is_set():
                threads.close()
                ended.set()

        async def call() -> int:
            done = 0
            for _ in range(500):
                ended.clear()
                done += await threads(lambda: ended.wait(TIMEOUT))  # one ends while the function runs
            return done

        other = threading.Thread(target=end_again_and_again)
        other.start()
        try:
            assert asyncio.run(call()) == 500
        finally:
            over.set()
            other.join()
            threads.close()
