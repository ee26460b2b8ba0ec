"""A store whose operations are timed, and whose tasks are counted as they come to a status."""

import time
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Any, cast

from ..storage.base import Store
from ..storage.tasks import TaskRow
from ..tally import TASKS, Tally
from . import names

Record = Callable[[names.Metric, float, Mapping[str, str]], None]
"""Takes a measurement: the metric, the value and the labels."""

OPERATIONS = (
    *("redeem", "renew", "record", "release", "put", "replace", "get"),
    *("add_task", "find_task", "find_tasks", "list_owned_tasks", "change_task"),
    *("claim_tasks", "renew_tasks", "holds_task", "overdue_tasks"),
)
"""The methods that are timed: all but those that wait."""


class ObservedStore:
    """Stands for a store. What is not timed, it leaves to the store.

    Args:
        store: the store.
        tally: counts tasks by their status.
        record: takes the times.
    """

    def __init__(self, store: Store, tally: Tally, record: Record) -> None:
        self._store = store
        self._tally = tally
        self._record = record
        for name in OPERATIONS:
            setattr(self, name, partial(self._timed, name, getattr(store, name)))
        self.add_task: Callable[..., Awaitable[bool]] = partial(self._add_task, self.add_task)
        self.change_task: Callable[..., Awaitable[TaskRow | None]] = partial(self._change_task, self.change_task)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def _timed(self, name: str, method: Callable[..., Awaitable[Any]], /, *args: Any, **options: Any) -> Any:
        began = time.perf_counter()
        error = ""
        try:
            return await method(*args, **options)
        except Exception as raised:
            error = names.reason_of(raised)
            raise
        finally:
            self._record(names.STORE, time.perf_counter() - began, names.attributes_of(names.STORE, (name, error)))

    async def _add_task(self, add: Callable[..., Awaitable[bool]], row: TaskRow, **options: Any) -> bool:
        added = await add(row, **options)
        if added:
            self._tally.add(TASKS, row.name, row.status)
        return added

    async def _change_task(
        self, change: Callable[..., Awaitable[TaskRow | None]], row: TaskRow, **changes: Any
    ) -> TaskRow | None:
        changed = await change(row, **changes)
        if changed is not None and changed.status != row.status:
            self._tally.add(TASKS, row.name, changed.status)
            if row.status == "input_required":
                waited = max(0.0, changed.updated - row.updated)
                self._record(names.TASK_TIME, waited, names.attributes_of(names.TASK_TIME, (row.name, row.status)))
        return changed


def observed(store: Store, tally: Tally, record: Record) -> Store:
    """Return what stands for a store, and observes it."""
    return cast(Store, ObservedStore(store, tally, record))
