"""The handshake era over HTTP: answers and cancellations that come on their own, `GET` and `DELETE`."""

import asyncio
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any

from pydantic_core import from_json, to_json
from starlette.types import Receive, Scope

from ..errors import Busy, InternalFault, InvalidRequest, ProtocolError, RequestError, SessionEnded, StoreUnavailable
from ..flow.admission import Admission
from ..limits import Limits
from ..live.events import ENDED, Event
from ..live.live_calls import LiveCalls, store_needed
from ..live.parts import LiveParts
from ..logs.failures import report_failure
from ..methods.dispatcher import Dispatcher
from ..protocol.all_dialects import CANCELLED, Envelope, HandshakeDialect, Reply, read_envelope
from ..protocol.callers import Principal
from ..protocol.messages import ASKING_METHODS, Call, Listening, Outcome
from ..protocol.sessions import Session, owner_of
from ..protocol.users import principal_of, scopes_of
from .connection import Connection, Watch
from .live_connection import LiveConnection
from .response_writer import ResponseWriter

LAST_EVENT = b"last-event-id"

MOST_IN_BATCH = 100
"""How many messages a batch may hold."""


class HandshakeEndpoint:
    """Serves what only clients of the handshake era send.

    Args:
        dialect: their form.
        dispatcher: answers calls.
        calls: serves open calls.
        live: what they and sessions share.
        limits: what a request may use.
        admission: whether the server is draining.
        watch: finds the calls that take long.
    """

    def __init__(
        self,
        dialect: HandshakeDialect,
        dispatcher: Dispatcher,
        calls: LiveCalls,
        live: LiveParts,
        limits: Limits,
        admission: Admission,
        watch: Watch,
    ) -> None:
        self.dialect = dialect
        self._dispatcher = dispatcher
        self._calls = calls
        self._live = live
        self._limits = limits
        self._admission = admission
        self._watch = watch

    # POST

    async def take(self, envelope: Envelope, principal: Principal | None) -> bool:
        """Take a message that needs no reply.

        Args:
            envelope: a notification or a response.
            principal: on whose behalf it came.

        Returns:
            Whether it was taken: any notification is, and a response that answers a question of an open call.

        Raises:
            RequestError: it could not be kept.
        """
        if envelope.method:
            if envelope.method == CANCELLED:
                await self._cancel(envelope, principal)
            return True
        answers = self._live.answers
        asked = answers.open(envelope.id, principal) if isinstance(envelope.id, str) else None
        if asked is None:
            return False
        with store_needed():
            await answers.keep(asked, self.dialect.load_answer(envelope))
        return True

    async def check(self, session: Session) -> None:
        """Check that the client of a session has not ended it. Raises `SessionEnded`."""
        states = self._live.states
        if not states.has_surely_not_ended(session) and await states.has_ended(session):
            raise SessionEnded

    def connect(
        self,
        headers: Mapping[bytes, bytes],
        session: Session,
        scope: Scope,
        receive: Receive,
        writer: ResponseWriter,
        request: "asyncio.Task[Any]",
    ) -> LiveConnection:
        """Return the response to a request, in the form of the version that its client speaks."""
        dialect = self.dialect.speaking(headers, session)
        calls, states = self._calls, self._live.states
        return LiveConnection(
            dialect, headers, self._admission, scope, receive, writer, request, session, calls, states
        )

    async def serve(self, call: Call, connection: LiveConnection) -> Outcome | None:
        """Serve a call; see `LiveCalls.serve`. What can't ask is answered at once."""
        if call.method not in ASKING_METHODS:
            return await self._dispatcher.dispatch(call, connection)
        self._watch.enter(connection)
        try:
            return await self._calls.serve(call, connection)
        finally:
            self._watch.leave(connection)

    # A batch

    def takes_batch(self, body: bytes, headers: Mapping[bytes, bytes], scope: Scope) -> bool:
        """Return whether a body is a batch, of a client whose version has batches."""
        if body[:100].lstrip()[:1] != b"[":
            return False
        session = self.dialect.session_of(headers, _principal(scope))
        return self.dialect.is_named(headers, session) and self.dialect.speaking(headers, session).form.batches

    async def serve_batch(
        self,
        body: bytes,
        headers: Mapping[bytes, bytes],
        scope: Scope,
        receive: Receive,
        writer: ResponseWriter,
        request: "asyncio.Task[Any]",
    ) -> Reply:
        """Return the reply to a batch. Its messages are served in turn; what it calls can't ask, and sends no notes."""
        try:
            messages = from_json(body)
        except ValueError:
            messages = []
        if not 0 < len(messages) <= MOST_IN_BATCH:
            return self.dialect.error(None, InvalidRequest(f"A batch holds 1 to {MOST_IN_BATCH} messages"))
        quiet = {name: value for name, value in headers.items() if name != b"accept"}
        replies = []
        for message in messages:
            part = to_json(message, inf_nan_mode="constants")
            if reply_to_part := await self._serve_part(part, quiet, scope, receive, writer, request):
                replies.append(reply_to_part.body)
        return Reply(200, b"[" + b",".join(replies) + b"]") if replies else Reply(202, b"")

    async def _serve_part(
        self,
        body: bytes,
        headers: Mapping[bytes, bytes],
        scope: Scope,
        receive: Receive,
        writer: ResponseWriter,
        request: "asyncio.Task[Any]",
    ) -> Reply | None:
        dialect, request_id = self.dialect, None
        try:
            envelope = read_envelope(body, headers, "", self._limits.json_depth, self._limits.values)
            request_id = envelope.id
            principal = _principal(scope)
            if request_id is None or not envelope.method:
                await self.take(envelope, principal)
                return None
            if envelope.method == "initialize":
                raise InvalidRequest("initialize can't be part of a batch", request_id)
            session = dialect.session_of(headers, principal)
            connection = self.connect(headers, session, scope, receive, writer, request)
            dialect = dialect.speaking(headers, session)
            call = connection.open(envelope, body)
            outcome = await self._calls.serve(call, connection)
            return None if outcome is None else dialect.reply(call, outcome)
        except RequestError as error:
            return dialect.error(request_id if request_id is not None else error.request_id, error)
        except Exception as error:
            return dialect.error(request_id, InternalFault(report_failure("A request failed", error=error)))

    # GET and DELETE

    async def get(
        self,
        headers: Mapping[bytes, bytes],
        scope: Scope,
        receive: Receive,
        writer: ResponseWriter,
        request: "asyncio.Task[Any]",
    ) -> None:
        """Serve a `GET`: continue a stream, or open that of a session's notifications (Transports, Listening)."""
        principal = _principal(scope)
        session = self.dialect.session_of(headers, principal)
        await self.check(session)
        connection = self.connect(headers, session, scope, receive, writer, request)
        last = headers.get(LAST_EVENT, b"").strip().decode("latin-1")
        if not connection.accepts_stream():
            await writer.respond(405, b"", (b"allow", b"POST"))
        elif last:
            await self._resume(last, principal, connection, (headers, scope, receive, writer, request))
        else:
            await self._notify(session, principal, scope, connection, writer)

    async def delete(self, headers: Mapping[bytes, bytes], scope: Scope, writer: ResponseWriter) -> None:
        """Serve a `DELETE`: end a session, where all workers learn of it (Transports, Session Management)."""
        principal = _principal(scope)
        session = self.dialect.session_of(headers, principal)
        if session.key and self._live.is_shared():
            with suppress(StoreUnavailable, Busy):
                await self.check(session)
                states, owner = self._live.states, owner_of(principal)
                await states.change(session.key, owner, lambda state: replace(state, ended=True))
                await writer.respond(204, b"")
                return
        await writer.respond(405, b"", (b"allow", b"POST"))

    async def _resume(
        self, last: str, principal: Principal | None, connection: LiveConnection, parts: tuple[Any, ...]
    ) -> None:
        if last.startswith(ENDED):
            event: Event | None = None
        else:
            with store_needed():
                event = await self._live.events.open(last, principal)
        if event is None:
            await connection.refuse_resuming()
            return
        headers, scope, receive, writer, request = parts
        origin = event.origin
        dialect = self.dialect.of_version(origin.session.version)
        calls, states = self._calls, self._live.states
        connection = LiveConnection(
            dialect, headers, self._admission, scope, receive, writer, request, origin.session, calls, states
        )
        self._watch.enter(connection)
        try:
            if event.is_lost:
                raise ProtocolError("Nobody answered in time; call again")
            call = connection.reopen(origin)
            outcome = await calls.resume(event, call, connection)
            reply = None if outcome is None else dialect.reply(call, outcome)
        except RequestError as error:
            reply = dialect.error(origin.request_id, error)
        except Exception as error:
            reply = dialect.error(origin.request_id, InternalFault(report_failure("A request failed", error=error)))
        finally:
            self._watch.leave(connection)
        if reply is None:
            await connection.end()
        else:
            # An HTTP error would make clients come back, and then give up without a word.
            await connection.finish_stream(reply)

    async def _notify(
        self,
        session: Session,
        principal: Principal | None,
        scope: Scope,
        connection: Connection,
        writer: ResponseWriter,
    ) -> None:
        owner = owner_of(principal)
        if not self._live.holds.have_room(owner) or self._admission.draining:
            await writer.respond(405, b"", (b"allow", b"POST"))
            return
        call = Call("sessions/listen", {}, principal=principal, user=scope.get("user"), session=session.key)
        if (credentials := scope.get("auth")) is not None:
            call.scopes = scopes_of(credentials)
        with self._live.holds.hold(owner):
            listening = await self._dispatcher.dispatch(call, connection)
            assert isinstance(listening, Listening)  # noqa: S101  the method has no other outcome
            await connection.listen(call, listening)

    async def _cancel(self, envelope: Envelope, principal: Principal | None) -> None:
        session = self.dialect.session_of(envelope.headers, principal)
        request_id: Any = envelope.params.get("requestId")
        if session.key and type(request_id) in (str, int):
            with suppress(StoreUnavailable):  # it is no promise
                await self._calls.cancel(session.key, request_id)


def _principal(scope: Scope) -> Principal | None:
    user = scope.get("user")
    return None if user is None else principal_of(user)
