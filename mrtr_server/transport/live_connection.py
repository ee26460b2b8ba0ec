"""The response to a client of the handshake era: a stream that it can come back to."""

import asyncio
import math
from collections.abc import Awaitable, Callable

from ..concurrency.running import runs_here
from ..errors import StoreUnavailable
from ..live.events import StreamEvent, last_id
from ..live.live_calls import LiveCalls
from ..live.session_states import DEFAULT_LEVEL, SessionStates
from ..protocol.dialect import Reply
from ..protocol.envelope import Envelope
from ..protocol.handshake import HandshakeDialect
from ..protocol.messages import NOTHING, Call, ComeBack, LogLevel, LogMessage, Note, Piece, Progress, Question
from ..protocol.sessions import Session
from ..protocol.trace import HEARD
from .connection import NO_HEADERS, Connection, Headers
from .event_stream import Frame
from .requests import OpenCallNotes, is_wanted

MOST_HELD_BACK = 100  # notes that wait for the level of the session, before progress takes the place of progress

LEVEL_KNOWN = 1.0  # for how long the level of a session is taken to be as it was read, in seconds


class LiveConnection(OpenCallNotes, Connection):
    """The response to one client of the handshake era; see `Channel` for what an open call does with it."""

    _first_id: Callable[[], str] | None = None
    _cancellation: asyncio.Task[None] | None = None
    _resumes = _waiting = _is_settling = False
    _goes_on = False  # whether its person has answered since the last look whether it takes long
    _level: LogLevel | None = None
    _level_until = math.inf
    _looking: asyncio.Task[None] | None = None
    _accepts_stream: bool | None = None
    _closing: asyncio.Future[None] | None = None  # ends a stream before there is a response

    def __init__(
        self, connection: Connection, form: HandshakeDialect, session: Session, live: LiveCalls, states: SessionStates
    ) -> None:
        vars(self).update(vars(connection))  # it is the same response, which takes its place
        self.dialect = self.form = form
        self.session = session
        self._live = live
        self._states = states
        # Notes that wait until it is known which messages the session wants.
        self._held_back: dict[object, tuple[Note, bytes] | Frame] = {}
        if not session.key:
            self._level = DEFAULT_LEVEL

    # The request

    def open(self, envelope: Envelope, body: bytes) -> Call:
        """Return the call of a POST. It is read again from the body for a later round."""
        self._body = body
        self.dialect = self.form = self.form.answering(envelope)
        self.call = self._load(envelope, self.session)
        return self.call

    def reopen(self, event: StreamEvent) -> Call:
        self._resumes = True
        origin = self._origin = event.origin
        self.progress = event.progress
        envelope = Envelope({}, origin.method, origin.request_id, origin.params_to_use(), self.headers)
        self.call = self._load(envelope, origin.session)
        return self.call

    def _load(self, envelope: Envelope, session: Session) -> Call:
        call = self.form.load_call_of(envelope, self.sender, session, can_move=self.can_move)
        call.trace.heard = self.shared_scope.get(HEARD)
        return call

    # The stream

    def accepts_stream(self) -> bool:
        if self._accepts_stream is None:
            self._accepts_stream = super().accepts_stream()
        return self._accepts_stream

    @property
    def can_stream(self) -> bool:
        return self.accepts_stream()

    @property
    def can_move(self) -> bool:
        return self.form.form.enriches and self.accepts_stream()

    def on_start(self, id: Callable[[], str] | None) -> None:
        self._first_id = id

    def prime(self, id: str, retry: int | None = None) -> None:
        later = f"retry: {retry}\n" if retry is not None else ""
        named = f"id: {id}\n" if id else ""
        # A type of its own: a client would look for a message in one without data.
        self._add_frame(Frame(f"event: prime\n{named}{later}data:\n\n".encode()))

    def ask(self, id: str, question: Question, event: str) -> None:
        data = self.dump_question(id, question)
        self._add_frame(_message(event, data), is_flushed=True)

    def withdraw(self, id: str, reason: str, task: str = "") -> None:
        if not (self.gone or self.finishing):
            self._add_frame(Frame(b"event: message\ndata: %b\n\n" % self.form.dump_withdrawal(id, reason, task)))

    def flush(self) -> Awaitable[None]:
        return NOTHING if self._stream is None else self._stream.flush()

    def waits(self, waiting: bool) -> None:
        self._waiting = waiting
        self._goes_on = not waiting
        if waiting and self._cancellation is not None:
            self._unwatch_cancellation()  # the waiting request is notified

    def _take_first_id(self) -> str:
        """Return the id for the event that starts the stream by itself; empty if it has an id."""
        first, self._first_id = self._first_id, None
        if first is None:
            return ""
        self._watch_client()  # at once: the outcome of a call is kept only for a client that is known to have left
        return first()

    def _add_frame(self, frame: Frame, *, is_flushed: bool = False) -> None:
        """Send what has an id, after what was sent before it; `is_flushed` where `flush` follows."""
        self._first_id = None
        stream = self._stream or self._open_stream()
        if self._looking is None:
            stream.add_frame(frame, is_flushed=is_flushed)
        else:
            self._held_back[object()] = frame

    def _add(self, note: Note, data: bytes) -> Awaitable[None]:
        if self.finishing:
            return NOTHING
        if self._looking is not None or (self._level is None and isinstance(note, LogMessage)):
            self._hold_back(note, data)
            return asyncio.shield(self._looking) if isinstance(note, Piece) and self._looking is not None else NOTHING
        return self._add_now(note, data)

    def _add_now(self, note: Note, data: bytes, *, at_once: bool = False) -> Awaitable[None]:
        """Send a note; one of several at once takes the place of no other."""
        if isinstance(note, LogMessage) and not self._wants(note):  # it was sent before that was known
            return NOTHING
        if not self.finishing and (id := self._take_first_id()):
            stream = self._stream or self._open_stream()
            stream.add_frame(_message(id, data))  # unlike other notes it is not dropped, since it has the id
            return stream.room() if isinstance(note, Piece) else NOTHING
        if at_once and not self.finishing and not isinstance(note, Piece):
            return (self._stream or self._open_stream()).add_message(data)
        return super()._add(note, data)

    def _keep_alive(self) -> None:
        if id := self._take_first_id():
            self.prime(id)
        token = None if self.call is None else self.call.progress_token
        if self._waiting and token is not None:
            (self._stream or self._open_stream()).add_progress(self.form.note(self.take_step(token)))
        else:
            super()._keep_alive()

    # Notes

    def send(self, note: Note) -> Awaitable[None]:
        """Send a note, unless it is no news, or a message that the session does not want; see `Outlet`."""
        if isinstance(note, ComeBack):
            return self._send_away(note)
        if isinstance(note, LogMessage) and self._looking is None and self.loop.time() > self._level_until:
            self._level = None  # it is read again: the client may have set another one since
        is_sent = self._wants(note) if isinstance(note, LogMessage) else self.take_news(note)
        return super().send(note) if is_sent else NOTHING

    def _wants(self, note: LogMessage) -> bool:
        return self._level is None or is_wanted(note, self._level)

    def _hold_back(self, note: Note, data: bytes) -> None:
        """Keep a note until it is known which messages the session wants, so that what is sent first comes first."""
        # Beyond that, newer progress takes the place of older.
        key = Progress if isinstance(note, Progress) and len(self._held_back) >= MOST_HELD_BACK else object()
        self._held_back.pop(key, None)
        self._held_back[key] = note, data
        if self._looking is None:
            self._looking = self.loop.create_task(self._find_level())

    async def _find_level(self) -> None:
        try:
            self._level_until = self.loop.time() + LEVEL_KNOWN
            self._level = (await self._states.read(self.session.key)).level
        except StoreUnavailable:
            self._level = DEFAULT_LEVEL
        self._looking = None
        for held in self._held_back.values():
            if isinstance(held, Frame):
                self._add_frame(held)
            else:
                self._add_now(*held, at_once=True)
        self._held_back.clear()

    # The end

    def _send_away(self, note: ComeBack) -> Awaitable[None]:
        """Close the stream before there is a response; the client comes back for that, as if it had left."""
        if not runs_here(self.loop):
            self.loop.call_soon_threadsafe(self._send_away, note)
            return NOTHING
        if self._looking is not None:  # what is held back goes first
            self._looking.add_done_callback(lambda _: self._send_away(note))
            return asyncio.shield(self._looking)
        if self.gone or self.finishing or self._is_settling or not self.can_move:
            return NOTHING
        id = self._take_first_id()
        if not (id or self._stream):  # there is nothing to come back to
            return NOTHING
        self.prime(id, round(note.seconds * 1000))
        assert self._stream is not None  # noqa: S101  there is one by now
        self._closing = asyncio.ensure_future(self._stream.end(b""))
        self.gone = True
        self._stop_ticking()
        self._leave()
        return asyncio.shield(self._closing)

    def finish(self, status: int, body: bytes, headers: Headers = NO_HEADERS) -> Awaitable[None]:
        if self._looking is None and self._closing is None:
            return self._finish(status, body, headers)
        return self._settle_and_finish(status, body, headers)

    async def _settle_and_finish(self, status: int, body: bytes, headers: Headers) -> None:
        await self._settle()
        await self._finish(status, body, headers)

    def _finish(self, status: int, body: bytes, headers: Headers) -> Awaitable[None]:
        self._is_settling = True
        self._stop_ticking()
        if self.gone:
            self.abandon()
            return NOTHING
        if self._stream is None:
            return super().finish(status, body, headers)
        self.finishing = True
        return self._end_stream(self._stream.end(_last(body)))

    def _end_stream(self, ending: Awaitable[None]) -> Awaitable[None]:
        """Wait for the end of the stream, and forget it: each knows the other, and neither is needed any more."""
        if ending is NOTHING:
            self._stream = None
            return NOTHING
        return self._forget_stream(ending)

    async def _forget_stream(self, ending: Awaitable[None]) -> None:
        await ending
        self._stream = None

    async def end_without_reply(self) -> None:
        """End the response without a reply: the client has left, has cancelled the call, or continues elsewhere."""
        await self._settle()
        self.finishing = True
        if self._stream is None:  # of a GET there is nothing to come back to
            await self.respond(405 if self._resumes else 202, b"")
        elif self.gone:
            self.abandon()
        else:
            await self._stream.end(b"")

    async def finish_stream(self, reply: Reply) -> None:
        if not self.gone and self._stream is None:
            self._open_stream()
        await self.finish(*reply)

    async def _settle(self) -> None:
        """Send what is held back, and nothing more by itself."""
        self._is_settling = True
        if self._looking is not None:
            await self._looking
        if self._closing is not None:
            await self._closing
        self._stop_ticking()

    # The client's disconnect, which cancels nothing in this era, and its cancellation

    def watch(self) -> None:
        """Begin to watch a call that takes long: for its client's disconnect, and for its cancellation elsewhere."""
        self._watch_client()
        if not self._goes_on:  # what has just begun to run again is nearly always done before the next look
            self._watch_cancellation()
        self._goes_on = False
        if self._ticking is None:
            self._tick_later()

    def unwatch(self) -> None:
        if self._watcher is not None:
            super().unwatch()
        self._stop_ticking()
        if self._cancellation is not None:
            self._unwatch_cancellation()

    def _watch_cancellation(self) -> None:
        if self.call is not None and self.call.session and not self._waiting and self._cancellation is None:
            self._cancellation = self.loop.create_task(self._live.cancel_elsewhere(self.call))

    def _unwatch_cancellation(self) -> None:
        if self._cancellation is not None:
            self._cancellation.cancel()
            self._cancellation = None

    def _watch_client(self) -> None:
        if self._watcher is None:
            self._watcher = self.loop.create_task(self._wait_until_gone(self._leave))

    def _leave(self) -> None:
        then, self._then = self._then, None
        if then is not None:
            then()


def _message(id: str, data: bytes) -> Frame:
    return Frame(b"event: message\nid: %b\ndata: %b\n\n" % (id.encode(), data))


def _last(data: bytes) -> Frame:
    """Return the last event of a stream; a client that comes back to it learns that there is nothing more."""
    return _message(last_id(), data)
