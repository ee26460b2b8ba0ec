"""A store whose outages are logged once: when it goes away, and when it is back."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from contextvars import Context
from functools import wraps
from secrets import token_hex
from typing import Any, Concatenate, ParamSpec, TypeVar

from typing_extensions import override

from ..concurrency.running import PerLoop
from ..errors import StoreUnavailable
from ..tally import DROPPED, TAKEOVERS, Tally
from .base import Store
from .health import LOOK_WITHIN, Contact, Outage, StoreObserver, VitalsWatch
from .pubsub import Fanout
from .rows import GRACE_SECONDS, Redemption, TaskRow, Vitals

POLL_INTERVAL = 1.0  # a look is good enough for readiness so many seconds

P = ParamSpec("P")
T = TypeVar("T")


def _watched(
    method: Callable[Concatenate[Store, P], Awaitable[T]],
    wrote: Callable[[T], bool] = bool,
    *,
    touches: bool = False,
    is_steady: bool = False,
    takes_over: bool = False,
    omits: str = "",
    after: Callable[..., object] | None = None,
) -> "Callable[Concatenate[WatchedStore, P], Coroutine[Any, Any, T]]":
    """Return a method that calls that of the store, and notes how it ended."""
    # `wrote` returns whether a result shows a change. The success of a method that `touches` shows that the process is
    # in touch with the store. Workers call a steady one all the time, so that every break shows. An argument that is
    # omitted is not given while it is empty: a store need not know of it.
    name = method.__name__

    @wraps(method, updated=())  # its attributes say that it is abstract
    async def watched(self: "WatchedStore", /, *args: P.args, **named: P.kwargs) -> T:
        if takes_over:
            named["lapsed"] = named.get("lapsed", True) and self._may_take_over()
        if omits and not named.get(omits):
            named.pop(omits, None)
        began = time.monotonic()
        try:
            result: T = await getattr(self._store, name)(*args, **named)
        except Exception as error:
            self._outage.ended(name, began, error)
            if is_steady and isinstance(error, StoreUnavailable):
                self._contact.failed()
            raise
        has_written = wrote(result)
        self._outage.ended(name, began, wrote=has_written)
        if self.shared and (touches or is_steady):  # in one process, nobody takes over from others
            self._contact.worked(wrote=has_written)
        if after is not None:
            after(self, result, *args, **named)
        return result

    return watched


def _never(_: object) -> bool:
    return False


def _always(_: object) -> bool:
    return True


class WatchedStore(Store):
    """A store whose outages are noticed. The tally counts rounds that are taken over, and outcomes that are dropped.

    An outage does not count as silence of those who hold leases. So tasks whose lease has ended are left to their
    workers until this process has been in touch with the store for a whole lease: by then, those who live have
    renewed theirs, and recorded what they have done.
    """

    def __init__(self, store: Store, outage: Outage, *, lease: float, tally: Tally | None = None) -> None:
        self.shared, self.keeps_tasks, self.in_memory = store.shared, store.keeps_tasks, store.in_memory
        self.one_machine, self.has_epochs = store.one_machine, store.has_epochs
        self.keeps_waits, self.keeps_events = store.keeps_waits, store.keeps_events
        self._store = store
        self._outage = outage
        self._lease = lease
        self._contact = Contact(lease)
        self._looked = -POLL_INTERVAL
        self._looking = PerLoop[asyncio.Task[None]]()
        self._tally = Tally() if tally is None else tally
        outage.look = self._look_soon

    def observe(self, observer: StoreObserver) -> None:
        """Notify an observer of what the store does, from now on."""
        self._outage.observer = observer

    def watch(self, vitals: VitalsWatch) -> None:
        """Start a look at each use of the store from now on, if one is due."""
        self._outage.vitals = vitals

    @property
    def is_away(self) -> bool:
        """Whether the store can't be used, as far as that is known."""
        return self._outage.is_on

    @override
    async def epoch(self) -> str:
        return await self._store.epoch()  # which is remembered, so it says nothing of an outage

    @override
    async def forgotten(self) -> Mapping[str, float]:
        return await self._store.forgotten()  # which is asked too seldom to say anything of an outage

    def _note_redeemed(self, found: Redemption, *_: object, **__: object) -> None:
        if found.attempt > 1:
            self._tally.add(TAKEOVERS, "round")

    def _note_recorded(self, is_recorded: bool, *_: object, **__: object) -> None:
        if not is_recorded:
            self._tally.add(DROPPED, "round")

    def _note_added(self, is_new: bool, row: TaskRow, **_: object) -> None:
        if is_new and self._outage.observer is not None:
            self._outage.observer.added(row)

    def _note_changed(self, changed: TaskRow | None, row: TaskRow, **_: object) -> None:
        if changed is not None and self._outage.observer is not None:
            self._outage.observer.changed(row, changed)

    def _note_claimed(self, *_: object, **__: object) -> None:
        if self.shared and not self._contact.is_made:
            self._look_soon(writes=True)

    redeem = _watched(Store.redeem, lambda found: found.verdict == "granted", omits="epoch", after=_note_redeemed)
    renew = _watched(Store.renew)
    record = _watched(Store.record, after=_note_recorded)
    release = _watched(Store.release, _never)
    put = _watched(Store.put, touches=True)
    replace = _watched(Store.replace, _always, touches=True)
    get = _watched(Store.get, _never)
    add_task = _watched(Store.add_task, touches=True, after=_note_added)
    find_task = _watched(Store.find_task, _never)
    find_tasks = _watched(Store.find_tasks, _never)
    list_owned_tasks = _watched(Store.list_owned_tasks, _never)
    change_task = _watched(Store.change_task, is_steady=True, after=_note_changed)  # type: ignore[arg-type]  # no field is named self
    claim_tasks = _watched(Store.claim_tasks, is_steady=True, takes_over=True, after=_note_claimed)
    renew_tasks = _watched(Store.renew_tasks, is_steady=True)
    holds_task = _watched(Store.holds_task, _never)
    overdue_tasks = _watched(Store.overdue_tasks, _never, is_steady=True)
    put_wait = _watched(Store.put_wait, _always)
    list_waits = _watched(Store.list_waits, _never)
    remove_wait = _watched(Store.remove_wait, _always)
    add_event = _watched(Store.add_event)
    read_events = _watched(Store.read_events, _never)
    trim_events = _watched(Store.trim_events, _never)
    put_subscription = _watched(Store.put_subscription, _always)
    find_subscription = _watched(Store.find_subscription, _never)
    list_subscriptions = _watched(Store.list_subscriptions, _never)
    remove_subscription = _watched(Store.remove_subscription)
    advance_subscriptions = _watched(Store.advance_subscriptions)
    take_lease = _watched(Store.take_lease)
    wait_for_tasks = _watched(Store.wait_for_tasks, _never, is_steady=True, takes_over=True)

    def _may_take_over(self) -> bool:
        """Return whether a worker that has not renewed its lease could have done so for as long as it may be silent."""
        return not self.shared or self._contact.has_lasted(max(self._lease, GRACE_SECONDS))

    @override
    async def measure(self, tools: Sequence[str]) -> Vitals:
        return await self._store.measure(tools)  # which is beside what the store is for, and says nothing of an outage

    @override
    async def check(self) -> None:
        await self._store.check()  # who calls it says what comes of a failure

    @override
    def fanout(self) -> Fanout:
        return self._store.fanout()

    @override
    async def close(self) -> None:
        if (looking := self._looking.get()) is not None:
            looking.cancel()  # or it would connect again
            await asyncio.wait((looking,))
        if self._outage.vitals is not None:
            await self._outage.vitals.close()
        await self._store.close()

    async def is_usable(self) -> bool:
        """Check whether the store can be used now, within `LOOK_WITHIN`; not again if that was just done."""
        looking = self._look_soon()
        if looking is not None:
            await asyncio.wait((looking,), timeout=LOOK_WITHIN)
            if not looking.done():
                return False
        return not self._outage.is_on

    def _look_soon(self, *, writes: bool = False) -> "asyncio.Task[None] | None":
        """Start a look, unless one is under way or has just ended; return the one under way."""
        # With `writes`, or while the store is unavailable, the look writes, which shows that writing works.
        looking = self._looking.get()
        if looking is None or looking.done():
            self._looking.pop()
            looking = None
            if time.monotonic() >= self._looked + POLL_INTERVAL:
                self._looked = time.monotonic()
                # What a request has waited is no reason to look for less long.
                looking = self._looking.put(asyncio.create_task(self._look(writes=writes), context=Context()))
        return looking

    async def _look(self, *, writes: bool) -> None:
        try:
            if writes or self._outage.is_on:
                await self.put(f"ready {token_hex(8)}", b"", keep=1.0)
            else:
                await self.get("ready")
        except StoreUnavailable:
            pass  # which has been noticed
        except Exception as error:  # in a store of the author's
            self._outage.failed("look", StoreUnavailable(f"{type(error).__name__}: {error}"))
