"""What a round needs of the task that it belongs to."""

from collections.abc import Callable, Mapping
from typing import Protocol

from ..protocol.messages import Outlet, Question, YieldReason
from .journal import Journal


class Background(Outlet, Protocol):
    """The task that a round belongs to, and where its notes go."""

    @property
    def journal(self) -> Journal:
        """What its flow remembers."""
        ...

    def should_yield(self) -> YieldReason | None:
        """Return why the round is to end at its next boundary; None if it continues."""
        ...

    @property
    def lost(self) -> bool:
        """Whether the task has ended, or another worker runs it, so that nothing more may happen here."""
        ...

    async def may_begin(self) -> bool:
        """Check that the task has not ended and is run here alone, before a step begins."""
        ...

    async def keep(self) -> None:
        """Keep what the journal holds now, before anything else happens."""
        ...

    async def publish(self, asked: Mapping[str, Question]) -> None:
        """Publish what is asked, so that the client sees it beside what runs.

        Args:
            asked: the questions, by key; those that are answered meanwhile are no longer in it.
        """
        ...

    def on_answers(self, take: Callable[[], None]) -> None:
        """Call a function when the journal has new answers, from now on."""
        ...

    def say(self, message: str) -> None:
        """Store what the task is doing, for clients that ask."""
        ...
