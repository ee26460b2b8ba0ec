"""examples/mixed_asks.py: an elicitation and a sampling in one round, with the params that the drafts print."""

import pytest

from examples import mixed_asks

from ..support.wire import Wire, accept, text_of
from .conftest import Start
from .pasting import needs_curl, replies

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
    },
    "capital_of_france": {
        "method": "sampling/createMessage",
        "params": {
            "messages": [{"role": "user", "content": {"type": "text", "text": "What is the capital of France?"}}],
            "modelPreferences": {
                "hints": [{"name": "claude-3-sonnet"}],
                "intelligencePriority": 0.8,
                "speedPriority": 0.5,
            },
            "systemPrompt": "You are a helpful assistant.",
            "maxTokens": 100,
        },
    },
}
LOGIN = accept(name="octocat")
CAPITAL = {
    "role": "assistant",
    "content": {"type": "text", "text": "The capital of France is Paris."},
    "model": "claude-3-sonnet-20240307",
    "stopReason": "endTurn",
}
TEXT = "Hello, octocat. The capital of France is Paris."


@pytest.fixture(name="wire")
def _wire(start: Start) -> Wire:
    return start("mixed_asks")


def test_both_asks_go_out_in_one_round_as_printed(wire: Wire) -> None:
    assert wire.call("introduce").result["inputRequests"] == ASKED
    draft = wire.draft({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "introduce"}})
    assert draft.result["inputRequests"] == ASKED


@pytest.mark.parametrize("wrapped", [False, True], ids=["revision 2", "revision 1"])
def test_the_printed_answers_complete_it(wire: Wire, wrapped: bool) -> None:
    answers = {"github_login": LOGIN, "capital_of_france": CAPITAL}
    sent = {key: {"result": answer} for key, answer in answers.items()} if wrapped else answers
    message = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "introduce"}}
    state = wire.draft(message).state
    params = {"name": "introduce", "inputResponses": sent, "requestState": state}
    assert wire.draft({**message, "id": 2, "params": params}).text == TEXT


@pytest.mark.parametrize("first", ["github_login", "capital_of_france"])
def test_an_answer_that_came_alone_is_kept_while_the_other_is_asked_for(wire: Wire, first: str) -> None:
    answers = {"github_login": LOGIN, "capital_of_france": CAPITAL}
    (other,) = answers.keys() - {first}
    state = wire.call("introduce").state
    second = wire.call("introduce", id=2, answers={first: answers[first]}, state=state)
    assert second.result["inputRequests"] == {other: ASKED[other]}
    third = wire.call("introduce", id=3, answers={other: answers[other]}, state=second.state)
    assert third.text == TEXT


@pytest.mark.parametrize(
    ("capabilities", "missing"), [({"elicitation": {}}, {"sampling": {}}), ({"sampling": {}}, {"elicitation": {}})]
)
def test_a_client_that_can_do_only_one_of_them_is_told_what_is_missing(
    wire: Wire, capabilities: dict[str, object], missing: dict[str, object]
) -> None:
    reply = wire.call("introduce", capabilities=capabilities)
    assert (reply.status, reply.code) == (400, -32021)
    assert reply.error.data["requiredCapabilities"].keys() == missing.keys()


@needs_curl
def test_the_lines_of_the_docstring_work(wire: Wire) -> None:
    asked, done = replies(mixed_asks, wire.url)
    assert asked["result"]["inputRequests"] == ASKED
    assert text_of(done) == TEXT
