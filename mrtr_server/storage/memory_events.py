"""Events and their subscriptions in the memory of one process."""

import math
from collections.abc import Callable, Mapping, Sequence
from heapq import merge
from itertools import islice
from threading import Lock

from typing_extensions import override

from ..errors import Full, OverShare
from .base import Store
from .rows import ENDED_SECONDS, EventPage, EventRow, Position, SubscriptionRow

_START = Position()


class InProcessEvents(Store):
    """The part of the in-process store that keeps events. Positions are the numbers of events."""

    keeps_events = True

    def __init__(self, clock: Callable[[], float]) -> None:
        self._moment = clock
        self._events: dict[str, dict[str, EventRow]] = {}  # by name and id, in the order of their positions
        self._number = 0
        self._gone: dict[str, Position] = {}  # the last that was removed, by name
        self._subscriptions: dict[str, SubscriptionRow] = {}
        self._leases: dict[str, tuple[str, float]] = {}
        self._event_guard = Lock()

    @override
    async def add_event(self, row: EventRow) -> bool:
        with self._event_guard:
            named = self._events.setdefault(row.name, {})
            self._drop_expired(row.name)
            if row.id in named:
                return False
            self._number += 1
            named[row.id] = row._replace(position=Position(0, self._number))
            return True

    @override
    async def read_events(
        self, names: Sequence[str], after: Position | None, *, most: int, most_bytes: int
    ) -> EventPage:
        with self._event_guard:
            end = Position(0, self._number)
            if after is None:
                return EventPage([], end)
            for name in names:
                self._drop_expired(name)
            found = [_after(self._events.get(name, {}), after) for name in names]
            lost = frozenset(name for name in names if self._gone.get(name, _START) > after)
        rows: list[EventRow] = []
        merged = merge(*found, key=lambda row: row.position)
        for row in islice(merged, most):
            if rows and row.size > most_bytes:
                break
            most_bytes -= row.size
            rows.append(row)
        is_last = len(rows) == sum(map(len, found))
        return EventPage(rows, end if is_last else rows[-1].position, lost, is_last=is_last)

    @override
    async def trim_events(self, name: str, most: int) -> None:
        with self._event_guard:
            named = self._events.get(name, {})
            self._drop(name, list(islice(named, max(0, len(named) - most))))

    def _drop_expired(self, name: str) -> None:
        now, named = self._moment(), self._events.get(name, {})
        self._drop(name, [id for id, row in named.items() if row.expires <= now])

    def _drop(self, name: str, ids: list[str]) -> None:
        for id in ids:
            self._gone[name] = max(self._gone.get(name, _START), self._events[name].pop(id).position)

    @override
    async def put_subscription(
        self, row: SubscriptionRow, *, most: int | None = None, most_in_all: int | None = None
    ) -> SubscriptionRow | None:
        with self._event_guard:
            now = self._moment()
            self._subscriptions = {
                id: each for id, each in self._subscriptions.items() if each.expires + ENDED_SECONDS > now
            }
            present = self._subscriptions.get(row.id)
            if present is None or present.expires <= now:
                held = [each for each in self._subscriptions.values() if each.kind == row.kind and each.expires > now]
                _check_room(row, held, most, most_in_all)
                self._subscriptions[row.id] = row
                return None
            self._subscriptions[row.id] = present._replace(body=row.body, updated=row.updated, expires=row.expires)
            return present

    @override
    async def find_subscription(self, id: str) -> SubscriptionRow | None:
        with self._event_guard:
            row = self._subscriptions.get(id)
            return row if row is not None and row.expires > self._moment() else None

    @override
    async def list_subscriptions(self, *, after: str = "", most: int, since: float = 0.0) -> list[SubscriptionRow]:
        with self._event_guard:
            least = self._moment() - ENDED_SECONDS
            found = [
                row
                for id, row in self._subscriptions.items()
                if id > after and row.updated >= since and row.expires > least
            ]
        return sorted(found)[:most]

    @override
    async def remove_subscription(self, id: str, *, updated: float | None = None) -> bool:
        with self._event_guard:
            present = self._subscriptions.get(id)
            if present is None or updated not in (None, present.updated):
                return False
            del self._subscriptions[id]
            return True

    @override
    async def advance_subscriptions(self, lease: str, holder: str, progress: Mapping[str, str]) -> bool:
        with self._event_guard:
            if self._leases.get(lease, ("", -math.inf))[0] != holder:
                return False
            for id, text in progress.items():
                if (row := self._subscriptions.get(id)) is not None:
                    self._subscriptions[id] = row._replace(progress=text)
            return True

    @override
    async def take_lease(self, lease: str, holder: str, *, seconds: float) -> bool:
        with self._event_guard:
            now = self._moment()
            present, until = self._leases.get(lease, ("", -math.inf))
            if present != holder and until > now:
                return False
            self._leases[lease] = holder, now + seconds
            return True


def _check_room(
    row: SubscriptionRow, held: Sequence[SubscriptionRow], most: int | None, most_in_all: int | None
) -> None:
    """Check that one more subscription may be kept. Raises `Full`."""
    if most is not None and sum(each.caller == row.caller for each in held) >= most:
        raise OverShare("subscriptions", most)
    if most_in_all is not None and len(held) >= most_in_all:
        raise Full("subscriptions", most_in_all)


def _after(named: dict[str, EventRow], after: Position) -> list[EventRow]:
    """Return the events after a position. The newest are looked at first: most readers have most of them."""
    found: list[EventRow] = []
    for row in reversed(named.values()):
        if row.position <= after:
            break
        found.append(row)
    return found[::-1]
