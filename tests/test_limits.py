"""Limits: what they are by default, and which can't be."""

from dataclasses import FrozenInstanceError, fields
from typing import Any

import pytest

from mrtr_server import Limits, MRTRServer, SetupError
from mrtr_server.testing import short_lease


def test_the_defaults_are_those_of_the_design() -> None:
    assert {field.name: field.default for field in fields(Limits)} == {
        "body_bytes": 4 * 1024 * 1024,
        "json_depth": 64,
        "values": 100_000,
        "answers": 64,
        "rounds": 10,  # where the official clients stop too
        "state_only_rounds": 3,
        "unanswered_asks": 20,
        "state_bytes": 256 * 1024,
        "streamed_bytes": 4 * 1024 * 1024,
        "state_seconds": 60 * 60,
        "flow_seconds": 24 * 60 * 60,
        "lease_seconds": 30,
        "write_seconds": 30,
        "hold_seconds": 25,
        "held_streams": 10_000,
        "held_bytes": 256 * 1024 * 1024,
        "threads": 40,
        "task_seconds": 3600,
        "poll_seconds": 1,
        "first_ask_seconds": 1,
        "result_wait_seconds": 30,
        "task_waits": 1000,
        "tasks": 100,
        "task_attempts": 5,
        "stored_tasks": 1_000_000,
        "stored_states": 1_000_000,
        "stored_bytes": 4 * 1024 * 1024 * 1024,
        "listeners": 1000,
        "subscriptions": 10_000,
        "caller_share": 0.1,
        "tenant_share": 0.5,
        "open_requests": 1000,
        "max_concurrency": None,
        "max_queue": None,
        "queue_seconds": None,
        "shed_above": None,
    }


@pytest.mark.parametrize("name", [field.name for field in fields(Limits)])
@pytest.mark.parametrize("value", [0, -1])
def test_a_limit_is_positive(name: str, value: int) -> None:
    wrong: dict[str, Any] = {name: value}
    with pytest.raises(SetupError, match=rf"Limits\({name}=...\) must be positive"):
        Limits(**wrong)


@pytest.mark.parametrize("name", [field.name for field in fields(Limits)])
@pytest.mark.parametrize(
    ("value", "said"),
    [
        (float("nan"), "must be a number"),
        ("5", "must be a number"),
        (True, "must be a number"),
        (float("-inf"), "must be positive"),
        (float("inf"), "at most"),
        (10**15 + 1, "at most"),
        (10**400, "at most"),
    ],
)
def test_a_limit_is_a_number_that_can_be_reached(name: str, value: Any, said: str) -> None:
    wrong: dict[str, Any] = {"max_concurrency": 5, name: value}
    with pytest.raises(SetupError, match=rf"Limits\({name}=.*\) .*{said}"):
        Limits(**wrong)


def test_none_is_for_limits_that_may_be_missing() -> None:
    assert Limits(unanswered_asks=None, shed_above=None).unanswered_asks is None
    with pytest.raises(SetupError, match=r"Limits\(rounds=None\) must be a number"):
        Limits(rounds=None)  # type: ignore[arg-type]


def test_json_may_nest_as_deep_as_the_parser_goes() -> None:
    assert Limits(json_depth=200).json_depth == 200
    with pytest.raises(SetupError, match="200 at most"):
        Limits(json_depth=201)


def test_limits_are_given_by_name_and_stay() -> None:
    limits = Limits(rounds=3)
    assert limits == Limits(rounds=3) != Limits()
    with pytest.raises(TypeError):
        Limits(3)  # type: ignore[call-arg]
    with pytest.raises(FrozenInstanceError):
        limits.rounds = 4  # type: ignore[misc]


@pytest.mark.parametrize("name", ["max_queue", "queue_seconds"])
def test_who_never_waits_has_no_queue(name: str) -> None:
    wrong: dict[str, Any] = {name: 5}
    with pytest.raises(SetupError, match=rf"Limits\({name}=...\) needs max_concurrency"):
        Limits(**wrong)
    assert Limits(max_concurrency=1, **wrong).max_concurrency == 1


class TestALease:
    @pytest.mark.parametrize("seconds", [0.2, 2, 2.99])
    def test_below_three_seconds_is_refused_with_what_a_test_takes(self, seconds: float) -> None:
        with pytest.raises(
            SetupError, match=rf"Limits\(lease_seconds={seconds}\) must be at least 3: .*short_lease\(\)"
        ):
            Limits(lease_seconds=seconds)
        assert Limits(lease_seconds=3).lease_seconds == 3

    def test_from_the_environment_is_refused_likewise(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("MRTR_LIMITS_LEASE_SECONDS", "2")
        with pytest.raises(SetupError, match=r"MRTR_LIMITS_LEASE_SECONDS.* must be at least 3"):
            MRTRServer("short", keys=[bytes(32)])

    def test_of_the_kit_is_as_short_as_a_test_wants_and_leaves_the_other_limits(self) -> None:
        limits = short_lease(0.2, Limits(rounds=3))
        assert (limits.lease_seconds, limits.rounds, limits.answers) == (0.2, 3, Limits().answers)
        assert limits.given == {"lease_seconds", "rounds"}
        with pytest.raises(SetupError, match="must be positive"):
            short_lease(0)


@pytest.mark.parametrize("name", ["caller_share", "tenant_share"])
def test_a_share_is_the_whole_at_most(name: str) -> None:
    whole: dict[str, Any] = {name: 1}
    assert getattr(Limits(**whole), name) == 1
    more: dict[str, Any] = {name: 1.1}
    with pytest.raises(SetupError, match=rf"Limits\({name}=...\) can be 1 at most"):
        Limits(**more)
