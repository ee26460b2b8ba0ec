"""Tokens that were verified: who presents one again is known without further work."""

from collections import OrderedDict
from typing import Generic, TypeVar

T = TypeVar("T")


class VerifiedTokens(Generic[T]):
    """What was found out about tokens, by their digests; the least recently used are dropped.

    Args:
        most: how many are kept.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._known: OrderedDict[bytes, tuple[float, T]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._known)

    def get(self, digest: bytes, now: float) -> T | None:
        """Return what is known of a token; None if it is unknown, or not known any more at that time."""
        known = self._known.get(digest)
        if known is None:
            return None
        if known[0] <= now:
            del self._known[digest]
            return None
        self._known.move_to_end(digest)
        return known[1]

    def put(self, digest: bytes, until: float, value: T) -> None:
        """Keep what was found out, until a time in seconds since the epoch."""
        self._known[digest] = until, value
        if len(self._known) > self._most:
            self._known.popitem(last=False)

    def clear(self) -> None:
        """Forget everything, such as when a key was withdrawn."""
        self._known.clear()
