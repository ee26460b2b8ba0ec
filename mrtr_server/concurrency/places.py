"""Places in a process: so many in all, and a share for each caller."""

from collections import Counter
from collections.abc import Hashable

from ..errors import Full, OverShare
from ..limits import Limits


class PlacesByCaller:
    """Counts who holds places, so that no caller takes those of all others. A place may be a byte."""

    def __init__(self, limit: str, limits: Limits) -> None:
        self.limit = limit
        self.total: int = getattr(limits, limit)
        self._share = limits.share_of(self.total)
        self._held: Counter[Hashable] = Counter()
        self.taken = 0

    def has_room(self, caller: Hashable, own: int = 0) -> bool:
        return self.taken - own < self.total and not self._has_share(caller, own)

    def _has_share(self, caller: Hashable, own: int) -> bool:
        return caller is not None and self._held[caller] - own >= self._share

    def check(self, caller: Hashable, own: int = 0) -> None:
        """Raise `OverShare` or `Full` where `has_room` is False."""
        if self._has_share(caller, own):
            raise OverShare(self.limit, self._share)
        if self.taken - own >= self.total:
            raise Full(self.limit, self.total)

    def add(self, caller: Hashable, more: int) -> None:
        """Count what a caller has taken, or with a negative number what it has given back."""
        self.taken += more
        if caller is not None:
            self._held[caller] += more
            if not self._held[caller]:
                del self._held[caller]

    def take(self, caller: Hashable) -> "Portion":
        """Hold one place until the end of the portion, or of its block. Raises `OverShare`, `Full`."""
        place = self.portion(caller)
        place.grow(1)
        return place

    def portion(self, caller: Hashable) -> "Portion":
        return Portion(self, caller)


class Portion:
    """The places that are held for one thing: more at one time, and fewer at another."""

    __slots__ = ("_caller", "_places", "size")

    def __init__(self, places: PlacesByCaller, caller: Hashable) -> None:
        self._places = places
        self._caller = caller
        self.size = 0

    def __enter__(self) -> "Portion":
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    def has_room(self) -> bool:
        """Return whether it may grow. All that a caller holds for this one thing is no obstacle."""
        return self._places.has_room(self._caller, self.size)

    def grow(self, size: int) -> None:
        """Hold so many from now on, if it may grow. Raises `OverShare`, `Full`."""
        self._places.check(self._caller, self.size)
        self.set(size)

    def set(self, size: int) -> None:
        """Hold so many from now on, whatever others hold."""
        self._places.add(self._caller, size - self.size)
        self.size = size

    def end(self) -> None:
        """May be called twice."""
        if self.size:
            self.set(0)
