"""How many streams a process holds open, in all and for each caller."""

from collections.abc import Iterator
from contextlib import contextmanager

from ..concurrency.places import PlacesByCaller
from ..limits import Limits
from ..protocol.callers import Principal


class Holds:
    """Counts the streams that are held open.

    Args:
        limits: its `held_streams` and `caller_share` count.
    """

    def __init__(self, limits: Limits) -> None:
        self._places = PlacesByCaller("held_streams", limits.held_streams, limits.share_of(limits.held_streams))

    def have_room(self, principal: Principal | None) -> bool:
        """Return whether one more may be held for a caller; None where nobody is authenticated."""
        return self._places.has_room(_caller(principal))

    @contextmanager
    def hold(self, principal: Principal | None) -> Iterator[None]:
        """Count one for as long as the block lasts. Raises `Full` if there is no room."""
        give_back = self._places.take(_caller(principal))
        try:
            yield
        finally:
            give_back()


def _caller(principal: Principal | None) -> tuple[str, str] | None:
    return None if principal is None else principal.person
