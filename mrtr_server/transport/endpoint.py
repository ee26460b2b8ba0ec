"""The MCP endpoint: from a POST to its call, and from the call's outcome to the response."""

import asyncio
import logging
from codecs import BOM_UTF8
from collections.abc import Awaitable, Coroutine, Mapping, Sequence
from dataclasses import replace
from typing import Any

from starlette.types import Receive, Scope, Send

from ..concurrency.running import running_task
from ..errors import (
    CutOff,
    Full,
    InsufficientScope,
    InternalFault,
    OverBudget,
    PayloadTooLarge,
    RequestError,
)
from ..flow.admission import Admission
from ..limits import Limits
from ..live.live_calls import LiveCalls
from ..live.parts import UNCOUNTED, LiveParts
from ..logs.failures import report_failure
from ..logs.refusals import RefusalLog
from ..methods.dispatcher import Dispatcher
from ..protocol.callers import ClientInfo, person_of
from ..protocol.dialect import Dialect, Reply
from ..protocol.envelope import VERSION_HEADER, Envelope, read_envelope
from ..protocol.messages import LISTEN, NOTHING, Call, Listening
from ..protocol.served_dialects import ServedDialects
from ..protocol.trace import HEARD
from .authentication import Challenges
from .connection import JSON_TYPE, NO_HEADERS, Connection, Headers, Watch
from .gate import HeaderChecks, drain_body, join_repeated, refuse_repeated
from .handshake_endpoint import HandshakeEndpoint
from .live_connection import LiveConnection
from .openings import Openings
from .requests import InFlight, named, note_refusal

logger = logging.getLogger("mrtr_server")


class Endpoint:
    """The MCP endpoint: accepts one POST, and responds with one reply or one stream (Streamable HTTP)."""

    def __init__(
        self,
        dispatcher: Dispatcher,
        dialects: ServedDialects,
        calls: LiveCalls,
        live: LiveParts,
        limits: Limits,
        admission: Admission,
        *,
        origins: frozenset[str],  # that browsers may call from, besides loopback; `"*"` for any
        allowed_hosts: Sequence[str] | None,  # what `Host` may be; None for anything
        challenges: Challenges,
        refusals: RefusalLog,
    ) -> None:
        self._first = dialects.first
        self._choose = dialects.choose
        self._by_header = dialects.by_header
        self._dispatch = dispatcher.dispatch
        self._limits = limits
        self._longest_length = len(str(limits.body_bytes))
        self._uncounted = min(UNCOUNTED, limits.body_bytes)  # bytes of a body that neither count nor are too many
        self._admission = admission
        self._held_bytes = live.held_bytes
        self._checks_hosts = allowed_hosts is not None
        self._refuse = HeaderChecks(origins, allowed_hosts, refusals).refuse
        self._challenges = challenges
        self._refusals = refusals
        self._watch = Watch()
        self._handshake: HandshakeEndpoint | None = None
        if dialects.handshake is not None:
            self._handshake = HandshakeEndpoint(
                dialects.handshake, dispatcher, calls, live, limits, admission, self._watch, refusals
            )
        self._in_flight = InFlight(admission.shutdown)
        self._openings = Openings()

    def __call__(self, scope: Scope, receive: Receive, send: Send) -> Awaitable[None]:
        listed, repeated, method = scope["headers"], "", scope["method"]
        headers: dict[bytes, bytes] = dict(listed)
        if len(headers) != len(listed):
            if (ambiguous := refuse_repeated(listed, self._refusals)) is not None:
                return ambiguous(scope, receive, send)
            repeated = join_repeated(headers, listed)
        connection = Connection(headers, self._admission, scope, receive, send, self._limits.write_seconds)
        if method != "POST" and (self._handshake is None or method not in ("GET", "DELETE")):
            allowed = (b"allow", b"POST") if self._handshake is None else self._handshake.allow(method)
            return connection.respond(405, b"", allowed)
        if not self.accepts(headers) and (refusal := self._refuse(headers, method)) is not None:
            return connection.respond(*refusal)
        return self._answer(connection, method, repeated)

    def accepts(self, headers: Mapping[bytes, bytes]) -> bool:
        """Return whether a POST with these headers is sure to be served, so that nothing need be refused."""
        return headers.get(b"content-type") == JSON_TYPE and b"origin" not in headers and not self._checks_hosts

    def serve_known(self, request: Any) -> Awaitable[None]:
        """Serve a POST whose head has come before, and was accepted: a `KnownRequest` of `uvicorn_http/heads.py`."""
        seconds, scope = self._limits.write_seconds, request.scope
        connection = Connection(request.headers(), self._admission, scope, request.receive, request.send, seconds)
        connection.own_scope = request.own_scope
        return self._answer(connection, "POST", "")

    async def _answer(self, connection: Connection, method: str, repeated: str) -> None:
        connection.request = request = running_task()
        connection.loop = request.get_loop()
        self._in_flight.enter(request)
        try:
            if method == "POST":
                # The body is not kept here: a call may wait for a person, and a stream stay open for long.
                rest = await self._serve(
                    connection,
                    repeated,
                    None if connection.shortcuts is None else connection.shortcuts.take_body(connection.server_request),
                )
                if rest is not None:
                    await rest
            else:
                await self._serve_other(connection, method)
        except asyncio.CancelledError:
            if not self._in_flight.forgive(request):  # not even its answer was taken in time
                raise
        finally:
            self._in_flight.leave(request)
            if connection.portion is not None:
                connection.portion.end()
            if connection.opening is not None:
                connection.opening.end()

    async def _read(self, connection: Connection) -> bytes | None:
        limit = self._limits.body_bytes
        length = connection.headers.get(b"content-length", b"")
        if len(length) >= self._longest_length and length.isdigit() and int(length[:32]) > limit:
            raise await self._refuse_body(connection, PayloadTooLarge(limit))
        parts: list[bytes] = []
        size = 0
        while True:
            message = await connection.receive()
            if message["type"] != "http.request":
                return None
            parts.append(message.get("body", b""))
            size += len(parts[-1])
            if size > self._uncounted:
                await self._hold(connection, size, parts, is_all=not message.get("more_body"))
            if not message.get("more_body"):
                return parts[0] if len(parts) == 1 else b"".join(parts)

    async def _serve(
        self, connection: Connection, repeated: str, body: bytes | None
    ) -> Coroutine[Any, Any, None] | None:
        """Serve a POST; return what serves it if it is of the handshake era."""
        dialect = self._first
        call: Call | None = None
        request_id: str | int | None = None
        reply: tuple[int, bytes, Headers] | None
        headers, limits, handshake = connection.headers, self._limits, self._handshake
        try:
            if body is None:
                body = await self._read(connection)
                if body is None:
                    return None
            elif len(body) > self._uncounted:
                await self._hold(connection, len(body), (body,), is_all=True)
            body = body.removeprefix(BOM_UTF8)  # which JSON does not need, and some writers add
            if body[:1] != b"{" and handshake is not None and handshake.takes_batch(body, connection):
                return self._serve_handshake(handshake, connection, None, body)
            envelope = read_envelope(body, headers, repeated, limits.json_depth, limits.values)
            request_id = envelope.id if envelope.method else None
            if request_id is None and await self._take(envelope, connection):
                await connection.respond(202, b"")
                return None
            dialect = self._by_header.get(headers.get(VERSION_HEADER, b"")) or self._choose(envelope)
            connection.dialect = dialect
            if handshake is not None and dialect is handshake.dialect:
                return self._serve_handshake(handshake, connection, envelope, body)
            del body  # a stream may stay open for long, and need not hold what opened it
            call = dialect.load_call(envelope, connection.sender)
            call.trace.heard = connection.shared_scope.get(HEARD)
            del envelope
            connection.opening = await self._openings.turn() if call.method == LISTEN else None
            self._watch.enter(connection)
            try:
                outcome = await self._dispatch(call, connection)
            finally:
                self._watch.leave(connection)
            if isinstance(outcome, Listening):
                call = replace(call, client=ClientInfo())
                await connection.listen(call, outcome)
                return None
            written = dialect.dump_outcome(call, outcome)
            reply = (200 if written else 202, written, NO_HEADERS)
            call = None  # the client may take its time to read the reply, and both may be as large
            del outcome
        except (Exception, asyncio.CancelledError) as error:
            reply = await self._failed(error, connection, dialect, call, request_id)
        if reply is not None and (ending := connection.finish(reply[0], reply[1], reply[2])) is not NOTHING:
            await ending
        return None

    async def _hold(self, connection: Connection, size: int, begun: Sequence[bytes], *, is_all: bool) -> None:
        """Count the bytes of a body that are held. Raises `PayloadTooLarge`; or `Full`, if there is no room."""
        try:
            if size > self._limits.body_bytes:
                raise PayloadTooLarge(self._limits.body_bytes)
            if connection.portion is None:
                connection.portion = self._held_bytes.portion(person_of(connection.principal))
            connection.portion.grow(size)
        except (Full, PayloadTooLarge) as error:
            raise await self._refuse_body(connection, error, b"".join(begun), is_all=is_all) from None

    async def _refuse_body(
        self, connection: Connection, error: Full | PayloadTooLarge, begun: bytes = b"", *, is_all: bool = False
    ) -> Full | PayloadTooLarge:
        """Return the error for a body that is not taken; it has the id of the request if that is there or needed."""
        connection.is_unread = True
        handshake = self._handshake
        is_whole = is_all and isinstance(error, Full)  # of which the next requests of a connection may follow
        if is_whole or (handshake is not None and handshake.dialect.is_of(connection.headers)):
            error.request_id = await drain_body(connection.receive, self._limits.body_bytes, begun, is_all=is_all)
        return error

    async def _serve_handshake(
        self, handshake: HandshakeEndpoint, connection: Connection, envelope: Envelope | None, body: bytes
    ) -> None:
        """Serve a request of the handshake era, or a batch, which has no envelope."""
        reply: Reply | None
        call: Call | None = None
        live: LiveConnection | None = None
        dialect = handshake.dialect
        request_id = None if envelope is None or not envelope.method else envelope.id
        try:
            if envelope is None:
                reply = await handshake.serve_batch(body, connection)
            else:
                connection = live = await handshake.connect(connection)
                dialect = live.form
                call = live.open(envelope, body)
                del envelope, body  # as above
                reply = await handshake.serve(call, live)
                call = None
        except (Exception, asyncio.CancelledError) as error:
            reply = await self._failed(error, connection, dialect, call, request_id)
        if reply is not None:
            if live is not None:
                handshake.note_answered(live.session, request_id)
            await connection.finish(*reply)

    async def _take(self, envelope: Envelope, connection: Connection) -> bool:
        """Accept a notification or a response; return False if it is for a dialect. Raises `RequestError`."""
        if self._handshake is None:
            return envelope.id is None  # there is no notification that we would act on
        return await self._handshake.take(envelope, connection.principal)

    async def _serve_other(self, connection: Connection, method: str) -> None:
        """Serve a `GET` or `DELETE`, which only clients of the handshake era send."""
        handshake = self._handshake
        assert handshake is not None  # noqa: S101  who calls this has checked that
        try:
            if method == "GET":
                connection.opening = await self._openings.turn()
                await handshake.get(connection)
            else:
                await handshake.delete(connection)
        except RequestError as error:
            note_refusal(self._refusals, None, error)
            await connection.finish(*handshake.dialect.refuse(error))

    async def _failed(
        self,
        error: BaseException,
        connection: Connection,
        dialect: Dialect,
        call: Call | None,
        request_id: str | int | None,
    ) -> Reply | None:
        """Return the reply to a request that failed; None if its client has left. Raises what nobody may answer."""
        if isinstance(error, asyncio.CancelledError):
            if connection.gone:
                await connection.leave()
                return None
            # A shutdown cut it off, by our own clock or by the web server's; or else it is not ours to answer.
            if connection.listens or self._admission.shutdown.began is None:
                connection.abandon()
                raise error
            self._in_flight.forgive(connection.request)
            logger.warning("%s was cut off, since the server shuts down", named(call))
            return dialect.error(request_id, CutOff())
        if isinstance(error, RequestError):
            note_refusal(self._refusals, call, error)
            handshake, found = self._handshake, error.request_id
            if connection.is_unread and found is None:  # so the connection can't be used again
                reply = dialect.refuse(error)
                return reply._replace(headers=(*reply.headers, (b"connection", b"close")))
            is_unread = request_id is None and (connection.is_unread or isinstance(error, OverBudget))
            if is_unread and found and handshake is not None and handshake.dialect.is_of(connection.headers):
                return handshake.dialect.error(found, error)  # at an HTTP error, its client would end its session
            reply = dialect.refuse(error) if request_id is None else dialect.error(request_id, error)
            if isinstance(error, InsufficientScope):
                challenge = self._challenges.insufficient_scope(connection.scope, error.scopes)
                reply = reply._replace(headers=(*reply.headers, (b"www-authenticate", challenge.encode())))
            return reply
        return dialect.error(request_id, InternalFault(report_failure("A request failed", error=error)))
