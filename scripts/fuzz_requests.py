"""The requests of scripts/fuzz: right ones, and ones with something wrong."""

import json
from collections import deque
from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass, field
from random import Random
from typing import Any

JSON = dict[str, Any]

PREFIX = "io.modelcontextprotocol/"
MODERN = "2026-07-28"
HANDSHAKES = ("2025-11-25", "2025-06-18", "2025-03-26", "2024-11-05")
USERS = ("jane", "john")
"""Who calls; at the open server it is nobody."""
OPEN = "open"
"""The server that asks nobody who they are."""
ENCODINGS = ("bare", "lists", "content")
"""The servers that take answers beside the parameters."""

ACCEPT = ("application/json, text/event-stream", "application/json", "text/event-stream", "*/*", "", "text/html;q=0")
CAPABILITIES: JSON = {"elicitation": {"form": {}, "url": {}}, "sampling": {"tools": {}}, "roots": {}}
TOOLS = ("add", "greet", "order", "deploy", "pay", "everything", "visit", "notes", "fail", "work")
ANSWERS: tuple[JSON, ...] = (
    {"action": "accept", "content": {"name": "octocat", "confirm": True}},
    {"action": "decline"},
    {"action": "cancel"},
    {"role": "assistant", "content": {"type": "text", "text": "hello"}, "model": "m"},
    {"roots": [{"uri": "file:///x", "name": "x"}]},
)
KINDS = ("session", "question", "event", "state", "task", "cursor")

_RARE = (
    *("initialize", "prompts/get", "resources/read", "tools/list", "prompts/list", "resources/list", "ping"),
    *("resources/templates/list", "completion/complete", "logging/setLevel", "resources/subscribe"),
    *("resources/unsubscribe", "server/discover", "notifications/cancelled", "notifications/initialized"),
    *("tasks/get", "tasks/result", "tasks/list", "tasks/cancel", "tasks/update", "subscriptions/listen"),
)
METHODS = ("tools/call", *_RARE), (12, 2, *(1 for _ in _RARE[1:]))
"""The methods of right requests, and how often each comes."""

_URIS: tuple[JSON, ...] = ({"uri": "notes://1"}, {"uri": "mine://notes"})
_PARAMS: dict[str, tuple[JSON, ...]] = {
    "tools/call": (
        {"name": "add", "arguments": {"a": 1}},
        {"name": "deploy", "arguments": {"service": "y"}},
        *({"name": tool, "arguments": {}} for tool in TOOLS if tool != "add"),
    ),
    "initialize": ({"capabilities": CAPABILITIES, "clientInfo": {"name": "fuzz", "version": "1"}},),
    "prompts/get": ({"name": "review", "arguments": {"language": "x"}},),
    "resources/read": _URIS,
    "resources/subscribe": _URIS,
    "resources/unsubscribe": _URIS,
    "logging/setLevel": ({"level": "debug"}, {"level": "info"}, {"level": "error"}),
    "completion/complete": (
        {"ref": {"type": "ref/prompt", "name": "review"}, "argument": {"name": "language", "value": "p"}},
    ),
    "subscriptions/listen": ({"notifications": {"toolsListChanged": True}},),
}

_JUNK: tuple[Any, ...] = (None, True, False, 0, -1, 2**63, 10**300, 1.5, 1e308, [], {})
_TEXTS = (
    *("", "x", " ", "\x00", "ü", "\ud83d\ude00", "2025-11-25", MODERN, "tools/call", "a" * 300, "a" * 5_000),
    *("../..", "%s", "=?base64?eA==?=", "end.x", "x.1", "-1", "initialize", "notes://1", "application/json"),
)

Call = tuple[str, JSON]


@dataclass(frozen=True, slots=True)
class Found:
    """An id that a server gave out.

    Args:
        id: the id.
        server: which of them.
        user: whom it was given to.
        call: the request that it belongs to.
    """

    id: str
    server: str
    user: str
    call: Call = ("", {})


@dataclass(slots=True)
class Request:
    """A request as it goes to a server.

    Args:
        server: which of them.
        user: on whose behalf; empty for nobody.
        method: the HTTP method.
        headers: the HTTP headers.
        body: the body.
        what: names how it was made.
        call: the method and parameters, for what comes of it.
        check: returns what is wrong with the reply: its status, and its body; empty for nothing.
        waits: whether its reply is waited for, since it may take a while and is never a stream.
    """

    server: str
    user: str
    method: str = "POST"
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b""
    what: str = ""
    call: Call = ("", {})
    check: Callable[[int, bytes], str] = lambda status, body: ""
    waits: bool = False

    def listed(self) -> list[tuple[bytes, bytes]]:
        """Return the headers as an ASGI server has them."""
        who = {"authorization": self.user} if self.user else {}
        given = {"host": "localhost", "content-type": "application/json", **self.headers, **who}
        return [(name.encode(), value.encode("latin-1", "replace")) for name, value in given.items()]


class Requests:
    """Makes requests, of what servers have given out so far.

    Args:
        random: decides everything.
        servers: the names of the servers, and whether each takes clients of today, and of the handshake era.
    """

    def __init__(self, random: Random, servers: dict[str, tuple[bool, bool]]) -> None:
        self._random = random
        self._servers = servers
        self.found: dict[str, deque[Found]] = {kind: deque(maxlen=60) for kind in KINDS}
        self._ids = 0
        self._makers: list[tuple[Callable[[], Request], int]] = [
            (self._right, 24),
            (self._broken, 30),
            (self._answer, 12),
            (self._resume, 6),
            (self._own, 8),
            (self._beside, 8),
            (self._task, 4),
            (self._listen_or_end, 3),
            (self._batch, 4),
            (self._noise, 5),
        ]

    def next(self) -> Request:
        """Return the next request."""
        makers, weights = zip(*self._makers, strict=True)
        (maker,) = self._random.choices(makers, weights)
        request: Request = maker()
        if self._random.random() < 0.05:
            name = self._random.choice(("mcp-protocol-version", "mcp-method", "mcp-name", "mcp-session-id", "accept"))
            request.headers[name] = self._junk_text()
            request.check = lambda status, body: ""
        return request

    # Right ones

    def _right(self) -> Request:
        random = self._random
        server, user = self._caller()
        method, params = call = self._call()
        modern, handshake = self._servers[server]
        form = random.choice([*([MODERN, ""] if modern else []), *(HANDSHAKES if handshake else [])])
        request = Request(server, user, what=f"right {form or 'draft'} {method}", call=call)
        request.headers["accept"] = ACCEPT[0] if random.random() < 0.9 else random.choice(ACCEPT)
        message = self._message(method, params)
        if form == MODERN:
            self._make_modern(message, request)
        elif form:
            request.headers["mcp-protocol-version"] = form
            if method == "initialize":
                del request.headers["mcp-protocol-version"]
                params["protocolVersion"] = form
            elif (session := self._mine("session", server, user)) is not None:
                request.headers["mcp-session-id"] = session.id
        request.body = dump(message)
        return request

    def _call(self) -> Call:
        random = self._random
        method = random.choices(*METHODS)[0]
        made = _PARAMS.get(method)
        params = deepcopy(random.choice(made)) if made else {}
        if method == "notifications/cancelled":
            params = {"requestId": random.randrange(max(1, self._ids - 30), self._ids + 2)}
        elif method == "tools/call" and random.random() < 0.1:
            params["task"] = {"ttl": 60_000}
        elif method.startswith("tasks/") and (task := self._any("task")) is not None:
            params = {"taskId": task.id}
        elif method.endswith("list") and random.random() < 0.3 and (cursor := self._any("cursor")) is not None:
            params = {"cursor": cursor.id}
        if random.random() < 0.2:
            params["_meta"] = {"progressToken": random.choice((1, "t"))}
        return method, params

    def _message(self, method: str, params: JSON) -> JSON:
        self._ids += 1
        id = {} if method.startswith("notifications/") else {"id": self._ids}
        return {"jsonrpc": "2.0", **id, "method": method, "params": params}

    def _make_modern(self, message: JSON, request: Request) -> None:
        params = message["params"]
        capabilities = CAPABILITIES | ({"extensions": {PREFIX + "tasks": {}}} if self._random.random() < 0.3 else {})
        named = {PREFIX + "protocolVersion": MODERN, PREFIX + "clientCapabilities": capabilities}
        params["_meta"] = {**params.get("_meta", {}), **named}
        request.headers |= {"mcp-protocol-version": MODERN, "mcp-method": message["method"]}
        name = params.get("name", params.get("uri", params.get("taskId")))
        if isinstance(name, str):
            request.headers["mcp-name"] = name

    def _retry(self, state: Found, user: str, server: str, id: str) -> Request:
        """Return the retry of a call with a state, which only servers of today take."""
        method, params = state.call
        given = {name: value for name, value in params.items() if name != "_meta"}
        answer = self._random.choice(ANSWERS)
        answers = dict.fromkeys(("login", "confirm", "open_url", "sample", "roots"), answer)
        message = self._message(method, {**given, "requestState": id, "inputResponses": answers})
        request = Request(server, user, what="retry", call=state.call)
        if self._random.random() < 0.7:
            self._make_modern(message, request)
        request.body = dump(message)
        return request

    def _own(self) -> Request:
        """Return a retry with a state, by whom it was given to."""
        state = self._any("state")
        return self._right() if state is None else self._retry(state, state.user, state.server, state.id)

    def _beside(self) -> Request:
        """Return a request with answers beside its parameters, with a state or without."""
        random = self._random
        states = [each for each in self.found["state"] if each.server in ENCODINGS]
        if states and random.random() < 0.5:
            state = random.choice(states)
            server, user, call = state.server, state.user, state.call
        else:
            server, user, state = random.choice(ENCODINGS), random.choice(USERS), None
            call = ("tools/call", deepcopy(random.choice(_PARAMS["tools/call"])))
        method, params = call
        message = self._message(method, {name: value for name, value in params.items() if name != "_meta"})
        if state is not None:
            message["requestState"] = state.id
        for member in random.choices(("elicitation", "sampling", "roots"), (8, 2, 1), k=random.randint(1, 2)):
            items = [self._item() for _ in range(random.randint(1, 3))]
            message[member] = items[0] if random.random() < 0.5 else items
        return Request(server, user, body=dump(message), what="answers beside the parameters", call=call)

    def _item(self) -> Any:
        random = self._random
        if random.random() < 0.2:
            return deepcopy(random.choice(ANSWERS))
        name = random.choice(("name", "name", "confirm")) if random.random() < 0.9 else self._junk()
        value = random.choice(("octocat", True)) if random.random() < 0.8 else self._junk()
        given: JSON = {"name": name, "value": value}
        return given if random.random() < 0.9 else {**given, "action": random.choice(("decline", "cancel", "x"))}

    def _answer(self) -> Request:
        """Return an answer to a question, by whom was asked."""
        question = self._any("question")
        return self._right() if question is None else self._answer_to(question.id, question.user, question.server)

    def _answer_to(self, id: str, user: str, server: str) -> Request:
        random = self._random
        answered: JSON = {"result": random.choice(ANSWERS)}
        if random.random() < 0.2:
            answered = {"error": {"code": random.choice((-32601, -1)), "message": "no"}}
        request = Request(server, user, body=dump({"jsonrpc": "2.0", "id": id, **answered}), what="answer")
        request.headers["mcp-protocol-version"] = HANDSHAKES[0]
        return request

    def _resume(self) -> Request:
        """Return a `GET` that comes back to a stream, by whom it belongs to."""
        event = self._any("event")
        return self._right() if event is None else self._resume_at(event.id, event.user, event.server)

    def _resume_at(self, id: str, user: str, server: str) -> Request:
        headers = {"last-event-id": id, "accept": "text/event-stream", "mcp-protocol-version": HANDSHAKES[0]}
        return Request(server, user, "GET", headers, what="resume")

    def _task(self) -> Request:
        """Return a request about a task, by whom it belongs to: what its client would send, in one of the forms."""
        task = self._any("task")
        return self._right() if task is None else self._about(task.id, task.user, task.server)

    def _about(self, id: str, user: str, server: str) -> Request:
        random, answer = self._random, self._random.choice(ANSWERS)
        modern, handshake = self._servers[server]
        forms = [*([MODERN, MODERN, ""] if modern else []), *(HANDSHAKES[:1] if handshake else [])]
        form = random.choice(forms)
        params: JSON = {"taskId": id}
        method = random.choice(("tasks/get", "tasks/cancel", "tasks/result", "tasks/update", "tasks/input_response"))
        if method in ("tasks/update", "tasks/input_response"):
            params["inputResponses"] = dict.fromkeys(("login", "confirm", "x"), answer)
        elif random.random() < 0.2:
            params["_meta"] = {"modelcontextprotocol.io/related-task": {"taskId": id}, "elicitation": answer}
        message = self._message(method, params)
        request = Request(server, user, what=f"{form or 'draft'} {method}", call=(method, params))
        if form == MODERN:
            self._make_modern(message, request)
        elif form:
            request.headers["mcp-protocol-version"] = form
        request.body = dump(message)
        return request

    def _listen_or_end(self) -> Request:
        random = self._random
        server, user = self._caller()
        headers = {"accept": random.choice(ACCEPT), "mcp-protocol-version": random.choice(HANDSHAKES)}
        if (session := self._mine("session", server, user)) is not None:
            headers["mcp-session-id"] = session.id
        method = random.choices(("GET", "DELETE", "PUT", "HEAD"), (6, 2, 1, 1))[0]
        return Request(server, user, method, headers, what="listen or end")

    def _batch(self) -> Request:
        random = self._random
        parts = [json.loads(self._right().body) for _ in range(random.randrange(4))]
        if (question := self._any("question")) is not None:
            parts.append({"jsonrpc": "2.0", "id": question.id, "result": random.choice(ANSWERS)})
        parts += [self._junk() for _ in range(random.randrange(2))]
        server, user = self._caller()
        return Request(server, user, headers={"mcp-protocol-version": "2025-03-26"}, body=dump(parts), what="batch")

    # Broken ones

    def _broken(self) -> Request:
        """Return a request with one to three places that are wrong."""
        random = self._random
        request = random.choice((self._right, self._right, self._own, self._answer, self._beside))()
        message = json.loads(request.body)
        for _ in range(random.randint(1, 3)):
            at: Any = message
            while True:
                keys = list(at) if isinstance(at, dict) else list(range(len(at)))
                if not keys:
                    break
                key = random.choice(keys)
                if isinstance(at[key], dict | list) and at[key] and random.random() < 0.7:
                    at = at[key]
                    continue
                if random.random() < 0.3:
                    del at[key]
                else:
                    at[key] = self._junk()
                break
            if random.random() < 0.2 and isinstance(message, dict):
                message[random.choice(("x", "result", "error", "id", "params", "_meta"))] = self._junk()
        request.body, request.what = dump(message), f"broken {request.what}"
        return request

    def _noise(self) -> Request:
        random = self._random
        body = self._right().body
        match random.randrange(4):
            case 0:
                body = random.randbytes(random.randrange(60))
            case 1:
                body = body[: random.randrange(len(body))]
            case 2:
                at = random.randrange(len(body))
                body = body[:at] + random.choice((b"\x00", b"\xff", b'"', b"[" * 20, b"1e999", b"NaN")) + body[at + 1 :]
            case _:
                body = dump(self._junk())
        version = random.choice((*HANDSHAKES, MODERN, ""))
        headers = {"mcp-protocol-version": version} if version else {}
        return Request(*self._caller(), headers=headers, body=body, what="noise")

    def _junk(self) -> Any:
        random = self._random
        match random.randrange(8):
            case 0:
                return deepcopy(random.choice(_JUNK))
            case 1:
                return [self._junk() for _ in range(random.randrange(3))]
            case 2:
                return {self._junk_text(): self._junk() for _ in range(random.randrange(3))}
            case 3:
                deep: Any = 1
                for _ in range(random.choice((3, 11, 14, 30))):
                    deep = [deep] if random.random() < 0.5 else {"x": deep}
                return deep
            case 4:
                found = self._any(random.choice(KINDS))
                return "x" if found is None else found.id
            case 5:
                return deepcopy(random.choice(ANSWERS))
            case _:
                return self._junk_text()

    def _junk_text(self) -> str:
        return self._random.choice(_TEXTS)

    # Choices

    def _caller(self) -> tuple[str, str]:
        """Return a server, and who calls it; of a hundred requests to one that wants to know, one does not say."""
        server = self._random.choices(list(self._servers), (4, 2, 2, 1, 1, 1, 1))[0]
        return server, "" if server == OPEN or self._random.random() < 0.01 else self._random.choice(USERS)

    def _any(self, kind: str) -> Found | None:
        found = self.found[kind]
        return self._random.choice(found) if found else None

    def _mine(self, kind: str, server: str, user: str) -> Found | None:
        mine = [each for each in self.found[kind] if (each.server, each.user) == (server, user)]
        return self._random.choice(mine) if mine and self._random.random() < 0.9 else None


def dump(message: Any) -> bytes:
    """Return a message as bytes."""
    return json.dumps(message, ensure_ascii=True).encode()
