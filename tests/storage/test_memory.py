"""The store in the memory of a process, at its bounds: what is full, what has expired, and what it counts."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from mrtr_server import InProcessStore, StoreUnavailable, TaskRow
from mrtr_server.storage.quotas import Quota, Usage
from mrtr_server.testing import Clock

pytestmark = pytest.mark.anyio

OVERHEAD = 512
"""What a task counts besides what it holds, in bytes."""


def make(clock: Clock, **bounds: int) -> InProcessStore:
    return InProcessStore(clock, **bounds)


@pytest.fixture
def clock() -> Clock:
    return Clock()


def task(clock: Clock, id: str, **more: Any) -> TaskRow:
    now = clock()
    made = TaskRow(id, "owner", "act", "working", "", now, now, 60, 1, now + 50, now + 100, b"call", b"journal")
    return made._replace(**more)


def claim(store: InProcessStore, most: int = 10, **more: Any) -> Any:
    return store.claim_tasks("worker", seconds=30, most=most, tools=["act"], **more)


async def settled() -> None:
    """Let what was called soon be done."""
    for _ in range(5):  # turns of the loop
        await asyncio.sleep(0)


@asynccontextmanager
async def waiting(store: InProcessStore) -> AsyncIterator[Callable[[], Awaitable[bool]]]:
    """Wait for tasks, after a claim; the block gets what tells whether the wait has ended."""
    await claim(store)
    waits = asyncio.create_task(store.wait_for_tasks(600, tools=["act"]))
    await settled()
    assert not waits.done()

    async def ended() -> bool:
        await settled()
        return waits.done()

    yield ended
    waits.cancel()


class TestValues:
    async def test_are_there_until_the_moment_they_expire(self, clock: Clock) -> None:
        store = make(clock)
        assert await store.put("key", b"value", keep=10)
        clock.advance(9)
        assert await store.get("key") == b"value"
        assert not await store.put("key", b"other", keep=10)
        clock.advance(1)
        assert await store.get("key") is None
        assert await store.put("key", b"other", keep=10)
        assert await store.get("key") == b"other"

    async def test_are_refused_when_there_are_as_many_and_one_may_still_be_replaced(self, clock: Clock) -> None:
        store = make(clock, most_records=2)
        for key in ("one", "two"):
            assert await store.put(key, b"value", keep=10)
        with pytest.raises(StoreUnavailable, match="2 records have not expired; give it a larger most_records"):
            await store.put("three", b"value", keep=10)
        await store.replace("two", b"other", keep=20)
        assert await store.get("two") == b"other"
        clock.advance(10)  # the one that was replaced is kept
        assert await store.put("three", b"value", keep=10)
        with pytest.raises(StoreUnavailable):
            await store.put("four", b"value", keep=10)

    async def test_are_refused_when_they_are_as_large_and_not_before(self, clock: Clock) -> None:
        store = make(clock, most_bytes=10)
        await store.put("one", b"123456789", keep=10)
        await store.put("two", b"0", keep=20)
        with pytest.raises(StoreUnavailable, match="10 bytes have not expired; give it a larger most_bytes"):
            await store.put("three", b"", keep=10)
        clock.advance(10)
        assert await store.put("three", b"123456789", keep=10)

    async def test_count_for_their_caller_until_they_are_gone(self, clock: Clock) -> None:
        store = make(clock)
        ann = Quota("ann")
        await store.put("one", b"12345", keep=10, quota=ann)
        await store.put("two", b"123", keep=20, quota=ann)
        assert store._usage.of("ann") == store._usage.all == Usage(0, 2, 8)
        await store.replace("two", b"1234567", keep=20, quota=ann)
        assert store._usage.of("ann") == Usage(0, 2, 12)
        clock.advance(10)
        await store.put("other", b"", keep=10)
        assert store._usage.of("ann") == Usage(0, 1, 7)

    async def test_that_are_replaced_again_and_again_take_no_room(self, clock: Clock) -> None:
        store = make(clock)
        kept = []
        for number in range(105):
            await store.replace(f"key {number % 2}", b"value", keep=10 - (number + 1) % 2)
            kept.append(len(store._values._expiring))
        assert (max(kept), kept[-1]) == (2 * 2 + 100, 2), "more than twice as many as there are, and some, are too many"
        clock.advance(9)  # what expires first is found first, though it came last
        await store.put("other", b"", keep=10)
        assert list(store._values._items) == ["key 1", "other"]
        clock.advance(1)
        await store.put("another", b"", keep=10)
        assert list(store._values._items) == ["other", "another"]


class TestRedeemedStates:
    async def test_are_granted_again_when_their_lease_has_ended(self, clock: Clock) -> None:
        store = make(clock)
        first = await store.redeem("state", "answers", lease=5, keep=60)
        clock.advance(4)
        assert (first.attempt, (await store.redeem("state", "answers", lease=5, keep=60)).verdict) == (1, "running")
        assert await store.renew("state", first.token, lease=5)
        clock.advance(4)
        assert (await store.redeem("state", "answers", lease=5, keep=60)).verdict == "running", "it was renewed"
        clock.advance(1)
        assert (await store.redeem("state", "answers", lease=5, keep=60, lapsed=False)).verdict == "running"
        second = await store.redeem("state", "answers", lease=5, keep=60)
        assert (second.verdict, second.attempt) == ("granted", 2)
        assert second.token != first.token
        assert not await store.renew("state", first.token, lease=5)
        assert not await store.record("state", first.token, b"outcome")
        clock.advance(4)
        assert (await store.redeem("state", "answers", lease=5, keep=60)).verdict == "running"
        assert (await store.redeem("state", "others", lease=5, keep=60)).verdict == "spent"

    async def test_keep_their_outcome_which_counts_as_what_is_stored(self, clock: Clock) -> None:
        store = make(clock, most_bytes=8)
        first = await store.redeem("state", "answers", lease=5, keep=60, quota=Quota("ann"))
        assert await store.record("state", first.token, b"12345678")
        assert await store.record("state", first.token, b"12345678"), "it is the same"
        assert not await store.record("state", first.token, b"other")
        assert not await store.renew("state", first.token, lease=5)
        assert store._usage.of("ann") == Usage(0, 1, 8)
        with pytest.raises(StoreUnavailable, match="8 bytes"):
            await store.redeem("another", "answers", lease=5, keep=60)
        await store.release("state", first.token)
        assert (await store.redeem("state", "answers", lease=5, keep=60)).outcome == b"12345678"
        clock.advance(60)
        assert (await store.redeem("state", "answers", lease=5, keep=60)).verdict == "granted"
        assert store._usage.of("ann") == Usage()

    async def test_that_are_given_back_by_who_has_them_may_be_redeemed_with_other_answers(self, clock: Clock) -> None:
        store = make(clock)
        first = await store.redeem("state", "answers", lease=5, keep=60)
        await store.release("state", "another's")
        assert (await store.redeem("state", "others", lease=5, keep=60)).verdict == "spent"
        await store.release("state", first.token)
        assert (await store.redeem("state", "others", lease=5, keep=60)).verdict == "granted"


class TestTasks:
    async def test_are_refused_when_they_would_be_larger_than_the_store(self, clock: Clock) -> None:
        held = OVERHEAD + len("call") + len("journal") + len("ask") + len("out") + len("hello")
        store = make(clock, most_bytes=2 * held)
        whole = {"questions": b"ask", "outcome": b"out", "message": "hello"}
        for id in ("one", "two"):
            assert await store.add_task(task(clock, id, **whole))
        assert store._usage.all == Usage(2, 0, 2 * held)
        with pytest.raises(StoreUnavailable, match=f"its tasks hold {2 * held} bytes"):
            await store.add_task(task(clock, "three"))
        assert not await store.add_task(task(clock, "one"))
        clock.advance(100)
        assert await store.add_task(task(clock, "three", **whole))
        assert store._usage.all == Usage(1, 0, held)

    async def test_are_gone_the_moment_they_expire(self, clock: Clock) -> None:
        store = make(clock)
        row = task(clock, "one", caller="ann")
        await store.add_task(row)
        clock.advance(99)
        assert await store.find_task("one") == row
        clock.advance(1)
        assert await store.find_task("one") is None
        assert await store.change_task(row, message="hello") is None
        assert await store.list_owned_tasks("owner", before=(2e10, ""), most=10, most_bytes=9999) == []
        assert await claim(store) == []
        assert (store._tasks, store._owned, store._usage.of("ann")) == ({}, {}, Usage())

    async def test_that_expire_under_a_lease_are_no_longer_leased_nor_overdue(self, clock: Clock) -> None:
        store = make(clock)
        await store.add_task(task(clock, "one", lease="mine"), seconds=5)
        await store.add_task(task(clock, "two"))
        assert store._leased == {"one"}
        clock.advance(100)
        assert await store.overdue_tasks(most=10) == []
        assert await claim(store) == []
        assert store._leased == set()

    async def test_change_once_from_each_version(self, clock: Clock) -> None:
        store = make(clock)
        row = task(clock, "one")
        await store.add_task(row)
        changed = await store.change_task(row, seconds=5, lease="mine", message="hello")
        assert changed == row._replace(lease="mine", leased_until=clock() + 5, message="hello", version=1)
        assert await store.change_task(row, message="late") is None
        assert store._usage.all.bytes == OVERHEAD + 16

    async def test_are_claimed_in_turn_and_again_when_their_lease_has_ended(self, clock: Clock) -> None:
        store = make(clock)
        for number in range(3):
            await store.add_task(task(clock, f"of {number}", updated=clock() + number, caller=str(number)))
        rows = await claim(store, 2)
        assert [row.id for row in rows] == ["of 0", "of 1"]
        assert {(row.lease, row.leased_until, row.attempts, row.version) for row in rows} == {
            ("worker", clock() + 30, 1, 1)
        }
        assert [row.id for row in await claim(store)] == ["of 2"]
        clock.advance(29)
        assert await claim(store) == []
        clock.advance(1)
        assert await claim(store, lapsed=False) == []
        assert [(row.id, row.attempts) for row in await claim(store, without=["of 1"])] == [("of 0", 2), ("of 2", 2)]

    async def test_that_are_stored_under_a_lease_are_nobody_elses_until_it_ends(self, clock: Clock) -> None:
        store = make(clock)
        await store.add_task(task(clock, "one", lease="mine"), seconds=5)
        clock.advance(4)
        assert await claim(store) == []
        clock.advance(1)
        assert [row.id for row in await claim(store)] == ["one"]

    async def test_that_nobody_has_leased_are_not_taken_over_from_anybody(self, clock: Clock) -> None:
        store = make(clock)
        row = task(clock, "one")
        await store.add_task(row)
        await store.add_task(task(clock, "asks", status="input_required"))
        await store.change_task(row, message="hello")
        assert store._leased == set()
        assert [row.id for row in await claim(store, lapsed=False)] == ["one"]

    async def test_are_watched_for_the_end_of_their_lease_while_they_work_under_one(self, clock: Clock) -> None:
        store = make(clock)
        for id in ("ends", "asks", "lapses"):
            await store.add_task(task(clock, id))
        rows = {row.id: row for row in await claim(store)}
        assert store._leased == {"ends", "asks", "lapses"}
        await store.change_task(rows["ends"], status="completed")
        await store.change_task(rows["asks"], status="input_required")
        assert store._leased == {"lapses"}
        clock.advance(30)
        assert await claim(store, without=["lapses"]) == []
        assert store._leased == set(), "it waits for whoever may have it"
        assert [row.id for row in await claim(store)] == ["lapses"]

    async def test_are_renewed_by_who_has_them_while_they_are_there(self, clock: Clock) -> None:
        store = make(clock)
        for id, status in (("works", "working"), ("cancelled", "cancelled"), ("ended", "completed")):
            await store.add_task(task(clock, id, status=status, lease="mine"), seconds=5)
        await store.add_task(task(clock, "other", lease="another's"), seconds=5)
        until = clock() + 5
        clock.advance(2)
        ids = ["gone", "other", "ended", "cancelled", "works"]
        assert await store.renew_tasks("mine", ids, seconds=5) == {"works"}
        found = {id: row.leased_until for id, row in store._tasks.items()}
        assert found == {"works": until + 2, "cancelled": until + 2, "ended": until, "other": until}
        clock.advance(98)
        assert await store.renew_tasks("mine", ids, seconds=5) == set()

    async def test_are_overdue_from_their_deadline_until_somebody_ends_them(self, clock: Clock) -> None:
        store = make(clock)
        rows = [task(clock, f"of {number}", deadline=clock() + 10 + number) for number in range(3)]
        for row in rows:
            await store.add_task(row)
        clock.advance(9)
        assert await store.overdue_tasks(most=10) == []
        clock.advance(1)
        assert await store.overdue_tasks(most=10) == rows[:1]
        clock.advance(2)
        assert await store.overdue_tasks(most=2) == rows[:2]
        assert await store.overdue_tasks(most=10) == rows, "until somebody has ended them"
        await store.change_task(rows[0], status="failed")
        put_off = await store.change_task(rows[1], deadline=clock() + 5)
        assert await store.overdue_tasks(most=10) == rows[2:]
        clock.advance(5)
        assert await store.overdue_tasks(most=10) == [rows[2], put_off]

    async def test_whose_deadline_is_put_off_again_and_again_take_no_room(self, clock: Clock) -> None:
        store = make(clock)
        row: TaskRow | None = task(clock, "one")
        assert row is not None
        await store.add_task(row)
        await store.add_task(task(clock, "ended", status="failed"))
        other = task(clock, "other")
        await store.add_task(other)
        kept = []
        for number in range(1000):
            row = await store.change_task(row, deadline=clock() + 50 + number / 1000)
            assert row is not None
            kept.append(len(store._deadlines))
        assert max(kept) == 2 * 3 + 100, "more than twice as many as there are, and some, are too many"
        clock.advance(51)
        assert await store.overdue_tasks(most=10) == [other, row], "each is found at its own"

    @pytest.mark.parametrize(
        ("changes", "wakes"),
        [({"message": "hello"}, False), ({"status": "working", "lease": "mine"}, False), ({"status": "working"}, True)],
    )
    async def test_that_change_wake_who_waits_when_they_can_be_claimed(
        self, clock: Clock, changes: dict[str, Any], wakes: bool
    ) -> None:
        store = make(clock)
        row = task(clock, "one", status="input_required")
        await store.add_task(row)
        async with waiting(store) as ended:
            assert await store.change_task(row, **changes)
            assert await ended() is wakes

    @pytest.mark.parametrize("lease", ["", "mine"])
    async def test_that_come_wake_who_waits_unless_they_are_leased(self, clock: Clock, lease: str) -> None:
        store = make(clock)
        async with waiting(store) as ended:
            await store.add_task(task(clock, "one", lease=lease), seconds=5)
            assert await ended() is (lease == "")

    async def test_that_have_been_claimed_wake_nobody(self, clock: Clock) -> None:
        store = make(clock)
        async with waiting(store):
            pass  # so that the event loop is known
        await store.add_task(task(clock, "one"))
        await asyncio.sleep(0)
        async with waiting(store) as ended:
            assert not await ended()

    @pytest.mark.parametrize(("most", "wakes"), [(0, False), (1, True), (2, True), (3, False)])
    async def test_that_a_claim_of_as_many_as_it_may_take_has_left_wake_who_waits(
        self, clock: Clock, most: int, wakes: bool
    ) -> None:
        store = make(clock)
        for id in ("one", "two"):
            await store.add_task(task(clock, id))
        await claim(store, most)
        await asyncio.sleep(0)  # the wake is called soon
        waits = asyncio.create_task(store.wait_for_tasks(600, tools=["act"]))
        await settled()
        assert waits.done() is wakes
        waits.cancel()

    async def test_are_listed_for_their_owner_newest_first_and_as_large_as_wanted(self, clock: Clock) -> None:
        store = make(clock)
        start = clock()
        for number in range(4):
            await store.add_task(task(clock, f"of {number}", created=start + number, message="12345"))
        await store.add_task(task(clock, "other", owner="another"))
        listed: Any = store.list_owned_tasks
        everything = await listed("owner", before=(2e10, ""), most=10, most_bytes=9999)
        assert [row.id for row in everything] == ["of 3", "of 2", "of 1", "of 0"]
        assert {(row.call, row.journal) for row in everything} == {(b"", b"")}
        before = (start + 3, "of 3")
        two = ["of 2", "of 1"]
        for most, most_bytes, ids in ((2, 99, two), (9, 10, two), (9, 11, [*two, "of 0"]), (9, 0, ["of 2"])):
            rows = await listed("owner", before=before, most=most, most_bytes=most_bytes)
            assert [row.id for row in rows] == ids
        assert await listed("stranger", before=before, most=9, most_bytes=99) == []
        moved = await store.change_task(store._tasks["other"], owner="owner")
        assert moved is not None
        assert set(store._owned) == {"owner"}
