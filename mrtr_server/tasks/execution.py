"""A task while a worker runs it: what of it is kept, and whether it is still this worker's."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

from ..errors import StoreUnavailable
from ..flow.journal import Journal
from ..flow.single_use import Lease
from ..protocol.messages import NOTHING, Note
from ..storage.tasks import TaskRow
from .service import Tasks

logger = logging.getLogger("mrtr_server")

SAY_EVERY = 0.5
"""How often the message of a task is stored at most, in seconds."""

AGAIN_AFTER = 0.3
"""How long to wait before the store is tried again, in seconds."""

_MOST_CHARACTERS = 2000

Changes = Callable[[TaskRow], dict[str, Any]]
"""Makes the changes of a task, when their turn has come."""


class TaskRun:
    """One round of a task: its background, and its outlet.

    Args:
        tasks: seals what it holds.
        row: the task, as it was claimed.
        lease: the worker's right to run it.
    """

    started = True

    def __init__(self, tasks: Tasks, row: TaskRow, lease: Lease) -> None:
        self.row = row
        self.lease = lease
        self.lost = False
        """Whether the task is not this worker's any more: it was cancelled, has expired, or runs elsewhere."""
        self.over = False
        """Whether the last change has been made, or is being made."""
        self.journal = Journal(row.created)
        self._tasks = tasks
        self._loop = asyncio.get_running_loop()
        self._writing = asyncio.Lock()
        self._message = self._said = row.message
        self._tried: list[bytes] = []
        """The journals that may have been stored without our hearing of it."""
        self._saying: asyncio.Task[None] | None = None

    # For the handler

    def send(self, note: Note) -> Awaitable[None]:
        """Drop a note: a task's client gets none (Tasks, Task Status Notifications)."""
        return NOTHING

    async def keep(self) -> None:
        """Keep the journal before anything else happens; see `Background.keep`."""
        async with self._writing:
            if not self.over:
                await self._change(lambda row: {"journal": self._tasks.seal_journal(row, self.journal), "attempts": 0})

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
        """Take notice that the task was claimed again, since its lease had ended; say whether this run goes on with it.

        It does not where others have worked on it meanwhile: what they have recorded is not in our journal.
        """
        if row.version > self.row.version and not self.lost:
            self.lost = not self._knows(row)
            self.row = row
        self.lease.hold(since)
        return not self.lost

    async def end(self, changes: Changes) -> None:
        """Change the task for the last time, and leave it. Raises `OverBudget`, and may then be called again."""
        await self._end(lambda row: {"lease": "", "leased_until": 0.0, **changes(row)}, patient=True)

    async def leave(self) -> None:
        """Leave the task as it was last kept to other workers.

        It did not end its worker, so the attempt does not count. A store that is away is not waited for: the lease runs
        out by itself.
        """

        def left(row: TaskRow) -> dict[str, Any]:
            return {"lease": "", "leased_until": 0.0, "attempts": max(row.attempts - 1, 0)}

        await self._end(left, patient=False)

    async def _end(self, changes: Changes, *, patient: bool) -> None:
        async with self._writing:  # so that a message that is just being stored is
            self.over = True
            if self._saying is not None:
                self._saying.cancel()
            changed = await self._change(changes, patient=patient)
        if changed:
            self._tasks.notify(self.row.id)

    async def _change(self, changes: Changes, *, patient: bool = True) -> bool:
        """Change the task while it is ours; say whether it was.

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
                made["updated"] = self._tasks.now()
            try:
                changed = await self._tasks.store.change_task(self.row, **made)
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
                self._tasks.notify(self.row.id)
            return True
        return False

    async def _look_again(self) -> None:
        """Go on from a version that is not the one we knew: ours still, unless it says otherwise."""
        found = await self._tasks.store.find_task(self.row.id)
        if found is None or found.status != "working" or found.lease != self.row.lease or not self._knows(found):
            self.lost = True
        else:
            self.row = found

    def _knows(self, row: TaskRow) -> bool:
        """Say whether nobody else has recorded anything: no two sealed journals are alike.

        The lease does not say that, since others may have had it before it came back.
        """
        return row.journal == self.row.journal or row.journal in self._tried
