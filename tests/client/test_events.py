"""A client follows events, by streams and by polls: each comes once, whatever is lost on the way, or it is told."""

import asyncio
import json
import logging
import os
import signal
import sys
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path
from typing import Any, Literal

import pytest
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from mrtr_server import BearerTokens, Caller, Limits, MRTRServer, SetupError, SQLStore
from mrtr_server.client import BadReply, Bounds, Client, ClientError, Command, Event, EventFeed, NoReply, RequestRefused
from mrtr_server.testing import replica
from mrtr_server.wire import HANDSHAKES

from ..support.answering import replied, serving
from ..support.events_app import Incident, app, incidents
from ..support.serving import TIMEOUT, Process, free_ports, in_process, in_thread, until
from ..support.stdio import ROOT

pytestmark = pytest.mark.anyio

TARGET = "tests.support.events_app:app"
STDIO = Command([sys.executable, "-m", "mrtr_server", "stdio", TARGET], directory=ROOT)
DELIVERIES: tuple[Literal["push", "poll"], ...] = ("push", "poll")
NAME = "incident.created"


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with in_thread(app) as port:
        yield f"http://127.0.0.1:{port}/mcp"


@pytest.fixture(params=["a URL", "in process", pytest.param("a command", marks=pytest.mark.processes)])
def server(request: pytest.FixtureRequest, url: str) -> Any:
    return {"a URL": url, "in process": replica(app), "a command": STDIO}[request.param]


async def taken(feed: EventFeed, count: int) -> list[Event]:
    async with asyncio.timeout(TIMEOUT):
        return [await anext(feed) for _ in range(count)]


def ids(events: list[Event]) -> list[int]:
    return [each.data["id"] for each in events]


async def begun(feed: EventFeed, got: list[Event]) -> "asyncio.Task[None]":
    """Take what comes from now on, once the feed knows where now is."""

    async def take() -> None:
        async for event in feed:
            got.append(event)  # noqa: PERF401  others look at it meanwhile

    taking = asyncio.create_task(take())
    await until(lambda: feed.cursor is not None or taking.done(), "the feed to begin")
    return taking


async def test_the_types_of_events_are_listed(server: Any) -> None:
    async with Client(server) as client:
        (offered,) = await client.event_types()
    assert (offered.name, offered.description) == (NAME, "An incident was opened")
    assert offered.delivery == ["poll", "push"]
    assert offered.payload_schema["required"] == ["id"]


@pytest.mark.parametrize("delivery", DELIVERIES)
async def test_events_come_by_every_way_in_their_order_and_after_a_cursor_again(
    server: Any, delivery: Literal["push", "poll"]
) -> None:
    got: list[Event] = []
    async with Client(server) as client:
        taking = await begun(client.events(NAME, delivery=delivery), got)
        await client.call("report", first=1, count=3)
        await until(lambda: len(got) == 3, "three events")
        assert ids(got) == [1, 2, 3]
        assert len({each.id for each in got}) == 3
        assert got[0].name == NAME
        assert got[0].at.endswith("Z")
        assert got[0].meta == {}
        await client.call("report", first=4, count=2)
        again = client.events(NAME, cursor=got[2].cursor, delivery=delivery)
        assert ids(await taken(again, 2)) == [4, 5]
        await again.aclose()
        with pytest.raises(StopAsyncIteration):
            await anext(again)
    await taking  # which ends with its client


@asynccontextmanager
async def served_until_killed(tmp_path: Path, port: int) -> AsyncIterator[Process]:
    environment = {"EVENTS_DATABASE": f"{tmp_path}/events.db"}
    with ExitStack() as stack:
        serving = in_process(TARGET, "--port", str(port), log=tmp_path / "log", environment=environment)
        server = await asyncio.to_thread(stack.enter_context, serving)
        yield server
        server.process.kill()
        await asyncio.to_thread(server.wait)


@pytest.mark.processes
@pytest.mark.parametrize("delivery", DELIVERIES)
async def test_nothing_is_lost_and_nothing_comes_twice_while_the_server_is_killed_and_started_again(
    tmp_path: Path, delivery: Literal["push", "poll"]
) -> None:
    (port,) = free_ports(1)
    store = SQLStore(f"sqlite:///{tmp_path}/events.db")
    elsewhere = replica(app, store=store)
    got: list[Event] = []
    gaps: list[int] = []
    emitted = 0

    async def emit(count: int) -> None:
        nonlocal emitted
        for _ in range(count):
            await elsewhere.emit(incidents, Incident(id=emitted))
            emitted += 1

    async with Client(f"http://127.0.0.1:{port}/mcp") as client:
        feed = client.events(NAME, delivery=delivery, on_gap=lambda: gaps.append(len(got)))
        taking: asyncio.Task[None] | None = None
        for _ in range(2):
            async with served_until_killed(tmp_path, port):
                taking = taking or await begun(feed, got)
                await emit(100)
                await until(lambda: len(got) == emitted, "what was emitted")
                await emit(100)  # of which some may have come when it is killed
            await emit(100)
        async with served_until_killed(tmp_path, port):
            await emit(100)
            await until(lambda: len(got) >= emitted, "all that was emitted")
            await client.call("report", first=emitted)
            await until(lambda: len(got) > emitted, "what came last")
    assert taking is not None
    await taking
    assert ids(got) == list(range(emitted + 1))
    assert gaps == []
    await store.close()


async def test_a_gap_is_told_before_the_events_after_it_or_else_logged(caplog: pytest.LogCaptureFixture) -> None:
    told: list[str] = []

    async def on_gap() -> None:
        told.append("gap")

    for delivery in DELIVERIES:
        async with Client(replica(app)) as client:
            feed = client.events(NAME, cursor="nonsense", delivery=delivery, on_gap=on_gap)
            taking = asyncio.create_task(taken(feed, 1))
            await until(lambda: told, "the gap")
            await client.call("report", first=1)
            assert ids(await taking) == [1]
            assert told == ["gap"]
            told.clear()
            taking = asyncio.create_task(taken(client.events(NAME, cursor="nonsense", delivery=delivery), 1))
            await until(lambda: "Some events of 'incident.created' were missed" in caplog.text, "the log")
            taking.cancel()
            caplog.clear()


async def test_the_place_of_a_feed_moves_while_nothing_happens(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mrtr_server.events.streams.HEARTBEAT", 0.05)
    server = MRTRServer("ops")
    wanted, others = (server.event(name, payload=Incident) for name in ("wanted", "others"))
    async with Client(server) as client:
        feed = client.events("wanted")
        taking = await begun(feed, [])
        first = feed.cursor
        await server.emit(others, Incident(id=1))
        await until(lambda: feed.cursor != first, "a heartbeat")
        taking.cancel()
        await server.emit(wanted, Incident(id=2))
        assert ids(await taken(client.events("wanted", cursor=feed.cursor), 1)) == [2]


async def test_a_loop_that_is_left_ends_its_stream() -> None:
    server = MRTRServer("ops", limits=Limits(listeners=1))
    event = server.event("event", payload=Incident)
    async with Client(server) as client:
        for number in range(3):
            got: list[Event] = []

            async def first(got: list[Event] = got) -> None:
                async for each in client.events("event"):
                    got.append(each)
                    break

            following = asyncio.create_task(first())
            while not following.done():
                await server.emit(event, Incident(id=number))
                await asyncio.sleep(0.01)
            await following
            assert ids(got) == [number]


async def test_what_the_server_refuses_ends_the_feed() -> None:
    allowed = {"ann"}

    def may(caller: Caller, name: str) -> bool:
        return caller.principal is not None and caller.principal.subject in allowed

    server = MRTRServer("ops", auth=BearerTokens({"ann-token": "ann"}))
    event = server.event("event", payload=Incident, authorize=may)
    async with Client(server, token="ann-token") as client:
        for delivery in DELIVERIES:
            with pytest.raises(RequestRefused, match="there is no event 'nothing'") as refused:
                await anext(client.events("nothing", delivery=delivery))
            assert refused.value.code == -32023
        taking = await begun(feed := client.events("event"), [])
        allowed.clear()
        await server.emit(event, Incident(id=1))
        with pytest.raises(RequestRefused, match="Forbidden") as refused:
            await taking
        assert refused.value.code == -32024
        with pytest.raises(StopAsyncIteration):
            await anext(feed)


async def test_what_can_not_be_followed_is_said() -> None:
    async with Client(replica(app), era=HANDSHAKES[0]) as client:
        with pytest.raises(RequestRefused, match="Events need 2026-07-28, and this server is spoken to in 2025-11-25"):
            await anext(client.events(NAME))
    async with Client(replica(app, dialects=[HANDSHAKES[0]])) as client:
        with pytest.raises(RequestRefused, match="Events need 2026-07-28"):
            await client.event_types()
    hooks = MRTRServer("ops", auth=BearerTokens({"ann-token": "ann"}))
    hooks.event("hooked", payload=Incident, modes=["webhook"])
    async with Client(hooks, token="ann-token") as client:
        with pytest.raises(SetupError, match="delivers 'hooked' to webhooks alone"):
            await anext(client.events("hooked"))
        with pytest.raises(SetupError, match="choose 'poll' or 'push'"):
            client.events("hooked", delivery="webhook")  # type: ignore[arg-type]
    (port,) = free_ports(1)
    async with Client(f"http://127.0.0.1:{port}/mcp", bounds=Bounds(resends=0)) as client:
        with pytest.raises(NoReply, match="can't be reached"):
            await anext(client.events(NAME))


# Servers that are slow, broken or hostile


class Other:
    """A server of one type of event: each stream, and each page, is the next of those that it was given."""

    def __init__(self, streams: list[list[Any]] | None = None, pages: list[dict[str, Any]] | None = None) -> None:
        self.streams = streams or []
        self.pages = pages or []
        self.asked: list[tuple[float, Any]] = []
        """When a stream or a page was asked for, and its cursor."""

    async def __call__(self, request: Request, message: Any) -> Response:
        id, params = message["id"], message["params"]
        if message["method"] == "events/list":
            return replied(id, {"events": [{"name": "event", "delivery": ["push"] if self.streams else ["poll"]}]})
        self.asked.append((time.monotonic(), params["cursor"]))
        if not self.streams:
            return replied(id, self.pages.pop(0) if len(self.pages) > 1 else self.pages[0])
        frames = self.streams.pop(0) if len(self.streams) > 1 else self.streams[0]

        async def stream() -> AsyncIterator[bytes]:
            for frame in frames:
                if isinstance(frame, float):
                    await asyncio.sleep(frame)
                    continue
                kind, said = frame
                meta = {"io.modelcontextprotocol/subscriptionId": id}
                notified = {"method": f"notifications/events/{kind}", "params": {**said, "_meta": meta}}
                yield f"data: {json.dumps({'jsonrpc': '2.0', **notified})}\n\n".encode()

        return StreamingResponse(stream(), media_type="text/event-stream")

    @property
    def cursors(self) -> list[Any]:
        return [cursor for _, cursor in self.asked]


def happened(number: int, cursor: str | None = None, **data: Any) -> dict[str, Any]:
    about = {"eventId": f"e{number}", "name": "event", "timestamp": "2026-12-01T10:00:00Z"}
    return {**about, "data": {"id": number, **data}, "cursor": cursor}


async def test_a_silent_stream_is_opened_again_at_its_cursor_and_what_comes_twice_counts_once() -> None:
    other = Other(
        [
            [("active", {"cursor": "0"}), ("event", happened(1, "1")), ("heartbeat", {"cursor": "1b"}), TIMEOUT],
            [("active", {"cursor": "1b"}), ("event", happened(1, "1")), ("event", happened(2, "2")), TIMEOUT],
        ]
    )
    with serving(other) as (url, _):
        async with Client(url, bounds=Bounds(silent_seconds=1.0)) as client:
            assert ids(await taken(client.events("event"), 2)) == [1, 2]
    assert other.cursors[:2] == [None, "1b"]


async def test_heartbeats_keep_a_stream() -> None:
    beats: list[Any] = [part for _ in range(9) for part in (0.3, ("heartbeat", {"cursor": "0"}))]
    other = Other([[("active", {"cursor": "0"}), *beats, ("event", happened(1, "1")), TIMEOUT]])
    with serving(other) as (url, _):
        async with Client(url, bounds=Bounds(silent_seconds=2.0)) as client:
            assert ids(await taken(client.events("event"), 1)) == [1]
    assert other.cursors == [None]


async def test_a_lost_stream_without_a_cursor_is_a_gap_and_is_not_opened_again_without_a_pause() -> None:
    gaps: list[None] = []
    other = Other([[("active", {"cursor": None})]])
    with serving(other) as (url, _):
        async with Client(url) as client:
            taking = asyncio.create_task(anext(client.events("event", on_gap=lambda: gaps.append(None))))
            await until(lambda: len(gaps) == 2, "two gaps")
            taking.cancel()
    (first, _), (second, _), (third, _), *_ = other.asked
    assert second - first >= 0.1
    assert third - second >= 0.2


async def test_pages_are_asked_for_as_the_server_says_but_not_without_a_pause() -> None:
    other = Other(
        pages=[
            {"events": [], "cursor": "0", "nextPollMs": 0},
            {"events": [happened(1), happened(2)], "cursor": "2", "hasMore": True, "nextPollMs": 10**9},
            {"events": [happened(3)], "cursor": "3", "hasMore": False, "nextPollMs": 10**400},
        ]
    )
    with serving(other) as (url, got):
        async with Client(url, bounds=Bounds(response_bytes=1_000_000)) as client:
            events = await taken(client.events("event"), 3)
    assert [(each.data["id"], each.cursor) for each in events] == [(1, "0"), (2, "2"), (3, "3")]
    (first, _), (second, _), _ = other.asked
    assert second - first >= 1.0
    assert [each["params"]["maxEvents"] for each in got[1:]] == [3, 3, 3]


async def test_a_server_that_always_has_more_of_nothing_is_not_asked_without_a_pause() -> None:
    other = Other(pages=[{"events": [], "cursor": "0", "hasMore": True}])
    with serving(other) as (url, _):
        async with Client(url) as client:
            taking = await begun(client.events("event"), [])
            await until(lambda: len(other.asked) == 2, "another page")
            await asyncio.sleep(0.5)
            taking.cancel()
    assert len(other.asked) == 2


async def test_a_server_that_always_goes_on_without_an_event_is_asked_once_a_second() -> None:
    other = Other(pages=[{"events": [], "cursor": str(number), "hasMore": True} for number in range(100)])
    with serving(other) as (url, _):
        async with Client(url) as client:
            taking = await begun(client.events("event"), [])
            await until(lambda: len(other.asked) == 3, "two more pages")
            taking.cancel()
    (first, _), _, (third, _) = other.asked
    assert third - first >= 1.9


@pytest.mark.parametrize(
    "message", [{"id": 9, "method": "ping"}, {"method": 5}, {"method": "notifications/events/event", "params": []}]
)
async def test_what_is_no_message_of_a_stream_ends_the_feed(message: dict[str, Any]) -> None:
    async def answer(request: Request, asked: Any) -> Response:
        if asked["method"] == "events/list":
            return replied(asked["id"], {"events": [{"name": "event", "delivery": ["push"]}]})
        lines = f"data: {json.dumps({'jsonrpc': '2.0', **message})}\n\n".encode()
        return StreamingResponse(iter([lines]), media_type="text/event-stream")

    with serving(answer) as (url, _):
        async with Client(url) as client:
            with pytest.raises(ClientError):
                async with asyncio.timeout(5):
                    await anext(client.events("event"))


async def test_what_is_too_large_or_no_event_ends_the_feed() -> None:
    for frame, why in (
        (("event", happened(1, "1", notes="x" * 100_000)), "more than 50000 bytes"),
        (("event", {"eventId": 7}), "what is no Event"),
        (("active", {"cursor": {}}), "what is no EventPlace: cursor"),
    ):
        other = Other([[("active", {"cursor": "0"}), frame, TIMEOUT]])
        with serving(other) as (url, _):
            async with Client(url, bounds=Bounds(response_bytes=50_000)) as client:
                with pytest.raises(BadReply, match=why):
                    await anext(client.events("event"))


@pytest.mark.parametrize("delivery", DELIVERIES)
async def test_more_events_than_a_reply_may_have_come_one_after_the_other(
    server: Any, delivery: Literal["push", "poll"]
) -> None:
    got: list[Event] = []
    gaps: list[None] = []
    bounds = Bounds(response_bytes=600_000)
    async with Client(server, bounds=bounds) as client:
        feed = client.events(NAME, delivery=delivery, on_gap=lambda: gaps.append(None))
        begins = await begun(feed, got)
        await client.call("report", first=0)
        await until(lambda: got, "the first event")
        begins.cancel()
        feed = client.events(NAME, cursor=got[0].cursor, delivery=delivery, on_gap=lambda: gaps.append(None))
        first = asyncio.create_task(anext(feed))
        await client.call("report", first=1, count=20, size=100_000)
        got = [await first]
        await asyncio.sleep(0.5)  # in which nobody takes any
        got += await taken(feed, 19)
    assert ids(got) == list(range(1, 21))
    assert gaps == []


@pytest.mark.processes
async def test_a_command_that_has_ended_ends_the_feed(tmp_path: Path) -> None:
    pid = tmp_path / "pid"
    program = (
        f"import os, runpy, sys; open({str(pid)!r}, 'w').write(str(os.getpid())); "
        f"sys.argv = ['mrtr-server', 'stdio', {TARGET!r}]; runpy.run_module('mrtr_server', run_name='__main__')"
    )
    async with Client(Command([sys.executable, "-c", program], directory=ROOT)) as client:
        taking = await begun(client.events(NAME), [])
        os.kill(int(pid.read_text()), signal.SIGKILL)
        with pytest.raises(NoReply, match="The server has ended"):
            await taking


async def test_a_server_that_stays_away_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    other = Other([[("active", {"cursor": "0"}), ("event", happened(1, "1"))]])
    with serving(other) as (url, _):
        client = Client(url, bounds=Bounds(resends=0))
        await client.__aenter__()
        taking = asyncio.create_task(taken(client.events("event"), 2))
        await until(lambda: other.asked, "the stream")
    await until(lambda: "do not come" in caplog.text, "the log")
    await asyncio.sleep(1.0)
    await client.__aexit__()
    with pytest.raises(StopAsyncIteration):
        await taking
    (logged,) = [each for each in caplog.records if "do not come" in each.getMessage()]
    assert "Events of 'event' do not come, and are tried again: The server can't be reached" in logged.getMessage()
