"""The page for people: its files, who may look inside, and what it shows of the server and of rounds."""

import json
import os
import socket
from base64 import urlsafe_b64encode
from collections import OrderedDict
from collections.abc import Iterable, Mapping
from functools import partial
from hashlib import sha256
from hmac import compare_digest
from importlib.resources import files
from secrets import token_hex
from typing import Any

from pydantic_core import from_json, to_json
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ..addresses import is_loopback_address, is_loopback_host
from ..crypto.keys import KeyRing
from ..errors import InvalidRequestState
from ..flow.states import describe_journal, inspect_state
from ..methods.middleware import Came, Middleware, watch
from ..protocol.callers import RecordedUser
from ..protocol.messages import JSON, Call, Outlet
from ..protocol.trace import HEARD, Event
from ..tasks.task_run import TaskRun
from ..transport.connection import respond, send_content
from . import sandbox

# Which requests come from the page itself


_FORWARDED = frozenset(
    {
        b"forwarded",
        b"via",
        b"x-forwarded-for",
        b"x-forwarded-host",
        b"x-forwarded-proto",
        b"x-real-ip",
        b"cf-connecting-ip",
        b"true-client-ip",
    }
)
"""Headers that proxies and tunnels add: a request with one may come from anywhere, whatever address it has."""


TOKEN = b"mrtr-page-token"  # the header in which the page sends its token

_TOKEN_BYTES = 24
_WITHOUT = "It lacks the token of the page, which the server printed with the address of the page when it started."


def token_of(ring: KeyRing) -> str:
    """Return the token of the page. All processes with the same keys have the same one."""
    return urlsafe_b64encode(ring.derive("page")[0][1][:_TOKEN_BYTES]).decode()


def address_of(path: str, token: str) -> str:
    """Return the address of the page with its token, which a browser sends to nobody: it is in the fragment."""
    return f"{path}#token={token}"


def why_not_page(scope: Scope, token: str, *, reads: bool = False) -> str:
    """Return why a request can't be from the page of somebody who was given its token; empty if it is.

    Any program of this machine can send what a browser sends. Its token it can't know.
    """
    if why_not := why_not_local(scope, reads=reads):
        return why_not
    given = [value for name, value in scope["headers"] if name == TOKEN]
    return "" if len(given) == 1 and compare_digest(given[0], token.encode()) else _WITHOUT


def why_not_local(scope: Scope, *, reads: bool = False) -> str:
    """Return why a request can't be from the page in a browser of this machine; empty if it is.

    The address of the client must be loopback. `Host` must be, too, so that no name of somebody else's can point here
    (DNS rebinding). `Origin` must be that of the page, so that no other page can send it, not even one of another port;
    it may be absent where a request only `reads`, since browsers send none then. No proxy may have sent it on, since
    then its address says nothing.
    """
    client = scope.get("client")
    headers: Iterable[tuple[bytes, bytes]] = scope["headers"]
    hosts = [value for name, value in headers if name == b"host"]
    origins = [value for name, value in headers if name == b"origin"]
    if client is None or not is_loopback_address(client[0]):
        return "It came from another machine."
    # nginx as it comes adds no header at all, but speaks HTTP/1.0, which no browser does.
    if scope.get("http_version") == "1.0" or any(name in _FORWARDED for name, _ in headers):
        return "It came through a proxy."
    if len(hosts) != 1 or not is_loopback_host(hosts[0].decode("latin-1")):
        return "Its Host is not localhost."
    own = scope.get("scheme", "http").encode() + b"://" + hosts[0]
    if not origins and reads:
        return ""
    return "" if [origin.lower() for origin in origins] == [own.lower()] else "Its Origin is not this page."


# Rounds, as the page shows them


MARK = b"mrtr-page"
"""The header of a request that wants to know of its round: `who` answered, which anybody may, or what was `inside`."""

WHO = b"who"

USER = b"mrtr-page-user"  # the user on whose behalf a request is, on a server that authenticates nobody

REPORT = b"mrtr-round"  # of a reply, with the report; in a stream, a comment at its end

LONGEST_USER = 64  # characters

LONGEST_REPORT = 4096  # bytes, in a header

LONGEST_NAME = 80  # characters of a step's name

MOST_TASKS = 64  # that are remembered, the last ones

MOST_ROUNDS = 20  # of a task that are remembered, the last ones

_SHOWN: tuple[Event, ...] = ("ran", "replayed")


class RoundReports:
    """Serves the endpoint, and tells the page of the rounds that it has asked for.

    It stands directly in front of the endpoint, behind everything that authenticates. With the token, the page on this
    machine gets the steps, and may send another user along. Otherwise it gets only which of several replicas answered,
    by a name that says nothing of the machine.
    """

    def __init__(self, endpoint: ASGIApp, token: str) -> None:
        self._endpoint = endpoint
        self._token = token
        self._replica = f"replica {token_hex(3)}"
        self._process = f"process {os.getpid()} on {socket.gethostname()}"

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        wanted = {name: value for name, value in scope["headers"] if name in (MARK, USER)}
        if wanted.get(MARK) == WHO and USER not in wanted:
            await self._endpoint(scope, receive, _Report({"process": self._replica}, send).send)
            return
        if not wanted or not self._token:
            await self._endpoint(scope, receive, send)
            return
        if refusal := _refusal(scope, self._token, wanted.get(USER)):
            await respond(send, 403, to_json({"error": refusal}))
            return
        # Whatever is behind this has no need of the token, and might log it.
        scope = {**scope, "headers": [header for header in scope["headers"] if header[0] != TOKEN]}
        if USER in wanted:
            name = wanted[USER].decode("latin-1")
            scope = {**scope, "user": RecordedUser(name, name)}
        steps: dict[str, list[str]] = {event: [] for event in _SHOWN}
        report = _Report({"process": self._process, **steps}, send)
        await self._endpoint({**scope, HEARD: partial(_hear, steps)}, receive, report.send)


def _refusal(scope: Scope, token: str, user: bytes | None) -> str:
    if why_not := why_not_page(scope, token):
        return f"Only the page on this machine may ask for this. {why_not}"
    if user is None:
        return ""
    if "user" in scope:
        return "This server authenticates its callers, so nobody else can be sent along. Give a token of that user"
    if not 0 < len(user) <= LONGEST_USER or not user.decode("latin-1").isprintable():
        return f"A user has a name of 1 to {LONGEST_USER} characters"
    return ""


def _hear(steps: dict[str, list[str]], event: Event, name: str) -> None:
    if event in steps:
        steps[event].append(name[:LONGEST_NAME])


class _Report:
    """Writes what a round did beside its reply."""

    def __init__(self, about: dict[str, Any], send: Send) -> None:
        self._about = about
        self._send = send
        self._streams = False

    async def send(self, message: Message) -> None:
        """Send a message of the response: the report goes into its head, or behind the last event of a stream."""
        if message["type"] == "http.response.start":
            headers = list(message.get("headers", ()))
            self._streams = any(name == b"content-type" and b"event-stream" in value for name, value in headers)
            if not self._streams:
                message = {**message, "headers": [*headers, (REPORT, self._written())]}
        elif self._streams and message["type"] == "http.response.body" and not message.get("more_body"):
            body = message.get("body", b"") + b": " + REPORT + b" " + self._written() + b"\n\n"
            message = {**message, "body": body}
        await self._send(message)

    def _written(self) -> bytes:
        written = json.dumps(self._about).encode("ascii")
        if len(written) > LONGEST_REPORT:
            counts = {kind: len(self._about[kind]) for kind in _SHOWN}
            return to_json({"process": self._about["process"], "counts": counts})
        return written


class TaskRounds:
    """Remembers what the last tasks did in this process, which run without a request that could carry a report."""

    def __init__(self) -> None:
        self._seen: OrderedDict[str, JSON] = OrderedDict()

    @property
    def middleware(self) -> Middleware:
        return watch(self._begin, self._end)

    def _begin(self, call: Call, outlet: Outlet) -> JSON | None:
        if not isinstance(outlet, TaskRun):
            return None
        id = outlet.row.id
        seen = self._seen.setdefault(id, {"rounds": []})
        self._seen.move_to_end(id)
        while len(self._seen) > MOST_TASKS:
            self._seen.popitem(last=False)
        round_: dict[str, list[str]] = {event: [] for event in _SHOWN}
        seen["rounds"] = [*seen["rounds"], round_][-MOST_ROUNDS:]
        call.trace.heard = partial(_hear, round_)
        return seen

    def _end(self, call: Call, outlet: Outlet, seen: JSON | None, came: Came) -> None:
        if seen is not None and isinstance(outlet, TaskRun):
            seen["held"] = describe_journal(outlet.journal, values=True)

    def describe(self, task: str) -> JSON:
        return self._seen.get(task, {"error": "No round of it has run in this process."})


# The page itself


NAME = "docs"  # the last part of the page's path; its first parts are those of the endpoint's

_TYPES = {"html": b"text/html; charset=utf-8", "css": b"text/css; charset=utf-8", "js": b"text/javascript"}

_POLICY = b"; ".join(
    (
        b"default-src 'none'",
        b"script-src 'self'",
        b"style-src 'self'",
        b"connect-src 'self'",
        b"img-src data:",
        b"media-src data:",
        b"base-uri 'none'",
        b"form-action 'none'",
        b"frame-ancestors 'none'",
        b"require-trusted-types-for 'script'",
        b"trusted-types 'none'",
    )
)
"""Only the page's own files run. The result of a server can be text, or an image that is part of the reply."""

_EVERYWHERE = ((b"x-content-type-options", b"nosniff"), (b"referrer-policy", b"no-referrer"))
_HEADERS = (
    *_EVERYWHERE,
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"x-frame-options", b"DENY"),
)
_NO_STORE = (b"cache-control", b"no-store")


class Page:
    """Serves the page. Without `tasks` it does not look inside: it opens no states, and acts for no other user."""

    def __init__(
        self, path: str, ring: KeyRing, tasks: TaskRounds | None, token: str, *, own_codec: bool, has_auth: bool
    ) -> None:
        folder, _, endpoint = path.rpartition("/")
        self.path = f"{folder}/{NAME}"
        self._token = token
        self._endpoint = endpoint or "./"
        self._ring = ring
        self._tasks = tasks
        self._own_codec = own_codec
        self._has_auth = has_auth
        self._files = _load_files()

    def claims(self, path: str) -> bool:
        return path == self.path or path.startswith(f"{self.path}/")

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        below = scope["path"].rpartition(f"/{NAME}")[2]
        if below in ("/state", "/task"):
            await self._look_inside(below, scope, receive, send)
        elif scope["method"] not in ("GET", "HEAD"):
            await respond(send, 405, b'{"error":"GET or HEAD"}', (b"allow", b"GET, HEAD"))
        elif below == "/":  # or what the page refers to would be one level too deep
            await respond(send, 308, b"", (b"location", f"../{NAME}".encode()))
        elif below == "/about":
            await respond(send, 200, to_json(self._about(scope)), _NO_STORE, *_HEADERS)
        elif below == "/sandbox":
            await self._send_sandbox(scope, send)
        elif (file := self._files.get(below.removeprefix("/"))) is not None:
            await _send_file(scope, send, *file)
        else:
            await respond(send, 404, b'{"error":"Not found"}')

    def _about(self, scope: Scope) -> dict[str, object]:
        why_not, wants_token = "Start the server with debug=True, or with `mrtr-server dev`.", False
        if self._tasks is not None:
            why_not = why_not_page(scope, self._token, reads=True)
            wants_token = bool(why_not) and not why_not_local(scope, reads=True)
        users = why_not or ("A caller is who the token says." if self._has_auth else "")
        return {
            "endpoint": self._endpoint,
            "inside": why_not,
            "users": users,
            "wantsToken": wants_token,
            "sandbox": _other_origin(scope),
        }

    async def _send_sandbox(self, scope: Scope, send: Send) -> None:
        embedding = _other_origin(scope)
        policy = sandbox.policy_for(scope["query_string"], embedding) if embedding else None
        if policy is None:
            await respond(send, 404, b'{"error":"Not found"}')
            return
        headers = ((b"content-security-policy", policy), *_EVERYWHERE, _NO_STORE)
        await send_content(scope, send, _TYPES["html"], sandbox.document(), *headers)

    async def _look_inside(self, what: str, scope: Scope, receive: Receive, send: Send) -> None:
        if self._tasks is None:
            await respond(send, 404, b'{"error":"Not found"}')
        elif scope["method"] != "POST":
            await respond(send, 405, b'{"error":"POST"}', (b"allow", b"POST"))
        elif why_not := why_not_page(scope, self._token):
            await respond(send, 403, to_json({"error": f"Only the page on this machine may look inside. {why_not}"}))
        else:
            found: object
            try:
                asked = str(from_json(await _read(receive))[what.removeprefix("/")])
            except (ValueError, KeyError, TypeError):
                found = {"error": f'Send {{"{what.removeprefix("/")}": "..."}}'}
            else:
                found = self._tasks.describe(asked) if what == "/task" else self._describe(asked)
            await respond(send, 200, to_json(found), _NO_STORE)

    def _describe(self, state: str) -> Mapping[str, object]:
        if self._own_codec:
            return {"error": "The states of this server are sealed with its own codec=, which the page can't open."}
        try:
            return {"held": inspect_state(state, self._ring, values=True)}
        except InvalidRequestState as error:
            return {"error": f"This state does not open: {error.reason}"}


def _other_origin(scope: Scope) -> str:
    """Return the origin of the sandbox for pages of apps; empty but for a browser of this machine."""
    if why_not_local(scope, reads=True):
        return ""
    return sandbox.origin_of_sandbox(scope.get("scheme", "http"), scope["headers"])


LONGEST_BODY = 1024 * 1024  # bytes of a request to open a state


async def _read(receive: Receive) -> bytes:
    """Return a body; nothing of one that is too long or does not come to its end."""
    body = b""
    while True:
        message = await receive()
        body += bytes(message.get("body", b""))
        if message["type"] != "http.request" or len(body) > LONGEST_BODY:
            return b""
        if not message.get("more_body"):
            return body


async def _send_file(scope: Scope, send: Send, content: bytes, kind: bytes, tag: bytes) -> None:
    policy = b"%b; frame-src %b" % (_POLICY, _other_origin(scope).encode() or b"'none'")
    headers = ((b"cache-control", b"no-cache"), (b"content-security-policy", policy), *_HEADERS)
    await send_content(scope, send, kind, content, *headers, tag=tag)


def _load_files() -> dict[str, tuple[bytes, bytes, bytes]]:
    found = {}
    for file in files(__package__).joinpath("page_files").iterdir():
        kind = _TYPES.get(file.name.rpartition(".")[2])
        if kind is not None and file.name != sandbox.FILE:
            content = file.read_bytes()
            name = "" if file.name == "page.html" else file.name
            found[name] = (content, kind, b'"%b"' % sha256(content).hexdigest()[:32].encode())
    return found
