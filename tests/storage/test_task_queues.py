"""The queues of the memory store: whose task is next, and what is dropped, left and counted on the way."""

from mrtr_server import TaskRow
from mrtr_server.storage.memory_tasks import CALLERS_IN_VIEW, TaskQueues
from mrtr_server.storage.rows import FREE, Places, in_epoch

NOW = 100.0
ROW = TaskRow("", "", "a", "working", "", 0, 0, 60, 1, 600, 600, b"", b"")


class Queues:
    """Queues, and the tasks in them."""

    def __init__(self) -> None:
        self.tasks: dict[str, TaskRow] = {}
        self.queues = TaskQueues(self.tasks)

    def add(self, id: str, caller: str = "", tool: str = "a", updated: float = 0.0, **more: float | str) -> None:
        row = ROW._replace(id=id, caller=caller, name=tool, updated=updated, **more)  # type: ignore[arg-type]
        self.tasks[id] = row
        self.queues.add(row)

    def next(
        self, most: int = 100, tools: str = "a", without: frozenset[str] = frozenset(), places: Places = FREE
    ) -> list[str]:
        """Return the ids of the tasks whose turn it is."""
        return [row.id for row in self.queues.next(most, list(tools), without, places, NOW)]


def test_the_oldest_comes_first_and_no_more_than_were_asked_for() -> None:
    queues = Queues()
    for id, updated in (("third", 3.0), ("first", 1.0), ("second", 2.0)):
        queues.add(id, updated=updated)
    assert queues.next(2) == ["first", "second"]
    assert queues.next(2) == ["third"]
    assert queues.next(2) == []


def test_callers_take_turns_and_what_each_holds_counts() -> None:
    queues = Queues()
    for number in range(3):
        queues.add(f"ann {number}", "ann", updated=float(number))
        queues.add(f"bob {number}", "bob", updated=10.0 + number)
    assert queues.next(3) == ["ann 0", "bob 0", "ann 1"]
    assert queues.next(2, places=FREE._replace(held={"ann": 2})) == ["bob 1", "bob 2"]


def test_a_caller_takes_its_turn_once_over_all_tools() -> None:
    queues = Queues()
    queues.add("ann a", "ann", "a", 0.0)
    queues.add("ann b", "ann", "b", 1.0)
    queues.add("bob b", "bob", "b", 2.0)
    assert queues.next(2, "ab") == ["ann a", "bob b"]
    assert queues.next(2, "ab") == ["ann b"]


def test_a_caller_that_is_alone_gets_all_of_several_tools_at_once() -> None:
    queues = Queues()
    queues.add("of a", "ann", "a", 0.0)
    queues.add("of b", "ann", "b", 1.0)
    assert queues.next(2, "ab") == ["of a", "of b"]


def test_a_caller_with_its_share_gets_what_is_to_spare_and_nobody_is_held_to_a_share() -> None:
    queues = Queues()
    for number in range(4):
        queues.add(f"ann {number}", "ann", updated=float(number))
        queues.add(f"any {number}", updated=10.0 + number)
    assert queues.next(places=Places({"ann": 0}, 1, 0)) == ["ann 0", "any 0", "any 1", "any 2", "any 3"]
    assert queues.next(places=Places({"ann": 1}, 1, 2)) == ["ann 1", "ann 2"]
    assert queues.next(places=Places({"ann": 1}, 2, 0)) == ["ann 3"]


def test_what_is_not_taken_keeps_its_turn() -> None:
    queues = Queues()
    queues.add("first", "ann", updated=1.0)
    queues.add("second", "ann", updated=2.0)
    assert queues.next(places=Places({"ann": 1}, 1, 0)) == []
    assert queues.next(without=frozenset({"first"})) == ["second"]
    assert queues.next() == ["first"]


def test_only_what_waits_since_then_is_taken() -> None:
    queues = Queues()
    queues.add("ended", status="completed")
    queues.add("held", leased_until=NOW + 1)
    queues.add("free", leased_until=NOW)
    queues.add("changed", updated=1.0)
    queues.tasks["changed"] = queues.tasks["changed"]._replace(updated=2.0)
    queues.add("gone")
    del queues.tasks["gone"]
    assert queues.next() == ["free"]
    queues.tasks["held"] = queues.tasks["held"]._replace(leased_until=0.0)
    assert queues.next() == [], "its entry was dropped; it is queued again when its lease ends"


def test_a_task_that_is_queued_twice_is_taken_once() -> None:
    queues = Queues()
    queues.add("first")
    queues.add("first")
    queues.add("second", updated=1.0)
    assert queues.next() == ["first", "second"]


def test_a_queue_that_is_empty_takes_no_memory() -> None:
    queues = Queues()
    queues.add("first", "ann")
    queues.add("second", "bob")
    queues.add("third", "bob", updated=1.0)
    assert queues.next(2) == ["first", "second"]
    assert {caller: len(each) for caller, each in queues.queues._queues["a"].items()} == {"bob": 1}


def test_a_claim_looks_at_so_many_callers_and_the_next_one_at_the_others() -> None:
    queues = Queues()
    for number in range(CALLERS_IN_VIEW + 2):
        queues.add(f"of {number}", f"caller {number}", updated=-float(number))  # the last one waits longest
    assert queues.next(1) == [f"of {CALLERS_IN_VIEW - 1}"]
    assert queues.next(1) == [f"of {CALLERS_IN_VIEW + 1}"]
    assert queues.next(1) == [f"of {CALLERS_IN_VIEW}"]


def test_a_row_says_what_its_client_may_see_of_it_and_what_the_log_calls_it() -> None:
    row = ROW._replace(id="0123456789abcdef", message="soon", questions=b"12", outcome=b"345678")
    assert row.visible_bytes == 12
    named = in_epoch("epoch", row.id)
    ids = [row.id, f"task-{row.id}", named, f"task-{named}"]
    assert {row._replace(id=id).reference for id in ids} == {"01234567"}
    assert [row._replace(id=id).epoch for id in ids] == ["", "", "epoch", "epoch"]


def test_a_row_that_nobody_has_had_says_so() -> None:
    assert (ROW.version, ROW.lease, ROW.leased_until, ROW.attempts, ROW.caller) == (0, "", 0.0, 0, "")
