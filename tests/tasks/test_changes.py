"""What listeners hear of tasks: each as it is by then, none lost, and nothing of those that are gone."""

import asyncio
import time
from collections.abc import Sequence
from typing import Any

import pytest

from mrtr_server import StoreUnavailable
from mrtr_server.protocol.messages import Change, Task, TaskStatus
from mrtr_server.storage.pubsub import InProcessFanout
from mrtr_server.tasks import notifications as task_changes
from mrtr_server.tasks.notifications import Look, Looked, TaskChanges, with_tasks

from ..support.virtual_time import VirtualTime

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend(virtual_time: VirtualTime) -> Any:
    """Time passes when nothing else happens: no busy machine ends a lease."""
    return virtual_time.backend


TOOLS = Change("tools")


class Known:
    """Tasks by id, which can be away for a while."""

    def __init__(self, **statuses: TaskStatus) -> None:
        self.statuses: dict[str, TaskStatus] = statuses
        self.looks: list[list[str]] = []
        self.away = 0
        self.at_once = 1000

    async def look(self, ids: Sequence[str]) -> Looked:
        self.looks.append(list(ids))
        await asyncio.sleep(0)
        if self.away:
            self.away -= 1
            raise StoreUnavailable("it is away")
        seen = ids[: self.at_once]
        tasks = {id: Task(id, self.statuses[id], 1.0, 2.0, 3.0, 4.0) for id in seen if id in self.statuses}
        return Looked(tasks, ids[self.at_once :])


def listen(fanout: InProcessFanout, look: Look, *ids: str) -> TaskChanges:
    wanted = frozenset({TOOLS, *(Change("task", id) for id in ids)})
    return TaskChanges(fanout.subscribe(wanted), frozenset(ids), look)


def told(changes: list[Change]) -> dict[str, str]:
    return {change.uri: change.task.status for change in changes if change.task is not None}


async def test_a_listener_first_hears_how_its_tasks_are_doing() -> None:
    """One may have ended before it came to listen, and would never change again."""
    changes = listen(InProcessFanout(), Known(a="completed", b="working").look, "b", "a")
    assert told(await changes.next()) == {"a": "completed", "b": "working"}


async def test_a_listener_is_agreed_what_is_no_task_and_the_tasks_that_there_are() -> None:
    known = Known(a="working")
    changes = await with_tasks(listen(InProcessFanout(), known.look, "a", "nobody"), known.look)
    assert changes.wanted == {TOOLS, Change("task", "a")}


async def test_tasks_are_looked_up_all_at_once() -> None:
    known = Known()
    known.statuses |= {f"task{number}": "working" for number in range(1000)}
    changes = await with_tasks(listen(InProcessFanout(), known.look, *known.statuses), known.look)
    assert len(known.looks) == 1
    assert len(told(await changes.next())) == 1000
    assert len(known.looks) == 2


async def test_large_ones_are_looked_up_when_those_before_have_been_sent() -> None:
    known = Known(a="completed", b="completed", c="completed")
    known.at_once = 1
    changes = listen(InProcessFanout(), known.look, "a", "b", "c")
    for left in (["a", "b", "c"], ["b", "c"], ["c"]):
        assert told(await changes.next()) == {left[0]: "completed"}
        assert known.looks[-1] == left


async def test_a_store_that_can_not_tell_of_tasks_does_not_hold_up_other_changes() -> None:
    fanout, known = InProcessFanout(), Known(a="completed")
    changes = listen(fanout, known.look, "a")
    await changes.next()
    known.away, known.statuses["a"] = 1, "failed"
    fanout.publish(TOOLS)
    fanout.publish(Change("task", "a"))
    await asyncio.sleep(0)
    assert await changes.next() == [TOOLS]
    assert told(await changes.next()) == {"a": "failed"}


async def test_a_change_carries_the_task_as_it_is_by_then() -> None:
    fanout, known = InProcessFanout(), Known(a="working")
    changes = listen(fanout, known.look, "a")
    await changes.next()
    fanout.publish(Change("task", "a"))
    known.statuses["a"] = "completed"
    assert told(await changes.next()) == {"a": "completed"}


async def test_other_changes_pass_through_unseen() -> None:
    fanout, known = InProcessFanout(), Known()
    changes = listen(fanout, known.look)
    fanout.publish(TOOLS)
    assert await changes.next() == [TOOLS]
    assert known.looks == []


async def test_a_task_that_is_gone_is_no_change() -> None:
    fanout, known = InProcessFanout(), Known(a="working")
    changes = listen(fanout, known.look, "a")
    await changes.next()
    del known.statuses["a"]
    waiting = asyncio.ensure_future(changes.next())
    fanout.publish(Change("task", "a"))
    await asyncio.sleep(0.02)
    assert not waiting.done()
    fanout.publish(TOOLS)
    assert await waiting == [TOOLS]


async def test_what_was_heard_when_the_waiting_was_given_up_is_told_next_time() -> None:
    fanout, known = InProcessFanout(), Known(a="working")
    changes = listen(fanout, known.look, "a")
    await changes.next()
    stuck = asyncio.Event()
    changes._look = lambda ids: stuck.wait()  # type: ignore[assignment, return-value]
    fanout.publish(Change("task", "a"))
    fanout.publish(TOOLS)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.02):
            await changes.next()
    changes._look, known.statuses["a"] = known.look, "completed"
    assert {*await changes.next()} == {Change("task", "a"), TOOLS}


async def test_a_store_that_is_away_is_waited_for(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(task_changes, "AGAIN_AFTER", 0.001)
    known = Known(a="completed")
    known.away = 3
    before = time.monotonic()
    assert told(await listen(InProcessFanout(), known.look, "a").next()) == {"a": "completed"}
    assert time.monotonic() - before == pytest.approx(3 * 0.001), "it is asked again in steps and not in a loop"
    assert caplog.messages == [], "the store's outage has a line of its own"


async def test_a_listener_that_is_told_to_end_ends() -> None:
    fanout = InProcessFanout()
    changes = listen(fanout, Known(a="working").look, "a")
    await changes.next()
    changes.close()
    assert await changes.next() == []
