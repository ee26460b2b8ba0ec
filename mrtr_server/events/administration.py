"""What an operator does to the subscriptions of webhooks, whoever they belong to."""

import time
from typing import NamedTuple
from urllib.parse import urlsplit

from ..crypto.keys import KeyRing
from ..errors import InvalidParams, SetupError, StoreUnavailable
from ..protocol.messages import Change
from ..storage.quotas import Callers
from ..storage.rows import SubscriptionRow
from ..storage.sql.store import SQLStore
from .subscriptions import Progress, Subscriptions, ended

PAGE = 512

_CHARACTERS = frozenset("0123456789abcdefsu_")


class Described(NamedTuple):
    """A subscription as an operator sees it: neither its secret nor the path of its address."""

    row: SubscriptionRow
    progress: Progress
    host: str | None
    """Of its address; None where it can't be opened."""


class SubscriptionAdministration:
    """Looks at the subscriptions of webhooks, has them tried again, and ends them. Without keys, all stays sealed."""

    def __init__(self, store: SQLStore, ring: KeyRing | None) -> None:
        self._store = store
        self._sealed = None if ring is None else Subscriptions(store, ring, {}, Callers(ring))

    async def list(self, *, name: str = "", after: str = "", most: int) -> list[Described]:
        """Return subscriptions that have not ended, by their ids. Raises `StoreUnavailable`."""
        found: list[Described] = []
        now = time.time()
        while len(found) < most:
            rows = await self._store.list_subscriptions(after=after, most=PAGE)
            found += [
                self._describe(row)
                for row in rows
                if row.kind == "webhook" and row.expires > now and name in ("", row.name)
            ]
            if len(rows) < PAGE:
                break
            after = rows[-1].id
        return found[:most]

    async def find(self, named: str) -> Described:
        """Return the subscription with an id, or with its first characters. Raises `SetupError`, `StoreUnavailable`."""
        row = await self._store.find_subscription(named)
        if row is None and named and _CHARACTERS.issuperset(named):
            rows = await self._store.list_subscriptions(after=named, most=2)
            begin_so = [each for each in rows if each.id.startswith(named)]
            if len(begin_so) > 1:
                raise SetupError(f"Several subscriptions begin with {named}; give more of its id")
            row = begin_so[0] if begin_so and begin_so[0].expires > time.time() else None
        if row is None or row.kind != "webhook":
            raise SetupError("There is no such subscription; it may have ended")
        return self._describe(row)

    async def redeliver(self, named: str) -> Described:
        """Have what failed sent at once, also where the delivery is suspended. Raises as `find`."""
        found = await self.find(named)
        now, known = time.time(), found.row
        # Its client may have subscribed again meanwhile: what that has changed, such as a secret, stays.
        while (before := await self._store.put_subscription(known._replace(updated=now))) is not None:
            if (before.body, before.expires) == (known.body, known.expires):
                break
            known = before
        else:  # or have ended it
            await self._store.put_subscription(ended(known, now))
        self._store.fanout().publish(Change("subscription"))
        return found

    async def remove(self, named: str) -> Described:
        """End a subscription: nothing more is sent, and its source is told. Raises as `find`."""
        found = await self.find(named)
        await self._store.put_subscription(ended(found.row, time.time()))
        self._store.fanout().publish(Change("subscription"))
        return found

    def _describe(self, row: SubscriptionRow) -> Described:
        host = None
        if self._sealed is not None:
            try:
                _, asked = self._sealed.open(row)
                host = None if asked is None else urlsplit(asked.url).netloc.rpartition("@")[2]
            except (InvalidParams, StoreUnavailable):  # sealed under another key
                host = None
        return Described(row, Progress.load(row.progress), host)
