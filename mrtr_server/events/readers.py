"""Events that somebody has to look for: sources, read once for all who want the same, and waits that still wait."""

import asyncio
from collections.abc import Sequence
from typing import Any

from ..concurrency.running import running_loop
from ..crypto.digests import digest_parts
from ..errors import FlowError, StoreUnavailable
from ..flow.events import LONGEST_SINCE, SHORTEST_POLL, Batch, EventType, Occurrence, SourceOf
from ..logs.failures import report_failure
from ..storage.rows import SubscriptionRow
from .log import AGAIN_AFTER, EventLog, audience_of
from .subscribers import Subscriber, call_within
from .subscriptions import Reminding, Subscriptions

READ_WITHIN = 60.0
"""Seconds that one call may take."""

MOST_AT_ONCE = 20
"""Calls in a row without a pause, where each says that there is more."""


class SourceReader:
    """Calls the function of a source, and adds to the log what it finds."""

    def __init__(
        self, row: SubscriptionRow, subscriber: Subscriber, log: EventLog, subscriptions: Subscriptions
    ) -> None:
        self.row = row
        self.subscriber = subscriber
        self.is_changed = False
        self._log = log
        self._subscriptions = subscriptions
        self._since = subscriptions.open_since(row)
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        source = self.subscriber.type.source_of
        if source is not None:
            self.is_changed = True  # so that its position is sealed under the key of now
            self._task = running_loop().create_task(self._run(source))

    def change(self, row: SubscriptionRow) -> None:
        """Note that it is wanted for longer."""
        self.row = row

    def dump(self) -> str:
        return self._subscriptions.seal_since(self.row.id, self._since)

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait((self._task,))

    async def _run(self, source: SourceOf) -> None:
        at_once = 0  # calls since the last pause
        while True:
            has_more = False
            try:
                has_more = await self._read(source)
            except StoreUnavailable:  # which is logged elsewhere
                pass
            except Exception as error:
                report_failure("The source of %r failed", self.subscriber.type.name, error=error)
            at_once = at_once + 1 if has_more else 0
            if has_more and at_once % MOST_AT_ONCE:
                await asyncio.sleep(0)
            else:  # one that says for ever that there is more is called as often as it is allowed to be
                await asyncio.sleep(SHORTEST_POLL if has_more else source.every)

    async def _read(self, source: SourceOf) -> bool:
        type, wants = self.subscriber.type, self.subscriber.wants
        batch = await call_within(READ_WITHIN, f"the source of {type.name}", source.read, self._since, wants)
        since: Any = batch.since if isinstance(batch, Batch) else None
        if not isinstance(since, str) or len(since) > LONGEST_SINCE:
            raise FlowError(
                f"The source of {type.name!r} must return a Batch, whose since is a text of up to {LONGEST_SINCE} "
                "characters"
            )
        audience = audience_of(type.name, self.subscriber.arguments)
        found: Sequence[Any] = batch.events
        for each in found:
            if not isinstance(each, Occurrence):
                raise FlowError(f"The source of {type.name!r} must return Batch([Occurrence(...), ...], since)")
            # What is found twice, since the process that found it died before its position was stored, counts once.
            key = f"{audience} {each.id}"
            await self._log.add(type, each.payload, id=each.id, at=each.at, audience=audience, key=key)
        self._since = since
        self.is_changed = True
        return bool(batch.more)


class Reminder:
    """Emits that something waits, again and again for as long as it does."""

    subscriber: Subscriber | None = None

    def __init__(self, row: SubscriptionRow, reminding: Reminding, type: EventType[Any, Any], log: EventLog) -> None:
        self.row = row
        self.is_changed = False
        self._reminding = reminding
        self._type = type
        self._log = log
        self._count = int(row.progress or 0)
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = running_loop().create_task(self._run())

    def change(self, row: SubscriptionRow) -> None:
        """Note that it is there for longer."""
        self.row = row

    def dump(self) -> str:
        return str(self._count)

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait((self._task,))

    async def _run(self) -> None:
        payload, id, every = self._reminding
        while True:
            await asyncio.sleep(self.row.created + every * (self._count + 1) - self._log.now())
            try:
                # By the same id where it was emitted by a process that died before it could store the count.
                await self._log.add(self._type, self._type.stored.load(payload), id=digest_parts(id, self._count))
            except StoreUnavailable:  # which is logged elsewhere
                await asyncio.sleep(AGAIN_AFTER)
                continue
            self._count += 1
            self.is_changed = True
