"""Tasks: flows that continue in the background, with their journal in a row of a store."""

import asyncio
import math
import secrets
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from hmac import compare_digest
from typing import Any

from ..errors import Busy, InvalidRequestState, OverBudget, RequestError, StoreUnavailable, UnknownTarget
from ..flow.admission import Admission
from ..flow.handler import TaskTerms
from ..flow.journal import Journal
from ..logs import logger
from ..logs.refusals import RefusalLog
from ..protocol.messages import JSON, Call, Change, Outlet, Progress, Task, TaskOffer, TaskResult
from ..protocol.sessions import owner_of_call
from ..storage.pubsub import Fanout
from ..storage.quotas import Quota
from ..storage.rows import ENDED, FIRST_ASK, TaskRow, epoch_of, in_epoch
from .notifications import Looked, WaitingRequests
from .records import CANCELLED, RETENTION, PieceReader, TaskRecords, visible_status
from .sealing import ID_BYTES, Questions, RowBinding
from .worker import Reservation, Worker

AGAIN_AFTER = 1.0  # seconds until a client is to repeat a request for a result that has no room to wait

STEP_GOES_ON = "The task was cancelled. A step that had begun may still be running."
"""The message of a cancelled task, until its worker has said that nothing of it runs any more."""

LONGEST_POLL = 60.0
"""Seconds between looks at a task that waits for somebody else, at most. At first they are as for any other."""

_POLLS_OF_A_WAIT = 4  # looks at it in the time that it has waited by then, about

_LONGEST_ID = 128
_MOST_LOOKED_UP = 256 * 1024  # bytes of tasks, about
TaskCursor = tuple[float, str]  # the creation of a task, in seconds since the epoch, and its id

_NEWEST: TaskCursor = (math.inf, "")

AnswerMapper = Callable[[Questions, Mapping[str, JSON]], Mapping[str, JSON]]
"""Returns answers by the keys of the task, where they come by others."""


class Tasks:
    """Starts tasks, and answers what clients ask about them."""

    def __init__(
        self, records: TaskRecords, fanout: Fanout, admission: Admission, worker: Worker | None = None
    ) -> None:
        self._records = records
        self.store = records.store
        self._sealed = records.sealed
        self._limits = records.limits
        self._worker = worker
        self._waiting = WaitingRequests(fanout, admission, records.limits, records.status)
        self.waits = self._waiting.places  # counts the requests that wait
        self._told = False
        self._refusals = RefusalLog()

    def wake_worker(self) -> None:
        """Start to work on tasks here, if this process is to run any."""
        if self._worker is not None:
            self._worker.wake()

    def _reserve(self, row: TaskRow) -> AbstractContextManager[Reservation | None]:
        return nullcontext() if self._worker is None else self._worker.reserve(row)

    # What clients do

    async def start(self, terms: TaskTerms, call: Call, journal: Journal | None, *, once: bool = False) -> Task:
        """Make a task of a call; every replica has it then. Raises `StoreUnavailable`, `OverBudget`, `Full`."""
        if not owner_of_call(call) and not self._told:
            self._told = True
            logger.warning(
                "Tasks of callers who are not authenticated are protected by their ids alone; set auth= to bind each "
                "task to its caller"
            )
        offer, now = call.task or TaskOffer(), self._records.now()
        journal = journal or Journal(now)
        journal.pieces = 0  # those who wait for the task's result have got none yet
        epoch = journal.epoch or await self.store.epoch()
        names = self._sealed.ids_of(journal.flow, epoch) if once else [in_epoch(epoch, secrets.token_hex(ID_BYTES))]
        ids = [(FIRST_ASK if offer.first_ask else "") + name for name in names]
        binding = RowBinding(ids[0], owner_of_call(call))
        quota = self._records.quotas.of(call.principal, journal.started)
        most = self._limits.task_seconds if terms.ttl is None else terms.ttl
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
            poll=self._limits.poll_seconds if terms.poll is None else terms.poll,
            deadline=now + ttl,
            expires=now + ttl + RETENTION,
            call=self._sealed.seal_call(binding, call),
            journal=self._sealed.seal_journal(binding, journal, now),
            caller=quota.caller,
        )
        # A replica whose ring begins with another key, or of an earlier release, may have started the same one.
        found = [found for id in ids[1:] if (found := await self.store.find_task(id))]
        if found:
            (row,) = found
        else:
            row = await self._add(row, quota)
        self._noted(call, row)
        if offer.first_ask:
            row = await self._settled(row, in_list=offer.at_once)
        if offer.at_once and call.session:
            self._records.notify_session(call.session)
        return self.view(row)

    async def _add(self, row: TaskRow, quota: Quota) -> TaskRow:
        with self._reserve(row) as reservation:
            if reservation is None:
                is_new = await self._try_to_add(row, 0.0, quota)
            else:
                row = row._replace(lease=reservation.lease, attempts=1)
                is_new = await self._try_to_add(row, reservation.seconds, quota)
                if is_new:
                    reservation.run(row)
        return row if is_new else await self.store.find_task(row.id) or row

    async def _try_to_add(self, row: TaskRow, seconds: float, quota: Quota) -> bool:
        try:
            return await self.store.add_task(row, seconds=seconds, quota=quota)
        except InvalidRequestState as refused:
            self._refusals.note("%r: no task was begun: %s", row.name, refused.reason)
            raise

    async def _settled(self, row: TaskRow, *, in_list: bool) -> TaskRow:
        async def find() -> TaskRow:
            return await self.store.find_task(row.id) or row

        try:
            return await self._waiting.wait_for(row, find, min(self._limits.first_ask_seconds, row.ttl))
        except StoreUnavailable:
            pass  # the client may yet ask for it
        except asyncio.CancelledError:  # the client has left
            if not in_list:  # and nobody else will ever know the id
                with suppress(StoreUnavailable, UnknownTarget):
                    await self._end(row.id, row.owner, lambda row: CANCELLED)
            raise
        return row

    async def see(self, call: Call) -> Task:
        """Return the task that a call is about. Raises `UnknownTarget`."""
        return self.view(await self._find_of(call))

    async def see_what_comes_of_it(self, call: Call) -> Task:
        """Return the task that a call has answered, when it has asked again or ended, or after a moment."""
        row = await self._find_of(call)
        return self.view(await self._wait_for(row, self._limits.first_ask_seconds))

    async def wait_for_result(self, call: Call, outlet: Outlet) -> TaskResult:
        """Wait for what a task has for its client: what it asks, or what it came to. Raises `UnknownTarget`, `Busy`."""
        row = await self._find_of(call)
        if not self._waiting.has_room(row) and self._records.status(row) == "working":
            raise Busy(AGAIN_AFTER)
        reader = None if row.status in ENDED else self.pieces_for(call, outlet)
        task = self.view(await self._wait_for(row, self._limits.result_wait_seconds, reader))
        if task.status != "working":
            return TaskResult(task)
        return TaskResult(task, self._sealed.seal_wait(row, 0 if reader is None else reader.position))

    def pieces_for(self, call: Call, outlet: Outlet) -> PieceReader | None:
        """Return what sends the pieces of a result that a call waits for; None if its client wants none."""
        if not call.takes_pieces:
            return None
        owner = owner_of_call(call)
        position = 0 if call.state is None else self._sealed.check_wait(RowBinding(call.target, owner), call.state)
        return PieceReader(self._records.pieces, call, owner, outlet, position)

    def progress_in(self, call: Call, change: Change) -> Progress | None:
        """Return how far the task of a call has come, as a change says; None if it does not say."""
        with suppress(InvalidRequestState):
            if change.note:
                return self._sealed.unseal_progress(RowBinding(call.target, owner_of_call(call)), change.note)
        return None

    def check_wait(self, call: Call) -> None:
        """Check the state that a request for a result was given to come again with. Raises `InvalidRequestState`."""
        try:
            self._sealed.check_wait(RowBinding(call.target, owner_of_call(call)), call.state)
        except InvalidRequestState as refused:  # without the task's id, which may be all that protects it
            self._refusals.note("%s: refused a requestState: %s", call.method, refused.reason)
            raise

    async def _wait_for(self, row: TaskRow, seconds: float, reader: PieceReader | None = None) -> TaskRow:
        return await self._waiting.wait_for(row, lambda: self._find(row.id, row.owner), seconds, reader)

    async def peek(self, ids: Sequence[str], owner: str) -> Looked:
        """Look up tasks of an owner, in one go unless they are large. Raises `StoreUnavailable`."""
        rows = await self.store.find_tasks([id for id in ids if len(id) <= _LONGEST_ID], most_bytes=_MOST_LOOKED_UP)
        tasks = await self._views([row for row in rows if compare_digest(row.owner.encode(), owner.encode())])
        return Looked({task.id: task for task in tasks}, [id for id in ids if id > rows[-1].id] if rows else [])

    async def page(self, owner: str, before: TaskCursor | None, most: int) -> tuple[list[Task], TaskCursor | None]:
        """Return some of the tasks of an owner, the newest first. Raises `StoreUnavailable`."""
        if not owner:
            return [], None
        rows = await self.store.list_owned_tasks(
            owner, before=before or _NEWEST, most=most + 1, most_bytes=_MOST_LOOKED_UP
        )
        page = rows[:most]
        is_all = len(rows) <= most and sum(row.visible_bytes for row in rows) < _MOST_LOOKED_UP
        return await self._views(page), None if is_all else (page[-1].created, page[-1].id)

    async def _views(self, rows: Iterable[TaskRow]) -> list[Task]:
        now, tasks = self._records.now(), []
        for row in rows:
            in_time = row.status in ENDED or row.deadline > now
            try:
                tasks.append(self.view(row if in_time else await self._records.expire(row)))
            except InvalidRequestState as refused:
                self._refusals.note("A client is not told of a task: it can't be unsealed: %s", refused.reason)
        return tasks

    async def answer(self, call: Call, answers: Mapping[str, JSON], map_answers: AnswerMapper | None = None) -> None:
        """Keep answers to open questions; ignore others. Raises `UnknownTarget`, `InvalidParams`, `OverBudget`."""
        if len(answers) > self._limits.answers:
            message = f"The request has more than {self._limits.answers} inputResponses"
            raise OverBudget(message, "answers", self._limits.answers)

        def taken(row: TaskRow, questions: Questions) -> bool:
            own = questions.of_client
            given = answers if map_answers is None else map_answers(own, answers)
            return questions.take({key: answer for key, answer in given.items() if key in own.open})

        await self.change_questions(lambda: self._find_of(call), taken)

    async def change_questions(
        self, find: Callable[[], Awaitable[TaskRow]], change: Callable[[TaskRow, Questions], bool]
    ) -> None:
        """Change what a task asks, unless it has ended, until no other change comes between.

        `change` returns whether there is anything to store.
        """
        while True:
            row = await find()
            if row.status in ENDED:
                return
            questions = self._sealed.unseal_questions(row)
            if not change(row, questions):
                return
            changes = self._records.answered(row, questions)
            if "status" in changes:
                if await self._go_on(row, changes):
                    return
            elif changed := await self._records.change(row, **changes):
                self._tell_worker(changed)
                return

    async def _go_on(self, row: TaskRow, changes: Mapping[str, Any]) -> bool:
        """Change a task that was answered, so that it works again, and run it here if there is room."""
        leased: dict[str, Any] = {}
        with self._reserve(row) as reservation:
            if reservation is not None:
                leased = {"lease": reservation.lease, "seconds": reservation.seconds, "attempts": row.attempts + 1}
            changed = await self._records.change(row, **changes, **leased)
            if changed is not None and reservation is not None:
                reservation.run(changed)
            return changed is not None

    async def cancel(self, call: Call) -> tuple[Task, bool]:
        """Cancel a task, unless it has ended; return it, and whether it had ended. Raises `UnknownTarget`."""

        def cancelled(row: TaskRow) -> Mapping[str, Any]:
            self._noted(call, row)  # which then loses its flow
            return CANCELLED

        row, had_ended = await self._end(call.target, owner_of_call(call), cancelled)
        return self.view(self._noted(call, row)), had_ended

    async def fail(self, call: Call, error: RequestError) -> None:
        """Fail a task whose client can't answer what it asks, unless it has ended. Raises `UnknownTarget`."""
        await self._end(call.target, owner_of_call(call), lambda row: self._records.failed(row, error))

    async def _end(self, id: str, owner: str, changes: Callable[[TaskRow], Mapping[str, Any]]) -> tuple[TaskRow, bool]:
        while True:
            row = await self._find(id, owner)
            if row.status in ENDED:
                return row, True
            ended = await self._records.change(row, **changes(row))
            if ended is not None:
                self._tell_worker(ended)
                return ended, False

    def _tell_worker(self, row: TaskRow) -> None:
        """Notify the worker at once of what a client has done to its task, wherever it runs."""
        if not row.lease:
            return
        if self._worker is None or not self._worker.on_change(row):
            self._records.notify_worker(row.id)

    def _noted(self, call: Call, row: TaskRow) -> TaskRow:
        """Note for those who observe a call which task it is about, and return the row of the task."""
        trace = call.trace
        trace.task, trace.tool = row.reference, row.name
        if trace.is_traced and not trace.first and call.target == row.id and row.journal:
            with suppress(InvalidRequestState):
                journal = self._sealed.unseal_journal(row, self._records.now())
                trace.first, trace.task_flow = journal.origin, journal.flow_id
        return row

    async def _find_of(self, call: Call) -> TaskRow:
        return self._noted(call, await self._find(call.target, owner_of_call(call)))

    async def _find(self, id: str, owner: str) -> TaskRow:
        row = await self.store.find_task(id) if len(id) <= _LONGEST_ID else None
        # For anyone but its owner it does not exist.
        if row is None or not compare_digest(row.owner.encode(), owner.encode()):
            await self._note_other_epoch(id)
            raise UnknownTarget("task", id)
        return row if row.status in ENDED or row.deadline > self._records.now() else await self._records.expire(row)

    async def _note_other_epoch(self, id: str) -> None:
        """Log that a task is not here which was begun in another epoch of the store, if its id says so."""
        with suppress(StoreUnavailable):
            named, present = epoch_of(id), await self.store.epoch()
            if named and present and named != present:
                self._refusals.note(
                    "A client asked for a task of the epoch %r of the store, and this one is in the epoch %r. So it is "
                    "of another region's store, or was lost before `mrtr-server db new-epoch`",
                    named,
                    present,
                )

    # For clients

    def view(self, row: TaskRow) -> Task:
        """Return a task as its client may see it. Raises `InvalidRequestState` if what it holds does not open."""
        asked = self._sealed.unseal_questions(row) if row.status not in ENDED else Questions()
        questions = asked.of_client
        waits = asked.waits if row.status == "input_required" else {}  # while it works, it says what it does
        return Task(
            id=row.id,
            status=visible_status(row, questions),
            created=row.created,
            updated=row.updated,
            ttl=row.ttl,
            poll=self._poll(row) if waits and not questions.open else row.poll,
            message="; ".join(dict.fromkeys(each.params["message"] for each in waits.values())) or self._message(row),
            questions=questions.open,
            names=questions.shown(),
            needs_names=questions.needs_names(),
            outcome=self._sealed.unseal_outcome(row),
            first_ask=row.id.startswith(FIRST_ASK),
            tool=row.name,
            reference=row.reference,
        )

    def _poll(self, row: TaskRow) -> float:
        waited = self._records.now() - row.updated
        return max(row.poll, min(waited / _POLLS_OF_A_WAIT, LONGEST_POLL))

    def _message(self, row: TaskRow) -> str:
        is_leased = row.leased_until > self._records.now()
        return STEP_GOES_ON if row.status == "cancelled" and is_leased else row.message
