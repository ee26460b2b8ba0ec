"""`subscriptions/listen`: changes, for those who may hear of them."""

import asyncio
import time
from collections.abc import Callable, Coroutine, Iterable, Mapping
from sys import getsizeof
from typing import Any, Literal

from ..concurrency.places import PlacesByCaller
from ..errors import InvalidParams, MissingCapability, OverBudget, StoreUnavailable
from ..flow.authorization import Authorizer
from ..limits import LONGEST_NAME, Limits, check_length
from ..live.parts import UNCOUNTED
from ..protocol.callers import person_of
from ..protocol.messages import NEEDS_TASKS, Call, Change, Listening, Outcome, Outlet, Subscription
from ..protocol.sessions import owner_of_call
from ..registration.inclusion import Listing
from ..registration.registry import Registry
from ..storage.pubsub import Fanout
from ..tasks.notifications import with_tasks
from ..tasks.task_service import Tasks
from .failures import ErrorReporter

# Returns those of some changes that the listener may hear of.
Select = Callable[[list[Change]], Coroutine[Any, Any, list[Change]]]

_LISTENED: dict[str, Literal["tools", "prompts", "resources"]] = {
    "toolsListChanged": "tools",
    "promptsListChanged": "prompts",
    "resourcesListChanged": "resources",
}

_LISTENED_EACH: dict[str, Literal["resource", "task"]] = {"resourceSubscriptions": "resource", "taskIds": "task"}

_READ: tuple[Listing, ...] = ("resources", "resourceTemplates")  # the lists of what has URIs that can be listened to

_FOR_NAME, _FOR_TASK = 64, 512
"""Bytes that are held for what is listened to, besides its name; of a task, what was last reported is held, too."""

_MOST_EACH = 1000  # resources, and tasks, that one listener may name


class AuthorizedChanges:
    """A subscription whose listener is asked about again before each delivery."""

    def __init__(self, changes: Subscription, select: Select) -> None:
        self.began = began(changes)
        self._changes = changes
        self._select = select
        self._asking: asyncio.Task[list[Change]] | None = None

    @property
    def wanted(self) -> frozenset[Change]:
        return self._changes.wanted

    async def next(self) -> list[Change]:
        while True:
            if self._asking is None:
                changes = await self._changes.next()
                if not changes:
                    return []
                self._asking = asyncio.create_task(self._select(changes))
            try:
                # The waiting is cancelled for each comment that keeps the stream alive, and then repeated.
                told = await asyncio.shield(self._asking)
            except asyncio.CancelledError:
                if self._asking.cancelled():
                    return []
                raise
            self._asking = None
            if told:
                return told

    def close(self) -> None:
        self._changes.close()
        if self._asking is not None:
            self._asking.cancel()


class Subscriptions:
    """Lets clients listen to changes; `offers` says which can happen."""

    def __init__(
        self,
        registry: Registry,
        tasks: Tasks,
        fanout: Fanout,
        errors: ErrorReporter,
        authorizer: Authorizer,
        limits: Limits,
        held_bytes: PlacesByCaller,
        offers: Callable[[Change], bool],
    ) -> None:
        self._offers = offers
        self.places = PlacesByCaller("listeners", limits)  # counts the streams of `listen`
        self._registry = registry
        self._tasks = tasks
        self._fanout = fanout
        self._errors = errors
        self._authorizer = authorizer
        self._held_bytes = held_bytes

    async def listen(self, call: Call, outlet: Outlet) -> Outcome:
        """Serve `subscriptions/listen` (Subscriptions, Listening). Raises `RequestError`."""
        # What the acknowledgement names (Subscriptions, Acknowledgment): what a client needs not wait for is left out.
        wanted = frozenset(filter(self._offers, _wanted(call.params)))
        has_tasks = any(change.kind == "task" for change in wanted)
        if has_tasks and call.task is None:
            raise MissingCapability(NEEDS_TASKS)
        principal, owner = call.principal, owner_of_call(call)
        call.let_go()
        if (portion := getattr(outlet, "portion", None)) is not None:
            portion.end()  # what it listens to counts by itself
        give_back = self.places.take(person_of(principal)).end
        changes: Subscription | None = None
        try:
            changes = await self.subscribe(call, wanted, challenges=True)
            if has_tasks:
                changes = await with_tasks(changes, lambda ids: self._tasks.peek(ids, owner))
        except BaseException as error:
            if changes is not None:
                changes.close()
            give_back()
            if isinstance(error, StoreUnavailable):
                raise self._errors.report_task(call, error) from None
            raise
        return Listening(_Counted(changes, give_back))

    async def subscribe(self, call: Call, wanted: frozenset[Change], *, challenges: bool) -> Subscription:
        """Start to listen to what the caller may hear of. `challenges` makes missing scopes an error. Raises `Full`."""
        portion, size = self._held_bytes.portion(person_of(call.principal)), sum(map(_size, wanted))
        if size > UNCOUNTED:
            portion.grow(size)
        try:
            return _Counted(await self._subscribe(call, wanted, challenges=challenges), portion.end)
        except BaseException:
            portion.end()
            raise

    async def _subscribe(self, call: Call, wanted: frozenset[Change], *, challenges: bool) -> Subscription:
        guarded = self._authorizer.guards(None) or any(map(self._registry.is_guarded, _READ))
        if not guarded or not any(change.kind == "resource" for change in wanted):
            return self._fanout.subscribe(wanted)
        caller, method = call.caller, call.method

        async def select(changes: Iterable[Change], *, challenges: bool = False) -> list[Change]:
            kept, asked = [], []
            for change in changes:
                if change.kind != "resource":
                    kept.append(change)
                elif found := self._registry.find_resource(change.uri):  # one that is refused is as good as unknown
                    asked.append((change, (found.resource.authorize, found.uri)))
            allowed = await self._authorizer.allowed(caller, method, [each for _, each in asked], challenges=challenges)
            return kept + [change for (change, _), may in zip(asked, allowed, strict=True) if may]

        agreed = frozenset(await select(wanted, challenges=challenges))
        return AuthorizedChanges(self._fanout.subscribe(agreed), select)


def began(changes: Subscription) -> float:
    """Return when a subscription began, in seconds since the epoch; that of an application's own fan-out began now."""
    return getattr(changes, "began", time.time())


class _Counted:
    def __init__(self, changes: Subscription, give_back: Callable[[], None]) -> None:
        self.next = changes.next
        self.began = began(changes)
        self._changes = changes
        self._give_back = give_back

    @property
    def wanted(self) -> frozenset[Change]:
        return self._changes.wanted

    def close(self) -> None:
        self._changes.close()
        self._give_back()


def _size(change: Change) -> int:
    return getsizeof(change.uri) + (_FOR_TASK if change.kind == "task" else _FOR_NAME)


def _wanted(params: Mapping[str, Any]) -> frozenset[Change]:
    asked = params.get("notifications")
    if not isinstance(asked, dict):
        raise InvalidParams("subscriptions/listen needs notifications, an object with what to listen to")
    wanted: set[Change] = set()
    for field, kind in _LISTENED.items():
        if not isinstance(asked.get(field, False), bool):
            raise InvalidParams(f"notifications.{field} must be true or false")
        if asked.get(field):
            wanted.add(Change(kind))
    for field, kind_of_each in _LISTENED_EACH.items():
        named = asked.get(field, [])
        if not isinstance(named, list) or not all(isinstance(name, str) for name in named):
            raise InvalidParams(f"notifications.{field} must be a list of strings")
        if len(named) > _MOST_EACH or sum(map(len, named)) > _MOST_EACH * 100:
            raise OverBudget(f"More than {_MOST_EACH} {field}", field, _MOST_EACH)
        for name in named:
            check_length(name, LONGEST_NAME, field)
        wanted |= {Change(kind_of_each, name) for name in named}
    return frozenset(wanted)
