"""How far the clock of a database is from that of this machine."""

import logging
import time
from collections.abc import Callable
from typing import Literal

from ...errors import ClocksApart
from ...logs.failures import report_failure

logger = logging.getLogger("mrtr_server")

TOLD_SECONDS = 5.0
"""How far apart they may be before the log says so, in seconds."""
MOST_SECONDS = 30.0
"""How far apart they may be before single use is refused, in seconds.

A record outlasts its state by a minute. So two replicas may be half of that apart from their database, each in its own
direction.
"""
COMPARE_AGAIN = 5.0
"""How long a comparison counts that refuses something, in seconds."""

_Verdict = Literal["agree", "apart", "too far"]


class ClockComparison:
    """Compares a database's clock with that of this machine, and says so when they are apart.

    Args:
        name: the database as an operator knows it.
        clock: returns the time of this machine, in seconds since the epoch.
    """

    _error: ClocksApart
    """What is raised while they are too far apart."""
    _compared: float
    """When they were last compared, by the monotonic clock."""

    def __init__(self, name: str, clock: Callable[[], float] = time.time) -> None:
        self.clock = clock
        self._name = name
        self._ahead_of_monotonic: float | None = None
        self._verdict: _Verdict = "agree"
        self.apart = 0.0
        """How far they are apart, at least, in seconds."""

    def note(self, theirs: float, before: float, took: float) -> None:
        """Record a reading of the database's clock.

        Args:
            theirs: what it said, in seconds since the epoch.
            before: the time of this machine when it was asked, in seconds since the epoch.
            took: how long the answer took, in seconds.
        """
        self._compared = time.monotonic()
        self._ahead_of_monotonic = theirs - (self._compared - took / 2)
        ahead = theirs - (before + took / 2)
        self.apart = apart = max(abs(ahead) - took / 2, 0.0)  # at least, whenever in between it was read
        verdict: _Verdict = "too far" if apart > MOST_SECONDS else "apart" if apart > TOLD_SECONDS else "agree"
        if verdict == self._verdict:
            return
        self._verdict = verdict
        what = f"{self._name}: its clock is {apart:.1f} s {'ahead of' if ahead > 0 else 'behind'} this machine's"
        if verdict == "too far":
            why = (
                f"confirmations and single-use rounds are refused while they differ by over {MOST_SECONDS:g} s, since "
                "a state that was used could count again. Set both clocks by NTP; this process looks again by itself"
            )
            self._error = ClocksApart(f"{what}; {why}")
            self._error.reference = report_failure("%s", what, why=why)
        elif verdict == "apart":
            logger.warning(
                "%s, so leases, deadlines and expiry are that much off. Set both clocks by NTP; over %g s apart, "
                "confirmations and single-use rounds are refused",
                what,
                MOST_SECONDS,
            )
        else:
            logger.warning("%s: its clock and this machine's agree again", self._name)

    @property
    def is_in_doubt(self) -> bool:
        """Whether they were too far apart, and that was a while ago."""
        return self._verdict == "too far" and time.monotonic() >= self._compared + COMPARE_AGAIN

    def check(self) -> None:
        """Check that they are near enough for single use. Raises `ClocksApart`."""
        if self._verdict == "too far":
            raise self._error

    def time(self) -> float:
        """Return the time of the database, as far as it is known here, in seconds since the epoch."""
        if self._ahead_of_monotonic is None:
            return self.clock()
        return time.monotonic() + self._ahead_of_monotonic
