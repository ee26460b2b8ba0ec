"""A store whose outages are logged once: when it goes away, and when it is back."""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Sequence
from contextvars import Context
from secrets import token_hex
from typing import Any, Protocol, TypeVar

from typing_extensions import override

from ..concurrency.running import PerLoop
from ..errors import ClocksApart, NotExecuted, StoreUnavailable
from ..logs.failures import report_failure, report_outage
from ..tally import DROPPED, TAKEOVERS, Tally
from .base import Redemption, Store
from .contact import Contact
from .lease import GRACE_SECONDS
from .pubsub import Fanout
from .quotas import ANY, Quota
from .slowness import Slowness
from .tasks import FREE, Places, TaskRow
from .vitals import Vitals, VitalsWatch

logger = logging.getLogger("mrtr_server")

POLL_INTERVAL = 1.0
"""How long a look is good enough for readiness, in seconds."""

BESIDE = frozenset({"renew", "renew_tasks"})
"""What has a way of its own to the store: that it works proves nothing of the others."""

QUIET = 2.0
"""How long a method must not have failed, in seconds, when another one has written."""

LOOK_WITHIN = 0.7
"""How long such a look may take, in seconds. Kubernetes waits a second for its probe."""

T = TypeVar("T")


class StoreObserver(Protocol):
    """Is told what a store does."""

    def took(self, method: str, seconds: float, error: Exception | None) -> None:
        """Note how long an operation took, and why it failed, if it did."""

    def added(self, row: TaskRow) -> None:
        """Note that there is a new task."""

    def changed(self, row: TaskRow, to: TaskRow) -> None:
        """Note what a task was, and what it is now."""


class Outage:
    """Whether a store can be used, as far as its users have noticed.

    It ends when each method that failed has worked again; or has not been called for a while, and something was
    written meanwhile. (A disk that is full can be read, and a standby, too.)

    Args:
        name: the server's, for the log.
    """

    _reference: str
    _since: float
    _failures: int
    """What the log says of the one that is on, or was on last."""

    def __init__(self, name: str) -> None:
        self._name = name
        self.slowness = Slowness(name)
        """Whether the store is slow, for the log."""
        self.look: Callable[[], object] = lambda: None
        """Starts a look whether the store is back, when what has worked proves nothing."""
        self.observer: StoreObserver | None = None
        self.vitals: VitalsWatch | None = None
        self._failing: dict[str, float] = {}
        """The methods that failed, and when they did so last."""

    @property
    def is_on(self) -> bool:
        """Whether the store is unavailable, or can't do what it was asked for."""
        return bool(self._failing)

    def failed(self, method: str, error: StoreUnavailable) -> None:
        """Note that a method failed, and log it if that is news.

        Args:
            method: its name.
            error: gets the reference of the log's entry.
        """
        if not self._failing:
            self._since, self._failures = time.monotonic(), 0
            why = f"{error}. Requests that need it are refused until it is back"
            self._reference = report_failure(
                "%s: the store can't be used", self._name, why=why, fields={"event": "store_away"}
            )
        self._failing[method] = time.monotonic()
        self._failures += 1
        error.reference = self._reference

    def ended(self, method: str, began: float, error: Exception | None = None, *, wrote: bool = False) -> None:
        """Note that a method has ended.

        Args:
            method: its name.
            began: when it was called, by the monotonic clock.
            error: why it failed; None if it worked.
            wrote: whether it has changed anything.
        """
        if method != "wait_for_tasks":  # which is to wait
            now = time.monotonic()
            if error is None:
                self.slowness.took(method, began, now)
            if self.observer is not None:
                self.observer.took(method, now - began, error)
            if self.vitals is not None:
                self.vitals.look_soon(now)
        if error is None:
            if self._failing:
                self.worked(method, wrote=wrote)
        # Where clocks are apart, the store works, and the log has said what does not.
        elif isinstance(error, StoreUnavailable) and not isinstance(error, ClocksApart):
            self.failed(method, error)

    def worked(self, method: str, *, wrote: bool) -> None:
        """Note that a method worked.

        Args:
            method: its name.
            wrote: whether it has changed anything.
        """
        if wrote or method != "claim_tasks":  # which writes nothing where it finds nothing, as on a full disk
            self._failing.pop(method, None)
        if wrote and method not in BESIDE:
            since = time.monotonic() - QUIET
            self._failing = {each: at for each, at in self._failing.items() if at > since}
        if self._failing:
            self.look()
        else:
            logger.warning(
                "%s: the store is back (reference %s), after %.0f s in which it failed %d times",
                self._name,
                self._reference,
                time.monotonic() - self._since,
                self._failures,
                extra={"fields": {"event": "store_back", "reference": self._reference, "failures": self._failures}},
            )


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

    Args:
        store: the store.
        outage: takes notice.
        lease: how long a worker may be silent before others take its tasks over, in seconds.
        tally: counts rounds that are taken over, and outcomes that are dropped.
    """

    def __init__(self, store: Store, outage: Outage, *, lease: float, tally: Tally | None = None) -> None:
        self.shared, self.keeps_tasks, self.in_memory = store.shared, store.keeps_tasks, store.in_memory
        self.one_machine, self.has_epochs = store.one_machine, store.has_epochs
        self._store = store
        self._outage = outage
        self._lease = lease
        self._contact = Contact(lease)
        self._looked = -POLL_INTERVAL
        self._looking = PerLoop[asyncio.Task[None]]()
        self._tally = Tally() if tally is None else tally
        outage.look = self._look_soon

    def observe(self, observer: StoreObserver) -> None:
        """Notify an observer from now on.

        Args:
            observer: is notified of what the store does.
        """
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
        """Start a look, unless one is under way or has just ended; return the one that is under way.

        Args:
            writes: whether it is to show that the store can be written; it does so, too, while the store is
                unavailable.
        """
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


def not_executed(error: StoreUnavailable, what: str) -> NotExecuted:
    """Return the error for a request that was not begun, since the store can't tell whether it was done already.

    Args:
        error: what the store said; it goes to the log unless it is there already.
        what: was not done, for the log.
    """
    return NotExecuted(report_outage(error, "%s", what))
