"""A stream of server-sent events that blocks nobody: notes that the client does not read in time are dropped."""

import asyncio
import logging
from collections.abc import Awaitable
from itertools import count

from ..protocol.messages import TURN
from .response_writer import ResponseWriter

logger = logging.getLogger("mrtr_server")

BACKLOG_BYTES = 256 * 1024
"""How many bytes of log messages wait for a slow client at most."""

_PROGRESS = "progress"


class Frame(bytes):
    """One or more lines of a stream, as they are written."""


class EventStream:
    """A stream of server-sent events, written by a task of its own.

    What waits for the client is bounded: newer progress replaces progress that has not been written yet, and messages
    that do not fit are dropped. The response itself is never dropped.

    Args:
        writer: of the response.
    """

    def __init__(self, writer: ResponseWriter) -> None:
        self._writer = writer
        self._backlog: dict[object, bytes] = {}
        self._numbers = count()
        self._size = 0
        self._dropped = False
        self._more = asyncio.Event()
        self._ending = False
        self._writing = asyncio.get_running_loop().create_task(self._write())

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

    def add_frame(self, frame: Frame) -> None:
        """Add lines that are never dropped."""
        self._size += len(frame)
        self._add(next(self._numbers), frame)

    def _add(self, key: object, data: bytes) -> Awaitable[None]:
        self._backlog.pop(key, None)
        self._backlog[key] = data
        self._more.set()
        return TURN

    async def end(self, data: bytes) -> None:
        """Add the last event, and wait until all are written; without data, only wait."""
        if data:
            self._size += len(data)
            self._backlog[next(self._numbers)] = data
        self._ending = True
        self._more.set()
        await self._writing
        await self._writer.end()

    def abandon(self) -> None:
        """Drop what has not been written."""
        self._writing.cancel()

    async def _write(self) -> None:
        await self._writer.start_stream()
        while True:
            while self._backlog:
                key = next(iter(self._backlog))
                data = self._backlog.pop(key)
                if type(data) is Frame:
                    await self._writer.write(data)
                else:
                    await self._writer.write_event(data)
                if key is not _PROGRESS:
                    self._size -= len(data)
                del data  # the next one may take its time
            if self._ending:
                return
            await self._more.wait()
            self._more.clear()
