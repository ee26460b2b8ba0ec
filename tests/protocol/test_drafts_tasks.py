"""Tasks in the dialect of the drafts, past their printed messages; those are in protocol/transcripts/draft-tasks."""

import time
from collections.abc import Iterator
from typing import Any

import pytest

from ..support.serving import TIMEOUT, in_thread
from ..support.task_apps import working
from ..support.wire import JSON, PREFIX, Reply, Wire, accept, request

RELATED = PREFIX + "related-task"
RESPONSE, PENDING = PREFIX + "elicitation-response", PREFIX + "pending-elicitations"


@pytest.fixture(scope="module")
def wire() -> Iterator[Wire]:
    with in_thread(working) as port:
        sender = Wire(f"http://127.0.0.1:{port}/mcp")
        yield sender
        sender.close()


def call(wire: Wire, tool: str, task: Any = None, **params: Any) -> Reply:
    return wire.draft(request("tools/call", {"name": tool, "task": {"ttl": 60000} if task is None else task, **params}))


def start(wire: Wire, tool: str, task: Any = None) -> str:
    result = call(wire, tool, task).result
    return str(result.get("task", result)["taskId"])


def about(wire: Wire, method: str, task: str, **params: Any) -> Reply:
    return wire.draft(request(f"tasks/{method}", {"taskId": task, **params}))


def answer(wire: Wire, task: str, **answers: JSON) -> Reply:
    return about(wire, "input_response", task, inputResponses=answers)


def once(wire: Wire, task: str, status: str) -> JSON:
    """Look at a task until it has a status."""
    deadline = time.monotonic() + TIMEOUT
    while (seen := about(wire, "get", task).raw_result)["status"] != status:
        assert time.monotonic() < deadline, seen
        time.sleep(0.02)
    return seen


class TestCalls:
    def test_without_an_offer_are_answered_in_rounds(self, wire: Wire) -> None:
        asked = wire.draft(request("tools/call", {"name": "greet"}))
        retried = {"name": "greet", "requestState": asked.state, "inputResponses": {"login": accept(name="octocat")}}
        assert wire.draft(request("tools/call", retried)).text == "Hello, octocat"

    def test_of_a_tool_that_is_never_a_task_ignore_the_offer(self, wire: Wire) -> None:
        offers: list[JSON] = [{"ttl": 60000}, {}]
        for task in offers:
            assert call(wire, "at_once", task, arguments={"name": "octocat"}).text == "Hello, octocat"

    def test_begin_in_rounds_and_go_on_as_a_task(self, wire: Wire) -> None:
        """Workflow Transitions: the server stores nothing until it has what it needs to begin."""
        asked = call(wire, "measure")
        assert asked.result.keys() == {"inputRequests", "requestState"}
        retried = {"inputResponses": {"login": accept(name="octocat")}, "requestState": asked.state}
        task = call(wire, "measure", **retried).result["task"]["taskId"]
        assert once(wire, task, "input_required")["statusMessage"] == "Waiting for the size of octocat"
        answer(wire, task, size=accept(size=180))
        said = once(wire, task, "completed")["statusMessage"]
        assert said == "Task has been completed successfully, call tasks/result", "not what it said last"
        assert about(wire, "result", task).text == "octocat is 180 tall"

    def test_of_a_tool_that_must_be_a_task_say_what_is_missing(self, wire: Wire) -> None:
        reply = wire.draft(request("tools/call", {"name": "fail"}))
        assert (reply.status, reply.code) == (400, -32021)
        assert reply.error.message.endswith("send it with params.task")

    @pytest.mark.parametrize("ttl", [1, 60000])
    def test_get_no_longer_life_than_they_want(self, wire: Wire, ttl: int) -> None:
        assert call(wire, "greet", {"ttl": ttl}).result["task"]["ttl"] == ttl

    def test_get_no_longer_life_than_the_server_gives(self, wire: Wire) -> None:
        assert call(wire, "greet", {"ttl": 1e300}).result["task"]["ttl"] == 600_000

    def test_with_a_broken_offer_are_refused(self, wire: Wire) -> None:
        broken: list[Any] = [[], "yes", {"ttl": -1}, {"ttl": "x"}]
        for task in broken:
            reply = call(wire, "greet", task)
            assert (reply.status, reply.code) == (400, -32602)

    def test_that_may_become_tasks_are_hinted_at_in_the_list(self, wire: Wire) -> None:
        listed = {tool["name"]: tool for tool in wire.draft(request("tools/list")).result["tools"]}
        assert {name for name, tool in listed.items() if tool.get("annotations") == {"taskHint": "always"}} == {
            "greet",
            "measure",
            "twice",
            "everything",
            "fail",
            "break_down",
        }
        ratified = wire.modern("tools/list").result["tools"]
        assert not any("annotations" in tool for tool in ratified)


class TestAnswers:
    def test_may_use_a_key_again(self, wire: Wire) -> None:
        """The drafts know a question by the key of its author, whichever question that is by now."""
        task = start(wire, "twice")
        once(wire, task, "input_required")
        assert list(about(wire, "result", task).result["inputRequests"]) == ["login"]
        answer(wire, task, login=accept(name="Ann"))
        once(wire, task, "input_required")
        (second,) = about(wire, "result", task).result["inputRequests"]
        answer(wire, task, **{second: accept(name="Bob")})
        once(wire, task, "completed")
        assert about(wire, "result", task).text == "Ann, Bob"

    def test_to_nothing_that_is_open_are_acknowledged_and_ignored(self, wire: Wire) -> None:
        task = start(wire, "greet")
        once(wire, task, "input_required")
        acknowledged = {"_meta": {RELATED: {"taskId": task}}}
        assert answer(wire, task, stranger=accept(name="x")).result == acknowledged
        assert answer(wire, task).result == acknowledged
        assert answer(wire, task, **{"": accept(name="x")}).result == acknowledged
        assert about(wire, "get", task).result["status"] == "input_required"

    @pytest.mark.parametrize(
        "broken", [accept(other="x"), {"action": "accept"}, {"name": "x"}, {"action": 5}, {}, {"result": {}}], ids=str
    )
    def test_that_lack_what_is_required_are_acknowledged_and_the_question_stays(self, wire: Wire, broken: JSON) -> None:
        """Missing or Unexpected inputResponses: the status stays, and the next result has the same question."""
        task = start(wire, "greet")
        once(wire, task, "input_required")
        asked = about(wire, "result", task).result
        assert answer(wire, task, login=broken).result == {"_meta": {RELATED: {"taskId": task}}}
        assert about(wire, "get", task).result["status"] == "input_required"
        assert about(wire, "result", task).result == asked

    def test_that_say_no_end_the_task(self, wire: Wire) -> None:
        task = start(wire, "greet")
        once(wire, task, "input_required")
        answer(wire, task, login={"action": "decline"})
        once(wire, task, "completed")
        assert about(wire, "result", task).result["isError"] is True

    def test_with_a_look_at_the_task_go_to_the_question_they_name(self, wire: Wire) -> None:
        reply = call(wire, "twice", {})
        task = reply.result["taskId"]
        seen = reply.result
        for name in ("Ann", "Bob"):
            (pending,) = seen["_meta"][PENDING]
            given = {RESPONSE: {"elicitationId": pending["elicitationId"], **accept(name=name)}}
            seen = about(wire, "get", task, _meta=given).raw_result
            assert pending not in seen["_meta"].get(PENDING, [])
            seen = about(wire, "get", task, _meta=given).message[
                "result"
            ]  # its reply may have been lost: it counts once
        assert seen["status"] == "completed"
        assert about(wire, "result", task).text == "Ann, Bob"

    def test_to_asks_of_every_kind_go_with_a_look_at_the_task(self, wire: Wire) -> None:
        """#1869 prints elicitations only; a sampling and a roots ask are listed as pending, and answered alike."""
        asked = call(wire, "everything", {}).result
        answers: JSON = {
            "sampling/createMessage": {
                "role": "assistant",
                "content": {"type": "text", "text": "To Oslo"},
                "model": "m",
            },
            "roots/list": {"roots": [{"uri": "file:///work"}]},
        }
        pending = asked["_meta"][PENDING]
        assert asked["status"] == "input_required"
        assert {each["method"] for each in pending} == set(answers)
        for each in pending:
            given = {RESPONSE: {"elicitationId": each["elicitationId"], **answers[each["method"]]}}
            seen = about(wire, "get", asked["taskId"], _meta=given).raw_result
        assert seen["status"] == "completed"
        assert about(wire, "result", asked["taskId"]).text == "To Oslo from file:///work"

    def test_of_a_client_that_looks_into_no_meta_go_the_other_way(self, wire: Wire) -> None:
        """Graceful degradation of #1869: it polls, and asks by `tasks/result`."""
        task = start(wire, "greet", {})
        assert about(wire, "get", task).result["status"] == "input_required"
        assert about(wire, "result", task).result["inputRequests"].keys() == {"login"}
        assert answer(wire, task, login=accept(name="octocat")).result == {"_meta": {RELATED: {"taskId": task}}}
        assert about(wire, "result", task).text == "Hello, octocat"

    def test_as_a_response_need_exactly_one_question(self, wire: Wire) -> None:
        task = start(wire, "greet")
        once(wire, task, "input_required")
        response = {"jsonrpc": "2.0", "id": 4, "result": {**accept(name="x"), "_meta": {RELATED: {"taskId": task}}}}
        assert wire.draft(response).status == 202
        once(wire, task, "completed")
        late = wire.draft(response)
        assert (late.status, late.body) == (202, b"")
        assert about(wire, "result", task).text == "Hello, x"

    def test_as_an_error_end_what_was_asked(self, wire: Wire) -> None:
        """A form counts as cancelled, whichever way the error comes; a model that can't be asked fails the task."""
        failed = {"code": -1, "message": "The user closed it"}
        task = start(wire, "greet")
        once(wire, task, "input_required")
        error = {"jsonrpc": "2.0", "id": 4, "error": failed, "_meta": {RELATED: {"taskId": task}}}
        assert wire.draft(error).status == 202
        once(wire, task, "completed")
        assert about(wire, "result", task).result["isError"] is True
        task = start(wire, "greet")
        once(wire, task, "input_required")
        answer(wire, task, login={"error": failed})
        once(wire, task, "completed")
        assert about(wire, "result", task).result["isError"] is True
        task = start(wire, "everything")
        once(wire, task, "input_required")
        unclear = wire.draft({**error, "_meta": {RELATED: {"taskId": task}}})
        assert (unclear.status, unclear.code) == (400, -32602)

    def test_as_responses_go_to_the_question_of_their_kind(self, wire: Wire) -> None:
        task = start(wire, "everything")
        once(wire, task, "input_required")
        said = {"role": "assistant", "content": {"type": "text", "text": "To Oslo"}, "model": "m"}
        for result in (said, {"roots": [{"uri": "file:///work"}]}):
            response = {"jsonrpc": "2.0", "id": 4, "result": {**result, "_meta": {RELATED: {"taskId": task}}}}
            assert wire.draft(response).status == 202
        once(wire, task, "completed")
        assert about(wire, "result", task).text == "To Oslo from file:///work"


class TestResults:
    def test_of_a_tool_that_failed_are_results(self, wire: Wire) -> None:
        task = start(wire, "fail")
        once(wire, task, "completed")
        result = about(wire, "result", task).result
        assert (result["isError"], result["_meta"]) == (True, {RELATED: {"taskId": task}})

    def test_of_a_request_that_failed_are_its_error(self, wire: Wire) -> None:
        task = start(wire, "break_down")
        assert once(wire, task, "failed")["statusMessage"] == "API rate limit exceeded"
        reply = about(wire, "result", task)
        assert (reply.status, reply.message["id"]) == (200, 1)
        assert reply.error == (-32603, "API rate limit exceeded", {"retryAfter": 5})

    def test_of_a_task_that_was_cancelled_there_are_none(self, wire: Wire) -> None:
        task = start(wire, "greet")
        once(wire, task, "input_required")
        assert about(wire, "cancel", task).status == 200
        assert once(wire, task, "cancelled")["statusMessage"] == "The task was cancelled."
        assert (about(wire, "result", task).status, about(wire, "result", task).code) == (400, -32602)


@pytest.mark.parametrize("method", ["get", "result", "input_response", "cancel"])
def test_a_task_that_nobody_has_is_an_error(wire: Wire, method: str) -> None:
    for unknown in ("", "nobody", "x" * 100_000, "task-\u0000"):
        reply = about(wire, method, unknown, inputResponses={})
        assert (reply.status, reply.code) == (400, -32602)


def test_a_response_about_a_task_that_nobody_has_is_an_error(wire: Wire) -> None:
    response = {"jsonrpc": "2.0", "id": 4, "result": accept(name="x"), "_meta": {RELATED: {"taskId": "nobody"}}}
    reply = wire.draft(response)
    assert (reply.status, reply.code) == (400, -32602)
