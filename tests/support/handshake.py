"""A client of the handshake era that shows each message: what it sends is what it is told to, and streams stay open."""

import json
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import httpx
from jsonschema import Draft202012Validator

from mrtr_server.testing import EVERYTHING, Event
from mrtr_server.testing.replies import EventReader
from mrtr_server.wire import HANDSHAKES

from .serving import TIMEOUT
from .wire import ACCEPT, Reply, request

JSON = dict[str, Any]

NEWEST, *OLDER = HANDSHAKES

_RESULTS = {
    "initialize": "InitializeResult",
    "ping": "EmptyResult",
    "logging/setLevel": "EmptyResult",
    "resources/subscribe": "EmptyResult",
    "resources/unsubscribe": "EmptyResult",
    "tools/call": "CallToolResult",
    "tools/list": "ListToolsResult",
    "prompts/get": "GetPromptResult",
    "prompts/list": "ListPromptsResult",
    "resources/read": "ReadResourceResult",
    "resources/list": "ListResourcesResult",
    "resources/templates/list": "ListResourceTemplatesResult",
    "completion/complete": "CompleteResult",
    "tasks/get": "GetTaskResult",
    "tasks/list": "ListTasksResult",
    "tasks/cancel": "CancelTaskResult",
    "tasks/result": "CallToolResult",
}


def result_of(message: JSON) -> str:
    """Return what the schema calls the result of a request."""
    if message["method"] == "tools/call" and "task" in message.get("params", {}):
        return "CreateTaskResult"
    return _RESULTS.get(message["method"], "Result")


@cache
def _validator(definition: str, version: str) -> Draft202012Validator:
    schema = json.loads((Path(__file__).parents[1] / "schemas" / f"{version}.json").read_text())
    name = "$defs" if "$defs" in schema else "definitions"
    definitions = {each: found if each in _PARTS else _closed(found) for each, found in schema[name].items()}
    return Draft202012Validator({"$ref": f"#/{name}/{definition}", name: definitions})


_PARTS = ("Task", "Result", "NotificationParams")
"""Definitions that others are put together of."""

_OPEN = frozenset({"inputSchema", "outputSchema"})
"""Fields that hold a schema, in which there may be more than the protocol names."""


def _closed(schema: JSON) -> JSON:
    """Return a schema that permits the fields that it names, and no others, unless it says that it is open."""
    closed = dict(schema)
    if isinstance(items := schema.get("items"), dict):
        closed["items"] = _closed(items)
    if "properties" not in schema:
        return closed
    named = schema["properties"]
    closed["properties"] = {name: each if name in _OPEN else _closed(each) for name, each in named.items()}
    if (
        "params" in named and "properties" in named["params"]
    ):  # parameters of whatever message may have it (General Fields)
        closed["properties"]["params"]["properties"].setdefault("_meta", {})
    if "experimental" in named:  # of capabilities, which are no closed set
        closed["properties"].setdefault("extensions", {})
    if not named.keys() & {"method", "jsonrpc"}:  # a message has an envelope, which older schemas have elsewhere
        closed.setdefault("additionalProperties", False)
    return closed


def check(definition: str, value: Any, version: str = NEWEST) -> None:
    """Check a message, or a part of one, against the official schema of a version; no field may be unknown there."""
    problems = [f"{error.json_path}: {error.message}" for error in _validator(definition, version).iter_errors(value)]
    assert problems == [], f"{definition} of {version}: {problems}"


def check_message(message: JSON, asked: JSON, version: str = NEWEST) -> None:
    """Check what a server sent to a request: its response, or a message before that; see `check`."""
    if "method" in message:
        check("ServerRequest" if "id" in message else "ServerNotification", message, version)
    elif "error" in message:
        check("JSONRPCErrorResponse" if version == NEWEST else "JSONRPCError", message, version)
    else:
        check(result_of(asked), message["result"], version)


class Stream:
    """A response that is read as it comes.

    Args:
        response: the response, whose body is not read yet.
        version: what its messages are checked against.
    """

    def __init__(self, response: httpx.Response, version: str) -> None:
        self.response = response
        self.version = version
        self.last_id = ""
        self.retry: int | None = None
        self._reader = EventReader()
        self._events = self._read()

    @property
    def comments(self) -> int:
        """How many comments came."""
        return self._reader.comments

    def _read(self) -> Iterator[Event]:
        for data in self.response.iter_bytes():
            for event in self._reader.feed(data):
                self.last_id = event.id or self.last_id
                self.retry = self.retry if event.retry is None else event.retry
                yield event

    def events(self) -> Iterator[Event]:
        """Return the events that have not been read, as they come."""
        return self._events

    def next(self, version: str = "") -> JSON:
        """Return the next message, checked against a version, or that of the client."""
        for event in self._events:
            if event.data:
                message = event.message
                if "method" in message:
                    check_message(message, {}, version or self.version)
                return message
        raise AssertionError("the stream ended without a message")

    def ask(self, version: str = "") -> JSON:
        """Return the next message, which asks; see `next`."""
        message = self.next(version)
        assert {"method", "id"} <= message.keys(), message
        return message

    def end(self) -> JSON:
        """Return the response, after the notifications before it; it is the last message."""
        while "method" in (message := self.next()):
            assert "id" not in message, f"another question: {message}"
        assert [event for event in self._events if event.data] == []
        return message


class PlainReply(Reply):
    """A reply whose result is what it says, of a task as of anything else."""

    @property
    def result(self) -> JSON:
        assert "result" in self.message, self.message
        return dict(self.message["result"])


@dataclass
class Handshake:
    """A client of one server or several.

    Args:
        urls: the endpoints; one request after the other goes to the next.
        version: what it asks for.
        capabilities: what it declares.
        headers: what it sends with each request.
    """

    urls: list[str]
    version: str = NEWEST
    capabilities: JSON = field(default_factory=lambda: dict(EVERYTHING))
    headers: dict[str, str] = field(default_factory=dict)
    session: str = ""
    ids: int = 0

    def __post_init__(self) -> None:
        self.http = httpx.Client(timeout=TIMEOUT)
        self.turn = 0

    def close(self) -> None:
        self.http.close()

    def url(self) -> str:
        """Return the endpoint whose turn it is."""
        self.turn += 1
        return self.urls[self.turn % len(self.urls)]

    def given(self, **more: str | None) -> dict[str, str]:
        """Return the headers of a request."""
        sent: dict[str, str | None] = {"Content-Type": "application/json", "Accept": ACCEPT, **self.headers}
        if self.session:
            sent |= {"Mcp-Session-Id": self.session, "MCP-Protocol-Version": self.version}
        sent |= {name.replace("_", "-"): value for name, value in more.items()}
        return {name: value for name, value in sent.items() if value is not None}

    def begin(self, **info: Any) -> JSON:
        """Initialize; return the result."""
        params = {
            "protocolVersion": self.version,
            "capabilities": self.capabilities,
            "clientInfo": {"name": "tests", "version": "1", **info},
        }
        reply = self.post(self.request("initialize", params))
        self.session = reply.headers["mcp-session-id"]
        assert self.post({"jsonrpc": "2.0", "method": "notifications/initialized"}).status == 202
        return reply.result

    def request(self, method: str, params: JSON | None = None) -> JSON:
        """Return a request with the next id."""
        self.ids += 1
        return request(method, params, id=self.ids)

    def post(self, message: Any, **headers: str | None) -> Reply:
        """Post a message; return the whole reply, checked."""
        response = self.http.post(self.url(), content=json.dumps(message).encode(), headers=self.given(**headers))
        reply = PlainReply(response.status_code, response.headers, response.content)
        if isinstance(message, dict) and reply.body and "result" in reply.message:
            check(result_of(message), reply.result, self.version)
        return reply

    def send(self, method: str, params: JSON | None = None, **headers: str | None) -> Reply:
        """Send a request; return the whole reply."""
        return self.post(self.request(method, params), **headers)

    def call(self, tool: str, **arguments: Any) -> Reply:
        """Call a tool that does not ask."""
        return self.send("tools/call", {"name": tool, "arguments": arguments})

    @contextmanager
    def open(self, method: str, params: JSON | None = None, **headers: str | None) -> Iterator[Stream]:
        """Send a request, and read its response as it comes."""
        content = json.dumps(self.request(method, params)).encode()
        with self.http.stream("POST", self.url(), content=content, headers=self.given(**headers)) as response:
            assert response.headers["content-type"].startswith("text/event-stream"), response.read()
            yield Stream(response, self.version)

    def task(self, tool: str, ttl: int | None = None, **arguments: Any) -> JSON:
        """Call a tool as a task; return the task."""
        wanted = {} if ttl is None else {"ttl": ttl}
        task: JSON = self.send("tools/call", {"name": tool, "arguments": arguments, "task": wanted}).result["task"]
        return task

    def about(self, method: str, task: JSON) -> Reply:
        """Send a request about a task."""
        return self.send(method, {"taskId": task["taskId"]})

    def result_of(self, task: JSON, **headers: str | None) -> Any:
        """Wait for the result of a task, and read the response as it comes; see `open`."""
        return self.open("tasks/result", {"taskId": task["taskId"]}, **headers)

    def calling(self, tool: str, **arguments: Any) -> Any:
        """Call a tool that asks, and read its response as it comes; see `open`."""
        return self.open("tools/call", {"name": tool, "arguments": arguments})

    @contextmanager
    def resume(self, last_id: str, **headers: str | None) -> Iterator[Stream]:
        """Come back to a stream."""
        given = self.given(Last_Event_ID=last_id, Content_Type=None, **headers)
        with self.http.stream("GET", self.url(), headers=given) as response:
            assert response.status_code == 200, response.status_code
            yield Stream(response, self.version)

    @contextmanager
    def listen(self, **headers: str | None) -> Iterator[Stream]:
        """Open the stream of notifications."""
        with self.http.stream("GET", self.url(), headers=self.given(Content_Type=None, **headers)) as response:
            assert response.status_code == 200, response.status_code
            yield Stream(response, self.version)

    def answer(
        self, asked: JSON, result: JSON | None = None, error: JSON | None = None, **headers: str | None
    ) -> Reply:
        """Answer a question."""
        given = {"result": result} if result is not None else {"error": error}
        return self.post({"jsonrpc": "2.0", "id": asked["id"], **given}, **headers)

    def accept(self, asked: JSON, **content: Any) -> None:
        """Answer a question as a person who fills the form in; it is acknowledged."""
        reply = self.answer(asked, {"action": "accept", "content": content})
        assert (reply.status, reply.body) == (202, b"")


@contextmanager
def handshakes(*clients: Handshake) -> Iterator[None]:
    """Close clients at the end."""
    with ExitStack() as stack:
        for client in clients:
            stack.callback(client.close)
        yield


def play(client: Handshake, exchange: JSON) -> list[JSON]:
    """Send the request of a transcript's exchange, and its answers to what is asked; return what came back.

    The ids that the server made are left out: they are sealed.
    """
    content = json.dumps(exchange["request"]).encode()
    came: list[JSON] = []
    answers = iter(exchange.get("answers", ()))
    with client.http.stream("POST", client.url(), content=content, headers=client.given()) as response:
        assert response.status_code == exchange.get("status", 200)
        if "mcp-session-id" in response.headers:
            client.session = response.headers["mcp-session-id"]
        if not response.headers.get("content-type", "").startswith("text/event-stream"):
            body = response.read()
            return [json.loads(body)] if body else []
        for event in Stream(response, client.version).events():
            if not event.data:  # what one would come back to
                continue
            message = event.message
            if {"method", "id"} <= message.keys():
                assert client.answer(message, next(answers)).status == 202
                message["id"] = "<sealed>"
                message.get("params", {}).pop("elicitationId", None)
            came.append(message)
    return came
