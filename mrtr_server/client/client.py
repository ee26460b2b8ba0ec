"""The callbacks of a program: what they can answer is what the client declares; and what they get of a running call."""

import asyncio
import math
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from inspect import isawaitable
from time import monotonic
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Self, TypeVar

from .._version import __version__
from ..addresses import root_url
from ..concurrency.threads import ending_in
from ..errors import BadReply, CallFailed, ClientError, NoReply, NotAnswered, RequestRefused, SetupError, TaskCancelled
from ..protocol.ask_kinds import KINDS, Choice, Filled, Form, Link, Listed, Sampling, Written, read_request
from ..protocol.callers import nested
from ..protocol.header_params import HeaderParameter, header_parameters
from ..protocol.messages import EVENTS, JSON, TASKS
from ..wire import HEADER_MISMATCH, MODERN, UNKNOWN_METHOD, About, Progress, Rounds, number_of
from .asgi import in_process
from .connection import HTTPConnection
from .events import Delivery, EventFeed, Following, OnGap
from .exchange import DEFAULT, Allowance, Bounds, Connection, OnMessage, refusal_of
from .oauth import OAuth
from .results import (
    M,
    OfferedEvent,
    Prompt,
    PromptReply,
    Resource,
    ResourceReply,
    TaskState,
    Template,
    Tool,
    ToolReply,
    read,
)
from .session import Noted, Session
from .stdio import Command, StdioConnection

if TYPE_CHECKING:
    from httpx import AsyncClient
    from starlette.types import ASGIApp

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Piece:
    """A piece of the result of a tool, as it comes.

    Args:
        index: which piece of the result it is, from 0.
        block: which block of the result's content it is, or is added to: texts of one block are one text.
        content: the piece, a block of content as plain JSON.
    """

    index: int
    block: int
    content: JSON

    @property
    def text(self) -> str:
        """The text of the piece; empty if it is something else."""
        return str(self.content.get("text", "")) if self.content.get("type") == "text" else ""


# Callbacks: what they can answer is what the client declares


OnElicit = Callable[[Form], Filled | Awaitable[Filled]]
OnLink = Callable[[Link], Choice | Awaitable[Choice]]
OnSample = Callable[[Sampling], Written | Awaitable[Written]]
OnRoots = Callable[[], Listed | Awaitable[Listed]]
OnPiece = Callable[[Piece], Awaitable[None] | None]
OnProgress = Callable[[Progress], Awaitable[None] | None]
OnTask = Callable[[TaskState], Awaitable[None] | None]

ByKind = Mapping[str, Callable[[Any], Any] | None]  # by the name of the kind of ask; None where nothing answers it


def capabilities_of(callbacks: ByKind, *, tasks: bool) -> JSON:
    """Return what the client declares: each kind of ask that has a callback, events, and tasks if it follows them."""
    declared = nested(KINDS[name].capabilities[0] for name, callback in callbacks.items() if callback is not None)
    return {**declared, "extensions": {EVENTS: {}, **({TASKS: {}} if tasks else {})}}


async def answers_to(callbacks: ByKind, requests: Mapping[str, object]) -> JSON:
    """Return the answers to the questions of one round, asked one after the other.

    Raises `BadReply` if something is no question, and `NotAnswered` with all questions for which a callback raised it.
    """
    questions = {key: read_request(key, request) for key, request in requests.items()}
    answers: JSON = {}
    open_: JSON = {}
    for key, (kind, question) in questions.items():
        callback = callbacks.get(kind.name)
        if callback is None:
            raise BadReply(f"The server asks {key!r}, which this client did not declare that it answers")
        try:
            answers[key] = kind.write(await awaited(callback(question)))
        except Exception as error:
            if not isinstance(ending_in(error, key), NotAnswered):
                raise
            open_[key] = requests[key]
    if open_:
        raise NotAnswered(open_)
    return answers


async def awaited(value: T | Awaitable[T]) -> T:
    """Return what a callback returned, awaited if it is a coroutine."""
    return await value if isawaitable(value) else value


NONE: Mapping[str, Any] = MappingProxyType({})

_CANCEL_SECONDS = 5.0

_PORT = 8000  # in the address of an application in this process: some take no host without one


class Client:
    """Calls the tools, prompts and resources of one server, and answers what they ask with callbacks.

    It declares what there is a callback for, so it is asked nothing else. Callbacks are functions, or coroutine
    functions, and run one after the other. Use it in an `async with` block; calls may run at the same time. A call
    that is cancelled (`asyncio`) is cancelled at the server, too, with its task.

    Args:
        server: the URL of its endpoint, such as `"https://shop.example/mcp"`; an ASGI application, which then runs in
            this process for as long as the client does; or a `Command`, a server on standard input and output.
        token: the bearer token of the user. Redirects to another origin are refused, so it goes nowhere else.
        auth: logs the user in when the server asks for it; give this or `token`.
        on_elicit: answers a form: with its fields by name, or `"decline"` or `"cancel"`.
        on_link: answers a page to open: `"accept"` once the person agreed to open it, or `"decline"` or `"cancel"`.
        on_sample: answers a sampling: with the text that the model wrote, or the whole result.
        on_roots: returns the URIs of the directories and files that the program works in.
        on_progress: is called with the progress of a call.
        on_piece: gets each piece of the result of a tool that yields it in pieces, once, as it comes. The result that
            the call returns has all of them.
        on_task: is called with the status of a task, each time that the client asks for it.
        tasks: whether calls may become tasks, which are then followed to their end.
        headers: what each request has besides.
        name: the program, as the server sees it.
        era: the version of the protocol. Default: the newest, or, if the server does not know that, one that begins
            with a handshake.
        path: the path of the endpoint in an application. Default: that of an `MRTRServer`, and `/mcp` of any other.
        rounds_count_once: whether the server runs a later round once, however often it is sent. Such a round is sent
            again if its reply was lost. `mrtr_server` does so after a confirmation, and with `single_use=True`.
        bounds: how much it takes, and how long it waits.
        http: an `httpx.AsyncClient` of the program, with its proxies and certificates; it is not closed.
        on_message: is shown each message, `"sent"` or `"received"`. They hold states and answers: log neither.

    Raises:
        SetupError: there is no such version, the URL can't be one, an option is not for this kind of server, or httpx
            is not installed.
    """

    def __init__(
        self,
        server: "str | ASGIApp | Command",
        *,
        token: str | None = None,
        auth: OAuth | None = None,
        on_elicit: OnElicit | None = None,
        on_link: OnLink | None = None,
        on_sample: OnSample | None = None,
        on_roots: OnRoots | None = None,
        on_progress: OnProgress | None = None,
        on_piece: OnPiece | None = None,
        on_task: OnTask | None = None,
        tasks: bool = True,
        headers: Mapping[str, str] = NONE,
        name: str = "mrtr_server.client",
        era: str | None = None,
        path: str | None = None,
        rounds_count_once: bool = False,
        bounds: Bounds = DEFAULT,
        http: "AsyncClient | None" = None,
        on_message: OnMessage | None = None,
    ) -> None:
        self._callbacks: ByKind = {
            "form": on_elicit,
            "url": on_link,
            "sample": on_sample,
            "roots": None if on_roots is None else lambda _: on_roots(),
        }
        self._on_progress = on_progress
        self._on_piece = on_piece
        self._on_task = on_task
        self._rounds_count_once = rounds_count_once
        self._bounds = bounds
        about = About({"name": name, "version": __version__}, capabilities_of(self._callbacks, tasks=tasks))
        authorized = {"Authorization": f"Bearer {token}"} if token is not None else {}
        if auth is not None and (token is not None or not isinstance(server, str)):
            raise SetupError("auth= is for a URL, and takes the place of token=")
        connection = _connection_to(server, path, {**authorized, **headers}, bounds, http, on_message, auth)
        self._session = Session(connection, about, bounds, partial(answers_to, self._callbacks), era)
        self._tools: dict[str, Tool] = {}
        self._following: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Self:
        await self._session.open()
        return self

    async def __aexit__(self, *raised: object) -> None:
        for following in (left := tuple(self._following)):
            following.cancel()
        if left:
            await asyncio.wait(left)
        await self._session.close()

    @property
    def era(self) -> str | None:
        """The version of the protocol that is spoken; None before that is known, by the first request."""
        return self._session.era

    async def call(self, tool: str, arguments: Mapping[str, Any] = NONE, /, **named: Any) -> ToolReply:
        """Call a tool, and answer what it asks until it is done.

        Args:
            tool: its name.
            arguments: its arguments.
            named: arguments, too.

        Returns:
            What the tool returned.

        Raises:
            CallFailed: the tool says that it failed.
            RequestRefused: the server refused the call, or its task failed.
            TaskCancelled: the task was cancelled.
            NotAnswered: a callback raised it.
            NoReply: the server can't be reached or does not reply; what it has done is not known.
            BadReply: the reply does not fit the protocol, or is over a bound.
        """
        result = await self._run("tools/call", tool, {**arguments, **named})
        return _checked(result)

    async def get_prompt(self, prompt: str, arguments: Mapping[str, str] = NONE, /, **named: str) -> PromptReply:
        """Get a prompt, and answer what it asks until it is done.

        Args:
            prompt: its name.
            arguments: its arguments.
            named: arguments, too.

        Returns:
            The prompt.

        Raises:
            ClientError: as for `call`.
        """
        return read(PromptReply, await self._run("prompts/get", prompt, {**arguments, **named}))

    async def read(self, uri: str, /) -> ResourceReply:
        """Read a resource, and answer what it asks until it is done.

        Args:
            uri: its URI.

        Returns:
            What it has.

        Raises:
            ClientError: as for `call`.
        """
        return read(ResourceReply, await self._run("resources/read", uri, {}))

    async def follow(self, task: str, /) -> ToolReply:
        """Follow a task to its end, and answer what it asks.

        Args:
            task: its id.

        Returns:
            What its tool returned.

        Raises:
            ClientError: as for `call`.
        """
        return _checked(await self._walk(Rounds("tools/call", "", NONE, task=task, most=self._bounds.questions)))

    async def cancel_task(self, task: str, /) -> None:
        """Cancel a task. One that has ended stays as it is.

        Args:
            task: its id.

        Raises:
            ClientError: as for `call`.
        """
        await self._request("tasks/cancel", {"taskId": task})

    async def list_tools(self) -> list[Tool]:
        """Return the tools of the server, of all pages.

        Raises:
            ClientError: as for `call`.
        """
        tools = await self._list("tools/list", "tools", Tool)
        self._tools = {each.name: each for each in tools}
        return tools

    async def list_prompts(self) -> list[Prompt]:
        """Return the prompts of the server, of all pages.

        Raises:
            ClientError: as for `call`.
        """
        return await self._list("prompts/list", "prompts", Prompt)

    async def list_resources(self) -> list[Resource]:
        """Return the resources of the server, of all pages.

        Raises:
            ClientError: as for `call`.
        """
        return await self._list("resources/list", "resources", Resource)

    async def list_templates(self) -> list[Template]:
        """Return the templates of resources of the server, of all pages.

        Raises:
            ClientError: as for `call`.
        """
        return await self._list("resources/templates/list", "resourceTemplates", Template)

    async def event_types(self) -> list[OfferedEvent]:
        """Return the types of events of the server, of all pages.

        Raises:
            RequestRefused: the server has no events, or speaks an older version, which has none.
            ClientError: as for `call`.
        """
        try:
            found = await self._list("events/list", "events", OfferedEvent)
        except RequestRefused:
            self._check_events()
            raise
        self._check_events()
        return found

    def _check_events(self) -> None:
        if self.era not in (None, MODERN):
            raise RequestRefused(f"Events need {MODERN}, and this server is spoken to in {self.era}", UNKNOWN_METHOD)

    def events(
        self,
        name: str,
        arguments: Mapping[str, Any] = NONE,
        /,
        *,
        cursor: str | None = None,
        delivery: Delivery | None = None,
        on_gap: OnGap | None = None,
    ) -> EventFeed:
        """Follow the events of a type: `async for event in client.events("incident.created", {"severity": "P1"})`.

        Each comes once. After a lost connection, and a stream in which nothing has come for
        `Bounds(silent_seconds=...)`, the client continues with its last cursor. It tries to do that until it is closed.

        Args:
            name: of the type.
            arguments: which of its events are wanted.
            cursor: where to begin: after the event with this cursor, or at the `cursor` of a feed. Default: now.
            delivery: `"push"` for a stream, `"poll"` to ask again and again. Default: a stream, if the server has it.
            on_gap: is called when some events may be missing, at that point between the others, since the server does
                not keep them any more. Without it, that is logged.

        Returns:
            The events, as they come. Nothing is sent before the first is waited for. Where that raises, the feed has
            ended: a `RequestRefused` if the server refuses them or has ended the subscription, a `NoReply` if it was
            not reached even once, a `BadReply` as for `call`.

        Raises:
            SetupError: there is no such delivery. Where the first event is waited for: there are webhooks alone.
        """
        wanted = {"name": name, "arguments": dict(arguments)}
        following = Following(
            self._session,
            self.event_types,
            self._bounds,
            self._following,
            wanted,
            cursor=cursor,
            delivery=delivery,
            on_gap=on_gap,
        )
        return EventFeed(following)

    # How it is done

    async def _list(self, method: str, field: str, kind: type[M]) -> list[M]:
        found: list[M] = []
        turn: JSON = {}
        allowance = Allowance(self._bounds.response_bytes)
        for _ in range(self._bounds.pages):
            page = await self._request(method, turn, allowance=allowance)
            rows = page.get(field)
            if not isinstance(rows, list):
                raise BadReply(f"The server sent a list without {field}")
            found += [read(kind, row) for row in rows]
            cursor = page.get("nextCursor")
            if cursor is None:
                return found
            turn = {"cursor": cursor}
        raise BadReply(f"The list has more than {self._bounds.pages} pages")

    async def _run(self, method: str, target: str, arguments: Mapping[str, Any]) -> JSON:
        return await self._walk(Rounds(method, target, arguments, most=self._bounds.questions))

    async def _walk(self, call: Rounds) -> JSON:
        """Send the rounds of a call, or follow its task, and answer what is asked; return what it came to."""
        bounds, sent, deadline = self._bounds, 0, math.inf
        noted = self._note_pieces() if self._on_piece is not None and call.method == "tools/call" else self._note
        result: JSON = {}
        try:
            while not call.is_over:
                if call.task is None and sent == bounds.rounds:
                    raise BadReply(f"The call has not ended after {bounds.rounds} rounds")
                if len(call.answered) > bounds.questions * bounds.rounds:
                    raise BadReply("The task asks without an end")
                if call.task is not None and deadline == math.inf:
                    deadline = monotonic() + bounds.task_seconds
                if call.pause:
                    if monotonic() > deadline:
                        seconds = f"{bounds.task_seconds:g} s"
                        raise NoReply(f"The task {call.task} has not ended within {seconds}; it continues")
                    await asyncio.sleep(call.pause)
                answers = await answers_to(self._callbacks, call.questions) if call.questions else {}
                method, params = call.next(answers)
                result = await self._send(method, params, noted)
                sent += 1
                if method != "tasks/update":
                    call.take(result)
                    await self._note_task(call, result)
        except asyncio.CancelledError:
            if call.task is not None:
                with suppress(ClientError, TimeoutError):
                    async with asyncio.timeout(_CANCEL_SECONDS):
                        await self.cancel_task(call.task)
            raise
        return result if call.task is None else _outcome_of(call.task, result)

    async def _note_task(self, call: Rounds, result: JSON) -> None:
        if call.task is not None and (task := read(TaskState, result)).status not in ("failed", "cancelled"):
            await self._tell(self._on_task, task)

    async def _send(self, method: str, params: JSON, noted: Noted) -> JSON:
        """Send a round, of a tool with the headers that it wants: which those are, the list of tools says."""
        if method != "tools/call":
            return await self._request(method, params, noted)
        if self._on_piece is not None:
            params = {**params, "stream": {}}
        try:
            return await self._request(method, params, noted)
        except RequestRefused as refusal:
            if refusal.code != HEADER_MISMATCH:
                raise
            before = self._mirrored(params["name"])
            await self.list_tools()
            if self._mirrored(params["name"]) == before:
                raise
        return await self._request(method, params, noted)  # nothing has run: the headers are looked at first

    async def _request(
        self, method: str, params: JSON, noted: Noted | None = None, allowance: Allowance | None = None
    ) -> JSON:
        noted = self._note if noted is None else noted
        if method != "tools/call":
            return await self._session.request(method, params, noted, repeatable=True, allowance=allowance)
        name = params["name"]
        tool = self._tools.get(name)
        # A round of a tool may have effects.
        repeatable = self._rounds_count_once and "requestState" in params
        return await self._session.request(
            method,
            params,
            noted,
            mirrored=self._mirrored(name),
            repeatable=repeatable or (tool is not None and tool.is_repeatable),
        )

    def _mirrored(self, name: str) -> tuple[HeaderParameter, ...]:
        tool = self._tools.get(name)
        if tool is None:
            return ()
        try:
            return header_parameters(tool.name, tool.input_schema)
        except SetupError as error:
            raise BadReply(f"The tool {tool.name!r} can't be called: {error}") from None

    async def _note(self, params: JSON) -> None:
        progress, message = number_of(params.get("progress")), params.get("message")
        if progress is not None:
            total = number_of(params.get("total"))
            await self._tell(self._on_progress, Progress(progress, total, None if message is None else str(message)))

    def _note_pieces(self) -> Noted:
        """Return what takes the notes of one call, with each piece of its result once."""
        came = 0

        async def note(params: JSON) -> None:
            nonlocal came
            index, block, content = params.get("index"), params.get("block"), params.get("content")
            if not (type(index) is int and type(block) is int and isinstance(content, dict)):
                await self._note(params)
            elif index >= came:
                came = index + 1
                await self._tell(self._on_piece, Piece(index, block, content))

        return note

    async def _tell(self, callback: Any, value: Any) -> None:
        if callback is not None:
            await awaited(callback(value))


def _connection_to(
    server: "str | ASGIApp | Command",
    path: str | None,
    headers: Mapping[str, str],
    bounds: Bounds,
    http: "AsyncClient | None",
    on_message: OnMessage | None,
    auth: OAuth | None,
) -> Connection:
    if isinstance(server, Command):
        if headers or http is not None or path is not None:
            raise SetupError("token=, headers=, http= and path= are for servers over HTTP, and not for a Command")
        return StdioConnection(server, bounds, on_message)
    if isinstance(server, str):
        if path is not None:
            raise SetupError("path= is for an application: a URL has its own")
        return HTTPConnection(server, headers, bounds, on_message, http, auth)
    given: object = server
    if not callable(given) or http is not None:
        raise SetupError("Pass a URL, an ASGI application or a Command; http= is for a URL")
    found = path or getattr(server, "path", None) or "/mcp"
    return HTTPConnection(root_url("127.0.0.1", _PORT) + found, headers, bounds, on_message, in_process(server))


def _checked(result: JSON) -> ToolReply:
    reply = read(ToolReply, result)
    if reply.is_error:
        raise CallFailed(reply.text, result)
    return reply


def _outcome_of(task: str, result: JSON) -> JSON:
    match result.get("status"), result.get("result"), result.get("error"):
        case "completed", dict() as outcome, _:
            return dict(outcome)
        case "failed", _, dict() as error:
            raise refusal_of(error)
        case "cancelled", _, _:
            raise TaskCancelled(task)
    raise BadReply("The task has ended, and the server does not say with what")
