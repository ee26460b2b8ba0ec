"""`server/discover`."""

from collections.abc import Collection
from typing import Literal

from ..protocol.messages import JSON, TASKS, Call, Change, Discovery, Outcome, Outlet
from ..registration.registry import Registry

Registered = Literal["tools", "prompts", "resources", "completions", "tasks"]
"""What a server can have, each with a capability of its own (Discovery, Server Capabilities)."""


_LISTS: tuple[Registered, ...] = ("tools", "prompts", "resources")


class Discoverer:
    """Describes what the server can do.

    Args:
        registry: what it has.
        instructions: how a model should use it.
        ttl: how long a client may cache the result, in seconds.
        scope: who may share that.
    """

    def __init__(
        self,
        registry: Registry,
        *,
        instructions: str,
        ttl: float,
        scope: Literal["public", "private"],
    ) -> None:
        self._registry = registry
        self._instructions = instructions
        self._ttl = ttl
        self._scope: Literal["public", "private"] = scope
        self._last: tuple[frozenset[Registered], Discovery] | None = None

    def takes_tasks(self) -> bool:
        """Return whether calls may become tasks."""
        return self._registry.has_tasks

    def has_completions(self) -> bool:
        """Return whether there are completions."""
        return self._registry.has_completions

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
