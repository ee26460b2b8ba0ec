"""Tasks: flows that go on in the background, with their journal in a row of a store."""

import asyncio
import logging
import secrets
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import replace
from hmac import compare_digest
from typing import Any, Protocol

from ..crypto.digests import digest
from ..crypto.keys import KeyRing
from ..errors import (
    Busy,
    InternalFault,
    InvalidRequestState,
    OverBudget,
    ProtocolError,
    RequestError,
    StoreUnavailable,
    UnknownTarget,
)
from ..flow.admission import Admission
from ..flow.handler import TaskTerms
from ..flow.journal import Journal
from ..limits import Limits
from ..logs.failures import report_failure
from ..protocol.messages import JSON, Call, Change, Complete, Principal, Question, Task, TaskOffer, TaskResult
from ..storage.base import Store
from ..storage.pubsub import Fanout
from ..storage.tasks import ENDED, TaskRow
from .questions import Questions
from .sealing import ID_BYTES, RowBinding, SealedTasks
from .waiting import TaskWaiting

logger = logging.getLogger("mrtr_server")

RETENTION = 300.0
"""How long a task can still be asked for after its time to live, so that its client learns what became of it."""

AGAIN_AFTER = 1.0
"""When a request for a result is to be sent again that has no room to wait, in seconds."""

_FLAT = "task-"
"""What the ids of tasks begin with whose clients see the first ask at once; no other id does."""

_LONGEST_ID = 128

AnswerMapper = Callable[[Questions, Mapping[str, JSON]], Mapping[str, JSON]]
"""Says which questions answers are meant for."""

_NOTHING_LEFT: Mapping[str, Any] = {"call": b"", "journal": b"", "questions": b"", "lease": "", "leased_until": 0.0}
"""What a task that has ended keeps of its flow."""


class Reservation(Protocol):
    """A place that is kept for a task: it is stored as taken, so that nobody need claim it.

    Args:
        lease: names who takes it.
        seconds: how long that is to hold.
    """

    lease: str
    seconds: float

    def run(self, row: TaskRow) -> None:
        """Run the task, which has been stored."""
        ...


Reserve = Callable[[str], AbstractContextManager[Reservation | None]]


def _to_nobody(tool: str) -> AbstractContextManager[Reservation | None]:
    return nullcontext()


class Tasks:
    """Starts tasks, and answers what clients ask about them.

    Args:
        store: where they are.
        ring: seals what they hold.
        fanout: tells those who listen.
        admission: says whether the server is draining.
        limits: what a flow may use.
        answer_within: gives how long a person has to answer a tool's questions in a task, in seconds.
        clock: gives the time in seconds since the epoch.
    """

    def __init__(
        self,
        store: Store,
        ring: KeyRing,
        fanout: Fanout,
        admission: Admission,
        limits: Limits,
        *,
        answer_within: Callable[[str], float],
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.store = store
        self.limits = limits
        self.now = clock
        self.sealed = SealedTasks(ring, limits)
        self.reserve: Reserve = _to_nobody
        """Asks whether somebody here runs a task of a tool at once."""
        self._answer_within = answer_within
        self._fanout = fanout
        self._waiting = TaskWaiting(fanout, admission, limits.task_waits)
        self._told = False

    # What clients do

    async def start(self, terms: TaskTerms, call: Call, journal: Journal | None, *, once: bool = False) -> Task:
        """Make a task of a call. It is there for every replica when this returns.

        Args:
            terms: the tool's.
            call: the request.
            journal: what its rounds have left; None if there were none.
            once: whether its flow becomes one task only, so that a repetition gets the same.

        Raises:
            StoreUnavailable: it could not be kept.
            OverBudget: its journal is too large, or what comes with its request.
        """
        if call.principal is None and not self._told:
            self._told = True
            logger.warning(
                "Tasks of callers who are not authenticated are protected by their ids alone; set auth= to bind each "
                "task to its caller"
            )
        offer, now = call.task or TaskOffer(), self.now()
        journal = journal or Journal(now)
        names = self.sealed.ids_of(journal.flow) if once else [secrets.token_hex(ID_BYTES)]
        ids = [(_FLAT if offer.first_ask else "") + name for name in names]
        binding = RowBinding(ids[0], _owner(call.principal))
        most = self.limits.task_seconds if terms.ttl is None else terms.ttl
        ttl = most if offer.ttl is None else min(offer.ttl, most)
        row = TaskRow(
            id=binding.id,
            owner=binding.owner,
            name=call.target,
            status="working",
            message="",
            created=now,
            updated=now,
            ttl=ttl,
            poll=self.limits.poll_seconds if terms.poll is None else terms.poll,
            deadline=now + ttl,
            expires=now + ttl + RETENTION,
            call=self.sealed.seal_call(binding, call),
            journal=self.sealed.seal_journal(binding, journal, now),
        )
        # A replica whose ring begins with another key may have started the same one.
        found = [found for id in ids[1:] if (found := await self.store.find_task(id))]
        if found:
            (row,) = found
        else:
            row = await self._add(row)
        if offer.first_ask:
            row = await self._settled(row)
        return self.view(row)

    async def _add(self, row: TaskRow) -> TaskRow:
        """Keep a new task, and give it; or the one that is there already."""
        with self.reserve(row.name) as reservation:
            if reservation is None:
                is_new = await self.store.add_task(row)
            else:
                row = replace(row, lease=reservation.lease, attempts=1)
                is_new = await self.store.add_task(row, seconds=reservation.seconds)
                if is_new:
                    reservation.run(row)
        return row if is_new else await self.store.find_task(row.id) or row

    async def _settled(self, row: TaskRow) -> TaskRow:
        """Wait until a task has asked or ended, for a while."""

        async def find() -> TaskRow:
            return await self.store.find_task(row.id) or row

        try:
            return await self._waiting.until_settled(row, find, min(self.limits.first_ask_seconds, row.ttl))
        except StoreUnavailable:
            pass  # the client may yet ask for it
        except asyncio.CancelledError:  # the client has left, and nobody else will ever know the id
            with suppress(StoreUnavailable, UnknownTarget):
                await self._cancel(row.id, row.owner)
            raise
        return row

    async def see(self, call: Call) -> Task:
        """Give the task that a call is about. Raises `UnknownTarget`."""
        return self.view(await self._find(call.target, _owner(call.principal)))

    async def see_what_comes_of_it(self, call: Call) -> Task:
        """Give the task that a call has brought an answer to, when it has asked again or ended, or after a moment."""
        row = await self._find(call.target, _owner(call.principal))
        return self.view(await self._until_settled(row, self.limits.first_ask_seconds))

    async def redeem(self, call: Call) -> TaskResult:
        """Give what a task has for its client: what it asks, or what it came to. Waits for either.

        Raises:
            UnknownTarget: there is no such task.
            Busy: there is no room to wait.
        """
        row = await self._find(call.target, _owner(call.principal))
        if row.status == "working" and not self._waiting.has_room:
            raise Busy(AGAIN_AFTER)
        row = await self._until_settled(row, self.limits.result_wait_seconds)
        return TaskResult(self.view(row), self.sealed.seal_wait(_binding(row)) if row.status == "working" else "")

    def check_wait(self, call: Call) -> None:
        """Check the state that a request for a result was given to come again with. Raises `InvalidRequestState`."""
        try:
            self.sealed.check_wait(RowBinding(call.target, _owner(call.principal)), call.state)
        except InvalidRequestState as refused:  # without the task's id, which may be all that protects it
            logger.warning("%s: refused a requestState: %s", call.method, refused.reason)
            raise

    async def _until_settled(self, row: TaskRow, seconds: float) -> TaskRow:
        return await self._waiting.until_settled(row, lambda: self._find(row.id, row.owner), seconds)

    async def peek(self, id: str, principal: Principal | None) -> Task | None:
        """Give a task; None if there is none, or none of this principal."""
        try:
            return self.view(await self._find(id, _owner(principal)))
        except UnknownTarget:
            return None

    async def answer(self, call: Call, answers: Mapping[str, JSON], map_answers: AnswerMapper | None = None) -> None:
        """Take answers to what a task has open; others are ignored.

        Args:
            call: the request.
            answers: by key.
            map_answers: gives them by the task's keys, where they come by others; see `Questions.by_name`.

        Raises:
            UnknownTarget: there is no such task.
            InvalidParams: there are several questions for an answer without a key.
            OverBudget: the answers are too many or too large.
        """
        if len(answers) > self.limits.answers:
            raise OverBudget(
                f"The request has more than {self.limits.answers} inputResponses", "answers", self.limits.answers
            )
        while True:
            row = await self._find(call.target, _owner(call.principal))
            if row.status != "input_required":
                return
            questions = self.sealed.unseal_questions(row)
            if not questions.take(answers if map_answers is None else map_answers(questions, answers)):
                return
            written = questions.dump()
            if len(written) > self.limits.state_bytes:
                message = f"The answers are over {self.limits.state_bytes} bytes"
                raise OverBudget(message, "state_bytes", self.limits.state_bytes)
            changes: dict[str, Any] = {"questions": self.sealed.seal_questions(_binding(row), written)}
            if not questions.open:  # nobody's answer is waited for any more
                changes |= {"status": "working", "deadline": row.created + row.ttl}
                changed = await self._go_on(row, changes)
            else:
                changed = await self._change(row, **changes)
            if changed:
                return

    async def _go_on(self, row: TaskRow, changes: Mapping[str, Any]) -> TaskRow | None:
        """Let a task that was answered work again."""
        with self.reserve(row.name) as reservation:
            if reservation is None:
                return await self._change(row, **changes)
            leased = {"lease": reservation.lease, "seconds": reservation.seconds, "attempts": row.attempts + 1}
            changed = await self._change(row, **changes, **leased)
            if changed is not None:
                reservation.run(changed)
            return changed

    async def cancel(self, call: Call) -> Task:
        """Cancel a task, and give it; one that has ended stays as it is. Raises `UnknownTarget`."""
        return self.view(await self._cancel(call.target, _owner(call.principal)))

    async def _cancel(self, id: str, owner: str) -> TaskRow:
        while True:
            row = await self._find(id, owner)
            if row.status in ENDED:
                return row
            cancelled = await self._change(row, status="cancelled", message="", **_NOTHING_LEFT)
            if cancelled is not None:
                return cancelled

    async def _find(self, id: str, owner: str) -> TaskRow:
        row = await self.store.find_task(id) if len(id) <= _LONGEST_ID else None
        # For anyone but its owner it does not exist.
        if row is None or not compare_digest(row.owner.encode(), owner.encode()):
            raise UnknownTarget("task", id)
        return row if row.status in ENDED or row.deadline > self.now() else await self.expire(row)

    # What happens to them

    async def expire(self, row: TaskRow) -> TaskRow:
        """Fail a task whose time is over, unless something else has just happened to it; give it as it is now."""
        message = "The task did not end in time"
        if row.status == "input_required":
            message = "The input that the task was waiting for did not come in time"
        elif not row.version and not row.attempts:  # one that was stored as taken has begun, at its first version
            logger.warning(
                "No worker began a task of %r before it expired; check that a worker runs that has this tool", row.name
            )
        expired = await self._change(row, **self.failed(row, ProtocolError(message)))
        return expired or await self.store.find_task(row.id) or row

    def completed(self, row: TaskRow, outcome: Complete) -> dict[str, Any]:
        """Give the changes that end a task with a result."""
        try:
            sealed = self.sealed.seal_outcome(_binding(row), outcome)
        except ValueError as error:
            return self.failed(row, self._fault(row, error))
        return {"status": "completed", "outcome": sealed, "message": "", **_NOTHING_LEFT}

    def failed(self, row: TaskRow, error: RequestError) -> dict[str, Any]:
        """Give the changes that end a task with an error."""
        try:
            sealed = self.sealed.seal_outcome(_binding(row), error)
        except ValueError as mistake:  # in the data that the author gave it
            error = self._fault(row, mistake)
            sealed = self.sealed.seal_outcome(_binding(row), error)
        return {"status": "failed", "outcome": sealed, "message": error.message, **_NOTHING_LEFT}

    def parked(self, row: TaskRow, journal: Journal, asked: Mapping[str, Question]) -> dict[str, Any]:
        """Give the changes that let a task wait for answers. Raises `OverBudget`."""
        questions, now = self.sealed.unseal_questions(row), self.now()
        questions.ask(asked)
        return {
            "status": "input_required",
            "journal": self.seal_journal(row, journal),
            "questions": self.sealed.seal_questions(_binding(row), questions.dump()),
            "deadline": min(row.created + row.ttl, now + self._answer_within(row.name)),
            "attempts": 0,
        }

    def seal_journal(self, row: TaskRow, journal: Journal) -> bytes:
        """Seal what a task's flow remembers. Raises `OverBudget`."""
        return self.sealed.seal_journal(_binding(row), journal, self.now())

    def _fault(self, row: TaskRow, error: Exception) -> InternalFault:
        return InternalFault(report_failure("A task of %r returned a result that is not JSON", row.name, error=error))

    async def _change(self, row: TaskRow, **changes: Any) -> TaskRow | None:
        changed = await self.store.change_task(row, **changes, updated=self.now())
        if changed is not None:
            self.notify(row.id)
        return changed

    def notify(self, id: str) -> None:
        """Tell those who listen that a task has changed."""
        self._fanout.publish(Change("task", id))

    def view(self, row: TaskRow) -> Task:
        """Give a task as its client may see it. Raises `InvalidRequestState` if what it holds does not open."""
        questions = self.sealed.unseal_questions(row) if row.status == "input_required" else Questions()
        return Task(
            id=row.id,
            status=row.status,
            created=row.created,
            updated=row.updated,
            ttl=row.ttl,
            poll=row.poll,
            message=row.message,
            questions=questions.open,
            names=questions.names,
            outcome=self.sealed.unseal_outcome(row),
            first_ask=row.id.startswith(_FLAT),
        )


def _binding(row: TaskRow) -> RowBinding:
    return RowBinding(row.id, row.owner)


def _owner(principal: Principal | None) -> str:
    return "" if principal is None else digest([principal.issuer, principal.subject, principal.client_id])
