"""What clients of the handshake era ask that no other client does: `ping`, and what a session sets."""

import asyncio
import math
import time
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from dataclasses import replace
from functools import partial

from ..concurrency.waiting import Turning
from ..errors import Busy, Full, InvalidParams, OverBudget, StoreUnavailable, UnknownTarget
from ..flow.authorization import Authorizer
from ..live.session_states import KEEP, LONGEST_RESOURCES, MOST_RESOURCES, SessionState, SessionStates, changed
from ..protocol.messages import Call, Change, Complete, Listening, Outcome, Outlet, Subscription
from ..protocol.sessions import owner_of_call
from ..registration.registry import Registry
from ..storage.rows import ENDED
from ..tasks.notifications import Seen, TaskChanges, seen_of
from ..tasks.task_service import Tasks
from .failures import ErrorReporter
from .subscriptions import Subscriptions, began

_MOST_TASKS = 1_000  # of its caller's, of which a session hears

_LISTS = (Change("tools"), Change("prompts"), Change("resources"))

AGAIN_AFTER = 2.0  # where the store was unavailable, in seconds

LOOK_INTERVAL = 0.25  # between two looks whether the session still listens to what was updated, in seconds


class SessionRequests:
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

        began = time.time()

        def add(state: SessionState) -> SessionState:
            resources = {call.target: began, **state.resources}
            if len(resources) > MOST_RESOURCES or sum(map(len, resources)) > LONGEST_RESOURCES:
                raise OverBudget("The session listens to too many resources", "resources", MOST_RESOURCES)
            return replace(state, resources=resources)

        await self._change(call, add)
        return Complete({})

    async def unsubscribe(self, call: Call, outlet: Outlet) -> Outcome:
        """Serve `resources/unsubscribe` (Resources, Subscriptions). Raises `RequestError`."""

        def remove(state: SessionState) -> SessionState:
            return replace(
                state, resources={uri: since for uri, since in state.resources.items() if uri != call.target}
            )

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
    """The changes that a session's stream reports. Of several streams of a session, the newest reports.

    What the session has set counts as soon as its client has the response, and the stream learns of it a moment later.
    So it looks again before it reports a resource, which the session may have left; and when it begins to listen to
    one, it asks whether that was updated meanwhile.
    """

    def __init__(self, call: Call, states: SessionStates, subscriptions: Subscriptions, tasks: Tasks) -> None:
        self.wanted: frozenset[Change] = frozenset()
        self._call = call
        self._states = states
        self._subscriptions = subscriptions
        self._tasks = tasks
        self._state = SessionState()  # what the session had set when it was last looked at
        # When that was. Whatever it did not listen to then, it has begun to listen to since.
        self._read_at = time.time()
        # The tasks that it follows, as they were last reported; at first, as its client found them.
        self._told: dict[str, Seen] = {}
        self._listed: frozenset[str] | None = None  # the tasks that its caller had at the last look
        self._changes: Turning[Change] | None = None
        self._left: dict[Change, Change] = {}  # what it has heard, and not reported yet
        self._stream = states.stream_of(call.session) if call.session else None
        self._is_stale = True
        self._again_after: float | None = None  # when to look again where the store was unavailable, in seconds
        self._looked = -math.inf
        self._keep_at = time.monotonic() + KEEP / 2
        self._is_open = False
        self._is_closed = False

    async def open(self) -> None:
        # First to what says that the session has changed, so that no change of it is missed while it is read.
        self._changes = Turning(await self._subscribe(self._wanted(())))
        try:
            await self._follow()
        except BaseException:
            self.close()
            raise
        self._is_open = True
        if self._stream is not None:
            self._stream.open()

    def _wanted(self, tasks: Iterable[Change]) -> frozenset[Change]:
        wanted = {*_LISTS, *(Change("resource", uri) for uri in self._state.resources), *tasks}
        wanted |= {Change("page", page) for page in self._state.pages}
        if self._stream is not None:
            wanted |= {changed(self._call.session), self._stream.topic}
        return frozenset(wanted)

    def _subscribe(self, wanted: frozenset[Change]) -> Awaitable[Subscription]:
        return self._subscriptions.subscribe(self._call, wanted, challenges=False)

    async def _follow(self) -> None:
        """Begin to listen to what the session wants now; changes meanwhile are not lost."""
        before, read_at = self._state, time.time()
        self._again_after = None
        try:
            state = await self._states.read(self._call.session)
            pages = await self._states.reported(tuple(page for page in state.pages if page not in before.pages))
        except StoreUnavailable:  # of which the log has a line
            state, pages, read_at = before, [], self._read_at
            self._again_after = AGAIN_AFTER
        self._state = state
        try:
            changes: Subscription = await self._subscribe(self._wanted(await self._find_tasks()))
        except BaseException as error:
            self._state = before
            if not isinstance(error, Full) or not self._is_open:
                raise
            self.close()  # its client opens another when there is room
            return
        began_at = began(changes)  # what is updated later, it hears itself
        # Nothing waits from here on: a caller that gives up meanwhile would leave a subscription behind.
        if self._told:
            look = partial(self._tasks.peek, owner=owner_of_call(self._call))
            changes = TaskChanges(changes, frozenset(self._told), look, self._told)
        assert self._changes is not None  # noqa: S101  as of `open`
        self._changes.turn_to(changes)
        self._is_stale = False
        new = {uri: since for uri, since in state.resources.items() if uri not in before.resources}
        self._hear([*pages, *self._states.updated_between(new, self._read_at, began_at)])
        self._read_at = read_at
        if state.ended or self._is_closed:
            self.close()

    async def _find_tasks(self) -> list[Change]:
        """Return the changes of the caller's tasks: those that have not ended, and those new since last time."""
        if self._call.task is None:
            self._listed = frozenset()
            return []
        try:
            tasks, _ = await self._tasks.page(owner_of_call(self._call), None, _MOST_TASKS)
        except StoreUnavailable:  # of which the log has a line
            self._again_after = AGAIN_AFTER
        else:
            self._told = {id: seen for id, seen in self._told.items() if seen.status not in ENDED}
            for task in tasks:
                if self._listed is not None and task.id not in self._listed:
                    # its client knows the state from its call's response
                    self._told.setdefault(task.id, Seen("working", task.created, "", ()))
                elif task.status not in ENDED:
                    self._told.setdefault(task.id, seen_of(task))
            self._listed = frozenset(task.id for task in tasks)
        return [Change("task", id) for id in self._told]

    async def next(self) -> list[Change]:
        """Wait for changes. Return an empty list when the stream is to end."""
        while self._changes is not None:
            if time.monotonic() > self._keep_at:
                await self._keep()
            if self._is_stale and not self._is_closed:
                await self._follow()
            elif not self._left:
                try:
                    async with asyncio.timeout(self._again_after):
                        heard = await self._changes.next()
                except TimeoutError:
                    self._is_stale = True
                    continue
                if not heard:
                    return []
                self._hear(heard)
            elif not await self._has_changed():
                left, self._left = self._left, {}
                told = [change for change in left.values() if self._is_wanted(change)]
                if told and (self._stream is None or self._stream.is_newest):
                    return told
        return []

    async def _keep(self) -> None:
        """Keep what the session has set for as long as it is listened to."""
        self._keep_at = time.monotonic() + KEEP / 2
        if self._state != SessionState():
            with suppress(StoreUnavailable, Busy):
                await self._states.change(self._call.session, self._call.principal, lambda state: state)

    def _hear(self, changes: Iterable[Change]) -> None:
        """Keep changes until they are reported, and note what concerns the session and its streams."""
        for change in changes:
            if change.kind == "session":
                self._is_stale = True
            elif change.kind == "stream" and self._stream is not None:
                self._stream.on_announcement(change.note)
            else:
                self._left.pop(change, None)
                self._left[change] = change  # the newest counts: it has what its task is doing now

    def _is_wanted(self, change: Change) -> bool:
        return change.kind != "resource" or change.uri in self._state.resources

    async def _has_changed(self) -> bool:
        """Return whether the session has set something else; it looks no more often than once in `LOOK_INTERVAL`."""
        if self._states.is_shared and any(change.kind == "resource" for change in self._left) and not self._is_closed:
            await asyncio.sleep(self._looked + LOOK_INTERVAL - time.monotonic())
            self._looked = time.monotonic()
            with suppress(StoreUnavailable):  # what it knows counts
                now = time.time()
                if await self._states.read(self._call.session) == self._state:
                    self._read_at = now
                else:
                    self._is_stale = True
        return self._is_stale and not self._is_closed

    def close(self) -> None:
        """End the subscription. Safe to call twice."""
        if self._stream is not None and not self._is_closed:
            self._stream.end()
        self._is_closed = True
        if self._changes is not None:
            self._changes.close()
