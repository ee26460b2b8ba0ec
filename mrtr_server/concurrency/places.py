"""Places in a process: so many in all, and a share for each caller."""

from collections import Counter
from collections.abc import Callable, Hashable

from ..errors import Full, OverShare


class PlacesByCaller:
    """Counts who holds places, so that no caller takes those of all others.

    Args:
        limit: what is counted, by its name in `Limits`.
        total: how many places there are.
        share: how many of them one caller may hold. A caller that nobody knows, which is None, may hold all.
    """

    def __init__(self, limit: str, total: int, share: int) -> None:
        self._limit = limit
        self._total = total
        self._share = share
        self._held: Counter[Hashable] = Counter()
        self.taken = 0
        """How many places are taken."""

    def has_room(self, caller: Hashable) -> bool:
        """Return whether a caller may take one more place."""
        return self.taken < self._total and (caller is None or self._held[caller] < self._share)

    def take(self, caller: Hashable) -> Callable[[], None]:
        """Reserve a place.

        Args:
            caller: who takes it; None where nobody is authenticated.

        Returns:
            A function that gives it back; it may be called again, and does nothing then.

        Raises:
            OverShare: the caller holds as many as it may.
            Full: all are taken.
        """
        if caller is not None and self._held[caller] >= self._share:
            raise OverShare(self._limit, self._share)
        if self.taken >= self._total:
            raise Full(self._limit, self._total)
        self.taken += 1
        if caller is not None:
            self._held[caller] += 1
        is_held = True

        def give_back() -> None:
            nonlocal is_held
            if not is_held:
                return
            is_held = False
            self.taken -= 1
            if caller is None:
                return
            self._held[caller] -= 1
            if not self._held[caller]:
                del self._held[caller]

        return give_back
