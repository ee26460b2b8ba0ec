"""What an operator does to tasks, whoever they belong to."""

import secrets
import time
from typing import Any

from ..crypto.keys import KeyRing
from ..errors import SetupError, UnknownTarget
from ..limits import LARGEST_LIMIT, Limits
from ..protocol.messages import Call, Change
from ..storage.quotas import Quota
from ..storage.rows import ENDED, TaskRow, in_epoch
from ..storage.sql.tasks import SQLTasks
from .records import CANCELLED, wait_id
from .sealing import ID_BYTES, SealedTasks

_HEX = frozenset("0123456789abcdef")
_ANY_SIZE = Limits(state_bytes=LARGEST_LIMIT)  # the servers have checked the sizes of tasks, by limits of their own


class TaskAdministration:
    """Looks at tasks, cancels them and retries them."""

    def __init__(self, store: SQLTasks) -> None:
        self._store = store
        self._fanout = store.fanout()

    async def find(self, named: str) -> TaskRow:
        """Return a task. Raises `UnknownTarget`, `SetupError`, `StoreUnavailable`."""
        row = await self._store.find_task(named)
        if row is None and named and _HEX.issuperset(named):
            ids = await self._store.ids_of_reference(named)
            if len(ids) > 1:
                raise SetupError(f"Several tasks begin with {named}; give more digits")
            row = await self._store.find_task(ids[0]) if ids else None
        if row is None:
            raise UnknownTarget("task", named)
        return row

    async def cancel(self, named: str) -> TaskRow:
        """Cancel a task as its client would, and return it; one that has ended stays as it is. Raises as `find`."""
        # Its worker begins no further step. A step that runs is not interrupted.
        while True:
            row = await self.find(named)
            if row.status in ENDED:
                return row
            changed = await self._store.change_task(row, updated=time.time(), **CANCELLED)
            if changed is not None:
                self._fanout.publish(Change("task", changed.id))
                self._fanout.publish(Change("run", changed.id))
                return changed

    async def retry(self, named: str, ring: KeyRing) -> TaskRow:
        """Start a failed task again from its last recorded step, as a new task: one that has ended never changes.

        It belongs to the same user, and lives as long. Steps that have run do not run again, and idempotency keys
        stay the same. Raises `InvalidRequestState`, or as `find`.
        """
        row = await self.find(named)
        if row.status != "failed":
            raise SetupError(f"Task {row.reference} is {row.status}; only a task that failed can be retried")
        if not row.call:
            raise SetupError(f"Task {row.reference} failed under an earlier release, which kept nothing for a retry")
        now, sealed = time.time(), SealedTasks(ring, _ANY_SIZE)
        new = row._replace(
            id=in_epoch(await self._store.epoch(), secrets.token_hex(ID_BYTES)),
            status="working",
            message="",
            created=now,
            updated=now,
            deadline=now + row.ttl,
            expires=now + row.expires - row.created,
            outcome=b"",
            version=0,
            lease="",
            leased_until=0.0,
            attempts=0,
        )
        call, journal = sealed.copy_call(row, new), sealed.unseal_journal(row, row.created)
        new = new._replace(call=call, journal=sealed.seal_journal(new, journal, now))
        # A store returns no tenant with the row of a task.
        quota = Quota(row.caller, begun=row.created, tenant=await self._store.tenant_of(row.id))
        await self._store.add_task(new, quota=quota)
        return new


def about_of(row: TaskRow, wait: str, ring: KeyRing) -> Any:
    """Return what a wait of a task is about, as JSON; None if that is over. Raises `InvalidRequestState`."""
    waits = {} if row.status in ENDED else SealedTasks(ring, _ANY_SIZE).unseal_questions(row).waits
    found = [question for key, question in waits.items() if wait_id(row.id, key) == wait]
    return found[0].params["about"][0] if found else None


def call_of(row: TaskRow, ring: KeyRing) -> Call | None:
    """Return the request of a task; None if it ended and keeps none. Raises `InvalidRequestState`."""
    return SealedTasks(ring, _ANY_SIZE).unseal_call(row) if row.call else None
