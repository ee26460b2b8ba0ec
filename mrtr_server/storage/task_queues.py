"""The tasks that wait for a worker, in a queue for each tool and caller."""

import heapq
from collections import Counter
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from itertools import chain, islice

from .quotas import NOBODY
from .tasks import Places, TaskRow

CALLERS_IN_VIEW = 100
"""How many callers of a tool one claim looks at; the next claim looks at the next ones."""


_Queues = dict[str, dict[str, list[tuple[float, str]]]]
"""A heap of times and ids for each tool and caller."""


class TaskQueues:
    """Tasks that wait, by tool and caller, so that no claim walks through what one caller has left to be done.

    Args:
        tasks: all tasks by their ids. A queue may hold ids of tasks that do not wait any more; they are dropped when
            their turn comes.
    """

    def __init__(self, tasks: Mapping[str, TaskRow]) -> None:
        self._tasks = tasks
        self._queues: _Queues = {}

    def add(self, row: TaskRow) -> None:
        """Queue a task for its turn."""
        queue = self._queues.setdefault(row.name, {}).setdefault(row.caller, [])
        heapq.heappush(queue, (row.updated, row.id))

    def waiting(self, tool: str, most: int, now: float) -> list[TaskRow]:
        """Return the tasks of a tool that may be claimed, looking at no more than so many."""
        queued = islice(chain.from_iterable(self._queues.get(tool, {}).values()), most)
        return [row for id, updated in {id: at for at, id in queued}.items() if (row := self._free(id, updated, now))]

    def _free(self, id: str, updated: float, now: float) -> TaskRow | None:
        row = self._tasks.get(id)
        return row if row is not None and _is_free(row, updated, now) else None

    def next(
        self, most: int, tools: Sequence[str], without: AbstractSet[str], places: Places, now: float
    ) -> list[TaskRow]:
        """Remove the tasks whose turn it is, and return them; see `Store.claim_tasks`."""
        claim = _Claim(self._tasks, self._queues, without, places, now)
        for tool in tools:
            queues = self._queues.get(tool, {})
            for caller in list(islice(queues, CALLERS_IN_VIEW)):
                queues[caller] = queues.pop(caller)  # to the end: the next claim begins with others
                claim.line_up(tool, caller)
        claim.take(most)
        for row in claim.left:
            self.add(row)
        return list(claim.taken.values())


class _Claim:
    """One claim: whose turn it is, and what is taken."""

    def __init__(
        self,
        tasks: Mapping[str, TaskRow],
        queues: _Queues,
        without: AbstractSet[str],
        places: Places,
        now: float,
    ) -> None:
        self._tasks = tasks
        self._queues = queues
        self._without = without
        self._places = places
        self._now = now
        self._held = Counter(places.held)
        self._turns: list[tuple[int, float, str, str]] = []
        self.taken: dict[str, TaskRow] = {}
        self.left: list[TaskRow] = []
        """Tasks that are left to others."""

    def line_up(self, tool: str, caller: str) -> None:
        """Note the turn of the next task of a queue."""
        row = self._head(self._queues[tool][caller])
        if row is None:
            del self._queues[tool][caller]
        else:
            heapq.heappush(self._turns, (self._held[caller] + 1, row.updated, tool, caller))

    def take(self, most: int) -> None:
        """Claim tasks in turn."""
        places = self._places
        while self._turns and len(self.taken) < most:
            rank, _, tool, caller = heapq.heappop(self._turns)
            if rank <= self._held[caller]:  # its caller has got one of another tool since
                self.line_up(tool, caller)
            elif caller == NOBODY or rank <= places.share or len(self.taken) < places.spare:
                _, id = heapq.heappop(self._queues[tool][caller])
                self.taken[id] = self._tasks[id]
                self._held[caller] += 1
                self.line_up(tool, caller)

    def _head(self, queue: list[tuple[float, str]]) -> TaskRow | None:
        while queue:
            updated, id = queue[0]
            row = self._tasks.get(id)
            if row is not None and self._waits(row, updated):
                if id not in self._without:
                    return row
                self.left.append(row)
            heapq.heappop(queue)
        return None

    def _waits(self, row: TaskRow, since: float) -> bool:
        return _is_free(row, since, self._now) and row.id not in self.taken


def _is_free(row: TaskRow, since: float, now: float) -> bool:
    """Return whether a task that was queued at a time still waits for a worker."""
    return row.status == "working" and row.leased_until <= now and row.updated == since
