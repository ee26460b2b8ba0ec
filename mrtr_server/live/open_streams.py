"""How many streams a process holds open, in all and for each caller."""

from collections.abc import Callable

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

    def hold(self, principal: Principal | None) -> "Held":
        """Count one for as long as a block lasts. Raises `Full` if there is no room."""
        return Held(self._places.take(_caller(principal)))


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
