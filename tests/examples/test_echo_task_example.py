"""examples/echo_task.py; the printed messages of the drafts are in tests/protocol/transcripts/draft-tasks."""

import pytest

from examples import echo_task
from mrtr_server import Inputs

from ..support.wire import Wire, accept, request, text_of
from .conftest import Start
from .pasting import needs_curl, replies


@pytest.fixture(name="wire")
def _wire(start: Start) -> Wire:
    return start("echo_task")


def test_an_echo_of_an_argument_asks_nothing(wire: Wire) -> None:
    assert wire.call("echo", {"input": "Hello World!"}).text == "Echo: Hello World!"
    assert wire.call("echo", {"input": ""}).text == "Echo: "


def test_a_call_that_offers_no_task_is_answered_in_rounds(wire: Wire) -> None:
    asked = wire.draft(request("tools/call", {"name": "echo"}))
    answers = {"inputResponses": {"echo_input": accept(input="Hello World!")}, "requestState": asked.state}
    assert wire.draft(request("tools/call", {"name": "echo", **answers})).text == "Echo: Hello World!"


def test_the_function_can_be_called_as_a_function() -> None:
    assert echo_task.echo(Inputs(), "x") == "Echo: x"
    assert echo_task.echo(Inputs({"echo_input": echo_task.EchoInput(input="x")})) == "Echo: x"


@needs_curl
def test_the_lines_of_the_docstring_work(wire: Wire) -> None:
    told = replies(echo_task, wire.url)
    statuses = [reply["result"].get("status") for reply in told]
    assert told[0]["result"]["task"]["status"] == "working"
    assert "input_required" in statuses
    assert "completed" in statuses
    assert [text_of(reply) for reply in told if "content" in reply["result"]] == ["Echo: Hello World!"]
