"""Changes of resources, for those who may read them."""

from collections.abc import Awaitable, Callable

from .messages import Change, Subscription

Select = Callable[[list[Change]], Awaitable[list[Change]]]
"""Returns those of some changes that the listener may hear of."""


class AuthorizedChanges:
    """A subscription whose listener is asked for again at each delivery.

    Parameters:
        changes: the subscription.
        select: asks.
    """

    def __init__(self, changes: Subscription, select: Select) -> None:
        self.wanted = changes.wanted
        self._changes = changes
        self._select = select
        self._waiting: list[Change] = []

    async def next(self) -> list[Change]:
        """Wait for changes. Returns none when the subscription has ended."""
        while True:
            if not self._waiting:
                self._waiting = await self._changes.next()
                if not self._waiting:
                    return []
            told = await self._select(self._waiting)  # who waits may be cancelled meanwhile, and come again
            self._waiting = []
            if told:
                return told

    def close(self) -> None:
        """End the subscription."""
        self._changes.close()
