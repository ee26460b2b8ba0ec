"""The event loop and the task that run now, found without the kernel.

Before Python 3.12, asyncio asks the kernel for the id of the process each time, which costs more than all else here.
"""

import asyncio
import threading
from typing import Any


class _Known(threading.local):
    """The event loop that this thread ran last."""

    loop: asyncio.AbstractEventLoop | None = None


_known = _Known()


def running_loop() -> asyncio.AbstractEventLoop:
    """Return the event loop that this thread runs. Raises `RuntimeError` if it runs none."""
    loop = _known.loop
    if loop is None or not loop.is_running():
        loop = _known.loop = asyncio.get_running_loop()
    return loop


def runs_here(loop: asyncio.AbstractEventLoop) -> bool:
    """Return whether this thread runs an event loop, and it is this one."""
    try:
        return running_loop() is loop
    except RuntimeError:
        return False


def running_task() -> "asyncio.Task[Any]":
    """Return the running task; there has to be one."""
    loop = _known.loop
    if loop is None or not loop.is_running():
        loop = running_loop()
    return asyncio.current_task(loop)  # type: ignore[return-value]
