"""What a handler asks reaches a client of the handshake era while its call is open, and the answer comes back."""

import asyncio
import json
import threading
import time
from typing import Any, Literal

import pytest
from pydantic import BaseModel, Field

from mrtr_server import AudioContent, Context, Elicit, Limits, MRTRServer, Sample

from ..support.effects import EFFECTS
from ..support.handshake import JSON, NEWEST, OLDER, Handshake, Stream
from ..support.models import Login
from ..support.wire import PREFIX, request, text_of
from .conftest import Connect

TEXT = {"type": "text", "text": "hello"}
SAMPLED = {"role": "assistant", "content": TEXT, "model": "m"}


class Needed(BaseModel):
    """A form with a choice of several, which has to be made."""

    toppings: list[Literal["cheese", "olives"]]


class Optional(BaseModel):
    """A form with such a choice alone, which may be left out."""

    toppings: list[Literal["cheese", "olives"]] = Field(default=[])


class TestOneQuestion:
    def test_it_is_a_request_on_the_stream_of_the_call_and_its_answer_a_post(self, connect: Connect) -> None:
        client = connect()
        with client.calling("greet", greeting="Good day") as stream:
            asked = stream.ask()
            assert asked["method"] == "elicitation/create"
            assert asked["params"]["message"] == "Who are you?"
            client.accept(asked, name="octocat")
            response = stream.end()
        assert response["id"] == client.ids
        assert text_of(response) == "Good day, octocat!"
        assert EFFECTS == ["greeted octocat"]

    @pytest.mark.parametrize("tool", ["greet", "greet_purely"])
    def test_every_style_asks_the_same(self, connect: Connect, tool: str) -> None:
        client = connect()
        with client.calling(tool) as stream:
            client.accept(stream.ask(), name="octocat")
            assert text_of(stream.end()) == "Hello, octocat!"

    def test_each_round_has_the_arguments_as_they_were_sent(self, connect: Connect) -> None:
        def register(app: MRTRServer) -> MRTRServer:
            @app.tool
            async def book(order: dict[str, Any], ctx: Context) -> str:
                order["seats"].append("one more")
                for key in ("first", "second", "third"):
                    await ctx.confirm("Book it?", key=key)
                return ", ".join(order["seats"])

            return app

        client = connect(servers=2, register=register)
        with client.calling("book", order={"seats": ["A1"]}) as stream:
            client.accept(stream.ask(), confirm=True)
            client.accept(stream.ask(), confirm=True)
            last = stream.ask()
        with client.resume(stream.last_id) as stream:
            client.accept(last, confirm=True)
            assert text_of(stream.end()) == "A1, one more"

    def test_prompts_and_resources_ask_as_well(self, connect: Connect) -> None:
        client = connect()
        with client.open("prompts/get", {"name": "greeting"}) as stream:
            client.accept(stream.ask(), name="octocat")
            assert stream.end()["result"]["messages"][0]["content"]["text"] == "Greet octocat"
        with client.open("resources/read", {"uri": "notes://mine"}) as stream:
            client.accept(stream.ask(), name="octocat")
            assert stream.end()["result"]["contents"][0]["text"] == "the notes of octocat"

    def test_an_answer_counts_whatever_its_headers(self, connect: Connect) -> None:
        client = connect()
        with client.calling("greet") as stream:
            asked = stream.ask()
            reply = client.answer(
                asked,
                {"action": "accept", "content": {"name": "octocat"}},
                MCP_Protocol_Version=None,
                Mcp_Session_Id=None,
            )
            assert reply.status == 202
            assert text_of(stream.end()) == "Hello, octocat!"

    def test_the_first_answer_counts(self, connect: Connect) -> None:
        client = connect()
        with client.calling("order", title="Emma") as stream:
            asked = stream.ask()
            client.accept(asked, name="first")
            second = stream.ask()
            client.accept(asked, name="second")
            client.accept(second, confirm=True)
            for question in (stream.ask(), stream.ask()):
                client.accept(question, name="x")
            assert text_of(stream.end()) == "Emma of first, from x, for x"

    def test_an_answer_that_does_not_fit_is_asked_for_again_with_the_reason(self, connect: Connect) -> None:
        client = connect()
        with client.calling("greet") as stream:
            first = stream.ask()
            client.accept(first, name=7)
            again = stream.ask()
            assert again["id"] != first["id"]
            assert again["params"]["message"].endswith(" — Who are you?")
            client.accept(again, name="octocat")
            assert text_of(stream.end()) == "Hello, octocat!"

    @pytest.mark.parametrize("action", ["decline", "cancel"])
    def test_a_no_ends_the_call_with_a_result_that_says_so(self, connect: Connect, action: str) -> None:
        client = connect()
        with client.calling("greet") as stream:
            assert client.answer(stream.ask(), {"action": action}).status == 202
            result = stream.end()["result"]
        assert result["isError"]
        assert EFFECTS == []

    def test_a_declined_prompt_is_an_error(self, connect: Connect) -> None:
        client = connect()
        with client.open("prompts/get", {"name": "greeting"}) as stream:
            client.answer(stream.ask(), {"action": "decline"})
            assert stream.end()["error"]["code"] == -31001

    def test_a_question_that_nobody_answers_in_time_counts_as_dismissed(self, connect: Connect) -> None:
        client = connect()
        with client.calling("hurry") as stream:
            asked = stream.ask()
            told = stream.next()
            assert told["method"] == "notifications/cancelled"
            assert told["params"] == {"requestId": asked["id"], "reason": "There was no answer in time"}
            assert stream.end()["result"]["isError"]
        assert client.answer(asked, {"action": "accept", "content": {"name": "late"}}).status == 202
        assert EFFECTS == []


class TestSeveral:
    def test_questions_side_by_side_go_out_together_and_may_be_answered_in_any_order(self, connect: Connect) -> None:
        client = connect()
        with client.calling("everything") as stream:
            asked = {message["method"]: message for message in (stream.ask(), stream.ask(), stream.ask())}
            assert client.answer(asked["roots/list"], {"roots": [{"uri": "file:///a"}]}).status == 202
            assert client.answer(asked["sampling/createMessage"], SAMPLED).status == 202
            client.accept(asked["elicitation/create"], name="octocat")
            assert text_of(stream.end()) == "hello, octocat in 1 places"

    def test_one_that_two_streams_ask_is_withdrawn_where_it_was_not_answered(self, connect: Connect) -> None:
        """Cancellation."""
        client = connect(servers=2)
        with client.calling("name_and_pizza") as stream:
            who = stream.ask()
            after_the_first = stream.last_id
            which = stream.ask()
            with client.resume(after_the_first) as again:
                client.accept(again.ask(), size="small", toppings=[])
                told = stream.next()
                assert told["method"] == "notifications/cancelled"
                assert told["params"] == {"requestId": which["id"], "reason": "It was answered elsewhere"}
                client.accept(who, name="octocat")
                assert text_of(again.end()) == "octocat: small"

    def test_one_after_the_other_on_one_stream(self, connect: Connect) -> None:
        client = connect()
        with client.calling("order", title="Emma") as stream:
            client.accept(stream.ask(), name="Jane")
            client.accept(stream.ask(), confirm=True)
            for name in ("a", "b"):
                client.accept(stream.ask(), name=name)
            assert text_of(stream.end()) in ("Emma of Jane, from a, for b", "Emma of Jane, from b, for a")
        assert EFFECTS == ["ordered Emma"]

    def test_a_single_use_tool_has_its_effect_once(self, connect: Connect) -> None:
        client = connect()
        with client.calling("pay", amount=5) as stream:
            client.accept(stream.ask(), confirm=True)
            assert text_of(stream.end()) == "paid 5"
        assert EFFECTS == ["paid 5"]

    def test_calls_side_by_side_get_their_own_answers(self, connect: Connect) -> None:
        client = connect()
        with client.calling("greet") as one, client.calling("greet") as other:
            first, second = one.ask(), other.ask()
            client.accept(second, name="second")
            client.accept(first, name="first")
            assert (text_of(one.end()), text_of(other.end())) == ("Hello, first!", "Hello, second!")


class TestErrors:
    """A client answers with an error."""

    def test_an_error_dismisses_an_elicitation(self, connect: Connect) -> None:
        client = connect()
        with client.calling("greet") as stream:
            assert client.answer(stream.ask(), error={"code": -32603, "message": "boom"}).status == 202
            assert stream.end()["result"]["isError"]

    @pytest.mark.parametrize("tool", ["say_hello", "count_roots"])
    def test_it_ends_the_call_where_nobody_else_can_answer(self, connect: Connect, tool: str) -> None:
        client = connect()
        with client.calling(tool) as stream:
            client.answer(stream.ask(), error={"code": -32603, "message": "the model is away"})
            assert "the model is away" in stream.end()["error"]["message"]

    def test_an_unknown_method_is_a_missing_capability(self, connect: Connect) -> None:
        client = connect()
        with client.calling("say_hello") as stream:
            client.answer(stream.ask(), error={"code": -32601, "message": "Method not found"})
            error = stream.end()["error"]
        assert error["data"] == {"requiredCapabilities": {"sampling": {}}}
        assert "sampling" in error["message"]


CAPABILITIES = PREFIX + "clientCapabilities"
ASKING: dict[str, tuple[str, JSON, str]] = {
    "form": ("tools/call", {"name": "greet"}, "form elicitation"),
    "form of a pure function": ("tools/call", {"name": "greet_purely"}, "form elicitation"),
    "confirmation": ("tools/call", {"name": "pay", "arguments": {"amount": 5}}, "form elicitation"),
    "page": ("tools/call", {"name": "open_page"}, "URL elicitation"),
    "sampling": ("tools/call", {"name": "say_hello"}, "sampling"),
    "roots": ("tools/call", {"name": "count_roots"}, "roots"),
    "prompt": ("prompts/get", {"name": "greeting"}, "form elicitation"),
    "resource": ("resources/read", {"uri": "notes://mine"}, "form elicitation"),
}


class TestCapabilities:
    """They are those that the call declares, or else those of its session."""

    @pytest.mark.parametrize("session", [None, ""])
    @pytest.mark.parametrize("asks", ASKING)
    def test_a_call_that_declares_none_and_names_no_session_fails_at_once(
        self, connect: Connect, asks: str, session: str | None, caplog: pytest.LogCaptureFixture
    ) -> None:
        client = connect()
        method, params, missing = ASKING[asks]
        reply = client.send(method, params, Mcp_Session_Id=session)
        assert (reply.status, reply.code) == (200, -32021)
        assert f"did not declare: {missing}. " in reply.error.message
        assert "has neither the Mcp-Session-Id that initialize returned nor capabilities in _meta" in caplog.text
        assert client.send("tools/call", {"name": "add", "arguments": {"a": 1, "b": 2}}, Mcp_Session_Id=session).result

    @pytest.mark.parametrize("version", OLDER)
    def test_so_it_does_in_every_version(self, connect: Connect, version: str) -> None:
        client = connect(version=version)
        reply = client.send("tools/call", {"name": "say_hello"}, Mcp_Session_Id=None)
        assert (reply.status, reply.code) == (200, -32021)

    @pytest.mark.parametrize("session", ["its own", "forged", None])
    def test_what_a_call_declares_counts_before_its_session(self, connect: Connect, session: str | None) -> None:
        declares_none, declares_all = connect(capabilities={}), connect()
        params = {"name": "greet", "_meta": {CAPABILITIES: {"elicitation": {}}}}
        for client in (declares_none, declares_all):
            given = {} if session == "its own" else {"Mcp_Session_Id": session}
            with client.open("tools/call", params, **given) as stream:
                client.accept(stream.ask(), name="octocat")
                assert text_of(stream.end()) == "Hello, octocat!"
            others: list[JSON] = [{}, {"roots": {}}, {"elicitation": None}, {"elicitation": []}]
            for nothing in others:
                reply = client.send("tools/call", {**params, "_meta": {CAPABILITIES: nothing}}, **given)
                assert reply.code == -32021
            assert client.send("tools/call", {**params, "name": "open_page"}, **given).code == -32021, "forms alone"

    def test_what_a_call_declares_counts_whatever_its_version_has(self, connect: Connect) -> None:
        client = connect(version="2025-03-26", capabilities={})
        params = {"name": "greet", "_meta": {CAPABILITIES: {"elicitation": {}}}}
        with client.open("tools/call", params) as stream:
            client.accept(stream.ask(NEWEST), name="octocat")
            assert text_of(stream.end()) == "Hello, octocat!"
        assert client.call("greet").code == -32021

    def test_what_a_call_declares_counts_wherever_its_client_comes_back(self, connect: Connect) -> None:
        client = connect(servers=2)
        params = {"name": "order", "arguments": {"title": "Emma"}, "_meta": {CAPABILITIES: {"elicitation": {}}}}
        with client.open("tools/call", params, Mcp_Session_Id=None) as stream:
            client.accept(stream.ask(), name="Jane")
            asked = stream.ask()
        with client.resume(stream.last_id, Mcp_Session_Id=None) as again:
            client.accept(asked, confirm=True)
            for name in ("a", "b"):
                client.accept(again.ask(), name=name)
            assert "Emma of Jane" in text_of(again.end())

    @pytest.mark.parametrize("given", [7, "elicitation", [], ["elicitation"], True])
    @pytest.mark.parametrize("field", [CAPABILITIES, PREFIX + "clientInfo"])
    def test_what_can_t_be_a_declaration_is_refused(self, connect: Connect, field: str, given: Any) -> None:
        client = connect()
        reply = client.send("tools/call", {"name": "greet", "_meta": {CAPABILITIES: {}, field: given}})
        assert (reply.status, reply.code) == (200, -32602)
        assert field in reply.error.message
        assert client.send("tools/call", {"name": "pair", "_meta": 7}).result, "as before"

    def test_a_large_declaration_is_not_kept(self, connect: Connect) -> None:
        """Nothing but what a session would remember of it."""

        def register(app: MRTRServer) -> MRTRServer:
            @app.tool
            async def whose(ctx: Context) -> str:
                return json.dumps([ctx.client.name, ctx.client.capabilities])

            return app

        client = connect(register=register)
        meta = {
            CAPABILITIES: {"elicitation": {"form": {"a": "b" * 50_000}}, "experimental": {"c": {}}},
            PREFIX + "clientInfo": {"name": "n" * 50_000, "version": "1"},
        }
        told = json.loads(text_of(client.send("tools/call", {"name": "whose", "_meta": meta}).message))
        assert told == ["n" * 128, {"elicitation": {"form": {}}}]

    def test_what_the_client_did_not_declare_is_not_asked(self, connect: Connect) -> None:
        client = connect(capabilities={"elicitation": {}})
        reply = client.call("say_hello")
        assert (reply.status, reply.code) == (200, -32021)
        assert "sampling" in reply.error.message
        reply = client.call("open_page")
        assert "URL elicitation" in reply.error.message

    def test_without_a_session_that_opens_all_is_asked(self, connect: Connect) -> None:
        client = connect(capabilities={})
        client.session = "forged"
        with client.calling("greet") as stream:
            client.accept(stream.ask(), name="octocat")
            assert text_of(stream.end()) == "Hello, octocat!"

    def test_a_client_that_takes_no_stream_reads_what_it_needs(self, connect: Connect) -> None:
        client = connect()
        reply = client.send("tools/call", {"name": "greet"}, Accept="application/json")
        assert "text/event-stream" in reply.error.message


class TestVersions:
    def test_a_page_has_an_id(self, connect: Connect) -> None:
        client = connect()
        with client.calling("open_page") as stream:
            asked = stream.ask()
            assert asked["params"]["elicitationId"]
            client.answer(asked, {"action": "accept"})
            assert text_of(stream.end()) == "opened"

    def test_choices_of_several_that_may_be_left_out_are_left_out_for_older_clients(self, connect: Connect) -> None:
        several: tuple[JSON, ...] = {}, {"form": {}, "url": {}}
        for declared in several:
            client = connect(version="2025-06-18", capabilities={"elicitation": declared})
            with client.calling("pizza") as stream:
                asked = stream.ask()
                assert list(asked["params"]["requestedSchema"]["properties"]) == ["size"]
                client.accept(asked, size="large")
                assert text_of(stream.end()) == "large with cheese"

    def test_those_that_are_needed_are_asked_where_the_client_declares_what_came_with_them(
        self, connect: Connect, caplog: pytest.LogCaptureFixture
    ) -> None:
        """Codex CLI declares the modes of elicitation with 2025-06-18, and draws pages."""

        def register(app: MRTRServer) -> MRTRServer:
            @app.tool
            async def choose(ctx: Context) -> str:
                return " and ".join((await ctx.elicit("Which?", Needed)).toppings)

            @app.tool
            async def choose_any(ctx: Context) -> str:
                return " and ".join((await ctx.elicit("Which?", Optional)).toppings) or "none"

            @app.tool
            async def choose_beside(ctx: Context) -> str:
                await ctx.ask(Elicit("Who?", Login), Elicit("Which?", Needed))
                return "done"

            return app

        client = connect(register=register, version="2025-06-18", capabilities={"elicitation": {}})
        for tool in ("choose", "choose_any", "choose_beside"):  # nor is what could be asked beside them
            error = client.call(tool).error
            assert (error.code, error.data) == (-32021, {"protocolVersion": "2025-06-18"})
            assert "2025-06-18, which can't show a choice of several, as the field 'toppings' is" in error.message
            assert "Ask the user in the chat" in error.message
            assert f"'tools/call {tool}' was refused to the client 'tests': The client speaks 2025-06-18" in caplog.text
        client = connect(register=register, version="2025-06-18", capabilities={"elicitation": {"form": {}}})
        for tool in ("choose", "choose_any"):
            with client.calling(tool) as stream:
                client.accept(stream.ask(NEWEST), toppings=["olives"])
                assert text_of(stream.end()) == "olives"

    @pytest.mark.parametrize("version", ["2025-06-18", "2025-03-26", "2024-11-05"])
    def test_what_is_declared_is_asked_whatever_the_version(self, connect: Connect, version: str) -> None:
        client = connect(version=version, capabilities={"elicitation": {"form": {}, "url": {}}})
        with client.calling("greet") as stream:
            client.accept(stream.ask(NEWEST), name="octocat")
            assert text_of(stream.end()) == "Hello, octocat!"
        with client.calling("open_page") as stream:
            asked = stream.ask(NEWEST)
            assert (asked["params"]["mode"], bool(asked["params"]["elicitationId"])) == ("url", True)
            client.answer(asked, {"action": "accept"})
            assert text_of(stream.end()) == "opened"

    @pytest.mark.parametrize("version", ["2025-03-26", "2024-11-05"])
    def test_nothing_is_elicited_where_nothing_is_declared_and_the_version_has_none(
        self, connect: Connect, version: str
    ) -> None:
        client = connect(version=version)
        client.session = "forged"
        error = client.call("greet").error
        assert error.data == {"protocolVersion": version}
        assert f"{version}, which can't show a form" in error.message
        with client.calling("say_hello") as stream:  # which it has
            client.answer(stream.ask(), SAMPLED)
            assert text_of(stream.end()) == "hello"

    def test_what_is_sampled_is_what_the_version_knows(self, connect: Connect) -> None:
        def register(app: MRTRServer) -> MRTRServer:
            @app.tool
            async def sample(ctx: Context, kind: str) -> str:
                audio = AudioContent(data=b"audio")
                used = {"type": "tool_use", "id": "1", "name": "a", "input": {}}
                result = {"type": "tool_result", "toolUseId": "1", "content": []}
                asks = {
                    "audio": Sample(audio),
                    "used": Sample([{"role": "assistant", "content": used}, {"role": "user", "content": [result]}]),
                    "both": Sample("Hi", tools=[], include_context="thisServer"),
                    "context": Sample("Hi", include_context="thisServer"),
                }
                (sampled,) = await ctx.ask(asks[kind])
                return str(sampled.text)

            return app

        def lacks(version: str, sampling: JSON) -> dict[str, str]:
            client = connect(register=register, version=version, capabilities={"sampling": sampling})
            found = {}
            for kind in ("audio", "used", "both", "context"):
                params = {"name": "sample", "arguments": {"kind": kind}}
                with client.http.stream(
                    "POST", client.url(), json=client.request("tools/call", params), headers=client.given()
                ) as reply:
                    if reply.headers["content-type"] == "application/json":
                        found[kind] = json.loads(reply.read())["error"]["message"].partition(".")[0].rpartition(": ")[2]
                    else:
                        client.answer(Stream(reply, version).ask(NEWEST if sampling else version), SAMPLED)
            return found

        tools, context = "sampling with tools", "sampling with context"
        assert lacks(NEWEST, {}) == {"used": tools, "both": f"{tools}, {context}", "context": context}
        assert lacks(NEWEST, {"tools": {}}) == {"both": context, "context": context}
        assert lacks(NEWEST, {"tools": {}, "context": {}}) == {}
        assert lacks("2025-06-18", {}) == {"used": tools, "both": tools}
        assert lacks("2025-06-18", {"tools": {}}) == {}, "what is declared is believed"
        audio = "The client speaks 2024-11-05, which can't show audio in a sampling"
        assert lacks("2024-11-05", {}) == {"audio": audio, "used": tools, "both": tools}
        assert lacks("2024-11-05", {"tools": {}}) == {"audio": audio}

    def test_older_clients_get_forms_as_they_know_them(self, connect: Connect) -> None:
        client = connect(version="2025-06-18")
        with client.calling("fill_in") as stream:
            asked = stream.ask()
            fields = asked["params"]["requestedSchema"]["properties"]
            assert fields["name"] == {"type": "string"}
            assert fields["happy"] == {"type": "boolean", "default": True}
            assert fields["color"] == {"type": "string", "enum": ["#f00", "#00f"], "enumNames": ["Red", "Blue"]}
            assert fields["size"] == {"type": "string", "enum": ["s", "l"], "enumNames": ["Small", "Large"]}
            client.accept(asked, name="Jane", age=3, happy=False, color="#00f", size="l")
            assert text_of(stream.end()) == "Jane 3 False #00f"

    def test_the_newest_get_them_in_full(self, connect: Connect) -> None:
        client = connect()
        with client.calling("fill_in") as stream:
            fields = stream.ask()["params"]["requestedSchema"]["properties"]
        assert fields["name"] == {"type": "string", "default": "John"}
        assert fields["color"] == {
            "type": "string",
            "enum": ["#f00", "#00f"],
            "enumNames": ["Red", "Blue"],
            "default": "#f00",
        }
        assert fields["size"]["oneOf"] == [{"const": "s", "title": "Small"}, {"const": "l", "title": "Large"}]


class TestNotes:
    def test_progress_and_messages_are_on_the_same_stream(self, connect: Connect) -> None:
        client = connect()
        with client.open("tools/call", {"name": "notes", "_meta": {"progressToken": "t"}}) as stream:
            assert stream.next()["params"] == {"progressToken": "t", "progress": 1, "total": 3, "message": "first"}
            assert stream.next()["params"] == {"level": "info", "data": "begun"}
            client.accept(stream.ask(), name="Jane")
            # The handler runs again from the top; progress that it has told is not told again, since it must grow.
            assert stream.next()["params"]["data"] == "begun"
            assert stream.next()["params"]["progress"] == 2
            assert stream.next()["params"]["level"] == "warning"
            assert text_of(stream.end()) == "noted"

    @pytest.mark.parametrize("servers", [1, 2])
    def test_progress_grows_also_for_who_comes_back_to_a_stream(
        self, connect: Connect, database: str, servers: int, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The protocol wants that of all progress of one token (Progress, Behavior Requirements)."""
        monkeypatch.setattr("mrtr_server.transport.connection.KEEP_ALIVE", 0.1)
        client = connect(servers, store=database)
        with client.open("tools/call", {"name": "notes", "_meta": {"progressToken": "t"}}) as stream:
            assert stream.next()["params"]["progress"] == 1
            stream.next()
            asked = stream.ask()
        with client.resume(stream.last_id) as stream:
            shown = [stream.next()["params"]["progress"] for _ in range(2)]
            assert 1 < shown[0] < shown[1] < 2
            client.accept(asked, name="Jane")
            seen = []
            while "params" in (message := stream.next()):
                seen.append(message["params"].get("progress", 2))
            assert seen == sorted(seen)

    @pytest.mark.parametrize("tool", ["narrate", "narrate_in_a_thread"])
    def test_what_is_sent_first_comes_first(self, connect: Connect, database: str, tool: str) -> None:
        """Also while the level that the session has set is still looked up."""
        client = connect(store=database, register=register_narrating)
        with client.open("tools/call", {"name": tool, "_meta": {"progressToken": "t"}}) as stream:
            messages = []
            while "method" not in (message := stream.next()) or "id" not in message:
                messages.append(message["params"])
            assert [each.get("data") for each in messages if "level" in each] == ["begun", "done"]
            assert messages[0].get("data") == "begun"
            assert messages[-1].get("data") == "done", "the question comes last"
            progress = [each["progress"] for each in messages if "progress" in each]
            assert progress == sorted(progress)
            assert progress[-1] == 2, "newer progress may replace older, and comes before what was sent after it"

    def test_a_stream_is_kept_open_while_a_person_thinks(
        self, connect: Connect, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("mrtr_server.transport.connection.KEEP_ALIVE", 0.05)
        client = connect()
        with client.calling("greet") as stream:
            asked = stream.ask()
            timer = threading.Timer(0.3, client.accept, [asked], {"name": "octocat"})
            timer.start()
            assert text_of(stream.end()) == "Hello, octocat!"
            timer.join()
        assert stream.comments >= 2

    def test_a_quiet_stream_is_kept_open_by_no_task_of_its_own(
        self, connect: Connect, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("mrtr_server.transport.connection.KEEP_ALIVE", 0.05)
        client = connect(register=register_counting)
        with client.calling("waits") as stream:
            asked = stream.ask()
            time.sleep(0.3)
            assert client.call("writing").text == "0"
            client.accept(asked, name="octocat")
            stream.end()
        assert stream.comments >= 2

    def test_progress_grows_where_the_client_wants_some(
        self, connect: Connect, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("mrtr_server.transport.connection.KEEP_ALIVE", 0.05)
        client = connect()
        with client.open("tools/call", {"name": "greet", "_meta": {"progressToken": 7}}) as stream:
            asked = stream.ask()
            seen = [stream.next()["params"]["progress"] for _ in range(3)]
            assert seen == sorted(set(seen))
            assert 0 < seen[-1] < 1
            client.accept(asked, name="octocat")
            assert text_of(stream.end()) == "Hello, octocat!"


def register_counting(app: MRTRServer) -> MRTRServer:
    """Register a tool that asks, and one that counts the tasks that write streams."""

    @app.tool
    async def waits(ctx: Context) -> str:
        return (await ctx.elicit("Who are you?", Login)).name

    @app.tool
    async def writing() -> int:
        return sum("EventStream." in repr(each.get_coro()) for each in asyncio.all_tasks())

    return app


def register_narrating(app: MRTRServer) -> MRTRServer:
    """Register tools that tell what they do, and then ask."""

    @app.tool
    async def narrate(ctx: Context) -> str:
        await ctx.log("begun")
        for number in range(3):
            await ctx.progress(number, 3)
        await ctx.log("done")
        return (await ctx.sample("Hello?")).text

    @app.tool
    async def narrate_in_a_thread(ctx: Context) -> str:
        def tell() -> None:
            ctx.log("begun")
            for number in range(3):
                ctx.progress(number, 3)
            ctx.log("done")

        await asyncio.to_thread(tell)
        return (await ctx.sample("Hello?")).text

    return app


@pytest.fixture
def alone(connect: Connect, monkeypatch: pytest.MonkeyPatch) -> Handshake:
    """A client of a server that is one of several workers, which share no store."""
    monkeypatch.setattr("mrtr_server.deployment.shared_resources.worker_count", lambda: 4)
    return connect(register=register_asking)


def register_asking(app: MRTRServer) -> MRTRServer:
    """Register a tool that asks, and one that does not."""

    @app.tool
    async def ask(ctx: Context) -> str:
        return (await ctx.sample("Hello?")).text

    @app.tool
    def add(a: int, b: int) -> int:
        return a + b

    return app


class TestWithoutSharing:
    """Several workers that share no store."""

    def test_a_question_ends_with_an_error_that_says_what_to_do(self, alone: Handshake) -> None:
        reply = alone.call("ask")
        assert "MRTR_DATABASE_URL" in reply.error.message

    def test_all_else_works(self, alone: Handshake) -> None:
        assert alone.call("add", a=1, b=2).result["structuredContent"] == {"result": 3}


class TestReplicasWithoutSharing:
    """Several servers of one process each, with one key and no store that they share: none can know of the others."""

    @pytest.fixture
    def here(self, connect: Connect) -> Handshake:
        return connect()

    @pytest.fixture
    def elsewhere(self, connect: Connect, here: Handshake) -> Handshake:
        other = connect(begin=False)
        other.session = here.session
        return other

    def test_an_answer_that_reaches_another_one_is_refused(
        self, here: Handshake, elsewhere: Handshake, caplog: pytest.LogCaptureFixture
    ) -> None:
        with here.calling("greet") as stream:
            asked = stream.ask()
            for _ in range(2):
                refused = elsewhere.answer(asked, {"action": "accept", "content": {"name": "lost"}})
                assert refused.status == 503
                assert "id" not in refused.message, "it replies to nothing"
                assert "MRTR_DATABASE_URL" in refused.error.message
            here.accept(asked, name="octocat")
            assert text_of(stream.end()) == "Hello, octocat!"
        told = [record.getMessage() for record in caplog.records if "MRTR_DATABASE_URL" in record.getMessage()]
        assert len(told) == 1, "once a minute"
        assert "lost" not in told[0]

    def test_it_is_refused_with_an_http_error_where_the_era_alone_is_served(self, connect: Connect) -> None:
        """All errors that answer a request have the status 200 there; this one answers none."""
        here = connect()
        elsewhere = connect(begin=False, app={"dialects": [NEWEST]})
        elsewhere.session = here.session
        with here.calling("greet") as stream:
            asked = stream.ask()
            refused = elsewhere.answer(asked, {"action": "decline"})
            assert (refused.status, "id" in refused.message) == (503, False)
            deep: Any = {}
            for _ in range(100):
                deep = {"x": deep}
            assert elsewhere.answer(asked, deep).status == 400
            assert elsewhere.answer({"id": "made up"}, {}).status == 400

    def test_in_a_batch_it_is_refused_and_logged_as_well(
        self, connect: Connect, caplog: pytest.LogCaptureFixture
    ) -> None:
        here, elsewhere = connect(version="2025-06-18"), connect(version="2025-03-26")
        with here.calling("greet") as stream:
            answer = {"jsonrpc": "2.0", "id": stream.ask()["id"], "result": {"action": "decline"}}
            refused = elsewhere.post([answer])
            assert (refused.status, "id" in refused.message) == (503, False)
            replies: Any = elsewhere.post([answer, request("ping", id=1)]).message
            assert [each.get("id") for each in replies] == [1, None]
            assert "MRTR_DATABASE_URL" in replies[1]["error"]["message"]
        assert "Refused an answer to a question that another process asks" in caplog.text

    def test_a_second_answer_is_ignored_when_the_call_has_ended(self, here: Handshake) -> None:
        with here.calling("greet") as stream:
            asked = stream.ask()
            here.accept(asked, name="octocat")
            stream.end()
        here.accept(asked, name="again")
        assert EFFECTS == ["greeted octocat"]

    def test_the_one_that_a_client_has_come_back_to_takes_the_answer(
        self, here: Handshake, elsewhere: Handshake
    ) -> None:
        with here.calling("greet") as stream:
            asked = stream.ask()
        with elsewhere.resume(stream.last_id) as again:
            next(again.events())
            elsewhere.accept(asked, name="octocat")
            assert text_of(again.end()) == "Hello, octocat!"

    def test_a_successor_takes_the_answer_before_the_client_is_back(self, here: Handshake, connect: Connect) -> None:
        with here.calling("greet") as stream:
            asked = stream.ask()
        successor = connect(begin=False)
        successor.session = here.session
        successor.accept(asked, name="octocat")
        with successor.resume(stream.last_id) as again:
            assert text_of(again.end()) == "Hello, octocat!"


def test_what_the_server_holds_is_bounded(connect: Connect) -> None:
    client = connect(app={"limits": Limits(held_streams=1)})
    with client.calling("greet") as stream:
        asked = stream.ask()
        reply = client.call("greet")
        assert (reply.status, reply.code, reply.headers["retry-after"]) == (200, -31002, "30")
        assert client.call("add", a=1, b=1).status == 200
        client.accept(asked, name="octocat")
        stream.end()
    with client.calling("greet") as stream:
        stream.ask()
