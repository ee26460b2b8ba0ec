"""The HTTP side: when a reply is a stream, what a client's leaving does, who may call, what the wire may do to us."""

import asyncio
import itertools
import json
import re
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.base import BaseHTTPMiddleware, RequestResponseEndpoint
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Mount
from starlette.types import Receive, Scope, Send

from mrtr_server import Context, Limits, MRTRServer, Principal, SetupError, ToolError
from mrtr_server.transport import connection

from ..conftest import Serve
from ..support.direct import Exchange, exchange, headers_for, scope_of, send
from ..support.models import Login
from ..support.serving import TIMEOUT, in_thread, until, wait_until
from ..support.wire import JSON, Wire, accept, modern, request

PLAIN = {"Content-Type": "application/json"}


@pytest.fixture
def app() -> MRTRServer:
    return MRTRServer("asgi", keys=[bytes(32)])


@pytest.fixture(params=["h11", "httptools"])
def http(request: pytest.FixtureRequest) -> str:
    """Each of the two HTTP implementations of uvicorn."""
    return str(request.param)


def raw_request(message: JSON, *lines: str) -> bytes:
    """Return a modern message as the bytes of an HTTP request."""
    body = json.dumps(message).encode()
    head = [f"{name.decode()}: {value.decode()}" for name, value in headers_for(message)]
    head += ["host: x", f"content-length: {len(body)}", *lines]
    return "\r\n".join(["POST /mcp HTTP/1.1", *head, "", ""]).encode() + body


def connected(wire: Wire) -> socket.socket:
    host, port = wire.url.split("/")[2].split(":")
    return socket.create_connection((host, int(port)), TIMEOUT)


def received(connection: socket.socket) -> bytes:
    """Read until the server closes the connection."""
    parts = []
    while part := connection.recv(65536):
        parts.append(part)
    return b"".join(parts)


class TestStreams:
    """A reply is one JSON object, unless there is something to send before it and the client takes a stream."""

    @pytest.fixture
    def wire(self, app: MRTRServer, serve: Serve) -> Wire:
        @app.tool
        async def work(ctx: Context, fail: str = "") -> str:
            await ctx.progress(1, 2)
            await ctx.log("half way")
            if fail == "tool":
                raise ToolError("no")
            if fail == "ask":
                await ctx.list_roots()
            return "done"

        @app.prompt
        async def prompt(ctx: Context) -> str:
            await ctx.progress(1)
            raise RuntimeError("swordfish")

        return serve(app)

    def test_are_opened_only_when_there_is_something_to_stream(self, wire: Wire) -> None:
        plain = wire.call("work")
        assert plain.headers["content-type"] == "application/json"
        assert int(plain.headers["content-length"]) == len(plain.body)
        assert not plain.is_stream
        streamed = wire.call("work", progressToken="p", logLevel="info")
        assert [message.get("method") for message in streamed.received] == [
            "notifications/progress",
            "notifications/message",
            None,
        ]
        assert streamed.text == "done"

    @pytest.mark.parametrize("tool", ["quiet", "begun", "plain"])
    def test_that_are_open_for_long_have_comments_so_that_proxies_leave_them_open(
        self, app: MRTRServer, serve: Serve, tool: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(connection, "KEEP_ALIVE", 0.03)
        ends = threading.Event()

        @app.tool
        async def quiet() -> str:
            await asyncio.to_thread(ends.wait)
            return "done"

        @app.tool
        async def begun(ctx: Context) -> str:
            await ctx.progress(1, 2)
            return await quiet()

        @app.tool
        def plain() -> str:
            ends.wait()
            return "done"

        wire = serve(app)
        message = modern("tools/call", {"name": tool, "arguments": {}}, progressToken="p")
        try:
            with wire.client.stream(
                "POST", wire.url, content=json.dumps(message), headers=headers_for(message)
            ) as response:
                lines = response.iter_lines()
                assert [line for line in itertools.islice(lines, 8) if line == ":"][:2] == [":", ":"]
                ends.set()
                assert '"text":"done"' in list(lines)[-2]
        finally:
            ends.set()

    def test_are_not_opened_for_long_calls_of_clients_that_take_none(
        self, app: MRTRServer, serve: Serve, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(connection, "KEEP_ALIVE", 0.01)

        @app.tool
        async def quiet() -> str:
            await asyncio.sleep(0.3)
            return "done"

        reply = serve(app).post(
            modern("tools/call", {"name": "quiet", "arguments": {}}), {"Accept": "application/json"}
        )
        assert (reply.is_stream, reply.text) == (False, "done")

    def test_send_first_what_was_said_first(self, app: MRTRServer, serve: Serve) -> None:
        @app.tool
        async def narrate(ctx: Context) -> str:
            await ctx.log("begun")
            for number in range(3):
                ctx.progress(number, 3)
            await ctx.log("done")
            return ""

        reply = serve(app).call("narrate", progressToken="p", logLevel="info")
        assert [
            message["params"].get("data", message["params"].get("progress")) for message in reply.received[:-1]
        ] == [
            "begun",
            2,
            "done",
        ], "newer progress takes the place of older"

    def test_tell_proxies_to_pass_them_on_at_once_and_caches_to_keep_nothing(self, wire: Wire) -> None:
        headers = wire.call("work", progressToken="p").headers
        assert headers["content-type"] == "text/event-stream; charset=utf-8"
        assert headers["x-accel-buffering"] == "no"
        assert headers["cache-control"] == "no-store"

    @pytest.mark.parametrize("accepted", [None, "", "application/json", "*/*", "text/plain"])
    def test_are_not_for_clients_that_do_not_accept_them(self, wire: Wire, accepted: str | None) -> None:
        message = modern("tools/call", {"name": "work"}, progressToken="p")
        reply = wire.post(message, {"Accept": accepted or None})
        assert not reply.is_stream
        assert reply.text == "done"

    @pytest.mark.parametrize(
        "accepted", ["text/event-stream", "Text/Event-Stream", "application/json,text/event-stream"]
    )
    def test_are_for_clients_that_do(self, wire: Wire, accepted: str) -> None:
        message = modern("tools/call", {"name": "work"}, progressToken="p")
        assert wire.post(message, {"Accept": accepted}).is_stream

    def test_may_be_accepted_in_a_header_of_its_own(self, wire: Wire, http: str) -> None:
        message = modern("tools/call", {"name": "work"}, progressToken="p")
        given = {name.decode(): value.decode() for name, value in headers_for(message, accept="application/json")}
        listed = [*given.items(), ("accept", "text/event-stream")]
        response = wire.client.post(wire.url, content=json.dumps(message), headers=listed)
        assert response.headers["content-type"].startswith("text/event-stream")

    @pytest.mark.parametrize("fail", ["tool", "ask"])
    def test_end_with_the_response_whatever_it_is(self, wire: Wire, fail: str) -> None:
        streamed = wire.call("work", {"fail": fail}, progressToken="p")
        assert len(streamed.received) == 2
        assert streamed.result["resultType"] == ("input_required" if fail == "ask" else "complete")

    def test_end_with_an_error_as_their_last_event(self, wire: Wire, caplog: pytest.LogCaptureFixture) -> None:
        """The status has been sent by then."""
        streamed = wire.modern("prompts/get", {"name": "prompt"}, progressToken="p")
        assert (streamed.status, len(streamed.received), streamed.code) == (200, 2, -32603)
        assert "swordfish" in caplog.text

    def test_send_each_note_when_it_is_made(self, app: MRTRServer, serve: Serve) -> None:
        go_on = threading.Event()

        @app.tool
        async def wait(ctx: Context) -> str:
            await ctx.progress(1)
            await asyncio.to_thread(go_on.wait, 5)
            return "done"

        wire = serve(app)
        message = modern("tools/call", {"name": "wait"}, progressToken="p")
        headers = dict(headers_for(message))
        with wire.client.stream("POST", wire.url, content=json.dumps(message), headers=headers) as response:
            lines = response.iter_lines()
            assert next(lines) == "event: message"
            assert '"progress":1' in next(lines), "it is there before the tool is done"
            go_on.set()
            assert "done" in "".join(lines)


class TestPlainFunctions:
    """They run in threads, and their notes come from there."""

    def test_send_notes_in_order_without_awaiting(self, app: MRTRServer, serve: Serve) -> None:
        @app.tool
        def count(ctx: Context) -> str:
            for number in range(500):
                ctx.progress(number)
            return threading.current_thread().name

        reply = serve(app).call("count", progressToken="p")
        told = [message["params"]["progress"] for message in reply.received[:-1]]
        assert told == sorted(set(told)), "newer progress may come in the place of older"
        assert told[-1] == 499
        assert reply.text.startswith("mrtr_server")

    def test_do_not_stall_the_others(self, app: MRTRServer, serve: Serve) -> None:
        together = threading.Barrier(5, timeout=TIMEOUT)

        @app.tool
        def meet() -> str:
            together.wait()
            return "met"

        wire = serve(app)
        threads = [threading.Thread(target=wire.call, args=("meet",)) for _ in range(4)]
        for thread in threads:
            thread.start()
        assert wire.call("meet").text == "met", "five have met, so none waited for another"
        for thread in threads:
            thread.join()

    def test_are_run_in_no_more_threads_than_the_limit(self, serve: Serve) -> None:
        app = MRTRServer("limited", keys=[bytes(32)], limits=Limits(threads=2))
        counting, inside, most = threading.Lock(), [0], [0]
        full = threading.Event()

        @app.tool
        def busy() -> str:
            with counting:
                inside[0] += 1
                most[0] = max(most[0], inside[0])
                if inside[0] >= 2:
                    full.set()
            assert full.wait(TIMEOUT)
            time.sleep(0.03)  # in which a third thread would come
            with counting:
                inside[0] -= 1
            return "done"

        wire = serve(app)
        threads = [threading.Thread(target=wire.call, args=("busy",)) for _ in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert most[0] == 2

    @pytest.mark.parametrize("streamed", [False, True], ids=["of JSON", "of a stream"])
    def test_that_go_on_in_threads_of_their_own_send_nothing_after_the_response(
        self, app: MRTRServer, streamed: bool
    ) -> None:
        release = threading.Event()
        left_behind: list[threading.Thread] = []

        class Slow:
            def __str__(self) -> str:
                release.wait(TIMEOUT)
                return "slow"

        @app.tool
        def leave(ctx: Context) -> str:
            if streamed:
                ctx.log("first")
            left_behind.append(threading.Thread(target=ctx.log, args=(Slow(),)))
            left_behind[0].start()
            return "done"

        async def scene() -> None:
            message = modern("tools/call", {"name": "leave"}, logLevel="info")
            under_way = Exchange(app, scope_of(headers_for(message))).body(json.dumps(message).encode())
            reply = await under_way.end()
            assert (reply.text, reply.is_stream) == ("done", streamed)
            sent = len(under_way.sent)
            release.set()
            await asyncio.to_thread(left_behind[0].join)
            await asyncio.sleep(0.02)
            assert len(under_way.sent) == sent

        asyncio.run(scene())


class TestLeaving:
    """Rule 11 of a flow: a client that closes the connection cancels its request at the next boundary."""

    @pytest.fixture
    def scene(self, app: MRTRServer) -> "Scene":
        return Scene(app)

    @pytest.mark.parametrize("streamed", [False, True], ids=["of JSON", "of a stream"])
    @pytest.mark.parametrize("step", ["async_step", "sync_step"])
    def test_lets_a_running_step_finish_and_runs_nothing_after_it(
        self, scene: "Scene", serve: Serve, http: str, streamed: bool, step: str
    ) -> None:
        wire = serve(scene.app, http=http)
        extra: JSON = {"progressToken": "p"} if streamed else {}
        with closing(connected(wire)) as connection:
            connection.sendall(
                raw_request(modern("tools/call", {"name": "work", "arguments": {"step": step}}, **extra))
            )
            assert scene.started.wait(TIMEOUT)
        assert scene.cancelled.wait(TIMEOUT)
        assert scene.happened == ["cancelled"]
        scene.release.set()
        assert scene.finished.wait(TIMEOUT)
        assert wire.call("idle").text == "idle"
        wait_until(lambda: scene.tasks() == 0, "the request's tasks to end")
        assert scene.happened == ["cancelled", "finished"]

    def test_cancels_a_handler_that_takes_no_context(self, scene: "Scene", serve: Serve) -> None:
        wire = serve(scene.app)
        with closing(connected(wire)) as connection:
            connection.sendall(raw_request(modern("tools/call", {"name": "bare"})))
            assert scene.started.wait(TIMEOUT)
        assert scene.cancelled.wait(TIMEOUT)
        assert scene.happened == ["cancelled"]

    def test_in_the_middle_of_a_stream_ends_it(self, scene: "Scene", serve: Serve) -> None:
        wire = serve(scene.app)
        with closing(connected(wire)) as connection:
            connection.sendall(raw_request(modern("tools/call", {"name": "chatter"}, progressToken="p")))
            assert b"notifications/progress" in connection.recv(65536)
        assert scene.cancelled.wait(TIMEOUT)
        wait_until(lambda: scene.tasks() == 0, "the stream's tasks to end")

    def test_half_way_through_the_body_runs_nothing(self, scene: "Scene", serve: Serve, http: str) -> None:
        wire = serve(scene.app, http=http)
        with closing(connected(wire)) as connection:
            connection.sendall(raw_request(modern("tools/call", {"name": "bare"}))[:-20])
        assert wire.call("idle").text == "idle"
        wait_until(lambda: scene.tasks() == 0, "the request to end")
        assert not scene.started.is_set()

    def test_after_an_ask_drops_the_round_and_no_state_is_spent(self, scene: "Scene", serve: Serve) -> None:
        """The state that the client holds still opens. (After a confirmation the round would run to its end.)"""
        wire = serve(scene.app)
        state = wire.call("ask").state
        answered = {"name": "ask", "inputResponses": {"login": accept(name="ann")}, "requestState": state}
        with closing(connected(wire)) as connection:
            connection.sendall(raw_request(modern("tools/call", answered)))
            assert scene.started.wait(TIMEOUT)
        assert scene.cancelled.wait(TIMEOUT)
        scene.release.set()
        assert wire.call("ask", answers=answered["inputResponses"], state=state).text == "asked and done"

    @pytest.mark.parametrize("streamed", [False, True], ids=["of JSON", "of a stream"])
    def test_is_no_failure_to_middleware_around_the_server(
        self, scene: "Scene", serve: Serve, caplog: pytest.LogCaptureFixture, streamed: bool
    ) -> None:
        """Starlette's own (and so FastAPI's `@app.middleware("http")`) raises where an application never responds."""

        class Passing(BaseHTTPMiddleware):
            async def dispatch(self, request: Request, call_next: RequestResponseEndpoint) -> Response:
                return await call_next(request)

        wire = serve(Starlette(routes=[Mount("/", scene.app)], middleware=[Middleware(Passing)]))
        extra: JSON = {"progressToken": "p"} if streamed else {}
        with closing(connected(wire)) as connection:
            arguments = {"step": "async_step"}
            connection.sendall(raw_request(modern("tools/call", {"name": "work", "arguments": arguments}, **extra)))
            assert scene.started.wait(TIMEOUT)
        assert scene.cancelled.wait(TIMEOUT)
        scene.release.set()
        assert wire.call("idle").text == "idle"
        wait_until(lambda: scene.tasks() == 0, "the request's tasks to end")
        assert not [record for record in caplog.records if record.name.startswith("uvicorn")]

    def test_leaves_no_cancellation_behind(self, scene: "Scene") -> None:
        """Or the first `asyncio.timeout` of middleware around the server would take it for its own."""
        left: list[int] = []

        async def around(scope: Scope, receive: Receive, send: Send) -> None:
            await scene.app(scope, receive, send)
            task = asyncio.current_task()
            assert task is not None
            left.append(task.cancelling())

        async def play() -> None:
            message = modern("tools/call", {"name": "bare"})
            under_way = Exchange(around, scope_of(headers_for(message))).body(json.dumps(message).encode()).start()
            await asyncio.to_thread(scene.started.wait, TIMEOUT)
            under_way.disconnect()
            await under_way.end()

        asyncio.run(play())
        assert left == [0]
        assert scene.happened == ["cancelled"]

    def test_is_noticed_on_one_event_loop_while_another_stands_still(self) -> None:
        app = MRTRServer("loops", keys=[bytes(32)])
        begun: list[str] = []
        ended: list[str] = []

        @app.tool
        async def waits(name: str) -> None:
            begun.append(name)
            try:
                await asyncio.Event().wait()
            finally:
                ended.append(name)

        async def begin(name: str) -> Exchange:
            message = modern("tools/call", {"name": "waits", "arguments": {"name": name}})
            under_way = Exchange(app, scope_of(headers_for(message))).body(json.dumps(message).encode()).start()
            await until(lambda: name in begun, "the handler to run")
            return under_way

        async def leave(under_way: Exchange) -> None:
            under_way.disconnect()
            await under_way.end()

        with asyncio.Runner() as one, asyncio.Runner() as other:
            still = one.run(begin("one"))
            other.run(leave(other.run(begin("other"))))
            assert ended == ["other"]
            one.run(leave(still))
        assert ended == ["other", "one"]

    def test_is_not_taken_for_a_cancellation_by_the_server(self, app: MRTRServer) -> None:
        """What the ASGI server cancels is its own to handle."""

        begun = asyncio.Event()

        @app.tool
        async def forever(ctx: Context) -> str:
            begun.set()
            await asyncio.Event().wait()
            return "unreachable"

        async def scene() -> None:
            message = modern("tools/call", {"name": "forever"})
            under_way = Exchange(app, scope_of(headers_for(message))).body(json.dumps(message).encode())
            task = asyncio.create_task(under_way.end())
            async with asyncio.timeout(TIMEOUT):
                await begun.wait()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert under_way.sent == []

        asyncio.run(scene())


class Scene:
    """Tools that tell what becomes of them."""

    def __init__(self, app: MRTRServer) -> None:
        self.app = app
        self.started, self.release = threading.Event(), threading.Event()
        self.cancelled, self.finished = threading.Event(), threading.Event()
        self.happened: list[str] = []
        self.loop: asyncio.AbstractEventLoop | None = None

        async def async_step() -> str:
            self.begin()
            await asyncio.to_thread(self.release.wait, TIMEOUT)
            return self.end()

        def sync_step() -> str:
            self.begin()
            self.release.wait(TIMEOUT)
            return self.end()

        steps = {"async_step": async_step, "sync_step": sync_step}

        @app.tool
        async def work(step: str, ctx: Context) -> str:
            self.loop = asyncio.get_running_loop()
            await ctx.progress(1)
            try:
                await ctx.step(steps[step], key="step")
                self.happened.append("went on")
            except asyncio.CancelledError:
                self.happened.append("cancelled")
                self.cancelled.set()
                raise
            await ctx.step(lambda: self.happened.append("second step"), key="second")
            return "done"

        @app.tool
        async def bare() -> str:
            self.loop = asyncio.get_running_loop()
            self.begin()
            try:
                await asyncio.sleep(TIMEOUT)
            except asyncio.CancelledError:
                self.happened.append("cancelled")
                self.cancelled.set()
                raise
            self.happened.append("went on")
            return "done"

        @app.tool
        async def chatter(ctx: Context) -> str:
            self.loop = asyncio.get_running_loop()
            self.begin()
            try:
                for number in range(10_000):
                    await ctx.progress(number)
                    await asyncio.sleep(0.002)
            except asyncio.CancelledError:
                self.cancelled.set()
                raise
            return "done"

        @app.tool
        async def ask(ctx: Context) -> str:
            await ctx.elicit("Who are you?", Login)
            try:
                await ctx.step(async_step)
            except asyncio.CancelledError:
                self.cancelled.set()
                raise
            return "asked and done"

        @app.tool
        async def idle() -> str:
            self.loop = asyncio.get_running_loop()
            return "idle"

    def begin(self) -> None:
        self.started.set()

    def end(self) -> str:
        self.happened.append("finished")
        self.finished.set()
        return "finished"

    def tasks(self) -> int:
        """Return how many tasks of ours are left on the server's loop."""
        assert self.loop is not None
        tasks = [task for task in asyncio.all_tasks(self.loop) if not task.done()]
        codes = [getattr(task.get_coro(), "cr_code", None) for task in tasks]
        return sum("/mrtr_server/" in code.co_filename for code in codes if code is not None)


class TestBodies:
    """The body may come in any number of parts."""

    @pytest.mark.parametrize("size", [1, 7, 64, 10_000])
    def test_in_parts_of_any_size_are_read(self, app: MRTRServer, size: int) -> None:
        message = modern("tools/list")
        body = json.dumps(message).encode()

        async def scene() -> None:
            under_way = Exchange(app, scope_of(headers_for(message)))
            for start in range(0, len(body), size):
                under_way.body(body[start : start + size], more=True)
            assert "tools" in (await under_way.body(b"").end()).result

        asyncio.run(scene())

    def test_of_one_part_need_no_mark_of_their_end(self, app: MRTRServer) -> None:
        """ASGI lets a server leave out `more_body`, and an empty `body`."""
        message = modern("tools/list")

        async def scene() -> None:
            under_way = Exchange(app, scope_of(headers_for(message)))
            under_way._coming.put_nowait({"type": "http.request", "body": json.dumps(message).encode()})
            assert "tools" in (await under_way.end()).result
            empty = Exchange(app, scope_of(headers_for(message)))
            empty._coming.put_nowait({"type": "http.request"})
            assert (await empty.end()).code == -32700

        asyncio.run(scene())

    def test_that_the_client_leaves_in_the_middle_of_are_not_answered(self, app: MRTRServer) -> None:
        async def scene() -> None:
            under_way = Exchange(app, scope_of(headers_for(modern("tools/list")))).body(b'{"jsonrpc"', more=True)
            under_way.disconnect()
            assert (await under_way.end()).status == 0

        asyncio.run(scene())

    def test_over_the_limit_are_not_read_to_their_end(self) -> None:
        app = MRTRServer("small", keys=[bytes(32)], limits=Limits(body_bytes=100))

        async def scene() -> None:
            under_way = Exchange(app, scope_of(headers_for(modern("tools/list"))))
            for _ in range(50):
                under_way.body(b" " * 30, more=True)
            reply = await under_way.end()
            assert reply.status == 413
            assert reply.headers["connection"] == "close"
            assert under_way._coming.qsize() == 46, "four parts of 30 bytes are over 100"

        asyncio.run(scene())

    @pytest.mark.parametrize("length", ["101", "9" * 30])
    def test_that_say_they_are_over_the_limit_are_not_read_at_all(self, length: str) -> None:
        app = MRTRServer("small", keys=[bytes(32)], limits=Limits(body_bytes=100))
        headers = [*headers_for(modern("tools/list")), (b"content-length", length.encode())]

        async def scene() -> None:
            under_way = Exchange(app, scope_of(headers)).body(b"{}")
            assert (await under_way.end()).status == 413
            assert under_way._coming.qsize() == 1

        asyncio.run(scene())

    def test_over_the_limit_end_the_connection(self, serve: Serve, http: str) -> None:
        """What is left of them is in it."""
        wire = serve(MRTRServer("small", keys=[bytes(32)], limits=Limits(body_bytes=100)), http=http)
        with closing(connected(wire)) as connection:
            connection.sendall(
                b"POST /mcp HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: 200\r\n\r\n"
            )
            answer = received(connection)
        assert answer.startswith(b"HTTP/1.1 413")

    def test_that_wait_for_a_go_ahead_get_one(self, app: MRTRServer, serve: Serve, http: str) -> None:
        """Curl sends `Expect: 100-continue` with bodies over 1 MiB."""
        wire = serve(app, http=http)
        head, _, body = raw_request(modern("tools/list"), "expect: 100-continue", "connection: close").partition(
            b"\r\n\r\n"
        )
        with closing(connected(wire)) as connection:
            connection.sendall(head + b"\r\n\r\n")
            assert connection.recv(100).startswith(b"HTTP/1.1 100")
            connection.sendall(body)
            assert b'"tools":[]' in received(connection)

    def test_come_one_after_the_other_on_one_connection(self, app: MRTRServer, serve: Serve, http: str) -> None:
        wire = serve(app, http=http)
        first, second = (raw_request(modern("tools/list", id=id)) for id in ("first", "second"))
        with closing(connected(wire)) as connection:
            connection.sendall(first + second)  # without waiting in between
            answers = b""
            while b'"second"' not in answers:
                answers += connection.recv(65536)
        assert answers.index(b'"id":"first"') < answers.index(b'"id":"second"')


class TestOrigin:
    """A browser always sends `Origin` with a POST, and nothing else does: it is what stops DNS rebinding."""

    def status(self, app: MRTRServer, *origins: str, host: str = "x") -> int:
        message = modern("tools/list")
        named = [(b"origin", origin.encode("latin-1")) for origin in origins]
        headers = [*headers_for(message), (b"host", host.encode()), *named]
        return asyncio.run(exchange(app, json.dumps(message).encode(), headers)).status

    @pytest.mark.parametrize(("method", "status"), [("GET", 403), ("DELETE", 403), ("POST", 403), ("PUT", 405)])
    def test_counts_for_every_method(self, app: MRTRServer, method: str, status: int) -> None:
        headers = [(b"host", b"x"), (b"origin", b"https://evil.example"), (b"accept", b"text/event-stream")]
        headers.append((b"mcp-protocol-version", b"2025-11-25"))
        assert asyncio.run(exchange(app, b"", headers, method=method)).status == status

    @pytest.mark.parametrize(
        "origin",
        [
            "http://localhost",
            "http://localhost:5173",
            "https://localhost",
            "http://127.0.0.1:8000",
            "http://[::1]:8000",
            "HTTP://LOCALHOST",
        ],
    )
    def test_of_loopback_is_allowed(self, app: MRTRServer, origin: str) -> None:
        assert self.status(app, origin) == 200

    @pytest.mark.parametrize(
        "origin",
        [
            "https://example.com",
            "null",
            "NULL",
            "",
            "localhost",
            "http://localhost.example.com",
            "http://localhost@example.com",
            "http://example.com#localhost",
            "http://example.com/localhost",
            "http://127.0.0.1.example.com",
            "http://127.0.0.2",
            "http://0.0.0.0",
            "http://[::1",
            "http://[",
            "file://localhost",
            "chrome-extension://localhost",
            "http://löcalhost",
            "http://localhost, http://example.com",
        ],
    )
    def test_of_anywhere_else_is_not(self, app: MRTRServer, origin: str) -> None:
        assert self.status(app, origin) == 403

    def test_may_not_be_there_twice(self, app: MRTRServer) -> None:
        assert self.status(app, "http://localhost", "http://localhost") == 403
        assert self.status(app, "https://example.com", "http://localhost") == 403

    def test_may_be_allowed_by_name(self) -> None:
        app = MRTRServer("named", keys=[bytes(32)], origins=["https://App.example.com/", "http://lan:3000"])
        assert self.status(app, "https://app.example.com") == 200
        assert self.status(app, "http://lan:3000") == 200
        assert self.status(app, "http://localhost") == 200
        for wrong in ("http://app.example.com", "https://app.example.com:444", "https://example.com", "http://lan"):
            assert self.status(app, wrong) == 403

    @pytest.mark.parametrize(
        ("origin", "says"),
        [
            ("https://app.example.com/path", "write https://app.example.com"),
            ("app.example.com", "write https://app.example.com"),
            ("localhost:3000", "write https://localhost:3000"),
            ("ftp://app.example.com", "write https://app.example.com"),
            ("https://*.example.com", "write it like https://login.example.com, without a path. No part of it can be"),
            ("https://bücher.example", "write it like"),
            ("https://u@app.example.com", "write https://app.example.com"),
            ("", "write it like"),
            ("null", "every sandboxed page has the origin"),
        ],
    )
    def test_that_no_browser_sends_are_refused_with_what_to_write(self, origin: str, says: str) -> None:
        with pytest.raises(SetupError, match=f"^origins: .*{re.escape(says)}"):
            MRTRServer("named", keys=[bytes(32)], origins=[origin])

    def test_may_be_written_with_the_port_that_browsers_leave_out(self) -> None:
        app = MRTRServer("named", keys=[bytes(32)], origins=["https://app.example.com:443"])
        assert self.status(app, "https://app.example.com") == 200

    def test_may_be_anything_but_null_if_that_is_said(self) -> None:
        app = MRTRServer("open", keys=[bytes(32)], origins=["*"])
        assert self.status(app, "https://example.com") == 200
        assert self.status(app, "null") == 403

    @pytest.mark.parametrize("host", ["example.com", "evil.example", "10.0.0.1:8000", ""])
    def test_that_is_absent_lets_anything_in_whatever_the_host_is(self, app: MRTRServer, host: str) -> None:
        """No "misdirected request" behind an ingress."""
        assert self.status(app, host=host) == 200

    def test_is_checked_before_the_body_is_read(self, app: MRTRServer) -> None:
        async def scene() -> None:
            headers = [*headers_for(modern("tools/list")), (b"origin", b"https://example.com")]
            under_way = Exchange(app, scope_of(headers)).body(b"{}")
            assert (await under_way.end()).status == 403
            assert under_way._coming.qsize() == 1

        asyncio.run(scene())

    def test_is_answered_by_cors_middleware_where_there_is_some(self, serve: Serve) -> None:
        allowed = ["https://app.example.com"]
        cors = Middleware(CORSMiddleware, allow_origins=allowed, allow_methods=["POST"], allow_headers=["*"])
        wire = serve(MRTRServer("cors", keys=[bytes(32)], origins=allowed, middleware=[cors]))
        asking = {"Origin": allowed[0], "Access-Control-Request-Method": "POST"}
        preflight = wire.send(b"", {**asking, "Access-Control-Request-Headers": "mcp-method"}, method="OPTIONS")
        assert preflight.status == 200
        assert preflight.headers["access-control-allow-origin"] == allowed[0]
        reply = wire.post(modern("tools/list"), {"Origin": allowed[0]})
        assert reply.headers["access-control-allow-origin"] == allowed[0]


class TestHosts:
    """`allowed_hosts` is there for those who want it."""

    @pytest.mark.parametrize(
        ("host", "status"),
        [
            ("mcp.example.com", 200),
            ("mcp.example.com:8443", 200),
            ("MCP.Example.com", 200),
            ("pinned.example.com:9000", 200),
            ("[::1]", 200),
            ("[::1]:8000", 200),
            ("pinned.example.com", 403),
            ("pinned.example.com:9001", 403),
            ("example.com", 403),
            ("evil.mcp.example.com", 403),
            ("mcp.example.com.evil.example", 403),
            ("mcp.example.com:x", 403),
            (":8000", 403),
            ("", 403),
            ("[::2]:8000", 403),
        ],
    )
    def test_that_are_not_allowed_are_403(self, host: str, status: int) -> None:
        hosts = ["mcp.example.com", "pinned.example.com:9000", "[::1]"]
        app = MRTRServer("hosts", keys=[bytes(32)], allowed_hosts=hosts)
        message = modern("tools/list")
        headers = [*headers_for(message), (b"host", host.encode())]
        assert asyncio.run(exchange(app, json.dumps(message).encode(), headers)).status == status

    @pytest.mark.parametrize(
        ("host", "says"),
        [
            ("https://mcp.example.com", "write mcp.example.com"),
            ("mcp.example.com/", "write mcp.example.com"),
            ("mcp.example.com:8000/mcp", "write mcp.example.com:8000"),
            ("::1", "write [::1]"),
            ("*.example.com", "write it like tools.example.com. No part of it can be *: list each"),
            ("*", "leave allowed_hosts= out"),
            ("mcp.example.com:*", "No part of it can be *"),
            ("", "write it like tools.example.com"),
        ],
    )
    def test_that_no_client_sends_are_refused_with_what_to_write(self, host: str, says: str) -> None:
        with pytest.raises(SetupError, match=f"^allowed_hosts: .*{re.escape(says)}"):
            MRTRServer("hosts", keys=[bytes(32)], allowed_hosts=[host])


class TestOtherScopes:
    def test_websockets_are_closed(self, app: MRTRServer) -> None:
        sent: list[Any] = []

        async def scene() -> None:
            async def receive() -> dict[str, Any]:
                return {"type": "websocket.connect"}

            async def keep(message: Any) -> None:
                sent.append(message)

            await app({"type": "websocket", "path": "/mcp", "headers": []}, receive, keep)

        asyncio.run(scene())
        assert [message["type"] for message in sent] == ["websocket.close"]

    @pytest.mark.parametrize(
        ("path", "status"), [("/mcp", 200), ("/mcp/", 200), ("/", 404), ("/mcp/x", 404), ("", 404)]
    )
    def test_only_the_endpoint_is_served(self, app: MRTRServer, path: str, status: int) -> None:
        assert asyncio.run(send(app, modern("tools/list"), path=path)).status == status

    def test_the_endpoint_can_be_elsewhere(self) -> None:
        for path, right, wrong in (("/", "/", "/mcp"), ("/api/tools", "/api/tools", "/mcp"), ("/x/", "/x", "/")):
            app = MRTRServer("elsewhere", keys=[bytes(32)], path=path)
            assert asyncio.run(send(app, modern("tools/list"), path=right)).status == 200
            assert asyncio.run(send(app, modern("tools/list"), path=wrong)).status == 404

    def test_several_loops_one_after_the_other_can_serve_one_application(self, app: MRTRServer) -> None:
        @app.tool
        def thread() -> str:
            return "done"

        for _ in range(3):
            assert asyncio.run(send(app, modern("tools/call", {"name": "thread"}))).text == "done"


class TestFaults:
    def test_in_what_authenticates_are_500_with_a_reference(
        self, app: MRTRServer, caplog: pytest.LogCaptureFixture
    ) -> None:
        class Nobody:
            is_authenticated = True

        reply = asyncio.run(send(app, modern("tools/list", id=7), user=Nobody()))
        assert (reply.status, reply.code, reply.message["id"]) == (500, -32603, 7)
        assert reply.error.data["reference"] in caplog.text
        assert "identity" in caplog.text
        assert "identity" not in reply.body.decode()

    @pytest.mark.parametrize("debug", [False, True])
    def test_of_handlers_are_shown_only_in_debugging(self, debug: bool, caplog: pytest.LogCaptureFixture) -> None:
        app = MRTRServer("debug", keys=[bytes(32)], debug=debug)

        @app.tool
        def crash() -> str:
            raise ValueError("swordfish")

        reply = asyncio.run(send(app, modern("tools/call", {"name": "crash"})))
        assert ("swordfish" in reply.failure) is debug
        assert "swordfish" in caplog.text

    def test_of_handlers_that_raise_a_cancellation_are_faults_like_others(self, app: MRTRServer) -> None:
        """As from awaiting a task that somebody has cancelled."""

        @app.tool
        async def unlucky() -> str:
            raise asyncio.CancelledError

        reply = asyncio.run(send(app, modern("tools/call", {"name": "unlucky"})))
        assert reply.result["isError"] is True


def test_the_caller_reaches_the_handler(app: MRTRServer) -> None:
    class User:
        is_authenticated = True
        identity = "alice"
        issuer = "https://issuer.example"
        client_id = "app"

    @app.tool
    def who(ctx: Context) -> list[Any]:
        return [ctx.principal == Principal("alice", "https://issuer.example", "app"), isinstance(ctx.user, User)]

    reply = asyncio.run(send(app, modern("tools/call", {"name": "who"}), user=User()))
    assert reply.result["structuredContent"] == [True, True]


@pytest.fixture(scope="module")
def endpoint() -> Iterator[Wire]:
    with in_thread(MRTRServer("plain", keys=[bytes(32)])) as port:
        wire = Wire(f"http://127.0.0.1:{port}/mcp")
        yield wire
        wire.close()


def test_replies_close_nothing_that_can_be_used_again(endpoint: Wire) -> None:
    for reply in (
        endpoint.modern("tools/list"),
        endpoint.draft(request("tools/list")),
        endpoint.send(b"", method="GET"),
        endpoint.send(b"x", {"Content-Type": "text/plain"}),
        endpoint.send(b"x", {**PLAIN, "Origin": "null"}),
        endpoint.send(b"x", PLAIN),
    ):
        assert reply.headers.get("connection", "keep-alive") == "keep-alive"
