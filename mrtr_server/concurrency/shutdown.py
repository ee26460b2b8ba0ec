"""How a server ends: one deadline, which all that takes time in it shares."""

import asyncio
import logging
import math
import os
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import TypeVar

from ..errors import SetupError

logger = logging.getLogger("mrtr_server")

T = TypeVar("T")

ENVIRONMENT = "MRTR_SHUTDOWN_SECONDS"

DEFAULT = 25.0
"""In seconds. Kubernetes waits for 30 before it kills."""

FOR_THE_END = 5.0
"""How long before the deadline what still runs is cut off, in seconds; a quarter of it all where that is less."""

TO_SPARE = 1.0
"""How long before the deadline we are done, in seconds; a tenth where that is less. Others have to end, too."""


def read_seconds(given: float | None, environment: Mapping[str, str] = os.environ) -> float:
    """Return how long a shutdown may take, in seconds.

    Args:
        given: by the author; None takes `MRTR_SHUTDOWN_SECONDS`, or else the default.
        environment: where that is looked up.

    Raises:
        SetupError: it is no positive number.
    """
    text = environment.get(ENVIRONMENT, "").strip() if given is None else ""
    name, value = ("shutdown_seconds", given) if given is not None else (ENVIRONMENT, text or DEFAULT)
    try:
        seconds = float(value)
    except (TypeError, ValueError):
        seconds = 0.0
    if not 0 < seconds < math.inf:
        raise SetupError(f"{name}={value!r} must be a positive number of seconds")
    return seconds


class Shutdown:
    """The end of a server. It begins with the signal, and what has to be done by then is counted from there.

    At first all that runs may come to its end or to a boundary. At the cut-off what still runs is cut off. What is left
    then is for the answers to that, for handing back tasks, and for closing what was open.

    Args:
        seconds: how long it may take in all.
    """

    def __init__(self, seconds: float = DEFAULT) -> None:
        self.seconds = seconds
        self.began: float | None = None
        """When it began, by the monotonic clock; None while the server is not ending."""
        self._told: list[Callable[[], None]] = []

    def begin(self) -> None:
        """Begin to count, unless that has begun. May be called from any thread, and from a signal handler."""
        if self.began is None:
            self.began = time.monotonic()
            for tell in self._told:
                tell()

    def reopen(self) -> None:
        """Forget that it began: the server starts anew."""
        self.began = None

    def on_begin(self, tell: Callable[[], None]) -> None:
        """Call a function when it begins: on whatever thread that is, and perhaps in a signal handler."""
        self._told.append(tell)

    def until_cut_off(self) -> float:
        """Return how many seconds what runs still has; 0 when they are over."""
        return self._until(self.seconds - min(FOR_THE_END, self.seconds / 4))

    def left(self) -> float:
        """Return how many seconds there are until all has to be over; 0 when they are over."""
        return self._until(self.seconds - min(TO_SPARE, self.seconds / 10))

    async def in_time(self, work: Awaitable[T], what: str, part: float = 1.0) -> T | None:
        """Wait for something that belongs to the end; it is cancelled where it takes too long.

        Args:
            work: what is awaited.
            what: names it in the log.
            part: of the seconds that are left, how much it may have.

        Returns:
            What came of it; None if it did not end in time.
        """
        seconds = self.left() * part
        try:
            async with asyncio.timeout(seconds) as limit:
                return await work
        except TimeoutError:
            if not limit.expired():  # its own
                raise
            logger.error("%s did not end within the %.1f s that were left of the shutdown", what, seconds)
            return None

    def _until(self, seconds: float) -> float:
        return seconds if self.began is None else max(0.0, self.began + seconds - time.monotonic())
