"""What every store that keeps events promises of them, as tests."""

import asyncio
import math
import time
from collections.abc import Sequence
from functools import cached_property
from secrets import token_hex
from typing import Any
from unittest import SkipTest

from ..errors import InvalidRequestState, OverShare
from ..storage.base import Store
from ..storage.rows import ENDED_SECONDS, EventPage, EventRow, Position, SubscriptionRow
from .contract import KEEP, LEASE, Contract, promise, refusal_of

LARGE = 10**9  # bytes that no page has
PATIENCE = 60.0  # seconds that transactions of others may take


def _need_events(store: Store) -> None:
    if not store.keeps_events:
        raise SkipTest(f"{type(store).__name__} keeps no events")


class EventStoreContract(Contract):
    """What a `Store` that `keeps_events` promises of events and subscriptions. Each test is named after one promise."""

    @cached_property
    def _event(self) -> str:
        """The name of the events of a test: one that no other test has."""
        return f"event-{token_hex(8)}"

    def _event_row(self, **given: Any) -> EventRow:
        now = time.time()
        row = EventRow(token_hex(16), self._event, "", b"body", now, now + KEEP * self.second)
        return row._replace(**given)

    async def _emit(self, store: Store, **given: Any) -> EventRow:
        row = self._event_row(**given)
        assert await store.add_event(row), "an event that is new was there already"
        return row

    async def _end_of_log(self, store: Store) -> Position:
        return (await self._read_log(store, None)).reached

    async def _read_log(
        self,
        store: Store,
        after: Position | None,
        names: Sequence[str] = (),
        *,
        most: int = 100,
        most_bytes: int = LARGE,
    ) -> EventPage:
        async with asyncio.timeout(PATIENCE):
            while True:
                page = await store.read_events(names or [self._event], after, most=most, most_bytes=most_bytes)
                if not page.delayed:
                    return page
                await asyncio.sleep(0.01)  # something else has a transaction open there

    # Events

    @promise
    async def test_an_event_is_read_as_it_was_after_the_end_of_before_on_every_replica(
        self, store: Store, another: Store
    ) -> None:
        _need_events(store)
        before = await self._end_of_log(another)
        row = await self._emit(store, body=b"\x00\xff" * 100_000, audience="them")
        for each in (store, another):
            page = await self._read_log(each, before)
            (found,) = page.rows
            assert found._replace(position=Position()) == row
            assert found.position > before
            assert page.is_last
            assert page.reached >= found.position
            assert page.lost == frozenset()

    @promise
    async def test_nothing_is_after_the_end(self, store: Store, another: Store) -> None:
        _need_events(store)
        await self._emit(store)
        end = await self._end_of_log(another)
        page = await self._read_log(store, end)
        assert (list(page.rows), page.is_last) == ([], True)
        assert page.reached >= end
        row = await self._emit(another)
        assert [each.id for each in (await self._read_log(store, page.reached)).rows] == [row.id]

    @promise
    async def test_events_of_several_names_come_in_the_order_of_their_positions_page_by_page(
        self, store: Store, another: Store
    ) -> None:
        _need_events(store)
        names = [f"{self._event}-{number}" for number in range(3)]
        after = await self._end_of_log(store)
        rows = [await self._emit(each, name=names[n % 3]) for n, each in enumerate([store, another] * 5)]
        await self._emit(store)  # of another name, which nobody asks for
        found: list[EventRow] = []
        sizes: list[int] = []
        while len(sizes) < 100:
            page = await self._read_log(store, after, names, most=3)
            sizes.append(len(page.rows))
            found += page.rows
            after = page.reached
            if page.is_last:
                break
        assert sizes == [3, 3, 3, 1]
        assert [row.id for row in found] == [row.id for row in rows]
        assert [row.position for row in found] == sorted({row.position for row in found})
        newest = await self._read_log(store, found[7].position, [names[0], names[2]])
        assert [row.id for row in newest.rows] == [rows[8].id, rows[9].id], "a page begins after a position"

    @promise
    async def test_a_page_ends_before_it_becomes_too_large_but_has_one_event(
        self, store: Store, another: Store
    ) -> None:
        _need_events(store)
        after = await self._end_of_log(store)
        rows = [await self._emit(store, body=bytes(100_000)) for _ in range(3)]
        page = await self._read_log(another, after, most_bytes=250_000)
        assert [row.id for row in page.rows] == [row.id for row in rows[:2]]
        assert (page.reached, page.is_last) == (page.rows[-1].position, False)
        page = await self._read_log(another, page.reached, most_bytes=10)
        assert ([row.id for row in page.rows], page.is_last) == ([rows[2].id], True)

    @promise
    async def test_an_event_is_stored_once_for_each_name_and_id(self, store: Store, another: Store) -> None:
        _need_events(store)
        after, other = await self._end_of_log(store), f"{self._event}-other"
        row = await self._emit(store)
        assert not await another.add_event(row._replace(body=b"other"))
        assert await another.add_event(row._replace(name=other))
        added = await asyncio.gather(*(each.add_event(self._event_row(id="twice")) for each in (store, another) * 5))
        assert added.count(True) == 1
        page = await self._read_log(store, after, [self._event, other])
        assert [(each.name, each.id, each.body) for each in page.rows] == [
            (self._event, row.id, b"body"),
            (other, row.id, b"body"),
            (self._event, "twice", b"body"),
        ]

    @promise
    async def test_an_event_that_has_expired_is_lost_to_who_has_not_read_it_and_may_come_again(
        self, store: Store, another: Store
    ) -> None:
        _need_events(store)
        other = f"{self._event}-other"
        before = await self._end_of_log(store)
        short = await self._emit(store, expires=time.time() + self.second)
        read = await self._read_log(another, before)
        kept = await self._emit(store, name=other)
        await self._pass(2)
        page = await self._read_log(another, before, [self._event, other])
        assert [row.id for row in page.rows] == [kept.id]
        assert page.lost == {self._event}
        assert (await self._read_log(store, read.reached)).lost == frozenset(), "who has read it lacks nothing"
        again = self._event_row(id=short.id, body=b"again", created=math.ceil(time.time() + 2 * self.second))
        assert await another.add_event(again)
        assert [row.body for row in (await self._read_log(store, read.reached)).rows] == [b"again"]
        assert (await self._read_log(store, before)).lost == {self._event}, "of which the former one is gone"

    @promise
    async def test_no_event_is_passed_beside_those_that_have_expired(self, store: Store, another: Store) -> None:
        _need_events(store)
        other = f"{self._event}-other"
        after = await self._end_of_log(store)
        await self._emit(store, expires=time.time() + self.second)
        rows = [await self._emit(store, name=other) for _ in range(5)]
        await self._pass(2)
        found: list[str] = []
        for _ in range(20):
            page = await self._read_log(another, after, [self._event, other], most=2)
            found += [row.id for row in page.rows]
            after = page.reached
            if page.is_last:
                break
        assert found == [row.id for row in rows]

    @promise
    async def test_events_are_trimmed_to_the_newest_and_who_has_not_read_the_others_is_told(
        self, store: Store, another: Store
    ) -> None:
        _need_events(store)
        before, other = await self._end_of_log(store), f"{self._event}-other"
        rows = [await self._emit(store) for _ in range(6)]
        await self._emit(store, name=other)
        positions = [row.position for row in (await self._read_log(store, before)).rows]
        await another.trim_events(self._event, 6)
        assert (await self._read_log(store, before)).lost == frozenset()
        await another.trim_events(self._event, 2)
        page = await self._read_log(store, before, [self._event, other])
        assert [row.id for row in page.rows if row.name == self._event] == [row.id for row in rows[4:]]
        assert page.lost == {self._event}
        for read, lost in ((2, {self._event}), (3, set[str]())):
            assert (await self._read_log(another, positions[read], [self._event, other])).lost == lost
        await store.trim_events(self._event, 0)
        page = await self._read_log(another, positions[3])
        assert list(page.rows) == []
        assert page.lost == {self._event}

    # Subscriptions

    @cached_property
    def _kind(self) -> Any:
        """A kind that no other test counts. Only tests have such a one."""
        return f"kind-{token_hex(8)}"

    def _subscription(self, **given: Any) -> SubscriptionRow:
        now = time.time()
        row = SubscriptionRow(token_hex(16), self._kind, self._event, "me", b"body", "{}", now, now, now + KEEP)
        return row._replace(**given)

    @promise
    async def test_a_subscription_is_found_as_it_was_until_it_ends(self, store: Store, another: Store) -> None:
        _need_events(store)
        row = self._subscription(body=b"\x00\xff", expires=math.inf)
        assert await store.put_subscription(row) is None
        assert await another.find_subscription(row.id) == row
        assert await another.find_subscription(token_hex(16)) is None
        assert not await another.remove_subscription(row.id, updated=row.updated - 1)
        assert await another.remove_subscription(row.id, updated=row.updated)
        assert not await store.remove_subscription(row.id)
        assert await store.find_subscription(row.id) is None

    @promise
    async def test_who_subscribes_again_changes_what_it_asks_for_and_hears_what_was_before(
        self, store: Store, another: Store
    ) -> None:
        _need_events(store)
        row = self._subscription()
        assert await store.put_subscription(row) is None
        later = row._replace(
            caller="other", body=b"later", progress="later", created=1.0, updated=row.updated + 5, expires=math.inf
        )
        assert await another.put_subscription(later) == row
        changed = row._replace(body=b"later", updated=later.updated, expires=math.inf)
        assert await store.find_subscription(row.id) == changed
        assert await store.put_subscription(row) == changed

    @promise
    async def test_of_many_who_subscribe_at_once_one_is_the_first(self, store: Store, another: Store) -> None:
        _need_events(store)
        row = self._subscription()
        found = await asyncio.gather(*(each.put_subscription(row) for each in (store, another) * 4))
        assert found.count(None) == 1

    @promise
    async def test_a_subscription_that_has_ended_is_listed_for_an_hour_and_begins_anew(
        self, store: Store, another: Store
    ) -> None:
        _need_events(store)
        ended = self._subscription(id="0" + token_hex(16), expires=time.time() - 1, progress="old")
        gone = self._subscription(id="0" + token_hex(16), expires=time.time() - ENDED_SECONDS - 60)
        for row in (ended, gone):
            assert await store.put_subscription(row) is None
        assert await store.find_subscription(ended.id) is None
        listed = [row for row in await another.list_subscriptions(most=1_000) if row.id in (ended.id, gone.id)]
        assert listed == [ended]
        anew = self._subscription(id=ended.id, progress="new", caller="other")
        assert await another.put_subscription(anew) is None
        assert await store.find_subscription(ended.id) == anew

    @promise
    async def test_subscriptions_are_listed_by_their_ids_and_by_when_they_were_updated(
        self, store: Store, another: Store
    ) -> None:
        _need_events(store)
        begins, long = token_hex(8), 1_000_000.0
        rows = [self._subscription(id=f"{begins}{each}", updated=time.time() + long) for each in "aBc-_9"]
        for row in rows:
            await store.put_subscription(row)
        in_order = sorted(rows)
        for since in (0.0, time.time() + long - 100):
            assert await another.list_subscriptions(after=begins, most=3, since=since) == in_order[:3]
            page = await another.list_subscriptions(after=in_order[2].id, most=10, since=since)
            assert [row for row in page if row.id.startswith(begins)] == in_order[3:]
        assert await another.list_subscriptions(after=begins, most=3, since=time.time() + 2 * long) == []
        for row in rows:
            await store.remove_subscription(row.id)

    @promise
    async def test_a_new_subscription_beyond_a_limit_is_refused_and_a_present_one_may_change(
        self, store: Store, another: Store
    ) -> None:
        _need_events(store)
        rows = [self._subscription() for _ in range(2)]
        for row in rows:
            await store.put_subscription(row, most=2)
        await store.put_subscription(self._subscription(expires=time.time() - 1))  # which does not count
        refused = await refusal_of(another.put_subscription(self._subscription(), most=2))
        assert isinstance(refused, OverShare)
        assert refused.limit == "subscriptions"
        assert await another.put_subscription(rows[0], most=2, most_in_all=2) == rows[0]
        other = self._subscription(caller="other")
        refused = await refusal_of(another.put_subscription(other, most=2, most_in_all=2))
        assert refused is not None
        assert not isinstance(refused, OverShare)
        assert await another.put_subscription(other, most=2, most_in_all=3) is None

    @promise
    async def test_no_subscription_of_before_is_kept_of_who_was_forgotten(self, store: Store, another: Store) -> None:
        _need_events(store)
        ann = token_hex(16)
        await self.forget(ann)
        moment = (await another.forgotten())[ann]
        row = self._subscription(caller=ann, created=moment, updated=moment)
        try:
            await store.put_subscription(row)
        except InvalidRequestState:
            pass
        else:
            raise AssertionError("a subscription of before was kept")
        assert await another.find_subscription(row.id) is None
        assert await store.put_subscription(row._replace(updated=moment + 1)) is None
        assert await store.put_subscription(row._replace(id=token_hex(16), caller="other")) is None

    # Leases

    @promise
    async def test_a_lease_is_one_holders_until_it_ends_or_is_given_back(self, store: Store, another: Store) -> None:
        _need_events(store)
        lease = token_hex(16)
        seconds = LEASE * self.second
        taken = await asyncio.gather(
            *(each.take_lease(lease, f"holder {n}", seconds=seconds) for n, each in enumerate((store, another) * 4))
        )
        assert taken.count(True) == 1
        holder = f"holder {taken.index(True)}"
        assert await another.take_lease(lease, holder, seconds=seconds), "its holder extends it"
        assert not await store.take_lease(lease, "other", seconds=seconds)
        assert await store.take_lease(lease, holder, seconds=0)
        assert await another.take_lease(lease, "other", seconds=2 * self.second)
        assert not await store.take_lease(lease, holder, seconds=seconds)
        await self._pass(3)
        assert await store.take_lease(lease, holder, seconds=seconds)

    @promise
    async def test_progress_changes_while_nobody_else_has_the_lease(self, store: Store, another: Store) -> None:
        _need_events(store)
        lease, seconds = token_hex(16), LEASE * self.second
        rows = [self._subscription() for _ in range(3)]
        for row in rows:
            await store.put_subscription(row)
        await another.remove_subscription(rows[2].id)
        assert not await store.advance_subscriptions(lease, "holder", {rows[0].id: "1"}), "nobody has it"
        assert await store.take_lease(lease, "holder", seconds=seconds)
        assert await store.advance_subscriptions(lease, "holder", {row.id: f"of {row.id} ✓" for row in rows})
        assert not await another.advance_subscriptions(lease, "other", {row.id: "stolen" for row in rows})
        for row in rows[:2]:
            assert await another.find_subscription(row.id) == row._replace(progress=f"of {row.id} ✓")
        assert await another.find_subscription(rows[2].id) is None
        assert await store.advance_subscriptions(lease, "holder", {rows[2].id: "gone"}), "it has the lease"
        assert not await store.advance_subscriptions(lease, "other", {rows[2].id: "gone"})
