"""Events: lists their types, and serves those who poll, follow a stream, or subscribe a webhook."""

import asyncio
import math
from contextlib import suppress
from typing import Any, ClassVar, NamedTuple

from typing_extensions import override

from ..concurrency.places import PlacesByCaller
from ..concurrency.running import running_loop
from ..concurrency.waiting import growing, wait_until
from ..crypto.digests import canonical
from ..crypto.place_codec import Cursors, named_in_cursor
from ..errors import (
    Busy,
    EventFailed,
    ExtensionError,
    FlowError,
    InternalFault,
    InvalidParams,
    OverShare,
    StoreUnavailable,
    TooMany,
    UnfitUrl,
)
from ..events.log import PAGE, PAGE_BYTES
from ..events.parts import EventParts
from ..events.signatures import read_secret
from ..events.streams import PORTION, EventStream
from ..events.subscribers import Subscriber, is_admitted
from ..events.subscriptions import (
    WANTED_SECONDS,
    Asked,
    Progress,
    ended,
    poll_id,
    source_id,
    subscription_id,
)
from ..events.webhooks import Verifications
from ..flow.authorization import Authorizer
from ..flow.events import EventType, Mode
from ..limits import LONGEST_NAME, Limits, check_length, share_of
from ..methods.failures import ErrorReporter
from ..protocol.callers import Caller, Principal, person_of
from ..protocol.event_codes import CALLBACK, EXHAUSTED, FORBIDDEN, NOT_FOUND, UNSUPPORTED, declares, refused
from ..protocol.messages import EVENTS, JSON, Call, Change, Complete, Listening, Outcome, Outlet, timestamp
from ..protocol.sessions import owner_of
from ..storage.quotas import Quotas
from ..storage.rows import Position, SubscriptionRow
from .extension import Extension

MOST_EVENTS = 100
"""Events in the result of a poll, at most."""

MOST_LOOKED_AT = 1_000
"""Events that one poll looks through for those of its subscriber."""

LONGEST_AGE = 10**15
"""Milliseconds."""

SHORTEST_TTL = 60.0
"""Seconds of a webhook's subscription, at least."""

MOST_IN_MEMORY = 1800.0
"""Seconds of one that ends with its process, at most: its client learns of that when it subscribes again."""

OVERLAP_SECONDS = 300.0
"""How long messages are signed with the former secret as well."""

ENDS_WITHIN = 2.0
"""Seconds to wait at most for whoever delivers, when somebody unsubscribes."""

LARGEST_ARGUMENTS = 16 * 1024
"""Bytes of the arguments of a subscription, which are kept with it."""


class EventExtension(Extension):
    """The extension Events (SEP-3415)."""

    id: ClassVar[str] = EVENTS

    def __init__(
        self,
        parts: EventParts,
        authorizer: Authorizer,
        errors: ErrorReporter,
        limits: Limits,
        cursors: Cursors,
        page_size: int,
        quotas: Quotas,
    ) -> None:
        self.methods = {
            "events/list": self._list,
            "events/poll": self._poll,
            "events/stream": self._stream,
            "events/subscribe": self._subscribe,
            "events/unsubscribe": self._unsubscribe,
        }
        self._parts = parts
        self._log = parts.log
        self._authorizer = authorizer
        self._errors = errors
        self.places = PlacesByCaller("listeners", limits)  # those of all listeners, once there are others
        self._cursors = cursors
        self._limits = limits
        self._page_size = page_size
        self._wanted: dict[str, _Wanted] = {}  # what is noted that somebody wants, by id
        self._verifications = Verifications(parts.subscriptions.store, quotas, parts.log.now)

    @override
    def settings(self) -> JSON | None:
        return {} if self._parts.types else None

    def _modes(self, type: EventType[Any, Any], call: Call) -> list[Mode]:
        has_webhooks = self._parts.fetcher is not None and call.principal is not None
        return [mode for mode in type.modes if mode != "webhook" or has_webhooks]

    # Which there are

    async def _list(self, call: Call, outlet: Outlet) -> Outcome:
        """Serve `events/list` (Listing Available Events). Raises `RequestError`."""
        types = list(self._parts.types.values())
        shown = await self._authorizer.shown(call.caller, call.method, [(each.hook, each.name) for each in types])
        offered = [
            (each, modes) for each, may in zip(types, shown, strict=True) if may and (modes := self._modes(each, call))
        ]
        cursor, start = call.params.get("cursor"), 0
        if cursor or not isinstance(cursor, str | None):
            last = self._cursors.unseal_place("events", cursor)
            if last is None:
                raise InvalidParams("The cursor does not belong to this list; start again without a cursor")
            start = next((at for at, (each, _) in enumerate(offered, 1) if named_in_cursor(each.name) == last), 0)
        page = offered[start : start + self._page_size]
        body: JSON = {"events": [{**each.entry, "delivery": modes} for each, modes in page]}
        if start + len(page) < len(offered):
            body["nextCursor"] = self._cursors.seal_place("events", named_in_cursor(page[-1][0].name))
        return Complete(body)

    async def _subscriber(self, call: Call, mode: Mode) -> Subscriber:
        """Return who subscribes to what, and whether it may. Raises `RequestError`."""
        name, arguments = _target(call)
        type = self._parts.types.get(name)
        if type is not None:
            (is_shown,) = await self._authorizer.shown(call.caller, call.method, [(type.hook, name)])
            type = type if is_shown else None
        if type is None:
            raise refused(call.client, NOT_FOUND, f"there is no event {name[:200]!r}", {"kind": "event"})
        subscriber = Subscriber.of(type, call.caller, arguments, self._log.callers)
        (may,) = await self._authorizer.allowed(call.caller, call.method, [(type.hook, name)], challenges=True)
        if not may:
            raise refused(call.client, FORBIDDEN, f"you may not subscribe to {name}", {"kind": "event"})
        if mode == "webhook":
            _principal_of(call)
        try:
            may = await is_admitted(subscriber)
        except EventFailed as failed:
            raise InternalFault(str(failed)) from None
        if not may:
            why = f"you may not subscribe to {name} with these arguments"
            raise refused(call.client, FORBIDDEN, why, {"kind": "arguments"})
        if mode not in self._modes(type, call):
            data = {"feature": "deliveryMode", "value": mode}
            raise refused(call.client, UNSUPPORTED, f"{name} is not delivered so", data)
        return subscriber

    # Polling

    async def _poll(self, call: Call, outlet: Outlet) -> Outcome:
        """Serve `events/poll` (Poll-Based Delivery). Raises `RequestError`."""
        most = _number(call, "maxEvents", MOST_EVENTS, least=1)
        subscriber = await self._subscriber(call, "poll")
        try:
            await self._note_wanted(call, subscriber, is_polling=True)
            return Complete(await self._polled(call, subscriber, min(most, MOST_EVENTS)))
        except StoreUnavailable as error:
            raise self._errors.report(call, error) from None

    async def _polled(self, call: Call, subscriber: Subscriber, most: int) -> JSON:
        position, is_cut = await self._begin(call, subscriber)
        events: list[JSON] = []
        looked_at, size, held, has_more = 0, 0, 0, True
        while has_more and len(events) < most and looked_at < MOST_LOOKED_AT and size < PAGE_BYTES:
            at_once = most if not looked_at else PAGE  # few may fit, so the next ones are read in few statements
            page = await self._log.read(subscriber.type.name, position, min(at_once, MOST_LOOKED_AT - looked_at))
            is_cut = is_cut or bool(page.lost)
            position, has_more = page.reached, not page.is_last
            for row in page.rows:
                event = self._log.open(subscriber.type, row)
                looked_at += 1
                if (held := held + row.size) >= PORTION:
                    held = 0
                    await asyncio.sleep(0)  # others have their turn
                is_cut = is_cut or event is None
                try:
                    made = None if event is None else await subscriber.occurrence(event)
                except EventFailed:
                    made, is_cut = None, True
                if made is not None:
                    events.append(made)
                    size += row.size
                    if (len(events) == most or size >= PAGE_BYTES) and row is not page.rows[-1]:
                        position, has_more = row.position, True
                        break
        return {
            "events": events,
            "cursor": await self._seal(subscriber, position),
            "truncated": is_cut,
            "hasMore": has_more,
            "nextPollMs": int(self._log.options.poll_seconds * 1000),
        }

    async def _begin(self, call: Call, subscriber: Subscriber) -> tuple[Position, bool]:
        """Return where the events of a request begin, and whether some before are left out (Cursor Lifecycle)."""
        age = _number(call, "maxAgeMs", LONGEST_AGE)
        cursor, name = call.params.get("cursor"), subscriber.type.name
        if cursor is None:
            return (await self._log.read(name, None)).reached, False
        position = await self._log.unseal(subscriber.owner, name, subscriber.arguments, cursor)
        if position is None:
            return (await self._log.read(name, None)).reached, True
        if age < LONGEST_AGE:
            return await self._log.seek(name, position, self._log.now() - age / 1000)
        return position, False

    async def _begin_anew(self, call: Call, subscriber: Subscriber) -> tuple[Position, bool]:
        """Return the same where the reply has no events yet: what is gone is said with it, and a cursor past that."""
        position, is_cut = await self._begin(call, subscriber)
        page = await self._log.read(subscriber.type.name, position, 1)
        return (page.begins, True) if page.lost else (position, is_cut)

    async def _seal(self, subscriber: Subscriber, position: Position) -> str:
        return await self._log.seal(subscriber.owner, subscriber.type.name, subscriber.arguments, position)

    # Streams

    async def _stream(self, call: Call, outlet: Outlet) -> Outcome:
        """Serve `events/stream` (Push-Based Delivery). Raises `RequestError`."""
        subscriber = await self._subscriber(call, "push")
        place = self.places.take(person_of(call.principal))
        try:
            position, is_cut = await self._begin_anew(call, subscriber)
            await self._note_wanted(call, subscriber)
            await self._parts.sources.added(subscriber)
        except BaseException as error:
            place.end()
            raise self._mended(call, error) from None
        is_declared = declares(call.client)
        call.let_go()
        if (portion := getattr(outlet, "portion", None)) is not None:
            portion.end()  # it counts as a listener
        renewing = asyncio.get_running_loop().create_task(self._stay_wanted(call, subscriber))

        def end() -> None:
            place.end()
            renewing.cancel()
            self._parts.sources.removed(subscriber)

        stream = EventStream(
            subscriber, self._log, self._authorizer, position, is_cut=is_cut, is_declared=is_declared, ended=end
        )
        return Listening(stream)

    async def _stay_wanted(self, call: Call, subscriber: Subscriber) -> None:
        while subscriber.type.source_of is not None:
            await asyncio.sleep(WANTED_SECONDS / 2)
            try:
                await self._note_wanted(call, subscriber)
            except (StoreUnavailable, ExtensionError):  # which is logged elsewhere, or there are too many by now
                continue

    # Webhooks

    async def _subscribe(self, call: Call, outlet: Outlet) -> Outcome:
        """Serve `events/subscribe` (Subscribing). Raises `RequestError`."""
        subscriber = await self._subscriber(call, "webhook")
        url, secret = self._delivery(call)
        ttl = self._granted(call, subscriber)
        try:
            return Complete(await self._subscribed(call, subscriber, url, secret, ttl))
        except (StoreUnavailable, FlowError) as error:
            raise self._mended(call, error) from None

    def _mended(self, call: Call, error: BaseException) -> BaseException:
        """Return the error that a client gets."""
        if isinstance(error, StoreUnavailable):
            return self._errors.report(call, error)
        return InternalFault(str(error)) if isinstance(error, FlowError) else error  # which is in the log

    async def _subscribed(self, call: Call, subscriber: Subscriber, url: str, secret: bytes, ttl: float | None) -> JSON:
        log, store, type = self._log, self._parts.subscriptions.store, subscriber.type
        id = subscription_id(subscriber.owner, url, type.name, subscriber.arguments)
        now, position, is_cut = log.now(), Position(), False
        present = await store.find_subscription(id)
        asked = Asked(url, (secret,), ttl=ttl, is_declared=declares(call.client))
        if present is None:
            position, is_cut = await self._begin_anew(call, subscriber)
            await self._verify(call, subscriber, url, secret, id)
        else:
            asked = self._renewed(present, asked, now)
        expires = math.inf if ttl is None else now + ttl
        # Where the present one ends at this very moment, another one goes on from there.
        progress = Progress(await store.epoch(), position) if present is None else Progress.load(present.progress)
        row = SubscriptionRow(
            id,
            "webhook",
            type.name,
            log.callers.of(call.principal.person) if call.principal is not None else "",
            self._parts.subscriptions.seal(id, call.caller, subscriber.arguments, asked),
            progress.dump(),
            now,
            now,
            expires,
        )
        total = self._limits.subscriptions
        try:
            before = await store.put_subscription(
                row, most=share_of(total, self._limits.caller_share), most_in_all=total
            )
        except Busy as full:
            whose = {"limit": "subscriptions", "max": (full.data or {}).get("value")}
            why = (
                "you have as many webhooks as you may" if isinstance(full, OverShare) else "there are too many webhooks"
            )
            raise refused(call.client, EXHAUSTED, why, whose) from None
        if before is None:
            try:
                await self._parts.sources.added(subscriber)
            except FlowError:
                await store.remove_subscription(id, updated=now)
                raise
        await self._note_wanted(call, subscriber, until=expires)
        log.fanout.publish(Change("subscription"))
        self._parts.courier.start()
        body: JSON = {"id": id, "refreshBefore": None if ttl is None else timestamp(expires)}
        if before is None:
            return {**body, "cursor": await self._seal(subscriber, progress.watermark), "truncated": is_cut}
        progress = Progress.load(before.progress)
        _, formerly = self._parts.subscriptions.open(before)
        watermark, is_cut = progress.watermark, formerly is not None and progress.gaps > formerly.said
        if progress.epoch != await store.epoch():  # whose positions count no more
            watermark, is_cut = watermark._replace(transaction=0), True
        return {
            **body,
            "cursor": await self._seal(subscriber, watermark),
            "truncated": is_cut,
            "deliveryStatus": _status(progress),
        }

    def _renewed(self, present: SubscriptionRow, asked: Asked, now: float) -> Asked:
        """Return what a subscription asks for that is renewed: with another secret, both sign for a while."""
        _, formerly = self._parts.subscriptions.open(present)
        if formerly is None:
            return asked
        asked = asked._replace(said=Progress.load(present.progress).gaps)
        if formerly.secrets[0] == asked.secrets[0]:
            return asked._replace(secrets=formerly.secrets, old_until=formerly.old_until)
        return asked._replace(secrets=(*asked.secrets, formerly.secrets[0]), old_until=now + OVERLAP_SECONDS)

    def _delivery(self, call: Call) -> tuple[str, bytes]:
        """Return where and with which secret a client wants its events. Raises `RequestError`."""
        delivery = call.params.get("delivery")
        if not isinstance(delivery, dict):
            raise InvalidParams("params.delivery must be an object with mode, url and secret")
        if delivery.get("mode", "webhook") != "webhook":
            data = {"feature": "deliveryMode", "value": str(delivery["mode"])[:64]}
            raise refused(call.client, UNSUPPORTED, "events/subscribe delivers to webhooks alone", data)
        secret = read_secret(delivery.get("secret"))
        if secret is None:
            raise InvalidParams("params.delivery.secret must be whsec_ followed by base64 of 24 to 64 random bytes")
        return self._url(call, delivery), secret

    def _url(self, call: Call, delivery: JSON) -> str:
        url: Any = delivery.get("url")
        if not isinstance(url, str):
            raise InvalidParams("params.delivery.url must be an https address")
        if self._parts.fetcher is None:
            data = {"feature": "deliveryMode", "value": "webhook"}
            raise refused(call.client, UNSUPPORTED, "this server delivers to no webhooks", data)
        try:
            return self._parts.fetcher.check(url)
        except UnfitUrl as error:
            raise InvalidParams(f"params.delivery.url: {error}") from None

    def _granted(self, call: Call, subscriber: Subscriber) -> float | None:
        """Return how long a subscription lasts, in seconds; None for one without an end (Subscription TTL)."""
        webhooks, is_lasting = self._parts.webhooks, self._log.store.shared
        most = webhooks.most_seconds if is_lasting else min(webhooks.most_seconds, MOST_IN_MEMORY)
        if "ttlMs" in call.params and call.params["ttlMs"] is None:
            hook, admits = subscriber.type.hook, subscriber.type.admits
            # Scopes alone are those of the last subscribe, and never change.
            decides = admits is not None or (hook is not None and hook.decides)
            is_guarded = decides or self._authorizer.guards_all
            return None if webhooks.endless and is_guarded and is_lasting else most
        # No lifetime is refused: the grant says what there is instead.
        wanted = _number(call, "ttlMs", LONGEST_AGE, least=None) / 1000
        return min(max(SHORTEST_TTL, wanted), most)

    async def _verify(self, call: Call, subscriber: Subscriber, url: str, secret: bytes, id: str) -> None:
        """Ask a webhook whether it wants messages (Endpoint verification). Raises `RequestError`."""
        fetcher = self._parts.fetcher
        assert fetcher is not None  # noqa: S101  or there are no webhooks
        try:
            reason = await self._verifications.check(fetcher, _principal_of(call), url, secret, id)
        except TooMany as many:
            data = {"limit": "verifications", "max": many.args[0]}
            raise refused(call.client, EXHAUSTED, "too many webhooks of this host are being verified", data) from None
        if reason is not None:
            raise refused(call.client, CALLBACK, "the webhook could not be verified", {"reason": reason})

    async def _unsubscribe(self, call: Call, outlet: Outlet) -> Outcome:
        """Serve `events/unsubscribe` (Unsubscribing). Raises `RequestError`."""
        # Whoever may not subscribe any more may still end what there is.
        name, arguments = _target(call)
        delivery = call.params.get("delivery")
        principal = _principal_of(call)
        if not isinstance(delivery, dict):
            raise InvalidParams("params.delivery must be an object with url")
        from ..fetcher.urls import parse  # with a library of HTTP, which few servers need

        try:
            url = str(parse(str(delivery.get("url"))))  # one that is not allowed any more can be ended, too
        except UnfitUrl as error:
            raise InvalidParams(f"params.delivery.url: {error}") from None
        id = subscription_id(owner_of(principal), url, name, arguments)
        store = self._parts.subscriptions.store
        try:
            present = await store.find_subscription(id)
            if present is not None:
                await store.put_subscription(ended(present, self._log.now()))
        except StoreUnavailable as error:
            raise self._errors.report(call, error) from None
        if present is not None:
            self._log.fanout.publish(Change("subscription"))
            await self._until_removed(id)
        elif declares(call.client):  # a host that does not expects to be able to say so twice
            raise refused(call.client, NOT_FOUND, "there is no such subscription", {"kind": "subscription"})
        return Complete({})

    async def _until_removed(self, id: str) -> None:
        """Wait until whoever delivers, perhaps another replica, has ended a subscription, so that nothing more is sent.

        It is listed until then. Where nobody delivers, or the store is away, nothing is sent anyway.
        """

        async def look(heard: object) -> bool | None:
            listed = await self._parts.subscriptions.store.list_subscriptions(after=id[:-1], most=1)
            return all(each.id != id for each in listed) or None

        with suppress(StoreUnavailable):
            await wait_until(look, deadline=running_loop().time() + ENDS_WITHIN, pauses=growing(0.01, 0.1))

    # Who wants something

    async def _note_wanted(
        self, call: Call, subscriber: Subscriber, *, until: float | None = None, is_polling: bool = False
    ) -> None:
        """Note that events are wanted, where a source has to know. Raises `RequestError`, `StoreUnavailable`."""
        type, now = subscriber.type, self._log.now()
        until = now + WANTED_SECONDS if until is None else until
        if type.source_of is not None:
            # For a while: whoever delivers goes on with it for webhooks.
            wanted = min(until, now + WANTED_SECONDS)
            await self._note(call, source_id(type.name, subscriber.arguments), "source", subscriber, wanted)
        if is_polling and (type.on_subscribe is not None or type.on_unsubscribe is not None):
            id = poll_id(subscriber.owner, type.name, subscriber.arguments)
            if await self._note(call, id, "poll", subscriber, until):
                await self._parts.sources.added(subscriber)
        if self._parts.courier.is_needed:
            self._parts.courier.start()

    async def _note(self, call: Call, id: str, kind: Any, subscriber: Subscriber, until: float) -> bool:
        """Note that something is wanted until then; return whether it was not before."""
        now, store = self._log.now(), self._parts.subscriptions.store
        noted = self._wanted.get(id)
        if noted is not None and noted.until >= min(until, now + WANTED_SECONDS / 2):
            return False
        total = self._limits.subscriptions
        owner = subscriber.owner if noted is None else noted.owner
        if noted is None:
            # Each is a row, and each of a source is read again and again: whoever polls could ask for any number.
            self._wanted = {each: wanted for each, wanted in self._wanted.items() if wanted.until > now}
            held = sum(wanted.owner == owner for wanted in self._wanted.values())
            if held >= share_of(total, self._limits.caller_share) or len(self._wanted) >= total:
                why = "you want events for as many arguments as you may"
                raise refused(call.client, EXHAUSTED, why, {"limit": "subscriptions", "max": held})
        present = await store.find_subscription(id)
        is_new = False
        if present is None or present.expires < until:
            # A source is nobody's: it is read once for all who want the same.
            caller = Caller() if kind == "source" else subscriber.caller
            whose = "" if caller.principal is None else self._log.callers.of(caller.principal.person)
            body = self._parts.subscriptions.seal(id, caller, subscriber.arguments, None)
            row = SubscriptionRow(id, kind, subscriber.type.name, whose, body, "", now, now, until)
            try:
                is_new = await store.put_subscription(row, most_in_all=total) is None
            except Busy:
                why = "there are events for too many arguments"
                raise refused(call.client, EXHAUSTED, why, {"limit": "subscriptions", "max": total}) from None
            self._log.fanout.publish(Change("subscription"))
        self._wanted[id] = _Wanted(until, owner)
        return is_new


class _Wanted(NamedTuple):
    until: float
    owner: str


def _principal_of(call: Call) -> Principal:
    """Return the caller of a method for webhooks, which needs one that is known. Raises `RequestError`."""
    if call.principal is None:
        raise refused(call.client, FORBIDDEN, "a webhook needs a caller who is authenticated", {"kind": "principal"})
    return call.principal


def _target(call: Call) -> tuple[str, JSON]:
    """Return the name of a type, and the arguments of a subscription. Raises `InvalidParams`."""
    name, arguments = call.params.get("name"), call.params.get("arguments")
    if not isinstance(name, str):
        raise InvalidParams(f"{call.method} needs the name of an event, as a text")
    check_length(name, LONGEST_NAME, "name")
    if not isinstance(arguments, dict | None):
        raise InvalidParams("params.arguments must be an object")
    if arguments and len(canonical(arguments)) > LARGEST_ARGUMENTS:
        raise InvalidParams(f"params.arguments must take at most {LARGEST_ARGUMENTS} bytes, since they are kept")
    return name, arguments or {}


def _number(call: Call, field: str, default: int, *, least: int | None = 0) -> int:
    """Return a whole number of a request; one beyond `LONGEST_AGE` is as good as that. Raises `InvalidParams`."""
    value = call.params.get(field)
    if value is None:
        return default
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or value != value // 1 or (least is not None and value < least):  # nan and inf are none, either
        bound = "" if least is None else f" of at least {least}"
        raise InvalidParams(f"params.{field} must be a whole number{bound}")
    return int(max(-LONGEST_AGE, min(value, LONGEST_AGE)))


def _status(progress: Progress) -> JSON:
    """Return how the delivery to a webhook goes (Webhook Delivery Status)."""
    status: JSON = {
        "active": not progress.suspended,
        "lastDeliveryAt": timestamp(progress.delivered) if progress.delivered else None,
        "lastError": progress.error or None,
    }
    if progress.failing:
        status["failedSince"] = timestamp(progress.failing)
    return status
