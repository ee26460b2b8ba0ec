"""examples/work_items.py: the rules of the drafts' multi-round example, request by request as printed."""

from typing import Any

import pytest

from examples import work_items
from mrtr_server import Inputs

from ..support.wire import Wire, accept, text_of
from .conftest import Start
from .pasting import needs_curl, replies

ARGUMENTS = {"workItemId": 4522, "fields": {"System.State": "Resolved"}}
PARAMS = {"name": "update_work_item", "arguments": ARGUMENTS}

ASKED_RESOLUTION = {
    "resolution": {
        "method": "elicitation/create",
        "params": {
            "message": "Resolving Bug #4522 requires a resolution. How was this bug resolved?",
            "requestedSchema": {
                "type": "object",
                "properties": {
                    "resolution": {
                        "type": "string",
                        "enum": ["Fixed", "Won't Fix", "Duplicate", "By Design"],
                        "description": "Resolution type for this bug",
                    }
                },
                "required": ["resolution"],
            },
        },
    }
}
ASKED_DUPLICATE_OF = {
    "duplicate_of": {
        "method": "elicitation/create",
        "params": {
            "message": "Since this is a duplicate, which work item is the original?",
            "requestedSchema": {
                "type": "object",
                "properties": {"duplicateOfId": {"type": "number", "description": "Work item ID of the original bug"}},
                "required": ["duplicateOfId"],
            },
        },
    }
}
TEXT = "Bug #4522 resolved as Duplicate of Bug #4301. State set to Resolved and duplicate link created."

DUPLICATE = {"action": "accept", "content": {"resolution": "Duplicate"}}
OF_4301 = {"action": "accept", "content": {"duplicateOfId": 4301}}


@pytest.fixture(name="wire")
def _wire(start: Start) -> Wire:
    return start("work_items")


def send(wire: Wire, id: int, **params: Any) -> dict[str, Any]:
    return wire.draft({"jsonrpc": "2.0", "id": id, "method": "tools/call", "params": {**PARAMS, **params}}).message


@pytest.mark.parametrize("wrap", [lambda answer: answer, lambda answer: {"result": answer}], ids=["rev2", "rev1"])
def test_the_printed_requests_get_the_printed_answers(wire: Wire, wrap: Any) -> None:
    first = send(wire, 1)
    assert isinstance(first["result"].pop("requestState"), str)
    assert first == {"jsonrpc": "2.0", "id": 1, "result": {"inputRequests": ASKED_RESOLUTION}}

    second = send(wire, 2, inputResponses={"resolution": wrap(DUPLICATE)})  # printed without a requestState
    state = second["result"].pop("requestState")
    assert second == {"jsonrpc": "2.0", "id": 2, "result": {"inputRequests": ASKED_DUPLICATE_OF}}

    third = send(wire, 3, inputResponses={"duplicate_of": wrap(OF_4301)}, requestState=state)
    content = [{"type": "text", "text": TEXT}]
    assert third == {"jsonrpc": "2.0", "id": 3, "result": {"content": content, "isError": False}}


def test_the_first_answer_is_kept_in_the_state_of_a_client_that_echoes_it(wire: Wire) -> None:
    first = wire.call("update_work_item", ARGUMENTS)
    second = wire.call("update_work_item", ARGUMENTS, id=2, answers={"resolution": DUPLICATE}, state=first.state)
    assert second.result["inputRequests"] == ASKED_DUPLICATE_OF
    third = wire.call("update_work_item", ARGUMENTS, id=3, answers={"duplicate_of": OF_4301}, state=second.state)
    assert third.text == TEXT


def test_a_lost_state_begins_again(wire: Wire) -> None:
    assert send(wire, 3, inputResponses={"duplicate_of": OF_4301})["result"]["inputRequests"] == ASKED_RESOLUTION


@pytest.mark.parametrize("resolution", ["Fixed", "Won't Fix", "By Design"])
def test_other_resolutions_need_no_second_question(wire: Wire, resolution: str) -> None:
    answers = {"resolution": accept(resolution=resolution)}
    done = wire.call("update_work_item", ARGUMENTS, answers=answers)
    assert done.text == f"Bug #4522 resolved as {resolution}. State set to Resolved."


def test_a_resolution_that_was_not_offered_is_asked_for_again(wire: Wire) -> None:
    again = wire.call("update_work_item", ARGUMENTS, answers={"resolution": accept(resolution="Forgotten")})
    message = again.result["inputRequests"]["resolution"]["params"]["message"]
    assert message.endswith(" — Resolving Bug #4522 requires a resolution. How was this bug resolved?")


@pytest.mark.parametrize("number", [4301.5, "the other one", None])
def test_what_is_no_work_item_is_asked_for_again(wire: Wire, number: Any) -> None:
    state = wire.call("update_work_item", ARGUMENTS, answers={"resolution": DUPLICATE}).state
    answers = {"duplicate_of": accept(duplicateOfId=number)}
    again = wire.call("update_work_item", ARGUMENTS, id=2, answers=answers, state=state)
    message = again.result["inputRequests"]["duplicate_of"]["params"]["message"]
    assert message.startswith("duplicateOfId: ")
    assert message.endswith(" — Since this is a duplicate, which work item is the original?")


def test_other_changes_bring_in_no_rule(wire: Wire) -> None:
    done = wire.call("update_work_item", {"workItemId": 4522, "fields": {"System.State": "Active"}})
    assert done.text == "Work item #4522 updated: System.State."


def test_the_function_can_be_called_as_a_function() -> None:
    known = {
        "resolution": work_items.Resolution(resolution="Duplicate"),
        "duplicate_of": work_items.DuplicateOf(duplicateOfId=4301),
    }
    assert work_items.update_work_item(4522, {"System.State": "Resolved"}, Inputs(known)) == TEXT


@needs_curl
def test_the_lines_of_the_docstring_work(wire: Wire) -> None:
    first, second, third = replies(work_items, wire.url)
    assert first["result"]["inputRequests"] == ASKED_RESOLUTION
    assert second["result"]["inputRequests"] == ASKED_DUPLICATE_OF
    assert text_of(third) == TEXT
