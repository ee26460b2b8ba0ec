"""Runs rounds of tasks, and records how they end."""

import asyncio
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Protocol, assert_never

from .. import errors
from ..flow.endings import Asking, Backgrounded, Yielded
from ..flow.handler import TaskTerms
from ..logs import logger
from ..logs.failures import report_failure
from ..logs.refusals import RefusalLog
from ..protocol.messages import Call, Complete
from ..tally import TAKEOVERS
from .records import TaskRecords
from .task_run import AGAIN_AFTER, TaskRun

TaskEnd = Complete | errors.RequestError | Asking | Yielded | Backgrounded
"""With the outcome of the task, with questions, or to be continued."""


class TaskTools(Protocol):
    """The tools whose calls are tasks: all that tasks know of how a flow is run."""

    @property
    def terms(self) -> Mapping[str, TaskTerms]:
        """How their calls become tasks, by tool, as of now: a server may get and lose some while it runs."""
        ...

    def answer_within(self, tool: str) -> float | None:
        """Return how long a person has to answer a question of a tool, in seconds; None for the server's own limit."""
        ...

    async def run(self, call: Call, run: TaskRun) -> TaskEnd:
        """Run a round of a task; return how it ends. Raises `UnknownTarget`, `RequestError`, `StoreUnavailable`."""
        ...


class RoundExecutor:
    """Runs rounds of tasks, and records how they end."""

    def __init__(self, records: TaskRecords, tools: TaskTools, leave_to_others: Callable[..., None]) -> None:
        self._records = records
        self._tools = tools
        self._leave_to_others = leave_to_others
        self._refusals = RefusalLog()
        self._told: set[str] = set()

    async def execute(self, run: TaskRun, turn: asyncio.Semaphore) -> None:
        """Run a round of a task, or hand the task back."""
        try:
            async with turn:
                if run.leaves() is not None:
                    await run.leave()
                else:
                    await self._run_round(run)
        except errors.InvalidRequestState as refused:
            self._tell_once(f"Tasks can't be run here: {refused.reason}")
            self._leave_to_others(run.row)
            await run.leave()
        except errors.UnknownTarget:
            self._tell_once(
                f"There are tasks of {run.row.name!r}, a tool that this server does not have; other servers may"
            )
            self._leave_to_others(run.row)
            await run.leave()
        except errors.StoreUnavailable as error:
            if not error.reference:  # or the log has a line of the outage
                self._refusals.note("A task of %r can't continue now: %r", run.row.name, str(error))
            self._leave_to_others(run.row, AGAIN_AFTER)
            await run.leave()
        except errors.RequestError as error:
            await self._fail(run, error)
        except asyncio.CancelledError:
            if not run.lost:
                with suppress(asyncio.CancelledError):
                    await run.leave()
            raise
        except Exception as error:
            name, fields = run.row.name, {"tool": run.row.name, "task": run.row.reference}
            reference = report_failure("A task of %r could not be run or stored", name, error=error, fields=fields)
            await self._fail(run, errors.InternalFault(reference))

    async def _run_round(self, run: TaskRun) -> None:
        records, row, limits = self._records, run.row, self._records.limits
        if row.attempts > limits.task_attempts:
            logger.error(
                "A task of %r has failed: it was started %d times and reached no step, question or end. Each time its "
                "worker ended, or was silent for longer than its lease of %g s, as when its event loop is blocked",
                row.name,
                row.attempts - 1,
                limits.lease_seconds,
            )
            raise errors.ProtocolError("The task failed: it could not be run to its end")
        within = self._tools.answer_within(row.name)
        call = records.sealed.unseal_call(row)
        journal = records.sealed.unseal_journal(row, records.now())
        run.begin(journal, row.ttl if within is None else within, call.principal)
        if row.attempts > 1:
            records.tally.add(TAKEOVERS, "task")
            logger.warning(
                "A task of %r (%s) is taken over: a worker that had it ended, or was silent for longer than its lease "
                "of %g s. It continues from its last recorded step",
                row.name,
                row.reference,
                limits.lease_seconds,
                extra={"fields": {"event": "takeover", "work": "task", "tool": row.name, "task": row.reference}},
            )

        end = await self._tools.run(call, run)
        match end:
            case Complete():
                await run.end(lambda row: records.completed(row, end))
            case errors.Unavailable():  # what its tool needed of the store: the task goes on from its last step
                self._leave_to_others(row, AGAIN_AFTER)
                await run.leave()
            case errors.RequestError():
                await self._fail(run, end)
            case Asking(questions, together):
                await run.end(lambda row: run.parked(row, questions, together=together))
            case Yielded() | Backgrounded():  # which is what a task is already
                await run.end(lambda row: records.kept(row, journal))
            case unknown:
                assert_never(unknown)

    async def _fail(self, run: TaskRun, error: errors.RequestError) -> None:
        if isinstance(error, errors.MissingCapability):
            self._refusals.note_lacking(f"a task of {run.row.name}", "", error)
        await run.end(lambda row: self._records.failed(row, error))

    def _tell_once(self, what: str) -> None:
        if what not in self._told:
            self._told.add(what)
            logger.error("%s", what)
