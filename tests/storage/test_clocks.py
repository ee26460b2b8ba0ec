"""The clock of a database beside that of this machine: what is known of it, and what is refused while it is unsure."""

import pytest

from mrtr_server.errors import ClocksApart
from mrtr_server.storage.sql.database import COMPARE_AGAIN, MOST_SECONDS, TOLD_SECONDS, ClockComparison

from ..support.virtual_time import VirtualTime

HERE = 1_000_000.0


@pytest.fixture
def clocks() -> ClockComparison:
    return ClockComparison("the database", lambda: HERE)


def test_before_it_was_read_it_is_taken_to_be_this_machine_s(clocks: ClockComparison) -> None:
    assert clocks.time() == HERE
    assert not clocks.is_in_doubt
    clocks.check()


def test_it_goes_on_from_the_middle_of_the_time_that_its_answer_took(
    clocks: ClockComparison, virtual_time: VirtualTime
) -> None:
    virtual_time.compute(7)
    clocks.note(500.0, before=HERE, took=2.0)
    assert clocks.time() == 501.0
    virtual_time.compute(3)
    assert clocks.time() == 504.0


@pytest.mark.parametrize("ahead", [1, -1], ids=["ahead", "behind"])
@pytest.mark.parametrize("took", [0.0, 4.0])
def test_each_is_given_the_half_of_what_an_answer_took(
    clocks: ClockComparison, caplog: pytest.LogCaptureFixture, ahead: int, took: float
) -> None:
    """It may have been read at any moment in between."""
    middle = HERE + took / 2
    clocks.note(middle + ahead * (TOLD_SECONDS + took / 2), before=HERE, took=took)
    assert caplog.messages == []
    clocks.note(middle + ahead * (TOLD_SECONDS + took / 2 + 0.25), before=HERE, took=took)
    (line,) = caplog.messages
    where = "ahead of" if ahead > 0 else "behind"
    assert line.startswith(f"the database: its clock is {TOLD_SECONDS + 0.25:.1f} s {where} this machine's, so leases")
    clocks.check()
    clocks.note(middle + ahead * (MOST_SECONDS + took / 2), before=HERE, took=took)
    clocks.check()
    clocks.note(middle + ahead * (MOST_SECONDS + took / 2 + 0.25), before=HERE, took=took)
    with pytest.raises(ClocksApart, match=f"{MOST_SECONDS + 0.25:.1f} s {where}") as refused:
        clocks.check()
    assert refused.value.reference
    assert refused.value.reference in caplog.messages[-1]
    assert "Set both clocks by NTP" in caplog.messages[-1], "the operator's log says what to do as well"


def test_a_change_has_one_line(clocks: ClockComparison, caplog: pytest.LogCaptureFixture) -> None:
    for apart in (0.0, 10.0, 12.0, 0.0, 1.0):
        clocks.note(HERE + apart, before=HERE, took=0.0)
    assert [line.partition(",")[0] for line in caplog.messages] == [
        "the database: its clock is 10.0 s ahead of this machine's",
        "the database: its clock and this machine's agree again",
    ]


def test_what_is_too_far_apart_is_in_doubt_after_a_while(clocks: ClockComparison, virtual_time: VirtualTime) -> None:
    clocks.note(HERE + 2 * MOST_SECONDS, before=HERE, took=0.0)
    assert not clocks.is_in_doubt
    virtual_time.compute(COMPARE_AGAIN - 1)
    assert not clocks.is_in_doubt
    virtual_time.compute(1)
    assert clocks.is_in_doubt
    clocks.note(HERE, before=HERE, took=0.0)
    assert not clocks.is_in_doubt


@pytest.mark.parametrize(("theirs", "took", "apart"), [(100.0, 0.0, 0.0), (103.5, 0.0, 3.5), (96.0, 2.0, 4.0)])
def test_how_far_they_are_apart_at_least_is_known_of_clocks_that_agree_too(
    theirs: float, took: float, apart: float
) -> None:
    comparison = ClockComparison("db")
    comparison.note(theirs, 100.0, took)
    assert comparison.apart == apart
