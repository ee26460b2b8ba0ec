"""Asks webhooks whether they want messages: once for each principal, and so that nobody can flood a host by it."""

from collections import Counter, deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from ..errors import TooMany
from ..storage.base import Store
from .subscriptions import subscription_id
from .webhooks import Reason, host_of, verify

if TYPE_CHECKING:
    from ..fetcher import Fetcher

VERIFIED_SECONDS = 86_400.0
"""How long it is known that a webhook wants messages for a principal."""

AT_ONCE = 4
"""Webhooks of one host that are asked at once for one principal."""

MOST_REFUSALS = 10
"""Webhooks of one host that do not want messages, for one principal in a minute; after that, none is asked."""

REFUSALS_WITHIN = 60.0

FOR_ALL = 8
"""How many times as many of both there may be for all principals together."""

MOST_NOTED = 10_000


class Verifications:
    """Knows which webhooks have said that they want messages."""

    def __init__(self, store: Store, clock: Callable[[], float]) -> None:
        self._store = store
        self._now = clock
        self._asked: Counter[tuple[str, str]] = Counter()  # what is being asked, by owner and host
        self._refusals: dict[tuple[str, str], deque[float]] = {}  # when, by owner and host

    async def check(self, fetcher: "Fetcher", owner: str, url: str, secret: bytes, subscription: str) -> Reason | None:
        """Return why a webhook gets no messages of a principal; None if it wants them.

        Raises `TooMany`, `StoreUnavailable`.
        """
        known = subscription_id(owner, url, "", {"verified": True})
        if await self._store.get(known) is not None:
            return None
        host = host_of(url)
        keys = (owner, host), ("", host)
        with self._place(keys[0], 1), self._place(keys[1], FOR_ALL):
            reason = await verify(fetcher, url, secret, subscription, self._now())
        if reason is None:
            await self._store.put(known, b"", keep=VERIFIED_SECONDS)
        else:
            for key in keys:
                self._note_refusal(key)
        return reason

    @contextmanager
    def _place(self, key: tuple[str, str], times: int) -> Iterator[None]:
        refused = sum(each > self._now() - REFUSALS_WITHIN for each in self._refusals.get(key, ()))
        if refused >= MOST_REFUSALS * times:
            raise TooMany(MOST_REFUSALS)
        if self._asked[key] >= AT_ONCE * times:
            raise TooMany(AT_ONCE)
        self._asked[key] += 1
        try:
            yield
        finally:
            self._asked[key] -= 1
            if not self._asked[key]:
                del self._asked[key]

    def _note_refusal(self, key: tuple[str, str]) -> None:
        if key not in self._refusals and len(self._refusals) >= MOST_NOTED:
            del self._refusals[next(iter(self._refusals))]
        noted = self._refusals.pop(key, None)
        self._refusals[key] = noted = deque(maxlen=MOST_REFUSALS * FOR_ALL) if noted is None else noted
        noted.append(self._now())
