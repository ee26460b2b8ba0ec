"""What a server offers: `server/discover`, and the lists of tools, prompts, resources and templates."""

from collections.abc import Collection, Sequence
from functools import lru_cache
from hashlib import blake2b
from typing import Literal

from ..crypto.place_codec import Cursors
from ..errors import InvalidParams
from ..flow.authorization import Authorizer
from ..limits import LONGEST_NAME, check_length
from ..protocol.messages import JSON, TASKS, Call, Change, Complete, Discovery, Outcome, Outlet
from ..registration.inclusion import Listing
from ..registration.registry import Registry

Registered = Literal["tools", "prompts", "resources", "completions", "tasks"]
"""What a server can have, each with a capability of its own (Discovery, Server Capabilities)."""


_LISTS: tuple[Registered, ...] = ("tools", "prompts", "resources")


class Discoverer:
    """Describes what the server can do.

    `ttl`: how long a client may cache the result, in seconds.
    `scope`: who may share that.
    """

    def __init__(
        self, registry: Registry, *, instructions: str, ttl: float, scope: Literal["public", "private"]
    ) -> None:
        self._registry = registry
        self._instructions = instructions
        self._ttl = ttl
        self._scope: Literal["public", "private"] = scope
        self._last: tuple[frozenset[Registered], Discovery] | None = None

    def offers(self, change: Change) -> bool:
        """Return whether a change that clients listen to can happen: of a list, a resource or a task."""
        if change.kind == "resource":
            return self._registry.find_resource(change.uri) is not None
        return change.kind == "task" or change.kind in self._has()

    async def discover(self, call: Call, outlet: Outlet) -> Outcome:
        """Serve `server/discover` (Discovery, Server Capabilities).

        What it returns is made once for what there is, so that a dialect need not write it again.
        """
        had = self._has()
        if self._last is None or self._last[0] != had:
            self._last = had, Discovery(_capabilities(had), self._instructions, self._ttl, self._scope)
        return self._last[1]

    def _has(self) -> frozenset[Registered]:
        """Return what the server has. One that has nothing yet gets it while it runs, and clients look only once."""
        registry = self._registry
        has: set[Registered] = set()
        if registry.has_any("tools"):
            has.add("tools")
        if registry.has_any("prompts"):
            has.add("prompts")
        if registry.has_any("resources") or registry.has_any("resourceTemplates"):
            has.add("resources")
        if registry.has_completions:
            has.add("completions")
        if registry.has_tasks:
            has.add("tasks")
        return frozenset(has or _LISTS)


def _capabilities(has: Collection[Registered]) -> JSON:
    capabilities: JSON = {}
    if "tools" in has:
        capabilities["tools"] = {"listChanged": True}
    if "prompts" in has:
        capabilities["prompts"] = {"listChanged": True}
    if "resources" in has:
        capabilities["resources"] = {"listChanged": True, "subscribe": True}
    if capabilities:
        capabilities["logging"] = {}
    if "completions" in has:
        capabilities["completions"] = {}
    if "tasks" in has:
        capabilities["extensions"] = {TASKS: {}}
    return capabilities


class ListRequests:
    """Lists what there is, page by page (Pagination). Callers who may not use something do not see it.

    `ttl`: how long a client may keep a list, in seconds.
    `scope`: who may share a kept list; one that depends on who asks is private.
    """

    def __init__(
        self,
        registry: Registry,
        authorizer: Authorizer,
        cursors: Cursors,
        *,
        page_size: int,
        ttl: float,
        scope: Literal["public", "private"],
    ) -> None:
        self._registry = registry
        self._authorizer = authorizer
        self._cursors = cursors
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
        entries = (self._registry.listed(listing, key) for key in keys)
        body: JSON = {listing: [entry for entry in entries if entry is not None]}
        if has_more:
            body["nextCursor"] = self._cursors.seal(listing, start + len(keys), _named(keys[-1]))
        return Complete(body, self._ttl, self._scope if shared else "private")

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
        if 0 < offset <= len(names) and _named(names[offset - 1]) == position.last:  # nothing before it has changed
            return offset
        before, shown = 0, set(names)
        for key in self._registry.keys(listing):  # of what is disabled, too, which may be the last that the client saw
            before += key in shown
            if _named(key) == position.last:
                return before
        # That entry is gone, or was never here, and others with it: rather one page again than an entry never.
        return max(0, offset - self._page_size) if position.last else offset

    async def _allowed_page(
        self, call: Call, listing: Listing, names: Sequence[str], start: int
    ) -> tuple[Sequence[str], int, bool]:
        """Return the names of a page of what the caller may see, where it begins, and whether there is more."""
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


@lru_cache(maxsize=4096)
def _named(key: str) -> str:
    """Return what stands for a name or URI in a cursor: all of one length, so that cursors have one, too."""
    return blake2b(key.encode(errors="surrogatepass"), digest_size=12).hexdigest()
