"""The event loop and the task that run now, what is kept for each event loop, and whether it stands still.

Both are found without the kernel: before Python 3.12, asyncio asks it for the id of the process each time, which costs
more than all else here.
"""

import asyncio
import sys
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable
from typing import Any, Generic, TypeVar
from weakref import ref

from ..logs.failures import format_innermost
from ..logs.refusals import RefusalLog

T = TypeVar("T")

INTERVAL = 0.25
"""How often the loop shows that it runs, and somebody looks whether it has, in seconds."""

TOLD_SECONDS = 2.0
"""How long it may stand still before the log says so."""

_MOST_GAPS = 64

_BLOCKED = (
    "The event loop has stood still for %s s, at %s. All other requests and tasks of this process wait, and its leases "
    "may end. Write what blocks as a plain `def`, which runs in a thread, or await it"
)

_SUSPENDED = (
    "This process did not run for %s s: its machine was suspended or has too much to do, or C code held the GIL. If "
    "that was longer than a lease, others may have taken its tasks and rounds over"
)


class _Known(threading.local):
    loop: asyncio.AbstractEventLoop | None = None  # that this thread ran last


_known = _Known()


def running_loop() -> asyncio.AbstractEventLoop:
    """Return the event loop that this thread runs. Raises `RuntimeError` if it runs none."""
    loop = _known.loop
    if loop is None or not loop.is_running():
        loop = _known.loop = asyncio.get_running_loop()
    return loop


def runs_here(loop: asyncio.AbstractEventLoop) -> bool:
    try:
        return running_loop() is loop
    except RuntimeError:
        return False


def running_task() -> "asyncio.Task[Any]":
    loop = _known.loop
    if loop is None or not loop.is_running():
        loop = running_loop()
    return asyncio.current_task(loop)  # type: ignore[return-value]


def retrieve(future: "asyncio.Future[Any]") -> None:
    """Look at the error of a future, which asyncio would report as never retrieved."""
    if not future.cancelled():
        future.exception()


class PerLoop(Generic[T]):
    """What is kept for each event loop, for as long as that lives.

    Loops are known weakly. What is kept may know its loop, and would keep that alive: so what belongs to a closed loop
    is dropped when something is kept for another one.
    """

    def __init__(self) -> None:
        self._kept: dict[ref[asyncio.AbstractEventLoop], T] = {}

    def get(self) -> T | None:
        return self._kept.get(ref(running_loop()))

    def here(self, make: Callable[[], T], loop: asyncio.AbstractEventLoop | None = None) -> T:
        """Return what is kept for the running event loop, which a caller may know; it is made if there is nothing."""
        found = self._kept.get(ref(running_loop() if loop is None else loop))
        return self.put(make()) if found is None else found

    def put(self, value: T) -> T:
        for known in self._kept.copy():
            if (loop := known()) is None or loop.is_closed():
                self._kept.pop(known, None)
        self._kept[ref(running_loop(), self._forget)] = value
        return value

    def pop(self) -> T | None:
        return self._kept.pop(ref(running_loop()), None)

    def items(self) -> list[tuple[asyncio.AbstractEventLoop, T]]:
        """Return what is kept, with its event loop, for those that are not closed. May be called from any thread."""
        found = [(known(), value) for known, value in self._kept.copy().items()]
        return [(loop, value) for loop, value in found if loop is not None and not loop.is_closed()]

    def values(self) -> list[T]:
        return [value for _, value in self.items()]

    def _forget(self, loop: "ref[asyncio.AbstractEventLoop]") -> None:
        self._kept.pop(loop, None)


class LoopWatch:
    """Logs once that an event loop stands still, and where: another thread looks at the line that runs."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = weakref.ref(loop)
        self._thread = threading.get_ident()
        self._ticks = 0
        self._due = time.monotonic() + INTERVAL
        self._is_told = False
        self._paused = False
        self._lines = RefusalLog()
        self._gaps: deque[tuple[float, float]] = deque(maxlen=_MOST_GAPS)
        loop.call_later(INTERVAL, self._tick)
        threading.Thread(target=self._look, name="mrtr_server loop watch", daemon=True).start()

    def seconds_lost(self, since: float) -> float:
        return sum(end - max(begin, since) for begin, end in self._gaps if end > since)

    def _tick(self) -> None:
        """Show that the loop runs. It is no task, so it runs before whatever waited for the loop."""
        now, loop = time.monotonic(), self._loop()
        late = now - self._due
        if late > INTERVAL:
            self._gaps.append((self._due, now))
        if late > TOLD_SECONDS and not (self._is_told or self._paused):
            self._lines.note(_SUSPENDED, f"{late:.0f}", fields={"event": "process_stopped"})
        self._is_told = self._paused = False
        self._ticks += 1
        self._due = now + INTERVAL
        if loop is not None and not loop.is_closed():
            loop.call_later(INTERVAL, self._tick)

    def _look(self) -> None:
        seen, looks = -1, 0
        while (loop := self._loop()) is not None and not loop.is_closed():
            if not loop.is_running():  # it is run piece by piece, as tests do
                self._paused, seen = True, -1
            del loop  # or it would live on for this
            time.sleep(INTERVAL)
            # By looks and not by the clock: a process that was suspended has not looked, either.
            seen, looks = self._ticks, looks + 1 if seen == self._ticks else 0
            if looks * INTERVAL >= TOLD_SECONDS and not (self._is_told or self._paused):
                self._is_told = True
                frame = sys._current_frames().get(self._thread)
                if frame is not None:
                    self._lines.note(
                        _BLOCKED, f"{looks * INTERVAL:.0f}", format_innermost(frame), fields={"event": "loop_blocked"}
                    )


_watches = PerLoop[LoopWatch]()


def watch_loop() -> None:
    _watches.here(lambda: LoopWatch(running_loop()))


def seconds_lost(since: float) -> float:
    """Return how long the running event loop has stood still since a `time.monotonic()`, as far as it is watched."""
    watch = _watches.get()
    return 0.0 if watch is None else watch.seconds_lost(since)
