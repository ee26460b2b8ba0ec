"""How a round ends when there is more than one reason: the gravest counts, in whatever order they come."""

from collections.abc import Callable
from dataclasses import replace
from itertools import combinations
from typing import Any

import pytest

from mrtr_server import ClientInfo, Elicit, Refusal, Sample
from mrtr_server.errors import FlowError, MissingCapability
from mrtr_server.flow.asks import Ask
from mrtr_server.flow.endings import Asking, Backgrounded, Completed, Failed, Refused, RoundEnd, Yielded, YieldReason
from mrtr_server.flow.journal import Journal
from mrtr_server.flow.round import Round
from mrtr_server.flow.url_asks import Callbacks
from mrtr_server.protocol.messages import Call

from ..support.models import Login

MISTAKE, FAILURE, NO = FlowError("a mistake"), ValueError("a failure"), Refusal("decline")


def ask(round_: Round) -> None:
    question = Elicit("Who are you?", Login)
    round_.answer("login", question, question.question(), question.parse)


def lack(round_: Round) -> None:
    able, round_.call = round_.call, replace(round_.call, client=ClientInfo())
    ask(round_)
    round_.call = able


Reason = tuple[Callable[[Round], object], Callable[[RoundEnd], bool]]

REASONS: dict[str, Reason] = {
    "a mistake": (lambda round_: round_.fail(MISTAKE), lambda end: end == Failed(MISTAKE)),
    "a lack": (lack, lambda end: isinstance(end, Failed) and isinstance(end.error, MissingCapability)),
    "a no": (lambda round_: round_.refuse(NO), lambda end: end == Refused(NO)),
    "a failure": (lambda round_: round_.fail_with(FAILURE), lambda end: end == Failed(FAILURE)),
    "a question": (ask, lambda end: isinstance(end, Asking) and set(end.questions) == {"login"}),
    "a yield": (lambda round_: round_.leave(YieldReason.FULL), lambda end: end == Yielded(YieldReason.FULL)),
    "the background": (lambda round_: round_.leave_for_background(), lambda end: isinstance(end, Backgrounded)),
}
"""From the gravest on: how each comes into a round, and whether it is how the round ends."""


@pytest.fixture
def round_(callbacks: Callbacks) -> Round:
    call = Call("tools/call", {}, client=ClientInfo(capabilities={"elicitation": {}}))
    return Round(call, Journal(0.0), "greet", callbacks)


@pytest.mark.parametrize("graver_first", [True, False])
@pytest.mark.parametrize(("graver", "lighter"), list(combinations(REASONS, 2)))
def test_of_two_reasons_the_graver_one_counts(round_: Round, graver: str, lighter: str, graver_first: bool) -> None:
    for name in (graver, lighter) if graver_first else (lighter, graver):
        settled = round_.settled
        REASONS[name][0](round_)
    if settled and graver == "a lack":  # nothing is asked any more, so nothing can be lacking
        graver = lighter
    assert REASONS[graver][1](round_.conclude(Completed("a result")))


@pytest.mark.parametrize("reason", REASONS)
def test_any_reason_counts_before_what_the_handler_made_of_it(round_: Round, reason: str) -> None:
    REASONS[reason][0](round_)
    for own in (Completed("a result"), Failed(FlowError("the handler's own")), Refused(Refusal("cancel"))):
        assert REASONS[reason][1](round_.conclude(own))


def test_without_a_reason_it_ends_as_the_handler_does(round_: Round) -> None:
    assert round_.conclude(Completed("a result")) == Completed("a result")


def test_of_two_noes_the_first_counts(round_: Round) -> None:
    round_.refuse(NO)
    round_.refuse(Refusal("cancel"))
    assert round_.conclude(Completed(None)) == Refused(NO)


def test_all_that_a_client_lacks_is_named(round_: Round) -> None:
    round_.call = replace(round_.call, client=ClientInfo())
    asks: dict[str, Ask[Any]] = {"login": Elicit("Who are you?", Login), "text": Sample("Hello")}
    for key, question in asks.items():
        round_.answer(key, question, question.question(), question.parse)
    end = round_.conclude(Completed(None))
    assert isinstance(end, Failed)
    assert isinstance(end.error, MissingCapability)
    assert end.error.data == {"requiredCapabilities": {"elicitation": {"form": {}}, "sampling": {}}}
