"""All that a server offers, by name."""
# ruff: noqa: SLF001  registries that include each other are of one class

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import AbstractAsyncContextManager
from difflib import get_close_matches
from functools import wraps
from threading import RLock
from typing import Any, NamedTuple, ParamSpec, Protocol, TypeVar, cast
from weakref import WeakSet

from ..callbacks.callback_service import Callback
from ..errors import SetupError
from ..flow.handler import Handler, TaskTerms
from ..flow.home import Home
from ..protocol.header_params import HeaderParameter
from ..protocol.messages import JSON, Change, TaskSupport
from ..schema.uri_templates import normal
from .completions import Completer
from .conflicts import check_free
from .inclusion import LISTINGS, Inclusion, Listing
from .inclusion import Record as Record
from .prompts import Prompt
from .recompiling import compiled_again
from .resources import Resource
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


class Found(NamedTuple):
    """What serves a URI.

    Args:
        resource: a resource, or a template of them.
        values: of the template's variables.
        uri: the URI as the resource is registered, which hooks are asked about: clients may write it in other ways.
    """

    resource: Resource
    values: dict[str, str]
    uri: str


class Opening(NamedTuple):
    """The `lifespan=` of an application.

    Args:
        home: the application.
        lifespan: the function.
        server: what it is called with.
    """

    home: Home
    lifespan: Callable[[Any], AbstractAsyncContextManager[Any]]
    server: object


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


class Registry:
    """All that a server offers. Later registrations show in the next list.

    Args:
        home: the application that registers here.
    """

    def __init__(self, home: Home) -> None:
        self.home = home
        self.tools: dict[str, Tool] = {}
        """The tools that are enabled, as are the prompts, resources and templates below. A change makes a new one."""
        self.tasks: dict[str, TaskTerms] = {}
        """How calls of tools become tasks, by the name of each tool that has some."""
        self.has_tasks = False
        """Whether calls of a tool become tasks, enabled or not."""
        self.prompts: dict[str, Prompt] = {}
        self.resources: dict[str, Resource] = {}
        self.templates: dict[str, Resource] = {}
        self._by_normal: tuple[dict[str, Resource], dict[str, Resource]] = ({}, {})
        """The fixed resources, and the same by their URIs as all equivalent ones are written."""
        self.completers: dict[tuple[str, str, str], Completer] = {}
        self.callbacks: dict[str, Callback[Any]] = {}
        self.mirrored: dict[str, tuple[HeaderParameter, ...]] = {}
        """The parameters that headers mirror, by the name of each tool that has some (Tools, x-mcp-header)."""
        self.guarded: set[str] = set()
        """The `LISTINGS` that have an entry with a hook of its own."""
        self.serving: WeakSet[Serving] = WeakSet()
        """The servers that serve it."""
        self.lifespans: list[Opening] = []
        """Those of the applications that it includes."""
        self._all: dict[Listing, dict[str, Record]] = {listing: {} for listing in LISTINGS}
        self._disabled: set[tuple[Listing, str]] = set()
        self._included_in: list[tuple[Registry, Inclusion]] = []

    # To add

    def add_tool(self, tool: Tool) -> None:
        """Register a tool. Raises `SetupError` if its name is taken."""
        self._add("tools", tool.handler.name, tool)

    def add_prompt(self, prompt: Prompt) -> None:
        """Register a prompt. Raises `SetupError` if its name is taken."""
        self._add("prompts", prompt.handler.name, prompt)

    def add_resource(self, resource: Resource) -> None:
        """Register a resource or template. Raises `SetupError` if its URI is taken."""
        if resource.template is None:
            self._add("resources", resource.entry["uri"], resource)
        else:
            self._add("resourceTemplates", resource.entry["uriTemplate"], resource)

    @alone
    def add_completer(self, kind: str, name: str, argument: str, completer: Completer) -> None:
        """Register the completion of an argument. Raises `SetupError` if it has one."""
        key = (kind, name, argument)
        for registry, place, inclusion in self.everywhere():
            check_free(registry.completers, "completion of", place.completion(*key), completer, inclusion)
        for registry, place, _ in self.everywhere():
            registry.completers[place.completion(*key)] = completer

    @alone
    def add_callback(self, callback: Callback[Any]) -> None:
        """Register a callback. Raises `SetupError` if its name is taken."""
        for registry, _, inclusion in self.everywhere():
            check_free(registry.callbacks, "callback", callback.name, callback, inclusion)
        for registry, _, _ in self.everywhere():
            registry.callbacks[callback.name] = callback

    @alone
    def _add(self, listing: Listing, key: str, record: Record) -> None:
        added = [(self, key, record), *self._copies(listing, key, record)]
        for registry, its_key, its_record in added:
            check_free(registry._all[listing], _KINDS[listing], its_key, its_record, registry is not self)
            if registry is not self:
                registry._take(its_record)
        for registry, its_key, its_record in added:
            registry._put(listing, its_key, its_record)

    def _put(self, listing: Listing, key: str, record: Record) -> None:
        if record.handler.declared is not None and any(home.overrides for home in record.handler.homes):
            record = compiled_again(record)
        self._all[listing][key] = record
        if record.authorize is not None:
            self.guarded.add(listing)
        self._show(listing)
        self.notify(_CHANGED[listing])

    def _take(self, record: Record) -> None:
        for server in self.serving:
            server.prepare(record.handler, getattr(record, "rate", None))

    def _copies(self, listing: Listing, key: str, record: Record) -> "Iterator[tuple[Registry, str, Record]]":
        """Return what a record is in each registry that includes this one, near or far."""
        for outer, inclusion in self._included_in:
            yield from outer._through(inclusion, listing, key, record)

    def _through(
        self, inclusion: Inclusion, listing: Listing, key: str, record: Record
    ) -> "Iterator[tuple[Registry, str, Record]]":
        """Return what a record of another registry is in this one, and in each that includes this one."""
        its_key, its_record = inclusion.key(listing, key), inclusion.record(listing, record)
        yield self, its_key, its_record
        yield from self._copies(listing, its_key, its_record)

    def everywhere(self) -> "Iterator[tuple[Registry, Inclusion, bool]]":
        """Return this registry and all that include it, with how keys change on the way, and whether it is another."""
        yield self, Inclusion(self.home), False
        for outer, inclusion in self._included_in:
            for registry, further, _ in outer.everywhere():
                yield registry, further.of(inclusion), True

    # To change while it is served

    @alone
    def remove(self, listing: Listing, key: str) -> None:
        """Remove an entry. Raises `SetupError` if there is none."""
        self._known(listing, [key])
        for registry, its_key in self._keys(listing, key):
            registry._all[listing].pop(its_key, None)
            registry._disabled -= {(listing, its_key)}
            registry._show(listing)
            registry.notify(_CHANGED[listing])

    @alone
    def turn(self, keys: Mapping[Listing, Collection[str]], tags: Collection[str], *, on: bool) -> None:
        """Enable or disable entries.

        Args:
            keys: their names or URIs, by listing. A URI of either kind of resources may be under `"resources"`.
            tags: and all that have one of these.
            on: whether they are to be enabled.

        Raises:
            SetupError: there is no such entry, or none with such a tag.
        """
        chosen: dict[Listing, list[str]] = {listing: list(keys.get(listing, ())) for listing in LISTINGS}
        templates = [uri for uri in chosen["resources"] if uri in self._all["resourceTemplates"]]
        chosen["resourceTemplates"] += templates
        chosen["resources"] = [uri for uri in chosen["resources"] if uri not in templates]
        for listing, wanted in chosen.items():
            self._known(listing, wanted)
        if unknown := set(tags) - {tag for _, _, record in self.entries() for tag in record.tags}:
            raise SetupError(f"{self.home.name}: nothing has the tag {min(unknown)!r}")
        for listing, key, record in self.entries():
            if not record.tags.isdisjoint(tags):
                chosen[listing].append(key)
        for listing, wanted in chosen.items():
            if wanted:
                self._turn(listing, wanted, on=on)

    def _turn(self, listing: Listing, keys: Collection[str], *, on: bool) -> None:
        marked = {(listing, key) for key in keys}
        self._disabled = self._disabled - marked if on else self._disabled | marked
        self._show(listing)
        self.notify(_CHANGED[listing])
        for outer, inclusion in self._included_in:
            outer._turn(listing, [inclusion.key(listing, key) for key in keys], on=on)

    def _show(self, listing: Listing) -> None:
        """Show what is enabled, in the order of registration. Whoever reads meanwhile sees what was shown before."""
        shown: dict[str, Any] = {
            key: record for key, record in self._all[listing].items() if (listing, key) not in self._disabled
        }
        if listing == "tools":
            tools = cast(dict[str, Tool], shown)
            self.tasks = {name: tool.handler.task for name, tool in tools.items() if tool.handler.task is not None}
            self.has_tasks = any(record.handler.task is not None for record in self._all["tools"].values())
            _mirror(self.mirrored, tools)
        setattr(self, "templates" if listing == "resourceTemplates" else listing, shown)

    def notify(self, change: Change) -> None:
        """Notify the clients of all servers that serve this."""
        for server in tuple(self.serving):
            server.notify(change)

    def notify_including(self, change: Change) -> None:
        """Notify the clients of all servers that include this."""
        for outer, inclusion in self._included_in:
            its_change = inclusion.change(change)
            outer.notify(its_change)
            outer.notify_including(its_change)

    def _keys(self, listing: Listing, key: str) -> "Iterator[tuple[Registry, str]]":
        for registry, inclusion, _ in self.everywhere():
            yield registry, inclusion.key(listing, key)

    def _known(self, listing: Listing, keys: Iterable[str]) -> None:
        for key in keys:
            if key not in self._all[listing]:
                close = get_close_matches(key, self._all[listing], 1)
                hint = f"; did you mean {close[0]!r}?" if close else ""
                raise SetupError(f"{self.home.name} has no {_KINDS[listing]} {key!r}{hint}")

    def entries(self) -> Iterator[tuple[Listing, str, Record]]:
        """Return all that is listed, enabled or not."""
        for listing, records in self._all.items():
            for key, record in tuple(records.items()):
                yield listing, key, record

    def put_instead(self, listing: Listing, records: Mapping[str, Record]) -> None:
        """Put records into the place of those of the same names."""
        self._all[listing] |= records
        self._show(listing)

    # To include others

    @alone
    def include(self, other: "Registry", inclusion: Inclusion, opening: Opening | None) -> None:
        """Offer all that another registry has, now and later.

        Args:
            other: the other one.
            inclusion: how its records change on the way.
            opening: the `lifespan=` of its application; None if it has none.

        Raises:
            SetupError: something of the other's has a name that is taken here, or can't be served here.
        """
        if any(registry is other for registry, _, _ in self.everywhere()):
            raise SetupError(f"{self.home.name} can't include {other.home.name}, which includes it")
        other._included_in.append((self, inclusion))
        try:
            self._check_taking(other, inclusion)
        except BaseException:
            other._included_in.pop()
            raise
        for listing, key, record in other.entries():
            for registry, its_key, its_record in self._through(inclusion, listing, key, record):
                registry._put(listing, its_key, its_record)
        for listing, key in other._disabled:
            self._turn(listing, [inclusion.key(listing, key)], on=False)
        for registry, further, _ in self.everywhere():
            through = further.of(inclusion)
            for (kind, name, argument), completer in other.completers.items():
                registry.completers[through.completion(kind, name, argument)] = completer
            registry.callbacks.update(other.callbacks)
            for each in [*([opening] if opening else []), *other.lifespans]:
                registry._enter(each)
            if any(each.has_hooks for each in other.homes()):
                registry.call_hooks()

    def _check_taking(self, other: "Registry", inclusion: Inclusion) -> None:
        for listing, key, record in other.entries():
            for registry, its_key, its_record in self._through(inclusion, listing, key, record):
                check_free(registry._all[listing], _KINDS[listing], its_key, its_record, True)
                registry._take(its_record)
        for registry, further, _ in self.everywhere():
            through = further.of(inclusion)
            for completed, completer in other.completers.items():
                check_free(registry.completers, "completion of", through.completion(*completed), completer, True)
            for name, callback in other.callbacks.items():
                check_free(registry.callbacks, "callback", name, callback, True)

    def _enter(self, opening: Opening) -> None:
        if opening.home not in [known.home for known in self.lifespans]:
            self.lifespans.append(opening)
        for server in tuple(self.serving):
            server.add_lifespan(opening)

    def homes(self) -> set[Home]:
        """Return the homes of all that is registered, and this registry's own."""
        return {self.home, *(home for _, _, record in self.entries() for home in record.handler.homes)}

    def call_hooks(self) -> None:
        """Call the hooks of applications in all servers that serve any of this."""
        for registry, _, _ in self.everywhere():
            for server in tuple(registry.serving):
                server.call_hooks()

    # To read

    def find_resource(self, uri: str) -> Found | None:
        """Find what serves a URI, or an equivalent one; fixed URIs first, then templates in order."""
        fixed = self.resources.get(uri) or self._find_equivalent(uri)
        if fixed is not None:
            return Found(fixed, {}, fixed.entry["uri"])
        for resource in self.templates.values():
            if resource.template is not None and (match := resource.template.match(uri)) is not None:
                return Found(resource, *match)
        return None

    def _find_equivalent(self, uri: str) -> Resource | None:
        known, by_normal = self._by_normal
        if known is not self.resources:
            known = self.resources
            by_normal = {normal(each): resource for each, resource in reversed(known.items())}
            self._by_normal = known, by_normal
        return by_normal.get(normal(uri))

    def has_any(self, listing: Listing) -> bool:
        """Return whether there is anything of a kind, enabled or not."""
        return bool(self._all[listing])

    def keys(self, listing: str) -> tuple[str, ...]:
        """Return the names or URIs of what there is of a kind, enabled or not, in the order of registration."""
        return tuple(self._all[cast(Listing, listing)])

    def records(self, listing: str) -> Mapping[str, Record]:
        """Return what one of the `LISTINGS` lists, by name or URI, in the order of registration."""
        listings: dict[str, Mapping[str, Record]] = {
            "tools": self.tools,
            "prompts": self.prompts,
            "resources": self.resources,
            "resourceTemplates": self.templates,
        }
        return listings[listing]

    def header_parameters(self, tool: str) -> tuple[HeaderParameter, ...]:
        """Return the parameters of a tool that headers mirror (Tools, x-mcp-header); none for an unknown tool."""
        return self.mirrored.get(tool, ())

    def output_schema(self, tool: str) -> JSON | None:
        """Return the schema of a tool's results; None if it has none, or there is no such tool."""
        found = self.tools.get(tool)
        return found.entry.get("outputSchema") if found is not None else None

    def task_support(self, tool: str) -> TaskSupport:
        """Return whether a tool's calls become tasks; those of an unknown tool do not."""
        terms = self.tasks.get(tool)
        if terms is None:
            return "forbidden"
        return "required" if terms.required else "optional"

    def is_single_use(self, tool: str) -> bool:
        """Return whether each state of a tool is redeemed once; those of an unknown tool are not."""
        found = self.tools.get(tool)
        return found is not None and found.handler.single_use


def _mirror(mirrored: dict[str, tuple[HeaderParameter, ...]], tools: Mapping[str, Tool]) -> None:
    """Keep the parameters that headers mirror, in the dictionary that the dialects have."""
    for name in mirrored.keys() - tools.keys():
        del mirrored[name]
    mirrored.update({name: tool.headers for name, tool in tools.items() if tool.headers})
