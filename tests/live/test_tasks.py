"""Tasks of 2025-11-25: what clients that begin with a handshake do with the tasks that all dialects share."""

import importlib
import json
import logging
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from mrtr_server import Limits, Lists, MRTRServer

from ..support import live_tasks_app
from ..support.effects import EFFECTS
from ..support.handshake import OLDER, Handshake
from ..support.live_app import GATE
from ..support.users import Bearer
from ..support.wire import PREFIX, Reply, text_of
from .conftest import Connect
from .test_asks import SAMPLED

JSON = dict[str, Any]
RELATED, IMMEDIATE = PREFIX + "related-task", PREFIX + "model-immediate-response"
CAPABILITIES = PREFIX + "clientCapabilities"
METHODS = ["tasks/get", "tasks/result", "tasks/list", "tasks/cancel"]
OPEN = {"working", "input_required"}
PRINTED = Path(__file__).parents[1] / "protocol" / "transcripts" / "draft-tasks" / "non-blocking-elicitation.json"


@pytest.fixture
def studio(connect: Connect) -> Callable[..., Handshake]:
    """Serve the tools of `support/live_tasks_app.py`; see `connect`."""

    def start(servers: int = 1, store: str = "", **given: Any) -> Handshake:
        return connect(servers, store, register=live_tasks_app.register, **given)

    return start


@pytest.fixture
def gate() -> Iterator[threading.Event]:
    GATE.clear()
    yield GATE
    GATE.set()


def until(client: Handshake, task: JSON, *statuses: str) -> JSON:
    """Ask for a task until it has one of these statuses, as often as a client would; return it."""
    for _ in range(400):
        found: JSON = client.about("tasks/get", task).result
        if found["status"] in statuses:
            return found
        time.sleep(0.05)
    raise AssertionError(f"the task is still {found['status']}")


def ended(client: Handshake, task: JSON) -> JSON:
    return until(client, task, "completed", "failed", "cancelled")


def related(task: JSON) -> JSON:
    return {RELATED: {"taskId": task["taskId"]}}


def error_of(reply: Reply) -> tuple[int, int]:
    """Return the status and the code of a reply that is an error."""
    return reply.status, reply.message["error"]["code"]


class TestWhatIsDeclared:
    def test_the_newest_version_declares_tasks_and_no_older_one(self, studio: Callable[..., Handshake]) -> None:
        assert studio(begin=False).begin()["capabilities"]["tasks"] == {
            "list": {},
            "cancel": {},
            "requests": {"tools": {"call": {}}},
        }
        for version in OLDER:
            assert "tasks" not in studio(begin=False, version=version).begin()["capabilities"]

    def test_a_server_without_tasks_declares_none_and_has_no_such_method(self, connect: Connect) -> None:
        def register(app: Any) -> Any:
            app.tool(add)
            return app

        client = connect(begin=False, register=register)
        assert "tasks" not in client.begin()["capabilities"]
        for method in METHODS:
            assert error_of(client.send(method, {"taskId": "x"})) == (200, -32601)
        plain = client.request("tools/call", {"name": "add", "arguments": {"a": 1, "b": 2}, "task": {}})
        reply = client.http.post(client.url(), json=plain, headers=client.given())
        assert text_of(reply.json()) == "3", "where nothing is declared, it is ignored"

    def test_each_tool_says_whether_its_calls_become_tasks(self, studio: Callable[..., Handshake]) -> None:
        tools = {tool["name"]: tool for tool in studio().send("tools/list").result["tools"]}
        found = {name: tools[name]["execution"]["taskSupport"] for name in ("add", "count", "render", "edit")}
        assert found == {"add": "forbidden", "count": "optional", "render": "required", "edit": "optional"}

    @pytest.mark.parametrize("version", OLDER)
    def test_older_versions_have_none_of_it(self, studio: Callable[..., Handshake], version: str) -> None:
        client = studio(version=version)
        assert all("execution" not in tool for tool in client.send("tools/list").result["tools"])
        for method in METHODS:
            assert error_of(client.send(method, {"taskId": "x"})) == (200, -32601)
        params = {"name": "count", "arguments": {}, "task": {"ttl": 1000}}
        reply = client.http.post(client.url(), json=client.request("tools/call", params), headers=client.given())
        assert "content" in reply.json()["result"], "an unknown parameter is ignored"
        assert error_of(client.call("render")) == (200, -32021)


def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


class TestCalls:
    def test_a_call_with_task_is_answered_at_once_with_a_task(self, studio: Callable[..., Handshake]) -> None:
        client = studio()
        params = {"name": "count", "arguments": {"shelf": 2}, "task": {"ttl": 60_000}}
        result = client.send("tools/call", params).result
        task = result["task"]
        assert (task["status"], task["ttl"], task["pollInterval"]) == ("working", 60_000, 500)
        assert result["_meta"][RELATED] == {"taskId": task["taskId"]}
        assert "count" in result["_meta"][IMMEDIATE]
        assert ended(client, task)["status"] == "completed"
        found = client.about("tasks/result", task).result
        assert found["structuredContent"] == {"films": 6}
        assert found["_meta"] == related(task)

    @pytest.mark.parametrize(
        ("wanted", "granted"), [({}, 600_000), ({"ttl": 10**9}, 600_000), ({"ttl": None}, 600_000)]
    )
    def test_the_time_to_live_is_the_shorter_of_what_both_want(
        self, studio: Callable[..., Handshake], wanted: JSON, granted: int
    ) -> None:
        client = studio()
        task = client.send("tools/call", {"name": "count", "arguments": {}, "task": wanted}).result["task"]
        assert task["ttl"] == granted
        assert client.about("tasks/get", task).result["ttl"] == granted

    @pytest.mark.parametrize("task", [7, "x", [], {"ttl": "60000"}, {"ttl": -1}, {"ttl": 0}, {"ttl": True}])
    def test_what_is_no_task_is_invalid(self, studio: Callable[..., Handshake], task: Any) -> None:
        client = studio()
        params = {"name": "count", "arguments": {}, "task": task}
        assert error_of(client.send("tools/call", params)) == (200, -32602)

    def test_a_tool_that_requires_a_task_is_no_method_without(self, studio: Callable[..., Handshake]) -> None:
        reply = studio().call("render")
        assert error_of(reply) == (200, -32601)
        assert "params.task" in reply.message["error"]["message"]

    def test_a_tool_without_tasks_is_no_method_with_one(self, studio: Callable[..., Handshake]) -> None:
        client = studio()
        params = {"name": "add", "arguments": {"a": 1, "b": 2}, "task": {}}
        assert error_of(client.send("tools/call", params)) == (200, -32601)

    def test_arguments_that_do_not_fit_are_an_error_and_no_task(self, studio: Callable[..., Handshake]) -> None:
        client = studio()
        reply = client.send("tools/call", {"name": "count", "arguments": {"shelf": "x"}, "task": {}})
        assert error_of(reply) == (200, -32602)
        assert "shelf" in reply.message["error"]["message"]
        assert error_of(client.send("tools/call", {"name": "nope", "task": {}})) == (200, -32602)
        assert client.send("tasks/list").result == {"tasks": []}

    def test_without_task_the_same_tool_is_answered_in_the_call(self, studio: Callable[..., Handshake]) -> None:
        client = studio()
        assert client.call("count").result["structuredContent"] == {"films": 3}
        with client.calling("edit") as stream:
            client.accept(stream.ask(), name="Ann")
            client.accept(stream.ask(), name="Bob")
            assert text_of(stream.end()) == "Ann and Bob"
        assert client.send("tasks/list").result == {"tasks": []}

    def test_a_result_that_is_no_object_is_wrapped_as_in_a_call(self, studio: Callable[..., Handshake]) -> None:
        client = studio()
        task = client.task("pair")
        ended(client, task)
        assert client.about("tasks/result", task).result["structuredContent"] == {"result": [1, "x"]}


class TestHowItEnds:
    def test_a_failed_tool_is_a_failed_task_with_its_result(self, studio: Callable[..., Handshake]) -> None:
        client = studio()
        task = client.task("fail")
        found = ended(client, task)
        assert (found["status"], found["statusMessage"]) == ("failed", "The film is torn")
        assert client.send("tasks/list").result["tasks"][0]["status"] == "failed"
        result = client.about("tasks/result", task).result
        assert (result["isError"], result["content"][0]["text"]) == (True, "The film is torn")
        assert result["_meta"] == related(task)

    def test_an_error_of_the_call_is_the_error_of_its_result(self, studio: Callable[..., Handshake]) -> None:
        client = studio()
        task = client.task("break_off")
        assert ended(client, task)["statusMessage"] == "The studio is closed"
        error = client.about("tasks/result", task).message["error"]
        assert error == {"code": -32603, "message": "The studio is closed", "data": {"opens": "tomorrow"}}

    def test_a_cancelled_task_has_no_result_and_runs_no_further_step(
        self, studio: Callable[..., Handshake], gate: threading.Event
    ) -> None:
        client = studio()
        task = client.task("greet")
        until(client, task, "input_required")
        assert client.about("tasks/cancel", task).result["status"] == "cancelled"
        assert client.about("tasks/get", task).result["status"] == "cancelled"
        assert error_of(client.about("tasks/result", task)) == (200, -32602)
        assert EFFECTS == []

    @pytest.mark.parametrize("tool", ["count", "fail", "break_off"])
    def test_a_task_that_has_ended_is_not_cancelled(self, studio: Callable[..., Handshake], tool: str) -> None:
        client = studio()
        task = client.task(tool)
        status = ended(client, task)["status"]
        reply = client.about("tasks/cancel", task)
        assert error_of(reply) == (200, -32602)
        assert status in reply.message["error"]["message"]
        assert client.about("tasks/get", task).result["status"] == status

    def test_nor_is_one_that_was_cancelled(self, studio: Callable[..., Handshake]) -> None:
        client = studio()
        task = client.task("greet")
        assert client.about("tasks/cancel", task).status == 200
        assert error_of(client.about("tasks/cancel", task)) == (200, -32602)

    def test_one_whose_time_is_over_has_failed(self, studio: Callable[..., Handshake]) -> None:
        client = studio()
        task = client.task("greet", ttl=300)
        assert ended(client, task)["status"] == "failed"
        assert error_of(client.about("tasks/result", task)) == (200, -32603)

    @pytest.mark.parametrize("method", ["tasks/get", "tasks/result", "tasks/cancel"])
    @pytest.mark.parametrize("id", ["", "x", "ä", "x" * 5000, 7, None])
    def test_what_is_no_task_is_invalid(self, studio: Callable[..., Handshake], method: str, id: Any) -> None:
        assert error_of(studio().send(method, {"taskId": id})) == (200, -32602)


class TestQuestions:
    def test_they_come_while_the_result_is_waited_for(self, studio: Callable[..., Handshake]) -> None:
        client = studio()
        task = client.task("greet")
        assert until(client, task, "input_required")["status"] == "input_required"
        with client.result_of(task) as stream:
            asked = stream.ask()
            assert asked["method"] == "elicitation/create"
            assert asked["params"]["_meta"] == related(task)
            client.accept(asked, name="Ann")
            response = stream.end()
        assert text_of(response) == "Hello, Ann!"
        assert response["result"]["_meta"] == related(task)
        assert EFFECTS == ["Hello, Ann!"]

    def test_all_kinds_come_at_once_and_are_answered_in_any_order(self, studio: Callable[..., Handshake]) -> None:
        client = studio()
        task = client.task("everything")
        with client.result_of(task) as stream:
            asked = {message["method"]: message for message in (stream.ask(), stream.ask(), stream.ask())}
            assert all(message["params"]["_meta"] == related(task) for message in asked.values())
            assert client.answer(asked["roots/list"], {"roots": [{"uri": "file:///a"}]}).status == 202
            client.accept(asked["elicitation/create"], name="Ann")
            assert client.answer(asked["sampling/createMessage"], SAMPLED).status == 202
            assert text_of(stream.end()) == "hello, Ann in 1 places"

    @pytest.mark.parametrize("tool", ["greet_purely", "greet"])
    def test_every_style_asks_the_same(self, studio: Callable[..., Handshake], tool: str) -> None:
        client = studio()
        with client.result_of(client.task(tool)) as stream:
            client.accept(stream.ask(), name="Ann")
            assert text_of(stream.end()) == "Hello, Ann!"

    def test_what_would_be_asked_in_rounds_first_is_asked_by_the_task(self, studio: Callable[..., Handshake]) -> None:
        client = studio()
        task = client.task("edit")
        with client.result_of(task) as stream:
            client.accept(stream.ask(), name="Ann")
            client.accept(stream.ask(), name="Bob")
            assert text_of(stream.end()) == "Ann and Bob"

    def test_a_page_has_the_name_of_its_elicitation(self, studio: Callable[..., Handshake]) -> None:
        client = studio()
        with client.result_of(client.task("open_page")) as stream:
            asked = stream.ask()
            assert asked["params"]["elicitationId"]
            assert client.answer(asked, {"action": "accept"}).status == 202
            assert text_of(stream.end()) == "opened"

    def test_an_answer_that_does_not_fit_is_asked_for_again(self, studio: Callable[..., Handshake]) -> None:
        client = studio()
        with client.result_of(client.task("greet")) as stream:
            client.accept(stream.ask(), name=7)
            client.accept(stream.ask(), name="Ann")
            assert text_of(stream.end()) == "Hello, Ann!"

    @pytest.mark.parametrize("action", ["decline", "cancel"])
    def test_a_no_is_a_result_that_says_so(self, studio: Callable[..., Handshake], action: str) -> None:
        client = studio()
        task = client.task("greet")
        with client.result_of(task) as stream:
            assert client.answer(stream.ask(), {"action": action}).status == 202
            assert stream.end()["result"]["isError"]
        assert client.about("tasks/get", task).result["status"] == "failed"
        assert EFFECTS == []

    def test_an_error_as_the_answer_dismisses_a_form_and_fails_a_sampling(
        self, studio: Callable[..., Handshake]
    ) -> None:
        client = studio()
        with client.result_of(client.task("greet")) as stream:
            assert client.answer(stream.ask(), error={"code": -32603, "message": "No"}).status == 202
            assert stream.end()["result"]["isError"]
        with client.result_of(client.task("say_hello")) as stream:
            assert client.answer(stream.ask(), error={"code": -32603, "message": "No model"}).status == 202
            error = stream.end()["error"]
        assert error["code"] == -32603
        assert "No model" in error["message"]

    def test_one_that_the_client_does_not_know_is_a_missing_capability(self, studio: Callable[..., Handshake]) -> None:
        client = studio()
        with client.result_of(client.task("say_hello")) as stream:
            assert client.answer(stream.ask(), error={"code": -32601, "message": "Unknown"}).status == 202
            assert stream.end()["error"]["code"] == -32021

    def test_what_the_client_did_not_declare_is_not_asked(self, studio: Callable[..., Handshake]) -> None:
        client = studio(capabilities={})
        task = client.task("greet")
        assert ended(client, task)["status"] == "failed"
        assert error_of(client.about("tasks/result", task)) == (200, -32021)

    def test_they_need_a_stream(self, studio: Callable[..., Handshake]) -> None:
        client = studio()
        task = client.task("greet")
        reply = client.send("tasks/result", {"taskId": task["taskId"]}, Accept="application/json")
        assert error_of(reply) == (200, -32600)
        assert "text/event-stream" in reply.message["error"]["message"]

    def test_a_new_request_for_the_result_asks_what_is_open_again(self, studio: Callable[..., Handshake]) -> None:
        client = studio()
        task = client.task("greet")
        with client.result_of(task) as stream:
            first = stream.ask()
        with client.result_of(task) as stream:
            again = stream.ask()
            assert again["id"] != first["id"]
            client.accept(first, name="Ann")
            assert text_of(stream.end()) == "Hello, Ann!"
        client.accept(again, name="Bob")
        assert EFFECTS == ["Hello, Ann!"], "the first answer counts"

    def test_an_answer_counts_when_nobody_waits_for_the_result(self, studio: Callable[..., Handshake]) -> None:
        client = studio()
        task = client.task("greet")
        with client.result_of(task) as stream:
            asked = stream.ask()
        client.accept(asked, name="Ann")
        assert ended(client, task)["status"] == "completed"
        client.accept(asked, name="Bob")
        assert client.about("tasks/result", task).text == "Hello, Ann!"

    def test_a_single_use_tool_has_its_effect_once(self, studio: Callable[..., Handshake]) -> None:
        client = studio()
        with client.result_of(client.task("pay", amount=5)) as stream:
            client.accept(stream.ask(), confirm=True)
            assert text_of(stream.end()) == "paid 5"
        assert EFFECTS == ["paid 5"]


class TestWhatAClientCanBeAsked:
    """By what its call declares, or else by its session: neither is asked what it did not declare."""

    def test_a_task_of_a_call_that_declares_nothing_fails_when_it_asks(self, studio: Callable[..., Handshake]) -> None:
        client = studio()
        client.session, client.headers = "", {"MCP-Protocol-Version": client.version}
        task = client.task("greet")
        assert ended(client, task)["status"] == "failed"
        reply = client.about("tasks/result", task)
        assert error_of(reply) == (200, -32021)
        assert "form elicitation" in reply.message["error"]["message"]

    def test_nor_is_a_task_shown_to_a_client_that_can_t_answer_it(self, studio: Callable[..., Handshake]) -> None:
        ann = studio(servers=2, app={"auth": Bearer()}, headers={"Authorization": "ann"})
        task = ann.task("greet")
        until(ann, task, "input_required")
        wanted = {"taskId": task["taskId"]}
        without = {"Mcp_Session_Id": None}
        others: list[JSON] = [{}, {"_meta": {CAPABILITIES: {"sampling": {}}}}]
        for declared in others:
            assert error_of(ann.send("tasks/result", {**wanted, **declared}, **without)) == (200, -32021)
        declares = {**wanted, "_meta": {CAPABILITIES: {"elicitation": {}}}}
        with ann.open("tasks/result", declares, **without) as stream:
            stream.ask()
        with ann.resume(stream.last_id, **without) as again, ann.open("tasks/result", wanted) as other:
            ann.accept(other.ask(), name="Ann")
            assert text_of(again.end()) == text_of(other.end()) == "Hello, Ann!"

    def test_a_client_that_comes_back_is_asked_what_its_request_declared(
        self, studio: Callable[..., Handshake], gate: threading.Event
    ) -> None:
        ann = studio(servers=2, app={"auth": Bearer()}, headers={"Authorization": "ann"})
        task = ann.task("wait_and_greet")
        declares = {"taskId": task["taskId"], "_meta": {CAPABILITIES: {"elicitation": {}}}}
        with ann.open("tasks/result", declares, Mcp_Session_Id=None) as stream:
            next(stream.events())
        gate.set()
        with ann.resume(stream.last_id, Mcp_Session_Id=None) as again:
            ann.accept(again.ask(), name="Ann")
            assert text_of(again.end()) == "Hello, Ann!"


class TestNonBlockingElicitations:
    """An empty `task` (#1869): what is asked, and the answer, are in `_meta`; all else is as the version has it."""

    PENDING, RESPONSE = PREFIX + "pending-elicitations", PREFIX + "elicitation-response"

    def begin(self, client: Handshake, tool: str, **arguments: Any) -> tuple[JSON, JSON]:
        """Call a tool with an empty `task`; return the task, and the `_meta` beside it."""
        result = client.send("tools/call", {"name": tool, "arguments": arguments, "task": {}}).result
        return result["task"], result["_meta"]

    def respond(self, client: Handshake, task: JSON, asked: JSON, **answer: Any) -> Reply:
        given = {"elicitationId": asked["elicitationId"], **answer}
        return client.send("tasks/get", {"taskId": task["taskId"], "_meta": {self.RESPONSE: given}})

    def test_are_asked_and_answered_as_printed(self, connect: Connect) -> None:
        """The printed requests, posted as they are but for our ids; and the printed questions."""
        dinner = importlib.import_module("examples.dinner")

        def register(app: MRTRServer) -> MRTRServer:
            app.include(dinner.app)
            return app

        client = connect(register=register)
        called, looked, redeemed = json.loads(PRINTED.read_text())["exchanges"]
        result = client.post({**called["request"], "id": 101}).result
        printed = called["answer"]["result"]
        task, meta = result["task"], result["_meta"]
        assert task["status"] == printed["status"] == "input_required"
        assert meta[IMMEDIATE] == printed["_meta"][IMMEDIATE]
        (asked,), (expected,) = meta[self.PENDING], printed["_meta"][self.PENDING]
        assert asked == {**expected, "elicitationId": asked["elicitationId"]}
        assert client.send("tasks/get", {"taskId": task["taskId"]}).result["_meta"] == {self.PENDING: [asked]}
        given = looked["request"]["params"]["_meta"][self.RESPONSE]
        seen = self.respond(client, task, asked, **{name: given[name] for name in ("action", "content")}).result
        assert (seen["status"], "_meta" in seen) == ("completed", False)
        done = client.send(redeemed["request"]["method"], {"taskId": task["taskId"]}).result
        (block,) = redeemed["answer"]["result"]["content"]
        assert done["content"][0]["text"].partition("RES-")[0] == block["text"].partition("RES-")[0]

    def test_wait_for_nobody_who_can_t_be_asked(self, studio: Callable[..., Handshake], gate: threading.Event) -> None:
        client = studio(capabilities={"sampling": {}})
        began = time.monotonic()
        task, meta = self.begin(client, "wait")
        assert time.monotonic() - began < 0.9
        assert (task["status"], self.PENDING in meta) == ("working", False)

    def test_take_an_answer_to_any_task_and_only_with_a_look_at_it(self, studio: Callable[..., Handshake]) -> None:
        client = studio()
        task = client.task("greet", ttl=60000)
        asked = {"elicitationId": "login"}
        assert "_meta" not in until(client, task, "input_required"), "it was not called so"
        params = {"taskId": task["taskId"], "_meta": {self.RESPONSE: {**asked, "action": "accept"}}}
        for method in ("tasks/result", "tasks/cancel"):
            reply = client.send(method, params)
            assert error_of(reply) == (200, -32602)
            assert f"goes with tasks/get, and not with {method}" in reply.message["error"]["message"]
        for broken in (5, {}, {"elicitationId": 5}):
            assert error_of(client.send("tasks/get", {**params, "_meta": {self.RESPONSE: broken}})) == (200, -32602)
        assert self.respond(client, task, {"elicitationId": "stranger"}, action="accept").result["status"] in OPEN
        self.respond(client, task, asked, action="accept", content={"name": "Ann"})
        ended(client, task)
        assert text_of(client.about("tasks/result", task).message) == "Hello, Ann!"

    def test_count_once_whichever_way_they_are_answered(self, studio: Callable[..., Handshake]) -> None:
        client = studio()
        task, meta = self.begin(client, "pay", amount=5)
        (asked,) = meta[self.PENDING]
        for _ in range(2):
            self.respond(client, task, asked, action="accept", content={"confirm": True})
        ended(client, task)
        assert text_of(client.about("tasks/result", task).message) == "paid 5"
        assert EFFECTS == ["paid 5"]

    def test_of_other_kinds_are_shown_to_who_can_be_asked_that(self, studio: Callable[..., Handshake]) -> None:
        _, meta = self.begin(studio(), "everything")
        kinds = [asked.get("method", asked.get("mode")) for asked in meta[self.PENDING]]
        assert kinds == ["form", "sampling/createMessage", "roots/list"]

    def test_are_those_of_the_task_s_owner_alone(self, studio: Callable[..., Handshake]) -> None:
        ann, bob = (studio(app={"auth": Bearer()}, headers={"Authorization": who}) for who in ("ann", "bob"))
        task, meta = self.begin(ann, "greet")
        (asked,) = meta[self.PENDING]
        reply = self.respond(bob, task, asked, action="accept", content={"name": "Bob"})
        assert error_of(reply) == (200, -32602)


class TestWaiting:
    def test_a_task_that_works_holds_the_request_and_has_its_progress(
        self, studio: Callable[..., Handshake], gate: threading.Event
    ) -> None:
        client = studio()
        params = {"name": "wait", "arguments": {}, "task": {}, "_meta": {"progressToken": "p"}}
        task = client.send("tools/call", params).result["task"]
        with client.result_of(task) as stream:
            assert client.about("tasks/get", task).result["status"] == "working"
            gate.set()
            while (message := stream.next()).get("method") == "notifications/progress":
                assert message["params"]["progressToken"] == "p"
                assert message["params"]["_meta"] == related(task)
                progress = message["params"]["progress"]
        assert progress == 2
        assert text_of(message) == "waited"

    def test_a_cancelled_request_ends_its_waiting_and_not_the_task(
        self, studio: Callable[..., Handshake], gate: threading.Event
    ) -> None:
        client = studio()
        task = client.task("wait")
        with client.result_of(task) as stream:
            cancelled = {"requestId": client.ids}
            client.post({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": cancelled})
            assert [event.data for event in stream.events() if event.data] == []
        assert client.about("tasks/get", task).result["status"] == "working"
        gate.set()
        assert ended(client, task)["status"] == "completed"

    def test_a_task_that_is_cancelled_meanwhile_ends_the_waiting(
        self, studio: Callable[..., Handshake], gate: threading.Event
    ) -> None:
        client = studio()
        task = client.task("wait")
        with client.result_of(task) as stream:
            client.about("tasks/cancel", task)
            assert stream.end()["error"]["code"] == -32602

    def test_what_a_cancelled_task_asked_is_withdrawn(self, studio: Callable[..., Handshake]) -> None:
        """Cancellation."""
        client = studio()
        task = client.task("greet")
        with client.result_of(task) as stream:
            asked = stream.ask()
            client.about("tasks/cancel", task)
            told = stream.next()
            assert (told["method"], told["params"]["requestId"]) == ("notifications/cancelled", asked["id"])
            assert stream.end()["error"]["code"] == -32602

    def test_one_caller_has_a_share_of_the_streams(
        self, studio: Callable[..., Handshake], gate: threading.Event
    ) -> None:
        app = {"auth": Bearer(), "limits": Limits(held_streams=1, caller_share=1.0)}
        client = studio(app=app, headers={"Authorization": "ann"})
        task = client.task("wait")
        with client.result_of(task):
            reply = client.about("tasks/result", task)
            assert error_of(reply) == (200, -31002)
            assert reply.headers["retry-after"]


class TestElsewhere:
    def test_every_request_may_go_to_another_replica(self, studio: Callable[..., Handshake], database: str) -> None:
        client = studio(3, database)
        task = client.task("everything")
        with client.result_of(task) as stream:
            for message in (stream.ask(), stream.ask(), stream.ask()):
                answers: JSON = {
                    "elicitation/create": {"action": "accept", "content": {"name": "Ann"}},
                    "sampling/createMessage": SAMPLED,
                    "roots/list": {"roots": []},
                }
                assert client.answer(message, answers[message["method"]]).status == 202
            assert text_of(stream.end()) == "hello, Ann in 0 places"
        assert client.about("tasks/get", task).result["status"] == "completed"
        assert [each["taskId"] for each in client.send("tasks/list").result["tasks"]] == [task["taskId"]]
        assert error_of(client.about("tasks/cancel", task)) == (200, -32602)
        assert client.about("tasks/result", task).text == "hello, Ann in 0 places"

    def test_a_stream_that_broke_continues_and_asks_nothing_twice(
        self, studio: Callable[..., Handshake], database: str
    ) -> None:
        client = studio(2, database)
        task = client.task("edit")
        with client.result_of(task) as stream:
            first, request = stream.ask(), client.ids
        with client.resume(stream.last_id) as again:
            client.accept(first, name="Ann")
            second = again.ask()
            assert second["params"]["message"] == "Who ends?"
        client.accept(second, name="Bob")
        with client.resume(again.last_id) as again:
            response = again.end()
        assert response["id"] == request
        assert text_of(response) == "Ann and Bob"

    def test_a_question_that_did_not_arrive_is_sent_again(self, studio: Callable[..., Handshake]) -> None:
        client = studio(2)
        task = client.task("greet")
        with client.result_of(task) as stream:
            first = next(event for event in stream.events() if event.id)
            stream.ask()
        with client.resume(first.id) as again:
            client.accept(again.ask(), name="Ann")
            assert text_of(again.end()) == "Hello, Ann!"

    def test_a_task_is_cancelled_through_any_replica(
        self, studio: Callable[..., Handshake], database: str, gate: threading.Event
    ) -> None:
        client = studio(2, database)
        task = client.task("wait")
        with client.result_of(task) as stream:
            assert client.about("tasks/cancel", task).result["status"] == "cancelled"
            assert stream.end()["error"]["code"] == -32602

    def test_an_answer_at_a_process_that_shares_no_store_is_refused(self, studio: Callable[..., Handshake]) -> None:
        one, other = studio(), studio()
        with one.result_of(one.task("greet")) as stream:
            asked = stream.ask()
            assert error_of(other.answer(asked, {"action": "cancel"})) == (503, -32603)


class TestWhoseTheyAre:
    def test_to_another_user_a_task_does_not_exist(self, studio: Callable[..., Handshake]) -> None:
        ann = studio(app={"auth": Bearer()}, headers={"Authorization": "ann"})
        bob = Handshake(ann.urls, headers={"Authorization": "bob"})
        bob.begin()
        task = ann.task("greet")
        with ann.result_of(task) as stream:
            asked = stream.ask()
            for method in ("tasks/get", "tasks/result", "tasks/cancel"):
                assert error_of(bob.about(method, task)) == (200, -32602)
            assert bob.send("tasks/list").result == {"tasks": []}
            assert bob.answer(asked, {"action": "decline"}).status == 400, "it opens nothing for him"
            ann.accept(asked, name="Ann")
            assert text_of(stream.end()) == "Hello, Ann!"
        bob.close()

    def test_a_user_has_them_in_every_session(self, studio: Callable[..., Handshake]) -> None:
        ann = studio(app={"auth": Bearer()}, headers={"Authorization": "ann"})
        task = ann.task("count")
        later = Handshake(ann.urls, headers={"Authorization": "ann"})
        later.begin()
        assert ended(later, task)["status"] == "completed"
        assert [each["taskId"] for each in later.send("tasks/list").result["tasks"]] == [task["taskId"]]
        later.close()

    def test_without_users_they_belong_to_the_session(self, studio: Callable[..., Handshake]) -> None:
        one = studio()
        other = Handshake(one.urls)
        other.begin(title="another")
        task = one.task("greet")
        for method in ("tasks/get", "tasks/result", "tasks/cancel"):
            assert error_of(other.about(method, task)) == (200, -32602)
        assert other.send("tasks/list").result == {"tasks": []}
        assert len(one.send("tasks/list").result["tasks"]) == 1
        other.close()

    def test_without_users_and_session_the_id_alone_protects_a_task_and_no_list_has_it(
        self, studio: Callable[..., Handshake]
    ) -> None:
        client = studio(begin=False)
        client.headers = {"MCP-Protocol-Version": client.version}
        task = client.task("count")
        assert ended(client, task)["status"] == "completed"
        assert client.send("tasks/list").result == {"tasks": []}

    def test_a_log_never_has_the_id_of_a_task(
        self, studio: Callable[..., Handshake], caplog: pytest.LogCaptureFixture
    ) -> None:
        client = studio()
        with caplog.at_level(logging.DEBUG, "mrtr_server"):
            task = client.task("greet")
            until(client, task, "input_required")
            declares_nothing = {"taskId": task["taskId"], "_meta": {CAPABILITIES: {}}}
            assert error_of(client.send("tasks/result", declares_nothing)) == (200, -32021)
            with client.result_of(task) as stream:
                client.accept(stream.ask(), name="Ann")
                stream.end()
            client.about("tasks/cancel", task)
        assert f"tasks/result {task['taskId'][:8]}" in caplog.text
        assert task["taskId"] not in caplog.text


class TestLists:
    def test_they_come_page_by_page_the_newest_first(self, studio: Callable[..., Handshake], database: str) -> None:
        client = studio(2, database, app={"lists": Lists(page_size=2)})
        made = [client.task("count")["taskId"] for _ in range(5)]
        listed: list[str] = []
        cursor: JSON = {}
        for _ in range(3):
            page = client.send("tasks/list", cursor).result
            listed += [each["taskId"] for each in page["tasks"]]
            cursor = {"cursor": page.get("nextCursor")}
        assert listed == made[::-1]
        assert cursor == {"cursor": None}

    def test_a_cursor_of_something_else_is_invalid(self, studio: Callable[..., Handshake]) -> None:
        one = studio(app={"lists": Lists(page_size=1)})
        other = Handshake(one.urls)
        other.begin(title="another")
        for _ in range(2):
            one.task("count")
        foreign = one.send("tasks/list").result["nextCursor"]
        tools = one.send("tools/list").result["nextCursor"]
        for cursor in ("x", 7, tools, "x" * 10_000):
            assert error_of(one.send("tasks/list", {"cursor": cursor})) == (200, -32602)
        assert error_of(other.send("tasks/list", {"cursor": foreign})) == (200, -32602)
        other.close()


class TestNotifications:
    def test_a_session_hears_how_its_tasks_are_doing(self, studio: Callable[..., Handshake], database: str) -> None:
        client = studio(2, database)
        before = client.task("greet")
        until(client, before, "input_required")
        with client.listen() as stream:
            with client.result_of(before) as result:
                client.accept(result.ask(), name="Ann")
                result.end()
            while (message := stream.next())["params"]["status"] != "completed":
                assert message["method"] == "notifications/tasks/status"
            assert message["params"]["taskId"] == before["taskId"]
            assert "_meta" not in message["params"]
            task = client.task("greet")
            message = stream.next()
            assert (message["params"]["taskId"], message["params"]["status"]) == (task["taskId"], "input_required")

    def test_another_user_hears_nothing(self, studio: Callable[..., Handshake]) -> None:
        ann = studio(app={"auth": Bearer()}, headers={"Authorization": "ann"})
        bob = Handshake(ann.urls, headers={"Authorization": "bob"})
        bob.begin()
        with bob.listen() as stream:
            ended(ann, ann.task("count"))
            bob.task("greet")
            assert stream.next()["params"]["status"] == "input_required"
        bob.close()
