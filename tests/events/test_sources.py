"""Events that are read elsewhere: one reader for each choice of arguments, whoever wants them and how."""

import asyncio
from typing import Any

import pytest
from pydantic import BaseModel

from mrtr_server import Batch, BearerTokens, Caller, MRTRServer, Occurrence, SetupError, Webhooks
from mrtr_server.testing import AsyncClient, SharedStore, replicas, webhook_receiver

from ..support.serving import until

pytestmark = pytest.mark.anyio


class Mailbox(BaseModel):
    name: str


class Mail(BaseModel):
    subject: str


class Upstream:
    """Mailboxes, whose positions are numbers."""

    def __init__(self) -> None:
        self.mails: dict[str, list[str]] = {}
        self.reads: list[tuple[str, str | None]] = []

    async def read(self, since: str | None, wants: Mailbox) -> Batch[Mail]:
        self.reads.append((wants.name, since))
        mails = self.mails.setdefault(wants.name, [])
        start = len(mails) if since is None else int(since)
        found = [Occurrence(Mail(subject=each), id=str(at)) for at, each in enumerate(mails[start:], start)]
        return Batch(found, str(len(mails)))


def served(upstream: Upstream, monkeypatch: pytest.MonkeyPatch, **options: Any) -> MRTRServer:
    monkeypatch.setattr("mrtr_server.flow.events.SHORTEST_POLL", 0.01)
    app = MRTRServer("mail", auth=BearerTokens({"ann": "ann", "ben": "ben"}), **options)
    mail = app.event("mail.received", arguments=Mailbox, payload=Mail)
    mail.source(every=0.02)(upstream.read)
    return app


async def test_a_source_is_read_once_for_all_who_want_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    upstream = Upstream()
    app = served(upstream, monkeypatch, store=SharedStore())
    one, other = replicas(app, 2)
    async with AsyncClient(one, token="ann") as ann, AsyncClient(other, token="ben") as ben:
        async with one.running(), other.running():
            streams = [client.follow("mail.received", {"name": "work"}) for client in (ann, ben)]
            for stream in streams:
                await stream.open()
            elsewhere = ann.follow("mail.received", {"name": "home"})
            await elsewhere.open()
            await until(lambda: {("work", "0"), ("home", "0")} <= set(upstream.reads), "the source was read")
            upstream.mails["work"].append("hello")
            for stream in streams:
                params = (await stream.next()).received[0]["params"]
                assert (params["eventId"], params["data"]) == ("0", {"subject": "hello"})
            upstream.mails["home"].append("dinner")
            assert (await elsewhere.next()).received[0]["params"]["data"] == {"subject": "dinner"}
            # Nobody read from the beginning twice, though two replicas and three streams wanted something.
            assert sorted(each for each in upstream.reads if each[1] is None) == [("home", None), ("work", None)]
            for stream in (*streams, elsewhere):
                await stream.close()


async def test_whoever_polls_gets_what_a_source_finds(monkeypatch: pytest.MonkeyPatch) -> None:
    upstream = Upstream()
    app = served(upstream, monkeypatch)
    async with AsyncClient(app, token="ann") as client, app.running():
        params: dict[str, Any] = {"name": "mail.received", "arguments": {"name": "work"}}
        params["cursor"] = (await client.request("events/poll", params)).result["cursor"]
        await until(lambda: ("work", "0") in upstream.reads, "the source was read")
        upstream.mails["work"] += ["one", "two"]
        await until(lambda: ("work", "2") in upstream.reads, "the source was read")
        found = (await client.request("events/poll", params)).result["events"]
        assert [each["data"]["subject"] for each in found] == ["one", "two"]


async def test_a_source_that_fails_is_read_again(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    upstream = Upstream()
    app = served(upstream, monkeypatch)
    read, failures = upstream.read, ["upstream is down"]

    async def failing(since: str | None, wants: Mailbox) -> Batch[Mail]:
        if since is not None and failures:
            raise RuntimeError(failures.pop())
        return await read(since, wants)

    mail = app.event("mail.failing", arguments=Mailbox, payload=Mail)
    mail.source(every=0.02)(failing)
    async with AsyncClient(app, token="ann") as client, app.running():
        stream = client.follow("mail.failing", {"name": "work"})
        await stream.open()
        await until(lambda: ("work", "0") in upstream.reads, "the source was read")
        upstream.mails["work"].append("hello")
        assert (await stream.next()).received[0]["params"]["data"] == {"subject": "hello"}
        await stream.close()
    assert "The source of 'mail.failing' failed" in caplog.text


async def test_those_who_poll_count_as_subscribers_for_a_while() -> None:
    told: list[str] = []
    app = MRTRServer("mail", auth=BearerTokens({"ann": "ann"}))

    async def come(wants: Mailbox, caller: Caller) -> None:
        told.append(wants.name)

    app.event("mail.received", arguments=Mailbox, payload=Mail, on_subscribe=come)
    async with AsyncClient(app, token="ann") as client:
        for name in ("work", "work", "home"):
            await client.request("events/poll", {"name": "mail.received", "arguments": {"name": name}})
    assert told == ["work", "home"]


def test_what_can_be_no_source_is_refused() -> None:
    app = MRTRServer("mail")
    mail = app.event("mail.received", arguments=Mailbox, payload=Mail)
    wrong: Any = lambda since, wants: None  # noqa: E731
    with pytest.raises(SetupError, match="async def"):
        mail.source(every=30)(wrong)
    with pytest.raises(SetupError, match="at least 1"):
        mail.source(every=0.1)
    mail.source(every=30)(Upstream().read)
    with pytest.raises(SetupError, match="one already"):
        mail.source(every=30)(Upstream().read)


async def test_what_a_webhook_wants_is_read_for_as_long_as_it_does_and_kept_in_nobodys_name(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("mrtr_server.events.courier.LOOK_AT_ALL", 0.1)
    for module in ("courier", "subscriptions"):
        monkeypatch.setattr(f"mrtr_server.events.{module}.WANTED_SECONDS", 2.0)
    monkeypatch.setattr("mrtr_server.extensions.events.WANTED_SECONDS", 2.0)
    upstream, store = Upstream(), SharedStore()
    async with webhook_receiver() as hook:
        app = served(upstream, monkeypatch, store=store, webhooks=Webhooks(allow=[hook.origin]))
        delivery = {"mode": "webhook", "url": hook.url, "secret": hook.secret}
        wanted = {"name": "mail.received", "arguments": {"name": "work"}, "delivery": delivery}
        async with AsyncClient(app, token="ann") as client, app.running():
            await client.request("events/subscribe", wanted)
            await asyncio.sleep(2.5)  # longer than it was noted for
            upstream.mails.setdefault("work", []).append("hello")
            await hook.wait(1)
            (source,) = [row for row in await store.list_subscriptions(most=9) if row.kind == "source"]
            assert source.caller == ""
            await client.request("events/unsubscribe", wanted)
            await asyncio.sleep(2.5)
            read = len(upstream.reads)
            await asyncio.sleep(0.3)
            assert len(upstream.reads) == read
