"""Whether a server has too much to do: the log has a line when that begins, and one when it ends."""

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass

logger = logging.getLogger("mrtr_server")

CALM_SECONDS = 30.0
"""How long no call must have been turned away before the server counts as not overloaded, in seconds."""


@dataclass(slots=True)
class _Spell:
    """A time in which calls are turned away: since when, when the last one was, and how many."""

    since: float
    last: float
    calls: int = 0


class Overload:
    """Whether a server turns calls away for lack of room.

    Args:
        clock: returns the time in seconds, from any beginning.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._spell: _Spell | None = None

    def note(self, running: int, waiting: int) -> None:
        """Note that a call is turned away: it is to continue elsewhere, or to be sent again later.

        Args:
            running: how many calls run.
            waiting: how many wait for their turn.
        """
        now = self._clock()
        self.look()
        if self._spell is None:
            self._spell = _Spell(now, now)
            logger.warning(
                "Overloaded: %d calls run and %d wait, so new ones are handed to other replicas, or refused. Add "
                "replicas if that lasts. Limits(max_concurrency=...) sets how many run at once. Limits(shed_above=...) "
                "sets the number above which new calls go to other replicas",
                running,
                waiting,
                extra={"fields": {"event": "overload", "running": running, "waiting": waiting}},
            )
        self._spell.last = now
        self._spell.calls += 1

    def look(self) -> None:
        """Check whether it has ended."""
        spell = self._spell
        if spell is not None and self._clock() - spell.last >= CALM_SECONDS:
            self._spell = None
            seconds = spell.last - spell.since
            logger.warning(
                "Not overloaded any more, after %.0f s in which %d calls were turned away",
                seconds,
                spell.calls,
                extra={"fields": {"event": "overload_over", "seconds": round(seconds, 1), "calls": spell.calls}},
            )
