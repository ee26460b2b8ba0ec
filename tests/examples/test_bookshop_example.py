"""examples/bookshop.py: what the signature asks, what depends on what, and what a function looked up."""

import pytest

from examples import bookshop

from ..support.wire import Wire, accept, text_of
from .conftest import Start
from .pasting import needs_curl, replies

EMMA = {"title": "Emma"}
ADDRESS = accept(street="12 Rue de la Paix", city="Paris")
QUESTIONS = {"quantity": "How many copies of Emma? 3 are left.", "address": "Where do they go?"}
CONFIRMATION = {"confirm": "Buy 2 × Emma for 24 €, to 12 Rue de la Paix, Paris?"}
TEXT = "2 × Emma are on their way to Paris."


@pytest.fixture(name="wire")
def _wire(start: Start) -> Wire:
    return start("bookshop")


def messages(result: dict[str, object]) -> dict[str, str]:
    asked: dict[str, dict[str, dict[str, str]]] = result["inputRequests"]  # type: ignore[assignment]
    return {key: request["params"]["message"] for key, request in asked.items()}


def test_the_model_fills_in_the_title_alone(wire: Wire) -> None:
    (listed,) = wire.modern("tools/list").result["tools"]
    assert listed["inputSchema"]["properties"] == {"title": {"type": "string"}}


def test_what_depends_on_answers_is_asked_when_they_are_there(wire: Wire) -> None:
    first = wire.call("buy", EMMA)
    assert messages(first.result) == QUESTIONS
    one = wire.call("buy", EMMA, answers={"quantity": accept(copies=2)}, state=first.state)
    assert messages(one.result) == {"address": QUESTIONS["address"]}
    both = wire.call("buy", EMMA, answers={"address": ADDRESS}, state=one.state)
    assert messages(both.result) == CONFIRMATION
    assert wire.call("buy", EMMA, answers={"confirm": accept(confirm=True)}, state=both.state).text == TEXT


@pytest.mark.parametrize(
    ("answer", "word"), [(accept(confirm=False), "declined"), ({"action": "cancel"}, "dismissed")], ids=str
)
def test_without_a_yes_nothing_is_bought(wire: Wire, answer: dict[str, object], word: str) -> None:
    answers = {"quantity": accept(copies=2), "address": ADDRESS}
    asked = wire.call("buy", EMMA, answers=answers, state=wire.call("buy", EMMA).state)
    done = wire.call("buy", EMMA, answers={"confirm": answer}, state=asked.state)
    assert done.result["isError"] is True
    assert word in done.result["content"][0]["text"]


def test_what_can_not_be_bought_is_not_asked_about(wire: Wire) -> None:
    reply = wire.call("buy", {"title": "Moby Dick"})
    assert (reply.result["isError"], reply.result["content"][0]["text"]) == (True, "Moby Dick is sold out.")


@needs_curl
def test_the_lines_of_the_docstring_work(wire: Wire) -> None:
    first, second, done = replies(bookshop, wire.url)
    assert messages(first["result"]) == QUESTIONS
    assert messages(second["result"]) == CONFIRMATION
    assert text_of(done) == TEXT
