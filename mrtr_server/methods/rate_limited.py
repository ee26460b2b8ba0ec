"""Methods whose requests count for a rate."""

from collections.abc import Awaitable, Callable

from ..protocol.messages import ASKING_METHODS, Call, Outcome, Outlet
from ..rates.rate_limiter import RateLimiter

Method = Callable[[Call, Outlet], Awaitable[Outcome]]
"""Serves a call. The outlet takes the notes that its handler sends on its way."""

_UNCOUNTED = frozenset({"ping", "tasks/cancel"})
"""The methods that are always served: the one costs nothing, and the other ends what costs something."""


def rated(name: str, method: Method, rates: RateLimiter) -> Method:
    """Return a method that counts its requests before it serves them; the method itself where they do not count.

    Args:
        name: of the method in the protocol.
        method: serves it.
        rates: counts.
    """
    calls = rates.counts_calls and name in ASKING_METHODS
    others = rates.counts_others and name not in _UNCOUNTED
    if not (calls or others):
        return method

    async def count_and_serve(call: Call, outlet: Outlet) -> Outcome:
        if calls and call.state is None:
            await rates.admit_call(call)
        elif others and (call.state is not None or name not in ASKING_METHODS):
            await rates.admit_other(call)
        return await method(call, outlet)

    return count_and_serve
