"""Whether a store answers slowly: the log has a line when that begins, and one when that ends."""

import logging

from ..concurrency.loop_watch import seconds_lost

logger = logging.getLogger("mrtr_server")

SLOW_SECONDS = 2.0
"""How long something may take before the log says so, in seconds. Most takes a thousandth of it."""

CALM_SECONDS = 30.0
"""How long nothing must have taken that long before the store counts as quick again, in seconds."""


class Slowness:
    """Whether a store answers slowly. Time in which this process itself stood still does not count.

    Args:
        name: the server's, for the log.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._slow: tuple[float, float] | None = None
        """Since when it has been slow, and when it was last; None while it is quick."""

    def took(self, method: str, began: float, ended: float) -> None:
        """Note how long the store took for something that it did.

        Args:
            method: what it did.
            began: when, by `time.monotonic`.
            ended: likewise.
        """
        if ended - began >= SLOW_SECONDS:
            self._note_slow(method, ended - began - seconds_lost(began), ended)
        elif self._slow is not None and ended - self._slow[1] >= CALM_SECONDS:
            since, last = self._slow
            logger.warning(
                "%s: the store is quick again, after %.0f s",
                self._name,
                last - since,
                extra={"fields": {"event": "store_quick"}},
            )
            self._slow = None

    def _note_slow(self, method: str, seconds: float, now: float) -> None:
        if seconds < SLOW_SECONDS:
            return
        if self._slow is not None:
            self._slow = self._slow[0], now
            return
        self._slow = now - seconds, now
        logger.warning(
            "%s: the store is slow: it took %.1f s for %r. Requests that need it wait as long; over ten seconds, "
            "they are refused. Look at its load, its locks, its disk and the network",
            self._name,
            seconds,
            method,
            extra={"fields": {"event": "store_slow", "seconds": round(seconds, 1), "method": method}},
        )
