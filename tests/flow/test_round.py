"""What one round looks up and asks, under which keys, without a handler around it."""

from collections.abc import Callable
from typing import Any

import pytest

from mrtr_server import ClientInfo, Confirm, Elicit, Refusal
from mrtr_server.errors import CallEnded, FlowError
from mrtr_server.flow.asks import Ask
from mrtr_server.flow.endings import Asking, Completed, Failed, Refused, YieldReason
from mrtr_server.flow.journal import Journal, Step
from mrtr_server.flow.pure import JournalInputs, conclude_error
from mrtr_server.flow.round import OPEN, Round
from mrtr_server.flow.url_asks import Callbacks, Report, Reports
from mrtr_server.protocol.messages import JSON, Call

from ..support.models import Login

WHO, WHOM, SURE = Elicit("who?", Login), Elicit("whom?", Login), Confirm("sure?")
ANN: JSON = {"action": "accept", "content": {"name": "ann"}}
BOB: JSON = {"action": "accept", "content": {"name": "bob"}}
YES: JSON = {"action": "accept", "content": {"confirm": True}}

Begin = Callable[..., Round]


@pytest.fixture
def begin(callbacks: Callbacks) -> Begin:
    """Return what begins a round."""

    def begin_round(
        answers: dict[str, JSON] | None = None,
        state: str | None = None,
        kept: dict[str, Any] | None = None,
        **more: Any,
    ) -> Round:
        call = Call("tools/call", {}, answers=answers, state=state, client=ClientInfo(capabilities={"elicitation": {}}))
        journal = Journal(0.0, answers={key: {digest(ask): raw for ask, raw in of} for key, of in (kept or {}).items()})
        return Round(call, journal, "greet", callbacks, **more)

    return begin_round


def digest(ask: Ask[Any]) -> str:
    return ask.question().digest


def claim(round_: Round, *asks: Ask[Any]) -> list[tuple[str, Any]]:
    """Return the key of each ask, and the name in its answer; None while that is open."""
    claims = round_.look_up(lambda: [round_.claim_inline(None, ask) for ask in asks])
    return [(each.key, None if each.value is OPEN else getattr(each.value, "name", each.value)) for each in claims]


def mistake_of(round_: Round) -> str:
    end = round_.conclude(Completed(None))
    assert isinstance(end, Failed)
    assert isinstance(end.error, FlowError)
    return str(end.error)


class TestAnswersWithoutAState:
    def test_count_and_are_kept(self, begin: Begin) -> None:
        round_ = begin({"login": ANN})
        assert claim(round_, WHO) == [("login", "ann")]
        assert round_.journal.answers == {"login": {digest(WHO): ANN}}

    @pytest.mark.parametrize("more", [{"state": "sealed"}, {"takes_early": False}], ids=["with one", "not taken"])
    def test_do_not_count_where_there_is_one_or_none_are_taken(self, begin: Begin, more: dict[str, Any]) -> None:
        round_ = begin({"login": ANN}, **more)
        assert claim(round_, WHO) == [("login", None)]
        assert round_.journal.answers == {}

    def test_do_not_count_for_a_confirmation(self, begin: Begin) -> None:
        round_ = begin({"confirm": YES})
        assert claim(round_, SURE) == [("confirm", None)]
        assert round_.journal.answers == {}

    def test_give_way_to_one_that_was_kept(self, begin: Begin) -> None:
        assert claim(begin({"login": ANN}, kept={"login": [(WHO, BOB)]}), WHO) == [("login", "bob")]


def test_what_a_page_has_reported_takes_the_place_of_the_clients_word(begin: Begin) -> None:
    reports = Reports[YieldReason]({("login", digest(WHO)): Report(BOB)})
    assert claim(begin(kept={"login": [(WHO, ANN)]}, reports=reports), WHO) == [("login", "bob")]


def test_an_answer_that_does_not_fit_is_forgotten(begin: Begin) -> None:
    round_ = begin(kept={"login": [(WHO, {"action": "accept", "content": {}})]})
    assert claim(round_, WHO) == [("login", None)]
    assert round_.journal.answers == {}


def test_nothing_is_asked_beside_the_questions_that_a_round_ends_with(begin: Begin) -> None:
    round_ = begin()
    claim(round_, WHO)
    round_.ask_nothing_more()
    assert claim(round_, WHOM) == []
    assert round_.conclude(Completed(None)) == Asking({"login": WHO.question()})


def test_what_a_pure_function_reads_is_noted_and_forgotten_where_it_does_not_fit(begin: Begin) -> None:
    round_ = begin(kept={"login": [(WHO, ANN)], "other": [(WHOM, {"action": "accept", "content": {}})]})
    inputs = JournalInputs(round_)
    assert (inputs.get("login", Login), inputs.get("other", Login)) == (Login(name="ann"), None)
    assert inputs.read == [("login", digest(WHO)), ("other", digest(WHOM))]
    assert (list(round_.journal.answers), list(inputs.reasons)) == (["login"], ["other"])


def test_a_no_ends_a_pure_function_where_it_reads_the_answer(begin: Begin) -> None:
    round_ = begin(kept={"login": [(WHO, {"action": "decline"})]})
    with pytest.raises(Refusal):
        JournalInputs(round_).get("login", Login)
    assert isinstance(round_.conclude(Completed(None)), Refused)


def test_what_ends_the_process_is_no_end_of_a_round(begin: Begin) -> None:
    with pytest.raises(KeyboardInterrupt):
        conclude_error(begin(), KeyboardInterrupt())


def test_whatever_a_handler_fails_with_its_open_questions_go_out(begin: Begin) -> None:
    round_ = begin()
    claim(round_, WHO)
    for error in (ValueError(), CallEnded(), BaseExceptionGroup("several", [CallEnded()])):
        assert conclude_error(round_, error) == Asking({"login": WHO.question()})


class TestKeys:
    def test_by_default_are_the_asks_own_and_numbered_from_the_second_on(self, begin: Begin) -> None:
        asks = [Elicit(text, Login) for text in ("one?", "two?", "three?")]
        assert claim(begin(), *asks) == [("login", None), ("login_2", None), ("login_3", None)]

    def test_that_are_given_count_before_those_of_the_ask(self, begin: Begin) -> None:
        round_, ask = begin(), Elicit("who?", Login, key="its own")
        assert round_.claim_inline("given", ask).key == "given"
        assert round_.claim_inline(None, ask).key == "its own"

    def test_by_default_skip_those_that_are_reserved(self, begin: Begin) -> None:
        round_ = begin()
        round_.reserved = {"login"}
        assert claim(round_, WHO) == [("login_2", None)]

    def test_by_default_are_those_that_the_answer_was_kept_under(self, begin: Begin) -> None:
        round_ = begin(kept={"login": [(WHO, ANN)], "login_2": [(WHOM, BOB)]})
        assert claim(round_, WHOM, WHO) == [("login_2", "bob"), ("login", "ann")]

    def test_by_default_are_those_that_the_question_was_asked_under(self, begin: Begin) -> None:
        round_ = begin()
        round_.journal.asked = {"login": digest(WHO), "login_2": digest(WHOM)}
        assert claim(round_, WHOM, WHO) == [("login_2", None), ("login", None)]

    def test_of_a_question_that_has_changed_stay_the_same(self, begin: Begin) -> None:
        assert claim(begin(kept={"login": [(WHO, ANN)]}), WHOM) == [("login", None)]

    def test_for_two_questions_are_a_mistake(self, begin: Begin) -> None:
        round_ = begin()
        assert claim(round_, Elicit("who?", Login, key="a"), Elicit("whom?", Login, key="a")) == []
        assert "The key 'a' is used for two different questions" in mistake_of(round_)

    @pytest.mark.parametrize("when", ["an earlier round", "this one"])
    def test_of_a_step_are_no_keys_of_an_ask(self, begin: Begin, when: str) -> None:
        round_ = begin()
        if when == "this one":
            round_._started = {"login"}
        else:
            round_.journal.steps["login"] = Step("module.function", {}, None, [])
        assert claim(round_, WHO) == []
        assert "An ask and a step both have the key 'login'" in mistake_of(round_)


class TestWhatAPureFunctionReturns:
    def test_is_asked_together_under_its_keys(self, begin: Begin) -> None:
        round_ = begin()
        round_.require("first", WHO, WHO.question())
        round_.require("second", WHOM, WHOM.question())
        end = round_.conclude(Completed(None))
        assert isinstance(end, Asking)
        assert ({key: each.params["message"] for key, each in end.questions.items()}, end.together) == (
            {"first": "who?", "second": "whom?"},
            True,
        )

    def test_is_asked_again_with_what_is_wrong_with_the_answer(self, begin: Begin) -> None:
        round_ = begin(kept={"login": [(WHO, ANN)]})
        round_.require("login", WHO, WHO.question(), reason="No such person.")
        assert round_.asked["login"].params["message"] == "No such person — who?"
        assert round_.asked["login"].digest == digest(WHO)

    def test_drops_the_answers_of_its_key_that_were_read_and_no_other(self, begin: Begin) -> None:
        third = Elicit("whose?", Login)
        answers = [(WHO, ANN), (WHOM, BOB), (third, ANN)]
        round_ = begin(kept={"login": answers, "other": answers})
        round_.require("login", WHO, WHO.question(), [("login", digest(WHOM)), ("other", digest(WHO))])
        assert round_.journal.answers["login"] == {digest(third): ANN}
        assert list(round_.journal.answers["other"]) == [digest(WHO), digest(WHOM), digest(third)]

    def test_may_not_have_the_key_of_another_question_or_of_a_step(self, begin: Begin) -> None:
        round_ = begin()
        claim(round_, WHO)
        with pytest.raises(FlowError, match="The key 'login' is used for two different questions"):
            round_.require("login", WHOM, WHOM.question())
        round_.journal.steps["step"] = Step("module.function", {}, None, [])
        with pytest.raises(FlowError, match="An ask and a step both have the key 'step'"):
            round_.require("step", WHOM, WHOM.question())

    def test_is_not_what_was_asked_inline(self, begin: Begin) -> None:
        round_ = begin()
        claim(round_, WHO)
        assert round_.conclude(Completed(None)) == Asking(round_.asked, together=False)
