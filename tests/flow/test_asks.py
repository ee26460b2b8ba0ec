"""Asks and answers: how each ask goes to the client, and what comes of each answer."""

import inspect
import itertools
import json
import math
import re
from dataclasses import dataclass
from datetime import date
from enum import Enum
from pathlib import Path
from typing import Annotated, Any, Literal

import mcp.types
import pytest
from hypothesis import given
from hypothesis import strategies as st
from jsonschema import Draft202012Validator
from pydantic import BaseModel, Field

from mrtr_server import (
    Confirm,
    Context,
    Elicit,
    Elicited,
    ElicitUrl,
    ImageContent,
    InputRequired,
    Inputs,
    ListRoots,
    Message,
    MRTRServer,
    Refusal,
    Root,
    Roots,
    Sample,
    Sampled,
    SetupError,
    State,
    TextContent,
)
from mrtr_server.errors import InvalidAnswer
from mrtr_server.flow.asks import Ask, reader
from mrtr_server.flow.journal import UNSET
from mrtr_server.protocol.messages import Question
from mrtr_server.schema.forms import snake_case
from mrtr_server.testing import AsyncClient, Client, accept

from ..support.models import GitHubLogin, Login

SPECIFICATION = json.loads((Path(__file__).parents[1] / "schemas" / "2026-07-28.json").read_text())
INPUT_REQUEST = Draft202012Validator({"$ref": "#/$defs/InputRequest", "$defs": SPECIFICATION["$defs"]})


USE = {"type": "tool_use", "id": "1", "name": "add", "input": {}}
RESULT = {"type": "tool_result", "toolUseId": "1", "content": []}
RESULTS = {"role": "user", "content": RESULT}


class Color(Enum):
    RED = "red"
    BLUE = "blue"


@dataclass
class Point:
    x: int


def sent(ask: Ask[Any]) -> dict[str, Any]:
    """What the client is sent for an ask, held to the specification."""
    question = ask.question()
    request = {"method": question.method, "params": question.params}
    assert [error.message for error in INPUT_REQUEST.iter_errors(request)] == []
    assert json.loads(json.dumps(request, allow_nan=False)) == request
    return request


def misfit(ask: Ask[Any], raw: dict[str, Any]) -> str:
    with pytest.raises(InvalidAnswer) as caught:
        ask.parse(raw)
    return caught.value.reason


LOGIN = Elicit("Your name?", GitHubLogin)
BRANCHING = Elicit("Your name?", Elicited[GitHubLogin])
CONFIRM = Confirm("Deploy?")
URL = ElicitUrl("Sign in", "https://example.com/login")
SAMPLE = Sample("Write a haiku")
ROOTS = ListRoots()
ASKS: list[Ask[Any]] = [LOGIN, BRANCHING, CONFIRM, URL, SAMPLE, ROOTS]
PERSON: list[Ask[Any]] = [LOGIN, CONFIRM, URL]


class TestQuestions:
    def test_a_form_is_its_message_and_its_schema_and_nothing_more(self) -> None:
        assert sent(LOGIN) == {
            "method": "elicitation/create",
            "params": {
                "message": "Your name?",
                "requestedSchema": {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]},
            },
        }
        assert sent(BRANCHING) == sent(LOGIN)

    def test_a_confirmation_is_a_form_with_one_boolean(self) -> None:
        assert sent(CONFIRM) == {
            "method": "elicitation/create",
            "params": {
                "message": "Deploy?",
                "requestedSchema": {
                    "type": "object",
                    "properties": {
                        "confirm": {
                            "type": "boolean",
                            "title": "Yes, do it",
                            "description": "Nothing happens without this",
                        }
                    },
                    "required": ["confirm"],
                },
            },
        }

    def test_a_plain_one_is_a_form_without_fields(self) -> None:
        plain = sent(Confirm("Deploy?", plain=True))
        assert plain["params"] == {"message": "Deploy?", "requestedSchema": {"type": "object", "properties": {}}}

    def test_its_digest_is_that_of_earlier_releases_which_sent_no_texts(self) -> None:
        bare = {"type": "object", "properties": {"confirm": {"type": "boolean"}}, "required": ["confirm"]}
        params = {"message": "Deploy?", "requestedSchema": bare}
        assert CONFIRM.question().digest == Question("confirm", "elicitation/create", params, ()).digest

    def test_a_page_is_named_by_its_url(self) -> None:
        assert sent(URL) == {
            "method": "elicitation/create",
            "params": {"mode": "url", "message": "Sign in", "url": "https://example.com/login"},
        }

    def test_roots_need_no_words(self) -> None:
        assert sent(ROOTS) == {"method": "roots/list", "params": {}}

    def test_a_sampling_is_a_conversation_with_a_limit(self) -> None:
        assert sent(SAMPLE) == {
            "method": "sampling/createMessage",
            "params": {
                "messages": [{"role": "user", "content": {"type": "text", "text": "Write a haiku"}}],
                "maxTokens": 1024,
            },
        }

    def test_a_sampling_says_all_that_the_protocol_lets_it_say(self) -> None:
        everything = Sample(
            ["Hi"],
            max_tokens=5,
            system_prompt="Be brief",
            model_preferences={"hints": [{"name": "small"}], "speedPriority": 1},
            temperature=0.5,
            stop_sequences=["."],
            metadata={"k": 1},
            include_context="none",
            tools=[{"name": "t", "inputSchema": {"type": "object"}}],
            tool_choice={"mode": "auto"},
        )
        params = sent(everything)["params"]
        assert {name: value for name, value in params.items() if name != "messages"} == {
            "maxTokens": 5,
            "systemPrompt": "Be brief",
            "modelPreferences": {"hints": [{"name": "small"}], "speedPriority": 1},
            "temperature": 0.5,
            "stopSequences": ["."],
            "metadata": {"k": 1},
            "includeContext": "none",
            "tools": [{"name": "t", "inputSchema": {"type": "object"}}],
            "toolChoice": {"mode": "auto"},
        }

    TEXT = {"type": "text", "text": "Hi"}  # noqa: RUF012
    IMAGE = {"type": "image", "data": "AA==", "mimeType": "image/png"}  # noqa: RUF012

    @pytest.mark.parametrize(
        ("messages", "written"),
        [
            ("Hi", [{"role": "user", "content": TEXT}]),
            (TextContent(text="Hi"), [{"role": "user", "content": TEXT}]),
            (ImageContent(data=b"\x00"), [{"role": "user", "content": IMAGE}]),
            (
                ["Hi", Message(role="assistant", content="Hi")],
                [{"role": "user", "content": TEXT}, {"role": "assistant", "content": TEXT}],
            ),
            ([Message(content=["Hi", ImageContent(data=b"\x00")])], [{"role": "user", "content": [TEXT, IMAGE]}]),
            (({"role": "assistant", "content": TEXT},), [{"role": "assistant", "content": TEXT}]),
            (
                mcp.types.SamplingMessage(role="assistant", content=mcp.types.TextContent(type="text", text="Hi")),
                [{"role": "assistant", "content": TEXT}],
            ),
        ],
    )
    def test_a_conversation_is_written_in_many_ways(self, messages: Any, written: list[Any]) -> None:
        assert sent(Sample(messages))["params"]["messages"] == written

    @pytest.mark.parametrize("messages", [[{"role": "assistant", "content": USE}, "Hi"], [{"content": [RESULT, TEXT]}]])
    def test_tools_that_were_used_need_their_results_alone(self, messages: list[Any]) -> None:
        """Sampling, Tool Result Messages, and Tool Use and Result Balance."""
        with pytest.raises(SetupError, match="sampling's message"):
            Sample(messages)

    def test_what_is_no_message_is_refused_at_once(self) -> None:
        with pytest.raises(SetupError, match="int is not content"):
            Sample(5)

    @pytest.mark.parametrize(
        ("name", "value"),
        [
            ("max_tokens", 0),
            ("max_tokens", "5"),
            ("system_prompt", 5),
            ("temperature", math.nan),
            ("temperature", True),
            ("stop_sequences", "\n"),
            ("include_context", "all"),
            ("metadata", {"a": [math.inf]}),
            ("model_preferences", {"hints": object()}),
            ("tools", {"name": "a"}),
            ("tool_choice", "auto"),
        ],
    )
    def test_what_a_client_could_not_read_of_a_sampling_is_refused(self, name: str, value: Any) -> None:
        with pytest.raises(SetupError, match=f"^A sampling can't be sent: {name}: "):
            Sample("Hi", **{name: value})

    @pytest.mark.parametrize(
        ("ask", "needs"),
        [
            (LOGIN, ("elicitation.form",)),
            (CONFIRM, ("elicitation.form",)),
            (URL, ("elicitation.url",)),
            (ROOTS, ("roots",)),
            (SAMPLE, ("sampling",)),
            (Sample("Hi", include_context="none"), ("sampling",)),
            (Sample("Hi", include_context="allServers"), ("sampling.context",)),
            (Sample("Hi", tools=[]), ("sampling.tools",)),
            (Sample("Hi", tool_choice={"mode": "none"}), ("sampling.tools",)),
            (Sample("Hi", tools=[], include_context="thisServer"), ("sampling.tools", "sampling.context")),
            (
                Sample([{"role": "assistant", "content": [USE]}, {"role": "user", "content": RESULT}]),
                ("sampling.tools",),
            ),
        ],
    )
    def test_each_needs_what_the_client_must_have_declared(self, ask: Ask[Any], needs: tuple[str, ...]) -> None:
        assert ask.question().needs == needs

    @pytest.mark.parametrize("ask", ASKS)
    def test_each_is_written_down_as_earlier_releases_read_it(self, ask: Ask[Any]) -> None:
        question = ask.question()
        parts = question.dump()
        assert parts[3] == " ".join(question.needs)
        assert Question.load(*parts) == question

    def test_only_yeses_and_pages_take_no_answer_that_came_before_they_were_asked(self) -> None:
        assert [type(ask) for ask in ASKS if ask.needs_state] == [Confirm, ElicitUrl]

    def test_a_long_message_is_asked_as_it_is(self) -> None:
        message = "Why? " * 1000
        assert Elicit(message, GitHubLogin).question().params["message"] == message

    def test_a_function_is_a_text_in_an_annotation_alone(self) -> None:
        for ask in (Elicit(lambda: "Why?", GitHubLogin), Confirm(lambda: "Sure?"), Sample(lambda: "Hello")):  # type: ignore[call-overload]
            with pytest.raises(SetupError, match="can be a function only in the annotation of a parameter"):
                ask.question()

    def test_a_form_that_the_parameter_is_to_name_is_none_yet(self) -> None:
        unbound = Elicit("Your name?")
        assert not unbound.branches
        assert not unbound.of_value
        assert Elicit("Your name?", str).of_value
        assert not Elicit("Your login?", GitHubLogin).of_value


class TestDigests:
    def test_the_same_question_has_the_same_digest(self) -> None:
        again: list[Ask[Any]] = [Elicit("Your name?", GitHubLogin), LOGIN, Confirm("Deploy?")]
        originals: list[Ask[Any]] = [LOGIN, BRANCHING, CONFIRM]
        assert [ask.question().digest for ask in again] == [ask.question().digest for ask in originals]

    def test_the_key_is_not_in_it(self) -> None:
        assert Confirm("Deploy?", key="other").question().digest == CONFIRM.question().digest

    def test_message_form_and_kind_are(self) -> None:
        class Other(BaseModel):
            nick: str

        questions: list[Ask[Any]] = [
            LOGIN,
            Elicit("Name?", GitHubLogin),
            Elicit("Your name?", Other),
            CONFIRM,
            Confirm("Destroy?"),
            URL,
            ElicitUrl("Sign in", "https://example.com/other"),
            SAMPLE,
            Sample("Write a limerick"),
            Sample("Write a haiku", max_tokens=5),
            ROOTS,
        ]
        assert len({ask.question().digest for ask in questions}) == len(questions)

    def test_the_reason_for_asking_again_is_not(self) -> None:
        question = LOGIN.question()
        again = question.because("name: Field required")
        assert again.params == {**question.params, "message": "name: Field required — Your name?"}
        assert (again.digest, again.shape, again.needs) == (question.digest, question.shape, question.needs)
        assert question.because("") is question
        assert ROOTS.question().because("roots: Field required").params == {}

    def test_what_a_pure_function_asks_for_is_of_the_kind_and_shape_of_its_question(self) -> None:
        shaped: list[tuple[Any, Ask[Any]]] = [(GitHubLogin, LOGIN), (Elicited[GitHubLogin], BRANCHING)]
        for asked, ask in shaped:
            kind, shape, _ = reader(asked)
            assert (kind, shape) == (ask.question().kind, ask.question().shape)
        assert reader(Sampled)[:2] == (SAMPLE.question().kind, None)
        assert reader(Roots)[:2] == (ROOTS.question().kind, None)

    def test_a_yes_and_a_page_are_read_by_the_ask_alone(self) -> None:
        # So that the message that was agreed to is the one that the function stands by.
        for asked in (Confirm, ElicitUrl):
            with pytest.raises(SetupError, match=rf"inputs\.get needs the ask itself, {asked.__name__}"):
                reader(asked)

    @pytest.mark.parametrize("asked", [dict, "str", Inputs, Sample, ListRoots, Elicited, Elicited[list[str]]])
    def test_it_can_ask_for_nothing_else(self, asked: Any) -> None:
        with pytest.raises(SetupError, match="can't be a form"):
            reader(asked)

    @pytest.mark.parametrize("asked", [[1, 2], [], ["a", 1], ()])
    def test_a_choice_is_named_only_where_it_may_be_meant(self, asked: Any) -> None:
        with pytest.raises(SetupError, match="can't be a form") as refused:
            Elicit("Which?", asked)
        assert "Literal" not in str(refused.value)

    @pytest.mark.parametrize(
        ("asked", "says"),
        [
            (["red", "blue"], "A choice is Literal['red', 'blue']"),
            (list[str], "is a list of free text; a form can have strings"),
            (Point, "pass a pydantic model, or the type of one value"),
        ],
    )
    def test_what_other_frameworks_take_for_a_form_is_named_in_ours(self, asked: Any, says: str) -> None:
        with pytest.raises(SetupError) as refused:
            Elicit("Which?", asked)
        assert says in str(refused.value)


class TestOneValue:
    """The form of one value has one field, and its answer is the value itself."""

    @pytest.mark.parametrize(
        ("asked", "schema", "sent", "value"),
        [
            (str, {"type": "string"}, "Ann", "Ann"),
            (int, {"type": "integer"}, 3, 3),
            (float, {"type": "number"}, 1.5, 1.5),
            (bool, {"type": "boolean"}, False, False),
            (date, {"type": "string", "format": "date"}, "2026-01-02", date(2026, 1, 2)),
            (Color, {"type": "string", "enum": ["red", "blue"]}, "red", Color.RED),
            (Literal["a", "b"], {"type": "string", "enum": ["a", "b"]}, "b", "b"),
            (list[Literal["a"]], {"type": "array", "items": {"type": "string", "enum": ["a"]}}, ["a"], ["a"]),
            (list[Color], {"type": "array", "items": {"type": "string", "enum": ["red", "blue"]}}, [], []),
            (Annotated[int, Field(ge=1)], {"type": "integer", "minimum": 1}, 1, 1),
        ],
    )
    def test_goes_out_as_a_field_and_comes_back_as_itself(self, asked: Any, schema: Any, sent: Any, value: Any) -> None:
        ask = Elicit("Which?", asked)
        assert ask.question().params == {
            "message": "Which?",
            "requestedSchema": {"type": "object", "properties": {"value": schema}, "required": ["value"]},
        }
        assert ask.parse({"action": "accept", "content": {"value": sent}}) == value
        assert type(ask.parse({"action": "accept", "content": {"value": sent}})) is type(value)

    def test_may_be_left_out(self) -> None:
        ask: Elicit[Any] = Elicit("Which?", str | None)
        assert "required" not in ask.question().params["requestedSchema"]
        assert ask.parse({"action": "accept", "content": {}}) is None
        assert ask.parse({"action": "accept", "content": {"value": "a"}}) == "a"

    def test_is_asked_again_where_it_does_not_fit(self) -> None:
        with pytest.raises(InvalidAnswer, match="value: "):
            Elicit("How many?", int).parse({"action": "accept", "content": {"value": "many"}})

    def test_may_be_branched_on(self) -> None:
        ask = Elicit("Who?", Elicited[str])
        assert ask.parse({"action": "accept", "content": {"value": "Ann"}}) == Elicited("accept", "Ann")
        assert ask.parse({"action": "decline"}) == Elicited("decline")

    def test_is_read_by_a_pure_function_too(self) -> None:
        kind, shape, read = reader(str)
        assert (kind, shape) == ("form", Elicit("Who?", str).question().shape)
        assert read({"action": "accept", "content": {"value": "Ann"}}) == "Ann"

    def test_of_a_parameter_goes_by_its_name_and_others_by_value(self) -> None:
        app = MRTRServer("values", keys=[bytes(32)])

        @app.tool
        async def greet(name: Annotated[str, Elicit("Your name?")], ctx: Context) -> str:
            size = await ctx.elicit("Which size?", Color)
            many = await ctx.elicit("Which ones?", list[Color])
            return f"{name} {size.value} {len(many)} {(await ctx.elicit('When?', date)).year}"

        answers: dict[str, Any] = {
            "name": "Ann",
            "value": Color.RED,
            "value_2": accept([Color.RED]),
            "value_3": date(2026, 1, 2),
        }
        assert Client(app).call("greet", answers=answers).text == "Ann red 1 2026"


class TestAnswers:
    def test_an_accepted_form_is_the_model(self) -> None:
        assert LOGIN.parse({"action": "accept", "content": {"name": "Ann"}}) == GitHubLogin(name="Ann")

    @pytest.mark.parametrize("ask", PERSON)
    @pytest.mark.parametrize("action", ["decline", "cancel"])
    def test_a_no_is_no_answer_for_who_does_not_branch(self, ask: Ask[Any], action: str) -> None:
        with pytest.raises(Refusal) as caught:
            ask.parse({"action": action, "content": {"name": "Ann", "confirm": True}})
        assert (caught.value.action, caught.value.confirming) == (action, ask is CONFIRM)

    def test_who_branches_gets_every_action(self) -> None:
        accepted = BRANCHING.parse({"action": "accept", "content": {"name": "Ann"}})
        assert (accepted.action, accepted.content, accepted.accepted) == ("accept", GitHubLogin(name="Ann"), True)
        for action in ("decline", "cancel"):
            refused = BRANCHING.parse({"action": action})
            assert (refused.action, refused.content, refused.accepted) == (action, None, False)

    @pytest.mark.parametrize("ask", [*PERSON, BRANCHING])
    @pytest.mark.parametrize(
        "raw", [{}, {"action": None}, {"action": "yes"}, {"action": ["accept"]}, {"content": {"name": "Ann"}}]
    )
    def test_an_answer_without_an_action_is_asked_for_again(self, ask: Ask[Any], raw: dict[str, Any]) -> None:
        assert misfit(ask, raw) == "The answer has no action."

    @pytest.mark.parametrize("ask", [LOGIN, BRANCHING])
    def test_a_form_that_does_not_fit_is_asked_for_again(self, ask: Ask[Any]) -> None:
        assert misfit(ask, {"action": "accept"}) == "name: Field required"
        assert misfit(ask, {"action": "accept", "content": None}) == "The form came back empty."
        assert misfit(ask, {"action": "accept", "content": {"name": 5}}) == "name: Input should be a valid string"

    def test_only_a_true_yes_confirms(self) -> None:
        assert CONFIRM.parse({"action": "accept", "content": {"confirm": True}}) is True
        with pytest.raises(Refusal) as caught:
            CONFIRM.parse({"action": "accept", "content": {"confirm": False}})
        assert (caught.value.action, caught.value.confirming) == ("decline", True)

    @pytest.mark.parametrize(
        "content", [None, {}, [], True, {"confirm": None}, {"confirm": 1}, {"confirm": "true"}, {"yes": True}]
    )
    def test_what_is_neither_yes_nor_no_is_asked_for_again(self, content: Any) -> None:
        assert misfit(CONFIRM, {"action": "accept", "content": content}) == "confirm: Please answer yes or no."

    def test_a_page_is_agreed_to_without_content(self) -> None:
        assert URL.parse({"action": "accept"}) is True
        assert URL.parse({"action": "accept", "content": {"anything": 1}}) is True

    def test_a_sampled_message_is_read_in_both_forms(self) -> None:
        one = {
            "role": "assistant",
            "content": {"type": "text", "text": "old pond"},
            "model": "m",
            "stopReason": "endTurn",
        }
        read = SAMPLE.parse(one)
        assert read == Sampled(content={"type": "text", "text": "old pond"}, model="m", stop_reason="endTurn")
        assert read.text == "old pond"
        several = SAMPLE.parse(
            {
                "role": "assistant",
                "content": [{"type": "text", "text": "old "}, {"type": "image"}, {"type": "text", "text": "pond"}],
            }
        )
        assert several.text == "old pond"

    @pytest.mark.parametrize("raw", [{}, {"content": "text"}, {"content": 5}, {"content": {}, "role": "system"}])
    def test_what_is_no_message_is_asked_for_again(self, raw: dict[str, Any]) -> None:
        assert misfit(SAMPLE, raw)

    @pytest.mark.parametrize("text", [None, 5, ["x"], {}])
    def test_a_text_block_without_text_is_asked_for_again(self, text: Any) -> None:
        assert misfit(SAMPLE, {"content": [{"type": "text", "text": text}, {"type": "text", "text": "pond"}]})

    def test_roots_are_read_as_a_list(self) -> None:
        raw = {"roots": [{"uri": "file:///a", "name": "A", "_meta": {}}, {"uri": "file:///b"}]}
        assert ROOTS.parse(raw) == [Root(uri="file:///a", name="A"), Root(uri="file:///b")]
        assert ROOTS.parse({"roots": []}) == []
        assert "roots" in misfit(ROOTS, {})
        assert "roots.0.uri" in misfit(ROOTS, {"roots": [{"name": "A"}]})

    @pytest.mark.parametrize("ask", ASKS)
    @given(
        raw=st.dictionaries(
            st.sampled_from(["action", "content", "roots", "role"]),
            st.none() | st.booleans() | st.text(max_size=2) | st.lists(st.none()) | st.just({}),
            max_size=4,
        )
    )
    def test_whatever_a_client_sends_is_an_answer_a_no_or_a_misfit(self, ask: Ask[Any], raw: dict[str, Any]) -> None:
        says, answer, refused, wrong = raw.get("action"), None, "", ""
        try:
            answer = ask.parse(raw)
        except Refusal as refusal:
            refused = refusal.action
        except InvalidAnswer as found:
            wrong = found.reason
        if refused:
            assert (ask in PERSON, refused in ("decline", "cancel"), says) == (True, True, refused)
        elif answer is None:
            assert wrong, "an answer that does not fit is asked for again with a reason"
        elif ask is BRANCHING:
            assert says in ("decline", "cancel"), "no name is among what is sent"
        elif ask is URL:
            assert says == "accept"
        elif ask is ROOTS:
            assert answer == raw["roots"] == []
        else:
            assert ask is SAMPLE, f"{raw} is no answer to {ask}"
            assert raw["content"] in ({}, [])
            assert (answer.content, answer.text) == (raw["content"], "")

    def test_no_reason_repeats_what_was_sent(self) -> None:
        secret = "s3cret"
        assert secret not in misfit(LOGIN, {"action": "accept", "content": {"name": {"a": secret}}})
        assert secret not in misfit(LOGIN, {"action": secret})
        assert secret not in misfit(SAMPLE, {"content": secret})
        assert secret not in misfit(ROOTS, {"roots": secret})


class TestRefusal:
    def test_it_is_no_exception_so_that_no_handler_swallows_it(self) -> None:
        def careless() -> str:
            try:
                raise Refusal("decline")
            except Exception:
                return "go ahead"

        with pytest.raises(Refusal):
            careless()


class TestKeys:
    @pytest.mark.parametrize(
        ("name", "key"),
        [
            ("Login", "login"),
            ("GitHubLogin", "github_login"),
            ("OAuthToken", "oauth_token"),
            ("MyGitLabURL", "my_gitlab_url"),
            ("UserName2", "user_name_2"),
            ("HTTPProxy", "http_proxy"),
            ("already_snake", "already_snake"),
            ("X", "x"),
        ],
    )
    def test_a_form_is_called_by_its_model_s_name_in_snake_case(self, name: str, key: str) -> None:
        assert snake_case(name) == key
        assert Elicit("?", type(name, (GitHubLogin,), {})).default_key == key

    def test_branching_makes_no_difference_to_it(self) -> None:
        assert BRANCHING.default_key == LOGIN.default_key == "github_login"

    def test_other_asks_have_names_of_their_own(self) -> None:
        assert [ask.default_key for ask in (CONFIRM, URL, SAMPLE, ROOTS)] == ["confirm", "open_url", "sample", "roots"]

    def test_a_key_of_the_author_s_is_kept(self) -> None:
        made: list[Ask[Any]] = [
            Elicit("?", GitHubLogin, key="k"),
            Confirm("?", key="k"),
            ElicitUrl("?", "https://example.com", key="k"),
            Sample("?", key="k"),
            ListRoots(key="k"),
        ]
        assert {ask.key for ask in made} == {"k"}
        assert {ask.key for ask in ASKS} == {None}


class TestInputRequired:
    def test_asks_come_as_keywords_or_as_one_mapping_or_as_both(self) -> None:
        assert InputRequired(login=LOGIN, sure=CONFIRM).asks == {"login": LOGIN, "sure": CONFIRM}
        assert InputRequired({"login": LOGIN, "sure": CONFIRM}).asks == {"login": LOGIN, "sure": CONFIRM}
        assert InputRequired({"login": LOGIN}, sure=CONFIRM).asks == {"login": LOGIN, "sure": CONFIRM}

    def test_a_key_may_be_called_state_or_what_no_keyword_may_be(self) -> None:
        asked = InputRequired({"state": LOGIN, "a key": CONFIRM, "asks": URL, "self": ROOTS}, state={"n": 1})
        assert list(asked.asks) == ["state", "a key", "asks", "self"]
        assert asked.state == {"n": 1}

    def test_state_that_is_left_out_is_not_none(self) -> None:
        assert InputRequired(sure=CONFIRM).state is UNSET
        assert InputRequired(sure=CONFIRM, state=None).state is None

    def test_a_key_twice_is_refused(self) -> None:
        with pytest.raises(SetupError, match="has the key 'login' twice"):
            InputRequired({"login": LOGIN}, login=LOGIN)

    @pytest.mark.parametrize("thing", [GitHubLogin, "Your name?", None, Confirm, {"message": "?"}])
    def test_what_is_no_ask_is_refused(self, thing: Any) -> None:
        with pytest.raises(SetupError, match=r"InputRequired\(login=...\) is not an ask"):
            InputRequired(login=thing)
        with pytest.raises(SetupError, match=r"InputRequired\(login=...\) is not an ask"):
            InputRequired({"login": thing})

    def test_an_ask_without_a_key_is_refused(self) -> None:
        unnamed: Any = LOGIN
        with pytest.raises(SetupError, match="takes its asks by key"):
            InputRequired(unnamed)

    def test_the_mapping_that_was_given_stays_as_it_is(self) -> None:
        given_ = {"login": LOGIN}
        InputRequired(given_, sure=CONFIRM)
        assert given_ == {"login": LOGIN}


class TestValues:
    def test_elicited_values_compare_by_what_they_say(self) -> None:
        assert Elicited("accept", 1) == Elicited("accept", 1)
        assert Elicited("accept", 1) != Elicited("accept", 2)
        assert Elicited[int]("decline") != Elicited[int]("cancel")
        assert Elicited("accept", 1) != 1

    def test_what_is_printed_says_what_it_is(self) -> None:
        assert repr(Elicited("accept", 1)) == "Elicited('accept', 1)"
        assert repr(State({"n": 1})) == "State({'n': 1})"

    def test_a_state_is_empty_in_the_first_round(self) -> None:
        assert State[int]().value is None

    def test_answers_can_not_be_changed(self) -> None:
        with pytest.raises(ValueError, match="frozen"):
            Sampled(content={"type": "text", "text": "x"}).model = "m"  # type: ignore[misc]
        with pytest.raises(ValueError, match="frozen"):
            Root(uri="file:///a").uri = ""  # type: ignore[misc]


EVERYTHING: dict[str, tuple[type[Ask[Any]], dict[str, Any]]] = {
    "elicit": (
        Elicit,
        {"message": "Who?", "schema": Login, "key": "mine", "ui": "ui://login", "through_model": True},
    ),
    "confirm": (Confirm, {"message": "Pay?", "key": "mine", "plain": True, "ui": "ui://pay"}),
    "elicit_url": (ElicitUrl, {"message": "Sign in", "url": "https://example.com/login", "key": "mine"}),
    "sample": (
        Sample,
        {
            "messages": ["Hi"],
            "max_tokens": 5,
            "system_prompt": "Be brief",
            "model_preferences": {"speedPriority": 1},
            "temperature": 0.5,
            "stop_sequences": ["."],
            "metadata": {"k": 1},
            "include_context": "thisServer",
            "tools": [{"name": "t", "inputSchema": {"type": "object"}}],
            "tool_choice": {"mode": "auto"},
            "key": "mine",
        },
    ),
    "list_roots": (ListRoots, {"key": "mine"}),
}


@pytest.mark.anyio
@pytest.mark.parametrize("method", EVERYTHING)
async def test_a_method_of_the_context_asks_all_that_its_ask_can_say(method: str) -> None:
    app = MRTRServer("asks", keys=[bytes(32)])
    kind, fields = EVERYTHING[method]
    takes = set(inspect.signature(getattr(Context, method)).parameters) - {"self", "callback"}
    assert set(fields) == takes

    @app.tool
    async def by_method(ctx: Context) -> str:
        return str(await getattr(ctx, method)(**fields))

    @app.tool
    async def by_ask(ctx: Context) -> str:
        return str(await ctx.ask(kind(**fields)))

    asked = [(await AsyncClient(app).flow(tool).start()).asks for tool in ("by_method", "by_ask")]
    assert list(asked[0]) == ["mine"]
    for each in asked:
        each["mine"].params.pop("elicitationId", None)  # names the page of one flow
    assert asked[0] == asked[1]


@pytest.mark.anyio
@pytest.mark.parametrize("era", ["2026-07-28", "2025-11-25", "sep-draft"])
async def test_a_page_has_an_id_in_every_era_which_names_it_in_one_flow(era: Any) -> None:
    """2026-07-28 has none, and clients whose SDK is of the version before need it."""
    app, read = MRTRServer("pages", keys=[bytes(32)]), itertools.count()

    @app.tool
    async def sign_in(ctx: Context) -> str:
        await ctx.ask(page=ElicitUrl("Sign in", "https://example.com"), other=ElicitUrl("Pay", "https://example.com"))
        return "done"

    @app.tool
    def sign_in_again(inputs: Inputs) -> str | InputRequired:
        page = ElicitUrl("Sign in", "https://example.com")
        return "done" if next(read) > 1 else InputRequired(page=page)

    names = []
    for tool in ("sign_in", "sign_in", "sign_in_again"):
        flow = AsyncClient(app, era=era).flow(tool)
        asked = (await flow.start()).asks
        if tool == "sign_in_again":
            again = (await flow.answer(page=accept())).asks
            assert again["page"].params == asked["page"].params
        assert (await flow.answer({key: accept() for key in asked})).text == "done"
        names += [each.params["elicitationId"] for each in asked.values()]
    assert len(set(names)) == len(names)
    assert all(re.fullmatch("[0-9a-f]{32}", name) for name in names)
