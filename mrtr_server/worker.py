"""The worker: claims tasks, runs their rounds, and keeps what they do."""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from secrets import token_hex
from typing import Any, Protocol

from .admission import Admission
from .errors import HandlerFailed, RequestError, StateRefused, StoreUnavailable, UnknownTarget
from .journal import Journal
from .limits import Limits
from .messages import NOTHING, Call, Complete, Note, Question
from .task_store import TaskRow
from .tasks import Tasks

logger = logging.getLogger("mrtr_server")

LOOK_EVERY = 1.0
"""How often a worker looks for tasks that nobody has told it of, in seconds."""

HEARD_EVERY = 0.5
"""How often it says that it is alive, and hears what was cancelled, in seconds."""

SAY_EVERY = 0.5
"""How often the message of a task is stored at most, in seconds."""

AGAIN_AFTER = 0.3
"""How long to wait before the store is tried again, in seconds."""

NOT_HERE_FOR = 2.0
"""How long a task is left to others whose tool or key this server has not, in seconds."""

END_WITHIN = 5.0
"""How long tasks have to come to a boundary when the server ends, in seconds."""

CANCEL_WITHIN = 1.0
"""How long what is left of them has after that, each time that it is cancelled, in seconds."""

_MOST_OVERDUE = 100
_MOST_CHARACTERS = 2000


class RunTask(Protocol):
    """Runs a round of a task; see `Tools.run_task`."""

    def __call__(
        self, call: Call, journal: Journal, background: "TaskRun", outlet: "TaskRun", leaves: Callable[[], bool]
    ) -> Awaitable[Complete | dict[str, Question]]:
        """Give the result, or the questions that it asks; none if it was handed over."""
        ...


class TaskRun:
    """One task while a worker runs it: its background, and its outlet.

    Parameters:
        tasks: seals what it holds.
        row: the task, as it was claimed.
        journal: what its flow remembers.
    """

    started = True

    def __init__(self, tasks: Tasks, row: TaskRow, journal: Journal) -> None:
        self.row = row
        self.lost = False
        """Whether the task is not this worker's any more: it was cancelled, has expired, or runs elsewhere."""
        self._tasks = tasks
        self._journal = journal
        self._loop = asyncio.get_running_loop()
        self._writing = asyncio.Lock()
        self._message = row.message
        self._saying: asyncio.Task[None] | None = None

    def send(self, note: Note) -> Awaitable[None]:
        """Drop a note: a task's client gets none (Tasks, Task Status Notifications)."""
        return NOTHING

    async def keep(self) -> None:
        """Keep the journal before anything else happens; see `Background.keep`."""
        await self.change(journal=lambda: self._tasks.seal_journal(self.row, self._journal), attempts=lambda: 0)

    def say(self, message: str) -> None:
        """Store the message soon. May be called from a thread."""
        self._message = message[:_MOST_CHARACTERS]
        self._loop.call_soon_threadsafe(self._say_soon)

    def _say_soon(self) -> None:
        if self._saying is None or self._saying.done():
            self._saying = self._loop.create_task(self._say())

    async def _say(self) -> None:
        while self.row.message != self._message and await self.change(message=lambda: self._message):
            self._tasks.tell(self.row.id)
            await asyncio.sleep(SAY_EVERY)

    async def change(self, **changes: Callable[[], Any]) -> bool:
        """Change the task while it is ours; say whether it was. What it changes to is made when its turn has come.

        A store that is away is waited for: what has been done must not be done again.
        """
        async with self._writing:
            while not self.lost:
                made = {name: make() for name, make in changes.items()}
                try:
                    changed = await self._tasks.store.change_task(self.row, **made, updated=self._tasks.now())
                except StoreUnavailable as error:
                    logger.warning("A task could not be kept, and is tried again: %s", error)
                    await asyncio.sleep(AGAIN_AFTER)
                    continue
                if changed is not None:
                    self.row = changed
                    return True
                self.lost = True
        return False

    async def end(self, **changes: Callable[[], Any]) -> None:
        """Change the task for the last time, and leave it."""
        if self._saying is not None:
            async with self._writing:  # not in the middle of a change: nobody knew then whether it has happened
                self._saying.cancel()
        if self._message != self.row.message:
            changes.setdefault("message", lambda: self._message)
        if await self.change(**changes, lease=lambda: "", leased_until=lambda: self._left_until):
            self._tasks.tell(self.row.id)

    _left_until = 0.0

    async def leave(self, seconds: float) -> None:
        """Leave the task to other workers, for so long at least."""
        self._left_until = self._tasks.now() + seconds if seconds else 0.0
        await self.end()


class Worker:
    """Runs tasks in this process, several at once.

    Parameters:
        tasks: the tasks.
        run_task: runs a round of one.
        admission: says whether the server is draining.
        limits: how many run at once, how long one may be silent, and how often it may take its worker with it.
    """

    def __init__(self, tasks: Tasks, run_task: RunTask, admission: Admission, limits: Limits) -> None:
        self._tasks = tasks
        self._run_task = run_task
        self._admission = admission
        self._limits = limits
        self._lease = token_hex(16)
        self._running: dict[str, tuple[TaskRun, asyncio.Task[None]]] = {}
        self._ended = asyncio.Event()
        self._claiming = asyncio.Lock()
        self._loops: list[asyncio.Task[None]] = []
        self._loop: asyncio.AbstractEventLoop | None = None
        self._leaving = False

    def start(self) -> None:
        """Start to work on this event loop, unless it does already."""
        loop = asyncio.get_running_loop()
        if self._loop is loop and not self._leaving:
            return
        self._loop, self._leaving = loop, False
        self._running, self._ended, self._claiming = {}, asyncio.Event(), asyncio.Lock()
        self._loops = [loop.create_task(self._claim()), loop.create_task(self._be_heard())]

    async def close(self) -> None:
        """Hand the tasks back: those that come to a boundary in time from there, the others from their last step."""
        self._leaving = True
        if self._loop is not asyncio.get_running_loop():
            return
        async with self._claiming:  # what has just been claimed is handed back, too
            self._loops[0].cancel()
        # At first they may come to a boundary; then the handler is cancelled, and then the waiting for its steps.
        late = {task for _, task in self._running.values()}
        for seconds in (END_WITHIN, CANCEL_WITHIN, CANCEL_WITHIN):
            if late:
                _, late = await asyncio.wait(late, timeout=seconds)
                for task in late:
                    task.cancel()
        for loop in self._loops:
            loop.cancel()
        await asyncio.gather(*self._loops, return_exceptions=True)
        self._loop = None

    def _leaves(self) -> bool:
        return self._leaving or self._admission.draining

    # Claiming

    async def _claim(self) -> None:
        while True:
            free = self._limits.tasks - len(self._running)
            try:
                if self._leaves():
                    await asyncio.sleep(AGAIN_AFTER)
                elif free <= 0:
                    self._ended.clear()
                    await self._ended.wait()
                else:
                    seconds = self._limits.lease_seconds
                    async with self._claiming:
                        rows = await self._tasks.store.claim_tasks(self._lease, seconds=seconds, most=free)
                        for row in await self._beginning(rows):
                            self._begin(row)
                    if not rows:
                        await self._tasks.store.wait_for_tasks(LOOK_EVERY)
            except StoreUnavailable as error:
                logger.warning("Tasks can't be claimed: %s", error)
                await asyncio.sleep(AGAIN_AFTER)

    async def _beginning(self, rows: list[TaskRow]) -> list[TaskRow]:
        """Give those of the claimed tasks that begin now.

        One on its last attempt may be what ends its workers: they begin one at a time, so that none is failed for what
        ran beside it. The others go back, before anything can happen, and that attempt does not count.
        """
        last = self._limits.task_attempts
        suspects = [row for row in rows if row.attempts == last > 1]
        if not suspects:
            return rows
        waiting = suspects if any(run.row.attempts == last for run, _ in self._running.values()) else suspects[1:]
        for row in waiting:
            until = self._tasks.now() + NOT_HERE_FOR
            await self._tasks.store.change_task(row, attempts=last - 1, lease="", leased_until=until)
        return [row for row in rows if row not in waiting]

    def _begin(self, row: TaskRow) -> None:
        running = self._running.get(row.id)
        if running is not None:  # the lease had ended, and nobody else has taken it
            running[0].row = row
            return
        try:
            journal = self._tasks.journal(row)
            journal.deliver(self._tasks.questions(row).answers)
            call: Call | None = self._tasks.call(row)
        except StateRefused as refused:
            logger.error("A task does not open: %s. Every replica needs all keys of the ring", refused.reason)
            journal, call = Journal(row.created), None
        run = TaskRun(self._tasks, row, journal)
        task = asyncio.create_task(self._run(run, call, journal))
        self._running[row.id] = (run, task)
        task.add_done_callback(lambda _: self._done(row.id))

    def _done(self, id: str) -> None:
        self._running.pop(id, None)
        self._ended.set()

    # Running

    async def _run(self, run: TaskRun, call: Call | None, journal: Journal) -> None:
        if run.row.attempts > self._limits.task_attempts:
            logger.error(
                "A task of %r has ended its worker %d times, and is failed", run.row.name, run.row.attempts - 1
            )
            await self._fail(run, HandlerFailed("The task was given up: it could not be run to its end"))
            return
        if call is None:
            await run.leave(NOT_HERE_FOR)
            return
        try:
            came = await self._run_task(call, journal, run, run, lambda: run.lost or self._leaves())
            if isinstance(came, Complete):
                await self._complete(run, came)
            elif came:
                await self._park(run, journal, came)
            else:
                await run.end(journal=lambda: self._tasks.seal_journal(run.row, journal), attempts=lambda: 0)
        except UnknownTarget:  # a tool of another version
            await run.leave(NOT_HERE_FOR)
        except RequestError as error:
            await self._fail(run, error)
        except asyncio.CancelledError:
            if not run.lost:
                with suppress(asyncio.CancelledError):
                    await run.leave(0.0)
            raise
        except Exception as error:
            logger.error("A task of %r could not be kept", run.row.name, exc_info=error)
            await self._fail(run, HandlerFailed("The task could not be kept"))

    async def _complete(self, run: TaskRun, outcome: Complete) -> None:
        sealed = self._tasks.seal_outcome(run.row, outcome)
        await run.end(status=lambda: "completed", outcome=lambda: sealed, questions=lambda: b"")

    async def _fail(self, run: TaskRun, error: RequestError) -> None:
        changes = self._tasks.failed(run.row, error)
        changes.pop("updated")
        await run.end(**{name: (lambda value=value: value) for name, value in changes.items()})

    async def _park(self, run: TaskRun, journal: Journal, asked: dict[str, Question]) -> None:
        journal.park({key: question.digest for key, question in asked.items()})
        questions = self._tasks.questions(run.row)
        questions.ask(asked)
        now = self._tasks.now()
        await run.end(
            status=lambda: "input_required",
            journal=lambda: self._tasks.seal_journal(run.row, journal),
            questions=lambda: self._tasks.seal_questions(run.row, questions),
            deadline=lambda: min(run.row.created + run.row.ttl, now + self._tasks.answer_within(run.row.name)),
            attempts=lambda: 0,
        )

    # What happens meanwhile

    async def _be_heard(self) -> None:
        looked = time.monotonic()
        while True:
            await asyncio.sleep(HEARD_EVERY)
            try:
                await self._renew()
                if time.monotonic() - looked >= LOOK_EVERY:
                    looked = time.monotonic()
                    await self._fail_overdue()
            except StoreUnavailable as error:
                logger.warning("Tasks can't be renewed: %s", error)

    async def _renew(self) -> None:
        ids = list(self._running)
        if not ids:
            return
        held = await self._tasks.store.renew_tasks(self._lease, ids, seconds=self._limits.lease_seconds)
        for id in ids:
            run, task = self._running.get(id, (None, None))
            if run is not None and task is not None and id not in held and run.row.lease:
                run.lost = True
                task.cancel()

    async def _fail_overdue(self) -> None:
        for row in await self._tasks.store.overdue_tasks(most=_MOST_OVERDUE):
            if await self._tasks.store.change_task(row, **self._tasks.expired(row)):
                self._tasks.tell(row.id)
