"""How much one owner may set and cancel: what costs a client nothing must not fill the store."""

from collections.abc import Callable

from ..errors import Busy
from ..protocol.callers import Principal
from ..protocol.sessions import owner_of

MOST_CHANGES = 100
"""How many different things an owner may change within `WINDOW`."""

MOST_OF_NOBODY = 10_000
"""The same of all callers together who are not authenticated."""

WINDOW = 600.0
"""In seconds."""

RETRY_AFTER = 5.0
"""When an owner is to try again that has changed too many, in seconds."""


class Allowance:
    """Counts what each owner changes, in this process. To change the same thing again is free.

    Args:
        clock: returns the time in seconds since the epoch.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._changed: dict[tuple[str, int], set[str]] = {}

    def take(self, principal: Principal | None, what: str) -> None:
        """Count a change.

        Args:
            principal: whose it is.
            what: names what is changed.

        Raises:
            Busy: its owner has changed too much of late.
        """
        owner, window = owner_of(principal), int(self._clock() // WINDOW)
        counted = self._changed.get((owner, window))
        if counted is None:
            self._changed = {each: changed for each, changed in self._changed.items() if each[1] == window}
            counted = self._changed[owner, window] = set()
        counted.add(what)
        if len(counted) > (MOST_CHANGES if owner else MOST_OF_NOBODY):
            counted.discard(what)
            raise Busy(RETRY_AFTER)
