"""Clients that do not read: nobody waits for them, what is kept for them is bounded, and after a while they are out."""

import asyncio
import json
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.routing import Mount
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from mrtr_server import Context, Limits, MRTRServer
from mrtr_server.transport.event_stream import BACKLOG_BYTES

from ..support.direct import Exchange, headers_for, scope_of
from ..support.serving import TIMEOUT, in_thread, wait_until
from ..support.wire import JSON, Reply, Wire, modern

PATIENT = 2.0
"""How long a client may read nothing where it is to be served, in seconds: more than a busy machine pauses."""

LARGE = 16 * 1024 * 1024
"""More than the sockets of both sides hold, in bytes."""


class Unread(Exchange):
    """An exchange whose client reads nothing until it is told to."""

    def __init__(self, app: ASGIApp, message: JSON) -> None:
        super().__init__(app, scope_of(headers_for(message)))
        self.body(json.dumps(message).encode())
        self.reads = asyncio.Event()

    async def _send(self, message: Message) -> None:
        await self.reads.wait()
        await super()._send(message)


def noted(reply: Reply) -> list[Any]:
    """Return what the notes of a stream say: the number of a progress, the data of a message."""
    params = [message["params"] for message in reply.received if "method" in message]
    return [each["progress"] if "progress" in each else each["data"] for each in params]


class TestWhatWaits:
    """What waits for the client has a bound, whatever the handler sends."""

    @pytest.fixture
    def app(self) -> MRTRServer:
        return MRTRServer("waits", keys=[bytes(32)])

    def run(self, app: MRTRServer, done: asyncio.Event, **wanted: Any) -> Reply:
        """Call the tool; read nothing until it is done."""

        async def scene() -> Reply:
            under_way = Unread(app, modern("tools/call", {"name": "tool"}, **wanted))
            under_way.start()
            async with asyncio.timeout(TIMEOUT):
                await done.wait()
            under_way.reads.set()
            return await under_way.end()

        return asyncio.run(scene())

    def test_a_handler_that_only_reports_progress_never_waits(self, app: MRTRServer) -> None:
        done = asyncio.Event()

        @app.tool
        async def tool(ctx: Context) -> str:
            for number in range(10_000):
                await ctx.progress(number)
            done.set()
            return "done"

        reply = self.run(app, done, progressToken="p")
        assert noted(reply) == [9999]
        assert reply.text == "done"

    def test_newer_progress_replaces_what_is_not_written_yet_and_messages_stay(self, app: MRTRServer) -> None:
        done = asyncio.Event()

        @app.tool
        async def tool(ctx: Context) -> str:
            for number in range(3):
                await ctx.log(f"message {number}")
                await ctx.progress(number)
            done.set()
            return "done"

        assert noted(self.run(app, done, progressToken="p", logLevel="info")) == [
            "message 0",
            "message 1",
            "message 2",
            2,
        ]

    def test_messages_that_do_not_fit_are_dropped_with_one_line(
        self, app: MRTRServer, caplog: pytest.LogCaptureFixture
    ) -> None:
        done = asyncio.Event()

        @app.tool
        async def tool(ctx: Context) -> str:
            for number in range(1000):
                await ctx.log(f"{number} " + "x" * 10_000)
            done.set()
            return "done"

        reply = self.run(app, done, logLevel="info")
        numbers = [int(text.partition(" ")[0]) for text in noted(reply)]
        assert numbers == list(range(BACKLOG_BYTES // 10_100)), "the first ones, without a gap"
        assert reply.text == "done"
        assert [record.getMessage().partition(":")[0] for record in caplog.records] == ["A client reads too slowly"]

    def test_one_message_is_not_too_large_by_itself(self, app: MRTRServer) -> None:
        done = asyncio.Event()

        @app.tool
        async def tool(ctx: Context) -> str:
            await ctx.log("x" * 2 * BACKLOG_BYTES)
            await ctx.log("late")
            done.set()
            return "done"

        assert [len(text) for text in noted(self.run(app, done, logLevel="info"))] == [2 * BACKLOG_BYTES]

    def test_who_reads_gets_everything(self, app: MRTRServer, caplog: pytest.LogCaptureFixture) -> None:
        @app.tool
        async def tool(ctx: Context) -> str:
            for number in range(200):
                await ctx.log("x" * 10_000)
                await ctx.progress(number)
            return "done"

        async def scene() -> Reply:
            under_way = Unread(app, modern("tools/call", {"name": "tool"}, progressToken="p", logLevel="info"))
            under_way.reads.set()
            return await under_way.end()

        assert len(noted(asyncio.run(scene()))) == 400
        assert not caplog.records

    def test_a_question_is_never_dropped(self, app: MRTRServer) -> None:
        done = asyncio.Event()

        @app.tool
        async def tool(ctx: Context) -> str:
            for _ in range(100):
                await ctx.log("x" * 10_000)
            done.set()
            await ctx.confirm("Go on?")
            return "done"

        reply = self.run(app, done, logLevel="info")
        assert list(reply.result["inputRequests"]) == ["confirm"]


class WatchedApp:
    """An application under uvicorn, and what uvicorn knows of its connections.

    Args:
        app: the application.
    """

    def __init__(self, app: ASGIApp) -> None:
        self.app = app
        self.cycles: list[Any] = []

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            self.cycles.append(send.__self__)  # type: ignore[attr-defined]
        await self.app(scope, receive, send)

    @property
    def is_cut(self) -> bool:
        """Whether the first connection is closed to its end, with all that was still to be sent."""
        return bool(self.cycles and self.cycles[0].disconnected and self.cycles[0].transport.is_closing())


@contextmanager
def stalled(port: int, message: JSON, *, buffer: int = 16 * 1024) -> Iterator[socket.socket]:
    """Send a request, and read nothing of its response but what the kernel takes in, with a buffer of so many bytes."""
    body = json.dumps(message).encode()
    head = [f"{name.decode()}: {value.decode()}" for name, value in headers_for(message)]
    lines = ["POST /mcp HTTP/1.1", *head, "host: x", f"content-length: {len(body)}", "", ""]
    with closing(socket.socket()) as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, buffer)
        connection.settimeout(TIMEOUT)
        connection.connect(("127.0.0.1", port))
        connection.sendall("\r\n".join(lines).encode() + body)
        yield connection


def left_of(connection: socket.socket) -> bytes:
    """Read until the connection ends, in whatever way."""
    parts = []
    try:
        while part := connection.recv(65536):
            parts.append(part)
    except ConnectionResetError:
        pass
    return b"".join(parts)


@pytest.fixture(params=["h11", "httptools"])
def http(request: pytest.FixtureRequest) -> str:
    """Each of the two HTTP implementations of uvicorn."""
    return str(request.param)


@pytest.fixture(params=["asyncio", "uvloop"])
def loop(request: pytest.FixtureRequest) -> str:
    return str(request.param)


class TestDeadline:
    """A client that reads nothing for `Limits(write_seconds=)` is disconnected, and nothing of it is kept."""

    @pytest.fixture
    def app(self) -> MRTRServer:
        return self.serving(0.3)

    @pytest.fixture
    def patient(self) -> MRTRServer:
        return self.serving(PATIENT)

    def serving(self, write_seconds: float) -> MRTRServer:
        app = MRTRServer("deadline", keys=[bytes(32)], limits=Limits(write_seconds=write_seconds))

        @app.tool
        async def large(ctx: Context) -> str:
            await ctx.progress(1)
            return "x" * LARGE

        @app.tool
        async def small() -> str:
            return "small"

        app.resource("notes://{name}", name="note")(lambda name: name)
        return app

    @pytest.mark.parametrize("wanted", [{}, {"progressToken": "p"}], ids=["JSON", "a stream"])
    def test_disconnects_who_reads_nothing(
        self, app: MRTRServer, http: str, loop: str, wanted: JSON, caplog: pytest.LogCaptureFixture
    ) -> None:
        watched = WatchedApp(app)
        with in_thread(watched, http=http, loop=loop, of=app) as port:
            with stalled(port, modern("tools/call", {"name": "large"}, **wanted)) as connection:
                wait_until(lambda: watched.is_cut, "the connection to be cut")
                assert len(left_of(connection)) < LARGE
        assert [record.getMessage() for record in caplog.records] == [
            "A client read nothing for 0.3 s, so its connection is closed"
        ], "and no failure of the application"

    def test_does_so_where_the_server_is_mounted(self, app: MRTRServer) -> None:
        """Starlette puts functions of its own around `send`."""
        cors = Middleware(CORSMiddleware, allow_origins=["*"])
        watched = WatchedApp(Starlette(routes=[Mount("/", app)], middleware=[cors]))
        with in_thread(watched, of=app) as port, stalled(port, modern("tools/call", {"name": "large"})):
            wait_until(lambda: watched.is_cut, "the connection to be cut")

    def test_cancels_the_handler_whose_client_is_out(self, app: MRTRServer) -> None:
        cancelled = threading.Event()

        @app.tool
        async def chatter(ctx: Context) -> str:
            try:
                while True:
                    await ctx.log("x" * 65536)
                    await asyncio.sleep(0.001)
            except asyncio.CancelledError:
                cancelled.set()
                raise

        with in_thread(app) as port, stalled(port, modern("tools/call", {"name": "chatter"}, logLevel="info")):
            assert cancelled.wait(TIMEOUT)

    def test_is_for_listeners_too(self, app: MRTRServer) -> None:
        watched = WatchedApp(app)
        uri = "notes://" + "x" * 2000
        message = modern("subscriptions/listen", {"notifications": {"resourceSubscriptions": [uri]}})

        def is_cut() -> bool:
            app.notify_resource_updated(uri)
            return watched.is_cut

        with in_thread(watched, of=app) as port, stalled(port, message):
            wait_until(is_cut, "the listener to be cut off")

    def test_is_a_new_one_for_each_piece(self, patient: MRTRServer) -> None:
        """Who reads slowly, but reads, gets everything."""
        message = modern("tools/call", {"name": "large"})
        with in_thread(patient) as port, stalled(port, message, buffer=2**20) as connection:
            began, received = time.monotonic(), 0
            while received < LARGE:
                time.sleep(PATIENT / 12)
                part = connection.recv(2**20)
                assert part, "the server has closed the connection"
                received += len(part)
            assert time.monotonic() - began > PATIENT

    def test_leaves_the_connection_open_for_who_has_read_all(self, patient: MRTRServer, http: str) -> None:
        with in_thread(patient, http=http) as port:
            wire = Wire(f"http://127.0.0.1:{port}/mcp")
            assert len(wire.call("large").text) == LARGE
            time.sleep(PATIENT)
            assert wire.call("small").text == "small"
            wire.close()


def test_clients_that_read_nothing_hold_no_slot() -> None:
    """Or as many of them as may run at once stop the server for everybody."""
    app = MRTRServer("slots", keys=[bytes(32)], limits=Limits(max_concurrency=2))
    ended = threading.Semaphore(0)

    @app.tool
    async def chatter(ctx: Context) -> str:
        for number in range(500):
            await ctx.progress(number)
            await ctx.log("x" * 65536)
        ended.release()
        return "x" * LARGE

    @app.tool
    async def small() -> str:
        return "small"

    message = modern("tools/call", {"name": "chatter"}, logLevel="info", progressToken="p")
    with in_thread(app) as port, stalled(port, message), stalled(port, message):
        assert ended.acquire(timeout=TIMEOUT)
        assert ended.acquire(timeout=TIMEOUT)
        wire = Wire(f"http://127.0.0.1:{port}/mcp")
        assert wire.call("small").text == "small"
        wire.close()
