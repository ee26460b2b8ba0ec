"""What a session sets counts as soon as its client has the response, at any replica, whatever is published then."""

import threading
from concurrent.futures import ThreadPoolExecutor
from itertools import product
from pathlib import Path

import httpx
import pytest

from mrtr_server import Context, MRTRServer
from mrtr_server.protocol.messages import Change, Subscription
from mrtr_server.storage.pubsub import InProcessFanout

from ..support.handshake import Handshake, Stream
from ..support.live_app import GATE, opened
from .conftest import Connect
from .test_pages import JSON_ONLY, client, pages, urls
from .test_pages import opened as open_page

__all__ = ["urls"]

BOTH = [0, 1]


def register(app: MRTRServer) -> MRTRServer:
    """Register resources, and tools that update them or write to the log."""

    @app.resource("notes://{id}")
    def note(id: str) -> str:
        return id

    @app.tool
    async def update(uri: str) -> None:
        app.notify_resource_updated(uri)

    @app.tool
    async def log_twice(ctx: Context) -> str:
        await ctx.log("first", level="info")
        await opened()
        await ctx.log("second", level="info")
        return "done"

    return app


@pytest.fixture
def two(connect: Connect, database: str) -> Handshake:
    """A client of two servers with one database, which has a session."""
    return connect(servers=2, store=database, register=register)


def at(server: int, client: Handshake, method: str, **params: object) -> None:
    """Send a request to one of the servers; it is acknowledged."""
    client.turn = server + 1
    assert "result" in client.send(method, params).message


def update(server: int, client: Handshake, uri: str) -> None:
    at(server, client, "tools/call", name="update", arguments={"uri": uri})


def next_update(stream: Stream) -> str:
    """Return the next resource that is reported."""
    while "uri" not in (params := stream.next()["params"]):
        pass
    return str(params["uri"])


class TestResources:
    def test_what_is_subscribed_is_reported_whatever_replica_does_what(self, two: Handshake) -> None:
        with two.listen() as stream:
            for number, (subscribed, updated) in enumerate(list(product(BOTH, BOTH)) * 3):
                uri = f"notes://{number}"
                at(subscribed, two, "resources/subscribe", uri=uri)
                update(updated, two, uri)
                assert next_update(stream) == uri

    def test_what_is_unsubscribed_is_not(self, two: Handshake) -> None:
        with two.listen() as stream:
            for number, (unsubscribed, updated) in enumerate(product(BOTH, BOTH)):
                at(0, two, "resources/subscribe", uri="notes://left")
                update(0, two, "notes://left")
                assert next_update(stream) == "notes://left"
                at(unsubscribed, two, "resources/unsubscribe", uri="notes://left")
                update(updated, two, "notes://left")
                at(0, two, "resources/subscribe", uri=f"notes://{number}")
                update(0, two, f"notes://{number}")
                assert next_update(stream) == f"notes://{number}"

    def test_what_was_updated_before_is_not(self, two: Handshake) -> None:
        with two.listen() as stream:
            at(0, two, "resources/subscribe", uri="notes://1")
            update(0, two, "notes://1")
            assert next_update(stream) == "notes://1"
            at(1, two, "resources/subscribe", uri="notes://1")  # once more: it is no news
            at(1, two, "resources/subscribe", uri="notes://2")
            update(1, two, "notes://2")
            assert next_update(stream) == "notes://2"

    def test_what_is_updated_just_when_the_stream_begins_to_listen_is_told_once(
        self, connect: Connect, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        subscribe, first = InProcessFanout.subscribe, Change("resource", "notes://1")
        others = [first]

        def subscribe_beside_another(fanout: InProcessFanout, wanted: frozenset[Change]) -> Subscription:
            begun = subscribe(fanout, wanted)
            if first in wanted and others:
                fanout.publish(others.pop())
            return begun

        monkeypatch.setattr(InProcessFanout, "subscribe", subscribe_beside_another)
        one = connect(register=register)
        with one.listen() as stream:
            at(0, one, "resources/subscribe", uri="notes://1")
            assert next_update(stream) == "notes://1"
            at(0, one, "resources/subscribe", uri="notes://2")
            update(0, one, "notes://2")
            assert next_update(stream) == "notes://2"

    def test_of_several_at_once_none_is_lost(self, two: Handshake) -> None:
        uris = [f"notes://{number}" for number in range(12)]

        def subscribe(uri: str) -> int:
            reply = httpx.post(
                two.url(),
                headers=two.given(),
                json={"jsonrpc": "2.0", "id": uri, "method": "resources/subscribe", "params": {"uri": uri}},
                timeout=20,
            )
            assert reply.json()["result"] == {}
            return reply.status_code

        with two.listen() as stream, ThreadPoolExecutor(len(uris)) as threads:
            assert list(threads.map(subscribe, uris)) == [200] * len(uris)
            for uri in uris:
                update(0, two, uri)
            lost = set(uris)
            while lost:  # one that came just while the stream began to listen to another may be reported twice
                lost.discard(next_update(stream))


def test_a_level_counts_for_a_call_that_is_open(two: Handshake, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mrtr_server.transport.live_connection.LEVEL_KNOWN", 0.0)
    GATE.clear()
    with two.calling("log_twice") as stream:
        assert stream.next()["params"]["data"] == "first"
        at(0, two, "logging/setLevel", level="error")
        GATE.set()
        assert stream.next()["result"]["content"][0]["text"] == "done"


def test_a_page_that_has_reported_before_there_was_a_stream_is_reported(urls: list[str], tmp_path: Path) -> None:
    with client(urls) as ann:
        ann.headers |= JSON_ONLY
        (page,) = pages(ann.call("meet"))
        assert "close this page" in open_page(page["url"])
        del ann.headers["Accept"]
        ending = threading.Timer(10, ann.close)
        ending.start()
        with ann.listen() as stream:
            assert stream.next()["params"]["elicitationId"] == page["elicitationId"]
        ending.cancel()
