"""Comments keep streams open where nothing else is said, with one timer for all streams of an event loop."""

from collections import deque
from collections.abc import Callable
from contextvars import Context
from functools import partial

from ..concurrency.running import PerLoop, running_loop
from ..concurrency.waiting import Cancel

AT_ONCE = 50
"""How many streams have their turn before others have: thousands that were opened together have it together."""

EARLY = 1 / 16
"""The part of the time between comments by which one may be early, so that many have one timer."""


def recurring(seconds: float, act: Callable[[], object]) -> Cancel:
    """Call a function again and again; it is cheap where there are thousands of them. Return what stops that.

    `seconds`: between two calls. Those who give the same share a timer.
    `act`: raises nothing, and waits for nothing.
    """
    known: dict[float, _Round] = _rounds.here(dict)
    turns = known.get(seconds) or known.setdefault(seconds, _Round(seconds))
    turns.add(act)
    return partial(turns.members.discard, act)


class _Round:
    def __init__(self, seconds: float) -> None:
        self.members: set[Callable[[], object]] = set()
        self._loop = running_loop()
        self._seconds = seconds
        self._turns: deque[tuple[float, Callable[[], object]]] = deque()  # by when they are due
        self._is_running = False

    def add(self, act: Callable[[], object]) -> None:
        self.members.add(act)
        self._turns.append((self._loop.time() + self._seconds, act))
        if not self._is_running:
            self._is_running = True
            self._call_later(self._seconds)

    def _call_later(self, seconds: float) -> None:
        self._loop.call_later(seconds, self._tick, context=Context())  # of no request

    def _tick(self) -> None:
        now = self._loop.time()
        for _ in range(min(AT_ONCE, len(self._turns))):
            due, act = self._turns[0]
            if due > now + self._seconds * EARLY:
                break
            self._turns.popleft()
            if act in self.members:
                act()
                self._turns.append((now + self._seconds, act))
        self._is_running = bool(self._turns)
        if self._is_running:
            self._call_later(max(0.0, self._turns[0][0] - now))


_rounds = PerLoop[dict[float, _Round]]()
