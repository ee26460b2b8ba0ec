"""`server/discover`."""

from collections.abc import Collection
from typing import Literal

from ..protocol.messages import JSON, TASKS, Call, Discovery, Outcome, Outlet
from ..registration.registry import Registry

Registered = Literal["tools", "prompts", "resources", "completions", "tasks"]
"""What a server can have, each with a capability of its own (Discovery, Server Capabilities)."""


class Discoverer:
    """Describes what the server can do.

    Args:
        registry: what it has.
        instructions: how a model should use it.
        ttl: how long a client may keep what it was told, in seconds.
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

    def takes_tasks(self) -> bool:
        """Return whether calls may become tasks, now or later."""
        return self._registry.has_tasks or "tasks" in self._registers_later

    async def discover(self, call: Call, outlet: Outlet) -> Outcome:
        """Serve `server/discover` (Discovery, Server Capabilities)."""
        registry, later = self._registry, self._registers_later
        capabilities: JSON = {}
        if registry.has_any("tools") or "tools" in later:
            capabilities["tools"] = {"listChanged": True}
        if registry.has_any("prompts") or "prompts" in later:
            capabilities["prompts"] = {"listChanged": True}
        if registry.has_any("resources", "resourceTemplates") or "resources" in later:
            capabilities["resources"] = {"listChanged": True, "subscribe": True}
        if capabilities:
            capabilities["logging"] = {}
        if registry.completers or "completions" in later:
            capabilities["completions"] = {}
        if self.takes_tasks():
            capabilities["extensions"] = {TASKS: {}}
        return Discovery(capabilities, self._instructions, self._ttl, self._scope)
