"""`prompts/get`."""

from typing import Any

from ..errors import UnknownTarget
from ..flow.authorization import Authorizer
from ..protocol.messages import Call, Complete, Outcome, Outlet
from ..registration.registry import Registry
from ..schema.results import prompt_body
from .prompt_and_resource_rounds import Rounds


class Prompts:
    """Serves prompts.

    Args:
        registry: has them.
        rounds: runs their handlers.
        authorizer: knows who may get what.
    """

    def __init__(self, registry: Registry, rounds: Rounds, authorizer: Authorizer) -> None:
        self._registry = registry
        self._rounds = rounds
        self._authorizer = authorizer

    async def get(self, call: Call, outlet: Outlet) -> Outcome:
        """Serve `prompts/get` (Prompts, Getting a Prompt). Raises `RequestError`."""
        prompt = self._registry.find("prompts", call.target)
        if prompt is None:
            raise UnknownTarget("prompt", call.target, has_begun=call.state is not None)
        if self._authorizer.guards(prompt.authorize):
            await self._authorizer.require(
                call.caller, call.method, "prompt", (prompt.authorize, call.target), has_begun=call.state is not None
            )

        def complete(result: Any) -> Complete:
            body = prompt_body(result, prompt.description)
            return Complete(prompt.handler.addresses.body(body) if prompt.handler.addresses.ways else body)

        names = prompt.names if call.state is None else None
        return await self._rounds.run(prompt.handler, prompt.arguments, call.arguments, call, outlet, complete, names)
