"""Arguments that nobody takes: told to the model on a new call, dropped in a flow that has begun."""

import json
import time
from inspect import Parameter
from pathlib import Path
from typing import Annotated, Any

import pytest
from pydantic import AliasChoices, Field

from mrtr_server import Confirm, Context, Depends, Elicit, Inputs, MRTRServer, SetupError, State
from mrtr_server.schema.arguments import MOST_NAMED, ArgumentNames, SignatureArguments
from mrtr_server.testing import Client, yes

from ..conftest import Serve
from ..support.models import Login
from ..support.wire import JSON, Reply, Wire, accept, request


def stock() -> int:
    return 3


def make(**options: Any) -> MRTRServer:
    app = MRTRServer("strict", keys=[bytes(32)], **options)

    @app.tool
    def plain(city: str, days: int = 3) -> str:
        return f"{city} for {days} days"

    @app.tool
    async def asking(
        city: str,
        login: Annotated[Login, Elicit("Who are you?")],
        left: Annotated[int, Depends(stock)],
        ctx: Context,
        kept: State[int],
        given: Inputs,
    ) -> str:
        return f"{city}, {login.name}, {left} left, {type(ctx).__name__}, {kept.value}"

    @app.tool
    def whatever(city: str, ctx: Context, login: Annotated[Login, Elicit("Who?")], **more: Any) -> str:
        return json.dumps({"city": city, "name": login.name, "ctx": type(ctx).__name__, "more": more})

    @app.tool
    def nothing() -> str:
        return "nothing"

    @app.prompt
    def summary(topic: str, tone: str = "plain") -> str:
        return f"{topic}, {tone}"

    @app.tool(task="optional")
    async def long(city: str, ctx: Context) -> str:
        await ctx.confirm("Go on?")
        return city

    return app


@pytest.fixture(scope="module")
def app() -> MRTRServer:
    return make()


@pytest.fixture
def wire(app: MRTRServer, serve: Serve) -> Wire:
    return serve(app)


def schema(wire: Wire, tool: str) -> JSON:
    listed = {each["name"]: each for each in wire.modern("tools/list").result["tools"]}
    found: JSON = listed[tool]["inputSchema"]
    return found


def is_told(reply: Reply) -> str:
    assert reply.status == 200
    return reply.failure


class TestANewCall:
    def test_is_told_what_was_unknown_and_the_nearest_argument(self, wire: Wire) -> None:
        reply = wire.call("plain", {"city": "Oslo", "dayz": 5})
        assert is_told(reply) == ("The arguments of plain do not fit:\n- dayz: unknown argument; did you mean 'days'?")

    def test_is_told_it_together_with_what_is_wrong_otherwise(self, wire: Wire) -> None:
        text = is_told(wire.call("plain", {"citi": "Oslo", "days": "many"}))
        assert "- citi: unknown argument; did you mean 'city'?" in text
        assert "- city: Field required" in text
        assert "- days: Input should be a valid integer" in text

    def test_is_told_what_there_is_where_nothing_is_near(self, wire: Wire) -> None:
        assert "- x: unknown argument; known arguments: city, days" in is_told(
            wire.call("plain", {"city": "Oslo", "x": 1})
        )
        assert "- x: unknown argument; known arguments: none" in is_told(wire.call("nothing", {"x": 1}))

    @pytest.mark.parametrize("name", ["login", "left", "ctx", "kept", "given"])
    def test_is_told_of_parameters_that_are_not_for_it_to_fill(self, wire: Wire, name: str) -> None:
        text = is_told(wire.call("asking", {"city": "Oslo", name: {"name": "forged"}}))
        assert f"- {name}: the server fills this in; leave it out" in text
        assert "forged" not in text

    def test_is_told_before_anything_is_asked_or_begun(self, wire: Wire) -> None:
        assert is_told(wire.call("asking", {"city": "Oslo", "x": 1}))
        able: JSON = {"elicitation": {}, "extensions": {"io.modelcontextprotocol/tasks": {}}}
        assert is_told(wire.call("long", {"city": "Oslo", "x": 1}, capabilities=able))
        assert wire.call("long", {"city": "Oslo"}, capabilities=able).result["resultType"] == "task"

    def test_is_told_in_the_form_of_the_drafts_too(self, wire: Wire) -> None:
        told = wire.draft(request("tools/call", {"name": "plain", "arguments": {"city": "Oslo", "dayz": 5}}))
        assert "did you mean 'days'?" in is_told(told)

    def test_takes_all_names_that_pydantic_takes(self, serve: Serve) -> None:
        app = MRTRServer("aliases", keys=[bytes(32)])

        @app.tool
        def go(
            city: Annotated[str, Field(alias="the-city")],
            unit: Annotated[str, Field(validation_alias=AliasChoices("unit", "units"))] = "km",
        ) -> str:
            return f"{city} {unit}"

        wire = serve(app)
        assert wire.call("go", {"the-city": "Oslo", "units": "mi"}).text == "Oslo mi"
        assert "did you mean 'the-city'?" in is_told(wire.call("go", {"city": "Oslo"}))

    def test_of_a_prompt_is_an_error_with_the_same_words(self, wire: Wire) -> None:
        reply = wire.modern("prompts/get", {"name": "summary", "arguments": {"topic": "cats", "tne": "formal"}})
        assert (reply.status, reply.code) == (400, -32602)
        assert "- tne: unknown argument; did you mean 'tone'?" in reply.error.message
        assert reply.error.data == {"name": "summary"}


class TestHostileNames:
    def test_are_few_short_and_on_one_line_each(self, wire: Wire) -> None:
        names = ["n" * 5_000, "two\nlines\x1b[2J", "\u202eright to left", *(f"name{n}" for n in range(40_000))]
        reply = wire.call("plain", {"city": "Oslo", **dict.fromkeys(names, "secret value")})
        text = is_told(reply)
        assert len(text) < 8_000
        assert text.count("\n") == MOST_NAMED
        assert f"(and {len(names) - MOST_NAMED} more)" in text
        assert "\x1b" not in text
        assert "\u202e" not in text
        assert "secret" not in text

    def test_cost_little(self) -> None:
        parameters = [Parameter(f"parameter_{n}", Parameter.KEYWORD_ONLY, annotation=int) for n in range(50)]
        names = ArgumentNames(SignatureArguments("wide", {each.name: each for each in parameters}), ())
        raw = {f"parameter_{n}_of_quite_a_long_name_that_fits_nowhere"[:64]: 1 for n in range(100_000)}
        start = time.process_time()
        assert len(names.unknown(raw)) == MOST_NAMED
        assert time.process_time() - start < 0.5


class TestAFlowThatHasBegun:
    """A newer version may have dropped a parameter since."""

    def test_goes_on_without_what_is_not_known_any_more(self) -> None:
        old, new = (MRTRServer("rolling", keys=[bytes(32)]) for _ in range(2))

        @old.tool(name="go")
        async def go_then(city: str, unit: str, ctx: Context) -> str:
            await ctx.confirm("Go?")
            return f"{city} {unit}"

        @new.tool(name="go")
        async def go_now(city: str, ctx: Context) -> str:
            await ctx.confirm("Go?")
            return city

        flow = Client(old, new).flow("go", city="Oslo", unit="km")
        flow.start()
        assert flow.answer({"confirm": yes}).text == "Oslo"

    def test_goes_on_as_a_task(self, tmp_path: Path) -> None:
        url = f"sqlite:///{tmp_path}/tasks.db"
        old = MRTRServer("rolling", keys=[bytes(32)], store=url, run_tasks=False)
        new = MRTRServer("rolling", keys=[bytes(32)], store=url)

        @old.tool(name="go", task="required")
        async def go_then(city: str, unit: str) -> str:
            return f"{city} {unit}"

        @new.tool(name="go", task="required")
        async def go_now(city: str) -> str:
            return city

        with Client(old, new, tasks=True) as client:
            flow = client.flow("go", city="Oslo", unit="km")
            assert flow.start().task.status == "working"
            assert flow.wait().text == "Oslo"

    def test_still_binds_its_state_to_all_that_was_sent(self, serve: Serve) -> None:
        wire = serve(make(unknown_arguments="ignore"))
        state = wire.call("asking", {"city": "Oslo", "x": 1}).state
        answers = {"login": accept(name="octocat")}
        assert wire.call("asking", {"city": "Oslo", "x": 2}, answers=answers, state=state).code == -32602
        assert wire.call("asking", {"city": "Oslo", "x": 1}, answers=answers, state=state).text.startswith("Oslo")


class TestTheSchema:
    def test_says_that_there_are_no_others(self, wire: Wire) -> None:
        for tool in ("plain", "asking", "nothing"):
            assert schema(wire, tool)["additionalProperties"] is False

    def test_says_that_there_may_be_others_where_the_function_takes_them(self, wire: Wire) -> None:
        described = schema(wire, "whatever")
        assert described["additionalProperties"] is True
        assert list(described["properties"]) == ["city"]

    def test_of_an_author_is_served_as_it_is_and_decides(self, serve: Serve) -> None:
        app = MRTRServer("raw", keys=[bytes(32)])
        given = {"type": "object", "properties": {"city": {"type": "string"}}}

        @app.tool(input_schema=given)
        def raw(arguments: dict[str, Any]) -> str:
            return json.dumps(arguments)

        wire = serve(app)
        assert schema(wire, "raw") == given
        assert json.loads(wire.call("raw", {"city": "Oslo", "x": 1}).text) == {"city": "Oslo", "x": 1}


class TestAFunctionThatTakesWhateverComes:
    def test_gets_it(self) -> None:
        app = make()
        reply = Client(app).call("whatever", city="Oslo", days=3, answers={"login": {"name": "octocat"}})
        assert json.loads(reply.text) == {"city": "Oslo", "name": "octocat", "ctx": "Context", "more": {"days": 3}}

    @pytest.mark.parametrize("name", ["login", "ctx"])
    def test_never_gets_its_own_parameters_from_a_client(self, wire: Wire, name: str) -> None:
        forged = {"city": "Oslo", name: {"name": "forged"}}
        assert f"- {name}: the server fills this in" in is_told(wire.call("whatever", forged))
        answers = {"login": accept(name="octocat")}
        lenient = make(unknown_arguments="ignore")
        flow = Client(lenient).flow("whatever", forged)
        flow.start()
        reply = flow.answer({"login": {"name": "octocat"}})
        assert json.loads(reply.text)["more"] == {}
        assert json.loads(reply.text)["name"] == answers["login"]["content"]["name"]

    def test_gets_no_argument_past_its_check_under_the_name_of_its_parameter(self) -> None:
        app = MRTRServer("shadow", keys=[bytes(32)], unknown_arguments="ignore")

        @app.tool
        def pay(amount: Annotated[int, Field(alias="amt", le=100)], **more: Any) -> str:
            return f"{amount} {more}"

        assert Client(app).call("pay", amt=5, amount=10**9).text == "5 {}"

    def test_may_have_a_confirmation_of_what_it_takes(self) -> None:
        app = MRTRServer("open", keys=[bytes(32)])

        @app.tool
        def pay(to: str, sure: Annotated[bool, Confirm(lambda to: f"Pay {to}?")], **more: Any) -> str:
            return f"{to} {more} {sure}"

        assert Client(app).call("pay", to="ann", note="x", answers={"sure": yes}).text == "ann {'note': 'x'} True"

    def test_says_that_it_takes_anything_or_is_refused(self) -> None:
        app = MRTRServer("open", keys=[bytes(32)])

        def tool(**more: str) -> None: ...
        def prompt(**more: Any) -> str:
            return ""

        with pytest.raises(SetupError, match=r"write \*\*more: Any"):
            app.tool(tool)
        with pytest.raises(SetupError, match="a prompt lists its arguments"):
            app.prompt(prompt)


class TestIgnoring:
    """`MRTRServer(unknown_arguments="ignore")`, for clients that add keys of their own."""

    def test_drops_them(self, serve: Serve) -> None:
        wire = serve(make(unknown_arguments="ignore"))
        assert wire.call("plain", {"city": "Oslo", "client_request_id": 7}).text == "Oslo for 3 days"
        assert "additionalProperties" not in schema(wire, "plain")
        got = wire.modern("prompts/get", {"name": "summary", "arguments": {"topic": "cats", "x": "y"}})
        assert got.result["messages"][0]["content"]["text"] == "cats, plain"

    def test_is_a_word_that_is_known(self) -> None:
        with pytest.raises(SetupError, match="choose from"):
            make(unknown_arguments="drop")
