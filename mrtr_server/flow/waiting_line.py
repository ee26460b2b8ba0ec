"""The calls that wait for their turn, how long that takes, and from when on no more may join them."""

import asyncio
import time
from typing import NamedTuple

from ..limits import Limits

WEIGHT = 0.2
"""How much a new observation counts beside those before it."""

LONGEST_RETRY = 60.0
"""When a caller that is refused is to come again at the latest, in seconds."""

Turn = asyncio.Future[bool | None]
"""What a call waits for."""


class _Place(NamedTuple):
    """A place in the line.

    Args:
        came: when its call came, by the monotonic clock.
        number: how many waited then, with it.
        timer: ends its waiting; None if nothing does.
    """

    came: float
    number: int
    timer: asyncio.TimerHandle | None


class WaitingLine:
    """Calls wait here in the order in which they came.

    Who would not get a turn in time is refused at once. How long the line takes is learned from those who have waited.

    Args:
        limits: its `max_queue` and `queue_seconds` count.
    """

    def __init__(self, limits: Limits) -> None:
        self._most = limits.max_queue or float("inf")
        self._seconds = limits.queue_seconds or float("inf")
        self.has_limits = limits.max_queue is not None or limits.queue_seconds is not None
        """Whether there is an end to it."""
        self._waiting: dict[Turn, _Place] = {}
        self._pace = 0.0
        """How many seconds a place takes, about."""

    def __len__(self) -> int:
        """Return how many wait."""
        return len(self._waiting)

    def refuses(self, share: int) -> bool:
        """Return whether a call can't join: too many wait, or it would wait for too long.

        Args:
            share: how many times as many may wait, and as long, for such a call.
        """
        if not self._waiting:  # of whom it could be learned that the line moves again
            return False
        return len(self) >= self._most * share or self._expected > self._seconds * share

    @property
    def _expected(self) -> float:
        """How long a call would wait that comes now, in seconds."""
        return (len(self) + 1) * self._pace

    @property
    def retry_after(self) -> float:
        """When a call that is refused may come again, in seconds."""
        return min(max(1.0, self._expected), LONGEST_RETRY)

    def join(self, share: int) -> "Turn":
        """Let a call wait.

        Args:
            share: how many times as long as others it may wait.

        Returns:
            What it waits for: True when it has its turn, None if it has waited for too long. Whoever else ends the
            waiting may set False. It has to `leave` afterwards.
        """
        loop = asyncio.get_running_loop()
        turn: Turn = loop.create_future()
        patience = self._seconds * share
        timer = loop.call_later(patience, self._give_up, turn) if patience < float("inf") else None
        self._waiting[turn] = _Place(time.monotonic(), len(self) + 1, timer)
        return turn

    def leave(self, turn: "Turn") -> None:
        """Note that a call waits no more."""
        timer = self._waiting.pop(turn).timer
        if timer is not None:
            timer.cancel()

    def next_turn(self) -> bool:
        """Let the next one run; return False if nobody waits."""
        for turn in self._waiting:
            if not turn.done():
                self._learn(turn)
                turn.set_result(True)
                return True
        return False

    def _give_up(self, turn: "Turn") -> None:
        if not turn.done():
            self._learn(turn)
            turn.set_result(None)

    def _learn(self, turn: "Turn") -> None:
        place = self._waiting[turn]
        self._pace += WEIGHT * ((time.monotonic() - place.came) / place.number - self._pace)
