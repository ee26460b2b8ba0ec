"""Whoever subscribes to events: which of them they get, and in which form."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from inspect import isawaitable
from typing import Any

from pydantic_core import to_json

from ..concurrency.running import PerLoop, running_loop
from ..concurrency.threads import Threads, call_function, failure_of
from ..errors import EventFailed, FlowError, StoreUnavailable
from ..flow.authorization import Authorizer
from ..flow.events import EventType
from ..logs.failures import calls_author, report_failure
from ..protocol.callers import Caller, Principal, dump_user, load_user
from ..protocol.messages import JSON, timestamp
from ..protocol.sessions import owner_of
from ..storage.quotas import Callers
from .log import LARGEST_PAYLOAD, Happened, audience_of

DECIDE_WITHIN = 10.0
"""Seconds that `admits`, `matches` and `shape` may take. What is no `async def` runs on the event loop."""

TELL_WITHIN = 20.0
"""Seconds that `on_subscribe` and `on_unsubscribe` may take."""


@dataclass(slots=True)
class Subscriber:
    """Who wants events of a type, and which of them."""

    type: EventType[Any, Any]
    caller: Caller
    arguments: JSON
    """As they were sent."""
    wants: Any
    """The same, as the functions of the type get them."""
    audiences: frozenset[str] = field(default=frozenset())
    """Whom events may be for that it gets, besides all."""

    @classmethod
    def of(cls, type: EventType[Any, Any], caller: Caller, arguments: JSON, callers: Callers) -> "Subscriber":
        """Return the subscriber with some arguments. Raises `InvalidParams`."""
        known = [audience_of(type.name, arguments)]
        if caller.principal is not None:
            known += callers.all_of(caller.principal.person)
        return cls(type, caller, arguments, type.wants(arguments), frozenset(known))

    @property
    def owner(self) -> str:
        """Digest of whose it is; empty for nobody in particular."""
        principal = self.caller.principal
        return "" if principal is None else owner_of(principal)

    async def occurrence(self, event: Happened) -> JSON | None:
        """Return an event as this subscriber gets it; None if not. Raises `EventFailed`, `StoreUnavailable`."""
        if event.audience and event.audience not in self.audiences:
            return None
        type = self.type
        try:
            if type.matches is not None and not await self._decided("matches", type.matches, event):
                return None
            data = event.data if type.shape is None else await self._shaped(type.shape, event)
        except StoreUnavailable:  # which is asked again
            raise
        except Exception as error:
            reference = report_failure("An event of %r could not be made ready", type.name, error=error)
            raise EventFailed(reference) from None
        return {"eventId": event.id, "name": type.name, "timestamp": timestamp(event.at), "data": data}

    async def _shaped(self, shape: Callable[..., Any], event: Happened) -> Any:
        data = self.type.written.dump(await self._decided("shape", shape, event))
        if (size := len(to_json(data))) > LARGEST_PAYLOAD:
            raise FlowError(
                f"shape= of {self.type.name!r} returned {size} bytes, and {LARGEST_PAYLOAD} can be delivered"
            )
        return data

    async def _decided(self, name: str, function: Callable[..., Any], event: Happened) -> Any:
        where = f"{name} of {self.type.name}"
        return await call_within(DECIDE_WITHIN, where, function, event.payload, self.wants, self.caller)


async def call_within(seconds: float, where: str, function: Callable[..., Any], *given: Any) -> Any:
    """Call a function of the author's on the event loop. What it returns is awaited, for so many seconds at most.

    What it raises ends no more than this call.
    """
    try:
        value = _call(function, given)
        if isawaitable(value):
            async with asyncio.timeout(seconds):
                value = await value
    except BaseException as error:
        if (counts := failure_of(error, where)) is error:
            raise
        raise counts from error
    return value


@calls_author
def _call(function: Callable[..., Any], given: tuple[Any, ...]) -> Any:
    return function(*given)


def dump_caller(caller: Caller) -> list[Any]:
    """Return what is kept of a subscriber, to be asked about again before each delivery."""
    principal = caller.principal
    named = None if principal is None else [principal.subject, principal.issuer, principal.client_id, principal.tenant]
    return [named, dump_user(caller.user), sorted(caller.scopes)]


def load_caller(kept: list[Any]) -> Caller:
    """Return what `dump_caller` has returned."""
    named, user, scopes = kept
    return Caller(None if named is None else Principal(*named), load_user(user), frozenset(scopes))


class Sources:
    """Calls what authors registered for subscribers that come and go."""

    def __init__(self, threads: Threads) -> None:
        self._threads = threads
        self._telling = PerLoop[set[asyncio.Task[None]]]()

    async def added(self, subscriber: Subscriber) -> None:
        """Call `on_subscribe`. Raises what the author's function raises, in the log already."""
        await self._tell(subscriber.type.on_subscribe, "on_subscribe", subscriber)

    def removed(self, subscriber: Subscriber) -> None:
        """Call `on_unsubscribe`, for which nobody waits. A failure is in the log."""
        if subscriber.type.on_unsubscribe is None:
            return
        telling = self._telling.here(set)
        task = running_loop().create_task(self._tell_removed(subscriber))
        telling.add(task)
        task.add_done_callback(telling.discard)

    async def _tell_removed(self, subscriber: Subscriber) -> None:
        try:
            await self._tell(subscriber.type.on_unsubscribe, "on_unsubscribe", subscriber)
        except FlowError:
            return

    async def close(self) -> None:
        """Wait for the calls on this event loop, which end by themselves."""
        if telling := self._telling.pop():
            await asyncio.wait(telling)

    async def _tell(self, function: Callable[..., Any] | None, name: str, subscriber: Subscriber) -> None:
        if function is None:
            return

        @calls_author
        def tell() -> Awaitable[None] | None:
            told: Awaitable[None] | None = function(subscriber.wants, subscriber.caller)
            return told

        where = f"{name} of {subscriber.type.name}"
        try:
            async with asyncio.timeout(TELL_WITHIN):
                await call_function(tell, where, self._threads, is_async=False)
        except Exception as error:
            reference = report_failure("%s failed", where, error=error)
            raise FlowError(reference) from error


async def may_subscribe(authorizer: Authorizer, subscriber: Subscriber) -> bool:
    """Return whether a subscriber still may have events. Raises `StoreUnavailable` where nobody can say."""
    type = subscriber.type
    if authorizer.guards(type.hook) and not await authorizer.still_allowed(subscriber.caller, (type.hook, type.name)):
        return False
    try:
        return await is_admitted(subscriber)
    except EventFailed as failed:  # not a no that would end for good what was allowed once
        raise StoreUnavailable(f"admits= failed ({failed})") from None


async def is_admitted(subscriber: Subscriber) -> bool:
    """Return whether its author lets a caller subscribe with its arguments. Raises `EventFailed`."""
    type = subscriber.type
    if type.admits is None:
        return True
    try:
        where = f"admits of {type.name}"
        answer = await call_within(DECIDE_WITHIN, where, type.admits, subscriber.wants, subscriber.caller)
        if not isinstance(answer, bool):
            raise FlowError("admits= must return True or False")
    except Exception as error:
        raise EventFailed(report_failure("admits= of %r failed", type.name, error=error)) from None
    return answer
