"""examples/weather.py: one question, then an answer; in the words of the drafts and in the ratified form."""

from typing import Any

import pytest

from examples import weather
from mrtr_server import InputRequired, Inputs

from ..support.wire import Wire, accept, text_of
from .conftest import Start
from .pasting import needs_curl, replies

NEW_YORK = {"name": "get_weather", "arguments": {"location": "New York"}}
TEXT = "Current weather in New York:\nTemperature: 72°F\nConditions: Partly cloudy"

# As printed in revision 2; revision 1 adds "mode": "form" to the same params.
ASKED = {
    "github_login": {
        "method": "elicitation/create",
        "params": {
            "message": "Please provide your GitHub username",
            "requestedSchema": {
                "type": "object",
                "properties": {"name": {"type": "string"}},
                "required": ["name"],
            },
        },
    }
}
DONE = {"jsonrpc": "2.0", "id": 3, "result": {"content": [{"type": "text", "text": TEXT}], "isError": False}}

BARE = {"action": "accept", "content": {"name": "octocat"}}


@pytest.fixture(name="wire")
def _wire(start: Start) -> Wire:
    return start("weather")


def first_round(wire: Wire) -> dict[str, Any]:
    return wire.draft({"jsonrpc": "2.0", "id": 2, "method": "tools/call", "params": NEW_YORK}).message


def test_the_first_round_asks_as_printed(wire: Wire) -> None:
    reply = first_round(wire)
    assert isinstance(reply["result"].pop("requestState"), str)
    assert reply == {"jsonrpc": "2.0", "id": 2, "result": {"inputRequests": ASKED}}


@pytest.mark.parametrize("answer", [BARE, {"result": BARE}], ids=["revision 2", "revision 1"])
def test_the_retry_completes_as_printed(wire: Wire, answer: dict[str, Any]) -> None:
    state = first_round(wire)["result"]["requestState"]
    params = {**NEW_YORK, "inputResponses": {"github_login": answer}, "requestState": state}
    assert wire.draft({"jsonrpc": "2.0", "id": 3, "method": "tools/call", "params": params}).message == DONE


@pytest.mark.parametrize("wrap", [lambda answer: answer, lambda answer: {"result": answer}], ids=["bare", "wrapped"])
def test_what_was_not_asked_is_ignored_and_the_question_comes_again(wire: Wire, wrap: Any) -> None:
    strange = accept(not_requested_param_name="Information the server did not request")
    params = {**NEW_YORK, "inputResponses": {"not_requested_info": wrap(strange)}}
    reply = wire.draft({"jsonrpc": "2.0", "id": 3, "method": "tools/call", "params": params}).message
    assert isinstance(reply["result"].pop("requestState"), str)
    assert reply == {"jsonrpc": "2.0", "id": 3, "result": {"inputRequests": ASKED}}


def test_the_same_tool_serves_the_ratified_form(wire: Wire) -> None:
    asked = wire.call("get_weather", {"location": "New York"})
    assert asked.result["resultType"] == "input_required"
    assert asked.result["inputRequests"] == ASKED
    answers = {"github_login": BARE}
    done = wire.call("get_weather", {"location": "New York"}, id=2, answers=answers, state=asked.state)
    assert done.result["resultType"] == "complete"
    assert done.text == TEXT


@pytest.mark.parametrize("action", ["decline", "cancel"])
def test_a_no_ends_the_call_without_the_weather(wire: Wire, action: str) -> None:
    state = wire.call("get_weather", {"location": "New York"}).state
    answers = {"github_login": {"action": action}}
    done = wire.call("get_weather", {"location": "New York"}, id=2, answers=answers, state=state)
    assert "72°F" not in done.failure


def test_the_function_can_be_called_as_a_function() -> None:
    assert isinstance(weather.get_weather("Oslo", Inputs()), InputRequired)
    known = Inputs({"github_login": weather.GitHubLogin(name="octocat")})
    assert weather.get_weather("New York", known) == TEXT


@needs_curl
def test_the_lines_of_the_docstring_work(wire: Wire) -> None:
    asked, done = replies(weather, wire.url)
    assert asked["result"]["inputRequests"] == ASKED
    assert text_of(done) == TEXT
