"""What every store that keeps tasks promises of them, as tests."""

import asyncio
import math
import time
from collections import Counter
from collections.abc import Sequence
from functools import cached_property
from secrets import token_hex
from typing import Any
from unittest import SkipTest

from ..errors import Full, InvalidRequestState, OverShare
from ..storage.base import Store
from ..storage.quotas import Quota
from ..storage.rows import FREE, Places, TaskRow, WaitRow
from .contract import KEEP, LEASE, Contract, promise, refusal_of, three_of, three_of_tenant

LONG = 600.0  # how long who waits for tasks would wait without a word, in seconds
PATIENCE = 60.0  # how late a word may come, in seconds: it is for a busy machine

PARKED: dict[str, Any] = {"status": "input_required", "lease": "", "leased_until": 0.0}


def _need_waits(store: Store) -> None:
    if not store.keeps_waits:
        raise SkipTest(f"{type(store).__name__} lists no waits")


class TaskStoreContract(Contract):
    """What a `TaskStore` promises of tasks. Each test is named after one promise."""

    @cached_property
    def _tool(self) -> str:
        """The tool whose tasks a test adds and claims: one that no other test has."""
        return f"tool-{token_hex(8)}"

    def _row(self, **given: Any) -> TaskRow:
        now = time.time()
        end = now + KEEP * self.second
        row = TaskRow(token_hex(16), "me", self._tool, "working", "", now, now, end - now, 1, end, end, b"call", b"")
        return row._replace(**given)

    async def _add(self, store: Store, **given: Any) -> TaskRow:
        row = self._row(**given)
        assert await store.add_task(row, quota=Quota(row.caller)), "a task that is new was there already"
        return row

    async def _claim(
        self, store: Store, lease: str = "lease", *, seconds: float = LEASE, most: int = 10, **more: Any
    ) -> list[TaskRow]:
        given: dict[str, Any] = {"tools": [self._tool], **more}
        return await store.claim_tasks(lease, seconds=seconds * self.second, most=most, **given)

    async def _found(self, store: Store, row: TaskRow) -> TaskRow:
        found = await store.find_task(row.id)
        assert found is not None, "the task is gone"
        return found

    async def _waits_in_vain(self, store: Store, tools: Sequence[str] = (), **which: Any) -> bool:
        # Word of what is claimed by now may still be under way, and ends one wait.
        for _ in range(2):
            given: dict[str, Any] = {"tools": tools or [self._tool], **which}
            assert await self._claim(store, "in vain", **given) == []
            began = time.monotonic()
            await store.wait_for_tasks(0.6, **given)
            if time.monotonic() - began > 0.5:
                return True
        return False

    async def _wait(self, store: Store) -> None:
        async with asyncio.timeout(PATIENCE):
            await store.wait_for_tasks(LONG, tools=[self._tool])

    # What is stored

    @promise
    async def test_what_is_added_is_found_as_it_was_on_every_replica(self, store: Store, another: Store) -> None:
        row = await self._add(store, call=b"\x00\xff", journal=bytes(300_000), message="Größe: ½ ✓", owner="them")
        assert await store.find_task(row.id) == row
        assert await another.find_task(row.id) == row

    @promise
    async def test_what_is_not_there_is_not_found(self, store: Store, another: Store) -> None:
        await self._add(store)
        for id in ("", "missing", "\0", "a\0b", "\ud800", "ä", "' OR 1=1 --", "%", "*", "x" * 1_000_000):
            assert await store.find_task(id) is None, f"{id[:20]!r}: whatever a client sends is looked for"

    @promise
    async def test_many_find_theirs_at_once(self, store: Store, another: Store) -> None:
        rows = [await self._add(store) for _ in range(20)]
        wanted = [*rows, *rows[::-1]]
        found = await asyncio.gather(*(store.find_task(row.id) for row in wanted), store.find_task("none"))
        assert found == [*wanted, None]

    @promise
    async def test_several_are_found_in_one_go_up_to_a_size(self, store: Store, another: Store) -> None:
        rows = sorted([await self._add(store, outcome=bytes(1000)) for _ in range(3)])
        ids = sorted([*(row.id for row in rows), "missing"])
        for most_bytes, expected in ((1, 1), (2000, 2), (10**6, 3)):
            found = await another.find_tasks(ids, most_bytes=most_bytes)
            assert [(row.id, row.outcome) for row in found] == [(row.id, row.outcome) for row in rows[:expected]]

    @promise
    async def test_one_that_is_there_already_is_not_added_again(self, store: Store, another: Store) -> None:
        row = await self._add(store)
        again = row._replace(lease="mine", journal=b"other")
        assert await another.add_task(again, seconds=5) is False
        assert await self._found(store, row) == row

    @promise
    async def test_what_has_expired_counts_as_absent(self, store: Store, another: Store) -> None:
        now = time.time()
        row = await self._add(store, deadline=now + self.second, expires=now + 2 * self.second)
        (claimed,) = await self._claim(store, "mine")
        await self._pass(3)
        assert await store.find_task(row.id) is None
        assert await store.change_task(claimed, journal=b"late") is None
        assert await store.renew_tasks("mine", [row.id], seconds=5) == set()
        assert not await store.holds_task("mine", row.id)
        assert await self._claim(store) == []
        assert row.id not in {each.id for each in await store.overdue_tasks(most=100)}

    # Lists

    @promise
    async def test_an_owner_lists_its_own_the_newest_first(self, store: Store, another: Store) -> None:
        now, owner = time.time(), token_hex(16)
        rows = [await self._add(store, owner=owner, created=now + n, outcome=b"done") for n in range(5)]
        for other in (token_hex(16), ""):
            await self._add(store, owner=other, created=now + 9)
        newest = [row._replace(call=b"", journal=b"") for row in rows[::-1]]
        listed = await another.list_owned_tasks(owner, before=(math.inf, ""), most=3, most_bytes=10**6)
        assert listed == newest[:3]
        before = (listed[-1].created, listed[-1].id)
        assert await another.list_owned_tasks(owner, before=before, most=3, most_bytes=10**6) == newest[3:]

    @promise
    async def test_an_owner_lists_tasks_of_one_moment_once_each(self, store: Store, another: Store) -> None:
        now, owner = time.time(), token_hex(16)
        rows = [await self._add(store, owner=owner, created=now) for _ in range(7)]
        listed: list[str] = []
        before = (math.inf, "")
        while page := await store.list_owned_tasks(owner, before=before, most=2, most_bytes=10**6):
            listed += [row.id for row in page]
            before = (page[-1].created, page[-1].id)
            assert len(listed) <= len(rows), "a page has what an earlier one had"
        assert sorted(listed) == sorted(row.id for row in rows)

    @promise
    async def test_a_list_ends_before_it_is_too_large_and_has_one_at_least(self, store: Store, another: Store) -> None:
        owner = token_hex(16)
        for number in range(4):
            await self._add(store, owner=owner, created=time.time() + number, outcome=bytes(1000))
        for most_bytes, expected in ((1, 1), (1001, 2), (10**6, 4)):
            listed = await store.list_owned_tasks(owner, before=(math.inf, ""), most=9, most_bytes=most_bytes)
            assert len(listed) == expected

    @promise
    async def test_what_has_expired_is_in_no_list(self, store: Store, another: Store) -> None:
        owner = token_hex(16)
        await self._add(store, owner=owner, expires=time.time() + 2 * self.second)
        await self._pass(3)
        assert await store.list_owned_tasks(owner, before=(math.inf, ""), most=9, most_bytes=10**6) == []

    # Changes

    @promise
    async def test_a_change_gives_the_next_version(self, store: Store, another: Store) -> None:
        row = await self._add(store)
        changed = await store.change_task(row, status="input_required", journal=b"more", message="")
        assert changed == row._replace(status="input_required", journal=b"more", message="", version=1)
        assert await self._found(another, row) == changed
        again = await another.change_task(changed, status="completed", outcome=b"done", updated=row.updated + 1)
        assert again is not None
        assert (again.version, again.outcome, again.journal) == (2, b"done", b"more")
        assert await self._found(store, row) == again

    @promise
    async def test_a_change_of_another_version_does_not_happen(self, store: Store, another: Store) -> None:
        row = await self._add(store)
        changed = await store.change_task(row, message="first")
        assert await another.change_task(row, message="second") is None
        assert await self._found(another, row) == changed
        assert await store.change_task(self._row(), message="missing") is None

    @promise
    async def test_of_many_changes_at_once_one_happens(self, store: Store, another: Store) -> None:
        row = await self._add(store)
        changes = (each.change_task(row, journal=b"%d" % n) for n, each in enumerate((store, another) * 10))
        (changed,) = [each for each in await asyncio.gather(*changes) if each is not None]
        assert await self._found(another, row) == changed

    @promise
    async def test_every_field_but_the_id_can_be_changed(self, store: Store, another: Store) -> None:
        row = await self._add(store)
        changes: dict[str, Any] = {
            name: value * 2 if isinstance(value, float) else type(value)(value)
            for name, value in row._asdict().items()
            if name not in ("id", "version")
        } | {"owner": "other", "status": "failed", "lease": "lease", "attempts": 9, "outcome": b"outcome"}
        changed = await store.change_task(row, **changes)
        assert changed == row._replace(**changes, version=1)
        assert await self._found(another, row) == changed

    # Claims

    @promise
    async def test_a_claim_gives_the_task_with_a_lease(self, store: Store, another: Store) -> None:
        row = await self._add(store)
        (claimed,) = await self._claim(store, "mine")
        assert claimed == row._replace(lease="mine", leased_until=claimed.leased_until, attempts=1, version=1)
        assert claimed.leased_until > row.created + LEASE * self.second / 2
        assert await self._found(another, row) == claimed
        assert await self._claim(another, "other") == []

    @promise
    async def test_those_that_wait_longest_are_claimed_first_and_no_more_than_wanted(
        self, store: Store, another: Store
    ) -> None:
        now = time.time()
        rows = [await self._add(store, updated=now - wait) for wait in (10, 50, 30, 20, 40)]
        order = [row.id for row in sorted(rows, key=lambda row: row.updated)]
        for expected in (order[:2], order[2:4], order[4:]):
            assert [row.id for row in await self._claim(store, most=2)] == expected

    @promise
    async def test_some_can_be_left_to_others(self, store: Store, another: Store) -> None:
        left, other = await self._add(store), await self._add(store)
        claimed = await self._claim(store, "mine", without=[left.id])
        assert [row.id for row in claimed] == [other.id]
        assert await self._waits_in_vain(store, without=[left.id]), "it wakes who leaves that one"
        (taken,) = await self._claim(another, "another")
        assert taken.id == left.id

    @promise
    async def test_only_those_of_the_tools_that_are_named_are_claimed(self, store: Store, another: Store) -> None:
        mail, print_ = (f"{name}-{token_hex(8)}" for name in ("mail", "print"))
        rows = [await self._add(store, name=name) for name in (mail, print_, mail)]
        assert await self._claim(store, "mine", tools=[]) == []
        (claimed,) = await self._claim(store, "mine", tools=[print_, "'"])
        assert claimed.id == rows[1].id
        assert await self._waits_in_vain(store, tools=[print_]), "it wakes who takes none of that tool"
        found = await self._claim(another, "another", tools=[mail, print_])
        assert {row.id for row in found} == {rows[0].id, rows[2].id}

    @promise
    async def test_only_what_works_is_claimed_in_time_or_not(self, store: Store, another: Store) -> None:
        now = time.time()
        for status in ("input_required", "completed", "failed", "cancelled"):
            await self._add(store, status=status)
        await self._add(store, deadline=now - 2, expires=now - 1)
        assert await self._claim(store) == []
        late = await self._add(store, deadline=now - 1)
        assert [each.id for each in await self._claim(store)] == [late.id], "who claims one that is late ends it"

    @promise
    async def test_workers_share_the_tasks_and_each_goes_to_one(self, store: Store, another: Store) -> None:
        rows = [await self._add(store) for _ in range(60)]
        stores = [(store, another)[worker % 2] for worker in range(5)]
        # So that each has a connection, and none is through before the others begin.
        await asyncio.gather(*(self._claim(each, tools=[]) for each in stores))

        async def work(worker: int) -> list[str]:
            taken = []
            while claimed := await self._claim(stores[worker], f"worker {worker}", most=4):
                for row in claimed:
                    taken.append(row.id)
                    assert await stores[worker].change_task(row, status="completed", lease="", leased_until=0.0)
                await asyncio.sleep(0)
            return taken

        taken = await asyncio.gather(*map(work, range(5)))
        assert sorted(id for each in taken for id in each) == sorted(row.id for row in rows)
        assert sum(map(bool, taken)) > 1, "there was nothing to share"

    # Leases

    @promise
    async def test_who_adds_a_task_can_take_it(self, store: Store, another: Store) -> None:
        row = self._row(lease="mine", attempts=1)
        assert await store.add_task(row, seconds=2 * self.second) is True
        found = await self._found(another, row)
        assert found == row._replace(leased_until=found.leased_until)
        assert await self._claim(another, "other") == []
        await self._pass(1)
        assert await store.renew_tasks("mine", [row.id], seconds=3 * self.second) == {row.id}
        await self._pass(2)
        assert await self._claim(another, "other") == []
        await self._pass(2)
        (claimed,) = await self._claim(another, "other")
        assert (claimed.lease, claimed.attempts) == ("other", 2)

    @promise
    async def test_who_answers_a_task_can_take_it(self, store: Store, another: Store) -> None:
        row = await self._add(store, status="input_required")
        taken = await store.change_task(row, status="working", lease="mine", attempts=1, seconds=2 * self.second)
        assert taken is not None
        leased = row._replace(status="working", lease="mine", attempts=1, version=1)
        assert await self._found(another, row) == taken == leased._replace(leased_until=taken.leased_until)
        assert await self._claim(another, "other") == []
        await self._pass(3)
        assert len(await self._claim(another, "other")) == 1

    @promise
    async def test_an_answered_task_can_be_claimed_again(self, store: Store, another: Store) -> None:
        await self._add(store)
        (claimed,) = await self._claim(store)
        parked = await store.change_task(claimed, attempts=0, **PARKED)
        assert parked is not None
        assert await self._claim(store) == []
        assert await another.change_task(parked, status="working", journal=b"answered") is not None
        (again,) = await self._claim(store, "other")
        assert (again.lease, again.attempts, again.journal, again.version) == ("other", 1, b"answered", 4)

    @promise
    async def test_a_lapsed_lease_is_claimed_by_another_and_the_late_one_is_fenced_off(
        self, store: Store, another: Store
    ) -> None:
        await self._add(store)
        (first,) = await self._claim(store, "first", seconds=2)
        await self._pass(3)
        (second,) = await self._claim(another, "second")
        assert (second.lease, second.attempts) == ("second", 2)
        assert await store.change_task(first, journal=b"late") is None
        assert await store.renew_tasks("first", [first.id], seconds=5) == set()
        assert await another.change_task(second, journal=b"in time") is not None

    @promise
    async def test_a_renewed_lease_holds_from_now_and_keeps_the_version(self, store: Store, another: Store) -> None:
        await self._add(store)
        (claimed,) = await self._claim(store, "mine", seconds=3)
        for _ in range(3):
            await self._pass(2)
            assert await store.renew_tasks("mine", [claimed.id], seconds=3 * self.second) == {claimed.id}
        assert await self._claim(another, "other") == []
        changed = await store.change_task(claimed, journal=b"step")
        assert changed is not None
        assert changed.leased_until == (await self._found(another, claimed)).leased_until > claimed.leased_until
        await self._pass(4)
        assert len(await self._claim(another, "other")) == 1

    @promise
    async def test_a_lapsed_lease_is_its_own_until_it_is_taken(self, store: Store, another: Store) -> None:
        await self._add(store)
        (claimed,) = await self._claim(store, "mine", seconds=2)
        await self._pass(3)
        assert await store.renew_tasks("mine", [claimed.id], seconds=LEASE) == {claimed.id}
        assert await self._claim(store, "other") == []

    @promise
    async def test_a_lapsed_lease_can_be_left_to_its_worker(self, store: Store, another: Store) -> None:
        async def claim(*, lapsed: bool) -> list[str]:
            return sorted([row.id for row in await self._claim(another, "other", lapsed=lapsed)])

        ended, given_back = await self._add(store), await self._add(store)
        for row in await self._claim(store, "mine", seconds=2):
            if row.id == given_back.id:
                assert await store.change_task(row, lease="", leased_until=0.0)
        await self._pass(3)
        new = await self._add(store)
        assert await claim(lapsed=False) == sorted([given_back.id, new.id])
        assert await self._waits_in_vain(another, lapsed=False), "it wakes who takes none over"
        assert await claim(lapsed=True) == [ended.id]

    @promise
    async def test_renewing_tells_which_are_still_to_be_run(self, store: Store, another: Store) -> None:
        for _ in range(4):
            await self._add(store)
        one, two, three, _ = claimed = await self._claim(store, "mine")
        await another.change_task(one, status="cancelled")
        await store.change_task(two, status="completed")
        ids = [row.id for row in claimed]
        assert await store.renew_tasks("mine", [*ids[:3], "missing"], seconds=5) == {three.id}
        assert await store.renew_tasks("other", ids, seconds=5) == set()
        assert await store.renew_tasks("mine", [], seconds=5) == set()

    @promise
    async def test_a_lease_is_renewed_on_what_was_cancelled_too_and_that_is_not_to_be_run(
        self, store: Store, another: Store
    ) -> None:
        await self._add(store)
        (claimed,) = await self._claim(store, "mine")
        cancelled = await store.change_task(claimed, status="cancelled")
        assert cancelled is not None
        assert await store.renew_tasks("mine", [claimed.id], seconds=2 * LEASE * self.second) == set()
        found = await self._found(another, claimed)
        assert found.leased_until > cancelled.leased_until + LEASE * self.second / 2

    @promise
    async def test_a_task_is_held_while_it_works_under_the_lease(self, store: Store, another: Store) -> None:
        row = await self._add(store)
        assert not await store.holds_task("mine", row.id)
        (claimed,) = await self._claim(store, "mine")
        assert await store.holds_task("mine", row.id)
        assert await another.holds_task("mine", row.id)
        assert not await store.holds_task("other", row.id)
        assert not await store.holds_task("mine", "missing")
        await another.change_task(claimed, status="cancelled")
        assert not await store.holds_task("mine", row.id)

    @promise
    async def test_what_is_overdue_is_found_until_it_has_ended(self, store: Store, another: Store) -> None:
        now, second = time.time(), self.second
        working = await self._add(store, deadline=now + 2 * second)
        asking = await self._add(store, deadline=now + second, status="input_required")
        ended = await self._add(store, deadline=now + 2 * second, status="completed")
        later = await self._add(store, deadline=now + KEEP * second)
        mine = {row.id for row in (working, asking, ended, later)}

        async def overdue(most: int = 1000) -> list[TaskRow]:
            return [row for row in await store.overdue_tasks(most=most) if row.id in mine]

        await self._pass(3)
        found = await overdue()
        assert {row.id for row in found} == {working.id, asking.id}
        assert len(await store.overdue_tasks(most=1)) == 1
        for row in found:
            assert await another.change_task(row, status="failed") is not None
        assert await overdue() == []

    # Waiting

    @promise
    async def test_who_waits_for_tasks_is_woken_by_a_new_one(self, store: Store, another: Store) -> None:
        assert await self._claim(store) == []
        waiting = asyncio.create_task(self._wait(store))
        await asyncio.sleep(0.5)
        assert not waiting.done(), "there is nothing to claim"
        await self._add(another)
        await waiting
        assert len(await self._claim(store)) == 1

    @promise
    async def test_who_waits_for_tasks_is_woken_by_one_that_is_answered_or_handed_back(
        self, store: Store, another: Store
    ) -> None:
        await self._add(store)
        (row,) = await self._claim(store)
        for before in (PARKED, {}):
            if before:
                row = await another.change_task(row, **before) or row
            assert await self._claim(store) == []
            waiting = asyncio.create_task(self._wait(store))
            await asyncio.sleep(0.5)
            assert await another.change_task(row, status="working", lease="", leased_until=0.0)
            await waiting
            (row,) = await self._claim(store)

    @promise
    async def test_nobody_waits_while_there_is_more_to_claim(self, store: Store, another: Store) -> None:
        for _ in range(5):
            await self._add(store)
        for _ in range(2):
            assert len(await self._claim(store, most=2)) == 2
            await self._wait(store)
        assert len(await self._claim(store, most=2)) == 1

    @promise
    async def test_waiting_ends_after_its_time(self, store: Store, another: Store) -> None:
        assert await self._waits_in_vain(store), "it ends before"
        async with asyncio.timeout(PATIENCE):
            await store.wait_for_tasks(0.3, tools=[self._tool])

    @promise
    async def test_what_came_between_looking_and_waiting_is_not_slept_over(self, store: Store, another: Store) -> None:
        for adds in (store, another) * 3:
            assert await self._claim(store) == []
            await self._add(adds)
            await self._wait(store)
            assert len(await self._claim(store)) == 1

    @promise
    async def test_what_comes_while_one_looks_is_claimed_then_or_after_a_wait_that_ends_at_once(
        self, store: Store, another: Store
    ) -> None:
        for _ in range(20):
            claiming = asyncio.create_task(self._claim(store))
            adding = asyncio.create_task(self._add(store))
            claimed = await claiming
            if not claimed:
                await self._wait(store)
            await adding
            assert len(claimed or await self._claim(store)) == 1

    # Waits for somebody else

    async def _listed(self, store: Store, name: str, created: float, **given: Any) -> WaitRow:
        row = WaitRow(token_hex(16), token_hex(16), name, "", created, time.time() + KEEP * self.second)
        await store.put_wait(row._replace(**given))
        return row._replace(**given)

    @promise
    async def test_waits_are_listed_by_name_and_by_who_may_answer_the_newest_first(
        self, store: Store, another: Store
    ) -> None:
        _need_waits(store)
        name, who, now, all_ = self._tool, token_hex(16), time.time(), (math.inf, "")
        rows = [await self._listed(store, name, now - seconds) for seconds in (30, 10, 10, 20)]
        theirs = await self._listed(store, name, now, who=who)
        await self._listed(store, f"{name} too", now)
        newest = sorted(rows, key=lambda row: (row.created, row.id), reverse=True)
        assert await another.list_waits(name, "", before=all_, most=10) == newest
        assert await another.list_waits(name, who, before=all_, most=10) == [theirs]
        assert await another.list_waits(name, "", before=all_, most=2) == newest[:2]
        end = newest[0].created, newest[0].id
        assert await another.list_waits(name, "", before=end, most=10) == newest[1:], "a page begins after the last one"

    @promise
    async def test_a_wait_that_is_put_again_changes_who_may_answer_alone(self, store: Store, another: Store) -> None:
        _need_waits(store)
        name, who, all_ = self._tool, token_hex(16), (math.inf, "")
        row = await self._listed(store, name, time.time() - 5)
        await another.put_wait(row._replace(who=who, created=time.time()))
        assert await store.list_waits(name, "", before=all_, most=10) == []
        assert await store.list_waits(name, who, before=all_, most=10) == [row._replace(who=who)]

    @promise
    async def test_a_wait_that_was_removed_or_has_expired_is_not_listed(self, store: Store, another: Store) -> None:
        _need_waits(store)
        name = self._tool
        row = await self._listed(store, name, time.time())
        await self._listed(store, name, time.time(), expires=time.time() - 1)
        await another.remove_wait(row.id)
        await another.remove_wait(row.id)  # which does nothing
        assert await store.list_waits(name, "", before=(math.inf, ""), most=10) == []

    # Who was forgotten

    @promise
    async def test_no_task_and_no_wait_of_before_is_kept_of_who_was_forgotten(
        self, store: Store, another: Store
    ) -> None:
        ann, max_ = token_hex(16), token_hex(16)
        await self.forget(ann)
        moment = (await another.forgotten())[ann]
        row = self._row(caller=ann)
        try:
            await store.add_task(row, quota=Quota(ann, begun=moment))
        except InvalidRequestState:
            pass
        else:
            raise AssertionError("a task of before was kept")
        assert await another.find_task(row.id) is None
        assert await store.add_task(self._row(caller=ann), quota=Quota(ann, begun=moment + 1))
        assert await store.add_task(self._row(caller=max_), quota=Quota(max_, begun=moment))
        if store.keeps_waits:
            name = self._tool
            for caller, who in ((ann, ""), (max_, ann)):
                await self._listed(store, name, moment, caller=caller, who=who)
                assert await another.list_waits(name, who, before=(math.inf, ""), most=10) == []
            later = await self._listed(store, name, moment + 1, caller=ann)
            others = await self._listed(store, name, moment, caller=max_)
            assert await another.list_waits(name, "", before=(math.inf, ""), most=10) == [later, others]

    # Callers

    @promise
    async def test_a_caller_is_refused_beyond_its_share_of_tasks_and_others_are_not(
        self, store: Store, another: Store
    ) -> None:
        self._need_quotas()
        caller, other = token_hex(16), token_hex(16)
        rows = [self._row(caller=caller) for _ in range(4)]
        for row in rows[:3]:
            assert await store.add_task(row, quota=three_of(caller))
        for each in (store, another):
            refused = await refusal_of(each.add_task(rows[3], quota=three_of(caller)))
            assert isinstance(refused, OverShare), "a fourth task was kept"
            assert refused.data == {"limit": "stored_tasks", "value": 3}
            assert await each.find_task(rows[3].id) is None
        assert await another.add_task(rows[0], quota=three_of(caller)) is False, "what is there is no new one"
        assert await store.add_task(self._row(caller=other), quota=three_of(other))
        assert await store.add_task(self._row(), quota=three_of(""))

    @promise
    async def test_the_callers_of_a_tenant_are_refused_beyond_its_share_of_tasks_and_others_are_not(
        self, store: Store, another: Store
    ) -> None:
        self._need_tenants()
        tenant = token_hex(16)
        quotas = [three_of_tenant(each) for each in (*[tenant] * 4, token_hex(16))]
        rows = [self._row(caller=quota.caller) for quota in quotas]
        for row, quota in zip(rows[:3], quotas[:3], strict=True):
            assert await store.add_task(row, quota=quota)
        for each in (store, another):
            refused = await refusal_of(each.add_task(rows[3], quota=quotas[3]))
            assert isinstance(refused, OverShare), "a fourth task was kept"
            assert (refused.data, refused.tenant) == ({"limit": "stored_tasks", "value": 3}, tenant)
            assert await each.find_task(rows[3].id) is None
        assert await another.add_task(rows[4], quota=quotas[4])
        assert await store.add_task(rows[3], quota=quotas[3]._replace(tenant=""))

    @promise
    async def test_everybody_is_refused_beyond_the_total_of_tasks(self, store: Store, another: Store) -> None:
        self._need_quotas()
        await self._add(store)
        for caller in ("", token_hex(16)):
            refused = await refusal_of(another.add_task(self._row(caller=caller), quota=Quota(caller, tasks=1)))
            assert type(refused) is Full, "more than the total was kept"
            assert refused.data == {"limit": "stored_tasks", "value": 1}

    async def _claimed_of(self, store: Store, most: int = 10, places: Places = FREE) -> dict[str, int]:
        return dict(Counter(row.caller for row in await self._claim(store, most=most, places=places)))

    @promise
    async def test_the_next_place_is_for_the_caller_that_has_the_fewest(self, store: Store, another: Store) -> None:
        self._need_quotas()
        now, (ann, bob, cat) = time.time(), (token_hex(16) for _ in range(3))
        for number in range(20):
            await self._add(store, caller=ann, updated=now - 100 + number)
        for caller in (bob, bob, bob, cat):
            await self._add(store, caller=caller)
        assert await self._claimed_of(store, 6) == {ann: 3, bob: 2, cat: 1}
        assert await self._claimed_of(another, 2, Places({ann: 10}, 100, 100)) == {bob: 1, ann: 1}

    @promise
    async def test_the_last_places_are_for_callers_that_have_less_than_their_share(
        self, store: Store, another: Store
    ) -> None:
        self._need_quotas()
        ann, bob = token_hex(16), token_hex(16)
        for caller in [ann] * 10 + [bob] * 3:
            await self._add(store, caller=caller)
        assert await self._claimed_of(store, places=Places({ann: 8, bob: 1}, share=2, spare=0)) == {bob: 1}
        places = Places({ann: 8, bob: 2}, share=2, spare=3)
        assert await self._claimed_of(store, places=places) == {bob: 2, ann: 1}

    @promise
    async def test_callers_who_are_not_authenticated_may_take_all_places(self, store: Store, another: Store) -> None:
        for _ in range(5):
            await self._add(store)
        assert await self._claimed_of(store, places=Places({"": 50}, share=1, spare=0)) == {"": 5}
