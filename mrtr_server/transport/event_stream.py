"""A stream of server-sent events, to a client that may not read it: notes that it does not read in time are dropped."""

import asyncio
import logging
from collections.abc import Awaitable
from itertools import count
from typing import Protocol

from ..protocol.messages import NOTHING, TURN

logger = logging.getLogger("mrtr_server")

SLICE = 64 * 1024  # bytes of a response that are written at once; the web server buffers what is not read yet

BACKLOG_BYTES = 256 * 1024  # bytes of log messages that wait for a slow client

_PROGRESS = "progress"

_EVENT = b"event: message\ndata: %b\n\n"


class StreamWriter(Protocol):
    """Writes the parts of one stream; see `Connection`."""

    def write_at_once(self, data: bytes, *, begins: bool, ends: bool) -> bool: ...

    async def start_stream(self) -> None: ...

    async def write_event(self, data: bytes) -> None: ...

    async def write(self, data: bytes) -> None: ...

    async def write_last(self, data: bytes) -> None: ...

    async def end(self) -> None: ...


class Frame(bytes):
    """One or more lines of a stream, as they are written."""


COMMENT = Frame(b":\n\n")  # keeps a quiet stream open


class EventStream:
    """A stream of server-sent events. Notes are written by a task of its own, so that nobody waits for the client.

    The queue for the client is bounded: newer progress replaces older, and messages that do not fit are dropped. The
    response is never dropped, nor are pieces of a result: what makes them can wait for room.
    """

    def __init__(self, writer: StreamWriter) -> None:
        self._writer = writer
        self._backlog: dict[object, bytes] = {}
        self._numbers = count()
        self._size = 0
        self._dropped = False
        self._has_started = self._is_flushing = self._ending = False
        self._more: asyncio.Event | None = None
        self._writing: asyncio.Task[None] | None = None
        self._starting: asyncio.Handle | None = None
        # Resolved when no more waits than may; made when somebody waits for that.
        self._has_room: asyncio.Future[None] | None = None

    def add_progress(self, data: bytes) -> Awaitable[None]:
        """Add progress. Awaiting the result gives it the time to be written, and never waits for the client."""
        return self._add(_PROGRESS, data)

    def add_message(self, data: bytes) -> Awaitable[None]:
        """Add a message, unless too much waits already. Awaiting the result is as for `add_progress`."""
        if self._size and self._size + len(data) > BACKLOG_BYTES:
            if not self._dropped:
                self._dropped = True
                logger.warning("A client reads too slowly: log messages for it are dropped (%d bytes wait)", self._size)
            return TURN
        self._size += len(data)
        return self._add(next(self._numbers), data)

    def add_piece(self, data: bytes) -> Awaitable[None]:
        """Add a message that is never dropped. Awaiting the result waits for the client if too much waits already."""
        self._size += len(data)
        self._add(next(self._numbers), data)
        return self.room()

    def room(self) -> Awaitable[None]:
        """Return something to await until no more waits for the client than may."""
        return TURN if self._size <= BACKLOG_BYTES else self._wait_for_room()

    async def _wait_for_room(self) -> None:
        # The writer ends by itself where a client leaves, or does not read for too long.
        while self._size > BACKLOG_BYTES and self._writing is not None and not self._writing.done():
            if self._has_room is None:
                self._has_room = asyncio.get_running_loop().create_future()
            await asyncio.wait((self._has_room, self._writing), return_when=asyncio.FIRST_COMPLETED)

    def add_frame(self, frame: Frame, *, is_flushed: bool = False) -> None:
        """Add lines that are never dropped: they go within two turns of the loop, or by the `flush` that follows."""
        self._size += len(frame)
        self._backlog[next(self._numbers)] = frame
        if self._more is not None:
            self._more.set()
        elif self._starting is None and not is_flushed:
            self._starting = asyncio.get_running_loop().call_soon(self._write_frames)

    def _write_frames(self) -> None:
        """Write what waits: at once where that can be, since a stream that is quiet otherwise needs no task for it."""
        self._starting = None
        if not (self._is_flushing or self._write_at_once()):
            self._start()

    def _add(self, key: object, data: bytes) -> Awaitable[None]:
        self._backlog.pop(key, None)
        self._backlog[key] = data
        self._start()
        return TURN

    def flush(self) -> Awaitable[None]:
        """Write what has been added, and wait for the client, unless the stream's own task does that."""
        if self._writing is not None or self._is_flushing or self._write_at_once():
            return NOTHING
        return self._flush()

    def end(self, data: bytes) -> Awaitable[None]:
        """Add the last event, and wait until all are written; without data, only wait."""
        if data:
            self._size += len(data)
            self._backlog[next(self._numbers)] = data
        self._ending = True
        if self._writing is None:  # then the request itself writes, and needs no task
            return NOTHING if not self._is_flushing and self._write_at_once() else self._flush()
        assert self._more is not None  # noqa: S101  it is made with the task
        self._more.set()
        return self._writing

    def abandon(self) -> None:
        self._backlog.clear()
        self._stop_starting()
        if self._writing is not None:
            self._writing.cancel()

    def _start(self) -> None:
        """Begin the task that writes, unless it runs, or the request writes just now."""
        self._stop_starting()
        if self._is_flushing:
            return
        if self._more is None:
            self._more = asyncio.Event()
            self._writing = asyncio.get_running_loop().create_task(self._write())
        self._more.set()

    def _stop_starting(self) -> None:
        if self._starting is not None:
            self._starting.cancel()
            self._starting = None

    async def _flush(self) -> None:
        self._stop_starting()
        self._is_flushing = True
        try:
            await self._write_backlog()
        finally:
            self._is_flushing = False

    async def _write(self) -> None:
        assert self._more is not None  # noqa: S101  it is made with the task
        while True:
            await self._write_backlog()
            if self._ending:
                return
            await self._more.wait()
            self._more.clear()

    def _write_at_once(self) -> bool:
        """Write all that waits in one part, if the web server takes it so; if the stream is ending, also its end."""
        if self._size > SLICE:
            return False
        data = b"".join([each if type(each) is Frame else _EVENT % each for each in self._backlog.values()])
        if not self._writer.write_at_once(data, begins=not self._has_started, ends=self._ending):
            return False
        self._stop_starting()
        self._has_started = True
        self._backlog.clear()
        self._size = 0
        return True

    async def _write_backlog(self) -> None:
        if self._write_at_once():
            return
        writer = self._writer
        if not self._has_started:
            await writer.start_stream()
            self._has_started = True  # not before: a cancellation may come while that waits
        while self._backlog:
            key = next(iter(self._backlog))
            data = self._backlog.pop(key)
            if type(data) is Frame:
                if self._ending and not self._backlog:
                    await writer.write_last(data)
                    return
                await writer.write(data)
            else:
                await writer.write_event(data)
            if key is not _PROGRESS:
                self._size -= len(data)
                if self._has_room is not None and self._size <= BACKLOG_BYTES:
                    self._has_room.set_result(None)
                    self._has_room = None
            del data  # the next one may take its time
        if self._ending:
            await writer.end()
