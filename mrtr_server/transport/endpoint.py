"""The MCP endpoint: from a POST to its call, and from the call's outcome to the response."""

import asyncio
import logging
import re
from collections.abc import Callable, Iterable, Mapping, Sequence

from starlette.types import Message, Receive, Scope, Send

from ..errors import (
    CutOff,
    Full,
    InternalFault,
    MissingCapability,
    OverShare,
    PayloadTooLarge,
    RequestError,
    SetupError,
)
from ..flow.admission import Admission
from ..limits import Limits
from ..logs.failures import report_failure
from ..logs.refusals import RefusalLog
from ..methods.dispatcher import Dispatcher
from ..protocol.all_dialects import DIALECTS, Dialect, Envelope, Reply, Surface, read_envelope, unclaimed
from ..protocol.callers import NO_SCOPES, Client
from ..protocol.header_params import HeaderParameter
from ..protocol.messages import JSON, Call, Listening
from ..protocol.users import principal_of, scopes_of
from .connection import Connection, Watch, running_request
from .gate import refuse_repeated
from .in_flight import InFlight
from .response_writer import JSON_TYPE, NO_HEADERS, Headers

logger = logging.getLogger("mrtr_server")

_LOOPBACK = re.compile(r"https?://(localhost|127\.0\.0\.1|\[::1\])(:[0-9]{1,5})?")


class Endpoint:
    """The MCP endpoint: accepts one POST, and responds with one reply or one stream (Streamable HTTP).

    Args:
        dispatcher: answers calls.
        info: the server's name, version and so on, in the shape of `Implementation`.
        mirrored: the parameters that headers mirror, by the name of each tool that has some.
        may_be_task: returns whether a tool's calls may become tasks.
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
        mirrored: Mapping[str, tuple[HeaderParameter, ...]],
        may_be_task: Callable[[str], bool],
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
        self._versions = [dialect.version for dialect in chosen if dialect.version]
        surface = Surface(info, self._versions, mirrored, may_be_task)
        self._dialects = [dialect(surface) for dialect in chosen]
        self._dispatcher = dispatcher
        self._limits = limits
        self._admission = admission
        self._origins = frozenset(origin.rstrip("/").lower() for origin in allowed_origins)
        self._hosts = None if allowed_hosts is None else frozenset(host.lower() for host in allowed_hosts)
        self._refusals = refusals
        self._watch = Watch()
        self._in_flight = InFlight(admission.shutdown)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one HTTP request."""
        listed = scope["headers"]
        headers: dict[bytes, bytes] = dict(listed)
        repeated = ""
        if len(headers) != len(listed):
            if (ambiguous := refuse_repeated(listed, self._refusals)) is not None:
                await ambiguous(scope, receive, send)
                return
            repeated = _join_repeated(headers, listed)
        request = running_request()
        connection = Connection(headers, self._admission, scope, receive, send, self._limits.write_seconds, request)
        if scope["method"] != "POST":
            await connection.respond(405, b"", (b"allow", b"POST"))
            return
        refusal = self._refuse(headers)
        if refusal is not None:
            await connection.respond(*refusal)
            return
        self._in_flight.enter(request)
        try:
            await self._serve(connection, repeated, scope, receive)
        except asyncio.CancelledError:
            if not self._in_flight.forgive(request):  # not even its answer was taken in time
                raise
        finally:
            self._in_flight.leave(request)

    def _refuse(self, headers: Mapping[bytes, bytes]) -> tuple[int, bytes] | None:
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
        kind = headers.get(b"content-type", b"")
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

    async def _read_on(self, message: Message, receive: Receive) -> bytes | None:
        """Read a body that comes in several parts, from its first on; None if the client left before its end."""
        limit = self._limits.body_bytes
        parts: list[bytes] = []
        size = 0
        while True:
            if message["type"] != "http.request":
                return None
            parts.append(message.get("body", b""))
            size += len(parts[-1])
            if size > limit:
                raise PayloadTooLarge(limit)
            if not message.get("more_body"):
                return b"".join(parts)
            message = await receive()

    async def _serve(self, connection: Connection, repeated: str, scope: Scope, receive: Receive) -> None:
        dialect = self._dialects[0]
        call: Call | None = None
        request_id: str | int | None = None
        listens = False
        reply: tuple[int, bytes, Headers]
        headers = connection.headers
        limits = self._limits
        try:
            length = headers.get(b"content-length", b"")
            if length.isdigit() and int(length[:32]) > limits.body_bytes:
                raise PayloadTooLarge(limits.body_bytes)
            message = await receive()
            body = message.get("body", b"")
            if message.get("more_body") or message["type"] != "http.request" or len(body) > limits.body_bytes:
                body = await self._read_on(message, receive)
                if body is None:
                    return
            envelope = read_envelope(body, headers, repeated, limits.json_depth, limits.values)
            del body, message  # a stream may stay open for long, and need not hold what opened it
            request_id = envelope.id
            if request_id is None:  # a notification, and there is none that we would act on
                await connection.respond(202, b"")
                return
            connection.dialect = dialect = self._choose(envelope)
            user = scope.get("user")
            call = dialect.load_call(envelope, None if user is None else principal_of(user), user)
            call.root = scope.get("root_path", "")
            call.scopes = NO_SCOPES if (credentials := scope.get("auth")) is None else scopes_of(credentials)
            del envelope
            self._watch.enter(connection)
            try:
                outcome = await self._dispatcher.dispatch(call, connection)
            finally:
                self._watch.leave(connection)
            if isinstance(outcome, Listening):
                call.params, call.client = {}, Client()
                listens = True
                await connection.listen(call, outcome)
                return
            written = dialect.dump_outcome(call, outcome)
            reply = (200 if written else 202, written, NO_HEADERS)
            call = None  # the client may take its time to read the reply, and both may be as large
            del outcome
        except asyncio.CancelledError:
            if connection.gone:
                await connection.leave()
                return
            if not self._can_answer(connection, listens=listens):
                raise
            self._in_flight.forgive(connection.request)
            logger.warning("%s was cut off, since the server shuts down", _named(call))
            reply = dialect.error(request_id, CutOff())
        except Exception as error:
            reply = self._failed(error, dialect, call, request_id)
        await connection.finish(*reply)

    def _can_answer(self, connection: Connection, *, listens: bool) -> bool:
        """Check whether a cancelled request can be answered, for a shutdown cut it off; else abandon its response."""
        if not listens and self._admission.shutdown.began is not None:  # by our own clock or by the web server's
            return True
        connection.abandon()
        return False

    def _failed(self, error: Exception, dialect: Dialect, call: Call | None, request_id: str | int | None) -> Reply:
        if isinstance(error, PayloadTooLarge):
            # What is left of the body stays unread, so the connection can't be used again.
            return dialect.error(None, error)._replace(headers=((b"connection", b"close"),))
        if isinstance(error, MissingCapability):
            self._note_lacking(call, error)
        if isinstance(error, Full):
            one = isinstance(error, OverShare)
            whose = "a caller has used up its share" if one else "all callers together have used up all"
            self._refusals.note("%s was refused: %s of Limits(%s=...)", _named(call), whose, error.limit)
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
