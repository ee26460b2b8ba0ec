"""The other encodings of the drafts, past their printed messages; those are in protocol/transcripts/draft-encodings."""

import asyncio
import json
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack
from typing import Any

import httpx
import pytest
from pydantic import BaseModel

from mrtr_server import (
    BearerTokens,
    Confirm,
    Context,
    Elicit,
    InputRequired,
    Inputs,
    KeyRing,
    Limits,
    ListRoots,
    MRTRServer,
    Sample,
    SignedCodec,
    State,
    Task,
)

from ..support.models import Email, Login
from ..support.serving import TIMEOUT, in_thread
from ..support.stdio import over_pipes
from ..support.wire import ACCEPT, JSON, PREFIX, Reply, Wire, accept, request, text_of

BARE, LISTS, CONTENT = ENCODINGS = ("draft-bare-requests", "draft-additional-info", "draft-content")
RELATED = PREFIX + "related-task"
KEY = "mrtr-server/key"
INVALID_PARAMS = -32602
FROZEN = "requestState is not valid for this request; send the request again without it"
JANE, JOHN = {"Authorization": "Bearer jane-token"}, {"Authorization": "Bearer john-token"}

EFFECTS: Counter[str] = Counter()


class Everything(BaseModel):
    """All of it optional, so that an empty form would do."""

    gift: bool = False
    note: str = ""


async def effect(what: str) -> str:
    EFFECTS[what] += 1
    return what


def serving(encoding: str, **settings: Any) -> MRTRServer:
    """Return a server that has a tool of every kind."""
    app = MRTRServer("encodings", keys=[bytes(32)], dialects=["2026-07-28", encoding], **settings)

    @app.tool(task=Task("optional", ttl=600, poll=0.2))
    async def greet(ctx: Context) -> str:
        return f"Hello, {(await ctx.elicit('Who are you?', Login)).name}"

    @app.tool
    async def build(ctx: Context, what: str) -> str:
        await ctx.step(effect, what)
        return f"{what} for {(await ctx.elicit('For whom?', Login)).name}"

    @app.tool(task=Task("optional", ttl=600, poll=0.2))
    async def side_by_side(ctx: Context) -> str:
        first, second = await ctx.ask(
            Elicit("Who is first?", Login, key="first"), Elicit("Who is second?", Login, key="second")
        )
        return f"{first.name}, {second.name}"

    @app.tool
    async def in_turn(ctx: Context) -> str:
        first = await ctx.elicit("Who is first?", Login)
        return f"{first.name}, {(await ctx.elicit('Who is second?', Login)).name}"

    @app.tool
    async def in_stages(ctx: Context, what: str = "it") -> str:
        """Ask by forms whose fields have names of their own, and then for a confirmation."""
        name = (await ctx.elicit("Who?", Login)).name
        address = (await ctx.elicit("Where to?", Email)).address
        if what == "it":
            return f"{name}, {address}"
        await ctx.confirm(f"Send {what}?")
        return await ctx.step(effect, what)

    @app.tool
    async def changing_form(inputs: Inputs, kept: State[int]) -> str | InputRequired:
        """Ask under one key for one thing, for another, and for the first again."""
        kept.value = (kept.value or 0) + 1
        if kept.value == 4:
            return "done"
        ask = Elicit("Where to?", Email) if kept.value == 2 else Elicit(f"Who is {kept.value}?", Login)
        return InputRequired(form=ask, state=kept.value)

    @app.tool(task=Task("optional", ttl=600, poll=0.2))
    async def deploy_and_tell(ctx: Context) -> str:
        _, said = await ctx.ask(Confirm("Deploy web?", key="confirm"), Sample("Say hello"))
        return f"web {said.text}"

    @app.tool(task=Task("optional", ttl=600, poll=0.2))
    async def deploy_all(ctx: Context) -> str:
        for service in ("web", "mail"):
            await ctx.confirm(f"Deploy {service}?", key=service)
            await ctx.step(effect, service)
        return "all"

    @app.tool(task=Task("optional", ttl=600, poll=0.2))
    async def say_hello(ctx: Context) -> str:
        return (await ctx.sample("Say hello")).text

    @app.tool(task=Task("optional", ttl=600, poll=0.2))
    async def hang() -> str:
        await asyncio.sleep(TIMEOUT)
        return "late"

    @app.tool(task=Task("optional", ttl=600, poll=0.2))
    async def story(ctx: Context) -> AsyncIterator[str]:
        """Ask between two pieces."""
        yield "Once "
        yield "upon a time"
        yield f", {(await ctx.elicit('Who is the hero?', Login)).name} went home"

    @app.tool(task=Task("optional", ttl=600, poll=0.2))
    async def mixed(ctx: Context) -> str:
        login, said, roots = await ctx.ask(Elicit("Who?", Login), Sample("Say hello"), ListRoots())
        return f"{login.name} {said.text} {roots[0].uri}"

    @app.tool
    async def optional(ctx: Context) -> str:
        login, rest = await ctx.ask(Elicit("Who?", Login), Elicit("What else?", Everything))
        return f"{login.name} {rest.gift}"

    @app.tool
    async def deploy(ctx: Context, service: str) -> str:
        await ctx.confirm(f"Deploy {service}?")
        return await ctx.step(effect, service)

    @app.tool(single_use=True)
    async def pay(ctx: Context, order: str) -> str:
        await ctx.elicit("Who pays?", Login)
        return await ctx.step(effect, order)

    @app.tool(single_use=True)
    async def ship(ctx: Context, order: str) -> str:
        return await ctx.step(effect, order)

    @app.tool
    async def visit(ctx: Context) -> str:
        await ctx.elicit_url("Sign in", "https://example.com/")
        return "welcome"

    @app.tool
    def counted(inputs: Inputs, kept: State[int]) -> str | InputRequired:
        """Keep a state before it asks."""
        if kept.value is None:
            return InputRequired(state=1)
        login = inputs.get("login", Login)
        return InputRequired(login=Elicit("Who?", Login)) if login is None else f"{login.name} {kept.value}"

    @app.tool
    async def changes(ctx: Context, items: list[Any]) -> str:
        """Change what it was given."""
        items.append("more")
        await ctx.elicit("Who?", Login)
        return f"{len(items)}"

    @app.tool
    async def counting(ctx: Context) -> str:
        """Tell how far it has come, again in each round."""
        await ctx.progress(1, 2)
        await ctx.elicit("Where to?", Email)
        await ctx.progress(2, 2)
        return "there"

    @app.tool(authorize=lambda caller, name: False, single_use=True)
    async def hidden(ctx: Context) -> str:
        await ctx.elicit("Who?", Login)
        return "found"

    @app.prompt
    async def review(ctx: Context) -> str:
        return (await ctx.elicit("Who?", Login)).name

    @app.resource("mine://notes")
    async def notes(ctx: Context) -> str:
        return (await ctx.elicit("Whose?", Login)).name

    return app


@pytest.fixture(scope="module")
def wires() -> Iterator[dict[str, Wire]]:
    """A server for each encoding."""
    with ExitStack() as stack:
        wires = {}
        for encoding in ENCODINGS:
            wires[encoding] = Wire(f"http://127.0.0.1:{stack.enter_context(in_thread(serving(encoding)))}/mcp")
            stack.callback(wires[encoding].close)
        yield wires


@pytest.fixture(params=ENCODINGS)
def wire(wires: dict[str, Wire], request: pytest.FixtureRequest) -> Wire:
    return wires[request.param]


def named(name: str, value: Any) -> JSON:
    return {"name": name, "value": value}


def call(wire: Wire, tool: str, arguments: JSON | None = None, **beside: Any) -> Reply:
    """Call a tool, with these members beside `params`."""
    return wire.draft({**request("tools/call", {"name": tool, "arguments": arguments or {}}), **beside})


def asked(reply: Reply) -> list[JSON]:
    """Return the parameters of what a reply asks, in each encoding."""
    message = reply.message
    assert reply.status == 200, reply.body
    if "method" in message:
        return [message["params"]]
    if "AdditionalInfoRequested" in message["result"]:
        lists = message["result"]["AdditionalInfoRequested"].values()
        return [item["params"] for items in lists for item in items]
    return [block for block in message["result"]["content"] if block["type"] != "text"]


def state_of(reply: Reply) -> str:
    """Return the state in a reply: beside what it asks."""
    message = reply.message
    return str(message["requestState"] if "method" in message else message["result"]["requestState"])


def messages(reply: Reply) -> list[str]:
    return [params["message"] for params in asked(reply)]


def refused(reply: Reply, words: str) -> None:
    assert (reply.status, reply.code) == (400, INVALID_PARAMS), reply.body
    assert words in reply.error.message


class TestAClientThatSendsItsStateBack:
    def test_goes_on_with_its_flow(self, wire: Wire) -> None:
        EFFECTS.clear()
        first = call(wire, "build", {"what": "a house"})
        done = call(wire, "build", {"what": "a house"}, elicitation=named("name", "ada"), requestState=state_of(first))
        assert done.text == "a house for ada"
        assert EFFECTS == {"a house": 1}, "a step runs once in a flow"

    def test_may_have_it_in_its_params_too(self, wire: Wire) -> None:
        params = {"name": "greet", "requestState": state_of(call(wire, "greet")), "elicitation": [named("name", "ada")]}
        assert wire.draft(request("tools/call", params)).text == "Hello, ada"

    def test_answers_in_several_rounds(self, wire: Wire) -> None:
        first = call(wire, "in_turn")
        second = call(wire, "in_turn", elicitation=named("name", "ada"), requestState=state_of(first))
        assert messages(second) == ["Who is second?"]
        done = call(wire, "in_turn", elicitation=named("name", "bob"), requestState=state_of(second))
        assert done.text == "ada, bob"

    def test_confirms_once(self, wire: Wire) -> None:
        EFFECTS.clear()
        state = state_of(call(wire, "deploy", {"service": "web"}))
        for _ in range(2):
            yes = call(wire, "deploy", {"service": "web"}, elicitation=named("confirm", True), requestState=state)
            assert yes.text == "web"
        other = call(wire, "deploy", {"service": "web"}, elicitation=named("confirm", False), requestState=state)
        assert other.error.message == FROZEN
        assert EFFECTS == {"web": 1}

    def test_calls_tools_that_are_redeemed_once(self, wire: Wire) -> None:
        EFFECTS.clear()
        state = state_of(call(wire, "pay", {"order": "o1"}))
        paid = [
            call(wire, "pay", {"order": "o1"}, elicitation=named("name", "ada"), requestState=state).text
            for _ in range(3)
        ]
        assert paid == ["o1"] * 3
        begun = call(wire, "ship", {"order": "o2"})
        assert begun.result.keys() == {"requestState"}, "the state goes out before the first step"
        assert EFFECTS == {"o1": 1}
        shipped = [call(wire, "ship", {"order": "o2"}, requestState=state_of(begun)).text for _ in range(2)]
        assert shipped == ["o2"] * 2
        assert EFFECTS == {"o1": 1, "o2": 1}

    def test_opens_a_page(self, wire: Wire) -> None:
        first = call(wire, "visit")
        assert asked(first)[0]["mode"] == "url"
        done = call(wire, "visit", elicitation={"action": "accept"}, requestState=state_of(first))
        assert done.text == "welcome"

    def test_is_bound_to_its_request_and_its_key(self, wire: Wire) -> None:
        state = state_of(call(wire, "deploy", {"service": "web"}))
        yes = named("confirm", True)
        wrong: Any
        for wrong in (state[:-2], state.partition(".")[2][:-1], f"x{state}"[:40], "", ".", "e30.", 5, ["x"]):
            refused(call(wire, "deploy", {"service": "web"}, elicitation=yes, requestState=wrong), FROZEN)
        refused(call(wire, "deploy", {"service": "mail"}, elicitation=yes, requestState=state), FROZEN)
        refused(call(wire, "greet", elicitation=yes, requestState=state), FROZEN)

    def test_can_only_name_its_own_answers_by_what_it_writes_before_the_seal(self, wire: Wire) -> None:
        """That part is no secret, and not sealed: it says which of the client's values go to which of its questions."""
        EFFECTS.clear()
        state = state_of(call(wire, "deploy", {"service": "web"}))
        written, _, sealed = state.partition(".")
        assert json.loads(urlsafe_b64decode(written)) == {"confirm": ["elicitation", ["confirm"]]}

        def before(places: Any) -> str:
            return f"{urlsafe_b64encode(json.dumps(places).encode()).decode()}.{sealed}"

        misdirected = before({"login": ["elicitation", ["confirm"]]})
        asked_again = call(
            wire, "deploy", {"service": "web"}, elicitation=named("confirm", True), requestState=misdirected
        )
        assert messages(asked_again) == ["Deploy web?"]
        assert EFFECTS == {}
        mistaken: list[Any] = [[], 5, {"confirm": 5}, {"confirm": ["x", []]}, {"confirm": ["elicitation", 5]}]
        for wrong in (*mistaken, {"a": [[], {}]}):
            reply = call(
                wire, "deploy", {"service": "web"}, elicitation=named("confirm", True), requestState=before(wrong)
            )
            refused(reply, FROZEN)
        long = {"x" * 300: ["elicitation", ["confirm"]]}
        refused(
            call(wire, "deploy", {"service": "web"}, elicitation=named("confirm", True), requestState=before(long)),
            "inputResponses is longer than 256 characters",
        )
        many = {"confirm": ["elicitation", [f"n{number}" for number in range(9_000)]]}
        refused(call(wire, "deploy", {"service": "web"}, requestState=before(many)), FROZEN)


class TestAClientThatSendsNoState:
    def test_begins_anew_and_runs_each_step_once(self, wire: Wire) -> None:
        EFFECTS.clear()
        assert messages(call(wire, "build", {"what": "a boat"})) == ["For whom?"]
        assert EFFECTS == {"a boat": 1}
        assert call(wire, "build", {"what": "a boat"}, elicitation=named("name", "ada")).text == "a boat for ada"
        assert EFFECTS == {"a boat": 2}, "once in each flow"

    def test_may_answer_at_once(self, wire: Wire) -> None:
        for _ in range(25):  # each of them answers what it was asked, so none is put off
            assert call(wire, "greet", elicitation=named("name", "ada")).text == "Hello, ada"

    def test_can_not_confirm_what_nobody_saw(self, wire: Wire) -> None:
        EFFECTS.clear()
        for yes in (
            named("confirm", True),
            [named("confirm", True)],
            {"action": "accept", "content": {"confirm": True}},
        ):
            refused(call(wire, "deploy", {"service": "web"}, elicitation=yes), "send back the requestState")
        refused(call(wire, "visit", elicitation={"action": "accept"}), "send back the requestState")
        assert EFFECTS == {}

    def test_can_not_call_a_tool_that_is_redeemed_once(self, wire: Wire) -> None:
        EFFECTS.clear()
        for tool in ("pay", "ship"):
            reply = call(wire, tool, {"order": "o1"}, elicitation=named("name", "ada"))
            refused(reply, "Each state of this tool is redeemed once: send back the requestState")
        for _ in range(2):
            assert call(wire, "ship", {"order": "o1"}).result.keys() == {"requestState"}
        assert EFFECTS == {}

    def test_learns_nothing_of_a_tool_that_is_not_shown(self, wire: Wire) -> None:
        there, nowhere = (
            call(wire, tool, elicitation=named("name", "ada")).error.message for tool in ("hidden", "nowhere")
        )
        assert there.replace("hidden", "nowhere") == nowhere

    def test_is_refused_where_more_is_asked_than_it_was_shown_first(self, wire: Wire) -> None:
        """The name of a field would be that of either question, and what one person said would answer another."""
        for _ in range(2):
            reply = call(wire, "in_turn", elicitation=named("name", "ada"))
            refused(reply, "This request asks more than once")
        second = call(wire, "in_turn", requestState=reply.error.data["requestState"])
        assert messages(second) == ["Who is second?"], "nothing is lost for a client that can send it back"
        done = call(wire, "in_turn", elicitation=named("name", "bob"), requestState=state_of(second))
        assert done.text == "ada, bob"

    def test_answers_all_rounds_at_once_where_each_name_is_that_of_one_question(self, wire: Wire) -> None:
        both = [named("address", "home"), named("name", "ada")]
        assert call(wire, "in_stages", elicitation=both).text == "ada, home"
        assert call(wire, "in_stages", elicitation=both[::-1]).text == "ada, home"
        assert messages(call(wire, "in_stages", elicitation=both[1])) == ["Where to?"]
        assert messages(call(wire, "in_stages", elicitation=both[0])) == ["Who?"], "the first is not answered"
        (again,) = messages(call(wire, "in_stages", elicitation=[both[1], named("address", 5)]))
        assert again.endswith(" — Where to?")
        declined = [both[1], {"name": "address", "action": "decline"}]
        assert call(wire, "in_stages", elicitation=declined).result["isError"] is True

    def test_answers_only_what_it_was_shown_first_where_it_names_no_field(self, wire: Wire) -> None:
        yes = {"action": "accept", "content": {"name": "ada", "address": "home"}}
        assert messages(call(wire, "in_stages", elicitation=yes)) == ["Where to?"]

    def test_confirms_nothing_in_a_later_round_either(self, wire: Wire) -> None:
        EFFECTS.clear()
        everything = [named("name", "ada"), named("address", "home"), named("confirm", True)]
        for given in (everything, everything[:2]):
            reply = call(wire, "in_stages", {"what": "money"}, elicitation=given)
            refused(reply, "This request asks more than once: continue with the requestState that is here")
        shown = call(wire, "in_stages", {"what": "money"}, requestState=reply.error.data["requestState"])
        assert messages(shown) == ["Send money?"]
        assert EFFECTS == {}

    def test_answers_no_question_whose_key_and_names_have_been_those_of_another(self, wire: Wire) -> None:
        both = [named("name", "ada"), named("address", "home")]
        refused(call(wire, "changing_form", elicitation=both), "This request asks more than once")

    def test_is_asked_again_for_what_does_not_fit(self, wire: Wire) -> None:
        (again,) = messages(call(wire, "greet", elicitation=named("name", 5)))
        assert again.endswith(" — Who are you?")
        assert "name" in again
        assert call(wire, "greet", elicitation=named("name", "ada")).text == "Hello, ada"

    def test_says_no_in_words_of_its_own(self, wire: Wire) -> None:
        for no in ({"name": "name", "action": "decline"}, {"action": "cancel"}):
            assert call(wire, "greet", elicitation=no).result["isError"] is True

    def test_has_unknown_names_and_lists_that_are_empty_ignored(self, wire: Wire) -> None:
        unknown: list[JSON] = [
            {"elicitation": named("email", "x")},
            {"elicitation": []},
            {"sampling": {}},
            {"roots": []},
        ]
        for beside in unknown:
            assert messages(call(wire, "greet", **beside)) == ["Who are you?"]

    def test_finds_its_way_past_a_state_that_a_function_keeps(self, wire: Wire) -> None:
        assert messages(call(wire, "counted")) == ["Who?"]
        assert call(wire, "counted", elicitation=named("name", "ada")).text == "ada 1"

    def test_has_its_arguments_as_it_sent_them(self, wire: Wire) -> None:
        reply = call(wire, "changes", {"items": [["x"]]}, elicitation=named("name", "ada"))
        assert reply.text == "2"

    def test_sees_progress_grow(self, wire: Wire) -> None:
        params = {"name": "counting", "_meta": {"progressToken": "t"}}
        message = {**request("tools/call", params), "elicitation": named("address", "home")}
        reply = wire.send(json.dumps(message).encode(), {"Content-Type": "application/json", "Accept": ACCEPT})
        *told, done = reply.received
        assert [note["params"]["progress"] for note in told] == [1, 2]
        assert text_of(done) == "there"

    def test_may_ask_for_prompts_and_resources(self, wire: Wire) -> None:
        prompt = wire.draft({**request("prompts/get", {"name": "review"}), "elicitation": named("name", "ada")})
        assert prompt.result["messages"][0]["content"]["text"] == "ada"
        read = wire.draft({**request("resources/read", {"uri": "mine://notes"}), "elicitation": named("name", "bob")})
        assert read.result["contents"][0]["text"] == "bob"
        refused_call = wire.draft({**request("tools/list"), "elicitation": named("name", "ada")})
        assert "tools" in refused_call.result, "where nothing asks, an answer is ignored"


class TestSeveralQuestions:
    PEOPLE = (named("name", "ada"), named("name", "bob"))

    def test_come_one_by_one_where_a_reply_is_one_question(self, wires: dict[str, Wire]) -> None:
        wire = wires[BARE]
        first = call(wire, "side_by_side")
        assert messages(first) == ["Who is first?"]
        second = call(wire, "side_by_side", elicitation=named("name", "ada"), requestState=state_of(first))
        assert messages(second) == ["Who is second?"]
        done = call(wire, "side_by_side", elicitation=named("name", "bob"), requestState=state_of(second))
        assert done.text == "ada, bob"
        refused(call(wire, "side_by_side", elicitation=named("name", "ada")), "asks several questions, one at a time")

    def test_with_names_of_their_own_are_answered_at_once_or_one_by_one(self, wires: dict[str, Wire]) -> None:
        wire = wires[BARE]
        assert messages(call(wire, "optional")) == ["Who?"]
        assert messages(call(wire, "optional", elicitation=named("name", "ada"))) == ["What else?"]
        both = [named("gift", True), named("name", "ada")]
        assert call(wire, "optional", elicitation=both).text == "ada True"

    @pytest.mark.parametrize("encoding", [LISTS, CONTENT])
    @pytest.mark.parametrize("with_state", [True, False])
    def test_are_answered_in_their_order(self, wires: dict[str, Wire], encoding: str, with_state: bool) -> None:
        wire = wires[encoding]
        first = call(wire, "side_by_side")
        assert messages(first) == ["Who is first?", "Who is second?"]
        beside: JSON = {"requestState": state_of(first)} if with_state else {}
        assert call(wire, "side_by_side", elicitation=self.PEOPLE, **beside).text == "ada, bob"
        for people in (self.PEOPLE[:1], (*self.PEOPLE, self.PEOPLE[0])):
            refused(call(wire, "side_by_side", elicitation=people, **beside), "2 were asked for")
        refused(call(wire, "side_by_side", elicitation={"action": "accept"}, **beside), "needs the name of a field")

    @pytest.mark.parametrize("with_state", [True, False])
    def test_are_of_every_kind(self, wires: dict[str, Wire], with_state: bool) -> None:
        wire = wires[LISTS]
        first = call(wire, "mixed")
        lists = first.result["AdditionalInfoRequested"]
        assert {kind: len(items) for kind, items in lists.items()} == {"elicitation": 1, "sampling": 1, "roots": 1}
        assert lists["sampling"][0]["params"]["messages"][0]["content"]["text"] == "Say hello"
        given: JSON = {
            "elicitation": [named("name", "ada")],
            "sampling": [{"role": "assistant", "content": {"type": "text", "text": "hello"}, "model": "m"}],
            "roots": [{"roots": [{"uri": "file:///x"}]}],
        }
        beside: JSON = {"requestState": state_of(first)} if with_state else {}
        assert call(wire, "mixed", **given, **beside).text == "ada hello file:///x"
        twice = {**given, "sampling": given["sampling"] * 2}
        refused(call(wire, "mixed", **twice, **beside), "sampling has 2 answers, and 1 were asked for")

    def test_of_every_kind_come_one_by_one(self, wires: dict[str, Wire]) -> None:
        wire = wires[BARE]
        given = {
            "elicitation/create": {"elicitation": named("name", "ada")},
            "sampling/createMessage": {"sampling": {"role": "assistant", "content": {"type": "text", "text": "hello"}}},
            "roots/list": {"roots": {"roots": [{"uri": "file:///x"}]}},
        }
        reply = call(wire, "mixed")
        for method, beside in given.items():
            assert reply.message["method"] == method
            reply = call(wire, "mixed", requestState=state_of(reply), **beside)
        assert reply.text == "ada hello file:///x"

    def test_of_every_kind_are_content(self, wires: dict[str, Wire]) -> None:
        blocks = call(wires[CONTENT], "mixed").result["content"]
        assert [block["type"] for block in blocks] == ["elicitation", "sampling", "roots"]

    @pytest.mark.parametrize("encoding", [LISTS, CONTENT])
    def test_with_nothing_required_are_not_answered_by_silence(self, wires: dict[str, Wire], encoding: str) -> None:
        wire = wires[encoding]
        assert messages(call(wire, "optional", elicitation=named("name", "ada"))) == ["What else?"]
        both = [named("name", "ada"), named("gift", True)]
        assert call(wire, "optional", elicitation=both).text == "ada True"


class TestBadInput:
    @pytest.mark.parametrize("beside", [{"elicitation": 5}, {"elicitation": [5]}, {"sampling": "x"}, {"roots": [[]]}])
    def test_answers_that_are_no_objects_are_invalid_params(self, wire: Wire, beside: JSON) -> None:
        refused(call(wire, "greet", **beside), "must be an object, or a list of objects")

    def test_names_that_are_no_text_or_too_long_are_invalid_params(self, wire: Wire) -> None:
        refused(call(wire, "greet", elicitation=named(5, "x")), "must be a string")  # type: ignore[arg-type]
        refused(call(wire, "greet", elicitation=named("x" * 300, "x")), "longer than 256 characters")

    def test_answers_in_two_forms_or_two_places_are_invalid_params(self, wire: Wire) -> None:
        both: JSON = {"elicitation": named("name", "ada"), "inputResponses": {"login": accept(name="ada")}}
        refused(call(wire, "greet", **both), "either inputResponses, or elicitation")
        params = {"name": "greet", "elicitation": named("name", "bob")}
        reply = wire.draft({**request("tools/call", params), "elicitation": named("name", "ada")})
        refused(reply, "and they differ")

    def test_answers_by_key_are_taken_as_ever(self, wire: Wire) -> None:
        assert call(wire, "greet", inputResponses={"login": accept(name="ada")}).text == "Hello, ada"
        state = state_of(call(wire, "greet"))
        kept = call(wire, "greet", inputResponses={"login": accept(name="ada")}, requestState=state)
        assert kept.text == "Hello, ada"

    def test_more_answers_than_questions_are_invalid_params(self, wire: Wire) -> None:
        many = [named(f"n{number}", number) for number in range(20_000)]
        fields = ["elicitation", [f"n{number}" for number in range(1_000)]]
        written = urlsafe_b64encode(json.dumps({"one": fields, "other": fields}).encode()).decode()
        state = f"{written}.{state_of(call(wire, 'greet')).partition('.')[2]}"
        refused(call(wire, "greet", elicitation=many, requestState=state), "1 answers with the name 'n0', and 2")


class TestTasks:
    def start(self, wire: Wire, tool: str) -> str:
        reply = wire.draft(request("tools/call", {"name": tool, "task": {"ttl": 60000}}))
        return str(reply.result["task"]["taskId"])

    def about(self, wire: Wire, method: str, task: str) -> Reply:
        return wire.draft(request(f"tasks/{method}", {"taskId": task}))

    def respond(self, wire: Wire, task: str, answer: JSON, **meta: Any) -> Reply:
        related = {RELATED: {"taskId": task}, **meta}
        return wire.draft({"jsonrpc": "2.0", "id": 9, "result": answer, "_meta": related})

    def test_that_ask_several_things_name_them_and_take_answers_by_these_names(self, wire: Wire) -> None:
        task = self.start(wire, "side_by_side")
        reply = self.about(wire, "result", task)
        if "method" in reply.message:
            keys = [reply.message["_meta"][KEY]]
        else:
            lists = reply.result.get("AdditionalInfoRequested", {}).get("elicitation", [])
            keys = [item["_meta"][KEY] for item in (lists or reply.result["content"])]
        assert keys == ["first", "second"][: len(keys)]
        taken = self.respond(wire, task, accept(name="ada"), **{KEY: "first"})
        assert (taken.status, taken.body) == (202, b"")
        rest = self.about(wire, "result", task)
        assert messages(rest) == ["Who is second?"]
        assert KEY not in rest.body.decode()
        again = self.respond(wire, task, accept(name="eve"), **{KEY: "first"})
        assert again.status == 202, "what is answered is not asked any more"
        self.respond(wire, task, accept(name="bob"))
        assert self.about(wire, "result", task).text == "ada, bob"

    def test_take_a_response_without_a_name_for_the_question_that_alone_was_shown(self, wires: dict[str, Wire]) -> None:
        wire = wires[BARE]
        task = self.start(wire, "side_by_side")
        for name, message in (("ada", "Who is first?"), ("bob", "Who is second?")):
            assert messages(self.about(wire, "result", task)) == [message]
            assert self.respond(wire, task, accept(name=name)).status == 202
        assert self.about(wire, "result", task).text == "ada, bob"

    @pytest.mark.parametrize("encoding", [LISTS, CONTENT])
    def test_refuse_one_where_several_of_its_kind_were_shown(self, wires: dict[str, Wire], encoding: str) -> None:
        task = self.start(wires[encoding], "side_by_side")
        asked_for = self.about(wires[encoding], "result", task)
        unnamed = self.respond(wires[encoding], task, accept(name="ada"))
        refused(unnamed, "The task has 2 questions open, so an answer must name the one that it answers")
        assert messages(self.about(wires[encoding], "result", task)) == messages(asked_for)

    def test_take_responses_without_a_name_by_their_kind_in_any_order(self, wire: Wire) -> None:
        task = self.start(wire, "mixed")
        asked(self.about(wire, "result", task))
        said = {"role": "assistant", "content": {"type": "text", "text": "hello"}, "model": "m"}
        for answer in ({"roots": [{"uri": "file:///x"}]}, said, accept(name="ada")):
            assert self.respond(wire, task, answer).status == 202
        assert self.about(wire, "result", task).text == "ada hello file:///x"

    def test_take_no_yes_without_a_name_where_something_else_is_asked(self, wire: Wire) -> None:
        """It may be a second delivery of the answer to another question."""
        EFFECTS.clear()
        task = self.start(wire, "deploy_and_tell")
        asked(self.about(wire, "result", task))
        refused(self.respond(wire, task, accept(confirm=True)), "must name the one that it answers")
        said = {"role": "assistant", "content": {"type": "text", "text": "hello"}, "model": "m"}
        self.respond(wire, task, accept(confirm=True), **{KEY: "confirm"})
        self.respond(wire, task, said)
        assert self.about(wire, "result", task).text == "web hello"

    def test_take_no_second_delivery_of_a_yes_for_a_later_confirmation(self, wire: Wire) -> None:
        EFFECTS.clear()
        task = self.start(wire, "deploy_all")
        first = self.about(wire, "result", task)
        assert messages(first) == ["Deploy web?"]
        assert KEY not in first.body.decode()
        self.respond(wire, task, accept(confirm=True))
        assert messages(self.about(wire, "result", task)) == ["Deploy mail?"]
        refused(self.respond(wire, task, accept(confirm=True)), "must name its question")
        self.respond(wire, task, accept(confirm=True), **{KEY: "web"})
        shown = self.about(wire, "result", task)
        assert (messages(shown), EFFECTS) == (["Deploy mail?"], {"web": 1})
        assert f'"{KEY}":"mail"' in shown.body.decode()
        self.respond(wire, task, accept(confirm=True), **{KEY: "mail"})
        assert self.about(wire, "result", task).text == "all"
        assert EFFECTS == {"web": 1, "mail": 1}

    def test_take_an_error_as_that_of_a_person_who_does_not_answer(self, wire: Wire) -> None:
        task = self.start(wire, "greet")
        assert self.fail(wire, task, {"code": -1, "message": "The user closed the form"}).status == 202
        assert self.about(wire, "result", task).result["isError"] is True

    @pytest.mark.parametrize(
        ("code", "words"), [(-1, "did not fulfil sampling/createMessage: no model here"), (-32601, "sampling")]
    )
    def test_fail_with_an_error_where_nobody_can_be_asked_instead(self, wire: Wire, code: int, words: str) -> None:
        task = self.start(wire, "say_hello")
        asked(self.about(wire, "result", task))
        assert self.fail(wire, task, {"code": code, "message": "no model here"}).status == 202
        assert words in self.about(wire, "result", task).error.message

    def test_take_no_error_that_names_no_task(self, wire: Wire) -> None:
        reply = wire.draft({"jsonrpc": "2.0", "id": 9, "error": {"code": -1, "message": "no"}})
        assert (reply.status, reply.code) == (400, -32600)

    def test_return_no_state_alone_while_they_work(self) -> None:
        """No draft of these encodings knows one: the error says what to do instead."""
        for encoding, waits in ((BARE, "input_require"), (LISTS, "input_required"), (CONTENT, "input_require")):
            with in_thread(serving(encoding, limits=Limits(result_wait_seconds=0.05, first_ask_seconds=0.05))) as port:
                wire = Wire(f"http://127.0.0.1:{port}/mcp")
                task = self.start(wire, "hang")
                reply = self.about(wire, "result", task)
                refused(reply, f"Send tasks/get until its status is {waits} or")
                assert reply.error.data == {"taskId": task}
                assert "requestState" not in reply.body.decode()
                self.about(wire, "cancel", task)
                wire.close()

    def test_show_what_there_is_of_a_result_beside_a_question(self, wires: dict[str, Wire]) -> None:
        """Option Two of the message structure: partial results, and input that is asked for, in one reply."""
        wire = wires[CONTENT]
        task = self.start(wire, "story")
        for _ in range(2):
            *partial, question = self.about(wire, "result", task).result["content"]
            assert [block.get("text") for block in partial] == ["Once upon a time"]
            assert (question["type"], question["message"]) == ("elicitation", "Who is the hero?")
        self.respond(wire, task, accept(name="ada"))
        assert self.about(wire, "result", task).text == "Once upon a time, ada went home"

    def fail(self, wire: Wire, task: str, error: JSON) -> Reply:
        asked(self.about(wire, "result", task))
        return wire.draft({"jsonrpc": "2.0", "id": 9, "error": error, "_meta": {RELATED: {"taskId": task}}})

    @pytest.mark.parametrize(("encoding", "word"), [(BARE, "Cancelled"), (LISTS, "cancelled"), (CONTENT, "Cancelled")])
    def test_that_are_cancelled_have_the_word_of_their_draft(
        self, wires: dict[str, Wire], encoding: str, word: str
    ) -> None:
        task = self.start(wires[encoding], "greet")
        assert self.about(wires[encoding], "cancel", task).raw_result["status"] == word


def test_a_state_of_one_user_is_refused_for_another() -> None:
    auth = BearerTokens({"jane-token": "jane", "john-token": "john"})
    with in_thread(serving(LISTS, auth=auth)) as port:
        wire = Wire(f"http://127.0.0.1:{port}/mcp")

        def send(user: JSON, **beside: Any) -> Reply:
            message = {**request("tools/call", {"name": "deploy", "arguments": {"service": "web"}}), **beside}
            return wire.send(json.dumps(message).encode(), {"Content-Type": "application/json", **user})

        state = state_of(send(JANE))
        refused(send(JOHN, elicitation=named("confirm", True), requestState=state), FROZEN)
        assert send(JANE, elicitation=named("confirm", True), requestState=state).text == "web"
        wire.close()


def test_a_state_may_have_dots_in_it() -> None:
    with in_thread(serving(LISTS, codec=SignedCodec(KeyRing.generate()))) as port:
        wire = Wire(f"http://127.0.0.1:{port}/mcp")
        state = state_of(call(wire, "greet"))
        assert state.count(".") > 1
        assert call(wire, "greet", elicitation=named("name", "ada"), requestState=state).text == "Hello, ada"
        wire.close()


def test_rounds_of_one_request_have_the_budget_of_a_flow() -> None:
    app = serving(LISTS, limits=Limits(rounds=2))

    @app.tool
    def restless(kept: State[int]) -> str | InputRequired:
        return InputRequired(state=(kept.value or 0) + 1)

    with in_thread(app) as port:
        wire = Wire(f"http://127.0.0.1:{port}/mcp")
        refused(call(wire, "restless"), "more than 2 rounds")
        wire.close()


@pytest.mark.anyio
async def test_a_busy_server_returns_a_state_alone_to_clients_that_send_states_back() -> None:
    app, begun, gate = serving(BARE, limits=Limits(shed_above=1)), asyncio.Event(), asyncio.Event()

    @app.tool
    async def hold() -> str:
        begun.set()
        await gate.wait()
        return "held"

    async with httpx.AsyncClient(transport=httpx.ASGITransport(app=app), base_url="http://localhost") as client:

        async def send(tool: str, **beside: Any) -> httpx.Response:
            return await client.post("/mcp", json={**request("tools/call", {"name": tool}), **beside})

        asked = (await send("greet")).json()
        assert asked["method"] == "elicitation/create"
        holding = asyncio.create_task(send("hold"))
        await begun.wait()
        turned_away = await send("greet", elicitation=named("name", "ada"))
        assert (turned_away.status_code, "retry-after" in turned_away.headers) == (503, True)
        handed_over = await send("greet", elicitation=named("name", "ada"), requestState=asked["requestState"])
        result = handed_over.json()["result"]
        assert result.keys() == {"requestState"}
        gate.set()
        assert text_of((await holding).json()) == "held"
        done = (await send("greet", requestState=result["requestState"])).json()["result"]
        assert done["content"][0]["text"] == "Hello, ada"


def test_a_client_on_standard_input_is_served_alike() -> None:
    with over_pipes(serving(BARE)) as client:
        params = {"name": "greet", "arguments": {}}
        client.send(id=1, method="tools/call", params=params, elicitation=named("name", "ada"))
        assert text_of(client.next()) == "Hello, ada"
