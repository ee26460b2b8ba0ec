"""Standard input and output, taken for the protocol. A thread for each works on every platform."""

import asyncio
import logging
import os
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from queue import SimpleQueue
from typing import NamedTuple, TypeVar

from ..errors import SetupError

logger = logging.getLogger("mrtr_server")

INPUT, OUTPUT, ERROR = 0, 1, 2  # the descriptors that every process begins with


T = TypeVar("T")

CHUNK = 64 * 1024  # bytes that are read at once

BACKLOG_BYTES = 256 * 1024  # bytes that wait for a slow client before log messages are dropped, and no more is read

Line = bytes | None  # without its end; None in place of one that is too long


class StandardStreams(NamedTuple):
    input: int
    output: int


@cache
def take_standard_streams() -> StandardStreams:
    """Reserve standard input and output for the protocol, once for the process; return what no other process inherits.

    From then on, the output of handlers and of the processes that they start goes to standard error. Their standard
    input is empty. This is not undone: what is printed while the process ends is no message, either. Raises
    `SetupError`.
    """
    nowhere = os.open(os.devnull, os.O_RDWR)  # if one of the three is closed, this is it
    if nowhere <= OUTPUT:
        os.close(nowhere)
        raise SetupError("Standard input or output is closed, so no MCP client can be served over stdio")
    if nowhere == ERROR:
        nowhere = os.dup(nowhere)
    streams = StandardStreams(os.dup(INPUT), os.dup(OUTPUT))
    os.dup2(nowhere, INPUT)
    os.dup2(ERROR, OUTPUT)
    os.close(nowhere)
    if sys.platform == "win32":  # pragma: no cover
        _take_handles(streams)
    else:
        for descriptor in (streams.input, streams.output):
            os.set_blocking(descriptor, True)
    for stream in (sys.stdout, sys.stderr):
        if reconfigure := getattr(stream, "reconfigure", None):
            reconfigure(line_buffering=True)  # what is printed is a log now
    return streams


if sys.platform == "win32":  # pragma: no cover

    def _take_handles(streams: StandardStreams) -> None:
        """Do the same for the handles that processes are started with, and translate no line ends."""
        import ctypes
        import msvcrt

        for descriptor in (streams.input, streams.output):
            msvcrt.setmode(descriptor, os.O_BINARY)
        for descriptor, handle in ((INPUT, -10), (OUTPUT, -11)):  # STD_INPUT_HANDLE, STD_OUTPUT_HANDLE
            ctypes.windll.kernel32.SetStdHandle(handle, msvcrt.get_osfhandle(descriptor))


class Splitter:
    """Splits what is read into lines. A line that is longer than the limit, in bytes, is never kept as a whole."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._parts: list[bytes] = []
        self._size = 0

    def feed(self, data: bytes) -> list[Line]:
        *ends, rest = data.split(b"\n")
        lines = []
        for end in ends:
            self._add(end)
            lines.append(self._take())
        self._add(rest)
        return lines

    def last(self) -> list[Line]:
        return [self._take()] if self._size else []

    def _add(self, part: bytes) -> None:
        self._size += len(part)
        if self._size > self._limit:
            self._parts.clear()
        else:
            self._parts.append(part)

    def _take(self) -> Line:
        line = None if self._size > self._limit else b"".join(self._parts)
        self._parts.clear()
        self._size = 0
        return line


class LineReader:
    """Reads lines in a thread, no sooner than they are wanted. A line may be as long as the limit, in bytes."""

    def __init__(self, descriptor: int, limit: int) -> None:
        self._descriptor = descriptor
        self._lines = Splitter(limit)
        self._wanted: SimpleQueue[asyncio.Future[list[Line]]] = SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="mrtr-stdin", daemon=True)

    async def read(self) -> list[Line]:
        if not self._thread.is_alive():
            self._thread.start()
        wanted: asyncio.Future[list[Line]] = asyncio.get_running_loop().create_future()
        self._wanted.put(wanted)
        return await wanted

    def _run(self) -> None:
        while True:
            wanted = self._wanted.get()
            lines: list[Line] = []
            data = b"."
            while data and not lines:
                data = self._read()
                lines = self._lines.feed(data) if data else self._lines.last()
            with suppress(RuntimeError):  # the loop has ended
                wanted.get_loop().call_soon_threadsafe(_resolve, wanted, lines)
            del wanted, lines  # the next ones may be long in coming

    def _read(self) -> bytes:
        try:
            return os.read(self._descriptor, CHUNK)
        except OSError:  # as at the end of a pipe on Windows
            return b""


class LineWriter:
    """Writes lines in a thread, each as a whole, in order; `on_change` is called when what waited is written, or not.

    The queue for a client that does not read is bounded: newer progress replaces older, and log messages that do not
    fit are dropped. Whoever writes a response waits until it is written.
    """

    is_broken = False  # whether nobody reads any more

    def __init__(self, descriptor: int, on_change: Callable[[], object]) -> None:
        self._descriptor = descriptor
        self._on_change = on_change
        self._loop = asyncio.get_running_loop()
        self._waiting: dict[object, tuple[object, bytes]] = {}  # what is to be written, with whose it is
        self._size = 0
        self._ends: list[asyncio.Future[None]] = []  # resolved when what waits now is written
        self._is_writing = self._has_dropped = False
        self._handed: SimpleQueue[tuple[bytes, int, list[asyncio.Future[None]]]] = SimpleQueue()
        threading.Thread(target=self._run, name="mrtr-stdout", daemon=True).start()

    @property
    def is_full(self) -> bool:
        """Whether so much waits that no more is to be read."""
        return self._size > BACKLOG_BYTES

    @property
    def is_idle(self) -> bool:
        return not self._is_writing and not self._waiting

    def add(self, owner: object, line: bytes) -> None:
        """Write a line that is never dropped. It goes with what its owner, a request, has sent; see `forget`."""
        self._put(object(), owner, line)

    async def write(self, owner: object, line: bytes) -> None:
        written: asyncio.Future[None] = self._loop.create_future()
        self._ends.append(written)
        self._put(object(), owner, line)
        await written

    def add_message(self, owner: object, line: bytes) -> None:
        if self._size + len(line) <= BACKLOG_BYTES or not self._size:
            self._put(object(), owner, line)
        elif not self._has_dropped:
            self._has_dropped = True
            logger.warning("The client reads too slowly: log messages for it are dropped (%d bytes wait)", self._size)

    def add_progress(self, owner: object, line: bytes) -> None:
        """Write a line as `add`, in the place of one of the same owner if much waits already."""
        key = owner if self._size > BACKLOG_BYTES // 4 else object()
        self._drop([key])
        self._put(key, owner, line)

    def forget(self, owner: object) -> None:
        self._drop([key for key, (whose, _) in self._waiting.items() if whose is owner])

    def _drop(self, keys: list[object]) -> None:
        for key in keys:
            _, line = self._waiting.pop(key, (None, b""))
            self._size -= len(line)

    def _put(self, key: object, owner: object, line: bytes) -> None:
        self._waiting[key] = owner, line
        self._size += len(line)
        if not self._is_writing:
            self._is_writing = True
            self._loop.call_soon(self._hand_over)  # with what else comes in this moment

    def _hand_over(self) -> None:
        lines = [line for _, line in self._waiting.values()]
        self._waiting.clear()
        self._handed.put((b"\n".join([*lines, b""]), self._size, self._ends))
        self._ends = []

    def _run(self) -> None:
        while True:
            data, size, ends = self._handed.get()
            left = memoryview(data)
            try:
                while left and not self.is_broken:
                    left = left[os.write(self._descriptor, left) :]
            except OSError:
                self.is_broken = True
            del data, left  # the next lines may take their time
            try:
                self._loop.call_soon_threadsafe(self._written, size, ends)
            except RuntimeError:  # the loop has ended
                return

    def _written(self, size: int, ends: "list[asyncio.Future[None]]") -> None:
        self._size -= size
        for end in ends:
            _resolve(end, None)
        if self._waiting:
            self._hand_over()
        else:
            self._is_writing = False
        self._on_change()


def _resolve(future: "asyncio.Future[T]", value: T) -> None:
    if not future.done():
        future.set_result(value)
