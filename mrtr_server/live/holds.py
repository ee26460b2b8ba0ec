"""How many streams a process holds open, in all and for each principal."""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from ..errors import Busy
from ..limits import Limits

RETRY_AFTER = 5.0
"""When a client is to try again for whom there is no room, in seconds."""


class Holds:
    """Counts the streams that are held open.

    Args:
        limits: its `held_streams` and `held_streams_each` count.
    """

    def __init__(self, limits: Limits) -> None:
        self._most = limits.held_streams
        self._most_each = limits.held_streams_each
        self._held: Counter[str] = Counter()

    def have_room(self, owner: str) -> bool:
        """Return whether one more may be held.

        Args:
            owner: digest of the principal; empty for anonymous callers, who share the total alone.
        """
        return self._held.total() < self._most and not (owner and self._held[owner] >= self._most_each)

    @contextmanager
    def hold(self, owner: str) -> Iterator[None]:
        """Count one for as long as the block lasts. Raises `Busy` if there is no room."""
        if not self.have_room(owner):
            raise Busy(RETRY_AFTER)
        self._held[owner] += 1
        try:
            yield
        finally:
            self._held[owner] -= 1
            if not self._held[owner]:
                del self._held[owner]
