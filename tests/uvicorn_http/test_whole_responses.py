"""Responses that uvicorn takes as a whole: the same bytes as from uvicorn alone, and uvicorn's own way for all else."""

import json
import re
import socket
import time
from collections.abc import Iterator
from typing import Any

import pytest
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from mrtr_server import Context, Limits, MRTRServer
from mrtr_server.transport.web_server import find_shortcuts
from mrtr_server.uvicorn_http import heads, whole_responses
from mrtr_server.uvicorn_http.one_write import one_write
from mrtr_server.uvicorn_http.whole_responses import Cycle, is_known, respond_whole, write_part

from ..support.serving import TIMEOUT, in_thread

OURS = one_write(HttpToolsProtocol)
BOTH = pytest.mark.parametrize("protocol", [OURS, HttpToolsProtocol], ids=["ours", "uvicorns"])
LAST = "Connection: close"
CLOSE_HEADER = (b"connection", b"close")
IDLE = 3
"""How long servers keep idle connections where that is the rule, in seconds: more than a busy machine pauses."""

app = MRTRServer("whole", limits=Limits(body_bytes=10_000))


@app.tool
async def say(text: str, times: int = 1) -> str:
    return text * times


@app.tool
async def count(times: int, ctx: Context) -> str:
    for number in range(times):
        await ctx.progress(number, message="x" * 30)
    return "counted"


@pytest.fixture
def whole(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[bool]]:
    """Return a list that fills with what each `respond_whole` returned."""
    taken: list[bool] = []

    def counting(function: Any) -> Any:
        def counted(*of: Any) -> bool:
            taken.append(function(*of))
            return taken[-1]

        return counted

    monkeypatch.setattr(whole_responses, "respond_whole", counting(respond_whole))
    monkeypatch.setattr(Cycle, "respond_whole", counting(Cycle.respond_whole))
    find_shortcuts.cache_clear()
    yield taken
    find_shortcuts.cache_clear()


@pytest.fixture
def parts(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[bool]]:
    """Return a list that fills with what each `write_part` returned."""
    taken: list[bool] = []

    def counting(function: Any) -> Any:
        def counted(*args: Any, **named: Any) -> bool:
            taken.append(function(*args, **named))
            return taken[-1]

        return counted

    monkeypatch.setattr(whole_responses, "write_part", counting(write_part))
    find_shortcuts.cache_clear()
    yield taken
    find_shortcuts.cache_clear()


async def by_messages(scope: Any, receive: Any, send: Any) -> None:
    """Serve the application behind middleware, so that each response goes by messages."""

    async def passed_on(message: Any) -> None:
        await send(message)

    await app(scope, receive, passed_on)


def call(
    text: str, *more: str, method: str = "POST", path: str = "/mcp", version: str = "1.1", times: int = 1
) -> bytes:
    params = {"name": "say", "arguments": {"text": text, "times": times}}
    body = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params})
    lines = [f"{method} {path} HTTP/{version}", "Host: x", "Content-Type: application/json"]
    lines += [f"Content-Length: {len(body)}", *more, "", body]
    return "\r\n".join(lines).encode()


def counting(*more: str, times: int = 3) -> bytes:
    """Return a call whose response is a stream."""
    params = {"name": "count", "arguments": {"times": times}, "_meta": {"progressToken": "t"}}
    body = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params})
    lines = ["POST /mcp HTTP/1.1", "Host: x", "Content-Type: application/json", f"Content-Length: {len(body)}"]
    return "\r\n".join([*lines, "Accept: application/json, text/event-stream", *more, "", body]).encode()


def notice(*more: str) -> bytes:
    """Return a notification, whose response has no body."""
    body = '{"jsonrpc":"2.0","method":"notifications/initialized"}'
    lines = ["POST /mcp HTTP/1.1", "Host: x", "Content-Type: application/json", f"Content-Length: {len(body)}"]
    return "\r\n".join([*lines, *more, "", body]).encode()


def beginning(*more: str) -> bytes:
    """Return the request that begins a session, whose response has the session's id in a header."""
    params = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "x", "version": "1"}}
    body = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": params})
    lines = ["POST /mcp HTTP/1.1", "Host: x", "Content-Type: application/json", f"Content-Length: {len(body)}"]
    return "\r\n".join([*lines, *more, "", body]).encode()


def joined(response: bytes) -> bytes:
    """Return a response in chunks as it is without them; that its body ends is checked."""
    head, _, rest = response.partition(b"\r\n\r\n")
    body = b""
    while (size := int(rest.partition(b"\r\n")[0], 16)) > 0:
        rest = rest.partition(b"\r\n")[2]
        body, rest = body + rest[:size], rest[size + 2 :]
    assert rest == b"0\r\n\r\n"
    return head + b"\r\n\r\n" + body


def exchange(port: int, request: bytes) -> bytes:
    """Send bytes, and return all that comes until the server closes."""
    with socket.create_connection(("127.0.0.1", port), TIMEOUT) as connection:
        connection.sendall(request)
        return b"".join(iter(lambda: connection.recv(65536), b""))


def read_one(connection: socket.socket) -> bytes:
    """Return the body of one response."""
    head, _, body = connection.recv(65536).partition(b"\r\n\r\n")
    while len(body) < int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0]):
        body += connection.recv(65536)
    return body


def bytes_of(protocol: Any, request: bytes, server: Any = app, **options: Any) -> bytes:
    with in_thread(server, http=protocol, **options) as port:
        return re.sub(rb"(date|mcp-session-id): [^\r]*", rb"\1: one", exchange(port, request))


@BOTH
class TestTheBytes:
    @pytest.mark.parametrize(
        ("request_", "taken"),
        [
            pytest.param(call("one", LAST), [True], id="a call"),
            pytest.param(call("one") + call("two", LAST), [True], id="pipelined"),
            pytest.param(call("one", LAST, version="1.0"), [], id="HTTP 1.0"),
            pytest.param(call("one", LAST, "Expect: 100-continue"), [True], id="Expect"),
            pytest.param(call("one", LAST, path="/%6dcp"), [], id="an escaped path"),
            pytest.param(call("one", LAST, path="/mcp?a=%20b"), [True], id="a query"),
            pytest.param(call("one", LAST, path="http://x/mcp"), [True], id="an absolute address"),
            pytest.param(call("one", LAST, path="/elsewhere"), [], id="a path that is not there"),
            pytest.param(notice(LAST), [True], id="no body"),
            pytest.param(beginning(LAST), [True], id="a header of its own"),
            pytest.param(call("one", LAST, method="HEAD"), [False], id="HEAD"),
            pytest.param(call("one", LAST, method="PUT"), [True], id="a method that is not allowed"),
            pytest.param(call("one", LAST, method="DELETE"), [True], id="nothing to end"),
            pytest.param(call("x" * 20_000), [False], id="a body that is too large"),
            pytest.param(call("x", LAST, times=300_000), [], id="a long response"),
        ],
    )
    def test_are_uvicorns(self, protocol: Any, request_: bytes, taken: list[bool], whole: list[bool]) -> None:
        assert bytes_of(protocol, request_) == bytes_of(HttpToolsProtocol, request_, by_messages)
        assert whole[: len(taken)] == taken
        assert all(whole) == all(taken)

    def test_of_a_stream_are_uvicorns(self, protocol: Any, parts: list[bool]) -> None:
        ours = joined(bytes_of(protocol, counting(LAST)))
        assert parts
        assert all(parts)
        assert b"notifications/progress" in ours
        assert ours == joined(bytes_of(HttpToolsProtocol, counting(LAST), by_messages))

    def test_of_a_stream_on_a_connection_that_is_kept_end(self, protocol: Any, parts: list[bool]) -> None:
        with (
            in_thread(app, http=protocol) as port,
            socket.create_connection(("127.0.0.1", port), TIMEOUT) as connection,
        ):
            for _ in range(2):
                connection.sendall(counting())
                response = b""
                while not response.endswith(b"\r\n0\r\n\r\n"):
                    response += connection.recv(65536)
                assert b"counted" in joined(response)
        assert parts
        assert all(parts)

    def test_of_configured_headers_are_uvicorns(self, protocol: Any, whole: list[bool]) -> None:
        added = {"headers": [("X-Served-By", "one")]}
        assert bytes_of(protocol, call("one", LAST), **added) == bytes_of(
            HttpToolsProtocol, call("one", LAST), by_messages, **added
        )
        assert whole == [True]

    def test_of_headers_that_a_server_writes_itself_go_uvicorns_way(self, protocol: Any, whole: list[bool]) -> None:
        added = {"headers": [("Connection", "close")]}
        assert bytes_of(protocol, call("one"), **added) == bytes_of(
            HttpToolsProtocol, call("one"), by_messages, **added
        )
        assert whole == [False]

    @pytest.mark.parametrize("value", ["o\x01ne", "one\x7f"])
    def test_of_headers_that_no_response_may_have_go_uvicorns_way(
        self, protocol: Any, whole: list[bool], value: str
    ) -> None:
        added = {"headers": [("X-Served-By", value)]}
        assert bytes_of(protocol, call("one"), **added) == bytes_of(
            HttpToolsProtocol, call("one"), by_messages, **added
        )
        assert whole == [False]

    def test_without_any_header_of_the_server_are_uvicorns(self, protocol: Any, whole: list[bool]) -> None:
        bare = {"date_header": False, "server_header": False}
        assert bytes_of(protocol, call("one", LAST), **bare) == bytes_of(
            HttpToolsProtocol, call("one", LAST), by_messages, **bare
        )
        assert whole == [True]

    def test_pass_through_middleware(self, protocol: Any, whole: list[bool]) -> None:
        async def around(scope: Any, receive: Any, send: Any) -> None:
            async def adding(message: Any) -> None:
                if message["type"] == "http.response.start":
                    message["headers"] = [*message["headers"], (b"x-around", b"yes")]
                await send(message)

            await app(scope, receive, adding)

        assert b"x-around: yes" in bytes_of(protocol, call("one", LAST), around)
        assert whole == []


class TestConnections:
    def test_that_are_kept_serve_one_request_after_another(self, whole: list[bool]) -> None:
        with in_thread(app, http=OURS) as port, socket.create_connection(("127.0.0.1", port), TIMEOUT) as connection:
            for number in range(5):
                connection.sendall(call(f"number {number}"))
                assert f"number {number}".encode() in read_one(connection)
        assert whole == [True] * 5

    def test_take_a_request_in_parts(self) -> None:
        request = call("in parts", LAST)
        with in_thread(app, http=OURS) as port, socket.create_connection(("127.0.0.1", port), TIMEOUT) as connection:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            for part in (request[:20], request[20:-30], request[-30:-5], request[-5:]):
                connection.sendall(part)
                time.sleep(0.02)  # so that the parts come one by one; no rule depends on it
            assert b"in parts" in read_one(connection)

    def test_close_when_they_have_been_idle_for_long_enough_and_not_before(self) -> None:
        with (
            in_thread(app, http=OURS, timeout_keep_alive=IDLE) as port,
            socket.create_connection(("127.0.0.1", port), TIMEOUT) as connection,
        ):
            for _ in range(3):
                last = time.monotonic()
                connection.sendall(call("again"))
                assert b"again" in read_one(connection)
            assert connection.recv(1) == b""
            assert time.monotonic() - last > IDLE * 0.9

    @pytest.mark.parametrize("times", [1, 2])
    def test_close_after_line_ends_that_begin_no_request(self, times: int) -> None:
        with (
            in_thread(app, http=OURS, timeout_keep_alive=IDLE) as port,
            socket.create_connection(("127.0.0.1", port), TIMEOUT) as connection,
        ):
            for _ in range(times):
                connection.sendall(call("again"))
                assert b"again" in read_one(connection)
            connection.sendall(b"\r\n")
            assert connection.recv(1) == b""

    def test_close_when_nothing_more_comes_of_a_body_that_was_refused(self) -> None:
        head = b"POST /nowhere HTTP/1.1\r\nhost: x\r\ncontent-length: 50000\r\n\r\n"
        with (
            in_thread(app, http=OURS, timeout_keep_alive=IDLE) as port,
            socket.create_connection(("127.0.0.1", port), TIMEOUT) as connection,
        ):
            connection.sendall(head)
            assert b"Not found" in read_one(connection)
            connection.sendall(b"x")
            assert connection.recv(1) == b""

    def test_end_with_a_server_that_shuts_down(self) -> None:
        with in_thread(app, http=OURS, timeout_keep_alive=60) as port:
            connection = socket.create_connection(("127.0.0.1", port), TIMEOUT)
            connection.sendall(call("again"))
            assert b"again" in read_one(connection)
        with connection:
            assert connection.recv(1) == b""


class TestTheLog:
    def test_of_accesses_is_uvicorns(self, whole: list[bool], caplog: pytest.LogCaptureFixture) -> None:
        with caplog.at_level("INFO", "uvicorn.access"):
            bytes_of(OURS, call("one", LAST), access_log=True, log_level="info", log_config=None)
        assert [line for line in caplog.messages if '"POST /mcp HTTP/1.1" 200' in line]
        assert whole == [False]

    def test_of_accesses_has_streams(self, parts: list[bool], caplog: pytest.LogCaptureFixture) -> None:
        with caplog.at_level("INFO", "uvicorn.access"):
            bytes_of(OURS, counting(LAST), access_log=True, log_level="info", log_config=None)
        assert [line for line in caplog.messages if '"POST /mcp HTTP/1.1" 200' in line]
        assert not parts[0]


class TestAnotherUvicorn:
    def test_is_not_known_when_its_requests_are_made_in_another_way(self) -> None:
        class WithMore(RequestResponseCycle):
            def __init__(self, **of: Any) -> None:
                super().__init__(**of)
                self.more = True

        assert is_known(HttpToolsProtocol, RequestResponseCycle)
        assert not is_known(HttpToolsProtocol, WithMore)

    def test_is_not_known_when_it_closes_connections_in_another_way(self) -> None:
        class AsItSends(RequestResponseCycle):
            async def send(self, message: Any) -> None:
                if CLOSE_HEADER in self.scope["headers"]:
                    self.keep_alive = False
                await super().send(message)

        AsItSends.__init__ = RequestResponseCycle.__init__  # type: ignore[method-assign]
        assert not is_known(HttpToolsProtocol, AsItSends)

    def test_is_not_known_when_its_protocol_lacks_what_is_used(self) -> None:
        class WithLess:
            def __init__(self) -> None:
                self.scope = None

            def on_message_begin(self) -> None: ...

        assert not is_known(WithLess, RequestResponseCycle)
        assert heads.repeated_heads(WithLess) is WithLess
