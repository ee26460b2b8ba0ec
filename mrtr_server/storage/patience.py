"""How long one request waits for its store in all, however often it asks it."""

import time
from contextvars import ContextVar

PATIENCE = 10.0
"""How long a request waits in all, in seconds; then it is refused. As long as it does not wait, it gets time back."""

NOTICEABLE = 0.02
"""Waits that are shorter do not count, in seconds."""


class _Patience:
    """How many seconds one request has waited, until a time of the monotonic clock."""

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
    """Begin to count, together, all that this context waits for the store.

    It may have waited already, since a time of the monotonic clock.
    """
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
    """Return how many seconds the store may take now; `most` outside of requests.

    Raises `TimeoutError` where the request has waited for too long already.
    """
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
