"""What is kept for each event loop: its own, from any thread, and no longer than the loop."""

import asyncio
import gc
import threading
import weakref

import pytest

from mrtr_server.concurrency.running import PerLoop


class Kept:
    """Something that may know its event loop, as a task does."""

    loop: asyncio.AbstractEventLoop | None = None


async def find(kept: PerLoop[Kept]) -> Kept:
    return kept.here(Kept)


async def find_and_know(kept: PerLoop[Kept]) -> Kept:
    found = kept.here(Kept)
    found.loop = asyncio.get_running_loop()
    return found


def test_each_event_loop_has_its_own_one_after_the_other() -> None:
    kept = PerLoop[Kept]()

    async def twice() -> Kept:
        assert kept.get() is None
        first = kept.here(Kept)
        await asyncio.sleep(0)
        assert kept.get() is first is kept.here(Kept)
        return first

    assert asyncio.run(twice()) is not asyncio.run(twice())


def test_each_event_loop_has_its_own_at_the_same_time_in_threads() -> None:
    kept, found, all_are_there = PerLoop[Kept](), list[Kept](), threading.Barrier(5)

    def run() -> None:
        async def keep() -> None:
            mine = kept.here(Kept)
            await asyncio.to_thread(all_are_there.wait)
            found.extend([mine, kept.here(Kept)])
            await asyncio.to_thread(all_are_there.wait)

        asyncio.run(keep())

    threads = [threading.Thread(target=run) for _ in range(4)]
    for thread in threads:
        thread.start()
    all_are_there.wait()
    assert len(set(kept.values())) == 4
    all_are_there.wait()
    for thread in threads:
        thread.join()
    assert len(found) == 8
    assert len(set(found)) == 4, "each was found again"
    assert kept.values() == [], "the loops are closed"


def test_what_knows_its_closed_event_loop_is_dropped_when_there_is_another() -> None:
    kept = PerLoop[Kept]()
    former = [weakref.ref(asyncio.run(find_and_know(kept))) for _ in range(3)]
    asyncio.run(find(kept))
    gc.collect()
    assert [each() for each in former] == [None] * 3


def test_what_does_not_know_its_event_loop_goes_with_it() -> None:
    kept, loop = PerLoop[Kept](), asyncio.new_event_loop()
    found = weakref.ref(loop.run_until_complete(find(kept)))
    loop.close()
    del loop
    asyncio.run(asyncio.sleep(0))
    asyncio.run(find(PerLoop()))  # the thread knows the loop that ran last
    gc.collect()
    assert found() is None


@pytest.mark.anyio
async def test_is_forgotten_on_request() -> None:
    kept = PerLoop[Kept]()
    mine = kept.put(Kept())
    assert [value for _, value in kept.items()] == [mine]
    assert kept.pop() is mine
    assert (kept.pop(), kept.get(), kept.items()) == (None, None, [])
