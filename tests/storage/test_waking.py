"""Which of several processes is woken for a task. Their database is played, and notices reach the others."""

import asyncio
import random
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

import pytest

from mrtr_server.storage.sql import waking

from ..support.databases import TOOLS, task_row
from ..support.played import LONG, Played
from ..support.virtual_time import VirtualTime

pytestmark = pytest.mark.anyio

TOOL = TOOLS[0]


@pytest.fixture
def anyio_backend(virtual_time: VirtualTime) -> Any:
    """Nothing here waits for anything but time."""
    return virtual_time.backend


class Fleet:
    """Processes that hear each other's notices, and one that stores tasks for them."""

    def __init__(self, make: Callable[[], Played], size: int) -> None:
        self._make = make
        self.processes = [self._begin() for _ in range(size)]
        self.storing = self._begin()
        self.said: list[str] = []
        self._waits: dict[Played, asyncio.Task[None]] = {}

    def _begin(self) -> Played:
        process = self._make()
        process.returned["add_task"] = [("id",)]
        process.connect()
        return process

    def restart(self) -> None:
        """Begin the process anew that stores tasks."""
        self.storing = self._begin()

    async def wait(self, *processes: Played, tools: Sequence[str] = TOOLS) -> None:
        """Let a worker of each process wait."""
        for each in processes:
            self._waits[each] = asyncio.create_task(each.store.wait_for_tasks(LONG, tools=tools))
        await self.settle()

    async def claim(self, process: Played, most: int, found: int) -> None:
        """Let a worker claim."""
        await process.claim(most, found)
        await self.settle()

    async def add(self) -> None:
        """Store a task that nobody has taken."""
        await self.storing.store.add_task(task_row())
        await self.settle()

    async def settle(self) -> None:
        """Deliver notices until there are no more."""
        everybody = (*self.processes, self.storing)
        await asyncio.sleep(0.1)
        while any(batches := [each.store.notices.drain() for each in everybody]):
            self.said += [notice for batch in batches for notice in batch]
            for teller, batch in zip(everybody, batches, strict=True):
                for hearer in everybody:
                    if hearer is not teller:
                        hearer.store.notices.dispatch(batch)
            await asyncio.sleep(0.1)

    def woken(self) -> list[Played]:
        """Return whose worker waits no more."""
        return [process for process, wait in self._waits.items() if wait.done()]

    async def end(self) -> None:
        """End the waits."""
        for wait in self._waits.values():
            wait.cancel()
        await asyncio.gather(*self._waits.values(), return_exceptions=True)


@pytest.fixture
async def fleet(virtual_time: VirtualTime, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Fleet]:
    made = Fleet(lambda: Played(monkeypatch), size=12)
    yield made
    await made.end()


async def test_of_twelve_that_wait_one_is_woken(fleet: Fleet) -> None:
    await fleet.wait(*fleet.processes)
    await fleet.add()
    assert len(fleet.woken()) == 1


async def test_tasks_at_once_are_for_several(fleet: Fleet) -> None:
    await fleet.wait(*fleet.processes)
    await asyncio.gather(*(fleet.storing.store.add_task(task_row()) for _ in range(50)))
    await fleet.settle()
    assert len(fleet.woken()) > 3, "or 50 draws of twelve hit three"


async def test_all_are_woken_while_nobody_is_known(fleet: Fleet) -> None:
    await fleet.wait(*fleet.processes)
    fleet.restart()
    await fleet.add()
    assert fleet.woken() == fleet.processes


async def test_who_has_no_room_passes_it_on_once_and_is_not_named_again(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    full, other = fleet.processes[:2]
    await fleet.wait(full)
    await fleet.claim(full, most=1, found=1)
    await fleet.end()
    await asyncio.sleep(waking.BETWEEN * 2)
    await fleet.wait(other)
    name = full.store.notices.writer
    monkeypatch.setattr(random, "choice", lambda known: name if name in known else known[0])
    await fleet.add()
    assert other in fleet.woken()
    assert f"full {name}" in fleet.said
    fleet.said.clear()
    await fleet.claim(other, most=1, found=0)
    await fleet.wait(other)
    await fleet.add()
    assert [notice for notice in fleet.said if name in notice] == []


async def test_who_has_room_for_other_tools_passes_it_on(fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
    picky, other = fleet.processes[:2]
    await fleet.wait(picky, tools=["another"])
    await fleet.wait(other)
    name = picky.store.notices.writer
    monkeypatch.setattr(random, "choice", lambda known: name if name in known else known[0])
    await fleet.add()
    assert fleet.woken() == [other]


async def test_who_is_full_after_a_claim_wakes_one_more(fleet: Fleet) -> None:
    """There may be more than it could take."""
    first, second = fleet.processes[:2]
    await fleet.wait(first)
    await fleet.add()
    assert fleet.woken() == [first]
    await fleet.wait(second)
    await fleet.claim(first, most=1, found=1)
    assert fleet.woken() == [first, second]
    await fleet.claim(second, most=1, found=0)
    await fleet.wait(second)
    await fleet.claim(first, most=1, found=1)
    assert fleet.woken() == [first], "nobody was woken for what came now"


async def test_who_has_died_is_named_no_more_after_a_while(fleet: Fleet) -> None:
    died, other = fleet.processes[:2]
    await fleet.wait(died)
    await fleet.end()
    fleet.processes.remove(died)
    await asyncio.sleep(waking.COUNTS + 1)
    await fleet.wait(other)
    await fleet.add()
    assert other in fleet.woken()


async def test_who_waits_on_says_so_again_and_not_all_the_time(fleet: Fleet) -> None:
    for _ in range(120):
        await fleet.processes[0].store.wait_for_tasks(1.0, tools=TOOLS)
        await fleet.settle()
    assert 10 < sum(notice.startswith("room") for notice in fleet.said) < 40
