"""The contract of stores, as an author runs it: with pytest alone. A careful store holds it, and no other one does."""

import os
import re
import subprocess
import sys

import pytest

from ..support.serving import ROOT, TIMEOUT

HELD = [
    "TestOwnStore",
    "TestWithTheTimeOfTheMachine::test_a_lapsed_lease_is_taken_over_once",
    "TestWithTheTimeOfTheMachine::test_attempts_are_counted",
]
BROKEN = {
    "TestReadsAndThenWrites": "test_of_fifty_at_once_exactly_one_is_granted",
    "TestForgetsTheOutcome": "test_a_later_duplicate_gets_the_recorded_outcome",
    "TestKeepsWhatIsLate": "test_who_was_forgotten_redeems_and_keeps_nothing_of_before",
    "TestTakesTheLastOutcome": "test_the_first_outcome_stays",
    "TestTakesNoHeedOfTokens": "test_who_has_no_grant_can_neither_renew_nor_record_nor_release_it",
    "TestKeepsAReplicaToItself": "test_it_gets_it_on_another_replica_too",
    "TestHasLeasesWithoutAnEnd": "test_a_lapsed_lease_is_taken_over_once",
    "TestTakesOverWhateverItIsTold": "test_a_lapsed_lease_can_be_left_to_its_holder",
    "TestKeepsWithoutAnEnd": "test_an_expired_record_counts_as_absent",
    "TestRemembersTheEpoch": "test_a_new_epoch_counts_at_once_whatever_a_replica_remembers",
    "TestPutsOverWhatIsThere": "test_a_value_is_kept_once",
    "TestSaysThatItEnforcesQuotas": "test_a_caller_is_refused_beyond_its_share_and_others_are_not",
    "TestClaimsWithoutALease": "test_a_claim_gives_the_task_with_a_lease",
    "TestChangesAnyVersion": "test_a_change_of_another_version_does_not_happen",
    "TestNeverWaits": "test_waiting_ends_after_its_time",
    "TestStoresAnEventTwice": "test_an_event_is_stored_once_for_each_name_and_id",
    "TestReadsFromTheBeginning": "test_nothing_is_after_the_end",
    "TestSaysNothingOfWhatIsLost": "test_events_are_trimmed_to_the_newest_and_who_has_not_read_the_others_is_told",
    "TestPutsAnotherSubscriptionInItsPlace": (
        "test_who_subscribes_again_changes_what_it_asks_for_and_hears_what_was_before"
    ),
    "TestLendsToEverybody": "test_a_lease_is_one_holders_until_it_ends_or_is_given_back",
}
"""Stores of the file, and the test that tells what is wrong with each."""


@pytest.fixture(scope="module")
def report() -> str:
    """What pytest says, run on the author's file without any plugin."""
    file = ROOT / "tests" / "support" / "own_store.py"
    tests = [f"{file}::{test}" for test in [*HELD, *map("::".join, BROKEN.items())]]
    options = ["-c", os.devnull, "--rootdir", str(ROOT), "-p", "no:cacheprovider", "-W", "error", "-rA", "--tb=line"]
    return subprocess.run(
        [sys.executable, "-m", "pytest", *options, *tests],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=2 * TIMEOUT,
        env=os.environ | {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "COLUMNS": "300"},
    ).stdout


def told(report: str, outcome: str) -> list[str]:
    """Return what it says of each test that ended so, after the name of the file."""
    return re.findall(rf"^{outcome} \S+own_store\.py::(.+)$", report, re.MULTILINE)


def test_a_careful_store_holds_it(report: str) -> None:
    passed = told(report, "PASSED")
    assert set(HELD[1:]) < set(passed)
    assert sum(test.startswith(HELD[0]) for test in passed) > 30
    assert [test for test in told(report, "(?:FAILED|ERROR)") if test.partition("::")[0] not in BROKEN] == []
    assert set(re.findall(r"^SKIPPED .*: (.+)$", report, re.MULTILINE)) == {"TestOwnStore enforces no quotas"}


@pytest.mark.parametrize("store", BROKEN)
def test_one_that_breaks_a_promise_fails_the_test_of_it(store: str, report: str) -> None:
    (reason,) = [test for test in told(report, "FAILED") if test.startswith(f"{store}::")]
    assert re.match(rf"{store}::{BROKEN[store]} - (AssertionError|assert)", reason)


def test_the_kit_needs_no_pytest() -> None:
    program = "import sys; sys.modules['pytest'] = None; import mrtr_server.testing.store"
    subprocess.run([sys.executable, "-W", "error", "-c", program], check=True, cwd=ROOT, timeout=TIMEOUT)
