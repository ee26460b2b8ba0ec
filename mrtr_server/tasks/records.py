"""The rows of tasks: what each change of a task's life writes, sealed, and who is told of it."""

import logging
import time
from collections.abc import Callable, Mapping
from typing import Any

from ..crypto.keys import KeyRing
from ..errors import InternalFault, ProtocolError, RequestError
from ..flow.journal import Journal
from ..limits import Limits
from ..logs.failures import report_failure
from ..protocol.messages import Change, Complete, Question
from ..storage.base import Store
from ..storage.pubsub import Fanout
from ..storage.quotas import Quotas
from ..storage.tasks import TaskRow
from .sealing import RowBinding, SealedTasks

logger = logging.getLogger("mrtr_server")

NOTHING_LEFT: Mapping[str, Any] = {"call": b"", "journal": b"", "questions": b"", "lease": "", "leased_until": 0.0}
"""What a task that has ended keeps of its flow."""


class TaskRecords:
    """Reads and writes the rows of tasks, for whoever runs them and for whoever answers their clients.

    Args:
        store: where they are.
        ring: seals what they hold.
        fanout: tells those who listen.
        limits: what a flow may use.
        clock: returns the time in seconds since the epoch.
    """

    def __init__(
        self,
        store: Store,
        ring: KeyRing,
        fanout: Fanout,
        limits: Limits,
        *,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.store = store
        self.limits = limits
        self.now = clock
        self.sealed = SealedTasks(ring, limits)
        self.quotas = Quotas(ring, limits)
        self._fanout = fanout

    async def expire(self, row: TaskRow) -> TaskRow:
        """Fail a task whose time is over, unless something else has just happened to it; return it as it is now."""
        message = "The task did not end in time"
        if row.status == "input_required":
            message = "The input that the task was waiting for did not come in time"
        elif not row.version and not row.attempts:  # one that was stored as taken has begun, at its first version
            logger.warning(
                "No worker began a task of %r before it expired; check that a worker runs that has this tool", row.name
            )
        expired = await self.change(row, **self.failed(row, ProtocolError(message)))
        return expired or await self.store.find_task(row.id) or row

    def completed(self, row: TaskRow, outcome: Complete) -> dict[str, Any]:
        """Return the changes that end a task with a result."""
        try:
            sealed = self.sealed.seal_outcome(place_of(row), outcome)
        except ValueError as error:
            return self.failed(row, self._fault(row, error))
        return {"status": "completed", "outcome": sealed, "message": "", **NOTHING_LEFT}

    def failed(self, row: TaskRow, error: RequestError) -> dict[str, Any]:
        """Return the changes that end a task with an error."""
        try:
            sealed = self.sealed.seal_outcome(place_of(row), error)
        except ValueError as mistake:  # in the data that the author gave it
            error = self._fault(row, mistake)
            sealed = self.sealed.seal_outcome(place_of(row), error)
        return {"status": "failed", "outcome": sealed, "message": error.message, **NOTHING_LEFT}

    def parked(
        self, row: TaskRow, journal: Journal, asked: Mapping[str, Question], answer_within: float
    ) -> dict[str, Any]:
        """Return the changes that let a task wait for answers.

        Args:
            row: the task.
            journal: what its flow remembers.
            asked: what it asks, by the key that the handler knows.
            answer_within: how long the person has to answer, in seconds.

        Raises:
            OverBudget: the journal is too large.
        """
        questions, now = self.sealed.unseal_questions(row), self.now()
        questions.ask(asked)
        return {
            "status": "input_required",
            "journal": self.seal_journal(row, journal),
            "questions": self.sealed.seal_questions(place_of(row), questions.dump()),
            "deadline": min(row.created + row.ttl, now + answer_within),
            "attempts": 0,
        }

    def kept(self, row: TaskRow, journal: Journal) -> dict[str, Any]:
        """Return the changes that keep what a task has done. Raises `OverBudget`."""
        return {"journal": self.seal_journal(row, journal), "attempts": 0}

    def seal_journal(self, row: TaskRow, journal: Journal) -> bytes:
        """Seal what a task's flow remembers. Raises `OverBudget`."""
        return self.sealed.seal_journal(place_of(row), journal, self.now())

    def _fault(self, row: TaskRow, error: Exception) -> InternalFault:
        return InternalFault(report_failure("A task of %r returned a result that is not JSON", row.name, error=error))

    async def change(self, row: TaskRow, **changes: Any) -> TaskRow | None:
        """Change a task, and tell who listens; return it as it is then, or None if it was changed before."""
        changed = await self.store.change_task(row, **changes, updated=self.now())
        if changed is not None:
            self.notify(row.id)
        return changed

    def notify(self, id: str) -> None:
        """Send word of a change of a task to those who listen."""
        self._fanout.publish(Change("task", id))


def place_of(row: TaskRow) -> RowBinding:
    """Return where what a task holds belongs."""
    return RowBinding(row.id, row.owner)
