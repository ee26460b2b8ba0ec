"""Brings the events of one subscription to its webhook: each by itself, again and again until it is taken."""

import asyncio
import math
import random
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ..concurrency.running import running_loop
from ..errors import EventFailed, InvalidParams, StoreUnavailable
from ..flow.authorization import Authorizer
from ..logs.failures import report_failure
from ..logs.refusals import RefusalLog
from ..protocol.event_codes import CALLBACK, FORBIDDEN, Kind, code_of
from ..protocol.messages import JSON
from ..storage.rows import EventRow, Position, SubscriptionRow
from ..tally import DELIVERIES, Tally
from .log import AGAIN_AFTER, EventLog
from .subscribers import Subscriber, may_subscribe
from .subscriptions import MOST_FAILED, Asked, Progress, Retry, Subscriptions
from .webhooks import SLOW, Result, Turns, control_id, send

if TYPE_CHECKING:
    from ..fetcher import Fetcher

AT_ONCE = 4
"""Messages that are on their way to one webhook at a time; one, while nothing arrives there."""

FIRST_PAUSE, LONGEST_PAUSE = 5.0, 3600.0
"""Seconds before the second attempt, and at most before a later one."""

MOST_ATTEMPTS = 15

SUSPEND_AFTER = 3600.0
"""Seconds after which nothing more is sent where nothing has arrived, until the client subscribes again."""

DROP_AFTER = 3 * 86_400.0
"""The same after which a subscription without an end is over."""

SHOWN_OF_ID = 12  # characters of a subscription's id in the log

QUIET = 20.0
"""Seconds after which the position is noted though nothing has happened."""


class Delivery:
    """What one subscription gets. It is used by the process that has the lease."""

    def __init__(
        self,
        row: SubscriptionRow,
        subscriber: Subscriber,
        asked: Asked,
        log: EventLog,
        subscriptions: Subscriptions,
        authorizer: Authorizer,
        fetcher: "Fetcher",
        turns: Turns,
        tally: Tally,
        refusals: RefusalLog,
    ) -> None:
        self.row = row
        self.subscriber = subscriber
        self.is_changed = False
        self.is_over = False
        """Whether the subscription has ended, so that it is to be removed."""
        self._asked = asked
        self._log = log
        self._subscriptions = subscriptions
        self._authorizer = authorizer
        self._fetcher = fetcher
        self._turns = turns
        self._is_slow = False
        """Whether its webhook was slow the last time, or has not taken what was sent."""
        self._tally = tally
        self._refusals = refusals
        self._progress = Progress.load(row.progress)
        self._sending: dict[Position, asyncio.Task[None]] = {}
        self._has_room = asyncio.Event()
        self._pump: asyncio.Task[None] | None = None
        self._turn = asyncio.Semaphore(AT_ONCE)
        self._alone = asyncio.Lock()
        self._is_ending = False
        self._hurried = asyncio.Event()

    def start(self) -> None:
        progress = self._progress
        if progress.suspended and self.row.updated <= progress.suspended:
            return
        progress.suspended = progress.failing = 0.0
        self._pump = running_loop().create_task(self._run())

    def change(self, row: SubscriptionRow) -> None:
        """Note that the client has subscribed again: with another secret, for longer, or to have it go on."""
        # A client's seal is another one each time. An operator changes nothing, to have what failed sent at once.
        is_hurried = (row.body, row.expires) == (self.row.body, self.row.expires)
        self.row = row
        try:
            subscriber, asked = self._subscriptions.open(row)
        except (InvalidParams, StoreUnavailable) as error:
            report_failure("A subscription to %r stays as it was", row.name, why=str(error))
            return
        if subscriber is not None and asked is not None:
            self.subscriber, self._asked = subscriber, asked
        if self._progress.suspended and row.updated > self._progress.suspended:
            self._hurry()
            self.start()
        elif is_hurried:
            self._hurry()

    def _hurry(self) -> None:
        """Send what failed at once."""
        for retry in self._progress.failed.values():
            retry.due = 0.0
        self.is_changed = True
        hurried, self._hurried = self._hurried, asyncio.Event()
        hurried.set()

    def dump(self) -> str:
        return self._stored.dump()

    @property
    def _stored(self) -> Progress:
        """The progress, in which what is on its way is as good as failed: whoever goes on sends it again."""
        under_way = {position: Retry(0, 0.0) for position in self._sending}
        return replace(self._progress, failed=under_way | self._progress.failed)

    async def close(self) -> None:
        if tasks := self._stop():
            await asyncio.wait(tasks)

    def _stop(self) -> "list[asyncio.Task[None]]":
        """End all that is under way, but for the task that runs; return what ends."""
        self._progress = self._stored
        pump, self._pump = self._pump, None
        this = asyncio.current_task()
        tasks = [each for each in (*self._sending.values(), pump) if each is not None and each is not this]
        for task in tasks:
            task.cancel()
        return tasks

    # The events, in their order

    async def _run(self) -> None:
        while True:
            try:
                await self._go_on()
            except StoreUnavailable:  # which is logged elsewhere
                await asyncio.sleep(AGAIN_AFTER)
            except Exception as error:
                report_failure("Events of %r are not delivered for a moment", self.row.name, error=error)
                await asyncio.sleep(FIRST_PAUSE)

    async def _go_on(self) -> None:
        epoch = await self._log.store.epoch()
        progress = self._progress
        if progress.epoch != epoch:  # the store has lost some time, so nobody knows what was lost with it
            progress.epoch, progress.at, progress.failed = epoch, progress.at._replace(transaction=0), {}
            progress.gaps += 1
        for position in progress.failed.keys() - self._sending.keys():
            self._send_later(position, None)
        follower = self._log.follow(self.row.name, progress.at)
        try:
            while True:
                page = await follower.next(running_loop().time() + QUIET)
                if await self._log.store.epoch() != epoch:  # it begins anew, with what there is now
                    return
                if page.lost:
                    progress.at = page.begins
                    await self._note_gap()
                for row in page.rows:
                    await self._room()
                    await self._take(row)
                    progress.at = row.position
                    self.is_changed = True
                if not page.rows and progress.at != page.reached:
                    progress.at = page.reached
                    self.is_changed = True
        finally:
            follower.close()

    async def _room(self) -> None:
        """Wait until one more event may be on its way: few, so that a burst takes no memory for each subscription."""
        while True:
            under_way, failed = len(self._sending), len(self._progress.failed)
            if under_way < MOST_FAILED and under_way - failed < AT_ONCE:
                return
            self._has_room.clear()
            await self._has_room.wait()

    async def _take(self, row: EventRow) -> None:
        gaps = self._progress.gaps
        occurrence = await self._occurrence(row)
        if occurrence is not None:
            self._send_later(row.position, occurrence)
        elif self._progress.gaps > gaps:
            await self._tell_gap(row.position)

    async def _occurrence(self, row: EventRow) -> JSON | None:
        """Return an event as it is sent; None where the subscriber does not get it."""
        event = self._log.open(self.subscriber.type, row)
        if event is None:
            self._progress.gaps += 1
            return None
        try:
            return await self.subscriber.occurrence(event)
        except EventFailed:
            self._progress.gaps += 1
            return None

    # Each by itself

    def _send_later(self, position: Position, occurrence: JSON | None) -> None:
        task = running_loop().create_task(self._deliver(position, occurrence))
        self._sending[position] = task
        task.add_done_callback(lambda done: self._sent(position, done))

    def _sent(self, position: Position, task: "asyncio.Task[None]") -> None:
        if self._sending.get(position) is task:  # and not one that has taken its place meanwhile
            del self._sending[position]
        self.is_changed = True
        self._has_room.set()

    async def _deliver(self, position: Position, occurrence: JSON | None) -> None:
        while True:
            retry = self._progress.failed.get(position)
            if retry is not None and (pause := retry.due - self._log.now()) > 0:
                occurrence = None  # which is read again then, so that it takes no memory meanwhile
                with suppress(TimeoutError):
                    async with asyncio.timeout(pause):
                        await self._hurried.wait()
            try:
                if await self._is_settled(position, occurrence):
                    return
            except StoreUnavailable:
                await asyncio.sleep(AGAIN_AFTER)
            except Exception as error:  # or nobody would ever send it, and the next cursor would pass it
                report_failure("An event of %r is sent again later", self.row.name, error=error)
                if self._put_off(position).attempts >= MOST_ATTEMPTS:
                    await self._lose(position)
                    return

    async def _is_settled(self, position: Position, occurrence: JSON | None) -> bool:
        """Try once to deliver an event; return whether there is nothing more to do for it here."""
        if occurrence is None:
            retry = self._progress.failed.get(position)
            occurrence = await self._again(position)
            if occurrence is None:
                if retry is not None and retry.attempts > 0:
                    await self._lose(position)
                else:
                    self._done(position)
                return True
        result = await self._attempt(position, occurrence)
        if result is None:  # the subscription is over
            return True
        if result.reason is None:
            progress = self._progress
            progress.delivered, progress.failing, progress.error = self._log.now(), 0.0, ""
            self._tally.add(DELIVERIES, "delivered")
            self._done(position)
            return True
        return not await self._goes_on(position, result)

    async def _goes_on(self, position: Position, result: Result) -> bool:
        """Note that an event was not taken; return whether it is to be sent again."""
        is_lost = self._note_failure(position, result)
        if self.row.expires == math.inf and await self._drop_dead(result):
            return False
        if is_lost:
            await self._lose(position)
            return False
        return self._pump is not None  # or it is suspended

    async def _attempt(self, position: Position, occurrence: JSON) -> Result | None:
        """Send an event once; None where its subscriber may not have it any more."""
        async with self._alone if self._progress.failing else self._turn:
            subscriber = self.subscriber
            is_forgotten = await self._log.forgotten.has_ended(subscriber.caller.principal, self.row.created)
            if is_forgotten or not await may_subscribe(self._authorizer, subscriber):
                await self._terminate(FORBIDDEN, {"reason": "Access revoked"})
                return None
            async with self._turns.of(self._asked.url, is_slow=self._is_slow):
                body = {**occurrence, "cursor": await self._cursor(self._mark(position))}
                begun = running_loop().time()
                result = await self._send(str(occurrence["eventId"]), body)
            self._is_slow = result.reason is not None or running_loop().time() - begun > SLOW
            return result

    def _mark(self, position: Position) -> Position:
        """Return up to where everything was acknowledged or abandoned, but for an event that is sent now."""
        waiting = [*self._sending, *self._progress.failed, position]
        return min(waiting).before

    async def _cursor(self, position: Position) -> str:
        subscriber = self.subscriber
        return await self._log.seal(subscriber.owner, subscriber.type.name, subscriber.arguments, position)

    async def _send(self, id: str, body: JSON) -> Result:
        now, asked = self._log.now(), self._asked
        return await send(self._fetcher, asked.url, asked.signing(now), self.row.id, id, body, now)

    async def _again(self, position: Position) -> JSON | None:
        """Read an event again; None if it is gone, or not for this subscriber any more."""
        page = await self._log.store.read_events([self.row.name], position.before, most=1, most_bytes=1)
        if not page.rows or page.rows[0].position != position:
            self._progress.gaps += 1
            return None
        return await self._occurrence(page.rows[0])

    def _done(self, position: Position) -> None:
        self._progress.failed.pop(position, None)
        self.is_changed = True

    async def _lose(self, position: Position) -> None:
        """Abandon an event, and tell the webhook of the gap."""
        self._done(position)
        self._progress.gaps += 1
        self._tally.add(DELIVERIES, "abandoned")
        await self._tell_gap(position)

    def _note_failure(self, position: Position, result: Result) -> bool:
        """Note that an event was not taken; return whether it is given up."""
        progress, now = self._progress, self._log.now()
        self._tally.add(DELIVERIES, "failed")
        progress.error = result.reason or ""
        if not progress.failing:
            progress.failing = now
            self._report(progress.error)
        retry = self._put_off(position)
        self._give_up(now, is_gone=result.is_gone)
        return result.is_final or retry.attempts >= MOST_ATTEMPTS

    def _put_off(self, position: Position) -> Retry:
        retry = self._progress.failed.get(position) or Retry(0, 0.0)
        retry.attempts += 1
        pause = min(LONGEST_PAUSE, FIRST_PAUSE * 2 ** (retry.attempts - 1)) * random.uniform(0.75, 1.25)  # noqa: S311
        retry.due = self._log.now() + pause
        self._progress.failed[position] = retry
        self.is_changed = True
        self._has_room.set()  # for others: it is not on its way any more
        return retry

    def _report(self, reason: str) -> None:
        """Log that a webhook has begun to fail: by the beginning of its subscription's id, and not by its address."""
        self._refusals.note(
            "Events of %r do not arrive at the webhook of subscription %r: %r. Each is tried again. If all webhooks "
            "fail, look at how this server reaches the internet",
            self.row.name,
            self.row.id[:SHOWN_OF_ID],
            reason,
            fields={"event": "webhook_fails", "subscription": self.row.id[:SHOWN_OF_ID], "reason": reason},
        )

    def _give_up(self, now: float, *, is_gone: bool) -> None:
        """Send nothing more where nothing arrives, until the client subscribes again."""
        if self.row.expires != math.inf and (is_gone or now - self._progress.failing >= SUSPEND_AFTER):
            self._stop()
            self._progress.suspended = now

    async def _drop_dead(self, result: Result) -> bool:
        """End a subscription without an end where nothing has arrived for long; return whether that is so."""
        if result.is_gone:  # it has said that it wants nothing more
            self.is_over = True
        elif self._log.now() - self._progress.failing >= DROP_AFTER:
            await self._terminate(CALLBACK, {"reason": result.reason})
        return self.is_over

    # Messages that are no events. Who does not take them has not failed

    async def _note_gap(self) -> None:
        self._progress.gaps += 1
        self.is_changed = True
        await self._tell_gap()

    async def _tell_gap(self, lost: Position | None = None) -> None:
        """Send a gap, whose cursor is past what is missing, unless something before it is under way."""
        waiting = [each for each in (*self._sending, *self._progress.failed) if each != lost]
        at = self._progress.at if lost is None else max(self._progress.at, lost)
        cursor = await self._cursor(min(waiting).before if waiting else at)
        await self._control("gap", {"type": "gap", "cursor": cursor})

    async def _terminate(self, kind: Kind, data: JSON) -> None:
        """End the subscription, and say so once. Only then is it removed, which would cut the message off."""
        if not self._is_ending:
            self._is_ending = True
            code = code_of(kind, is_declared=self._asked.is_declared)
            error = {"code": code, "message": kind, "data": data}
            await self._control("terminated", {"type": "terminated", "error": error})
            self.is_over = True

    async def _control(self, type: str, body: dict[str, Any]) -> None:
        if self._progress.takes_control:
            result = await self._send(control_id(type), body)
            if result.reason == "http_4xx":  # and not one that is in trouble for a moment
                self._progress.takes_control = False
                self.is_changed = True
