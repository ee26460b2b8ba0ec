"""The dialect of the drafts, past their examples: where answers may be, what is ignored, what is never added."""

import json
from collections.abc import Iterator
from typing import Any

import pytest

from mrtr_server import Confirm, Context, InputRequired, Inputs, MRTRServer

from ..support.apps import strict
from ..support.serving import in_thread
from ..support.wire import JSON, Reply, Wire, accept, request

OCTOCAT = accept(name="octocat")
OTHER = accept(name="hubot")


@pytest.fixture(scope="module")
def wire() -> Iterator[Wire]:
    with in_thread(strict) as port:
        sender = Wire(f"http://127.0.0.1:{port}/mcp")
        yield sender
        sender.close()


def greet(wire: Wire, *, inside: JSON | None = None, top: JSON | None = None) -> Reply:
    """Call the tool that asks for a login, with these fields in `params` and at the top level."""
    return wire.draft({**request("tools/call", {"name": "greet", **(inside or {})}), **(top or {})})


class TestAnswers:
    @pytest.mark.parametrize("wrapped", [False, True], ids=["bare", "wrapped in result"])
    @pytest.mark.parametrize("place", ["inside", "top"])
    @pytest.mark.parametrize("with_state", [True, False], ids=["with the state", "without a state"])
    def test_may_be_bare_or_wrapped_in_params_or_at_the_top_level(
        self, wire: Wire, wrapped: bool, place: str, with_state: bool
    ) -> None:
        fields: JSON = {"inputResponses": {"login": {"result": OCTOCAT} if wrapped else OCTOCAT}}
        if with_state:
            fields["requestState"] = greet(wire).state
        assert greet(wire, **{place: fields}).text == "Hello, octocat"

    def test_the_state_may_be_in_different_places(self, wire: Wire) -> None:
        state = greet(wire).state
        answers = {"inputResponses": {"login": OCTOCAT}}
        assert greet(wire, inside={"requestState": state}, top=answers).text == "Hello, octocat"
        assert greet(wire, inside=answers, top={"requestState": state}).text == "Hello, octocat"

    def test_that_are_in_both_places_and_equal_are_taken(self, wire: Wire) -> None:
        fields = {"inputResponses": {"login": OCTOCAT}, "requestState": greet(wire).state}
        assert greet(wire, inside=fields, top=fields).text == "Hello, octocat"

    @pytest.mark.parametrize(
        ("inside", "top"),
        [
            ({"inputResponses": {"login": OCTOCAT}}, {"inputResponses": {"login": OTHER}}),
            ({"inputResponses": {"login": OCTOCAT}}, {"inputResponses": {}}),
            ({"inputResponses": {"login": OCTOCAT}}, {"inputResponses": {"login": {"result": OCTOCAT}}}),
            ({"requestState": "one"}, {"requestState": "two"}),
        ],
        ids=["other", "none", "the same, wrapped", "two states"],
    )
    def test_that_are_in_both_places_and_differ_are_refused(self, wire: Wire, inside: JSON, top: JSON) -> None:
        """Or a gateway could check the one, and the server take the other."""
        reply = greet(wire, inside=inside, top=top)
        assert (reply.status, reply.code) == (400, -32602)

    def test_are_unwrapped_only_where_result_is_the_only_key(self, wire: Wire) -> None:
        both = {"result": OCTOCAT, **OTHER}
        assert greet(wire, inside={"inputResponses": {"login": both}}).text == "Hello, hubot"

    @pytest.mark.parametrize("inner", [5, None, [OCTOCAT], "octocat", {"result": OCTOCAT}], ids=str)
    def test_that_are_wrapped_wrongly_bring_the_question_again(self, wire: Wire, inner: Any) -> None:
        reply = greet(wire, inside={"inputResponses": {"login": {"result": inner}}})
        assert list(reply.result["inputRequests"]) == ["login"]

    def test_under_keys_that_were_not_asked_are_ignored(self, wire: Wire) -> None:
        answers = {"login": OCTOCAT, "stranger": OTHER, "another": {"result": {}}}
        assert (
            greet(wire, inside={"inputResponses": answers, "requestState": greet(wire).state}).text == "Hello, octocat"
        )

    @pytest.mark.parametrize("wrapped", [False, True], ids=["bare", "wrapped in result"])
    @pytest.mark.parametrize("action", ["decline", "cancel"])
    def test_that_say_no_end_the_call(self, wire: Wire, wrapped: bool, action: str) -> None:
        no = {"action": action}
        reply = greet(wire, inside={"inputResponses": {"login": {"result": no} if wrapped else no}})
        assert reply.result["isError"] is True
        assert set(reply.result) == {"content", "isError"}

    def test_to_confirmations_count_only_with_the_state_that_asked(self, serve: Any) -> None:
        app = MRTRServer("confirm", keys=[bytes(32)])

        question = Confirm("Wipe it all?")

        @app.tool
        def wipe(inputs: Inputs) -> str | InputRequired:
            return "wiped" if inputs.get("confirm", question) else InputRequired(confirm=question)

        wire = serve(app)
        yes = {"name": "wipe", "inputResponses": {"confirm": {"result": accept(confirm=True)}}}
        asked = wire.draft(request("tools/call", yes))
        assert list(asked.result["inputRequests"]) == ["confirm"]
        assert wire.draft(request("tools/call", {**yes, "requestState": asked.state})).text == "wiped"


class TestResults:
    def test_that_need_input_have_a_state_the_questions_and_nothing_else(self, wire: Wire) -> None:
        reply = greet(wire)
        assert set(reply.message) == {"jsonrpc", "id", "result"}
        assert set(reply.result) == {"inputRequests", "requestState"}
        (asked,) = reply.result["inputRequests"].values()
        assert set(asked) == {"method", "params"}
        assert set(asked["params"]) == {"message", "requestedSchema"}

    def test_have_no_marks_of_the_ratified_protocol(self, wire: Wire) -> None:
        """No `resultType`, no `_meta`, no hints for caches."""
        for reply in (
            wire.draft(request("tools/call", {"name": "add", "arguments": {"a": 1}})),
            wire.draft(request("tools/list")),
            wire.draft(request("prompts/list")),
            wire.draft(request("resources/templates/list")),
        ):
            assert not {"resultType", "_meta", "ttlMs", "cacheScope"} & set(reply.result)

    def test_state_that_they_are_no_errors(self, wire: Wire) -> None:
        reply = wire.draft(request("tools/call", {"name": "add", "arguments": {"a": 1}}))
        assert reply.result == {"content": [{"type": "text", "text": "1"}], "structuredContent": 1, "isError": False}

    def test_of_prompts_and_resources_can_need_input_too(self, wire: Wire) -> None:
        params: JSON = {"name": "review", "arguments": {"language": "C"}}
        state = wire.draft(request("prompts/get", params)).state
        answers = {"inputResponses": {"login": {"result": OCTOCAT}}, "requestState": state}
        (message,) = wire.draft(request("prompts/get", {**params, **answers})).result["messages"]
        assert message == {"role": "user", "content": {"type": "text", "text": "Review this C, octocat"}}
        params = {"uri": "notes://music/1"}
        asked = wire.draft(request("resources/read", params))
        assert asked.result["inputRequests"]["roots"] == {"method": "roots/list", "params": {}}
        answers = {"inputResponses": {"roots": {"roots": []}}, "requestState": asked.state}
        assert wire.draft(request("resources/read", {**params, **answers})).result == {
            "contents": [{"uri": "notes://music/1", "mimeType": "text/plain", "text": "music 1 of 0"}]
        }

    def test_of_lists_come_in_pages(self, wire: Wire) -> None:
        first = wire.draft(request("tools/list")).result
        second = wire.draft(request("tools/list", {"cursor": first["nextCursor"]})).result
        names = [tool["name"] for tool in first["tools"] + second["tools"]]
        assert len(names) == len(set(names)) == 10

    def test_of_completions_are_served(self, wire: Wire) -> None:
        asked = {"ref": {"type": "ref/prompt", "name": "review"}, "argument": {"name": "language", "value": "p"}}
        values = {"values": ["Python", "PHP"], "total": 2, "hasMore": False}
        assert wire.draft(request("completion/complete", asked)).result == {"completion": values}


class TestClients:
    def test_are_asked_anything_since_they_declare_nothing(self, wire: Wire) -> None:
        asked = wire.draft(request("tools/call", {"name": "everything"})).result["inputRequests"]
        assert [each["method"] for each in asked.values()] == [
            "elicitation/create",
            "sampling/createMessage",
            "elicitation/create",
        ]
        url = wire.draft(request("tools/call", {"name": "visit"})).result["inputRequests"]["open_url"]["params"]
        assert url["mode"] == "url"

    def test_can_do_whatever_a_tool_asks_about_them(self, serve: Any) -> None:
        app = MRTRServer("able", keys=[bytes(32)])

        @app.tool
        async def able(ctx: Context) -> list[str]:
            asked = ("elicitation", "elicitation.url", "sampling", "sampling.tools", "roots")
            return [each for each in asked if ctx.client.supports(each)]

        assert len(serve(app).draft(request("tools/call", {"name": "able"})).result["structuredContent"]) == 5

    def test_that_ask_for_progress_get_a_stream_if_they_accept_one(self, wire: Wire) -> None:
        message = request("tools/call", {"name": "count", "arguments": {"to": 2}, "_meta": {"progressToken": 7}})
        headers = {"Content-Type": "application/json", "Accept": "text/event-stream"}
        reply = wire.send(json.dumps(message).encode(), headers)
        assert [each["params"]["progress"] for each in reply.received[:-1]] == [1, 2]
        assert {each["params"]["progressToken"] for each in reply.received[:-1]} == {7}
        assert reply.text == "done"
        assert not wire.draft(message).is_stream

    @pytest.mark.parametrize("broken", [None, [], "x", 5], ids=str)
    def test_may_send_a_meta_that_is_none(self, wire: Wire, broken: Any) -> None:
        """The drafts ask nothing of it."""
        params = {"name": "add", "arguments": {"a": 1}, "_meta": broken}
        assert wire.draft(request("tools/call", params)).text == "1"


class TestHeaders:
    """A gateway may route by a header what the server executes by the body, whatever the dialect."""

    def post(self, wire: Wire, message: JSON, **headers: str) -> Reply:
        given = {"Content-Type": "application/json", **{name.replace("_", "-"): v for name, v in headers.items()}}
        return wire.send(json.dumps(message).encode(), given)

    def test_that_are_there_must_match_the_body(self, wire: Wire) -> None:
        message = request("tools/call", {"name": "add", "arguments": {"a": 1}})
        assert self.post(wire, message, Mcp_Method="tools/call", Mcp_Name="add").text == "1"
        for wrong in ({"Mcp_Method": "tools/list"}, {"Mcp_Name": "greet"}, {"Mcp_Name": "=?base64?!?="}):
            reply = self.post(wire, message, **wrong)
            assert (reply.status, reply.code) == (400, -32020)

    def test_of_parameters_are_not_required_but_must_match(self, wire: Wire) -> None:
        message = request("tools/call", {"name": "deploy", "arguments": {"service": "shop"}})
        assert "inputRequests" in self.post(wire, message).result
        assert "inputRequests" in self.post(wire, message, Mcp_Param_Service="shop").result
        assert self.post(wire, message, Mcp_Param_Service="bank").code == -32020


def test_what_only_the_ratified_protocol_has_is_unknown(wire: Wire) -> None:
    for method in ("server/discover", "subscriptions/listen", "tasks/update"):
        reply = wire.draft(request(method, {"notifications": {"toolsListChanged": True}}))
        assert (reply.status, reply.code) == (404, -32601)


def test_a_state_of_a_request_that_never_asks_is_refused(wire: Wire) -> None:
    """Wherever it is in the message; only what asks, and a task's result and answer, can have been given one."""
    message = "requestState is not valid for this request; send the request again without it"
    state = greet(wire).state
    for method in ("tools/list", "prompts/list", "resources/list", "tasks/get", "tasks/cancel", "tasks/result"):
        inside = request(method, {"taskId": "x", "requestState": state})
        for sent in (inside, {**request(method, {"taskId": "x"}), "requestState": state}):
            reply = wire.draft(sent)
            assert (reply.status, reply.code, reply.error.message) == (400, -32602, message)


def test_a_state_of_one_dialect_goes_on_in_the_other(wire: Wire) -> None:
    """The engine knows no dialects, and a client may move from one to the other between two rounds."""
    state = greet(wire).state
    assert wire.call("greet", answers={"login": OCTOCAT}, state=state).text == "Hello, octocat"
    state = wire.call("greet").state
    assert greet(wire, inside={"inputResponses": {"login": OCTOCAT}, "requestState": state}).text == "Hello, octocat"
