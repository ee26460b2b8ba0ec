"""`resources/read`."""

from typing import Any

from ..errors import UnknownTarget
from ..flow.authorization import Authorizer
from ..protocol.messages import Call, Complete, Outcome, Outlet
from ..registration.registry import Registry
from ..schema.results import resource_body
from .prompt_and_resource_rounds import Rounds


class Resources:
    """Serves resources.

    Args:
        registry: has them.
        rounds: runs their handlers.
        authorizer: knows who may read what.
    """

    def __init__(self, registry: Registry, rounds: Rounds, authorizer: Authorizer) -> None:
        self._registry = registry
        self._rounds = rounds
        self._authorizer = authorizer

    async def read(self, call: Call, outlet: Outlet) -> Outcome:
        """Serve `resources/read` (Resources, Reading Resources). Raises `RequestError`."""
        found = self._registry.find_resource(call.target)
        if found is None:
            raise UnknownTarget("resource", call.target, has_begun=call.state is not None)
        resource, values, uri = found
        if self._authorizer.guards(resource.authorize):
            await self._authorizer.require(
                call.caller,
                call.method,
                "resource",
                (resource.authorize, uri),
                has_begun=call.state is not None,
            )

        def complete(result: Any) -> Complete:
            body = resource_body(result, call.target, resource.mime_type)
            if call.state is not None or call.answers:
                return Complete(body, 0.0, "private")  # what depends on answers is not in a cache's key
            # A resource that is not for everybody may only be in the caller's own cache.
            shared = not self._authorizer.guards(resource.authorize)
            return Complete(body, resource.ttl, resource.scope if shared else "private")

        return await self._rounds.run(resource.handler, resource.arguments, values, call, outlet, complete)
