"""examples/report.py: rounds first, then a task, in both dialects."""

import time

import pytest

from examples import report

from ..support.serving import TIMEOUT
from ..support.wire import JSON, TASKS, Wire, accept, text_of
from .conftest import Start
from .pasting import needs_curl, replies

ABLE = {"elicitation": {}, **TASKS}


@pytest.fixture(name="wire")
def _wire(start: Start) -> Wire:
    return start("report")


def once(wire: Wire, task: str, status: str, seen: list[str]) -> JSON:
    """Look at a task until it has a status; note what it says of itself."""
    deadline = time.monotonic() + TIMEOUT
    while True:
        found = wire.modern("tasks/get", {"taskId": task}, capabilities=ABLE).raw_result
        seen.append(found.get("statusMessage", ""))
        if found["status"] == status:
            return found
        assert time.monotonic() < deadline, found
        time.sleep(0.05)


def test_a_client_with_tasks_answers_first_and_then_waits(wire: Wire) -> None:
    asked = wire.call("report", capabilities=ABLE)
    assert "taskId" not in asked.result
    answers = {"wanted": accept(thousands=10)}
    started = wire.call("report", capabilities=ABLE, answers=answers, state=asked.state).result
    assert started["resultType"] == "task"
    seen: list[str] = []
    (key,) = once(wire, started["taskId"], "input_required", seen)["inputRequests"]
    early = {f"Counted {number} of 10 thousand" for number in range(1, 10)}  # two seconds of looks
    assert early & set(seen), "it tells how far it is"
    update = {"taskId": started["taskId"], "inputResponses": {key: accept(style="table")}}
    wire.modern("tasks/update", update, capabilities=ABLE)
    text = text_of(once(wire, started["taskId"], "completed", seen))
    assert text.startswith("| below | primes |\n|---|---|\n| 1,000 | 168 |\n| 2,000 | 135 |\n| 3,000 | 127 |\n")
    assert text.endswith("\n| 10,000 | 112 |")


def test_a_client_without_tasks_gets_the_same_in_rounds(wire: Wire) -> None:
    first = wire.call("report")
    second = wire.call("report", answers={"wanted": accept(thousands=1)}, state=first.state)
    assert second.result["inputRequests"]["layout"]["params"]["message"].startswith("There are 168 primes.")
    done = wire.call("report", answers={"layout": accept(style="sentence")}, state=second.state)
    assert done.text == "There are 168 primes below 1,000, 168 of them in the last thousand."


def test_a_report_is_not_endless(wire: Wire) -> None:
    first = wire.call("report")
    again = wire.call("report", answers={"wanted": accept(thousands=51)}, state=first.state)
    assert list(again.result["inputRequests"]) == ["wanted"]


@needs_curl
def test_the_lines_of_the_docstring_work(wire: Wire) -> None:
    told = replies(report, wire.url)
    assert told[0]["result"]["resultType"] == "input_required"
    assert told[1]["result"]["resultType"] == "task"
    statuses = [reply["result"].get("status") for reply in told[2:]]
    assert "input_required" in statuses
    (text,) = [text_of(reply["result"]) for reply in told if "result" in reply["result"]]
    assert text.endswith("| 5,000 | 119 |")
