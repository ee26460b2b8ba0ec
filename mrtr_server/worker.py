"""The worker: claims tasks, runs their rounds, and keeps what they do."""

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import suppress
from contextvars import Context
from secrets import token_hex
from typing import Protocol

from .admission import Admission
from .errors import ProtocolError, RequestError, StateRefused, StoreUnavailable, UnknownTarget
from .journal import Journal
from .limits import Limits
from .messages import Call, Complete, Question
from .redemption import Lease
from .task_run import AGAIN_AFTER, TaskRun
from .task_store import TaskRow
from .tasks import Tasks

logger = logging.getLogger("mrtr_server")

LOOK_EVERY = 1.0
"""How often a worker looks for tasks that nobody has told it of, in seconds."""

HEARD_EVERY = 0.5
"""How often it says that it is alive, and hears what was cancelled, in seconds."""

NOT_HERE_FOR = 2.0
"""How long a worker leaves a task to others that it has no tool, key or turn for, in seconds."""

END_WITHIN = 5.0
"""How long tasks have to come to a boundary when the server ends, in seconds."""

CANCEL_WITHIN = 1.0
"""How long what is left of them has after that, each time that it is cancelled, in seconds."""

_MOST_OVERDUE = 100


class RunTask(Protocol):
    """Runs a round of a task; see `Tools.run_task`."""

    def __call__(
        self, call: Call, journal: Journal, background: TaskRun, outlet: TaskRun, leaves: Callable[[], bool]
    ) -> Awaitable[Complete | dict[str, Question]]:
        """Give the result, or the questions that it asks; none if it was handed over."""
        ...


class Worker:
    """Runs tasks in this process, several at once, on each event loop that it is started on.

    Parameters:
        tasks: the tasks.
        run_task: runs a round of one.
        concurrency: gives how many tasks of a tool run at once.
        admission: says whether the server is draining.
        limits: how many run at once, how long one may be silent, and how often it may take its worker with it.
    """

    def __init__(
        self,
        tasks: Tasks,
        run_task: RunTask,
        concurrency: Callable[[str], int],
        admission: Admission,
        limits: Limits,
    ) -> None:
        self._tasks = tasks
        self._run_task = run_task
        self._concurrency = concurrency
        self._admission = admission
        self._limits = limits
        self._at_work: dict[asyncio.AbstractEventLoop, _AtWork] = {}

    def start(self) -> None:
        """Start to work on this event loop, unless it does already."""
        loop = asyncio.get_running_loop()
        if loop in self._at_work:
            return
        for other in [each for each in self._at_work if each.is_closed()]:
            del self._at_work[other]
        self._at_work[loop] = _AtWork(self._tasks, self._run_task, self._concurrency, self._admission, self._limits)

    async def close(self) -> None:
        """Hand the tasks back: those that come to a boundary in time from there, the others from their last step."""
        loop = asyncio.get_running_loop()
        if loop in self._at_work:
            try:
                await self._at_work[loop].close()
            finally:
                del self._at_work[loop]


class _AtWork:
    """A worker on one event loop."""

    def __init__(
        self,
        tasks: Tasks,
        run_task: RunTask,
        concurrency: Callable[[str], int],
        admission: Admission,
        limits: Limits,
    ) -> None:
        self._tasks = tasks
        self._run_task = run_task
        self._concurrency = concurrency
        self._admission = admission
        self._limits = limits
        self._name = token_hex(16)
        self._turns: dict[str, asyncio.Semaphore] = {}
        self._running: dict[str, tuple[TaskRun, asyncio.Task[None]]] = {}
        self._ended = asyncio.Event()
        self._closing = False
        self._claiming = False
        self._told: set[str] = set()
        self._left: dict[str, float] = {}
        """The tasks that are left to others, until when by the monotonic clock."""
        self._looked = 0.0
        # Not in the context of the request that happened to come first.
        loop, context = asyncio.get_running_loop(), Context()
        self._claims = loop.create_task(self._again_and_again(self._claim, "claimed"), context=context)
        self._heard = loop.create_task(self._again_and_again(self._be_heard, "renewed"), context=context)

    async def close(self) -> None:
        """See `Worker.close`."""
        self._closing = True
        if not self._claiming:  # what is being claimed has to be handed back
            self._claims.cancel()
        await asyncio.wait((self._claims,), timeout=END_WITHIN)
        # At first they may come to a boundary; then the handler is cancelled, and then the waiting for its steps.
        late = set(self._tasks_running())
        for seconds in (END_WITHIN, CANCEL_WITHIN, CANCEL_WITHIN):
            if late:
                _, late = await asyncio.wait(late, timeout=seconds)
                for task in late:
                    task.cancel()
        self._claims.cancel()
        self._heard.cancel()
        await asyncio.wait((self._claims, self._heard))

    def _tasks_running(self) -> list["asyncio.Task[None]"]:
        return [task for _, task in self._running.values()]

    @property
    def _leaves(self) -> bool:
        return self._closing or self._admission.draining

    async def _again_and_again(self, work: Callable[[], Awaitable[None]], what: str) -> None:
        away = False
        while not (self._closing and work == self._claim):
            try:
                await work()
                away = False
            except StoreUnavailable as error:
                if not away:
                    away = True
                    logger.warning("Tasks can't be %s: %s", what, error)
                await asyncio.sleep(AGAIN_AFTER)
            except Exception as error:
                logger.error("Tasks could not be %s", what, exc_info=error)
                await asyncio.sleep(LOOK_EVERY)

    # Claiming

    async def _claim(self) -> None:
        free = self._limits.tasks - len(self._running)
        if self._leaves:
            await asyncio.sleep(AGAIN_AFTER)
            return
        if free <= 0:
            self._ended.clear()
            await self._ended.wait()
            return
        since, seconds = time.monotonic(), self._limits.lease_seconds
        self._left = {id: until for id, until in self._left.items() if until > since}
        self._claiming = True
        try:
            without = list(self._left)
            rows = await self._tasks.store.claim_tasks(self._name, seconds=seconds, most=free, without=without)
            for row in await self._beginning(rows):
                if self._leaves:
                    await TaskRun(self._tasks, row, Lease(seconds, since)).leave()
                else:
                    self._begin(row, since)
        finally:
            self._claiming = False
        if len(rows) < free and not self._leaves:  # that was all
            await self._tasks.store.wait_for_tasks(LOOK_EVERY, without=list(self._left))

    async def _beginning(self, rows: list[TaskRow]) -> list[TaskRow]:
        """Give those of the claimed tasks that begin now, or whose turn will come here.

        One on its last attempt may be what ends its workers: they begin one at a time, so that none is failed for what
        ran beside it. And of a tool's tasks no more are here than run at once, and as many again. The others go back
        before anything begins, and that attempt does not count.
        """
        running = [run.row for run, _ in self._running.values()]
        last = self._limits.task_attempts
        suspects = [row for row in rows if row.attempts == last > 1]
        waiting = suspects if any(row.attempts == last for row in running) else suspects[1:]
        of_tool = Counter(row.name for row in running)
        for row in rows:
            if row not in waiting:
                of_tool[row.name] += 1
                if of_tool[row.name] > 2 * self._concurrency(row.name):
                    waiting.append(row)
        for row in waiting:
            self._leave_to_others(row)
            await self._tasks.store.change_task(row, attempts=row.attempts - 1, lease="", leased_until=0.0)
        return [row for row in rows if row not in waiting]

    def _leave_to_others(self, row: TaskRow, seconds: float | None = None) -> None:
        """Claim a task no more for a while. It is free for others, who would come too late if it were for nobody."""
        self._left[row.id] = time.monotonic() + (NOT_HERE_FOR if seconds is None else seconds)

    def _begin(self, row: TaskRow, since: float) -> None:
        present, working = self._running.get(row.id, (None, None))
        if present is not None and working is not None and not present.over:
            if present.found(row, since):
                return
            working.cancel()
        run = TaskRun(self._tasks, row, Lease(self._limits.lease_seconds, since))
        task = asyncio.create_task(self._run(run))
        self._running[row.id] = (run, task)
        task.add_done_callback(lambda _: self._done(run))

    def _done(self, run: TaskRun) -> None:
        if self._running.get(run.row.id, (None, None))[0] is run:
            del self._running[run.row.id]
        self._ended.set()

    # Running

    async def _run(self, run: TaskRun) -> None:
        try:
            name = run.row.name
            async with self._turns.setdefault(name, asyncio.Semaphore(self._concurrency(name))):
                if self._leaves:
                    await run.leave()
                else:
                    await self._run_round(run)
        except StateRefused as refused:
            self._tell_once(f"Tasks do not open: {refused.reason}. Every replica needs all keys of the ring")
            self._leave_to_others(run.row)
            await run.leave()
        except UnknownTarget:
            self._tell_once(f"There are tasks of {run.row.name!r}, which this server has not; others may")
            self._leave_to_others(run.row)
            await run.leave()
        except StoreUnavailable as error:
            logger.warning("A task of %r can't go on now: %s", run.row.name, error)
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
            logger.error("A task of %r could not be run or kept", run.row.name, exc_info=error)
            await self._fail(run, ProtocolError("The task could not be kept"))

    async def _fail(self, run: TaskRun, error: RequestError) -> None:
        await run.end(lambda row: self._tasks.failed(row, error))

    async def _run_round(self, run: TaskRun) -> None:
        row, sealed = run.row, self._tasks.sealed
        if row.attempts > self._limits.task_attempts:
            logger.error("A task of %r has ended its worker %d times, and is failed", row.name, row.attempts - 1)
            raise ProtocolError("The task was given up: it could not be run to its end")
        call = sealed.call(row)
        run.journal = journal = sealed.journal(row, self._tasks.now())
        journal.deliver(sealed.questions(row).answers)

        def leaves() -> bool:
            return run.lost or run.lease.in_doubt or self._leaves

        came = await self._run_task(call, journal, run, run, leaves)
        if isinstance(came, Complete):
            await run.end(lambda row: self._tasks.completed(row, came))
        elif came:
            journal.park({key: question.digest for key, question in came.items()})
            await run.end(lambda row: self._tasks.parked(row, journal, came))
        else:
            if not leaves():  # a pure function that keeps a state, and asks nothing
                journal.hand_over(self._limits)
            await run.end(lambda row: {"journal": self._tasks.seal_journal(row, journal), "attempts": 0})

    def _tell_once(self, what: str) -> None:
        if what not in self._told:
            self._told.add(what)
            logger.error("%s", what)

    # What happens meanwhile

    async def _be_heard(self) -> None:
        await asyncio.sleep(HEARD_EVERY)
        await self._renew()
        if time.monotonic() - self._looked >= LOOK_EVERY:
            self._looked = time.monotonic()
            overdue = await self._tasks.store.overdue_tasks(most=_MOST_OVERDUE)
            await asyncio.gather(*map(self._tasks.expire, overdue))  # at once, or who is cancelled waits for them

    async def _renew(self) -> None:
        ids, since = list(self._running), time.monotonic()
        if not ids:
            return
        held = await self._tasks.store.renew_tasks(self._name, ids, seconds=self._limits.lease_seconds)
        for id in ids:
            run, task = self._running.get(id, (None, None))
            if run is None or task is None or run.over:
                continue
            if id in held:
                run.lease.hold(since)
            else:
                run.lost = True
                task.cancel()
