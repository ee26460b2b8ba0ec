"""How long a process has been in touch with its store, and how long a lease holds: by a clock that is moved by hand."""

import time

import pytest

from mrtr_server.storage.health import LONGEST_GAP, Contact
from mrtr_server.storage.rows import Lease
from mrtr_server.testing import Clock


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock(1000.0)
    monkeypatch.setattr(time, "monotonic", clock)
    return clock


class TestContact:
    def test_begins_with_the_first_write(self, clock: Clock) -> None:
        contact = Contact(30.0)
        contact.worked(wrote=False)
        assert not contact.is_made
        assert not contact.has_lasted(0.0)
        contact.worked(wrote=True)
        assert contact.is_made
        assert contact.has_lasted(0.0)
        assert not contact.has_lasted(0.1)

    def test_lasts_since_its_first_write_and_not_since_the_last(self, clock: Clock) -> None:
        contact = Contact(30.0)
        for _ in range(4):
            contact.worked(wrote=True)
            clock.now += 1.0
        assert contact.has_lasted(4.0)
        assert not contact.has_lasted(4.1)

    def test_ends_with_a_failure_and_begins_anew_with_the_next_write(self, clock: Clock) -> None:
        contact = Contact(30.0)
        contact.worked(wrote=True)
        clock.now += 2.0
        contact.failed()
        assert not contact.is_made
        assert not contact.has_lasted(0.0)
        contact.worked(wrote=False)
        assert not contact.is_made
        contact.worked(wrote=True)
        assert contact.has_lasted(0.0)
        assert not contact.has_lasted(1.0)

    @pytest.mark.parametrize(("lease", "gap"), [(30.0, LONGEST_GAP), (2.0, 2.0)], ids=["the longest", "a lease"])
    def test_is_broken_by_a_silence_that_is_longer_than_a_gap(self, clock: Clock, lease: float, gap: float) -> None:
        contact = Contact(lease)
        contact.worked(wrote=True)
        clock.now += gap
        assert contact.has_lasted(gap), "as long as that is no break"
        contact.worked(wrote=False)
        assert contact.is_made
        clock.now += gap + 0.1
        assert not contact.has_lasted(gap)
        contact.worked(wrote=False)
        assert not contact.is_made
        contact.worked(wrote=True)
        assert not contact.has_lasted(gap)


class TestALease:
    def test_is_in_doubt_once_its_time_is_over_until_it_is_held_anew(self, clock: Clock) -> None:
        lease = Lease(5.0, clock.now - 1.0)
        clock.now += 4.0
        assert not lease.in_doubt
        clock.now += 0.1
        assert lease.in_doubt
        lease.hold(clock.now)
        assert not lease.in_doubt
        assert lease.seconds == 5.0

    def test_is_in_doubt_when_somebody_else_has_it(self, clock: Clock) -> None:
        lease = Lease(5.0, clock.now)
        assert not lease.lost
        lease.lost = True
        assert lease.in_doubt
