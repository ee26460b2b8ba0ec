"""What open calls and sessions share, made once for a server."""

from collections.abc import Callable

from ..concurrency.places import PlacesByCaller
from ..crypto.keys import LIVE_OUTCOME, KeyRing
from ..crypto.place_codec import row_codec
from ..flow.admission import Admission
from ..flow.single_use import Redeemer
from ..limits import Limits
from ..protocol.sessions import Sessions
from ..storage.base import Store
from ..storage.pubsub import Fanout
from ..storage.quotas import Quotas
from .answers import LiveAnswers, TaskAsks
from .events import EventIds
from .pages import RequiredPages
from .session_states import Allowance, SessionStates

LEASE = 10.0
"""How long a replica that runs a round of an open call may be silent before another may run it, in seconds."""

UNCOUNTED = 4096
"""Bytes of a request that do not count: of these there are no more than connections, and nearly all are smaller."""


class LiveParts:
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
        *,
        is_shared: bool,
    ) -> None:
        self.sessions = Sessions(ring, audience, clock)
        self.states = SessionStates(ring, store, fanout, quotas, clock)
        self.answers = LiveAnswers(ring, audience, store, fanout, quotas, clock)
        self.task_asks = TaskAsks(ring, audience)
        self.events = EventIds(ring, audience, store, quotas, clock)
        self.pages = RequiredPages(ring, audience, store, self.states, quotas)
        self.cancellations = Allowance(clock)
        self.held_streams = PlacesByCaller("held_streams", limits)
        self.held_bytes = PlacesByCaller("held_bytes", limits)  # of requests that are held in memory
        outcomes = row_codec(ring, LIVE_OUTCOME, in_memory=store.in_memory)
        # Records in memory are of no use to anybody once the process ends, which alone cancels requests here.
        self.redeemer = Redeemer(
            store, outcomes, quotas, lease=min(LEASE, limits.lease_seconds), clock=clock, outlives=not store.in_memory
        )
        self.quotas = quotas
        self.is_shared = is_shared
        self.store = store
        self.admission = admission
        self.clock = clock
