"""What a task has asked: keys that are never used again, and which answers count."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic_core import from_json, to_json

from mrtr_server.errors import InvalidParams
from mrtr_server.protocol.messages import FIRST, JSON, UNNAMED, Question
from mrtr_server.tasks.sealing import Questions

NAME = {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}
LOGIN = Question("form", "elicitation/create", {"message": "Who?", "requestedSchema": NAME}, ("elicitation.form",))
NOTE = Question("form", "elicitation/create", {"requestedSchema": {**NAME, "required": []}}, ("elicitation.form",))
PAGE = Question("url", "elicitation/create", {"message": "Log in", "url": "https://example.com"}, ("elicitation.url",))
SAMPLE = Question("sample", "sampling/createMessage", {"messages": [], "maxTokens": 5}, ("sampling",))
ROOTS = Question("roots", "roots/list", {}, ("roots",))
SURE = Question("confirm", "elicitation/create", {"message": "Sure?"}, ("elicitation.form",))
WAIT = Question("wait", "", {"message": "Waiting for approval", "wait": "approval"}, (), "shape")
YES: JSON = {"action": "accept", "content": {"confirm": True}}
ANN: JSON = {"action": "accept", "content": {"name": "Ann"}}


def ask_anew(questions: Questions, asked: dict[str, Question]) -> None:
    """Ask these, and nothing else any more."""
    questions.withdraw(list(questions.names.values()))
    questions.ask(asked, 0.0)


def asking(**questions: Question) -> Questions:
    made = Questions()
    made.ask(questions, 0.0)
    return made


def test_a_page_keeps_its_name() -> None:
    page = Question("callback", "elicitation/create", {"message": "Log in"}, ("elicitation.url",), "shape", "the page")
    loaded = Questions.load(asking(login=page, note=NOTE).dump()).open
    assert {key: question.page for key, question in loaded.items()} == {"login": "the page", "note": ""}
    assert loaded["login"].digest == page.digest


class TestKeys:
    @given(st.lists(st.sets(st.sampled_from(["a", "a_1", "a_2", "a_3", "a_2_2", "a_02", "_2", ""]), max_size=4)))
    def test_are_never_used_twice(self, rounds: list[set[str]]) -> None:
        questions, given_out = Questions(), list[str]()
        for names in rounds:
            ask_anew(questions, dict.fromkeys(sorted(names), LOGIN))
            assert set(questions.names.values()) == names
            given_out += questions.open
            questions = Questions.load(questions.dump())
        assert len(given_out) == len(set(given_out))

    def test_are_the_names_of_the_author_for_as_long_as_they_can_be(self) -> None:
        questions = Questions()
        for key in ("login", "login_2", "login_3"):
            ask_anew(questions, {"login": LOGIN})
            assert list(questions.open) == [key]
        ask_anew(questions, {"login_1": LOGIN, "login_02": LOGIN, "login_4": LOGIN, "login_3": LOGIN})
        assert list(questions.open) == ["login_1", "login_02", "login_4", "login_3_2"]

    def test_of_what_is_asked_again_and_again_take_no_room(self) -> None:
        """Whoever answers wrongly for an hour must not make each round dearer than the one before."""
        questions = asking(login=LOGIN)
        before = len(questions.dump())
        for _ in range(10_000):
            ask_anew(questions, {"login": LOGIN})
        assert list(questions.open) == ["login_10001"]
        assert len(questions.dump()) < before + 40


class TestWhatIsOpen:
    def test_keeps_its_key_when_it_is_asked_again_beside_something_new(self) -> None:
        questions = asking(login=LOGIN)
        questions.ask({"login": LOGIN, "note": NOTE}, 0.0)
        assert questions.names == {"login": "login", "note": "note"}

    def test_ends_when_the_first_time_for_an_answer_does(self) -> None:
        questions = Questions()
        assert questions.ends(50.0) == 50.0
        for name, until in (("login", 30.0), ("note", 20.0), ("page", 40.0)):
            questions.ask({name: LOGIN}, until)
        questions = Questions.load(questions.dump())
        assert questions.ends(50.0) == 20.0
        assert questions.take({"note": ANN})
        assert questions.ends(50.0) == 30.0
        assert questions.ends(25.0) == 25.0
        questions.withdraw(["login"])
        assert questions.ends(50.0) == 40.0

    def test_waits_for_all_answers_if_a_release_asked_it_that_knew_nothing_else(self) -> None:
        open_, names, answers, used = from_json(asking(login=LOGIN).dump())
        del used["\n"]
        questions = Questions.load(to_json([open_, names, answers, used]))
        assert (list(questions.open), questions.together, questions.until) == (["login"], True, {})

    def test_is_read_by_the_release_before(self) -> None:
        """0.1.0 takes four things, and looks into the last one by the names that it asks."""
        questions = asking(login=LOGIN)
        questions.together = True
        open_, names, answers, used = from_json(questions.dump())
        assert [Question.load(*parts) for parts in open_.values()] == [LOGIN]
        assert (names, answers, used["login"]) == ({"login": "login"}, {}, 1)


class TestWhatSomebodyElseAnswers:
    def test_is_not_for_the_client_and_not_for_the_release_before(self) -> None:
        """0.1.0 would take its client's answer."""
        questions = asking(login=LOGIN, approval=WAIT)
        open_, names, *_ = from_json(questions.dump())
        assert (list(open_), names) == (["login"], {"login": "login"})
        loaded = Questions.load(questions.dump())
        assert loaded.open == {"login": LOGIN, "approval": WAIT}
        assert loaded.names == {"login": "login", "approval": "approval"}
        assert list(loaded.of_client.open) == ["login"]
        assert list(loaded.waits) == ["approval"]


class TestAnswersByName:
    @pytest.mark.parametrize(
        ("question", "answer"),
        [
            (LOGIN, ANN),
            (LOGIN, {"action": "decline"}),
            (LOGIN, {"action": "cancel", "content": None}),
            (LOGIN, {"action": "accept", "content": {"name": 5}}),  # the model says what is wrong with it
            (NOTE, {"action": "accept"}),
            (NOTE, {"action": "accept", "content": {}}),
            (PAGE, {"action": "accept", "content": None}),
            (PAGE, {"action": "accept"}),
            (SAMPLE, {"role": "assistant", "content": {"type": "text", "text": "x"}}),
            (ROOTS, {"roots": []}),
        ],
        ids=str,
    )
    def test_count_if_they_have_what_the_question_requires(self, question: Question, answer: JSON) -> None:
        assert asking(login=question).by_name({"login": answer, "stranger": answer}) == {"login": answer}

    @pytest.mark.parametrize(
        ("question", "answer"),
        [
            (LOGIN, {}),
            (LOGIN, {"content": {"name": "Ann"}}),
            (LOGIN, {"action": "approve", "content": {"name": "Ann"}}),
            (LOGIN, {"action": ["accept"], "content": {"name": "Ann"}}),
            (LOGIN, {"action": "accept"}),
            (LOGIN, {"action": "accept", "content": {"other": "Ann"}}),
            (LOGIN, {"action": "accept", "content": ["name"]}),
            (NOTE, {}),
            (PAGE, {"url": "https://example.com"}),
            (SAMPLE, {"role": "assistant"}),
            (SAMPLE, {"action": "decline"}),
            (ROOTS, {}),
        ],
        ids=str,
    )
    def test_leave_the_question_open_otherwise(self, question: Question, answer: JSON) -> None:
        assert asking(login=question).by_name({"login": answer}) == {}

    def test_are_for_the_question_that_has_the_name_now(self) -> None:
        questions = asking(login=LOGIN)
        ask_anew(questions, {"login": LOGIN})
        assert questions.by_name({"login": ANN, "login_2": ANN}) == {"login_2": ANN}


class TestAnAnswerWithoutAName:
    @pytest.mark.parametrize("names", [["login"], [""], ["login", "size"]], ids=str)
    def test_is_for_the_only_question_that_is_open(self, names: list[str]) -> None:
        questions = asking(**dict.fromkeys(names, LOGIN))
        for answered in names[1:]:
            questions.take({answered: ANN})
        assert questions.answered_by(UNNAMED, {"result": ANN}) == names[0]

    def test_is_none_where_it_has_a_name(self) -> None:
        assert asking(login=LOGIN, size=LOGIN).answered_by("size", {"result": ANN}) == "size"
        assert asking(login=LOGIN).answered_by("size", {"result": ANN}) is None

    @pytest.mark.parametrize("response", [{"result": ANN}, {"result": {}}, {"result": 5}, {"failed": "no"}], ids=str)
    def test_is_refused_where_there_are_several(self, response: JSON) -> None:
        with pytest.raises(InvalidParams, match="2 questions open"):
            asking(login=LOGIN, size=LOGIN).answered_by(UNNAMED, response)

    @pytest.mark.parametrize("name", [UNNAMED, FIRST])
    def test_approves_nothing_once_something_else_was_asked(self, name: str) -> None:
        questions = asking(login=LOGIN)
        ask_anew(questions, {"sure": SURE})
        with pytest.raises(InvalidParams, match="must name its question"):
            questions.answered_by(name, {"result": YES})
        assert questions.answered_by("sure", {"result": YES}) == "sure"
        ask_anew(questions, {"sure": SURE})
        assert questions.by_name({"sure": YES}) == {}
        assert questions.by_name({"sure_2": YES}) == {"sure_2": YES}

    @pytest.mark.parametrize("name", [UNNAMED, FIRST])
    def test_is_ignored_where_nothing_is_open(self, name: str) -> None:
        questions = asking(sure=SURE)
        assert questions.answered_by(name, {"result": YES}) == "sure"
        questions.take({"sure": YES})
        assert questions.answered_by(name, {"result": YES}) is None

    def test_is_known_by_its_kind(self) -> None:
        questions = asking(page=PAGE, login=LOGIN, said=SAMPLE, where=ROOTS)
        assert questions.answered_by(UNNAMED, {"result": {"content": {}}}) == "said"
        assert questions.answered_by(UNNAMED, {"result": {"roots": []}}) == "where"
        with pytest.raises(InvalidParams, match="4 questions open"):
            questions.answered_by(UNNAMED, {"result": ANN})

    @pytest.mark.parametrize("name", [UNNAMED, FIRST])
    def test_opens_no_page_beside_other_questions(self, name: str) -> None:
        with pytest.raises(InvalidParams, match="2 questions open"):
            asking(page=PAGE, said=SAMPLE).answered_by(name, {"result": {"action": "accept"}})

    def test_is_for_the_first_where_that_alone_was_shown(self) -> None:
        questions = asking(login=LOGIN, size=LOGIN, said=SAMPLE)
        assert questions.answered_by(FIRST, {"result": ANN}) == "login"
        assert questions.answered_by(FIRST, {"failed": "no"}) == "login"
        questions.take({"login": ANN})
        assert questions.answered_by(FIRST, {"result": ANN}) == "size"

    @pytest.mark.parametrize("others", [{}, {"login": {}}], ids=str)
    def test_is_not_one_under_an_empty_name(self, others: Any) -> None:
        assert asking(login=LOGIN).by_name({"": ANN, **others}) == {}
        assert asking(login=LOGIN, size=LOGIN).by_name({"": ANN, **others}) == {}
        assert asking(**{"": LOGIN, "size": LOGIN}).by_name({"": ANN, **others}) == {"": ANN}
