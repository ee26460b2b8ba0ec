"""The shutdown of a server: one deadline that everything in it shares."""

import asyncio
import logging
import os
import sys
import threading
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

logger = logging.getLogger("mrtr_server")

T = TypeVar("T")

ENVIRONMENT = "MRTR_SHUTDOWN_SECONDS"

DEFAULT = 25.0
"""In seconds. Kubernetes waits for 30 before it kills."""

CUT_OFF_BEFORE = 5.0
"""How long before the deadline running work is cancelled, in seconds; at most a quarter of the whole time."""

SHUTDOWN_MARGIN = 1.0
"""How long before the deadline we are done, in seconds; at most a tenth of the time. Others have to end, too."""


def end_process_in_time(seconds: float) -> None:
    """End the process, which is ours, if something keeps it: a blocked event loop, or a thread of the tools'."""
    threading.Thread(target=_end_process, args=(seconds,), daemon=True).start()


def _end_process(seconds: float) -> None:
    time.sleep(seconds * 0.97)  # Python itself takes a moment
    print(f"Some work did not end within {seconds:g} s ({ENVIRONMENT}), and is abandoned", file=sys.stderr)
    os._exit(1)


class ShutdownDeadline:
    """The shutdown of a server. Its deadline is counted from the signal.

    At first everything that runs may end, or reach a boundary. At the cut-off, whatever still runs is cancelled. The
    time that is left is for answering those calls, handing back tasks, and closing connections.
    """

    def __init__(self, seconds: float = DEFAULT) -> None:
        self.seconds = seconds
        self.began: float | None = None
        """By the monotonic clock; None while the server is not ending."""
        self._told: list[Callable[[], None]] = []

    def begin(self) -> None:
        """Begin, unless it has begun. May be called from any thread, and from a signal handler."""
        if self.began is None:
            self.began = time.monotonic()
            for tell in self._told:
                tell()

    def reopen(self) -> None:
        self.began = None

    def on_begin(self, tell: Callable[[], None]) -> None:
        self._told.append(tell)

    def until_cut_off(self) -> float:
        """Return the seconds until running work is cancelled; 0 after that."""
        return self._until(self.seconds - min(CUT_OFF_BEFORE, self.seconds / 4))

    def left(self) -> float:
        """Return the seconds until the deadline; 0 after that."""
        return self._until(self.seconds - min(SHUTDOWN_MARGIN, self.seconds / 10))

    async def in_time(self, work: Awaitable[T], what: str, part: float = 1.0) -> T | None:
        """Wait for a part of the time that is left, and cancel the work, with None, if it takes longer."""
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
