"""Stores for tests: two views of one, for the contracts that every store keeps, and one with a fan-out of the test."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

from typing_extensions import override

from mrtr_server import Fanout, InProcessStore, Store
from mrtr_server.testing import Clock

S = TypeVar("S")


@dataclass
class Stores(Generic[S]):
    """A store, and a way to let its time pass without waiting.

    Args:
        store: the store.
        another: a second one on the same records, as another replica has it; the same one where there can be no other.
        pass_time: let so many seconds pass.
        rows: count what is kept, whether expired or not.
    """

    store: S
    another: S
    pass_time: Callable[[float], Awaitable[None]]
    rows: Callable[[], Awaitable[int]]


class InOneProcess:
    """Gives the tests of a contract the store of a process, and moves its clock."""

    def setup_method(self) -> None:
        """Make the store of one test."""
        self.clock = Clock()
        self.only = InProcessStore(self.clock)

    async def new_store(self) -> Store:
        """Return the store: there can be no other."""
        return self.only

    async def pass_time(self, seconds: float) -> None:
        """Move its clock."""
        self.clock.advance(seconds)


def carrying(fanout: Fanout) -> InProcessStore:
    """Return a store of the process whose changes are carried by a fan-out of the test's own."""

    class Carrying(InProcessStore):
        @override
        def fanout(self) -> Fanout:
            return fanout

    return Carrying()
