"""A store whose database is played."""

import time
from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from mrtr_server import SQLStore

from .databases import TOOLS, task_row

LONG = 600.0
"""How long who waits for tasks would wait without a word, in seconds."""


class Played:
    """A store of which nothing reaches a database.

    Args:
        patch: puts this into the place of the database.
        url: which kind of database it would be.
    """

    def __init__(self, patch: pytest.MonkeyPatch, url: str = "postgresql://host/name") -> None:
        self.store = SQLStore(url)
        self.asked: list[tuple[float, str]] = []
        self.returned: dict[str, list[Any]] = {}
        """The rows of statements that have any."""
        self.starts = 0
        self.compared: list[float] = []
        """When its clock was compared with that of this machine."""
        patch.setattr(self.store.database, "rows", self._rows)
        patch.setattr(self.store.database, "execute", self._execute)
        patch.setattr(self.store.database, "compare_clocks", self._compare_clocks)
        patch.setattr(self.store.notices, "start", self._start)
        self.began = time.monotonic()

    @property
    def passed(self) -> float:
        """How much time has passed, in seconds."""
        return time.monotonic() - self.began

    def connect(self) -> None:
        """Let notices arrive at once."""
        carrier: Any = SimpleNamespace(connected=True)
        self.store.notices._carrier = carrier

    async def claim(self, most: int, found: int) -> None:
        """Claim tasks, of which so many are found."""
        begins = [0] * len(TOOLS)  # where the queues of the tools do
        tasks = [tuple(task_row()) for _ in range(found)] or [(None,) * len(task_row())]
        self.returned["claim_tasks"] = [(*task, False, begins, begins) for task in tasks]
        await self.store.claim_tasks("lease", seconds=5, most=most, tools=TOOLS)

    async def wait(self, seconds: float = LONG) -> None:
        """Wait for tasks."""
        await self.store.wait_for_tasks(seconds, tools=TOOLS)

    async def _rows(self, statement: str, **given: Any) -> Sequence[Any]:
        self.asked.append((self.passed, statement))
        return self.returned.get(statement, [])

    async def _execute(self, sql: str, given: Mapping[str, Any]) -> Sequence[Any]:
        return [(given["leased_until"],)]

    async def _compare_clocks(self) -> None:
        self.compared.append(self.passed)

    def _start(self, *, wakes: bool = False) -> None:
        self.starts += 1
