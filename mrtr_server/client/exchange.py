"""One message to a server, with what comes of it: the same over HTTP and over standard input and output."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from ..errors import BadReply, NoReply, RequestRefused
from ..protocol.messages import EVENT_NOTIFICATIONS, JSON, PIECE, SUBSCRIPTION_ID
from ..well_formed import read_json
from .bounds import Allowance

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
