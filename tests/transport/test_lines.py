"""Lines of bytes from one descriptor and to another."""

import asyncio
import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from mrtr_server.transport import standard_streams as module
from mrtr_server.transport.standard_streams import BACKLOG_BYTES, LineReader, LineWriter, Splitter

from ..support.serving import TIMEOUT

pytestmark = pytest.mark.anyio


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    """Two descriptors: what is written to the second can be read from the first."""
    source, to = os.pipe()
    yield source, to
    for descriptor in (source, to):
        try:
            os.close(descriptor)
        except OSError:
            continue


class TestSplitter:
    @pytest.mark.parametrize("size", [1, 2, 3, 7, 100])
    def test_lines_are_the_same_however_they_come(self, size: int) -> None:
        data = '{"a": 1}\n\n{"b": "ü\\n"}\r\n{"c": 3}'.encode()
        splitter, found = Splitter(50), list[bytes | None]()
        for start in range(0, len(data), size):
            found += splitter.feed(data[start : start + size])
        found += splitter.last()
        assert found == [b'{"a": 1}', b"", '{"b": "ü\\n"}\r'.encode(), b'{"c": 3}']

    def test_a_line_has_a_limit_in_bytes_without_its_end(self) -> None:
        assert Splitter(3).feed("äb\nabc\nüü\nabcd\nabc\n".encode()) == ["äb".encode(), b"abc", None, None, b"abc"]

    def test_what_is_too_long_is_not_kept(self) -> None:
        splitter = Splitter(1000)
        for _ in range(100):
            assert splitter.feed(b"x" * 1000) == []
            assert sum(map(len, splitter._parts)) <= 1000
        assert splitter.feed(b"\nrest\n") == [None, b"rest"]
        splitter.feed(b"y" * 1001)
        assert splitter.last() == [None]

    def test_nothing_is_left_of_what_ends_in_a_line_end(self) -> None:
        splitter = Splitter(10)
        assert splitter.feed(b"a\n") == [b"a"]
        assert splitter.last() == []


class TestReader:
    async def test_it_reads_no_more_than_is_wanted(self, pipe: tuple[int, int]) -> None:
        source, to = pipe
        reader = LineReader(source, 100)
        os.write(to, b"one\ntwo\nthr")
        async with asyncio.timeout(TIMEOUT):
            assert await reader.read() == [b"one", b"two"]
            os.write(to, b"ee\n")
            assert await reader.read() == [b"three"]
            os.write(to, b"last")
            os.close(to)
            assert await reader.read() == [b"last"]
            assert await reader.read() == []
            assert await reader.read() == []

    async def test_a_closed_descriptor_is_the_end(self, pipe: tuple[int, int]) -> None:
        os.close(pipe[0])
        async with asyncio.timeout(TIMEOUT):
            assert await LineReader(pipe[0], 100).read() == []


def filled(to: int) -> None:
    """Fill a pipe, so that the next one who writes has to wait."""
    os.set_blocking(to, False)
    try:
        while True:
            os.write(to, b"." * 4096)
    except BlockingIOError:
        os.set_blocking(to, True)


def read_all(source: int) -> bytes:
    data = b""
    while part := os.read(source, 1 << 20):
        data += part
    return data


class TestWriter:
    async def test_lines_come_in_order_and_whole(self, pipe: tuple[int, int]) -> None:
        source, to = pipe
        writer = LineWriter(to, lambda: None)
        found = list[bytes]()
        reading = threading.Thread(target=lambda: found.append(read_all(source)))
        reading.start()
        sent = [b"%d %s" % (number, b"x" * number * 97) for number in range(200)]
        async with asyncio.timeout(TIMEOUT):
            for line in sent[:100]:
                writer.add(None, line)
            for line in sent[100:]:
                await writer.write(None, line)
        assert writer.is_idle
        os.close(to)
        reading.join(TIMEOUT)
        assert found[0].split(b"\n") == [*sent, b""]

    async def test_who_writes_a_response_waits_for_a_client_that_does_not_read(self, pipe: tuple[int, int]) -> None:
        source, to = pipe
        filled(to)
        changed = asyncio.Event()
        writer = LineWriter(to, changed.set)
        writing = asyncio.create_task(writer.write(None, b"x" * BACKLOG_BYTES))
        await asyncio.sleep(0)
        assert not writer.is_full
        writer.add(None, b"more")
        assert writer.is_full
        assert not writing.done()
        reading = threading.Thread(target=read_all, args=(source,))
        reading.start()
        async with asyncio.timeout(TIMEOUT):
            await writing
            while not writer.is_idle:
                changed.clear()
                await changed.wait()
        assert not writer.is_full
        os.close(to)
        reading.join(TIMEOUT)

    async def test_progress_takes_the_place_of_progress_and_messages_that_do_not_fit_are_dropped(
        self, pipe: tuple[int, int], caplog: pytest.LogCaptureFixture
    ) -> None:
        source, to = pipe
        filled(to)
        writer = LineWriter(to, lambda: None)
        writer.add(None, b"first")
        await asyncio.sleep(0)  # it is with the thread now
        await asyncio.sleep(0)
        ada, bob = object(), object()
        writer.add(None, b"." * (BACKLOG_BYTES // 4))
        for number in range(1000):
            writer.add_progress(ada, b"ada %d" % number)
            writer.add_progress(bob, b"bob %d" % number)
            writer.add_message(ada, b"message %d " % number + b"x" * 1000)
        writer.add(None, b"response")
        assert caplog.text.count("reads too slowly") == 1
        found = list[bytes]()
        reading = threading.Thread(target=lambda: found.append(read_all(source)))
        reading.start()
        async with asyncio.timeout(TIMEOUT):
            await writer.write(None, b"last")
        os.close(to)
        reading.join(TIMEOUT)
        lines = found[0].lstrip(b".").split(b"\n")
        assert lines[0] == b"first"
        assert [line for line in lines if line.startswith((b"ada", b"bob"))] == [b"ada 999", b"bob 999"]
        assert lines[-3:] == [b"response", b"last", b""]
        assert lines[1].strip(b".") == b""
        messages = [line for line in lines if line.startswith(b"message")]
        assert messages[0].startswith(b"message 0 ")
        assert sum(map(len, messages)) <= BACKLOG_BYTES

    async def test_nothing_more_is_written_for_what_is_forgotten(self, pipe: tuple[int, int]) -> None:
        source, to = pipe
        filled(to)
        writer = LineWriter(to, lambda: None)
        writer.add(None, b"first")
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        ada, bob = object(), object()
        writer.add_progress(ada, b"progress of ada")
        writer.add(ada, b"question of ada")
        response = asyncio.create_task(writer.write(ada, b"response to ada"))
        writer.add(bob, b"response to bob")
        await asyncio.sleep(0)
        writer.forget(ada)
        found = list[bytes]()
        reading = threading.Thread(target=lambda: found.append(read_all(source)))
        reading.start()
        async with asyncio.timeout(TIMEOUT):
            await response
            await writer.write(bob, b"last")
        os.close(to)
        reading.join(TIMEOUT)
        assert found[0].lstrip(b".") == b"first\nresponse to bob\nlast\n"

    async def test_a_client_that_reads_no_more_keeps_nobody_waiting(self, pipe: tuple[int, int]) -> None:
        source, to = pipe
        os.close(source)
        changed = asyncio.Event()
        writer = LineWriter(to, changed.set)
        async with asyncio.timeout(TIMEOUT):
            await writer.write(None, b"one")
            await writer.write(None, b"two")
        assert writer.is_broken
        assert changed.is_set()


def test_nothing_that_one_platform_lacks_is_used() -> None:
    folder = Path(module.__file__).parent
    lacking = ("add_signal_handler", "connect_read_pipe", "connect_write_pipe", "add_reader", "add_writer", "fcntl")
    sources = [*folder.glob("st*.py"), folder.parent / "deployment" / "stdio_process.py"]
    assert len(sources) == 4
    for source in sources:
        text = source.read_text()
        assert [name for name in lacking if name in text] == [], source.name
