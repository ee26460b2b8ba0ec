"""A store whose outages are logged once: when it goes away, and when it is back."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from contextvars import Context
from secrets import token_hex
from typing import Any, TypeVar

from typing_extensions import override

from ..errors import StoreUnavailable
from ..tally import DROPPED, TAKEOVERS, Tally
from .base import FREE, GRACE_SECONDS, Places, Redemption, Store, TaskRow, Vitals
from .health import LOOK_WITHIN, Contact, Outage, StoreObserver, VitalsWatch
from .pubsub import Fanout
from .quotas import ANY, Quota

POLL_INTERVAL = 1.0
"""How long a look is good enough for readiness, in seconds."""

T = TypeVar("T")


async def _watched(outage: Outage, method: str, work: Awaitable[T], wrote: Callable[[T], bool]) -> T:
    began = time.monotonic()
    try:
        came = await work
    except Exception as error:
        outage.ended(method, began, error)
        raise
    outage.ended(method, began, wrote=wrote(came))
    return came


def _nothing(_: object) -> bool:
    return False


class WatchedStore(Store):
    """A store whose outages are noticed.

    An outage does not count as silence of those who hold leases. So tasks whose lease has ended are left to their
    workers until this process has been in touch with the store for a whole lease: those who live have renewed theirs by
    then, and recorded what they have done.

    The tally counts rounds that are taken over, and outcomes that are dropped.
    """

    def __init__(self, store: Store, outage: Outage, *, lease: float, tally: Tally | None = None) -> None:
        self.shared, self.keeps_tasks, self.in_memory = store.shared, store.keeps_tasks, store.in_memory
        self.one_machine, self.has_epochs = store.one_machine, store.has_epochs
        self._store = store
        self._outage = outage
        self._lease = lease
        self._contact = Contact(lease)
        self._looked = -POLL_INTERVAL
        self._looking: asyncio.Task[None] | None = None
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
    async def redeem(
        self,
        state: str,
        answers: str,
        *,
        lease: float,
        keep: float,
        lapsed: bool = True,
        quota: Quota = ANY,
        epoch: str = "",
    ) -> Redemption:
        named = {"epoch": epoch} if epoch else {}  # a store that has none need not know of them
        began = time.monotonic()
        try:
            came = await self._store.redeem(state, answers, lease=lease, keep=keep, lapsed=lapsed, quota=quota, **named)
        except Exception as error:
            self._outage.ended("redeem", began, error)
            raise
        self._outage.ended("redeem", began, wrote=came.verdict == "granted")
        if came.attempt > 1:
            self._tally.add(TAKEOVERS, "round")
        return came

    @override
    async def renew(self, state: str, token: str, *, lease: float) -> bool:
        return await _watched(self._outage, "renew", self._store.renew(state, token, lease=lease), bool)

    @override
    async def record(self, state: str, token: str, outcome: bytes) -> bool:
        began = time.monotonic()
        try:
            is_recorded = await self._store.record(state, token, outcome)
        except Exception as error:
            self._outage.ended("record", began, error)
            raise
        self._outage.ended("record", began, wrote=is_recorded)
        if not is_recorded:
            self._tally.add(DROPPED, "round")
        return is_recorded

    @override
    async def release(self, state: str, token: str) -> None:
        await _watched(self._outage, "release", self._store.release(state, token), _nothing)

    @override
    async def put(self, key: str, value: bytes, *, keep: float, quota: Quota = ANY) -> bool:
        began = time.monotonic()
        try:
            kept = await self._store.put(key, value, keep=keep, quota=quota)
        except Exception as error:
            self._outage.ended("put", began, error)
            raise
        self._outage.ended("put", began, wrote=kept)
        if self.shared:  # in one process, nobody takes over from others
            self._contact.worked(wrote=kept)
        return kept

    @override
    async def replace(self, key: str, value: bytes, *, keep: float, quota: Quota = ANY) -> None:
        work = self._store.replace(key, value, keep=keep, quota=quota)
        await _watched(self._outage, "replace", work, lambda _: True)
        self._contact.worked(wrote=True)

    @override
    async def get(self, key: str) -> bytes | None:
        return await _watched(self._outage, "get", self._store.get(key), _nothing)

    @override
    async def add_task(self, row: TaskRow, *, seconds: float = 0.0, quota: Quota = ANY) -> bool:
        work = self._store.add_task(row, seconds=seconds, quota=quota)
        added = await _watched(self._outage, "add_task", work, bool)
        self._contact.worked(wrote=added)
        if added and self._outage.observer is not None:
            self._outage.observer.added(row)
        return added

    @override
    async def find_task(self, id: str) -> TaskRow | None:
        return await _watched(self._outage, "find_task", self._store.find_task(id), _nothing)

    @override
    async def find_tasks(self, ids: Sequence[str], *, most_bytes: int) -> list[TaskRow]:
        return await _watched(self._outage, "find_tasks", self._store.find_tasks(ids, most_bytes=most_bytes), _nothing)

    @override
    async def list_owned_tasks(
        self, owner: str, *, before: tuple[float, str], most: int, most_bytes: int
    ) -> list[TaskRow]:
        work = self._store.list_owned_tasks(owner, before=before, most=most, most_bytes=most_bytes)
        return await _watched(self._outage, "list_owned_tasks", work, _nothing)

    @override
    async def change_task(self, row: TaskRow, *, seconds: float | None = None, **changes: Any) -> TaskRow | None:
        work = self._store.change_task(row, seconds=seconds, **changes)
        changed = await self._in_touch("change_task", work, bool)
        if changed is not None and self._outage.observer is not None:
            self._outage.observer.changed(row, changed)
        return changed

    @override
    async def claim_tasks(
        self,
        lease: str,
        *,
        seconds: float,
        most: int,
        tools: Sequence[str],
        without: Sequence[str] = (),
        lapsed: bool = True,
        places: Places = FREE,
    ) -> list[TaskRow]:
        lapsed = lapsed and self._may_take_over()
        work = self._store.claim_tasks(
            lease, seconds=seconds, most=most, tools=tools, without=without, lapsed=lapsed, places=places
        )
        claimed = await self._in_touch("claim_tasks", work, bool)
        if self.shared and not self._contact.is_made:
            self._look_soon(writes=True)
        return claimed

    @override
    async def renew_tasks(self, lease: str, ids: list[str], *, seconds: float) -> set[str]:
        return await self._in_touch("renew_tasks", self._store.renew_tasks(lease, ids, seconds=seconds), bool)

    @override
    async def holds_task(self, lease: str, id: str) -> bool:
        return await _watched(self._outage, "holds_task", self._store.holds_task(lease, id), _nothing)

    @override
    async def overdue_tasks(self, *, most: int) -> list[TaskRow]:
        return await self._in_touch("overdue_tasks", self._store.overdue_tasks(most=most), _nothing)

    @override
    async def wait_for_tasks(
        self, seconds: float, *, tools: Sequence[str], without: Sequence[str] = (), lapsed: bool = True
    ) -> None:
        lapsed = lapsed and self._may_take_over()
        work = self._store.wait_for_tasks(seconds, tools=tools, without=without, lapsed=lapsed)
        await self._in_touch("wait_for_tasks", work, _nothing)

    def _may_take_over(self) -> bool:
        """Return whether a worker that has not renewed its lease could have done so for as long as it may be silent."""
        return not self.shared or self._contact.has_lasted(max(self._lease, GRACE_SECONDS))

    async def _in_touch(self, method: str, work: Awaitable[T], wrote: Callable[[T], bool]) -> T:
        """Do something that workers do all the time, so that every break shows."""
        try:
            came = await _watched(self._outage, method, work, wrote)
        except StoreUnavailable:
            self._contact.failed()
            raise
        self._contact.worked(wrote=wrote(came))
        return came

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
        looking = self._looking
        if looking is not None and looking.get_loop() is asyncio.get_running_loop():
            looking.cancel()  # or it would connect again
            await asyncio.wait((looking,))
        if self._outage.vitals is not None:
            await self._outage.vitals.close()
        await self._store.close()

    async def is_usable(self) -> bool:
        """Check whether the store can be used now, within `LOOK_WITHIN`; not again if that was just done."""
        looking = self._look_soon()
        if looking is not None and looking.get_loop() is asyncio.get_running_loop():
            await asyncio.wait((looking,), timeout=LOOK_WITHIN)
            if not looking.done():
                return False
        return not self._outage.is_on

    def _look_soon(self, *, writes: bool = False) -> "asyncio.Task[None] | None":
        """Start a look, unless one is under way or has just ended; return the one that is under way.

        If it is to show that the store can be written, or while the store is unavailable, it writes.
        """
        looking = self._looking
        if looking is None or looking.done() or looking.get_loop().is_closed():
            looking = self._looking = None
            if time.monotonic() >= self._looked + POLL_INTERVAL:
                self._looked = time.monotonic()
                # What a request has waited is no reason to look for less long.
                looking = self._looking = asyncio.create_task(self._look(writes=writes), context=Context())
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
