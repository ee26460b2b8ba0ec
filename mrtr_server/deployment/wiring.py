"""The parts of a server, each given what it needs of the others."""

from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from functools import partial
from operator import attrgetter
from typing import Any, cast

from starlette.types import ASGIApp

from ..addresses import BaseUrl
from ..concurrency.shutdown import ShutdownDeadline
from ..concurrency.threads import Threads
from ..crypto.codec import SealedCodec
from ..crypto.keys import OUTCOME, KeyRing
from ..crypto.place_codec import Cursors, PlaceCodec
from ..events.own import OfferedTypes, OwnEvents
from ..events.parts import build_events
from ..extensions.apps import AppExtension
from ..extensions.events import EventExtension
from ..extensions.extension import Extensions
from ..extensions.kept_asks import KeptAsks
from ..extensions.once import OnceForPages
from ..extensions.questions import QuestionPage
from ..extensions.skills import SkillExtension
from ..extensions.tasks import TaskExtension
from ..flow.admission import Admission
from ..flow.authorization import Authorizer
from ..flow.handler import Handler
from ..flow.home import Home, Lifespans, identity
from ..flow.rate_limiter import RateLimiter
from ..flow.round_service import RoundService
from ..flow.single_use import Redeemer
from ..flow.states import Forgotten, States, UnansweredAsks
from ..flow.url_asks import Callbacks
from ..limits import Limits, with_room
from ..live.live_calls import LiveCalls
from ..live.parts import LiveParts
from ..logs.refusals import RefusalLog
from ..methods.discovery import Discoverer, ListRequests
from ..methods.dispatcher import Dispatcher
from ..methods.failures import ErrorReporter
from ..methods.hooked_calls import HookedCalls
from ..methods.middleware import Middleware, everywhere
from ..methods.prompts_and_resources import Completions, PromptsAndResources
from ..methods.sessions import SessionRequests
from ..methods.subscriptions import Subscriptions
from ..methods.tools import BackgroundTools, Tools
from ..protocol.content import icon_entries
from ..protocol.messages import JSON, Change
from ..protocol.served_dialects import ServedDialects
from ..registration.offering import Opening
from ..registration.registry import Registry
from ..storage.health import VitalsWatch, written
from ..storage.quotas import Quotas
from ..tally import Tally
from ..tasks.records import TaskRecords
from ..tasks.task_service import Tasks
from ..tasks.waits import WaitDesk
from ..tasks.worker import Worker
from ..transport.authentication import Authentication, Challenges, ResourceMetadata
from ..transport.callback_pages import CallbackPages
from ..transport.endpoint import Endpoint
from ..transport.gate import build_middleware_stack, check_origins, share_with_origins
from ..transport.routing import Login, Metadata, Probes, Router
from ..transport.server_card import ServerCard
from ..transport.stdio import StdioServer
from .environment import warn_of_unknown_variables, with_environment
from .lifecycle import Lifecycle
from .settings import ServerInfo, Settings
from .shared_resources import SharedResources
from .telemetry import ServerTelemetry


class ServerParts:
    def __init__(
        self, settings: Settings[Any], registry: Registry, server: ASGIApp, clock: Callable[[], float]
    ) -> None:
        settings, wrong = with_environment(settings)
        limits, info, lists = settings.limits or Limits(), settings.info, settings.lists
        audience, path = settings.audience or settings.name, settings.path.rstrip("/")
        self.registry = registry
        self.clock = clock
        self.threads = threads = Threads(limits.threads)
        self.tally = tally = Tally()
        self.shared = shared = SharedResources(
            settings.name, settings.keys, settings.store, limits.lease_seconds, clock, tally
        )
        shared.waits = registry.waits
        store = shared.watched
        self.limits = limits = with_room(limits, shared.store.default_room)
        warn_of_unknown_variables()
        if wrong is not None:
            shared.refuse(wrong)
        ring = shared.ring
        # The settings, with the keys that the server made for itself if it was given none.
        self.settings = replace(settings, keys=ring)
        self.admission = admission = Admission(limits, ShutdownDeadline(settings.shutdown.seconds))
        self.rates = rates = RateLimiter(settings.rate_limits, audience, clock)
        if any(tool.rate is not None for tool in registry.tools.values()):  # of a server that this one replaces
            rates.turn_on()
        self.fanout = fanout = shared.store.fanout()
        home = registry.home
        self.lifespans = lifespans = Lifespans()
        own = [] if settings.lifespan is None else [Opening(home, settings.lifespan, server)]
        for opening in (*own, *registry.openings):
            lifespans.add(opening.home, partial(_enter, opening, home))
        base, refusals = BaseUrl(settings.base_url), RefusalLog(tally=tally)
        self.callbacks = callbacks = Callbacks(
            registry.callbacks,
            ring,
            store,
            audience=audience,
            base=base,
            identifies=settings.identify is not None,
            fanout=fanout,
            limits=limits,
            on_drain=admission.on_drain,
            clock=clock,
        )
        quotas = Quotas(ring, limits)
        self.redeemer = redeemer = Redeemer(
            store, PlaceCodec(ring, OUTCOME), quotas, lease=limits.lease_seconds, clock=clock
        )
        forgotten = Forgotten(store, ring)
        states = States(
            settings.codec or SealedCodec(ring),
            limits,
            audience=audience,
            require_shared_store=shared.require_shared_store,
            unanswered=UnansweredAsks(limits, rates, clock),
            forgotten=forgotten,
            clock=clock,
            keeps_plain=settings.codec is None,  # another codec may keep what our keys do not
        )
        rounds = RoundService(states, redeemer, threads, limits, admission, callbacks, rates, lifespans)
        errors, authorizer = ErrorReporter(debug=settings.debug), Authorizer(settings.authorize, threads)
        records = TaskRecords(store, ring, fanout, limits, audience=audience, clock=clock, tally=tally)
        background = BackgroundTools(registry, rounds, errors, authorizer)
        self.worker = worker = Worker(records, background, admission, starts_by_itself=settings.run_tasks)
        self.tasks = tasks = Tasks(records, fanout, admission, worker)
        self.desk = rounds.desk = WaitDesk(registry.waits, tasks, records, ring, audience)
        cache = lists.cache or ("private" if settings.auth is not None else "public")
        live = LiveParts(
            ring, audience, store, fanout, quotas, limits, admission, clock, is_shared=shared.reaches_all_workers
        )
        cursors, has_tasks = Cursors(ring), partial(attrgetter("has_tasks"), registry)
        in_page = settings.apps.question
        types = OfferedTypes(registry, settings.events)
        self.events = events = build_events(
            settings.events,
            settings.webhooks,
            types,
            store,
            ring,
            fanout,
            authorizer,
            threads,
            limits,
            audience,
            clock,
            tally,
            forgotten,
        )
        rounds.emitter = events.log
        records.listener = OwnEvents(types, events.log, records, self.desk, events.subscriptions)
        question = QuestionPage(
            registry,
            KeptAsks(ring, audience, self.shared.watched, quotas, clock),
            self.shared.store.shared if in_page is None else in_page,
            self.rates.admit_other,
            tasks,
        )
        once = OnceForPages(registry, self.redeemer, audience, limits.state_seconds, clock, self.rates.admit_other)
        self.event_requests = EventExtension(events, authorizer, errors, limits, cursors, lists.page_size, quotas)
        self.extensions = extensions = Extensions(
            [
                TaskExtension(has_tasks, self.tasks, errors, cursors, lists.page_size),
                AppExtension(registry, question, once),
                SkillExtension(registry, authorizer, cursors, lists.page_size, lists.cache_seconds, cache),
                self.event_requests,
            ],
            lambda: {**registry.extensions, **cast(JSON, self.settings.extensions or {})},
        )
        discoverer = Discoverer(
            registry, extensions.settings, instructions=settings.instructions, ttl=lists.cache_seconds, scope=cache
        )
        subscriptions = Subscriptions(
            registry, tasks, fanout, errors, authorizer, limits, live.held_bytes, discoverer.offers
        )
        self.event_requests.places = subscriptions.places
        dispatcher = Dispatcher(
            Tools(registry, rounds, tasks, errors, authorizer, rates),
            PromptsAndResources(registry, rounds, errors, authorizer),
            ListRequests(
                registry,
                authorizer,
                cursors,
                extensions.shaping,
                page_size=lists.page_size,
                ttl=lists.cache_seconds,
                scope=cache,
            ),
            Completions(registry, threads, errors, authorizer),
            discoverer,
            subscriptions,
            SessionRequests(registry, live.states, subscriptions, tasks, errors, authorizer),
            extensions.methods,
            rates,
        )
        self._hooks = HookedCalls(registry, lifespans, threads, errors)
        self._dispatcher, self._background = dispatcher, background
        redeemers = (redeemer, live.redeemer)
        vitals = VitalsWatch(settings.name, store, limits, lambda: list(registry.tasks))
        store.watch(vitals)
        self.telemetry = telemetry = ServerTelemetry(
            settings,
            clock,
            tally,
            registry,
            quotas,
            admission,
            store,
            vitals,
            (live.held_streams, live.held_bytes, subscriptions.places, tasks.waits),
            worker,
            redeemers,
        )
        auth, login = _bound(settings, registry, shared, quotas, refusals, clock)
        rounds.upstream = login and login.upstream
        telemetry.login_keys = getattr(login, "keys_used", {})
        metadata = _resource_metadata(settings, auth, info, path, is_issuer=login is not None)
        proofs = getattr(auth, "proofs", None)
        challenges = Challenges(metadata, settings.scopes, proofs and proofs.mode)
        self.implementation = implementation = _implementation(settings.name, info)
        dialects = ServedDialects(
            settings.dialects,
            implementation,
            registry.task_support,
            has_tasks,
            registry.output_schema,
            live.sessions,
            registry.is_single_use,
            extensions.needs,
        )
        calls = LiveCalls(dispatcher.dispatch, live, tasks)
        # Makes what serves the client that started this process.
        self.stdio = partial(StdioServer, dispatcher, dialects, calls, live, limits, admission.shutdown, refusals)
        origins = check_origins(settings.origins)
        endpoint = Endpoint(
            dispatcher,
            dialects,
            calls,
            live,
            limits,
            admission,
            origins=origins,
            allowed_hosts=settings.allowed_hosts,
            challenges=challenges,
            refusals=refusals,
        )
        self.dialects = dialects
        pages = CallbackPages(
            registry.callbacks,
            callbacks,
            threads,
            base,
            identify=settings.identify,
            body_bytes=limits.body_bytes,
            refusals=refusals,
        )
        middleware = settings.middleware
        served: ASGIApp = endpoint
        docs = None
        around_tasks: Sequence[Middleware] = ()
        self.page = ""
        """The path of the page for people, with its token if it has one; empty where there is no page."""
        if settings.docs:
            served, docs, self.page, around_tasks = _with_page(settings, path, ring, served, refusals)
        self._around_calls = cast(Sequence[Middleware], dialects.around)
        self._around_tasks = around_tasks
        self._everywhere: Sequence[Middleware] = ()
        self._compose()
        if auth is not None or settings.scopes:
            served = Authentication(served, auth, challenges, refusals, dialects.handshake, limits.body_bytes)
        if served is not endpoint or middleware:  # the endpoint looks at its headers itself where it stands alone
            served = build_middleware_stack(served, middleware, refusals)
        if origins:
            served = share_with_origins(served, origins)
        self.resource_metadata = public = None
        if metadata is not None:
            self.resource_metadata = build_middleware_stack(metadata, middleware, refusals)
            public = Metadata(metadata.claims, self.resource_metadata)
        self.card: ServerCard | None = None
        """What a server with a name for all the world says of itself before anybody connects."""
        cards = []
        if info.name is not None and settings.base_url is not None:
            self.card = ServerCard(path, settings.base_url, implementation, dialects.versions)
            cards.append(Metadata(self.card.claims, build_middleware_stack(self.card, middleware, refusals)))
        probes = Probes(
            path,
            self._why_not_ready,
            shared.is_usable,
            partial(_waiting_tasks, settings, registry, vitals),
            needs_store=settings.shutdown.ready_needs_store,
        )
        self.router = Router(
            server,
            path,
            endpoint=served,
            pages=build_middleware_stack(pages, middleware, refusals),  # a browser has no bearer token
            callbacks=registry.callbacks,
            metadata=public,
            probes=probes,
            documents=[*cards, *(each for each in (telemetry.page(refusals), docs) if each is not None)],
            login=login and Login(login.claims, build_middleware_stack(login, middleware, refusals)),
        )
        self.lifecycle = Lifecycle(
            settings.name,
            lifespans.run,
            shared,
            threads,
            admission,
            redeemers,
            worker,
            events.courier,
            rates,
            observe=self.observe,
            page=self.page if settings.debug else "",
            lame_duck=settings.shutdown.lame_duck_seconds,
            close_login=login and login.close,
        )
        registry.serving.add(self)

    # What happens in the registry; see `Serving`

    def notify(self, change: Change) -> None:
        if len(self.extensions.around) != self._extended:  # a tool has come that an extension serves in its own way
            self._compose()
        if self.lifecycle.hears_sigterm or self.lifecycle.is_running:
            self.fanout.publish(change)

    def prepare(self, handler: Handler, rate: object = None) -> None:
        if handler.task is not None:
            self.shared.runs_tasks(handler.name, run_tasks=self.settings.run_tasks)
        if handler.single_use or handler.declares_confirmation:
            self.shared.require_shared_store(handler.name, needed=handler.needs_store)
        if rate is not None:
            self.rates.turn_on()

    def add_lifespan(self, opening: Opening) -> None:
        """Enter the `lifespan=` of an application that is included, at the next start or before the next call."""
        self.lifespans.add(opening.home, partial(_enter, opening, self.registry.home))
        self._compose()

    def restart_lifespan(self, home: Home) -> None:
        """Leave the `lifespan=` of an application, and enter it before the next call: a test has overridden it."""
        self.lifespans.forget(home)

    def call_hooks(self) -> None:
        """Run calls between hooks from now on, and enter what is to be entered before the first one."""
        self._compose()

    def observe(self) -> None:
        self.telemetry.start()
        self._everywhere = tuple(everywhere)
        self._compose()

    def _compose(self) -> None:
        """Put the middlewares around methods and rounds of tasks, the outermost first."""
        around, extensions = [*self._everywhere, *self.telemetry.around], self.extensions.around
        self._extended = len(extensions)
        has_hooks = self.lifespans.known or any(home.has_hooks for home in self.registry.homes())
        hooks = [self._hooks.around] if has_hooks else []
        self._dispatcher.serve_within([*self._around_calls, *extensions, *around, *hooks])
        self._background.serve_within([*around, *self._around_tasks, *hooks])

    def _why_not_ready(self) -> str:
        if self.shared.refusal:
            return "not set up"
        return "draining" if self.admission.draining else ""


def _enter(opening: Opening, home: Home) -> AbstractAsyncContextManager[Any]:
    """Make the context manager of a `lifespan=`, or of what a test has put into its place here or there."""
    key = identity(opening.home.lifespan or opening.lifespan)
    override = home.overrides.get(key) or opening.home.overrides.get(key)
    made: AbstractAsyncContextManager[Any] = (override or opening.lifespan)(opening.server)
    return made


async def _waiting_tasks(settings: Settings[Any], registry: Registry, vitals: VitalsWatch) -> JSON | None:
    """Return what anybody may know of the tasks that wait; a tool is named only where nothing could hide it."""
    waiting = (await vitals.look()).waiting if registry.tasks else {}
    if not any(each.tasks for each in waiting.values()):
        return None
    guards = (settings.auth, settings.authorize, settings.scopes, settings.middleware)

    def is_public(tool: str) -> bool:
        found = registry.find("tools", tool)
        return found is not None and found.authorize is None and not any(guards)

    return written(waiting, is_public)


def _implementation(name: str, info: ServerInfo) -> JSON:
    fields = {
        "name": info.name or name,
        "version": info.version,
        "title": info.title,
        "description": info.description,
        "websiteUrl": info.website_url,
        "icons": icon_entries("ServerInfo", info.icons),
    }
    return {field: value for field, value in fields.items() if value is not None}


def _bound(
    settings: Settings[Any],
    registry: Registry,
    shared: SharedResources,
    quotas: Quotas,
    refusals: RefusalLog,
    clock: Callable[[], float],
) -> tuple[Any, Any]:
    """Return what authenticates; and the same where it is an authorization server, too, as a `Login` is."""
    bind = getattr(settings.auth, "_bound_to", None)
    if bind is None:
        return settings.auth, None
    bound = bind(
        name=settings.info.title or settings.name,
        path=settings.path.rstrip("/"),
        base_url=settings.base_url,
        ring=shared.ring,
        store=shared.watched,
        quotas=quotas,
        refusals=refusals,
        default_scopes=tuple(settings.scopes),
        registered_scopes=partial(_registered_scopes, registry),
        clock=clock,
    )
    if not hasattr(bound, "claims"):
        return bound, None
    shared.keeps_logins(settings.base_url)
    return bound, bound


def _registered_scopes(registry: Registry) -> set[str]:
    """Return the scopes that something which is registered names, as far as hooks do not decide them."""
    hooks = [record.authorize for _, _, record in registry.entries() if record.authorize is not None]
    return {scope for each in hooks for hook in (each, *each.outer) for scope in (*hook.scopes, *hook.visible)}


def _resource_metadata(
    settings: Settings[Any], auth: object, info: ServerInfo, path: str, *, is_issuer: bool
) -> ResourceMetadata | None:
    """Return the metadata; None where `auth=` names no authorization server, and is none itself."""
    servers = getattr(auth, "authorization_servers", ())
    if not servers and not is_issuer:
        return None
    return ResourceMetadata(
        path,
        settings.base_url,
        audience=getattr(auth, "audience", ()),
        authorization_servers=servers,
        scopes=settings.scopes,
        name=info.title or settings.name,
        documentation=info.website_url,
        dpop=proofs.mode if (proofs := getattr(auth, "proofs", None)) is not None else None,
    )


def _with_page(
    settings: Settings[Any], path: str, ring: KeyRing, endpoint: ASGIApp, refusals: RefusalLog
) -> tuple[ASGIApp, Metadata, str, Sequence[Middleware]]:
    """Return the endpoint with its page, the page, its path with its token, and what is around rounds of tasks."""
    from ..dev.page import Page, RoundReports, TaskRounds, address_of, token_of  # only where there is one

    tasks, token = None, ""
    if settings.debug:
        tasks, token = TaskRounds(), token_of(ring)
    endpoint = RoundReports(endpoint, token)
    page = Page(path, ring, tasks, token, own_codec=settings.codec is not None, has_auth=settings.auth is not None)
    served = Metadata(page.claims, build_middleware_stack(page, settings.middleware, refusals))
    around = () if tasks is None else (tasks.middleware,)
    return endpoint, served, address_of(page.path, token) if token else page.path, around
