"""How much a process holds open: streams, and bytes of requests; in all and for each caller."""

from collections.abc import Callable

from ..concurrency.places import PlacesByCaller, Portion
from ..limits import Limits
from ..protocol.callers import Principal

UNCOUNTED = 4096
"""Bytes of a request that do not count: of these there are no more than connections, and nearly all are smaller."""


class Holds:
    """Counts the streams that are held open, and the bytes of requests that are held in memory.

    Args:
        limits: its `held_streams`, `held_bytes` and `caller_share` count.
    """

    def __init__(self, limits: Limits) -> None:
        self._places = PlacesByCaller("held_streams", limits.held_streams, limits.share_of(limits.held_streams))
        self._bytes = PlacesByCaller("held_bytes", limits.held_bytes, limits.share_of(limits.held_bytes))
        self.places = (self._places, self._bytes)
        """What is counted."""

    def have_room(self, principal: Principal | None) -> bool:
        """Return whether one more stream may be held for a caller; None where nobody is authenticated."""
        return self._places.has_room(_caller(principal))

    def hold(self, principal: Principal | None) -> "Held":
        """Count a stream for as long as a block lasts. Raises `Full` if there is no room."""
        return Held(self._places.take(_caller(principal)))

    def portion(self, principal: Principal | None) -> Portion:
        """Return what counts the bytes of one request of a caller: none yet."""
        return Portion(self._bytes, _caller(principal))


class Held:
    """A stream that is held open, for as long as a block lasts.

    Args:
        give_back: gives its place back.
    """

    __slots__ = ("_give_back",)

    def __init__(self, give_back: Callable[[], None]) -> None:
        self._give_back = give_back

    def __enter__(self) -> None:
        """Begin."""

    def __exit__(self, *error: object) -> None:
        """Free the place."""
        self._give_back()


def _caller(principal: Principal | None) -> tuple[str, str] | None:
    return None if principal is None else principal.person
