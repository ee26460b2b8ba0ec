"""A disconnect cancels nothing: a first round runs to its end, and its client finds what came of it."""

import threading
from collections.abc import Iterator

import httpx
import pytest

from ..support.effects import EFFECTS
from ..support.handshake import Handshake, Stream
from ..support.live_app import GATE
from ..support.serving import TIMEOUT, wait_until
from ..support.wire import text_of
from .conftest import Connect


@pytest.fixture(autouse=True)
def gate() -> Iterator[None]:
    GATE.clear()
    yield
    GATE.set()


pytestmark = pytest.mark.usefixtures("noticed")


def leave_while_it_runs(client: Handshake, noticed: threading.Event, tool: str = "wait") -> Stream:
    """Call a tool that sends progress, and leave."""
    with client.open("tools/call", {"name": tool, "_meta": {"progressToken": 1}}) as stream:
        assert stream.next()["params"]["progress"] == 1
    assert stream.last_id
    assert noticed.wait(TIMEOUT)
    return stream


def test_a_call_whose_client_has_left_is_found_at_any_replica(
    connect: Connect, database: str, noticed: threading.Event
) -> None:
    client = connect(servers=2, store=database)
    stream = leave_while_it_runs(client, noticed)
    with client.resume(stream.last_id) as again:
        GATE.set()
        assert text_of(again.end()) == "waited"
    with client.resume(stream.last_id) as again:
        assert text_of(again.end()) == "waited"
    assert EFFECTS == ["waits", "waited"]


def test_it_may_have_ended_before(connect: Connect, noticed: threading.Event) -> None:
    client = connect()
    stream = leave_while_it_runs(client, noticed)
    GATE.set()
    wait_until(lambda: "waited" in EFFECTS, "the end of the call")
    with client.resume(stream.last_id) as again:
        assert text_of(again.end()) == "waited"


def test_what_it_asks_is_asked_of_the_client_that_is_back(
    connect: Connect, database: str, noticed: threading.Event
) -> None:
    client = connect(servers=2, store=database)
    stream = leave_while_it_runs(client, noticed, "wait_and_ask")
    GATE.set()
    with client.resume(stream.last_id) as again:
        client.accept(again.ask(), name="octocat")
        assert text_of(again.end()) == "Hello, octocat!"


def test_without_a_stream_the_call_runs_to_its_end(connect: Connect) -> None:
    client = connect()
    client.http.timeout = 0.3
    with pytest.raises(httpx.ReadTimeout):
        client.call("wait")
    GATE.set()
    wait_until(lambda: "waited" in EFFECTS, "the end of the call")


def test_a_call_that_takes_long_gets_a_stream(connect: Connect, monkeypatch: pytest.MonkeyPatch) -> None:
    """It has an id, so that its client can come back, and comments, so that no proxy closes it."""
    monkeypatch.setattr("mrtr_server.transport.connection.KEEP_ALIVE", 0.1)
    client = connect()
    with client.calling("wait") as stream:
        event = next(stream.events())
        assert event.kind == "prime"
        assert event.id
        GATE.set()
        assert text_of(stream.end()) == "waited"


def test_one_whose_server_has_died_ends_with_an_error(
    connect: Connect, monkeypatch: pytest.MonkeyPatch, noticed: threading.Event
) -> None:
    monkeypatch.setattr("mrtr_server.live.open_questions.LOST_AFTER", 0.5)
    client = connect(servers=2)
    stream = leave_while_it_runs(client, noticed)
    GATE.set()
    wait_until(lambda: "waited" in EFFECTS, "the end of the call")
    other = connect(servers=1, begin=False)  # which shares its key, and not its store
    other.session = client.session
    with other.resume(stream.last_id) as again:
        assert "has stopped" in again.end()["error"]["message"]
