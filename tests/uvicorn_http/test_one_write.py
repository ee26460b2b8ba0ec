"""uvicorn with head and body in one write: the same bytes as from uvicorn alone, and heads that nothing follows."""

import re
import socket
from collections.abc import Iterator
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route, WebSocketRoute
from starlette.websockets import WebSocket
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from websockets.sync.client import connect

from mrtr_server.uvicorn_http.one_write import OneWriteProtocol, one_write

from ..support.serving import TIMEOUT, in_thread

BASES = [pytest.param(HttpToolsProtocol, id="httptools"), pytest.param(H11Protocol, id="h11")]


class Recorder:
    """A transport that keeps each write."""

    def __init__(self, transport: Any, writes: list[bytes]) -> None:
        self.transport = transport
        self.writes = writes

    def write(self, data: bytes) -> None:
        self.writes.append(data)
        self.transport.write(data)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.transport, name)


def recording(protocol: Any, writes: list[bytes]) -> Any:
    """Return a protocol whose writes are kept."""

    class Recorded(protocol):  # type: ignore[misc]
        def connection_made(self, transport: Any) -> None:
            super().connection_made(Recorder(transport, writes))

    return Recorded


async def plain(request: Request) -> Response:
    await request.body()
    return PlainTextResponse("hello")


async def empty(request: Request) -> Response:
    return Response(b"")


async def without_content(request: Request) -> Response:
    return Response(status_code=204)


async def stream(request: Request) -> Response:
    async def parts() -> Any:
        yield b"one"
        yield b"two"

    return StreamingResponse(parts())


async def in_parts(scope: Any, receive: Any, send: Any) -> None:
    """Respond with a known length, in two parts."""
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"6")]})
    await send({"type": "http.response.body", "body": b"one", "more_body": True})
    await send({"type": "http.response.body", "body": b"two"})


async def broken(scope: Any, receive: Any, send: Any) -> None:
    """End after the head."""
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"6")]})


async def echo(socket: WebSocket) -> None:
    await socket.accept()
    await socket.send_text(await socket.receive_text())
    await socket.close()


app = Starlette(
    routes=[
        Route("/plain", plain, methods=["GET", "POST", "HEAD"]),
        Route("/empty", empty),
        Route("/nothing", without_content),
        Route("/stream", stream),
        WebSocketRoute("/socket", echo),
    ]
)


async def site(scope: Any, receive: Any, send: Any) -> None:
    raw = {"/parts": in_parts, "/broken": broken}.get(scope.get("path", ""))
    await (raw or app)(scope, receive, send)


def exchange(port: int, request: bytes) -> bytes:
    """Send bytes, and return all that comes until the server closes."""
    with socket.create_connection(("127.0.0.1", port), TIMEOUT) as connection:
        connection.sendall(request)
        return b"".join(iter(lambda: connection.recv(65536), b""))


def request(path: str, method: str = "GET", *more: str) -> bytes:
    lines = [f"{method} {path} HTTP/1.1", "Host: x", *more]
    return "\r\n".join([*lines, "", ""]).encode()


LAST = "Connection: close"


@pytest.mark.parametrize("base", BASES)
class TestTheBytes:
    """What the client gets is what uvicorn alone would send."""

    @pytest.mark.parametrize(
        ("requests", "writes"),
        [
            pytest.param(request("/plain", "GET", LAST), 1, id="a body"),
            pytest.param(request("/empty", "GET", LAST), 1, id="a body of no bytes"),
            pytest.param(request("/nothing", "GET", LAST), 1, id="no body"),
            pytest.param(request("/plain", "HEAD", LAST), 1, id="HEAD"),
            pytest.param(request("/missing", "GET", LAST), 1, id="an error"),
            pytest.param(request("/parts", "GET", LAST), 2, id="a body in two parts"),
            pytest.param(request("/plain") + request("/plain", "GET", LAST), 2, id="pipelined"),
            pytest.param(
                request("/plain", "POST", "Content-Length: 2", "Expect: 100-continue", LAST) + b"{}", 2, id="Expect"
            ),
            pytest.param(b"nonsense\r\n\r\n", None, id="no HTTP, which h11 refuses without a length"),
        ],
    )
    def test_are_uvicorns_in_fewer_writes(self, base: Any, requests: bytes, writes: int | None) -> None:
        got, made = {}, {}
        for name, protocol in (("theirs", base), ("ours", one_write(base))):
            made[name] = list[bytes]()
            with in_thread(site, http=recording(protocol, made[name])) as port:
                got[name] = re.sub(rb"date: [^\r]*", b"date: now", exchange(port, requests))
        assert got["ours"] == got["theirs"]
        assert got["ours"]
        assert writes in (None, len([each for each in made["ours"] if each]))

    def test_of_a_stream_begin_with_the_head_at_once(self, base: Any) -> None:
        made: list[bytes] = []
        with in_thread(site, http=recording(one_write(base), made)) as port:
            got = exchange(port, request("/stream", "GET", LAST))
        assert got.endswith(b"3\r\none\r\n3\r\ntwo\r\n0\r\n\r\n")
        head, first = made[0], made[1]
        assert head.endswith(b"\r\n\r\n")
        assert b"one" in first

    def test_of_an_application_that_ends_after_the_head_are_its_head(self, base: Any) -> None:
        with in_thread(site, http=one_write(base), log_level="critical") as port:
            assert exchange(port, request("/broken")).startswith(b"HTTP/1.1 200 ")

    def test_of_a_web_socket_pass_through(self, base: Any) -> None:
        with (
            in_thread(site, http=one_write(base), ws="websockets-sansio") as port,
            connect(f"ws://127.0.0.1:{port}/socket") as client,
        ):
            client.send("hello")
            assert client.recv(timeout=TIMEOUT) == "hello"


class TestTheName:
    """`--http mrtr_server.uvicorn_http.one_write:OneWriteProtocol` works with any uvicorn."""

    @pytest.fixture
    def port(self) -> Iterator[int]:
        with in_thread(site, http="mrtr_server.uvicorn_http.one_write:OneWriteProtocol") as port:
            yield port

    def test_is_taken_by_uvicorn(self, port: int) -> None:
        assert exchange(port, request("/plain", "GET", LAST)).endswith(b"hello")
        assert issubclass(OneWriteProtocol, HttpToolsProtocol)

    def test_stands_for_uvicorns_own_where_that_is_unknown(self) -> None:
        class Unknown:
            def connection_made(self, transport: Any) -> None: ...

        assert one_write(Unknown) is Unknown
