"""What clients of the handshake era ask that no other client does: `ping`, and what a session sets."""

import asyncio
import math
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from functools import partial

from ..errors import Full, InvalidParams, OverBudget, StoreUnavailable, UnknownTarget
from ..flow.authorization import Authorizer
from ..live.session_states import LONGEST_RESOURCES, MOST_RESOURCES, SessionState, SessionStates, changed
from ..protocol.messages import Call, Change, Complete, Listening, Outcome, Outlet, Subscription
from ..registration.registry import Registry
from ..storage.tasks import ENDED
from ..tasks.notifications import Seen, TaskChanges, seen_of
from ..tasks.task_service import Tasks, owner_of
from .failures import ErrorReporter
from .subscriptions import Subscriptions

_MOST_TASKS = 1_000
"""How many of its caller's tasks a session hears of."""

_LISTS = (Change("tools"), Change("prompts"), Change("resources"))

_OF_STREAMS = frozenset({"session", "stream"})
"""Kinds of changes that are for the streams of a session, and not for its client."""


class SessionRequests:
    """Serves what concerns a session.

    Args:
        registry: has the resources that a session may listen to.
        states: keeps what sessions set.
        subscriptions: carry the changes.
        tasks: knows the tasks that a session may hear of.
        errors: logs what goes wrong on our side.
        authorizer: knows who may hear of what.
    """

    def __init__(
        self,
        registry: Registry,
        states: SessionStates,
        subscriptions: Subscriptions,
        tasks: Tasks,
        errors: ErrorReporter,
        authorizer: Authorizer,
    ) -> None:
        self._registry = registry
        self._states = states
        self._subscriptions = subscriptions
        self._tasks = tasks
        self._errors = errors
        self._authorizer = authorizer

    async def ping(self, call: Call, outlet: Outlet) -> Outcome:
        """Serve `ping` (Ping, Behavior Requirements)."""
        return Complete({})

    async def set_level(self, call: Call, outlet: Outlet) -> Outcome:
        """Serve `logging/setLevel` (Logging, Setting Log Level). Without a session it changes nothing."""
        level = call.params["level"]
        if call.session:
            await self._change(call, lambda state: replace(state, level=level))
        return Complete({})

    async def subscribe(self, call: Call, outlet: Outlet) -> Outcome:
        """Serve `resources/subscribe` (Resources, Subscriptions). Raises `RequestError`."""
        found = self._registry.find_resource(call.target)
        if found is None:
            raise UnknownTarget("resource", call.target)
        if self._authorizer.guards(found.resource.authorize):
            await self._authorizer.require(call.caller, call.method, "resource", (found.resource.authorize, found.uri))

        def add(state: SessionState) -> SessionState:
            resources = (*(uri for uri in state.resources if uri != call.target), call.target)
            if len(resources) > MOST_RESOURCES or sum(map(len, resources)) > LONGEST_RESOURCES:
                raise OverBudget("The session listens to too many resources", "resources", MOST_RESOURCES)
            return replace(state, resources=resources)

        await self._change(call, add)
        return Complete({})

    async def unsubscribe(self, call: Call, outlet: Outlet) -> Outcome:
        """Serve `resources/unsubscribe` (Resources, Subscriptions). Raises `RequestError`."""

        def remove(state: SessionState) -> SessionState:
            return replace(state, resources=tuple(uri for uri in state.resources if uri != call.target))

        await self._change(call, remove)
        return Complete({})

    async def listen(self, call: Call, outlet: Outlet) -> Outcome:
        """Serve `GET` (Streamable HTTP, Listening for Messages from the Server): what a session is to hear of."""
        changes = SessionChanges(call, self._states, self._subscriptions, self._tasks)
        await changes.open()
        return Listening(changes)

    async def _change(self, call: Call, change: Callable[[SessionState], SessionState]) -> None:
        if not call.session:
            raise InvalidParams("This needs a session: send the Mcp-Session-Id that initialize returned")
        try:
            await self._states.change(call.session, call.principal, change)
        except StoreUnavailable as error:
            raise self._errors.report(call, error) from None


class SessionChanges:
    """The changes that a session's stream reports; it subscribes again when the session has set something else.

    Of several streams of a session, the newest reports.

    Args:
        call: the request for the stream.
        states: know what the session listens to.
        subscriptions: carry the changes.
        tasks: knows the caller's tasks.
    """

    def __init__(self, call: Call, states: SessionStates, subscriptions: Subscriptions, tasks: Tasks) -> None:
        self.wanted: frozenset[Change] = frozenset()
        self._call = call
        self._states = states
        self._subscriptions = subscriptions
        self._tasks = tasks
        self._told: dict[str, Seen] = {}
        """The tasks that it follows, as they were last reported; at first, as its client found them."""
        self._newest = math.inf
        self._changes: Subscription | None = None
        self._left: list[Change] = []
        """The changes that came while it subscribed again."""
        self._stream = states.stream_of(call.session) if call.session else None
        self._is_stale = False
        self._is_closed = False

    async def open(self) -> None:
        """Begin to listen, and tell from now on."""
        await self._begin()
        if self._stream is not None:
            self._stream.open()

    async def _begin(self) -> None:
        """Begin to listen to what the session wants now; changes meanwhile are not lost."""
        session, before = self._call.session, self._changes
        try:
            state = await self._states.read(session)
        except StoreUnavailable:
            state = SessionState()  # the lists are heard of in any case
        wanted = {*_LISTS, *(Change("resource", uri) for uri in state.resources), *await self._find_tasks()}
        wanted |= {Change("page", page) for page in state.pages}
        if self._stream is not None:
            wanted |= {changed(session), self._stream.topic}
        try:
            self._changes = await self._subscriptions.subscribe(self._call, frozenset(wanted), challenges=False)
        except Full:
            if before is None:
                raise
            self._is_stale = False
            self.close()  # its client opens another when there is room
            return
        if self._told:
            owner = owner_of(self._call)
            look = partial(self._tasks.peek, owner=owner)
            self._changes = TaskChanges(self._changes, frozenset(self._told), look, self._told)
        if before is not None:
            await asyncio.sleep(0)  # until what other threads have told the former subscription has come
            before.close()
            self._left += await before.next()
        self._is_stale = False
        if state.ended or self._is_closed:
            self.close()

    async def _find_tasks(self) -> list[Change]:
        """Return the changes of the caller's tasks: those that have not ended, and those new since last time."""
        if self._call.task is None:
            return []
        with suppress(StoreUnavailable):  # of which the log has a line
            tasks, _ = await self._tasks.page(owner_of(self._call), None, _MOST_TASKS)
            self._told = {id: seen for id, seen in self._told.items() if seen.status not in ENDED}
            for task in tasks:
                if task.created > self._newest:  # its client knows the state from its call's response
                    self._told.setdefault(task.id, Seen("working", task.created, "", ()))
                elif task.status not in ENDED:
                    self._told.setdefault(task.id, seen_of(task))
            self._newest = max((task.created for task in tasks), default=0.0)
        return [Change("task", id) for id in self._told]

    async def next(self) -> list[Change]:
        """Wait for changes. Return an empty list when the stream is to end."""
        while True:
            if self._is_stale or self._changes is None:
                await self._begin()
            assert self._changes is not None  # noqa: S101  _begin() has made it
            heard, self._left = self._left or await self._changes.next(), []
            if not heard:
                return []
            for change in heard:  # all of them first: a batch is not in the order in which it was published
                self._note(change)
            told = [change for change in heard if change.kind not in _OF_STREAMS]
            if told and (self._stream is None or self._stream.is_newest):
                return told

    def _note(self, change: Change) -> None:
        """Note what concerns the session and its streams."""
        if change.kind == "session":
            self._is_stale = True
        elif change.kind == "stream" and self._stream is not None:
            self._stream.on_announcement(change.note)

    def close(self) -> None:
        """End the subscription. Safe to call twice."""
        if self._stream is not None and not self._is_closed:
            self._stream.end()
        self._is_closed = True
        if self._changes is not None:
            self._changes.close()
