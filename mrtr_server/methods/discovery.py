"""What a server offers: `server/discover`, and the lists of tools, prompts, resources and templates."""

from collections.abc import Callable, Collection, Container, Sequence
from typing import Literal, Protocol

from ..crypto.place_codec import Cursors, named_in_cursor
from ..errors import InvalidParams
from ..flow.authorization import Authorizer
from ..limits import LONGEST_NAME, check_length
from ..protocol.apps import UI
from ..protocol.messages import EVENTS, JSON, Call, Change, Complete, Discovery, Outcome, Outlet
from ..registration.inclusion import Listing
from ..registration.registry import Registry

Registered = Literal["tools", "prompts", "resources", "completions"]
"""What a server can have, each with a capability of its own (Discovery, Server Capabilities)."""


_LISTS: tuple[Literal["tools", "prompts", "resources"], ...] = ("tools", "prompts", "resources")


class Discoverer:
    """Describes what the server can do. A client may cache that for `ttl` seconds, and share it as `scope` says."""

    def __init__(
        self,
        registry: Registry,
        extensions: Callable[[], dict[str, JSON]],
        *,
        instructions: str,
        ttl: float,
        scope: Literal["public", "private"],
    ) -> None:
        self._registry = registry
        self._extensions = extensions
        self._instructions = instructions
        self._ttl = ttl
        self._scope: Literal["public", "private"] = scope
        self._last: Discovery | None = None

    def offers(self, change: Change) -> bool:
        """Return whether a change that clients listen to can happen: of a list, a resource or a task."""
        if change.kind == "resource":
            return self._registry.find_resource(change.uri) is not None
        return change.kind == "task" or change.kind in self._has(self._extensions())

    async def discover(self, call: Call, outlet: Outlet) -> Outcome:
        """Serve `server/discover` (Discovery, Server Capabilities): made once, so that a dialect writes it once."""
        extensions, last = self._extensions(), self._last
        capabilities = _capabilities(self._has(extensions), extensions)
        if last is None or last.capabilities != capabilities:
            self._last = last = Discovery(capabilities, self._instructions, self._ttl, self._scope)
        return last

    def _has(self, extensions: Container[str]) -> frozenset[Registered]:
        """Return what the server has. One that has nothing yet gets it while it runs, and clients look only once."""
        registry = self._registry
        has: set[Registered] = {name for name in _LISTS if registry.has_any(name)}
        if registry.has_any("resourceTemplates") or UI in extensions:
            has.add("resources")
        if registry.has_completions:
            has.add("completions")
        return frozenset(has or _LISTS)


def _capabilities(has: Collection[Registered], extensions: dict[str, JSON]) -> JSON:
    capabilities: JSON = {name: {"listChanged": True} for name in _LISTS if name in has}
    if "resources" in has:
        capabilities["resources"]["subscribe"] = True
    if capabilities:
        capabilities["logging"] = {}
    if "completions" in has:
        capabilities["completions"] = {}
    if EVENTS in extensions:  # where hosts looked before it was an extension
        capabilities["events"] = {}
    if extensions:
        capabilities["extensions"] = extensions
    return capabilities


class Shaping(Protocol):
    """What makes a list for who asks."""

    def listed(self, listing: Listing, entry: JSON, call: Call) -> JSON | None:
        """Return an entry as the client of a call gets it; None if that does not get it."""
        ...

    def added(self, listing: Listing, call: Call) -> list[JSON]:
        """Return what the list has besides, at its end."""
        ...


class ListRequests:
    """Lists what there is, page by page (Pagination). Callers who may not use something do not see it.

    `shaping`: returns what makes a list for who asks; nothing where it is the same for all.
    """

    def __init__(
        self,
        registry: Registry,
        authorizer: Authorizer,
        cursors: Cursors,
        shaping: Callable[[Listing], Sequence[Shaping]],
        *,
        page_size: int,
        ttl: float,
        scope: Literal["public", "private"],
    ) -> None:
        self._registry = registry
        self._authorizer = authorizer
        self._cursors = cursors
        self._shaping = shaping
        self._page_size = page_size
        self._ttl = ttl
        self._scope: Literal["public", "private"] = scope

    async def tools(self, call: Call, outlet: Outlet) -> Outcome:
        """Serve `tools/list` (Tools, Listing Tools). Raises `RequestError`."""
        return await self._page(call, "tools")

    async def prompts(self, call: Call, outlet: Outlet) -> Outcome:
        """Serve `prompts/list` (Prompts, Listing Prompts). Raises `RequestError`."""
        return await self._page(call, "prompts")

    async def resources(self, call: Call, outlet: Outlet) -> Outcome:
        """Serve `resources/list` (Resources, Listing Resources). Raises `RequestError`."""
        return await self._page(call, "resources")

    async def resource_templates(self, call: Call, outlet: Outlet) -> Outcome:
        """Serve `resources/templates/list` (Resources, Resource Templates). Raises `RequestError`."""
        return await self._page(call, "resourceTemplates")

    async def _page(self, call: Call, listing: Listing) -> Complete:
        names = self._registry.keys(listing, shown=True)
        start = self._start(call, listing, names)
        if shared := not self._authorizer.guards(None) and not self._registry.is_guarded(listing):
            keys = names[start : start + self._page_size]
            has_more = start + self._page_size < len(names)
        else:
            keys, start, has_more = await self._allowed_page(call, listing, names, start)
        entries = self._registry.listed(listing, keys)
        shaping = self._shaping(listing)
        for shapes in shaping:
            entries = [made for each in entries if (made := shapes.listed(listing, each, call)) is not None]
            if not has_more:
                entries += shapes.added(listing, call)
        body: JSON = {listing: entries}
        if has_more:
            body["nextCursor"] = self._cursors.seal(listing, start + len(keys), named_in_cursor(keys[-1]))
        return Complete(body, self._ttl, self._scope if shared and not shaping else "private")

    def _start(self, call: Call, listing: Listing, names: Sequence[str]) -> int:
        cursor = call.params.get("cursor")
        if not cursor and isinstance(cursor, str | None):
            return 0
        if isinstance(cursor, str):
            check_length(cursor, LONGEST_NAME, "cursor")
        position = self._cursors.unseal(listing, cursor)
        if position is None:
            raise InvalidParams("The cursor does not belong to this list; start again without a cursor")
        offset = position.offset
        if (
            0 < offset <= len(names) and named_in_cursor(names[offset - 1]) == position.last
        ):  # nothing before it has changed
            return offset
        before, shown = 0, set(names)
        for key in self._registry.keys(listing):  # of what is disabled, too, which may be the last that the client saw
            before += key in shown
            if named_in_cursor(key) == position.last:
                return before
        # That entry is gone, or was never here, and others with it: rather one page again than an entry never.
        return max(0, offset - self._page_size) if position.last else offset

    async def _allowed_page(
        self, call: Call, listing: Listing, names: Sequence[str], start: int
    ) -> tuple[Sequence[str], int, bool]:
        caller, size, find = call.caller, self._page_size, self._registry.find
        found: list[int] = []
        while start < len(names) and len(found) <= size:
            some = names[start : start + size + 1]
            asked = [(None if (each := find(listing, name)) is None else each.authorize, name) for name in some]
            allowed = await self._authorizer.shown(caller, call.method, asked)
            found += [start + index for index, may in enumerate(allowed) if may]
            start += len(some)
        page = found[:size]
        return [names[index] for index in page], page[-1] + 1 - len(page) if page else 0, len(found) > size
