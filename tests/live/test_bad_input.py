"""Whatever a client of the handshake era sends, it gets a reply in the terms of that era, and nothing fails inside."""

import asyncio
import json
import logging
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mrtr_server import MRTRServer

from ..support.direct import exchange
from ..support.handshake import NEWEST, OLDER
from ..support.live_app import register
from ..support.wire import ACCEPT, Reply

APP = register(MRTRServer("live", keys=[bytes(32)]))
METHODS = [
    "initialize",
    "ping",
    "logging/setLevel",
    "resources/subscribe",
    "resources/unsubscribe",
    "tools/call",
    "tools/list",
    "prompts/get",
    "prompts/list",
    "resources/read",
    "resources/templates/list",
    "completion/complete",
    "notifications/cancelled",
    "notifications/initialized",
    "sessions/listen",
    "subscriptions/listen",
    "server/discover",
    "tasks/get",
    "tasks/list",
    "tasks/result",
    "tasks/cancel",
    "",
    "x",
]
VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-5, 5)
    | st.sampled_from(["", "add", "greet", "notes://1", "debug", NEWEST]),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["name", "uri", "x"]), inner, max_size=3)
    ),
    max_leaves=6,
)
PARAMS = st.dictionaries(
    st.sampled_from(
        [
            "name",
            "uri",
            "arguments",
            "_meta",
            "level",
            "protocolVersion",
            "capabilities",
            "clientInfo",
            "requestId",
            "cursor",
        ]
    ),
    VALUES,
    max_size=5,
)
MESSAGES = st.fixed_dictionaries(
    {"jsonrpc": st.just("2.0")},
    optional={
        "id": st.integers(0, 3) | st.text(max_size=5) | st.none(),
        "method": st.sampled_from(METHODS),
        "params": PARAMS,
        "result": VALUES,
        "error": VALUES,
    },
)
HEADERS = st.fixed_dictionaries(
    {},
    optional={
        "mcp-protocol-version": st.sampled_from([NEWEST, *OLDER]),
        "mcp-session-id": st.sampled_from(["forged", "", "a" * 3_000]),
        "last-event-id": st.sampled_from(["", "forged.1", "end.x", "ü.1", "." * 20]),
        "accept": st.sampled_from([ACCEPT, "application/json", "*/*", ""]),
    },
)


async def send(body: bytes, headers: dict[str, str], **scope: Any) -> Reply:
    """Send a request as it is; whoever holds a stream open is gone a moment later."""
    given = {"content-type": "application/json", **headers}
    try:
        async with asyncio.timeout(0.5):
            return await exchange(
                APP, body, [(name.encode(), value.encode("latin-1")) for name, value in given.items()], **scope
            )
    except TimeoutError:  # it waits for an answer, or for notifications
        return Reply(200, {"content-type": "text/event-stream"}, b"")


def check(reply: Reply) -> None:
    """Check that a reply is one of the era."""
    assert reply.status in (200, 202, 400, 404, 405), reply
    assert b"Internal error" not in reply.body
    if reply.body and not reply.is_stream:
        found = json.loads(reply.body)
        for message in found if isinstance(found, list) else [found]:
            assert message["jsonrpc"] == "2.0"
            assert ("result" in message) != ("error" in message)
            assert message.get("id", 0) is not None


@settings(max_examples=300, suppress_health_check=[HealthCheck.too_slow])
@given(message=MESSAGES | st.lists(MESSAGES, max_size=3) | VALUES, headers=HEADERS)
def test_every_message_has_a_reply(message: Any, headers: dict[str, str]) -> None:
    headers = {"mcp-protocol-version": NEWEST, **headers}
    check(asyncio.run(send(json.dumps(message).encode(), headers)))


@settings(max_examples=100, suppress_health_check=[HealthCheck.too_slow])
@given(headers=HEADERS, method=st.sampled_from(["GET", "DELETE"]))
def test_so_has_every_get_and_delete(headers: dict[str, str], method: str) -> None:
    check(asyncio.run(send(b"", headers, method=method)))


@pytest.mark.parametrize("body", [b"", b"[", b"\xff", b"[1e999]", b"[" * 300, b"7"])
def test_what_is_no_json_is_400(body: bytes, caplog: pytest.LogCaptureFixture) -> None:
    reply = asyncio.run(send(body, {"mcp-protocol-version": "2025-03-26"}))
    assert reply.status in (200, 400)
    check(reply)
    assert not [record for record in caplog.records if record.levelno >= logging.ERROR]
