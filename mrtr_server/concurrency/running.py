"""The event loop and the task that run now, found without the kernel; and what is kept for each event loop.

Before Python 3.12, asyncio asks the kernel for the id of the process each time, which costs more than all else here.
"""

import asyncio
import threading
from collections.abc import Callable
from typing import Any, Generic, TypeVar
from weakref import ref

T = TypeVar("T")


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


class PerLoop(Generic[T]):
    """What is kept for each event loop, for as long as that lives.

    Loops are known weakly. What is kept may know its loop, and would keep that alive: so what belongs to a closed loop
    is dropped when something is kept for another one.
    """

    def __init__(self) -> None:
        self._kept: dict[ref[asyncio.AbstractEventLoop], T] = {}

    def get(self) -> T | None:
        """Return what is kept for the running event loop; None for nothing."""
        return self._kept.get(ref(running_loop()))

    def here(self, make: Callable[[], T], loop: asyncio.AbstractEventLoop | None = None) -> T:
        """Return what is kept for the running event loop, which a caller may know; it is made if there is nothing."""
        found = self._kept.get(ref(running_loop() if loop is None else loop))
        return self.put(make()) if found is None else found

    def put(self, value: T) -> T:
        """Keep something for the running event loop, in the place of what was there."""
        for known in self._kept.copy():
            if (loop := known()) is None or loop.is_closed():
                self._kept.pop(known, None)
        self._kept[ref(running_loop(), self._forget)] = value
        return value

    def pop(self) -> T | None:
        """Forget what is kept for the running event loop, and return it."""
        return self._kept.pop(ref(running_loop()), None)

    def items(self) -> list[tuple[asyncio.AbstractEventLoop, T]]:
        """Return what is kept, with its event loop, for those that are not closed. May be called from any thread."""
        found = [(known(), value) for known, value in self._kept.copy().items()]
        return [(loop, value) for loop, value in found if loop is not None and not loop.is_closed()]

    def values(self) -> list[T]:
        """Return what is kept for the event loops that are not closed."""
        return [value for _, value in self.items()]

    def _forget(self, loop: "ref[asyncio.AbstractEventLoop]") -> None:
        self._kept.pop(loop, None)
