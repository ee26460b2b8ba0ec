"""The worker: claims the tasks that it has places for, runs their rounds, and keeps what they do."""

import asyncio
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Mapping, Sequence, Set
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from contextvars import Context
from functools import partial
from secrets import token_hex
from typing import Any

from ..concurrency.running import PerLoop
from ..concurrency.waiting import Turning, wait_until
from ..errors import StoreUnavailable
from ..flow.admission import Admission
from ..flow.endings import YieldReason
from ..flow.handler import TaskTerms
from ..limits import Limits
from ..logs import logger
from ..protocol.messages import Change
from ..storage.quotas import NOBODY
from ..storage.rows import Lease, Places, TaskRow
from .records import TaskRecords
from .round_executor import RoundExecutor, TaskTools
from .task_run import AGAIN_AFTER, TaskRun

RESERVED_LEASE_SECONDS = 5.0  # the lease of a task that is stored for this worker, until it has begun


POLL_INTERVAL = 1.0  # seconds between looks for tasks without a notification
HEARTBEAT_INTERVAL = 0.5  # seconds after which leases are renewed, and cancellations are heard of
SKIP_TASK_SECONDS = 2.0  # this worker skips a task that it can't run for so long
SHUTDOWN_WAIT_FRACTION = 1 / 4  # of the time left after the cut-off, for each wait for cancelled work

_MOST_OVERDUE = 100
_EXPIRED_AT_ONCE = 2

_MOST_NAMED = 20


class Reservation:
    """A place that is kept for one task: it is stored as taken, so no worker has to claim it."""

    __slots__ = ("_take", "_until", "lease", "seconds")

    def __init__(self, lease: str, seconds: float, take: Callable[[TaskRow, float], None]) -> None:
        self.lease = lease
        self.seconds = seconds
        self._until = time.monotonic() + seconds
        self._take = take

    def run(self, row: TaskRow) -> None:
        """Run the task, which has been stored."""
        self._take(row, self._until)


class WorkerPlaces:
    """Divides the places of a worker among tools and callers."""

    def __init__(
        self, terms: Callable[[], Mapping[str, TaskTerms]], limits: Limits, running: Callable[[], Sequence[TaskRow]]
    ) -> None:
        self._terms = terms
        self._limits = limits
        self._running = running
        self._reserved: list[TaskRow] = []  # tasks that places are kept for
        self._share = limits.share_of(limits.tasks)
        self._kept = min(self._share, limits.tasks - 1)  # places for callers that have less than their share

    def at_once(self, tool: str) -> int:
        """Return how many tasks of a tool run at once."""
        terms = self._terms().get(tool)
        return 0 if terms is None else terms.concurrency or self._limits.tasks

    @property
    def queues(self) -> list[list[str]]:
        """The tools whose tasks are claimed together: each with a limit of its own, then all the others."""
        tools = tuple(self._terms().items())
        limited = [[tool] for tool, terms in tools if terms.concurrency is not None]
        others = [tool for tool, terms in tools if terms.concurrency is None]
        return [*limited, others] if others else limited

    def in_turn(self, turn: int) -> list[list[str]]:
        """Return the queues, those first of which the fewest tasks run here, so that none starves another."""
        queues = self.queues
        start = turn % len(queues) if queues else 0
        here = Counter(row.name for row in self._here())
        return sorted([*queues[start:], *queues[:start]], key=lambda tools: sum(here[tool] for tool in tools))

    def room(self, tools: Sequence[str]) -> int:
        """Return how many tasks of some tools, which are claimed together, may begin now."""
        if len(tools) > 1:  # none has a limit of its own
            return self._free
        here = sum(row.name == tools[0] for row in self._here())
        return min(self.at_once(tools[0]) - here, self._free)

    def divided(self) -> Places:
        """Return how the places that are left are divided among callers."""
        # A caller that has its share already gets one more only while enough are left for callers that have less.
        held = Counter(row.caller for row in self._here())
        return Places(held, self._share, max(0, self._free - self._kept))

    def has_room_for(self, row: TaskRow) -> bool:
        """Check that a task may begin now, which neither runs here nor has a place."""
        if self.room([row.name]) <= 0:
            return False
        return row.caller == NOBODY or (places := self.divided()).spare > 0 or not places.has_share(row.caller)

    @contextmanager
    def reserve(self, row: TaskRow, lease: str, take: Callable[[TaskRow, float], None]) -> Iterator[Reservation | None]:
        """Keep a place for a task that is about to be stored, if there is one for its caller."""
        if not self.has_room_for(row):
            yield None
            return
        self._reserved.append(row)
        try:
            yield Reservation(lease, min(RESERVED_LEASE_SECONDS, self._limits.lease_seconds), take)
        finally:
            self._reserved.remove(row)

    @property
    def _free(self) -> int:
        return self._limits.tasks - len(self._reserved) - len(self._running())

    def _here(self) -> Iterator[TaskRow]:
        yield from self._reserved
        yield from self._running()


class Worker:
    """Runs tasks in this process, several at once, on each event loop that it is started on."""

    def __init__(
        self, records: TaskRecords, tools: TaskTools, admission: Admission, *, starts_by_itself: bool = True
    ) -> None:
        self._start = partial(_LoopWorker, records, tools, admission)
        self._starts_by_itself = starts_by_itself
        self._loop_workers = PerLoop[_LoopWorker]()

    def wake(self) -> None:
        """Start to work on this event loop if there may be a task, unless only others are to run it."""
        if self._starts_by_itself:
            self.start()

    def start(self) -> None:
        """Start to work on this event loop, unless it does already."""
        self._loop_workers.here(self._start)

    @property
    def running(self) -> int:
        """How many tasks run here."""
        return sum(each.running for each in self._loop_workers.values())

    @property
    def places(self) -> int:
        """How many tasks may run here at once; 0 where this process runs none."""
        return sum(each.places for each in self._loop_workers.values())

    def reserve(self, row: TaskRow) -> AbstractContextManager[Reservation | None]:
        """Keep a place for a task that is about to be stored, if there is one for its caller on this event loop."""
        loop_worker = self._loop_workers.get()
        return nullcontext() if loop_worker is None else loop_worker.reserve(row)

    def on_change(self, row: TaskRow) -> bool:
        """Note a client's change of a task; return whether the task runs on this event loop."""
        loop_worker = self._loop_workers.get()
        return loop_worker is not None and loop_worker.on_change(row)

    async def close(self) -> None:
        """Hand tasks back: at their next boundary if they reach one in time, otherwise from their last step."""
        if (loop_worker := self._loop_workers.get()) is not None:
            try:
                await loop_worker.close()
            finally:
                self._loop_workers.pop()


class _LoopWorker:
    def __init__(self, records: TaskRecords, tools: TaskTools, admission: Admission) -> None:
        self._records = records
        self._admission = admission
        self._shutdown = admission.shutdown
        self._limits = records.limits
        self._executor = RoundExecutor(records, tools, self._leave_to_others)
        self._name = token_hex(16)
        self._turns: dict[tuple[str, int], asyncio.Semaphore] = {}
        self._running: dict[str, TaskRun] = {}
        self._places = WorkerPlaces(lambda: tools.terms, self._limits, self._rows_running)
        self._ended = asyncio.Event()
        self._closing = False
        self._claiming = False
        self._turn = 0
        self._left: dict[str, float] = {}  # tasks that are left to others, until when by the monotonic clock
        # Not in the context of the request that happened to come first.
        create = asyncio.get_running_loop().create_task
        self._from_clients = Turning(records.listen_for_workers(()))
        self._listened: Set[str] = frozenset()
        """The tasks whose clients it hears of. A notice may be lost, so it also looks by itself."""
        self._listening = create(wait_until(self._look, self._from_clients, at_once=False), context=Context())
        self._claims = create(self._again_and_again(self._claim, "claimed"), context=Context())
        self._heard = create(self._again_and_again(self._heartbeat, "renewed"), context=Context())
        self._tended = create(self._again_and_again(self._tend, "looked after"), context=Context())

    @property
    def running(self) -> int:
        return len(self._running)

    @property
    def places(self) -> int:
        return self._limits.tasks

    async def close(self) -> None:
        self._closing = True
        if not self._claiming:  # what is being claimed has to be handed back
            self._claims.cancel()
        at_most = self._shutdown.until_cut_off() or self._shutdown.left() * SHUTDOWN_WAIT_FRACTION
        await asyncio.wait((self._claims,), timeout=at_most)
        # At first they may come to a boundary; then the handler is cancelled, and then the waiting for its steps.
        late = {run.task for run in self._running.values() if run.task is not None}
        if late:
            _, late = await asyncio.wait(late, timeout=self._shutdown.until_cut_off())
        for _ in range(2):
            for task in late:
                task.cancel()
            if late:
                _, late = await asyncio.wait(late, timeout=self._shutdown.left() * SHUTDOWN_WAIT_FRACTION)
        self._from_clients.close()
        loops = (self._listening, self._claims, self._heard, self._tended)
        for task in loops:
            task.cancel()
        await asyncio.wait(loops, timeout=self._shutdown.left() * SHUTDOWN_WAIT_FRACTION)

    def _rows_running(self) -> list[TaskRow]:
        return [run.row for run in self._running.values()]

    def _should_yield(self) -> YieldReason | None:
        return YieldReason.DRAINING if self._closing or self._admission.draining else None

    async def _again_and_again(self, work: Callable[[], Awaitable[None]], what: str) -> None:
        while not (self._closing and work == self._claim):
            try:
                await work()
            except StoreUnavailable:  # of which the log has a line
                await asyncio.sleep(AGAIN_AFTER)
            except Exception as error:
                logger.error("Tasks could not be %s", what, exc_info=error)
                await asyncio.sleep(POLL_INTERVAL)

    # Claiming

    async def _claim(self) -> None:
        if self._should_yield():
            await asyncio.sleep(AGAIN_AFTER)
            return
        self._ended.clear()
        self._left = {id: until for id, until in self._left.items() if until > time.monotonic()}
        self._turn += 1
        queues, is_all = self._places.in_turn(self._turn), True
        for tools in queues:
            if (room := self._places.room(tools)) > 0 and not self._should_yield():
                is_all &= await self._claim_of(tools, room) < room
        if is_all and not self._should_yield():
            open_ = [tools for tools in queues if self._places.room(tools) > 0]
            places = self._places.divided()
            full = len(open_) < len(queues) or any(map(places.has_share, places.held))
            await self._wait_for_more([tool for tools in open_ for tool in tools], full=full)

    async def _claim_of(self, tools: list[str], most: int) -> int:
        since, seconds = time.monotonic(), self._limits.lease_seconds
        self._claiming = True
        try:
            rows = await self._records.store.claim_tasks(
                self._name,
                seconds=seconds,
                most=most,
                tools=tools,
                without=list(self._left),
                places=self._places.divided(),
            )
            now = self._records.now()
            late = [row for row in rows if row.deadline <= now]  # they had to wait for too long
            await asyncio.gather(*map(self._records.expire, late))
            for row in await self._beginning([row for row in rows if row.deadline > now] if late else rows):
                if self._should_yield() or not self._has_place(row):
                    await TaskRun(self._records, row, Lease(seconds, since)).leave()
                else:
                    self._begin(row, since)
        finally:
            self._claiming = False
        return len(rows)

    def _has_place(self, row: TaskRow) -> bool:
        """Check that the place of a claimed task was not given, meanwhile, to one that was stored for this worker."""
        # The task of a tool that was removed needs no place: it ends at once, and the log says why.
        is_without_tool = self._places.at_once(row.name) == 0
        return is_without_tool or row.id in self._running or self._places.has_room_for(row)

    async def _wait_for_more(self, tools: list[str], *, full: bool) -> None:
        """Wait until there may be tasks of these tools, or room for others."""
        waits: list[Coroutine[Any, Any, object]] = []
        if tools:
            waits.append(self._records.store.wait_for_tasks(POLL_INTERVAL, tools=tools, without=list(self._left)))
        if full or not tools:
            waits.append(_within(POLL_INTERVAL, self._ended.wait()))
        if len(waits) == 1:
            await waits[0]
            return
        waiting = [asyncio.ensure_future(each) for each in waits]
        try:
            done, _ = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            for each in done:
                each.result()
        finally:
            for each in waiting:
                each.cancel()
            await asyncio.gather(*waiting, return_exceptions=True)

    async def _beginning(self, rows: list[TaskRow]) -> list[TaskRow]:
        """Return the claimed tasks that begin now."""
        # A task on its last attempt may be crashing its workers. Such tasks begin one at a time, so that none is failed
        # for what ran beside it. The others go back before anything begins, and that attempt does not count.
        last = self._limits.task_attempts
        suspects = [row for row in rows if row.attempts == last > 1]
        waiting = suspects if any(run.row.attempts == last for run in self._running.values()) else suspects[1:]
        for row in waiting:
            self._leave_to_others(row)
            await self._records.store.change_task(row, attempts=row.attempts - 1, lease="", leased_until=0.0)
        return [row for row in rows if row not in waiting]

    def reserve(self, row: TaskRow) -> AbstractContextManager[Reservation | None]:
        return nullcontext() if self._should_yield() else self._places.reserve(row, self._name, self._take)

    def _take(self, row: TaskRow, until: float) -> None:
        if not self._closing:  # or it is for others when its lease ends
            self._begin(row, until - self._limits.lease_seconds)

    def _leave_to_others(self, row: TaskRow, seconds: float | None = None) -> None:
        """Do not claim a task for a while, so that others can."""
        self._left[row.id] = time.monotonic() + (SKIP_TASK_SECONDS if seconds is None else seconds)

    def _begin(self, row: TaskRow, since: float) -> None:
        present = self._running.get(row.id)
        if present is not None and not present.over:
            if present.found(row, since):
                return
            present.stop()
        run = TaskRun(self._records, row, Lease(self._limits.lease_seconds, since), self._should_yield)
        self._running[row.id] = run
        run.start(self._run(run)).add_done_callback(lambda _: self._done(run))

    def _done(self, run: TaskRun) -> None:
        if self._running.get(run.row.id) is run:
            del self._running[run.row.id]
        self._ended.set()

    # Running

    async def _run(self, run: TaskRun) -> None:
        name = run.row.name
        # One that starts again here waits for its former run, which may take a while to end.
        most = self._places.at_once(name) or 1
        turn = self._turns.setdefault((name, most), asyncio.Semaphore(most))
        try:
            await self._executor.execute(run, turn)
        finally:
            if run.lost:
                await run.let_go()

    def on_change(self, row: TaskRow) -> bool:
        run = self._running.get(row.id)
        if run is not None:
            run.on_change(row)
        return run is not None

    async def _look(self, heard: Sequence[Change] | None) -> None:
        for change in heard or ():
            run = self._running.get(change.uri)
            if run is not None:
                run.look_soon()

    # What happens meanwhile

    async def _heartbeat(self) -> None:
        before = time.monotonic()
        await asyncio.sleep(HEARTBEAT_INTERVAL)
        stood_still = time.monotonic() - before - HEARTBEAT_INTERVAL
        if stood_still > self._limits.lease_seconds:
            running = [row.reference for row in self._rows_running()]
            more = len(running) - _MOST_NAMED
            logger.error(
                "The event loop stood still for %.1f s, longer than the lease of %g s, so other workers may have "
                "started its tasks again (%s). Move what blocks it into a plain `def`, unless the machine was "
                "suspended",
                stood_still,
                self._limits.lease_seconds,
                ", ".join([*running[:_MOST_NAMED], *([f"and {more} more"] if more > 0 else [])]) or "none ran",
            )
        if self._running.keys() != self._listened:
            self._listened = frozenset(self._running)
            self._from_clients.turn_to(self._records.listen_for_workers(self._listened))
        ids = list(self._running)
        if ids:
            await self._renew(ids)

    async def _tend(self) -> None:
        """Look for what no notice tells of. That waits for the store as clients do, and no heartbeat waits for it."""
        is_all = False
        while not is_all:  # fail tasks whose time has expired
            for run in self._running.values():
                if run.has_asked:  # a notice of an answer may have been lost
                    run.look_soon()
            overdue = await self._records.store.overdue_tasks(most=_MOST_OVERDUE)
            await self._expire(overdue)
            is_all = len(overdue) < _MOST_OVERDUE
        await asyncio.sleep(POLL_INTERVAL)

    async def _expire(self, overdue: Sequence[TaskRow]) -> None:
        """Fail tasks, a few at a time: callers have the other connections, though thousands expire at once."""
        left = iter(overdue)

        async def expire() -> None:
            for row in left:
                await self._records.expire(row)

        await asyncio.gather(*(expire() for _ in range(_EXPIRED_AT_ONCE)))

    async def _renew(self, ids: list[str]) -> None:
        since = time.monotonic()
        held = await self._records.store.renew_tasks(self._name, ids, seconds=self._limits.lease_seconds)
        for id in ids:
            run = self._running.get(id)
            if run is None or run.over:
                continue
            if id in held:
                run.lease.hold(since)
            else:
                run.stop()


async def _within(seconds: float, work: Awaitable[object]) -> None:
    with suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await work
