"""Webhooks: who may have one, what comes to it and how it is signed, and what becomes of what is not taken."""

import asyncio
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from typing import Any

import pytest
from pydantic import BaseModel
from standardwebhooks.webhooks import Webhook

from mrtr_server import (
    BadWebhook,
    BearerTokens,
    Caller,
    Events,
    EventType,
    InProcessStore,
    Limits,
    MRTRServer,
    Principal,
    StoreUnavailable,
    SubscriptionRow,
    Webhooks,
    read_webhook,
)
from mrtr_server.testing import (
    AsyncClient,
    Clock,
    SharedStore,
    WebhookReceiver,
    new_secret,
    replica,
    replicas,
    webhook_receiver,
)

pytestmark = pytest.mark.anyio

USERS = BearerTokens({"ann": "ann", "ben": "ben"})
DECLARED: dict[str, Any] = {"extensions": {"io.modelcontextprotocol/events": {}}}


class Incident(BaseModel):
    id: str


class Filter(BaseModel):
    id: str | None = None


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shorten what takes seconds."""
    monkeypatch.setattr("mrtr_server.events.deliveries.FIRST_PAUSE", 0.05)


@pytest.fixture
async def hook() -> AsyncIterator[WebhookReceiver]:
    async with webhook_receiver() as receiver:
        yield receiver


def served(hook: WebhookReceiver, **options: Any) -> tuple[MRTRServer, EventType[Filter, Incident]]:
    given: dict[str, Any] = {"auth": USERS, "webhooks": Webhooks(allow=[hook.origin]), **options}
    app = MRTRServer("ops", **given)
    event = app.event(
        "incident.created",
        arguments=Filter,
        payload=Incident,
        matches=lambda incident, wants, caller: wants.id in (None, incident.id),
    )
    return app, event


def asked(hook: WebhookReceiver, **params: Any) -> dict[str, Any]:
    delivery = {"mode": "webhook", "url": hook.url, "secret": hook.secret}
    return {"name": "incident.created", "delivery": delivery, **params}


async def subscribe(client: AsyncClient, hook: WebhookReceiver, **params: Any) -> dict[str, Any]:
    return dict((await client.request("events/subscribe", asked(hook, **params))).result)


async def test_an_event_comes_signed_once_and_names_its_subscription(hook: WebhookReceiver) -> None:
    app, incidents = served(hook)
    async with AsyncClient(app, token="ann") as client, app.running():
        granted = await subscribe(client, hook)
        assert granted["truncated"] is False
        await app.emit(incidents, Incident(id="1"), id="INC-1", at=7.0)
        (event,) = await hook.wait(1)
        assert {**event, "cursor": ""} == {
            "eventId": "INC-1",
            "name": "incident.created",
            "timestamp": "1970-01-01T00:00:07.000Z",
            "data": {"id": "1"},
            "cursor": "",
        }
        verification, sent = hook.sent
        assert verification.body["type"] == "verification"
        assert verification.id.startswith("msg_verification_")
        assert (sent.id, sent.headers["x-mcp-subscription-id"]) == ("INC-1", granted["id"])
        assert sent.headers["content-type"] == "application/json"


async def test_a_library_of_others_verifies_each_signature(hook: WebhookReceiver) -> None:
    app, incidents = served(hook)
    bodies: list[tuple[bytes, dict[str, str]]] = []
    serve = hook._serve

    async def kept(request: Any) -> Any:
        bodies.append((await request.body(), dict(request.headers)))
        return await serve(request)

    hook._serve = kept  # type: ignore[method-assign]
    async with AsyncClient(app, token="ann") as client, app.running():
        await subscribe(client, hook)
        await app.emit(incidents, Incident(id="ü"))
        await hook.wait(1)
        hook.fail(413)
        await app.emit(incidents, Incident(id="too large"))
        await hook.wait_for("gap")
        for body, headers in bodies:
            Webhook(hook.secret).verify(body, headers)
        former, hook.secret = hook.secret, new_secret()
        await subscribe(client, hook)
        await app.emit(incidents, Incident(id="2"))
        await hook.wait(2)
    assert len(bodies) == 5  # a verification, an event, one that was not taken, and a gap; and the last event
    for secret in (former, hook.secret):
        Webhook(secret).verify(*bodies[-1])


async def test_a_cursor_never_passes_what_was_not_taken(hook: WebhookReceiver) -> None:
    app, incidents = served(hook)
    async with AsyncClient(app, token="ann") as client, app.running():
        await subscribe(client, hook)
        hook.fail(503, 503)
        for number in range(4):
            await app.emit(incidents, Incident(id=str(number)))
        events = await hook.wait(4)
        assert sorted(each["data"]["id"] for each in events) == ["0", "1", "2", "3"]
        first = next(each for each in hook.sent if each.status == 503).body
        # From the cursor of any message on, all that had not been taken before it is found.
        taken: set[str] = set()
        for sent in hook.sent[1:]:
            page = await client.request(
                "events/poll", {"name": "incident.created", "cursor": sent.body["cursor"], "arguments": {}}
            )
            found = {each["data"]["id"] for each in page.result["events"]}
            assert found | taken >= {"0", "1", "2", "3"}, sent
            if sent.status == 200:
                taken.add(sent.body["data"]["id"])
        assert first["eventId"] in {each["eventId"] for each in events}


async def test_what_is_not_taken_is_tried_again_and_the_status_says_so(hook: WebhookReceiver) -> None:
    app, incidents = served(hook)
    async with AsyncClient(app, token="ann") as client, app.running():
        granted = await subscribe(client, hook)
        hook.fail(500, 404)
        await app.emit(incidents, Incident(id="1"), id="INC-1")
        await hook.wait(1)
        assert [each.status for each in hook.sent if each.id == "INC-1"] == [500, 404, 200]
        await stored(client, hook, lambda status: status["lastDeliveryAt"] is not None)
        renewed = await subscribe(client, hook)
        assert renewed["id"] == granted["id"]
        assert renewed["deliveryStatus"]["active"] is True
        assert renewed["deliveryStatus"]["lastError"] is None
        assert renewed["truncated"] is False


async def stored(client: AsyncClient, hook: WebhookReceiver, fits: Any) -> dict[str, Any]:
    """Wait until the progress of a subscription is stored."""
    async with asyncio.timeout(10):
        while True:
            found = await subscribe(client, hook)
            if fits(found["deliveryStatus"]):
                return found
            await asyncio.sleep(0.05)


@pytest.mark.parametrize("status", [413, 410])
async def test_what_must_not_be_tried_again_is_given_up_and_said(hook: WebhookReceiver, status: int) -> None:
    app, incidents = served(hook)
    async with AsyncClient(app, token="ann") as client, app.running():
        await subscribe(client, hook)
        hook.fail(status)
        await app.emit(incidents, Incident(id="1"), id="INC-1")
        await hook.wait_for("gap")
        await asyncio.sleep(1.5)  # until that is stored; whoever subscribes now would have it go on
        found = await subscribe(client, hook)
        assert found["deliveryStatus"]["lastError"] == "http_4xx"
        assert [each.status for each in hook.sent if each.id == "INC-1"] == [status]
        assert found["deliveryStatus"]["active"] is (status == 413)  # one that is gone gets nothing more
        await app.emit(incidents, Incident(id="2"), id="INC-2")
        await hook.wait(1)  # it goes on, since its client has subscribed again
        await stored(client, hook, lambda status: status["lastError"] is None)
        assert not (await subscribe(client, hook))["truncated"]  # which is said once


async def test_a_gap_is_said_at_the_next_refresh(hook: WebhookReceiver) -> None:
    app, incidents = served(hook)
    async with AsyncClient(app, token="ann") as client, app.running():
        await subscribe(client, hook)
        hook.fail(413, 503)
        await app.emit(incidents, Incident(id="1"))
        await hook.wait_for("gap")
        said = []
        async with asyncio.timeout(10):
            while True not in said:
                said.append((await subscribe(client, hook))["truncated"])
                await asyncio.sleep(0.05)
        assert (await subscribe(client, hook))["truncated"] is False
        hook.fail(413)
        await app.emit(incidents, Incident(id="2"))  # a host that was in trouble for a moment takes such messages
        statuses: list[int] = []
        async with asyncio.timeout(10):
            while len(statuses) < 2:
                await asyncio.sleep(0.05)
                statuses = [each.status for each in hook.sent if each.body.get("type") == "gap"]
        assert statuses == [503, 200]
        told = [each.body for each in hook.sent if each.body.get("type") == "gap"][-1]
        params = {"name": "incident.created", "cursor": told["cursor"]}
        assert (await client.request("events/poll", params)).result["events"] == []  # the cursor is past it


async def test_a_cursor_before_what_is_gone_says_so_at_once_and_is_replaced(hook: WebhookReceiver) -> None:
    app, incidents = served(hook, events=Events(keep_most=50))
    async with AsyncClient(app, token="ann") as client, app.running():
        params = {"name": "incident.created"}
        old = (await client.request("events/poll", params)).result["cursor"]
        for number in range(100):
            await app.emit(incidents, Incident(id=str(number)))
        granted = await subscribe(client, hook, cursor=old)
        assert granted["truncated"] is True
        events = await hook.wait(50)
        assert {each["data"]["id"] for each in events} == {str(number) for number in range(50, 100)}
        assert [each.body["type"] for each in hook.sent if "type" in each.body] == ["verification"]
        page = (await client.request("events/poll", {**params, "cursor": granted["cursor"]})).result
        assert (page["events"][0]["data"]["id"], page["truncated"]) == ("50", False)


async def test_the_cursor_of_a_renewal_moves_though_nothing_was_sent(hook: WebhookReceiver) -> None:
    app, incidents = served(hook, events=Events(keep_most=50))
    wanted = {"arguments": {"id": "of another"}}
    async with AsyncClient(app, token="ann") as client, app.running():
        first = await subscribe(client, hook, **wanted)
        for number in range(100):
            await app.emit(incidents, Incident(id=str(number)))
            await asyncio.sleep(0)
        await asyncio.sleep(1.5)  # until that is stored
        renewed = await subscribe(client, hook, **wanted)
        assert hook.events == []
        truncated = []
        for cursor in (first["cursor"], renewed["cursor"]):
            page = await client.request("events/poll", {"name": "incident.created", "cursor": cursor, **wanted})
            truncated.append(page.result["truncated"])
        assert truncated == [True, False]


async def test_an_event_waits_for_a_store_that_is_away_while_it_is_made_ready(hook: WebhookReceiver) -> None:
    app, _ = served(hook)
    looked: list[str] = []

    def looks(incident: Incident, wants: Filter, caller: Caller) -> bool:
        looked.append(incident.id)
        if len(looked) == 1:
            raise StoreUnavailable("away")
        return True

    reported = app.event("reported", arguments=Filter, payload=Incident, matches=looks)
    async with AsyncClient(app, token="ann") as client, app.running():
        await client.request("events/subscribe", {**asked(hook), "name": "reported"})
        await app.emit(reported, Incident(id="1"))
        await hook.wait(1)
        assert looked == ["1", "1"]
        assert not [each for each in hook.sent if each.body.get("type") == "gap"]


async def test_scopes_alone_give_no_subscription_without_an_end(hook: WebhookReceiver) -> None:
    app = MRTRServer("ops", auth=USERS, store=SharedStore(), webhooks=Webhooks(allow=[hook.origin], endless=True))
    app.event("by.scopes", arguments=Filter, payload=Incident, visible=[])
    app.event("by.function", arguments=Filter, payload=Incident, authorize=lambda caller, name: True)
    async with AsyncClient(app, token="ann") as client, app.running():
        for name, is_endless in (("by.scopes", False), ("by.function", True)):
            params = {**asked(hook), "name": name, "ttlMs": None}
            granted = (await client.request("events/subscribe", params)).result
            assert (granted["refreshBefore"] is None) is is_endless


async def test_only_what_the_subscriber_wants_and_may_have_comes(hook: WebhookReceiver) -> None:
    app, incidents = served(hook)
    async with AsyncClient(app, token="ann") as client, app.running():
        await subscribe(client, hook, arguments={"id": "2"})
        await app.emit(incidents, Incident(id="1"))
        await app.emit(incidents, Incident(id="2"), to=Principal("ben"))
        await app.emit(incidents, Incident(id="2"), to=Principal("ann"), id="for ann")
        (event,) = await hook.wait(1)
        assert event["eventId"] == "for ann"


async def test_three_replicas_bring_each_event_once(hook: WebhookReceiver) -> None:
    app, incidents = served(hook, store=SharedStore())
    servers = replicas(app, 3)
    async with AsyncClient(servers[0], token="ann") as client:
        async with servers[0].running(), servers[1].running(), servers[2].running():
            await subscribe(client, hook)
            for number in range(30):
                await servers[number % 3].emit(incidents, Incident(id=str(number)))
            await hook.wait(30)
            await asyncio.sleep(0.3)
    assert sorted(int(each["data"]["id"]) for each in hook.events) == list(range(30))


async def test_a_replica_that_ends_hands_over(hook: WebhookReceiver) -> None:
    app, incidents = served(hook, store=SharedStore(), limits=Limits(lease_seconds=3))
    one, other = replicas(app, 2)
    async with other.running():
        async with AsyncClient(one, token="ann") as client, one.running():
            await subscribe(client, hook)
            await one.emit(incidents, Incident(id="1"))
            await hook.wait(1)
        await other.emit(incidents, Incident(id="2"))
        await hook.wait(2)
    assert sorted(each["data"]["id"] for each in hook.events) == ["1", "2"]


async def test_events_that_fail_hold_no_later_one_back(hook: WebhookReceiver, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mrtr_server.events.deliveries.FIRST_PAUSE", 600.0)
    app, incidents = served(hook)
    async with AsyncClient(app, token="ann") as client, app.running():
        await subscribe(client, hook)
        hook.fail(*[503] * 8)
        for number in range(9):
            await app.emit(incidents, Incident(id=str(number)))
        assert len(await hook.wait(1)) == 1


# Who may have one


async def test_a_webhook_that_does_not_want_messages_gets_none(hook: WebhookReceiver) -> None:
    app, incidents = served(hook)
    hook.verifies = False
    for capabilities, code in (({}, -32015), (DECLARED, -32027)):
        async with AsyncClient(app, token="ann", capabilities=capabilities) as client:
            error = (await client.request("events/subscribe", asked(hook))).error
            assert (error.code, error.data) == (code, {"reason": "challenge_failed"})
    async with app.running():
        await app.emit(incidents, Incident(id="1"))
        await asyncio.sleep(0.2)
    assert hook.events == []


async def test_a_webhook_is_asked_once_for_each_principal(hook: WebhookReceiver) -> None:
    app, _ = served(hook)
    async with AsyncClient(app, token="ann") as ann, AsyncClient(app, token="ben") as ben, app.running():
        await subscribe(ann, hook)
        await subscribe(ann, hook, arguments={"id": "1"})
        assert len(hook.sent) == 1
        await subscribe(ben, hook)
        assert len(hook.sent) == 2


@pytest.mark.parametrize(
    ("delivery", "code"),
    [
        ({"mode": "push"}, -32014),
        ({"url": "http://example.com/hook"}, -32602),
        ({"url": "https://127.0.0.1/hook"}, -32602),
        ({"url": "https://user:password@example.com/hook"}, -32602),
        ({"url": 7}, -32602),
        ({"url": None}, -32602),
        ({"secret": "whsec_c2hvcnQ="}, -32602),
        ({"secret": "hand-picked"}, -32602),
        ({"secret": None}, -32602),
    ],
)
async def test_what_can_be_no_webhook_is_refused(hook: WebhookReceiver, delivery: dict[str, Any], code: int) -> None:
    app, _ = served(hook)
    params = asked(hook)
    params["delivery"] = {**params["delivery"], **delivery}
    async with AsyncClient(app, token="ann") as client:
        assert (await client.request("events/subscribe", params)).error.code == code
    assert hook.sent == []


async def test_a_webhook_that_nobody_answers_at_is_refused(hook: WebhookReceiver) -> None:
    async with webhook_receiver() as gone:
        app, _ = served(hook, webhooks=Webhooks(allow=[gone.origin]))
    async with AsyncClient(app, token="ann") as client:
        error = (await client.request("events/subscribe", asked(gone))).error
        assert (error.code, error.data) == (-32015, {"reason": "connection_refused"})


async def test_webhooks_are_limited_by_person_and_in_all(hook: WebhookReceiver) -> None:
    app, _ = served(hook, limits=Limits(subscriptions=3, caller_share=0.67))
    async with (
        AsyncClient(app, token="ann") as ann,
        AsyncClient(app, token="ben", capabilities=DECLARED) as ben,
        app.running(),
    ):
        for number in range(2):
            await subscribe(ann, hook, arguments={"id": str(number)})
        error = (await ann.request("events/subscribe", asked(hook, arguments={"id": "2"}))).error
        assert (error.code, error.data) == (-32013, {"limit": "subscriptions", "max": 2})
        await subscribe(ann, hook, arguments={"id": "1"})  # which is there
        await subscribe(ben, hook)
        error = (await ben.request("events/subscribe", asked(hook, arguments={"id": "2"}))).error
        assert (error.code, error.data) == (-32025, {"limit": "subscriptions", "max": 3})


async def test_a_time_is_granted_and_never_more(hook: WebhookReceiver) -> None:
    clock = Clock()
    app, _ = served(hook, store=SharedStore())
    moved = replica(app, clock=clock)
    async with AsyncClient(moved, token="ann") as client:
        longest = 2**53 - 1  # which some clients send for "as long as there is"
        for asked_for, granted in ((3_600_000, 3600), (1, 60), (-1, 60), (longest, 86_400), (None, 86_400)):
            found = await subscribe(client, hook, ttlMs=asked_for)
            assert found["refreshBefore"] == instant(clock.now + granted), asked_for
        assert (await subscribe(client, hook))["refreshBefore"] == instant(clock.now + 86_400)


def instant(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


async def test_no_end_is_granted_where_access_is_asked_about_and_it_is_stored(hook: WebhookReceiver) -> None:
    webhooks = Webhooks(allow=[hook.origin], endless=True)
    guarded: dict[str, Any] = {"webhooks": webhooks, "authorize": lambda caller, name: True}
    plain, _ = served(hook, webhooks=webhooks, store=SharedStore())
    forgetful, _ = served(hook, **guarded)
    for app in (plain, forgetful):
        async with AsyncClient(app, token="ann") as client:
            assert (await subscribe(client, hook, ttlMs=None))["refreshBefore"] is not None
    app, _ = served(hook, store=SharedStore(), **guarded)
    async with AsyncClient(app, token="ann") as client:
        assert (await subscribe(client, hook, ttlMs=None))["refreshBefore"] is None
        assert (await subscribe(client, hook))["refreshBefore"] is not None  # it has an end again


async def test_what_ends_with_the_process_is_granted_for_half_an_hour(hook: WebhookReceiver) -> None:
    clock = Clock()
    moved = replica(served(hook)[0], clock=clock)
    async with AsyncClient(moved, token="ann") as client:
        for asked_for, granted in ((60_000, 60), (86_400_000, 1800), (None, 1800)):
            assert (await subscribe(client, hook, ttlMs=asked_for))["refreshBefore"] == instant(clock.now + granted)


# How one ends


async def test_whoever_unsubscribes_gets_nothing_more(hook: WebhookReceiver) -> None:
    gone, loop = asyncio.Event(), asyncio.get_running_loop()
    app, incidents = served(hook)
    incidents.on_unsubscribe = lambda wants, caller: loop.call_soon_threadsafe(gone.set)
    async with AsyncClient(app, token="ann") as ann, AsyncClient(app, token="ben") as ben, app.running():
        await subscribe(ann, hook)
        params = {"name": "incident.created", "delivery": {"url": hook.url}}
        assert "error" not in (await ben.request("events/unsubscribe", params)).message  # who has none
        await app.emit(incidents, Incident(id="1"))
        await hook.wait(1)
        assert "error" not in (await ann.request("events/unsubscribe", params)).message
        await asyncio.wait_for(gone.wait(), 10)
        await app.emit(incidents, Incident(id="2"))
        await asyncio.sleep(0.3)
        assert len(hook.events) == 1
        assert "error" not in (await ann.request("events/unsubscribe", params)).message
    async with AsyncClient(app, token="ann", capabilities=DECLARED) as client:
        error = (await client.request("events/unsubscribe", params)).error
        assert (error.code, error.data) == (-32023, {"kind": "subscription"})


class Slow(InProcessStore):
    """A store that takes its time to tell of subscriptions."""

    shared = True
    seconds = 0.0

    async def list_subscriptions(self, **given: Any) -> list[SubscriptionRow]:
        await asyncio.sleep(self.seconds)
        return await super().list_subscriptions(**given)


async def test_nothing_is_sent_while_it_is_looked_up_who_has_unsubscribed(hook: WebhookReceiver) -> None:
    store = Slow()
    app, incidents = served(hook, store=store)
    async with AsyncClient(app, token="ann") as client, app.running():
        await subscribe(client, hook)
        await app.emit(incidents, Incident(id="1"))
        await hook.wait(1)
        store.seconds = 0.3
        await client.request("events/unsubscribe", {"name": "incident.created", "delivery": {"url": hook.url}})
        await app.emit(incidents, Incident(id="2"))
        await asyncio.sleep(1)
        assert len(hook.events) == 1


@pytest.mark.parametrize(("capabilities", "code"), [({}, -32012), (DECLARED, -32024)])
async def test_whoever_loses_access_is_told_and_gets_nothing_more(
    hook: WebhookReceiver, capabilities: dict[str, Any], code: int
) -> None:
    allowed = {"ann"}

    def may(caller: Caller, name: str) -> bool:
        return caller.principal is not None and caller.principal.subject in allowed

    app, incidents = served(hook, authorize=may)
    async with AsyncClient(app, token="ann", capabilities=capabilities) as client, app.running():
        await subscribe(client, hook)
        await app.emit(incidents, Incident(id="1"))
        await hook.wait(1)
        allowed.clear()
        await app.emit(incidents, Incident(id="2"))
        assert await hook.wait_for("terminated") == {
            "type": "terminated",
            "error": {"code": code, "message": "Forbidden", "data": {"reason": "Access revoked"}},
        }
        await app.emit(incidents, Incident(id="3"))
        await asyncio.sleep(0.2)
        assert [each["data"]["id"] for each in hook.events] == ["1"]


@pytest.mark.parametrize(("capabilities", "code"), [({}, -32015), (DECLARED, -32027)])
async def test_one_without_an_end_that_nobody_takes_ends_and_says_so(
    hook: WebhookReceiver, monkeypatch: pytest.MonkeyPatch, capabilities: dict[str, Any], code: int
) -> None:
    monkeypatch.setattr("mrtr_server.events.deliveries.DROP_AFTER", 0.0)
    webhooks = Webhooks(allow=[hook.origin], endless=True)
    app, incidents = served(hook, webhooks=webhooks, store=SharedStore(), authorize=lambda caller, name: True)
    async with AsyncClient(app, token="ann", capabilities=capabilities) as client, app.running():
        assert (await subscribe(client, hook, ttlMs=None))["refreshBefore"] is None
        hook.fail(503)
        await app.emit(incidents, Incident(id="1"))
        assert (await hook.wait_for("terminated"))["error"] == {
            "code": code,
            "message": "CallbackEndpointError",
            "data": {"reason": "http_5xx"},
        }
        await asyncio.sleep(1.0)  # until it is removed
        assert "deliveryStatus" not in await subscribe(client, hook, ttlMs=None)  # which begins a new one


async def test_two_secrets_sign_while_one_takes_the_place_of_the_other(hook: WebhookReceiver) -> None:
    app, incidents = served(hook)
    async with AsyncClient(app, token="ann") as client, app.running():
        await subscribe(client, hook)
        params = asked(hook)
        params["delivery"]["secret"] = new_secret()
        await client.request("events/subscribe", params)
        await asyncio.sleep(0.1)
        await app.emit(incidents, Incident(id="1"))
        await hook.wait(1)  # by the former secret
        signatures = hook.sent[-1].headers["webhook-signature"].split(" ")
        assert len(signatures) == 2


# What a receiver checks


async def test_a_receiver_refuses_what_no_server_signed(hook: WebhookReceiver) -> None:
    body = b'{"eventId":"1","name":"a","timestamp":"","data":{}}'
    good = {"webhook-id": "1", "webhook-timestamp": "1000", "webhook-signature": ""}
    good["webhook-signature"] = Webhook(hook.secret).sign("1", datetime.fromtimestamp(1000, UTC), body.decode())
    message = read_webhook(good, body, new_secret(), hook.secret, now=1000.0)
    assert (message.type, message.name, message.data) == ("event", "a", {})
    for headers, content, secret, now in (
        (good, body + b" ", hook.secret, 1000.0),
        (good, body, new_secret(), 1000.0),
        (good, body, "nonsense", 1000.0),
        (good, body, hook.secret, 1400.0),
        (good, body, hook.secret, 600.0),
        ({**good, "webhook-id": "2"}, body, hook.secret, 1000.0),
        ({**good, "webhook-timestamp": "1001"}, body, hook.secret, 1000.0),
        ({**good, "webhook-id": "\udcff"}, body, hook.secret, 1000.0),
        ({**good, "webhook-timestamp": "x"}, body, hook.secret, 1000.0),
        ({**good, "webhook-signature": "v1,"}, body, hook.secret, 1000.0),
        ({}, body, hook.secret, 1000.0),
    ):
        with pytest.raises(BadWebhook):
            read_webhook(headers, content, secret, now=now)
