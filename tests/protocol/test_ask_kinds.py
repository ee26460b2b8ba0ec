"""Each kind of ask has one record, and what authors write agrees with it."""

from inspect import isfunction
from typing import Any

import pytest
from pydantic import BaseModel

from mrtr_server import Confirm, Elicit, ElicitUrl, ListRoots, Sample
from mrtr_server.flow.context import ASKS as ASKING_METHODS
from mrtr_server.flow.context import Context
from mrtr_server.protocol.ask_kinds import ASKABLE, KINDS, ask_kind, kind_on_wire
from mrtr_server.protocol.messages import Question
from mrtr_server.testing import EVERYTHING


class Login(BaseModel):
    name: str


ASKS: list[Any] = [
    Elicit("Who?", Login),
    Confirm("Sure?"),
    ElicitUrl("Log in", "https://example.com"),
    Sample("Hello"),
    ListRoots(),
]


@pytest.mark.parametrize("ask", ASKS, ids=lambda ask: type(ask).__name__)
def test_what_authors_write_is_of_a_kind_that_clients_know(ask: Any) -> None:
    question: Question = ask.question()
    kind = ask_kind(question)
    assert kind is KINDS[question.kind] is ask_kind(question.digest)
    assert kind.approves == ask.needs_state, "both say whether an answer counts without the state that asked"
    assert set(question.needs) <= set(kind.capabilities)
    shown = kind_on_wire(question.method, question.params)
    assert shown is not None
    assert (shown.method, shown.mode, shown.member) == (kind.method, kind.mode, kind.member)


def test_a_person_can_dismiss_elicitations_and_nothing_else() -> None:
    assert {name for name, kind in KINDS.items() if kind.has_action} == {"form", "confirm", "url", "callback"}


def test_a_tool_is_known_to_ask_by_each_method_of_its_context_that_asks() -> None:
    methods = {name: each.__code__.co_names for name, each in vars(Context).items() if isfunction(each)}
    assert {name for name, calls in methods.items() if {"_one", "_several"} & set(calls)} == set(ASKING_METHODS)


def test_a_digest_can_be_split_at_its_dots() -> None:
    assert not [name for name in KINDS if "." in name or not name]


def test_a_question_of_a_later_release_is_taken_for_one_that_approves_something() -> None:
    assert ask_kind("vote.message.shape").approves


def test_a_client_of_the_kit_can_be_asked_everything() -> None:
    assert (
        EVERYTHING
        == ASKABLE
        == {"elicitation": {"form": {}, "url": {}}, "sampling": {"tools": {}, "context": {}}, "roots": {}}
    )
