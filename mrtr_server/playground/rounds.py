"""What the page shows of rounds besides replies: which process ran them, which steps ran, and for whom."""

import json
import os
import socket
from collections import OrderedDict
from functools import partial
from secrets import token_hex
from typing import Any

from pydantic_core import to_json
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ..flow.inspection import describe_journal
from ..methods.middleware import Came, Middleware, watch
from ..protocol.callers import RecordedUser
from ..protocol.messages import JSON, Call, Outlet
from ..protocol.trace import HEARD, Event
from ..tasks.task_run import TaskRun
from ..transport.connection import respond
from .local import TOKEN, why_not_page

MARK = b"mrtr-page"
"""The header of a request that wants to know of its round: `who` answered, which anybody may, or what was `inside`."""

WHO = b"who"

USER = b"mrtr-page-user"
"""The header that names the user on whose behalf a request is, on a server that authenticates nobody."""

REPORT = b"mrtr-round"
"""The header of a reply that has the report; in a stream, a comment at its end."""

LONGEST_USER = 64
"""How long the name of a user may be, in characters."""

LONGEST_REPORT = 4096
"""How long a report may be in a header, in bytes."""

LONGEST_NAME = 80
"""How much of a step's name is reported, in characters."""

MOST_TASKS = 64
"""How many tasks are remembered: the last ones."""

MOST_ROUNDS = 20
"""How many rounds of a task are remembered: the last ones."""

_SHOWN: tuple[Event, ...] = ("ran", "replayed")


class RoundReports:
    """Serves the endpoint, and tells the page of the rounds that it has asked for.

    It stands directly in front of the endpoint, behind everything that authenticates.

    `token`: of the page, where with it the page on this machine gets the steps, and may send another user along.
    Otherwise, as where this is empty, it gets only which of several replicas answered, by a name that says nothing of
    the machine.
    """

    def __init__(self, endpoint: ASGIApp, token: str) -> None:
        self._endpoint = endpoint
        self._token = token
        self._replica = f"replica {token_hex(3)}"
        self._process = f"process {os.getpid()} on {socket.gethostname()}"

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
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
    """Note what happens in a round; see `HEARD`."""
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
        """What watches rounds of tasks."""
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
        """Return what a task did in this process: its `rounds`, and what its journal `held` after the last of them."""
        return self._seen.get(task, {"error": "No round of it has run in this process."})
