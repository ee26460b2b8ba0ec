"""How late an event loop is: what it is asked to do in a moment waits for whatever blocks it."""

from ..concurrency.running import PerLoop, running_loop
from .meters import Record

INTERVAL = 0.5
"""How often it is measured, in seconds."""

_measured = PerLoop[bool]()


def measure_lag(record: Record) -> None:
    """Measure how late the running event loop is until it is closed, unless that is done already.

    Args:
        record: takes each measurement, in seconds.
    """
    if _measured.get():
        return
    _measured.put(True)
    loop = running_loop()
    due = loop.time() + INTERVAL

    def look() -> None:
        nonlocal due
        now = loop.time()
        record(max(0.0, now - due))
        due = now + INTERVAL
        loop.call_at(due, look)

    loop.call_at(due, look)
