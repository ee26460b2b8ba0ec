"""The outages of scripts/chaos: the database of the tasks is away for longer than their lease, and comes back."""

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, field

LASTS = 12.0
"""How long the database is away, in seconds: three times the lease of the tasks."""

BEFORE, AFTER = 4.0, 8.0
"""How long the servers are struck before each outage, and are left alone after it, in seconds."""


@dataclass(frozen=True)
class Outage:
    """One outage.

    Args:
        began, ended: when the database went away and was back, in seconds since the epoch.
        struck_again: when servers were struck again.
    """

    began: float
    ended: float
    struck_again: float


@dataclass
class Outages:
    """Takes a database away again and again, and lets everybody come back.

    Args:
        take, bring: stop it, and start it again.
        calm: set while the servers may be struck.
        were: the outages so far.
    """

    take: Callable[[], object]
    bring: Callable[[], object]
    calm: asyncio.Event = field(default_factory=asyncio.Event)
    were: list[Outage] = field(default_factory=list)

    async def happen(self) -> None:
        """Go on until cancelled; the database is there then."""
        try:
            while True:
                self.calm.set()
                await asyncio.sleep(BEFORE)
                self.calm.clear()
                began = ended = time.time()
                taking = asyncio.ensure_future(asyncio.to_thread(self.take))  # which may wait for what is under way
                try:
                    try:
                        await asyncio.shield(taking)
                        began = time.time()
                        await asyncio.sleep(LASTS)
                    finally:
                        await asyncio.wait([taking])  # or it is taken away when it has been brought
                        await asyncio.to_thread(self.bring)
                        ended = time.time()
                    await asyncio.sleep(AFTER)
                finally:
                    self.were.append(Outage(began, ended, time.time()))
        finally:
            self.calm.set()
