"""examples/conformance.py, where the official suite does not look; see also tests/system/test_conformance.py."""

import pytest

from examples import conformance

from ..support.wire import Wire, accept, text_of
from ..system.test_conformance import VERSION
from .conftest import Start
from .pasting import needs_curl, replies


@pytest.fixture(name="wire")
def _wire(start: Start) -> Wire:
    return start("conformance")


def test_the_tool_that_needs_no_arguments_is_the_first(wire: Wire) -> None:
    assert wire.modern("tools/list").result["tools"][0]["name"] == "test_simple_text"


def test_the_raw_schema_is_served_and_held_to(wire: Wire) -> None:
    listed = {tool["name"]: tool for tool in wire.modern("tools/list").result["tools"]}
    assert listed["json_schema_2020_12_tool"]["inputSchema"]["$defs"]["address"]["$anchor"] == "addressDef"
    good = wire.call("json_schema_2020_12_tool", {"contactMethod": "phone", "phone": "555"})
    assert good.text == "The arguments were contactMethod, phone."
    bad = wire.call("json_schema_2020_12_tool", {"contactMethod": "phone", "email": "a@b.c"})
    assert bad.result["isError"] is True


def test_a_client_that_wants_messages_gets_them(wire: Wire) -> None:
    reply = wire.call("test_logging_tool", logLevel="info")
    assert [message["params"]["data"] for message in reply.received[:-1]] == ["Tool execution started"]


def test_both_rounds_of_the_tool_that_looks_at_capabilities(wire: Wire) -> None:
    tool = "test_input_required_result_capabilities"
    asked = wire.call(tool, capabilities={"elicitation": {}})
    done = wire.call(
        tool, id=2, capabilities={"elicitation": {}}, answers={"user_name": accept(name="Alice")}, state=asked.state
    )
    assert done.text == "Hello, Alice!"


@needs_curl
def test_the_lines_of_the_docstring_work(wire: Wire) -> None:
    assert f"npx @modelcontextprotocol/conformance@{VERSION} server" in str(conformance.__doc__)
    asked, done = replies(conformance, wire.url)
    assert asked["result"]["inputRequests"].keys() == {"user_name"}
    assert text_of(done) == "Hello, Alice!"
