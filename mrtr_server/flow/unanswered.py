"""How often the same may be asked without an answer: a client that repeats a request, and answers nothing, is put off.

A round that asks costs what any round costs, and nobody has anything of it. An answer in any flow of the same request
shows that somebody answers, and resets the count.
"""

import math
from collections.abc import Callable

from ..errors import RateLimited
from ..limits import Limits
from ..protocol.messages import Call
from ..rates.rate_limiter import RateLimiter
from .journal import Journal

WINDOW = 60.0
"""How long is counted, in seconds."""

STRANGERS = 10
"""How many times as often callers are asked of whom an address alone is known: it may be that of a proxy."""

MOST_COUNTED = 4_096
"""How many requests are counted at once, with about 100 bytes each."""


class UnansweredAsks:
    """Counts, in this process, how often a request was answered with questions that nobody has answered.

    Args:
        limits: its `unanswered_asks` counts.
        rates: where anything has a rate, they count in its place.
        clock: returns the time in seconds since the epoch.
    """

    def __init__(self, limits: Limits, rates: RateLimiter, clock: Callable[[], float]) -> None:
        self._most = limits.unanswered_asks
        self._rates = rates
        self._clock = clock
        self._counts: dict[int, int] = {}
        """By a hash, which nobody outside of this process can foresee."""
        self._ends = -math.inf
        """When the window ends, and all counts with it."""

    def admit(self, call: Call, bound_to: list[str], journal: Journal | None) -> None:
        """Check that a round may begin, and note if it brings an answer.

        Args:
            call: the request.
            bound_to: what its states are bound to; see `binding`.
            journal: of its state, before the answers are taken; None if it brings none.

        Raises:
            RateLimited: it was asked too often, and never answered.
        """
        if not self._counts:  # as where nothing asks
            return
        key = _of_request(call, bound_to) if journal is None else hash((journal.flow_id, journal.rounds))
        count = self._counts.get(key, 0)
        if count:
            self._check(call, journal, count)
        elif journal is not None and call.answers and not journal.asked.keys().isdisjoint(call.answers):
            self._counts.pop(_of_request(call, bound_to), None)  # a state that was used before would prove nothing

    def _check(self, call: Call, journal: Journal | None, count: int) -> None:
        most = self._most
        if most is None or self._rates.is_on:
            return
        if journal is None and call.principal is None and not call.session:
            most *= STRANGERS
        if count >= most and (seconds := self._ends - self._clock()) > 0:
            raise RateLimited("unanswered_asks", f"{most}/minute", seconds)

    def asked(self, call: Call, bound_to: list[str], journal: Journal, now: float) -> None:
        """Note that a round ends with questions.

        Args:
            call: the request.
            bound_to: as above.
            journal: what the round leaves.
            now: the time in seconds since the epoch.
        """
        if self._most is None or self._rates.is_on:
            return
        if now >= self._ends:
            self._counts.clear()
            self._ends = now + WINDOW
        # The state that came in is one round behind.
        key = _of_request(call, bound_to) if call.state is None else hash((journal.flow_id, journal.rounds - 1))
        if key in self._counts or len(self._counts) < MOST_COUNTED:
            self._counts[key] = self._counts.get(key, 0) + 1
        else:
            # One more that is new takes one from each (Misra and Gries). So a count loses no more than there were
            # questions for `MOST_COUNTED` others, and nobody can reset their own by asking for something else.
            self._counts = {each: count - 1 for each, count in self._counts.items() if count > 1}

    def ended(self, call: Call, bound_to: list[str]) -> None:
        """Note that a round ends with a result: what came with it without a state has answered what it asks."""
        if call.answers and call.state is None:
            self._counts.pop(_of_request(call, bound_to), None)


def _of_request(call: Call, bound_to: list[str]) -> int:
    """Return what makes requests without a state the same: all that a state would be bound to, and the caller."""
    who = "" if call.principal is not None else call.session or (call.peer[0] if call.peer else "")
    return hash((who, *bound_to))
