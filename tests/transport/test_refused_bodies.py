"""Requests that are too large to be read: who ends a session at an HTTP error gets the error with the request's id."""

import asyncio
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mrtr_server import Limits, MRTRServer
from mrtr_server.protocol.envelope import ENDS, find_request_id

from ..support.direct import Exchange, scope_of
from ..support.wire import Reply

LIMIT = 4 * ENDS
LONG = "x" * (LIMIT + 1)
HANDSHAKE = [(b"content-type", b"application/json"), (b"mcp-protocol-version", b"2025-11-25")]
SESSION = [(b"content-type", b"application/json"), (b"mcp-session-id", b"x")]
MODERN = [(b"content-type", b"application/json"), (b"mcp-protocol-version", b"2026-07-28")]

app = MRTRServer("small", keys=[bytes(32)], limits=Limits(body_bytes=LIMIT, values=1_000))


def posted(body: bytes, headers: list[tuple[bytes, bytes]], *, size: int = 1_000, length: bool = False) -> Reply:
    """Return the reply to a body that comes in parts of a size."""
    named = [(b"content-length", str(len(body)).encode())] if length else []
    under_way = Exchange(app, scope_of([*headers, *named]))
    for begin in range(0, len(body), size):
        under_way.body(body[begin : begin + size], more=begin + size < len(body))
    return asyncio.run(under_way.end())


def call(id: Any = 7, text: str = LONG) -> bytes:
    params = {"name": "add", "arguments": {"text": text}}
    return json.dumps({"method": "tools/call", "params": params, "jsonrpc": "2.0", "id": id}).encode()


@pytest.mark.parametrize("headers", [HANDSHAKE, SESSION])
@pytest.mark.parametrize("length", [True, False])
@pytest.mark.parametrize("size", [10, LIMIT // 2, LIMIT * 9])
def test_is_told_to_the_request_itself(headers: list[tuple[bytes, bytes]], length: bool, size: int) -> None:
    reply = posted(call("a"), headers, size=size, length=length)
    assert (reply.status, reply.code, reply.message["id"]) == (200, -32600, "a")
    assert "connection" not in reply.headers, "nothing of it is left to be read"


def test_is_told_of_too_many_values_in_the_same_way() -> None:
    message = {"jsonrpc": "2.0", "id": 7, "method": "tools/list", "params": {"x": [0] * 1_500}}
    body = json.dumps(message, separators=(",", ":")).encode()
    reply = posted(body, HANDSHAKE)
    assert (reply.status, reply.code, reply.message["id"]) == (200, -32602, 7)
    assert posted(body, MODERN).status == 400


def test_is_413_where_clients_live_on_after_that() -> None:
    reply = posted(call(), MODERN)
    assert (reply.status, reply.headers["connection"]) == (413, "close")


def test_is_413_for_what_is_even_larger_than_is_read() -> None:
    reply = posted(call(text="x" * LIMIT * 9), HANDSHAKE, size=LIMIT)
    assert (reply.status, reply.headers["connection"]) == (413, "close")


def test_is_an_http_error_for_an_answer_which_has_no_reply() -> None:
    body = json.dumps({"jsonrpc": "2.0", "id": "q", "result": {"method": LONG, "content": {"method": "x"}}}).encode()
    assert posted(body, HANDSHAKE).status == 413


def test_has_no_reply_where_the_client_leaves_meanwhile() -> None:
    under_way = Exchange(app, scope_of(HANDSHAKE)).body(call()[: LIMIT + 1], more=True)
    under_way.disconnect()
    assert asyncio.run(under_way.end()).status == 413, "to nobody"


VALUES = st.recursive(
    st.none() | st.integers() | st.text(max_size=8) | st.sampled_from(['"id":1}', '{"method":"x"', "id"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["id", "method"]), inner, max_size=3),
    max_leaves=8,
)


@given(
    id=st.integers(-(10**20), 10**20) | st.from_regex(r"[^\"\\]{0,256}", fullmatch=True),
    order=st.permutations(["jsonrpc", "id", "method", "params"]),
    params=st.dictionaries(st.sampled_from(["id", "method", "x"]), VALUES, max_size=3),
    indent=st.sampled_from([None, 0, 2]),
)
def test_the_id_is_found_at_either_end_and_nothing_else_is_taken_for_it(
    id: int | str, order: list[str], params: dict[str, Any], indent: int | None
) -> None:
    members = {"jsonrpc": "2.0", "id": id, "method": "tools/call", "params": {**params, "long": "x" * 5_000}}
    body = json.dumps({name: members[name] for name in order}, indent=indent, ensure_ascii=False).encode()
    head, tail = body[:ENDS], body[-ENDS:]
    if isinstance(id, str) and len(id.encode()) > 200:
        assert find_request_id(head, tail) in (id, None)
    elif isinstance(id, str) and any(ord(each) < 32 for each in id):
        assert find_request_id(head, tail) in (id, None), "it is escaped"
    else:
        assert find_request_id(head, tail) == id
    for kind in ("id", "method"):  # a notification, and a response
        less = json.dumps({name: members[name] for name in order if name != kind}).encode()
        assert find_request_id(less[:ENDS], less[-ENDS:]) is None
    batch = b"[" + body + b"]"
    assert find_request_id(batch[:ENDS], batch[-ENDS:]) is None


@given(head=st.binary(max_size=60), tail=st.binary(max_size=60))
def test_whatever_comes_is_read_without_a_fault(head: bytes, tail: bytes) -> None:
    find_request_id(b"{" + head, tail + b"}")


@pytest.mark.parametrize(
    ("end", "id"),
    [
        pytest.param(b',"id":1' * 140, 1, id="many"),
        pytest.param(b", " * 500, None, id="gaps"),
        pytest.param(b',"id":' + b"1" * 900, None, id="digits"),
    ],
)
def test_no_end_takes_long(end: bytes, id: int | None) -> None:
    found = find_request_id(b'{"method":"x",', end[-ENDS + 1 :] + b"}")
    assert found == id
