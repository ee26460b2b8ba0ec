"""What clients do to the tasks that run here, as it is heard from other replicas."""

import asyncio
from collections.abc import Callable, Set

from ..protocol.messages import Subscription
from .records import TaskRecords


class ClientChanges:
    """Listens to what clients do to tasks, on one event loop.

    A notice may be lost, or come before anybody listens. So whoever runs a task looks at it by themselves, too, now and
    then.

    Args:
        records: the rows of the tasks.
        heard: is called with the id of a task to which something was done.
    """

    def __init__(self, records: TaskRecords, heard: Callable[[str], None]) -> None:
        self._records = records
        self._heard = heard
        self._ids: frozenset[str] = frozenset()
        self._subscription: Subscription | None = None
        self._listening: asyncio.Task[None] | None = None

    def follow(self, ids: Set[str]) -> None:
        """Listen to these tasks, and to no others.

        Args:
            ids: of the tasks.
        """
        if ids == self._ids:
            return
        before, self._ids = self._subscription, frozenset(ids)
        self._subscription = self._records.listen_for_workers(ids) if ids else None
        if self._subscription is not None:
            self._listening = asyncio.create_task(self._listen(self._subscription))
        if before is not None:
            before.close()

    async def _listen(self, subscription: Subscription) -> None:
        while changes := await subscription.next():
            for change in changes:
                self._heard(change.uri)
