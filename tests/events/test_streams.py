"""Events that are pushed on a stream: over HTTP in every version of it, and over standard input and output."""

from typing import Any

import pytest
from pydantic import BaseModel

from mrtr_server import BearerTokens, Caller, Events, EventType, Limits, MRTRServer
from mrtr_server.testing import AsyncClient, Clock, SharedStore, replica, replicas

from ..support.serving import until

pytestmark = pytest.mark.anyio


class Incident(BaseModel):
    id: str


SUBSCRIPTION = "io.modelcontextprotocol/subscriptionId"


def served(**options: Any) -> tuple[MRTRServer, EventType[None, Incident]]:
    app = MRTRServer("ops", **options)
    return app, app.event("incident.created", payload=Incident)


async def following(client: AsyncClient, **options: Any) -> tuple[Any, dict[str, Any]]:
    """Open a stream; return it, and the parameters of its first message."""
    stream = client.follow("incident.created", **options)
    opened = await stream.open()
    (message,) = opened.received
    assert message["method"] == "notifications/events/active", opened
    return stream, message["params"]


async def received(stream: Any) -> tuple[str, dict[str, Any]]:
    (message,) = (await stream.next()).received
    return message["method"].removeprefix("notifications/events/"), message["params"]


async def test_a_stream_begins_with_its_position_and_carries_what_happens() -> None:
    app, incidents = served()
    async with AsyncClient(app) as client:
        await app.emit(incidents, Incident(id="before"))
        stream, opened = await following(client)
        assert opened["truncated"] is False
        await app.emit(incidents, Incident(id="1"), id="INC-1")
        kind, params = await received(stream)
        assert (kind, params["eventId"], params["data"]) == ("event", "INC-1", {"id": "1"})
        assert params["_meta"][SUBSCRIPTION] == opened["_meta"][SUBSCRIPTION]
        await app.emit(incidents, Incident(id="2"))
        _, second = await received(stream)
        await stream.close()
        # Whoever comes again gets what came after the last cursor.
        again, _ = await following(client, cursor=params["cursor"])
        assert (await received(again))[1]["eventId"] == second["eventId"]
        await again.close()


async def test_a_cursor_that_does_not_open_begins_now_and_says_so() -> None:
    app, incidents = served()
    async with AsyncClient(app) as client:
        await app.emit(incidents, Incident(id="before"))
        stream, opened = await following(client, cursor="nonsense")
        assert opened["truncated"] is True
        await app.emit(incidents, Incident(id="1"))
        assert (await received(stream))[1]["data"] == {"id": "1"}
        await stream.close()


async def test_heartbeats_carry_a_cursor_that_moves(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mrtr_server.events.streams.HEARTBEAT", 0.05)
    app, incidents = served()
    others = app.event("other", payload=Incident)
    async with AsyncClient(app) as client:
        stream, opened = await following(client)
        await app.emit(others, Incident(id="1"))
        kind, params = await received(stream)
        assert kind == "heartbeat"
        assert params["_meta"][SUBSCRIPTION] == opened["_meta"][SUBSCRIPTION]
        await app.emit(incidents, Incident(id="2"))
        while (found := await received(stream))[0] == "heartbeat":
            params = found[1]
        await stream.close()
        again, begun = await following(client, cursor=params["cursor"])
        assert begun["truncated"] is False
        assert (await received(again))[1]["data"] == {"id": "2"}
        await again.close()


async def test_streams_of_all_replicas_get_what_one_emits() -> None:
    app, incidents = served(store=SharedStore())
    servers = replicas(app, 3)
    clients = [AsyncClient(each) for each in servers]
    streams = [(await following(each))[0] for each in clients]
    await servers[1].emit(incidents, Incident(id="1"))
    for stream in streams:
        assert (await received(stream))[1]["data"] == {"id": "1"}
        await stream.close()


async def test_access_that_has_ended_ends_the_stream() -> None:
    allowed = {"ann"}

    def may(caller: Caller, name: str) -> bool:
        return caller.principal is not None and caller.principal.subject in allowed

    app = MRTRServer("ops", auth=BearerTokens({"ann": "ann"}))
    incidents = app.event("incident.created", payload=Incident, authorize=may)
    async with AsyncClient(app, token="ann") as client:
        stream, _ = await following(client)
        await app.emit(incidents, Incident(id="1"))
        assert (await received(stream))[0] == "event"
        allowed.clear()
        await app.emit(incidents, Incident(id="2"))
        kind, params = await received(stream)
        assert (kind, params["error"]["code"]) == ("terminated", -32012)
        assert (await stream.next()).received == []  # the stream has ended


async def test_streams_count_as_listeners() -> None:
    app, _ = served(limits=Limits(listeners=1))
    async with AsyncClient(app) as client:
        stream, _ = await following(client)
        assert (await client.follow("incident.created").open()).status == 503
        assert (await client.listen().open()).status == 503
        await stream.close()
        stream, _ = await following(client)
        await stream.close()


async def test_authors_are_told_of_streams() -> None:
    told: list[tuple[str, str]] = []
    app = MRTRServer("ops", auth=BearerTokens({"ann": "ann"}))

    async def on_subscribe(wants: None, caller: Caller) -> None:
        told.append(("come", caller.principal.subject if caller.principal else ""))

    def on_unsubscribe(wants: None, caller: Caller) -> None:
        told.append(("gone", caller.principal.subject if caller.principal else ""))

    app.event("incident.created", payload=Incident, on_subscribe=on_subscribe, on_unsubscribe=on_unsubscribe)
    async with AsyncClient(app, token="ann") as client:
        stream, _ = await following(client)
        assert told == [("come", "ann")]
        await stream.close()
        await until(lambda: len(told) == 2, "the author was told")
        assert told == [("come", "ann"), ("gone", "ann")]


@pytest.mark.parametrize("left", [0, 50])
async def test_what_is_gone_when_a_stream_begins_is_said_once_with_a_cursor_past_it(left: int) -> None:
    clock = Clock()
    app, incidents = served(events=Events(keep_seconds=60, keep_most=50))
    moved = replica(app, clock=clock)
    async with AsyncClient(moved) as client:
        cursor = (await client.request("events/poll", {"name": "incident.created"})).result["cursor"]
        await emit_many(moved, incidents)
        clock.advance(0 if left else 61)
        stream, opened = await following(client, cursor=cursor)
        assert opened["truncated"] is True
        await moved.emit(incidents, Incident(id="new"))
        found = [(await received(stream))[1]["data"]["id"] for _ in range(left + 1)]
        assert found == [*(str(number) for number in range(300 - left, 300)), "new"]
        await stream.close()
        again, begun = await following(client, cursor=opened["cursor"])
        assert begun["truncated"] is False
        assert (await received(again))[1]["data"]["id"] == found[0]
        await again.close()


async def emit_many(app: MRTRServer, incidents: EventType[None, Incident]) -> None:
    """Emit 300 events, so many that those before the last ones are gone."""
    for number in range(300):
        await app.emit(incidents, Incident(id=str(number)))


async def test_a_gap_within_a_stream_is_said_on_it() -> None:
    app, incidents = served(events=Events(keep_most=50))
    async with AsyncClient(app) as client:
        stream, opened = await following(client)
        assert opened["truncated"] is False
        await emit_many(app, incidents)
        kind, said = await received(stream)
        assert (kind, said["truncated"]) == ("active", True)
        found = [(await received(stream))[1]["data"]["id"] for _ in range(50)]
        assert found == [str(number) for number in range(250, 300)]
        await stream.close()
        # Whoever has read no further than what said so misses nothing that is left.
        page = await client.request("events/poll", {"name": "incident.created", "cursor": said["cursor"]})
        assert [each["data"]["id"] for each in page.result["events"]] == found
        assert page.result["truncated"] is False
