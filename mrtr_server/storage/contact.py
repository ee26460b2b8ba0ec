"""How long a process has been in touch with its store: the holder of a lease may be cut off, and not dead."""

import time

LONGEST_GAP = 5.0
"""How long the store may be silent before the contact counts as broken, in seconds; at most a lease."""


class Contact:
    """The time since which a process has reached its store without a break.

    Where a store was unavailable to all, every lease has ended, and its holders live. They come back as soon as they
    can, so nobody takes anything over until the contact has lasted for a while. A process that has just started can't
    know what was before, so its contact begins as one that was broken: with the first write, since a disk that is full
    can be read.

    Args:
        lease: how long a holder may be silent, in seconds: a break of that length may have ended every lease.
    """

    __slots__ = ("_last", "_lease", "_since")

    def __init__(self, lease: float) -> None:
        self._lease = lease
        self._since: float | None = None
        self._last = 0.0

    @property
    def is_made(self) -> bool:
        """Whether something was written since the last break."""
        return self._since is not None

    def failed(self) -> None:
        """Note that the store could not do something."""
        self._since = None

    def worked(self, *, wrote: bool) -> None:
        """Note that it did something.

        Args:
            wrote: whether that has changed anything.
        """
        now = time.monotonic()
        if now > self._last + self._longest_gap:  # the process was suspended, or the store stood still
            self._since = None
        if self._since is None and wrote:
            self._since = now
        self._last = now

    def has_lasted(self, seconds: float) -> bool:
        """Return whether there was no break for so many seconds."""
        now = time.monotonic()
        return self._since is not None and now >= self._since + seconds and now <= self._last + self._longest_gap

    @property
    def _longest_gap(self) -> float:
        return min(LONGEST_GAP, self._lease)
