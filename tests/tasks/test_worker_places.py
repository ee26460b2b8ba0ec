"""How a worker divides its places: what runs takes one, and what is about to run takes one too."""

from contextlib import ExitStack

from mrtr_server import Limits, TaskRow
from mrtr_server.flow.handler import TaskTerms
from mrtr_server.tasks.worker_places import WorkerPlaces


def task_of(tool: str) -> TaskRow:
    return TaskRow("id", "", tool, "working", "", 0, 0, 60, 1, 60, 60, b"", b"")


def places(count: int, running: list[TaskRow], **concurrency: int | None) -> WorkerPlaces:
    terms = {
        tool: TaskTerms(required=False, rounds_first=False, concurrency=most) for tool, most in concurrency.items()
    }
    return WorkerPlaces(terms, Limits(tasks=count), lambda: running)


def test_what_runs_and_what_is_about_to_run_take_a_place_each() -> None:
    worker = places(3, [task_of("a")], a=None, b=None)
    assert worker.room(["a", "b"]) == 2
    with ExitStack() as reserved:
        for left in (1, 0):
            assert reserved.enter_context(worker.reserve(task_of("a"), "lease", print)) is not None
            assert worker.room(["a", "b"]) == left
        with worker.reserve(task_of("b"), "lease", print) as none:
            assert none is None
    assert worker.room(["a", "b"]) == 2


def test_a_tool_with_a_limit_has_room_for_as_many_and_for_no_more_than_are_free() -> None:
    worker = places(3, [task_of("a"), task_of("b")], a=2, b=None)
    assert worker.queues == [["a"], ["b"]]
    with worker.reserve(task_of("a"), "lease", print):
        assert worker.room(["a"]) == 0
    assert worker.room(["a"]) == 1
    assert places(3, [task_of("b"), task_of("b")], a=2, b=None).room(["a"]) == 1
