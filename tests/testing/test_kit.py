"""The test kit: what it sends is what a conforming client sends, and what it says of a reply is true."""

import asyncio
import gc
import logging
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from inspect import signature
from pathlib import Path
from typing import Annotated, Any

import pytest
from pydantic import BaseModel, Field
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Mount, Route

from mrtr_server import (
    BearerTokens,
    Context,
    Depends,
    Elicit,
    Elicited,
    ElicitUrl,
    Header,
    InputRequired,
    Inputs,
    KeyRing,
    Limits,
    ListRoots,
    Lists,
    Message,
    MRTRServer,
    Sample,
    SealedCodec,
    ServerInfo,
    SetupError,
    State,
    ToolError,
)
from mrtr_server.testing import (
    Answer,
    Answers,
    Asked,
    AsyncClient,
    Client,
    Clock,
    Error,
    Flow,
    Progress,
    Unexpected,
    accept,
    cancel,
    decline,
    no,
    replica,
    replicas,
    roots,
    sampled,
    yes,
)

from ..conftest import Serve
from ..support.serving import TIMEOUT, ended
from ..support.task_apps import working
from ..support.wire import JSON, _schema


class Login(BaseModel):
    name: str
    team: str | None = None


class Age(BaseModel):
    age: Annotated[int, Field(ge=0)]


EFFECTS: list[str] = []


@pytest.fixture(autouse=True)
def no_effects() -> None:
    EFFECTS.clear()


def build(service: str) -> str:
    EFFECTS.append(f"build {service}")
    return f"{service}:1"


async def roll_out(image: str) -> str:
    EFFECTS.append(f"roll out {image}")
    return f"{image} is live"


ring = KeyRing.generate()
app = replica(MRTRServer("kit", keys=ring), clock=Clock())


@app.tool
async def deploy(service: str, ctx: Context) -> str:
    image = await ctx.step(build, service)
    await ctx.confirm(f"Deploy {image}?")
    return await ctx.step(roll_out, image)


@app.tool
async def greet(ctx: Context) -> str:
    login = await ctx.elicit("Who are you?", Login)
    return f"Hello, {login.name} of {login.team}"


@app.tool
async def everything(ctx: Context) -> list[str]:
    answers = await ctx.ask(
        Elicit("Who?", Elicited[Login]), ElicitUrl("Sign", "https://example.com/"), Sample("Say hi"), ListRoots()
    )
    who, page, said, listed = answers
    return [who.action, str(page), said.text, *(root.uri for root in listed)]


@app.tool
def count(inputs: Inputs, kept: State[int]) -> int | InputRequired:
    """Go three rounds without a question: two that are handed over, and the last."""
    rounds = kept.value or 0
    return rounds if rounds == 2 else InputRequired(state=rounds + 1)


@app.tool
async def grow(ctx: Context) -> str:
    age = (await ctx.elicit("How old are you?", Age)).age
    await ctx.confirm(f"Is it {age}?")
    return str(age)


@app.tool
def fail(how: str) -> str:
    raise ToolError(how) if how else ValueError("the reason")


@app.tool
async def notes(ctx: Context) -> str:
    await ctx.progress(1, 2, "half")
    await ctx.log("a word", level="debug", logger="notes")
    await ctx.progress(2)
    return "done"


@app.tool
def route(region: Annotated[str, Header("Region")], size: Annotated[int, Header("Size")] = 1) -> str:
    return f"{region} {size}"


@app.prompt
async def essay(topic: str, ctx: Context) -> list[Message]:
    login = await ctx.elicit("Who writes?", Login)
    return [Message(content=f"On {topic}"), Message(content=f"by {login.name}")]


@app.resource("notes://{name}")
async def note(name: str, ctx: Context) -> str:
    return f"{name} of {(await ctx.elicit('Whose?', Login)).name}"


ANN = Login(name="ann")


@pytest.fixture(params=["in process", "mounted", "over HTTP", "in process, as the drafts", "over HTTP, as the drafts"])
def client(request: pytest.FixtureRequest, serve: Serve) -> Client:
    ended(app)
    dialect = "sep-draft" if "drafts" in request.param else "2026-07-28"
    if "HTTP" in request.param:
        return Client(serve(app).url, era=dialect)
    if request.param == "mounted":
        return Client(Starlette(routes=[Mount("/tools", app)]), path="/tools/")
    return Client(app, era=dialect)


class TestACallRunsToItsEnd:
    def test_with_scripted_answers(self, client: Client) -> None:
        done = client.call("deploy", service="shop", answers={"confirm": yes})
        assert done.text == "shop:1 is live"
        assert done.rounds == 2
        assert done.asked["confirm"].message == "Deploy shop:1?"
        assert done.complete
        assert not done.failed
        assert EFFECTS == ["build shop", "roll out shop:1"]

    def test_with_arguments_as_a_mapping_as_keywords_or_both(self, client: Client) -> None:
        assert client.call("route", {"region": "eu", "size": 2}).text == "eu 2"
        assert client.call("route", {"region": "eu"}, size=2).text == "eu 2"

    @pytest.mark.parametrize(
        "answer",
        [
            Login(name="ann", team="a"),
            {"name": "ann", "team": "a"},
            accept(name="ann", team="a"),
            accept(Login(name="ann"), team="a"),
            Answer({"action": "accept", "content": {"name": "ann", "team": "a"}}),
            lambda asked: Login(name="ann", team="a"),
            lambda asked: {"name": "ann", "team": "a" if "who" in asked.message.lower() else "b"},
        ],
    )
    def test_with_an_answer_in_whatever_form(self, client: Client, answer: Any) -> None:
        assert client.call("greet", answers={"login": answer}).text == "Hello, ann of a"

    def test_a_field_of_a_model_that_is_none_is_left_out(self, client: Client) -> None:
        done = client.call("greet", answers={"login": ANN})
        assert done.text == "Hello, ann of None"
        assert b"null" not in done.request.body

    def test_with_answers_to_every_kind_of_ask(self, client: Client) -> None:
        given: Answers = {
            "login": ANN,
            "open_url": accept(),
            "sample": sampled("hi"),
            "roots": roots("file:///a", "file:///b"),
        }
        done = client.call("everything", answers=given)
        assert done.structured == ["accept", "True", "hi", "file:///a", "file:///b"]

    def test_through_rounds_that_ask_nothing(self, client: Client) -> None:
        done = client.call("count")
        assert (done.text, done.rounds) == ("2", 3)

    def test_with_answers_in_turn_to_questions_under_one_key(self, client: Client) -> None:
        done = client.call("grow", answers={"age": [{"age": -1}, {"age": 30}], "confirm": yes})
        assert (done.text, done.rounds) == ("30", 4)

    @pytest.mark.parametrize(("answer", "says"), [(no, "declined"), (decline, "declined"), (cancel, "dismissed")])
    def test_to_the_failure_that_a_no_is(self, client: Client, answer: Answer, says: str) -> None:
        done = client.call("deploy", service="shop", answers={"confirm": answer})
        assert done.failed
        assert says in done.failure
        assert EFFECTS == ["build shop"]

    def test_of_prompts_and_resources_too(self, client: Client) -> None:
        assert client.get_prompt("essay", topic="Löwen", answers={"login": ANN}).text == "On Löwen\nby ann"
        assert client.read("notes://today", answers={"login": ANN}).text == "today of ann"

    def test_answers_of_the_client_are_there_for_all_calls(self) -> None:
        client = Client(app, answers={"login": ANN, "confirm": no})
        assert client.call("greet").text == "Hello, ann of None"
        assert client.call("greet").text == "Hello, ann of None"
        assert client.call("deploy", service="shop", answers={"confirm": yes}).text == "shop:1 is live"

    def test_other_requests_are_sent_as_they_are(self, client: Client) -> None:
        listed = client.request("tools/list").result["tools"]
        assert {"deploy", "greet"} <= {tool["name"] for tool in listed}

    def test_what_headers_mirror_is_mirrored(self, client: Client) -> None:
        for region in ("eu-1", "Zürich", " padded", "=?base64?eA==?="):
            assert client.call("route", region=region, size=3).text == f"{region} 3"


class TestACallFailsTheTest:
    def fails(self, call: Callable[[], object]) -> str:
        with pytest.raises(AssertionError) as failed:
            call()
        return str(failed.value)

    def test_when_a_question_has_no_answer(self, client: Client) -> None:
        said = self.fails(lambda: client.call("deploy", service="shop", answers={"confrim": yes}))
        assert said == "No answer is scripted for 'confirm' (form): 'Deploy shop:1?'. Answers are given for: 'confrim'."

    def test_when_an_answer_is_never_asked_for(self, client: Client) -> None:
        answers: Answers = {"confirm": yes, "login": ANN, "page": lambda asked: decline}
        said = self.fails(lambda: client.call("deploy", service="shop", answers=answers))
        assert said.startswith("Answers were never asked for: 'login', 'page'. The call is complete: shop:1 is live")

    def test_when_an_answer_is_asked_for_again_and_there_is_one_only(self, client: Client) -> None:
        said = self.fails(lambda: client.call("grow", answers={"age": {"age": -1}}))
        assert said.startswith("No answer is left for 'age' (form): ")
        assert said.endswith("How old are you?', which was asked again, after 'How old are you?'.")

    def test_when_a_text_is_looked_for_where_there_is_none(self, client: Client) -> None:
        asked = client.flow("deploy", service="shop").start()
        assert self.fails(lambda: asked.text) == (
            "There is no text. The server asks 'confirm' (form): 'Deploy shop:1?'."
        )
        assert self.fails(lambda: asked.structured).startswith("There is no structured content. The server asks")
        assert self.fails(lambda: asked.failure).startswith("The tool did not fail. The server asks")
        assert self.fails(lambda: asked.error).startswith("There is no JSON-RPC error. The server asks")
        assert self.fails(lambda: asked.asks["login"]) == (
            "'login' was not asked. The server asks 'confirm' (form): 'Deploy shop:1?'."
        )
        assert self.fails(lambda: client.call("fail", how="Not today").text) == (
            "There is no text. The tool failed: Not today"
        )

    def test_when_a_text_is_looked_for_in_a_result_that_can_have_none(self, client: Client) -> None:
        listed = client.request("tools/list")
        assert listed.result["tools"]
        assert self.fails(lambda: listed.text).startswith("There is no text. The call is complete: {")

    @pytest.mark.parametrize(
        ("method", "params", "named"),
        [
            ("elicitation/sing", {"message": "La?"}, "'elicitation/sing'"),
            ("elicitation/create", {"mode": "voice", "message": "La?"}, "'elicitation/create' in the mode 'voice'"),
        ],
    )
    def test_when_something_is_asked_that_the_kit_does_not_know(self, method: str, params: JSON, named: str) -> None:
        asked = {"resultType": "input_required", "inputRequests": {"la": {"method": method, "params": params}}}

        async def singing(request: Request) -> JSONResponse:
            return JSONResponse({"jsonrpc": "2.0", "id": 1, "result": asked})

        client = Client(Starlette(routes=[Route("/mcp", singing, methods=["POST"])]))
        said = f"'la' asks by {named}, which this test kit does not know"
        assert self.fails(lambda: client.call("sing", answers={"la": {"note": "c"}})) == said
        reply = client.flow("sing").start()
        assert self.fails(lambda: reply.questions) == said
        assert self.fails(lambda: reply.asks["la"].kind) == said
        assert self.fails(lambda: reply.text).startswith(f"There is no text. The server asks 'la' ({named})")
        assert reply.asks["la"].params == params, "a test can still look at it, and answer"
        assert client.flow("sing").start(la=Answer({"note": "c"})).needs_input

    def test_when_a_result_is_looked_for_where_there_is_an_error(self, client: Client) -> None:
        refused = client.call("nothing")
        assert refused.error == Error(-32602, "Unknown tool: nothing", {"name": "nothing"})
        assert self.fails(lambda: refused.result).startswith(
            "There is no result. The request was refused with -32602: Unknown tool: nothing"
        )

    def test_with_what_the_log_said_where_it_can_be_seen(self) -> None:
        said = self.fails(lambda: Client(app).call("fail", how="").text)
        assert said.startswith("There is no text. The tool failed: Internal error (reference ")
        assert "The log says:\nERROR" in said
        assert "ValueError: the reason" in said

    def test_when_the_answer_is_none(self) -> None:
        with pytest.raises(TypeError, match="'octocat' is not an answer"):
            Client(app).call("greet", answers={"login": "octocat"})

    def test_when_a_reply_takes_too_long(self, serve: Serve) -> None:
        slow = MRTRServer("slow", keys=ring)

        @slow.tool
        async def wait() -> None:
            await asyncio.sleep(600)

        for server in (slow, serve(slow).url):
            assert self.fails(lambda server=server: Client(server, timeout=0.05).call("wait")) == (  # type: ignore[misc]
                "There was no reply within 0.05 s"
            )

    def test_when_there_is_no_server(self) -> None:
        assert "can't be reached" in self.fails(lambda: Client("http://127.0.0.1:9/mcp").call("greet"))
        assert "is not the URL of an endpoint" in self.fails(lambda: Client("localhost:8000/mcp"))
        assert "at least one server" in self.fails(Client)
        assert "choose from" in self.fails(lambda: Client(app, era="2020-01-01"))

    def test_when_what_came_is_no_mcp(self) -> None:
        reply = Client(app, path="/elsewhere").call("greet")
        assert reply.status == 404
        assert reply.headers["content-type"] == "application/json"
        assert self.fails(lambda: reply.text).startswith("There is no text. HTTP 404: ")

    def test_when_a_request_was_refused_without_json_rpc(self) -> None:
        flow = Client(app).flow("greet")
        flow.headers["Origin"] = "https://elsewhere.example"
        assert repr(flow.start()) == '<Reply: HTTP 403: {"error":"Origin not allowed"}>'


class TestAFlowIsWalkedRoundByRound:
    def test_each_reply_is_that_of_its_round(self, client: Client) -> None:
        flow = client.flow("deploy", service="shop")
        asked = flow.start()
        assert asked.needs_input
        assert not asked.complete
        assert asked.questions == {"confirm": "Deploy shop:1?"}
        assert asked.state == flow.state
        done = flow.answer(confirm=yes)
        assert done.text == "shop:1 is live"
        assert [reply.rounds for reply in flow.replies] == [1, 2]
        assert done.asks == {}
        assert done.asked.keys() == {"confirm"}

    def test_what_is_asked_can_be_looked_at(self, client: Client) -> None:
        asks = client.flow("everything").start().asks
        assert {key: (asked.kind, asked.message) for key, asked in asks.items()} == {
            "login": ("form", "Who?"),
            "open_url": ("url", "Sign"),
            "sample": ("sample", "Say hi"),
            "roots": ("roots", ""),
        }
        assert asks["login"].schema["required"] == ["name"]
        assert asks["open_url"].url == "https://example.com/"
        assert asks["sample"].params["maxTokens"] == 1024
        with pytest.raises(Unexpected, match="does not ask for a url"):
            _ = asks["login"].url

    def test_some_answers_can_wait(self, client: Client) -> None:
        flow = client.flow("everything")
        flow.start()
        assert flow.answer(login=decline, sample=sampled("hi")).asks.keys() == {"open_url", "roots"}
        assert flow.finish({"open_url": accept(), "roots": roots()}).structured[0] == "decline"

    def test_a_key_that_was_not_asked_fails_the_test_unless_it_is_sent_on_purpose(self, client: Client) -> None:
        flow = client.flow("greet")
        flow.start()
        with pytest.raises(
            Unexpected, match=r"'logon' was not asked; the server asks 'login' \(form\): 'Who are you\?'"
        ):
            flow.answer(logon=ANN)
        assert flow.send({"logon": ANN}).asks.keys() == {"login"}
        assert flow.answer(login=ANN).complete
        with pytest.raises(Unexpected, match=r"There is nothing to answer\. The call is complete"):
            flow.answer()

    def test_what_a_flow_that_is_no_task_can_not_do_says_where_it_is(self, client: Client) -> None:
        flow = client.flow("greet")
        with pytest.raises(Unexpected, match=r"The flow has not begun"):
            flow.wait()
        flow.start()
        with pytest.raises(Unexpected, match=r"The flow has not become a task\. The server asks 'login'"):
            flow.wait()

    def test_an_answer_before_a_task_has_asked_says_to_wait(self) -> None:
        flow = Client(working, tasks=True).flow("greet")
        flow.start()
        with pytest.raises(
            Unexpected, match=r"'login' was not asked; the server asks nothing; the task is working, so wait\(\)"
        ):
            flow.answer(login=ANN)
        flow.wait()
        assert flow.answer(login=ANN).text == "Hello, ann"

    def test_answers_may_come_with_the_first_call(self, client: Client) -> None:
        assert client.flow("greet").start(login=ANN).text == "Hello, ann of None"
        assert client.flow("deploy", service="shop").start(confirm=yes).needs_input

    def test_a_refused_round_leaves_the_flow_where_it_was(self, client: Client) -> None:
        flow = client.flow("greet")
        flow.start()
        state, flow.state = flow.state, "forged"
        assert flow.answer(login=ANN).error.code == -32602
        flow.state = state
        assert flow.finish(login=ANN).complete

    def test_a_flow_that_has_not_begun_has_no_last_reply(self) -> None:
        with pytest.raises(Unexpected, match="has not begun"):
            Client(app).flow("greet").answer(login=ANN)


class TestBetweenRounds:
    def test_replicas_take_turns(self) -> None:
        a, b, c = replicas(app, 3)
        done = Client(a, b, c).call("grow", answers={"age": {"age": 3}, "confirm": yes})
        assert (done.text, done.rounds) == ("3", 3)

    def test_a_flow_can_move_to_another_version(self) -> None:
        new = MRTRServer("kit", keys=ring)

        @new.tool(name="greet")
        async def greet_and_grow(ctx: Context) -> str:
            login, age = await ctx.ask(Elicit("Who are you?", Login), Elicit("How old are you?", Age))
            return f"{login.name} is {age.age}"

        flow = Client(app).flow("greet")
        flow.start()
        flow.move_to(new)
        assert flow.answer(login=ANN).asks.keys() == {"age"}
        assert flow.answer(age={"age": 8}).text == "ann is 8"

    def test_keys_can_be_swapped(self) -> None:
        old, new = bytes(32), bytes([1] * 32)
        flow = Client(replica(app, keys=[old])).flow("greet")
        flow.start()
        flow.move_to(replica(app, keys=[new]))
        refused = flow.answer(login=ANN)
        assert refused.error.code == -32602
        assert "a key that is not in the ring" in refused.log
        flow.move_to(replica(app, keys=[new, old]))
        assert flow.answer(login=ANN).complete

    def test_the_clock_can_be_moved(self) -> None:
        clock = Clock(1_000_000.0)
        flow = Client(replica(app, clock=clock, limits=Limits(state_seconds=60))).flow("greet")
        flow.start()
        clock.advance(61)
        assert "expired" in flow.answer(login=ANN).log
        clock.advance(-2)
        assert flow.answer(login=ANN).complete
        assert clock.now == 1_000_059.0

    def test_the_user_can_be_changed(self) -> None:
        secured = replica(app, auth=BearerTokens({"t-ann": "ann", "t-bob": "bob"}))
        flow = Client(secured, token="t-ann").flow("greet")
        flow.start()
        flow.token = "t-bob"
        assert "belongs to another principal" in flow.answer(login=ANN).log
        flow.token = None
        nobody = flow.answer(login=ANN)
        assert nobody.status == 401
        assert nobody.headers["www-authenticate"].startswith("Bearer")
        flow.headers["Authorization"] = "Bearer t-ann"
        assert flow.answer(login=ANN).complete
        assert [line.levelname for line in flow.log.records] == ["WARNING"]

    def test_a_header_is_sent_once_however_it_is_spelled(self, serve: Serve) -> None:
        secured = replica(app, auth=BearerTokens({"t-ann": "ann"}))
        for server in (secured, serve(secured).url):
            client = Client(server, token="t-bob", headers={"AUTHORIZATION": "Bearer t-ann"})
            assert client.call("count").complete

    def test_a_state_can_be_tampered_with_in_one_round(self, client: Client) -> None:
        flow = client.flow("greet")
        with pytest.raises(Unexpected, match="no state to tamper with"):
            flow.tamper()
        flow.start()
        for change in (None, lambda state: state[:-1], lambda state: state + "A", lambda state: ""):
            flow.tamper(*([change] if change else []))
            assert flow.answer(login=ANN).error.code == -32602
        assert flow.answer(login=ANN).complete

    def test_the_state_of_another_flow_can_be_taken(self, client: Client) -> None:
        one, other = client.flow("greet"), client.flow("deploy", service="shop")
        one.start()
        other.start()
        other.state = one.state
        assert other.answer(confirm=yes).error.code == -32602

    def test_arguments_can_be_changed(self, client: Client) -> None:
        flow = client.flow("deploy", service="shop")
        flow.start()
        flow.arguments["service"] = "bank"
        assert flow.answer(confirm=yes).error.code == -32602
        assert EFFECTS == ["build shop"]

    def test_a_replay_is_byte_for_byte_the_same_and_leaves_the_flow_where_it_is(self, client: Client) -> None:
        flow = client.flow("deploy", service="shop")
        first = flow.start()
        again = flow.replay(first)
        assert again.request is first.request
        assert again.state != first.state == flow.state
        assert flow.answer(confirm=yes).complete
        assert flow.replay().text == "shop:1 is live"
        assert EFFECTS == ["build shop"] * 2 + ["roll out shop:1"]  # a state that was confirmed is redeemed once
        assert len(flow.replies) == 2

    def test_a_dropped_reply_is_fetched_again(self, client: Client) -> None:
        flow = client.flow("grow")
        flow.start()
        lost = flow.answer(age={"age": 3})
        again = flow.drop()
        assert again.request is lost.request
        assert flow.replies[1:] == [again]
        assert (again.rounds, again.questions) == (2, {"confirm": "Is it 3?"})
        assert flow.answer(confirm=yes).text == "3"

    def test_a_race_delivers_a_round_to_all_servers_at_once(self, serve: Serve) -> None:
        both = threading.Barrier(2)
        racing = MRTRServer("race", keys=ring)

        @racing.tool
        async def meet(ctx: Context) -> str:
            login = await ctx.elicit("Who?", Login)
            return await ctx.step(wait_for_the_other, login.name)

        def wait_for_the_other(name: str) -> str:
            both.wait(TIMEOUT)
            return f"{name} met"

        for servers in (replicas(racing, 2), [racing], [serve(racing).url]):
            flow = Client(*servers).flow("meet")
            flow.start()
            one, other = flow.race(login=ANN)
            assert one.text == other.text == "ann met"
            assert one.request is other.request
            assert flow.last is one

    def test_a_flow_goes_on_from_the_one_that_won(self) -> None:
        flow = Client(replica(app, keys=KeyRing.generate()), app).flow("grow")
        flow.move_to(app)
        flow.start()
        flow.move_to(replica(app, keys=KeyRing.generate()), app)
        refused, won = flow.race(age={"age": 3})
        assert refused.error.code == -32602
        assert flow.last is won
        flow.move_to(app)
        assert flow.answer(confirm=yes).text == "3"


class TestWhatHappenedInside:
    def test_the_steps_of_a_round_are_told_from_those_of_earlier_ones(self) -> None:
        flow = Client(app).flow("deploy", service="shop")
        first = flow.start()
        assert (first.steps, first.replayed) == (["build"], [])
        done = flow.answer(confirm=yes)
        assert (done.steps, done.replayed) == (["roll_out"], ["build"])

    def test_a_call_has_the_steps_of_all_rounds(self) -> None:
        done = Client(app).call("deploy", service="shop", answers={"confirm": yes})
        assert done.steps == ["build", "roll_out"]

    def test_what_a_round_without_a_result_has_left_is_told_once_it_was_entered(self) -> None:
        server = MRTRServer("rolled back", keys=ring)

        def session() -> Iterator[str]:
            yield "a session"

        async def asking(ctx: Context) -> AsyncIterator[bool]:
            yield await ctx.confirm("sure?", key="first")

        def kept() -> Iterator[str]:
            yield "a counter"

        @server.tool
        async def order(
            kept: Annotated[str, Depends(kept, on_ask="commit")],
            session: Annotated[str, Depends(session)],
            asking: Annotated[bool, Depends(asking)],
            ctx: Context,
        ) -> str:
            await ctx.confirm("really?", key="second")
            return "ordered"

        flow = Client(server).flow("order")
        assert flow.start().rolled_back == ["Depends(session)"]
        assert flow.answer(first=yes).rolled_back == ["Depends(asking)", "Depends(session)"]
        assert flow.answer(second=yes).rolled_back == []
        done = Client(server).call("order", answers={"first": yes, "second": yes})
        assert done.rolled_back == ["Depends(session)", "Depends(asking)", "Depends(session)"]

    def test_steps_go_by_the_name_of_their_function_or_their_own_key(self) -> None:
        server = MRTRServer("steps", keys=ring)

        @server.tool
        async def many(ctx: Context) -> str:
            await ctx.step(build, "a")
            await asyncio.gather(branch(ctx, "b"), branch(ctx, "c"))
            await ctx.step(build, "a", key="own")
            with pytest.raises(ZeroDivisionError):
                await ctx.step(divmod, 1, 0)
            return "done"

        async def branch(ctx: Context, service: str) -> str:
            return await ctx.step(build, service)

        assert Client(server).call("many").steps == ["build", "build", "build", "own", "divmod"]

    def test_the_log_has_what_the_server_said_with_tracebacks(self) -> None:
        failed = Client(app).call("fail", how="")
        assert "ValueError: the reason" in failed.log
        assert failed.log.text.startswith("ERROR ")
        assert len(failed.log) == 1
        assert len(Client(app).call("fail", how="on purpose").log) == 0

    def test_requests_side_by_side_have_a_log_each(self) -> None:
        def odd_one_out(name: str) -> str:
            logging.getLogger("mrtr_server").warning("I am %s", name)
            return name

        server = MRTRServer("log", keys=ring)

        @server.tool
        async def speak(name: str, ctx: Context) -> str:
            await asyncio.sleep(0.01)
            return await ctx.step(odd_one_out, name)

        async def both() -> tuple[str, str]:
            client = AsyncClient(server)
            one, other = await asyncio.gather(client.call("speak", name="ann"), client.call("speak", name="bob"))
            return one.log.text, other.log.text

        assert asyncio.run(both()) == ("WARNING I am ann", "WARNING I am bob")

    def test_nothing_is_left_on_the_logger(self) -> None:
        before = list(logging.getLogger("mrtr_server").handlers)
        Client(app).call("notes")
        assert logging.getLogger("mrtr_server").handlers == before

    def test_over_http_it_can_not_be_seen(self, serve: Serve) -> None:
        done = Client(serve(app).url).call("notes")
        for look in (lambda: done.steps, lambda: done.replayed, lambda: done.rolled_back, lambda: done.log):
            with pytest.raises(Unexpected, match="can't be seen over HTTP: pass the application to the client instead"):
                look()

    def test_notes_come_with_the_reply(self, client: Client) -> None:
        done = client.call("notes")
        assert done.progress == [Progress(1, 2, "half"), Progress(2)]
        if client.era == "2026-07-28":  # the drafts have no way to ask for messages
            (message,) = done.messages
            assert (message.level, message.data, message.logger) == ("debug", "a word", "notes")

    def test_messages_come_as_the_client_wants_them(self) -> None:
        assert Client(app, log_level="info").call("notes").messages == []
        assert Client(app, log_level=None).call("notes").messages == []

    def test_what_the_client_declares_is_what_it_can_do(self) -> None:
        refused = Client(app, capabilities={"sampling": {}}).call("greet")
        assert refused.error.data == {"requiredCapabilities": {"elicitation": {"form": {}}}}


class TestReplicas:
    def test_share_the_handlers_even_those_that_come_later(self) -> None:
        home = MRTRServer("home", keys=ring)
        away = replica(home)

        @away.tool
        def later() -> str:
            return "here"

        assert Client(home).call("later").text == "here"

    def test_have_the_keys_that_the_application_made_for_itself(
        self, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        monkeypatch.delenv("MRTR_KEYS", raising=False)
        alone = MRTRServer("alone")
        alone.tool(name="greet")(greet)
        Client(alone).request("tools/list")
        assert len(caplog.records) == 1
        assert Client(*replicas(alone, 2)).call("greet", answers={"login": ANN}).complete
        assert len(caplog.records) == 1

    def test_have_every_setting_of_the_application(self) -> None:
        parameters = signature(MRTRServer).parameters.keys()
        assert parameters <= vars(app._parts.settings).keys()
        assert replica(app)._parts.settings == app._parts.settings
        changed = {"info": ServerInfo(title="Other"), "lists": Lists(page_size=3)}
        assert vars(replica(app, **changed)._parts.settings) == {**vars(app._parts.settings), **changed}
        assert app._parts.settings.info.title is None

    def test_have_their_own_of_what_the_application_was_not_given(self) -> None:
        given = MRTRServer("given", keys=ring, codec=SealedCodec(ring))
        assert replica(given)._parts.settings.codec is given._parts.settings.codec
        assert replica(given)._parts.fanout is not given._parts.fanout

    def test_are_of_the_same_class(self) -> None:
        class Mine(MRTRServer):
            def __init__(self, motto: str) -> None:
                super().__init__("mine", keys=ring)
                self.motto = motto

        copy = replica(Mine("onwards"), debug=True)
        assert isinstance(copy, Mine)
        assert copy.motto == "onwards"

    def test_a_setting_that_there_is_not_is_refused(self) -> None:
        with pytest.raises(TypeError, match="colour"):
            replica(app, colour="red")


class TestLifespan:
    def served(self, events: list[str]) -> MRTRServer:
        @asynccontextmanager
        async def lifespan(server: MRTRServer) -> AsyncIterator[None]:
            events.append("up")
            yield
            events.append("down")

        server = MRTRServer("life", keys=ring, lifespan=lifespan)
        server.tool(name="state")(lambda: " ".join(events))
        return server

    def test_it_is_entered_and_left_with_the_client(self) -> None:
        events: list[str] = []
        with Client(self.served(events)) as client:
            assert client.call("state").text == "up"
        assert events == ["up", "down"]

    def test_an_asynchronous_client_does_so_too(self) -> None:
        async def story() -> None:
            async with AsyncClient(self.served(events)) as client:
                assert (await client.call("state")).text == "up"

        events: list[str] = []
        asyncio.run(story())
        assert events == ["up", "down"]

    def test_without_a_context_it_is_entered_at_the_first_call(self) -> None:
        events: list[str] = []
        assert Client(self.served(events)).call("state").text == "up"
        assert events == ["up"]

    def test_without_a_context_it_is_left_when_the_loop_ends_though_nobody_has_the_server_any_more(
        self, caplog: pytest.LogCaptureFixture
    ) -> None:
        events: list[str] = []
        seen: list[list[str]] = []

        async def story() -> None:
            await AsyncClient(self.served(events)).call("state")
            gc.collect()
            seen.append(events.copy())

        asyncio.run(story())
        assert (seen, events) == ([["up"]], ["up", "down"])
        assert "destroyed" not in caplog.text

    def test_a_startup_that_fails_fails_the_test_and_ends_what_had_started(self) -> None:
        events: list[str] = []

        @asynccontextmanager
        async def lifespan(server: MRTRServer) -> AsyncIterator[None]:
            raise OSError("no database")
            yield

        server = MRTRServer("life", keys=ring, lifespan=lifespan)
        with (
            pytest.raises(Unexpected, match=r"startup failed: life: .*no database"),
            Client(self.served(events), server),
        ):
            pass
        assert events == ["up", "down"]

    def test_an_application_that_knows_none_is_served_all_the_same(self) -> None:
        async def bare(scope: Any, receive: Any, send: Any) -> None:
            assert scope["type"] == "http"
            await app(scope, receive, send)

        with Client(bare) as client:
            assert client.call("fail", how="x").failed


class TestWithoutAwait:
    def test_all_clients_of_a_thread_share_one_loop_so_what_is_bound_to_it_stays_good(self) -> None:
        loops = []
        server = MRTRServer("loops", keys=ring)

        @server.tool
        async def where() -> None:
            loops.append(asyncio.get_running_loop())

        for _ in range(2):
            Client(server).call("where")
        assert loops[0] is loops[1]

    def test_threads_have_loops_of_their_own(self) -> None:
        texts: list[str] = []
        call = lambda: texts.append(Client(app).call("greet", answers={"login": ANN}).text)  # noqa: E731
        threads = [threading.Thread(target=call) for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert texts == ["Hello, ann of None"] * 3

    def test_a_loop_that_runs_already_is_told_of(self) -> None:
        async def story() -> None:
            Client(app).call("greet")

        with pytest.raises(Unexpected, match="use AsyncClient"):
            asyncio.run(story())

    def test_what_is_awaited_is_the_same(self) -> None:
        async def story() -> list[str]:
            flow = AsyncClient(*replicas(app, 2)).flow("deploy", service="shop")
            asked = await flow.start()
            replies = await flow.race(confirm=yes)  # to two that share no store
            replies.append(await flow.drop())
            assert [reply.text for reply in replies] == ["shop:1 is live"] * 3
            return [*asked.steps, *(step for reply in replies for step in reply.steps)]

        assert asyncio.run(story()) == ["build", "roll_out", "roll_out"]


class TestOnTheWire:
    """What the kit sends is what the official schema says a client sends."""

    @pytest.fixture
    def sent(self, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Any]]:
        from pydantic_core import from_json

        from mrtr_server.testing.transports import InProcess

        bodies: list[Any] = []
        send = InProcess.send

        async def watched(self: InProcess, request: Any) -> Any:
            bodies.append(from_json(request.body))
            return await send(self, request)

        monkeypatch.setattr(InProcess, "send", watched)
        yield bodies
        kinds = {"tools/call": "CallTool", "prompts/get": "GetPrompt", "resources/read": "ReadResource"}
        assert [problem for body in bodies for problem in _schema(f"{kinds[body['method']]}Request", body)] == []

    def test_requests_fit_the_schema(self, sent: list[Any]) -> None:
        client = Client(app)
        given: Answers = {"login": ANN, "open_url": accept(), "sample": sampled("hi"), "roots": roots("file:///a")}
        client.call("everything", answers=given)
        client.call("deploy", service="x", answers={"confirm": decline})
        client.get_prompt("essay", topic="x", answers={"login": ANN})
        client.read("notes://x", answers={"login": ANN})
        assert len(sent) == 8
        ids = [body["id"] for body in sent]
        assert len(set(ids)) == len(ids)


PLAIN_TEST = """
from mrtr_server import Context, KeyRing, MRTRServer
from mrtr_server.testing import Client, yes

app = MRTRServer("x", keys=KeyRing.generate())

@app.tool
async def ask(ctx: Context) -> str:
    await ctx.confirm("Sure?")
    return "done"

def test_good() -> None:
    assert Client(app).call("ask", answers={"confirm": yes}).text == "done"

def test_bad() -> None:
    client = Client(app)
    client.call("ask")  # this line

def test_text() -> None:
    asked = Client(app).flow("ask").start()
    assert asked.text == "done"  # that line
"""


class TestUnderPytestWithoutPlugins:
    @pytest.fixture(scope="class", name="report")
    @classmethod
    def _report(cls, tmp_path_factory: pytest.TempPathFactory) -> str:
        folder = tmp_path_factory.mktemp("plain")
        (folder / "test_plain.py").write_text(PLAIN_TEST)
        options = ["-p", "no:anyio", "-p", "no:cacheprovider", "-p", "no:hypothesispytest", "-W", "error"]
        command = [sys.executable, "-m", "pytest", *options, "--rootdir", str(folder), "-c", "/dev/null", str(folder)]
        return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=TIMEOUT).stdout

    def test_good_tests_pass_and_bad_ones_fail(self, report: str) -> None:
        assert "2 failed, 1 passed" in report

    def test_a_report_shows_the_line_of_the_test_and_what_was_unexpected(self, report: str) -> None:
        assert "# this line" in report
        assert "No answer is scripted for 'confirm' (form): 'Sure?'. Answers are given for: none." in report
        assert "# that line" in report
        assert "There is no text. The server asks 'confirm' (form): 'Sure?'." in report

    def test_a_report_shows_no_line_of_the_kit(self, report: str) -> None:
        assert "run_until_complete" not in report
        assert "script.py" not in report


SCRIPT = """
import sys, threading
from mrtr_server import KeyRing, MRTRServer
from mrtr_server.testing import Client

app = MRTRServer("x", keys=KeyRing.generate())
app.tool(name="hi")(lambda: "hi")

def call() -> None:
    assert Client(app).call("hi").text == "hi"

call()
thread = threading.Thread(target=call)
thread.start()
thread.join()
print([name for name in ("httpx", "pytest", "anyio._backends", "uvicorn", "mcp") if name in sys.modules])
"""


def test_nothing_is_left_open_and_nothing_else_is_needed(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    command = [sys.executable, "-X", "dev", "-W", "error", str(script)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT)
    assert (done.stdout.strip(), done.stderr) == ("[]", "")


def test_what_it_gives_is_typed() -> None:
    flow: Flow = Client(app).flow("greet")
    asked: Asked = flow.start().asks["login"]
    assert asked.key == "login"


class TestUsers:
    """A test may name its user, whatever the server asks of others."""

    def app(self, **settings: Any) -> MRTRServer:
        app = MRTRServer("private", **settings)

        @app.tool(scopes=["staff"])
        def who(ctx: Context) -> str:
            assert ctx.principal is not None
            return f"{ctx.principal.subject}: {sorted(ctx.scopes)}"

        return app

    def test_a_user_needs_no_token(self) -> None:
        app = self.app(auth=BearerTokens({"t": "ann"}, scopes={"t": ["staff"]}))
        assert Client(app, user="bob", scopes=["staff", "x"]).call("who").text == "bob: ['staff', 'x']"
        assert Client(app, user="bob").call("who").status == 403
        assert Client(app).call("who").status == 401
        assert Client(app, token="t").call("who").text == "ann: ['staff']"

    def test_their_flows_are_their_own(self) -> None:
        app = self.app(auth=BearerTokens({"t": "ann"}))

        @app.tool
        async def ask(ctx: Context) -> str:
            await ctx.confirm("Sure?")
            return "done"

        flow = Client(app, user="bob").flow("ask")
        state = flow.start().state
        other = Client(app, user="eve").flow("ask")
        other.start()
        other.state = state
        assert other.answer(confirm=yes).error.code == -32602
        assert flow.answer(confirm=yes).text == "done"

    def test_so_it_is_without_authentication(self) -> None:
        assert Client(self.app(), user="bob", scopes=["staff"]).call("who").text == "bob: ['staff']"

    def test_scopes_are_those_of_a_user(self) -> None:
        app = self.app(auth=BearerTokens({"t": "ann"}))
        refused: list[dict[str, Any]] = [
            {"scopes": ["a"]},
            {"user": "a", "token": "t"},
            {"user": "a", "scopes": "staff"},
        ]
        for options in refused:
            with pytest.raises(Unexpected):
                Client(app, **options)
        with pytest.raises(Unexpected, match="in this process"):
            Client("http://127.0.0.1:1/mcp", user="a")

    def test_scopes_by_token(self) -> None:
        app = self.app(auth=BearerTokens({"t": "ann", "u": "bob"}, scopes={"t": ["staff"]}))
        assert [Client(app, token=each).call("who").status for each in "tu"] == [200, 403]
        wrongs: list[Any] = [{"nobody": ["staff"]}, {"t": "staff"}, "staff", {"t": ["two words"]}, {"t": None}]
        for wrong in wrongs:
            with pytest.raises(SetupError, match="scopes"):
                BearerTokens({"t": "ann"}, scopes=wrong)

    def test_scopes_of_all_tokens_may_come_from_an_iterator(self) -> None:
        app = self.app(auth=BearerTokens({"t": "ann", "u": "bob"}, scopes=iter(["staff"])))
        assert [Client(app, token=each).call("who").status for each in "tu"] == [200, 200]
