"""The clients of the kit: one that is called, and one that is awaited."""

import asyncio
import threading
from collections.abc import Coroutine, Mapping, Sequence
from typing import Any, Self, TypeVar
from weakref import finalize

from typing_extensions import override

from .answers import Answers, Unexpected
from .apps import App, PageView, read_page
from .flow import Flow
from .replies import Reply
from .session import NONE, Many, One, Session
from .streams import Followed, Notifications
from .transports import Server

__tracebackhide__ = True  # pytest then shows the test's line instead

T = TypeVar("T")


class _Loop:
    """An event loop that is closed when nobody has it any more."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        finalize(self, _close, self.loop)


class _Here(threading.local):
    def __init__(self) -> None:
        self.its = _Loop()


def _close(loop: asyncio.AbstractEventLoop) -> None:
    tasks = asyncio.all_tasks(loop)
    for task in tasks:
        task.cancel()
    if tasks:
        loop.run_until_complete(asyncio.wait(tasks, timeout=1))
    loop.run_until_complete(loop.shutdown_asyncgens())
    loop.close()


_here = _Here()


def run(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine on this thread's own event loop, which is the same each time."""
    if asyncio._get_running_loop() is not None:  # the other one raises where there is none, and all would chain to that
        work.close()
        raise Unexpected("An event loop is already running here: use AsyncClient, and await its methods")
    try:
        return _here.its.loop.run_until_complete(work)
    except Unexpected as failure:
        raise failure.with_traceback(None) from None  # a test's report needs nothing of the loop


class Calls(Session[One, Many]):
    """What both clients do. They differ in what a call returns: a reply, or a coroutine of one."""

    # Calls that run to their end

    def call(self, tool: str, arguments: Mapping[str, Any] = NONE, /, *, answers: Answers = NONE, **named: Any) -> One:
        """Call a tool, and answer what it asks until it is done.

        Args:
            tool: its name.
            arguments: its arguments.
            answers: by key; see `Flow.answer`. A list has the answers to questions that come under one key in turn.
            named: arguments, too.

        Returns:
            The last reply, with the steps, log and notes of all rounds.

        Raises:
            Unexpected: as for `Flow.finish`.
        """
        return self.flow(tool, {**arguments, **named}).finish(answers)

    def get_prompt(
        self, prompt: str, arguments: Mapping[str, str] = NONE, /, *, answers: Answers = NONE, **named: str
    ) -> One:
        """Get a prompt, and answer what it asks until it is done.

        Args:
            prompt: its name.
            arguments: its arguments.
            answers: by key; see `call`.
            named: arguments, too.

        Returns:
            The last reply, with the steps, log and notes of all rounds.

        Raises:
            Unexpected: as for `Flow.finish`.
        """
        return self.prompt_flow(prompt, {**arguments, **named}).finish(answers)

    def read(self, uri: str, /, *, answers: Answers = NONE) -> One:
        """Read a resource, and answer what it asks until it is done.

        Args:
            uri: its URI.
            answers: by key; see `call`.

        Returns:
            The last reply, with the steps, log and notes of all rounds.

        Raises:
            Unexpected: as for `Flow.finish`.
        """
        return self.resource_flow(uri).finish(answers)

    def begin(self) -> One:
        """Begin the session of a client whose era has one. Its first request does that by itself.

        Returns:
            The reply to `initialize`.

        Raises:
            Unexpected: the era has no sessions, or the server does not speak it.
        """
        return self.run_one(self._begin(self.transports[0]))

    def request(self, method: str, params: Mapping[str, Any] = NONE) -> One:
        """Send any other request, such as `tools/list`.

        Args:
            method: the protocol's method.
            params: its parameters, without `_meta`.

        Returns:
            The reply; `result` has what came back.

        Raises:
            Unexpected: the server can't be reached, or did not reply in time.
        """
        return self.run_one(self._send(method, params, self.transports[0]))

    def listen(
        self, server: Server | None = None, *, resources: Sequence[str] = (), tasks: Sequence[str] = ()
    ) -> Notifications[One, Many]:
        """Make the stream on which the client is notified: of changes of the lists, and of what is named here.

        Nothing is sent yet. It is the response of `subscriptions/listen`; in the handshake era that of a `GET`, before
        which the session subscribes to the resources.

        Args:
            server: where it listens; the client's first server if left out.
            resources: the URIs of the resources whose updates are to be reported.
            tasks: the ids of the tasks whose status is to be reported. In the handshake era, that of all is.

        Returns:
            The stream; `open` opens it.
        """
        at = self.transports if server is None else self.ways((server,))
        return Notifications(self, at[0], resources, tasks)

    def follow(
        self,
        name: str,
        arguments: Mapping[str, Any] = NONE,
        /,
        *,
        cursor: str | None = None,
        server: Server | None = None,
    ) -> Notifications[One, Many]:
        """Make the stream on which the client gets events of a type. Nothing is sent yet.

        Args:
            name: of the type.
            arguments: which of its events are wanted.
            cursor: where they begin; None for now.
            server: where it follows; the client's first server if left out.

        Returns:
            The stream; `open` opens it, and `next` returns its next notification.
        """
        at = self.transports if server is None else self.ways((server,))
        return Followed(self, at[0], {"name": name, "arguments": dict(arguments), "cursor": cursor})

    def as_app(self, tool: str) -> App[One, Many]:
        """Return the page of a tool, as it calls tools through its host.

        Args:
            tool: the tool whose page it is.

        Returns:
            The page; its `call` is refused as a host refuses it.
        """
        return App(self, tool)

    # Flows to walk

    def flow(self, tool: str, arguments: Mapping[str, Any] = NONE, /, **named: Any) -> Flow[One, Many]:
        """Make the flow of a tool call, to walk round by round. Nothing is sent yet.

        Args:
            tool: its name.
            arguments: its arguments.
            named: arguments, too.

        Returns:
            The flow; `start` sends the first round.
        """
        return Flow(self, "tools/call", tool, {**arguments, **named})

    def prompt_flow(self, prompt: str, arguments: Mapping[str, str] = NONE, /, **named: str) -> Flow[One, Many]:
        """Make the flow of a prompt, to walk round by round. Nothing is sent yet.

        Args:
            prompt: its name.
            arguments: its arguments.
            named: arguments, too.

        Returns:
            The flow; `start` sends the first round.
        """
        return Flow(self, "prompts/get", prompt, {**arguments, **named})

    def resource_flow(self, uri: str, /) -> Flow[One, Many]:
        """Make the flow of a resource, to walk round by round. Nothing is sent yet.

        Args:
            uri: its URI.

        Returns:
            The flow; `start` sends the first round.
        """
        return Flow(self, "resources/read", uri, {})


class Client(Calls[Reply, list[Reply]]):
    """A client for tests that are plain functions: it returns replies.

    As a context manager it starts its applications, with their `lifespan=`, and shuts them down. Otherwise nothing
    needs to be closed: `lifespan=` is entered before the first call.

    All clients of a thread share one event loop, which runs while one of them waits for a reply. So whatever an
    application has bound to its loop stays valid from test to test. In an `async def` test a loop is running already:
    use `AsyncClient` there.

    Args:
        servers: ASGI applications, or URLs of endpoints; the rounds of a flow go to each in turn.
        token: the bearer token of the user.
        user: the user, in place of a token: a name, or a user of Starlette. An application in this process takes them
            for authenticated.
        scopes: what that user may do.
        headers: HTTP headers of every request.
        answers: answers by key to asks that the script of a call does not answer; each may be used any number of times.
        capabilities: what the client declares; every capability of its era if left out.
        tasks: whether it accepts tasks, too. A call that becomes a task is followed to its end. It is for the newest
            era, and the newest of those with a handshake.
        era: the version of the protocol that it speaks, by its date; the newest if left out. A client of one of the
            handshake era answers while its call is open. A name in `MRTRServer(dialects=...)` counts, too.
        dialect: what `era` was called in 0.1.
        ui: whether it draws apps (MCP Apps), as a host does: see `page` and `as_app`.
        log_level: the least severe log messages that the client wants; None for none, which in the handshake era means
            the most severe alone.
        stream: whether it wants a result in pieces, as they come; see `Reply.pieces`.
        path: where the endpoint of an application is, such as the route of a mounted server; a server's own, or `/mcp`,
            if left out.
        timeout: how long a reply may take, in seconds; None for any time.

    Raises:
        Unexpected: there is no such era, it has no tasks, or no server was passed.
    """

    def page(self, tool: str) -> PageView:
        """Read the page of a tool, as a host does that draws its result.

        Args:
            tool: the tool's name.

        Returns:
            The page: its HTML, what it may load, and what it calls.

        Raises:
            Unexpected: the tool has no page, or what is read is none.
        """
        return run(read_page(self, tool))

    def __enter__(self) -> Self:
        run(self._start())
        return self

    def __exit__(self, *raised: object) -> None:
        run(self._stop())

    @override
    def run_one(self, work: Coroutine[Any, Any, Reply]) -> Reply:
        return run(work)

    @override
    def run_all(self, work: Coroutine[Any, Any, list[Reply]]) -> list[Reply]:
        return run(work)


class AsyncClient(Calls[Coroutine[Any, Any, Reply], Coroutine[Any, Any, list[Reply]]]):
    """A client for tests that are `async def`: what `Client` returns must be awaited here.

    As an asynchronous context manager it starts its applications, with their `lifespan=`, and shuts them down.

    Args:
        servers: ASGI applications, or URLs of endpoints; the rounds of a flow go to each in turn.
        token: the bearer token of the user.
        user: the user, in place of a token: a name, or a user of Starlette. An application in this process takes them
            for authenticated.
        scopes: what that user may do.
        headers: HTTP headers of every request.
        answers: answers by key to asks that the script of a call does not answer; each may be used any number of times.
        capabilities: what the client declares; every capability of its era if left out.
        tasks: whether it accepts tasks, too. A call that becomes a task is followed to its end. It is for the newest
            era, and the newest of those with a handshake.
        era: the version of the protocol that it speaks, by its date; the newest if left out. A client of one of the
            handshake era answers while its call is open. A name in `MRTRServer(dialects=...)` counts, too.
        dialect: what `era` was called in 0.1.
        ui: whether it draws apps (MCP Apps), as a host does: see `page` and `as_app`.
        log_level: the least severe log messages that the client wants; None for none, which in the handshake era means
            the most severe alone.
        stream: whether it wants a result in pieces, as they come; see `Reply.pieces`.
        path: where the endpoint of an application is, such as the route of a mounted server; a server's own, or `/mcp`,
            if left out.
        timeout: how long a reply may take, in seconds; None for any time.

    Raises:
        Unexpected: there is no such era, it has no tasks, or no server was passed.
    """

    async def page(self, tool: str) -> PageView:
        """Read the page of a tool, as a host does that draws its result.

        Args:
            tool: the tool's name.

        Returns:
            The page: its HTML, what it may load, and what it calls.

        Raises:
            Unexpected: the tool has no page, or what is read is none.
        """
        return await read_page(self, tool)

    async def __aenter__(self) -> Self:
        await self._start()
        return self

    async def __aexit__(self, *raised: object) -> None:
        await self._stop()

    @override
    def run_one(self, work: Coroutine[Any, Any, Reply]) -> Coroutine[Any, Any, Reply]:
        return work

    @override
    def run_all(self, work: Coroutine[Any, Any, list[Reply]]) -> Coroutine[Any, Any, list[Reply]]:
        return work
