"""Which calls run here and now, which wait their turn, and which continue elsewhere."""

import asyncio
from collections.abc import Callable
from contextlib import AbstractContextManager, suppress

from ..concurrency.running import running_loop
from ..concurrency.shutdown import Shutdown
from ..limits import Limits


class Admission:
    """Lets calls in: all at once, unless the server is draining or has limits to hold.

    Args:
        limits: its `max_concurrency` and `shed_above` count.
        shutdown: the end of the server.
    """

    def __init__(self, limits: Limits, shutdown: Shutdown | None = None) -> None:
        self.shutdown = Shutdown() if shutdown is None else shutdown
        self._most = limits.max_concurrency or float("inf")
        self._shed_above = limits.shed_above or float("inf")
        self._unlimited = limits.max_concurrency is None and limits.shed_above is None
        self.draining = False
        self.is_open = self._unlimited
        """Whether every call may run at once, so that none need be counted."""
        self._in_flight = 0
        self._running = 0
        self._waiting: dict[asyncio.Future[bool], None] = {}
        self._watching: set[_Watching] = set()

    @property
    def is_full(self) -> bool:
        """Whether new calls are to go elsewhere."""
        return self.draining or self._in_flight >= self._shed_above

    @property
    def should_yield(self) -> bool:
        """Whether running calls are to continue elsewhere, from their next boundary."""
        return self.draining or self._in_flight > self._shed_above

    # Draining

    def drain(self) -> None:
        """Begin to drain. May be called from any thread, from a signal handler, and again."""
        self.draining = True
        self.is_open = False
        for watching in tuple(self._watching):
            watching.notify()

    def shut_down(self) -> None:
        """Begin to drain, and to count the time that the server has for its end; as `drain`."""
        self.shutdown.begin()
        self.drain()

    def reopen(self) -> None:
        """End the draining: the server starts anew."""
        self.shutdown.reopen()
        self.draining = False
        self.is_open = self._unlimited

    def on_drain(self, callback: Callable[[], object]) -> AbstractContextManager[None]:
        """Call a function on this event loop when draining begins, for as long as the block lasts.

        Args:
            callback: what to call; at once if the server is draining already. It may be called twice.
        """
        watching = _Watching(self._watching, running_loop(), callback)
        if self.draining:
            watching.notify()
        return watching

    # Calls

    async def enter(self, may_leave: Callable[[], bool]) -> bool:
        """Wait for the turn of a call, the first to come being the first to run.

        Args:
            may_leave: says whether the call may be handed back.

        Returns:
            True if it runs here, and then `leave` must be called when it has; False if it is to be handed back.
        """
        if self.is_full and may_leave():
            return False
        self._in_flight += 1
        if self._running < self._most:
            self._running += 1
            return True
        runs = False
        try:
            runs = await self._turn(may_leave)
        finally:
            if not runs:
                self._in_flight -= 1
        return runs

    def leave(self) -> None:
        """Note that a call that was let in is over; let the next one run."""
        self._in_flight -= 1
        self._pass_on()

    async def _turn(self, may_leave: Callable[[], bool]) -> bool:
        turn: asyncio.Future[bool] = asyncio.get_running_loop().create_future()

        def turn_away() -> None:
            if not turn.done() and may_leave():
                turn.set_result(False)

        self._waiting[turn] = None
        try:
            with self.on_drain(turn_away):
                return await turn
        except asyncio.CancelledError:
            if not turn.cancelled() and turn.done() and turn.result():  # its turn came just as the client left
                self._pass_on()
            raise
        finally:
            del self._waiting[turn]

    def _pass_on(self) -> None:
        for turn in self._waiting:
            if not turn.done():
                turn.set_result(True)
                return
        self._running -= 1


class _Watching:
    """A listener to be notified, on its own event loop."""

    def __init__(self, all_: "set[_Watching]", loop: asyncio.AbstractEventLoop, callback: Callable[[], object]) -> None:
        self._all = all_
        self._loop = loop
        self._callback = callback
        all_.add(self)

    def __enter__(self) -> None:
        pass

    def __exit__(self, *raised: object) -> None:
        self._all.discard(self)

    def notify(self) -> None:
        with suppress(RuntimeError):  # the loop has ended
            self._loop.call_soon_threadsafe(self._callback)
