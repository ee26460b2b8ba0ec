"""The requests that are being served, so that a shutdown can cancel them."""

import asyncio
from contextlib import suppress

from ..concurrency.running import PerLoop, running_loop
from ..concurrency.shutdown import ShutdownDeadline


class InFlight:
    """Knows the task of each request, and cancels the requests that a shutdown has no time left for.

    It does so twice: the first time lets a running step end, the second time, halfway to the deadline, does not.

    Args:
        shutdown: the shutdown of the server.
    """

    def __init__(self, shutdown: ShutdownDeadline) -> None:
        self._shutdown = shutdown
        self._requests: set[asyncio.Task[object]] = set()
        self._cut: dict[asyncio.Task[object], int] = {}
        """How often a request was cancelled."""
        self._armed = PerLoop[float]()
        """For which shutdown an event loop has its timers, by when that began."""
        shutdown.on_begin(self._begin)

    def enter(self, request: "asyncio.Task[object]") -> None:
        """Note that a request begins."""
        self._requests.add(request)
        if self._shutdown.began is not None:
            self._arm()

    def leave(self, request: "asyncio.Task[object]") -> bool:
        """Note that a request has ended, and return whether the shutdown had cancelled it; `forgive` undoes that."""
        self._requests.discard(request)
        return bool(self._cut) and self.forgive(request)

    def forgive(self, request: "asyncio.Task[object]") -> bool:
        """Undo the shutdown's cancellation of a request, so that it can be answered; return whether there was one."""
        times = self._cut.pop(request, 0)
        for _ in range(times):
            request.uncancel()
        return times > 0

    def cut_off(self, step_timeout: float) -> None:
        """Cancel all requests of the running event loop now, once the shutdown has begun.

        Args:
            step_timeout: how long a running step may take to end, in seconds.
        """
        began, loop = self._shutdown.began, asyncio.get_running_loop()
        if began is not None:
            self._cut_off(loop, began)
            loop.call_later(step_timeout, self._cut_off, loop, began)

    def _begin(self) -> None:
        for loop in {request.get_loop() for request in tuple(self._requests)}:
            with suppress(RuntimeError):  # it has ended
                loop.call_soon_threadsafe(self._arm)

    def _arm(self) -> None:
        began, loop = self._shutdown.began, running_loop()
        if began is None or self._armed.get() == began:
            return
        self._armed.put(began)
        first, end = self._shutdown.until_cut_off(), self._shutdown.left()
        for seconds in (first, (first + end) / 2, end):
            loop.call_later(seconds, self._cut_off, loop, began)

    def _cut_off(self, loop: asyncio.AbstractEventLoop, began: float) -> None:
        if self._shutdown.began != began:  # the server has restarted meanwhile
            return
        for request in [each for each in self._requests if each.get_loop() is loop]:
            self._cut[request] = self._cut.get(request, 0) + 1
            request.cancel()
