"""Every field of the messages of events, and what a client may rely on beside them, whichever way it gets events."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from pydantic import BaseModel

from mrtr_server import BearerTokens, Caller, Events, EventType, KeyRing, Limits, MRTRServer, Webhooks
from mrtr_server.testing import AsyncClient, Client, Clock, WebhookReceiver, replica, webhook_receiver

from ..support.serving import until

pytestmark = pytest.mark.anyio

USERS = BearerTokens({"ann": "ann", "ben": "ben"})
DECLARED: dict[str, Any] = {"extensions": {"io.modelcontextprotocol/events": {}}}


class Filter(BaseModel):
    severity: str = ""
    service: str = ""


class Incident(BaseModel):
    id: str


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shorten what takes seconds."""
    monkeypatch.setattr("mrtr_server.events.deliveries.FIRST_PAUSE", 0.05)
    monkeypatch.setattr("mrtr_server.events.courier.LOOK_EVERY", 0.05)


@pytest.fixture
async def hook() -> AsyncIterator[WebhookReceiver]:
    async with webhook_receiver() as receiver:
        yield receiver


def served(hook: WebhookReceiver | None = None, **options: Any) -> tuple[MRTRServer, EventType[Filter, Incident]]:
    webhooks = Webhooks(allow=[] if hook is None else [hook.origin])
    app = MRTRServer("ops", **{"auth": USERS, "webhooks": webhooks, **options})
    event: dict[str, Any] = {"arguments": Filter, "payload": Incident}
    return app, app.event("incident.created", **event)


def asked(hook: WebhookReceiver, **params: Any) -> dict[str, Any]:
    delivery = {"mode": "webhook", "url": hook.url, "secret": hook.secret}
    return {"name": "incident.created", "delivery": delivery, **params}


async def result_of(client: AsyncClient, method: str, params: dict[str, Any]) -> dict[str, Any]:
    """Return a result without `_meta`, which says who the server is."""
    result = dict((await client.request(method, params)).result)
    assert result.pop("_meta").keys() == {"io.modelcontextprotocol/serverInfo"}
    assert result.pop("resultType") == "complete"
    return result


# Lists and polls


def test_an_entry_of_the_list_has_these_fields() -> None:
    app = MRTRServer("ops")
    app.event("plain", payload=Incident, description="Something", modes=["poll"], meta={"com.example/team": "ops"})
    assert Client(app).request("events/list").result["events"] == [
        {
            "name": "plain",
            "description": "Something",
            "delivery": ["poll"],
            "inputSchema": {"type": "object", "properties": {}, "additionalProperties": False},
            "payloadSchema": {"type": "object", "properties": {"id": {"type": "string"}}, "required": ["id"]},
            "_meta": {"com.example/team": "ops"},
        }
    ]


def test_there_is_no_list_of_subscriptions() -> None:
    assert Client(served()[0], token="ann").request("events/subscriptions").error.code == -32601


async def test_a_poll_has_these_fields() -> None:
    app, incidents = served()
    async with AsyncClient(app, token="ann") as client:
        begun = await result_of(client, "events/poll", {"name": "incident.created", "cursor": None})
        cursor = begun.pop("cursor")
        assert begun == {"events": [], "truncated": False, "hasMore": False, "nextPollMs": 30_000}
        await app.emit(incidents, Incident(id="1"), id="INC-1", at=0.0)
        found = await result_of(client, "events/poll", {"name": "incident.created", "cursor": cursor})
        assert isinstance(found.pop("cursor"), str)
        event = {
            "eventId": "INC-1",
            "name": "incident.created",
            "timestamp": "1970-01-01T00:00:00.000Z",
            "data": {"id": "1"},
        }
        assert found == {"events": [event], "truncated": False, "hasMore": False, "nextPollMs": 30_000}


async def test_how_often_clients_poll_is_for_the_server_to_say() -> None:
    app, _ = served(events=Events(poll_seconds=2.5))
    async with AsyncClient(app, token="ann") as client:
        found = await result_of(client, "events/poll", {"name": "incident.created"})
        assert found["nextPollMs"] == 2500


async def test_without_a_database_a_cursor_ends_with_its_process_and_that_is_said() -> None:
    keys = KeyRing.generate()
    (before, _), (after, incidents) = served(keys=keys), served(keys=keys)
    async with AsyncClient(before, token="ann") as client:
        cursor = (await result_of(client, "events/poll", {"name": "incident.created"}))["cursor"]
    async with AsyncClient(after, token="ann") as client:
        await after.emit(incidents, Incident(id="1"))
        found = await result_of(client, "events/poll", {"name": "incident.created", "cursor": cursor})
        assert (found["events"], found["truncated"]) == ([], True)


# Streams


async def test_an_event_that_can_not_be_made_ready_is_an_error_on_a_stream_that_goes_on() -> None:
    app = MRTRServer("ops")

    def fails(incident: Incident, wants: None, caller: Caller) -> bool:
        if incident.id == "bad":
            raise RuntimeError("the text of an error is for the log")
        return True

    incidents = app.event("incident.created", payload=Incident, matches=fails)
    async with AsyncClient(app) as client:
        stream = client.follow("incident.created")
        (opened,) = (await stream.open()).received
        meta = opened["params"]["_meta"]
        assert meta.keys() == {"io.modelcontextprotocol/subscriptionId"}
        assert opened["params"].keys() == {"cursor", "truncated", "_meta"}
        await app.emit(incidents, Incident(id="bad"))
        (failed,) = (await stream.next()).received
        assert (failed["method"], failed["params"]["_meta"]) == ("notifications/events/error", meta)
        error = failed["params"]["error"]
        assert (error["code"], error["data"].keys()) == (-32603, {"reference"})
        assert "text of an error" not in str(failed)
        await app.emit(incidents, Incident(id="2"), id="INC-2", at=0.0)
        (event,) = (await stream.next()).received
        assert event["method"] == "notifications/events/event"
        assert isinstance(event["params"].pop("cursor"), str)
        assert event["params"] == {
            "eventId": "INC-2",
            "name": "incident.created",
            "timestamp": "1970-01-01T00:00:00.000Z",
            "data": {"id": "2"},
            "_meta": meta,
        }
        await stream.close()


async def test_a_heartbeat_has_a_cursor_and_its_subscription_and_comes_twice_in_thirty_seconds(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from mrtr_server.events import streams

    assert streams.HEARTBEAT * 2 < 30
    monkeypatch.setattr(streams, "HEARTBEAT", 0.05)
    app, _ = served()
    async with AsyncClient(app, token="ann") as client:
        stream = client.follow("incident.created")
        await stream.open()
        (beat,) = (await stream.next()).received
        assert beat["method"] == "notifications/events/heartbeat"
        assert beat["params"].keys() == {"cursor", "_meta"}
        assert isinstance(beat["params"]["cursor"], str)
        await stream.close()


async def test_streams_side_by_side_are_no_running_requests_and_each_gets_its_own() -> None:
    app, incidents = served(limits=Limits(max_concurrency=1, max_queue=1, caller_share=1.0))

    @app.tool
    def shout(word: str) -> str:
        return word.upper()

    others = app.event("other", payload=Incident)
    async with AsyncClient(app, token="ann") as client:
        streams = [client.follow(name) for name in ("incident.created", "other", "other")]
        subscriptions = []
        for stream in streams:
            (opened,) = (await stream.open()).received
            subscriptions.append(opened["params"]["_meta"]["io.modelcontextprotocol/subscriptionId"])
        assert len(set(subscriptions)) == 3
        assert (await client.call("shout", {"word": "hi"})).text == "HI"
        await app.emit(others, Incident(id="of other"))
        await app.emit(incidents, Incident(id="of incidents"))
        for stream, subscription, id in zip(
            streams, subscriptions, ("of incidents", "of other", "of other"), strict=True
        ):
            (event,) = (await stream.next()).received
            assert event["params"]["data"] == {"id": id}
            assert event["params"]["_meta"] == {"io.modelcontextprotocol/subscriptionId": subscription}
        await streams[1].close()  # the other ones go on
        await app.emit(others, Incident(id="again"))
        (event,) = (await streams[2].next()).received
        assert event["params"]["data"] == {"id": "again"}
        for stream in (streams[0], streams[2]):
            await stream.close()


# Webhooks


async def test_a_subscription_has_these_fields_and_its_id_is_that_of_its_key(hook: WebhookReceiver) -> None:
    keys = KeyRing.generate()
    clock = Clock()
    arguments = {"severity": "P1", "service": "db"}
    ids = []
    for app in (served(hook, keys=keys)[0], served(hook)[0]):  # as after a restart, or elsewhere
        async with AsyncClient(replica(app, clock=clock), token="ann") as client:
            found = await result_of(client, "events/subscribe", asked(hook, arguments=arguments, ttlMs=60_000))
            assert found.keys() == {"id", "refreshBefore", "cursor", "truncated"}
            assert isinstance(found["cursor"], str)
            assert found["truncated"] is False
            ids.append(found["id"])
            reordered = asked(hook, arguments=dict(reversed(arguments.items())), ttlMs=60_000)
            again = await result_of(client, "events/subscribe", reordered)
            assert again["deliveryStatus"] == {"active": True, "lastDeliveryAt": None, "lastError": None}
            ids.append(again["id"])
            other = await result_of(client, "events/subscribe", asked(hook, arguments={"severity": "P1"}))
            assert other["id"] != found["id"]
    assert len(set(ids)) == 1
    assert ids[0].startswith("sub_")


async def test_a_live_subscription_goes_on_whatever_cursor_is_sent(hook: WebhookReceiver) -> None:
    app, incidents = served(hook)
    async with AsyncClient(app, token="ann") as client, app.running():
        begun = await result_of(client, "events/subscribe", asked(hook))
        await app.emit(incidents, Incident(id="1"))
        await hook.wait(1)
        for cursor in (begun["cursor"], None, "nonsense"):
            assert (await result_of(client, "events/subscribe", asked(hook, cursor=cursor)))["truncated"] is False
        await app.emit(incidents, Incident(id="2"))
        await hook.wait(2)
        await asyncio.sleep(0.2)
        assert [each["data"]["id"] for each in hook.events] == ["1", "2"]


async def test_one_that_is_subscribed_again_after_its_end_begins_at_its_cursor(hook: WebhookReceiver) -> None:
    app, incidents = served(hook)
    async with AsyncClient(app, token="ann") as client, app.running():
        begun = await result_of(client, "events/subscribe", asked(hook))
        for number in range(2):
            await client.request("events/unsubscribe", {"name": "incident.created", "delivery": {"url": hook.url}})
            await app.emit(incidents, Incident(id=str(number)))
            cursor = begun["cursor"] if number else None
            found = await result_of(client, "events/subscribe", asked(hook, cursor=cursor))
            assert "deliveryStatus" not in found
        events = await hook.wait(2)
        assert sorted(each["data"]["id"] for each in events) == ["0", "1"]  # from the cursor; none from now


async def test_how_old_events_may_be_counts_for_a_webhook_too(hook: WebhookReceiver) -> None:
    clock = Clock()
    app, incidents = served(hook)
    moved = replica(app, clock=clock)
    async with AsyncClient(moved, token="ann") as client:
        cursor = (await result_of(client, "events/poll", {"name": "incident.created"}))["cursor"]
        await moved.emit(incidents, Incident(id="old"))
        clock.advance(60)
        await moved.emit(incidents, Incident(id="new"))
        found = await result_of(client, "events/subscribe", asked(hook, cursor=cursor, maxAgeMs=30_000))
        assert found["truncated"] is True
        page = await result_of(client, "events/poll", {"name": "incident.created", "cursor": found["cursor"]})
        assert [each["data"]["id"] for each in page["events"]] == ["new"]


async def test_a_subscription_that_is_not_renewed_ends(hook: WebhookReceiver) -> None:
    clock, gone = Clock(), []
    app, incidents = served(hook)
    incidents.on_unsubscribe = lambda wants, caller: gone.append(wants)
    moved = replica(app, clock=clock)
    async with AsyncClient(moved, token="ann") as client, moved.running():
        await result_of(client, "events/subscribe", asked(hook, ttlMs=60_000))
        clock.advance(61)
        await until(lambda: bool(gone), "its author was told")
        await moved.emit(incidents, Incident(id="1"))
        await asyncio.sleep(0.2)
        assert hook.events == []
        assert "deliveryStatus" not in await result_of(client, "events/subscribe", asked(hook))


async def test_whoever_stops_polling_has_gone() -> None:
    clock, told = Clock(), []
    app, incidents = served()
    incidents.on_subscribe = lambda wants, caller: told.append("come")
    incidents.on_unsubscribe = lambda wants, caller: told.append("gone")
    moved = replica(app, clock=clock)
    async with AsyncClient(moved, token="ann") as client, moved.running():
        for _ in range(2):
            await result_of(client, "events/poll", {"name": "incident.created"})
        assert told == ["come"]
        clock.advance(301)
        await until(lambda: told == ["come", "gone"], "its author was told")


async def test_each_attempt_has_its_own_time_and_signature_and_comes_later(
    hook: WebhookReceiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mrtr_server.events.deliveries.FIRST_PAUSE", 0.4)
    app, incidents = served(hook)
    async with AsyncClient(app, token="ann") as client, app.running():
        await result_of(client, "events/subscribe", asked(hook))
        hook.fail(503, 503, 503)
        loop = asyncio.get_running_loop()
        times = [loop.time()]
        await app.emit(incidents, Incident(id="1"), id="INC-1")
        while len(times) < 4:
            await until(lambda: len(hook.sent) > len(times) + 1, "it was sent again")
            times.append(loop.time())
        attempts = [each for each in hook.sent if each.id == "INC-1"]
        assert [each.status for each in attempts] == [503, 503, 503, 200]
        stamps = [int(each.headers["webhook-timestamp"]) for each in attempts]
        assert stamps[0] < stamps[-1]  # by more than the 2.1 s of three pauses at least
        assert attempts[0].headers["webhook-signature"] != attempts[-1].headers["webhook-signature"]
        assert times[-1] - times[-2] > times[1] - times[0]
        assert {each.body["eventId"] for each in attempts} == {"INC-1"}


async def test_one_that_was_suspended_goes_on_when_its_client_subscribes_again(
    hook: WebhookReceiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mrtr_server.events.deliveries.SUSPEND_AFTER", 0.0)
    app, incidents = served(hook)
    async with AsyncClient(app, token="ann") as client, app.running():
        await result_of(client, "events/subscribe", asked(hook))
        hook.fail(500)
        await app.emit(incidents, Incident(id="1"))
        await app.emit(incidents, Incident(id="2"))
        await until(lambda: any(each.status == 500 for each in hook.sent), "an event was refused")
        await asyncio.sleep(1.5)  # until that is stored; nothing is sent meanwhile
        assert len(hook.events) < 2
        status = (await result_of(client, "events/subscribe", asked(hook)))["deliveryStatus"]
        assert status.keys() == {"active", "lastDeliveryAt", "lastError", "failedSince"}
        assert (status["active"], status["lastError"]) == (False, "http_5xx")
        events = await hook.wait(2)
        assert sorted(each["data"]["id"] for each in events) == ["1", "2"]


async def test_neither_secrets_nor_payloads_are_in_the_log(
    hook: WebhookReceiver, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("DEBUG")
    app, incidents = served(hook)
    async with AsyncClient(app, token="ann") as client, app.running():
        await result_of(client, "events/subscribe", asked(hook))
        hook.fail(500, 413)
        await app.emit(incidents, Incident(id="payload-of-mine"))
        await hook.wait_for("gap")
    assert hook.secret not in caplog.text
    assert "payload-of-mine" not in caplog.text


# What a caller may subscribe to


@pytest.mark.parametrize(("capabilities", "code"), [({}, -32012), (DECLARED, -32024)])
async def test_arguments_that_a_caller_may_not_choose_are_refused_in_each_mode_and_end_what_there_is(
    hook: WebhookReceiver, capabilities: dict[str, Any], code: int
) -> None:
    allowed = {"ann"}

    async def is_own(wants: Filter, caller: Caller) -> bool:
        assert caller.principal is not None
        return wants.service in allowed and caller.principal.subject == wants.service

    app, incidents = served(hook)
    incidents.admits = is_own
    async with AsyncClient(app, token="ann", capabilities=capabilities) as client, app.running():
        for method in ("events/poll", "events/stream", "events/subscribe"):
            error = (await client.request(method, asked(hook, arguments={"service": "ben"}))).error
            assert (error.code, error.data) == (code, {"kind": "arguments"})
        own = {"service": "ann"}
        await result_of(client, "events/poll", {"name": "incident.created", "arguments": own})
        await result_of(client, "events/subscribe", asked(hook, arguments=own))
        stream = client.follow("incident.created", own)
        await stream.open()
        await app.emit(incidents, Incident(id="1"))
        assert (await stream.next()).received[0]["method"] == "notifications/events/event"
        await hook.wait(1)
        allowed.clear()
        await app.emit(incidents, Incident(id="2"))
        assert (await stream.next()).received[0]["params"]["error"]["code"] == code
        assert (await hook.wait_for("terminated"))["error"]["code"] == code
        error = (await client.request("events/poll", {"name": "incident.created", "arguments": own})).error
        assert error.code == code
        assert len(hook.events) == 1


async def test_a_question_about_access_that_fails_lets_nobody_in_and_ends_nothing(
    hook: WebhookReceiver, caplog: pytest.LogCaptureFixture
) -> None:
    app, incidents = served(hook)
    answers: list[Any] = []
    incidents.admits = lambda wants, caller: answers[-1] if answers[-1] is not None else 1 / 0
    async with AsyncClient(app, token="ann") as client:
        for answer in (None, "yes"):
            answers.append(answer)
            error = (await client.request("events/poll", {"name": "incident.created"})).error
            assert error.code == -32603
        answers.append(True)
        stream = client.follow("incident.created")
        await stream.open()
        answers.append(None)
        await app.emit(incidents, Incident(id="1"))
        await until(lambda: caplog.text.count("admits= of 'incident.created' failed") > 2, "it was asked")
        answers.append(True)
        assert (await stream.next()).received[0]["params"]["data"] == {"id": "1"}
        await stream.close()


async def test_what_is_cut_to_more_than_can_be_delivered_is_left_out_and_said() -> None:
    app = MRTRServer("ops")
    incidents = app.event(
        "incident.created", payload=Incident, shape=lambda incident, wants, caller: Incident(id=incident.id * 300_000)
    )
    async with AsyncClient(app) as client:
        cursor = (await result_of(client, "events/poll", {"name": "incident.created"}))["cursor"]
        await app.emit(incidents, Incident(id="1"))
        found = await result_of(client, "events/poll", {"name": "incident.created", "cursor": cursor})
        assert (found["events"], found["truncated"]) == ([], True)
