"""What every store promises, as tests: those of a store of your own subclass these.

    from mrtr_server.testing.store import StoreContract

    class TestMyStore(StoreContract):
        async def new_store(self) -> MyStore:
            return MyStore("redis://localhost/15")

pytest runs them, without any plugin. One that keeps tasks, or events, has another contract for each: `class
TestMyStore(StoreContract, TaskStoreContract, EventStoreContract)`.
"""

import asyncio
from collections import Counter
from collections.abc import Awaitable
from secrets import token_hex
from typing import Any
from unittest import SkipTest

from ..errors import Full, OverShare
from ..storage.base import Store
from ..storage.quotas import ANY, Quota
from ..storage.rows import Redemption
from .contract import KEEP, LEASE, Contract, promise, refusal_of, three_of, three_of_tenant
from .event_store import EventStoreContract
from .task_store import TaskStoreContract

__all__ = ["EventStoreContract", "StoreContract", "TaskStoreContract"]


class StoreContract(Contract):
    """What a `Store` promises of redeemed states and of values. Each test is named after one promise."""

    async def _redeem(
        self,
        store: Store,
        state: str,
        answers: str = "answers",
        *,
        lease: float = LEASE,
        keep: float = KEEP,
        quota: Quota = ANY,
        **more: Any,
    ) -> Redemption:
        lease, keep = lease * self.second, keep * self.second
        return await store.redeem(state, answers, lease=lease, keep=keep, quota=quota, **more)

    # A grant

    @promise
    async def test_the_first_delivery_is_granted(self, store: Store, another: Store) -> None:
        granted = await self._redeem(store, token_hex(16))
        assert (granted.verdict, granted.attempt, granted.outcome) == ("granted", 1, b"")
        assert granted.token

    @promise
    async def test_no_two_grants_share_a_token(self, store: Store, another: Store) -> None:
        grants = [await self._redeem(each, token_hex(16)) for each in (store, another) * 25]
        assert len({grant.token for grant in grants}) == 50

    @promise
    async def test_a_duplicate_hears_that_it_runs(self, store: Store, another: Store) -> None:
        state = token_hex(16)
        await self._redeem(store, state)
        assert await self._redeem(store, state) == Redemption("running")
        assert await self._redeem(another, state) == Redemption("running")

    @promise
    async def test_of_fifty_at_once_exactly_one_is_granted(self, store: Store, another: Store) -> None:
        state = token_hex(16)
        deliveries = await asyncio.gather(*(self._redeem(each, state) for each in (store, another) * 25))
        assert Counter(each.verdict for each in deliveries) == {"granted": 1, "running": 49}

    @promise
    async def test_other_answers_find_it_spent(self, store: Store, another: Store) -> None:
        state = token_hex(16)
        granted = await self._redeem(store, state)
        assert await self._redeem(store, state, "others") == Redemption("spent")
        await store.record(state, granted.token, b"done")
        assert await self._redeem(store, state, "others") == Redemption("spent")

    @promise
    async def test_other_answers_find_it_spent_even_when_the_lease_has_ended(
        self, store: Store, another: Store
    ) -> None:
        state = token_hex(16)
        await self._redeem(store, state, lease=2)
        await self._pass(3)
        assert await self._redeem(store, state, "others") == Redemption("spent")
        assert (await self._redeem(store, state)).verdict == "granted"

    @promise
    async def test_a_released_state_is_as_if_never_delivered(self, store: Store, another: Store) -> None:
        state = token_hex(16)
        granted = await self._redeem(store, state)
        await store.release(state, granted.token)
        assert not await store.record(state, granted.token, b"late")
        again = await self._redeem(store, state, "others")
        assert (again.verdict, again.attempt) == ("granted", 1)
        assert again.token != granted.token

    @promise
    async def test_what_nobody_was_granted_can_be_neither_recorded_nor_renewed(
        self, store: Store, another: Store
    ) -> None:
        state = token_hex(16)
        assert not await store.record(state, "token", b"done")
        assert not await store.renew(state, "token", lease=LEASE)
        await store.release(state, "token")
        assert (await self._redeem(store, state)).verdict == "granted"

    @promise
    async def test_who_has_no_grant_can_neither_renew_nor_record_nor_release_it(
        self, store: Store, another: Store
    ) -> None:
        state = token_hex(16)
        granted = await self._redeem(store, state, lease=2)
        await self._pass(1)
        assert not await another.renew(state, "token", lease=LEASE)
        assert not await another.record(state, "token", b"other")
        await another.release(state, "token")
        assert await self._redeem(store, state) == Redemption("running")
        await self._pass(2)
        assert (await self._redeem(store, state)).token not in ("", granted.token)

    @promise
    async def test_a_delivery_that_is_cancelled_takes_nothing_with_it(self, store: Store, another: Store) -> None:
        states = [token_hex(16) for _ in range(30)]
        tasks = [asyncio.create_task(self._redeem(store, state, lease=2)) for state in states]
        for number, task in enumerate(tasks):
            if number % 3 == 0:
                await asyncio.sleep(0)
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._pass(3)
        assert {(await self._redeem(store, state)).verdict for state in states} == {"granted"}

    # A lease

    @promise
    async def test_a_lapsed_lease_is_taken_over_once(self, store: Store, another: Store) -> None:
        state = token_hex(16)
        first = await self._redeem(store, state, lease=2)
        await self._pass(3)
        deliveries = await asyncio.gather(*(self._redeem(each, state) for each in (store, another) * 10))
        assert Counter(each.verdict for each in deliveries) == {"granted": 1, "running": 19}
        (second,) = (each for each in deliveries if each.verdict == "granted")
        assert second.attempt == 2
        assert second.token != first.token

    @promise
    async def test_a_lapsed_lease_can_be_left_to_its_holder(self, store: Store, another: Store) -> None:
        state = token_hex(16)

        def deliver(answers: str = "answers") -> Awaitable[Redemption]:
            return self._redeem(another, state, answers, lapsed=False)

        first = await self._redeem(store, state, lease=2, keep=6)
        await self._pass(3)
        assert await deliver() == Redemption("running")
        assert await deliver("others") == Redemption("spent")
        assert await store.record(state, first.token, b"done")
        assert await deliver() == Redemption("recorded", outcome=b"done")
        await self._pass(4)
        assert (await deliver()).attempt == 1, "what has expired is absent"

    @promise
    async def test_attempts_are_counted(self, store: Store, another: Store) -> None:
        state = token_hex(16)
        for attempt in range(1, 5):
            assert (await self._redeem(store, state, lease=2)).attempt == attempt
            if attempt < 4:
                await self._pass(3)

    @promise
    async def test_after_a_takeover_the_late_original_can_do_nothing(self, store: Store, another: Store) -> None:
        state = token_hex(16)
        first = await self._redeem(store, state, lease=2)
        await self._pass(3)
        second = await self._redeem(store, state)
        assert not await store.record(state, first.token, b"late")
        assert not await store.renew(state, first.token, lease=LEASE)
        await store.release(state, first.token)
        assert (await self._redeem(store, state)).verdict == "running"
        assert await store.record(state, second.token, b"done")
        assert not await store.record(state, first.token, b"late")
        assert await self._redeem(store, state) == Redemption("recorded", outcome=b"done")

    @promise
    async def test_a_renewed_lease_holds_from_now(self, store: Store, another: Store) -> None:
        state = token_hex(16)
        granted = await self._redeem(store, state, lease=3)
        for _ in range(3):
            await self._pass(2)
            assert await store.renew(state, granted.token, lease=3 * self.second)
        await self._pass(2)
        assert (await self._redeem(store, state)).verdict == "running"
        await self._pass(2)
        assert (await self._redeem(store, state)).attempt == 2

    @promise
    async def test_a_lapsed_lease_is_its_own_until_it_is_taken(self, store: Store, another: Store) -> None:
        state = token_hex(16)
        granted = await self._redeem(store, state, lease=2)
        await self._pass(3)
        assert await store.renew(state, granted.token, lease=2 * self.second)
        assert (await self._redeem(store, state)).verdict == "running"
        await self._pass(3)
        assert await store.record(state, granted.token, b"done")
        assert (await self._redeem(store, state)).outcome == b"done"

    # An outcome

    @promise
    async def test_a_later_duplicate_gets_the_recorded_outcome(self, store: Store, another: Store) -> None:
        state = token_hex(16)
        granted = await self._redeem(store, state)
        assert await store.record(state, granted.token, b"\x00done\xff")
        assert await self._redeem(store, state) == Redemption("recorded", outcome=b"\x00done\xff")

    @promise
    async def test_it_gets_it_on_another_replica_too(self, store: Store, another: Store) -> None:
        state = token_hex(16)
        granted = await self._redeem(store, state)
        assert await another.record(state, granted.token, b"done")
        assert await self._redeem(store, state) == Redemption("recorded", outcome=b"done")
        assert await self._redeem(another, state) == Redemption("recorded", outcome=b"done")

    @promise
    async def test_an_outcome_may_be_empty_or_large(self, store: Store, another: Store) -> None:
        for outcome in (b"", _bytes(self.largest)):
            state = token_hex(16)
            granted = await self._redeem(store, state)
            assert await store.record(state, granted.token, outcome)
            found = await self._redeem(store, state)
            assert found.verdict == "recorded"
            assert found.outcome == outcome, f"an outcome of {len(outcome)} bytes is another one"

    @promise
    async def test_the_first_outcome_stays(self, store: Store, another: Store) -> None:
        state = token_hex(16)
        granted = await self._redeem(store, state)
        assert await store.record(state, granted.token, b"first")
        assert await store.record(state, granted.token, b"first"), "its reply may have been lost"
        assert not await store.record(state, granted.token, b"second")
        assert not await store.renew(state, granted.token, lease=LEASE)
        await store.release(state, granted.token)
        assert await self._redeem(store, state) == Redemption("recorded", outcome=b"first")

    @promise
    async def test_a_recorded_outcome_outlasts_the_lease(self, store: Store, another: Store) -> None:
        state = token_hex(16)
        granted = await self._redeem(store, state, lease=2, keep=6)
        await store.record(state, granted.token, b"done")
        await self._pass(5)
        assert await self._redeem(store, state) == Redemption("recorded", outcome=b"done")

    @promise
    async def test_a_record_is_kept_from_the_first_delivery_on(self, store: Store, another: Store) -> None:
        state = token_hex(16)
        await self._redeem(store, state, lease=2, keep=7)
        await self._pass(3)
        second = await self._redeem(store, state, lease=2, keep=7)
        assert await store.record(state, second.token, b"done")
        await self._pass(3)
        assert (await self._redeem(store, state)).verdict == "recorded"
        await self._pass(2)
        assert (await self._redeem(store, state, "others")).attempt == 1

    @promise
    async def test_an_expired_record_counts_as_absent(self, store: Store, another: Store) -> None:
        state = token_hex(16)
        granted = await self._redeem(store, state, keep=2)
        await self._pass(3)
        assert not await store.renew(state, granted.token, lease=LEASE)
        assert not await store.record(state, granted.token, b"late")
        await store.release(state, granted.token)
        again = await self._redeem(store, state, "others", keep=2)
        assert (again.verdict, again.attempt) == ("granted", 1)
        await store.record(state, again.token, b"done")
        await self._pass(3)
        assert (await self._redeem(store, state)).verdict == "granted"
        assert await self._redeem(store, state) == Redemption("running"), "nothing of the earlier outcome is left"

    # Values

    @promise
    async def test_a_value_is_kept_once(self, store: Store, another: Store) -> None:
        key = token_hex(16)
        assert await store.get(key) is None
        assert await store.put(key, b"\x00first", keep=KEEP)
        assert not await store.put(key, b"second", keep=KEEP)
        assert not await another.put(key, b"\x00first", keep=KEEP)
        assert await another.get(key) == b"\x00first"

    @promise
    async def test_of_fifty_writers_at_once_one_wins(self, store: Store, another: Store) -> None:
        key, stores = token_hex(16), (store, another) * 25
        kept = await asyncio.gather(*(each.put(key, b"%d" % n, keep=KEEP) for n, each in enumerate(stores)))
        assert kept.count(True) == 1
        assert await store.get(key) == b"%d" % kept.index(True)

    @promise
    async def test_an_expired_value_counts_as_absent(self, store: Store, another: Store) -> None:
        key = token_hex(16)
        await store.put(key, b"first", keep=2 * self.second)
        await self._pass(1)
        assert await store.get(key) == b"first"
        await self._pass(2)
        assert await store.get(key) is None
        assert await store.put(key, b"second", keep=KEEP)
        assert await store.get(key) == b"second"

    @promise
    async def test_a_value_may_be_empty_or_large(self, store: Store, another: Store) -> None:
        for value in (b"", _bytes(self.largest)):
            key = token_hex(16)
            assert await store.put(key, value, keep=KEEP)
            assert await another.get(key) == value, f"a value of {len(value)} bytes is another one"
            assert not await store.put(key, b"other", keep=KEEP)

    @promise
    async def test_a_value_may_be_replaced(self, store: Store, another: Store) -> None:
        _need_replace(store)
        key = token_hex(16)
        for value in (b"first", b"\x00second", b""):
            await store.replace(key, value, keep=4 * self.second)
            assert await another.get(key) == value
        await self._pass(3)
        await another.replace(key, b"longer", keep=4 * self.second)
        await self._pass(3)
        assert await store.get(key) == b"longer"
        await self._pass(2)
        assert await store.get(key) is None

    @promise
    async def test_states_and_values_are_two_things(self, store: Store, another: Store) -> None:
        key = token_hex(16)
        await store.put(key, b"value", keep=KEEP)
        granted = await self._redeem(store, key)
        await store.record(key, granted.token, b"outcome")
        assert await store.get(key) == b"value"

    # Connections

    @promise
    async def test_it_can_be_used_after_it_was_closed(self, store: Store, another: Store) -> None:
        state = token_hex(16)
        granted = await self._redeem(store, state)
        await store.close()
        await store.close()
        assert await store.record(state, granted.token, b"done")
        assert await self._redeem(store, state) == Redemption("recorded", outcome=b"done")

    # Epochs

    @promise
    async def test_an_epoch_is_the_same_on_every_replica(self, store: Store, another: Store) -> None:
        epoch = await _epoch_of(store)
        assert epoch.isascii()
        assert epoch.isalnum()
        assert await another.epoch() == epoch

    @promise
    async def test_a_state_of_another_epoch_is_not_granted(self, store: Store, another: Store) -> None:
        epoch, state = await _epoch_of(store), token_hex(16)
        assert await self._redeem(store, state, epoch=f"not{epoch}") == Redemption("other_epoch")
        granted = await self._redeem(another, state, epoch=epoch)
        assert (granted.verdict, granted.attempt) == ("granted", 1)

    @promise
    async def test_a_state_that_names_no_epoch_is_granted(self, store: Store, another: Store) -> None:
        await _epoch_of(store)
        assert (await self._redeem(store, token_hex(16))).verdict == "granted"

    @promise
    async def test_a_lapsed_lease_of_another_epoch_is_not_granted_again(self, store: Store, another: Store) -> None:
        epoch, state = await _epoch_of(store), token_hex(16)
        await self._redeem(store, state, epoch=epoch, lease=2)
        await self._pass(3)
        assert await self._redeem(store, state, epoch=f"not{epoch}") == Redemption("other_epoch")

    @promise
    async def test_a_new_epoch_counts_at_once_whatever_a_replica_remembers(self, store: Store, another: Store) -> None:
        before = await _epoch_of(store)
        assert await another.epoch() == before
        running = token_hex(16)
        granted = await self._redeem(store, running, epoch=before)
        await self.begin_epoch()
        for each in (store, another):
            assert await self._redeem(each, token_hex(16), epoch=before) == Redemption("other_epoch")
        assert await store.record(running, granted.token, b"done"), "what has begun before is recorded"

    # Who was forgotten

    @promise
    async def test_who_was_forgotten_redeems_and_keeps_nothing_of_before(self, store: Store, another: Store) -> None:
        ann, keys = Quota(token_hex(16), begun=0.0), [token_hex(16) for _ in range(3)]
        assert await another.put(keys[0], b"before", keep=KEEP, quota=ann)
        await self.forget(ann.caller)
        moment = (await another.forgotten())[ann.caller]
        assert await self._redeem(store, token_hex(16), quota=ann) == Redemption("forgotten")
        assert not await store.put(keys[1], b"late", keep=KEEP, quota=ann)
        if type(store).replace is not Store.replace:
            await store.replace(keys[2], b"late", keep=KEEP, quota=ann)
        assert [await another.get(key) for key in keys[1:]] == [None, None]
        for quota in (ann._replace(begun=moment + 1), Quota(token_hex(16), begun=0.0)):
            assert (await self._redeem(store, token_hex(16), quota=quota)).verdict == "granted", "later, or another's"
            assert await store.put(token_hex(16), b"value", keep=KEEP, quota=quota)

    # Quotas

    @promise
    async def test_a_caller_is_refused_beyond_its_share_and_others_are_not(self, store: Store, another: Store) -> None:
        self._need_quotas()
        quota = three_of(token_hex(16))
        assert [(await self._redeem(store, token_hex(16), quota=quota)).verdict for _ in range(2)] == ["granted"] * 2
        assert await store.put(token_hex(16), b"value", keep=KEEP, quota=quota)
        for each in (store, another):
            refused = await refusal_of(self._redeem(each, token_hex(16), quota=quota))
            assert isinstance(refused, OverShare), "a fourth state was kept"
            assert refused.data == {"limit": "stored_states", "value": 3}
            refused = await refusal_of(each.put(token_hex(16), b"value", keep=KEEP, quota=quota))
            assert isinstance(refused, OverShare), "a fourth value was kept"
        for other in (three_of(token_hex(16)), quota._replace(caller="")):
            assert (await self._redeem(store, token_hex(16), quota=other)).verdict == "granted"

    @promise
    async def test_the_callers_of_a_tenant_are_refused_beyond_its_share_and_others_are_not(
        self, store: Store, another: Store
    ) -> None:
        self._need_tenants()
        tenant, first = token_hex(16), token_hex(16)
        granted = await self._redeem(store, first, quota=three_of_tenant(tenant))
        assert (await self._redeem(another, token_hex(16), quota=three_of_tenant(tenant))).verdict == "granted"
        assert await store.put(token_hex(16), b"value", keep=KEEP, quota=three_of_tenant(tenant))
        for each in (store, another):
            quota = three_of_tenant(tenant)
            for refusal in (
                await refusal_of(self._redeem(each, token_hex(16), quota=quota)),
                await refusal_of(each.put(token_hex(16), b"value", keep=KEEP, quota=quota)),
            ):
                assert isinstance(refusal, OverShare), "a fourth was kept"
                assert (refusal.data, refusal.tenant) == ({"limit": "stored_states", "value": 3}, tenant)
            for other in (three_of_tenant(token_hex(16)), quota._replace(tenant="")):
                assert (await self._redeem(each, token_hex(16), quota=other)).verdict == "granted"
        assert (await self._redeem(another, first, quota=three_of_tenant(tenant))).verdict == "running"
        await another.release(first, granted.token)
        assert (await self._redeem(store, token_hex(16), quota=three_of_tenant(tenant))).verdict == "granted"

    @promise
    async def test_everybody_is_refused_beyond_the_total(self, store: Store, another: Store) -> None:
        self._need_quotas()
        await self._redeem(store, token_hex(16))
        for caller in ("", token_hex(16)):
            refused = await refusal_of(self._redeem(another, token_hex(16), quota=Quota(caller, states=1)))
            assert type(refused) is Full, "more than the total was kept"
            assert refused.data == {"limit": "stored_states", "value": 1}

    @promise
    async def test_a_state_is_never_removed_early_and_can_be_looked_up_however_full_it_is(
        self, store: Store, another: Store
    ) -> None:
        self._need_quotas()
        state, quota = token_hex(16), Quota(token_hex(16), states=1)
        granted = await self._redeem(store, state)
        refused = await refusal_of(self._redeem(store, token_hex(16), quota=quota))
        assert isinstance(refused, Full)
        assert (await self._redeem(another, state, quota=quota)).verdict == "running"
        assert await store.record(state, granted.token, b"done")
        assert (await self._redeem(another, state, quota=quota)).verdict == "recorded"

    @promise
    async def test_a_lapsed_lease_is_granted_again_however_full_it_is(self, store: Store, another: Store) -> None:
        self._need_quotas()
        state, quota = token_hex(16), Quota(token_hex(16), states=1)
        await self._redeem(store, state, lease=2)
        await self._pass(3)
        assert (await self._redeem(store, state, quota=quota)).verdict == "granted"

    @promise
    async def test_a_released_state_makes_room(self, store: Store, another: Store) -> None:
        self._need_quotas()
        quota = three_of(token_hex(16))
        for state in [token_hex(16) for _ in range(5)]:
            granted = await self._redeem(store, state, quota=quota)
            await store.release(state, granted.token)

    @promise
    async def test_a_value_that_replaces_another_needs_no_room(self, store: Store, another: Store) -> None:
        self._need_quotas()
        _need_replace(store)
        quota, (first, second, third, fourth) = three_of(token_hex(16)), [token_hex(16) for _ in range(4)]
        for key in (first, second, third, first):
            await store.replace(key, b"value", keep=KEEP, quota=quota)
        refused = await refusal_of(store.replace(fourth, b"value", keep=KEEP, quota=quota))
        assert isinstance(refused, OverShare), "a fourth value was kept"
        assert await store.get(fourth) is None
        await store.replace(second, b"new", keep=KEEP, quota=quota)
        assert await another.get(second) == b"new"


def _bytes(size: int) -> bytes:
    return (bytes(range(256)) * (size // 256 + 1))[:size]


async def _epoch_of(store: Store) -> str:
    if not store.has_epochs:
        raise SkipTest(f"{type(store).__name__} has no epochs")
    return await store.epoch()


def _need_replace(store: Store) -> None:
    if type(store).replace is Store.replace:
        raise SkipTest(f"{type(store).__name__} replaces no values, which settings of sessions need")
