"""Writing of responses: in pieces, with a deadline for what has to wait, and as `send` would have it otherwise."""

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import pytest
from starlette.types import Message

from mrtr_server import Limits
from mrtr_server.flow.admission import Admission
from mrtr_server.transport.connection import Connection
from mrtr_server.transport.event_stream import SLICE

pytestmark = pytest.mark.anyio


async def nothing_comes() -> Message:
    raise AssertionError("nobody reads what the client sends")


def writer_to(send: Callable[[Message], Awaitable[None]], seconds: float = 5.0) -> Connection:
    return Connection({}, Admission(Limits()), {"type": "http", "http_version": "1.1"}, nothing_comes, send, seconds)


class SentMessages:
    """Keeps what is sent."""

    def __init__(self) -> None:
        self.messages: list[Message] = []

    async def __call__(self, message: Message) -> None:
        await asyncio.sleep(0)
        self.messages.append(message)

    @property
    def body(self) -> bytes:
        return b"".join(message.get("body", b"") for message in self.messages)

    @property
    def parts(self) -> list[int]:
        return [len(message["body"]) for message in self.messages if "body" in message]


@pytest.mark.parametrize("size", [0, 1, SLICE - 1, SLICE])
async def test_a_small_body_is_one_part(size: int) -> None:
    kept = SentMessages()
    await writer_to(kept).respond(200, b"x" * size)
    assert kept.parts == [size]
    assert not kept.messages[-1].get("more_body")


@pytest.mark.parametrize("size", [SLICE + 1, 3 * SLICE, 10 * SLICE - 1])
async def test_a_large_body_goes_out_in_pieces(size: int) -> None:
    kept, body = SentMessages(), bytes(size)
    await writer_to(kept).respond(200, body)
    assert kept.body == body
    assert max(kept.parts) == SLICE
    assert dict(kept.messages[0]["headers"])[b"content-length"] == b"%d" % size
    # The last message has nothing in it: the server takes it when the piece before it has been read.
    assert (kept.messages[-1]["body"], kept.messages[-1].get("more_body")) == (b"", None)
    assert all(message["more_body"] for message in kept.messages[1:-1])


@pytest.mark.parametrize("size", [1, SLICE, SLICE + 1, 3 * SLICE])
async def test_an_event_is_one_line_whatever_its_size(size: int) -> None:
    kept = SentMessages()
    writer = writer_to(kept)
    await writer.start_stream()
    await writer.write_event(b"x" * size)
    await writer.end()
    assert kept.body == b"event: message\ndata: " + b"x" * size + b"\n\n"
    assert max(kept.parts) <= SLICE + 30


@pytest.mark.parametrize("size", [1, SLICE, SLICE + 1])
async def test_the_last_part_of_a_stream_ends_it_unless_it_is_large(size: int) -> None:
    kept = SentMessages()
    writer = writer_to(kept)
    await writer.start_stream()
    await writer.write_last(b"x" * size)
    assert kept.parts == ([size] if size <= SLICE else [SLICE, size - SLICE, 0])
    assert [bool(message.get("more_body")) for message in kept.messages[1:]] == [True] * (len(kept.parts) - 1) + [False]


async def test_nothing_is_written_after_the_deadline() -> None:
    begun: list[str] = []

    async def send(message: Message) -> None:
        begun.append(message["type"])
        await asyncio.Event().wait()

    writer = writer_to(send, 0.01)
    await writer.respond(200, b"x" * 10 * SLICE)
    assert writer.stalled
    assert begun == ["http.response.start"]


@pytest.mark.parametrize("error", [OSError("gone"), TimeoutError("gone"), RuntimeError("gone")], ids=repr)
@pytest.mark.parametrize("waits", [False, True])
async def test_what_the_server_raises_is_raised(error: Exception, waits: bool) -> None:
    async def send(message: Message) -> None:
        if waits:
            await asyncio.sleep(0)
        raise error

    with pytest.raises(type(error), match="gone"):
        await writer_to(send).respond(200, b"")


async def test_a_cancellation_reaches_what_waits() -> None:
    waiting, cancelled = asyncio.Event(), asyncio.Event()

    async def send(message: Message) -> None:
        waiting.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled.set()
            raise

    writer = writer_to(send)
    task = asyncio.ensure_future(writer.respond(200, b""))
    await waiting.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert cancelled.is_set()
    assert not writer.stalled


class NotInPython:
    """An awaitable as other languages make them: an iterator, and nothing more."""

    def __init__(self, waits_for: "asyncio.Future[None]") -> None:
        self._steps = waits_for.__await__()

    def __await__(self) -> Iterator[Any]:
        return self

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        return next(self._steps)


@pytest.mark.parametrize("answered", [True, False])
async def test_a_server_may_be_written_in_another_language(answered: bool) -> None:
    loop = asyncio.get_running_loop()

    def send(message: Message) -> Any:
        future: asyncio.Future[None] = loop.create_future()
        if answered:
            loop.call_soon(future.set_result, None)
        return NotInPython(future)

    writer = writer_to(send, 5.0 if answered else 0.01)
    await writer.respond(200, b"x" * 2 * SLICE)
    assert writer.stalled is not answered
