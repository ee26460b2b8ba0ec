"""A client's walk of a call, without I/O: which request is next, and where a result leaves the call."""

from typing import Any

import pytest

from mrtr_server.errors import BadReply
from mrtr_server.wire.rounds import Rounds

ASKED = {"login": {"method": "elicitation/create", "params": {}}}


def call() -> Rounds:
    return Rounds("tools/call", "order", {"title": "Emma"}, most=2)


def test_a_round_carries_the_answers_and_the_newest_state() -> None:
    rounds = call()
    first = {"name": "order", "arguments": {"title": "Emma"}}
    assert rounds.next({}) == ("tools/call", first)
    rounds.take({"resultType": "input_required", "inputRequests": ASKED, "requestState": "one"})
    assert (rounds.questions, rounds.pause, rounds.is_over) == (ASKED, 0.0, False)
    assert rounds.next({"login": "ann"})[1] == {**first, "inputResponses": {"login": "ann"}, "requestState": "one"}
    rounds.take({"resultType": "input_required", "inputRequests": ASKED})
    assert rounds.next({})[1] == first, "a round without a state ends the one before"
    rounds.take({"content": []})
    assert rounds.is_over


def test_rounds_without_a_question_come_at_once_and_then_ever_later() -> None:
    rounds, pauses = call(), []
    for _ in range(8):
        rounds.next({})
        rounds.take({"resultType": "input_required", "requestState": "s"})
        pauses.append(rounds.pause)
    assert pauses[0] == 0.0
    assert pauses[1:] == sorted(pauses[1:])
    assert 0 < pauses[1] < pauses[-1] == 1.0


def test_a_call_that_became_a_task_is_looked_at_and_each_of_its_questions_is_answered_once() -> None:
    rounds = call()
    rounds.take({"resultType": "task", "taskId": "t", "status": "working"})
    assert rounds.next({}) == ("tasks/get", {"taskId": "t"})
    rounds.take({"status": "input_required", "inputRequests": ASKED, "pollIntervalMs": 200})
    assert (rounds.questions, rounds.pause) == (ASKED, 0.0)
    assert rounds.next({"login": "ann"}) == ("tasks/update", {"taskId": "t", "inputResponses": {"login": "ann"}})
    assert rounds.next({}) == ("tasks/get", {"taskId": "t"})
    rounds.take({"status": "input_required", "inputRequests": ASKED, "pollIntervalMs": 200})
    assert (rounds.questions, rounds.pause) == ({}, 0.2)
    rounds.take({"status": "failed", "error": {}})
    assert rounds.is_over


@pytest.mark.parametrize(
    "result",
    [
        {"resultType": "poem"},
        {"resultType": "task"},
        {"resultType": "input_required"},
        {"resultType": "input_required", "requestState": 5},
        {"resultType": "input_required", "requestState": "s", "inputRequests": ["login"]},
        {"resultType": "input_required", "inputRequests": {key: {} for key in "abc"}},
    ],
)
def test_a_result_that_means_nothing_is_refused(result: dict[str, Any]) -> None:
    with pytest.raises(BadReply):
        call().take(result)
