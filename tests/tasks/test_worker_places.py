"""How a worker divides its places: what runs takes one, and what is about to run takes one too."""

import time
from contextlib import ExitStack, suppress

import pytest

from mrtr_server import Limits, TaskRow
from mrtr_server.flow.handler import TaskTerms
from mrtr_server.storage.rows import Places
from mrtr_server.tasks.worker import RESERVED_LEASE_SECONDS, WorkerPlaces
from mrtr_server.testing import short_lease


def task_of(tool: str) -> TaskRow:
    return TaskRow("id", "", tool, "working", "", 0, 0, 60, 1, 60, 60, b"", b"")


def places(count: int, running: list[TaskRow], **concurrency: int | None) -> WorkerPlaces:
    terms = {
        tool: TaskTerms(required=False, rounds_first=False, concurrency=most) for tool, most in concurrency.items()
    }
    return WorkerPlaces(lambda: terms, Limits(tasks=count), lambda: running)


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


def test_tools_without_a_limit_are_claimed_together_and_may_run_in_every_place() -> None:
    worker = places(3, [task_of("b")], a=None, b=None, c=2)
    assert worker.queues == [["c"], ["a", "b"]]
    assert [worker.at_once(tool) for tool in ("a", "c", "unknown")] == [3, 2, 0]
    assert worker.room(["a", "b"]) == 2
    assert places(3, [], c=2).queues == [["c"]]
    assert places(3, [task_of("a"), task_of("a")], a=None).room(["a"]) == 1
    assert places(5, [task_of("a"), task_of("b")], a=2, b=None).room(["a"]) == 1
    assert places(2, [task_of("a")] * 3, a=1).room(["a"]) < 0, "more runs than there is room for"


def test_tools_of_which_few_run_are_claimed_first_and_otherwise_in_turn() -> None:
    worker = places(3, [task_of("a")], a=2, b=1, c=None)
    assert [worker.in_turn(turn) for turn in range(2)] == [[["b"], ["c"], ["a"]]] * 2
    idle = places(1, [], a=1, b=1, c=None)
    assert [idle.in_turn(turn)[0] for turn in range(4)] == [["a"], ["b"], ["c"], ["a"]]
    assert places(1, []).in_turn(1) == []


def row_of(caller: str) -> TaskRow:
    return task_of("a")._replace(caller=caller)


def shared(count: int, *running: str, share: float = 0.5) -> WorkerPlaces:
    """Places of one tool, with tasks of these callers in them."""
    terms = {"a": TaskTerms(required=False, rounds_first=False)}
    limits = Limits(tasks=count, caller_share=share)
    return WorkerPlaces(lambda: terms, limits, lambda: [row_of(each) for each in running])


def test_as_many_places_as_one_share_are_kept_for_callers_that_have_less() -> None:
    assert shared(10, "ann", "ann", "bob", share=0.4).divided() == Places({"ann": 2, "bob": 1}, share=4, spare=3)
    assert shared(3, "ann", "ann", share=1.0).divided() == Places({"ann": 2}, share=3, spare=0)
    assert shared(3, share=1.0).divided().spare == 1, "all but one are kept where a share is all"
    worker = shared(10, "ann", share=0.2)
    with worker.reserve(row_of("bob"), "lease", print):
        assert worker.divided() == Places({"ann": 1, "bob": 1}, share=2, spare=6)


@pytest.mark.parametrize(
    ("running", "caller", "may"),
    [
        (("ann", "ann"), "ann", False),  # it has its share, and what is left is kept
        (("ann", "ann"), "bob", True),
        (("ann",), "ann", True),
        (("", "", ""), "", True),  # nobody's are held to no share
        (("ann", "bob", "cem", "dan"), "eve", False),
    ],
)
def test_a_place_is_kept_for_a_caller_that_may_have_one_more(running: tuple[str, ...], caller: str, may: bool) -> None:
    with shared(4, *running).reserve(row_of(caller), "lease", print) as place:
        assert (place is not None) == may


def test_a_caller_past_its_share_gets_a_place_while_one_is_to_spare() -> None:
    for count, may in ((6, True), (5, False)):
        with shared(count, "ann", "ann", "ann", share=0.4).reserve(row_of("ann"), "lease", print) as place:
            assert (place is not None) == may


def test_a_reserved_place_holds_for_its_lease_and_no_longer_than_that_of_the_worker() -> None:
    began: list[tuple[TaskRow, float]] = []
    terms = {"a": TaskTerms(required=False, rounds_first=False)}
    for lease, seconds in ((30.0, RESERVED_LEASE_SECONDS), (2.0, 2.0)):
        worker = WorkerPlaces(lambda: terms, short_lease(lease), list)
        before = time.monotonic()
        with worker.reserve(task_of("a"), "mine", lambda row, until: began.append((row, until))) as place:
            assert place is not None
            assert (place.lease, place.seconds) == ("mine", seconds)
            place.run(task_of("a"))
        row, until = began.pop()
        assert row == task_of("a")
        assert before + seconds <= until <= time.monotonic() + seconds


def test_a_place_is_free_again_when_its_task_could_not_be_stored() -> None:
    worker = places(1, [], a=None)
    with suppress(RuntimeError), worker.reserve(task_of("a"), "lease", print):
        raise RuntimeError("it could not be stored")
    assert worker.room(["a"]) == 1
