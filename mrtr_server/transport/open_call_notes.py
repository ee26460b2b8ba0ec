"""Which notes of an open call go out: its rounds tell again what earlier ones have told."""

from ..live.events import NONE_YET
from ..protocol.all_dialects import HandshakeDialect
from ..protocol.messages import LOG_LEVELS, LogLevel, LogMessage, PageReported, Piece, Progress, Question

STEP = 1e-6
"""By how much progress grows that only shows that the call is still open."""


class OpenCallNotes:
    """What the connections of the handshake era have in common, whatever they write to; see `Channel`."""

    form: HandshakeDialect
    """That of the version that the client speaks."""
    progress = NONE_YET
    """The progress that was sent last."""
    _reported: frozenset[str] = frozenset()
    """The pages that the client knows to have reported."""

    @property
    def takes_pages(self) -> bool:
        """Whether clients of this version take the pages that a call needs in place of its result."""
        return self.form.form.enriches

    def check(self, question: Question) -> None:
        """Check that clients of this version can be asked something. Raises `MissingCapability`."""
        self.form.dump_question("", question, "")

    def take_news(self, note: Progress | PageReported | Piece) -> bool:
        """Return whether the client does not know a note yet, and note that it does from now on.

        Progress grows with each note (Progress, Behavior Requirements). A page reports once. A flow's journal knows
        which pieces were sent.
        """
        if isinstance(note, Progress):
            is_news = note.progress > self.progress
            if is_news:
                self.progress = note.progress
        elif isinstance(note, Piece):
            is_news = True
        else:
            is_news = note.page not in self._reported
            self._reported |= {note.page}
        return is_news

    def take_step(self, token: str | int) -> Progress:
        """Return a little progress, which shows a client that the call is still open, as if it had been sent.

        Args:
            token: of the progress of the call.
        """
        self.progress = max(self.progress, 0.0) + STEP
        return Progress(token, self.progress)


def is_wanted(note: LogMessage, level: LogLevel) -> bool:
    """Return whether a session of a level wants a message."""
    return LOG_LEVELS.index(note.level) >= LOG_LEVELS.index(level)
