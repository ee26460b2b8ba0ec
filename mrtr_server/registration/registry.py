"""All that a server offers, by name: what is registered here, and what the applications have that it includes."""
# ruff: noqa: SLF001  registries that include each other are of one class

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from difflib import get_close_matches
from functools import partial, wraps
from threading import RLock
from typing import Any, ParamSpec, Protocol, TypeVar
from weakref import WeakSet

from ..errors import SetupError
from ..flow.events import EventType
from ..flow.handler import Handler
from ..flow.home import Home, identity
from ..flow.url_asks import Callback
from ..flow.waits import Wait
from ..protocol.messages import Change
from .inclusion import LISTINGS, Inclusion, Listing, depends_on
from .inclusion import Record as Record
from .offering import Entry, Mark, Offering, Opening, Part, moments
from .pages import address_of
from .records import Completer, Resource
from .tools import Tool

_KINDS: Mapping[Listing, str] = {
    "tools": "tool",
    "prompts": "prompt",
    "resources": "resource",
    "resourceTemplates": "resource template",
}
_CHANGED: Mapping[Listing, Change] = {
    "tools": Change("tools"),
    "prompts": Change("prompts"),
    "resources": Change("resources"),
    "resourceTemplates": Change("resources"),
}


_changing = RLock()
"""Held while something changes: any thread may change what is served, and what one registry has is in others."""

P = ParamSpec("P")
T = TypeVar("T")


def alone(change: Callable[P, T]) -> Callable[P, T]:
    """Hold the lock, so that one change of what is registered happens at a time."""

    @wraps(change)
    def changed(*args: P.args, **kwargs: P.kwargs) -> T:
        with _changing:
            return change(*args, **kwargs)

    return changed


class Serving(Protocol):
    """A server that serves what is registered."""

    def notify(self, change: Change) -> None:
        """Notify its clients, if it runs."""
        ...

    def prepare(self, handler: Handler, rate: object) -> None:
        """Prepare to serve a handler of an included application. Raises `SetupError` if it can't."""
        ...

    def add_lifespan(self, opening: Opening) -> None:
        """Add the `lifespan=` of an included application."""
        ...

    def restart_lifespan(self, home: Home) -> None:
        """Leave the `lifespan=` of an application, and enter it again before the next call."""
        ...

    def call_hooks(self) -> None:
        """Begin to call the hooks of applications."""
        ...


class Registry(Offering):
    """All that a server offers. Later registrations show in the next list."""

    def __init__(self, home: Home) -> None:
        super().__init__(home)
        self.serving: WeakSet[Serving] = WeakSet()  # the servers that serve this
        self._included_in: list[tuple[Registry, Part]] = []  # the registries that hear of changes
        self._placed: Inclusion | None = None  # how what is registered now is named, where it belongs to an object

    # To add

    def add(self, record: Record) -> None:
        """Register a tool, prompt, resource or template. Raises `SetupError` if its name or URI is taken."""
        if not isinstance(record, Resource):
            self._add("tools" if isinstance(record, Tool) else "prompts", record.handler.name, record)
        elif record.template is None:
            self._add("resources", address_of(record.entry["uri"]), record)
        else:
            self._add("resourceTemplates", record.entry["uriTemplate"], record)

    @alone
    def add_completer(self, kind: str, name: str, argument: str, completer: Completer) -> None:
        """Register the completion of an argument. Raises `SetupError` if it has one."""
        key = (kind, name, argument)
        for registry, way, is_other in self.everywhere():
            its_key = way.completion(*key)
            _check_free(registry.find_completer(*its_key), "completion of", its_key, completer, is_other)
        self._completers[key] = completer

    @alone
    def add_callback(self, callback: Callback[Any]) -> None:
        """Register a callback. Raises `SetupError` if its name is taken."""
        for registry, _, is_other in self.everywhere():
            _check_free(registry.callbacks.get(callback.name), "callback", callback.name, callback, is_other)
        self.callbacks[callback.name] = callback

    @alone
    def add_wait(self, wait: Wait[Any, Any]) -> None:
        """Register a wait. Raises `SetupError` if its name is taken."""
        for registry, _, _ in self.everywhere():
            _check_named(registry, registry.waits, "a wait", wait.name)
        self.waits[wait.name] = wait

    @alone
    def add_event(self, event: EventType[Any, Any]) -> None:
        """Register a type of event. Raises `SetupError` if its name is taken."""
        for registry, _, _ in self.everywhere():
            _check_named(registry, registry.events, "an event", event.name)
        self.events[event.name] = event

    @contextmanager
    def of_part(self, part: Inclusion) -> Iterator[None]:
        """Register what belongs to an object, for as long as a block lasts; its names have their prefix already."""
        with _changing:
            self._placed = part
            try:
                yield
            finally:
                self._placed = None

    @alone
    def _add(self, listing: Listing, key: str, record: Record) -> None:
        if self._placed is not None:
            record = self._placed.placed(record)
        for registry, way, is_other in self.everywhere():
            its_key = way.key(listing, key)
            _check_free(registry.entry_of(listing, its_key), _KINDS[listing], its_key, record, is_other)
        self._own[listing][key] = Entry(next(moments), record)
        try:
            for registry, way, is_other in self.everywhere():
                if is_other:
                    registry._prepare(listing, way.key(listing, key))
        except BaseException:
            del self._own[listing][key]
            self._forget_views()  # a call that came meanwhile may have found it
            raise
        for registry, way, _ in self.everywhere():
            registry.note_added(listing, way.key(listing, key))
            registry.notify(_CHANGED[listing])

    def _prepare(self, listing: Listing, key: str) -> None:
        entry = self.entry_of(listing, key)
        assert entry is not None  # noqa: S101  it was put there before
        for server in self.serving:
            server.prepare(entry.record.handler, getattr(entry.record, "rate", None))

    def everywhere(self) -> "Iterator[tuple[Registry, Inclusion, bool]]":
        """Yield this registry and all that include it, with how keys change on the way, and whether it is another."""
        yield self, Inclusion(self.home), False
        for outer, part in self._included_in:
            for registry, further, _ in outer.everywhere():
                yield registry, further.of(part.inclusion), True

    # To change while it is served

    @alone
    def remove(self, listing: Listing, key: str) -> None:
        """Remove an entry. Raises `SetupError` if there is none."""
        self._check_known(listing, [key])
        if key in self._own[listing]:
            del self._own[listing][key]
            self._marks.pop((listing, key), None)
        else:  # it is another registry's, which keeps it
            self._mark(listing, [key], None)
        self._changed(listing)

    def _mark(self, listing: Listing, keys: Collection[str], on: bool | None) -> None:
        mark = Mark(next(moments), on)
        self._marks |= {(listing, key): mark for key in keys}

    @alone
    def turn(self, keys: Mapping[Listing, Collection[str]], tags: Collection[str], *, on: bool) -> None:
        """Enable or disable entries, by listing; `"resources"` may have both kinds of URIs. Raises `SetupError`."""
        chosen: dict[Listing, list[str]] = {listing: list(keys.get(listing, ())) for listing in LISTINGS}
        templates = [uri for uri in chosen["resources"] if self.entry_of("resourceTemplates", uri) is not None]
        chosen["resourceTemplates"] += templates
        chosen["resources"] = [uri for uri in chosen["resources"] if uri not in templates]
        for listing, wanted in chosen.items():
            self._check_known(listing, wanted)
        if unknown := set(tags) - {tag for _, _, record in self.entries() for tag in record.tags}:
            raise SetupError(f"{self.home.name}: nothing has the tag {min(unknown)!r}")
        for listing, key, record in self.entries():
            if not record.tags.isdisjoint(tags):
                chosen[listing].append(key)
        for listing, wanted in chosen.items():
            if wanted:
                self._mark(listing, wanted, on)
                self._changed(listing)

    def _check_known(self, listing: Listing, keys: Iterable[str]) -> None:
        for key in keys:
            if self.entry_of(listing, key) is None:
                close = get_close_matches(key, self.keys(listing), 1)
                hint = f"; did you mean {close[0]!r}?" if close else ""
                raise SetupError(f"{self.home.name} has no {_KINDS[listing]} {key!r}{hint}")

    def _changed(self, listing: Listing) -> None:
        """Compute what there is again, here and in what includes this, and notify the clients of all of them."""
        self.forget_view()
        self.notify(_CHANGED[listing])
        for outer, _ in self._included_in:
            outer._changed(listing)

    def _forget_views(self) -> None:
        for registry, _, _ in self.everywhere():
            registry.forget_view()

    def notify(self, change: Change) -> None:
        """Notify the clients of all servers that serve this."""
        for server in tuple(self.serving):
            server.notify(change)

    def notify_including(self, change: Change) -> None:
        """Notify the clients of all servers that include this."""
        for outer, part in self._included_in:
            its_change = part.inclusion.change(change)
            outer.notify(its_change)
            outer.notify_including(its_change)

    # To include others

    @alone
    def include(
        self, other: "Registry", inclusion: Inclusion, opening: Opening | None, extensions: Mapping[str, Any]
    ) -> None:
        """Offer all that another registry has, now and later, with its `lifespan=` and extensions.

        Raises `SetupError`.
        """
        if any(registry is other for registry, _, _ in self.everywhere()):
            raise SetupError(f"{self.home.name} can't include {other.home.name}, which includes it")
        part = Part(next(moments), other, replace(inclusion, serves=other.serves), opening, extensions)
        everywhere = [(registry, way.of(inclusion)) for registry, way, _ in self.everywhere()]
        for registry, way in everywhere:
            registry._check_taking(other, way)
        self._parts.append(part)
        other._included_in.append((self, part))
        try:
            for registry, way in everywhere:
                for listing, key, _ in other.entries():
                    registry._prepare(listing, way.key(listing, key))
        except BaseException:
            self._parts.pop()
            other._included_in.pop()
            self._forget_views()
            raise
        self.callbacks.maps.append(other.callbacks)
        self.waits.maps.append(other.waits)
        self.events.maps.append(other.events)
        for registry, _ in everywhere:
            registry._open(part)
        for listing in LISTINGS:
            if other.has_any(listing):
                self._changed(listing)

    def _open(self, part: Part) -> None:
        has_hooks = any(home.has_hooks for home in part.registry.homes())
        for server in tuple(self.serving):
            for opening in part.openings:
                server.add_lifespan(opening)
            if has_hooks:
                server.call_hooks()

    def _check_taking(self, other: "Registry", way: Inclusion) -> None:
        for listing, key, record in other.entries():
            its_key = way.key(listing, key)
            _check_free(self.entry_of(listing, its_key), _KINDS[listing], its_key, record, True)
        for completed, completer in other.all_completers():
            argument = way.completion(*completed)
            _check_free(self.find_completer(*argument), "completion of", argument, completer, True)
        for name, callback in other.callbacks.items():
            _check_free(self.callbacks.get(name), "callback", name, callback, True)
        for name in other.waits:
            _check_named(self, self.waits, "a wait", name)
        for name in other.events:
            _check_named(self, self.events, "an event", name)

    def call_hooks(self) -> None:
        """Call the hooks of applications in all servers that serve any of this."""
        for registry, _, _ in self.everywhere():
            for server in tuple(registry.serving):
                server.call_hooks()


def _check_named(registry: Registry, taken: Collection[str], kind: str, name: str) -> None:
    if name in taken:
        raise SetupError(f"There is {kind} {name!r} of {registry.home.name!r} already; rename one of them")


def _check_free(taken: object, kind: str, key: object, record: object, is_other: bool) -> None:
    """Check that nothing has a name that a record, perhaps of another registry, is to have. Raises `SetupError`."""
    if taken is not None:
        advice = "include it with another prefix=" if is_other else "rename or remove one of them"
        raise SetupError(f"There is a {kind} {key!r} already; {advice}: {_place(taken)} and {_place(record)}")


def _place(record: Any) -> str:
    if isinstance(record, Entry):
        record = record.record
    handler = getattr(record, "handler", None)
    function: Any = getattr(record, "function", None) if handler is None else handler.function
    while isinstance(function, partial):
        function = function.func
    named = f"{getattr(function, '__module__', '?')}.{getattr(function, '__qualname__', type(function).__name__)}"
    return named if handler is None or not handler.homes else f"{named} of {handler.homes[-1].name!r}"


Function = Callable[..., Any]


@contextmanager
def overridden(registry: Registry, dependency: Function, function: Function) -> Iterator[None]:
    """Put a function into the place of a dependency for as long as the block lasts. Raises `SetupError`."""
    for each in (dependency, function):
        if not callable(each):
            raise SetupError(
                f"app.override takes the function of Depends(...), and its replacement; {each!r} is not a function"
            )
    is_own = registry.home.lifespan is not None and registry.home.lifespan == dependency
    if not is_own and not any(depends_on(record.handler, dependency) for _, _, record in registry.entries()):
        name = getattr(dependency, "__qualname__", dependency)
        raise SetupError(
            f"{registry.home.name}: nothing depends on {name}; an override is for the very function that was given to "
            "Depends(...) or lifespan="
        )
    key = identity(dependency)
    before = {key: registry.home.overrides[key]} if key in registry.home.overrides else {}
    _put(registry, {**registry.home.overrides, key: function})
    try:
        yield
    finally:
        others = {each: now for each, now in registry.home.overrides.items() if each != key}
        _put(registry, {**others, **before})


@alone
def _put(registry: Registry, overrides: dict[Any, Function]) -> None:
    before, everywhere = registry.home.overrides, [each for each, _, _ in registry.everywhere()]
    try:
        _use(registry, overrides, everywhere)
    except BaseException:
        _use(registry, before, everywhere)
        raise
    changed = {key for key in before.keys() | overrides.keys() if before.get(key) is not overrides.get(key)}
    for life in registry.homes():
        if life.lifespan is not None and identity(life.lifespan) in changed:
            for each in everywhere:
                for server in tuple(each.serving):
                    server.restart_lifespan(life)


def _use(registry: Registry, overrides: dict[Any, Function], everywhere: list[Registry]) -> None:
    registry.home.overrides = overrides
    for each in everywhere:
        each.forget_view()
        list(each.entries())
