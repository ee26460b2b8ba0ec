"""One run of a task by a worker: its rounds, its saved state, and its lease."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from typing import Any, Protocol, assert_never

from ..errors import (
    InvalidRequestState,
    MissingCapability,
    ProtocolError,
    RequestError,
    StoreUnavailable,
    UnknownTarget,
)
from ..flow.endings import Asking, Backgrounded, Yielded, YieldReason
from ..flow.handler import TaskTerms
from ..flow.journal import Journal
from ..flow.waiting_round import ShouldYield
from ..logs.refusals import RefusalLog
from ..protocol.messages import NOTHING, Call, Complete, Note
from ..storage.lease import Lease
from ..storage.tasks import ENDED, TaskRow
from .records import TaskRecords

logger = logging.getLogger("mrtr_server")

SAY_EVERY = 0.5
"""How often the message of a task is stored at most, in seconds."""

AGAIN_AFTER = 0.3
"""How long to wait before the store is tried again, in seconds."""

_MOST_CHARACTERS = 2000
_CANCELLED = "the task was cancelled"

TaskEnd = Complete | RequestError | Asking | Yielded | Backgrounded
"""How a round of a task ends: with the outcome of the task, with questions, or to be continued."""

Changes = Callable[[TaskRow], dict[str, Any]]
"""Makes the changes of a task, when their turn has come."""


class TaskTools(Protocol):
    """The tools whose calls are tasks: all that tasks know of how a flow is run."""

    @property
    def terms(self) -> Mapping[str, TaskTerms]:
        """How their calls become tasks, by tool; there may be more later."""
        ...

    def answer_within(self, tool: str) -> float | None:
        """Return how long a person has to answer a question of a tool, in seconds; None for the server's own limit."""
        ...

    async def run(self, call: Call, journal: Journal, run: "TaskRun", should_yield: ShouldYield) -> TaskEnd:
        """Run a round of a task.

        Args:
            call: the request that it came from.
            journal: what its flow remembers.
            run: the task.
            should_yield: asked at each boundary whether the round ends there.

        Returns:
            How the round ends.

        Raises:
            UnknownTarget: there is no such tool here.
            RequestError: nothing was run, and the task fails with it.
            StoreUnavailable: nothing was run, and it may be run later.
        """
        ...


class TaskRun:
    """One round of a task: its background, and its outlet.

    Args:
        records: the rows of the tasks.
        row: the task, as it was claimed.
        lease: the worker's right to run it.
    """

    def __init__(self, records: TaskRecords, row: TaskRow, lease: Lease) -> None:
        self.row = row
        self.lease = lease
        self.over = False
        """Whether the last change has been made, or is being made."""
        self.journal = Journal(row.created)
        self._records = records
        self._loop = asyncio.get_running_loop()
        self._writing = asyncio.Lock()
        self._message = self._said = row.message
        self._tried: list[bytes] = []
        """The journals that may have been stored without an answer from the store."""
        self._saying: asyncio.Task[None] | None = None
        self._told_dropped = False

    @property
    def lost(self) -> bool:
        """Whether the task is not this worker's any more: it was cancelled, has expired, or runs elsewhere."""
        return self.lease.lost

    # For the handler

    def send(self, note: Note) -> Awaitable[None]:
        """Drop a note: a task's client gets none (Tasks, Task Status Notifications)."""
        return NOTHING

    async def keep(self) -> None:
        """Keep the journal before anything else happens; see `Background.keep`."""
        async with self._writing:
            if self.over or not await self._change(lambda row: self._records.kept(row, self.journal)):
                await self._tell_dropped("the result of a step")

    def say(self, message: str) -> None:
        """Store the message soon. May be called from a thread."""
        # Only what every database and every client can read.
        self._message = (
            message[:_MOST_CHARACTERS].replace("\0", "\N{REPLACEMENT CHARACTER}").encode(errors="replace").decode()
        )
        with suppress(RuntimeError):  # the loop has ended, while a thread went on
            self._loop.call_soon_threadsafe(self._say_soon)

    def _say_soon(self) -> None:
        if not self.over and (self._saying is None or self._saying.done()):
            self._saying = self._loop.create_task(self._say())

    async def _say(self) -> None:
        while self._said != self._message and not self.lost:
            async with self._writing:
                await self._change(lambda row: {})
            await asyncio.sleep(SAY_EVERY)

    # For the worker

    def found(self, row: TaskRow, since: float) -> bool:
        """Note that the task was claimed again, since its lease had ended; return whether this run continues it.

        It does not where others have worked on it meanwhile: what they have recorded is not in our journal.
        """
        if row.version > self.row.version and not self.lost:
            self.lease.lost = not self._knows(row)
            self.row = row
        self.lease.hold(since)
        return not self.lost

    async def end(self, changes: Changes) -> None:
        """Change the task for the last time, and leave it. Raises `OverBudget`, and may then be called again."""
        free = {"lease": "", "leased_until": 0.0}
        if not await self._end(lambda row: {**changes(row), **free, "attempts": 0}, patient=True):
            await self._tell_dropped("how a round ended")

    async def leave(self) -> None:
        """Leave the task as it was last kept to other workers.

        It did not end its worker, so the attempt does not count. A store that is away is not waited for: the lease runs
        out by itself.
        """

        def left(row: TaskRow) -> dict[str, Any]:
            return {"lease": "", "leased_until": 0.0, "attempts": max(row.attempts - 1, 0)}

        await self._end(left, patient=False)

    async def _end(self, changes: Changes, *, patient: bool) -> bool:
        async with self._writing:  # so that a message that is just being stored is
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
        if not self.lost:
            why = "this worker has handed the task back, so that another one continues it from what was recorded"
        else:
            try:
                why = self._why_lost(await self._records.store.find_task(self.row.id))
            except StoreUnavailable:
                why = "the task is not this worker's any more"
        level = logging.INFO if why is _CANCELLED else logging.WARNING
        logger.log(level, "A task of %r (%s): %s is dropped, since %s", self.row.name, self.row.reference, what, why)

    def _why_lost(self, row: TaskRow | None) -> str:
        if row is None:
            return "the task has expired"
        if row.status in ENDED:
            return _CANCELLED if row.status == "cancelled" else f"the task was {row.status} meanwhile"
        return (
            "another worker has taken the task over: this one was silent for longer than its lease of "
            f"{self.lease.seconds:g} s"
        )

    async def _change(self, changes: Changes, *, patient: bool = True) -> bool:
        """Change the task while this worker has it; return whether it was.

        A store that is away is waited for, since what has been done must not be done again.
        """
        made: dict[str, Any] = {}
        while not self.lost:
            if not made:
                made, message = changes(self.row), self._message
                if message != self._said:
                    made.setdefault("message", message)
                if "journal" in made:
                    self._tried.append(made["journal"])
                made["updated"] = self._records.now()
            try:
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
            if message != self._said:
                self._said = message
                self._records.notify(self.row.id)
            return True
        return False

    async def _look_again(self) -> None:
        """Reload a task that has changed; continue if it is still this worker's."""
        found = await self._records.store.find_task(self.row.id)
        if found is None or found.status != "working" or found.lease != self.row.lease or not self._knows(found):
            self.lease.lost = True
        else:
            self.row = found

    def _knows(self, row: TaskRow) -> bool:
        """Check whether nobody else has recorded anything.

        The lease does not say that, since others may have had it before it came back.
        """
        is_same = self._records.sealed.is_same_journal
        return any(is_same(row, row.journal, ours) for ours in (self.row.journal, *self._tried))


class Executor:
    """Runs rounds of tasks, and records how they end.

    Args:
        records: the rows of the tasks.
        tools: the tools.
        leave_to_others: notes that this worker is to claim a task no more for a while, for so many seconds if they are
            given.
    """

    def __init__(self, records: TaskRecords, tools: TaskTools, leave_to_others: Callable[..., None]) -> None:
        self._records = records
        self._tools = tools
        self._leave_to_others = leave_to_others
        self._refusals = RefusalLog()
        self._told: set[str] = set()

    async def execute(self, run: TaskRun, turn: asyncio.Semaphore, should_yield: ShouldYield) -> None:
        """Run a round of a task, or hand the task back.

        Args:
            run: the task.
            turn: held while it runs.
            should_yield: asked whether this worker is to run no more of it.
        """
        try:
            async with turn:
                if should_yield() is not None:
                    await run.leave()
                else:
                    await self._run_round(run, should_yield)
        except InvalidRequestState as refused:
            self._tell_once(f"Tasks can't be unsealed: {refused.reason}. Give every replica all keys of the ring")
            self._leave_to_others(run.row)
            await run.leave()
        except UnknownTarget:
            self._tell_once(
                f"There are tasks of {run.row.name!r}, a tool that this server does not have; other servers may"
            )
            self._leave_to_others(run.row)
            await run.leave()
        except StoreUnavailable as error:
            if not error.reference:  # or the log has a line of the outage
                self._refusals.note("A task of %r can't continue now: %r", run.row.name, str(error))
            self._leave_to_others(run.row, AGAIN_AFTER)
            await run.leave()
        except RequestError as error:
            await self._fail(run, error)
        except asyncio.CancelledError:
            if not run.lost:
                with suppress(asyncio.CancelledError):
                    await run.leave()
            raise
        except Exception as error:
            logger.error("A task of %r could not be run or stored", run.row.name, exc_info=error)
            await self._fail(run, ProtocolError("The task could not be stored"))

    async def _run_round(self, run: TaskRun, should_yield: ShouldYield) -> None:
        records, row, limits = self._records, run.row, self._records.limits
        if row.attempts > limits.task_attempts:
            logger.error(
                "A task of %r has failed: it was started %d times and reached no step, question or end. Each time its "
                "worker ended, or was silent for longer than its lease of %g s, as when its event loop is blocked",
                row.name,
                row.attempts - 1,
                limits.lease_seconds,
            )
            raise ProtocolError("The task failed: it could not be run to its end")
        call = records.sealed.unseal_call(row)
        run.journal = journal = records.sealed.unseal_journal(row, records.now())
        journal.deliver(records.sealed.unseal_questions(row).answers)

        def run_should_yield() -> YieldReason | None:
            return YieldReason.LEASE_IN_DOUBT if run.lease.in_doubt else should_yield()

        end = await self._tools.run(call, journal, run, run_should_yield)
        match end:
            case Complete():
                await run.end(lambda row: records.completed(row, end))
            case RequestError():
                await self._fail(run, end)
            case Asking(questions):
                within = self._tools.answer_within(row.name)
                within = limits.flow_seconds if within is None else within
                journal.park({key: question.digest for key, question in questions.items()})
                await run.end(lambda row: records.parked(row, journal, questions, within))
            case Yielded() | Backgrounded():  # which is what a task is already
                await run.end(lambda row: records.kept(row, journal))
            case unknown:
                assert_never(unknown)

    async def _fail(self, run: TaskRun, error: RequestError) -> None:
        if isinstance(error, MissingCapability):
            self._refusals.note_lacking(f"a task of {run.row.name}", "", error)
        await run.end(lambda row: self._records.failed(row, error))

    def _tell_once(self, what: str) -> None:
        if what not in self._told:
            self._told.add(what)
            logger.error("%s", what)
