"""The handshake era over HTTP: answers and cancellations that come on their own, `GET` and `DELETE`."""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import Any

from pydantic_core import to_json

from ..errors import Busy, Full, InvalidRequest, OverBudget, ProtocolError, SessionEnded, StoreUnavailable
from ..flow.admission import Admission
from ..limits import MOST_IN_BATCH, Limits, has_more_values
from ..live.events import ENDED, TOO_LATE_TO_CONTINUE, StreamEvent
from ..live.live_calls import LiveCalls, store_needed
from ..live.parts import LiveParts
from ..logs.refusals import RefusalLog
from ..methods.dispatcher import Dispatcher
from ..protocol.callers import Principal, person_of
from ..protocol.dialect import Reply
from ..protocol.envelope import NO_METHOD, Envelope, read_envelope
from ..protocol.handshake import CANCELLED, HandshakeDialect
from ..protocol.messages import OPEN_METHODS, Call, Listening
from ..protocol.sessions import Session
from ..well_formed import read_json
from .connection import Connection, Watch
from .live_connection import LiveConnection
from .requests import failure_of, note_cancellation, note_refusal

LAST_EVENT = b"last-event-id"

MOST_LISTENING = 8  # streams of notifications of a session in a process: each looks at whatever the session sets


class HandshakeEndpoint:
    def __init__(
        self,
        dialect: HandshakeDialect,
        dispatcher: Dispatcher,
        calls: LiveCalls,
        live: LiveParts,
        limits: Limits,
        admission: Admission,
        watch: Watch,
        refusals: RefusalLog,
    ) -> None:
        self.dialect = dialect
        self._dispatcher = dispatcher
        self._calls = calls
        self._live = live
        self._limits = limits
        self._admission = admission
        self._watch = watch
        self._refusals = refusals
        self._listening: Counter[str] = Counter()  # streams of notifications that are open, by session

    # POST

    async def take(self, envelope: Envelope, principal: Principal | None) -> bool:
        """Accept a message that needs no reply; return False for a response to no question. Raises `RequestError`."""
        self.dialect.check_version(envelope.headers)
        await self._check(self.dialect.session_of(envelope.headers, principal))
        if envelope.method:
            if envelope.method == CANCELLED:
                await self._cancel(envelope, principal)
            return True
        if not isinstance(envelope.id, str):
            return False
        return await self._calls.take(envelope.id, lambda: self.dialect.load_answer(envelope), principal)

    async def connect(self, connection: Connection) -> LiveConnection:
        """Return the response to a request, in the version that its client speaks. Raises `SessionEnded`."""
        session = self._session_of(connection)
        if not self._live.states.has_surely_not_ended(session):
            await self._check(session)
        return self._live_connection(connection, session)

    async def serve(self, call: Call, connection: LiveConnection) -> Reply | None:
        """Serve a call, at once if it can't ask; see `LiveCalls.serve`. None if the response has no reply."""
        if call.method not in OPEN_METHODS:
            return connection.form.reply(call, await self._dispatcher.dispatch(call, connection))
        self._watch.enter(connection)
        try:
            outcome = await self._calls.serve(call, connection)
        finally:
            self._leave(connection)
        if outcome is None:
            await connection.end_without_reply()
            return None
        return connection.form.reply(call, outcome)

    def note_answered(self, session: Session, request_id: str | int | None) -> None:
        if session.key and request_id is not None:
            self._calls.note_answered(session.key, request_id)

    def _leave(self, connection: LiveConnection) -> None:
        self._watch.leave(connection)
        connection.unwatch()  # also of a short call: one that has a stream is watched at once

    async def _check(self, session: Session) -> None:
        states = self._live.states
        if not states.has_surely_not_ended(session) and await states.has_ended(session):
            raise SessionEnded

    def _session_of(self, connection: Connection) -> Session:
        return self.dialect.session_of(connection.headers, connection.principal)

    def _live_connection(self, connection: Connection, session: Session) -> LiveConnection:
        form = self.dialect.speaking(connection.headers, session)
        return LiveConnection(connection, form, session, self._calls, self._live.states)

    # A batch

    def takes_batch(self, body: bytes, connection: Connection) -> bool:
        """Return whether a body is a batch, of a client whose version has batches."""
        if body[:100].lstrip()[:1] != b"[":
            return False
        headers, session = connection.headers, self._session_of(connection)
        return self.dialect.is_named(headers, session) and self.dialect.speaking(headers, session).form.batches

    async def serve_batch(self, body: bytes, connection: Connection) -> Reply:
        """Return the reply to a batch. Its messages are served in turn; what it calls can't ask, and sends no notes."""
        values = self._limits.values
        if len(body) > values and has_more_values(body, values):
            return self.dialect.refuse(OverBudget(f"The batch holds more than {values} JSON values", "values", values))
        try:
            messages = read_json(body)
        except ValueError:
            messages = []
        if not 0 < len(messages) <= MOST_IN_BATCH:
            return self.dialect.refuse(InvalidRequest(f"A batch holds 1 to {MOST_IN_BATCH} messages"))
        session = self._session_of(connection)
        replies: list[Reply] = []
        refusals: list[Reply] = []
        for message in messages:
            quiet = self._live_connection(connection, session)
            quiet.portion = None  # the whole batch counts until all of it is served
            quiet.headers = {name: value for name, value in connection.headers.items() if name != b"accept"}
            part = to_json(message, inf_nan_mode="constants")
            request_id, reply = await self._serve_part(part, quiet)
            if reply is not None:
                self.note_answered(quiet.session, request_id)
                (replies if request_id is not None else refusals).append(reply)
        if not replies:  # there was no request in it
            return refusals[0] if refusals else Reply(202, b"")
        return Reply(200, b"[" + b",".join(reply.body for reply in (*replies, *refusals)) + b"]")

    async def _serve_part(self, body: bytes, connection: LiveConnection) -> tuple[str | int | None, Reply | None]:
        form, request_id, call = connection.form, None, None
        try:
            envelope = read_envelope(body, connection.headers, "", self._limits.json_depth, self._limits.values)
            request_id = envelope.id if envelope.method else None
            if request_id is None:
                if not await self.take(envelope, connection.principal):
                    raise InvalidRequest(NO_METHOD, envelope.id)
                return None, None
            if envelope.method == "initialize":
                raise InvalidRequest("initialize can't be part of a batch", request_id)
            call = connection.open(envelope, body)
            outcome = await self._calls.serve(call, connection)
            return request_id, None if outcome is None else form.reply(call, outcome)
        except Exception as error:
            failure = failure_of(self._refusals, call, error)
            return request_id, form.refuse(failure) if request_id is None else form.error(request_id, failure)

    # GET and DELETE

    async def get(self, connection: Connection) -> None:
        """Serve a `GET`: continue a stream, or open that of a session's notifications (Transports, Listening)."""
        self.dialect.check_version(connection.headers)
        live = await self.connect(connection)
        last = connection.headers.get(LAST_EVENT, b"").strip().decode("latin-1")
        if not connection.accepts_stream():
            await self._refuse(connection)
        elif last:
            await self._resume(last, connection)
        else:
            await self._notify(live)

    async def delete(self, connection: Connection) -> None:
        """Serve a `DELETE`: end a session, where all replicas learn of it (Transports, Session Management)."""
        self.dialect.check_version(connection.headers)
        principal, session = connection.principal, self._session_of(connection)
        if session.key and self._live.store.shared:
            with suppress(StoreUnavailable, Busy):
                await self._check(session)
                await self._live.states.change(session.key, principal, lambda state: replace(state, ended=True))
                await connection.respond(204, b"")
                return
        await self._refuse(connection)

    async def _resume(self, last: str, connection: Connection) -> None:
        event: StreamEvent | None = None
        if not last.startswith(ENDED):
            with store_needed:
                event = await self._live.events.unseal(last, connection.principal)
        if event is None:
            await self._refuse(connection)
            return
        origin = event.origin
        form = self.dialect.of_version(origin.session.version)
        live = LiveConnection(connection, form, origin.session, self._calls, self._live.states)
        self._watch.enter(live)
        call: Call | None = None
        try:
            if event.is_lost:
                raise ProtocolError(TOO_LATE_TO_CONTINUE)
            call = live.reopen(event)
            outcome = await self._calls.resume(event, call, live)
            reply = None if outcome is None else form.reply(call, outcome)
        except Exception as error:
            reply = form.error(origin.request_id, failure_of(self._refusals, call, error))
        finally:
            self._leave(live)
        if reply is None:
            await live.end_without_reply()
        else:
            self.note_answered(origin.session, origin.request_id)
            # An HTTP error would make clients come back, and then give up without a word.
            await live.finish_stream(reply)

    async def _notify(self, connection: LiveConnection) -> None:
        principal, session = connection.principal, connection.session.key
        is_one_too_many = bool(session) and self._listening[session] >= MOST_LISTENING
        streams, person = self._live.held_streams, person_of(principal)
        if is_one_too_many or not streams.has_room(person) or self._admission.draining:
            await self._refuse(connection)
            return
        task, sender = connection.form.task_offer, connection.sender
        call = Call("sessions/listen", {}, task=task, session=session, **sender._asdict())
        with streams.take(person), self._counted(session):
            try:
                listening = await self._dispatcher.dispatch(call, connection)
            except Full as full:
                note_refusal(self._refusals, None, full)
                await self._refuse(connection)
                return
            assert isinstance(listening, Listening)  # noqa: S101  the method has no other outcome
            await connection.listen(call, listening)

    @contextmanager
    def _counted(self, session: str) -> Iterator[None]:
        self._listening[session] += 1
        try:
            yield
        finally:
            self._listening[session] -= 1
            if not self._listening[session]:
                del self._listening[session]

    async def _refuse(self, connection: Connection) -> None:
        refused = connection.scope["method"]
        await connection.respond(405, b"", self.allow(refused))

    def allow(self, refused: str) -> tuple[bytes, bytes]:
        """Return the header that says which methods are served, other than a refused one."""
        served = ("GET", "POST", "DELETE") if self._live.store.shared else ("GET", "POST")
        return b"allow", ", ".join(method for method in served if method != refused).encode()

    async def _cancel(self, envelope: Envelope, principal: Principal | None) -> None:
        session = self.dialect.session_of(envelope.headers, principal)
        request_id: Any = envelope.params.get("requestId")
        note_cancellation(envelope.params)
        if session.key and type(request_id) in (str, int):
            with suppress(StoreUnavailable, Busy):  # it is no promise
                await self._calls.cancel(session.key, request_id, principal)
