"""What an open call needs of its client's connection."""

from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Protocol

from ..concurrency.places import Portion
from ..protocol.messages import Call, Outlet, Question
from .events import Origin


class Channel(Outlet, Protocol):
    """The response to the client of an open call: a stream, once something is to be said before the result."""

    @property
    def gone(self) -> bool:
        """Whether nobody reads the response any more."""
        ...

    @property
    def can_stream(self) -> bool:
        """Whether the client takes a stream."""
        ...

    @property
    def can_move(self) -> bool:
        """Whether the client's version says that it comes back to a stream that the server closes."""
        ...

    @property
    def progress(self) -> float:
        """The progress that was sent last."""
        ...

    @property
    def portion(self) -> Portion | None:
        """What counts the bytes of the request; None where it is small."""
        ...

    def origin(self) -> Origin:
        """Return the request that opened the call, as it was sent."""
        ...

    def load(self, origin: Origin) -> Call:
        """Return the call of a request, as it was before any round of it. Raises `RequestError`."""
        ...

    def on_start(self, id: Callable[[], str] | None) -> None:
        """Set which id the first event has, if a stream starts by itself; None for none."""
        ...

    def on_gone(self, then: Callable[[], object] | None) -> None:
        """Set what is called, on the event loop, when the client leaves; at once if it has left."""
        ...

    def prime(self, id: str, retry: int | None = None) -> None:
        """Start the stream, unless it has started, and send an event without data.

        Args:
            id: the event's; empty where the client has one already, since no two events have the same.
            retry: when a client that loses the stream is to come back, in milliseconds.
        """
        ...

    def check(self, question: Question) -> None:
        """Check that clients of this version can be asked something. Raises `NotInVersion`."""
        ...

    def ask(self, id: str, question: Question, event: str) -> None:
        """Send a question; `flush` is to be awaited then.

        Args:
            id: of the request.
            question: what is asked.
            event: the id of the event.

        Raises:
            NotInVersion: clients of this version can't be asked that.
        """
        ...

    def withdraw(self, id: str, reason: str, task: str = "") -> None:
        """Notify the client that a question counts no more, also where it has cancelled the call.

        Args:
            id: of the request that asked.
            reason: why, for people.
            task: the task that asked; empty for none.
        """
        ...

    def flush(self) -> Awaitable[None]:
        """Write what has been sent; to be awaited by what serves the request."""
        ...

    def waits(self, waiting: bool) -> None:
        """Note whether the call waits for a person, so that there is progress to be shown."""
        ...


@contextmanager
def leaving(channel: Channel, end: Callable[[], object]) -> Iterator[None]:
    """Call a function when the client leaves, for as long as the block lasts; at once if it has left."""
    channel.on_gone(end)
    try:
        yield
    finally:
        channel.on_gone(None)


@contextmanager
def held_open(channel: Channel, end: Callable[[], object]) -> Iterator[None]:
    """Do the same for a call that waits for a person: its client is shown progress meanwhile."""
    with leaving(channel, end):
        channel.waits(True)
        try:
            yield
        finally:
            channel.waits(False)
