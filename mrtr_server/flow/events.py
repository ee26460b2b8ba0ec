"""Types of events: what `app.event` makes. What may be subscribed to, what it carries, and who gets which of it."""

import inspect
import re
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Literal, NamedTuple, Protocol, TypeVar, cast

from ..crypto.digests import digest
from ..errors import SetupError
from ..protocol.callers import Caller, Principal
from ..protocol.messages import JSON
from ..schema.stored import Stored
from ..schema.structured import ModelArguments, Structured
from .authorization import Hook
from .steps import current_step

A = TypeVar("A")
P = TypeVar("P")

Mode = Literal["poll", "push", "webhook"]
MODES: tuple[Mode, ...] = ("poll", "push", "webhook")

SHORTEST_POLL = 1.0
"""Seconds between two reads of a source."""

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/-]{0,127}")


@dataclass(frozen=True, slots=True)
class Occurrence(Generic[P]):
    """One event that a source has found.

    Args:
        payload: what happened, of the type of the event.
        id: names it, as the upstream does, so that it counts once however often it is found; see `app.emit`.
        at: when it happened, in seconds since the epoch. Default: now.
    """

    payload: P
    id: str
    at: float | None = None


@dataclass(frozen=True, slots=True)
class Batch(Generic[P]):
    """What a source has found since a position.

    Args:
        events: the events, in the order in which they are to be told.
        since: the position after them, of up to 4,096 characters: the source is given it the next time.
        more: whether there is more to be found at once.
    """

    events: Sequence[Occurrence[P]]
    since: str
    more: bool = False


LONGEST_SINCE = 4096

Source = Callable[[str | None, Any], Awaitable[Batch[Any]]]


class SourceOf(NamedTuple):
    """Where events of a type are read, and how often, in seconds."""

    read: Source
    every: float


class EventType(Generic[A, P]):
    """A type of event, which `app.event` makes; `app.emit` says that one has happened.

    Args:
        name: names it.
        arguments: the model of what a subscriber may choose; None where there is nothing to choose.
        payload: the type of what an event carries.
        description: what it is, for people and models.
        matches: whether a subscriber gets an event.
        shape: makes what a subscriber gets of an event.
        admits: whether a caller may subscribe with some arguments.
        on_subscribe: is told of a new subscriber.
        on_unsubscribe: is told that one has gone.
        modes: how it can be delivered.
        hook: who may subscribe.
        meta: `_meta` of it in the list.

    Raises:
        SetupError: one can't be right; the message says why.
    """

    def __init__(
        self,
        name: str,
        *,
        arguments: type[A] | None,
        payload: type[P],
        description: str,
        matches: Callable[[P, A, Caller], Any] | None,
        shape: Callable[[P, A, Caller], Any] | None,
        admits: Callable[[A, Caller], Any] | None,
        on_subscribe: Callable[[A, Caller], Any] | None,
        on_unsubscribe: Callable[[A, Caller], Any] | None,
        modes: Sequence[Mode],
        hook: Hook | None,
        meta: JSON | None,
    ) -> None:
        where = f"app.event({name!r})"
        if not _NAME.fullmatch(str(name)):
            raise SetupError(f"{where}: a name is 1 to 128 of A-Z, a-z, 0-9, '.', '_', '-' and '/'")
        if not modes or not set(modes) <= set(MODES):
            raise SetupError(f"{where}: modes= takes some of {', '.join(map(repr, MODES))}")
        self.name = name
        self.hook = hook
        self.modes = tuple(mode for mode in MODES if mode in modes)
        self.source_of: SourceOf | None = None
        self.on_subscribe, self.on_unsubscribe = on_subscribe, on_unsubscribe
        self.matches, self.shape, self.admits = matches, shape, admits
        self.written = Structured(where, payload)
        if self.written.schema.get("type") != "object":
            raise SetupError(f"{where}: payload= must be an object in JSON, such as a model")
        self.stored = Stored(payload)
        self._arguments = ModelArguments(name, arguments)
        self.entry: JSON = {
            "name": name,
            **({"description": description} if description else {}),
            "inputSchema": self._arguments.schema,
            "payloadSchema": self.written.schema,
            **({} if meta is None else {"_meta": meta}),
        }

    def __repr__(self) -> str:
        return f"EventType({self.name!r})"

    def wants(self, arguments: JSON) -> A:
        """Return what a subscriber chose, as the handler of the type gets it.

        Args:
            arguments: as they were sent.

        Returns:
            The model; None where there is nothing to choose.

        Raises:
            InvalidParams: they do not fit.
        """
        return cast(A, self._arguments.validate(arguments))

    def source(self, *, every: float) -> Callable[[Source], Source]:
        """Register the function that reads events elsewhere, for each different choice of arguments: `@mail.source`.

        It is an `async def` of the last position, None at first, and of the arguments. It returns a `Batch`; at first
        with the position of now, and nothing that happened before. One process of the fleet calls it at a time, for as
        long as somebody wants its events.

        Args:
            every: how often it is called, in seconds; at least 1.

        Returns:
            A decorator that returns the function as it is.

        Raises:
            SetupError: it is no `async def`, there is one already, or `every` is below 1.
        """
        where = f"app.event({self.name!r}).source"

        def register(function: Source) -> Source:
            if not inspect.iscoroutinefunction(function):
                raise SetupError(f"{where} takes an async def of (since, arguments)")
            if self.source_of is not None:
                raise SetupError(f"{where}: it has one already")
            self.source_of = SourceOf(function, every)
            return function

        if not every >= SHORTEST_POLL:
            raise SetupError(f"{where}(every={every!r}) must be at least {SHORTEST_POLL:g} s")
        return register


class Emitter(Protocol):
    """Where events are kept."""

    async def add(
        self, type: EventType[Any, Any], payload: Any, *, id: str | None = None, to: Principal | None = None
    ) -> bool:
        """Keep an event; return whether it is new. Raises `FlowError`, `StoreUnavailable`."""
        ...


class Emitting:
    """What a flow emits. Its method is called as a step."""

    __slots__ = ("_emitter", "_event", "_flow")

    def __init__(self, emitter: Emitter, event: EventType[Any, Any], flow: str) -> None:
        self._emitter = emitter
        self._event = event
        self._flow = flow

    async def emit(self, name: str, payload: Any, to: Principal | None) -> None:
        # The same id where the step runs again, since its replica died before that was recorded.
        await self._emitter.add(self._event, payload, id=digest([self._flow, current_step.get()]), to=to)
