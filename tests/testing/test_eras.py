"""The test kit speaks every era: with the same words, and strict about what comes."""

import asyncio
import gc
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from mrtr_server import Context, Elicit, KeyRing, Limits, ListRoots, MRTRServer, Sample, SQLStore, Task
from mrtr_server.testing import (
    EVERYTHING,
    Answers,
    AsyncClient,
    Client,
    SharedStore,
    Unexpected,
    cancel,
    decline,
    replica,
    replicas,
    roots,
    sampled,
    slowly,
    yes,
)

from ..conftest import Serve
from ..support.effects import EFFECTS
from ..support.handshake import NEWEST, OLDER, check
from ..support.models import Login
from ..support.serving import TIMEOUT, wait_until

ERAS = ("2026-07-28", NEWEST, "2025-06-18")
"""The versions whose clients can be asked for a form."""


def build(service: str) -> str:
    EFFECTS.append(f"build {service}")
    return f"{service}:1"


def roll_out(image: str) -> str:
    EFFECTS.append(f"roll out {image}")
    return f"{image} is live"


app = MRTRServer("kit", keys=KeyRing.generate())


@app.tool
async def deploy(service: str, ctx: Context) -> str:
    image = await ctx.step(build, service)
    await ctx.confirm(f"Deploy {image}?")
    return await ctx.step(roll_out, image)


@app.tool
async def greet(ctx: Context) -> str:
    login = await ctx.elicit("Who are you?", Login)
    await ctx.confirm(f"Greet {login.name}?")
    return f"Hello, {login.name}"


@app.tool
async def everything(ctx: Context) -> str:
    login, said, listed = await ctx.ask(Elicit("Who?", Login), Sample("Say hi"), ListRoots())
    return f"{said.text}, {login.name} in {len(listed)} places"


@app.tool(answer_within=0.5)
async def hurry(ctx: Context) -> str:
    return f"Hello, {(await ctx.elicit('Quick, who?', Login)).name}"


@app.tool
async def notes(ctx: Context) -> str:
    await ctx.progress(1, 2, "half")
    await ctx.log("a word", level="debug")
    await ctx.confirm("Go on?")
    return "done"


@app.tool
async def work(ctx: Context) -> str:
    await ctx.progress(1)
    await asyncio.sleep(0.2)
    EFFECTS.append("worked")
    return "worked"


@app.prompt
async def essay(topic: str, ctx: Context) -> str:
    return f"On {topic} by {(await ctx.elicit('Who writes?', Login)).name}"


@app.resource("notes://{name}")
async def note(name: str, ctx: Context) -> str:
    return f"{name} of {(await ctx.elicit('Whose?', Login)).name}"


ANN = Login(name="ann")


@pytest.mark.parametrize("era", ERAS)
def test_replicas_may_share_one_database_object(era: str, tmp_path: Path) -> None:
    with Client(*replicas(app, 3, store=SQLStore(f"sqlite:///{tmp_path}/kit.db")), era=era) as client:
        flow = client.flow("greet")
        flow.start()
        flow.answer(login=ANN)
        assert flow.answer(confirm=yes).text == "Hello, ann"


@pytest.fixture(params=["in process", "over HTTP"])
def servers(request: pytest.FixtureRequest, serve: Serve) -> list[Any]:
    """Two replicas with one store."""
    two = replicas(app, 2, store=SharedStore())
    return [serve(each).url for each in two] if "HTTP" in request.param else list(two)


@pytest.fixture(params=ERAS)
def client(request: pytest.FixtureRequest, servers: list[Any]) -> Client:
    return Client(*servers, era=request.param, timeout=TIMEOUT)


@pytest.fixture
def live(servers: list[Any]) -> Client:
    """A client whose calls stay open."""
    return Client(*servers, era=NEWEST, timeout=TIMEOUT)


@pytest.mark.parametrize("era", ERAS)
def test_completions_that_no_client_was_told_of_are_no_method(era: str) -> None:
    """Completion, Error Handling."""
    app = MRTRServer("bare", keys=[bytes(32)])
    app.prompt(name="greeting")(lambda name: name)
    asked = {"ref": {"type": "ref/prompt", "name": "greeting"}, "argument": {"name": "name", "value": "o"}}
    with Client(app, era=era) as client:
        assert client.request("completion/complete", asked).error.code == -32601
        app.completion("name", prompt="greeting")(lambda value: ["octocat"])
        assert client.request("completion/complete", asked).result["completion"]["values"] == ["octocat"]
        assert client.request("completion/complete", {**asked, "argument": {}}).error.code == -32602


class TestTheSameWords:
    """In every era."""

    def test_a_call_runs_to_its_end(self, client: Client) -> None:
        done = client.call("deploy", service="shop", answers={"confirm": yes})
        assert done.text == "shop:1 is live"
        assert (done.rounds, done.asked["confirm"].message) == (2, "Deploy shop:1?")
        assert EFFECTS == ["build shop", "roll out shop:1"]

    def test_prompts_and_resources_too(self, client: Client) -> None:
        assert client.get_prompt("essay", topic="Löwen", answers={"login": ANN}).text == "On Löwen by ann"
        assert client.read("notes://today", answers={"login": ANN}).text == "today of ann"

    def test_a_no_is_a_no(self, client: Client) -> None:
        for answer in (decline, cancel):
            assert client.call("deploy", service="shop", answers={"confirm": answer}).failed
        assert EFFECTS == ["build shop"] * 2

    def test_a_flow_is_walked_round_by_round(self, client: Client) -> None:
        flow = client.flow("greet")
        asked = flow.start()
        assert asked.needs_input
        assert asked.questions == {"login": "Who are you?"}
        assert asked.asks["login"].schema["required"] == ["name"]
        assert asked.state == flow.state
        assert flow.answer(login=ANN).questions == {"confirm": "Greet ann?"}
        done = flow.answer(confirm=yes)
        assert (done.text, done.needs_input, done.rounds) == ("Hello, ann", False, 3)
        assert done.asked.keys() == {"login", "confirm"}

    def test_questions_of_one_round_come_together_and_some_answers_can_wait(self, client: Client) -> None:
        flow = client.flow("everything")
        assert {key: asked.kind for key, asked in flow.start().asks.items()} == {
            "login": "form",
            "sample": "sample",
            "roots": "roots",
        }
        assert flow.answer(sample=sampled("hi")).asks.keys() == {"login", "roots"}
        assert flow.finish(login=ANN, roots=roots("file:///a")).text == "hi, ann in 1 places"

    def test_a_lost_reply_costs_nothing(self, client: Client) -> None:
        flow = client.flow("deploy", service="shop")
        flow.start()
        flow.drop()
        flow.answer(confirm=yes)
        assert flow.drop().text == "shop:1 is live"

    def test_a_round_that_is_refused_leaves_the_flow_where_it_was(self, client: Client) -> None:
        flow = client.flow("greet")
        flow.start()
        flow.tamper()
        assert flow.answer(login=ANN).status == 400
        assert flow.answer(login=ANN).questions == {"confirm": "Greet ann?"}

    def test_a_key_that_is_not_asked_fails_the_test(self, client: Client) -> None:
        flow = client.flow("greet")
        flow.start()
        with pytest.raises(Unexpected, match=r"'logon' was not asked; the server asks 'login' \(form\)"):
            flow.answer(logon=ANN)
        with pytest.raises(Unexpected, match=r"No answer is scripted for 'confirm'"):
            flow.finish(login=ANN)

    def test_one_answer_to_all_servers_runs_once(self, servers: list[Any], client: Client) -> None:
        flow = client.flow("greet")
        flow.start()
        assert {reply.questions["confirm"] for reply in flow.race(login=ANN)} == {"Greet ann?"}
        assert [reply.text for reply in flow.race(confirm=yes)] == ["Hello, ann"] * len(servers)

    def test_somebody_may_take_their_time(self, client: Client) -> None:
        assert client.call("greet", answers={"login": slowly(ANN, 0.2), "confirm": slowly(yes, 0.1)}).text

    def test_notes_come_with_the_reply_of_their_round(self, client: Client) -> None:
        flow = client.flow("notes")
        first = flow.start()
        assert [each.progress for each in first.progress] == [1]
        assert [each.data for each in first.messages] == ["a word"]
        assert flow.answer(confirm=yes).text == "done"

    def test_other_requests_are_sent_as_they_are(self, client: Client) -> None:
        assert {tool["name"] for tool in client.request("tools/list").result["tools"]} >= {"deploy", "greet"}


@pytest.mark.parametrize("era", ERAS)
class TestInside:
    """What can be seen in process."""

    def test_each_reply_has_the_steps_of_its_round(self, era: str) -> None:
        flow = Client(app, era=era).flow("deploy", service="shop")
        assert flow.start().steps == ["build"]
        done = flow.answer(confirm=yes)
        assert (done.steps, done.replayed) == (["roll_out"], ["build"])

    def test_a_call_has_those_of_all(self, era: str) -> None:
        done = Client(app, era=era).call("deploy", service="shop", answers={"confirm": yes})
        assert done.steps == ["build", "roll_out"]

    @pytest.mark.anyio
    async def test_it_can_be_awaited(self, era: str) -> None:
        flow = AsyncClient(app, era=era).flow("greet")
        assert (await flow.start()).needs_input
        assert (await flow.finish(login=ANN, confirm=yes)).text == "Hello, ann"

    def test_the_round_after_a_lost_reply_has_its_steps_too(self, era: str) -> None:
        flow = Client(app, era=era).flow("deploy", service="shop")
        flow.start()
        flow.drop()
        assert flow.answer(confirm=yes).steps == ["roll_out"]

    def test_the_log_says_why(self, era: str) -> None:
        flow = Client(app, era=era).flow("greet")
        flow.start()
        flow.tamper()
        assert len(flow.answer(login=ANN).log) <= 1

    def test_replicas_may_share_a_database(self, era: str, tmp_path: Any) -> None:
        shared = replicas(app, 3, store=f"sqlite:///{tmp_path}/x.db")
        with Client(*shared, era=era) as client:  # so that they close it
            assert client.call("greet", answers={"login": ANN, "confirm": yes}).text == "Hello, ann"


class TestOpenCalls:
    """What only calls have that stay open."""

    def test_a_broken_stream_is_resumed_elsewhere(self, live: Client) -> None:
        flow = live.flow("greet")
        flow.start()
        flow.break_stream()
        assert flow.resume().questions == {"login": "Who are you?"}
        assert flow.answer(login=ANN).questions == {"confirm": "Greet ann?"}
        flow.break_stream()
        assert flow.answer(confirm=yes).text == "Hello, ann"

    def test_an_answer_may_come_while_the_client_is_away(self, live: Client) -> None:
        flow = live.flow("everything")
        flow.start()
        flow.break_stream()
        assert flow.answer(login=ANN, roots=roots()).asks.keys() == {"sample"}
        flow.break_stream()
        assert flow.answer(sample=sampled("hi")).text == "hi, ann in 0 places"

    def test_an_answer_at_another_server_reaches_the_stream(self, servers: list[Any]) -> None:
        flow = Client(servers[0], era=NEWEST).flow("greet")
        flow.start()
        flow.move_to(servers[1])
        assert flow.answer(login=ANN).questions == {"confirm": "Greet ann?"}
        assert flow.answer(confirm=yes).text == "Hello, ann"

    def test_a_call_that_worked_when_its_client_left_is_found(self, live: Client) -> None:
        flow = live.flow("work")
        flow.headers["x"] = "y"
        started = flow.start()
        assert started.text == "worked"
        assert flow.drop().text == "worked"

    def test_what_comes_of_an_answer_need_not_be_waited_for(self, live: Client) -> None:
        flow = live.flow("greet")
        flow.start()
        sent = flow.send({"login": ANN}, wait=False)
        assert (sent.status, sent.asks) == (202, {})
        assert flow.wait().questions == {"confirm": "Greet ann?"}

    def test_nobody_answers_in_time(self, live: Client) -> None:
        flow = live.flow("hurry")
        assert flow.start().needs_input
        assert flow.wait().failed

    def test_an_answer_that_is_too_slow_counts_no_more(self, live: Client) -> None:
        assert live.call("hurry", answers={"login": slowly(ANN, 0.7)}).failed

    def test_the_first_answer_counts_and_a_repetition_changes_nothing(self, live: Client) -> None:
        flow = live.flow("greet")
        flow.start()
        answered = flow.answer(login=ANN)
        assert flow.replay(answered).status == 202
        flow.send({"login": Login(name="bob")})
        assert flow.answer(confirm=yes).text == "Hello, ann"

    def test_a_call_is_cancelled(self, live: Client) -> None:
        flow = live.flow("greet")
        flow.start()
        assert flow.cancel().status == 202
        assert not flow.wait().complete
        assert flow.resume().status == 405

    def test_a_server_that_drains_sends_its_client_elsewhere(self) -> None:
        old, new = replicas(app, 2, store=SharedStore())
        flow = Client(old, era=NEWEST).flow("greet")
        flow.start()
        flow.move_to(new)
        old.drain()
        closed = flow.wait()
        assert (closed.questions, closed.events[-1].retry) == ({"login": "Who are you?"}, 250)
        assert flow.answer(login=ANN).questions == {"confirm": "Greet ann?"}
        assert flow.answer(confirm=yes).text == "Hello, ann"

    def test_the_events_can_be_looked_at(self, live: Client) -> None:
        reply = live.flow("greet").start()
        assert [event.message["method"] for event in reply.events] == ["elicitation/create"]
        assert reply.events[-1].id == reply.state

    def test_what_comes_fits_the_schema(self, live: Client) -> None:
        answers: Answers = {"login": ANN, "sample": sampled("hi"), "roots": roots(), "confirm": yes}
        for tool, keys in (("everything", ("login", "sample", "roots")), ("notes", ("confirm",))):
            done = live.call(tool, answers={key: answers[key] for key in keys})
            for message in done.received:
                if "method" in message:
                    check("ServerRequest" if "id" in message else "ServerNotification", message)
                else:
                    check("CallToolResult", message["result"])


class TestHandshake:
    @pytest.mark.parametrize("era", [NEWEST, *OLDER])
    def test_it_agrees_on_the_version(self, era: str) -> None:
        client = Client(app, era=era)
        begun = client.begin()
        assert begun.result["protocolVersion"] == era
        assert begun.headers["mcp-session-id"]
        assert client.begin() is begun

    def test_the_first_request_begins_the_session(self, servers: list[Any]) -> None:
        sent = Client(*servers, era=NEWEST).request("ping").request.headers
        assert sent["mcp-session-id"]
        assert sent["mcp-protocol-version"] == NEWEST

    def test_a_server_without_the_era_fails_the_test_with_its_own_words(self) -> None:
        modern = replica(app, dialects=["2026-07-28"])
        with pytest.raises(Unexpected, match=r"The server begins no session of 2025-11-25\. The request was refused"):
            Client(modern, era=NEWEST).call("greet")

    @pytest.mark.parametrize("era", ["2025-03-26", "2024-11-05"])
    def test_a_client_is_asked_what_its_version_has_unless_it_declares_more(self, era: str) -> None:
        lacking: dict[str, Any] = {"requiredCapabilities": {"elicitation": {"form": {}}}}
        assert Client(app, era=era).call("greet").error.data == lacking
        declares_all = Client(app, era=era, capabilities=EVERYTHING)
        assert declares_all.call("greet", answers={"login": Login(name="ann"), "confirm": yes}).text == "Hello, ann"

    def test_messages_come_as_the_client_wants_them(self) -> None:
        for level, expected in (("debug", 1), ("info", 0), (None, 0)):
            client = Client(app, era=NEWEST, log_level=level)  # type: ignore[arg-type]
            assert len(client.flow("notes").start().messages) == expected

    def test_the_eras_of_today_have_none(self) -> None:
        with pytest.raises(Unexpected, match="begins without a handshake"):
            Client(app).begin()
        with pytest.raises(Unexpected, match=r"no stream stays open between rounds: drop\(\) loses a reply"):
            Client(app).flow("greet").break_stream()

    def test_the_word_of_0_1_still_counts(self) -> None:
        with pytest.warns(DeprecationWarning, match="dialect= is called era= now"):
            assert Client(app, dialect="sep-draft").era == "sep-draft"
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            Client(app, era="sep-draft")

    def test_a_stream_that_a_test_leaves_open_is_closed(self, serve: Serve) -> None:
        server = serve(replica(app, limits=Limits(held_streams=1))).url

        def asks() -> bool:
            """Begin a call, and forget it."""
            return Client(server, era=NEWEST).flow("greet").start().needs_input

        assert asks()
        gc.collect()
        wait_until(asks, "the server to notice")


def stream(*events: str) -> Callable[[Request], Any]:
    """Return what answers a call with events."""

    async def serve(request: Request) -> Response:
        message = await request.json()
        if message["method"] == "initialize":
            result = {"protocolVersion": NEWEST, "capabilities": {}, "serverInfo": {"name": "x", "version": "1"}}
            return JSONResponse({"jsonrpc": "2.0", "id": message["id"], "result": result})
        if "id" not in message:
            return Response(status_code=202)
        return StreamingResponse(iter(events), media_type="text/event-stream")

    return serve


ASK = '{"jsonrpc":"2.0","id":"k.x","method":"roots/list"}'
DONE = '{"jsonrpc":"2.0","id":2,"result":{"content":[]}}'


class TestStrict:
    """A server that breaks the rules of its stream fails the test."""

    @pytest.mark.parametrize(
        ("events", "problem"),
        [
            ((f"data: {ASK}\n\n",), "nobody could come back to"),
            ((f"id: a.1\ndata: {ASK}\n\n",), "has no place"),
            ((f"id: a.1of2\ndata: {ASK}\n\n", f"id: a.1of2\ndata: {ASK}\n\n"), "Two events have one id"),
            ((f"id: a.1of3\ndata: {ASK}\n\n", f"id: a.3of3\ndata: {ASK}\n\n"), "Question 3 of 3 came after question 1"),
            (('data: {"jsonrpc":"2.0","id":9,"result":{}}\n\n',), "A response to another request than 2"),
            ((f"data: {DONE}\n\n", f"data: {DONE}\n\n"), "An event came after the response"),
            (("data: what\n\n",), "An event has no JSON-RPC message: what"),
            (
                ('data: {"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":7}}\n\n',),
                "Progress of another request",
            ),
        ],
    )
    def test_it_is_told_what_is_wrong(self, events: tuple[str, ...], problem: str) -> None:
        client = Client(Starlette(routes=[Route("/mcp", stream(*events), methods=["POST"])]), era=NEWEST)
        with pytest.raises(Unexpected, match=problem):
            client.flow("x").start()

    def test_a_stream_that_ends_without_a_response_is_to_be_resumed(self) -> None:
        client = Client(
            Starlette(routes=[Route("/mcp", stream(f"id: a.1of1\ndata: {ASK}\n\n"), methods=["POST"])]), era=NEWEST
        )
        flow = client.flow("x")
        assert flow.start().asks.keys() == {"k"}
        assert "when its client comes back" not in str(flow.last)
        assert flow.wait().needs_input
        assert flow.resume().status == 405


studio = MRTRServer("studio", keys=KeyRing.generate(), limits=Limits(held_streams=2))


@studio.tool(task=Task("optional", poll=0.1))
async def film(ctx: Context, title: str = "Up") -> str:
    await ctx.progress(1, 2)
    login, sure = await asyncio.gather(ctx.elicit("Who films?", Login), ctx.elicit("Who cuts?", Login, key="cuts"))
    return await ctx.step(roll_out, f"{title} by {login.name} and {sure.name}")


@studio.tool(task=Task("required", poll=0.1))
async def render(ctx: Context) -> str:
    return await ctx.step(roll_out, "a film")


@studio.tool
def count() -> int:
    return 3


class TestTasks:
    """Tasks of 2025-11-25 read as those of today."""

    @pytest.fixture(params=["in process", "over HTTP"])
    def client(self, request: pytest.FixtureRequest, serve: Serve) -> Client:
        two = replicas(studio, 2, store=SharedStore())
        return Client(*([serve(each).url for each in two] if "HTTP" in request.param else two), era=NEWEST, tasks=True)

    def test_a_call_is_followed_to_its_end(self, client: Client) -> None:
        done = client.call("film", title="Alien", answers={"login": ANN, "cuts": Login(name="bob")})
        assert done.text == "Alien by ann and bob is live"
        assert list(done.asked) == ["login", "cuts"]
        assert client.call("render").text == "a film is live"
        assert client.call("count").structured == {"result": 3}, "a tool without tasks is called as ever"

    def test_it_is_walked_step_by_step(self, client: Client) -> None:
        flow = client.flow("film")
        begun = flow.start()
        assert (begun.task.status, begun.is_under_way) == ("working", True)
        assert flow.wait().questions == {"login": "Who films?"}
        assert flow.wait().questions == {"login": "Who films?", "cuts": "Who cuts?"}
        assert flow.look().task.status == "input_required"
        flow.break_stream()
        flow.resume()
        flow.send({"login": ANN}, wait=False)
        assert flow.answer(cuts=Login(name="bob")).text == "Up by ann and bob is live"
        assert flow.look().task.status == "completed"

    def test_it_is_cancelled(self, client: Client) -> None:
        flow = client.flow("film")
        flow.start()
        assert flow.cancel().task.status == "cancelled"
        assert flow.wait().error.code == -32602


class TestNotifications:
    @pytest.fixture(params=["in process", "over HTTP"])
    def both(self, request: pytest.FixtureRequest, serve: Serve) -> tuple[list[MRTRServer], list[Any]]:
        """Two replicas, and how their clients reach them."""
        apps = replicas(studio, 2, store=SharedStore())
        return apps, [serve(each).url for each in apps] if "HTTP" in request.param else list(apps)

    def test_a_client_hears_of_changes_at_any_replica(self, both: tuple[list[MRTRServer], list[Any]]) -> None:
        apps, two = both
        client = Client(*two, era=NEWEST, tasks=True)
        changes = client.listen(two[1])
        assert changes.open().status == 200
        apps[0].notify_tools_changed()
        (told,) = changes.next().received
        assert told["method"] == "notifications/tools/list_changed"
        flow = client.flow("render")
        task = flow.start().task
        assert flow.wait().text == "a film is live"
        while told.get("params", {}).get("status") != "completed":
            (told,) = changes.next().received
        assert (told["method"], told["params"]["taskId"]) == ("notifications/tasks/status", task.id)
        changes.close()

    def test_one_stream_too_many_is_405(self, both: tuple[list[MRTRServer], list[Any]]) -> None:
        client = Client(both[1][0], era=NEWEST)
        streams = [client.listen() for _ in range(3)]
        assert [stream.open().status for stream in streams] == [200, 200, 405]
        for stream in streams[:2]:
            stream.close()
        again = client.listen()
        wait_until(lambda: again.open().status == 200, "a place")
        again.close()
        with pytest.raises(Unexpected, match="not open"):
            again.next()

    @pytest.mark.parametrize("era", ["2026-07-28", NEWEST, "2025-03-26"])
    def test_resources_that_are_named_are_reported_in_every_era(self, era: str) -> None:
        app = MRTRServer("notes")

        @app.resource("notes://{id}")
        def note(id: str) -> str:
            return id

        changes = Client(app, era=era).listen(resources=["notes://1"])
        opened = changes.open()
        assert opened.status == 200
        if era == "2026-07-28":
            assert opened.received[0]["params"]["notifications"]["resourceSubscriptions"] == ["notes://1"]
        app.notify_resource_updated("notes://2")
        app.notify_resource_updated("notes://1")
        (told,) = changes.next().received
        assert (told["method"], told["params"]["uri"]) == ("notifications/resources/updated", "notes://1")
        changes.close()

    def test_a_subscription_that_is_refused_is_seen(self) -> None:
        with pytest.raises(Unexpected, match=r"can't subscribe to nowhere://1.*Unknown resource"):
            Client(studio, era=NEWEST).listen(resources=["nowhere://1"]).open()
        assert Client(studio).listen(tasks=["x"]).open().error.code == -32021

    def test_tasks_that_are_named_are_reported(self) -> None:
        client = Client(studio, tasks=True)
        flow = client.flow("render")
        task = flow.start().task
        changes = client.listen(tasks=[task.id])
        assert changes.open().received[0]["params"]["notifications"]["taskIds"] == [task.id]
        flow.wait()
        told: dict[str, Any] = {"params": {}}
        while told["params"].get("status") != "completed":
            (told,) = changes.next().received
        assert told["params"]["taskId"] == task.id
        changes.close()

    def test_tasks_are_those_of_two_eras(self) -> None:
        with pytest.raises(Unexpected, match="tasks=True"):
            Client(studio, era="2025-06-18", tasks=True)

    @pytest.mark.anyio
    async def test_it_is_awaited_where_all_is(self) -> None:
        client = AsyncClient(studio, era=NEWEST)
        changes = client.listen()
        await changes.open()
        studio.notify_tools_changed()
        assert (await changes.next()).received[0]["method"] == "notifications/tools/list_changed"
        await changes.close()
