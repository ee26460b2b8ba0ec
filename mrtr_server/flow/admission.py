"""Which calls run here and now, which wait their turn, and which continue elsewhere."""

import asyncio
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
from typing import assert_never

from ..concurrency.running import running_loop
from ..concurrency.shutdown import ShutdownDeadline
from ..errors import overloaded
from ..limits import Limits
from ..protocol.messages import YieldReason
from .overload_log import Overload
from .waiting_line import TurnEnd, WaitingLine

OTHERS_FULL_SECONDS = 1.0
"""How long a replica takes the others to be as full as itself, in seconds, after one of them has shed a call to it."""

BLOCKED_SECONDS = 0.005
"""How long no call must have ended for the event loop to be taken as blocked by one, in seconds."""

TURNS_TO_COME = 6
"""How many turns of the event loop it takes from a connection to its call."""

MOST_WAVES = 20
"""How many times a call gives way to others that have just come. Without a bound, it would never begin in a flood."""


class Admission:
    """Admits calls: all at once, unless the server is draining or has limits to enforce.

    Args:
        limits: its `max_concurrency`, `max_queue`, `queue_seconds` and `shed_above` count.
        shutdown: the end of the server.
    """

    def __init__(self, limits: Limits, shutdown: ShutdownDeadline | None = None) -> None:
        self.shutdown = ShutdownDeadline() if shutdown is None else shutdown
        self._most = limits.max_concurrency or float("inf")
        self._shed_above = limits.shed_above or float("inf")
        self._unlimited = limits.max_concurrency is None and limits.shed_above is None
        self.draining = False
        self.is_open = self._unlimited
        """Whether every call may run at once, so that none need be counted."""
        self._in_flight = 0
        self._running = 0
        self._line = WaitingLine(limits)
        self._others_full_until = 0.0
        self._sheds_left = self._most
        """How many calls may yet be handed over for want of room: as many as have run here, and no more at once."""
        self._arrivals = 0
        self._left = 0.0
        self._was_blocked = False
        """Whether the event loop may have been blocked since calls could last join the line."""
        self._blocked = _Blocked()
        self._watching: set[_Watching] = set()
        self._overload = Overload()

    @property
    def is_full(self) -> bool:
        """Whether new calls are to go elsewhere."""
        return self.draining or self._in_flight >= self._shed_above

    @property
    def has_no_room(self) -> bool:
        """Whether a new call would not be admitted."""
        return self.is_full or self._is_refused(1)

    @property
    def should_yield(self) -> YieldReason | None:
        """Why running calls are to continue elsewhere, from their next boundary; None if they continue here."""
        if self.draining:
            return YieldReason.DRAINING
        is_over = self._in_flight > self._shed_above and not self._others_are_full
        return YieldReason.FULL if is_over else None

    @property
    def waiting(self) -> int:
        """How many calls wait for their turn."""
        return len(self._line)

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
        """End the draining: the server starts again."""
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

    async def enter(
        self, may_leave: Callable[[], bool], *, was_shed: bool = False, has_begun: bool = False
    ) -> YieldReason | None:
        """Wait for the turn of a call, the first to come being the first to run.

        Args:
            may_leave: says whether the call may be handed back.
            was_shed: whether it comes from a replica that had too much to do.
            has_begun: whether something was answered or done in its earlier rounds. Twice as many of these may wait,
                and twice as long.

        Returns:
            None if it runs here, and then `leave` must be called when it has; otherwise why it is to be handed back.

        Raises:
            Busy: too many wait already, or it has waited for too long, and it can't continue elsewhere.
        """
        share = 2 if has_begun else 1
        self._arrivals += 1
        waited = 0.0
        if self._line.has_limits:  # where it comes from, it has waited unread as well
            waited = self._blocked.unread_for(time.monotonic()) * (2 if was_shed else 1)
        is_refused = self._is_refused(share, waited)
        if is_refused or self.is_full:
            if was_shed:
                self._others_full_until = time.monotonic() + OTHERS_FULL_SECONDS
            if (self.draining or self._may_shed) and may_leave():
                if self.draining:
                    return YieldReason.DRAINING
                self._sheds_left -= 1
                self.note_turned_away()
                return YieldReason.FULL
            if is_refused:
                self.note_turned_away()
                raise overloaded(self._line.retry_after)
        self._in_flight += 1
        runs = False
        try:
            why = await self._turn(may_leave, share, waited)
            runs = why is None
        finally:
            if not runs:
                self._in_flight -= 1
        return why

    def leave(self) -> None:
        """Note that an admitted call has ended; give the next one its turn."""
        self._in_flight -= 1
        if self._line.has_limits:
            now = time.monotonic()
            self._was_blocked = self._was_blocked or now - self._left > BLOCKED_SECONDS
            self._left = now
        self._overload.look()
        self._sheds_left = min(self._sheds_left + 1, self._most)
        self._pass_on()

    def note_turned_away(self) -> None:
        """Note that a call is not to run here; the log says once that there is too much to do."""
        if not self.draining:
            self._overload.note(self._running, len(self._line))
            self._line.note_turned_away()

    def _is_refused(self, share: int, waited: float = 0.0) -> bool:
        return self._running >= self._most and self._line.refuses(share, waited)

    @property
    def _others_are_full(self) -> bool:
        return self._line.has_limits and time.monotonic() < self._others_full_until

    @property
    def _may_shed(self) -> bool:
        """Whether a call may be handed over for want of room. Each costs one more request, also where all are full."""
        return not self._line.has_limits or (self._sheds_left > 0 and not self._others_are_full)

    async def _turn(self, may_leave: Callable[[], bool], share: int, waited: float) -> YieldReason | None:
        if self._running < self._most:
            self._running += 1
            await self._let_others_come()
            return None
        turn = self._line.join(share, waited)

        def turn_away() -> None:
            if not turn.done() and may_leave():
                turn.set_result(TurnEnd.LEAVES)

        try:
            with self.on_drain(turn_away):
                end = await turn
        except asyncio.CancelledError:
            if not turn.cancelled() and turn.result() is TurnEnd.RUNS:  # just as the client left
                self._pass_on()
            raise
        finally:
            self._line.leave(turn)
        match end:
            case TurnEnd.RUNS:
                await self._let_others_come()
                return None
            case TurnEnd.LEAVES:
                return YieldReason.DRAINING
            case TurnEnd.TOO_LATE:
                self.note_turned_away()
                raise overloaded(self._line.retry_after)
            case unknown:
                assert_never(unknown)

    async def _let_others_come(self) -> None:
        """Wait until the calls that have come already have joined the line, or were refused because it is too long.

        A handler that computes lets nobody come meanwhile, and no line would ever be seen: a web server may accept one
        connection in each turn of the event loop.
        """
        if not self._line.has_limits:
            return
        try:
            await asyncio.sleep(0)
            if self._was_blocked:
                self._was_blocked = False
                for _ in range(MOST_WAVES):
                    seen = self._arrivals
                    for _ in range(TURNS_TO_COME):
                        await asyncio.sleep(0)
                    if seen == self._arrivals:
                        break
        except asyncio.CancelledError:
            self._pass_on()
            raise
        self._blocked.may_begin()

    def _pass_on(self) -> None:
        if not self._line.next_turn():
            self._running -= 1


class _Blocked:
    """How long the calls may have waited unread that come after a handler has blocked the event loop."""

    def __init__(self) -> None:
        self._began = 0.0
        self._ended = 0.0
        self._is_watched = False

    def may_begin(self) -> None:
        """Note that a call begins, which may compute until the loop runs its other callbacks."""
        if not self._is_watched:
            self._is_watched, began = True, time.monotonic()
            asyncio.get_running_loop().call_soon(self._look, began)

    def _look(self, began: float) -> None:
        self._is_watched, now = False, time.monotonic()
        if now - began > BLOCKED_SECONDS:
            self._began, self._ended = began, now

    def unread_for(self, now: float) -> float:
        """Return how long a call that is read now may have waited unread, in seconds: at most since the block began.

        A call that comes much later than the end of the block has not waited for it.

        Args:
            now: by the monotonic clock.
        """
        came_then = now - self._ended < self._ended - self._began
        return now - self._began if came_then else 0.0


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
