"""The rows of tasks: what each change of a task's life writes, sealed, and who is notified of it."""

import logging
import time
from collections.abc import Callable, Collection, Mapping
from typing import Any

from ..crypto.keys import KeyRing
from ..errors import InternalFault, OverBudget, ProtocolError, RequestError
from ..flow.journal import Journal
from ..limits import Limits
from ..logs.failures import report_failure
from ..protocol.messages import Change, Complete, Progress, Subscription, TaskStatus
from ..storage.base import Store, TaskRow
from ..storage.pubsub import Fanout, InProcessFanout
from ..storage.quotas import Quotas
from ..tally import ABANDONED_TASKS, Tally
from .pieces import TaskPieces
from .sealing import Questions, RowBinding, SealedTasks

logger = logging.getLogger("mrtr_server")

NOTHING_LEFT: Mapping[str, Any] = {"call": b"", "journal": b"", "questions": b""}
"""What a task that was completed or cancelled keeps of its flow."""

CANCELLED: Mapping[str, Any] = {"status": "cancelled", "message": "", **NOTHING_LEFT}
"""The changes that cancel a task. Its lease stays: its worker gives it back when nothing of it runs any more."""


class TaskRecords:
    """Reads and writes the rows of tasks, for whoever runs them and for whoever answers their clients."""

    def __init__(
        self,
        store: Store,
        ring: KeyRing,
        fanout: Fanout,
        limits: Limits,
        *,
        audience: str = "",
        clock: Callable[[], float] = time.time,
        tally: Tally | None = None,
    ) -> None:
        self.tally = Tally() if tally is None else tally
        self.store = store
        self.limits = limits
        self.now = clock
        self.sealed = SealedTasks(ring, limits, audience)
        self.quotas = Quotas(ring, limits)
        self.pieces = TaskPieces(store, ring, fanout, self.quotas, clock)
        self._fanout = fanout

    async def expire(self, row: TaskRow) -> TaskRow:
        """Fail a task whose time has expired, unless something else just happened to it; return it as it is now."""
        message = "The task did not end in time"
        # A question has a time of its own, also while the task works since another one was answered.
        awaited_input = row.status == "input_required" or row.deadline < row.created + row.ttl
        if awaited_input:
            message = "The input that the task was waiting for did not come in time"
        elif not row.version and not row.attempts:  # one that was stored as taken has begun, at its first version
            logger.warning(
                "No worker began a task of %r before it expired; check that a worker with this tool is running",
                row.name,
            )
        failed = self.failed(row, ProtocolError(message))
        expired = await self.change(row, **failed, lease="", leased_until=0.0)
        if expired is not None and awaited_input:
            self.tally.add(ABANDONED_TASKS, row.name)
        return expired or await self.store.find_task(row.id) or row

    def completed(self, row: TaskRow, outcome: Complete) -> dict[str, Any]:
        """Return the changes that end a task with a result."""
        try:
            sealed = self.sealed.seal_outcome(binding_of(row), outcome)
        except ValueError as error:
            return self.failed(row, self._fault(row, error))
        return {"status": "completed", "outcome": sealed, "message": "", **NOTHING_LEFT}

    def failed(self, row: TaskRow, error: RequestError) -> dict[str, Any]:
        """Return the changes that end a task with an error."""
        try:
            sealed = self.sealed.seal_outcome(binding_of(row), error)
        except ValueError as mistake:  # in the data that the author gave it
            error = self._fault(row, mistake)
            sealed = self.sealed.seal_outcome(binding_of(row), error)
        # The request and the flow stay, so that an operator can retry it.
        return {"status": "failed", "outcome": sealed, "message": error.message, "questions": b""}

    def asked(self, row: TaskRow, journal: Journal, questions: Questions) -> dict[str, Any]:
        """Return the changes that let the client see what is asked. Raises `OverBudget`."""
        return {
            "journal": self.seal_journal(row, journal),
            "questions": self.sealed.seal_questions(binding_of(row), questions.dump()),
            "deadline": questions.ends(row.created + row.ttl),
            "attempts": 0,
        }

    def answered(self, row: TaskRow, questions: Questions) -> dict[str, Any]:
        """Return the changes that keep answers to what a task asks. Raises `OverBudget`.

        If nothing of it runs, it is to run now, unless it waits for further answers.
        """
        written = questions.dump()
        if len(written) > self.limits.state_bytes:
            message = f"The answers are over {self.limits.state_bytes} bytes"
            raise OverBudget(message, "state_bytes", self.limits.state_bytes)
        end = row.created + row.ttl
        changes: dict[str, Any] = {
            "questions": self.sealed.seal_questions(binding_of(row), written),
            "deadline": questions.ends(row.deadline if questions.open and not questions.until else end),
        }
        if row.status == "input_required" and not (questions.open and questions.together):
            changes["status"] = "working"
        return changes

    def status(self, row: TaskRow) -> TaskStatus:
        """Return a task's status for its client; see `visible_status`."""
        if row.status != "working" or not row.questions:  # what it asks need not be unsealed
            return row.status
        return visible_status(row, self.sealed.unseal_questions(row))

    def kept(self, row: TaskRow, journal: Journal) -> dict[str, Any]:
        """Return the changes that keep what a task has done, while its worker continues. Raises `OverBudget`."""
        return {"journal": self.seal_journal(row, journal), "attempts": 1}

    def seal_journal(self, row: TaskRow, journal: Journal) -> bytes:
        """Seal what a task's flow remembers. Raises `OverBudget`."""
        return self.sealed.seal_journal(binding_of(row), journal, self.now())

    def _fault(self, row: TaskRow, error: Exception) -> InternalFault:
        return InternalFault(report_failure("A task of %r returned a result that is not JSON", row.name, error=error))

    async def change(self, row: TaskRow, **changes: Any) -> TaskRow | None:
        """Change a task, and notify listeners; return it as it is then, or None if it was changed before."""
        changed = await self.store.change_task(row, **changes, updated=self.now())
        if changed is not None:
            self.notify(row.id)
        return changed

    def notify(self, id: str) -> None:
        """Notify listeners of a change of a task."""
        self._fanout.publish(Change("task", id))

    def notify_worker(self, id: str) -> None:
        """Send word of what a client did to a task to the worker that runs it, wherever that is."""
        self._fanout.publish(Change("run", id))

    def notify_session(self, session: str) -> None:
        """Send word of a new task to the stream of a session's notifications."""
        self._fanout.publish(Change("session", session))

    def notify_progress(self, row: TaskRow, progress: Progress) -> None:
        """Report how far a task has come to those who wait for its result."""
        self._fanout.publish(Change("progress", row.id, note=self.sealed.seal_progress(binding_of(row), progress)))

    def listen_for_workers(self, ids: Collection[str]) -> Subscription:
        """Start to listen to what clients do to tasks, by their ids."""
        fanout = self._fanout if ids else InProcessFanout()  # where there are none, there is nothing to be heard
        return fanout.subscribe(frozenset(Change("run", id) for id in ids))


def visible_status(row: TaskRow, questions: Questions) -> TaskStatus:
    """Return a task's status for its client: it needs input as soon as something is asked, whatever runs beside.

    In the row it needs input only when nothing of it runs, nor is to.
    """
    return "input_required" if questions.open else row.status


def binding_of(row: TaskRow) -> RowBinding:
    """Return where what a task holds belongs."""
    return RowBinding(row.id, row.owner)
