"""One round of a task at a worker: what of it is stored, and the lease under which that is done."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from contextlib import suppress
from contextvars import Context
from dataclasses import replace
from typing import Any

from ..errors import InvalidRequestState, StoreUnavailable
from ..flow.journal import Journal
from ..logs import logger
from ..protocol.ask_kinds import WAIT
from ..protocol.callers import Principal
from ..protocol.messages import NOTHING, Note, Piece, Progress, Question, YieldReason, action_of, kind_of
from ..storage.rows import ENDED, Lease, TaskRow, WaitRow
from ..tally import ANSWERS, DROPPED
from ..well_formed import well_formed
from .records import PieceWriter, TaskRecords
from .sealing import Questions

REPORT_INTERVAL = 0.5  # seconds between writes of a task's message, and notices of its progress, at least
AGAIN_AFTER = 0.3  # seconds until the store is tried again

_MOST_CHARACTERS = 2000
_CANCELLED = "the task was cancelled"


def _nothing() -> None:
    return None


Changes = Callable[[TaskRow], dict[str, Any]]  # makes the changes of a task, when their turn has come


class TaskRun:
    """One round of a task: its background, and its outlet. It asks `leaves` whether this worker runs no more of it."""

    def __init__(
        self, records: TaskRecords, row: TaskRow, lease: Lease, leaves: Callable[[], YieldReason | None] = _nothing
    ) -> None:
        self.row = row
        self.lease = lease
        self.over = False  # the last change has been made, or is being made
        self.leaves = leaves
        self._begun = False
        self._journal: Journal | None = None
        self._records = records
        self._loop = asyncio.get_running_loop()
        self._writing = asyncio.Lock()
        self._message = self._said = row.message
        self._tried: dict[bytes, dict[str, str]] = {}
        """The journals that may have been stored without an answer from the store, each with the questions that it
        has."""
        self._saying: asyncio.Task[None] | None = None
        self._progress: Progress | None = None
        self._sending: asyncio.TimerHandle | None = None
        self._pieces: PieceWriter | None = None
        self._told_dropped = False
        self._checking: asyncio.Future[bool] | None = None
        self._looking: asyncio.Task[None] | None = None
        self._is_to_look: bool  # as of `look_soon`
        self._asking: dict[str, str] = {}
        """The questions when the change that asks them is made: the digest of each, by name."""
        self._unlisted: list[WaitRow] = []
        """The waits of the next change that are not in the list yet."""
        self._on_answers: Callable[[], None] = _nothing
        self._answer_within: float  # as of `begin`
        self._principal: Principal | None  # likewise
        self.task: asyncio.Task[None] | None = None

    def start(self, running: Coroutine[Any, Any, None]) -> "asyncio.Task[None]":
        """Begin to run; return the asyncio task, which `stop` cancels."""
        self.task = asyncio.create_task(running, context=Context())  # it may begin within a request
        return self.task

    def begin(self, journal: Journal, answer_within: float, principal: Principal | None) -> None:
        """Note that the handler begins. Raises `InvalidRequestState`."""
        self._journal, self._answer_within, self._principal = journal, answer_within, principal
        journal.task_ends = self.row.deadline
        self.take_answers(self.row)
        self._begun = True

    @property
    def journal(self) -> Journal:
        """What the flow remembers, once its handler has begun."""
        assert self._journal is not None  # noqa: S101  or there is nothing to keep, and nothing to ask
        return self._journal

    def should_yield(self) -> YieldReason | None:
        """Return why the round is to end at its next boundary; see `Background.should_yield`."""
        return YieldReason.LEASE_IN_DOUBT if self.lease.in_doubt else self.leaves()

    @property
    def has_asked(self) -> bool:
        """Whether an answer may come to what its handler has asked."""
        return self._journal is not None and bool(self._journal.asked)

    def stop(self) -> None:
        """End the run: the task is not this worker's any more. A running step finishes, and nothing else begins."""
        self.lease.lost = True
        if self.task is not None and not self.task.cancelling():
            self.task.cancel()

    @property
    def lost(self) -> bool:
        """Whether the task is not this worker's any more: it was cancelled, has expired, or runs elsewhere."""
        return self.lease.lost

    # For the handler

    def send(self, note: Note) -> Awaitable[None]:
        """Send progress soon to those who wait for the result, and pieces of it; messages go nowhere."""
        # From any thread, but for pieces.
        if isinstance(note, Piece):
            if self._pieces is None:
                quota = self._records.quotas.of(self._principal, self.row.created)
                self._pieces = PieceWriter(self._records.pieces, self.row, quota, lambda: self.over or self.lost)
            return self._pieces.add(note)
        if isinstance(note, Progress):
            self._progress = note
            with suppress(RuntimeError):  # the loop has ended, while a thread went on
                self._loop.call_soon_threadsafe(self._send_soon)
        return NOTHING

    def _send_soon(self) -> None:
        if self._sending is None:
            self._send_progress()
            self._sending = self._loop.call_later(REPORT_INTERVAL, self._send_later)

    def _send_later(self) -> None:
        self._sending = None
        if self._progress is not None:
            self._send_soon()

    def _send_progress(self) -> None:
        progress, self._progress = self._progress, None
        if progress is not None and not (self.over or self.lost):
            self._records.notify_progress(self.row, progress)

    async def may_begin(self) -> bool:
        """Check that the task is still this worker's, and not cancelled; see `Background.may_begin`."""
        # Steps that are begun at the same time share a statement.
        if self._checking is not None:
            return await asyncio.shield(self._checking)
        checking = self._checking = self._loop.create_future()
        self._loop.call_soon(self._end_sharing)
        is_held = False
        try:
            is_held = await self._is_held()
        finally:
            checking.set_result(is_held)
        return is_held

    def _end_sharing(self) -> None:
        self._checking = None  # what comes later needs a statement of its own

    async def _is_held(self) -> bool:
        while not self.lost:
            try:
                if not await self._records.store.holds_task(self.row.lease, self.row.id):
                    self.stop()
                break
            except StoreUnavailable:  # of which the log has a line
                await asyncio.sleep(AGAIN_AFTER)
        return not self.lost

    async def keep(self) -> None:
        """Keep the journal before anything else happens; see `Background.keep`."""
        if self._pieces is not None:  # the journal counts them
            await self._pieces.flush()
        async with self._writing:
            if self.over or not await self._change(lambda row: self._records.kept(row, self.journal)):
                await self._tell_dropped("the result of a step")

    async def publish(self, asked: Mapping[str, Question]) -> None:
        """Publish what is asked, beside what runs; see `Background.publish`."""
        published = False
        if self._pieces is not None:
            await self._pieces.flush()
        with suppress(InvalidRequestState):  # which the end of the round will meet, too
            async with self._writing:
                names = self._records.sealed.unseal_questions(self.row).names.values()
                is_open = all(name in names and self.journal.asked.get(name) == asked[name].digest for name in asked)
                if not (self.over or is_open):  # since an earlier round
                    published = await self._change(lambda row: self._asked(row, self._ask(row, asked)))
        if published:
            self._records.notify(self.row.id)

    def parked(self, row: TaskRow, asked: Mapping[str, Question], *, together: bool) -> dict[str, Any]:
        """Return the changes that let the task wait for answers, unless one has come meanwhile. Raises `OverBudget`."""
        questions = self._ask(row, asked)
        questions.withdraw(set(questions.names.values()) - asked.keys())
        questions.together = together
        self._asking = {name: digest for name, digest in self._asking.items() if name in asked}
        waits = questions.open if together else len(questions.open) == len(asked)
        return {**self._asked(row, questions), "status": "input_required" if waits else "working"}

    def _ask(self, row: TaskRow, asked: Mapping[str, Question]) -> Questions:
        """Return what the task asks when this is asked as well; what was answered by now is taken first."""
        questions, before = self.take_answers(row), self.journal.asked
        open_ = {name: each for name, each in asked.items() if self.journal.answer(name, each.digest) is None}
        questions.withdraw({name for name, each in open_.items() if before.get(name) != each.digest})
        for name, each in open_.items():
            within = each.params["within"] if each.kind == WAIT.name else None
            questions.ask({name: each}, self._records.now() + (within or self._answer_within))
        self._asking = {**before, **{name: each.digest for name, each in open_.items()}}
        return questions

    def _asked(self, row: TaskRow, questions: Questions) -> dict[str, Any]:
        self._unlisted = self._records.listed(row, questions)
        # A question counts when it is stored: until then an answer is for the question before.
        return self._records.asked(row, replace(self.journal, asked=self._asking), questions)

    def take_answers(self, row: TaskRow) -> Questions:
        """Move the answers that have come into the journal; return what is still asked, without answers."""
        questions = self._records.sealed.unseal_questions(row)
        if self._journal is None:  # `begin` takes them
            return questions
        new = {name: raw for name, raw in questions.answers.items() if name in self.journal.asked}
        for name, raw in new.items():
            self._records.tally.add(ANSWERS, kind_of(self.journal.asked[name]), action_of(raw))
        self.journal.take(questions.answers)
        questions.answers = {}
        if new:
            self._on_answers()
        return questions

    def on_answers(self, take: Callable[[], None]) -> None:
        """Call a function when the journal has new answers; see `Background.on_answers`."""
        self._on_answers = take

    def say(self, message: str) -> None:
        """Store the message soon. May be called from a thread."""
        # Only what every database and every client can read.
        self._message = well_formed(message[:_MOST_CHARACTERS].replace("\0", "\N{REPLACEMENT CHARACTER}"))
        with suppress(RuntimeError):  # the loop has ended, while a thread went on
            self._loop.call_soon_threadsafe(self._say_soon)

    def _say_soon(self) -> None:
        if not self.over and (self._saying is None or self._saying.done()):
            self._saying = self._loop.create_task(self._say())

    async def _say(self) -> None:
        while self._said != self._message and not self.lost:
            async with self._writing:
                if self._said != self._message:  # no other change has stored it meanwhile
                    await self._change(lambda row: {})
            await asyncio.sleep(REPORT_INTERVAL)

    # For the worker

    def found(self, row: TaskRow, since: float) -> bool:
        """Note that the task was claimed again, since its lease had ended; return whether this run continues it."""
        # It does not where others have worked on it meanwhile: what they have recorded is not in our journal.
        if row.version > self.row.version and not self.lost:
            self.lease.lost = not self._adopt(row)
        self.lease.hold(since)
        return not self.lost

    def on_change(self, row: TaskRow) -> None:
        """Note what the client has just done to the task."""
        if row.status in ENDED:
            self.stop()
        elif self._writing.locked() or row.version != self.row.version + 1:
            self.look_soon()
        elif not (self.over or self.lost):
            self.row = row
            self.take_answers(row)

    def look_soon(self) -> None:
        """Look at the task, to which its client has done something."""
        self._is_to_look = True
        if self._looking is None or self._looking.done():
            self._looking = self._loop.create_task(self._look())

    async def _look(self) -> None:
        while self._is_to_look:
            self._is_to_look = False
            with suppress(StoreUnavailable):  # the worker will look by itself
                async with self._writing:
                    if not (self.over or self.lost):
                        await self._look_again()
                        if self.lost:
                            self.stop()

    async def end(self, changes: Changes) -> None:
        """Change the task for the last time, and leave it. Raises `OverBudget`, and may then be called again."""
        free = {"lease": "", "leased_until": 0.0}
        if not await self._end(lambda row: {**changes(row), **free, "attempts": 0}, patient=True):
            await self._tell_dropped("how a round ended")

    async def leave(self) -> None:
        """Leave the task as it was last kept to other workers."""
        # It did not end its worker, so the attempt does not count; nor do those before it, if its handler has begun. A
        # store that is unavailable is not waited for: the lease expires by itself.

        def left(row: TaskRow) -> dict[str, Any]:
            return {"lease": "", "leased_until": 0.0, "attempts": 0 if self._begun else max(row.attempts - 1, 0)}

        await self._end(left, patient=False)

    async def let_go(self) -> None:
        """Return the lease of a task that was cancelled while it ran, since nothing of it runs any more."""
        with suppress(StoreUnavailable):  # then its lease runs out
            row = await self._records.store.find_task(self.row.id)
            if row is not None and row.status == "cancelled" and row.lease == self.row.lease:
                await self._records.change(row, lease="", leased_until=0.0)

    async def _end(self, changes: Changes, *, patient: bool) -> bool:
        if self._pieces is not None:
            await self._pieces.end()
        async with self._writing:  # so that a message that is just being stored is
            self._send_progress()
            self.over = True
            if self._saying is not None:
                self._saying.cancel()
            changed = await self._change(changes, patient=patient)
        if changed:
            self._records.notify(self.row.id)
        return changed

    async def _tell_dropped(self, what: str) -> None:
        """Log that something of this run is not recorded, and why: once, since nothing of it is from then on."""
        if self._told_dropped:
            return
        self._told_dropped = True
        self._records.tally.add(DROPPED, "task")
        if not self.lost:
            why = "this worker has handed the task back, so that another one continues it from what was recorded"
        else:
            try:
                why = self._why_lost(await self._records.store.find_task(self.row.id))
            except StoreUnavailable:
                why = "the task is not this worker's any more"
        level = logging.INFO if why is _CANCELLED else logging.WARNING
        name, reference = self.row.name, self.row.reference
        fields = {"event": "result_dropped", "work": "task", "tool": name, "task": reference}
        logger.log(
            level, "A task of %r (%s): %s is dropped, since %s", name, reference, what, why, extra={"fields": fields}
        )

    def _why_lost(self, row: TaskRow | None) -> str:
        if row is None:
            return "the task has expired, or its caller was forgotten"
        if row.status in ENDED:
            return _CANCELLED if row.status == "cancelled" else f"the task was {row.status} meanwhile"
        return (
            "another worker has taken the task over: this one was silent for longer than its lease of "
            f"{self.lease.seconds:g} s"
        )

    async def _change(self, changes: Changes, *, patient: bool = True) -> bool:
        """Change the task while this worker has it; return whether it was."""
        # An unavailable store is waited for, since what has been done must not be done again.
        made: dict[str, Any] = {}
        while not self.lost:
            if not made:
                made, message = changes(self.row), self._message
                if message != self._said:
                    made.setdefault("message", message)
                if "journal" in made:
                    self._tried[made["journal"]] = self._asking if "questions" in made else self.journal.asked
                made["updated"] = self._records.now()
            try:
                await self._list_waits()
                changed = await self._records.store.change_task(self.row, **made)
                if changed is None:
                    await self._look_again()
                    made = {}
                    continue
            except StoreUnavailable:  # of which the log has a line
                if not patient:
                    return False
                await asyncio.sleep(AGAIN_AFTER)
                continue
            self.row = changed
            self._tried.clear()
            if "questions" in made and self._journal is not None:
                self.journal.asked = self._asking
            if message != self._said:
                self._said = message
                self._records.notify(self.row.id)
            await self._records.tell(changed, made)
            return True
        return False

    async def _list_waits(self) -> None:
        """List what somebody else is to answer, before it is asked: otherwise nobody might ever find it."""
        while self._unlisted:
            await self._records.store.put_wait(self._unlisted[-1])
            self._unlisted.pop()

    async def _look_again(self) -> None:
        found = await self._records.store.find_task(self.row.id)
        is_ours = found is not None and found.status == "working" and found.lease == self.row.lease
        if found is None or not is_ours or not self._adopt(found):
            self.lease.lost = True

    def _adopt(self, row: TaskRow) -> bool:
        """Continue with the task as it is now, if nobody else has recorded anything; return whether that is so."""
        # The journal says it: ours has all that it has. The lease does not, since others may have had it before it came
        # back.
        is_same = self._records.sealed.is_same_journal
        if not is_same(row, row.journal, self.row.journal):
            tried = next((ours for ours in self._tried if is_same(row, row.journal, ours)), None)
            if tried is None:
                return False
            self.journal.asked = self._tried[tried]
        self.row = row
        with suppress(InvalidRequestState):  # which the end of the round will meet, too
            self.take_answers(row)
        return True
