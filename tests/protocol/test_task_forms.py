"""Tasks on the wire: what each printed message is read as, and what a task is written as, in each dialect."""

import json
from collections.abc import Mapping
from typing import Any

import pytest

from mrtr_server import ProtocolError
from mrtr_server.errors import (
    HeaderMismatch,
    InternalFault,
    InvalidParams,
    InvalidRequest,
    MissingCapability,
    RequestError,
    UnknownMethod,
)
from mrtr_server.protocol.callers import Sender
from mrtr_server.protocol.dialect import Dialect, Surface
from mrtr_server.protocol.envelope import read_envelope
from mrtr_server.protocol.messages import (
    Acknowledged,
    Call,
    Change,
    Complete,
    Outcome,
    Question,
    Task,
    TaskCreated,
    TaskOffer,
    TaskResult,
    TaskStatusResult,
)
from mrtr_server.protocol.served_dialects import DIALECTS

from ..support.wire import JSON, PREFIX, TASKS, VERSION, accept, message_problems, mirrored, modern, request

RELATED = PREFIX + "related-task"
PENDING, IMMEDIATE = PREFIX + "pending-elicitations", PREFIX + "model-immediate-response"
RESPONSE = PREFIX + "elicitation-response"

ID = "echo_dc792e24-01b5-4c0a-abcb-0559848ca3c5"
SURFACE = Surface(
    {"name": "x", "version": "1"},
    [VERSION],
    lambda tool: "optional" if tool == "book_dinner" else "forbidden",
    extensions={f"tasks/{name}": TASKS for name in ("get", "update", "cancel")},
)
HEARD = accept(input="Hello World!")


def dialect(name: str) -> Dialect:
    return DIALECTS[name](SURFACE)


def question(method: str = "elicitation/create", **params: Any) -> Question:
    form: JSON = {
        "message": "Please provide the input string to echo back",
        "requestedSchema": {"type": "object", "properties": {"input": {"type": "string"}}, "required": ["input"]},
    }
    kind = "form" if method == "elicitation/create" else "sample"
    return Question(kind, method, params or form, ("elicitation.form",))


def task(status: Any = "working", **fields: Any) -> Task:
    """Return a task that was created at 10:30:00 and changed at 10:40:00."""
    given: JSON = {"id": ID, "created": 1764066600.0, "updated": 1764067200.0, "ttl": 60.0, "poll": 0.1, **fields}
    return Task(status=status, **given)


def echoed(**body: Any) -> Complete:
    return Complete({"content": [{"type": "text", "text": "Echo: Hello World!"}], "isError": False, **body})


def written(name: str, call: Call, outcome: Outcome) -> JSON:
    message: JSON = json.loads(dialect(name).dump_outcome(call, outcome))
    if name == VERSION:
        assert not (problems := list(message_problems(call.method, message))), problems
    assert message["id"] == call.request_id
    result: JSON = message["result"]
    return result


class Ratified:
    """What the tests of the tasks extension share."""

    def read(self, message: JSON, headers: Mapping[str, str | None] | None = None) -> Call:
        given = {**mirrored(message), **(headers or {})}
        sent = {name.lower().encode(): value.encode() for name, value in given.items() if value is not None}
        return dialect(VERSION).load_call(read_envelope(json.dumps(message).encode(), sent, "", 64), Sender())

    def about(self, method: str, params: JSON | None = None, capabilities: JSON = TASKS) -> Call:
        return self.read(modern(method, {"taskId": ID, **(params or {})}, capabilities=capabilities))

    def write(self, method: str, outcome: Outcome) -> JSON:
        result = written(VERSION, Call(method, {}, request_id=7), outcome)
        assert result.pop("_meta") == {PREFIX + "serverInfo": SURFACE.info}
        return result


class TestOffersOfTheExtension(Ratified):
    @pytest.mark.parametrize(
        ("capabilities", "offered"),
        [
            (TASKS, TaskOffer()),
            ({"elicitation": {}, "extensions": {PREFIX + "tasks": {"unheard": 1}, "com.example/x": {}}}, TaskOffer()),
            ({}, None),
            ({"extensions": {}}, None),
            ({"extensions": {PREFIX + "tasks": None}}, None),
            ({"extensions": {PREFIX + "tasks": True}}, None),
            ({"extensions": [PREFIX + "tasks"]}, None),
            ({"tasks": {"requests": {"tools": {"call": {}}}}}, None),
        ],
        ids=str,
    )
    def test_are_made_by_each_request(self, capabilities: JSON, offered: TaskOffer | None) -> None:
        call = self.read(modern("tools/call", {"name": "echo"}, capabilities=capabilities))
        assert call.task == offered

    @pytest.mark.parametrize("legacy", [{"ttl": 60000, "pollInterval": 100}, {}, None, "yes"], ids=str)
    def test_are_not_made_by_a_parameter_of_an_older_version(self, legacy: Any) -> None:
        params = {"name": "echo", "task": legacy}
        assert self.read(modern("tools/call", params, capabilities={})).task is None
        assert self.read(modern("tools/call", params, capabilities=TASKS)).task == TaskOffer()


class TestRequestsOfTheExtension(Ratified):
    @pytest.mark.parametrize("method", ["tasks/get", "tasks/cancel"])
    def test_name_the_task(self, method: str) -> None:
        call = self.about(method)
        assert (call.method, call.target, call.answers, call.state) == (method, ID, None, None)

    def test_bring_answers(self) -> None:
        call = self.about("tasks/update", {"inputResponses": {"echo_input": HEARD}})
        assert (call.method, call.target, call.answers) == ("tasks/update", ID, {"echo_input": HEARD})

    def test_may_bring_no_answer_at_all(self) -> None:
        assert self.about("tasks/update", {"inputResponses": {}}).answers == {}

    @pytest.mark.parametrize("broken", [None, [], "x", 5, {"echo_input": [HEARD]}], ids=str)
    def test_with_answers_of_another_shape_are_refused(self, broken: Any) -> None:
        with pytest.raises(InvalidParams, match="inputResponses must be an object whose values are objects"):
            self.about("tasks/update", {"inputResponses": broken})

    def test_without_the_answers_that_they_are_there_for_are_refused(self) -> None:
        with pytest.raises(InvalidParams, match="inputResponses must be an object"):
            self.about("tasks/update")

    @pytest.mark.parametrize("method", ["tasks/get", "tasks/update", "tasks/cancel"])
    def test_of_a_client_that_has_no_tasks_are_refused_before_anything_is_looked_up(self, method: str) -> None:
        bringing: JSON = {"inputResponses": {}}
        for params in (bringing, {}):
            with pytest.raises(MissingCapability) as refused:
                self.about(method, params, capabilities={"elicitation": {}})
            assert refused.value.data == {"requiredCapabilities": TASKS}

    @pytest.mark.parametrize("method", ["tasks/get", "tasks/update", "tasks/cancel"])
    def test_are_routed_by_the_task(self, method: str) -> None:
        message = modern(method, {"taskId": ID, "inputResponses": {}}, capabilities=TASKS)
        assert self.read(message, {"Mcp-Name": ID}).target == ID
        wrongs: list[dict[str, str | None]] = [{"Mcp-Name": "another"}, {"Mcp-Name": ""}, {"Mcp-Method": "tools/call"}]
        for wrong in wrongs:
            with pytest.raises(HeaderMismatch):
                self.read(message, wrong)
        assert self.read(message, {"Mcp-Name": None}).target == ID, "there are clients that do not say it"

    @pytest.mark.parametrize("broken", [None, 5, ["x"], {"id": ID}], ids=str)
    def test_without_an_id_that_is_a_string_are_refused(self, broken: Any) -> None:
        with pytest.raises((InvalidParams, HeaderMismatch)):
            self.read(modern("tasks/get", {"taskId": broken}, capabilities=TASKS), {"Mcp-Name": ID})
        with pytest.raises((InvalidParams, HeaderMismatch)):
            self.read(modern("tasks/get", {}, capabilities=TASKS), {"Mcp-Name": ID})

    @pytest.mark.parametrize(
        "method", ["tasks/result", "tasks/list", "tasks/input_response", "tasks/answer", "tasks/respond"]
    )
    def test_of_another_version_are_unknown(self, method: str) -> None:
        """Neither what the drafts say, nor what the server calls it inside."""
        with pytest.raises(UnknownMethod):
            self.about(method, {"inputResponses": {}})

    def test_are_no_responses(self) -> None:
        envelope = read_envelope(json.dumps({"jsonrpc": "2.0", "id": 4, "result": HEARD}).encode(), {}, "", 64)
        with pytest.raises(InvalidRequest, match="no method"):
            dialect(VERSION).load_call(envelope, Sender())


TIMES = {"createdAt": "2025-11-25T10:30:00.000Z", "lastUpdatedAt": "2025-11-25T10:40:00.000Z"}
TASK = {"taskId": ID, "status": "working", **TIMES, "ttlMs": 60000, "pollIntervalMs": 100}


class TestResultsOfTheExtension(Ratified):
    def test_tell_that_a_call_has_become_a_task(self) -> None:
        assert self.write("tools/call", TaskCreated(task())) == {"resultType": "task", **TASK}

    def test_tell_what_it_is_doing(self) -> None:
        said = {**TASK, "statusMessage": "The operation is now in progress."}
        told = task(message="The operation is now in progress.")
        assert self.write("tools/call", TaskCreated(told)) == {"resultType": "task", **said}
        assert self.write("tasks/get", TaskStatusResult(told)) == {"resultType": "complete", **said}

    def test_never_carry_details_when_the_task_is_created(self) -> None:
        for status, details in (("input_required", {"questions": {"a": question()}}), ("completed", {})):
            started = TaskCreated(task(status, **details))
            assert self.write("tools/call", started) == {"resultType": "task", **TASK, "status": status}

    def test_carry_all_that_is_asked_under_keys_that_are_never_used_again(self) -> None:
        asked = task("input_required", questions={"echo_input_2": question()}, names={"echo_input_2": "echo_input"})
        assert self.write("tasks/get", TaskStatusResult(asked))["inputRequests"] == {
            "echo_input_2": {"method": "elicitation/create", "params": question().params}
        }

    def test_carry_what_the_call_itself_would_have_returned(self) -> None:
        for body in ({}, {"isError": True}, {"structuredContent": {"a": 1}}, {"_meta": {"com.example/x": 1}}):
            done = echoed(**body)
            found = self.write("tasks/get", TaskStatusResult(task("completed", outcome=done)))
            assert found["result"] == {"resultType": "complete", **done.body}

    @pytest.mark.parametrize(
        ("error", "shown"),
        [
            (ProtocolError("API rate limit exceeded"), {"code": -32603, "message": "API rate limit exceeded"}),
            (ProtocolError("x", {"a": [1]}), {"code": -32603, "message": "x", "data": {"a": [1]}}),
            (InvalidParams("x"), {"code": -32602, "message": "x"}),
            (InternalFault("abcd"), {"code": -32603, "message": "Internal error (reference abcd)"}),
        ],
        ids=repr,
    )
    def test_carry_the_error_that_the_call_itself_would_have_met(self, error: RequestError, shown: JSON) -> None:
        found = self.write(
            "tasks/get", TaskStatusResult(task("failed", message="Tool execution failed", outcome=error))
        )
        assert {**found["error"], **shown} == found["error"]
        assert (found["status"], found["statusMessage"]) == ("failed", "Tool execution failed")
        assert "result" not in found

    def test_carry_nothing_of_what_was_cancelled(self) -> None:
        found = self.write("tasks/get", TaskStatusResult(task("cancelled")))
        assert found == {"resultType": "complete", **TASK, "status": "cancelled"}

    @pytest.mark.parametrize("method", ["tasks/update", "tasks/cancel"])
    @pytest.mark.parametrize("seen", [None, task("cancelled")], ids=["unseen", "seen"])
    def test_acknowledge_with_nothing_else(self, method: str, seen: Task | None) -> None:
        assert self.write(method, Acknowledged(ID, seen)) == {"resultType": "complete"}

    @pytest.mark.parametrize(
        ("seconds", "shown"),
        [(60.0, 60000), (0.1, 100), (57.001, 57001), (0.29, 290), (0.0001, 1), (2**33 / 1000, 2**33)],
    )
    def test_have_durations_in_whole_milliseconds_that_are_never_none(self, seconds: float, shown: int) -> None:
        found = self.write("tools/call", TaskCreated(task(ttl=seconds, poll=seconds)))
        assert found["ttlMs"] == found["pollIntervalMs"] == shown


class Listener:
    """A subscription to these changes, which never come."""

    def __init__(self, *wanted: Change) -> None:
        self.wanted = frozenset(wanted)

    async def next(self) -> list[Change]:
        return []

    def close(self) -> None: ...


class TestNotificationsOfTheExtension(Ratified):
    def told(self, message: bytes) -> JSON:
        found: JSON = json.loads(message)
        assert not (problems := list(message_problems("subscriptions/listen", found))), problems
        assert found["params"].pop("_meta") == {PREFIX + "subscriptionId": "listen-1"}
        return found

    def writer(self, *wanted: Change) -> Any:
        call = Call("subscriptions/listen", {}, request_id="listen-1")
        return dialect(VERSION).listening(call, Listener(*wanted))

    def test_are_agreed_on_task_by_task(self) -> None:
        agreed = self.told(self.writer(Change("task", "b"), Change("task", "a"), Change("resource", "a://c")).opened())
        assert agreed["params"]["notifications"] == {"taskIds": ["a", "b"], "resourceSubscriptions": ["a://c"]}

    def test_are_agreed_on_for_no_task_at_all(self) -> None:
        assert self.told(self.writer(Change("tools")).opened())["params"]["notifications"] == {"toolsListChanged": True}

    @pytest.mark.parametrize(
        "each",
        [
            task(message="Half of it is done"),
            task("input_required", questions={"name": question()}, names={"name": "name"}),
            task("completed", outcome=echoed()),
            task("failed", outcome=ProtocolError("x")),
            task("cancelled"),
        ],
        ids=lambda each: each.status,
    )
    def test_say_what_a_look_at_the_task_would_say(self, each: Task) -> None:
        told = self.told(self.writer(Change("task", ID)).changed(Change("task", ID, each)))
        looked_at = self.write("tasks/get", TaskStatusResult(each))
        del looked_at["resultType"]
        assert told == {"jsonrpc": "2.0", "method": "notifications/tasks", "params": looked_at}

    def test_of_one_task_are_one_change_whatever_it_is_doing(self) -> None:
        """So that a listener that never reads holds the last of them alone."""
        assert len({Change("task", ID), Change("task", ID, task()), Change("task", ID, task("completed"))}) == 1
        assert Change("task", ID) != Change("task", "other")
        assert Change("task", ID) != Change("resource", ID)


class Drafted:
    """What the tests of the drafts share."""

    def read(self, message: JSON, headers: Mapping[bytes, bytes] | None = None) -> Call:
        draft = dialect("sep-draft")
        envelope = read_envelope(json.dumps(message).encode(), headers or {}, "", 64)
        assert draft.claims(envelope)
        return draft.load_call(envelope, Sender())

    def about(self, method: str, params: JSON) -> Call:
        return self.read(request(method, params))

    def write(self, call: Call, outcome: Outcome) -> JSON:
        return written("sep-draft", call, outcome)


class TestOffersOfTheDrafts(Drafted):
    @pytest.mark.parametrize(
        ("printed", "offered"),
        [
            ({"ttl": 60000}, TaskOffer(60.0)),
            ({"ttl": 0.5}, TaskOffer(0.0005)),
            ({"ttl": 60000, "unheard": 1}, TaskOffer(60.0)),
            ({}, TaskOffer(first_ask=True)),
            ({"ttl": None}, TaskOffer(first_ask=True)),
        ],
        ids=str,
    )
    def test_are_made_by_a_parameter(self, printed: JSON, offered: TaskOffer) -> None:
        assert self.about("tools/call", {"name": "echo", "task": printed}).task == offered

    def test_are_not_made_without_it(self) -> None:
        assert self.about("tools/call", {"name": "echo"}).task is None

    @pytest.mark.parametrize("method", ["prompts/get", "resources/read"])
    def test_are_made_for_tools_alone(self, method: str) -> None:
        assert self.about(method, {"name": "x", "uri": "a://x", "task": {"ttl": 60000}}).task is None

    def test_may_come_with_the_answers_of_a_round(self) -> None:
        """A request may begin in rounds, and go on as a task."""
        params = {"name": "echo", "task": {"ttl": 1}, "inputResponses": {"a": {"result": HEARD}}, "requestState": "s"}
        call = self.about("tools/call", params)
        assert (call.task, call.answers, call.state) == (TaskOffer(0.001), {"a": HEARD}, "s")

    @pytest.mark.parametrize("broken", [[], "yes", True, 5], ids=str)
    def test_that_are_no_object_are_refused(self, broken: Any) -> None:
        with pytest.raises(InvalidParams, match=r"params\.task must be an object"):
            self.about("tools/call", {"name": "echo", "task": broken})

    @pytest.mark.parametrize("ttl", [-1, 0, -0.0, "60000", True, [], {}], ids=repr)
    def test_of_no_time_to_live_are_refused(self, ttl: Any) -> None:
        with pytest.raises(InvalidParams, match=r"params\.task\.ttl must be a positive number"):
            self.about("tools/call", {"name": "echo", "task": {"ttl": ttl}})

    @pytest.mark.parametrize("ttl", ["NaN", "Infinity", "-Infinity", "1e400"])
    def test_of_what_is_no_number_are_no_json(self, ttl: str) -> None:
        body = b'{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"x","task":{"ttl":%s}}}' % ttl.encode()
        with pytest.raises(RequestError, match=r"JSON|overflows"):
            read_envelope(body, {}, "", 64)

    @pytest.mark.parametrize("ttl", [1e308, 10**30, 10**400], ids=["float", "integer", "more than any float"])
    def test_of_a_time_without_end_are_a_long_time(self, ttl: float) -> None:
        offer = self.about("tools/call", {"name": "echo", "task": {"ttl": ttl}}).task
        assert offer is not None
        assert offer.ttl == 2**53 / 1000


class TestRequestsOfTheDrafts(Drafted):
    @pytest.mark.parametrize(
        ("method", "read_as"),
        [("tasks/get", "tasks/get"), ("tasks/result", "tasks/result"), ("tasks/cancel", "tasks/cancel")],
    )
    @pytest.mark.parametrize("place", [{"taskId": ID}, {"_meta": {RELATED: {"taskId": ID}}}], ids=["taskId", "_meta"])
    def test_name_the_task(self, method: str, read_as: str, place: JSON) -> None:
        call = self.about(method, place)
        assert (call.method, call.target, call.answers, call.task) == (read_as, ID, None, TaskOffer(first_ask=True))

    @pytest.mark.parametrize("answer", [HEARD, {"result": HEARD}], ids=["rev2", "rev1"])
    def test_bring_answers_bare_or_wrapped(self, answer: JSON) -> None:
        """Step 7 of the persistent workflow, as printed."""
        call = self.read(
            {
                "jsonrpc": "2.0",
                "id": 4,
                "method": "tasks/input_response",
                "params": {"inputResponses": {"echo_input": answer}, "_meta": {RELATED: {"taskId": ID}}},
            }
        )
        assert (call.method, call.target, call.answers) == ("tasks/answer", ID, {"echo_input": HEARD})

    @pytest.mark.parametrize("broken", [None, [], "x", {"echo_input": "x"}], ids=str)
    def test_with_answers_of_another_shape_are_refused(self, broken: Any) -> None:
        with pytest.raises(InvalidParams, match="inputResponses must be an object whose values are objects"):
            self.about("tasks/input_response", {"taskId": ID, "inputResponses": broken})

    def test_without_the_answers_that_they_are_there_for_are_refused(self) -> None:
        with pytest.raises(InvalidParams, match="inputResponses must be an object"):
            self.about("tasks/input_response", {"taskId": ID})

    @pytest.mark.parametrize("inside", [True, False], ids=["in the result", "beside it"])
    def test_that_are_responses_answer_the_only_question(self, inside: bool) -> None:
        """Step 7 of the message-structure document; and the last sketch of the response types."""
        meta = {"_meta": {RELATED: {"taskId": ID}}}
        result = {**HEARD, **(meta if inside else {})}
        call = self.read({"jsonrpc": "2.0", "id": 4, "result": result, **({} if inside else meta)})
        assert (call.method, call.target, call.answers) == ("tasks/respond", ID, {"": {"result": result}})
        assert dialect("sep-draft").dump_outcome(call, Acknowledged(ID)) == b""

    @pytest.mark.parametrize("meta", [{}, {"_meta": None}, {"_meta": []}, {"_meta": {"other": 1}}], ids=str)
    def test_that_are_responses_to_nothing_are_refused(self, meta: JSON) -> None:
        with pytest.raises(InvalidRequest, match="no method"):
            self.read({"jsonrpc": "2.0", "id": 4, "result": {**HEARD, **meta}})

    def test_that_are_responses_with_an_error_beside_the_result_are_refused(self) -> None:
        with pytest.raises(InvalidRequest, match="no method"):
            self.read({"jsonrpc": "2.0", "id": 4, "result": HEARD, "error": {}, "_meta": {RELATED: {"taskId": ID}}})

    def test_answer_with_a_look_at_the_task(self) -> None:
        """Step 5 of non-blocking elicitations, as printed."""
        answer = {"elicitationId": "elicit-partysize-456", **accept(partySize=4)}
        call = self.about("tasks/get", {"taskId": "task-dinner-123", "_meta": {RESPONSE: answer}})
        assert (call.method, call.target) == ("tasks/get", "task-dinner-123")
        assert call.answers == {"elicit-partysize-456": answer}

    @pytest.mark.parametrize(
        "broken", [[], "x", {}, {"action": "accept"}, {"elicitationId": 5}, {"elicitationId": None}], ids=str
    )
    def test_answer_in_no_other_shape(self, broken: Any) -> None:
        with pytest.raises(InvalidParams, match=r"elicitation-response must be an object with an elicitationId"):
            self.about("tasks/get", {"taskId": ID, "_meta": {RESPONSE: broken}})

    @pytest.mark.parametrize(
        "params",
        [
            {},
            {"taskId": None},
            {"taskId": 5},
            {"taskId": {"id": ID}},
            {"_meta": {RELATED: None}},
            {"_meta": {RELATED: ID}},
            {"_meta": {RELATED: {}}},
            {"_meta": {RELATED: {"taskId": 5}}},
            {"taskId": ID, "_meta": {RELATED: {}}},
        ],
        ids=str,
    )
    @pytest.mark.parametrize("method", ["tasks/get", "tasks/result", "tasks/input_response", "tasks/cancel"])
    def test_without_an_id_that_is_a_string_are_refused(self, method: str, params: JSON) -> None:
        with pytest.raises(InvalidParams, match="taskId must be a string"):
            self.about(method, params)

    def test_that_name_two_tasks_are_refused(self) -> None:
        """Or a gateway could check the one, and the server answer the other."""
        both: JSON = {"taskId": ID, "_meta": {RELATED: {"taskId": "other"}}}
        with pytest.raises(InvalidParams, match="two different tasks"):
            self.about("tasks/get", both)
        with pytest.raises(InvalidParams, match="two different tasks"):
            self.read(
                {"jsonrpc": "2.0", "id": 4, "result": {"_meta": both["_meta"]}, "_meta": {RELATED: {"taskId": ID}}}
            )
        assert self.about("tasks/get", {"taskId": ID, "_meta": {RELATED: {"taskId": ID}}}).target == ID

    @pytest.mark.parametrize("method", ["tasks/update", "tasks/list", "tasks/answer", "tasks/respond"])
    def test_of_another_version_are_unknown(self, method: str) -> None:
        with pytest.raises(UnknownMethod):
            self.about(method, {"taskId": ID, "inputResponses": {}})

    @pytest.mark.parametrize("place", [{"taskId": ID}, {"_meta": {RELATED: {"taskId": ID}}}], ids=["taskId", "_meta"])
    @pytest.mark.parametrize("method", ["tasks/get", "tasks/result", "tasks/input_response", "tasks/cancel"])
    def test_are_held_to_headers_that_are_there(self, method: str, place: JSON) -> None:
        message = request(method, {**place, "inputResponses": {}})
        assert self.read(message, {b"mcp-name": ID.encode(), b"mcp-method": method.encode()}).target == ID
        for wrong in ({b"mcp-name": b"other"}, {b"mcp-name": b""}, {b"mcp-method": b"tools/call"}):
            with pytest.raises(HeaderMismatch):
                self.read(message, wrong)

    def test_that_are_responses_are_held_to_headers_that_are_there(self) -> None:
        message = {"jsonrpc": "2.0", "id": 4, "result": {**HEARD, "_meta": {RELATED: {"taskId": ID}}}}
        assert self.read(message, {b"mcp-name": ID.encode()}).target == ID
        for wrong in ({b"mcp-name": b"other"}, {b"mcp-method": b"tasks/get"}):
            with pytest.raises(HeaderMismatch):
                self.read(message, wrong)


PRINTED_TASK = {"taskId": ID, **TIMES, "ttl": 60000, "pollInterval": 100}


class TestResultsOfTheDrafts(Drafted):
    """Each as revision 2 prints it, with the status and the words of that revision."""

    def test_tell_that_a_call_has_become_a_task(self) -> None:
        call = self.about("tools/call", {"name": "echo", "task": {"ttl": 60000}})
        message = "Task has been created for echo tool invocation."
        printed = {"task": {**PRINTED_TASK, "status": "working", "statusMessage": message}}
        assert self.write(call, TaskCreated(task())) == printed

    @pytest.mark.parametrize(
        ("status", "message"),
        [
            ("input_required", "Input Required to Proceed call tasks/result"),
            ("completed", "Task has been completed successfully, call tasks/result"),
        ],
    )
    def test_tell_how_it_is_doing(self, status: str, message: str) -> None:
        printed = {**PRINTED_TASK, "status": status, "statusMessage": message}
        assert self.write(self.about("tasks/get", {"taskId": ID}), TaskStatusResult(task(status))) == printed

    def test_tell_what_it_says_of_itself(self) -> None:
        seen = self.write(self.about("tasks/get", {"taskId": ID}), TaskStatusResult(task(message="Half of it is done")))
        assert seen["statusMessage"] == "Half of it is done"

    def test_carry_what_is_asked_under_the_keys_of_its_author(self) -> None:
        asked = task("input_required", questions={"echo_input_2": question()}, names={"echo_input_2": "echo_input"})
        assert self.write(self.about("tasks/result", {"taskId": ID}), TaskResult(asked)) == {
            "inputRequests": {
                "echo_input": {"method": "elicitation/create", "params": {"mode": "form", **question().params}}
            },
            "_meta": {RELATED: {"taskId": ID}},
        }

    def test_say_the_mode_of_forms_alone(self) -> None:
        page = question(mode="url", message="Log in", url="https://example.com")
        sample = question("sampling/createMessage", messages=[], maxTokens=5)
        asked = task("input_required", questions={"a": page, "b": sample}, names={"a": "a", "b": "b"})
        requests = self.write(self.about("tasks/result", {"taskId": ID}), TaskResult(asked))["inputRequests"]
        assert [requests[key]["params"] for key in "ab"] == [page.params, sample.params]

    def test_of_a_task_that_works_are_a_state_to_come_again_with(self) -> None:
        """Never `inputRequests: {}`, which asks nothing, and which a client takes for answered at once."""
        working = self.write(self.about("tasks/result", {"taskId": ID}), TaskResult(task(), "sealed"))
        assert working == {"requestState": "sealed", "_meta": {RELATED: {"taskId": ID}}}

    def test_carry_the_result_beside_what_the_tool_put_into_its_meta(self) -> None:
        call = self.about("tasks/result", {"taskId": ID})
        related = {RELATED: {"taskId": ID}}
        printed = {**echoed().body, "_meta": related}
        assert self.write(call, TaskResult(task("completed", outcome=echoed()))) == printed
        with_meta = echoed(_meta={"com.example/x": 1})
        assert self.write(call, TaskResult(task("completed", outcome=with_meta)))["_meta"] == {
            "com.example/x": 1,
            **related,
        }

    def test_are_the_error_that_the_call_itself_would_have_met(self) -> None:
        failed = TaskResult(task("failed", outcome=ProtocolError("API rate limit exceeded")))
        call = self.about("tasks/result", {"taskId": ID})
        written = json.loads(dialect("sep-draft").dump_outcome(call, failed))
        assert written["error"] == {"code": -32603, "message": "API rate limit exceeded"}

    def test_of_a_task_that_was_cancelled_there_are_none(self) -> None:
        with pytest.raises(InvalidParams, match="cancelled, so it has no result"):
            dialect("sep-draft").dump_outcome(self.about("tasks/result", {"taskId": ID}), TaskResult(task("cancelled")))

    def test_acknowledge_with_the_task_they_are_about(self) -> None:
        """Step 8, as printed."""
        call = self.about("tasks/input_response", {"taskId": ID, "inputResponses": {}})
        assert self.write(call, Acknowledged(ID)) == {"_meta": {RELATED: {"taskId": ID}}}

    def test_tell_how_a_task_is_doing_that_was_cancelled(self) -> None:
        """The drafts print no such reply; in the version that they extend, it is the task."""
        cancelled = self.write(self.about("tasks/cancel", {"taskId": ID}), Acknowledged(ID, task("cancelled")))
        assert cancelled == {**PRINTED_TASK, "status": "cancelled", "statusMessage": "The task was cancelled."}


META = {RELATED: {"taskId": ID}}
FLAT = {"taskId": ID, "createdAt": TIMES["createdAt"]}
PARTY: JSON = {
    "message": "How many people will be dining?",
    "requestedSchema": {
        "type": "object",
        "properties": {"partySize": {"type": "number", "minimum": 1, "maximum": 20, "title": "Number of guests"}},
        "required": ["partySize"],
    },
}


class TestNonBlockingElicitations(Drafted):
    """What #1869 prints: flat, with all that is asked in `_meta`."""

    def call(self) -> Call:
        return self.about("tools/call", {"name": "book_dinner", "arguments": {}, "task": {}})

    def dinner(self, status: str, **fields: Any) -> Task:
        return task(status, first_ask=True, **fields)

    def asking(self) -> Task:
        message = "Checking availability for your reservation..."
        asked = {"elicit-partysize-456": question(**PARTY)}
        return self.dinner("input_required", message=message, questions=asked, names={"elicit-partysize-456": "party"})

    def test_are_in_the_reply_to_the_call_itself(self) -> None:
        printed = {
            **FLAT,
            "status": "input_required",
            "_meta": {
                **META,
                PENDING: [{"elicitationId": "elicit-partysize-456", "mode": "form", **PARTY}],
                IMMEDIATE: "Checking availability for your reservation...",
            },
        }
        assert self.write(self.call(), TaskCreated(self.asking())) == printed
        assert self.write(self.about("tasks/get", {"taskId": ID}), TaskStatusResult(self.asking())) == printed

    @pytest.mark.parametrize("status", ["working", "completed", "failed", "cancelled"])
    def test_are_no_more_once_they_were_answered(self, status: str) -> None:
        seen = self.write(self.about("tasks/get", {"taskId": ID}), TaskStatusResult(self.dinner(status)))
        assert seen == {**FLAT, "status": status, "_meta": META}

    def test_have_a_word_for_the_model_for_as_long_as_it_waits(self) -> None:
        look = self.about("tasks/get", {"taskId": ID})
        assert self.write(look, TaskStatusResult(self.dinner("working", message="x")))["_meta"] == {
            **META,
            IMMEDIATE: "x",
        }
        assert self.write(look, TaskStatusResult(self.dinner("completed", message="x")))["_meta"] == META

    def test_open_pages_in_the_same_form(self) -> None:
        page = question(mode="url", message="Log in", url="https://example.com")
        seen = self.write(self.call(), TaskCreated(self.dinner("input_required", questions={"open_url": page})))
        assert seen["_meta"][PENDING] == [{"elicitationId": "open_url", **page.params}]

    @pytest.mark.parametrize(
        ("method", "params"), [("sampling/createMessage", {"messages": [], "maxTokens": 5}), ("roots/list", {})]
    )
    def test_are_listed_with_asks_of_other_kinds(self, method: str, params: JSON) -> None:
        """#1869 prints elicitations only; all else is listed as the request that it is."""
        other = Question("x", method, params, ("x",))
        asked = self.dinner("input_required", questions={"a": other, "b": question()}, names={"a": "a", "b": "b"})
        assert self.write(self.call(), TaskCreated(asked))["_meta"][PENDING] == [
            {"elicitationId": "a", "method": method, "params": params},
            {"elicitationId": "b", "mode": "form", **question().params},
        ]

    def test_have_their_result_fetched_as_any_other(self) -> None:
        done = self.dinner("completed", outcome=echoed())
        fetched = self.write(self.about("tasks/result", {"taskId": ID}), TaskResult(done))
        assert fetched == {**echoed().body, "_meta": META}

    def test_are_hinted_at_in_the_list_of_tools(self) -> None:
        tools = [
            {"name": "book_dinner", "inputSchema": {"type": "object"}},
            {"name": "greet", "inputSchema": {"type": "object"}, "annotations": {"readOnlyHint": True}},
        ]
        body: JSON = {"tools": tools, "nextCursor": "c"}
        before = json.dumps(body)
        listed = self.write(self.about("tools/list", {}), Complete(body))
        assert listed["tools"] == [{**tools[0], "annotations": {"taskHint": "always"}}, tools[1]]
        assert listed["nextCursor"] == "c"
        assert json.dumps(body) == before, "the entries are the registry's"

    def test_are_not_hinted_at_in_the_ratified_list(self) -> None:
        body: JSON = {"tools": [{"name": "book_dinner", "inputSchema": {"type": "object"}}]}
        listed = written(VERSION, Call("tools/list", {}), Complete(body, 0.0))
        assert listed["tools"] == body["tools"]
