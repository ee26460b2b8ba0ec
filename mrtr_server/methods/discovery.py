"""`server/discover`."""

from collections.abc import Collection
from typing import Literal

from ..protocol.messages import JSON, TASKS, Call, Change, Discovery, Outcome, Outlet
from ..registration.registry import Registry

Registered = Literal["tools", "prompts", "resources", "completions", "tasks"]
"""What a server can have, each with a capability of its own (Discovery, Server Capabilities)."""


class Discoverer:
    """Describes what the server can do.

    Args:
        registry: what it has.
        instructions: how a model should use it.
        ttl: how long a client may cache the result, in seconds.
        scope: who may share that.
        registers_later: what the server may have while it runs, though there is none yet.
    """

    def __init__(
        self,
        registry: Registry,
        *,
        instructions: str,
        ttl: float,
        scope: Literal["public", "private"],
        registers_later: Collection[Registered],
    ) -> None:
        self._registry = registry
        self._instructions = instructions
        self._ttl = ttl
        self._scope: Literal["public", "private"] = scope
        self._registers_later = registers_later
        self._last: tuple[frozenset[Registered], Discovery] | None = None

    def takes_tasks(self) -> bool:
        """Return whether calls may become tasks, now or later."""
        return self._registry.has_tasks or "tasks" in self._registers_later

    def has_completions(self) -> bool:
        """Return whether there are completions, now or later."""
        return self._registry.has_completions or "completions" in self._registers_later

    def offers(self, change: Change) -> bool:
        """Return whether a change that clients listen to can happen: of a list, a resource or a task, now or later."""
        if change.kind == "resource":
            return "resources" in self._registers_later or self._registry.find_resource(change.uri) is not None
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
        """Return what the server has, or may have later."""
        registry = self._registry
        has: set[Registered] = set(self._registers_later)
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
        return frozenset(has)


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
