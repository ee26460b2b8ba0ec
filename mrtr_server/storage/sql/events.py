"""Events and their subscriptions in a database's tables: every method is one statement, and one round trip."""

import json
import math
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

from typing_extensions import override

from ...errors import FORGOTTEN, Full, InvalidRequestState, OverShare, StateFault, StoreUnavailable
from ..base import Store
from ..quotas import UNLIMITED
from ..rows import ENDED_SECONDS, EVENT_BYTES, EventPage, EventRow, Position, SubscriptionRow
from .database import Database
from .tasks import FULL_AND_THEN_NOT, LOOKS

TRIM_BATCH = 1_000  # events that one statement removes

_BEYOND = Position(2**62, 2**62)  # where nothing is; the end of the log is found with it


class SQLEvents(Store):
    """The part of the store that keeps events, in the tables `mrtr_events`, `mrtr_subscriptions` and `mrtr_leases`."""

    keeps_events = True
    database: Database

    @override
    async def add_event(self, row: EventRow) -> bool:
        await self._sweep()
        return len(await self.database.rows("add_event", **values_of(row))) > 0

    @override
    async def read_events(
        self, names: Sequence[str], after: Position | None, *, most: int, most_bytes: int
    ) -> EventPage:
        begin = _BEYOND if after is None else after
        found = await self.database.rows(
            "read_events",
            names=list(names),
            transaction=begin.transaction,
            number=begin.number,
            most=most,
            most_bytes=most_bytes,
            besides=EVENT_BYTES,
        )
        last, removed, delayed, *_ = found[0]
        lost, rows, reached, is_last = set(json.loads(removed or "[]")), list[EventRow](), after or Position(), True
        for place, (_, _, _, fits, has_expired, transaction, number, *columns) in enumerate(found):
            if number is None:  # nothing was found
                break
            if not fits or place == most:  # and not by what is returned: one that has expired was looked at as well
                is_last = False
                break
            reached = Position(transaction, number)
            row = EventRow(*columns)._replace(position=reached)
            if has_expired:
                lost.add(row.name)
            else:
                rows.append(row)
        if is_last:
            reached = max(reached, Position(last) if self.database.notifies else Position(0, last))
        return EventPage(rows, reached, frozenset(lost), delayed, is_last)

    @override
    async def trim_events(self, name: str, most: int) -> None:
        while len(await self.database.rows("trim_events", name=name, most=most, batch=TRIM_BATCH)) == TRIM_BATCH:
            pass

    @override
    async def put_subscription(
        self, row: SubscriptionRow, *, most: int | None = None, most_in_all: int | None = None
    ) -> SubscriptionRow | None:
        await self._sweep()
        share, total = (UNLIMITED if limit is None else limit for limit in (most, most_in_all))
        given = {**row._asdict(), "most": share, "most_in_all": total}
        for _ in range(LOOKS):
            found = await (self._put_and_find if self.database.notifies else self._put_as_found)(given)
            if found:
                return found[0]
            ((theirs, all_),) = await self.database.rows("count_subscriptions", kind=row.kind, caller=row.caller)
            if await self.find_subscription(row.id) is None:
                if theirs >= share:
                    raise OverShare("subscriptions", share)
                if all_ >= total:
                    raise Full("subscriptions", total)
                if row.updated <= (await self.forgotten()).get(row.caller, -math.inf):
                    raise InvalidRequestState(FORGOTTEN, StateFault.FORGOTTEN)
        raise StoreUnavailable(FULL_AND_THEN_NOT)

    async def _put_and_find(self, given: Mapping[str, Any]) -> list[SubscriptionRow | None]:
        """Put a subscription; return what there was before, if it was done."""
        found = await self.database.rows("put_subscription", **given)
        return [None if each[0] is None else SubscriptionRow(*each) for each in found]

    async def _put_as_found(self, given: Mapping[str, Any]) -> list[SubscriptionRow | None]:
        """Put a subscription if nobody else has since it was found: SQLite can't say what there was before."""
        found = [SubscriptionRow(*each) for each in await self.database.find("find_any_subscription", id=given["id"])]
        before = found[0] if found else None
        known = {"updated_before": before and before.updated, "body_before": before and before.body}
        if not await self.database.rows("put_subscription", **given, **known):
            return []
        return [before if before is not None and before.expires > self.database.time() else None]

    @override
    async def find_subscription(self, id: str) -> SubscriptionRow | None:
        found = await self.database.find("find_subscription", id=id)
        return SubscriptionRow(*found[0]) if found else None

    @override
    async def list_subscriptions(self, *, after: str = "", most: int, since: float = 0.0) -> list[SubscriptionRow]:
        given = {"after": after, "most": most, "ended": ENDED_SECONDS}
        if since > 0:
            found = await self.database.rows("list_changed_subscriptions", since=since, **given)
        else:
            found = await self.database.rows("list_subscriptions", **given)
        return [SubscriptionRow(*each) for each in found]

    @override
    async def remove_subscription(self, id: str, *, updated: float | None = None) -> bool:
        if updated is None:
            return len(await self.database.rows("remove_subscription", id=id)) > 0
        return len(await self.database.rows("remove_unchanged_subscription", id=id, updated=updated)) > 0

    @override
    async def advance_subscriptions(self, lease: str, holder: str, progress: Mapping[str, str]) -> bool:
        given = {"lease": lease, "holder": holder}
        if await self.database.rows("advance_subscriptions", progress=json.dumps(dict(progress)), **given):
            return True
        return len(await self.database.rows("has_lease", **given)) > 0  # and all of them are gone

    @override
    async def take_lease(self, lease: str, holder: str, *, seconds: float) -> bool:
        return len(await self.database.rows("take_lease", lease=lease, holder=holder, seconds=seconds)) > 0

    @abstractmethod
    async def _sweep(self) -> None:
        """Remove some of what has expired, from all tables of the store, now and then."""


def values_of(row: EventRow) -> dict[str, Any]:
    """Return the parameters of the statement that adds an event."""
    given = row._asdict()
    del given["position"]  # the database sets it
    return given
