"""Requests whose heads have come before: the same bytes as from uvicorn alone, and the parser for all else."""

import asyncio
import contextvars
import json
import re
import socket
import time
from typing import Any

import pytest
from uvicorn.middleware.proxy_headers import ProxyHeadersMiddleware
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from mrtr_server import Context, MRTRServer
from mrtr_server.uvicorn_http import heads
from mrtr_server.uvicorn_http.heads import LESSONS, LONGEST_HEAD, MOST_HEADS
from mrtr_server.uvicorn_http.one_write import one_write

from ..support.serving import TIMEOUT, in_thread, wait_until

app = MRTRServer("repeated")


@app.tool
async def say(text: str) -> str:
    return text


IDLE = 3
"""How long servers keep idle connections where that is the rule, in seconds: more than a busy machine pauses."""


class WatchedProtocol(one_write(HttpToolsProtocol)):  # type: ignore[misc]
    """The protocol, which notes how each packet was taken, and how many heads its connection keeps."""

    made: list[Any]
    repeated: list[bool]
    kept: list[int]

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self.made.append(self)

    def data_received(self, data: bytes) -> None:
        before = self.cycle
        super().data_received(data)
        self.repeated.append(self.cycle is not before and hasattr(self.cycle, "task"))
        self.kept.append(len(self._heads))


@pytest.fixture
def protocol() -> Any:
    return type("WatchedProtocol", (WatchedProtocol,), {"made": [], "repeated": [], "kept": []})


def body_of(text: str) -> str:
    params = {"name": "say", "arguments": {"text": text}}
    return json.dumps({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params})


def call(text: str, *more: str, length: str = "", method: str = "POST", path: str = "/mcp", name: str = "x") -> bytes:
    body = body_of(text)
    lines = [f"{method} {path} HTTP/1.1", f"Host: {name}", "Content-Type: application/json"]
    lines += [f"Content-Length: {length or len(body)}", *more, "", body]
    return "\r\n".join(lines).encode()


def chunked(text: str) -> bytes:
    body = body_of(text)
    lines = ["POST /mcp HTTP/1.1", "Host: x", "Content-Type: application/json", "Transfer-Encoding: chunked", ""]
    return "\r\n".join([*lines, f"{len(body):x}", body, "0", "", ""]).encode()


def read(connection: socket.socket) -> bytes:
    """Return one response; what there is when the server closes."""
    got = b""
    while True:
        head, blank, body = got.partition(b"\r\n\r\n")
        length = re.search(rb"content-length: (\d+)", head)
        if blank and (head.startswith(b"HTTP/1.1 100") or (length and len(body) >= int(length[1]))):
            return got
        more = connection.recv(65536)
        if not more:
            return got
        got += more


def converse(port: int, packets: list[bytes]) -> list[bytes]:
    """Send packets over one connection, each when the one before was answered; return the responses."""
    with socket.create_connection(("127.0.0.1", port), TIMEOUT) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        got = []
        for packet in packets:
            connection.sendall(packet)
            got.append(re.sub(rb"date: [^\r]*", b"date: now", read(connection)))
        return got


def both(protocol: Any, packets: list[bytes], server: Any = app, **options: Any) -> list[bytes]:
    """Return the responses of our protocol, which must be those of uvicorn's own."""
    options = {"log_level": "critical", **options}
    with in_thread(server, http=protocol, **options) as port:
        ours = converse(port, packets)
    with in_thread(server, http=HttpToolsProtocol, **options) as port:
        assert converse(port, packets) == ours
    return ours


A, LONGER = call("one"), call("one, and rather longer than the first" * 9)


class TestTheBytes:
    @pytest.mark.parametrize(
        ("packets", "repeated"),
        [
            pytest.param([A, A, LONGER], [False, True, True], id="the same, and another length"),
            pytest.param([A, call("one", name="y"), A], [False, False, True], id="another head between"),
            pytest.param([A, A.replace(b"Host", b"host")], [False, False], id="one in other letters"),
            pytest.param([A, call("one", "Mcp-Name: say")], [False, False], id="one more header"),
            pytest.param([call("one", "X-Late: 1"), call("two", "X-Late: 1")], [False, True], id="headers behind it"),
            pytest.param([A, call("one", length=f"0{len(body_of('one'))}")], [False, False], id="a zero before it"),
            pytest.param([A, call("one", length=f"+{len(body_of('one'))}")], [False, False], id="a sign before it"),
            pytest.param([A, call("one", length="1_00")], [False, False], id="no digits"),
            pytest.param([A, call("one", f"Content-Length: {len(body_of('one'))}")], [False, False], id="two lengths"),
            pytest.param([A, b"\r\n" + A, A], [False, False, True], id="an empty line before it"),
            pytest.param([A, chunked("two"), chunked("two"), A], [False, False, False, True], id="chunks"),
            pytest.param([call("one", "Connection: keep-alive")] * 2, [False, True], id="kept on request"),
            pytest.param([call("one", method="PUT")] * 2, [False, False], id="another method"),
            pytest.param([call("one", path="/%6dcp")] * 2, [False, True], id="an escaped path"),
            pytest.param([call("one", path="/elsewhere")] * 2, [False, True], id="a path that is not there"),
            pytest.param([call("one", "Host: y")] * 2, [False, True], id="two hosts"),
            pytest.param([call("one", "Origin: https://evil.example")] * 2, [False, True], id="an origin"),
            pytest.param([A, A + b"nonsense\r\n\r\n"], [False, False], id="something behind it"),
            pytest.param([A, b"nonsense\r\n\r\n"], [False, False], id="no HTTP"),
        ],
    )
    def test_are_uvicorns(self, protocol: Any, packets: list[bytes], repeated: list[bool]) -> None:
        assert all(both(protocol, packets))
        assert repeated == protocol.repeated

    def test_of_a_long_body_are_uvicorns(self, protocol: Any) -> None:
        both(protocol, [A, call("x" * 100_000), A])
        assert not any(protocol.repeated[:-1])
        assert protocol.repeated[-1]

    def test_of_an_answer_to_expect_are_uvicorns(self, protocol: Any) -> None:
        head, _, body = call("one", "Expect: 100-continue").partition(b"\r\n\r\n")
        both(protocol, [head + b"\r\n\r\n", body] * 2)
        assert not any(protocol.repeated)

    def test_of_a_head_that_comes_without_its_body_are_uvicorns(self, protocol: Any) -> None:
        with (
            in_thread(app, http=protocol) as port,
            socket.create_connection(("127.0.0.1", port), TIMEOUT) as connection,
        ):
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            connection.sendall(A)
            first = read(connection)
            for part in (A[:-10], A[-10:]):
                packets = len(protocol.repeated)
                connection.sendall(part)
                wait_until(lambda packets=packets: len(protocol.repeated) > packets, "a packet")
            assert read(connection).partition(b"\r\n\r\n")[2] == first.partition(b"\r\n\r\n")[2]
        assert protocol.repeated == [False, False, False]

    def test_of_requests_that_come_together_are_uvicorns(self, protocol: Any) -> None:
        with (
            in_thread(app, http=protocol) as port,
            socket.create_connection(("127.0.0.1", port), TIMEOUT) as connection,
        ):
            connection.sendall(A)
            read(connection)
            connection.sendall(A + call("two"))
            got = read(connection)
            while b"two" not in got:
                got += connection.recv(65536)
            assert got.count(b"HTTP/1.1 200") == 2
        assert protocol.repeated == [False, False]

    def test_of_a_root_path_are_uvicorns(self, protocol: Any) -> None:
        both(protocol, [A, A], root_path="/below")
        assert protocol.repeated == [False, False]

    def test_of_configured_headers_are_uvicorns(self, protocol: Any) -> None:
        assert b"x-served-by: one" in both(protocol, [A, A], headers=[("X-Served-By", "one")])[1]
        assert protocol.repeated == [False, True]


async def see(scope: Any, receive: Any, send: Any) -> None:
    """Respond with what an application is given, and change it."""
    first, seen = await receive(), repr({**scope, "client": str(scope["client"]).partition(",")[0]})
    scope["headers"].append((b"x-mine", b"1"))
    scope["state"]["mine"] = scope["asgi"]["mine"] = 1
    text = (seen + repr(first)).replace(f":{scope['server'][1]}", ":").replace(f"{scope['server'][1]}", "").encode()
    length = (b"content-length", b"%d" % len(text))
    await send({"type": "http.response.start", "status": 200, "headers": [length]})
    await send({"type": "http.response.body", "body": text})


def without_lifespan(http: Any) -> Any:
    async def served(scope: Any, receive: Any, send: Any) -> None:
        assert scope["type"] == "http"
        await http(scope, receive, send)

    return served


class TestWhatAnApplicationSees:
    @pytest.mark.parametrize("more", [(), ("X-Forwarded-For: 192.0.2.1", "X-Forwarded-Proto: https")])
    def test_is_what_uvicorn_shows_it(self, protocol: Any, more: tuple[str, ...]) -> None:
        packets = [call("one", *more), call("and two", *more), call("three", *more)]
        got = both(protocol, packets, without_lifespan(see))
        assert [b"192.0.2.1" in each for each in got] == [bool(more)] * 3
        assert not any(b"mine" in each for each in got)
        assert protocol.repeated == [False, True, True]

    def test_of_a_request_is_its_own(self, protocol: Any) -> None:
        server = MRTRServer("changing")

        @server.tool(name="say")
        async def change(text: str, ctx: Context) -> str:
            request, again = ctx.request, ctx.request
            assert request is not None
            assert again is not None
            before = getattr(request.state, "mark", "nothing")
            request.state.mark = text
            request.scope["headers"].append((b"x-mine", b"1"))
            return f"{before} {again.state.mark} {request.headers['content-length']} {len(request.headers)}"

        packets = [call("one"), call("and two"), call("three")]
        got = both(protocol, packets, server)
        assert protocol.repeated == [False, True, True]
        for text, response in zip(("one", "and two", "three"), got, strict=True):
            assert f'"nothing {text} {len(body_of(text))} 4"'.encode() in response

    def test_of_contexts_is_its_own(self, protocol: Any) -> None:
        mine: contextvars.ContextVar[str] = contextvars.ContextVar("mine", default="nothing")

        async def answer(scope: Any, receive: Any, send: Any) -> None:
            text = mine.get().encode()
            mine.set("something")
            await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"7")]})
            await send({"type": "http.response.body", "body": text})

        assert all(each.endswith(b"nothing") for each in both(protocol, [A] * 3, without_lifespan(answer)))
        assert protocol.repeated == [False, True, True]

    def test_after_the_body_is_the_disconnect(self, protocol: Any) -> None:
        seen: list[str] = []

        async def wait(scope: Any, receive: Any, send: Any) -> None:
            seen.append((await receive())["type"])
            if len(seen) > 1:
                seen.append((await receive())["type"])
                return
            await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"0")]})
            await send({"type": "http.response.body", "body": b""})

        with in_thread(without_lifespan(wait), http=protocol) as port:
            with socket.create_connection(("127.0.0.1", port), TIMEOUT) as connection:
                connection.sendall(A)
                read(connection)
                connection.sendall(A)
                wait_until(lambda: len(seen) == 2, "the second request")
            wait_until(lambda: len(seen) == 3, "the disconnect")
        assert seen == ["http.request", "http.request", "http.disconnect"]
        assert protocol.repeated == [False, True]


class TestMiddleware:
    """What it changes counts, although the server knows the request as it came."""

    @pytest.mark.parametrize(
        ("name", "value", "status"), [(b"content-type", b"text/plain", 415), (b"origin", b"https://evil.example", 403)]
    )
    def test_changes_headers_in_their_place(self, protocol: Any, name: bytes, value: bytes, status: int) -> None:
        async def change(scope: Any, receive: Any, send: Any) -> None:
            scope["headers"][:] = [each for each in scope["headers"] if each[0] != name] + [(name, value)]
            await app(scope, receive, send)

        got = both(protocol, [A, A], change)
        assert [each.startswith(b"HTTP/1.1 %d" % status) for each in got] == [True, True]
        assert protocol.repeated == [False, True]

    def test_changes_the_body(self, protocol: Any) -> None:
        async def change(scope: Any, receive: Any, send: Any) -> None:
            async def changed() -> Any:
                message = await receive()
                return {**message, "body": message["body"].replace(b"one", b"two")}

            await app(scope, changed, send)

        assert all(b"two" in each for each in both(protocol, [A, A], without_lifespan(change)))
        assert protocol.repeated == [False, True]

    def test_changes_the_response(self, protocol: Any) -> None:
        async def change(scope: Any, receive: Any, send: Any) -> None:
            async def changed(message: Any) -> None:
                await send(
                    {**message, "body": b"two"} if message["type"] == "http.response.body" else shortened(message)
                )

            await app(scope, receive, changed)

        def shortened(message: Any) -> Any:
            headers = [each for each in message["headers"] if each[0] != b"content-length"]
            return {**message, "headers": [*headers, (b"content-length", b"3")]}

        assert all(each.endswith(b"two") for each in both(protocol, [A, A], without_lifespan(change)))
        assert protocol.repeated == [False, True]


class TestApplicationsThatFail:
    @pytest.mark.parametrize("how", ["raises", "says nothing", "returns something", "leaves the rest out"])
    def test_are_dealt_with_as_by_uvicorn(self, protocol: Any, how: str, caplog: pytest.LogCaptureFixture) -> None:
        async def fail(scope: Any, receive: Any, send: Any) -> Any:
            body = (await receive())["body"]
            if b"fail" in body and how == "raises":
                raise ValueError("no")
            if b"fail" in body and how == "says nothing":
                return None
            await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]})
            if b"fail" not in body or how == "returns something":
                await send({"type": "http.response.body", "body": b"ok"})
            return 1 if b"fail" in body else None

        both(protocol, [A, A, call("fail")], fail, lifespan="off", log_level="error", log_config=None)
        assert protocol.repeated == [False, True, True]
        said = [record.message.strip() for record in caplog.records if record.name == "uvicorn.error"]
        assert len(said) == 2
        assert said[0] == said[1]


class TestLimits:
    def test_of_connections_hold_for_heads_that_are_known(self, protocol: Any) -> None:
        with in_thread(app, http=protocol, limit_concurrency=2, log_level="critical") as port:
            with socket.create_connection(("127.0.0.1", port), TIMEOUT) as connection:
                for _ in range(2):
                    connection.sendall(A)
                    assert read(connection).startswith(b"HTTP/1.1 200")
                with socket.create_connection(("127.0.0.1", port), TIMEOUT):
                    wait_until(lambda: len(protocol.made) == 2, "the other connection")
                    connection.sendall(A)
                    assert read(connection).startswith(b"HTTP/1.1 503")
        assert protocol.repeated == [False, True, False]

    def test_of_what_is_kept(self, protocol: Any) -> None:
        with in_thread(app, http=protocol) as port:
            converse(port, [call("one", name=f"number{number}") for number in range(LESSONS)])
            assert protocol.kept == [min(number, MOST_HEADS) for number in range(1, LESSONS + 1)]
            protocol.kept.clear()
            converse(port, [call("one", "X-Long: " + "x" * LONGEST_HEAD)] * 2)
            assert protocol.kept == [0, 0]

    def test_of_heads_that_never_come_again(self, protocol: Any) -> None:
        always_new = [call("one", name=f"number{number}") for number in range(LESSONS)]
        with in_thread(app, http=protocol) as port:
            converse(port, [*always_new, A, A])
            assert not any(protocol.repeated)
            protocol.repeated.clear()
            converse(port, [*always_new[:-1], A, A, *always_new, A])
            assert protocol.repeated == [False] * LESSONS + [True] + [False] * (LESSONS + 1)

    def test_of_idle_connections_hold(self, protocol: Any) -> None:
        with (
            in_thread(app, http=protocol, timeout_keep_alive=IDLE) as port,
            socket.create_connection(("127.0.0.1", port), TIMEOUT) as connection,
        ):
            for _ in range(3):
                last = time.monotonic()
                connection.sendall(A)
                read(connection)
            assert connection.recv(1) == b""
            assert time.monotonic() - last > IDLE * 0.9

    @pytest.mark.parametrize("body", [body_of("one"), '{"jsonrpc":"2.0","method":"notifications/initialized"}'])
    def test_of_a_server_that_drains_end_the_connection(self, protocol: Any, body: str) -> None:
        packet = call("one", length=f"{len(body)}").replace(body_of("one").encode(), body.encode())
        got = []
        for served_by in (protocol, HttpToolsProtocol):
            server = MRTRServer("draining")
            server.tool(say)
            with (
                in_thread(server, http=served_by) as port,
                socket.create_connection(("127.0.0.1", port), TIMEOUT) as connection,
            ):
                for _ in range(2):
                    connection.sendall(packet)
                    assert b"connection: close" not in read(connection)
                server.drain()
                connection.sendall(packet)
                got.append(read(connection))
                assert connection.recv(1) == b""
        assert all(b"connection: close" in each for each in got)
        assert len({each.partition(b" ")[2][:3] for each in got}) == 1
        assert protocol.repeated == [False, True, True]

    def test_of_a_server_that_is_not_set_up_any_more_hold(self, protocol: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("MRTR_WORKERS", "2")
        server = MRTRServer("several", keys=[bytes(32)])
        server.tool(say)
        with (
            in_thread(server, http=protocol, log_level="critical") as port,
            socket.create_connection(("127.0.0.1", port), TIMEOUT) as connection,
        ):
            for _ in range(2):
                connection.sendall(A)
                assert read(connection).startswith(b"HTTP/1.1 200")
            server.tool(name="once", single_use=True)(say)  # which needs a store that both workers share
            connection.sendall(A)
            assert read(connection).startswith(b"HTTP/1.1 500")
        assert protocol.repeated == [False, True, True]

    def test_of_a_shutdown_close_what_a_known_head_has_begun(self, protocol: Any) -> None:
        begun, go = [], asyncio.Event()

        class ShutDown(protocol):  # type: ignore[misc]
            def shutdown(self) -> None:
                super().shutdown()
                go.set()

        async def slow(scope: Any, receive: Any, send: Any) -> None:
            begun.append(scope)
            if len(begun) > 1:
                await go.wait()
            await app(scope, receive, send)

        with in_thread(without_lifespan(slow), http=ShutDown, timeout_graceful_shutdown=int(TIMEOUT)) as port:
            connection = socket.create_connection(("127.0.0.1", port), TIMEOUT)
            connection.sendall(A)
            read(connection)
            connection.sendall(A)
            wait_until(lambda: len(begun) == 2, "the second request")
        with connection:
            got = read(connection)
            assert got.startswith(b"HTTP/1.1 200")
            assert b"connection: close" in got
            assert connection.recv(1) == b""


def test_a_loop_with_a_task_factory_begins_requests_as_uvicorn_does(protocol: Any) -> None:
    async def with_factory(scope: Any, receive: Any, send: Any) -> None:
        plain: Any = lambda loop, work, **how: asyncio.Task(work, loop=loop, **how)  # noqa: E731
        asyncio.get_running_loop().set_task_factory(plain)
        await app(scope, receive, send)

    both(protocol, [A, LONGER, A], with_factory, lifespan="off")
    assert not any(protocol.repeated)


class TestTheLog:
    def test_of_accesses_is_uvicorns(self, protocol: Any, caplog: pytest.LogCaptureFixture) -> None:
        with caplog.at_level("INFO", "uvicorn.access"):
            both(protocol, [A, A], access_log=True, log_level="info", log_config=None)
        assert len([line for line in caplog.messages if '"POST /mcp HTTP/1.1" 200' in line]) == 4
        assert protocol.repeated == [False, True]


class TestDirectCalls:
    """What stands around the application is left out only where it would do nothing."""

    def test_leave_out_what_does_nothing(self, protocol: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        assert self.seen_by(ProxyHeadersMiddleware, protocol, monkeypatch) == 1

    def test_leave_out_nothing_of_a_server_that_is_instrumented(
        self, protocol: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        assert self.seen_by(MRTRServer, protocol, monkeypatch) == 3

    def test_leave_out_no_other_way_to_call_a_server(self, protocol: Any) -> None:
        seen = []

        class Around(MRTRServer):
            async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
                seen.append(scope)
                await super().__call__(scope, receive, send)

        class PassingOn:
            def __init__(self, served: Any) -> None:
                self.served = served

            def __getattr__(self, name: str) -> Any:
                return getattr(self.served, name)

            async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
                seen.append(scope)
                await self.served(scope, receive, send)

        around = Around("around")
        around.tool(say)
        for served in (around, PassingOn(app)):
            seen.clear()
            both(protocol, [A, A, LONGER], served, lifespan="off")
            assert len(seen) == 6

    def test_leave_out_no_middleware_for_proxies_that_is_another(
        self, protocol: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(heads, "_PASSES_ON", False)
        assert self.seen_by(ProxyHeadersMiddleware, protocol, monkeypatch) == 3

    def seen_by(self, kind: Any, protocol: Any, monkeypatch: pytest.MonkeyPatch) -> int:
        """Return how many of three requests are seen by a class that is instrumented."""
        seen, plain = [], kind.__call__

        async def instrumented(self: Any, scope: Any, receive: Any, send: Any) -> None:
            if scope["type"] == "http":
                seen.append(scope)
            await plain(self, scope, receive, send)

        monkeypatch.setattr(kind, "__call__", instrumented)
        with in_thread(app, http=protocol) as port:
            converse(port, [A, A, LONGER])
        assert protocol.repeated[-3:] == [False, True, True]
        return len(seen)
