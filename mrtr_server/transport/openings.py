"""Streams that open: in turn, so that plain calls overtake those that all come back at once."""

import asyncio
from collections import deque

from ..concurrency.running import PerLoop, running_loop

AT_ONCE = 8  # streams that open at once on an event loop

LONGEST = 0.1  # for which one that takes long to open keeps others waiting, in seconds


class Openings:
    """Lets streams open in the order in which they come: one a turn of the event loop, which does other work, too."""

    def __init__(self) -> None:
        self._queues = PerLoop[_Queue]()

    async def turn(self) -> "Opening":
        """Wait for one's turn; return it, to be ended."""
        return await self._queues.here(_Queue).join()


class _Queue:
    def __init__(self) -> None:
        self.loop = running_loop()
        self.opening = 0
        self._waiting: deque[asyncio.Future[Opening]] = deque()
        self._is_moving = False

    def join(self) -> "asyncio.Future[Opening]":
        waiter: asyncio.Future[Opening] = self.loop.create_future()
        self._waiting.append(waiter)
        self.move()
        return waiter

    def move(self) -> None:
        if self._waiting and self.opening < AT_ONCE and not self._is_moving:
            self._is_moving = True
            self.loop.call_soon(self._next)

    def _next(self) -> None:
        self._is_moving = False
        while self._waiting:
            waiter = self._waiting.popleft()
            if not waiter.done():  # or its request was cut off
                waiter.set_result(Opening(self))
                break
        self.move()


class Opening:
    """The turn of one stream. It ends by itself where that takes long, or where nobody takes it any more."""

    __slots__ = ("_queue", "_timer")

    def __init__(self, queue: _Queue) -> None:
        queue.opening += 1
        self._queue = queue
        self._timer: asyncio.TimerHandle | None = queue.loop.call_later(LONGEST, self.end)

    def end(self) -> None:
        """May be called twice."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
            self._queue.opening -= 1
            self._queue.move()
