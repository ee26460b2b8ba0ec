"""One request of a client on standard input, and what goes out for it before its response."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from ..concurrency.places import Portion
from ..concurrency.running import runs_here
from ..live.session_states import DEFAULT_LEVEL
from ..protocol import messages
from ..protocol.callers import Principal, Sender
from ..protocol.dialect import Dialect
from ..protocol.envelope import Envelope
from ..protocol.handshake import HandshakeDialect
from ..protocol.messages import NOTHING, Call, Note, Subscription
from ..protocol.sessions import NO_SESSION, Session
from .requests import OpenCallNotes, is_wanted
from .standard_streams import LineWriter

KEEP_ALIVE = 15.0  # between notes of progress while a call waits for a person, in seconds


@dataclass(slots=True)
class Peer:
    writer: LineWriter
    user: Any  # on whose behalf it sends; None for nobody in particular
    principal: Principal | None
    scopes: frozenset[str]
    headers: Mapping[bytes, bytes]  # what it would send over HTTP: the id of its session, once it has begun one
    session: Session = NO_SESSION
    level: messages.LogLevel = DEFAULT_LEVEL  # of the least severe log messages that the session wants

    @property
    def sender(self) -> Sender:
        return Sender(self.principal, self.user, self.scopes)

    def begin(self, form: HandshakeDialect, headers: Mapping[bytes, bytes]) -> None:
        """Begin a session in the place of the one before. The client would send the headers from now on."""
        self.headers, self.level = headers, DEFAULT_LEVEL
        self.session = form.session_of(headers, self.principal)


class StdioRequest:
    is_cancelled = False  # whether its client has cancelled it, so that nothing more is sent for it
    gone = False  # whether the client sends nothing more, so that no question can be answered
    is_waiting = False  # whether nothing of it runs: it waits for a person, or listens
    changes: Subscription | None = None  # what it listens to
    task: "asyncio.Task[Any] | None" = None  # what serves it, once that has begun
    call: Call | None = None
    portion: Portion | None = None  # what counts the bytes of the message; None where it is small

    def __init__(self, peer: Peer, envelope: Envelope, dialect: Dialect) -> None:
        self.peer = peer
        self._envelope: Envelope | None = envelope  # the message, until the call in it is opened
        self.id: str | int = envelope.id if envelope.id is not None else ""
        # Whether it is a request indeed: a dialect may have responses that are handled as one.
        self.is_answered = bool(envelope.method)
        self.dialect = dialect
        self.loop = asyncio.get_running_loop()
        self._is_over = False

    def open(self) -> Call:
        envelope, self._envelope = self._envelope, None
        assert envelope is not None  # noqa: S101  it is opened once
        call = self._load(envelope)
        self.call = call = replace(call, headers={}) if call.headers else call
        return call

    def _load(self, envelope: Envelope) -> Call:
        return self.dialect.load_call(envelope, self.peer.sender)

    def send(self, note: Note) -> Awaitable[None]:
        data = self.dialect.note(note)
        if not data:
            return NOTHING
        if isinstance(note, messages.Piece):
            return NOTHING if self._is_over else self.peer.writer.write(self, data)
        if not runs_here(self.loop):  # a plain `def` in its thread
            self.loop.call_soon_threadsafe(self._send, note, data)
            return NOTHING
        self._send(note, data)
        return messages.TURN

    def _send(self, note: Note, data: bytes) -> None:
        if self._is_over:
            return
        if isinstance(note, messages.Progress):
            self.peer.writer.add_progress(self, data)
        else:
            self.peer.writer.add_message(self, data)

    def cancel(self) -> None:
        self.is_cancelled = True
        self.end()
        self.peer.writer.forget(self)

    def listen(self, changes: Subscription) -> None:
        self.changes, self.is_waiting = changes, True
        if self.gone:
            changes.close()

    def leave(self) -> None:
        self.gone = True
        if self.changes is not None:
            self.changes.close()

    def end(self) -> None:
        self._is_over = True
        self._envelope = None
        if self.portion is not None:
            self.portion.end()


class OpenRequest(OpenCallNotes, StdioRequest):
    """A request of the handshake era, whose client answers questions meanwhile; see `Channel`."""

    can_stream = True
    can_move = False
    _ticking: asyncio.TimerHandle | None = None

    def __init__(
        self, peer: Peer, envelope: Envelope, dialect: HandshakeDialect, line: bytes, on_wait: Callable[[], object]
    ) -> None:
        super().__init__(peer, envelope, dialect)
        self.form = dialect
        self.session = peer.session
        self._body = line
        self._on_wait = on_wait  # called when the call begins or ends to wait for a person

    def _load(self, envelope: Envelope) -> Call:
        return self.form.load_call_of(envelope, self.peer.sender, self.session)

    # Notes

    def send(self, note: Note) -> Awaitable[None]:
        """Send a note, unless it is no news, or a message that the session does not want; see `Outlet`."""
        if isinstance(note, messages.ComeBack):
            return NOTHING  # nobody comes back to standard output
        is_sent = is_wanted(note, self.peer.level) if isinstance(note, messages.LogMessage) else self.take_news(note)
        return super().send(note) if is_sent else NOTHING

    # Questions

    def on_start(self, id: Callable[[], str] | None) -> None:
        """Do nothing: no client comes back to standard output, so none needs an id for that."""

    def prime(self, id: str, retry: int | None = None) -> None:
        """Do nothing, likewise."""

    def leave(self) -> None:
        super().leave()
        if self._then is not None:
            self._then()

    def ask(self, id: str, question: messages.Question, event: str) -> None:
        data = self.dump_question(id, question)
        if not self._is_over:
            self.peer.writer.add(self, data)

    def withdraw(self, id: str, reason: str, task: str = "") -> None:
        if not self.gone:  # for itself, and not for this request, for which nothing is sent once it is cancelled
            self.peer.writer.add(id, self.form.dump_withdrawal(id, reason, task))

    def flush(self) -> Awaitable[None]:
        """Do nothing: one task writes for all requests."""
        return NOTHING

    def waits(self, waiting: bool) -> None:
        self.is_waiting = waiting
        if self._ticking is not None:
            self._ticking.cancel()
            self._ticking = None
        token = None if self.call is None else self.call.progress_token
        if waiting and token is not None:
            self._ticking = self.loop.call_later(KEEP_ALIVE, self._tick, token)
        self._on_wait()

    def _tick(self, token: str | int) -> None:
        """Send a little progress: some clients give up after a minute without any."""
        super().send(self.take_step(token))
        self._ticking = self.loop.call_later(KEEP_ALIVE, self._tick, token)
