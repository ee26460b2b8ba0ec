"""A request that asks for another protocol is served as any other (RFC 9110, 7.8), and ends where it ends."""

import json
import re
import socket
import time
from typing import Any

import pytest
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from websockets.sync.client import connect

from mrtr_server.uvicorn_http.bounded_protocol import bounded
from mrtr_server.uvicorn_http.one_write import one_write

from ..support.serving import TIMEOUT, in_thread

BASES = [pytest.param(HttpToolsProtocol, id="httptools"), pytest.param(H11Protocol, id="h11")]

QUIET: Any = {"log_level": "critical", "lifespan": "off"}

H2C = ("Connection: Upgrade, HTTP2-Settings", "Upgrade: h2c", "HTTP2-Settings: AAEAAEAAAAIAAAAA")


async def app(scope: Any, receive: Any, send: Any) -> None:
    """Return what came: the method, the body, and the headers by name."""
    if scope["type"] == "websocket":
        await receive()
        await send({"type": "websocket.accept"})
        await send({"type": "websocket.send", "text": "hello"})
        await send({"type": "websocket.close"})
        return
    body, more = b"", True
    while more:
        message = await receive()
        body, more = body + message.get("body", b""), message.get("more_body", False)
    headers = {name.decode(): value.decode() for name, value in scope["headers"]}
    said = json.dumps([scope["method"], body.decode(), headers]).encode()
    length = str(len(said)).encode()
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", length)]})
    await send({"type": "http.response.body", "body": said})


def request(body: str = "", *more: str, version: str = "1.1") -> bytes:
    length = () if any("Transfer-Encoding" in each for each in more) else (f"Content-Length: {len(body)}",)
    return "\r\n".join([f"POST /mcp HTTP/{version}", "Host: x", *length, *more, "", body]).encode()


LAST = request("last", "Connection: close")


@pytest.fixture(scope="module", params=BASES)
def port(request: Any) -> Any:
    with in_thread(app, http=bounded(one_write(request.param)), ws="websockets-sansio", **QUIET) as port:
        yield port


def said(port: int, *packets: bytes) -> list[tuple[str, str]]:
    """Send packets over one connection, the last of which ends it; return the methods and the bodies that came."""
    return [(method, body) for method, body, _ in responses(port, *packets)]


def responses(port: int, *packets: bytes) -> list[Any]:
    with socket.create_connection(("127.0.0.1", port), TIMEOUT) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for packet in packets:
            connection.sendall(packet)
            time.sleep(0.02)  # or they could come together
        got = b"".join(iter(lambda: connection.recv(65536), b""))
    return [json.loads(each) for each in re.findall(rb"\r\n\r\n(\[.*?\}\])", got)]


ASKS = request("first", *H2C)


@pytest.mark.parametrize(
    "packets",
    [
        pytest.param([ASKS, LAST], id="in one packet"),
        pytest.param([ASKS[:-5], ASKS[-5:] + ASKS.replace(b"first", b"again"), LAST], id="another behind it"),
        pytest.param([ASKS[:-5], ASKS[-5:], LAST], id="head and body"),
        pytest.param([ASKS[:40], ASKS[40:-2], ASKS[-2:], LAST], id="cut anywhere"),
        pytest.param([ASKS + LAST], id="with the next one behind it"),
        pytest.param([ASKS[:-2], ASKS[-2:] + LAST], id="with the next one behind its last part"),
    ],
)
def test_its_body_is_read_and_the_next_request_too(port: int, packets: list[bytes]) -> None:
    assert [body for _, body in said(port, *packets) if body != "again"] == ["first", "last"]


def test_a_head_that_comes_again_means_the_same(port: int) -> None:
    assert said(port, ASKS, ASKS, ASKS, LAST) == [*[("POST", "first")] * 3, ("POST", "last")]


@pytest.mark.parametrize(
    "asking",
    [
        ("Connection: upgrade", "Upgrade: H2C"),
        ("Connection: Upgrade", "Upgrade: websocket, h2c"),
        ("Connection: keep-alive, Upgrade", "Upgrade: TLS/1.0"),
        ("Connection: keep-alive", "Connection: Upgrade", "Upgrade: h2c"),
        ("Connection: Upgrade", "Upgrade: IRC/6.9", "Expect: 100-continue"),
        ("Connection: Upgrade",),
        ("Upgrade: h2c",),
    ],
    ids=str,
)
def test_whatever_it_asks_for(port: int, asking: tuple[str, ...]) -> None:
    assert said(port, request("first", *asking), LAST) == [("POST", "first"), ("POST", "last")]


def test_chunks_are_read(port: int) -> None:
    chunks = request("5\r\nfirst\r\n0\r\n\r\n", "Transfer-Encoding: chunked", *H2C)
    assert said(port, chunks + LAST) == said(port, chunks, LAST) == [("POST", "first"), ("POST", "last")]


def test_one_without_a_body_is_served(port: int) -> None:
    got = said(
        port, request("", *H2C) + b"GET / HTTP/1.1\r\nHost: x\r\nUpgrade: h2c\r\nConnection: Upgrade\r\n\r\n" + LAST
    )
    assert got == [("POST", ""), ("GET", ""), ("POST", "last")]


def test_what_looks_like_a_request_in_its_body_is_none(port: int) -> None:
    assert said(port, request(LAST.decode(), *H2C) + LAST) == [("POST", LAST.decode()), ("POST", "last")]


def test_two_lengths_mean_what_they_mean_without_it(port: int) -> None:
    """httptools refuses them, and h11 takes the chunks: RFC 9112 allows both."""
    both = [
        request("5\r\nfirst\r\n0\r\n\r\n", "Transfer-Encoding: chunked", "Content-Length: 3", *asking) + LAST
        for asking in ((), H2C)
    ]
    without, asked = (said(port, each) for each in both)
    assert asked == without
    assert without in ([], [("POST", "first")], [("POST", "first"), ("POST", "last")])


def test_a_connection_that_is_to_end_ends(port: int) -> None:
    assert said(port, request("first", "Connection: close, Upgrade", "Upgrade: h2c")) == [("POST", "first")]
    assert said(port, request("first", "Connection: Upgrade", "Upgrade: h2c", version="1.0")) == [("POST", "first")]


def test_many_at_once_are_read_one_after_the_other(port: int) -> None:
    began = time.process_time()
    assert len(said(port, request("", *H2C) * 500 + LAST)) == 501
    assert time.process_time() - began < TIMEOUT


def test_applications_see_the_request_without_it() -> None:
    with in_thread(app, http=one_write(HttpToolsProtocol), **QUIET) as port:
        (_, _, headers), _ = responses(port, request("first", *H2C, "X-Mine: 1"), LAST)
    assert headers == {"host": "x", "content-length": "5", "x-mine": "1"}


def test_websockets_are_still_opened(port: int) -> None:
    with connect(f"ws://127.0.0.1:{port}/") as socket:
        assert socket.recv() == "hello"
