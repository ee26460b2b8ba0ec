"""A session is sealed and stored nowhere; what it sets is kept, its notifications come on a GET, and DELETE ends it."""

import asyncio
import json
import threading
from contextlib import ExitStack
from typing import Any

import pytest
from starlette.types import Message

from mrtr_server import Limits, MRTRServer, ServerInfo
from mrtr_server.methods.subscriptions import Subscriptions
from mrtr_server.testing import EVERYTHING, Client
from mrtr_server.transport.handshake_endpoint import MOST_LISTENING

from ..support.direct import Exchange, scope_of
from ..support.effects import EFFECTS
from ..support.handshake import JSON, NEWEST, OLDER, Handshake, Stream
from ..support.live_app import GATE
from ..support.serving import TIMEOUT, wait_until
from ..support.wire import ACCEPT, request, text_of
from .conftest import Connect


def touching(app: MRTRServer) -> MRTRServer:
    """Register a tool that tells of a change of one list."""

    @app.tool
    def touch(list: str) -> None:
        getattr(app, f"notify_{list}_changed")()

    return app


class TestInitialize:
    @pytest.mark.parametrize("version", [NEWEST, *OLDER])
    def test_it_agrees_on_any_version_that_is_served(self, connect: Connect, version: str) -> None:
        client = connect(begin=False, version=version)
        assert client.begin()["protocolVersion"] == version

    @pytest.mark.parametrize("version", ["2026-07-28", "1.0.0", "", 7, None])
    def test_and_on_the_newest_otherwise(self, connect: Connect, version: Any) -> None:
        client = connect(begin=False)
        params = {"protocolVersion": version, "capabilities": {}, "clientInfo": {"name": "x", "version": "1"}}
        assert client.send("initialize", params).result["protocolVersion"] == NEWEST

    def test_it_says_what_the_server_is_and_has(self, connect: Connect) -> None:
        client = connect(
            begin=False,
            app={"instructions": "Ask away", "info": ServerInfo(website_url="https://example.com", title="T")},
        )
        result = client.begin()
        assert result["instructions"] == "Ask away"
        assert result["serverInfo"]["websiteUrl"] == "https://example.com"
        assert result["capabilities"] == {
            "tools": {"listChanged": True},
            "prompts": {"listChanged": True},
            "resources": {"listChanged": True, "subscribe": True},
            "logging": {},
            "tasks": {"list": {}, "cancel": {}, "requests": {"tools": {"call": {}}}},
        }

    @pytest.mark.parametrize("version", [NEWEST, *OLDER])
    def test_it_says_what_there_is_by_then(self, connect: Connect, version: str) -> None:
        """What is the same for every session of a version is written once, and anew when something has changed."""
        app = MRTRServer("growing", keys=[bytes(32)])
        client = connect(begin=False, version=version, register=lambda _: app)

        def begun() -> set[str]:
            result = client.begin()
            assert result["protocolVersion"] == version
            return set(result["capabilities"])

        assert begun() == begun() == {"tools", "prompts", "resources", "logging"}, "all that it may get"
        app.tool(name="add")(lambda: "added")
        assert begun() == begun() == {"tools", "logging"}
        app.prompt(name="review")(lambda: "Review it")
        assert begun() == {"tools", "prompts", "logging"}
        app.disable(tools=["add"])
        app.remove_prompt("review")
        assert begun() == {"tools", "logging"}
        app.tool(name="work", task="optional")(lambda: "worked")
        assert begun() == {"tools", "logging"} | ({"tasks"} if version == NEWEST else set())
        app.remove_tool("work")
        assert begun() == {"tools", "logging"}

    def test_older_versions_have_fewer_fields(self, connect: Connect) -> None:
        client = connect(
            begin=False, version="2024-11-05", app={"info": ServerInfo(website_url="https://example.com", title="T")}
        )
        assert client.begin()["serverInfo"] == {"name": "live", "version": "0.0.0"}

    def test_the_id_is_short_and_has_nothing_but_what_is_known(self, connect: Connect) -> None:
        client = connect(begin=False, capabilities={**EVERYTHING, "experimental": {"x": {"y": "z" * 5_000}}})
        client.begin(title="T" * 5_000, description="D" * 5_000)
        assert len(client.session) < 500
        client.begin(version="é" * 9_000)
        assert len(client.session) <= 1_500
        with client.calling("greet") as stream:
            stream.ask()

    @pytest.mark.parametrize("wrong", [{"capabilities": 7}, {"clientInfo": "x"}])
    def test_what_does_not_fit_is_refused(self, connect: Connect, wrong: dict[str, Any]) -> None:
        client = connect(begin=False)
        params = {"protocolVersion": NEWEST, "capabilities": {}, "clientInfo": {"name": "x", "version": "1"}, **wrong}
        reply = client.send("initialize", params)
        assert (reply.status, reply.code) == (200, -32602)

    def test_ping_and_notifications(self, connect: Connect) -> None:
        client = connect()
        assert client.send("ping").message == {"jsonrpc": "2.0", "id": 2, "result": {}}
        for method in ("notifications/roots/list_changed", "notifications/progress"):
            reply = client.post({"jsonrpc": "2.0", "method": method})
            assert (reply.status, reply.body) == (202, b"")

    def test_an_unknown_method_is_an_error_that_every_client_shows(self, connect: Connect) -> None:
        client = connect()
        assert [(reply.status, reply.code) for reply in (client.send("server/discover"), client.send("x/y"))] == [
            (200, -32601),
            (200, -32601),
        ]


class TestVersionOfARequest:
    def test_without_a_header_it_is_the_session_s(self, connect: Connect) -> None:
        client = connect(version="2025-06-18")
        assert "icons" not in str(client.send("tools/list", MCP_Protocol_Version=None).result)
        assert client.send("tools/call", {"name": "pair"}, MCP_Protocol_Version=None).result["structuredContent"]

    def test_without_either_it_is_the_one_before_headers(self, connect: Connect) -> None:
        client = connect()
        client.session = "forged"
        reply = client.send("tools/call", {"name": "pair"}, MCP_Protocol_Version=None)
        assert "structuredContent" not in reply.result

    def test_headers_must_say_what_the_body_says(self, connect: Connect) -> None:
        client = connect()
        reply = client.send("tools/call", {"name": "add", "arguments": {"a": 1, "b": 2}}, Mcp_Name="other")
        assert (reply.status, reply.code) == (400, -32020)

    def test_one_that_is_not_served_is_400_whatever_is_sent(self, connect: Connect) -> None:
        """Transports, Protocol Version Header."""
        client = connect()
        headers = client.given(MCP_Protocol_Version="1999-01-01")
        sent: list[Any] = [request("ping"), {"jsonrpc": "2.0", "method": "notifications/initialized"}]
        replies = [client.http.post(client.url(), json=each, headers=headers) for each in sent]
        replies += [client.http.request(method, client.url(), headers=headers) for method in ("GET", "DELETE")]
        with client.calling("greet") as stream:
            asked = stream.ask()
            answer = {"jsonrpc": "2.0", "id": asked["id"], "result": {"action": "cancel"}}
            replies.append(client.http.post(client.url(), json=answer, headers=headers))
            client.accept(asked, name="octocat")
            assert text_of(stream.end()) == "Hello, octocat!", "what was refused does not count"
        assert [reply.status_code for reply in replies] == [400] * 5
        assert all(NEWEST in reply.text for reply in replies[1:]), "and it says which are"

    def test_one_that_is_empty_is_none(self, connect: Connect, database: str) -> None:
        client = connect(store=database)
        headers = client.given(MCP_Protocol_Version="", Accept="application/json")
        sent: list[Any] = [request("ping"), {"jsonrpc": "2.0", "method": "notifications/initialized"}]
        replies = [client.http.post(client.url(), json=each, headers=headers) for each in sent]
        replies += [client.http.request(method, client.url(), headers=headers) for method in ("GET", "DELETE")]
        assert [reply.status_code for reply in replies] == [400] * 4
        assert client.send("ping").result == {}, "it has not ended"


class TestResults:
    def test_what_is_no_object_is_wrapped_with_its_schema(self, connect: Connect) -> None:
        client = connect()
        tools = {tool["name"]: tool for tool in client.send("tools/list").result["tools"]}
        assert tools["add"]["outputSchema"]["properties"] == {"result": {"type": "integer"}}
        assert client.call("add", a=1, b=2).result["structuredContent"] == {"result": 3}
        assert client.call("pair").result["structuredContent"] == {"result": [1, "x"]}

    @pytest.mark.parametrize("version", ["2025-03-26", "2024-11-05"])
    def test_the_oldest_have_no_structured_results(self, connect: Connect, version: str) -> None:
        client = connect(version=version)
        assert not any("outputSchema" in tool for tool in client.send("tools/list").result["tools"])
        assert set(client.call("add", a=1, b=2).result) == {"content", "isError"}
        assert not any("title" in prompt for prompt in client.send("prompts/list").result["prompts"])

    def test_errors_have_the_codes_of_the_era(self, connect: Connect) -> None:
        client = connect()
        assert client.send("resources/read", {"uri": "nowhere://x"}).code == -32002
        assert client.call("nothing").code == -32602
        assert client.send("prompts/get", {"name": "nothing"}).code == -32602
        assert client.call("fail").result["isError"]

    @pytest.mark.parametrize(
        ("method", "params"),
        [
            *((f"{listed}/list", {"cursor": "bogus"}) for listed in ("tools", "prompts", "resources", "tasks")),
            ("resources/templates/list", {"cursor": "bogus"}),
            ("prompts/get", {}),
            ("tools/call", {"arguments": {}}),
            ("resources/read", {"uri": 7}),
            ("tasks/get", {"taskId": "nothing"}),
        ],
        ids=str,
    )
    def test_parameters_that_can_t_be_used_are_32602(self, connect: Connect, method: str, params: JSON) -> None:
        """Pagination, Tools, Prompts and Tasks, Error Handling."""
        client = connect()
        reply = client.http.post(client.url(), json=client.request(method, params), headers=client.given()).json()
        assert reply["error"]["code"] == -32602

    def test_arguments_that_do_not_fit_are_told_to_the_model(self, connect: Connect) -> None:
        """Tools, Error Handling: so that it can correct itself."""
        result = connect().call("add", a="x", b=2).result
        assert result["isError"]
        assert "a: " in result["content"][0]["text"]


class TestBatches:
    def batch(self) -> list[Any]:
        return [
            request("ping", id=1),
            {"jsonrpc": "2.0", "method": "notifications/roots/list_changed"},
            request("tools/call", {"name": "add", "arguments": {"a": 1, "b": 2}}, id="two"),
            request("tools/call", {"name": "say_hello"}, id=3),
            request("x/y", id=4),
            7,
        ]

    def test_the_version_that_has_them_gets_a_list_of_replies(self, connect: Connect) -> None:
        client = connect(version="2025-03-26")
        reply = client.post(self.batch())
        assert reply.status == 200
        replies: Any = reply.message
        assert [each.get("id") for each in replies] == [1, "two", 3, 4, None]
        assert replies[0]["result"] == {}
        assert text_of(replies[1]) == "3"
        assert "event-stream" in replies[2]["error"]["message"], "a call in a batch can't ask"
        assert [each["error"]["code"] for each in replies[3:]] == [-32601, -32600]
        assert EFFECTS == []

    def test_half_of_a_character_spoils_none_of_its_messages(self, connect: Connect) -> None:
        client = connect(version="2025-03-26")
        replies: Any = client.post([request("ping", id=1), request("\ud83d", id=2)]).message
        assert [(each["id"], "result" in each) for each in replies] == [(1, True), (2, False)]

    def test_notifications_alone_are_accepted(self, connect: Connect) -> None:
        client = connect(version="2025-03-26")
        assert client.post([{"jsonrpc": "2.0", "method": "notifications/initialized"}]).status == 202

    @pytest.mark.parametrize("batch", [[], [{"jsonrpc": "2.0", "method": "ping", "id": 1}] * 101])
    def test_an_empty_or_very_long_one_is_refused(self, connect: Connect, batch: list[Any]) -> None:
        client = connect(version="2025-03-26")
        reply = client.post(batch)
        assert (reply.status, reply.code) == (400, -32600)

    def test_one_of_too_many_values_is_refused_before_it_is_read(self, connect: Connect) -> None:
        client = connect(version="2025-03-26")
        reply = client.post([0] * 100_001)
        assert (reply.status, reply.code) == (400, -32602)
        assert reply.error.data["limit"] == "values"

    def test_others_are_refused_as_before(self, connect: Connect) -> None:
        for version in (NEWEST, "2025-06-18", "2024-11-05"):
            client = connect(version=version)
            reply = client.post(self.batch())
            assert (reply.status, reply.code) == (400, -32600)


class TestLogLevel:
    def levels(self, client: Handshake) -> list[str]:
        """Return the levels of the messages of one call."""
        with client.calling("notes") as stream:
            seen = []
            while "params" in (message := stream.next()):
                if "id" in message:
                    client.accept(message, name="x")
                elif message["method"] == "notifications/message":
                    seen.append(message["params"]["level"])
        return seen

    def test_by_default_it_is_info(self, connect: Connect) -> None:
        assert set(self.levels(connect())) == {"info", "warning"}

    def test_a_session_sets_its_own(self, connect: Connect, database: str) -> None:
        client, other = connect(servers=2, store=database), connect(servers=2, store=database)
        for level, seen in (("debug", {"debug", "info", "warning"}), ("warning", {"warning"}), ("error", set())):
            client.send("logging/setLevel", {"level": level})
            assert set(self.levels(client)) == seen
        assert set(self.levels(other)) == {"info", "warning"}

    def test_an_unknown_level_is_refused(self, connect: Connect) -> None:
        assert connect().send("logging/setLevel", {"level": "loud"}).code == -32602


class TestNotifications:
    def test_a_session_has_a_few_streams_and_not_any_number(self, connect: Connect) -> None:
        """Each of them looks at whatever the session sets."""
        client = connect()
        with ExitStack() as stack:
            for _ in range(MOST_LISTENING):
                stack.enter_context(client.listen())
            headers = client.given(Content_Type=None)
            assert client.http.get(client.url(), headers=headers).status_code == 405
            assert client.send("ping").result == {}
            with connect().listen():
                pass  # another session has its own
        wait_until(lambda: self.can_listen(client), "a place")

    @pytest.mark.parametrize("servers", [1, 2])
    def test_of_several_streams_the_newest_tells(self, connect: Connect, database: str, servers: int) -> None:
        """No message goes out on two streams (Transports, Multiple Connections)."""
        client = connect(servers, store=database, register=touching)
        second, other = Handshake(client.urls[-1:], session=client.session), Handshake(client.urls[:1])
        other.begin()
        client.urls = client.urls[:1]

        def tells(list: str, *streams: Stream) -> None:
            """Wait until streams tell that a list has changed."""
            for stream in streams:
                while not stream.next()["method"].startswith(f"notifications/{list}/"):
                    pass

        def touch_until(ended: threading.Event) -> None:
            while not ended.wait(0.05):
                second.call("touch", list="resources")

        def told_by_older() -> list[str]:
            """Return what the older stream tells while a newer one is open, and until it tells again of what is new."""
            told: list[str] = []
            with second.listen() as newer:
                for _ in range(3):
                    second.call("touch", list="prompts")
                    tells("prompts", newer, witness)  # so the replica of the older stream has heard of it, too
            ended = threading.Event()
            touching = threading.Thread(target=touch_until, args=(ended,))
            touching.start()
            try:
                while told.count("resources") < 2:
                    told.append(older.next()["method"].split("/")[1])
            finally:
                ended.set()
                touching.join()
            return told

        with client.listen() as older, other.listen() as witness:
            second.call("touch", list="tools")
            tells("tools", older, witness)
            assert "prompts" not in told_by_older()
        second.close()
        other.close()

    @staticmethod
    def can_listen(client: Handshake) -> bool:
        with client.http.stream("GET", client.url(), headers=client.given(Content_Type=None)) as response:
            return response.status_code == 200

    def test_a_session_listens_to_no_more_than_can_be_kept(self, connect: Connect) -> None:
        client = connect()
        replies = [client.send("resources/subscribe", {"uri": f"notes://{n}{'x' * 2_000}"}) for n in range(51)]
        assert [reply.code for reply in replies] == [*[None] * 49, -32602, -32602]
        assert replies[-1].error.data["limit"] == "resources"

    def test_lists_and_subscribed_resources(self, connect: Connect, database: str) -> None:
        client = connect(servers=2, store=database)
        assert client.send("resources/subscribe", {"uri": "notes://1"}).result == {}
        with client.listen() as stream:
            client.call("change")
            seen = [stream.next() for _ in range(2)]
        assert {"jsonrpc": "2.0", "method": "notifications/tools/list_changed", "params": {}} in seen
        assert seen[-1]["params"].get("uri", "notes://1") == "notes://1"

    def test_what_is_subscribed_while_it_is_open_counts(self, connect: Connect, database: str) -> None:
        client, other = connect(servers=2, store=database), connect(servers=2, store=database)
        seen = threading.Event()

        def change() -> None:
            while not seen.wait(0.05):
                other.call("change")

        with client.listen() as stream:
            client.send("resources/subscribe", {"uri": "notes://2"})
            changing = threading.Thread(target=change)
            changing.start()
            while stream.next()["params"].get("uri") != "notes://2":
                pass
            seen.set()
            changing.join()

    def test_what_changes_while_a_stream_begins_to_listen_anew_is_told(
        self, connect: Connect, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        client = connect(register=touching)
        subscribe, slow, waits, goes_on = (
            Subscriptions.subscribe,
            threading.Event(),
            threading.Event(),
            threading.Event(),
        )

        async def subscribe_slowly(*args: Any, **options: Any) -> Any:
            if slow.is_set():
                waits.set()
                await asyncio.to_thread(goes_on.wait, TIMEOUT)
            return await subscribe(*args, **options)

        monkeypatch.setattr(Subscriptions, "subscribe", subscribe_slowly)
        with client.listen() as stream:
            slow.set()
            client.send("logging/setLevel", {"level": "debug"})
            assert waits.wait(TIMEOUT)
            client.call("touch", list="prompts")
            slow.clear()
            goes_on.set()
            client.call("touch", list="tools")
            assert stream.next()["method"] == "notifications/prompts/list_changed"
            assert stream.next()["method"] == "notifications/tools/list_changed"

    def test_unknown_resources_and_no_session_are_refused(self, connect: Connect) -> None:
        client = connect()
        assert client.send("resources/subscribe", {"uri": "nowhere://x"}).code == -32002
        assert client.send("resources/subscribe", {"uri": 7}).code == -32602
        client.session = "forged"
        assert client.send("resources/subscribe", {"uri": "notes://1"}).code == -32602

    def test_it_needs_no_session_and_no_version(self, connect: Connect) -> None:
        client = connect(begin=False)
        with client.listen() as stream:
            client.call("change")
            assert stream.next()["method"] == "notifications/tools/list_changed"

    def test_one_too_many_is_405(self, connect: Connect) -> None:
        url = connect(app={"limits": Limits(held_streams=1)}).urls[0]
        first, second = (Client(url, era=NEWEST).listen() for _ in range(2))
        assert (first.open().status, second.open().status) == (200, 405)
        first.close()
        wait_until(lambda: second.open().status == 200, "the first to be let go")
        second.close()

    def test_without_accepting_a_stream_it_is_405(self, connect: Connect) -> None:
        client = connect()
        assert client.http.get(client.urls[0], headers=client.given(Accept="application/json")).status_code == 405

    def test_a_foreign_origin_is_403(self, connect: Connect) -> None:
        client = connect()
        for method in ("GET", "DELETE"):
            reply = client.http.request(method, client.urls[0], headers=client.given(Origin="https://evil.example"))
            assert reply.status_code == 403


class TestDelete:
    def delete(self, client: Handshake) -> int:
        return client.http.delete(client.url(), headers=client.given()).status_code

    def test_it_ends_the_session_for_good(self, connect: Connect, database: str) -> None:
        client = connect(store=database)
        assert self.delete(client) == 204
        assert client.send("ping").status == 404
        assert self.delete(client) == 404
        assert client.http.get(client.urls[0], headers=client.given()).status_code == 404

    def test_then_no_answer_and_no_notification_is_taken(self, connect: Connect, database: str) -> None:
        """Transports, Session Management."""
        client = connect(store=database)
        with client.calling("greet") as stream:
            asked = stream.ask()
            assert self.delete(client) == 204
            assert client.post({"jsonrpc": "2.0", "method": "notifications/initialized"}).status == 404
            cancelled = {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": client.ids}}
            assert client.post(cancelled).status == 404
            assert client.answer(asked, {"action": "accept", "content": {"name": "octocat"}}).status == 404
        assert EFFECTS == []

    def test_elsewhere_it_is_noticed_within_half_a_minute(
        self, connect: Connect, database: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("mrtr_server.live.session_states.LOOK_AFTER", 0.1)
        client = connect(servers=2, store=database)
        assert self.delete(client) == 204
        wait_until(lambda: client.send("ping").status == 404 and client.send("ping").status == 404, "both to know")

    def test_a_new_session_is_another(self, connect: Connect, database: str) -> None:
        client = connect(store=database)
        assert self.delete(client) == 204
        client.session = ""
        client.begin()
        assert client.send("ping").status == 200

    def test_it_ends_the_stream_of_notifications(self, connect: Connect, database: str) -> None:
        client = connect(store=database)
        with client.listen() as stream:
            assert self.delete(client) == 204
            assert list(stream.events()) == []

    def test_what_is_no_session_can_t_be_ended(self, connect: Connect, database: str) -> None:
        client = connect(store=database)
        client.session = "forged"
        assert self.delete(client) == 405

    def test_without_a_shared_store_none_can_be_ended(self, connect: Connect) -> None:
        """Another replica, of which nothing is known here, would go on to serve it."""
        client = connect()
        refused = client.http.delete(client.url(), headers=client.given())
        assert (refused.status_code, refused.headers["allow"]) == (405, "GET, POST")
        assert client.send("ping").status == 200

    def test_a_method_that_is_not_served_is_told_which_are(self, connect: Connect, database: str) -> None:
        today = connect(app={"dialects": ["2026-07-28"]}, begin=False)
        shared = connect(store=database)
        for client, served in ((today, "POST"), (connect(), "GET, POST"), (shared, "GET, POST, DELETE")):
            refused = client.http.put(client.url(), headers=client.given())
            assert (refused.status_code, refused.headers["allow"]) == (405, served)


class TestCancelled:
    @pytest.fixture(autouse=True)
    def gate(self) -> Any:
        GATE.clear()
        yield
        GATE.set()

    def cancel(self, client: Handshake, request_id: Any) -> None:
        message = {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": request_id}}
        assert client.post(message).status == 202

    @pytest.mark.parametrize("servers", [1, 2])
    def test_a_running_call_ends_without_a_response(self, connect: Connect, servers: int) -> None:
        client = connect(servers=servers)
        with client.open("tools/call", {"name": "wait", "_meta": {"progressToken": 1}}) as stream:
            assert stream.next()["params"]["progress"] == 1
            self.cancel(client, client.ids)
            assert list(stream.events()) == []
        assert EFFECTS == ["waits"]

    def test_the_log_has_the_reason(self, connect: Connect, caplog: pytest.LogCaptureFixture) -> None:
        """Cancellation, Implementation Notes."""
        client = connect()
        with caplog.at_level("DEBUG", logger="mrtr_server"):
            params = {"requestId": "unknown", "reason": "no\ntime"}
            client.post({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": params})
        assert "no\\x0atime" in caplog.text or "no\\ntime" in caplog.text

    @pytest.mark.parametrize("servers", [1, 2])
    def test_a_call_that_asks_takes_no_more_answers(self, connect: Connect, servers: int) -> None:
        client = connect(servers=servers)
        with client.calling("greet") as stream:
            asked = stream.ask()
            self.cancel(client, client.ids)
            told = stream.next()
            assert told["method"] == "notifications/cancelled"
            assert told["params"]["requestId"] == asked["id"]
            assert list(stream.events()) == []
        client.accept(asked, name="late")
        reply = client.http.get(client.url(), headers=client.given(Last_Event_ID=stream.last_id))
        assert reply.status_code == 405
        assert EFFECTS == []

    def test_every_stream_that_waits_for_its_answer_ends(self, connect: Connect) -> None:
        client = connect()
        with client.calling("greet") as stream:
            asked = stream.ask()
            with client.resume(stream.last_id) as again:
                next(again.events())
                self.cancel(client, client.ids)
                assert stream.next()["params"]["requestId"] == asked["id"]  # what it asked counts no more
                assert [event for each in (stream, again) for event in each.events() if event.data] == []
        client.accept(asked, name="late")
        assert EFFECTS == []

    def test_a_round_after_an_answer_is_cancelled_as_well(self, connect: Connect) -> None:
        client = connect()
        with client.calling("work_after") as stream:
            client.accept(stream.ask(), name="x")
            wait_until(lambda: "works" in EFFECTS, "the round to begin")
            self.cancel(client, client.ids)
            assert list(stream.events()) == []
        GATE.set()
        assert EFFECTS == ["works"]

    def test_a_call_of_json_gets_no_body(self, connect: Connect) -> None:
        client = connect()
        other = Handshake(client.urls, session=client.session)

        def cancel() -> None:
            wait_until(lambda: EFFECTS == ["waits"], "the call to run")
            self.cancel(other, 2)

        cancelling = threading.Thread(target=cancel)
        cancelling.start()
        reply = client.send("tools/call", {"name": "wait"})
        cancelling.join()
        other.close()
        assert (reply.status, reply.body) == (202, b"")

    @pytest.mark.anyio
    async def test_one_that_comes_just_when_the_call_ends_does_not_end_its_response(self) -> None:
        app, gate = MRTRServer("ending", keys=[bytes(32)]), asyncio.Event()
        headers = [(b"content-type", b"application/json"), (b"accept", ACCEPT.encode())]

        class Slowly(Exchange):
            async def _send(self, message: Message) -> None:
                await asyncio.sleep(0.01)
                await super()._send(message)

        def post(message: dict[str, Any]) -> Exchange:
            return Slowly(app, scope_of(headers)).body(json.dumps(message).encode())

        @app.tool
        async def end() -> str:
            began.set()
            await gate.wait()
            return "ended"

        began = asyncio.Event()
        about = {"protocolVersion": NEWEST, "capabilities": {}, "clientInfo": {"name": "x", "version": "1"}}
        begun = await post(request("initialize", about)).end()
        headers.append((b"mcp-session-id", begun.headers["mcp-session-id"].encode()))
        call = post(request("tools/call", {"name": "end"}, id=7)).start()
        await began.wait()
        cancelling = post({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 7}}).start()
        gate.set()  # so the call ends before the cancellation comes to it, and its response is being sent by then
        assert text_of((await call.end()).message) == "ended"
        assert (await cancelling.end()).status == 202

    def test_others_and_those_without_a_session_cancel_nothing(self, connect: Connect) -> None:
        client = connect()
        with client.calling("greet") as stream:
            asked = stream.ask()
            other = Handshake(client.urls)
            self.cancel(other, client.ids)
            other.begin()
            self.cancel(other, client.ids)
            self.cancel(client, "unknown")
            self.cancel(client, None)
            other.close()
            client.accept(asked, name="octocat")
            assert text_of(stream.end()) == "Hello, octocat!"
