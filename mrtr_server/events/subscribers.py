"""Whoever subscribes to events: which of them they get, and in which form."""

import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from inspect import isawaitable
from typing import Any

from ..concurrency.threads import Threads, call_function
from ..crypto.digests import digest
from ..errors import EventFailed, FlowError
from ..flow.authorization import Authorizer
from ..flow.events import EventType
from ..logs.failures import calls_author, report_failure
from ..protocol.callers import Caller, Principal, dump_user, load_user
from ..protocol.messages import JSON, timestamp
from ..storage.quotas import Callers
from .log import Happened, audience_of

logger = logging.getLogger("mrtr_server")


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
        """Return an event as this subscriber gets it; None if it does not. Raises `EventFailed`."""
        if event.audience and event.audience not in self.audiences:
            return None
        type = self.type
        try:
            if type.matches is not None and not await _awaited(_call(type.matches, event, self)):
                return None
            data = event.data
            if type.shape is not None:
                data = type.written.dump(await _awaited(_call(type.shape, event, self)))
        except Exception as error:
            reference = report_failure("An event of %r could not be made ready", type.name, error=error)
            raise EventFailed(reference) from None
        return {"eventId": event.id, "name": type.name, "timestamp": timestamp(event.at), "data": data}


@calls_author
def _call(function: Callable[..., Any], event: Happened, subscriber: Subscriber) -> Any:
    return function(event.payload, subscriber.wants, subscriber.caller)


async def _awaited(value: Any) -> Any:
    return await value if isawaitable(value) else value


def owner_of(principal: Principal) -> str:
    """Return a digest of a principal, which is what subscriptions and cursors belong to."""
    return digest(["principal", principal.issuer, principal.subject, principal.client_id])


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

    async def added(self, subscriber: Subscriber) -> None:
        """Call `on_subscribe`. Raises what the author's function raises, in the log already."""
        await self._tell(subscriber.type.on_subscribe, "on_subscribe", subscriber)

    async def removed(self, subscriber: Subscriber) -> None:
        """Call `on_unsubscribe`. A failure is in the log."""
        try:
            await self._tell(subscriber.type.on_unsubscribe, "on_unsubscribe", subscriber)
        except FlowError:
            return

    async def _tell(self, function: Callable[..., Any] | None, name: str, subscriber: Subscriber) -> None:
        if function is None:
            return

        @calls_author
        def tell() -> Awaitable[None] | None:
            told: Awaitable[None] | None = function(subscriber.wants, subscriber.caller)
            return told

        where = f"{name} of {subscriber.type.name}"
        try:
            await call_function(tell, where, self._threads, is_async=False)
        except Exception as error:
            reference = report_failure("%s failed", where, error=error)
            raise FlowError(reference) from error


async def may_subscribe(authorizer: Authorizer, subscriber: Subscriber) -> bool:
    """Return whether a subscriber still may have events. Raises `StoreUnavailable` where nobody can say."""
    return await authorizer.still_allowed(subscriber.caller, (subscriber.type.hook, subscriber.type.name))
