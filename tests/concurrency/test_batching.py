"""Lookups that are asked for at once, done together: fresh, each its own answer, and nobody harmed by another."""

import asyncio

import pytest

from mrtr_server import StoreUnavailable
from mrtr_server.concurrency import batching as module
from mrtr_server.concurrency.batching import BatchLoader

pytestmark = pytest.mark.anyio


class Place:
    """Something that is looked up in, slowly."""

    def __init__(self) -> None:
        self.values: dict[int, str] = {}
        self.lookups: list[list[int]] = []
        self.fails = False
        self.together = BatchLoader(self.look_up)

    async def look_up(self, keys: list[int]) -> dict[int, str]:
        self.lookups.append(sorted(keys))
        found = {key: self.values[key] for key in keys if key in self.values}
        await asyncio.sleep(0.01)
        if self.fails:
            raise StoreUnavailable("away")
        return found


@pytest.fixture
def place() -> Place:
    return Place()


async def test_one_is_looked_up_at_once(place: Place) -> None:
    place.values = {1: "one"}
    assert await place.together.get(1) == "one"
    assert await place.together.get(2) is None
    assert place.lookups == [[1], [2]]


async def test_those_that_come_meanwhile_are_looked_up_together(place: Place) -> None:
    place.values = {key: str(key) for key in range(10)}
    keys = [*range(12), 3, 3]
    assert await asyncio.gather(*map(place.together.get, keys)) == [place.values.get(key) for key in keys]
    assert place.lookups == [[0], list(range(1, 12))]


async def test_no_more_than_a_bound_at_once(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "BATCH_SIZE", 4)
    await asyncio.gather(*map(place.together.get, range(11)))
    assert [len(keys) for keys in place.lookups] == [1, 4, 4, 2]


async def test_what_was_written_before_is_found(place: Place) -> None:
    first = asyncio.create_task(place.together.get(1))
    await asyncio.sleep(0)
    place.values[1] = "written since"
    assert await place.together.get(1) == "written since"
    assert await first is None


async def test_a_failure_reaches_all_who_wait_and_nobody_later(place: Place) -> None:
    place.fails = True
    outcomes = await asyncio.gather(*map(place.together.get, range(5)), return_exceptions=True)
    assert [str(each) for each in outcomes] == ["away"] * 5
    place.fails, place.values = False, {7: "seven"}
    assert await place.together.get(7) == "seven"


@pytest.mark.parametrize("leaves", range(4))
async def test_who_leaves_takes_nobody_along(place: Place, leaves: int) -> None:
    place.values = {key: str(key) for key in range(4)}
    tasks = [asyncio.create_task(place.together.get(key)) for key in range(4)]
    await asyncio.sleep(0)
    tasks[leaves].cancel()
    outcomes = await asyncio.gather(*tasks, return_exceptions=True)
    assert isinstance(outcomes.pop(leaves), asyncio.CancelledError)
    assert outcomes == [str(key) for key in range(4) if key != leaves]
    assert await place.together.get(1) == "1"


def test_loops_come_and_go(place: Place) -> None:
    place.values = {1: "one"}

    async def leave() -> asyncio.AbstractEventLoop:
        for key in range(3):
            asyncio.ensure_future(place.together.get(key))  # noqa: RUF006
        await asyncio.sleep(0.001)
        return asyncio.get_running_loop()

    for _ in range(3):
        loop = asyncio.run(leave())
        assert not asyncio.all_tasks(loop), "a task is left that nothing will run"
        assert asyncio.run(place.together.get(1)) == "one"
    assert len(place.together._asked._kept) == 1
