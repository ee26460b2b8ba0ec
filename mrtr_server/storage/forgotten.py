"""Who was forgotten, as a process knows it: no flow of theirs from before continues."""

import math
import time
from collections.abc import Mapping

from ..crypto.keys import KeyRing
from ..protocol.callers import Principal
from .base import Store
from .health import ReadBeside
from .quotas import Callers

AGE = 30.0  # the store is asked again after so many seconds


class Forgotten:
    """Remembers for a while whom the shared store has forgotten, so that a request seldom has to ask it."""

    def __init__(self, store: Store, ring: KeyRing) -> None:
        self._store = store
        self._callers = Callers(ring)
        self._moments: Mapping[str, float] = {}
        self._reader = ReadBeside(self._read)
        self._look_at = -math.inf if store.shared else math.inf  # by the monotonic clock; nobody else writes to our own

    @property
    def is_due(self) -> bool:
        """Whether the store is to be asked again."""
        return time.monotonic() >= self._look_at

    async def look(self) -> None:
        """Ask the store. While it does not answer, what was known counts."""
        self._look_at = time.monotonic() + AGE  # whatever comes of it: an outage is not to hold each request
        await self._reader.again()

    async def _read(self) -> None:
        self._moments = await self._store.forgotten()

    def ends(self, principal: Principal | None, begun: float) -> bool:
        """Return whether a flow has ended, since its caller was forgotten after it began."""
        if not self._moments or principal is None:  # as nearly always
            return False
        # A state may have been sealed, and its caller forgotten, when another key was the first.
        return any(begun <= self._moments.get(each, -math.inf) for each in self._callers.all_of(principal.person))
