"""The right to run something for a while, which others get when its holder falls silent."""

import time

RECONNECT_SECONDS = 1.0
"""How long a holder waits at most before it tries a store again that it could not reach, in seconds."""

GRACE_SECONDS = RECONNECT_SECONDS + 2.0
"""How long at least a holder whose lease ended while it could not reach the store has to come back, in seconds.

It renews its lease and records what it has done. Nobody takes the lease over before.
"""


class Lease:
    """A replica's right to run the round of a state that is redeemed once, or a worker's to run a task.

    Args:
        seconds: how long it is valid unless it is renewed.
        since: when it was asked for, by the monotonic clock.
    """

    __slots__ = ("_until", "lost", "seconds")

    def __init__(self, seconds: float, since: float) -> None:
        self.seconds = seconds
        self.lost = False
        """Whether somebody else has it for certain."""
        self.hold(since)

    def hold(self, since: float) -> None:
        """Note that it was renewed at that time, by the monotonic clock."""
        self._until = since + self.seconds

    @property
    def in_doubt(self) -> bool:
        """Whether somebody else may have it by now, so that nothing new should begin here."""
        return self.lost or time.monotonic() > self._until
