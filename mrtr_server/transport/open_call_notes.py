"""What open calls have in common, whatever they write to: their request, and which of their notes go out."""

from ..live.events import NONE_YET, Origin
from ..protocol.envelope import read_message
from ..protocol.handshake import HandshakeDialect
from ..protocol.messages import LOG_LEVELS, Call, LogLevel, LogMessage, PageReported, Piece, Progress, Question
from ..protocol.sessions import Session

STEP = 1e-6
"""By how much progress grows that only shows that the call is still open."""


class OpenCallNotes:
    """What the connections of the handshake era have in common, whatever they write to; see `Channel`."""

    form: HandshakeDialect
    """That of the version that the client speaks."""
    session: Session
    """That of the client."""
    call: Call | None = None
    """The call in the request."""
    _body = b""
    """The request as it came, until the origin is made of it."""
    _origin: Origin | None = None
    progress = NONE_YET
    """The progress that was sent last."""
    _reported: frozenset[str] = frozenset()
    """The pages that the client knows to have reported."""

    # The request

    def origin(self) -> Origin:
        """Return the request that opened the call, as it was sent."""
        if self._origin is None:
            message, session = read_message(self._body), self.session
            client = session.client if self.call is None else self.call.client
            session = session.of(self.form.form.name, client)
            self._origin = Origin(message["method"], message.get("params", {}), message["id"], session)
            self._body = b""
        return self._origin

    def load(self, origin: Origin) -> Call:
        """Return the call of a request, as it was before any round of it."""
        call = self.call
        assert call is not None  # noqa: S101  it is that of this very request, so all else is as it was
        return self.form.load_again(call, origin.params_to_use())

    # Notes

    def check(self, question: Question) -> None:
        """Check that clients of this version can be asked something. Raises `MissingCapability`."""
        self.dump_question("", question)

    def dump_question(self, id: str, question: Question) -> bytes:
        """Return the request that asks the client; see `HandshakeDialect.dump_question`."""
        client = self.session.client if self.call is None else self.call.client
        return self.form.dump_question(id, question, client)

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
