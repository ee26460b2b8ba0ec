"""What a server offers: computed from what is registered here, and in the applications that it includes."""

from collections import ChainMap
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from functools import cached_property
from itertools import count
from typing import Any, Literal, NamedTuple, cast, overload

from ..flow.handler import TaskTerms
from ..flow.home import Home
from ..flow.url_asks import Callback
from ..protocol.header_params import HeaderParameter
from ..protocol.messages import JSON, TaskSupport
from ..schema.uri_templates import normal
from .inclusion import LISTINGS, Inclusion, Listing, Record, compiled
from .records import Completer, Prompt, Resource
from .tools import Tool

moments = count(1)
"""Numbers of changes, in their order."""


class Found(NamedTuple):
    """What serves a URI."""

    resource: Resource  # a resource, or a template of them
    values: dict[str, str]
    uri: str  # as the resource is registered, which hooks are asked about: clients may write it in other ways


class Opening(NamedTuple):
    """The `lifespan=` of an application: the application, the function, and the server that it is called with."""

    home: Home
    lifespan: Callable[[Any], AbstractAsyncContextManager[Any]]
    server: object


class Entry(NamedTuple):
    """A record in a registry."""

    moment: int  # when it was registered there
    record: Record
    turned: int = 0  # when it was enabled or disabled last; 0 for never
    on: bool = True


class Mark(NamedTuple):
    """What was done to an entry, and when: it was enabled or disabled, or removed from what an application includes."""

    moment: int
    on: bool | None


class Part(NamedTuple):
    """Another registry, within one that includes it since a moment, with the `lifespan=` of its application."""

    moment: int
    registry: "Offering"
    inclusion: Inclusion
    opening: Opening | None

    @property
    def openings(self) -> list[Opening]:
        """The `lifespan=` of its application, and of those that it includes."""
        return [*([self.opening] if self.opening else []), *self.registry.openings]

    def take(self, listing: Listing, entry: Entry) -> Entry:
        """Return an entry as the including server offers it. Raises `SetupError` if its name is too long."""
        record = self.inclusion.record(listing, entry.record)
        return entry._replace(moment=max(self.moment, entry.moment), record=record)


class _View:
    """What is offered between two changes. Each part of it is computed once, when it is asked for."""

    def __init__(self, offering: "Offering") -> None:
        self._offering = offering
        self.found: dict[tuple[Listing, str], Record] = {}
        """What was looked up and is enabled."""

    @cached_property
    def _entries(self) -> Mapping[Listing, Mapping[str, Entry]]:
        return {listing: dict(self._offering.entries_of(listing)) for listing in LISTINGS}

    @cached_property
    def all(self) -> Mapping[Listing, Mapping[str, Record]]:
        """All records, enabled or not, in the order of registration."""
        return {
            listing: {key: compiled(entry.record) for key, entry in entries.items()}
            for listing, entries in self._entries.items()
        }

    @cached_property
    def shown(self) -> Mapping[Listing, Mapping[str, Record]]:
        """The records that are enabled."""
        return {
            listing: {
                key: _with_page(record) if isinstance(record, Tool) else record
                for key, record in records.items()
                if self._entries[listing][key].on
            }
            for listing, records in self.all.items()
        }

    @cached_property
    def tasks(self) -> Mapping[str, TaskTerms]:
        terms = ((name, tool.handler.task) for name, tool in self.shown["tools"].items())
        return {name: each for name, each in terms if each is not None}

    @cached_property
    def has_tasks(self) -> bool:
        return any(tool.handler.task is not None for tool in self.all["tools"].values())

    @cached_property
    def guarded(self) -> frozenset[str]:
        return frozenset(
            listing
            for listing, records in self.all.items()
            if any(each.authorize is not None for each in records.values())
        )

    @cached_property
    def by_normal(self) -> Mapping[str, Resource]:
        """The fixed resources, by their URIs as all equivalent ones are written."""
        resources = cast(Mapping[str, Resource], self.shown["resources"])
        return {normal(uri): resources[uri] for uri in reversed([*resources])}


class Offering:
    """What a registry has, to read: what is registered in it, and what the registries have that it includes."""

    def __init__(self, home: Home) -> None:
        self.home = home
        self.callbacks: ChainMap[str, Callback[Any]] = ChainMap()
        self._own: dict[Listing, dict[str, Entry]] = {listing: {} for listing in LISTINGS}
        self._completers: dict[tuple[str, str, str], Completer] = {}
        self._parts: list[Part] = []
        self._marks: dict[tuple[Listing, str], Mark] = {}
        self._view = _View(self)

    @property
    def openings(self) -> list[Opening]:
        """The `lifespan=` of each application that it includes."""
        found = {each.home: each for part in reversed(self._parts) for each in reversed(part.openings)}
        return list(reversed(found.values()))

    def homes(self) -> set[Home]:
        """Return the homes of this registry, and of those that it includes."""
        return {self.home}.union(*(part.registry.homes() for part in self._parts))

    @overload
    def find(self, listing: Literal["tools"], key: str) -> Tool | None: ...
    @overload
    def find(self, listing: Literal["prompts"], key: str) -> Prompt | None: ...
    @overload
    def find(self, listing: Literal["resources", "resourceTemplates"], key: str) -> Resource | None: ...
    def find(self, listing: Listing, key: str) -> Record | None:
        """Return an entry that is enabled; None if there is none."""
        found = self._view.found  # of before a change that comes while this looks, or of after it
        record = found.get((listing, key))
        if record is None and (entry := self.entry_of(listing, key)) is not None and entry.on:
            record = found[listing, key] = compiled(entry.record)
        return record

    def entry_of(self, listing: Listing, key: str) -> Entry | None:
        """Return an entry, enabled or not, with dependencies as they were declared."""
        own = self._own[listing].get(key)
        if own is not None:
            return self._marked(listing, key, own)
        for part in self._parts:
            within = part.inclusion.within(listing, key)
            entry = None if within is None else part.registry.entry_of(listing, within)
            if within is not None and entry is not None:
                return self._marked(listing, key, part.take(listing, entry))
        return None

    def entries_of(self, listing: Listing) -> list[tuple[str, Entry]]:
        """Return all entries with their names here, in the order of registration."""
        entries = list(self._own[listing].items())
        for part in tuple(self._parts):
            for within, entry in part.registry.entries_of(listing):
                entries.append((part.inclusion.key(listing, within), part.take(listing, entry)))
        marked = ((key, self._marked(listing, key, entry)) for key, entry in entries)
        return sorted(((key, entry) for key, entry in marked if entry is not None), key=_moment)

    def _marked(self, listing: Listing, key: str, entry: Entry) -> Entry | None:
        """Return an entry after what was done to it here; None if it was removed. What is newer than that stays."""
        mark = self._marks.get((listing, key))
        if mark is None or mark.moment < entry.moment:
            return entry
        if mark.on is None:
            return None
        return entry if mark.moment < entry.turned else entry._replace(turned=mark.moment, on=mark.on)

    def find_resource(self, uri: str) -> Found | None:
        """Find what serves a URI, or an equivalent one; fixed URIs first, then templates in order."""
        fixed = self.find("resources", uri) or self._view.by_normal.get(normal(uri))
        if fixed is not None:
            return Found(fixed, {}, fixed.entry["uri"])
        for template in cast(Mapping[str, Resource], self._view.shown["resourceTemplates"]).values():
            if template.template is not None and (match := template.template.match(uri)) is not None:
                return Found(template, *match)
        return None

    def serves(self, uri: str) -> bool:
        """Return whether there is a resource of a URI, or a template that is written so."""
        return self.find("resourceTemplates", uri) is not None or self.find_resource(uri) is not None

    def find_completer(self, kind: str, name: str, argument: str) -> Completer | None:
        """Return the completion of an argument of a prompt, or of a template; None if it has none."""
        if own := self._completers.get((kind, name, argument)):
            return own
        listing: Listing = "prompts" if kind == "prompt" else "resourceTemplates"
        names = ((part.registry, part.inclusion.within(listing, name)) for part in self._parts)
        found = (registry.find_completer(kind, within, argument) for registry, within in names if within is not None)
        return next(filter(None, found), None)

    def all_completers(self) -> "Iterator[tuple[tuple[str, str, str], Completer]]":
        """Return the completions, by what they are of here."""
        yield from self._completers.items()
        for part in self._parts:
            for key, completer in part.registry.all_completers():
                yield part.inclusion.completion(*key), completer

    @property
    def tools(self) -> Mapping[str, Tool]:
        """The tools that are enabled, in the order of registration."""
        return cast(Mapping[str, Tool], self._view.shown["tools"])

    @property
    def prompts(self) -> Mapping[str, Prompt]:
        """The prompts that are enabled, in the order of registration."""
        return cast(Mapping[str, Prompt], self._view.shown["prompts"])

    @property
    def tasks(self) -> Mapping[str, TaskTerms]:
        """How calls of tools become tasks, by the name of each tool that has some."""
        return self._view.tasks

    @property
    def has_tasks(self) -> bool:
        """Whether calls of a tool become tasks, enabled or not."""
        return self._view.has_tasks

    @property
    def has_completions(self) -> bool:
        """Whether there is any completion."""
        return any(True for _ in self.all_completers())

    @property
    def guarded(self) -> frozenset[str]:
        """The `LISTINGS` that have an entry with a hook of its own."""
        return self._view.guarded

    def has_any(self, listing: Listing) -> bool:
        """Return whether there is anything of a kind, enabled or not."""
        return bool(self._view.all[listing])

    def keys(self, listing: str) -> tuple[str, ...]:
        """Return the names or URIs of what there is of a kind, enabled or not, in the order of registration."""
        return tuple(self._view.all[cast(Listing, listing)])

    def entries(self) -> Iterator[tuple[Listing, str, Record]]:
        """Return all that is listed, enabled or not."""
        for listing, records in self._view.all.items():
            for key, record in records.items():
                yield listing, key, record

    def records(self, listing: str) -> Mapping[str, Record]:
        """Return what one of the `LISTINGS` lists, by name or URI, in the order of registration."""
        return self._view.shown[cast(Listing, listing)]

    # What dialects know of a tool; of an unknown one there is nothing

    def header_parameters(self, tool: str) -> tuple[HeaderParameter, ...]:
        """Return the parameters of a tool that headers mirror (Tools, x-mcp-header)."""
        found = self.find("tools", tool)
        return () if found is None else found.headers

    def output_schema(self, tool: str) -> JSON | None:
        """Return the schema of a tool's results; None if it has none."""
        found = self.find("tools", tool)
        return None if found is None else found.entry.get("outputSchema")

    def task_support(self, tool: str) -> TaskSupport:
        """Return whether a tool's calls become tasks."""
        found = self.find("tools", tool)
        terms = None if found is None else found.handler.task
        if terms is None:
            return "forbidden"
        return "required" if terms.required else "optional"

    def is_single_use(self, tool: str) -> bool:
        """Return whether each state of a tool is redeemed once."""
        found = self.find("tools", tool)
        return found is not None and found.handler.single_use

    def forget_view(self) -> None:
        """Compute what there is again, when it is asked for. Whoever reads it now sees what there was before."""
        self._view = _View(self)


def _moment(listed: tuple[str, Entry]) -> int:
    return listed[1].moment


def _with_page(tool: Tool) -> Tool:
    """Return a tool of a part with the page of its `_meta` as clients have it, if the part serves that."""
    addresses = tool.handler.addresses
    entry = addresses.entry(tool.entry) if addresses.ways and "_meta" in tool.entry else tool.entry
    return tool if entry == tool.entry else replace(tool, entry=entry)
