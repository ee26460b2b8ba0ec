"""Requests that wait for a task: each is a place on the event loop, and holds no connection, worker or thread."""

from collections.abc import Awaitable, Callable
from contextlib import closing

from ..concurrency.places import PlacesByCaller
from ..concurrency.running import running_loop
from ..concurrency.waiting import growing, wait_until
from ..flow.admission import Admission
from ..limits import Limits
from ..protocol.messages import Change, TaskStatus
from ..storage.pubsub import Fanout
from ..storage.tasks import TaskRow
from .pieces import PieceReader

FIRST_LOOK, LAST_LOOK = 0.5, 5.0
"""How long a request waits for a notification before it looks at its task, in seconds: the first time and the last.

A process that dies may not have sent the notification of its change, and a fan-out of the author's may not reach here.
"""

WHILE_DRAINING = 1.0
"""How long a request waits that comes to a draining server, in seconds: so its client does not come again at once, and
again, for as long as no other replica is there to take it."""


class WaitingRequests:
    """Lets requests wait until a task asks or ends.

    Args:
        fanout: tells of changes.
        admission: says whether the server is draining.
        limits: how many requests may wait at once.
        status: returns a task's status for its client.
    """

    def __init__(
        self, fanout: Fanout, admission: Admission, limits: Limits, status: Callable[[TaskRow], TaskStatus]
    ) -> None:
        self._status = status
        self._fanout = fanout
        self._admission = admission
        self.places = PlacesByCaller("task_waits", limits.task_waits, limits.share_of(limits.task_waits))

    def has_room(self, row: TaskRow) -> bool:
        """Return whether one more request may wait for a task of its caller."""
        return self.places.has_room(row.caller or None)

    async def wait_for(
        self,
        row: TaskRow,
        find: Callable[[], Awaitable[TaskRow]],
        seconds: float,
        reader: PieceReader | None = None,
    ) -> TaskRow:
        """Wait until a task asks or ends; or until the time expires, or the server begins to drain.

        Args:
            row: the task.
            find: returns it as it is by then.
            seconds: how long to wait at most.
            reader: sends the pieces of its result that come meanwhile; None if they are not wanted.

        Returns:
            The task; still working where there was nothing more to wait for, or no room.

        Raises:
            Exception: whatever `find` raises.
        """
        if not self.has_room(row) or self._status(row) != "working":
            if reader is not None:
                await reader.send_new()
            return row

        async def look(heard: object) -> TaskRow | None:
            nonlocal row
            row = await find()
            if reader is not None:  # what came before the task asked or ended, too
                await reader.send_new()
            return None if self._status(row) == "working" else row

        is_draining = self._admission.draining
        if is_draining:
            seconds = min(seconds, row.poll, WHILE_DRAINING)
        wanted = {Change("task", row.id)} if reader is None else {Change("task", row.id), Change("piece", row.id)}
        give_back = self.places.take(row.caller or None)
        try:
            with closing(self._fanout.subscribe(frozenset(wanted))) as changes:
                await wait_until(
                    look,
                    changes,
                    deadline=running_loop().time() + seconds,
                    pauses=growing(FIRST_LOOK, LAST_LOOK),
                    endings=() if is_draining else (self._admission.on_drain,),
                )
        finally:
            give_back()
        return row
