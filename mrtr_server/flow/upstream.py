"""The tokens of people at the provider where they logged in, as handlers ask for them."""

from collections.abc import Sequence
from typing import Protocol

from ..protocol.messages import Call


class UpstreamTokens(Protocol):
    """Where the tokens of people are."""

    question: str
    """What a task asks that has no token. The request with the answer brings one."""

    async def token(self, call: Call, scopes: Sequence[str], *, in_task: bool) -> str | None:
        """Return the access token of whoever calls; None where a task has to ask.

        Raises `InsufficientScope`, `ToolError`, `StoreUnavailable`.
        """
        ...
