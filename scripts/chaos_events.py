"""Events for scripts/chaos: a webhook and a client that polls, and what is promised to them."""

import asyncio
import random
from collections import Counter
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

from chaos_fleet import free_ports
from chaos_outage import Outages
from chaos_wire import Story, Wire, text_of, think

from mrtr_server.testing import WebhookReceiver, webhook_receiver

READER, TYPE = "bea", "order.placed"

TIMEOUT, EVENT_TIMEOUT = 240.0, 0.2
"""How long all events may take in all, and what is added for each, in seconds. They need far less."""

FAILS_EVERY = 10
"""How many messages come for each that the webhook refuses."""

LOOK_EVERY = 0.2
"""Seconds between two looks at what has come."""

SAMPLES = 20
"""How many cursors of messages are followed at the end."""


class Events:
    """Clients who emit one event after the other, while a webhook, which fails now and then, and a poll take them.

    Args:
        directory: for a database of SQLite.
        clients: how many at once.
        events: how many they emit in all.
        database: the URL of another database.
        outages: takes it away now and then; None if it stays.
    """

    target = "chaos_event_server:app"

    def __init__(
        self, directory: Path, clients: int, events: int, database: str = "", outages: Outages | None = None
    ) -> None:
        self.outages = outages
        self.problems: list[str] = []
        self.timeout = TIMEOUT + EVENT_TIMEOUT * events
        (self._webhook,) = free_ports(1)
        self.environment = {
            "CHAOS_DATABASE": database or f"sqlite:///{directory / 'store.db'}",
            "CHAOS_WEBHOOK": f"http://127.0.0.1:{self._webhook}",
        }
        self._clients = clients
        self._left = range(events)
        self._numbers = iter(self._left)
        self._emitted: set[int] = set()
        self._polled: Counter[int] = Counter()
        self._brought: Counter[int] = Counter()
        self._refused = self._passed = 0
        self._begun = asyncio.Event()
        self._wires: list[Wire] = []

    def clients(self, port: int) -> list[Coroutine[Any, Any, None]]:
        """Return what the clients do."""
        self._wires = [Wire(port, token=READER) for _ in range(self._clients + 1)]
        reader, *emitting = self._wires
        return [self._read(reader), *map(self._emit, emitting)]

    async def _emit(self, wire: Wire) -> None:
        await self._begun.wait()
        for number in self._numbers:
            await think()
            story = wire.story = Story()
            try:
                with story.until_told(self.problems, f"the event {number}"):
                    result = await wire.call("place", {"number": number})
                if result["isError"]:
                    raise ValueError(text_of(result))
                self._emitted.add(number)
            except (LookupError, ValueError) as error:
                self.problems.append(story.tell(f"{type(error).__name__}: {error}"))

    async def _read(self, wire: Wire) -> None:
        """Subscribe, and poll and fail until all has come both ways."""
        async with webhook_receiver(port=self._webhook) as hook:
            cursor = (await wire.request("events/poll", "", {"name": TYPE}))["cursor"]
            delivery = {"mode": "webhook", "url": hook.url, "secret": hook.secret}
            await wire.request("events/subscribe", "", {"name": TYPE, "delivery": delivery})
            self._begun.set()
            fails_at = 0
            while not self.problems and min(len(self._polled), len(self._brought)) < len(self._left):
                cursor = await self._poll(wire, cursor, self._polled)
                await asyncio.sleep(LOOK_EVERY)
                self._brought = Counter(event["data"]["number"] for event in hook.events)
                if len(hook.sent) >= fails_at:
                    fails_at = len(hook.sent) + FAILS_EVERY
                    hook.fail(503)
            self._refused = sum(each.status != 200 for each in hook.sent)
            await self._follow_cursors(wire, hook)

    async def _poll(self, wire: Wire, cursor: str, found: Counter[int]) -> str:
        """Note what comes after a cursor; return the next one."""
        has_more = True
        while has_more:
            wire.story = Story()
            page = await wire.request("events/poll", "", {"name": TYPE, "cursor": cursor})
            if page["truncated"]:
                self.problems.append("a poll was told that something is lost")
            found.update(each["data"]["number"] for each in page["events"])
            cursor, has_more = page["cursor"], page["hasMore"]
        return str(cursor)

    async def _follow_cursors(self, wire: Wire, hook: WebhookReceiver) -> None:
        """Count the cursors of messages after which something is missing that had not been taken before."""
        messages = [each for each in hook.sent if "data" in each.body]
        for at in sorted(random.sample(range(len(messages)), min(SAMPLES, len(messages)))):
            taken = {each.body["data"]["number"] for each in messages[:at] if each.status == 200}
            left = Counter[int]()
            await self._poll(wire, messages[at].body["cursor"], left)
            self._passed += not self._emitted - taken <= left.keys()

    def report(self) -> dict[str, Any]:
        """Return what has happened, and note what should not have."""
        not_brought, not_polled = len(self._emitted - self._brought.keys()), len(self._emitted - self._polled.keys())
        polled_twice = sum(count > 1 for count in self._polled.values())
        promises = {
            f"{len(self._emitted)} of {len(self._left)} events were emitted": len(self._emitted) == len(self._left),
            f"{not_brought} events did not come to the webhook": not not_brought,
            f"{not_polled} events were not polled": not not_polled,
            f"{polled_twice} events came twice to who polls": not polled_twice,
            f"{self._passed} cursors pass an event that was not taken": not self._passed,
        }
        self.problems += [what for what, held in promises.items() if not held]
        return {
            "outages": len(self.outages.were) if self.outages is not None else 0,
            "events_emitted": len(self._emitted),
            "events_lost": not_brought + not_polled,
            "polled_twice": polled_twice,
            "brought_more_than_once": sum(count > 1 for count in self._brought.values()),
            "refused_by_the_webhook": self._refused,
            "cursors_that_pass_events": self._passed,
            "retries": sum(wire.retries for wire in self._wires),
        }
