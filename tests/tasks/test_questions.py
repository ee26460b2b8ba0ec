"""What a task has asked: keys that are never used again, and which answers count."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mrtr_server.errors import InvalidParams
from mrtr_server.protocol.messages import JSON, Question
from mrtr_server.tasks.questions import Questions

NAME = {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}
LOGIN = Question("form", "elicitation/create", {"message": "Who?", "requestedSchema": NAME}, "elicitation.form")
NOTE = Question("form", "elicitation/create", {"requestedSchema": {**NAME, "required": []}}, "elicitation.form")
PAGE = Question("url", "elicitation/create", {"message": "Log in", "url": "https://example.com"}, "elicitation.url")
SAMPLE = Question("sample", "sampling/createMessage", {"messages": [], "maxTokens": 5}, "sampling")
ROOTS = Question("roots", "roots/list", {}, "roots")
ANN: JSON = {"action": "accept", "content": {"name": "Ann"}}


def asking(**questions: Question) -> Questions:
    made = Questions()
    made.ask(questions)
    return made


class TestKeys:
    @given(st.lists(st.sets(st.sampled_from(["a", "a_1", "a_2", "a_3", "a_2_2", "a_02", "_2", ""]), max_size=4)))
    def test_are_never_used_twice(self, rounds: list[set[str]]) -> None:
        questions, given_out = Questions(), list[str]()
        for names in rounds:
            questions.ask(dict.fromkeys(sorted(names), LOGIN))
            assert set(questions.names.values()) == names
            given_out += questions.open
            questions = Questions.load(questions.dump())
        assert len(given_out) == len(set(given_out))

    def test_are_the_names_of_the_author_for_as_long_as_they_can_be(self) -> None:
        questions = Questions()
        for key in ("login", "login_2", "login_3"):
            questions.ask({"login": LOGIN})
            assert list(questions.open) == [key]
        questions.ask({"login_1": LOGIN, "login_02": LOGIN, "login_4": LOGIN, "login_3": LOGIN})
        assert list(questions.open) == ["login_1", "login_02", "login_4", "login_3_2"]

    def test_of_what_is_asked_again_and_again_take_no_room(self) -> None:
        """Whoever answers wrongly for an hour must not make each round dearer than the one before."""
        questions = asking(login=LOGIN)
        before = len(questions.dump())
        for _ in range(10_000):
            questions.ask({"login": LOGIN})
        assert list(questions.open) == ["login_10001"]
        assert len(questions.dump()) < before + 20


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
        questions.ask({"login": LOGIN})
        assert questions.by_name({"login": ANN, "login_2": ANN}) == {"login_2": ANN}


class TestAnAnswerWithoutAName:
    @pytest.mark.parametrize("names", [["login"], [""], ["login", "size"]], ids=str)
    def test_is_for_the_only_question_that_is_open(self, names: list[str]) -> None:
        questions = asking(**dict.fromkeys(names, LOGIN))
        for answered in names[1:]:
            questions.take({answered: ANN})
        assert questions.to_the_only_one({"": ANN}) == {names[0]: ANN}
        assert questions.to_the_only_one({"": {"result": ANN}}) == {}

    def test_is_refused_where_there_are_several(self) -> None:
        with pytest.raises(InvalidParams, match="2 questions open"):
            asking(login=LOGIN, size=LOGIN).to_the_only_one({"": ANN})

    @pytest.mark.parametrize("others", [{}, {"login": {}}], ids=str)
    def test_is_not_one_under_an_empty_name(self, others: Any) -> None:
        assert asking(login=LOGIN).by_name({"": ANN, **others}) == {}
        assert asking(login=LOGIN, size=LOGIN).by_name({"": ANN, **others}) == {}
        assert asking(**{"": LOGIN, "size": LOGIN}).by_name({"": ANN, **others}) == {"": ANN}
