"""Declared parameters: what a signature asks and depends on, filled in rounds."""

import asyncio
import contextvars
import json
import sys
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from functools import partial
from typing import Annotated, Any

import pytest
from pydantic import BaseModel, Field
from typing_extensions import TypeAliasType

from mrtr_server import (
    Confirm,
    Context,
    Depends,
    Elicit,
    Elicited,
    ElicitUrl,
    Header,
    InputRequired,
    Inputs,
    KeyRing,
    ListRoots,
    MRTRServer,
    Root,
    Sample,
    Sampled,
    SetupError,
    State,
    ToolError,
)
from mrtr_server.testing import Answer, Answerable, AsyncClient, accept, cancel, decline, no, sampled, yes

from ..support.direct import Exchange, exchange, headers_for, scope_of
from ..support.effects import EFFECTS, effect
from ..support.flows import is_state_only
from ..support.models import Login
from ..support.serving import TIMEOUT
from ..support.wire import modern

pytestmark = pytest.mark.anyio


class Amount(BaseModel):
    count: Annotated[int, Field(ge=1)]


class Stock(BaseModel):
    left: int


ROOTS = {"roots": [{"uri": "file:///a", "name": "a"}]}


@pytest.fixture
def app() -> MRTRServer:
    return MRTRServer("declared", keys=KeyRing.generate())


Who = Annotated[Login, Elicit("who?")]
Sure = Annotated[bool, Confirm("sure?")]


class TestAsks:
    async def test_every_kind_fills_its_parameter_and_all_go_out_in_one_round(self, app: MRTRServer) -> None:
        @app.tool
        def everything(
            login: Annotated[Login, Elicit("who?")],
            branching: Annotated[Elicited[Amount], Elicit("how many?")],
            sure: Annotated[bool, Confirm("sure?")],
            page: Annotated[bool, ElicitUrl("sign in", "https://example.com")],
            said: Annotated[Sampled, Sample("a haiku")],
            text: Annotated[str, Sample("a limerick")],
            roots: Annotated[list[Root], ListRoots()],
        ) -> str:
            return f"{login!r} {branching!r} {sure} {page} {said.text} {text} {roots[0].name}"

        flow = AsyncClient(app).flow("everything")
        asks = (await flow.start()).asks
        assert {key: (asked.kind, asked.message) for key, asked in asks.items()} == {
            "login": ("form", "who?"),
            "amount": ("form", "how many?"),
            "sure": ("form", "sure?"),
            "page": ("url", "sign in"),
            "said": ("sample", "a haiku"),
            "text": ("sample", "a limerick"),
            "roots": ("roots", ""),
        }
        answers: dict[str, Answerable] = {
            "login": accept(name="ann"),
            "amount": accept(count=2),
            "sure": yes,
            "page": accept(),
            "said": sampled("old pond"),
            "text": sampled("there was"),
            "roots": ROOTS,
        }
        expected = "Login(name='ann') Elicited('accept', Amount(count=2)) True True old pond there was a"
        assert (await flow.send(answers)).text == expected

    async def test_in_prompts_and_resources_too(self, app: MRTRServer) -> None:
        @app.prompt
        def letter(topic: str, login: Annotated[Login, Elicit(lambda topic: f"who writes of {topic}?")]) -> str:
            return f"{topic} by {login.name}"

        @app.resource("notes://{topic}", cache_seconds=60)
        async def note(topic: str, login: Annotated[Login, Elicit(lambda topic: f"who reads {topic}?")]) -> str:
            return f"{topic} for {login.name}"

        prompt = AsyncClient(app).prompt_flow("letter", topic="tea")
        assert (await prompt.start()).questions == {"login": "who writes of tea?"}
        assert (await prompt.answer(login=accept(name="ann"))).text == "tea by ann"
        resource = AsyncClient(app).resource_flow("notes://tea")
        assert (await resource.start()).questions == {"login": "who reads tea?"}
        result = (await resource.answer(login=accept(name="ann"))).result
        assert (result["contents"][0]["text"], result["ttlMs"]) == ("tea for ann", 0)

    async def test_a_message_may_depend_on_arguments_and_on_earlier_answers(self, app: MRTRServer) -> None:
        def how_many(title: str, login: Login, tone: str = "plain") -> str:
            return f"how many of {title}, {login.name}? ({tone})"

        @app.tool
        def order(
            amount: Annotated[Amount, Elicit(how_many)],
            title: str,
            login: Who,
            kind: Annotated[str, Sample(lambda title: [f"What is {title}?"])],
            page: Annotated[bool, ElicitUrl("look", lambda title: f"https://example.com/{title}")],
            sure: Annotated[bool, Confirm(lambda edition, amount: f"{amount.count} of edition {edition}?")],
            edition: int = 1,
        ) -> str:
            return f"{amount.count} {kind} {page} {sure} {edition}"

        flow = AsyncClient(app).flow("order", title="tea")
        assert set((await flow.start()).questions) == {"login", "kind", "page"}
        assert flow.last.asks["page"].url == "https://example.com/tea"
        assert flow.last.asks["kind"].message == "What is tea?"
        answers = {"login": accept(name="ann"), "kind": sampled("a plant"), "page": accept()}
        assert (await flow.send(answers)).questions == {"amount": "how many of tea, ann? (plain)"}
        assert (await flow.answer(amount=accept(count=2))).questions == {"sure": "2 of edition 1?"}
        assert (await flow.answer(sure=yes)).text == "2 a plant True True 1"

    async def test_each_call_has_messages_of_its_own(self, app: MRTRServer) -> None:
        @app.tool
        def delete(path: str, sure: Annotated[bool, Confirm(lambda path: f"delete {path}?")]) -> str:
            return effect(path)

        a, b = (AsyncClient(app).flow("delete", path=path) for path in "ab")
        assert ((await a.send()).questions, (await b.send()).questions) == (
            {"sure": "delete a?"},
            {"sure": "delete b?"},
        )
        assert ((await a.send({"sure": yes})).text, (await b.send({"sure": yes})).text) == ("a", "b")

    async def test_an_answer_to_another_message_does_not_count(self, app: MRTRServer) -> None:
        amount = iter([3, 300, 300])

        @app.tool
        def pay(sure: Annotated[bool, Confirm(lambda: f"pay {next(amount)}?")]) -> str:
            return effect("paid")

        flow = AsyncClient(app).flow("pay")
        assert (await flow.start()).questions == {"sure": "pay 3?"}
        assert (await flow.answer(sure=yes)).questions == {"sure": "pay 300?"}
        assert EFFECTS == []
        assert (await flow.answer(sure=yes)).text == "paid"

    async def test_an_answer_that_does_not_fit_is_asked_for_again(self, app: MRTRServer) -> None:
        @app.tool
        def order(amount: Annotated[Amount, Elicit("how many?")], login: Who) -> str:
            return f"{amount.count} {login.name}"

        flow = AsyncClient(app).flow("order")
        assert (await flow.start()).needs_input
        again = (await flow.answer(amount=accept(count=0), login=accept(name="ann"))).questions
        assert again == {"amount": "count: Input should be greater than or equal to 1 — how many?"}
        assert (await flow.answer(amount=accept(count=2))).text == "2 ann"

    async def test_answers_on_the_first_call_count_but_for_confirmations_and_pages(self, app: MRTRServer) -> None:
        @app.tool
        def order(
            login: Who,
            amount: Annotated[Amount, Elicit(lambda login: f"how many, {login.name}?")],
            sure: Sure,
            page: Annotated[bool, ElicitUrl("open", "https://example.com")],
        ) -> str:
            return f"{login.name} {amount.count}"

        flow = AsyncClient(app).flow("order")
        early = {"login": accept(name="ann"), "amount": accept(count=2), "sure": yes, "page": accept()}
        assert (await flow.start(early)).questions == {"sure": "sure?", "page": "open"}
        assert (await flow.answer(sure=yes, page=accept())).text == "ann 2"

    async def test_what_the_client_lacks_is_named_in_full(self, app: MRTRServer) -> None:
        @app.tool
        def both(login: Who, said: Annotated[str, Sample("?")], roots: Annotated[list[Root], ListRoots()]) -> str:
            return effect("ran")

        error = (await AsyncClient(app, capabilities={"roots": {}}).flow("both").start()).error
        missing: dict[str, Any] = {"elicitation": {"form": {}}, "sampling": {}}
        assert (error.code, error.data) == (-32021, {"requiredCapabilities": missing})

    async def test_any_replica_serves_any_round(self) -> None:
        keys = KeyRing.generate()
        replicas = [MRTRServer("replicas", keys=keys) for _ in range(3)]
        for replica in replicas:

            @replica.tool
            async def order(
                login: Who, amount: Annotated[Amount, Elicit(lambda login: f"{login.name}?")], ctx: Context
            ) -> str:
                await ctx.confirm(f"{amount.count}?")
                return f"{login.name} {amount.count}"

        flow = AsyncClient(*replicas).flow("order")
        assert (await flow.start()).questions == {"login": "who?"}
        assert (await flow.answer(login=accept(name="ann"))).questions == {"amount": "ann?"}
        assert (await flow.answer(amount=accept(count=2))).questions == {"confirm": "2?"}
        assert (await flow.answer(confirm=yes)).text == "ann 2"

    async def test_annotations_may_be_strings_and_aliases(self, app: MRTRServer) -> None:
        alias = TypeAliasType("alias", Who)

        @app.tool
        def strings(one: "Who", other: alias, third: "Annotated[Who, 'a note'] | None" = None) -> str:
            return f"{one.name} {other.name} {third}"

        flow = AsyncClient(app).flow("strings")
        assert (await flow.start()).questions == {"login": "who?", "login_2": "who?", "login_3": "who?"}
        answers = {"login": accept(name="a"), "login_2": accept(name="b"), "login_3": decline}
        assert (await flow.send(answers)).text == "a b None"
        assert schema_of(app, "strings")["properties"] == {}

    async def test_an_error_of_a_message_function_ends_the_call(
        self, app: MRTRServer, caplog: pytest.LogCaptureFixture
    ) -> None:
        def refuse(title: str) -> str:
            raise ToolError(f"no {title}")

        def leave() -> str:
            sys.exit()

        @app.tool
        def guarded(title: str, login: Who, amount: Annotated[Amount, Elicit(refuse)]) -> str:
            return effect("ran")

        @app.tool
        def number(login: Annotated[Login, Elicit(lambda: 5)]) -> str:
            return effect("ran")

        @app.tool
        def leaving(login: Annotated[Login, Elicit(leave)]) -> str:
            return effect("ran")

        assert (await AsyncClient(app).flow("guarded", title="tea").start()).failure == "no tea"
        assert "reference" in (await AsyncClient(app).flow("number").start()).failure
        assert "the function for its message returned a int, not a string" in caplog.text
        assert "reference" in (await AsyncClient(app).flow("leaving").start()).failure
        assert EFFECTS == []

    @pytest.mark.parametrize("error", [ToolError("no"), SystemExit(), None], ids=["error", "exit", "no text"])
    async def test_after_one_that_failed_no_other_message_function_is_called(
        self, app: MRTRServer, error: BaseException | None
    ) -> None:
        def fail() -> Any:
            if error is not None:
                raise error
            return 5

        def who() -> str:
            return effect("who?")

        @app.tool
        def ask(first: Annotated[Login, Elicit(fail)], second: Annotated[Login, Elicit(who, key="who")]) -> str:
            return effect("ran")

        assert (await AsyncClient(app).flow("ask").start()).failure
        assert EFFECTS == []


class TestNo:
    """A no ends the call, unless the parameter says what it is then."""

    @pytest.mark.parametrize(("answer", "word"), [(decline, "declined"), (cancel, "dismissed")])
    async def test_it_ends_the_call_before_anything_that_needs_the_answer(
        self, app: MRTRServer, answer: Answer, word: str
    ) -> None:
        def look_up(login: Login) -> str:
            return effect("looked up")

        @app.tool
        def order(login: Who, account: Annotated[str, Depends(look_up)], sure: Sure) -> str:
            return effect("ordered")

        flow = AsyncClient(app).flow("order")
        assert (await flow.start()).needs_input
        assert word in (await flow.send({"login": answer, "sure": yes})).failure
        assert EFFECTS == []

    @pytest.mark.parametrize("answer", [decline, cancel], ids=str)
    async def test_a_no_gives_none_or_the_default_where_the_parameter_takes_that(
        self, app: MRTRServer, answer: Answer
    ) -> None:
        nobody = Login(name="nobody")

        @app.tool
        def greet(
            one: Annotated[Login | None, Elicit("one?")],
            two: Annotated[Login, Elicit("two?")] = nobody,
            three: Who | None = None,
            page: Annotated[bool, ElicitUrl("open", "https://example.com")] = False,
        ) -> str:
            return f"{one} {two.name} {three} {page}"

        flow = AsyncClient(app).flow("greet")
        asked = (await flow.start()).questions
        assert list(asked.values()) == ["one?", "two?", "who?", "open"]
        assert (await flow.send(dict.fromkeys(asked, answer))).text == "None nobody None False"

    async def test_a_no_is_for_the_handler_that_takes_what_was_elicited(self, app: MRTRServer) -> None:
        @app.tool
        def greet(login: Annotated[Elicited[Login], Elicit("who?")]) -> str:
            return f"{login.action} {login.content}"

        for answer, text in ((decline, "decline None"), (cancel, "cancel None"), (accept(name="a"), "accept name='a'")):
            flow = AsyncClient(app).flow("greet")
            assert (await flow.start()).needs_input
            assert (await flow.answer(login=answer)).text == text


class TestKeys:
    async def test_they_are_the_models_names_then_the_parameters(self, app: MRTRServer) -> None:
        def helper(login: Annotated[Login, Elicit("helper?")]) -> str:
            return login.name

        @app.tool(confirm="go?")
        async def several(
            helped: Annotated[str, Depends(helper)],
            first: Annotated[Login, Elicit("first?")],
            second: Annotated[Login, Elicit("second?")],
            third: Annotated[Login, Elicit("third?", key="login_2")],
            confirm: Annotated[bool, Confirm("sure?")],
            ctx: Context,
        ) -> str:
            fourth = await ctx.elicit("fourth?", Login)
            return f"{helped} {first.name} {second.name} {third.name} {fourth.name}"

        flow = AsyncClient(app).flow("several")
        assert (await flow.start()).questions == {"login_4": "helper?"}
        assert (await flow.answer(login_4=accept(name="login_4"))).questions == {
            "login": "first?",
            "login_3": "second?",
            "login_2": "third?",
            "confirm_2": "sure?",
            "confirm": "go?",
        }
        answers = {"confirm": yes, "confirm_2": yes} | {
            key: accept(name=key) for key in ("login", "login_2", "login_3")
        }
        assert (await flow.send(answers)).questions == {"login_5": "fourth?"}
        assert (await flow.answer(login_5=accept(name="x"))).text == "login_4 login login_3 login_2 x"

    async def test_an_inline_ask_leaves_the_keys_of_those_that_are_still_to_come(self, app: MRTRServer) -> None:
        async def early(ctx: Context) -> str:
            return (await ctx.elicit("inline?", Login)).name

        @app.tool
        def order(
            helper: Annotated[str, Depends(early)],
            amount: Annotated[Amount, Elicit("how many?")],
            login: Annotated[Login, Elicit(lambda amount: f"who takes {amount.count}?")],
        ) -> str:
            return f"{login.name} {helper}"

        flow = AsyncClient(app).flow("order")
        assert (await flow.start()).questions == {"login_2": "inline?"}
        assert (await flow.answer(login_2=accept(name="bob"))).questions == {"amount": "how many?"}
        assert (await flow.answer(amount=accept(count=2))).questions == {"login": "who takes 2?"}
        assert (await flow.answer(login=accept(name="ann"))).text == "ann bob"

    async def test_one_alias_in_several_functions_is_one_question(self, app: MRTRServer) -> None:
        def account(login: Who) -> str:
            return f"account of {login.name}"

        @app.tool
        def show(login: Who, account: Annotated[str, Depends(account)]) -> str:
            return f"{login.name}: {account}"

        flow = AsyncClient(app).flow("show")
        assert (await flow.start()).questions == {"login": "who?"}
        assert (await flow.answer(login=accept(name="ann"))).text == "ann: account of ann"

    async def test_one_key_for_two_questions_ends_the_flow(
        self, app: MRTRServer, caplog: pytest.LogCaptureFixture
    ) -> None:
        @app.tool
        async def inline(login: Who, ctx: Context) -> str:
            return (await ctx.elicit("another?", Login, key="login")).name

        @app.tool
        def pure(login: Who) -> str | InputRequired:
            return InputRequired(login=Elicit("another?", Login))

        for target in ("inline", "pure"):
            caplog.clear()
            assert "reference" in (await AsyncClient(app).flow(target).start(login=accept(name="ann"))).failure
            assert "'login' is used for two different questions" in caplog.text


def schema_of(app: MRTRServer, tool: str) -> dict[str, Any]:
    return dict(app.registry.tools[tool].entry["inputSchema"])


class TestNeverAnArgument:
    """What the model must not invent is not in the schema, and reaches nobody where it is sent."""

    async def test_of_a_tool(self, app: MRTRServer) -> None:
        @app.tool
        def delete(
            path: Annotated[str, Header("Path")],
            sure: Annotated[bool, Confirm("sure?")],
            login: Annotated[Login, Elicit("who?")],
            stock: Annotated[int, Depends(lambda: 5)],
        ) -> str:
            return f"{path} {sure} {login.name} {stock}"

        assert list(schema_of(app, "delete")["properties"]) == ["path"]
        assert schema_of(app, "delete")["required"] == ["path"]
        assert app.registry.tools["delete"].headers[0].path == ("path",)
        planted = {"path": "x", "sure": True, "login": {"name": "eve"}, "stock": 9}
        message = modern("tools/call", {"name": "delete", "arguments": planted})
        headers = [*headers_for(message), (b"mcp-param-path", b"x")]
        reply = await exchange(app, json.dumps(message).encode(), headers)
        assert reply.result["isError"]
        assert [line for line in reply.failure.splitlines() if line.endswith("; leave it out")] == [
            f"- {name}: the server fills this in; leave it out" for name in ("sure", "login", "stock")
        ]

    async def test_sent_values_are_dropped_where_unknown_ones_are(self) -> None:
        app = MRTRServer("lenient", keys=[bytes(32)], unknown_arguments="ignore")

        @app.tool
        def delete(path: str, login: Who, sure: Sure, stock: Annotated[int, Depends(lambda: 5)]) -> str:
            return f"{path} {login.name} {stock}"

        planted = {"path": "x", "sure": True, "login": {"name": "eve"}, "stock": 9}
        flow = AsyncClient(app).flow("delete", planted)
        assert set((await flow.start()).questions) == {"login", "sure"}
        assert (await flow.answer(login=accept(name="ann"), sure=yes)).text == "x ann 5"

    async def test_of_a_prompt(self, app: MRTRServer) -> None:
        @app.prompt
        def letter(topic: str, login: Who, stock: Annotated[int, Depends(lambda: 5)]) -> str:
            return topic

        assert app.registry.prompts["letter"].entry["arguments"] == [{"name": "topic", "required": True}]

    async def test_of_a_raw_schema(self, app: MRTRServer) -> None:
        schema = {"type": "object", "properties": {"path": {"type": "string"}}}

        @app.tool(input_schema=schema)
        def by_name(
            sure: Annotated[bool, Confirm(lambda arguments: f"delete {sorted(arguments.items())}?")],
            stock: Annotated[int, Depends(lambda: 5)],
            **arguments: Any,
        ) -> str:
            return f"{sure} {stock} {arguments}"

        @app.tool(input_schema=schema)
        def at_once(
            arguments: dict[str, Any], sure: Annotated[bool, Confirm(lambda arguments: f"delete {arguments['path']}?")]
        ) -> str:
            return f"{sure} {arguments['path']}"

        @app.tool(input_schema=schema, confirm="go?")
        def with_confirm(**arguments: Any) -> str:
            return f"{arguments}"

        planted = {"path": "x", "sure": "yes", "stock": 9}
        for target, question, text in (
            ("by_name", {"sure": "delete [('path', 'x')]?"}, "True 5 {'path': 'x'}"),
            ("at_once", {"sure": "delete x?"}, "True x"),
            ("with_confirm", {"confirm": "go?"}, "{'path': 'x', 'sure': 'yes', 'stock': 9}"),
        ):
            flow = AsyncClient(app).flow(target, planted)
            assert (await flow.start()).questions == question
            assert (await flow.send(dict.fromkeys(question, yes))).text == text
            assert schema_of(app, target) == schema

    def test_a_raw_schema_that_has_one_is_refused(self, app: MRTRServer) -> None:
        with pytest.raises(SetupError, match="'sure' is in input_schema= and is also a parameter"):

            @app.tool(input_schema={"type": "object", "properties": {"sure": {}}})
            def delete(sure: Sure, **arguments: Any) -> None: ...


class TestDependencies:
    async def test_sync_ones_run_in_a_thread_and_async_ones_on_the_loop(self, app: MRTRServer) -> None:
        loop = threading.get_ident()

        def in_thread(title: str) -> bool:
            return threading.get_ident() != loop

        async def on_loop(title: str) -> bool:
            return threading.get_ident() == loop

        @app.tool
        def show(title: str, one: Annotated[bool, Depends(in_thread)], other: Annotated[bool, Depends(on_loop)]) -> str:
            return f"{one} {other}"

        assert (await AsyncClient(app).flow("show", title="tea").start()).text == "True True"

    async def test_they_may_have_dependencies_asks_and_defaults_of_their_own(self, app: MRTRServer) -> None:
        def region(login: Annotated[Login, Elicit("whose region?")], zone: str = "eu") -> str:
            return f"{zone}/{login.name}"

        async def stock(
            title: str,
            region: Annotated[str, Depends(region)],
            amount: Annotated[Amount, Elicit(lambda title, region: f"how many {title} in {region}?")],
            depth: int = 3,
        ) -> Stock:
            return Stock(left=amount.count + depth)

        @app.tool
        def check(title: str, stock: Annotated[Stock, Depends(stock)], edition: int = 1) -> str:
            return f"{title}: {stock.left}"

        flow = AsyncClient(app).flow("check", title="tea")
        assert (await flow.start()).questions == {"login": "whose region?"}
        assert (await flow.answer(login=accept(name="ann"))).questions == {"amount": "how many tea in eu/ann?"}
        assert (await flow.answer(amount=accept(count=2))).text == "tea: 5"

    async def test_they_take_arguments_and_declared_parameters_by_name(self, app: MRTRServer) -> None:
        def total(amount: Amount, price: int, edition: int) -> int:
            return amount.count * price + edition

        @app.tool
        def buy(
            amount: Annotated[Amount, Elicit("how many?")],
            total: Annotated[int, Depends(total)],
            price: Annotated[int, Depends(lambda: 7)],
            edition: int = 100,
        ) -> int:
            return total

        flow = AsyncClient(app).flow("buy")
        assert (await flow.start()).needs_input
        assert (await flow.answer(amount=accept(count=2))).text == "114"

    async def test_one_function_runs_once_a_round_whoever_needs_it(self, app: MRTRServer) -> None:
        def rate() -> float:
            effect("rate")
            return 2.0

        def price(rate: Annotated[float, Depends(rate)]) -> float:
            return 3 * rate

        async def fee(rate: Annotated[float, Depends(rate)]) -> float:
            return rate

        @app.tool
        def buy(
            price: Annotated[float, Depends(price)],
            fee: Annotated[float, Depends(fee)],
            rate: Annotated[float, Depends(rate)],
            sure: Annotated[bool, Confirm(lambda rate, price: f"{price} at {rate}?")],
        ) -> str:
            return f"{price} {fee} {rate}"

        flow = AsyncClient(app).flow("buy")
        assert (await flow.start()).questions == {"sure": "6.0 at 2.0?"}
        assert EFFECTS == ["rate"]
        assert (await flow.answer(sure=yes)).text == "6.0 2.0 2.0"
        assert EFFECTS == ["rate", "rate"], "it runs again in every round: effects belong in steps"

    async def test_other_errors_are_logged_under_a_reference(
        self, app: MRTRServer, caplog: pytest.LogCaptureFixture
    ) -> None:
        def crash() -> int:
            raise RuntimeError("swordfish")

        def leave() -> int:
            sys.exit()

        async def cancel() -> int:
            raise asyncio.CancelledError

        async def asking() -> Any:
            return InputRequired(login=Elicit("who?", Login))

        for number, function in enumerate((crash, leave, cancel, asking)):

            def tool(value: Any) -> str:
                return effect("ran")

            tool.__annotations__["value"] = Annotated[int, Depends(function)]
            app.tool(name=f"tool{number}")(tool)
            said = (await asyncio.wait_for(AsyncClient(app).flow(f"tool{number}").start(), TIMEOUT)).failure
            assert "reference" in said
            assert "swordfish" not in said
        assert "returned InputRequired, which only a handler may return" in caplog.text
        assert EFFECTS == []

    async def test_one_that_took_the_wrong_turn_is_told_so(
        self, app: MRTRServer, caplog: pytest.LogCaptureFixture
    ) -> None:
        def plain(ctx: Context) -> str:
            ctx.confirm("sure?")  # type: ignore[unused-coroutine]
            return "on"

        @app.tool
        def go(plain: Annotated[str, Depends(plain)]) -> str:
            return effect("ran")

        assert "reference" in (await AsyncClient(app).flow("go").start()).failure
        assert "was called in a plain `def`" in caplog.text
        assert EFFECTS == []

    async def test_one_that_has_ended_the_flow_lets_the_handler_not_run(self, app: MRTRServer) -> None:
        async def swallows(ctx: Context) -> str:
            async def outer() -> str:
                try:
                    return await ctx.step(effect, "inner")
                except Exception:
                    return "as if nothing had been"

            return await ctx.step(outer)

        @app.tool
        def use(it: Annotated[str, Depends(swallows)]) -> str:
            return effect("ran")

        assert "reference" in (await AsyncClient(app).flow("use").start()).failure
        assert EFFECTS == []

    async def test_one_that_has_ended_the_flow_lets_the_next_one_not_run(self, app: MRTRServer) -> None:
        def swallows(ctx: Context) -> str:
            try:
                ctx.confirm("sure?")  # type: ignore[unused-coroutine]
            except BaseException:
                effect("swallowed")
            return "as if nothing had been"

        def following() -> str:
            return effect("ran")

        @app.tool
        def use(it: Annotated[str, Depends(swallows)], then: Annotated[str, Depends(following)]) -> str:
            return effect("ran")

        assert "reference" in (await AsyncClient(app).flow("use").start()).failure
        assert EFFECTS == ["swallowed"]

    async def test_classes_and_objects_and_partials_are_functions_too(self, app: MRTRServer) -> None:
        class Shop:
            def __init__(self, title: str) -> None:
                self.title = title

        class Price:
            __hash__ = None  # type: ignore[assignment]

            def __init__(self, factor: int) -> None:
                self.factor = factor

            async def __call__(self, title: str) -> int:
                return len(title) * self.factor

        def tax(title: str, rate: int) -> int:
            return rate

        @app.tool
        def show(
            title: str,
            shop: Annotated[Shop, Depends(Shop)],
            price: Annotated[int, Depends(Price(1))],
            list_price: Annotated[int, Depends(Price(2))],
            tax: Annotated[int, Depends(partial(tax, rate=5))],
            model: Annotated[Stock, Depends(partial(Stock, left=1))],
        ) -> str:
            return f"{shop.title} {price} {list_price} {tax} {model.left}"

        assert (await AsyncClient(app).flow("show", title="tea").start()).text == "tea 3 6 5 1"

    async def test_what_they_note_reaches_the_client(self, app: MRTRServer) -> None:
        async def fetch(ctx: Context) -> str:
            await ctx.progress(1, 2)
            return ctx.client.name + str(ctx.round)

        def plain(ctx: Context) -> str:
            ctx.log("on it")
            return ctx.flow

        @app.tool
        def show(fetched: Annotated[str, Depends(fetch)], flow: Annotated[str, Depends(plain)], ctx: Context) -> str:
            return f"{fetched} {flow == ctx.flow}"

        assert (await AsyncClient(app).flow("show").start()).text == "mrtr_server.testing1 True"

    async def test_a_client_that_leaves_ends_them(self, app: MRTRServer) -> None:
        began = asyncio.Event()

        async def long() -> None:
            began.set()
            try:
                await asyncio.sleep(600)
            finally:
                effect("ended")

        @app.tool
        def wait(long: Annotated[None, Depends(long)]) -> str:
            return effect("ran")

        message = modern("tools/call", {"name": "wait", "arguments": {}})
        exchange = Exchange(app, scope_of(headers_for(message))).body(json.dumps(message).encode()).start()
        async with asyncio.timeout(TIMEOUT):
            await began.wait()
            exchange.disconnect()
            await exchange.end()
        assert EFFECTS == ["ended"]


def number() -> int:
    EFFECTS.append("number")
    return len(EFFECTS)


class TestInlineAsksAndStepsOfDependencies:
    async def test_a_step_runs_once_in_the_flow(self, app: MRTRServer) -> None:
        async def reserve(title: str, ctx: Context) -> str:
            return await ctx.step(effect, f"reserved {title}")

        @app.tool(confirm=lambda reserved: f"{reserved}: buy?")
        def buy(title: str, reserved: Annotated[str, Depends(reserve)], login: Who) -> str:
            return f"{reserved} for {login.name}"

        flow = AsyncClient(app).flow("buy", title="tea")
        # A tool with confirm= is single-use: no step before there is a state that a repetition can be known by.
        assert is_state_only(await flow.start())
        assert EFFECTS == []
        assert (await flow.send()).questions == {"login": "who?", "confirm": "reserved tea: buy?"}
        assert (await flow.answer(login=accept(name="ann"), confirm=yes)).text == "reserved tea for ann"
        assert EFFECTS == ["reserved tea"]

    async def test_branches_within_a_dependency_replay_the_same(self, app: MRTRServer) -> None:
        tempo = {"a": 0.03, "b": 0.0, "c": 0.0}

        async def slowly(name: str) -> str:
            await asyncio.sleep(tempo.get(name, 0.0))
            return effect(name)

        async def work(name: str, ctx: Context) -> str:
            done = await ctx.step(slowly, name)
            await ctx.confirm(f"{name}?", key=name)
            return done

        async def one(ctx: Context) -> list[str]:
            return list(await asyncio.gather(work("a", ctx), work("b", ctx)))

        async def other(ctx: Context) -> list[str]:
            first = await ctx.step(slowly, "first")
            again = await asyncio.gather(work("c", ctx))
            return [first, *again]

        @app.tool
        async def run(one: Annotated[list[str], Depends(one)], other: Annotated[list[str], Depends(other)]) -> str:
            return " ".join([*one, *other])

        flow = AsyncClient(app).flow("run")
        assert (await flow.start()).questions == {"a": "a?", "b": "b?"}
        assert (await flow.answer(b=yes)).questions == {"a": "a?"}
        assert (await flow.answer(a=yes)).questions == {"c": "c?"}
        assert (await flow.answer(c=yes)).text == "a b first c"
        assert sorted(EFFECTS) == ["a", "b", "c", "first"]

    async def test_the_same_step_in_two_dependencies_is_two_whichever_runs_first(self) -> None:
        async def work(ctx: Context) -> int:
            return await ctx.step(number)

        async def one(ctx: Context) -> str:
            return f"one {await ctx.step(number)} {await asyncio.gather(work(ctx))}"

        async def other(ctx: Context) -> str:
            return f"other {await ctx.step(number)} {await asyncio.gather(work(ctx))}"

        older, newer = (MRTRServer("versions", keys=[bytes(32)]) for _ in range(2))

        @older.tool(name="run")
        async def older_run(
            a: Annotated[str, Depends(one)], b: Annotated[str, Depends(other)], sure: Sure, ctx: Context
        ) -> str:
            raise AssertionError

        @newer.tool(name="run")
        async def newer_run(
            b: Annotated[str, Depends(other)], a: Annotated[str, Depends(one)], sure: Sure, ctx: Context
        ) -> str:
            return f"{a} {b} handler {await ctx.step(number)}"

        flow = AsyncClient(older, newer).flow("run")
        assert (await flow.start()).needs_input
        assert (await flow.answer(sure=yes)).text == "one 1 [2] other 3 [4] handler 5"

    async def test_a_step_that_runs_beside_an_error_finishes(self, app: MRTRServer) -> None:
        began = asyncio.Event()

        async def slow_effect() -> str:
            began.set()
            await asyncio.sleep(0.05)
            return effect("finished")

        async def failing(ctx: Context) -> None:
            async def fail() -> None:
                await began.wait()
                raise ToolError("closed")

            await asyncio.gather(ctx.step(slow_effect), fail())

        @app.tool
        async def run(one: Annotated[None, Depends(failing)]) -> str:
            return "ran"

        assert (await asyncio.wait_for(AsyncClient(app).flow("run").start(), TIMEOUT)).failure == "closed"
        assert EFFECTS == ["finished"]

    @pytest.mark.parametrize("answer", [no, decline, cancel], ids=str)
    async def test_a_no_within_a_dependency_can_not_be_swallowed(self, app: MRTRServer, answer: Answer) -> None:
        async def guard(ctx: Context) -> bool:
            try:
                async with asyncio.TaskGroup() as group:
                    group.create_task(ctx.confirm("sure?"))
                    group.create_task(asyncio.sleep(0))
            except* Exception:
                effect("swallowed")
            return True

        @app.tool
        def run(sure: Annotated[bool, Depends(guard)], login: Who) -> str:
            return effect("ran")

        flow = AsyncClient(app).flow("run")
        assert (await flow.start()).questions == {"confirm": "sure?"}
        assert (await flow.answer(confirm=answer)).failure
        assert EFFECTS == []

    async def test_a_late_parking_task_of_a_strange_context_does_not_hang_the_round(self, app: MRTRServer) -> None:
        async def odd(ctx: Context) -> str:
            task = asyncio.create_task(ctx.elicit("who?", Login), context=contextvars.Context())
            return (await task).name

        @app.tool
        def run(name: Annotated[str, Depends(odd)]) -> str:
            return name

        flow = AsyncClient(app).flow("run")
        assert (await asyncio.wait_for(flow.start(), TIMEOUT)).questions == {"login": "who?"}
        assert (await flow.answer(login=accept(name="ann"))).text == "ann"


class TestMixedStyles:
    async def test_declared_inline_and_pure_in_one_tool(self, app: MRTRServer) -> None:
        @app.tool(confirm=lambda login: f"go, {login.name}?")
        async def mixed(login: Who, inputs: Inputs, state: State[int], ctx: Context) -> str | InputRequired:
            amount = await ctx.elicit("how many?", Amount)
            name = inputs.get("name", Login)
            if name is None:
                return InputRequired(name=Elicit("which name?", Login), state=amount.count)
            return f"{login.name} {amount.count} {name.name} {state.value}"

        flow = AsyncClient(app).flow("mixed")
        assert (await flow.start()).questions == {"login": "who?"}
        assert (await flow.answer(login=accept(name="ann"))).questions == {"confirm": "go, ann?"}
        assert (await flow.answer(confirm=yes)).questions == {"amount": "how many?"}
        assert (await flow.answer(amount=accept(count=2))).questions == {"name": "which name?"}
        assert (await flow.answer(name=accept(name="x"))).text == "ann 2 x 2"

    async def test_a_handler_may_ask_again_for_what_was_declared(self, app: MRTRServer) -> None:
        @app.tool
        def guess(login: Who) -> str | InputRequired:
            return "found" if login.name == "ann" else InputRequired(login=Elicit("who?", Login))

        flow = AsyncClient(app).flow("guess")
        assert (await flow.start()).questions == {"login": "who?"}
        assert (await flow.answer(login=accept(name="bob"))).questions == {"login": "who?"}
        assert (await flow.answer(login=accept(name="ann"))).text == "found"

    async def test_functions_for_messages_are_for_parameters(
        self, app: MRTRServer, caplog: pytest.LogCaptureFixture
    ) -> None:
        @app.tool
        async def inline(ctx: Context) -> str:
            await ctx.ask(Confirm(lambda: "sure?"))
            return effect("ran")

        @app.tool
        def pure() -> str | InputRequired:
            return InputRequired(login=Elicit("who?"))

        assert "reference" in (await AsyncClient(app).flow("inline").start()).failure
        assert "A message can be a function only in the annotation of a parameter" in caplog.text
        assert "reference" in (await AsyncClient(app).flow("pure").start()).failure
        assert "Elicit(message) without a model is for the annotation of a parameter" in caplog.text
        assert EFFECTS == []


class TestDirectCalls:
    def test_the_function_stays_as_it_was(self, app: MRTRServer) -> None:
        @app.tool(confirm="go?")
        def set_alias(
            alias: str,
            login: Annotated[Login, Elicit("who?")],
            sure: Annotated[bool, Confirm("sure?")],
            stock: Annotated[Stock, Depends(lambda: Stock(left=1))],
        ) -> str:
            return f"{alias} {login.name} {stock.left}"

        assert set_alias("x", login=Login(name="o"), sure=True, stock=Stock(left=2)) == "x o 2"


def circle_a(b: "Annotated[int, Depends(circle_b)]") -> int:
    return b


def circle_b(a: Annotated[int, Depends(circle_a)]) -> int:
    return a


def itself(value: int) -> int:
    return value


async def _coroutine() -> str:
    return "?"


coroutine: Any = _coroutine


class Wrapping(BaseModel):
    login: Annotated[Login, Elicit("who?")]


BAD: list[tuple[dict[str, Any], str]] = [
    # What does not go with its ask.
    ({"it": Annotated[dict[str, int], Elicit("?")]}, "bad: parameter 'it': dict.* can't be a form: .* nested object"),
    ({"it": Annotated[Login | str, Elicit("?")]}, "can't be a form"),
    (
        {"it": Annotated[Stock, Elicit("?", Login)]},
        "'it' is of type Stock, but its Elicit asks for Login; leave the model out",
    ),
    ({"it": Annotated[str, Confirm("?")]}, r"'it' is of type str; write Annotated\[bool, Confirm\(...\)\]"),
    ({"it": Annotated[Context, Confirm("?")]}, "'it' is of type Context"),
    ({"it": Annotated[str, ElicitUrl("?", "https://x")]}, r"write Annotated\[bool, ElicitUrl\(...\)\]"),
    (
        {"it": Annotated[int, Sample("?")]},
        r"write Annotated\[Sampled, Sample\(...\)\] or Annotated\[str, Sample\(...\)\]",
    ),
    ({"it": Annotated[list[str], ListRoots()]}, r"is of type list\[str\]; write Annotated\[list\[Root\], ListRoots"),
    (
        {"it": Annotated[bool | None, Confirm("?")]},
        "continues only after a yes; remove its default, or None from its type",
    ),
    ({"it": Annotated[bool, Confirm("?")] | None}, "continues only after a yes"),
    ({"it": (Annotated[bool, Confirm("?")], True)}, "continues only after a yes"),
    ({"it": Annotated[Elicited[Login] | None, Elicit("?")]}, "Elicited has no other value to fall back to"),
    ({"it": (Annotated[Sampled, Sample("?")], None)}, "Sample has no other value to fall back to"),
    ({"it": (Annotated[list[Root], ListRoots()], [])}, "ListRoots has no other value to fall back to"),
    # Marks that would not be seen.
    ({"it": (Login, Elicit("?"))}, r"has Elicit as its default; write it: Annotated\[..., Elicit\(...\)\]"),
    ({"it": (int, Depends(itself))}, "has Depends as its default"),
    ({"it": Annotated[bool, Confirm]}, r"is marked with the class Confirm; write Confirm\(...\)"),
    ({"it": Annotated[int, Depends]}, "is marked with the class Depends"),
    ({"it": list[Annotated[Login, Elicit("?")]]}, "has Elicit nested in its type"),
    ({"it": Annotated[Login, Elicit("?")] | str}, "has Elicit nested in its type"),
    ({"it": dict[str, list[Annotated[int, Depends(itself)]]]}, "has Depends nested in its type"),
    ({"it": Wrapping}, "has Elicit nested in its type"),
    ({"it": Annotated[Login, Elicit("?"), Confirm("?")]}, "has two marks, Elicit and Confirm"),
    # Names.
    (
        {"it": Annotated[Login, Elicit(lambda titel: titel)], "title": str},
        "'it': the function for its message needs 'titel', which is neither .*; known are: 'title', 'it'",
    ),
    ({"it": Annotated[bool, ElicitUrl("?", lambda id: id)]}, "the function for its url needs 'id'"),
    ({"it": Annotated[str, Sample(lambda id: id)]}, "the function for its messages needs 'id'"),
    ({"it": Annotated[int, Depends(itself)]}, r"'it': itself\(\) needs 'value', which is neither .*; known are: 'it'"),
    ({"it": Annotated[Login, Elicit(lambda ctx: "?")], "ctx": Context}, "needs 'ctx'"),
    ({"it": Annotated[Login, Elicit(lambda *all: "?")]}, r"takes '\*all', but its parameters are filled by name"),
    ({"it": Annotated[Login, Elicit("{}?".format)]}, "filled by name|has no signature"),
    (
        {"it": Annotated[int, Depends(lambda title, /: 1)], "title": str},
        "'title', but its parameters are filled by name",
    ),
    ({"it": Annotated[Login, Elicit(coroutine)]}, "the function for its message is async; make it a plain function"),
    # Circles.
    ({"it": Annotated[Login, Elicit(lambda it: "?")]}, "'it' depends on itself: it -> it"),
    (
        {"it": Annotated[Login, Elicit(lambda other: "?")], "other": Annotated[Stock, Elicit(lambda it: "?")]},
        "'it' depends on itself: it -> other -> it",
    ),
    ({"value": Annotated[int, Depends(itself)]}, r"depends on itself: value \(itself\) -> value \(itself\)"),
    (
        {"it": Annotated[int, Depends(circle_a)]},
        r"depends on itself: it \(circle_a\) -> b \(circle_b\) -> it \(circle_a\)",
    ),
    (
        {"it": Annotated[Login, Elicit(lambda value: "?")], "value": Annotated[int, Depends(lambda it: 1)]},
        r"depends on itself: it -> value \(<lambda>\) -> it",
    ),
    # Messages that a person would read as they are.
    (
        {"it": Annotated[Login, Elicit("who takes {title}?")], "title": str},
        "with the braces of {title}; pass a function: lambda title",
    ),
    (
        {"it": Annotated[bool, Confirm("{other.count}?")], "other": Annotated[Amount, Elicit("?")]},
        "with the braces of",
    ),
    ({"it": Annotated[bool, ElicitUrl("?", "https://x/{id}")], "id": str}, "with the braces of"),
    ({"it": Annotated[str, Sample(["sum up {text!r}"])], "text": str}, "with the braces of"),
    # Keys.
    (
        {"it": Annotated[Login, Elicit("?", key="k")], "other": Annotated[bool, Confirm("?", key="k")]},
        "bad: bad: parameter 'it' and bad: parameter 'other' both have the key 'k'",
    ),
    # Dependencies.
    ({"it": Annotated[int, Depends(type)]}, "no signature that can be read|filled by name"),
]


class TestBadDeclarations:
    """They are refused when the decorator runs, with the tool, the parameter and the name."""

    @pytest.mark.parametrize(("parameters", "message"), BAD, ids=[message for _, message in BAD])
    def test_of_parameters(self, app: MRTRServer, parameters: dict[str, Any], message: str) -> None:
        with pytest.raises(SetupError, match=message) as caught:
            app.tool(name="bad")(with_parameters(parameters))
        assert str(caught.value).startswith("bad: ")

    @pytest.mark.parametrize("kind", [Inputs, State[int]])
    def test_of_what_only_a_handler_takes(self, app: MRTRServer, kind: Any) -> None:
        def dependency(it: Any) -> None: ...

        dependency.__annotations__["it"] = kind
        with pytest.raises(SetupError, match=r"dependency\(\) takes the (inputs|state), which only a handler can take"):
            app.tool(name="bad")(with_parameters({"it": Annotated[None, Depends(dependency)]}))

    def test_of_parameters_that_no_name_fills(self, app: MRTRServer) -> None:
        def positional(login: Who, /) -> None: ...
        def rest(**login: Who) -> None: ...
        def several(*login: Who) -> None: ...

        for function in (positional, rest, several):
            with pytest.raises(SetupError, match="parameter 'login' can't be filled by name"):
                app.tool(function)

    def test_of_two_contexts(self, app: MRTRServer) -> None:
        def dependency(a: Context, b: Context) -> None: ...

        with pytest.raises(SetupError, match="'b' can't take the context"):
            app.tool(name="bad")(with_parameters({"it": Annotated[None, Depends(dependency)]}))

    def test_of_names_that_can_not_be_resolved(self, app: MRTRServer) -> None:
        def dependency(it: "Nowhere") -> None: ...  # type: ignore[name-defined]  # noqa: F821

        with pytest.raises(SetupError, match=r"dependency\(\): the annotation 'Nowhere' can't be resolved"):
            app.tool(name="bad")(with_parameters({"it": Annotated[None, Depends(dependency)]}))

    @pytest.mark.parametrize("thing", [5, "x", None])
    def test_of_what_is_no_function(self, thing: Any) -> None:
        with pytest.raises(SetupError, match=r"Depends\(\.\.\.\) takes a function, not"):
            Depends(thing)

    @pytest.mark.parametrize("how", ["Commit", "roll back", True, None])
    def test_of_ways_to_leave_a_dependency(self, how: Any) -> None:
        with pytest.raises(SetupError, match=r'on_ask is "rollback" or "commit"'):
            Depends(number, on_ask=how)

    def test_of_a_way_to_leave_what_is_never_left(self, app: MRTRServer) -> None:
        @asynccontextmanager
        async def lifespan(app: MRTRServer) -> AsyncIterator[None]:
            yield

        lasting = MRTRServer("lasting", lifespan=lifespan)
        for server, function in ((app, number), (lasting, lifespan)):
            parameters = {"it": Annotated[Any, Depends(function, on_ask="commit")]}
            with pytest.raises(
                SetupError, match=f"bad: parameter 'it' has .*, but {function.__name__} is no generator"
            ):
                server.tool(name="bad")(with_parameters(parameters))

    def test_of_two_ways_to_leave_one_value(self, app: MRTRServer) -> None:
        def session() -> Iterator[Stock]:
            yield Stock(left=1)

        def shop(session: Annotated[Stock, Depends(session)]) -> int:
            return session.left

        first, other = Annotated[int, Depends(shop)], Annotated[Stock, Depends(session, on_ask="commit")]
        for parameters in ({"shop": first, "it": other}, {"it": other, "shop": first}):
            with pytest.raises(SetupError, match=r"Depends\(session\) with different on_ask="):
                app.tool(name="bad")(with_parameters(parameters))

    @pytest.mark.parametrize("confirm", ["", True, False, 5, Confirm(""), Elicit("?", str)])
    def test_of_confirmations(self, app: MRTRServer, confirm: Any) -> None:
        with pytest.raises(SetupError, match="bad: confirm= takes the text that the person reads"):
            app.tool(name="bad", confirm=confirm)(with_parameters({}))

    def test_of_the_names_in_confirmations(self, app: MRTRServer) -> None:
        with pytest.raises(SetupError, match="confirm=: the function for its message needs 'titel'"):
            app.tool(name="bad", confirm=lambda titel: titel)(with_parameters({"title": str}))
        with pytest.raises(SetupError, match=r"confirm=: the person would read 'delete {title}\?', with the braces"):
            app.tool(name="bad", confirm="delete {title}?")(with_parameters({"title": str}))

    def test_of_completions(self, app: MRTRServer) -> None:
        with pytest.raises(SetupError, match=r"a completion takes \(value\), or"):

            @app.completion("topic", prompt="letter")
            def topics(value: str, login: Who) -> list[str]:
                return []

    def test_a_text_with_other_braces_is_fine(self, app: MRTRServer) -> None:
        @app.tool
        def show(title: str, login: Annotated[Login, Elicit("who has {} or {'a': 1} or { year }?")]) -> None: ...

    def test_a_module_level_dependency_has_names_of_its_own(self, app: MRTRServer) -> None:
        Login = int

        @app.tool
        def show(account: Annotated[str, Depends(account_of)]) -> str:
            return account

        assert Login is int
        assert app.registry.tools["show"].handler.declared is not None


def account_of(login: "Annotated[Login, Elicit('who?')]") -> str:
    return login.name


def with_parameters(parameters: dict[str, Any]) -> Callable[..., Any]:
    """Make a function with these parameters: by name an annotation, or an annotation and a default."""
    names = [f"{name}=defaults[{name!r}]" if isinstance(given, tuple) else name for name, given in parameters.items()]
    defaults = {name: given[1] for name, given in parameters.items() if isinstance(given, tuple)}
    namespace: dict[str, Any] = {"defaults": defaults}
    exec(f"def function(*, {', '.join(names)}): ..." if names else "def function(): ...", namespace)  # noqa: S102
    function: Callable[..., Any] = namespace["function"]
    function.__annotations__ = {
        name: given[0] if isinstance(given, tuple) else given for name, given in parameters.items()
    }
    return function
