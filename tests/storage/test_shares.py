"""What a quota refuses: exactly at the share of a caller, and exactly at the total of all."""

from collections.abc import Callable

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


Check = Callable[[Quota, UsageByCaller, Usage], None]
TOTALS = {"tasks": 10, "states": 20, "bytes": 1000}


@pytest.mark.parametrize(("check", "count"), [(Quota.check_task, "tasks"), (Quota.check_state, "states")])
class TestWhatIsStored:
    @pytest.mark.parametrize("what", ["count", "bytes"])
    def test_is_refused_at_the_total_whoever_stores_it(self, check: Check, count: str, what: str) -> None:
        what = count if what == "count" else what
        for caller in (NOBODY, "ann"):
            quota = Quota(caller, **TOTALS, share=0.5)
            check(quota, usage(Usage(**{what: TOTALS[what] - 1})), ENDLESS)
            full = usage(Usage(**{what: TOTALS[what]}))
            full.set(NOBODY, full.all)
            with pytest.raises(Full) as refusal:
                check(quota, full, ENDLESS)
            assert (type(refusal.value), refusal.value.limit) == (Full, f"stored_{what}")

    @pytest.mark.parametrize("what", ["count", "bytes"])
    def test_is_refused_at_the_share_of_a_caller_and_of_that_one_alone(
        self, check: Check, count: str, what: str
    ) -> None:
        what = count if what == "count" else what
        share = TOTALS[what] // 2
        for stored, refused in ((share - 1, False), (share, True)):
            found = usage(Usage(**{what: stored}), Usage(**{what: stored}))
            check(Quota(NOBODY, **TOTALS, share=0.5), found, ENDLESS)
            check(Quota("bob", **TOTALS, share=0.5), found, ENDLESS)
            if refused:
                with pytest.raises(OverShare) as refusal:
                    check(Quota("ann", **TOTALS, share=0.5), found, ENDLESS)
                assert refusal.value.limit == f"stored_{what}"
            else:
                check(Quota("ann", **TOTALS, share=0.5), found, ENDLESS)

    @pytest.mark.parametrize("what", ["count", "bytes"])
    def test_is_refused_at_a_share_of_what_the_store_holds_where_that_is_less(
        self, check: Check, count: str, what: str
    ) -> None:
        what = count if what == "count" else what
        room = Usage(UNLIMITED, UNLIMITED, UNLIMITED)
        setattr(room, what, 4)
        ann = Quota("ann", **TOTALS, share=0.5)
        check(ann, usage(Usage(), Usage(**{what: 1})), room)
        with pytest.raises(OverShare):
            check(ann, usage(Usage(), Usage(**{what: 2})), room)


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
    assert quotas.of_caller(ann.caller) == ann == Quota(ann.caller, 5, 6, 7_000_000, 0.25)
    assert quotas.of(None) == quotas.of_caller(NOBODY) == Quota(NOBODY, 5, 6, 7_000_000, 0.25)


def test_a_caller_has_its_share_when_it_runs_as_many_and_nobody_ever_has_it() -> None:
    places = Places({"ann": 2, "bob": 1, NOBODY: 5}, share=2, spare=0)
    assert [places.has_share(caller) for caller in ("ann", "bob", "cem", NOBODY)] == [True, False, False, False]
    assert not Places({}, share=1, spare=0).has_share("dan"), "who runs nothing has nothing"
