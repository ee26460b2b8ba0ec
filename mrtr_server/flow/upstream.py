"""The tokens of people at the provider where they logged in, as handlers ask for them."""

from collections.abc import Sequence
from typing import Protocol

from ..protocol.messages import Call


class UpstreamTokens(Protocol):
    """Where the tokens of people are."""

    async def token(self, call: Call, scopes: Sequence[str], *, in_task: bool) -> str:
        """Return the access token of whoever calls. Raises `InsufficientScope`, `ToolError`, `StoreUnavailable`."""
        ...
