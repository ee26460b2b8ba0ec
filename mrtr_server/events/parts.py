"""The parts that events are made of, each given what it needs of the others."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from ..concurrency.threads import Threads
from ..crypto.keys import KeyRing
from ..flow.authorization import Authorizer
from ..flow.events import EventType
from ..flow.states import Forgotten
from ..limits import Limits
from ..storage.base import Store
from ..storage.pubsub import Fanout
from ..tally import Tally
from .courier import Courier
from .log import EventLog
from .options import Events, Webhooks
from .subscribers import Sources
from .subscriptions import Subscriptions

if TYPE_CHECKING:
    from ..fetcher import Fetcher


@dataclass
class EventParts:
    """What events are made of, for all who have to do with them."""

    types: Mapping[str, EventType[Any, Any]]
    log: EventLog
    subscriptions: Subscriptions
    sources: Sources
    webhooks: Webhooks
    courier: Courier

    @cached_property
    def fetcher(self) -> "Fetcher | None":
        """What sends to webhooks; None where nothing may, or the extra `auth` is missing."""
        webhooks = self.webhooks
        if not webhooks.offered or find_spec("certifi") is None:
            return None
        from ..fetcher import Fetcher  # with a library of HTTP, which few servers need

        return Fetcher(allow=webhooks.allow, proxy=webhooks.proxy, ca=webhooks.ca)


def build_events(
    options: Events,
    webhooks: Webhooks,
    types: Mapping[str, EventType[Any, Any]],
    store: Store,
    ring: KeyRing,
    fanout: Fanout,
    authorizer: Authorizer,
    threads: Threads,
    limits: Limits,
    audience: str,
    clock: Callable[[], float],
    tally: Tally,
    forgotten: Forgotten,
) -> EventParts:
    """Return the parts of one server. Nothing is opened before there is a type of event."""
    log = EventLog(store, ring, fanout, options, clock, audience, forgotten)
    subscriptions, sources = Subscriptions(store, ring, types, log.callers), Sources(threads)
    courier = Courier(log, subscriptions, sources, authorizer, limits.lease_seconds, tally)
    parts = EventParts(types, log, subscriptions, sources, webhooks, courier)
    courier.fetcher = lambda: parts.fetcher
    return parts
