"""One client on standard input and output: both eras, whatever it sends, and the end."""

import json
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from random import Random
from typing import Annotated, Any, ClassVar

import pytest
from starlette.authentication import SimpleUser

from mrtr_server import Caller, Context, Elicit, Header, Limits, MRTRServer, Shutdown
from mrtr_server.transport.standard_streams import BACKLOG_BYTES

from ..support import live_app, live_tasks_app
from ..support.effects import EFFECTS
from ..support.handshake import NEWEST, check
from ..support.models import Login
from ..support.serving import TIMEOUT, wait_until
from ..support.stdio import META, PREFIX, StdioClient, over_pipes
from ..support.wire import text_of

JSON = dict[str, Any]

ADA = {"action": "accept", "content": {"name": "ada"}}
YES = {"action": "accept", "content": {"confirm": True}}


def live(**settings: Any) -> MRTRServer:
    return live_app.register(MRTRServer("live", shutdown=Shutdown(seconds=TIMEOUT), **settings))


@pytest.fixture(scope="module")
def app() -> MRTRServer:
    return live()


@pytest.fixture
def client(app: MRTRServer) -> Iterator[StdioClient]:
    """A client that has not said anything."""
    live_app.GATE.clear()
    with over_pipes(app) as client:
        yield client
        live_app.GATE.set()


@pytest.fixture
def session(client: StdioClient) -> StdioClient:
    """A client of 2025-11-25 that has begun a session."""
    client.initialize()
    return client


def heard(messages: list[JSON]) -> list[tuple[str, Any]]:
    """Return the notifications in messages, with their subscriptions."""
    told = [each for each in messages if "method" in each]
    return [(each["method"], each["params"]["_meta"][f"{PREFIX}subscriptionId"]) for each in told]


class TestTheModernEra:
    def test_a_call_needs_no_handshake_and_no_header(self, client: StdioClient) -> None:
        assert text_of(client.call("add", {"a": 1, "b": 2}, modern=True)) == "3"

    def test_discovery_names_the_modern_versions(self, client: StdioClient) -> None:
        found = client.request("server/discover", modern=True)["result"]
        assert found["supportedVersions"] == ["2026-07-28"]
        assert found["resultType"] == "complete"

    def test_rounds_carry_a_sealed_state_and_no_request_of_the_server_s(self, client: StdioClient) -> None:
        asked = client.call("order", {"title": "Emma"}, modern=True)["result"]
        answers = [{"who": ADA}, {"confirm": YES}, {"from": ADA, "for": ADA}]
        for answer in answers:
            assert asked["resultType"] == "input_required"
            assert asked["inputRequests"].keys() == answer.keys()
            params = {"name": "order", "arguments": {"title": "Emma"}, "inputResponses": answer}
            params |= {"requestState": asked["requestState"]}
            asked = client.request("tools/call", params, modern=True)["result"]
        assert asked["content"][0]["text"] == "Emma of ada, from ada, for ada"
        assert EFFECTS == ["ordered Emma"]

    def test_prompts_and_resources_ask_too(self, client: StdioClient) -> None:
        prompt = client.request("prompts/get", {"name": "greeting"}, modern=True)["result"]
        assert prompt["inputRequests"]["login"]["method"] == "elicitation/create"
        assert "inputRequests" in client.request("resources/read", {"uri": "notes://mine"}, modern=True)["result"]
        assert "note 7" in str(client.request("resources/read", {"uri": "notes://7"}, modern=True)["result"])

    def test_progress_and_messages_come_before_the_response(self, client: StdioClient) -> None:
        id = client.begin_call("notes", modern=True, meta={"progressToken": "p", f"{PREFIX}logLevel": "debug"})
        got = [client.next() for _ in range(4)]
        assert [each.get("method") for each in got[:3]] == ["notifications/progress"] + ["notifications/message"] * 2
        assert got[0]["params"] == {"progressToken": "p", "progress": 1, "total": 3, "message": "first"}
        assert got[3]["id"] == id

    def test_another_version_is_refused_with_those_that_are_served(self, client: StdioClient) -> None:
        id = client.begin("tools/list", modern=True, meta={f"{PREFIX}protocolVersion": "1900-01-01"})
        refused = client.next()
        assert refused["id"] == id
        assert refused["error"]["code"] == -32022
        assert refused["error"]["data"] == {"supported": ["2026-07-28"], "requested": "1900-01-01"}

    def test_what_a_client_lacks_is_never_asked(self, client: StdioClient) -> None:
        client.begin_call("greet", modern=True, meta={f"{PREFIX}clientCapabilities": {}})
        assert client.next()["error"]["code"] == -32021

    def test_a_parameter_that_headers_mirror_needs_none(self) -> None:
        app = MRTRServer("mirrored")

        @app.tool
        def query(region: Annotated[str, Header("Region")]) -> str:
            return region

        with over_pipes(app) as client:
            assert text_of(client.call("query", {"region": "eu"}, modern=True)) == "eu"

    def test_a_task_runs_in_the_process(self, client: StdioClient) -> None:
        created = client.call("long_job", modern=True)["result"]
        assert created["resultType"] == "task"
        task = {"taskId": created["taskId"]}

        def found() -> JSON:
            result: JSON = client.request("tasks/get", task, modern=True)["result"]
            return result

        wait_until(lambda: found()["status"] == "completed", "the task to end")
        assert text_of(found()) == "done"

    def test_a_listener_is_told_until_it_cancels(self, client: StdioClient) -> None:
        wanted = {"toolsListChanged": True, "resourceSubscriptions": ["notes://1"]}
        first = client.begin("subscriptions/listen", {"notifications": wanted}, modern=True)
        second = client.begin("subscriptions/listen", {"notifications": {"toolsListChanged": True}}, modern=True)
        opened = [client.next() for _ in range(2)]
        assert {each["method"] for each in opened} == {"notifications/subscriptions/acknowledged"}
        call = client.begin_call("change", modern=True)
        got = [client.next() for _ in range(4)]
        told = heard(got)
        assert sorted(told) == [
            ("notifications/resources/updated", first),
            ("notifications/tools/list_changed", first),
            ("notifications/tools/list_changed", second),
        ]
        assert call in [each.get("id") for each in got]
        client.send(method="notifications/cancelled", params={"requestId": first})
        client.begin_call("change", modern=True)
        got = [client.next() for _ in range(2)]
        told = heard(got)
        assert told == [("notifications/tools/list_changed", second)]
        client.close()
        (last,) = client.rest()
        assert last["id"] == second
        assert last["result"]["resultType"] == "complete"

    def test_a_cancelled_request_sends_nothing_more(self, client: StdioClient) -> None:
        id = client.begin_call("wait", modern=True)
        wait_until(lambda: "waits" in EFFECTS, "the handler to run")
        client.send(method="notifications/cancelled", params={"requestId": id, "reason": "enough"})
        assert client.request("tools/list", modern=True)
        live_app.GATE.set()
        client.close()
        assert client.rest() == []
        assert EFFECTS == ["waits"]


class TestTheHandshakeEra:
    @pytest.mark.parametrize("version", ["2025-11-25", "2025-06-18", "2025-03-26", "2024-11-05"])
    def test_a_session_begins_with_the_version_that_the_client_asks_for(
        self, client: StdioClient, version: str
    ) -> None:
        begun = client.initialize(version)
        assert begun["protocolVersion"] == version
        assert begun["serverInfo"]["name"] == "live"
        check("InitializeResult", begun, version)
        result = client.call("add", {"a": 1, "b": 2})["result"]
        check("CallToolResult", result, version)
        assert ("structuredContent" in result) == (version >= "2025-06-18")
        check("ListToolsResult", client.request("tools/list")["result"], version)
        assert client.request("ping")["result"] == {}

    def test_messages_of_one_write_are_served_in_order(self, client: StdioClient) -> None:
        """As when a person pipes a file into the command."""
        begin = {"protocolVersion": NEWEST, "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}}
        messages: list[JSON] = [
            {"id": "a", "method": "initialize", "params": begin},
            {"method": "notifications/initialized"},
            {"id": "b", "method": "tools/call", "params": {"name": "add", "arguments": {"a": 1, "b": 2}}},
        ]
        client.write("\r\n".join(json.dumps({"jsonrpc": "2.0", **each}) for each in messages).encode())
        client.close()
        first, second = client.rest()
        assert first["id"] == "a"
        assert second["result"]["structuredContent"] == {"result": 3}

    def test_a_question_is_a_request_whose_answer_continues_the_call(self, session: StdioClient) -> None:
        id = session.begin_call("order", {"title": "Emma"})
        for answers in ([ADA], [YES], [ADA, ADA]):
            asked = [session.next() for _ in answers]
            for each in asked:
                check("ServerRequest", each)
            for each, answer in reversed(list(zip(asked, answers, strict=True))):
                session.send(id=each["id"], result=answer)
        done = session.next()
        assert (done["id"], text_of(done)) == (id, "Emma of ada, from ada, for ada")
        assert EFFECTS == ["ordered Emma"]

    def test_the_person_the_model_and_the_roots_are_asked_at_once(self, session: StdioClient) -> None:
        session.begin_call("everything")
        answers = {
            "elicitation/create": ADA,
            "sampling/createMessage": {"role": "assistant", "model": "m", "content": {"type": "text", "text": "Hello"}},
            "roots/list": {"roots": [{"uri": "file:///a"}]},
        }
        asked = [session.next() for _ in answers]
        assert {each["method"] for each in asked} == answers.keys()
        for each in asked:
            session.send(id=each["id"], result=answers[each["method"]])
        assert text_of(session.next()) == "Hello, ada in 1 places"

    def test_calls_that_ask_side_by_side_get_their_own_answers(self, session: StdioClient) -> None:
        ids = [session.begin_call("greet", {"greeting": f"Hello {number}"}) for number in range(20)]
        asked = [session.next() for _ in ids]
        for each in asked:
            session.send(id=each["id"], result=ADA)
        done = [session.next() for _ in ids]
        assert {each["id"]: text_of(each) for each in done} == {id: f"Hello {n}, ada!" for n, id in enumerate(ids)}

    def test_one_answer_counts_and_others_are_ignored(self, session: StdioClient) -> None:
        session.begin_call("greet")
        asked = session.next()
        session.send(id="never asked", result=ADA)
        session.send(id=7, error={"code": -1, "message": "?"})
        session.send(id=asked["id"], result=ADA)
        session.send(id=asked["id"], result={"action": "decline"})
        assert text_of(session.next()) == "Hello, ada!"
        assert session.request("ping")["result"] == {}

    def test_an_error_as_an_answer_dismisses_a_form_and_ends_a_sampling(self, session: StdioClient) -> None:
        session.begin_call("greet")
        session.send(id=session.next()["id"], error={"code": -32603, "message": "no screen"})
        assert session.next()["result"]["isError"]
        session.begin_call("say_hello")
        session.send(id=session.next()["id"], error={"code": -32603, "message": "no model"})
        assert "no model" in session.next()["error"]["message"]

    def test_prompts_and_resources_ask_too(self, session: StdioClient) -> None:
        session.begin("prompts/get", {"name": "greeting"})
        session.send(id=session.next()["id"], result=ADA)
        assert session.next()["result"]["messages"][0]["content"]["text"] == "Greet ada"
        session.begin("resources/read", {"uri": "notes://mine"})
        session.send(id=session.next()["id"], result=ADA)
        assert session.next()["result"]["contents"][0]["text"] == "the notes of ada"

    def test_what_the_client_lacks_is_named(self, client: StdioClient) -> None:
        client.initialize(capabilities={})
        assert "form elicitation" in client.call("greet")["error"]["message"]

    def test_what_a_call_declares_counts_before_what_the_session_began_with(self, client: StdioClient) -> None:
        client.initialize(capabilities={"sampling": {}})
        field = PREFIX + "clientCapabilities"
        client.begin_call("greet", meta={field: {"elicitation": {}}})
        client.send(id=client.next()["id"], result=ADA)
        assert text_of(client.next()) == "Hello, ada!"
        client.begin_call("say_hello", meta={field: {}})
        assert "sampling" in client.next()["error"]["message"]

    def test_a_single_use_tool_has_one_effect(self, session: StdioClient) -> None:
        session.begin_call("pay", {"amount": 5})
        asked = session.next()
        session.send(id=asked["id"], result=YES)
        session.send(id=asked["id"], result=YES)
        assert text_of(session.next()) == "paid 5"
        assert EFFECTS == ["paid 5"]

    def test_progress_messages_and_questions_come_in_order(self, session: StdioClient) -> None:
        session.begin_call("notes", meta={"progressToken": 3})
        got = [session.next() for _ in range(3)]
        assert [each["method"] for each in got] == [
            "notifications/progress",
            "notifications/message",
            "elicitation/create",
        ]
        assert got[1]["params"]["data"] == "begun"
        session.send(id=got[2]["id"], result=ADA)
        rest = [session.next()]
        while "result" not in rest[-1]:
            rest.append(session.next())
        assert text_of(rest[-1]) == "noted"
        assert rest[-2]["params"]["data"] == "ada is here"
        assert rest[-3]["params"]["progress"] == 2

    def test_a_level_counts_for_all_that_follows(self, session: StdioClient) -> None:
        session.begin("logging/setLevel", {"level": "warning"})
        session.begin_call("notes")
        assert session.next()["result"] == {}
        asked = session.next()
        assert asked["method"] == "elicitation/create"
        session.send(id=asked["id"], result=ADA)
        assert session.next()["params"]["level"] == "warning"
        assert text_of(session.next()) == "noted"
        assert session.request("logging/setLevel", {"level": "loud"})["error"]["code"] == -32602

    def test_changes_are_told_of_subscribed_resources_and_of_lists(self, session: StdioClient) -> None:
        assert session.request("resources/subscribe", {"uri": "notes://1"})["result"] == {}
        id = session.begin_call("change")
        got = [session.next() for _ in range(3)]
        assert id in [each.get("id") for each in got]
        told = {each["method"]: each["params"] for each in got if "method" in each}
        assert told["notifications/resources/updated"]["uri"] == "notes://1"
        assert "notifications/tools/list_changed" in told
        assert session.request("resources/unsubscribe", {"uri": "notes://1"})["result"] == {}
        session.begin_call("change")
        got = [session.next() for _ in range(2)]
        assert [each["method"] for each in got if "method" in each] == ["notifications/tools/list_changed"]

    def test_a_client_that_has_not_said_that_it_is_ready_is_told_nothing(self, client: StdioClient) -> None:
        params = {"protocolVersion": NEWEST, "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}}
        client.request("initialize", params)
        client.call("change")
        client.close()
        assert client.rest() == []

    def test_a_running_call_can_be_cancelled(self, session: StdioClient) -> None:
        id = session.begin_call("wait", meta={"progressToken": 1})
        wait_until(lambda: "waits" in EFFECTS, "the handler to run")
        assert session.next()["method"] == "notifications/progress"
        session.send(method="notifications/cancelled", params={"requestId": id})
        assert session.request("ping")["result"] == {}
        session.close()
        assert session.rest() == []
        assert EFFECTS == ["waits"]

    def test_a_call_that_asks_can_be_cancelled(self, session: StdioClient) -> None:
        id = session.begin_call("greet")
        asked = session.next()
        session.send(method="notifications/cancelled", params={"requestId": id})
        assert session.next()["params"] == {"requestId": asked["id"], "reason": "The call was cancelled"}
        session.send(id=asked["id"], result=ADA)
        assert session.request("ping")["result"] == {}
        session.close()
        assert session.rest() == []
        assert EFFECTS == []

    def test_a_call_is_cancelled_that_has_not_begun(self, session: StdioClient) -> None:
        call = {"jsonrpc": "2.0", "id": "x", "method": "tools/call", "params": {"name": "wait", "arguments": {}}}
        cancel = {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": "x"}}
        session.write(json.dumps(call).encode() + b"\n" + json.dumps(cancel).encode() + b"\n")
        session.close()
        assert session.rest() == []
        assert EFFECTS == []

    @pytest.mark.parametrize("params", [{}, {"requestId": None}, {"requestId": [1]}, {"requestId": "other"}])
    def test_a_cancellation_of_nothing_is_ignored(self, session: StdioClient, params: JSON) -> None:
        session.send(method="notifications/cancelled", params=params)
        session.send(method="notifications/of/another/kind")
        assert session.request("ping")["result"] == {}

    def test_so_is_one_of_a_request_that_was_answered(self, session: StdioClient) -> None:
        assert session.call("add", {"a": 1, "b": 2})["result"]
        for id in range(1, 4):
            session.send(method="notifications/cancelled", params={"requestId": id})
        assert session.request("ping")["result"] == {}

    def test_what_is_declared_is_asked_whatever_the_version(self, client: StdioClient) -> None:
        """As Codex CLI does with 2025-06-18."""
        client.initialize("2025-06-18", {"elicitation": {"form": {}, "url": {}}})
        client.begin_call("open_page")
        asked = client.next()
        assert (asked["params"]["url"], bool(asked["params"]["elicitationId"])) == ("https://example.com/login", True)
        client.send(id=asked["id"], result={"action": "accept"})
        assert text_of(client.next()) == "opened"

    @pytest.mark.parametrize("modern", [False, True])
    def test_who_answers_twice_the_same_that_does_not_fit_is_not_asked_again(
        self, session: StdioClient, modern: bool
    ) -> None:
        empty = {"action": "accept", "content": {}}
        if modern:
            asked = session.call("greet", modern=True)["result"]
            for _ in range(2):
                answered = {"inputResponses": {"login": empty}, "requestState": asked["requestState"]}
                asked = session.request("tools/call", {"name": "greet", "arguments": {}, **answered}, modern=True)[
                    "result"
                ]
            message: JSON = {"result": asked}
        else:
            session.begin_call("greet")
            for _ in range(2):
                session.send(id=session.next()["id"], result=empty)
            message = session.next()
        assert message["result"]["isError"]
        assert text_of(message).startswith("This client can't show this form: its answer to 'login' does not fit")

    def test_modern_requests_are_served_beside_a_session(self, session: StdioClient) -> None:
        """As when a bridge has begun it."""
        assert session.call("greet", modern=True)["result"]["resultType"] == "input_required"
        assert "resultType" not in session.call("add", {"a": 1, "b": 2})["result"]

    def test_a_client_may_begin_anew(self, session: StdioClient) -> None:
        assert session.initialize("2024-11-05")["protocolVersion"] == "2024-11-05"
        assert "structuredContent" not in session.call("add", {"a": 1, "b": 2})["result"]
        session.begin_call("change")
        assert len([session.next() for _ in range(2)]) == 2
        session.close()
        assert session.rest() == [], "the notifications of the session before have ended"


class TestTasks:
    def test_a_task_asks_while_its_result_is_waited_for_and_its_status_is_told(self) -> None:
        with over_pipes(live_tasks_app.register(MRTRServer("studio", shutdown=Shutdown(seconds=TIMEOUT)))) as client:
            client.initialize()
            called = client.request("tools/call", {"name": "greet", "arguments": {}, "task": {}})
            task = {"taskId": called["result"]["task"]["taskId"]}
            id = client.begin("tasks/result", task)
            told = []
            while (message := client.next()).get("id") != id:
                if message["method"] == "elicitation/create":
                    assert message["params"]["_meta"][f"{PREFIX}related-task"] == task
                    client.send(id=message["id"], result=ADA)
                else:
                    told.append(message["method"])
            assert text_of(message) == "Hello, ada!"
            assert set(told) == {"notifications/tasks/status"}


class TestHalvesOfCharacters:
    """A cut emoji, as JavaScript writes it: its request is answered as any other is."""

    def test_a_request_with_one_is_answered_with_its_id(self, client: StdioClient) -> None:
        id = client.begin_call("greet", {"greeting": "cut \ud83d"}, modern=True)
        asked = client.next()
        assert (asked["id"], asked["result"]["resultType"]) == (id, "input_required")

    def test_an_open_call_asks_and_continues_with_one(self, session: StdioClient) -> None:
        id = session.begin_call("greet", {"greeting": "cut \ud83d"})
        session.send(id=session.next()["id"], result={"action": "accept", "content": {"name": "ada\udcff"}})
        done = session.next()
        assert (done["id"], text_of(done)) == (id, "cut \N{REPLACEMENT CHARACTER}, ada\N{REPLACEMENT CHARACTER}!")

    def test_a_batch_with_one_is_answered_message_by_message(self, client: StdioClient) -> None:
        client.initialize("2025-03-26")
        add = {"jsonrpc": "2.0", "method": "tools/call", "params": {"name": "add", "arguments": {"a": 1, "b": 2}}}
        messages = [{**add, "id": "a"}, {"jsonrpc": "2.0", "id": "b", "method": "\ud83d"}]
        client.write(json.dumps(messages).encode() + b"\n")
        assert {each["id"]: "result" in each for each in json.loads(client.next_line())} == {"a": True, "b": False}


class TestBatches:
    CALL: ClassVar[JSON] = {
        "jsonrpc": "2.0",
        "method": "tools/call",
        "params": {"name": "add", "arguments": {"a": 1, "b": 2}},
    }

    def batch(self, *messages: Any) -> bytes:
        return json.dumps(messages).encode() + b"\n"

    def test_responses_are_one_line_and_notifications_have_none(self, client: StdioClient) -> None:
        client.initialize("2025-03-26")
        notification = {"jsonrpc": "2.0", "method": "notifications/roots/list_changed"}
        broken = {"jsonrpc": "1.0", "id": "c", "method": "ping"}
        nested = {"jsonrpc": "2.0", "id": "d", "method": "initialize", "params": {}}
        client.write(self.batch({**self.CALL, "id": "a"}, notification, {**self.CALL, "id": "b"}, broken, nested, 7))
        replies = json.loads(client.next_line())
        assert {each.get("id"): each.get("result", each.get("error")) for each in replies}.keys() == {*"abcd", None}
        assert len(replies) == 5

    def test_its_calls_may_ask(self, client: StdioClient) -> None:
        client.initialize("2025-03-26")
        ask = {"jsonrpc": "2.0", "id": "a", "method": "tools/call", "params": {"name": "say_hello", "arguments": {}}}
        client.write(self.batch(ask, {**self.CALL, "id": "b"}))
        answer = {"role": "assistant", "model": "m", "content": {"type": "text", "text": "Hello"}}
        client.send(id=client.next()["id"], result=answer)
        assert sorted(each["id"] for each in json.loads(client.next_line())) == ["a", "b"]

    @pytest.mark.parametrize("size", [0, 101])
    def test_it_has_a_size(self, client: StdioClient, size: int) -> None:
        client.initialize("2025-03-26")
        client.write(self.batch(*[{**self.CALL, "id": number} for number in range(size)]))
        assert "1 to 100" in client.next()["error"]["message"]

    def test_one_of_notifications_has_no_response(self, client: StdioClient) -> None:
        client.initialize("2025-03-26")
        client.write(self.batch({"jsonrpc": "2.0", "method": "notifications/roots/list_changed"}))
        assert client.request("ping")["result"] == {}

    @pytest.mark.parametrize("version", ["", "2025-11-25", "2024-11-05"])
    def test_other_versions_have_none(self, client: StdioClient, version: str) -> None:
        if version:
            client.initialize(version)
        client.write(b" " + self.batch({**self.CALL, "id": "a"}))
        assert "batch" in client.next()["error"]["message"]


class TestWithoutAVersion:
    def test_the_drafts_are_served_where_there_was_no_handshake(self, client: StdioClient) -> None:
        asked = client.call("greet")["result"]
        assert asked.keys() == {"inputRequests", "requestState"}
        params = {"name": "greet", "arguments": {}, "inputResponses": {"login": ADA}}
        assert text_of(client.request("tools/call", {**params, "requestState": asked["requestState"]})) == "Hello, ada!"

    def test_their_tasks_are_served(self, client: StdioClient) -> None:
        params = {"name": "long_job", "arguments": {}, "task": {}}
        assert client.request("tools/call", params)["result"]["taskId"]
        client.send(id="x", result={"_meta": {f"{PREFIX}related-task": {"taskId": "unknown"}}})
        assert client.request("ping")["result"] == {}, "a response gets none"

    def test_an_error_says_what_is_missing_where_they_are_not(self) -> None:
        with over_pipes(live(dialects=["2026-07-28"])) as client:
            assert f"{PREFIX}protocolVersion" in client.request("tools/list")["error"]["message"]
            refused = client.request("initialize", {"protocolVersion": NEWEST})["error"]
            assert refused["data"]["supported"] == ["2026-07-28"]

    def test_a_server_of_the_handshake_alone_lets_who_probes_fall_back(self) -> None:
        with over_pipes(live(dialects=["2025-11-25"])) as client:
            probed = client.request("server/discover", modern=True)
            assert probed["error"]["code"] not in (-32022, -32020, -32021)
            assert client.initialize()["protocolVersion"] == NEWEST


class TestWhatIsNoMessage:
    @pytest.mark.parametrize(
        ("line", "code"),
        [
            (b"{", -32700),
            (b"hello", -32700),
            (b"\xff\xfe{\x00}\x00", -32700),
            (b'{"jsonrpc": "2.0", "id": "\xc3", "method": "ping"}', -32700),
            (b'{"jsonrpc": "2.0", "id": 1, "method": "ping", "params": {"a": NaN}}', -32700),
            (b"7", -32600),
            (b'"text"', -32600),
            (b"null", -32600),
            (b"{}", -32600),
            (b'{"jsonrpc": "2.0"}', -32600),
            (b'{"jsonrpc": "2.0", "id": null, "method": "ping"}', -32600),
            (b'{"jsonrpc": "2.0", "id": 1.5, "method": "ping"}', -32600),
            (b'{"jsonrpc": "1.0", "id": 1, "method": "ping"}', -32600),
            (b'{"jsonrpc": "2.0", "id": 1, "method": "ping", "params": []}', -32600),
            (b'{"a":' * 1000 + b"1" + b"}" * 1000, -32602),
        ],
    )
    @pytest.mark.parametrize("version", ["", NEWEST])
    def test_it_gets_one_error_and_the_next_line_is_served(
        self, client: StdioClient, line: bytes, code: int, version: str
    ) -> None:
        if version:
            client.initialize(version)
        client.write(line + b"\n")
        refused = client.next()
        assert refused["error"]["code"] == code
        assert refused.get("id", 1) is not None
        assert client.request("ping")["result"] == {}

    def test_a_byte_order_mark_is_passed_over(self, client: StdioClient) -> None:
        client.write(b'\xef\xbb\xbf{"jsonrpc": "2.0", "id": 7, "method": "ping"}\n')
        assert client.next() == {"jsonrpc": "2.0", "id": 7, "result": {}}

    @pytest.mark.parametrize(("id", "repeated"), [("x" * 257, True), ("x" * 4096, True), ("x" * 4097, False)])
    def test_an_error_for_a_long_id_can_be_matched(self, client: StdioClient, id: str, repeated: bool) -> None:
        client.send(id=id, method="ping")
        refused = client.next()
        assert refused["error"]["data"] == {"limit": "id", "value": 256}
        assert refused.get("id") == (id if repeated else None)

    @pytest.mark.parametrize("seed", range(4))
    def test_whatever_comes_the_server_lives_on(
        self, client: StdioClient, seed: int, caplog: pytest.LogCaptureFixture
    ) -> None:
        random = Random(seed)
        if seed:
            client.initialize(["2025-11-25", "2025-03-26", "2024-11-05"][seed - 1])
        names = ["tools/call", "prompts/get", "resources/read", "completion/complete", "subscriptions/listen"]
        names += [
            "initialize",
            "logging/setLevel",
            "resources/subscribe",
            "tasks/get",
            "tasks/result",
            "server/discover",
        ]
        names += ["notifications/initialized", "notifications/cancelled", "tools/list", ""]
        values: list[Any] = [None, 0, -1, 1.5, True, "", "greet", "notes://1", [], [1], {}, {"name": "add"}, 2**70]
        values += [
            {"_meta": META},
            {"name": "greet", "arguments": {}, "_meta": META},
            "x" * 5000,
            {"_meta": {"progressToken": []}},
        ]
        fields = ["id", "method", "params", "result", "error", "jsonrpc", "_meta"]
        for _ in range(300):
            message = {"jsonrpc": "2.0", "id": random.randrange(10**6), "method": random.choice(names)}
            message["params"] = random.choice(values)
            for _ in range(random.randrange(3)):
                message[random.choice(fields)] = random.choice(values)
            line = bytearray(json.dumps([message] if random.random() < 0.1 else message).encode())
            if random.random() < 0.3:
                line[random.randrange(len(line))] = random.randrange(256)
            client.write(bytes(line) + b"\n")
        client.send(id="last", method="ping")
        client.send(id="last of the others", method="server/discover", params={"_meta": META})
        found = set[Any]()
        while not {"last", "last of the others"} <= found:
            read = json.loads(client.next_line())
            for each in read if isinstance(read, list) else [read]:
                found.add(each.get("id"))
        assert "could not be served" not in caplog.text
        assert "A request failed" not in caplog.text

    def test_blank_lines_and_other_line_ends_mean_nothing(self, client: StdioClient) -> None:
        client.write(b"\xef\xbb\xbf\r\n\n  \n\t\r\n")
        client.write(b'  {"jsonrpc": "2.0", "id": 1, "method": "ping"}  \r\n')
        assert client.next()["id"] == 1

    def test_a_line_has_a_limit(self) -> None:
        with over_pipes(live(limits=Limits(body_bytes=10_000))) as client:
            long = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "ping", "params": {"x": "y" * 10_000}})
            client.write(long.encode() + b"\n")
            error = client.next()
            assert "id" not in error
            assert error["error"]["data"] == {"limit": "body_bytes", "value": 10_000}
            assert client.request("ping")["result"] == {}

    def test_ten_megabytes_in_a_line_are_refused_and_not_kept(self, client: StdioClient) -> None:
        for _ in range(160):
            client.write(b"x" * 65536)
        client.write(b"\n")
        assert client.next()["error"]["data"]["limit"] == "body_bytes"
        assert client.request("ping")["result"] == {}

    def test_an_id_that_is_being_served_is_refused_without_it(self, session: StdioClient) -> None:
        id = session.begin_call("greet")
        asked = session.next()
        session.send(id=id, method="ping")
        refused = session.next()
        assert "id" not in refused
        assert "still being served" in refused["error"]["message"]
        session.send(id=asked["id"], result=ADA)
        assert text_of(session.next()) == "Hello, ada!"
        session.send(id=id, method="ping")
        assert session.next()["id"] == id, "it may be used again"

    def test_an_unknown_method_and_an_unknown_tool_are_named(self, session: StdioClient) -> None:
        assert session.request("tools/fly")["error"]["code"] == -32601
        assert session.call("fly")["error"]["code"] == -32602
        assert session.request("resources/read", {"uri": "other://"})["error"]["code"] == -32002

    def test_a_fault_of_a_handler_is_a_reference_and_the_server_lives_on(self) -> None:
        app = MRTRServer("faulty")

        @app.tool
        def fail() -> str:
            raise ValueError("secret")

        with over_pipes(app) as client:
            client.initialize()
            failed = client.call("fail")
            assert failed["result"]["isError"]
            assert "secret" not in str(failed)
            assert client.request("ping")["result"] == {}


class TestHowMuchAtOnce:
    def test_no_more_is_read_than_is_served(self) -> None:
        live_app.GATE.clear()
        with over_pipes(live(limits=Limits(open_requests=3))) as client:
            client.initialize()
            calls = [client.begin_call("wait") for _ in range(5)]
            wait_until(lambda: len(EFFECTS) == 3, "the handlers to run")
            ping = client.begin("ping")
            threading.Event().wait(0.2)
            assert len(EFFECTS) == 3
            live_app.GATE.set()
            assert sorted(client.next()["id"] for _ in range(6)) == [*calls, ping]

    def test_calls_that_wait_for_a_person_do_not_count(self) -> None:
        with over_pipes(live(limits=Limits(open_requests=2))) as client:
            client.initialize()
            for _ in range(5):
                client.begin_call("greet")
            asked = [client.next() for _ in range(5)]
            assert client.request("ping")["result"] == {}
            for each in asked:
                client.send(id=each["id"], result=ADA)
            assert {text_of(client.next()) for _ in asked} == {"Hello, ada!"}

    def test_no_more_is_read_while_the_client_does_not_read(self) -> None:
        app = MRTRServer("long")
        served = []

        @app.tool
        def long(padding: str) -> str:
            served.append(1)
            return "x" * BACKLOG_BYTES

        with over_pipes(app) as client:
            client.initialize()
            client.stop_reading()
            writing = threading.Thread(
                target=lambda: [client.begin_call("long", {"padding": "x" * 50_000}) for _ in range(30)]
            )
            writing.start()
            wait_until(lambda: served, "a handler to run")
            threading.Event().wait(0.3)
            assert len(served) < 10
            client.read_on()
            done = [client.next() for _ in range(30)]
            writing.join()
            assert len({each["id"] for each in done}) == 30
            assert {len(text_of(each)) for each in done} == {BACKLOG_BYTES}

    def test_lines_of_calls_never_mix(self) -> None:
        app = MRTRServer("threads")

        @app.tool
        async def shout(ctx: Context, number: int) -> str:
            for step in range(20):
                await ctx.progress(step, message=f"{number} " * 500)
            return f"{number} " * 5000

        with over_pipes(app) as client:
            client.initialize()
            calls = [
                client.begin_call("shout", {"number": number}, meta={"progressToken": number}) for number in range(20)
            ]
            done = 0
            while done < len(calls):
                done += "result" in client.next()  # which fails for what is no message


class TestOnWhoseBehalf:
    def who(self) -> MRTRServer:
        def may(caller: Caller, name: str) -> bool:
            return caller.principal is not None and "use" in caller.scopes

        app = MRTRServer("who", authorize=may)

        @app.tool
        def who(ctx: Context) -> str:
            assert ctx.principal is not None
            return ctx.principal.subject

        return app

    def test_the_client_acts_for_nobody_in_particular(self) -> None:
        with over_pipes(self.who()) as client:
            client.initialize()
            assert client.request("tools/list")["result"]["tools"] == []
            assert client.call("who")["error"]["code"] == -32602

    def test_or_for_the_user_that_the_server_names(self) -> None:
        class User(SimpleUser):
            @property
            def identity(self) -> str:
                return self.username

        with over_pipes(self.who(), User("ada"), frozenset({"use"})) as client:
            client.initialize()
            assert len(client.request("tools/list")["result"]["tools"]) == 1
            assert text_of(client.call("who")) == "ada"
            assert text_of(client.call("who", modern=True)) == "ada"

    def test_a_handler_sees_no_header(self) -> None:
        app = MRTRServer("headers")

        @app.tool
        def headers(ctx: Context) -> int:
            return len(ctx.headers)

        with over_pipes(app) as client:
            client.initialize()
            assert text_of(client.call("headers")) == "0"


class TestTheEnd:
    def test_at_the_end_of_the_input_nothing_is_left_to_be_said(self, session: StdioClient) -> None:
        session.close()
        assert session.rest() == []

    def test_a_call_that_runs_is_done_first(self, session: StdioClient) -> None:
        id = session.begin_call("wait")
        wait_until(lambda: "waits" in EFFECTS, "the handler to run")
        session.close()
        live_app.GATE.set()
        (done,) = session.rest()
        assert (done["id"], text_of(done)) == (id, "waited")

    def test_a_call_that_waits_for_an_answer_ends_at_once(self, session: StdioClient) -> None:
        session.begin_call("greet")
        session.next()
        session.close()
        assert session.rest() == [], "some clients fail that get an error after they have closed their end"

    def test_so_does_one_that_asks_after_it(self, session: StdioClient) -> None:
        session.begin_call("wait_and_ask")
        session.begin("subscriptions/listen", {"notifications": {}}, modern=True)
        session.next()
        session.close()
        assert "result" in session.next(), "it has seen the end"
        live_app.GATE.set()
        assert session.rest() == []

    def test_what_runs_too_long_is_cut_off(self) -> None:
        live_app.GATE.clear()
        app = live_app.register(MRTRServer("live", shutdown=Shutdown(seconds=1, lame_duck=0)))
        with over_pipes(app) as client:
            client.initialize()
            client.begin_call("wait")
            wait_until(lambda: "waits" in EFFECTS, "the handler to run")
            client.close()
            assert client.rest() == []
        assert EFFECTS == ["waits"]

    def test_lifespan_is_entered_and_left(self) -> None:
        @asynccontextmanager
        async def lifespan(_: MRTRServer) -> AsyncIterator[None]:
            EFFECTS.append("entered")
            yield
            EFFECTS.append("left")

        with over_pipes(live(lifespan=lifespan)) as client:
            client.initialize()
            assert EFFECTS == ["entered"]
        assert EFFECTS == ["entered", "left"]

    def test_what_it_yields_reaches_tools_and_there_is_no_request(self) -> None:
        @asynccontextmanager
        async def lifespan(_: MRTRServer) -> AsyncIterator[str]:
            yield "opened"

        app = MRTRServer("stdio", lifespan=lifespan)

        @app.tool
        def show(ctx: Context) -> str:
            return f"{ctx.opened} {ctx.request}"

        with over_pipes(app) as client:
            assert text_of(client.call("show", {}, modern=True)) == "opened None"

    def test_a_server_can_serve_again(self, app: MRTRServer) -> None:
        for _ in range(2):
            with over_pipes(app) as client:
                assert text_of(client.call("add", {"a": 1, "b": 2}, modern=True)) == "3"


def test_a_client_that_waits_for_a_person_sees_progress(monkeypatch: pytest.MonkeyPatch, app: MRTRServer) -> None:
    """Some give up after a minute without any."""
    monkeypatch.setattr("mrtr_server.transport.stdio_requests.KEEP_ALIVE", 0.05)
    with over_pipes(app) as client:
        client.initialize()
        client.begin_call("greet", meta={"progressToken": "t"})
        asked = client.next()
        shown = [client.next()["params"] for _ in range(3)]
        assert [each["progressToken"] for each in shown] == ["t"] * 3
        assert 0 < shown[0]["progress"] < shown[1]["progress"] < shown[2]["progress"] < 0.001
        client.send(id=asked["id"], result=ADA)
        while "result" not in (message := client.next()):
            assert message["method"] == "notifications/progress"


def test_nothing_is_said_of_keys_and_stores(caplog: pytest.LogCaptureFixture) -> None:
    app = MRTRServer("quiet")

    @app.tool(single_use=True)
    async def pay(ctx: Context, answer: Annotated[Login, Elicit("Who?")]) -> str:
        return answer.name

    with over_pipes(app) as client:
        client.initialize()
        client.begin_call("pay")
        client.send(id=client.next()["id"], result=ADA)
        assert text_of(client.next()) == "ada"
    assert caplog.text == ""
