"""What hostile clients, receivers and functions of authors do to events: none holds up, or ends, those of others."""

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
from pydantic import BaseModel, field_validator

from mrtr_server import Batch, BearerTokens, Caller, EventType, Limits, MRTRServer, Webhooks
from mrtr_server.testing import (
    AsyncClient,
    SharedStore,
    WebhookReceiver,
    new_secret,
    replicas,
    webhook_receiver,
)

from ..support.receivers import Receiver
from ..support.serving import until

pytestmark = pytest.mark.anyio

USERS = BearerTokens({"ann": "ann", "ben": "ben"})
DEAD = 120
"""Webhooks that never answer: more than the fetcher has connections."""


class Incident(BaseModel):
    id: str


class Filter(BaseModel):
    id: str | None = None


@pytest.fixture
async def hook() -> AsyncIterator[WebhookReceiver]:
    async with webhook_receiver() as receiver:
        yield receiver


def served(hook: WebhookReceiver, **options: Any) -> MRTRServer:
    return MRTRServer("ops", **{"auth": USERS, "webhooks": Webhooks(allow=[hook.origin]), **options})


def events(app: MRTRServer, **options: Any) -> EventType[Filter, Incident]:
    return app.event("incident.created", **{"arguments": Filter, "payload": Incident, **options})


async def subscribe(client: AsyncClient, url: str, secret: str, **params: Any) -> Any:
    delivery = {"mode": "webhook", "url": url, "secret": secret}
    return await client.request("events/subscribe", {"name": "incident.created", "delivery": delivery, **params})


# Clients


async def test_arguments_that_are_kept_are_bounded(hook: WebhookReceiver) -> None:
    app = served(hook)
    events(app)
    async with AsyncClient(app, token="ann") as client:
        error = (await subscribe(client, hook.url, hook.secret, arguments={"id": "x" * 20_000})).error
    assert (error.code, hook.sent) == (-32602, [])


async def test_nobody_has_a_source_read_for_any_number_of_arguments(hook: WebhookReceiver) -> None:
    app = served(hook, limits=Limits(subscriptions=10, caller_share=0.2))
    mail = events(app)

    @mail.source(every=30)
    async def read(since: str | None, wants: Filter) -> Batch[Incident]:
        return Batch([], "")

    async with AsyncClient(app, token="ann") as ann, AsyncClient(app, token="ben") as ben:
        replies = [
            await client.request("events/poll", {"name": "incident.created", "arguments": {"id": str(number)}})
            for number, client in enumerate([ann, ann, ann, ben])
        ]
    assert [reply.message.get("error", {}).get("code") for reply in replies] == [None, None, -32013, None]


async def test_no_host_is_flooded_with_verifications(hook: WebhookReceiver) -> None:
    app = served(hook)
    events(app)
    hook.verifies = False
    async with AsyncClient(app, token="ann") as client:
        codes = [(await subscribe(client, f"{hook.url}?{each}", hook.secret)).error.code for each in range(15)]
    assert codes == [-32015] * 10 + [-32013] * 5
    assert len(hook.sent) == 10


async def test_whoever_subscribes_again_at_once_has_a_subscription(hook: WebhookReceiver) -> None:
    class SlowStore(SharedStore):
        """Removes a subscription after the client has subscribed again."""

        is_there = asyncio.Event()

        async def remove_subscription(self, id: str, *, updated: float | None = None) -> bool:
            await self.is_there.wait()
            return await super().remove_subscription(id, updated=updated)

    store = SlowStore()
    app = served(hook, store=store)
    incidents = events(app)
    async with AsyncClient(app, token="ann") as client, app.running():
        await subscribe(client, hook.url, hook.secret)
        await app.emit(incidents, Incident(id="1"))
        await hook.wait(1)
        await client.request("events/unsubscribe", {"name": "incident.created", "delivery": {"url": hook.url}})
        await asyncio.sleep(0.2)  # until that is being removed
        await subscribe(client, hook.url, hook.secret)
        store.is_there.set()
        await app.emit(incidents, Incident(id="2"))
        await hook.wait(2)


async def test_what_is_not_allowed_any_more_can_be_ended(hook: WebhookReceiver) -> None:
    store = SharedStore()
    for webhooks in (Webhooks(allow=[hook.origin]), Webhooks()):
        app = served(hook, store=store, webhooks=webhooks)
        events(app)
        async with AsyncClient(app, token="ann") as client:
            if webhooks.allow:
                await subscribe(client, hook.url, hook.secret)
            params = {"name": "incident.created", "delivery": {"url": hook.url}}
            assert "error" not in (await client.request("events/unsubscribe", params)).message


async def test_what_happens_during_a_subscription_comes(hook: WebhookReceiver) -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, head: bytes) -> None:
        body = json.loads(receiver.requests[-1][1])
        if body.get("type") == "verification":
            await app.emit(incidents, Incident(id="1"))
        said = json.dumps({"challenge": body.get("challenge")}).encode()
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(said), said))

    async with Receiver(answer) as receiver:
        app = served(hook, webhooks=Webhooks(allow=[f"http://127.0.0.1:{receiver.port}"]))
        incidents = events(app)
        async with AsyncClient(app, token="ann") as client, app.running():
            await subscribe(client, f"http://127.0.0.1:{receiver.port}/hook", new_secret())
            await until(lambda: any(b'"data"' in body for _, body in receiver.requests), "the event")


# Receivers


async def test_dead_webhooks_delay_no_other(hook: WebhookReceiver) -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, head: bytes) -> None:
        body = json.loads(dead.requests[-1][1])
        if body.get("type") != "verification":
            await asyncio.sleep(3600)
        said = json.dumps({"challenge": body["challenge"]}).encode()
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(said), said))

    async with Receiver(answer) as dead:
        origin = f"http://127.0.0.1:{dead.port}"
        app = served(hook, webhooks=Webhooks(allow=[hook.origin, origin]))
        incidents = events(app)
        async with AsyncClient(app, token="ann") as client, app.running():
            for number in range(DEAD):
                assert (await subscribe(client, f"{origin}/{number}", new_secret())).result
            await subscribe(client, hook.url, hook.secret)
            for number in range(3):
                await app.emit(incidents, Incident(id=str(number)))
            async with asyncio.timeout(5):
                await hook.wait(3)


# Functions of authors


async def test_a_function_that_ends_or_hangs_leaves_one_event_out(
    hook: WebhookReceiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mrtr_server.events.subscribers.DECIDE_WITHIN", 0.1)

    async def decides(incident: Incident, wants: Filter, caller: Caller) -> bool:
        if incident.id == "hangs":
            await asyncio.sleep(3600)
        if incident.id == "cancelled":
            raise asyncio.CancelledError
        if incident.id == "exits":
            raise SystemExit
        return True

    app = served(hook)
    incidents = events(app, matches=decides)
    async with AsyncClient(app, token="ann") as client, app.running():
        await subscribe(client, hook.url, hook.secret)
        for id in ("hangs", "cancelled", "exits", "good"):
            await app.emit(incidents, Incident(id=id))
        assert [each["data"]["id"] for each in await hook.wait(1)] == ["good"]
        assert (await hook.wait_for("gap"))["cursor"]


async def test_a_payload_that_grows_is_left_out(hook: WebhookReceiver) -> None:
    def grown(incident: Incident, wants: Filter, caller: Caller) -> Incident:
        return Incident(id="x" * 300_000) if incident.id == "1" else incident

    app = served(hook)
    incidents = events(app, shape=grown)
    async with AsyncClient(app, token="ann") as client, app.running():
        await subscribe(client, hook.url, hook.secret)
        for id in ("1", "2"):
            await app.emit(incidents, Incident(id=id))
        assert [each["data"]["id"] for each in await hook.wait(1)] == ["2"]


async def test_whoever_is_told_of_an_end_holds_up_nobody(
    hook: WebhookReceiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mrtr_server.events.subscribers.TELL_WITHIN", 1.0)
    told = asyncio.Event()

    async def hang(wants: Filter, caller: Caller) -> None:
        told.set()
        await asyncio.sleep(3600)

    app = served(hook)
    incidents = events(app, on_unsubscribe=hang)
    async with AsyncClient(app, token="ann") as ann, AsyncClient(app, token="ben") as ben, app.running():
        await subscribe(ann, f"{hook.url}?ann", hook.secret)
        await app.emit(incidents, Incident(id="1"))
        await hook.wait(1)
        params = {"name": "incident.created", "delivery": {"url": f"{hook.url}?ann"}}
        await ann.request("events/unsubscribe", params)
        await asyncio.wait_for(told.wait(), 10)
        await subscribe(ben, hook.url, hook.secret)
        await app.emit(incidents, Incident(id="2"))
        async with asyncio.timeout(0.9):
            await hook.wait(2)


async def test_a_subscription_that_can_not_be_read_holds_up_no_other(hook: WebhookReceiver) -> None:
    is_broken = False

    class Picky(BaseModel):
        id: str | None = None

        @field_validator("id")
        @classmethod
        def check(cls, value: str | None) -> str | None:
            if is_broken and value == "bad":
                raise RuntimeError("of the author's own")
            return value

    app = served(hook, store=SharedStore(), limits=Limits(lease_seconds=3))
    incidents = events(app, arguments=Picky)
    one, other = replicas(app, 2)
    async with AsyncClient(one, token="ann") as client:
        await subscribe(client, hook.url, hook.secret, arguments={"id": "bad"})
        await subscribe(client, hook.url, hook.secret)
    is_broken = True
    async with other.running():
        await other.emit(incidents, Incident(id="1"))
        await hook.wait(1)


async def test_a_source_that_always_has_more_is_called_with_pauses(hook: WebhookReceiver) -> None:
    calls = 0
    app = served(hook)
    mail = events(app)

    @mail.source(every=30)
    async def read(since: str | None, wants: Filter) -> Batch[Incident]:
        nonlocal calls
        calls += 1
        return Batch([], str(calls), more=True)

    async with AsyncClient(app, token="ann") as client, app.running():
        await client.request("events/poll", {"name": "incident.created"})
        await until(lambda: calls, "the source")
        await asyncio.sleep(0.5)
    assert calls <= 21
