"""What a client knows, and how its requests come about, in each era."""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack
from types import MappingProxyType
from typing import Any, Generic
from warnings import warn

from typing_extensions import TypeVar

from .._version import __version__
from ..auth.fixed_tokens import Acting, TokenUser
from ..errors import SetupError
from ..in_process import Lifespan
from ..protocol.apps import MIME_TYPE, UI
from ..protocol.ask_kinds import ASKABLE
from ..protocol.handshake_versions import BY_NAME
from ..protocol.header_params import HeaderParameter, header_parameters
from ..protocol.messages import JSON, TASK_RESULT, TASKS, LogLevel
from ..protocol.served_dialects import DIALECTS, UNVERSIONED
from ..server import MRTRServer
from ..wire import (
    ACCEPTED,
    HANDSHAKES,
    MODERN,
    About,
    handshake_params,
    resume_headers,
    session_headers,
    write_message,
    write_modern,
    write_of_session,
    write_request,
)
from .answers import Answerable, Unexpected
from .replies import Reply, Request
from .transports import InProcess, Server, Transport, User, transports, within

__tracebackhide__ = True  # pytest then shows the test's line instead

EVERYTHING: JSON = {name: dict(parts) for name, parts in ASKABLE.items()}
"""The capabilities of a client that can do whatever it is asked."""

_INFO = {"name": "mrtr_server.testing", "version": __version__}


ERAS = (MODERN, *HANDSHAKES, *UNVERSIONED.intersection(DIALECTS))  # those that the kit speaks


def capabilities_of(era: str) -> JSON:
    """Return the capabilities of a client that can do whatever clients of its version can be asked."""
    version = BY_NAME.get(era)
    if version is None or version.enriches:
        return EVERYTHING
    return {name: {} for name in EVERYTHING if version.structures or name != "elicitation"}


_GIVEN_LEVEL = "info"

Post = Callable[[bytes], Awaitable[Reply]]  # on behalf of the client's user, with the headers of the session so far


class Handshake:
    def __init__(self, era: str, about: About) -> None:
        self._era = era
        self._about = about
        self._one_at_a_time = asyncio.Lock()
        self.reply: Reply | None = None
        self.headers: dict[str, str] = {}

    async def begin(self, post: Post, number: Callable[[], int]) -> Reply:
        async with self._one_at_a_time:
            if self.reply is None:
                self.reply = await self._begin(post, number)
        return self.reply

    async def _begin(self, post: Post, number: Callable[[], int]) -> Reply:
        era, about = self._era, self._about
        reply = await post(write_request(number(), "initialize", handshake_params(era, about)))
        self.headers |= session_headers(era, None)
        if reply.status != 200:  # the next request is refused for the same reason, and the test sees that
            return reply
        if "result" not in reply.message:
            raise Unexpected(f"The server begins no session of {era}. {reply}")
        if (agreed := reply.result.get("protocolVersion")) != era:
            raise Unexpected(f"The server does not speak {era}: it agrees to {agreed}")
        self.headers |= session_headers(era, reply.headers.get("mcp-session-id"))
        initialized = await post(write_message(method="notifications/initialized"))
        if initialized.status != 202:
            raise Unexpected(f"The server does not take notifications/initialized. {initialized}")
        level = about.log_level or "emergency"  # there is no way to ask for none
        if level != _GIVEN_LEVEL and "logging" in reply.result.get("capabilities", {}):
            await post(write_request(number(), "logging/setLevel", {"level": level}))
        return reply


DRAWS_APPS: Mapping[str, Any] = {UI: {"mimeTypes": [MIME_TYPE]}}
"""What a client declares of its extensions that draws apps."""

One = TypeVar("One", default=Reply)

Many = TypeVar("Many", default=list[Reply])

NONE: Mapping[str, Any] = MappingProxyType({})

_LISTS = ("toolsListChanged", "promptsListChanged", "resourcesListChanged")


class Session(ABC, Generic[One, Many]):
    """The state of a client; `Client` documents its parameters."""

    def __init__(
        self,
        *servers: Server,
        token: str | None = None,
        user: User | None = None,
        scopes: Iterable[str] = ("authenticated",),
        headers: Mapping[str, str] = NONE,
        answers: Mapping[str, Answerable] = NONE,
        capabilities: Mapping[str, Any] | None = None,
        tasks: bool = False,
        era: str = MODERN,
        dialect: str | None = None,
        ui: bool = False,
        log_level: LogLevel | None = "debug",
        stream: bool = False,
        path: str | None = None,
        timeout: float | None = 30.0,
    ) -> None:
        if dialect is not None:
            warn("dialect= is called era= now", DeprecationWarning, stacklevel=2)
            era = dialect
        if era not in ERAS:
            raise Unexpected(f"era={era!r}: choose from {', '.join(ERAS)}")
        if tasks and era not in (MODERN, HANDSHAKES[0]):
            raise Unexpected(f"tasks=True is for era={MODERN!r} and era={HANDSHAKES[0]!r}")
        if capabilities is None:
            capabilities = capabilities_of(era)
        extensions = {**({TASKS: {}} if tasks and era == MODERN else {}), **(DRAWS_APPS if ui else {})}
        if extensions:
            capabilities = {**capabilities, "extensions": {**capabilities.get("extensions", {}), **extensions}}
        self.token = token
        self.headers = dict(headers)
        self.answers = answers
        self.path = path
        self.timeout = timeout
        if user is not None and token is not None:
            raise Unexpected("Pass user= or token=, not both")
        if isinstance(scopes, str) or (user is None and tuple(scopes) != ("authenticated",)):
            raise Unexpected("scopes= is a list of what the user may do; pass user=, too")
        named = TokenUser(user) if isinstance(user, str) else user
        self._acting = None if named is None else (Acting(list(scopes)), named)
        self.transports = self.ways(servers)
        self.era = era
        self.tasks = tasks
        self.stream = stream
        self._with_tasks: set[str] | None = None
        self._about = About(_INFO, capabilities, log_level)
        self._handshake = Handshake(era, self._about) if era in HANDSHAKES else None
        self._requests = 0
        self._lives: list[Lifespan] = []

    @abstractmethod
    def run_one(self, work: Coroutine[Any, Any, Reply]) -> One:
        """Return a reply, or a coroutine of one.

        Args:
            work: what awaits the reply.

        Returns:
            The reply for `Client`, the coroutine for `AsyncClient`.
        """

    @abstractmethod
    def run_all(self, work: Coroutine[Any, Any, list[Reply]]) -> Many:
        """Return several replies, or a coroutine of them.

        Args:
            work: what awaits the replies.

        Returns:
            The replies for `Client`, the coroutine for `AsyncClient`.
        """

    def ways(self, servers: Iterable[Server]) -> list[Transport]:
        """Return the ways to servers on behalf of the client's user.

        Args:
            servers: ASGI applications, or URLs of endpoints.

        Returns:
            A transport for each.

        Raises:
            Unexpected: there is none, or one can't be reached so.
        """
        return transports(servers, self.path, self.timeout, self._acting)

    async def prepare(
        self, method: str, params: dict[str, Any], server: Transport, token: str | None, headers: Mapping[str, str]
    ) -> Request:
        """Return a request, ready to be sent.

        Args:
            method: the protocol's method.
            params: its parameters, without `_meta`.
            server: where it goes.
            token: the bearer token of the user.
            headers: further HTTP headers.

        Returns:
            The request.
        """
        if self._handshake is not None:
            await self._begin(server)
        if self.stream and method in ("tools/call", TASK_RESULT):
            params = {**params, "stream": {}}
        mirrored = await self._mirrored(server, params) if method == "tools/call" else ()
        number = self._next_number()
        if self.era == MODERN:
            given, body = write_modern(self._about, number, method, params, mirrored)
        else:
            given, body = {**ACCEPTED, **self._session_headers}, write_of_session(number, method, params)
        return _request(body, given, token, headers)

    def prepare_message(self, body: bytes, token: str | None, headers: Mapping[str, str]) -> Request:
        """Return the request that posts a message of the client's session.

        Args:
            body: the message.
            token: the bearer token of the user.
            headers: further HTTP headers.

        Returns:
            The request.
        """
        return _request(body, {**ACCEPTED, **self._session_headers}, token, headers)

    def prepare_resume(self, event: str, token: str | None, headers: Mapping[str, str]) -> Request:
        """Return the request by which a client comes back to a stream (Transports, Resumability and Redelivery).

        Args:
            event: the id of the last event that it has.
            token: the bearer token of the user.
            headers: further HTTP headers.

        Returns:
            The request.
        """
        given = {**resume_headers(event), **self._session_headers}
        return _request(b"", given, token, headers, "GET")

    async def prepare_listen(self, server: Transport, resources: Sequence[str], tasks: Sequence[str]) -> Request:
        """Return the request for the stream of notifications: a `GET`, or `subscriptions/listen`.

        Args:
            server: where it goes.
            resources: the URIs whose updates are wanted; a session subscribes to them.
            tasks: the ids of the tasks whose status is wanted; a session hears of all.

        Returns:
            The request.

        Raises:
            Unexpected: the session can't subscribe to a resource.
        """
        if self._handshake is None:
            wanted: dict[str, Any] = dict.fromkeys(_LISTS, True)
            wanted |= {"resourceSubscriptions": list(resources)} if resources else {}
            wanted |= {"taskIds": list(tasks)} if tasks else {}
            return await self.prepare(
                "subscriptions/listen", {"notifications": wanted}, server, self.token, self.headers
            )
        await self._begin(server)
        for uri in resources:
            reply = await self._send("resources/subscribe", {"uri": uri}, server)
            if "error" in reply.message:
                raise Unexpected(f"The session can't subscribe to {uri}. {reply}")
        given = {"Accept": "text/event-stream", **self._session_headers}
        return _request(b"", given, self.token, self.headers, "GET")

    async def prepare_events(self, server: Transport, params: Mapping[str, Any]) -> Request:
        """Return the request for a stream of events.

        Args:
            server: where it goes.
            params: its parameters, without `_meta`.

        Returns:
            The request.
        """
        return await self.prepare("events/stream", dict(params), server, self.token, self.headers)

    async def takes_task(self, server: Transport, tool: str) -> bool:
        """Return whether a tool of the handshake era may be called as a task, by the list of tools.

        Args:
            server: has the tool.
            tool: its name.

        Returns:
            Whether its row says so; False of a tool that is not in the list.
        """
        if self._with_tasks is None:
            tools = await self.list_tools(server)
            self._with_tasks = {
                each["name"]
                for each in tools
                if each.get("execution", {}).get("taskSupport", "forbidden") != "forbidden"
            }
        return tool in self._with_tasks

    async def list_tools(self, server: Transport) -> list[dict[str, Any]]:
        """Return the tools that the client is shown.

        Args:
            server: has them.

        Returns:
            The entries of the list, of all its pages.
        """
        tools: list[dict[str, Any]] = []
        page: dict[str, Any] = {"nextCursor": None}
        while "nextCursor" in page:
            turn = {"cursor": page["nextCursor"]} if page["nextCursor"] is not None else {}
            page = (await self._send("tools/list", turn, server)).message.get("result", {})
            tools += page.get("tools", ())
        return tools

    async def _begin(self, server: Transport) -> Reply:
        if self._handshake is None:
            raise Unexpected(f"A client of era={self.era!r} begins without a handshake")

        async def post(body: bytes) -> Reply:
            request = self.prepare_message(body, self.token, self.headers)
            return Reply(request, [await server.send(request)])

        return await self._handshake.begin(post, self._next_number)

    @property
    def _session_headers(self) -> Mapping[str, str]:
        return self._handshake.headers if self._handshake is not None else NONE

    def _next_number(self) -> int:
        self._requests += 1
        return self._requests

    async def _send(self, method: str, params: Mapping[str, Any], server: Transport) -> Reply:
        request = await self.prepare(method, dict(params), server, self.token, self.headers)
        return Reply(request, [await server.send(request)])

    async def _mirrored(self, server: Transport, params: Mapping[str, Any]) -> tuple[HeaderParameter, ...]:
        """Return the arguments that headers mirror. A conforming client knows them from the list of tools."""
        if self.era != MODERN or not params["arguments"]:
            return ()
        if isinstance(server, InProcess) and isinstance(server.app, MRTRServer):
            tool = server.app.registry.find("tools", params["name"])
            return () if tool is None else tool.headers
        if server.mirrored is None:
            server.mirrored = {}
            server.mirrored |= {tool["name"]: _mirrored_of(tool) for tool in await self.list_tools(server)}
        return server.mirrored.get(params["name"], ())

    async def _start(self) -> None:
        for life in [Lifespan(way.app, Unexpected) for way in self.transports if isinstance(way, InProcess)]:
            try:
                await within(self.timeout, life.start())
            except BaseException:
                await self._stop()
                raise
            self._lives.append(life)

    async def _stop(self) -> None:
        async with AsyncExitStack() as stack:
            while self._lives:
                stack.push_async_callback(within, self.timeout, self._lives.pop(0).stop())


def _request(
    body: bytes, given: Mapping[str, str], token: str | None, headers: Mapping[str, str], method: str = "POST"
) -> Request:
    authorized = {"Authorization": f"Bearer {token}"} if token is not None else {}
    named = {**given, **authorized, **headers}.items()
    return Request({name.lower(): value for name, value in named}, body, method)  # each once, however it is spelled


def _mirrored_of(tool: Mapping[str, Any]) -> tuple[HeaderParameter, ...]:
    try:
        return header_parameters(tool["name"], tool.get("inputSchema", {}))
    except SetupError:  # a client would leave such a tool out; a test may want to see what it does
        return ()
