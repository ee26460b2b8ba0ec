"""How many bytes of requests a process holds in memory: what comes in, runs or waits, for each caller and in all."""

import asyncio
import json
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from mrtr_server import Context, Limits, MRTRServer
from mrtr_server.testing import EVERYTHING

from ..support.direct import Exchange, headers_for, scope_of
from ..support.handshake import NEWEST
from ..support.models import Login
from ..support.serving import TIMEOUT, until, wait_until
from ..support.stdio import over_pipes
from ..support.users import Bearer
from ..support.wire import ACCEPT, JSON, Reply, accept, modern, request, text_of

pytestmark = pytest.mark.anyio

LARGE = 60_000
"""Bytes of a request that counts."""

TOTAL = 1_000_000
"""Bytes that may be held in all. The share of a caller is a tenth of it, which two large requests use up."""

OVER_SHARE = {"limit": "held_bytes", "value": TOTAL // 10}


class Site:
    """A server whose tools wait for a gate."""

    def __init__(self, *, auth: bool = True, **limits: Any) -> None:
        self.gate = asyncio.Event()
        self.began: list[str] = []
        """The first letters of the arguments of the calls that have begun, as soon as they have all answers."""
        given: dict[str, Any] = {"held_bytes": TOTAL, **limits}
        backend = Bearer() if auth else None
        self.app = MRTRServer("held", keys=[bytes(32)], auth=backend, limits=Limits(**given))
        self.app.tool(self.wait)
        self.app.tool(self.ask)
        self.app.tool(single_use=True)(self.ask_once)
        self.app.resource("notes://{name}")(self.note)

    async def wait(self, note: str = "") -> str:
        """Wait for the gate."""
        self.began.append(note[:1])
        await self.gate.wait()
        return "waited"

    async def ask(self, ctx: Context, note: str = "") -> str:
        """Ask for a name."""
        login = await ctx.elicit("Who?", Login)
        self.began.append(note[:1])
        return f"{login.name} {len(note)}"

    async def ask_once(self, ctx: Context, note: str = "") -> str:
        """Ask for a name, and wait for the gate."""
        login = await ctx.elicit("Who?", Login)
        self.began.append(note[:1])
        await self.gate.wait()
        return login.name

    async def note(self, name: str) -> str:
        """Read a note."""
        return name

    def send(self, message: JSON, user: str | None = "ann") -> Exchange:
        """Send a request of 2026-07-28."""
        return self._exchange(message, user).body(json.dumps(message).encode()).start()

    def send_part(self, message: JSON, user: str | None = "ann") -> Exchange:
        """Send a request without the last byte of it, in parts."""
        body, sent = json.dumps(message).encode()[:-1], self._exchange(message, user)
        for start in range(0, len(body), LARGE // 4):
            sent.body(body[start : start + LARGE // 4], more=True)
        return sent.start()

    def _exchange(self, message: JSON, user: str | None) -> Exchange:
        token = [] if user is None else [(b"authorization", user.encode())]
        return Exchange(self.app, scope_of([*headers_for(message), *token]))

    async def run(self, user: str | None = "ann", letter: str = "x") -> Exchange:
        """Begin a large call, which waits for the gate."""
        begun = len(self.began)
        call = self.send(large("wait", letter), user)
        await until(lambda: len(self.began) > begun or call.has_ended, "the call to begin")
        return call

    async def is_open_for(self, user: str | None = "ann") -> None:
        """Check that a large request of a caller is served, and is held no more when its client has left."""
        call = await self.run(user)
        assert not call.has_ended, call.reply.message
        call.disconnect()
        await call.end()

    async def is_full_for(self, user: str | None = "ann") -> Reply:
        """Check that a large request of a caller is refused, and that a small one is served; return the refusal."""
        small = await self.send(modern("resources/read", {"uri": "notes://x"}), user).end()
        assert small.status == 200
        refused = await self.send(large("wait"), user).end()
        assert refused.code == -31002
        return refused


def large(tool: str, letter: str = "x", **more: Any) -> JSON:
    """Return a large call of 2026-07-28."""
    return modern("tools/call", {"name": tool, "arguments": {"note": letter * LARGE}, **more}, id=7)


@asynccontextmanager
async def serving(**settings: Any) -> AsyncIterator[Site]:
    site = Site(**settings)
    try:
        yield site
    finally:
        site.gate.set()
        await asyncio.sleep(0)


@pytest.fixture
async def site() -> AsyncIterator[Site]:
    async with serving() as site:
        yield site


class TestRequestsThatRun:
    async def test_take_no_more_than_the_share_of_their_caller(
        self, site: Site, caplog: pytest.LogCaptureFixture
    ) -> None:
        calls = [await site.run(), await site.run()]
        refused = await site.is_full_for()
        assert (refused.status, refused.error.data, refused.message["id"]) == (429, OVER_SHARE, 7)
        assert refused.headers["retry-after"] == "1"
        assert "a caller has used up its share of Limits(held_bytes=...)" in caplog.text
        await site.is_open_for("bob")
        site.gate.set()
        assert [(await call.end()).text for call in calls] == ["waited"] * 2
        site.gate.clear()
        await site.is_open_for()

    async def test_take_no_more_than_all_callers_may_together(self) -> None:
        async with serving(auth=False, held_bytes=2 * LARGE) as site:
            calls = [await site.run(None), await site.run(None)]
            refused = await site.is_full_for(None)
            assert (refused.status, refused.error.data) == (503, {"limit": "held_bytes", "value": 2 * LARGE})
            calls[0].disconnect()
            await calls[0].end()
            await site.is_open_for(None)

    async def test_may_be_larger_than_a_share_one_by_one(self) -> None:
        async with serving(held_bytes=10 * LARGE // 3) as site:
            call = await site.run()
            await site.is_full_for()
            call.disconnect()
            await call.end()
            await site.is_open_for()


class TestRequestsThatWait:
    async def test_for_their_turn_count(self) -> None:
        async with serving(max_concurrency=1) as site:
            calls = [await site.run(), site.send(large("wait", "y"))]
            await asyncio.sleep(0.05)
            refused = await site.send(large("wait")).end()
            assert (refused.status, refused.error.data) == (429, OVER_SHARE)
            site.gate.set()
            assert [(await call.end()).text for call in calls] == ["waited"] * 2

    async def test_for_the_outcome_of_the_same_state_count(self, site: Site) -> None:
        asked = await site.send(large("ask_once")).end()
        again = large("ask_once", requestState=asked.state, inputResponses={"login": accept(name="ada")})
        calls = [site.send(again), site.send(again)]
        await until(lambda: site.began == ["x"], "the first delivery to begin")
        await asyncio.sleep(0.05)
        await site.is_full_for()
        site.gate.set()
        assert [(await call.end()).text for call in calls] == ["ada"] * 2
        assert site.began == ["x"]

    async def test_for_the_rest_of_their_body_count(self, site: Site) -> None:
        uploads = [site.send_part(large("wait")) for _ in range(2)]
        await asyncio.sleep(0.05)
        await site.is_full_for()
        for upload in uploads:
            upload.disconnect()
            await upload.end()
        await site.is_open_for()

    async def test_are_refused_as_their_bodies_come(self, site: Site) -> None:
        """Nothing more of one is kept, and its connection is closed: the rest of it would be taken for a request."""
        calls = [await site.run(), await site.run()]
        refused = await site.send_part(large("wait")).end()
        assert (refused.status, refused.code, refused.headers["connection"]) == (429, -31002, "close")
        for call in calls:
            call.disconnect()


class Handshakes:
    """A client that begins with a handshake."""

    def __init__(self, site: Site) -> None:
        self.app = site.app
        self.headers = {"content-type": "application/json", "accept": ACCEPT, "authorization": "ann"}

    def send(self, message: JSON | None, method: str = "POST", parts: int = 1) -> Exchange:
        sent = Exchange(self.app, scope_of([(k.encode(), v.encode()) for k, v in self.headers.items()], method=method))
        body = b"" if message is None else json.dumps(message).encode()
        size = len(body) // parts + 1
        for start in range(0, max(1, len(body)), size):
            sent.body(body[start : start + size], more=start + size < len(body))
        return sent.start()

    def call(self, tool: str, letter: str = "x", parts: int = 1) -> Exchange:
        return self.send(
            request("tools/call", {"name": tool, "arguments": {"note": letter * LARGE}}, id=7), parts=parts
        )

    async def begin(self) -> "Handshakes":
        params = {"protocolVersion": NEWEST, "capabilities": EVERYTHING, "clientInfo": {"name": "x", "version": "1"}}
        reply = await self.send(request("initialize", params)).end()
        self.headers |= {"mcp-session-id": reply.headers["mcp-session-id"], "mcp-protocol-version": NEWEST}
        return self


class TestOpenCalls:
    @pytest.mark.parametrize("parts", [1, 4])
    async def test_are_refused_by_their_ids_as_every_error_of_theirs(self, site: Site, parts: int) -> None:
        client = await Handshakes(site).begin()
        calls = [await site.run(), await site.run()]
        refused = await client.call("ask", parts=parts).end()
        assert (refused.status, refused.code, refused.message["id"]) == (200, -31002, 7)
        assert refused.error.data == OVER_SHARE
        for call in calls:
            call.disconnect()

    async def test_do_not_count_while_a_person_is_asked(self, site: Site) -> None:
        client = await Handshakes(site).begin()
        calls = []
        for _ in range(5):
            calls.append(client.call("ask"))
            await calls[-1].until(b"elicitation/create")
        await site.is_open_for()
        for call in calls:
            call.disconnect()

    async def test_that_are_answered_wait_for_room_and_are_never_refused(self, site: Site) -> None:
        client = await Handshakes(site).begin()
        waiting = client.call("ask", "y")
        await waiting.until(b"elicitation/create")
        asked = waiting.reply.received[-1]
        calls = [await site.run(), await site.run()]
        answer = {"jsonrpc": "2.0", "id": asked["id"], "result": accept(name="ada")}
        assert (await client.send(answer).end()).status == 202
        await asyncio.sleep(0.2)
        assert (site.began, waiting.has_ended) == (["x", "x"], False)
        calls[0].disconnect()
        assert text_of((await waiting.end()).message) == f"ada {LARGE}"
        calls[1].disconnect()

    async def test_that_are_answered_while_the_server_drains_continue_elsewhere(self, site: Site) -> None:
        client = await Handshakes(site).begin()
        waiting = client.call("ask", "y")
        await waiting.until(b"elicitation/create")
        asked = waiting.reply.received[-1]
        calls = [await site.run(), await site.run()]
        answer = {"jsonrpc": "2.0", "id": asked["id"], "result": accept(name="ada")}
        assert (await client.send(answer).end()).status == 202
        await asyncio.sleep(0.1)
        site.app.drain()
        reply = await waiting.end()
        assert (reply.received, b"retry: 250" in reply.body) == ([asked], True)
        for call in calls:
            call.disconnect()


class TestListeners:
    URIS = tuple(f"notes://{number:0100}" for number in range(400))

    def listen(self, site: Site) -> Exchange:
        return site.send(modern("subscriptions/listen", {"notifications": {"resourceSubscriptions": self.URIS}}))

    async def test_count_by_what_they_listen_to(self, site: Site) -> None:
        first = self.listen(site)
        await first.until(b"acknowledged")
        await site.is_open_for()
        second = self.listen(site)
        await second.until(b"acknowledged")
        refused = await self.listen(site).end()
        assert (refused.status, refused.error.data) == (429, OVER_SHARE)
        first.disconnect()
        await first.end()
        await site.is_open_for()
        second.disconnect()

    async def test_hear_of_all_that_they_named(self, site: Site) -> None:
        listener = self.listen(site)
        await listener.until(b"acknowledged")
        site.app.notify_resource_updated(self.URIS[123])
        await listener.until(b"notifications/resources/updated")
        assert listener.reply.received[-1]["params"]["uri"] == self.URIS[123]
        listener.disconnect()

    async def test_of_a_session_count_too(self, site: Site) -> None:
        client = await Handshakes(site).begin()
        for uri in self.URIS:
            reply = await client.send(request("resources/subscribe", {"uri": uri})).end()
            assert reply.result == {}
        streams = [client.send(None, "GET"), client.send(None, "GET")]
        await until(lambda: all(stream.sent for stream in streams), "the streams to begin")
        assert (await client.send(None, "GET").end()).status == 405
        for stream in streams:
            stream.disconnect()
            await stream.end()
        again = client.send(None, "GET")
        await until(lambda: again.sent, "the stream to begin")
        again.disconnect()


class TestStandardInput:
    async def test_is_read_when_there_is_room(self) -> None:
        """Nothing is refused: its one client waits. A call that waits for a person takes no room."""
        app = MRTRServer("held", keys=[bytes(32)], limits=Limits(held_bytes=2 * LARGE))
        began: list[str] = []
        gate = threading.Event()

        @app.tool
        async def ask(ctx: Context, note: str) -> str:
            """Ask for a name."""
            return (await ctx.elicit("Who?", Login)).name

        @app.tool
        async def wait(note: str) -> str:
            """Wait for the gate."""
            began.append(note[:1])  # on the event loop: threads begin in any order
            return str(await asyncio.to_thread(gate.wait, TIMEOUT))

        with over_pipes(app) as client:
            client.initialize()
            for letter in "xyz":
                client.begin_call("ask", {"note": letter * LARGE})
                assert client.next()["method"] == "elicitation/create"
            for letter in "abc":
                client.begin_call("wait", {"note": letter * LARGE})
            wait_until(lambda: len(began) == 2, "as many as have room")
            await asyncio.sleep(0.1)
            assert began == ["a", "b"]
            gate.set()
            assert [text_of(client.next()) for _ in "abc"] == ["True"] * 3
            assert began == ["a", "b", "c"]
