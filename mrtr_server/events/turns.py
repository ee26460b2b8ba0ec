"""Whose message to a webhook is sent next: no host, and none that is slow or dead, takes the places of all others."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from .webhooks import host_of

AT_ONCE_BY_HOST = 64
"""Messages that are on their way to one host. Most hosts of clients have many subscriptions."""

SLOW_AT_ONCE_BY_HOST = 4
"""The same for webhooks of it that were slow or failed the last time."""

SLOW_AT_ONCE = 24
"""Messages to all such webhooks: a quarter of the connections that there may be."""

SLOW = 2.0
"""Seconds for an answer, from which on a webhook is slow."""


class Turns:
    """Limits how many messages are on their way."""

    def __init__(self) -> None:
        self._hosts: dict[tuple[str, bool], _Host] = {}
        self._slow = asyncio.Semaphore(SLOW_AT_ONCE)

    @asynccontextmanager
    async def of(self, url: str, *, is_slow: bool) -> AsyncIterator[None]:
        """Hold a place for a message to a URL, as `Fetcher.check` returned it."""
        key = host_of(url), is_slow
        host = self._hosts.get(key)
        if host is None:
            host = self._hosts[key] = _Host(SLOW_AT_ONCE_BY_HOST if is_slow else AT_ONCE_BY_HOST)
        host.users += 1
        try:
            async with host.places:
                if is_slow:
                    async with self._slow:
                        yield
                else:
                    yield
        finally:
            host.users -= 1
            if not host.users:
                del self._hosts[key]


class _Host:
    """The places of one host, for as long as somebody uses them or waits for one."""

    def __init__(self, most: int) -> None:
        self.places = asyncio.Semaphore(most)
        self.users = 0
