"""What a server offers: computed from what is registered here, and in the applications that it includes."""

from collections import ChainMap
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from functools import cached_property
from itertools import count
from typing import Any, Literal, NamedTuple, cast, overload

from ..flow.events import EventType
from ..flow.handler import TaskTerms
from ..flow.home import Home
from ..flow.url_asks import Callback
from ..flow.waits import Wait
from ..protocol.apps import visibility_of
from ..protocol.messages import JSON, TaskSupport
from ..schema.uri_templates import normal
from .handlers import asks, asks_with
from .inclusion import LISTINGS, Inclusion, Listing, Record, compiled
from .pages import address_of
from .questions import section_of
from .records import Completer, Prompt, Resource
from .tools import Tool

moments = count(1)  # numbers of changes, in their order


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
    """An entry was enabled or disabled, or removed from what an application includes."""

    moment: int
    on: bool | None


class Part(NamedTuple):
    """Another registry, within one that includes it since a moment, with the `lifespan=` of its application."""

    moment: int
    registry: "Offering"
    inclusion: Inclusion
    opening: Opening | None
    extensions: Mapping[str, Any]  # what its application declares

    @property
    def openings(self) -> list[Opening]:
        """The `lifespan=` of its application, and of those that it includes."""
        return [*([self.opening] if self.opening else []), *self.registry.openings]

    def take(self, listing: Listing, entry: Entry) -> Entry:
        """Return an entry as the including server offers it. Raises `SetupError` if its name is too long."""
        record = self.inclusion.record(listing, entry.record)
        return entry._replace(moment=max(self.moment, entry.moment), record=record)


class _List:
    """What is offered of one kind, in the order of registration. It grows; any other change makes another list."""

    def __init__(self) -> None:
        self.keys: list[str] = []
        self._known: set[str] = set()
        self.shown: list[str] = []  # enabled
        self.tasks: dict[str, TaskTerms] = {}
        # Whether an entry has tasks, a hook of its own or a page, is for pages alone, asks (by a page, or through a
        # model), or is a skill, enabled or not.
        self.has_tasks = self.is_guarded = self.has_pages = self.hides_some = False
        self.asks = self.asks_by_page = self.asks_through_model = False
        self.has_skills = False
        self.section = (0, "")  # of how many, and what a skill says of those of them that ask

    def add(self, key: str, entry: Entry) -> None:
        """Append an entry, unless it is there. Who reads the list meanwhile may see the entry or not."""
        if key in self._known:
            return
        self._known.add(key)
        terms = entry.record.handler.task
        self.has_tasks |= terms is not None
        self.is_guarded |= entry.record.authorize is not None
        self.asks = self.asks or asks(entry.record.handler) or bool(getattr(entry.record, "asks_in_page", False))
        self.asks_by_page = self.asks_by_page or asks_with(entry.record.handler, "ui")
        self.asks_through_model = self.asks_through_model or asks_with(entry.record.handler, "through_model")
        self.has_skills |= getattr(entry.record, "skill", None) is not None
        if "ui" in entry.record.entry.get("_meta", ()):
            self.has_pages = True
            self.hides_some |= "model" not in visibility_of(entry.record.entry)
        self.keys.append(key)
        if entry.on:
            self.shown.append(key)
            if terms is not None:
                self.tasks[key] = terms
            if "by_normal" in vars(self):
                self.by_normal.setdefault(normal(key), key)

    @cached_property
    def by_normal(self) -> dict[str, str]:
        """The enabled URIs, by what all equivalent ones are written as."""
        return {normal(uri): uri for uri in reversed(self.shown)}


class _View:
    """What is offered between two changes that are no additions. Each list is made when it is asked for."""

    def __init__(self) -> None:
        self.found: dict[tuple[Listing, str], Record] = {}  # looked up, and enabled
        self.lists: dict[Listing, _List] = {}


class Offering:
    """What a registry has, to read: what is registered in it, and what the registries have that it includes."""

    def __init__(self, home: Home) -> None:
        self.home = home
        self.callbacks: ChainMap[str, Callback[Any]] = ChainMap()
        self.waits: ChainMap[str, Wait[Any, Any]] = ChainMap()
        self.events: ChainMap[str, EventType[Any, Any]] = ChainMap()
        self._own: dict[Listing, dict[str, Entry]] = {listing: {} for listing in LISTINGS}
        self._completers: dict[tuple[str, str, str], Completer] = {}
        self._parts: list[Part] = []
        self._marks: dict[tuple[Listing, str], Mark] = {}
        self._view = _View()

    @property
    def openings(self) -> list[Opening]:
        """The `lifespan=` of each application that it includes."""
        found = {each.home: each for part in reversed(self._parts) for each in reversed(part.openings)}
        return list(reversed(found.values()))

    @property
    def extensions(self) -> dict[str, JSON]:
        """The settings of the extensions that the applications declare that it includes, by id."""
        found: dict[str, JSON] = {}
        for part in reversed(self._parts):
            found |= {**part.registry.extensions, **part.extensions}
        return found

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
        return sorted(((key, entry) for key, entry in marked if entry is not None), key=lambda listed: listed[1].moment)

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
        fixed = self.find("resources", uri)
        if fixed is None and (equivalent := self._list("resources").by_normal.get(normal(uri))) is not None:
            uri, fixed = equivalent, self.find("resources", equivalent)
        if fixed is None and (address := address_of(uri)) != uri:  # whatever the page was when a host read the list
            uri, fixed = address, self.find("resources", address)
        if fixed is not None:
            return Found(fixed, {}, uri)
        for key in self._list("resourceTemplates").shown:
            found = self.find("resourceTemplates", key)
            if found is not None and found.template is not None and (match := found.template.match(uri)) is not None:
                return Found(found, *match)
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
        return cast(Mapping[str, Tool], self.records("tools"))

    @property
    def prompts(self) -> Mapping[str, Prompt]:
        """The prompts that are enabled, in the order of registration."""
        return cast(Mapping[str, Prompt], self.records("prompts"))

    @property
    def tasks(self) -> Mapping[str, TaskTerms]:
        """How calls become tasks, by the name of each tool that has some. It grows: iterate over a copy."""
        return self._list("tools").tasks

    @property
    def has_tasks(self) -> bool:
        """Whether calls of a tool become tasks, enabled or not."""
        return self._list("tools").has_tasks

    @property
    def has_pages(self) -> bool:
        """Whether any tool has a page of an app, or any resource is one, enabled or not."""
        return self._list("tools").has_pages or self._list("resources").has_pages

    @property
    def has_skills(self) -> bool:
        """Whether any resource is a skill, enabled or not."""
        return self._list("resources").has_skills

    @property
    def tools_ask(self) -> bool:
        """Whether any tool asks, enabled or not, as far as that can be seen."""
        return self._list("tools").asks

    @property
    def asking_section(self) -> str:
        """What a skill says of the tools that ask and that nobody is kept from seeing; empty if there is none."""
        tools = self._list("tools")
        number = len(tools.shown)
        if tools.section[0] != number:
            hidden = {name for name, tool in self.tools.items() if tool.authorize is not None and tool.authorize.hides}
            shown = {name: tool for name, tool in self.tools.items() if name not in hidden}
            tools.section = (number, section_of(shown))
        return tools.section[1]

    @property
    def asks_through_model(self) -> bool:
        """Whether any tool lets a model ask, enabled or not, as far as that can be seen."""
        return self._list("tools").asks_through_model

    @property
    def asks_by_page(self) -> bool:
        """Whether any tool or prompt asks by a page, enabled or not, as far as that can be seen."""
        return self._list("tools").asks_by_page or self._list("prompts").asks_by_page

    @property
    def hides_tools(self) -> bool:
        """Whether any tool is for pages alone, enabled or not."""
        return self._list("tools").hides_some

    @property
    def has_completions(self) -> bool:
        """Whether there is any completion."""
        return any(True for _ in self.all_completers())

    def is_guarded(self, listing: Listing) -> bool:
        """Return whether an entry of one of the `LISTINGS` has a hook of its own, enabled or not."""
        return self._list(listing).is_guarded

    def has_any(self, listing: Listing) -> bool:
        """Return whether there is anything of a kind, enabled or not."""
        return bool(self._list(listing).keys)

    def keys(self, listing: Listing, *, shown: bool = False) -> Sequence[str]:
        """Return the names or URIs of a kind, or of its enabled entries, in their order. The sequence grows."""
        found = self._list(listing)
        return found.shown if shown else found.keys

    def entries(self) -> Iterator[tuple[Listing, str, Record]]:
        """Return all that is listed, enabled or not."""
        for listing in LISTINGS:
            for key, entry in self.entries_of(listing):
                yield listing, key, compiled(entry.record)

    def records(self, listing: Listing) -> dict[str, Record]:
        """Return what is enabled of one of the `LISTINGS`, by name or URI, in the order of registration."""
        found = {key: self.find(listing, key) for key in tuple(self._list(listing).shown)}
        return {key: record for key, record in found.items() if record is not None}

    def skills(self) -> list[tuple[str, Resource]]:
        """Return the skills that are enabled: of each the resource that is its `SKILL.md`, by its URI."""
        found = ((key, self.find("resources", key)) for key in self.keys("resources", shown=True))
        return [(key, each) for key, each in found if each is not None and each.skill is not None]

    def listed(self, listing: Listing, keys: Iterable[str]) -> list[JSON]:
        """Return entries as clients have them in a list, without those that are gone."""
        found = self._view.found
        entries = []
        for key in keys:
            record = found.get((listing, key)) or self.find(listing, key)
            if isinstance(record, Tool) and "_meta" in record.entry:  # with its page as it is now, if we serve that
                entries.append(record.handler.addresses.entry(record.entry))
            elif record is not None:
                entries.append(record.entry)
        return entries

    def _list(self, listing: Listing) -> _List:
        view = self._view
        found = view.lists.get(listing)
        if found is None:
            found = _List()
            for key, entry in self.entries_of(listing):
                found.add(key, entry)
            view.lists[listing] = found  # which nobody asks for any more if something was registered meanwhile
        return found

    # What dialects know of a tool; of an unknown one there is nothing

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
        self._view = _View()

    def note_added(self, listing: Listing, key: str) -> None:
        """Append a new entry to the list that there is, which costs the same however long it is."""
        found, entry = self._view.lists.get(listing), self.entry_of(listing, key)
        if found is None or entry is None:
            self.forget_view()
        else:
            found.add(key, entry)
