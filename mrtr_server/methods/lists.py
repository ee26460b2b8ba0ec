"""`tools/list`, `prompts/list`, `resources/list` and `resources/templates/list`."""

from collections.abc import Mapping
from itertools import islice
from typing import Literal

from ..crypto.cursors import Cursors
from ..errors import InvalidParams
from ..flow.authorization import Authorizer
from ..limits import LONGEST_NAME, check_length
from ..protocol.messages import JSON, Call, Complete, Outcome, Outlet
from ..registration.registry import Record, Registry


class Lists:
    """Lists what there is, page by page (Pagination). Callers who may not use something do not see it.

    Args:
        registry: what there is.
        authorizer: knows who may use what.
        cursors: seals positions in lists.
        page_size: entries of a page.
        ttl: how long a client may keep a list, in seconds.
        scope: who may share a kept list; one that depends on who asks is private.
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

    async def _page(self, call: Call, listing: str) -> Complete:
        start = self._start(call, listing)
        records = self._registry.records(listing)
        if shared := not self._authorizer.guards(None) and listing not in self._registry.guarded:
            end: int | None = start + self._page_size
            entries = [record.entry for record in islice(records.values(), start, end)]
            end = end if start + self._page_size < len(records) else None
        else:
            entries, end = await self._allowed_page(call, records, start)
        body: JSON = {listing: entries}
        if end is not None:
            body["nextCursor"] = self._cursors.seal(listing, end)
        return Complete(body, self._ttl, self._scope if shared else "private")

    def _start(self, call: Call, listing: str) -> int:
        cursor = call.params.get("cursor")
        if cursor is None:
            return 0
        if isinstance(cursor, str):
            check_length(cursor, LONGEST_NAME, "cursor")
        offset = self._cursors.unseal(listing, cursor)
        if offset is None:
            raise InvalidParams("The cursor does not belong to this list; start again without a cursor")
        return offset

    async def _allowed_page(
        self, call: Call, records: Mapping[str, Record], start: int
    ) -> tuple[list[JSON], int | None]:
        """Return a page of what the caller may see, and where the next one begins; None if there is none."""
        names, caller, size = list(records), call.caller, self._page_size
        found: list[int] = []
        while start < len(names) and len(found) <= size:
            some = names[start : start + size + 1]
            allowed = await self._authorizer.shown(
                caller, call.method, [(records[name].authorize, name) for name in some]
            )
            found += [start + index for index, may in enumerate(allowed) if may]
            start += len(some)
        return [records[names[index]].entry for index in found[:size]], found[size] if len(found) > size else None
