"""An event loop that stands still is told once, with the line that blocks it; one that only rests is not."""

import asyncio
import gc
import logging
import threading
import time
import weakref

import pytest

from mrtr_server.concurrency import running
from mrtr_server.concurrency.running import seconds_lost, watch_loop

from ..support.help import FAULTS
from ..support.serving import wait_until


@pytest.fixture(autouse=True)
def hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(running, "INTERVAL", 0.02)
    monkeypatch.setattr(running, "TOLD_SECONDS", 1.5)  # longer than a busy machine pauses


def watchers() -> set[threading.Thread]:
    return {thread for thread in threading.enumerate() if thread.name == "mrtr_server loop watch"}


def test_the_line_that_blocks_is_named_once(caplog: pytest.LogCaptureFixture) -> None:
    async def block() -> None:
        watch_loop()
        watch_loop()  # by another server in the loop
        await asyncio.sleep(0.1)
        for _ in range(2):
            began = time.monotonic()
            time.sleep(3)  # noqa: ASYNC251  which is the fault
            await asyncio.sleep(0.1)
            assert seconds_lost(began) > 2

    asyncio.run(block())
    (line,) = caplog.messages
    assert f'at File "{__file__}", line {block.__code__.co_firstlineno + 6}, in block' in line
    assert [getattr(record, "fields", None) for record in caplog.records] == [{"event": "loop_blocked", "help": FAULTS}]


def test_a_loop_that_is_run_piece_by_piece_does_not_stand_still(caplog: pytest.LogCaptureFixture) -> None:
    loop = asyncio.new_event_loop()

    async def begin() -> None:
        watch_loop()
        await asyncio.sleep(0.1)

    for _ in range(2):
        loop.run_until_complete(begin())
        time.sleep(3)
    loop.close()
    assert caplog.messages == []


def test_a_watch_ends_with_its_loop_and_does_not_keep_it() -> None:
    before = watchers()  # that of the test kit, whose loop stays as long as its thread

    async def begin() -> tuple["weakref.ref[asyncio.AbstractEventLoop]", set[threading.Thread]]:
        watch_loop()
        return weakref.ref(asyncio.get_running_loop()), watchers() - before

    loop, (watcher,) = asyncio.run(begin())
    wait_until(lambda: not watcher.is_alive(), "the end of the watch")
    asyncio.run(begin())  # or this thread still knows the loop that ran last
    gc.collect()
    assert loop() is None


def test_nothing_is_lost_in_a_loop_that_nobody_watches(caplog: pytest.LogCaptureFixture) -> None:
    async def block() -> float:
        began = time.monotonic()
        time.sleep(0.5)  # noqa: ASYNC251
        return seconds_lost(began)

    with caplog.at_level(logging.WARNING):
        assert asyncio.run(block()) == 0.0
    assert caplog.messages == []
