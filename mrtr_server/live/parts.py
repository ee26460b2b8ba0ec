"""What open calls and sessions share, made once for a server; and how much of it a process holds open."""

from collections.abc import Callable

from ..concurrency.places import PlacesByCaller, Portion
from ..crypto.keys import LIVE_OUTCOME, KeyRing
from ..crypto.place_codec import row_codec
from ..flow.admission import Admission
from ..flow.single_use import Redeemer
from ..limits import Limits
from ..protocol.callers import Principal
from ..protocol.sessions import Sessions
from ..storage.base import Store
from ..storage.pubsub import Fanout
from ..storage.quotas import Quotas
from .answers import Answers, TaskAsks
from .events import EventIds
from .pages import RequiredPages
from .session_states import Allowance, SessionStates

LEASE = 10.0
"""How long a replica that runs a round of an open call may be silent before another may run it, in seconds."""

UNCOUNTED = 4096
"""Bytes of a request that do not count: of these there are no more than connections, and nearly all are smaller."""


class LiveParts:
    """What open calls and sessions share."""

    def __init__(
        self,
        ring: KeyRing,
        audience: str,
        store: Store,
        fanout: Fanout,
        quotas: Quotas,
        limits: Limits,
        admission: Admission,
        clock: Callable[[], float],
        is_shared: Callable[[], bool],
    ) -> None:
        self.sessions = Sessions(ring, audience, clock)
        self.states = SessionStates(ring, store, fanout, quotas, clock)
        self.answers = Answers(ring, audience, store, fanout, quotas, clock)
        self.task_asks = TaskAsks(ring, audience)
        self.events = EventIds(ring, audience, store, quotas, clock)
        self.pages = RequiredPages(ring, audience, store, self.states, quotas)
        self.cancellations = Allowance(clock)
        self.holds = Holds(limits)
        outcomes = row_codec(ring, LIVE_OUTCOME, in_memory=store.in_memory)
        # Records in memory are of no use to anybody once the process ends, which alone cancels requests here.
        self.redeemer = Redeemer(
            store,
            outcomes,
            quotas,
            lease=min(LEASE, limits.lease_seconds),
            clock=clock,
            outlives=not store.in_memory,
        )
        self.quotas = quotas
        self.is_shared = is_shared
        self.store = store
        self.admission = admission
        self.clock = clock


class Holds:
    """Counts the streams that are held open, and the bytes of requests that are held in memory."""

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
    """A stream that is held open, for as long as a block lasts."""

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
