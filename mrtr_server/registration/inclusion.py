"""The records of one application in another that includes it: their names, and what replaces dependencies."""

import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal

from ..errors import SetupError
from ..flow.authorization import Hook, hook_within
from ..flow.handler import Dependency, Handler
from ..flow.home import Addresses, Home, identity
from ..protocol.messages import JSON, Change
from ..schema.results import Write
from ..schema.uri_templates import UriTemplate
from .records import NAME_CHARACTERS, Prompt, Resource
from .tools import Tool, write_in_time

if TYPE_CHECKING:
    from ..flow.rate_counters import Rate


Listing = Literal["tools", "prompts", "resources", "resourceTemplates"]
LISTINGS: tuple[Listing, ...] = ("tools", "prompts", "resources", "resourceTemplates")

Record = Tool | Prompt | Resource

_LONGEST_NAME = 128
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:(//)?")


@dataclass(frozen=True)
class Inclusion:
    """How names, URIs and records change on the way into an application that includes another."""

    into: Home
    prefix: str = ""  # what goes before names, and into URIs; empty for nothing
    server: Hook | None = None  # the `authorize=` of the server that is included; None for none
    scopes: tuple[str, ...] = ()
    rates: "Mapping[str, Rate]" = field(default_factory=dict)
    # Says whether the included application has a resource of a URI; None where that is not needed.
    serves: Callable[[str], bool] | None = None
    before: "tuple[Inclusion, ...]" = ()  # the inclusions that came before this one, the nearest first; of keys alone

    def __post_init__(self) -> None:
        if not NAME_CHARACTERS.issuperset(self.prefix):
            raise SetupError(f"prefix={self.prefix!r} can't be part of a name: use A-Z, a-z, 0-9, '_', '-' and '.'")

    def of(self, nearer: "Inclusion") -> "Inclusion":
        """Return the way through a nearer inclusion first, and then through this one; for keys alone."""
        return replace(self, before=(nearer, *self.before))

    # Keys

    def name(self, name: str) -> str:
        """Return what a tool or a prompt is called."""
        for nearer in self.before:
            name = nearer.name(name)
        return f"{self.prefix}_{name}" if self.prefix else name

    def uri(self, uri: str) -> str:
        """Return the URI, or the template, of a resource: `weather://oslo` is `weather://prefix/oslo`."""
        for nearer in self.before:
            uri = nearer.uri(uri)
        scheme = _SCHEME.match(uri)
        if not self.prefix or scheme is None:
            return uri
        return f"{scheme[0]}{self.prefix}/{uri[scheme.end() :]}"

    def link(self, uri: str) -> str:
        """Return a URI that a result or an entry names: with the prefix where the included application serves it."""
        # A URI that has the prefix already stays, as one of `ctx.uri_for`.
        if self.serves is None or self._uri_within(uri) != uri or not self.serves(uri):
            return uri
        return self.uri(uri)

    def key(self, listing: Listing, key: str) -> str:
        """Return the name or URI of an entry."""
        return self.name(key) if listing in ("tools", "prompts") else self.uri(key)

    def within(self, listing: Listing, key: str) -> str | None:
        """Return the name or URI of an entry in the included application; None if it can't be one of its entries."""
        within = self._name_within(key) if listing in ("tools", "prompts") else self._uri_within(key)
        return within if self.key(listing, within) == key else None

    def completion(self, kind: str, name: str, argument: str) -> tuple[str, str, str]:
        """Return the key of a completion."""
        return kind, self.name(name) if kind == "prompt" else self.uri(name), argument

    def change(self, change: Change) -> Change:
        """Return a change as the clients of the including server hear of it."""
        return Change("resource", self.uri(change.uri)) if change.kind == "resource" else change

    def _name_within(self, name: str) -> str:
        return name.removeprefix(f"{self.prefix}_") if self.prefix else name

    def _uri_within(self, uri: str) -> str:
        scheme = _SCHEME.match(uri)
        if not self.prefix or scheme is None:
            return uri
        return scheme[0] + uri[scheme.end() :].removeprefix(f"{self.prefix}/")

    # Records

    def placed(self, record: Record) -> Record:
        """Return a record whose handler knows the way into the including application, as its results do."""
        handler = record.handler
        handler = replace(handler, addresses=handler.addresses.through(self))
        if not isinstance(record, Tool) or not self.prefix or handler.yields:  # of which each piece is linked
            return record._replace(handler=handler)
        way = Addresses((self,))
        if handler.write is not None:
            return record._replace(handler=replace(handler, write=_linking(handler.write, way)))
        return record._replace(handler=handler, write=_linking(record.write, way))

    def record(self, listing: Listing, record: Record) -> Record:
        """Return a record as the including server offers it. Raises `SetupError`."""
        within = self._name_within if listing in ("tools", "prompts") else self._uri_within
        record = self.placed(record)
        handler = replace(record.handler, homes=(self.into, *record.handler.homes))
        hook = hook_within(record.authorize, handler.name, self.server, self.scopes, within)
        if isinstance(record, Resource):
            at = "uri" if record.template is None else "uriTemplate"
            uri = self.uri(record.entry[at])
            template = None if record.template is None else UriTemplate(uri)
            # A skill keeps its name, which is the last part of its path.
            name = record.entry["name"] if record.skill is not None else self.name(record.entry["name"])
            entry = {**record.entry, at: uri, "name": name}
            return record._replace(handler=handler, template=template, entry=entry, authorize=hook)
        name = self.name(handler.name)
        if len(name) > _LONGEST_NAME:
            raise SetupError(f"{name!r} is longer than the {_LONGEST_NAME} characters that a name may have")
        handler, entry = replace(handler, name=name), {**record.entry, "name": name}
        if isinstance(record, Prompt):
            return record._replace(handler=handler, entry=entry, authorize=hook)
        rate = self.rates.get(record.handler.name, record.rate)
        return record._replace(handler=handler, entry=entry, authorize=hook, rate=rate)


def _linking(write: Write, way: Addresses) -> Write:
    def linked(value: Any) -> JSON:
        return way.body(write(value))

    return linked


def serves_any(uris: Collection[str]) -> Callable[[str], bool]:
    """Return what says whether a URI is one of some, or matches one of those that are templates."""
    templates = [UriTemplate(uri) for uri in uris if "{" in uri]
    fixed = frozenset(uris)
    return lambda uri: uri in fixed or any(template.match(uri) is not None for template in templates)


def compiled(record: Record) -> Record:
    """Return a record with its dependencies replaced as of now; what the outermost application says counts."""
    handler = record.handler
    if handler.declared is None or not any(home.overrides for home in handler.homes):
        return record
    overrides = {key: function for home in reversed(handler.homes) for key, function in home.overrides.items()}
    again = replace(handler, declared=handler.declared.compile_again(overrides))
    if isinstance(record, Tool):
        # What a teardown leaves must have been written before; see `build_tool`.
        again, write = write_in_time(again, record.write if handler.write is None else handler.write)
        return record._replace(handler=again, write=write)
    return record._replace(handler=again)


def depends_on(handler: Handler, function: Callable[..., Any]) -> bool:
    """Return whether a handler needs a function, also as `lifespan=`; replacements do not count."""
    if any(home.lifespan is not None and home.lifespan == function for home in handler.homes):
        return True
    declared = None if handler.declared is None else handler.declared.compile_again({})
    nodes = () if declared is None else declared.nodes
    return any(isinstance(node, Dependency) and identity(node.function) == identity(function) for node in nodes)
