"""Changes of tasks, each with what its client would see if it asked."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

from ..errors import InvalidRequestState, StoreUnavailable
from ..protocol.messages import Change, Subscription, Task

logger = logging.getLogger("mrtr_server")

AGAIN_AFTER = 0.5
"""How long to wait before looking again at a task that could not be read, in seconds."""

Look = Callable[[str], Awaitable[Task | None]]
"""Returns a task by its id; None if there is none, or none for this listener."""


async def with_tasks(changes: Subscription, look: Look) -> "TaskChanges":
    """Make a subscription carry tasks: those that its listener may see, each as it is.

    Args:
        changes: the subscription; it runs already, so that nothing is missed meanwhile.
        look: returns a task.
    """
    wanted = [each for each in changes.wanted if each.kind != "task" or await look(each.uri) is not None]
    return TaskChanges(changes, frozenset(wanted), look)


class TaskChanges:
    """A subscription whose changes of tasks say how these are doing."""

    def __init__(self, changes: Subscription, wanted: frozenset[Change], look: Look) -> None:
        self.wanted = wanted
        self._changes = changes
        self._look = look
        # A task that has ended before its listener came would never change again, so each is told of at first.
        tasks = sorted((change for change in wanted if change.kind == "task"), key=lambda change: change.uri)
        self._waiting: dict[Change, None] = dict.fromkeys(tasks)
        self._last: dict[str, tuple[Any, ...]] = {}

    async def next(self) -> list[Change]:
        """Wait for changes. Return an empty list when the subscription has ended."""
        while True:
            if not self._waiting:
                happened = await self._changes.next()
                if not happened:
                    return []
                self._waiting = dict.fromkeys(each for each in happened if each in self.wanted)
            if told := await self._told():
                return told

    async def _told(self) -> list[Change]:
        # What is waited for stays until it is told: whoever waits may be cancelled, and come again.
        told: list[Change] = []
        late: list[Change] = []
        left = list(self._waiting)
        while left:
            change = left.pop(0)
            if change.kind != "task":
                told.append(change)
                continue
            try:
                task = await self._look(change.uri)
            except StoreUnavailable:  # of which the log has a line; who listens is told later
                late.append(change)
                continue
            except InvalidRequestState as refused:
                logger.error("The listeners of a task are not notified, since it can't be unsealed: %s", refused.reason)
                continue
            if task is not None and self._last.get(task.id) != _seen(task):
                told.append(replace(change, task=task))
                break  # the others stay where they are until this one is sent: each may have a large result
        if late and not told:
            await asyncio.sleep(AGAIN_AFTER)
        self._waiting = dict.fromkeys((*left, *late))
        self._last |= {change.uri: _seen(change.task) for change in told if change.task is not None}
        return told

    def close(self) -> None:
        """End the subscription."""
        self._changes.close()


def _seen(task: Task) -> tuple[Any, ...]:
    return task.status, task.updated, task.message, *task.questions
