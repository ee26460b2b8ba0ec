"""`mrtr-server events`: somebody follows the events of a server; an operator sees, hurries and ends its webhooks."""

import asyncio
import json
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

import pytest
from click.testing import CliRunner
from pydantic import BaseModel

from mrtr_server import BearerTokens, Caller, Context, Events, MRTRServer, SQLStore, Webhooks
from mrtr_server.cli import main
from mrtr_server.testing import AsyncClient, WebhookReceiver, replica, webhook_receiver

from ..support.serving import TIMEOUT, in_thread, until, without_settings

pytestmark = pytest.mark.anyio


class Filter(BaseModel):
    severity: Literal["P1", "P2"] | None = None
    least: int = 0


class Incident(BaseModel):
    id: int
    severity: str = "P1"


gone: list[int] = []


def on_unsubscribe(wants: Filter, caller: Caller) -> None:
    gone.append(wants.least)


app = MRTRServer("ops", keys=[bytes(32)], events=Events(poll_seconds=1))
incidents = app.event(
    "incident.created",
    arguments=Filter,
    payload=Incident,
    matches=lambda incident, wants, caller: incident.id >= wants.least and wants.severity in (None, incident.severity),
    description="An incident was opened\x1b[31m\nNow",
    on_unsubscribe=on_unsubscribe,
)


@app.tool
async def report(ctx: Context, id: int, severity: str) -> str:
    await ctx.emit(incidents, Incident(id=id, severity=severity))
    return "reported"


# At the terminal


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with in_thread(replica(app)) as port:
        yield f"http://127.0.0.1:{port}/mcp"


def run(*arguments: str, exit_code: int = 0) -> str:
    result = CliRunner().invoke(main, arguments)
    assert result.exit_code == exit_code, result.output
    return str(result.output)


def test_the_types_of_events_are_listed_with_what_may_be_wanted(url: str) -> None:
    line = "incident.created [severity:string] [least:integer]  (poll, push)  An incident was opened\\x1b[31m\n"
    assert run("events", "list", url) == line
    (offered,) = json.loads(run("events", "list", url, "--json"))
    assert offered["inputSchema"]["properties"]["least"]["type"] == "integer"
    assert "Events need 2026-07-28" in run("events", "list", url, "--era", "2025-11-25", exit_code=1)


@contextmanager
def following(url: str, *arguments: str) -> "Iterator[subprocess.Popen[str]]":
    # What a shell runs in the background ignores Ctrl-C, and so would all that it starts: these tests as well.
    heeding = "import runpy, signal; signal.signal(signal.SIGINT, signal.default_int_handler); "
    module = "runpy.run_module('mrtr_server', run_name='__main__', alter_sys=True)"
    command = [sys.executable, "-c", heeding + module, "events", "tail", url, "incident.created", *arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=without_settings()) as process:
        try:
            yield process
        finally:
            process.kill()


def next_line(process: "subprocess.Popen[str]") -> str:
    assert process.stdout is not None
    return process.stdout.readline()


def first_line(process: "subprocess.Popen[str]", url: str, *, id: int) -> str:
    """Return what is printed first, once the process follows: until then, what is reported is before its time."""
    with ThreadPoolExecutor(1) as reading:
        line = reading.submit(next_line, process)
        for _ in range(int(TIMEOUT)):
            run("call", url, "report", f"id={id}", "severity=P2")
            run("call", url, "report", f"id={id}", "severity=P1")
            if wait([line], timeout=1.0).done:
                return line.result()
        process.kill()
        raise AssertionError("nothing came")


@pytest.mark.processes
@pytest.mark.parametrize("delivery", ["push", "poll"])
def test_events_are_printed_as_they_come_and_after_a_cursor(url: str, delivery: str) -> None:
    with following(url, "severity=P1", "least:=5", "--json", "--delivery", delivery) as process:
        event = json.loads(first_line(process, url, id=5))
        process.send_signal(signal.SIGINT)
        assert process.wait(TIMEOUT) == 130
    assert (event["name"], event["data"]) == ("incident.created", {"id": 5, "severity": "P1"})
    run("call", url, "report", "id=6", "severity=P1")
    with following(url, "severity=P1", "least=5", "--cursor", event["cursor"]) as process:
        printed = [json.loads(next_line(process).rpartition("  ")[2])]
        while printed[-1] != {"id": 6, "severity": "P1"}:
            assert printed[-1] == {"id": 5, "severity": "P1"}
            printed.append(json.loads(next_line(process).rpartition("  ")[2]))


def test_what_is_no_event_or_argument_is_said(url: str) -> None:
    assert "NotFound: there is no event 'nothing' (-32023)" in run("events", "tail", url, "nothing", exit_code=1)
    assert "least: 'few' is not of the type integer" in run(
        "events", "tail", url, "incident.created", "least=few", exit_code=1
    )
    assert "(-32602)" in run("events", "tail", url, "incident.created", "severity=P9", exit_code=1)


# In the database


class Operator:
    """Runs the commands beside a server that shares their database."""

    def __init__(self, tmp_path: Path, hook: WebhookReceiver) -> None:
        self.url = f"sqlite:///{tmp_path}/events.db"
        self.hook = hook
        self.store = SQLStore(self.url)
        users, webhooks = BearerTokens({"ann": "ann"}), Webhooks(allow=[hook.origin])
        self.served = replica(app, store=self.store, auth=users, webhooks=webhooks)
        self.client = AsyncClient(self.served, token="ann")

    async def subscribe(self, **arguments: Any) -> str:
        delivery = {"mode": "webhook", "url": self.hook.url, "secret": self.hook.secret}
        params = {"name": "incident.created", "arguments": arguments, "delivery": delivery}
        return str((await self.client.request("events/subscribe", params)).result["id"])

    async def printed(self, *arguments: str, keys: bool = True, exit_code: int = 0) -> str:
        environment = {"MRTR_DATABASE_URL": self.url, "MRTR_KEYS": bytes(32).hex() if keys else ""}
        run = CliRunner(env=environment).invoke
        result = await asyncio.to_thread(run, main, ["events", *arguments])
        assert result.exit_code == exit_code, result.output
        return str(result.output)

    async def shown(self, id: str) -> Any:
        return json.loads(await self.printed("subscriptions", "show", id))

    async def comes_to(self, id: str, **expected: Any) -> None:
        """Wait until a subscription is shown so: its progress is stored twice a second."""
        async with asyncio.timeout(TIMEOUT):
            while {name: (shown := await self.shown(id))[name] for name in expected} != expected:  # noqa: ASYNC110
                await asyncio.sleep(0.1)
            assert shown["failing since"]


@pytest.fixture
async def operator(tmp_path: Path) -> AsyncIterator[Operator]:
    gone.clear()
    async with webhook_receiver() as hook:
        operator = Operator(tmp_path, hook)
        async with operator.client, operator.served.running():
            yield operator
        await operator.store.close()


async def test_subscriptions_are_listed_by_pages_with_their_hosts_alone(operator: Operator) -> None:
    ids = sorted([await operator.subscribe(least=number) for number in range(3)])
    host = operator.hook.origin.rpartition("/")[2]
    listed = await operator.printed("subscriptions", "list")
    assert [line.split()[:3] for line in listed.splitlines()] == [[id, "incident.created", host] for id in ids]
    assert all(line.endswith("  active") for line in listed.splitlines())
    *first, more = (await operator.printed("subscriptions", "list", "--limit", "2")).splitlines()
    assert [line.split()[0] for line in first] == ids[:2]
    rest = await operator.printed("subscriptions", "list", "--json", *more.rpartition(" or add ")[2].split())
    (found,) = map(json.loads, rest.splitlines())
    assert found == await operator.shown(ids[2])
    assert (found["id"], found["host"], found["state"], found["failed"]) == (ids[2], host, "active", 0)
    assert len(found["owner"]) == 32
    for printed in (listed, rest):
        assert "/hook" not in printed
        assert operator.hook.secret not in printed
    sealed = await operator.printed("subscriptions", "list", keys=False)
    assert [line.split()[2] for line in sealed.splitlines()] == ["(sealed)"] * 3
    assert await operator.printed("subscriptions", "list", "--name", "other") == ""
    assert "Several subscriptions begin with sub_" in await operator.printed(
        "subscriptions", "show", "sub_", exit_code=1
    )
    for named in ("sub_0g", "%", ""):
        said = await operator.printed("subscriptions", "show", named, exit_code=1)
        assert "There is no such subscription" in said


async def test_what_a_webhook_did_not_take_is_sent_again_at_once(
    operator: Operator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mrtr_server.events.deliveries.FIRST_PAUSE", 600.0)
    id = await operator.subscribe()
    operator.hook.fail(503, 503)
    for number in range(2):
        await operator.served.emit(incidents, Incident(id=number))
    await operator.comes_to(id, state="failing", failed=2, **{"last error": "http_5xx"})
    assert operator.hook.events == []
    said = await operator.printed("redeliver", id[:12], keys=False)
    assert said == f"2 events of {id} are sent again at once\n"
    assert {each["data"]["id"] for each in await operator.hook.wait(2)} == {0, 1}


async def test_a_delivery_that_is_suspended_goes_on(operator: Operator) -> None:
    id = await operator.subscribe()
    operator.hook.fail(410)
    await operator.served.emit(incidents, Incident(id=1))
    await operator.comes_to(id, state="suspended", gaps=1)
    await operator.served.emit(incidents, Incident(id=2))
    assert operator.hook.events == []
    await operator.printed("redeliver", id)
    assert [each["data"]["id"] for each in await operator.hook.wait(1)] == [2]


async def test_what_is_removed_gets_nothing_more_and_its_source_is_told(operator: Operator) -> None:
    removed, kept = await operator.subscribe(least=1), await operator.subscribe(least=2)
    assert await operator.printed("subscriptions", "remove", removed) == f"The subscription {removed} has ended\n"
    await until(lambda: gone == [1], "the source to be told")
    assert [line.split()[0] for line in (await operator.printed("subscriptions", "list")).splitlines()] == [kept]
    await operator.served.emit(incidents, Incident(id=3))
    await operator.hook.wait(1)
    await asyncio.sleep(0.2)
    (sent,) = [each for each in operator.hook.sent if "type" not in each.body]
    assert sent.headers["x-mcp-subscription-id"] == kept
    assert "There is no such subscription" in await operator.printed("redeliver", removed, exit_code=1)
