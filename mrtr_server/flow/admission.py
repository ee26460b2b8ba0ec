"""Which calls run here and now, which wait their turn, and which continue elsewhere."""

import asyncio
import logging
import time
from collections.abc import Callable
from contextlib import suppress
from enum import Enum
from functools import partial
from typing import NamedTuple, assert_never

from ..concurrency.running import running_loop
from ..concurrency.shutdown import ShutdownDeadline
from ..concurrency.waiting import Cancel
from ..errors import overloaded
from ..limits import Limits
from ..protocol.messages import YieldReason

logger = logging.getLogger("mrtr_server")

CALM_SECONDS = 30.0
"""How long no call must have been turned away before the server counts as not overloaded."""

WEIGHT = 0.2

SPREADS = 3.0
"""How many times the mean error of the estimates is added to the estimated wait of a call. Few wait for longer."""

RESERVE = 3.0
"""While a line stands, a new call joins it only if it would be in time even after so many times its estimated wait.

A line that never empties makes nothing faster, so a short one is enough: few of those in it are late when something
holds the server up.
"""

STANDING = 4.0
"""For how long after a call was turned away a line counts as one that stands, in units of the longest wait."""

LONGEST_RETRY = 60.0

OTHERS_FULL_SECONDS = 1.0
"""How long a replica takes the others to be as full as itself, after one of them has shed a call to it."""

BLOCKED_SECONDS = 0.005
"""How long no call must have ended for the event loop to be taken as blocked by one."""

TURNS_TO_COME = 6
"""How many turns of the event loop it takes from a connection to its call."""

MOST_WAVES = 20
"""How many times a call gives way to others that have just come. Without a bound, it would never begin in a flood."""


class Overload:
    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._since: float | None = None
        self._last = 0.0
        self._calls = 0

    def note(self, running: int, waiting: int) -> None:
        now = self._clock()
        self.look()
        if self._since is None:
            self._since, self._calls = now, 0
            logger.warning(
                "Overloaded: %d calls run and %d wait, so new ones are handed to other replicas, or refused. Add "
                "replicas if that lasts. Limits(max_concurrency=...) sets how many run at once. Limits(shed_above=...) "
                "sets the number above which new calls go to other replicas",
                running,
                waiting,
                extra={"fields": {"event": "overload", "running": running, "waiting": waiting}},
            )
        self._last = now
        self._calls += 1

    def look(self) -> None:
        if self._since is not None and self._clock() - self._last >= CALM_SECONDS:
            seconds = self._last - self._since
            self._since = None
            logger.warning(
                "Not overloaded any more, after %.0f s in which %d calls were turned away",
                seconds,
                self._calls,
                extra={"fields": {"event": "overload_over", "seconds": round(seconds, 1), "calls": self._calls}},
            )


class TurnEnd(Enum):
    RUNS = "it has its turn"
    TOO_LATE = "it has waited for too long"
    LEAVES = "it is to continue elsewhere"


Turn = asyncio.Future[TurnEnd]


class _WaitingCall(NamedTuple):
    joined: float
    until: float
    number: int
    """How many waited then, with it."""
    timer: asyncio.TimerHandle | None


class WaitingLine:
    """Calls wait here in the order in which they came, as long as `max_queue` and `queue_seconds` let them.

    A call that would hardly get its turn in time is refused at once. How long a place takes, and how far off that
    estimate is, are learned from earlier calls. A call whose turn still comes too late does not get it. As long as
    calls are turned away, fewer wait than could: so nearly all of them are in time, and the others are refused at once.
    """

    def __init__(self, limits: Limits) -> None:
        self._most = limits.max_queue or float("inf")
        self._seconds = limits.queue_seconds or float("inf")
        self.has_limits = limits.max_queue is not None or limits.queue_seconds is not None
        self._waiting: dict[Turn, _WaitingCall] = {}
        self._pace = 0.0
        """How many seconds a place takes, about."""
        self._spread = 0.0
        """How many seconds longer or shorter than so estimated a call waits, on average."""
        self._stands_until = 0.0

    def __len__(self) -> int:
        return len(self._waiting)

    def refuses(self, share: int, waited: float = 0.0) -> bool:
        """Return whether a call can't join, of which `share` times as many as of others may wait, and as long."""
        if not self._waiting:  # or nothing would show that the line moves again
            return False
        if len(self) >= self._most * share:
            return True
        is_short = share == 1 and time.monotonic() < self._stands_until
        reserve = RESERVE if is_short else 1.0
        return waited + reserve * self._expected + SPREADS * self._spread > self._seconds * share

    def note_turned_away(self) -> None:
        """Note that a call is not to run here: more come than can run, and this line will not be gone soon."""
        self._stands_until = time.monotonic() + STANDING * self._seconds

    @property
    def _expected(self) -> float:
        return (len(self) + 1) * self._pace

    @property
    def retry_after(self) -> float:
        return min(max(1.0, self._expected), LONGEST_RETRY)

    def join(self, share: int, waited: float = 0.0) -> "Turn":
        """Add a call to the end of the line; it has to `leave` afterwards. What else ends its waiting may set `LEAVES`.

        It may wait `share` times as long as others. What it has `waited` already counts where others wait before it.
        """
        loop = asyncio.get_running_loop()
        turn: Turn = loop.create_future()
        if not self._waiting:  # nothing could be sooner
            waited = 0.0
        timeout = max(0.0, self._seconds * share - waited)
        timer = loop.call_later(timeout, self._give_up, turn) if timeout < float("inf") else None
        now = time.monotonic()
        self._waiting[turn] = _WaitingCall(now, now + timeout, len(self) + 1, timer)
        return turn

    def leave(self, turn: "Turn") -> None:
        timer = self._waiting.pop(turn).timer
        if timer is not None:
            timer.cancel()

    def next_turn(self) -> bool:
        now = time.monotonic()
        for turn, call in self._waiting.items():
            if turn.done():
                continue
            self._learn(call, now)
            if now <= call.until:
                turn.set_result(TurnEnd.RUNS)
                return True
            turn.set_result(TurnEnd.TOO_LATE)  # the timer would have said so if nothing had blocked the event loop
        return False

    def _give_up(self, turn: "Turn") -> None:
        if not turn.done():
            self._learn(self._waiting[turn], time.monotonic())
            turn.set_result(TurnEnd.TOO_LATE)

    def _learn(self, call: _WaitingCall, now: float) -> None:
        waited = now - call.joined
        self._spread += WEIGHT * (abs(waited - call.number * self._pace) - self._spread)
        self._pace += WEIGHT * (waited / call.number - self._pace)


class Admission:
    """Admits calls: all at once, unless the server is draining or has limits to enforce."""

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
        self._watching: set[partial[asyncio.Handle]] = set()
        self._overload = Overload()

    @property
    def is_full(self) -> bool:
        return self.draining or self._in_flight >= self._shed_above

    @property
    def has_no_room(self) -> bool:
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
        return len(self._line)

    # Draining

    def drain(self) -> None:
        """Begin to drain. May be called from any thread, from a signal handler, and again."""
        self.draining = True
        self.is_open = False
        for notify in tuple(self._watching):
            with suppress(RuntimeError):  # its loop has ended
                notify()

    def shut_down(self) -> None:
        """Begin to drain, and to count the time that the server has for its end; as `drain`."""
        self.shutdown.begin()
        self.drain()

    def reopen(self) -> None:
        self.shutdown.reopen()
        self.draining = False
        self.is_open = self._unlimited

    def on_drain(self, callback: Callable[[], object]) -> Cancel:
        """Call a function on this event loop when draining begins, at once if it has, and maybe twice.

        Return what stops that.
        """
        notify = partial(running_loop().call_soon_threadsafe, callback)
        self._watching.add(notify)
        if self.draining:
            notify()
        return partial(self._watching.discard, notify)

    # Calls

    async def enter(
        self, may_leave: Callable[[], bool], *, was_shed: bool = False, has_begun: bool = False
    ) -> YieldReason | None:
        """Wait for the turn of a call, the first to come being the first to run.

        Return None if it runs here, and has to `leave` afterwards; otherwise why it is to be handed back, if it
        `may_leave`. Raises `Busy` if it can't continue elsewhere, and too many wait, or it has waited for too long.

        `was_shed`: whether it comes from a replica that had too much to do.
        `has_begun`: whether something was answered or done in its earlier rounds. Twice as many of these may wait, and
            twice as long.
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
        self._in_flight -= 1
        if self._line.has_limits:
            now = time.monotonic()
            self._was_blocked = self._was_blocked or now - self._left > BLOCKED_SECONDS
            self._left = now
        self._overload.look()
        self._sheds_left = min(self._sheds_left + 1, self._most)
        self._pass_on()

    def note_turned_away(self) -> None:
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

        stop = self.on_drain(turn_away)
        try:
            end = await turn
        except asyncio.CancelledError:
            if not turn.cancelled() and turn.result() is TurnEnd.RUNS:  # just as the client left
                self._pass_on()
            raise
        finally:
            stop()
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
        """
        came_then = now - self._ended < self._ended - self._began
        return now - self._began if came_then else 0.0
