"""The MCP endpoint: from a POST to its call, and from the call's outcome to the response."""

import asyncio
import logging
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from starlette.types import Receive, Scope, Send

from ..errors import CutOff, InternalFault, MissingCapability, PayloadTooLarge, RequestError, SetupError
from ..flow.admission import Admission
from ..limits import Limits
from ..live.live_calls import LiveCalls
from ..live.parts import LiveParts
from ..logs.failures import report_failure
from ..logs.refusals import RefusalLog
from ..methods.dispatcher import Dispatcher
from ..protocol.all_dialects import (
    DIALECTS,
    Dialect,
    Envelope,
    HandshakeDialect,
    Reply,
    Surface,
    read_envelope,
    unclaimed,
)
from ..protocol.callers import Client
from ..protocol.header_params import HeaderParameter
from ..protocol.messages import JSON, Call, Listening
from ..protocol.users import principal_of, scopes_of
from .connection import Connection, Watch, running_request
from .gate import refuse_repeated
from .handshake_endpoint import HandshakeEndpoint
from .in_flight import InFlight
from .live_connection import LiveConnection
from .response_writer import JSON_TYPE, ResponseWriter

logger = logging.getLogger("mrtr_server")

_LOOPBACK = re.compile(r"https?://(localhost|127\.0\.0\.1|\[::1\])(:[0-9]{1,5})?")


class Endpoint:
    """The MCP endpoint: accepts one POST, and responds with one reply or one stream (Streamable HTTP).

    Args:
        dispatcher: answers calls.
        info: the server's name, version and so on, in the shape of `Implementation`.
        header_parameters: returns the parameters of a tool that headers mirror.
        may_be_task: returns whether a tool's calls may become tasks.
        output_schema: returns the schema of a tool's results.
        calls: serves calls that stay open while the client answers.
        live: what these and sessions share.
        limits: what a request may use.
        admission: whether the server is draining.
        dialects: the names of the wire forms to serve; None for all.
        allowed_origins: the origins that browsers may call from, besides loopback; `"*"` for any.
        allowed_hosts: what `Host` may be; None for anything.
        refusals: logs refused requests.

    Raises:
        SetupError: there is no dialect of a name.
    """

    def __init__(
        self,
        dispatcher: Dispatcher,
        info: JSON,
        header_parameters: Callable[[str], tuple[HeaderParameter, ...]],
        may_be_task: Callable[[str], bool],
        output_schema: Callable[[str], JSON | None],
        calls: LiveCalls,
        live: LiveParts,
        limits: Limits,
        admission: Admission,
        *,
        dialects: Sequence[str] | None,
        allowed_origins: Sequence[str],
        allowed_hosts: Sequence[str] | None,
        refusals: RefusalLog,
    ) -> None:
        if dialects is not None and (not dialects or set(dialects) - DIALECTS.keys()):
            raise SetupError(f"dialects={list(dialects)!r}: choose from {', '.join(DIALECTS)}")
        chosen = [dialect for name, dialect in DIALECTS.items() if dialects is None or name in dialects]
        versions = [dialect.version for dialect in chosen if dialect.version]
        self._versions = [each for dialect in chosen for each in dialect.versions]
        surface = Surface(info, versions, header_parameters, may_be_task, output_schema, live.sessions)
        self._dialects = [dialect(surface) for dialect in chosen]
        self._dispatcher = dispatcher
        self._limits = limits
        self._admission = admission
        self._origins = frozenset(origin.rstrip("/").lower() for origin in allowed_origins)
        self._hosts = None if allowed_hosts is None else frozenset(host.lower() for host in allowed_hosts)
        self._refusals = refusals
        self._watch = Watch()
        self._handshake: HandshakeEndpoint | None = None
        for each in self._dialects:
            if isinstance(each, HandshakeDialect):
                self._handshake = HandshakeEndpoint(each, dispatcher, calls, live, limits, admission, self._watch)
        self._in_flight = InFlight(admission.shutdown)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one HTTP request."""
        writer = ResponseWriter(receive, send, self._limits.write_seconds)
        listed = scope["headers"]
        headers: dict[bytes, bytes] = dict(listed)
        repeated = ""
        if len(headers) != len(listed):
            if (ambiguous := refuse_repeated(listed, self._refusals)) is not None:
                await ambiguous(scope, receive, send)
                return
            repeated = _join_repeated(headers, listed)
        method = scope["method"]
        if method != "POST" and (self._handshake is None or method not in ("GET", "DELETE")):
            await writer.respond(405, b"", (b"allow", b"POST"))
            return
        refusal = self._refuse(headers, method)
        if refusal is not None:
            await writer.respond(*refusal)
            return
        request = running_request()
        self._in_flight.enter(request)
        try:
            if method == "POST":
                await self._serve(headers, repeated, scope, receive, writer, request)
            else:
                await self._serve_other(method, headers, scope, receive, writer, request)
        except asyncio.CancelledError:
            if not self._in_flight.forgive(request):  # not even its answer was taken in time
                raise
        finally:
            self._in_flight.leave(request)

    def _refuse(self, headers: Mapping[bytes, bytes], method: str) -> tuple[int, bytes] | None:
        origin = headers.get(b"origin")
        if origin is not None and not self._origin_allowed(origin.decode("latin-1")):
            self._refusals.note(
                "Refused the origin %r: to let browsers call from there, add it to allowed_origins=",
                origin.decode("latin-1"),
            )
            return 403, b'{"error":"Origin not allowed"}'
        if self._hosts is not None and not self._host_allowed(headers.get(b"host", b"").decode("latin-1")):
            self._refusals.note(
                "Refused the host %r: if clients reach this server by that name, add it to allowed_hosts=",
                headers.get(b"host", b"").decode("latin-1"),
            )
            return 403, b'{"error":"Host not allowed"}'
        kind = headers.get(b"content-type", b"") if method == "POST" else JSON_TYPE
        if kind != JSON_TYPE and kind.partition(b";")[0].strip().lower() != JSON_TYPE:
            return 415, b'{"error":"Content-Type must be application/json"}'
        return None

    def _host_allowed(self, host: str) -> bool:
        host = host.lower()
        name, _, port = host.rpartition(":")
        return self._hosts is None or host in self._hosts or (port.isdigit() and name in self._hosts)

    def _origin_allowed(self, origin: str) -> bool:
        origin = origin.strip().lower()
        if origin == "null":
            return False
        return "*" in self._origins or origin in self._origins or _LOOPBACK.fullmatch(origin) is not None

    async def _read(self, headers: Mapping[bytes, bytes], receive: Receive) -> bytes | None:
        """Read the body; None if the client left before it was all there."""
        limit = self._limits.body_bytes
        length = headers.get(b"content-length", b"")
        if length.isdigit() and int(length[:32]) > limit:
            raise PayloadTooLarge(limit)
        message = await receive()
        body: bytes = message.get("body", b"")
        if not message.get("more_body"):
            if len(body) > limit:
                raise PayloadTooLarge(limit)
            return body if message["type"] == "http.request" else None
        parts, size = [body], len(body)
        while message.get("more_body"):
            if size > limit:
                raise PayloadTooLarge(limit)
            message = await receive()
            if message["type"] != "http.request":
                return None
            parts.append(message.get("body", b""))
            size += len(parts[-1])
        if size > limit:
            raise PayloadTooLarge(limit)
        return b"".join(parts)

    async def _serve(
        self,
        headers: Mapping[bytes, bytes],
        repeated: str,
        scope: Scope,
        receive: Receive,
        writer: ResponseWriter,
        request: "asyncio.Task[Any]",
    ) -> None:
        exchange = _Exchange(self._dialects[0])
        try:
            reply = await self._answer(exchange, headers, repeated, scope, receive, writer, request)
            if reply is None:
                return
        except asyncio.CancelledError:
            connection = exchange.connection
            if connection is not None and connection.gone:
                await connection.leave()
                return
            if not self._can_answer(exchange):
                raise
            self._in_flight.forgive(request)
            logger.warning("%s was cut off, since the server shuts down", _named(exchange.call))
            reply = exchange.dialect.error(exchange.request_id, CutOff())
        except Exception as error:
            reply = self._failed(error, exchange)
        if exchange.connection is not None:
            await exchange.connection.finish(reply)
        else:
            await writer.respond(reply.status, reply.body, *reply.headers)

    async def _answer(
        self,
        exchange: "_Exchange",
        headers: Mapping[bytes, bytes],
        repeated: str,
        scope: Scope,
        receive: Receive,
        writer: ResponseWriter,
        request: "asyncio.Task[Any]",
    ) -> Reply | None:
        """Return the reply to a POST; None if it has been answered."""
        handshake = self._handshake
        body = await self._read(headers, receive)
        if body is None:
            return None
        user = scope.get("user")
        if body[:1] != b"{" and handshake is not None and handshake.takes_batch(body, headers, scope):
            return await handshake.serve_batch(body, headers, scope, receive, writer, request)
        envelope = read_envelope(body, headers, repeated, self._limits.json_depth, self._limits.values)
        exchange.request_id = envelope.id
        principal = None if user is None else principal_of(user)
        if envelope.id is None or not envelope.method:
            taken = envelope.id is None if handshake is None else await handshake.take(envelope, principal)
            if taken:
                return Reply(202, b"")
        exchange.dialect = dialect = self._choose(envelope)
        if handshake is not None and dialect is handshake.dialect:
            session = handshake.dialect.session_of(headers, principal)
            await handshake.check(session)
            exchange.connection = live = handshake.connect(headers, session, scope, receive, writer, request)
            return await self._answer_live(handshake, exchange, live, live.open(envelope, body))
        del body  # a stream may stay open for long, and need not hold what opened it
        exchange.call = call = dialect.load_call(envelope, principal, user)
        call.root = scope.get("root_path", "")
        if (credentials := scope.get("auth")) is not None:
            call.scopes = scopes_of(credentials)
        del envelope
        exchange.connection = connection = Connection(
            dialect, headers, self._admission, scope, receive, writer, request
        )
        self._watch.enter(connection)
        try:
            outcome = await self._dispatcher.dispatch(call, connection)
        finally:
            self._watch.leave(connection)
        if isinstance(outcome, Listening):
            call.params, call.client = {}, Client()
            exchange.listens = True
            await connection.listen(call, outcome)
            return None
        exchange.call = None  # the client may take its time to read the reply, and both may be as large
        return dialect.reply(call, outcome)

    async def _answer_live(
        self, handshake: HandshakeEndpoint, exchange: "_Exchange", connection: LiveConnection, call: Call
    ) -> Reply | None:
        """Return the reply to a request of the handshake era; None if it has been answered."""
        exchange.call = call
        exchange.dialect = dialect = connection.form
        outcome = await handshake.serve(call, connection)
        if outcome is None:
            await connection.end()
            return None
        exchange.call = None
        return dialect.reply(call, outcome)

    async def _serve_other(
        self,
        method: str,
        headers: Mapping[bytes, bytes],
        scope: Scope,
        receive: Receive,
        writer: ResponseWriter,
        request: "asyncio.Task[Any]",
    ) -> None:
        """Serve a `GET` or `DELETE`, which only clients of the handshake era send."""
        handshake = self._handshake
        assert handshake is not None  # noqa: S101  who calls this has checked that
        try:
            if method == "GET":
                await handshake.get(headers, scope, receive, writer, request)
            else:
                await handshake.delete(headers, scope, writer)
        except RequestError as error:
            reply = handshake.dialect.error(None, error)
            await writer.respond(reply.status, reply.body, *reply.headers)

    def _can_answer(self, exchange: "_Exchange") -> bool:
        """Check whether a cancelled request can be answered, for a shutdown cut it off; else abandon its response."""
        if not exchange.listens and self._admission.shutdown.began is not None:  # by our clock or by the web server's
            return True
        if exchange.connection is not None:
            exchange.connection.abandon()
        return False

    def _failed(self, error: Exception, exchange: "_Exchange") -> Reply:
        dialect, request_id = exchange.dialect, exchange.request_id
        if isinstance(error, PayloadTooLarge):
            # What is left of the body stays unread, so the connection can't be used again.
            return dialect.error(None, error)._replace(headers=((b"connection", b"close"),))
        if isinstance(error, MissingCapability):
            self._note_lacking(exchange.call, error)
        if isinstance(error, RequestError):
            return dialect.error(request_id if request_id is not None else error.request_id, error)
        return dialect.error(request_id, InternalFault(report_failure("A request failed", error=error)))

    def _note_lacking(self, call: Call | None, error: MissingCapability) -> None:
        what = f"{call.method} {call.target}" if call is not None else "a request about tasks"
        client = str(call.client.info.get("name") or "") if call is not None else ""
        self._refusals.note_lacking(what, client, error)

    def _choose(self, envelope: Envelope) -> Dialect:
        for dialect in self._dialects:
            if dialect.claims(envelope):
                return dialect
        raise unclaimed(envelope, self._versions)


class _Exchange:
    """What is known of one POST so far, for the case that it fails.

    Args:
        dialect: writes its errors until its own is known.
    """

    request_id: str | int | None = None
    connection: Connection | None = None
    call: Call | None = None
    listens = False

    def __init__(self, dialect: Dialect) -> None:
        self.dialect = dialect


def _named(call: Call | None) -> str:
    return f"{call.method} {call.target[:200]!r}" if call is not None else "A request that was still coming in"


def _join_repeated(headers: dict[bytes, bytes], listed: Iterable[tuple[bytes, bytes]]) -> str:
    """Join repeated headers in the dictionary; return the first of the protocol's, or an empty string."""
    values: dict[bytes, list[bytes]] = {}
    for name, value in listed:
        values.setdefault(name, []).append(value)
    for name in (b"accept", b"origin"):  # an origin of two is allowed nowhere
        if name in values:
            headers[name] = b", ".join(values[name])
    twice = (name for name, found in values.items() if len(found) > 1 and name.startswith(b"mcp-"))
    return next(twice, b"").decode("latin-1")
