"""How late an event loop is: what it is asked to do in a moment waits for whatever blocks it."""

import asyncio
from weakref import WeakSet

from .meters import Record

INTERVAL = 0.5
"""How often it is measured, in seconds."""

_measured: WeakSet[asyncio.AbstractEventLoop] = WeakSet()


def measure_lag(record: Record) -> None:
    """Measure how late the running event loop is until it is closed, unless that is done already.

    Args:
        record: takes each measurement, in seconds.
    """
    loop = asyncio.get_running_loop()
    if loop in _measured:
        return
    _measured.add(loop)
    due = loop.time() + INTERVAL

    def look() -> None:
        nonlocal due
        now = loop.time()
        record(max(0.0, now - due))
        due = now + INTERVAL
        loop.call_at(due, look)

    loop.call_at(due, look)
