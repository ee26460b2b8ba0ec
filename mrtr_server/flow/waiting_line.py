"""The calls that wait for their turn, how long that takes, and from when on no more may join them."""

import asyncio
import time
from enum import Enum
from typing import NamedTuple

from ..limits import Limits

WEIGHT = 0.2
"""How much a new observation counts beside those before it."""

SPREADS = 3.0
"""How many times the mean error of the estimates is added to the estimated wait of a call. Few wait for longer."""

RESERVE = 3.0
"""While a line stands, a new call joins it only if it would be in time even after so many times its estimated wait.

A line that never empties makes nothing faster, so a short one is enough. Then few of those in it are late when
something holds the server up.
"""

STANDING = 4.0
"""For how long after a call was turned away a line counts as one that stands, in units of the longest wait."""

LONGEST_RETRY = 60.0
"""When a caller that is refused is to come again at the latest, in seconds."""


class TurnEnd(Enum):
    """How the waiting of a call ends."""

    RUNS = "it has its turn"
    TOO_LATE = "it has waited for too long"
    LEAVES = "it is to continue elsewhere"


Turn = asyncio.Future[TurnEnd]
"""What a call waits for."""


class _WaitingCall(NamedTuple):
    """A call in the line.

    Args:
        joined: when it joined the line, by the monotonic clock.
        until: when it has waited for too long.
        number: how many waited then, with it.
        timer: ends its waiting; None if nothing does.
    """

    joined: float
    until: float
    number: int
    timer: asyncio.TimerHandle | None


class WaitingLine:
    """Calls wait here in the order in which they came.

    A call that would hardly get its turn in time is refused at once. How long a place takes, and how far off that
    estimate is, are learned from earlier calls. A call whose turn still comes too late does not get it. As long
    as calls are turned away, fewer wait than could: so nearly all of them are in time, and the others are refused at
    once.

    Args:
        limits: its `max_queue` and `queue_seconds` count.
    """

    def __init__(self, limits: Limits) -> None:
        self._most = limits.max_queue or float("inf")
        self._seconds = limits.queue_seconds or float("inf")
        self.has_limits = limits.max_queue is not None or limits.queue_seconds is not None
        """Whether there is an end to it."""
        self._waiting: dict[Turn, _WaitingCall] = {}
        self._pace = 0.0
        """How many seconds a place takes, about."""
        self._spread = 0.0
        """How many seconds longer or shorter than so estimated a call waits, on average."""
        self._stands_until = 0.0

    def __len__(self) -> int:
        """Return how many wait."""
        return len(self._waiting)

    def refuses(self, share: int, waited: float = 0.0) -> bool:
        """Return whether a call can't join: too many wait, or it would wait for too long.

        Args:
            share: how many times as many may wait, and as long, for such a call.
            waited: how long it may have waited already, in seconds.
        """
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
        """How long a call would wait that comes now, in seconds."""
        return (len(self) + 1) * self._pace

    @property
    def retry_after(self) -> float:
        """When a call that is refused may come again, in seconds."""
        return min(max(1.0, self._expected), LONGEST_RETRY)

    def join(self, share: int, waited: float = 0.0) -> "Turn":
        """Add a call to the end of the line.

        Args:
            share: how many times as long as others it may wait.
            waited: how long it may have waited already, in seconds; that counts where others wait before it.

        Returns:
            What it waits for. Whatever else ends the waiting may set `LEAVES`. The call has to `leave` afterwards.
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
        """Remove a call from the line.

        Args:
            turn: what it waited for.
        """
        timer = self._waiting.pop(turn).timer
        if timer is not None:
            timer.cancel()

    def next_turn(self) -> bool:
        """Start the next call; return False if none waits."""
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
