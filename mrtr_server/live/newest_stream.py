"""Which of the streams that a session has open carries its notifications: the newest, at whichever replica it is."""

import time
from collections.abc import Callable
from itertools import count
from secrets import token_hex

from ..protocol.messages import Change

_OPENED, _ENDED = "opened", "ended"
_numbers = count()


class NewestStream:
    """Knows whether one stream of a session's notifications is its newest (Transports, Multiple Connections).

    A stream announces itself when it opens, and its end. One that hears of a newer stream is silent from then on. One
    that hears anything else announces itself again. So all agree on the newest as soon as the last announcement has
    arrived, whatever was missed or came late before.

    Args:
        session: its key.
        publish: tells all streams of the session, at all replicas.
    """

    def __init__(self, session: str, publish: Callable[[Change], None]) -> None:
        self.topic = Change("stream", session)
        self._publish = publish
        self._order = f"{time.time():.6f} {next(_numbers):012} {token_hex(8)}"
        self._has_newer = False

    @property
    def is_newest(self) -> bool:
        """Whether the session's notifications go out on this stream, as far as is known here."""
        return not self._has_newer

    def open(self) -> None:
        """Announce the stream, which listens to its topic already."""
        self._announce(_OPENED)

    def end(self) -> None:
        """Announce that the stream has ended; to be called once."""
        if self.is_newest:
            self._announce(_ENDED)

    def on_announcement(self, note: str) -> None:
        """Note what another stream has announced.

        Args:
            note: the announcement; empty where some may have been missed.
        """
        happened, _, order = note.partition(" ")
        if order == self._order:
            return
        self._has_newer = happened == _OPENED and order > self._order
        if self.is_newest:
            self._announce(_OPENED)

    def _announce(self, happened: str) -> None:
        self._publish(Change("stream", self.topic.uri, note=f"{happened} {self._order}"))
