"""How a process reaches its store: outages, slowness, how full it is, and how long one request waits for it in all."""

import asyncio
import math
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from contextvars import Context, ContextVar
from typing import Protocol

from ..concurrency.running import PerLoop, seconds_lost
from ..errors import ClocksApart, NotExecuted, StoreUnavailable
from ..limits import STORED, Limits
from ..logs import logger
from ..logs.failures import report_failure, report_outage
from ..logs.refusals import RefusalLog
from ..protocol.messages import JSON
from .base import Store
from .rows import TaskRow, Vitals, Waiting

BESIDE = frozenset({"renew", "renew_tasks"})
"""Methods with a way of their own to the store: their success proves nothing of the others."""

QUIET = 2.0  # after so many seconds without a failure of a method, another one that has written clears it

LOOK_WITHIN = 0.7
"""In seconds. Kubernetes waits a second for its probe."""


class StoreObserver(Protocol):
    """Hears what a store does."""

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
    """

    _reference: str
    _since: float
    _failures: int  # the log has them of the present outage, or of the last one

    def __init__(self, name: str) -> None:
        self._name = name
        self.slowness = Slowness(name)
        self.look: Callable[[], object] = lambda: None
        """Starts a look whether the store is back, when a success proves nothing."""
        self.observer: StoreObserver | None = None
        self.vitals: VitalsWatch | None = None
        self._failing: dict[str, float] = {}  # the methods that failed, and when last

    @property
    def is_on(self) -> bool:
        """Whether the store is unavailable, or can't do what it was asked for."""
        return bool(self._failing)

    def failed(self, method: str, error: StoreUnavailable) -> None:
        """Note that a method failed, and log the first failure. The error gets the reference of the log's entry."""
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
        """Note that a method has ended that began at a time of the monotonic clock, and whether it changed anything."""
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
        """Note that a method worked, and whether it changed anything."""
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


def not_executed(error: StoreUnavailable, what: str) -> NotExecuted:
    """Return the error for a request that was not begun, since the store can't tell whether it was done already."""
    # The log says what was not done, unless it has the error of the store already.
    return NotExecuted(report_outage(error, "%s", what))


# Slowness


SLOW_SECONDS = 2.0
"""The log reports an operation that takes so long. Most take a thousandth of it."""

CALM_SECONDS = 30.0  # after so many seconds without anything slow, the store counts as quick again


class Slowness:
    """Whether a store answers slowly. Time in which this process itself stood still does not count."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._slow: tuple[float, float] | None = None  # since when, and when last; None while it is quick

    def took(self, method: str, began: float, ended: float) -> None:
        """Note when a method began and ended, by the monotonic clock."""
        if ended - began >= SLOW_SECONDS:
            self._note_slow(method, ended - began - seconds_lost(began), ended)
        elif self._slow is not None and ended - self._slow[1] >= CALM_SECONDS:
            since, last = self._slow
            logger.warning(
                "%s: the store is quick again, after %.0f s",
                self._name,
                last - since,
                extra={"fields": {"event": "store_quick"}},
            )
            self._slow = None

    def _note_slow(self, method: str, seconds: float, now: float) -> None:
        if seconds < SLOW_SECONDS:
            return
        if self._slow is not None:
            self._slow = self._slow[0], now
            return
        self._slow = now - seconds, now
        logger.warning(
            "%s: the store is slow: it took %.1f s for %r. Requests that need it wait as long; over ten seconds, "
            "they are refused. Look at its load, its locks, its disk and the network",
            self._name,
            seconds,
            method,
            extra={"fields": {"event": "store_slow", "seconds": round(seconds, 1), "method": method}},
        )


# Contact


LONGEST_GAP = 5.0  # after so many seconds of silence, at most a lease, the contact counts as broken


class Contact:
    """The time since which a process has reached its store without a break.

    Where a store was unavailable to all, every lease has ended, and its holders live. They come back as soon as they
    can, so nobody takes anything over until the contact has lasted for a while. A process that has just started can't
    know what was before: its contact begins as a broken one, with the first write, since a disk that is full can be
    read. A break as long as a lease may have ended every lease.
    """

    __slots__ = ("_last", "_lease", "_since")

    def __init__(self, lease: float) -> None:
        self._lease = lease
        self._since: float | None = None
        self._last = 0.0

    @property
    def is_made(self) -> bool:
        """Whether something was written since the last break."""
        return self._since is not None

    def failed(self) -> None:
        """Note a failure of the store."""
        self._since = None

    def worked(self, *, wrote: bool) -> None:
        """Note a success of the store, and whether anything has changed."""
        now = time.monotonic()
        if now > self._last + self._longest_gap:  # the process was suspended, or the store stood still
            self._since = None
        if self._since is None and wrote:
            self._since = now
        self._last = now

    def has_lasted(self, seconds: float) -> bool:
        """Return whether there was no break for so many seconds."""
        now = time.monotonic()
        return self._since is not None and now >= self._since + seconds and now <= self._last + self._longest_gap

    @property
    def _longest_gap(self) -> float:
        return min(LONGEST_GAP, self._lease)


# How full a store is, and what waits in it


INTERVAL = 10.0  # a look is good enough so many seconds
NEARLY_FULL = 0.8  # the part of a total whose use is logged
WARN_AGAIN = 60.0  # seconds until the log names the same total again
DELAY_SECONDS = 10.0  # the log says so when events come later than that
MOST_NAMED = 50  # tools in `/ready`, those first whose tasks have waited longest


def written(waiting: Mapping[str, Waiting], is_public: Callable[[str], bool]) -> JSON:
    """Return how many tasks wait, for anybody: without tools that not everybody may see."""
    found = [(tool, each) for tool, each in waiting.items() if each.tasks]
    public = sorted(((tool, each) for tool, each in found if is_public(tool)), key=lambda named: -named[1].seconds)
    in_all = Waiting(sum(each.tasks for _, each in found), max((each.seconds for _, each in found), default=0.0))
    return {**_written(in_all), "by_tool": {tool: _written(each) for tool, each in public[:MOST_NAMED]}}


def _written(waiting: Waiting) -> JSON:
    return {"waiting": waiting.tasks, "oldest_seconds": round(waiting.seconds, 1)}


class VitalsWatch:
    """Looks at a store, and logs when a total is nearly used up; counts tasks by the tools that `tools` returns.

    Whatever uses the store starts a look, so there is no timer, and nobody waits for it.
    """

    def __init__(self, name: str, store: Store, limits: Limits, tools: Callable[[], Sequence[str]]) -> None:
        self._name = name
        self._store = store
        self._limits = limits
        self._tools = tools
        self._due = -math.inf
        self._looking = PerLoop[asyncio.Task[None]]()
        self._faults = RefusalLog()
        self._warned = dict.fromkeys((*STORED, "events"), -math.inf)
        self.latest = Vitals()

    def totals(self) -> dict[str, tuple[int, int]]:
        """Return how much is stored and how much may be, by the name of the limit."""
        usage, room = self.latest.usage, self.latest.room
        stored = (usage.tasks, room.tasks), (usage.states, room.states), (usage.bytes, room.bytes)
        return {
            name: (used, min(getattr(self._limits, name), most))
            for name, (used, most) in zip(STORED, stored, strict=True)
        }

    def look_soon(self, now: float) -> None:
        """Start a look on this event loop, unless one is under way or the last one is good enough."""
        if now < self._due:
            return
        self._due = now + INTERVAL
        # What a request has waited is no reason to look for less long.
        looking = self._looking.put(asyncio.create_task(self._look(), context=Context()))
        looking.add_done_callback(lambda _: self._looking.pop())  # or its event loop would be held

    async def look(self) -> Vitals:
        """Return what a look finds; or the last one, if that is good enough, or a new one takes too long."""
        self.look_soon(time.monotonic())
        if (looking := self._looking.get()) is not None:
            await asyncio.wait((looking,), timeout=LOOK_WITHIN)
        return self.latest

    async def close(self) -> None:
        """End the look that is under way on this event loop."""
        if (looking := self._looking.get()) is not None:
            looking.cancel()
            await asyncio.wait((looking,))

    async def _look(self) -> None:
        try:
            self.latest = await self._store.measure(self._tools())
        except StoreUnavailable:  # its users notice that themselves
            return
        except Exception as error:  # of a store of the author's
            self._faults.note("%s: measure() of the store failed: %s", self._name, type(error).__name__)
            return
        self._warn_of_totals()
        self._warn_of_delay()

    def _is_to_warn(self, name: str) -> bool:
        """Return whether to warn of something: the first time, and then once a minute."""
        now = time.monotonic()
        if now < self._warned[name] + WARN_AGAIN:
            return False
        self._warned[name] = now
        return True

    def _warn_of_totals(self) -> None:
        for name, (used, most) in self.totals().items():
            if used >= NEARLY_FULL * most and self._is_to_warn(name):
                logger.warning(
                    "%s: %d of %d are used of %s. When all are used, new ones are refused with a 503 until others "
                    "expire. Raise Limits(%s=...)%s",
                    self._name,
                    used,
                    most,
                    name,
                    name,
                    "" if most == getattr(self._limits, name) else ", and give the server a database or a larger store",
                    extra={"fields": {"event": "nearly_full", "limit": name}},
                )

    def _warn_of_delay(self) -> None:
        delay, blocker = self.latest.event_delay, self.latest.event_blocker
        if delay >= DELAY_SECONDS and self._is_to_warn("events"):
            logger.warning(
                "%s: no event has been delivered for %.0f s: %s",
                self._name,
                delay,
                f"a transaction that writes is still open in the database's cluster, that of {blocker}. End it"
                if blocker
                else "no transaction is open that they would wait for. If the database was restored, or replaced by "
                "another one, run `mrtr-server db new-epoch`",
                extra={"fields": {"event": "events_delayed", "seconds": round(delay, 1)}},
            )


# Patience


PATIENCE = 10.0
"""Seconds that a request waits in all before it is refused. While it does not wait, it gets time back."""

NOTICEABLE = 0.02  # shorter waits, in seconds, do not count


class _Patience:
    """The seconds that one request has waited, until a time of the monotonic clock."""

    __slots__ = ("_until", "_waited")

    def __init__(self, waited: float = 0.0, until: float = 0.0) -> None:
        self._waited = waited
        self._until = until

    @property
    def has_begun(self) -> bool:
        return self._waited > 0

    def left(self, now: float) -> float:
        return PATIENCE - max(self._waited - max(now - self._until, 0.0), 0.0)

    def add(self, began: float, now: float) -> None:
        """Note a wait. Of waits that overlap, each second counts once."""
        since = max(began, self._until)
        self._waited = PATIENCE - self.left(since) + max(now - since, 0.0)
        self._until = now


_current: ContextVar[_Patience | None] = ContextVar("mrtr_server_patience", default=None)


def begin_request(since: float | None = None) -> None:
    """Begin to count, together, all waits of this context for the store; it may have waited since a monotonic time."""
    if since is None:
        _current.set(_Patience())
    else:
        now = time.monotonic()
        _current.set(_Patience(now - since, now))


def end_request() -> None:
    """Stop counting, since nobody waits for a reply."""
    _current.set(None)


def seconds_left(most: float) -> float:
    """Return how long this request may still wait, of `most` seconds; not above 0 if it has waited too long already."""
    patience = _current.get()
    return most if patience is None or not patience.has_begun else min(most, patience.left(time.monotonic()))


def time_left(most: float) -> float:
    """Return the seconds that the store may take now; `most` outside of requests. `TimeoutError` if none are left."""
    left = seconds_left(most)
    if left <= 0:
        raise TimeoutError
    return left


def has_waited() -> bool:
    """Return whether this request has waited for more than a second."""
    return seconds_left(PATIENCE) < PATIENCE - 1.0


def note_wait(began: float) -> None:
    """Count what this request has waited for the store, since a time of the monotonic clock."""
    now = time.monotonic()
    if now - began > NOTICEABLE and (patience := _current.get()) is not None:
        patience.add(began, now)


READ_WITHIN = 1.0  # a request waits for such a look so many seconds: what is known is nearly always right


class ReadBeside:
    """Reads something of a store again, beside the request that finds it old. Until then, what was known counts."""

    def __init__(self, read: Callable[[], Awaitable[object]]) -> None:
        self._read = read
        self._under_way: set[asyncio.Task[None]] = set()

    async def again(self) -> None:
        """Read, and wait for that a moment."""
        began = time.monotonic()
        reading = asyncio.create_task(self._try(), context=Context())  # which is no request's alone
        self._under_way.add(reading)
        reading.add_done_callback(self._under_way.discard)
        await asyncio.wait((reading,), timeout=READ_WITHIN)
        note_wait(began)

    async def _try(self) -> None:
        with suppress(StoreUnavailable):  # of which others tell
            await self._read()
