"""Events of three processes over PostgreSQL: each is delivered, once while nothing fails, and none is passed by."""

import asyncio
import json
import re
import signal
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager, suppress
from dataclasses import dataclass
from http.client import HTTPException
from itertools import cycle
from pathlib import Path
from typing import Any

import anyio
import httpx
import pytest

from mrtr_server.testing import AsyncClient, Unexpected, WebhookReceiver, webhook_receiver

from ..support.databases import PostgreSQL
from ..support.events_fleet_app import LEASE
from ..support.serving import KEYS, TIMEOUT, Process, free_ports, in_process, until
from ..support.wire import ACCEPT, mirrored, modern

pytestmark = pytest.mark.anyio

PRINTED: list[dict[str, Any]] = [
    {"method": "events/list", "params": {}},
    {
        "method": "events/poll",
        "params": {
            "name": "incident.created",
            "arguments": {"severity": "P1"},
            "cursor": None,
            "maxAgeMs": 300000,
            "maxEvents": 50,
        },
    },
    {
        "method": "events/stream",
        "params": {
            "name": "email.received",
            "arguments": {"from": "*@anthropic.com", "redact_pii": True},
            "cursor": None,
            "maxAgeMs": 300000,
        },
    },
    {
        "method": "events/subscribe",
        "params": {
            "name": "incident.created",
            "arguments": {"severity": "P1"},
            "delivery": {
                "mode": "webhook",
                "url": "https://proxy.example.com/hooks/client123",
                "secret": "whsec_<base64-of-24-to-64-random-bytes>",
            },
            "cursor": None,
            "maxAgeMs": 300000,
            "ttlMs": 3600000,
        },
    },
    {
        "method": "events/unsubscribe",
        "params": {
            "name": "incident.created",
            "arguments": {"severity": "P1"},
            "delivery": {"url": "https://proxy.example.com/hooks/client123"},
        },
    },
]
"""As the design sketch prints them, but for the receiver's own URL and secret, which are put in their places."""


@dataclass
class Fleet:
    hook: WebhookReceiver
    servers: list[Process]

    def clients(self) -> list[AsyncClient]:
        """Return one for each process."""
        return [AsyncClient(f"http://127.0.0.1:{each.port}/mcp", token="ann-token") for each in self.servers]

    def printed(self, method: str) -> dict[str, Any]:
        """Return the parameters of a printed message."""
        (text,) = (json.dumps(each["params"]) for each in PRINTED if each["method"] == method)
        text = text.replace("https://proxy.example.com/hooks/client123", self.hook.url)
        return dict(json.loads(re.sub(r"whsec_<[^>]*>", self.hook.secret, text)))

    @property
    def delivered(self) -> list[int]:
        return [int(each["data"]["id"]) for each in self.hook.events]


@pytest.fixture
def url(postgresql: PostgreSQL) -> str:
    return postgresql.url(anyio.run(postgresql.new_database))


@pytest.fixture
def started(url: str, tmp_path: Path) -> Iterator[tuple[int, list[Process]]]:
    """Three processes, and the port of the webhook that they allow."""
    (port,) = free_ports(1)
    environment = {"MRTR_KEYS": KEYS, "MRTR_DATABASE_URL": url, "EVENTS_ALLOW": f"http://127.0.0.1:{port}"}
    with ExitStack() as stack:
        servers = []
        for number in range(3):
            log = tmp_path / f"{number}.log"
            server = stack.enter_context(
                in_process("tests.support.events_fleet_app:app", log=log, environment=environment)
            )
            assert server.port, server.text
            servers.append(server)
        yield port, servers


@pytest.fixture
async def fleet(started: tuple[int, list[Process]]) -> AsyncIterator[Fleet]:
    port, servers = started
    async with webhook_receiver(port=port) as hook:
        yield Fleet(hook, servers)


async def emit(client: AsyncClient, first: int, count: int = 1) -> list[int]:
    """Emit events by one process; return which of them it has stored."""
    with suppress(OSError, HTTPException, Unexpected):  # a process that is gone, or a database that is away
        reply = await client.call("open_incidents", first=first, count=count)
        return [int(each) for each in reply.structured]
    return []


async def test_printed_messages_are_served_by_all_and_each_event_comes_once(fleet: Fleet) -> None:
    first, second, third = clients = fleet.clients()
    listed = [(await each.request("events/list", fleet.printed("events/list"))).result for each in clients]
    assert listed[0] == listed[1] == listed[2]
    cursor = (await second.request("events/poll", fleet.printed("events/poll"))).result["cursor"]
    granted = (await first.request("events/subscribe", fleet.printed("events/subscribe"))).result
    again = (await third.request("events/subscribe", fleet.printed("events/subscribe"))).result
    assert (again["id"], granted["truncated"], again["truncated"]) == (granted["id"], False, False)
    assert again["deliveryStatus"] == {"active": True, "lastDeliveryAt": None, "lastError": None}
    stored = await asyncio.gather(*(emit(each, at * 100, 100) for at, each in enumerate(clients)))
    assert sum(map(len, stored)) == 300
    await until(lambda: len(fleet.delivered) >= 300, "300 events")
    await asyncio.sleep(1)  # whoever would send them a second time has had its chance
    assert sorted(fleet.delivered) == list(range(300))
    polled: list[str] = []
    has_more = True
    for client in cycle(clients):
        if not has_more:
            break
        page = (await client.request("events/poll", {**fleet.printed("events/poll"), "cursor": cursor})).result
        cursor, has_more = page["cursor"], page["hasMore"]
        polled += [each["eventId"] for each in page["events"]]
    assert sorted(polled) == sorted(f"INC-{number}" for number in range(300))
    assert (await second.request("events/unsubscribe", fleet.printed("events/unsubscribe"))).result is not None
    await emit(third, 1000)
    await asyncio.sleep(1)
    assert 1000 not in fleet.delivered


async def test_printed_streams_of_all_processes_get_what_each_emits(fleet: Fleet) -> None:
    async def told(stream: AsyncIterator[str]) -> dict[str, Any]:
        while not (line := await anext(stream)).startswith("data: "):
            pass
        message: dict[str, Any] = json.loads(line[6:])
        assert message["params"]["_meta"] == {"io.modelcontextprotocol/subscriptionId": 1}
        return message

    async with AsyncExitStack() as stack:
        streams = []
        for server in fleet.servers:
            streams.append(await stack.enter_async_context(streamed(server, fleet.printed("events/stream"))))
            active = await told(streams[-1])
            assert active["method"] == "notifications/events/active"
            assert active["params"]["truncated"] is False
        for at, client in enumerate(fleet.clients()):
            others = {"messageId": f"other_{at}", "from": "dsp@example.com", "subject": "Lunch"}
            mail = {"messageId": f"msg_{at}", "from": "dsp@anthropic.com", "subject": "MCP spec review"}
            for each in (others, mail):
                await client.call("receive", {"mail": each})
            for stream in streams:
                event = await told(stream)
                assert event["method"] == "notifications/events/event"
                assert (event["params"]["eventId"], event["params"]["data"]) == (f"evt_msg_{at}", mail)


@asynccontextmanager
async def streamed(server: Process, params: dict[str, Any]) -> AsyncIterator[AsyncIterator[str]]:
    """Open a stream of events, as the printed message asks for it; give its lines."""
    message = modern("events/stream", params)
    headers = {**mirrored(message), "Authorization": "Bearer ann-token", "Accept": ACCEPT}
    url = f"http://127.0.0.1:{server.port}/mcp"
    async with (
        httpx.AsyncClient(timeout=TIMEOUT) as client,
        client.stream("POST", url, json=message, headers=headers) as response,
    ):
        assert response.status_code == 200
        yield response.aiter_lines()


async def left_after(client: AsyncClient, fleet: Fleet, cursor: str) -> set[int]:
    """Return the numbers of the events that come after a cursor."""
    params: dict[str, Any] = {**fleet.printed("events/poll"), "cursor": cursor}
    del params["maxAgeMs"]
    found, has_more = set[int](), True
    while has_more:
        page = (await client.request("events/poll", params)).result
        assert not page["truncated"]
        params["cursor"], has_more = page["cursor"], page["hasMore"]
        found |= {int(each["data"]["id"]) for each in page["events"]}
    return found


async def assert_no_cursor_passes(client: AsyncClient, fleet: Fleet, stored: set[int]) -> None:
    """Check that what was not taken before a message was sent comes after the cursor in it."""
    messages = [each for each in fleet.hook.sent if "data" in each.body]
    for at in range(0, len(messages), max(1, len(messages) // 20)):
        taken = {int(each.body["data"]["id"]) for each in messages[:at] if each.status < 300}
        left = await left_after(client, fleet, messages[at].body["cursor"])
        assert stored - taken <= left, sorted(stored - taken - left)


async def load(fleet: Fleet, stored: set[int], over: asyncio.Event) -> None:
    """Emit events by all that live, until it is over."""
    clients = cycle(fleet.clients())
    first = 0
    while not over.is_set():
        stored.update(await emit(next(clients), first, 5))
        first += 5
        await asyncio.sleep(0.02)


def holder(fleet: Fleet) -> int:
    """Return which process delivers: the one with connections to the webhook."""
    found = []
    port = int(fleet.hook.origin.rpartition(":")[2])
    for at, server in enumerate(fleet.servers):
        if server.process.poll() is None and port in peers_of(server.process.pid):
            found.append(at)
    (only,) = found
    return only


def peers_of(process: int) -> set[int]:
    """Return the ports that a process is connected to."""
    links = {link.readlink().name for link in Path(f"/proc/{process}/fd").iterdir() if link.is_symlink()}
    inodes = {match[1] for each in links if (match := re.fullmatch(r"socket:\[(\d+)\]", each))}
    rows = [line.split() for line in Path(f"/proc/{process}/net/tcp").read_text().splitlines()[1:]]
    return {int(row[2].rpartition(":")[2], 16) for row in rows if row[9] in inodes}


async def test_the_one_that_delivers_is_killed_under_load(fleet: Fleet) -> None:
    stored = set[int]()
    over = asyncio.Event()
    await fleet.clients()[0].request("events/subscribe", fleet.printed("events/subscribe"))
    loading = asyncio.create_task(load(fleet, stored, over))
    await until(lambda: len(fleet.delivered) >= 50, "the first events")
    fleet.servers[holder(fleet)].process.send_signal(signal.SIGKILL)
    before, killed = len(fleet.delivered), asyncio.get_running_loop().time()
    await until(lambda: len(fleet.delivered) >= before + 20, "events after the end of the lease")
    assert asyncio.get_running_loop().time() - killed < 3 * LEASE
    await asyncio.sleep(1)
    over.set()
    await loading
    assert len(stored) > 100
    await until(lambda: stored <= set(fleet.delivered), "all events")
    alive = next(
        client for client, server in zip(fleet.clients(), fleet.servers, strict=True) if server.process.poll() is None
    )
    await assert_no_cursor_passes(alive, fleet, stored)


async def test_the_database_is_away_under_load(fleet: Fleet, postgresql: PostgreSQL) -> None:
    stored = set[int]()
    over = asyncio.Event()
    await fleet.clients()[0].request("events/subscribe", fleet.printed("events/subscribe"))
    loading = asyncio.create_task(load(fleet, stored, over))
    await until(lambda: len(fleet.delivered) >= 50, "the first events")
    await asyncio.to_thread(postgresql.stop)
    try:
        await asyncio.sleep(LEASE + 2)
    finally:
        await asyncio.to_thread(postgresql.start)
    during = len(stored)
    await until(lambda: len(stored) >= during + 50, "the database")
    over.set()
    await loading
    await until(lambda: stored <= set(fleet.delivered), "all events", 2 * TIMEOUT)
    await assert_no_cursor_passes(fleet.clients()[0], fleet, stored)
