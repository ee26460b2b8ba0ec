"""The places of a worker: how many tasks run at once, of which tools, and for which callers."""

import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager

from ..flow.handler import TaskTerms
from ..limits import Limits
from ..storage.base import Places, TaskRow
from ..storage.quotas import NOBODY

RESERVED_LEASE_SECONDS = 5.0
"""Lease of a task that is stored for this worker, until it has begun, in seconds."""


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
        self._reserved: list[TaskRow] = []
        """The tasks that places are kept for."""
        self._share = limits.share_of(limits.tasks)
        self._kept = min(self._share, limits.tasks - 1)
        """How many places are kept for callers that have less than their share."""

    def at_once(self, tool: str) -> int:
        """Return how many tasks of a tool run at once."""
        terms = self._terms().get(tool)
        return 0 if terms is None else terms.concurrency or self._limits.tasks

    @property
    def queues(self) -> list[list[str]]:
        """The tools whose tasks are claimed together: each with a limit of its own, then all the others."""
        tools = self._terms().items()
        limited = [[tool] for tool, terms in tools if terms.concurrency is not None]
        others = [tool for tool, terms in tools if terms.concurrency is None]
        return [*limited, others] if others else limited

    def room(self, tools: Sequence[str]) -> int:
        """Return how many tasks of some tools, which are claimed together, may begin now."""
        if len(tools) > 1:  # none has a limit of its own
            return self._free
        here = sum(row.name == tools[0] for row in self._here())
        return min(self.at_once(tools[0]) - here, self._free)

    def divided(self) -> Places:
        """Return how the places that are left are divided among callers.

        A caller that has its share already gets one more only while enough are left for callers that have less.
        """
        held = Counter(row.caller for row in self._here())
        return Places(held, self._share, max(0, self._free - self._kept))

    def has_room_for(self, row: TaskRow) -> bool:
        """Check that a task may begin now, which neither runs here nor has a place."""
        return self.room([row.name]) > 0 and self._may_have_one_more(row.caller)

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
        """Return the tasks that run here, or are about to."""
        yield from self._reserved
        yield from self._running()

    def _may_have_one_more(self, caller: str) -> bool:
        if caller == NOBODY:
            return True
        places = self.divided()
        return places.spare > 0 or not places.has_share(caller)
