"""Changes of resources, for those who may read them."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from ..protocol.messages import Change, Subscription

Select = Callable[[list[Change]], Coroutine[Any, Any, list[Change]]]
"""Returns those of some changes that the listener may hear of."""


class AuthorizedChanges:
    """A subscription whose listener is asked about again before each delivery.

    Args:
        changes: the subscription.
        select: asks.
    """

    def __init__(self, changes: Subscription, select: Select) -> None:
        self._changes = changes
        self._select = select
        self._asking: asyncio.Task[list[Change]] | None = None

    @property
    def wanted(self) -> frozenset[Change]:
        """The changes that its listener asked for, and may hear of."""
        return self._changes.wanted

    async def next(self) -> list[Change]:
        """Wait for changes. Return an empty list when the subscription has ended."""
        while True:
            if self._asking is None:
                changes = await self._changes.next()
                if not changes:
                    return []
                self._asking = asyncio.create_task(self._select(changes))
            try:
                # The waiting is cancelled for each comment that keeps the stream alive, and then repeated.
                told = await asyncio.shield(self._asking)
            except asyncio.CancelledError:
                if self._asking.cancelled():
                    return []
                raise
            self._asking = None
            if told:
                return told

    def close(self) -> None:
        """End the subscription."""
        self._changes.close()
        if self._asking is not None:
            self._asking.cancel()
