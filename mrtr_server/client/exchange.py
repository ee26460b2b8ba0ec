"""One message to a server, over HTTP or standard streams, and how much a client takes of the replies."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, fields
from typing import Any, Literal, Protocol

from ..errors import BadReply, NoReply, RequestRefused, SetupError
from ..protocol.messages import EVENT_NOTIFICATIONS, JSON, PIECE, SUBSCRIPTION_ID
from ..well_formed import read_json


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """How much a client takes from a server, and for how long it waits.

    Args:
        request_seconds: how long one request may take, from its first byte to the last of its reply, in seconds. The
            time of a question that comes while the request is open does not count.
        silent_seconds: how long nothing may come of a stream of events before it is opened again, in seconds: twice the
            time between two heartbeats of a server.
        task_seconds: how long a task is followed, in seconds. It is not cancelled then.
        waiting_seconds: how long one request waits in all, in seconds, for servers that ask to be called later.
        resends: how often one request is sent again after a lost reply.
        response_bytes: how large a reply may be, and a list with all its pages, in bytes; of a stream of events, each
            of its messages, and what has come of it and is not taken yet.
        rounds: how many rounds one call may have.
        questions: how many questions one round may have.
        pages: how many pages one list may have.

    Raises:
        SetupError: one is negative, or zero where there would be no reply at all.
    """

    request_seconds: float = 120.0
    silent_seconds: float = 60.0
    task_seconds: float = 3600.0
    waiting_seconds: float = 60.0
    resends: int = 3
    response_bytes: int = 16 * 1024 * 1024
    rounds: int = 50
    questions: int = 50
    pages: int = 100

    def __post_init__(self) -> None:
        for each in fields(self):
            value, may_be_none = getattr(self, each.name), each.name in ("waiting_seconds", "resends")
            if not (value > 0 or (may_be_none and value == 0)):
                raise SetupError(f"Bounds({each.name}={value}): it must be {'at least' if may_be_none else 'over'} 0")


DEFAULT = Bounds()


class Allowance:
    def __init__(self, size: int) -> None:
        self._size = size
        self.left = size

    @property
    def size(self) -> int:
        return self._size

    def give_back(self, size: int | None) -> None:
        """Note that so much is taken, and not kept any more; None is all."""
        self.left = self._size if size is None else self.left + size

    def take(self, size: int) -> None:
        self.left -= size
        if self.left < 0:
            raise BadReply(f"The reply has more than {self._size} bytes")


OnMessage = Callable[[Literal["sent", "received"], JSON], None]

_RELATED = {"notifications/progress": "progressToken", PIECE: "requestId"}  # how a notification names its request

_LONGEST_ERROR = 2000  # characters of what a server says of an error


async def _unheard(_: JSON) -> None:
    """Leave a message of which nobody wants to hear."""


@dataclass(slots=True, kw_only=True)
class Exchange:
    """A message to a server. Without a number it gets no result, as a notification and an answer."""

    body: bytes
    number: int | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    allowance: Allowance
    hear: Callable[[JSON], Awaitable[None]] = _unheard  # takes what comes before the result and is to this request
    repeatable: bool = True  # whether it may be sent again after its reply was lost
    resumes: bool = False  # whether a client can come back to the stream of its reply
    silence: float = 0.0  # of a stream without an end: how long nothing may come of it, in seconds; 0 for all else
    takes_questions: bool = False  # whether what the server asks meanwhile may belong to it
    received: Mapping[str, str] = field(default_factory=dict)  # the headers of the reply
    limit: asyncio.Timeout | None = None

    @asynccontextmanager
    async def within(self, seconds: float) -> AsyncIterator[None]:
        """Bound the time of a reply. A time limit of a callback is its own. Raises `NoReply`."""
        try:
            async with asyncio.timeout(seconds) as self.limit:
                yield
        except TimeoutError:
            if self.limit is None or not self.limit.expired():
                raise
            if self.silence:
                raise NoReply(f"Nothing has come for {self.silence:g} s") from None
            raise NoReply(f"There was no reply within {seconds:g} s") from None

    async def take(self, message: JSON, seconds: float, size: int | None = None) -> JSON | None:
        """Read a message of the reply; return the result, if it has that. Raises `RequestRefused` and `BadReply`.

        `size`: of all that has come of the reply, what is not kept any more after it, in bytes; None for everything.
        """
        if "method" in message:
            if "id" in message:
                await self._hear_in_its_time(message, seconds)
            elif number_in(message) == self.number:
                if self.silence:
                    await self._hear_in_its_time(message, self.silence)
                    self.allowance.give_back(size)
                else:
                    await self.hear(message)
            return None
        if isinstance(error := message.get("error"), dict):
            raise refusal_of(error)
        if message.get("id") != self.number or not isinstance(result := message.get("result"), dict):
            raise BadReply("The reply is not to what was asked")
        return result

    async def _hear_in_its_time(self, message: JSON, seconds: float) -> None:
        """Hand on a question or an event: whoever gets it may take longer than a server for its reply."""
        if self.limit is None:
            raise BadReply("The server asks in its reply to what is no request")
        self.limit.reschedule(None)
        await self.hear(message)
        self.limit.reschedule(asyncio.get_running_loop().time() + seconds)


class Connection(Protocol):
    """A way to one server."""

    is_stream: bool
    """Whether all goes through one pair of streams, so that only a message can say that a request is left."""

    @property
    def is_over(self) -> bool:
        """Whether it is closed, or the server has ended, so that nothing comes of it any more."""
        ...

    async def open(self) -> None: ...

    async def close(self) -> None: ...

    async def exchange(self, exchange: Exchange) -> JSON:
        """Send a request, or another message; return the result, which of other messages is empty."""
        ...

    async def end_session(self, headers: Mapping[str, str]) -> None: ...


def number_in(message: JSON) -> Any:
    """Return which request a notification is to; None if to none."""
    method, params = message["method"], message.get("params")
    if not isinstance(method, str) or not isinstance(params, dict):
        return None
    if method.startswith(EVENT_NOTIFICATIONS):
        meta = params.get("_meta")
        return meta.get(SUBSCRIPTION_ID) if isinstance(meta, dict) else None
    related = _RELATED.get(method)
    return None if related is None else params.get(related)


def read_message(text: str | bytes, where: str) -> JSON:
    try:
        message = read_json(text, allow_inf_nan=False)
    except ValueError:
        message = None
    if not isinstance(message, dict) or message.get("jsonrpc") != "2.0":
        raise BadReply(f"The reply is no JSON-RPC message; is {where}?")
    return message


def refusal_of(error: Mapping[str, Any], status: int = 0) -> RequestRefused:
    code = error.get("code")
    message = str(error.get("message", ""))[:_LONGEST_ERROR]
    return RequestRefused(message, code if type(code) is int else 0, error.get("data"), status)
