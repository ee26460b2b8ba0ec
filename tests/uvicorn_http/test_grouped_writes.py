"""Responses that are ready shortly after one another go out together, and none is lost, late or out of order."""

import asyncio
import gc
import json
import socket
import threading
import weakref
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from mrtr_server import Context, MRTRServer
from mrtr_server.uvicorn_http import grouped_writes
from mrtr_server.uvicorn_http.grouped_writes import LARGEST_GROUP, Group, GroupedTransport, group_here
from mrtr_server.uvicorn_http.one_write import one_write

from ..support.serving import TIMEOUT, in_thread
from ..support.wire import text_of

BOTH = pytest.mark.parametrize("protocol", [one_write(HttpToolsProtocol), HttpToolsProtocol], ids=["ours", "uvicorns"])
ONE_AFTER_ANOTHER = LARGEST_GROUP - 1
"""How many responses can wait for one more."""


@pytest.fixture
def always_shortly(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have every response be ready shortly after the one before, however busy the machine is."""
    monkeypatch.setattr(grouped_writes, "SHORTLY", float("inf"))


class Client:
    """The other end of a transport: what has been written is there at once."""

    def __init__(self, end: socket.socket) -> None:
        end.setblocking(False)
        self.end = end

    def has(self) -> bytes:
        """Return what has come since the last time."""
        try:
            return self.end.recv(1000)
        except BlockingIOError:
            return b"nothing"


@asynccontextmanager
async def connections(count: int, group: Group | None = None) -> AsyncIterator[list[tuple[GroupedTransport, Client]]]:
    """Open connections whose responses are of one group."""
    loop = asyncio.get_running_loop()
    opened: list[tuple[GroupedTransport, Client]] = []
    for _ in range(count):
        ours, theirs = socket.socketpair()
        real, _ = await loop.create_connection(asyncio.Protocol, sock=ours)
        opened.append((GroupedTransport(real, group or group_here()), Client(theirs)))
    try:
        yield opened
    finally:
        for transport, client in opened:
            transport.transport.abort()
            client.end.close()
        await asyncio.sleep(0)


@pytest.mark.anyio
async def test_a_response_after_a_while_is_written_at_once() -> None:
    async with connections(1) as [(transport, client)]:
        transport.write_response(b"first")
        assert client.has() == b"first"
        await asyncio.sleep(2 * grouped_writes.SHORTLY)
        transport.write_response(b"second")
        assert client.has() == b"second"


@pytest.mark.anyio
async def test_responses_shortly_after_one_another_wait_for_the_end_of_the_turn(always_shortly: None) -> None:
    async with connections(2) as [(one, client), (other, other_client)]:
        one.write_response(b"one")
        other.write_response(b"other")
        assert (client.has(), other_client.has()) == (b"nothing", b"nothing")
        await asyncio.sleep(0)
        assert (client.has(), other_client.has()) == (b"one", b"other")


@pytest.mark.anyio
async def test_a_full_group_goes_out_at_once(always_shortly: None) -> None:
    async with connections(LARGEST_GROUP) as opened:
        for transport, client in opened[:-1]:
            transport.write_response(b"held")
            assert client.has() == b"nothing"
        opened[-1][0].write_response(b"last")
        assert [client.has() for _, client in opened] == [*[b"held"] * ONE_AFTER_ANOTHER, b"last"]


@pytest.mark.anyio
async def test_a_slow_handler_holds_up_no_response_longer_than_it_computes(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr(grouped_writes, "monotonic", lambda: now)
    async with connections(3) as [(first, _), (quick, quick_client), (slow, slow_client)]:
        first.write_response(b"first")
        now += grouped_writes.SHORTLY / 2
        quick.write_response(b"quick")
        assert quick_client.has() == b"nothing"
        now += 2 * grouped_writes.SHORTLY
        slow.write_response(b"slow")
        assert (quick_client.has(), slow_client.has()) == (b"quick", b"slow")


@pytest.mark.anyio
async def test_what_comes_next_on_a_connection_goes_behind_its_response(always_shortly: None) -> None:
    async with connections(1) as [(transport, client)]:
        transport.write_response(b"response,")
        transport.write(b"next")
        assert client.has() == b"response,next"
        transport.write(b"more")
        assert client.has() == b"more"
        await asyncio.sleep(0)
        assert client.has() == b"nothing"


@pytest.mark.anyio
async def test_two_responses_on_one_connection_keep_their_order(always_shortly: None) -> None:
    async with connections(1) as [(transport, client)]:
        transport.write_response(b"one,")
        transport.write_response(b"two")
        await asyncio.sleep(0)
        assert client.has() == b"one,two"


@pytest.mark.anyio
async def test_a_connection_that_is_closed_takes_its_response_along(always_shortly: None) -> None:
    async with connections(1) as [(transport, client)]:
        transport.write_response(b"response")
        transport.close()
        assert client.has() == b"response"
        assert transport.is_closing()


@pytest.mark.anyio
async def test_a_connection_that_was_cut_leaves_the_others_their_responses(always_shortly: None) -> None:
    async with connections(2) as [(cut, cut_client), (other, client)]:
        cut.write_response(b"lost")
        other.write_response(b"kept")
        cut.abort()
        await asyncio.sleep(0)
        assert (cut_client.has(), client.has()) == (b"", b"kept")


def test_each_event_loop_has_a_group_and_is_not_kept_by_it() -> None:
    async def find() -> Group:
        return group_here()

    loops = [asyncio.new_event_loop(), asyncio.new_event_loop()]
    one, other = (loop.run_until_complete(find()) for loop in loops)
    assert one is loops[0].run_until_complete(find()) is not other

    async def use() -> None:
        async with connections(1, one) as [(transport, _)]:
            transport.write_response(b"response")

    loops[0].run_until_complete(use())
    kept = [weakref.ref(loop) for loop in loops]
    while loops:
        loops.pop().close()
    asyncio.run(find())  # or this thread still knows the loop that ran last
    gc.collect()
    assert [loop() for loop in kept] == [None, None]


app = MRTRServer("grouped")


@app.tool
async def say(text: str) -> str:
    return text


@app.tool
async def stream(text: str, ctx: Context) -> str:
    await ctx.progress(1)
    return text


def request(tool: str, text: str, last: str = "") -> bytes:
    meta = {
        "io.modelcontextprotocol/protocolVersion": "2026-07-28",
        "io.modelcontextprotocol/clientInfo": {"name": "test", "version": "1"},
        "io.modelcontextprotocol/clientCapabilities": {},
        "progressToken": "p",
    }
    params = {"name": tool, "arguments": {"text": text}, "_meta": meta}
    body = json.dumps({"jsonrpc": "2.0", "id": text, "method": "tools/call", "params": params})
    head = (
        "POST /mcp HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        "Accept: application/json, text/event-stream\r\nMCP-Protocol-Version: 2026-07-28\r\n"
        f"Mcp-Method: tools/call\r\nMcp-Name: {tool}\r\n{last}Content-Length: {len(body)}\r\n\r\n"
    )
    return (head + body).encode()


def exchange(port: int, data: bytes) -> bytes:
    """Send requests in one piece, the last of which closes the connection; return all that comes back."""
    with socket.create_connection(("127.0.0.1", port), timeout=TIMEOUT) as client:
        client.sendall(data)
        parts: list[bytes] = []
        while part := client.recv(65536):
            parts.append(part)
    return b"".join(parts)


def said(response: bytes) -> list[str]:
    """Return the texts that calls returned, in order."""
    decoder = json.JSONDecoder()
    text = response.decode()
    starts = [place for place in range(len(text)) if text.startswith('{"jsonrpc"', place)]
    messages: list[Any] = [decoder.raw_decode(text, start)[0] for start in starts]
    return [text_of(message) for message in messages if "result" in message]


@BOTH
def test_pipelined_requests_get_their_responses_in_order(always_shortly: None, protocol: Any) -> None:
    close = "Connection: close\r\n"
    with in_thread(app, http=protocol) as port:
        for last in ("say", "stream"):
            sent = request("say", "a") + request("stream", "b") + request("say", "c") + request(last, "d", close)
            assert said(exchange(port, sent)) == ["a", "b", "c", "d"]


@BOTH
def test_a_request_that_uvicorn_refuses_goes_behind_the_response_before(always_shortly: None, protocol: Any) -> None:
    with in_thread(app, http=protocol) as port, socket.create_connection(("127.0.0.1", port), TIMEOUT) as client:
        for number in range(20):
            client.sendall(request("say", str(number)))
            assert said(client.recv(65536)) == [str(number)]
        client.sendall(b"no request\r\n\r\n")
        assert client.recv(65536).startswith(b"HTTP/1.1 400 ")


@BOTH
def test_a_server_that_ends_has_written_every_response(always_shortly: None, protocol: Any) -> None:
    clients: list[socket.socket] = []
    with in_thread(app, http=protocol) as port:
        for number in range(ONE_AFTER_ANOTHER):
            clients.append(socket.create_connection(("127.0.0.1", port), TIMEOUT))
            clients[-1].sendall(request("say", str(number)))
        got = [client.recv(65536) for client in clients]
    assert [said(each) for each in got] == [[str(number)] for number in range(ONE_AFTER_ANOTHER)]
    for client in clients:
        assert client.recv(1) == b""
        client.close()


@BOTH
def test_many_callers_at_once_each_get_their_own_response(protocol: Any) -> None:
    wrong: list[Any] = []

    def call(port: int, name: str) -> None:
        with socket.create_connection(("127.0.0.1", port), TIMEOUT) as client:
            for number in range(50):
                client.sendall(request("say", f"{name} {number}"))
                got = said(client.recv(65536))
                if got != [f"{name} {number}"]:
                    wrong.append(got)

    with in_thread(app, http=protocol) as port:
        callers = [threading.Thread(target=call, args=(port, f"caller {number}")) for number in range(12)]
        for caller in callers:
            caller.start()
        for caller in callers:
            caller.join(TIMEOUT)
    assert not wrong
    assert not any(caller.is_alive() for caller in callers)
