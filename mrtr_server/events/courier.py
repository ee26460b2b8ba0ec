"""Brings events to webhooks, and reads sources: one process of the fleet at a time does, under a lease."""

import asyncio
import random
from collections.abc import Callable
from contextlib import closing, suppress
from secrets import token_hex
from typing import TYPE_CHECKING, Any

from ..concurrency.running import PerLoop, running_loop
from ..concurrency.waiting import wait_until
from ..errors import InvalidParams, StoreUnavailable
from ..flow.authorization import Authorizer
from ..logs.failures import report_failure
from ..logs.refusals import RefusalLog
from ..protocol.callers import Caller
from ..protocol.messages import Change
from ..storage.rows import SubscriptionRow
from ..tally import Tally
from .deliveries import Delivery
from .log import AGAIN_AFTER, EventLog
from .readers import Reminder, SourceReader
from .subscribers import Sources
from .subscriptions import WANTED_SECONDS, Subscriptions, source_id
from .webhooks import Turns

if TYPE_CHECKING:
    from ..fetcher import Fetcher

LEASE = "events"

LOOK_EVERY = 5.0
"""Seconds until subscriptions are looked at without a notice."""

LOOK_AT_ALL = 60.0
"""Seconds until all subscriptions are looked at again, for changes that nobody gave notice of."""

SLACK = 10.0
"""Seconds by which the clocks of processes may be apart that change subscriptions."""

FLUSH_EVERY = 0.5
"""Seconds until the progress is stored. What was delivered since is delivered again, if the process dies."""

PAGE = 512
MOST_FLUSHED = 512


class Courier:
    """Brings events and reads sources on each event loop that it is started on, while that has the lease."""

    def __init__(
        self,
        log: EventLog,
        subscriptions: Subscriptions,
        sources: Sources,
        authorizer: Authorizer,
        lease_seconds: float,
        tally: Tally,
    ) -> None:
        self.log = log
        self.subscriptions = subscriptions
        self.sources = sources
        self.authorizer = authorizer
        self.fetcher: Callable[[], Fetcher | None] = lambda: None
        """Returns what sends to webhooks; None where nothing may."""
        self.lease_seconds = lease_seconds
        self.tally = tally
        self.refusals = RefusalLog()
        self._running = PerLoop[asyncio.Task[None]]()

    @property
    def is_needed(self) -> bool:
        """Whether there is anything that it could have to do."""
        return any(
            "webhook" in each.modes or each.source_of is not None or each.on_unsubscribe is not None
            for each in self.subscriptions.types.values()
        )

    def start(self) -> None:
        """Begin on this event loop, unless it has begun or there is nothing to do."""
        running = self._running.get()
        if (running is None or running.done()) and self.is_needed:
            self._running.put(running_loop().create_task(_Shift(self).run(), name="mrtr_server courier"))

    async def close(self) -> None:
        """End: what is being sent is given up, to be sent again by whoever goes on, and the lease is given back."""
        running = self._running.pop()
        if running is not None:
            running.cancel()
            await asyncio.wait((running,))
        await self.sources.close()
        await self.log.close()


class _Shift:
    """Tries to get the lease, and works for as long as it has it."""

    def __init__(self, courier: Courier) -> None:
        self._courier = courier
        self._log = courier.log
        self._subscriptions = courier.subscriptions
        self._sources = courier.sources
        self._lease_seconds = courier.lease_seconds
        self._turns = Turns()
        self._holder = token_hex(16)
        self._work: dict[str, Work] = {}

    async def run(self) -> None:
        store, pause = self._log.store, self._lease_seconds / 3
        while True:
            asked = running_loop().time()
            try:
                if await store.take_lease(LEASE, self._holder, seconds=self._lease_seconds):
                    await self._serve(asked + self._lease_seconds)
            except StoreUnavailable:  # which is logged elsewhere
                pass
            except Exception as error:
                report_failure("Events are not delivered for a moment", error=error)
            await asyncio.sleep(pause * random.uniform(0.8, 1.2))  # noqa: S311  no secret

    async def _serve(self, until: float) -> None:
        """Work until the lease is lost, which holds until then by the clock of the event loop."""
        serving = [running_loop().create_task(each) for each in (self._keep_lease(until), self._watch(), self._flush())]
        try:
            await asyncio.wait(serving, return_when=asyncio.FIRST_COMPLETED)
            for each in serving:
                if each.done():
                    each.result()
        finally:
            for each in serving:
                each.cancel()
            work, self._work = list(self._work.values()), {}
            await asyncio.gather(*(each.close() for each in work), return_exceptions=True)
            await asyncio.gather(*serving, return_exceptions=True)
            with suppress(StoreUnavailable):
                await self._store_progress(work)
                await self._log.store.take_lease(LEASE, self._holder, seconds=0)

    async def _keep_lease(self, until: float) -> None:
        """Extend the lease. A store that is away for a moment ends nothing, since nobody else gets the lease then."""
        loop, pause = running_loop(), self._lease_seconds / 3
        while loop.time() < until:
            await asyncio.sleep(pause)
            asked = loop.time()
            try:
                async with asyncio.timeout_at(until):
                    if not await self._log.store.take_lease(LEASE, self._holder, seconds=self._lease_seconds):
                        return
            except (StoreUnavailable, TimeoutError):  # which is logged elsewhere
                pause = min(AGAIN_AFTER, self._lease_seconds / 10)
            else:
                until, pause = asked + self._lease_seconds, self._lease_seconds / 3

    async def _watch(self) -> None:
        """Begin and end work as subscriptions come, change and end."""
        seen, next_whole = 0.0, 0.0

        async def look(heard: object) -> None:
            nonlocal seen, next_whole
            now, turn = self._log.now(), running_loop().time()
            since = 0.0 if turn >= next_whole else seen - SLACK
            if since <= 0.0:
                next_whole = turn + LOOK_AT_ALL
            try:
                await self._look(since)
            except StoreUnavailable:  # which is logged elsewhere
                next_whole = min(next_whole, turn)
            else:
                seen = now

        with closing(self._log.fanout.subscribe(frozenset({Change("subscription")}))) as changes:
            await wait_until(look, changes, pauses=iter(lambda: LOOK_EVERY, None))

    async def _look(self, since: float) -> None:
        after, found = "", set[str]()
        while True:
            rows = await self._subscriptions.store.list_subscriptions(after=after, most=PAGE, since=since)
            for row in rows:
                found.add(row.id)
                await self._take(row)
            if len(rows) < PAGE:
                break
            after = rows[-1].id
        now = self._log.now()
        for id, work in list(self._work.items()):
            if work.row.expires <= now or (since <= 0.0 and id not in found):
                await self._finish(id)
        if since <= 0.0:
            await self._keep_sources(now)

    async def _keep_sources(self, now: float) -> None:
        """Go on to read what webhooks want of sources, for as long as there are these webhooks."""
        for work in list(self._work.values()):
            if not isinstance(work, Delivery) or work.subscriber.type.source_of is None or work.row.expires <= now:
                continue
            name, arguments = work.row.name, work.subscriber.arguments
            source = self._work.get(id := source_id(name, arguments))
            if source is None or source.row.expires < now + WANTED_SECONDS / 2:
                body = self._subscriptions.seal(id, Caller(), arguments, None)
                row = SubscriptionRow(id, "source", name, "", body, "", now, now, now + WANTED_SECONDS)
                present = await self._subscriptions.store.put_subscription(row) or row
                await self._take(present._replace(body=body, updated=now, expires=row.expires))

    async def _take(self, row: SubscriptionRow) -> None:
        work = self._work.get(row.id)
        if work is not None and row.created != work.row.created:  # it has ended, and another one took its place
            del self._work[row.id]
            await work.close()
            work = None
        if row.expires <= max(self._log.now(), row.updated):  # one that was ended has ended, whatever our clock says
            if work is None:
                self._work[row.id] = self._worker(row)
            await self._finish(row.id)
        elif work is None:
            self._work[row.id] = work = self._worker(row)
            work.start()
        elif (row.updated, row.expires, row.body) != (work.row.updated, work.row.expires, work.row.body):
            work.change(row)

    def _worker(self, row: SubscriptionRow) -> "Work":
        try:
            if row.kind == "reminder":
                type = self._subscriptions.types[row.name]
                return Reminder(row, self._subscriptions.reminding(row), type, self._log)
            subscriber, asked = self._subscriptions.open(row)
            if row.kind == "source" and subscriber is not None:
                return SourceReader(row, subscriber, self._log, self._subscriptions)
        except (InvalidParams, StoreUnavailable, KeyError) as error:
            self._courier.refusals.note("A subscription to %r is left out: %s", row.name, str(error))
            subscriber, asked = None, None
        except Exception as error:  # of a model of the author's, say. All others go on
            report_failure("A subscription to %r is left out", row.name, error=error)
            subscriber, asked = None, None
        if subscriber is None:
            return _Polling(row, None)
        fetcher = self._courier.fetcher()
        if row.kind == "poll" or asked is None or fetcher is None:
            return _Polling(row, subscriber)
        courier = self._courier
        return Delivery(
            row,
            subscriber,
            asked,
            self._log,
            self._subscriptions,
            courier.authorizer,
            fetcher,
            self._turns,
            courier.tally,
            courier.refusals,
        )

    async def _finish(self, id: str) -> None:
        work = self._work.pop(id)
        await work.close()
        await self._remove(work)

    async def _remove(self, work: "Work") -> None:
        """Remove what has ended, unless somebody has subscribed again meanwhile: then it is begun at the next look."""
        row, store = work.row, self._subscriptions.store
        is_removed = await store.remove_subscription(row.id, updated=row.updated)
        if not is_removed and await store.find_subscription(row.id) is not None:
            return
        if work.subscriber is not None and row.kind != "source":
            self._sources.removed(work.subscriber)

    async def _flush(self) -> None:
        while True:
            await asyncio.sleep(FLUSH_EVERY)
            try:
                if not await self._store_progress(list(self._work.values())):
                    return
            except StoreUnavailable:  # which is logged elsewhere; what was delivered is stored later
                continue

    async def _store_progress(self, work: "list[Work]") -> bool:
        """Store what has changed; return whether the lease is still ours."""
        now = self._log.now()
        # Not of those that have ended: another subscription of the same id may have begun since.
        changed = [each for each in work if each.is_changed and each.row.expires > now]
        for start in range(0, len(changed), MOST_FLUSHED):
            some = changed[start : start + MOST_FLUSHED]
            for each in some:
                each.is_changed = False
            progress = {each.row.id: each.dump() for each in some}
            try:
                if not await self._subscriptions.store.advance_subscriptions(LEASE, self._holder, progress):
                    return False
            except BaseException:
                for each in some:
                    each.is_changed = True
                raise
        for each in work:
            if isinstance(each, Delivery) and each.is_over:
                await self._end(each)
        return True

    async def _end(self, delivery: Delivery) -> None:
        """End a subscription whose subscriber may not have events any more, or that nobody takes."""
        self._work.pop(delivery.row.id, None)
        await delivery.close()
        await self._remove(delivery)


class _Polling:
    """Somebody who polls, or whose type of event is not of this server: there is nothing to bring."""

    is_changed = False

    def __init__(self, row: SubscriptionRow, subscriber: Any) -> None:
        self.row = row
        self.subscriber = subscriber

    def start(self) -> None:
        """There is nothing to begin."""

    def change(self, row: SubscriptionRow) -> None:
        self.row = row

    def dump(self) -> str:
        return self.row.progress

    async def close(self) -> None:
        """There is nothing to end."""


Work = Delivery | SourceReader | Reminder | _Polling
