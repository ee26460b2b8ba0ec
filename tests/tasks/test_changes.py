"""What listeners hear of tasks: each as it is by then, none lost, and nothing of those that are gone."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from mrtr_server import StoreUnavailable
from mrtr_server.protocol.messages import Change, Task, TaskStatus
from mrtr_server.storage.pubsub import InProcessFanout
from mrtr_server.tasks import notifications as task_changes
from mrtr_server.tasks.notifications import TaskChanges

pytestmark = pytest.mark.anyio

TOOLS = Change("tools")


class Known:
    """Tasks by id, which can be away for a while."""

    def __init__(self, **statuses: TaskStatus) -> None:
        self.statuses: dict[str, TaskStatus] = statuses
        self.looks: list[str] = []
        self.away = 0

    async def look(self, id: str) -> Task | None:
        self.looks.append(id)
        await asyncio.sleep(0)
        if self.away:
            self.away -= 1
            raise StoreUnavailable("it is away")
        return Task(id, self.statuses[id], 1.0, 2.0, 3.0, 4.0) if id in self.statuses else None


def listen(fanout: InProcessFanout, look: Callable[[str], Awaitable[Task | None]], *ids: str) -> TaskChanges:
    wanted = frozenset({TOOLS, *(Change("task", id) for id in ids)})
    return TaskChanges(fanout.subscribe(wanted), wanted, look)


def told(changes: list[Change]) -> dict[str, str]:
    return {change.uri: change.task.status for change in changes if change.task is not None}


async def test_a_listener_first_hears_how_its_tasks_are_doing() -> None:
    """One may have ended before it came to listen, and would never change again."""
    changes = listen(InProcessFanout(), Known(a="completed", b="working").look, "b", "a")
    assert told(await changes.next()) == {"a": "completed"}
    assert told(await changes.next()) == {"b": "working"}


async def test_a_task_is_looked_at_when_the_one_before_has_been_sent() -> None:
    """Each may have a large result, and a listener may name a thousand of them."""
    known = Known(a="completed", b="completed", c="completed")
    changes = listen(InProcessFanout(), known.look, "a", "b", "c")
    for looked in (["a"], ["a", "b"], ["a", "b", "c"]):
        assert len(await changes.next()) == 1
        assert known.looks == looked


async def test_a_task_that_can_not_be_looked_at_does_not_hold_up_the_others() -> None:
    known = Known(a="completed", b="completed", c="completed")
    known.away = 1
    changes = listen(InProcessFanout(), known.look, "a", "b", "c")
    assert [told(await changes.next()) for _ in range(3)] == [{id: "completed"} for id in ("b", "c", "a")]


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
    changes._look = lambda id: stuck.wait()  # type: ignore[assignment, return-value]
    fanout.publish(Change("task", "a"))
    fanout.publish(TOOLS)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.02):
            await changes.next()
    changes._look, known.statuses["a"] = known.look, "completed"
    assert {*await changes.next(), *await changes.next()} == {Change("task", "a"), TOOLS}


async def test_a_store_that_is_away_is_waited_for(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(task_changes, "AGAIN_AFTER", 0.001)
    known = Known(a="completed")
    known.away = 3
    assert told(await listen(InProcessFanout(), known.look, "a").next()) == {"a": "completed"}
    assert caplog.messages == [], "the store's outage has a line of its own"


async def test_a_listener_that_is_told_to_end_ends() -> None:
    fanout = InProcessFanout()
    changes = listen(fanout, Known(a="working").look, "a")
    await changes.next()
    changes.close()
    assert await changes.next() == []
