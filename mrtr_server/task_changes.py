"""What listeners hear of tasks: a fan-out says which has changed, and here is how it is doing."""

import asyncio
import logging
from collections.abc import Awaitable, Callable

from .errors import StoreUnavailable
from .messages import Change, Subscription, Task

logger = logging.getLogger("mrtr_server")

AGAIN_AFTER = 1.0
"""How long to wait before a store that was away is asked again, in seconds."""


class TaskChanges:
    """A subscription that looks at each task it hears of, and at all of them first: one may have ended before.

    Parameters:
        changes: what the fan-out carries.
        look: gives a task; None if there is none any more.
    """

    def __init__(self, changes: Subscription, look: Callable[[str], Awaitable[Task | None]]) -> None:
        self.wanted = changes.wanted
        self._changes = changes
        self._look = look
        self._heard = sorted((each for each in self.wanted if each.kind == "task"), key=lambda each: each.uri)

    async def next(self) -> list[Change]:
        """Wait for changes; see `Subscription`. Nothing is lost if the waiting is given up."""
        while True:
            self._heard = self._heard or await self._changes.next()
            if not self._heard:
                return []
            looked_at = [await self._seen(each) for each in self._heard]
            self._heard = []
            told = [each for each in looked_at if each is not None]
            if told:
                return told

    def close(self) -> None:
        """End the subscription."""
        self._changes.close()

    async def _seen(self, change: Change) -> Change | None:
        if change.kind != "task":
            return change
        while True:
            try:
                task = await self._look(change.uri)
            except StoreUnavailable as error:
                logger.warning("A listener hears of its task when the store is back: %s", error)
                await asyncio.sleep(AGAIN_AFTER)
            else:
                return None if task is None else Change("task", change.uri, task)
