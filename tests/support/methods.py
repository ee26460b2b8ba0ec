"""What serves the methods of the protocol, without a dialect or a transport around it."""

from collections.abc import Awaitable
from dataclasses import dataclass, field
from typing import Any

from mrtr_server.errors import RequestError
from mrtr_server.protocol.messages import NOTHING, Call, Complete, Note, Outcome, Outlet


@dataclass
class Notes(Outlet):
    """An outlet that keeps what it is sent."""

    sent: list[Note] = field(default_factory=list)

    def send(self, note: Note) -> Awaitable[None]:
        self.sent.append(note)
        return NOTHING


class Rates:
    """Takes the place of a `RateLimiter`: notes what is counted.

    Args:
        calls: whether calls have a rate.
        others: whether other requests have one.
        full: what to raise in place of a request's turn; None where there is room.
    """

    def __init__(self, *, calls: bool = False, others: bool = False, full: RequestError | None = None) -> None:
        self.counts_calls, self.counts_others = calls, others
        self.counted: list[str] = []
        self._full = full

    async def admit_call(self, call: Call) -> None:
        """Count a call that begins."""
        self._count("call")

    async def admit_other(self, call: Call) -> None:
        """Count any other request."""
        self._count("other")

    def _count(self, kind: str) -> None:
        self.counted.append(kind)
        if self._full is not None:
            raise self._full


def body(outcome: Outcome) -> dict[str, Any]:
    """Return the result of a request that is done."""
    assert isinstance(outcome, Complete)
    return outcome.body
