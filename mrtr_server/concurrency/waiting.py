"""The one wait: until a look finds something, whoever brings that about, and wherever."""

import asyncio
import math
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from typing import Generic, Protocol, TypeVar

from .running import PerLoop, running_loop

T = TypeVar("T")
C = TypeVar("C")

CLOSE_WITHIN = 1.0
"""How long changes may take to end when a wait is told to, in seconds."""

TICK = 0.001
"""What the clock of uvloop counts in, in seconds. Its timers round to that, so one may be too early."""


class Changes(Protocol[C]):
    async def next(self) -> list[C]:
        """Wait for changes; return those since the last time, and an empty list when there will be no more."""
        ...

    def close(self) -> None:
        """May be called twice."""
        ...


Cancel = Callable[[], object]

Ending = Callable[[Callable[[], object]], Cancel]
"""Calls a function when a wait is to end, since the server drains or the client leaves; until that is cancelled."""


def growing(first: float, longest: float, factor: float = 2.0) -> Iterator[float]:
    while True:
        yield first
        first = min(first * factor, longest)


async def wait_until(
    look: Callable[[Sequence[C] | None], Awaitable[T | None]],
    changes: Changes[C] | None = None,
    *,
    deadline: float = math.inf,
    pauses: Iterator[float] | None = None,
    endings: Iterable[Ending] = (),
    at_once: bool = True,
) -> T | None:
    """Look whenever something has changed, and after each pause without a change, until that finds something.

    The changes are listened to before the first look, so none is missed. They gather while a look takes its time. If
    they end by themselves, the pauses alone go on; without any, the wait ends, with None.

    `look`: returns what it finds; None to wait on. It gets the changes; None at first and after a pause; an empty list
        when the changes have ended, or the wait ends, which nearly always makes it the last look.
    `changes`: are listened to already. They are closed when the wait is told to end.
    `deadline`: when to look for the last time, by the event loop's clock, which has reached it by then.
    `pauses`: how long to wait without a change before looking, in seconds. None: only a change counts.
    `at_once`: False where nothing can have happened yet.
    """
    hearing = _Hearing(changes, deadline, pauses)
    watching: list[Cancel] = []
    try:
        watching.extend(ending(hearing.end) for ending in endings)
        found = await look(None) if at_once else None
        while found is None and not hearing.is_over:
            found = await look(await hearing.next())
        return found
    finally:
        for stop in watching:
            stop()


class _Hearing(Generic[C]):
    def __init__(self, changes: Changes[C] | None, deadline: float, pauses: Iterator[float] | None) -> None:
        self._loop = running_loop()
        self._changes = changes
        self._ends = deadline
        self._pauses = pauses
        self._timeout: asyncio.Timeout | None = None
        self._is_told = self._is_last = False

    @property
    def is_over(self) -> bool:
        return self._is_last or self._loop.time() >= self._ends

    def end(self) -> None:
        """End it within a moment, so that what was heard before can be looked at."""
        if self._is_told:
            return
        self._is_told = True
        self._ends = min(self._ends, self._loop.time() + (0.0 if self._changes is None else CLOSE_WITHIN))
        if self._changes is not None:
            self._changes.close()
        if self._timeout is not None:
            with suppress(RuntimeError):  # it has just ended
                self._timeout.reschedule(self._ends)

    async def next(self) -> list[C] | None:
        """Return changes; None after a pause, and an empty list at the end."""
        until = self._ends if self._pauses is None else min(self._ends, self._loop.time() + next(self._pauses))
        try:
            async with asyncio.timeout_at(None if until == math.inf else until) as self._timeout:
                if self._changes is None:
                    await self._loop.create_future()
                elif heard := await self._changes.next():
                    return heard
                self._changes, self._is_last = None, self._is_told or self._pauses is None
                return []
        except TimeoutError:
            timeout = self._timeout
            if timeout is None or not timeout.expired():  # that of the changes
                raise
            self._is_last = (timeout.when() or math.inf) >= self._ends
            if self._is_last and self._loop.time() < self._ends:
                await asyncio.sleep(TICK)
            return [] if self._is_last else None


class Turning(Generic[C]):
    """Changes of a listener who turns to others: what came to the former ones is not lost."""

    def __init__(self, changes: Changes[C]) -> None:
        self._changes = changes
        self._former: list[Changes[C]] = []

    def turn_to(self, changes: Changes[C]) -> None:
        # Not closed at once: what other threads have noted is still on its way through the event loop.
        running_loop().call_soon(self._changes.close)
        self._former.append(self._changes)
        self._changes = changes

    async def next(self) -> list[C]:
        while True:
            former = self._former[0] if self._former else None
            if heard := await (self._changes if former is None else former).next():
                return heard
            if former is not None:
                self._former.pop(0)
            elif not self._former:
                return []

    def close(self) -> None:
        for changes in (*self._former, self._changes):
            changes.close()


class Wakes:
    """Wakes all who wait, on any event loop. A call to wake before somebody waits is not lost."""

    def __init__(self) -> None:
        self._events = PerLoop[asyncio.Event]()

    def clear(self) -> None:
        """Forget what has come, as far as this event loop is concerned: somebody is about to look."""
        self._events.here(asyncio.Event).clear()

    def set(self) -> None:
        """Wake all who wait, and the next one on each event loop who does. May be called from any thread."""
        for loop, event in self._events.items():
            with suppress(RuntimeError):  # it has just ended
                loop.call_soon_threadsafe(event.set)

    async def next(self) -> list[bool]:
        return [await self._events.here(asyncio.Event).wait()]

    def close(self) -> None:
        """Nothing is to end."""
