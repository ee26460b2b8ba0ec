"""Messages as they go over the wire: how the tests make them, send them, and check each one that comes back."""

import json
import re
from collections.abc import Iterator, Mapping
from functools import cache, cached_property
from pathlib import Path
from typing import Any

import httpx
from jsonschema import Draft202012Validator
from mcp.shared.inbound import encode_header_value
from mcp_types import methods
from mcp_types.jsonrpc import JSONRPCError
from pydantic import ValidationError
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from typing_extensions import override

from mrtr_server import testing
from mrtr_server.testing.replies import Request, Response

from .serving import TIMEOUT

JSON = dict[str, Any]

VERSION = "2026-07-28"
HANDSHAKES = ("2025-11-25", "2025-06-18", "2025-03-26", "2024-11-05")
"""Versions whose replies have another form; see `handshake.py`."""
PREFIX = "io.modelcontextprotocol/"
EVERYTHING: JSON = {"elicitation": {"form": {}, "url": {}}, "sampling": {"tools": {}, "context": {}}, "roots": {}}
"""The capabilities of a client that can do whatever it is asked."""

TASKS: JSON = {"extensions": {PREFIX + "tasks": {}}}
"""The capability of a client that takes tasks."""

ACCEPT = "application/json, text/event-stream"
NAMED_BY = {
    "tools/call": "name",
    "prompts/get": "name",
    "resources/read": "uri",
    "tasks/get": "taskId",
    "tasks/update": "taskId",
    "tasks/cancel": "taskId",
}
ASKING = frozenset({"tools/call", "prompts/get", "resources/read"})

_RESULTS = {
    "tools/call": "CallToolResult",
    "prompts/get": "GetPromptResult",
    "resources/read": "ReadResourceResult",
    "tools/list": "ListToolsResult",
    "prompts/list": "ListPromptsResult",
    "resources/list": "ListResourcesResult",
    "resources/templates/list": "ListResourceTemplatesResult",
    "completion/complete": "CompleteResult",
    "server/discover": "DiscoverResult",
    "subscriptions/listen": "SubscriptionsListenResult",
    **dict.fromkeys(("events/list", "events/poll", "events/subscribe", "events/unsubscribe"), "Result"),
}
_TASK_RESULTS = {"tasks/get": "GetTaskResult", "tasks/update": "UpdateTaskResult", "tasks/cancel": "CancelTaskResult"}
_ERRORS = {
    -32020: "HeaderMismatchError",
    -32021: "MissingRequiredClientCapabilityError",
    -32022: "UnsupportedProtocolVersionError",
}


# Requests


def request(method: str, params: JSON | None = None, *, id: str | int = 1) -> JSON:
    """Return a JSON-RPC request, and nothing that the protocol adds to it."""
    return {"jsonrpc": "2.0", "id": id, "method": method, **({} if params is None else {"params": params})}


def meta(capabilities: JSON = EVERYTHING, **more: Any) -> JSON:
    """Return the `_meta` that every modern request carries; keywords without a prefix get the protocol's."""
    given = {PREFIX + "protocolVersion": VERSION, PREFIX + "clientCapabilities": capabilities}
    return given | {name if name == "progressToken" else PREFIX + name: value for name, value in more.items()}


def modern(method: str, params: JSON | None = None, *, id: str | int = 1, **more: Any) -> JSON:
    """Return a request of 2026-07-28 with all that its body must have; keywords go into `_meta`."""
    return request(method, {"_meta": meta(**more), **(params or {})}, id=id)


def mirrored(message: JSON, version: str = VERSION) -> dict[str, str]:
    """Return the headers that a conforming client sends with a message."""
    headers = {"MCP-Protocol-Version": version, "Mcp-Method": str(message["method"])}
    field = NAMED_BY.get(message["method"])
    if field is not None and isinstance(name := message["params"].get(field), str):
        headers["Mcp-Name"] = encode_header_value(name)
    return headers


def accept(**content: Any) -> JSON:
    """Return the answer of a person who filled in a form."""
    return {"action": "accept", "content": content}


# Replies


class Reply(testing.Reply):
    """A reply as the test kit reads it, and what only tests of the wire look at.

    Args:
        status: the HTTP status.
        headers: the HTTP headers, by lower-case name.
        body: the HTTP body.
    """

    def __init__(self, status: int, headers: Mapping[str, str], body: bytes) -> None:
        super().__init__(Request({}, b""), [Response(status, headers, body)])

    @property
    def is_stream(self) -> bool:
        return self.responses[-1].is_stream

    @cached_property
    def received(self) -> list[JSON]:
        """All JSON-RPC messages in it, of which the response is the last. What is no JSON fails the test."""
        texts = self.responses[-1].texts
        assert not self.is_stream or not any(b"\n" in text for text in texts), "one message is one line"
        return [json.loads(text) for text in texts]

    @cached_property
    @override
    def message(self) -> JSON:
        """The last message, also if it is no JSON-RPC."""
        return self.received[-1]

    @property
    def raw_result(self) -> JSON:
        """The result as it came: of a look at a task the task, where `result` is what came of it."""
        result: JSON = self.message["result"]
        return result

    @property
    def code(self) -> int | None:
        """The code of the JSON-RPC error; None if it is none."""
        return self.error.code if "error" in self.message else None


def text_of(message: Mapping[str, Any]) -> str:
    """Return the text of a tool's result, of a message that came without a reply around it; a `Reply` has `text`."""
    return str(message["result"]["content"][0]["text"])


class Wire:
    """Sends messages to an endpoint over real HTTP, and checks what comes back in the modern form.

    Args:
        url: the endpoint.
    """

    def __init__(self, url: str) -> None:
        self.url = url
        self.client = httpx.Client(timeout=TIMEOUT)

    def send(
        self, content: Any, headers: Mapping[str, str] | None = None, *, method: str = "POST", path: str = ""
    ) -> Reply:
        """Send bytes (or an iterator of them, in chunks), with exactly these headers besides HTTP's own."""
        url = f"{'/'.join(self.url.split('/')[:3])}{path}" if path else self.url
        response = self.client.request(method, url, content=content, headers=headers or {})
        return Reply(response.status_code, response.headers, response.content)

    def draft(self, message: JSON) -> Reply:
        """Send a message with nothing but a content type, as the drafts print it."""
        return self.send(json.dumps(message).encode(), {"Content-Type": "application/json"})

    def post(self, message: JSON, headers: Mapping[str, str | None] | None = None) -> Reply:
        """Send a modern message as a conforming client does, but for these headers (None leaves one out)."""
        given: dict[str, str | None] = {"Content-Type": "application/json", "Accept": ACCEPT, **mirrored(message)}
        for name, value in (headers or {}).items():
            given = {known: old for known, old in given.items() if known.lower() != name.lower()} | {name: value}
        sent = {name: value for name, value in given.items() if value is not None}
        reply = self.send(json.dumps(message).encode(), sent)
        if reply.body:
            assert not (violations := list(problems(message["method"], reply))), violations
        return reply

    def modern(self, method: str, params: JSON | None = None, *, id: str | int = 1, **more: Any) -> Reply:
        """Send a request of 2026-07-28; keywords go into `_meta`."""
        return self.post(modern(method, params, id=id, **more))

    def call(self, tool: str, arguments: JSON | None = None, *, id: str | int = 1, **more: Any) -> Reply:
        """Call a tool; `answers` and `state` are of the round before, other keywords go into `_meta`."""
        params: JSON = {"name": tool, "arguments": arguments or {}}
        for keyword, field in (("answers", "inputResponses"), ("state", "requestState")):
            if keyword in more:
                params[field] = more.pop(keyword)
        return self.modern("tools/call", params, id=id, **more)

    def close(self) -> None:
        self.client.close()


class Listener:
    """One open stream of a subscription, as a client reads it.

    Args:
        lines: the lines of the stream.
    """

    def __init__(self, lines: Iterator[str]) -> None:
        self._lines = lines

    def next(self) -> JSON:
        """Wait for the next message; it has passed the official schema."""
        for line in self._lines:
            if line.startswith("data: "):
                message: JSON = json.loads(line.removeprefix("data: "))
                assert not (wrong := list(message_problems("subscriptions/listen", message))), wrong
                return message
        raise EOFError

    def comment(self) -> str:
        """Wait for the next comment."""
        return next(line for line in self._lines if line.startswith(":"))


# The official schema, and the official models


@cache
def _validator(definition: str, schema: str) -> Draft202012Validator:
    definitions = json.loads((Path(__file__).parents[1] / "schemas" / f"{schema}.json").read_text())["$defs"]
    return Draft202012Validator({"$ref": f"#/$defs/{definition}", "$defs": definitions})


def _schema(definition: str, value: Any, schema: str = VERSION) -> Iterator[str]:
    for error in _validator(definition, schema).iter_errors(value):
        yield f"{definition}: {error.json_path}: {error.message}"


def problems(method: str, reply: Reply) -> Iterator[str]:
    """Return what is wrong with a reply to a modern request, by the official schema and by the official models.

    Args:
        method: the method of the request.
        reply: what came back; a body that is no JSON-RPC (the JSON of a 403 or 415) counts as wrong, too.
    """
    if not reply.is_stream and b"\n" in reply.body:
        yield "a JSON body is one line"
    try:
        messages = reply.received
    except ValueError as error:
        yield f"no JSON: {error}"
        return
    for number, message in enumerate(messages, 1):
        yield from message_problems(method, message)
        if number < len(messages) and "method" not in message:
            yield f"a message follows the response: {messages}"


def message_problems(method: str, message: JSON) -> Iterator[str]:
    """Return what is wrong with one message that answers, or accompanies, a modern request."""
    if "method" in message:
        yield from _notification_problems(message)
    elif "error" in message:
        yield from _error_problems(message)
    else:
        yield from _schema("JSONRPCResultResponse", message)
        yield from _result_problems(method, message.get("result", {}))


def _notification_problems(message: JSON) -> Iterator[str]:
    if "id" in message:
        yield f"a server sends no requests: {message['method']}"
        return
    if message["method"] == "notifications/tasks":
        yield from _schema("TaskStatusNotification", message, "tasks-extension")
        yield from _task_problems(message["params"])
        return
    if message["method"].startswith("notifications/events/"):  # the official models have no row for these
        yield from _schema("JSONRPCNotification", message)
        return
    yield from _schema("ServerNotification", message)
    try:
        methods.parse_server_notification(message["method"], VERSION, message.get("params"))
    except (ValidationError, KeyError) as error:
        yield f"mcp_types: {error}"


def _error_problems(message: JSON) -> Iterator[str]:
    yield from _schema(_ERRORS.get(message["error"].get("code"), "JSONRPCErrorResponse"), message)
    if "id" not in message:
        return
    try:
        JSONRPCError.model_validate(message)
    except ValidationError as error:
        yield f"mcp_types: {error}"
    if message["id"] is None:
        yield "an error's id is never null"


def _result_problems(method: str, result: JSON) -> Iterator[str]:
    kind = result.get("resultType")
    if kind == "input_required":
        yield from _schema("InputRequiredResult", result)
        if method not in ASKING:
            yield f"{method} can't ask"
        if not {"inputRequests", "requestState"} & result.keys():
            yield "neither inputRequests nor requestState"
        if result.get("inputRequests") == {}:
            yield "inputRequests is empty"
    elif kind == "task":
        yield from _schema("CreateTaskResult", result, "tasks-extension")
        yield from _task_problems(result)
        if method != "tools/call":
            yield f"{method} can't become a task"
        if strays := {"inputRequests", "result", "error"} & result.keys():
            yield f"a task is told of before it has {strays}"
    elif kind == "complete" and method in _TASK_RESULTS:
        yield from _schema(_TASK_RESULTS[method], result, "tasks-extension")
        if method == "tasks/get":
            yield from _task_problems(result)
        elif result.keys() - {"resultType", "_meta"}:
            yield f"an acknowledgement is empty: {result}"
    elif kind == "complete":
        yield from _schema(_RESULTS[method], result)
    else:
        yield f"resultType is {kind!r}"
    if PREFIX + "serverInfo" not in result.get("_meta", {}):
        yield "the result does not say whose it is"
    if method == "subscriptions/listen" or method in _TASK_RESULTS or kind == "task" or method.startswith("events/"):
        return  # the official models have no row for these
    try:
        methods.parse_server_result(method, VERSION, result)
    except (ValidationError, KeyError) as error:
        yield f"mcp_types: {error}"


_DETAILS = {"input_required": "inputRequests", "completed": "result", "failed": "error"}
_TASK_FIELDS = {"taskId", "status", "statusMessage", "createdAt", "lastUpdatedAt", "ttlMs", "pollIntervalMs"}


def _task_problems(task: JSON) -> Iterator[str]:
    """Return what is wrong with a task, past what the schema of the extension says."""
    known = _TASK_FIELDS | {"resultType", "_meta"}
    if strays := task.keys() - known - {_DETAILS.get(task.get("status", ""), "")}:
        yield f"a task that is {task.get('status')} has {strays}"
    for field in ("ttlMs", "pollIntervalMs"):
        if not (type(task.get(field)) is int and task[field] > 0):
            yield f"{field} is no positive integer"
    for field in ("createdAt", "lastUpdatedAt"):
        if not re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z", str(task.get(field))):
            yield f"{field} is no time in UTC"
    if PREFIX + "related-task" in task.get("_meta", {}):
        yield "the related task is the task itself"
    if "result" in task:
        yield from _schema("CallToolResult", task["result"])


class Inspected:
    """An ASGI application whose replies to modern requests are checked as they pass.

    Args:
        app: the application.
    """

    def __init__(self, app: ASGIApp) -> None:
        self.app = app
        self.problems: list[str] = []
        self.replies = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        named = dict(scope["headers"]).get(b"mcp-protocol-version") if scope["type"] == "http" else None
        if named is None or named.decode() in HANDSHAKES:
            await self.app(scope, receive, send)
            return
        asked, answered = bytearray(), bytearray()
        start: JSON = {}

        async def read() -> Message:
            message = await receive()
            asked.extend(message.get("body", b""))
            return message

        async def write(message: Message) -> None:
            if message["type"] == "http.response.start":
                start.update(message)
            else:
                answered.extend(message.get("body", b""))
            await send(message)

        try:
            await self.app(scope, read, write)
        finally:
            self._check(bytes(asked), start, bytes(answered))

    def _check(self, asked: bytes, start: Mapping[str, Any], answered: bytes) -> None:
        headers = {name.decode(): value.decode() for name, value in start.get("headers", ())}
        if not answered or "content-encoding" in headers:  # nothing to read, or not as we wrote it
            return
        self.replies += 1
        try:
            method = json.loads(asked)["method"]
        except (ValueError, LookupError, TypeError):
            method = ""
        # A stream that was cut off ends within an event; what came whole is checked.
        whole = answered[: answered.rfind(b"\n\n") + 2] if "event-stream" in headers["content-type"] else answered
        self.problems += [f"{method}: {what}" for what in problems(method, Reply(start["status"], headers, whole))]
