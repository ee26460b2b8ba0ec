"""What of one server is observed, from its start on."""

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from .._version import __version__
from ..concurrency.places import PlacesByCaller
from ..flow.admission import Admission
from ..flow.single_use import Redeemer
from ..logs.refusals import RefusalLog
from ..methods.middleware import Middleware
from ..registration.inclusion import Listing
from ..registration.registry import Registry
from ..storage.health import VitalsWatch
from ..storage.quotas import Quotas
from ..storage.rows import Waiting
from ..storage.watched import WatchedStore
from ..tally import Tally
from ..tasks.worker import Worker
from ..telemetry import names
from ..telemetry.calls import CallTelemetry, Offered
from ..telemetry.choice import choose
from ..telemetry.meters import Gauges, Histogram, Meters, StoreMeasures, Values, measure_lag
from ..transport.routing import Metadata, MetricsPage
from .settings import Settings

logger = logging.getLogger("mrtr_server")


class _Names:
    """The names, or URIs, in a list of what is offered, as it is at each moment."""

    def __init__(self, registry: Registry, listing: Listing) -> None:
        self._registry = registry
        self._listing = listing

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and self._registry.find(self._listing, name) is not None


class ServerTelemetry:
    def __init__(
        self,
        settings: Settings[Any],
        clock: Callable[[], float],
        tally: Tally,
        registry: Registry,
        quotas: Quotas,
        admission: Admission,
        store: WatchedStore,
        vitals: VitalsWatch,
        places: Sequence[PlacesByCaller],
        worker: Worker,
        redeemers: Sequence[Redeemer],
    ) -> None:
        self._settings = settings
        self._clock = clock
        self._tally = tally
        self._registry = registry
        self._quotas = quotas
        self._admission = admission
        self._store = store
        self._vitals = vitals
        self._places = places
        self._worker = worker
        self._redeemers = redeemers
        self.login_keys: Mapping[str, float] = {}
        """When something of a login was opened last under each key, by its id."""
        self._calls: CallTelemetry | None = None
        self._meters: Sequence[Meters] = ()
        self._gauges = Gauges(tally, self._read)

    def start(self) -> None:
        """Begin to measure on this event loop, if the settings, the process, or a log of level INFO want that."""
        if self._calls is None:
            self._measure_calls()
        else:
            self._measure_lag()

    @property
    def around(self) -> Sequence[Middleware]:
        return () if self._calls is None else (self._calls.middleware,)

    def _measure_calls(self) -> None:
        spans, meters = choose(self._settings.telemetry, shows_metrics=self._settings.metrics is not None)
        if spans is None and not meters and not logger.isEnabledFor(logging.INFO):
            return
        registry = self._registry
        self._calls = CallTelemetry(
            self._tally,
            Offered(_Names(registry, "tools"), _Names(registry, "prompts"), _Names(registry, "resources")),
            lambda principal: self._quotas.of(principal).caller,
            spans,
            meters,
            self._clock,
        )
        self._meters = meters
        if meters:
            for each in meters:
                each.add(self._gauges)
            self._store.observe(StoreMeasures(self._tally, meters))
            self._measure_lag()

    def _measure_lag(self) -> None:
        if self._meters:
            measure_lag(Histogram(names.LAG, self._meters).of())

    def _read(self) -> Mapping[str, Values]:
        vitals, settings = self._vitals.latest, self._settings
        totals = self._vitals.totals() | {each.limit: (each.taken, each.total) for each in self._places}
        if most := self._worker.places:
            totals["tasks"] = self._worker.running, most
        waiting = {tool: vitals.waiting.get(tool, Waiting()) for tool in tuple(self._registry.tasks)}
        alone: Mapping[str, float] = {
            names.IN_FLIGHT.name: 0 if self._calls is None else self._calls.in_flight,
            names.QUEUE.name: self._admission.waiting,
            names.DRAINING.name: int(self._admission.draining),
            names.STORE_AWAY.name: int(self._store.is_away),
            names.NOTICES_AWAY.name: int(vitals.notices_away),
            names.CONNECTION_WAIT.name: vitals.connection_wait,
            names.CLOCK.name: vitals.clock_difference,
            names.EVENT_DELAY.name: vitals.event_delay,
            names.UNRECORDED.name: sum(each.unrecorded for each in self._redeemers),
        }
        return {
            **{name: {(): value} for name, value in alone.items()},
            names.USED.name: {(limit,): used for limit, (used, _) in totals.items()},
            names.MOST.name: {(limit,): most for limit, (_, most) in totals.items()},
            names.WAITING.name: {(tool,): each.tasks for tool, each in waiting.items()},
            names.OLDEST.name: {(tool,): each.seconds for tool, each in waiting.items()},
            names.LOGIN_KEY.name: {(key,): used for key, used in dict(self.login_keys).items()},
            names.INFO.name: {(__version__, settings.info.version): 1},
        }

    def page(self, refusals: RefusalLog) -> Metadata | None:
        shown = self._settings.metrics
        if shown is None:
            return None
        from ..telemetry.prometheus import render

        page = MetricsPage(
            shown.path, self._vitals.look, render, self._settings.allowed_hosts or (), refusals, token=shown.token
        )
        return Metadata(page.claims, page)
