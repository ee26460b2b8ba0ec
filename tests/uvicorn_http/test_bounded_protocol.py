"""A request is bounded in its head, its body and its trailers, in size and in time, with httptools and with h11."""

import asyncio
import json
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import closing, suppress
from typing import Any

import httpx
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Mount, Route, WebSocketRoute
from starlette.websockets import WebSocket
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from websockets.sync.client import connect

from mrtr_server import MRTRServer
from mrtr_server.uvicorn_http import bounded_protocol
from mrtr_server.uvicorn_http.bounded_protocol import BoundedProtocol, bounded
from mrtr_server.uvicorn_http.heads import RepeatedHeads
from mrtr_server.uvicorn_http.one_write import one_write

from ..support.serving import TIMEOUT, in_thread

SHORT = 0.5
"""How long a head, or nothing of a body, may take where it takes longer, in seconds."""

LONGER = 2.0
"""The same where the client keeps it, in seconds: more than a busy machine pauses."""

mcp = MRTRServer("bounded", keys=[bytes(32)])


async def headers_of(request: Request) -> Response:
    body = await request.body()
    return JSONResponse({"names": [name for name, _ in request.headers.items()], "size": len(body)})


async def refuse(request: Request) -> Response:
    return Response("refused", status_code=401)


async def echo(socket: WebSocket) -> None:
    await socket.accept()
    async for text in socket.iter_text():
        await socket.send_text(text)


app = Starlette(
    routes=[
        Route("/headers", headers_of, methods=["POST"]),
        Route("/refused", refuse, methods=["POST"]),
        WebSocketRoute("/socket", echo),
        Mount("/", mcp),
    ],
    lifespan=mcp.running,
)


@pytest.fixture(params=[HttpToolsProtocol, H11Protocol], ids=["httptools", "h11"])
def protocol(request: pytest.FixtureRequest) -> Any:
    return bounded(one_write(request.param))


@pytest.fixture
def serving(protocol: Any) -> Iterator[int]:
    """A server whose times are too long to end within a test."""
    yield from serve(protocol, TIMEOUT)


@pytest.fixture
def impatient(protocol: Any) -> Iterator[int]:
    """A server for requests that take too long."""
    yield from serve(protocol, SHORT, timeout_keep_alive=3)


@pytest.fixture
def patient(protocol: Any) -> Iterator[int]:
    """A server for requests that take their time, and not too long."""
    yield from serve(protocol, LONGER)


def serve(protocol: Any, seconds: float, **options: Any) -> Iterator[int]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(bounded_protocol, "HEAD_SECONDS", seconds)
        patch.setattr(bounded_protocol, "BODY_SECONDS", seconds)
        with in_thread(app, http=protocol, ws="websockets-sansio", **options) as port:
            yield port


def opened(port: int) -> "closing[socket.socket]":
    return closing(socket.create_connection(("127.0.0.1", port), timeout=TIMEOUT))


def head(path: str, *more: str) -> bytes:
    return "\r\n".join([f"POST {path} HTTP/1.1", "host: x", *more, "", ""]).encode()


def send_slowly(connection: socket.socket, part: bytes, every: float, times: int) -> int:
    """Send the same again and again; return how often, until the server closes the connection."""
    connection.settimeout(every)
    for number in range(times):
        try:
            connection.sendall(part)
            while connection.recv(4096):
                pass
        except TimeoutError:
            continue
        except ConnectionError:
            pass
        return number
    return times


class TestHeads:
    def test_that_never_end_are_refused_before_they_fill_the_memory(self, serving: int) -> None:
        with opened(serving) as connection:
            connection.sendall(b"GET /health HTTP/1.1\r\nhost: x\r\n")
            received = b""
            for number in range(100):
                try:
                    connection.sendall(b"x-%d: %s\r\n" % (number, b"y" * 1024))
                except ConnectionError:
                    break
                time.sleep(0.002)  # so that they come in several packets
            try:
                received = connection.recv(4096)
            except ConnectionError:
                received = b"reset"
        assert received.startswith((b"HTTP/1.1 431", b"HTTP/1.1 400")) or received == b"reset"

    @pytest.mark.parametrize("sent", [b"", b"GET /hea", b"GET /health HTTP/1.1\r\nhost: x\r\n\r\nGET /hea"])
    def test_that_do_not_end_in_time_end_the_connection(self, impatient: int, sent: bytes) -> None:
        with opened(impatient) as connection:
            connection.sendall(sent)
            received = b""
            while part := connection.recv(4096):
                received += part
        assert (b"200 OK" in received) == (b"host" in sent)

    @pytest.mark.parametrize("part", [b"x", b"\r\n"], ids=["of a head", "of line ends"])
    def test_that_come_byte_by_byte_after_a_request_end_the_connection(self, impatient: int, part: bytes) -> None:
        with opened(impatient) as connection:
            connection.sendall(b"GET /health HTTP/1.1\r\nhost: x\r\n\r\n")
            assert b"200 OK" in connection.recv(4096)
            assert send_slowly(connection, part, SHORT / 5, 50) < 50

    def test_that_never_end_write_into_no_other_response(self) -> None:
        protocol = bounded(one_write(HttpToolsProtocol))  # with h11, nothing is read while a response is under way
        waiting = MRTRServer("waits", keys=[bytes(32)])
        begun = threading.Event()

        @waiting.tool
        async def wait() -> str:
            begun.set()
            await asyncio.Event().wait()
            return "never"

        asked = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "wait", "arguments": {}}}
        body = json.dumps(asked).encode()
        received = b""
        with in_thread(waiting, http=protocol) as port, opened(port) as connection:
            connection.sendall(head("/mcp", "content-type: application/json", f"content-length: {len(body)}") + body)
            assert begun.wait(TIMEOUT)
            with suppress(ConnectionError):
                connection.sendall(b"GET /health HTTP/1.1\r\nhost: x\r\n")
                for number in range(40):
                    connection.sendall(b"x-%d: %s\r\n" % (number, b"y" * 1024))
                    time.sleep(0.002)  # so that they come in several packets
            with suppress(ConnectionError):
                received = connection.recv(4096)
        assert received == b""

    def test_that_are_large_and_within_the_bound_are_served(self, serving: int) -> None:
        headers = {f"x-{number}": "y" * 1000 for number in range(20)}
        response = httpx.get(f"http://127.0.0.1:{serving}/health", headers=headers, trust_env=False, timeout=TIMEOUT)
        assert response.status_code == 200

    def test_may_come_as_late_as_they_like_after_a_response(self, patient: int) -> None:
        with httpx.Client(trust_env=False, timeout=TIMEOUT) as client:
            for _ in range(3):
                assert client.get(f"http://127.0.0.1:{patient}/health").status_code == 200
                time.sleep(LONGER * 0.8)


class TestBodies:
    @pytest.mark.parametrize("begun", [b"", b"{"])
    def test_that_do_not_go_on_end_the_connection(self, impatient: int, begun: bytes) -> None:
        with opened(impatient) as connection:
            connection.sendall(head("/mcp", "content-type: application/json", "content-length: 50") + begun)
            assert connection.recv(4096) == b""

    @pytest.mark.parametrize("how", ["content-length: 50000", "transfer-encoding: chunked"])
    @pytest.mark.parametrize("path", ["/headers", "/refused"])
    def test_that_come_byte_by_byte_end_the_connection(self, impatient: int, path: str, how: str) -> None:
        part = b"x" if "length" in how else b"1\r\nx\r\n"
        with opened(impatient) as connection:
            connection.sendall(head(path, how) + part)
            assert send_slowly(connection, part, SHORT / 5, 60) < 60

    def test_that_come_fast_enough_may_take_longer(self, protocol: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(bounded_protocol, "BODY_SECONDS", 2.0)
        with in_thread(app, http=protocol) as port, opened(port) as connection:
            connection.sendall(head("/headers", f"content-length: {6 * 1024}"))
            for _ in range(6):
                connection.sendall(b"x" * 1024)
                time.sleep(0.5)  # longer than the time of a small one in all
            assert b'"size":6144' in connection.recv(4096)

    def test_that_come_one_after_the_other_each_have_their_time(self, patient: int) -> None:
        with opened(patient) as connection:
            for _ in range(3):
                connection.sendall(head("/headers", "content-length: 2") + b"x")
                time.sleep(LONGER / 2)  # more than the time of one in all
                connection.sendall(b"y")
                assert b'"size":2' in connection.recv(4096)


class TestTrailers:
    """What follows a body in chunks: headers that came when the request was already under way."""

    chunked = head("/headers", "transfer-encoding: chunked") + b"3\r\nabc\r\n0\r\n"

    def test_are_no_headers_of_the_request(self, serving: int) -> None:
        with opened(serving) as connection:
            for _ in range(2):
                connection.sendall(self.chunked + b"authorization: Bearer x\r\nx-forwarded-for: 192.0.2.1\r\n\r\n")
                assert b'{"names":["host","transfer-encoding"],"size":3}' in connection.recv(4096)

    def test_are_none_of_a_request_that_is_pipelined(self, serving: int) -> None:
        received = b""
        with opened(serving) as connection:
            first = head("/headers", "content-length: 0")
            connection.sendall(first + self.chunked + b"authorization: Bearer x\r\n\r\n")
            while b'"size":3' not in received:
                received += connection.recv(4096) or b'end "size":3'
        assert b"authorization" not in received
        assert b"end" not in received

    @pytest.mark.parametrize("path", ["/headers", "/refused"])
    @pytest.mark.parametrize("name", [b"", b"x: "], ids=["many", "one"])
    def test_that_never_end_end_the_connection(self, serving: int, path: str, name: bytes) -> None:
        part = b"x: %b\r\n" % (b"y" * 1024) if not name else b"y" * 1024
        with opened(serving) as connection:
            connection.sendall(head(path, "transfer-encoding: chunked") + b"3\r\nabc\r\n0\r\n" + name)
            assert send_slowly(connection, part, 0.01, 500) < 500


class TestWebSockets:
    def test_of_other_routes_stay_open(self, patient: int) -> None:
        with connect(f"ws://127.0.0.1:{patient}/socket") as client:
            time.sleep(1.2 * LONGER)  # longer than a head may take
            client.send("hello")
            assert client.recv(timeout=TIMEOUT) == "hello"


def test_the_name_that_uvicorn_is_given_stands_for_a_class_with_all_of_it() -> None:
    with in_thread(app, http="mrtr_server.uvicorn_http.bounded_protocol:BoundedProtocol") as port:
        assert httpx.get(f"http://127.0.0.1:{port}/health", trust_env=False, timeout=TIMEOUT).status_code == 200
    assert issubclass(BoundedProtocol, RepeatedHeads)
