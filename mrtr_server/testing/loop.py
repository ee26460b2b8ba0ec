"""The event loop for tests that are plain functions."""

import asyncio
import threading
from collections.abc import Coroutine
from typing import Any, TypeVar
from weakref import finalize

from .failure import Unexpected

__tracebackhide__ = True  # pytest then shows the test's line instead

T = TypeVar("T")


class _Loop:
    """An event loop that is closed when nobody has it any more."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        finalize(self, _close, self.loop)


class _Here(threading.local):
    """What this thread has."""

    def __init__(self) -> None:
        self.its = _Loop()


def _close(loop: asyncio.AbstractEventLoop) -> None:
    tasks = asyncio.all_tasks(loop)
    for task in tasks:
        task.cancel()
    if tasks:
        loop.run_until_complete(asyncio.wait(tasks, timeout=1))
    loop.run_until_complete(loop.shutdown_asyncgens())
    loop.close()


_here = _Here()


def run(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine on this thread's own event loop, which is the same each time."""
    if asyncio._get_running_loop() is not None:  # the other one raises where there is none, and all would chain to that
        work.close()
        raise Unexpected("An event loop is already running here: use AsyncClient, and await its methods")
    try:
        return _here.its.loop.run_until_complete(work)
    except Unexpected as failure:
        raise failure.with_traceback(None) from None  # a test's report needs nothing of the loop
