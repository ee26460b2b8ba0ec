"""Whether a server has too much to do: the log has a line when that begins, and one when it is over."""

import logging
import time
from collections.abc import Callable

logger = logging.getLogger("mrtr_server")

CALM_SECONDS = 30.0
"""How long no call must have been turned away before the server counts as not overloaded, in seconds."""


class Overload:
    """Whether a server turns calls away for lack of room.

    Args:
        clock: returns the time in seconds, from any beginning.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._since: float | None = None
        self._last = 0.0
        self._calls = 0

    def note(self, running: int, waiting: int) -> None:
        """Note that a call is turned away: it is to continue elsewhere, or to be sent again later.

        Args:
            running: how many calls run.
            waiting: how many wait for their turn.
        """
        now = self._clock()
        if self._since is not None and now - self._last >= CALM_SECONDS:
            self._say_over()
        if self._since is None:
            self._since, self._calls = now, 0
            logger.warning(
                "Overloaded: %d calls run and %d wait, so new ones are handed to other replicas, or refused. Add "
                "replicas if that lasts. Limits(max_concurrency=...) says how many run, and Limits(shed_above=...) "
                "from when on others go elsewhere",
                running,
                waiting,
                extra={"fields": {"event": "overload", "running": running, "waiting": waiting}},
            )
        self._last = now
        self._calls += 1

    def look(self) -> None:
        """Look whether it is over."""
        if self._since is not None and self._clock() - self._last >= CALM_SECONDS:
            self._say_over()

    def _say_over(self) -> None:
        if self._since is not None:
            seconds = self._last - self._since
            logger.warning(
                "Not overloaded any more, after %.0f s in which %d calls were turned away",
                seconds,
                self._calls,
                extra={"fields": {"event": "overload_over", "seconds": round(seconds, 1), "calls": self._calls}},
            )
            self._since = None
