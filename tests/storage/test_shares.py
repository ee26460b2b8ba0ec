"""What a quota refuses: exactly at the share of a caller, and exactly at the total of all."""

from collections.abc import Callable
from typing import Any

import pytest

from mrtr_server import KeyRing, Limits, Principal
from mrtr_server.errors import Full, OverShare
from mrtr_server.storage.quotas import ENDLESS, NOBODY, UNLIMITED, Quota, Quotas, Usage, UsageByCaller
from mrtr_server.storage.rows import Places


def usage(all_: Usage, ann: Usage | None = None) -> UsageByCaller:
    made = UsageByCaller()
    made.all = all_
    if ann is not None:
        made.set("ann", ann)
    return made


Check = Callable[[UsageByCaller, Quota, Usage], None]
TOTALS: dict[str, Any] = {"tasks": 10, "states": 20, "bytes": 1000}


@pytest.mark.parametrize(
    ("check", "count"), [(UsageByCaller.check_task, "tasks"), (UsageByCaller.check_state, "states")]
)
class TestWhatIsStored:
    @pytest.mark.parametrize("what", ["count", "bytes"])
    def test_is_refused_at_the_total_whoever_stores_it(self, check: Check, count: str, what: str) -> None:
        what = count if what == "count" else what
        for caller in (NOBODY, "ann"):
            quota = Quota(caller, **TOTALS, share=0.5)
            check(usage(Usage(**{what: TOTALS[what] - 1})), quota, ENDLESS)
            full = usage(Usage(**{what: TOTALS[what]}))
            full.set(NOBODY, full.all)
            with pytest.raises(Full) as refusal:
                check(full, quota, ENDLESS)
            assert (type(refusal.value), refusal.value.limit) == (Full, f"stored_{what}")

    @pytest.mark.parametrize("what", ["count", "bytes"])
    def test_is_refused_at_the_share_of_a_caller_and_of_that_one_alone(
        self, check: Check, count: str, what: str
    ) -> None:
        what = count if what == "count" else what
        share = TOTALS[what] // 2
        for stored, refused in ((share - 1, False), (share, True)):
            found = usage(Usage(**{what: stored}), Usage(**{what: stored}))
            check(found, Quota(NOBODY, **TOTALS, share=0.5), ENDLESS)
            check(found, Quota("bob", **TOTALS, share=0.5), ENDLESS)
            if refused:
                with pytest.raises(OverShare) as refusal:
                    check(found, Quota("ann", **TOTALS, share=0.5), ENDLESS)
                assert refusal.value.limit == f"stored_{what}"
            else:
                check(found, Quota("ann", **TOTALS, share=0.5), ENDLESS)

    @pytest.mark.parametrize("what", ["count", "bytes"])
    def test_is_refused_at_a_share_of_what_the_store_holds_where_that_is_less(
        self, check: Check, count: str, what: str
    ) -> None:
        what = count if what == "count" else what
        room = Usage(UNLIMITED, UNLIMITED, UNLIMITED)
        setattr(room, what, 4)
        ann = Quota("ann", **TOTALS, share=0.5)
        check(usage(Usage(), Usage(**{what: 1})), ann, room)
        with pytest.raises(OverShare):
            check(usage(Usage(), Usage(**{what: 2})), ann, room)

    @pytest.mark.parametrize("what", ["count", "bytes"])
    def test_is_refused_at_the_share_of_a_tenant_whichever_of_its_callers_stores_it(
        self, check: Check, count: str, what: str
    ) -> None:
        what = count if what == "count" else what
        for stored, refused in ((TOTALS[what] // 2 - 1, False), (TOTALS[what] // 2, True)):
            found = usage(Usage(**{what: stored}))
            found.set("acme", Usage(**{what: stored}))
            for caller, tenant in (("ann", "acme"), ("bob", "other"), ("bob", NOBODY)):
                quota = Quota(caller, **TOTALS, tenant=tenant, tenant_share=0.5)
                if refused and tenant == "acme":
                    with pytest.raises(OverShare) as refusal:
                        check(found, quota, ENDLESS)
                    assert (refusal.value.limit, refusal.value.tenant) == (f"stored_{what}", "acme")
                else:
                    check(found, quota, ENDLESS)


def test_the_share_is_of_authenticated_callers_alone() -> None:
    assert (Quota("ann", share=0.5).share_of(10), Quota(share=0.5).share_of(10)) == (5, 10)
    assert Quota("ann").share_of(10) == 10, "all of it, unless it is said"


def test_what_comes_and_goes_is_counted_in_all_and_of_its_caller() -> None:
    counted = UsageByCaller()
    counted.add("ann", 1, 2, 30)
    counted.add("ann", 1, 1, 10)
    counted.add(NOBODY, 5, 6, 70)
    assert (counted.all, counted.of("ann"), counted.of(NOBODY)) == (Usage(7, 9, 110), Usage(2, 3, 40), Usage())
    counted.add("ann", -2, -3, -39)
    assert counted.of("ann") == Usage(0, 0, 1)
    counted.add("ann", 0, 0, -1)
    assert "ann" not in counted._own, "what is nothing takes no memory"
    counted.add("ann", 1, 0, 0, "acme")
    counted.add("bob", 1, 0, 5, "acme")
    assert (counted.of("bob"), counted.of("acme")) == (Usage(1, 0, 5), Usage(2, 0, 5))


@pytest.mark.parametrize("kept", [Usage(tasks=1), Usage(states=1), Usage(bytes=1)], ids=str)
def test_nothing_is_stored_where_no_count_is_left(kept: Usage) -> None:
    assert Usage().is_nothing
    assert not kept.is_nothing


def test_each_caller_has_a_quota_under_a_digest_of_its_own() -> None:
    limits = Limits(stored_tasks=5, stored_states=6, stored_bytes=7_000_000, caller_share=0.25)
    quotas = Quotas(KeyRing([bytes(32)]), limits)
    ann, bob = (quotas.of(Principal(issuer="https://id.example", subject=name)) for name in ("ann", "bob"))
    assert len({ann.caller, bob.caller, NOBODY}) == 3
    assert len(ann.caller) == 32, "sixteen bytes, in hex digits"
    assert ann == Quota(ann.caller, 5, 6, 7_000_000, 0.25)
    assert quotas.of(None) == Quota(NOBODY, 5, 6, 7_000_000, 0.25)


def test_a_caller_of_a_tenant_has_a_share_of_the_tenant_s_share() -> None:
    quotas = Quotas(KeyRing([bytes(32)]), Limits(stored_tasks=100, caller_share=0.25, tenant_share=0.5))
    ann, bob, cat = (quotas.of(Principal(name, "https://id.example", tenant="acme")) for name in ("ann", "bob", "cat"))
    assert (ann.tenant_share_of(100), ann.share_of(100)) == (50, 12)
    assert ann.caller == quotas.of(Principal("ann", "https://id.example")).caller, "the same, whatever the tenant"
    assert {ann.tenant} == {bob.tenant, cat.tenant}
    others = [Principal("ann", "https://id.example", tenant="other"), Principal("ann", "https://two", tenant="acme")]
    assert len({ann.tenant, *(quotas.of(each).tenant for each in others), NOBODY}) == 4
    assert len(ann.tenant) == 32, "sixteen bytes, in hex digits"
    impostor = quotas.of(Principal("acme", "https://id.example"))
    assert impostor.caller != ann.tenant, "no name of a caller is that of a tenant"


def test_a_caller_has_its_share_when_it_runs_as_many_and_nobody_ever_has_it() -> None:
    places = Places({"ann": 2, "bob": 1, NOBODY: 5}, share=2, spare=0)
    assert [places.has_share(caller) for caller in ("ann", "bob", "cem", NOBODY)] == [True, False, False, False]
    assert not Places({}, share=1, spare=0).has_share("dan"), "who runs nothing has nothing"
