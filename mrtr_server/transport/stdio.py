"""MCP over standard input and output: the client started the process, and a line is a message (Transports, stdio)."""

import asyncio
import logging
from codecs import BOM_UTF8
from collections.abc import Callable, Coroutine, Sequence
from contextlib import closing, suppress
from typing import Any, TypeVar

from pydantic_core import to_json

from ..concurrency.places import Portion
from ..concurrency.shutdown import ShutdownDeadline
from ..concurrency.waiting import CLOSE_WITHIN, wait_until
from ..errors import Busy, CutOff, InvalidRequest, PayloadTooLarge, ProtocolError, RequestError, StoreUnavailable
from ..limits import MOST_IN_BATCH, Limits
from ..live.live_calls import LiveCalls
from ..live.parts import UNCOUNTED, LiveParts
from ..logs.failures import report_failure
from ..logs.refusals import RefusalLog
from ..methods.dispatcher import Dispatcher
from ..protocol.callers import person_of, principal_of
from ..protocol.dialect import Dialect
from ..protocol.envelope import SESSION_HEADER, Envelope, read_envelope
from ..protocol.handshake import CANCELLED, HandshakeDialect
from ..protocol.messages import OPEN_METHODS, Call, Change, Discovery, Listening
from ..protocol.served_dialects import ServedDialects
from ..storage.health import begin_request, end_request
from ..well_formed import read_json
from .requests import InFlight, failure_of, named, note_cancellation, note_refusal
from .standard_streams import Line, LineReader, LineWriter, StandardStreams
from .stdio_requests import OpenRequest, Peer, StdioRequest

logger = logging.getLogger("mrtr_server")

T = TypeVar("T")

CUT_WITHIN = 1.0  # for requests to end that a second request to end has cut off, in seconds

# Requests that change how later ones are served, so that these wait for them.
_SETTING = frozenset({"initialize", "logging/setLevel"})


class StdioServer:
    def __init__(
        self,
        dispatcher: Dispatcher,
        dialects: ServedDialects,
        calls: LiveCalls,
        live: LiveParts,
        limits: Limits,
        shutdown: ShutdownDeadline,
        refusals: RefusalLog,
    ) -> None:
        self._dispatch = dispatcher.dispatch
        self._dialects = dialects
        self._calls = calls
        self._live = live
        self._limits = limits
        self._shutdown = shutdown
        self._refusals = refusals
        self._in_flight = InFlight(shutdown)
        self._open: dict[str | int, StdioRequest] = {}  # those that are being served, by id
        self._tasks: set[asyncio.Task[Any]] = set()
        self._notices: asyncio.Task[None] | None = None  # sends the notifications of a session
        self._ends = self._has_read_all = False
        self._changed = asyncio.Event()
        self._settled = asyncio.Event()

    async def serve(self, streams: StandardStreams, user: Any = None, scopes: frozenset[str] = frozenset()) -> None:
        """Serve a client until it closes its end, or `end` is called, and then until what it sent is done."""
        self._loop = asyncio.get_running_loop()
        writer = LineWriter(streams.output, self._look)
        self._peer = Peer(writer, user, principal_of(user), scopes, {})
        reading = self._loop.create_task(self._read(LineReader(streams.input, self._limits.body_bytes)))
        try:
            await self._settled.wait()
        finally:
            left = [reading, *self._tasks, *([] if self._notices is None else [self._notices])]
            for task in left:
                task.cancel()
            await asyncio.wait(left, timeout=CUT_WITHIN)

    def end(self) -> None:
        """Read no more, and end once all is done that was read; called again, cut off what still runs."""
        if self._ends:
            self._in_flight.cut_off(CUT_WITHIN / 2)
            self._loop.call_later(CUT_WITHIN, self._settled.set)
            return
        self._ends = True
        self._shutdown.begin()
        for request in self._open.values():
            request.leave()
            if request.changes is not None and request.task is not None:
                self._loop.call_later(CLOSE_WITHIN, request.task.cancel)
        self._loop.call_later(self._shutdown.left(), self._settled.set)
        self._look()

    def _look(self) -> None:
        if self._peer.writer.is_broken and not self._ends:
            self.end()
        self._changed.set()
        if self._ends and not self._tasks and self._peer.writer.is_idle:
            self._settled.set()

    # What comes in

    async def _read(self, reader: LineReader) -> None:
        while await self._take_all(reader):
            pass
        if self._has_read_all and not self._ends:
            self.end()

    async def _take_all(self, reader: LineReader) -> bool:
        lines = await reader.read()  # nothing is held of the ones before
        self._has_read_all = not lines
        for line in lines:
            while not self._has_room() and not self._ends:
                self._changed.clear()
                await self._changed.wait()
            if self._ends:
                return False
            try:
                await self._take(line)
            except Exception as error:
                report_failure("A message could not be served", error=error)
        return bool(lines)

    def _has_room(self) -> bool:
        """Return whether one more message may be read. Requests that wait for a message of the client do not count."""
        if self._peer.writer.is_full:
            return False
        if not self._portion(0).has_room():
            return False
        most = self._limits.open_requests
        return len(self._open) < most or sum(not each.is_waiting for each in self._open.values()) < most

    def _portion(self, size: int) -> Portion:
        """Return what counts so many bytes of a message. No message is refused for them: it is read later."""
        portion = self._live.held_bytes.portion(person_of(self._peer.principal))
        portion.set(size)
        return portion

    async def _take(self, line: Line) -> None:
        """Handle one line: what needs no time is done when this returns, and for all else there is a task."""
        if line is None:
            too_large = PayloadTooLarge(self._limits.body_bytes)
            note_refusal(self._refusals, None, too_large)
            self._write(self._form.error(None, too_large).body)
            return
        line = line.removeprefix(BOM_UTF8)  # which JSON does not need, and some writers add
        if line[:100].lstrip()[:1] == b"[":
            await self._take_batch(line)
        elif line.strip():
            await self._take_message(line, self._write)

    async def _take_batch(self, line: bytes) -> None:
        """Serve a batch, whose responses are one line. Its messages are served side by side."""
        form, messages = self._form, []
        with suppress(ValueError):
            messages = read_json(line)
        if not isinstance(form, HandshakeDialect) or not form.form.batches:
            self._write(form.error(None, InvalidRequest("The message is a batch; send one request at a time")).body)
        elif not 0 < len(messages) <= MOST_IN_BATCH:
            self._write(form.error(None, InvalidRequest(f"A batch holds 1 to {MOST_IN_BATCH} messages")).body)
        else:
            replies: list[bytes] = []
            parts = [
                await self._take_message(to_json(each, inf_nan_mode="constants"), replies.append, is_part=True)
                for each in messages
            ]
            self._keep(self._finish_batch([part for part in parts if part is not None], replies))

    async def _finish_batch(self, parts: "list[asyncio.Task[Any]]", replies: list[bytes]) -> None:
        if parts:
            await asyncio.wait(parts)
        if replies:
            await self._peer.writer.write(self, b"[" + b",".join(replies) + b"]")

    async def _take_message(
        self, line: bytes, write: Callable[[bytes], object], *, is_part: bool = False
    ) -> "asyncio.Task[Any] | None":
        """Handle one message; return what serves it. `write` takes an error, and the response of a part of a batch."""
        request_id: str | int | None = None
        try:
            envelope = read_envelope(line, self._peer.headers, "", self._limits.json_depth, self._limits.values)
            envelope.has_headers = False
            if envelope.id is None:
                await self._heed(envelope)
                return None
            if not envelope.method:
                return await self._take_response(envelope)
            if envelope.id in self._open:
                # The client would take an error with that id for the response to the other one.
                raise InvalidRequest("The id is that of a request that is still being served")
            request_id = envelope.id
            if is_part and envelope.method == "initialize":
                raise InvalidRequest("initialize can't be part of a batch")
            dialect = self._dialects.choose(envelope)
        except RequestError as error:
            note_refusal(self._refusals, None, error)
            write(self._form.error(error.request_id if request_id is None else request_id, error).body)
            return None
        request: StdioRequest
        if isinstance(dialect, HandshakeDialect):
            form = dialect.of_version(self._peer.session.version).answering(envelope)
            request = OpenRequest(self._peer, envelope, form, line, self._changed.set)
        else:
            request = StdioRequest(self._peer, envelope, dialect)
        if len(line) > UNCOUNTED:
            request.portion = self._portion(len(line))
        self._open[request.id] = request
        if self._ends:
            request.leave()
        serving = self._keep(self._serve(request, write if is_part else None))
        if envelope.method in _SETTING:
            await asyncio.wait([serving])
        return serving

    async def _heed(self, envelope: Envelope) -> None:
        """Do what a notification asks for. One that means nothing here is ignored."""
        method = envelope.method
        if method == CANCELLED:
            note_cancellation(envelope.params)
            await self._cancel(envelope.params.get("requestId"))
        elif method == "notifications/initialized" and self._notices is None and self._peer.session.key:
            self._notices = self._loop.create_task(self._notify())

    async def _cancel(self, request_id: Any) -> None:
        request = self._open.get(request_id) if type(request_id) in (str, int) else None
        if request is None or request.is_cancelled:
            return
        request.cancel()
        if request.changes is not None:
            request.changes.close()
        call = request.call
        if call is None or request.task is None:
            return  # it has not begun, and won't
        if isinstance(request, OpenRequest) and call.method in OPEN_METHODS:
            with suppress(StoreUnavailable, Busy):
                await self._calls.cancel(call.session, call.request_id, call.principal)
        else:
            request.task.cancel()

    async def _take_response(self, envelope: Envelope) -> "asyncio.Task[Any] | None":
        """Pass a response on: the answer to a question or to a task. Any other is ignored."""
        handshake, principal = self._dialects.handshake, self._peer.principal
        if handshake is not None and isinstance(envelope.id, str):
            try:
                if await self._calls.take(envelope.id, lambda: handshake.load_answer(envelope), principal):
                    return None
            except RequestError as error:
                report_failure("The answer to a question could not be kept", error=error)
                return None
        with suppress(RequestError):
            dialect = self._dialects.choose(envelope)
            if not isinstance(dialect, HandshakeDialect):
                return self._keep(self._answer(StdioRequest(self._peer, envelope, dialect)))
        return None

    # Requests

    async def _serve(self, request: StdioRequest, write: Callable[[bytes], object] | None) -> None:
        begin_request()
        body = await self._answer(request)
        if not body or request.is_cancelled:
            return
        if write is not None:
            write(body)
        else:
            await self._peer.writer.write(request, body)

    async def _answer(self, request: StdioRequest) -> bytes:
        if request.is_cancelled:
            self._open.pop(request.id, None)
            return b""
        request.task = task = asyncio.current_task()
        assert task is not None  # noqa: S101  there always is one
        self._in_flight.enter(task)
        try:
            call = request.open()
            if isinstance(request, OpenRequest):
                return await self._call(call, request)
            outcome = await self._dispatch(call, request)
            if isinstance(outcome, Listening):
                return await self._write_changes(call, outcome, request)
            return request.dialect.dump_outcome(call, outcome)
        except (Exception, asyncio.CancelledError) as error:
            return self._failed(error, request, task)
        finally:
            self._in_flight.leave(task)
            request.end()
            if self._open.get(request.id) is request:
                del self._open[request.id]

    async def _call(self, call: Call, request: OpenRequest) -> bytes:
        peer, form = self._peer, request.form
        if call.method in OPEN_METHODS:
            outcome = await self._calls.serve(call, request)
            if outcome is not None:
                return form.reply(call, outcome).body
            if self._has_read_all:
                return b""
            raise ProtocolError("The server ends, so nobody can answer what this request asks")
        outcome = await self._dispatch(call, request)
        reply = form.reply(call, outcome)
        if isinstance(outcome, Discovery):
            peer.begin(form, {name: value for name, value in reply.headers if name == SESSION_HEADER})
            if self._notices is not None:
                self._notices.cancel()
                self._notices = None
        elif call.method == "logging/setLevel":
            peer.level = call.params["level"]
        return reply.body

    async def _write_changes(self, call: Call, listening: Listening, request: StdioRequest) -> bytes:
        """Send changes until either side ends the subscription; return its last message."""
        end_request()
        with closing(listening.changes) as changes:
            messages = request.dialect.listening(call, changes)

            async def write(heard: Sequence[Change] | None) -> None:
                for change in heard or ():
                    await self._peer.writer.write(request, messages.changed(change))

            request.listen(changes)
            self._changed.set()
            if opened := messages.opened():
                await self._peer.writer.write(request, opened)
            await wait_until(write, changes, at_once=False)
            return messages.closed()

    async def _notify(self) -> None:
        """Send the notifications of a session, for as long as it lasts."""
        peer, form = self._peer, self._form
        handshake = self._dialects.handshake
        task = None if handshake is None else handshake.of_version(peer.session.version).task_offer
        call = Call("sessions/listen", {}, task=task, session=peer.session.key, **peer.sender._asdict())
        opening = StdioRequest(peer, Envelope({}, call.method, None, {}, {}, has_headers=False), form)
        try:
            listening = await self._dispatch(call, opening)
            assert isinstance(listening, Listening)  # noqa: S101  the method has no other outcome
            await self._write_changes(call, listening, opening)
        except Exception as error:
            report_failure("The notifications of a session ended", error=error)

    def _failed(
        self, error: Exception | asyncio.CancelledError, request: StdioRequest, task: "asyncio.Task[Any]"
    ) -> bytes:
        """Return the response to a request that failed; empty for none. Raises what nobody may answer."""
        dialect, call = request.dialect, request.call
        if request.is_cancelled:
            return b""
        if isinstance(error, asyncio.CancelledError):
            if not self._in_flight.forgive(task):
                raise error
            logger.warning("%s was cut off, since the server shuts down", named(call))
            if self._has_read_all:  # some clients fail that get a response after they have closed their end
                return b""
            error = CutOff()
        failure = failure_of(self._refusals, call, error)
        return dialect.error(request.id, failure).body if request.is_answered else b""

    # What goes out

    @property
    def _form(self) -> Dialect:
        """The form of what is sent to the client by itself."""
        handshake, version = self._dialects.handshake, self._peer.session.version
        return handshake.of_version(version) if handshake is not None and version else self._dialects.first

    def _write(self, line: bytes) -> None:
        self._peer.writer.add(self, line)

    def _keep(self, work: Coroutine[Any, Any, T]) -> "asyncio.Task[T]":
        """Begin something, and know when all is done that has begun."""
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._forget)
        return task

    def _forget(self, task: "asyncio.Task[Any]") -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            report_failure("A message could not be served", error=error)
        self._look()
